#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;
use hone_domain::TokenMask;

fn take(row: &[f32], params: &SamplingParams, position: u64) -> Sampled {
    sample(
        row,
        params,
        &TokenCounts::default(),
        position,
        &mut SampleScratch::default(),
    )
}

/// Exact probabilities by the textbook: sort everything, cut, renormalize, in f64.
fn exact(row: &[f32], params: &SamplingParams) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::MIN, f32::max);
    let weight = |l: f32| (f64::from(l - max) / f64::from(params.temperature)).exp();
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
    order.retain(|i| weight(row[*i]) >= f64::from(params.min_p) * (1.0 - 1e-6));
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let total: f64 = order.iter().map(|i| weight(row[*i])).sum();
    let mut mass = 0.0;
    let mut probs = vec![0.0; row.len()];
    for i in order {
        if mass >= f64::from(params.top_p) * total && params.top_p < 1.0 {
            break;
        }
        probs[i] = weight(row[i]);
        mass += weight(row[i]);
    }
    let kept: f64 = probs.iter().sum();
    probs.iter().map(|p| p / kept).collect()
}

const ROW: [f32; 10] = [0.3, -1.2, 2.0, 1.1, 0.0, -0.4, 1.9, -3.0, 0.7, 1.5];

fn settings() -> Vec<SamplingParams> {
    let base = SamplingParams::default();
    vec![
        base.clone(),
        SamplingParams {
            temperature: 0.6,
            ..base.clone()
        },
        SamplingParams {
            temperature: 1.7,
            top_k: 4,
            ..base.clone()
        },
        SamplingParams {
            top_p: 0.8,
            ..base.clone()
        },
        SamplingParams {
            min_p: 0.2,
            ..base.clone()
        },
        SamplingParams {
            temperature: 1.3,
            top_k: 7,
            top_p: 0.9,
            min_p: 0.05,
            ..base
        },
    ]
}

#[test]
fn draws_follow_the_exact_distribution() {
    const DRAWS: u64 = 40_000;
    for (case, params) in settings().into_iter().enumerate() {
        let params = SamplingParams {
            seed: 7 + case as u64,
            ..params
        };
        let probs = exact(&ROW, &params);
        let mut counts = vec![0u64; ROW.len()];
        let mut scratch = SampleScratch::default();
        for position in 0..DRAWS {
            let drawn = sample(
                &ROW,
                &params,
                &TokenCounts::default(),
                position,
                &mut scratch,
            );
            counts[drawn.token as usize] += 1;
        }
        let mut chi_square = 0.0;
        for (count, p) in counts.iter().zip(&probs) {
            let expected = p * DRAWS as f64;
            if *p == 0.0 {
                assert_eq!(*count, 0, "case {case} drew a token that was cut");
            } else {
                chi_square += (*count as f64 - expected).powi(2) / expected;
            }
        }
        // 99.99 % point of chi-square with 9 degrees of freedom is 33.7; fewer are stricter still.
        assert!(chi_square < 33.7, "case {case}: chi-square {chi_square}");
    }
}

#[test]
fn behavior_logprob_is_that_of_the_distribution_drawn_from() {
    for params in settings() {
        let probs = exact(&ROW, &params);
        let raw = exact(&ROW, &SamplingParams::default());
        for position in 0..200 {
            let drawn = take(&ROW, &params, position);
            let at = drawn.token as usize;
            assert!((f64::from(drawn.behavior_logprob) - probs[at].ln()).abs() < 1e-5);
            assert!((f64::from(drawn.raw_logprob) - raw[at].ln()).abs() < 1e-5);
            let again = token_logprob(&ROW, drawn.token, params.temperature, drawn.kept.as_deref());
            assert_eq!(again.to_bits(), drawn.behavior_logprob.to_bits());
        }
    }
}

#[test]
fn kept_sets_are_exact_and_ascending() {
    let kept = |params: SamplingParams| take(&ROW, &params, 0).kept;
    let base = SamplingParams::default;
    assert_eq!(kept(base()), None);
    assert_eq!(
        kept(SamplingParams {
            top_k: 10,
            ..base()
        }),
        None
    );
    assert_eq!(
        kept(SamplingParams { top_k: 3, ..base() }),
        Some(vec![2, 6, 9])
    );
    assert_eq!(kept(SamplingParams { top_k: 1, ..base() }), Some(vec![2]));
    assert_eq!(
        kept(SamplingParams {
            top_p: 0.0,
            ..base()
        }),
        Some(vec![2])
    );
    assert_eq!(
        kept(SamplingParams {
            min_p: 1.0,
            ..base()
        }),
        Some(vec![2])
    );
    // Ties are cut by id: of four equal tokens top-k 2 keeps the lowest two.
    let flat = [1.0f32; 4];
    let params = SamplingParams { top_k: 2, ..base() };
    assert_eq!(take(&flat, &params, 3).kept, Some(vec![0, 1]));
    let params = SamplingParams {
        top_p: 0.5,
        ..base()
    };
    assert_eq!(take(&flat, &params, 3).kept, Some(vec![0, 1]));
}

proptest! {
    #[test]
    fn kept_sets_agree_with_sorting_everything(
        row in prop::collection::vec(-8.0f32..8.0, 2..700),
        top_k in 0u32..40, top_p in 0.05f32..1.0, temperature in 0.3f32..2.0, position in 0u64..9,
    ) {
        let params = SamplingParams { temperature, top_k, top_p, ..SamplingParams::default() };
        let drawn = take(&row, &params, position);
        let probs = exact(&row, &params);
        let expected: Vec<u32> = (0..row.len() as u32).filter(|i| probs[*i as usize] > 0.0).collect();
        let kept = drawn.kept.unwrap_or_else(|| (0..row.len() as u32).collect());
        // Rounding may move the cut by one token where the mass meets top_p almost exactly.
        prop_assert!(kept.len().abs_diff(expected.len()) <= 1, "{} {}", kept.len(), expected.len());
        let shared = kept.iter().filter(|id| expected.contains(id)).count();
        prop_assert_eq!(shared, kept.len().min(expected.len()));
        prop_assert!(kept.contains(&drawn.token));
    }

    #[test]
    fn no_input_panics_or_gives_nan(
        row in prop::collection::vec(prop_oneof![
            Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(f32::MAX),
            Just(f32::MIN), Just(0.0f32), -50.0f32..50.0,
        ], 1..40),
        temperature in prop_oneof![Just(0.0f32), Just(1e-4f32), Just(1.0f32), Just(100.0f32)],
        top_p in 0.0f32..1.5, min_p in 0.0f32..1.5, top_k in 0u32..50, banned in 0u32..50,
        bias in prop_oneof![Just(-100.0f32), Just(100.0f32), Just(f32::MAX)],
        repetition_penalty in 0.1f32..3.0,
        allowed in prop::option::of(prop::collection::btree_set(0u32..40, 1..9)),
    ) {
        let allowed = allowed.map(|ids| ids.into_iter().filter(|id| (*id as usize) < row.len()).collect());
        let allowed = allowed.filter(|ids: &Vec<u32>| !ids.is_empty());
        let params = SamplingParams {
            allowed: allowed.map(|ids| TokenMask::of(&ids)),
            temperature, top_p, top_k, min_p, repetition_penalty, banned: vec![banned],
            logit_bias: vec![(0, bias), (1_000_000, 1.0)], top_logprobs: 5,
            ..SamplingParams::default()
        };
        let mut history = TokenCounts::new(&[0, 1, 2, 90]);
        history.push(0);
        let drawn = sample(&row, &params, &history, 1, &mut SampleScratch::default());
        prop_assert!((drawn.token as usize) < row.len());
        prop_assert!(!drawn.raw_logprob.is_nan() && !drawn.behavior_logprob.is_nan());
        prop_assert!(drawn.top.iter().all(|(_, lp)| !lp.is_nan()));
        prop_assert_eq!(drawn.nonfinite, row.iter().any(|v| v.is_nan() || v.abs() > 1e30));
    }
}

#[test]
fn the_largest_finite_logits_give_no_nan() {
    let params = SamplingParams {
        temperature: 1e-4,
        ..SamplingParams::default()
    };
    let drawn = take(&[f32::MAX; 4], &params, 0);
    assert!(drawn.nonfinite);
    assert!(
        (drawn.behavior_logprob - 0.25f32.ln()).abs() < 1e-6,
        "{drawn:?}"
    );
}

#[test]
fn a_seed_and_position_decide_alone() {
    let params = SamplingParams {
        seed: 42,
        ..SamplingParams::default()
    };
    let run = |params: &SamplingParams, scratch: &mut SampleScratch| -> Vec<u32> {
        let history = TokenCounts::default();
        (0..64)
            .map(|p| sample(&ROW, params, &history, p, scratch).token)
            .collect()
    };
    let mut used = SampleScratch::default();
    let first = run(&params, &mut used);
    assert_eq!(first, run(&params, &mut used));
    assert_eq!(first, run(&params, &mut SampleScratch::default()));
    let other = SamplingParams { seed: 43, ..params };
    assert_ne!(first, run(&other, &mut used));
}

#[test]
fn uniform_numbers_are_uniform_over_seeds_and_positions() {
    let mut buckets = [0u32; 16];
    for seed in 0..200 {
        for position in 0..200 {
            buckets[(uniform(seed, position) * 16.0) as usize] += 1;
        }
    }
    let expected = 200.0 * 200.0 / 16.0;
    let chi_square: f64 = buckets
        .iter()
        .map(|b| (f64::from(*b) - expected).powi(2) / expected)
        .sum();
    assert!(
        chi_square < 44.3,
        "99.99 % point for 15 degrees of freedom; got {chi_square}"
    );
}

#[test]
fn temperature_zero_takes_the_best_and_lowest() {
    let params = SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    };
    let drawn = take(&[1.0, 3.0, 3.0, 2.0], &params, 5);
    assert_eq!(drawn.token, 1);
    assert_eq!(drawn.kept, None);
    assert_eq!(
        drawn.behavior_logprob.to_bits(),
        drawn.raw_logprob.to_bits()
    );
}

#[test]
fn penalties_and_bias_follow_their_formulas() {
    let mut history = TokenCounts::new(&[0, 1]);
    history.push(1);
    history.push(1);
    history.push(2);
    let params = SamplingParams {
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        repetition_penalty: 2.0,
        logit_bias: vec![(3, 1.5)],
        ..SamplingParams::default()
    };
    let mut adjusted = Vec::new();
    adjust(
        &[4.0, 4.0, -1.0, 1.0, 1.0],
        &params,
        &history,
        &mut adjusted,
    );
    // in the prompt only: halved; twice in the completion: halved, then 2 * 0.5 and 0.25 off;
    // negative and once: doubled, then 0.5 and 0.25 off; biased; untouched
    assert_eq!(adjusted, [2.0, 0.75, -2.75, 2.5, 1.0]);
    assert!(!replayable(&params));
    assert!(replayable(&SamplingParams {
        top_k: 5,
        top_p: 0.5,
        ..SamplingParams::default()
    }));
    let banned = SamplingParams {
        banned: vec![1],
        ..SamplingParams::default()
    };
    assert!(!replayable(&banned));
}

#[test]
fn a_banned_token_is_never_drawn_unless_all_are() {
    let params = SamplingParams {
        banned: vec![2],
        logit_bias: vec![(2, 100.0)],
        ..SamplingParams::default()
    };
    for position in 0..500 {
        assert_ne!(take(&ROW, &params, position).token, 2);
    }
    let greedy = SamplingParams {
        temperature: 0.0,
        ..params
    };
    assert_eq!(take(&ROW, &greedy, 0).token, 6);
    let all = SamplingParams {
        banned: (0..10).collect(),
        ..SamplingParams::default()
    };
    let drawn = take(&ROW, &all, 0);
    assert!(drawn.behavior_logprob > -10.0, "{drawn:?}");
}

#[test]
fn the_most_likely_tokens_are_reported_best_first() {
    let params = SamplingParams {
        top_logprobs: 3,
        ..SamplingParams::default()
    };
    let drawn = take(&ROW, &params, 1);
    let ids: Vec<u32> = drawn.top.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [2, 6, 9]);
    let raw = exact(&ROW, &SamplingParams::default());
    for (id, logprob) in &drawn.top {
        assert!((f64::from(*logprob) - raw[*id as usize].ln()).abs() < 1e-5);
        if *id == drawn.token {
            assert_eq!(*logprob, drawn.raw_logprob);
        }
    }
    let all = SamplingParams {
        top_logprobs: 255,
        ..SamplingParams::default()
    };
    assert_eq!(take(&ROW, &all, 1).top.len(), ROW.len());
}

#[test]
fn the_most_likely_tokens_can_be_those_of_the_distribution_drawn_from() {
    for params in settings() {
        let params = SamplingParams {
            top_logprobs: 255,
            top_behavior: true,
            ..params
        };
        let probs = exact(&ROW, &params);
        for position in 0..20 {
            let drawn = take(&ROW, &params, position);
            let possible = probs.iter().filter(|p| **p > 0.0).count();
            assert_eq!(drawn.top.len(), possible, "what is cut is not told");
            for (id, logprob) in &drawn.top {
                let wanted = probs[*id as usize].ln();
                assert!((f64::from(*logprob) - wanted).abs() < 1e-5, "{id}");
            }
            let own = drawn.top.iter().find(|(id, _)| *id == drawn.token);
            assert_eq!(own.map(|(_, p)| *p), Some(drawn.behavior_logprob));
        }
    }
    // The gap between two tokens shrinks as the temperature rises; the raw one does not.
    let gap = |temperature: f32, top_behavior: bool| {
        let params = SamplingParams {
            temperature,
            top_logprobs: 2,
            top_behavior,
            ..SamplingParams::default()
        };
        let top = take(&ROW, &params, 0).top;
        top[0].1 - top[1].1
    };
    assert!((gap(2.0, true) / gap(1.0, true) - 0.5).abs() < 1e-4);
    assert_eq!(gap(2.0, false), gap(1.0, false));
    assert_eq!(
        gap(0.0, true),
        gap(1.0, false),
        "a greedy draw has the raw ones"
    );
    let banned = SamplingParams {
        banned: vec![2],
        top_logprobs: 1,
        top_behavior: true,
        ..SamplingParams::default()
    };
    assert_eq!(take(&ROW, &banned, 0).top[0].0, 6);
}

#[test]
fn a_mask_comes_before_the_cuts_and_stands_above_bans_and_bias() {
    let masked = |tokens: &[u32]| SamplingParams {
        allowed: Some(TokenMask::of(tokens)),
        ..SamplingParams::default()
    };
    // Of 2, 6 and 9 (the best), only 9 is allowed besides the poor 1 and 7.
    let two = SamplingParams {
        top_k: 2,
        ..masked(&[1, 7, 9])
    };
    for position in 0..200 {
        let drawn = take(&ROW, &two, position);
        assert_eq!(drawn.kept.as_deref(), Some(&[1, 9][..]));
        let kept = token_logprob(&ROW, drawn.token, 1.0, Some(&[1, 9]));
        assert_eq!(drawn.behavior_logprob, kept);
        assert_eq!(
            drawn.raw_logprob,
            token_logprob(&ROW, drawn.token, 1.0, None)
        );
    }
    let greedy = SamplingParams {
        temperature: 0.0,
        logit_bias: vec![(2, 100.0)],
        ..masked(&[7, 8])
    };
    assert_eq!(take(&ROW, &greedy, 0).token, 8);
    let banned = SamplingParams {
        banned: vec![7, 8],
        ..masked(&[7, 8])
    };
    let drawn = take(&ROW, &banned, 0);
    assert_eq!(
        drawn.kept.as_deref(),
        Some(&[7, 8][..]),
        "bans yield, the mask does not"
    );
}

proptest! {
    /// The kept set of a masked draw is what cutting the allowed tokens alone would keep.
    #[test]
    fn a_masked_draw_is_a_draw_among_the_allowed(
        row in prop::collection::vec(-4.0f32..4.0, 2..40),
        picks in prop::collection::vec(any::<bool>(), 40),
        (top_k, top_p, temperature) in (0u32..6, 0.2f32..=1.0, 0.3f32..2.0),
        position in 0u64..50,
    ) {
        let mut allowed: Vec<u32> = (0..row.len() as u32).filter(|i| picks[*i as usize]).collect();
        if allowed.is_empty() {
            allowed.push(0);
        }
        let plain = SamplingParams { top_k, top_p, temperature, ..SamplingParams::default() };
        let masked = SamplingParams { allowed: Some(TokenMask::of(&allowed)), ..plain.clone() };
        let drawn = take(&row, &masked, position);
        let alone: Vec<f32> = allowed.iter().map(|id| row[*id as usize]).collect();
        let among = take(&alone, &plain, position);
        prop_assert_eq!(drawn.token, allowed[among.token as usize]);
        let every: Vec<u32> = (0..alone.len() as u32).collect();
        let kept: Vec<u32> = among.kept.unwrap_or(every).iter().map(|at| allowed[*at as usize]).collect();
        // Nothing kept apart is everything kept.
        let whole: Vec<u32> = (0..row.len() as u32).collect();
        prop_assert_eq!(drawn.kept.as_deref().unwrap_or(&whole), &kept[..]);
        let again = token_logprob(&row, drawn.token, temperature, Some(&kept));
        prop_assert_eq!(drawn.behavior_logprob.to_bits(), again.to_bits());
    }
}
