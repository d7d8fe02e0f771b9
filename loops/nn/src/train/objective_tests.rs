//! Objectives against PyTorch (`tests/goldens/make_objective_goldens.py`), and what a step makes of
//! them.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use serde_json::Value;

use super::batch::Sink;
use super::*;
use crate::testing::{config, go_on, learner, lora, model, rows, tiny};
use hone_checkpoint::config::Family;

const GOLDEN: &str = include_str!("../../../../tests/goldens/objectives.json");

fn golden() -> Value {
    serde_json::from_str(GOLDEN).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    let number = |v: &Value| v.as_f64().unwrap() as f32;
    value.as_array().unwrap().iter().map(number).collect()
}

fn views(golden: &Value) -> Vec<TokenView> {
    let mut views = Vec::new();
    for row in golden["tokens"].as_array().unwrap() {
        let [behavior, proximal, current] =
            ["behavior", "proximal", "current"].map(|key| numbers(&row[key]));
        let mean = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(a, b)| a - b).sum::<f32>() / a.len() as f32
        };
        let sequence = SequenceView {
            importance: mean(&current, &proximal),
            correction: mean(&proximal, &behavior),
        };
        views.extend((0..current.len()).map(|i| TokenView {
            advantage: row["advantage"].as_f64().unwrap() as f32,
            behavior: behavior[i],
            proximal: proximal[i],
            current: current[i],
            sequence,
        }));
    }
    views
}

#[track_caller]
fn close(found: f32, wanted: f32, what: &str) {
    let bound = 2e-5 * wanted.abs().max(1.0);
    assert!(
        (found - wanted).abs() < bound,
        "{what}: {found} not {wanted}"
    );
}

#[test]
fn every_objective_is_as_pytorch_computes_it() {
    let (clip_low, clip_high, correction_cap) = (0.2, 0.28, 1.5);
    let objectives = [
        ("cross_entropy", Objective::CrossEntropy),
        (
            "ppo",
            Objective::Ppo {
                clip_low,
                clip_high,
            },
        ),
        (
            "decoupled",
            Objective::DecoupledPpo {
                clip_low,
                clip_high,
                correction_cap,
            },
        ),
        ("cispo", Objective::Cispo { ratio_cap: 1.5 }),
        (
            "gspo",
            Objective::Gspo {
                clip_low,
                clip_high,
                correction_cap,
            },
        ),
        (
            "dppo_tv",
            Objective::DppoTv {
                threshold: 0.1,
                anchor: 1e-3,
            },
        ),
        ("token_tis", Objective::TokenTis { correction_cap }),
    ];
    let golden = golden();
    assert_eq!(golden["terms"].as_object().unwrap().len(), objectives.len());
    for (name, objective) in objectives {
        let terms = &golden["terms"][name];
        let (losses, slopes) = (numbers(&terms["loss"]), numbers(&terms["slope"]));
        let views = views(&golden);
        assert_eq!(views.len(), losses.len());
        let mut clipped = 0;
        for (i, view) in views.iter().enumerate() {
            let term = objective.term(view);
            close(term.loss, losses[i], &format!("{name} loss {i}"));
            close(term.slope, slopes[i], &format!("{name} slope {i}"));
            clipped += usize::from(term.clipped);
        }
        let clips = matches!(
            objective,
            Objective::Ppo { .. } | Objective::DecoupledPpo { .. } | Objective::DppoTv { .. }
        );
        assert!(!clips || clipped > 0, "{name}: the golden clips nothing");
    }
}

#[test]
fn kl_estimates_are_as_pytorch_computes_them() {
    let golden = golden();
    for (name, estimator) in [
        ("k1", KlEstimator::K1),
        ("k2", KlEstimator::K2),
        ("k3", KlEstimator::K3),
    ] {
        let values = numbers(&golden["kl"][name]["value"]);
        let slopes = numbers(&golden["kl"][name]["slope"]);
        for (i, view) in views(&golden).iter().enumerate() {
            let (value, slope) = estimator.term(view.current, view.proximal);
            close(value, values[i], name);
            close(slope, slopes[i], name);
        }
    }
}

const DISTILL: Distill = Distill {
    coef: 1.0,
    clip: 1.0,
    ratio_low: 0.2,
    ratio_high: 0.28,
};

#[test]
fn the_teacher_is_followed_as_pytorch_computes_it() {
    for place in golden()["topk"].as_array().unwrap() {
        let top = TopK {
            ids: vec![0; numbers(&place["proximal"]).len()],
            proximal: numbers(&place["proximal"]),
            teacher: numbers(&place["teacher"]),
        };
        let (loss, slopes) = DISTILL.terms(&top, &numbers(&place["current"]));
        close(loss, place["loss"].as_f64().unwrap() as f32, "loss");
        for (slope, wanted) in slopes.iter().zip(numbers(&place["slope"])) {
            close(*slope, wanted, "slope");
        }
    }
}

#[test]
fn at_the_sampling_policy_every_ratio_form_is_plain_policy_gradient() {
    let view = TokenView {
        advantage: -0.7,
        behavior: -1.2,
        proximal: -1.2,
        current: -1.2,
        sequence: SequenceView::default(),
    };
    let (clip_low, clip_high, correction_cap) = (0.2, 0.28, 5.0);
    for objective in [
        Objective::CrossEntropy,
        Objective::Ppo {
            clip_low,
            clip_high,
        },
        Objective::DecoupledPpo {
            clip_low,
            clip_high,
            correction_cap,
        },
        Objective::Cispo { ratio_cap: 5.0 },
        Objective::Gspo {
            clip_low,
            clip_high,
            correction_cap,
        },
        Objective::DppoTv {
            threshold: 0.2,
            anchor: 1e-3,
        },
        Objective::TokenTis { correction_cap },
    ] {
        close(objective.term(&view).slope, 0.7, &format!("{objective:?}"));
    }
}

#[test]
fn the_rate_shrinks_with_the_effective_share_of_samples() {
    for (ess, base, scale) in [
        (1.0, 0.0, 1.0),
        (0.1, 0.0, 1.0),
        (1.0, 0.5, 1.0),
        (0.5, 0.5, 1.0),
        (0.125, 0.5, 0.5),
    ] {
        close(ess_scale(ess, base), scale, &format!("{ess} {base}"));
    }
}

/// Gradients of one step without a change of the weights.
fn gradient(rows: &[TrainRow], change: impl Fn(&mut LearnerConfig)) -> Vec<f32> {
    let shape = tiny(Family::Qwen3);
    let base = Arc::new(model(&shape, 7));
    let trainable = Trainable::Lora(lora(hone_checkpoint::AdapterDtype::F32));
    let objective = Objective::DecoupledPpo {
        clip_low: 0.2,
        clip_high: 0.28,
        correction_cap: 2.0,
    };
    let mut cfg = config(trainable, objective);
    cfg.lr = 0.0;
    change(&mut cfg);
    let mut learner = learner(&base, cfg);
    learner.step(rows, &mut go_on).unwrap();
    let Sink::Adapter(grads) = &learner.sink else {
        panic!("it trains an adapter")
    };
    grads
        .to_tensors()
        .into_iter()
        .flat_map(|t| t.data)
        .collect()
}

#[track_caller]
fn same(found: &[f32], wanted: &[f32]) {
    let scale = wanted.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
    assert!(scale > 1e-6);
    for (a, b) in found.iter().zip(wanted) {
        assert!((a - b).abs() < 1e-4 * scale, "{a} not {b} of {scale}");
    }
}

#[test]
fn kinds_are_means_of_their_own_and_add_up() {
    let shape = tiny(Family::Qwen3);
    let policy = rows(&shape, 2);
    let mut imitated = rows(&shape, 3);
    imitated.truncate(1);
    for loss in &mut imitated[0].loss {
        *loss = TokenLoss {
            kept: None,
            ..TokenLoss::imitated(loss.position)
        };
    }
    let one = gradient(&policy, |_| ());
    let other = gradient(&imitated, |_| ());
    // What is imitated is not held to the reference as well.
    let held = gradient(&imitated, |cfg| cfg.kl_coef = 0.5);
    assert_eq!(held, other);
    let both: Vec<TrainRow> = policy.into_iter().chain(imitated).collect();
    let found = gradient(&both, |cfg| cfg.supervised_coef = 0.5);
    let wanted: Vec<f32> = one.iter().zip(&other).map(|(a, b)| a + 0.5 * b).collect();
    same(&found, &wanted);
}

#[test]
fn a_teacher_of_one_candidate_is_an_advantage_and_of_two_their_sum() {
    let shape = tiny(Family::Qwen3);
    let tokens = crate::testing::tokens(&shape, 12, 5);
    let at = |last: u32, advantage: f32, teacher: Option<TopK>| TrainRow {
        tokens: tokens[..11].iter().copied().chain([last]).collect(),
        loss: vec![TokenLoss {
            advantage,
            kind: LossKind::Policy,
            // Far below, so that the correction is at its cap of 2 wherever it counts.
            behavior_logprob: -30.0,
            teacher,
            ..TokenLoss::imitated(11)
        }],
    };
    let (a, b) = (3, 9);
    let base = Arc::new(model(&shape, 7));
    let cfg = config(
        Trainable::Lora(lora(hone_checkpoint::AdapterDtype::F32)),
        Objective::CrossEntropy,
    );
    let mut plain = learner(&base, cfg);
    let ids = vec![vec![vec![a, b]]];
    let rows = [at(a, 0.0, None)];
    let proximal = plain
        .logprobs_of(&rows, Under::Current, &ids, &mut go_on)
        .unwrap()[0][0]
        .clone();
    let tops = plain
        .top_logprobs(&rows, Under::Current, 4, &mut go_on)
        .unwrap();
    assert!(tops[0][0].windows(2).all(|pair| pair[0].1 >= pair[1].1));
    assert_eq!(
        plain.logprobs(&rows, &mut go_on).unwrap()[0][0],
        proximal[0]
    );

    let teacher: Vec<f32> = vec![proximal[0] + 0.5, proximal[1] - 0.25];
    let reference = plain
        .logprobs_of(&rows, Under::Reference, &ids, &mut go_on)
        .unwrap();
    assert_ne!(reference[0][0], proximal, "the adapter is random");
    let share = 1.0 / (1.0 + (proximal[1] - proximal[0]).exp());
    let two = TopK {
        ids: vec![a, b],
        proximal: proximal.clone(),
        teacher: teacher.clone(),
    };
    let found = gradient(&[at(a, 0.0, Some(two.clone()))], |_| ());
    // A token that has a teacher only is pulled by it alike.
    let mut apart = at(a, 0.7, Some(two));
    apart.loss[0].kind = LossKind::Taught;
    same(&gradient(&[apart], |_| ()), &found);
    let of = |id, advantage: f32| gradient(&[at(id, advantage / 2.0, None)], |_| ());
    let (first, second) = (of(a, 0.5 * share), of(b, -0.25 * (1.0 - share)));
    let wanted: Vec<f32> = first.iter().zip(&second).map(|(a, b)| a + b).collect();
    same(&found, &wanted);
}

#[test]
fn a_sequence_ratio_is_one_ratio_for_all_its_tokens() {
    let shape = tiny(Family::Llama);
    let base = Arc::new(model(&shape, 7));
    let mut rows = rows(&shape, 2);
    for row in &mut rows {
        let middle = row.loss.len() / 2;
        for (i, loss) in row.loss.iter_mut().enumerate() {
            loss.sequence = u32::from(i >= middle);
        }
    }
    let objective = Objective::Gspo {
        clip_low: 1e-4,
        clip_high: 1e-4,
        correction_cap: 5.0,
    };
    let trainable = Trainable::Lora(lora(hone_checkpoint::AdapterDtype::F32));
    let cfg = LearnerConfig {
        updates_per_step: 3,
        ..config(trainable, objective)
    };
    let report = learner(&base, cfg).step(&rows, &mut go_on).unwrap();
    // The first update stands at ratio one; later ones have moved past so narrow a range somewhere.
    assert_eq!(report.updates, 3);
    assert!(
        report.clip_share > 0.0 && report.clip_share < 1.0,
        "{report:?}"
    );
}

#[test]
fn a_session_in_one_row_has_the_gradient_of_its_turns() {
    // Bounds: log-probs to the bit, gradients to 1e-4 of the largest entry (sums in another order).
    let shape = tiny(Family::Qwen3);
    let tokens = crate::testing::tokens(&shape, 40, 9);
    let turn = |n: usize| -> Vec<TokenLoss> {
        let one = |position| TokenLoss {
            advantage: [1.0, -0.5, 0.25, -1.0][n],
            behavior_logprob: -3.0,
            sequence: n as u32,
            kind: LossKind::Policy,
            ..TokenLoss::imitated(position)
        };
        (10 * n + 4..10 * n + 10).map(one).collect()
    };
    let whole = [TrainRow {
        tokens: tokens.clone(),
        loss: (0..4).flat_map(turn).collect(),
    }];
    let by_turn: Vec<TrainRow> = (0..4)
        .map(|n| TrainRow {
            tokens: tokens[..10 * n + 10].to_vec(),
            loss: turn(n),
        })
        .collect();
    let with_kl = |cfg: &mut LearnerConfig| cfg.kl_coef = 0.1;
    same(&gradient(&whole, with_kl), &gradient(&by_turn, with_kl));
    let base = Arc::new(model(&shape, 7));
    let trainable = Trainable::Lora(lora(hone_checkpoint::AdapterDtype::F32));
    let logprobs = |rows: &[TrainRow]| {
        let mut learner = learner(&base, config(trainable.clone(), Objective::CrossEntropy));
        learner.logprobs(rows, &mut go_on).unwrap().concat()
    };
    assert_eq!(logprobs(&whole), logprobs(&by_turn));
}

#[test]
fn soft_targets_pull_as_their_tokens_do_by_their_shares() {
    let shape = tiny(Family::Qwen3);
    let tokens = crate::testing::tokens(&shape, 12, 5);
    let at = |last: u32, soft: Option<SoftTargets>| TrainRow {
        tokens: tokens[..11].iter().copied().chain([last]).collect(),
        loss: vec![TokenLoss {
            soft,
            ..TokenLoss::imitated(11)
        }],
    };
    let (a, b, c) = (3, 9, 5);
    let alone = |id| gradient(&[at(id, None)], |_| ());
    let soft = SoftTargets {
        ids: vec![a, b],
        probs: vec![0.7, 0.2],
    };
    let wanted = |rest: f32| {
        let (a, b, c) = (alone(a), alone(b), alone(c));
        let sum = |i: usize| 0.7 * a[i] + 0.2 * b[i] + rest * c[i];
        (0..a.len()).map(sum).collect::<Vec<f32>>()
    };
    // What the targets have is not counted twice; what they lack counts whole.
    same(
        &gradient(&[at(a, Some(soft.clone()))], |_| ()),
        &wanted(0.0),
    );
    same(
        &gradient(&[at(c, Some(soft.clone()))], |_| ()),
        &wanted(1.0),
    );
    // Weighted as tokens are.
    let mut half = at(c, Some(soft));
    half.loss[0].advantage = 0.5;
    let halves: Vec<f32> = wanted(1.0).iter().map(|g| g / 2.0).collect();
    same(&gradient(&[half], |_| ()), &halves);
}
