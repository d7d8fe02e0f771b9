#![allow(clippy::unwrap_used)]

use uuid::Uuid;

use super::*;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn turn(session: u128, version: u64, score: f32) -> ScoredTurn {
    ScoredTurn {
        session: SessionId(Uuid::from_u128(session)),
        version: PolicyVersion(version),
        holdback: version == 0,
        score,
        at_ms: session as Millis,
        complaint: None,
    }
}

/// Sessions whose turns agree with each other: each session has its own chance of a good answer.
/// `effect` is the true difference between the arms.
fn world(rng: &mut Rng, (policy, base): (u128, u128), effect: f64) -> Vec<ScoredTurn> {
    let mut turns = Vec::new();
    for session in 0..policy + base {
        let version = u64::from(session < policy);
        let good = 0.5 + (rng.unit() - 0.5) * 0.6 + version as f64 * effect / 2.0;
        for _ in 0..=rng.next() % 6 {
            let score = if rng.unit() < good { 1.0 } else { -1.0 };
            turns.push(turn(session, version, score));
        }
    }
    turns
}

#[test]
fn the_interval_covers_the_truth_as_often_as_it_says() {
    let rounds = 2_000;
    // Sessions of either arm, and the true difference.
    for (arms, effect) in [
        ((60, 8), 0.0),
        ((60, 8), 0.3),
        ((200, 20), 0.0),
        ((30, 30), -0.2),
    ] {
        let mut rng = Rng(7);
        let covered = (0..rounds).filter(|_| {
            let lift = measure(&world(&mut rng, arms, effect));
            let (low, high) = lift.interval.expect("there are sessions enough");
            (low..=high).contains(&effect)
        });
        let share = covered.count() as f64 / f64::from(rounds);
        assert!(
            (0.935..=0.985).contains(&share),
            "{arms:?} {effect}: {share}"
        );
    }
}

/// Counting turns as if they were independent is what the interval must not do.
#[test]
fn sessions_of_equal_turns_count_once() {
    let mut rng = Rng(3);
    let mut few = Vec::new();
    for session in 0..40 {
        let score = if rng.unit() < 0.5 { 1.0 } else { -1.0 };
        few.push(turn(session, u64::from(session % 2 == 0), score));
    }
    let many: Vec<ScoredTurn> = few.iter().flat_map(|t| vec![t.clone(); 25]).collect();
    let (few, many) = (measure(&few), measure(&many));
    let (few, many) = (
        few.interval.expect("enough"),
        many.interval.expect("enough"),
    );
    assert!((few.0 - many.0).abs() < 1e-9 && (few.1 - many.1).abs() < 1e-9);
}

#[test]
fn the_detectable_effect_is_detected_in_four_of_five_cases() {
    let arms = (120, 40);
    let mut rng = Rng(11);
    let sizes = (0..200).filter_map(|_| measure(&world(&mut rng, arms, 0.0)).smallest_detectable);
    let size = sizes.sum::<f64>() / 200.0;
    let seen = (0..1_000).filter(|_| {
        let lift = measure(&world(&mut rng, arms, size));
        lift.interval.is_some_and(|(low, _)| low > 0.0)
    });
    let share = seen.count() as f64 / 1_000.0;
    assert!((0.72..=0.9).contains(&share), "{share} at {size}");
}

#[test]
fn a_few_sessions_that_agree_are_no_certainty() {
    let mut turns = Vec::new();
    for session in 0..5 {
        turns.push(turn(session, 0, -1.0));
        turns.push(turn(100 + session, 1, -1.0));
    }
    let lift = measure(&turns);
    assert_eq!(lift.difference, Some(0.0));
    let (low, high) = lift.interval.expect("enough");
    assert!(low < -0.3 && high > 0.3, "{low} {high}");
    turns.truncate(8);
    assert_eq!(measure(&turns).difference, None);
}

#[test]
fn quantiles_match_the_tables() {
    // (p, degrees of freedom, Student's t)
    let rows = [
        (0.975, 1.0, 12.706),
        (0.975, 2.0, 4.303),
        (0.975, 4.0, 2.776),
        (0.975, 10.0, 2.228),
        (0.975, 1e9, 1.960),
        (0.8, 5.0, 0.920),
    ];
    for (p, freedom, expected) in rows {
        let got = t_quantile(p, freedom);
        assert!((got - expected).abs() < 0.02, "{p} {freedom}: {got}");
    }
}

#[test]
fn repeated_complaints_are_told_from_others() {
    // Checked by hand: (earlier, later, the same complaint).
    let rows = [
        ("Please be brief.", "please be brief!", true),
        (
            "That is too long, keep it short",
            "Too long, keep it short please",
            true,
        ),
        ("use metric units", "Use metric units, not miles", true),
        ("答案太长了，请简短", "答案太长了，请简短一点", true),
        ("Please be brief.", "The capital is Canberra", false),
        ("no, in German", "no, in French", false),
        ("wrong", "that was rude", false),
    ];
    for (earlier, later, same) in rows {
        let complaint = |session, text: &str| ScoredTurn {
            complaint: Some(text.to_owned()),
            ..turn(session, 1, -1.0)
        };
        let rate = |second| measure(&[complaint(1, earlier), complaint(second, later)]);
        let expected = if same { 0.5 } else { 0.0 };
        assert_eq!(
            rate(2).repeat_mistake_rate,
            Some(expected),
            "{earlier} / {later}"
        );
        assert_eq!(
            rate(1).repeat_mistake_rate,
            Some(0.0),
            "one session, one mistake"
        );
    }
}

#[test]
fn every_state_has_its_sentence() {
    let good = |n: u128, version, score| {
        (0..n).map(move |s| turn(s + 1_000 * u128::from(version), version, score))
    };
    let none = measure(&[]);
    assert_eq!(
        sentence(&none, false),
        "No answer of a learned version was judged yet."
    );
    assert!(sentence(&none, true).starts_with("Not enough data yet: about "));
    let alone: Vec<_> = good(9, 1, -1.0).collect();
    assert!(sentence(&measure(&alone), false).contains("100 corrections per 100 judged turns"));
    let clear: Vec<_> = good(60, 1, 1.0).chain(good(30, 0, -1.0)).collect();
    let clear = measure(&clear);
    assert!(sentence(&clear, true).starts_with("Learned versions score 2.00 better"));
    assert_eq!(clear.sessions_needed, None);
    assert_eq!((clear.sessions_policy, clear.sessions_base), (60, 30));
    assert_eq!(clear.corrections_per_100, (Some(0.0), Some(100.0)));
    let mut rng = Rng(5);
    let vague = measure(&world(&mut rng, (20, 6), 0.0));
    assert!(
        sentence(&vague, true).contains("more sessions are needed"),
        "{vague:?}"
    );
    let same = measure(&world(&mut rng, (4_000, 4_000), 0.0));
    assert!(
        sentence(&same, true).starts_with("No difference"),
        "{same:?}"
    );
}

#[test]
fn paired_differences_have_an_interval_that_shrinks_with_their_number() {
    assert_eq!(paired(&[1.0; 4]), None);
    let few = paired(&[0.0, 2.0, 0.0, 2.0, 1.0]).unwrap();
    assert!((few.difference - 1.0).abs() < 1e-9);
    // Four squares of 1 and the one not seen: (5 / 4 / 5)^0.5 = 0.5, times t(0.975, 4) = 2.776.
    assert!((few.interval.1 - 1.0 - 0.5 * 2.776).abs() < 0.01, "{few:?}");
    let many: Vec<f64> = (0..200).map(|n| f64::from(n % 3)).collect();
    let many = paired(&many).unwrap();
    assert!(many.interval.0 > 0.8 && many.interval.1 < 1.2, "{many:?}");
    assert!(many.smallest_detectable < few.smallest_detectable / 5.0);
    let alike = paired(&[1.0; 5]).unwrap();
    assert!(alike.interval.0 < 1.0, "five that agree are not certainty");
}
