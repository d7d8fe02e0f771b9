//! The gate: measured numbers of a candidate in, pass, reasons, or a wish for more data out. Pure.

use hone_domain::TurnId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::config::GateConfig;
use crate::probe::ProbeSummary;
pub(crate) use crate::wish_meter::{AtALoss, WishMeter};

/// What was measured of a candidate, beside what it continues and what everything began from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Every number of the step and of the candidate's weights is finite.
    pub finite: bool,
    /// The weights differ from the served version's.
    pub changed: bool,
    /// KL(candidate ‖ base) per completion token, in nats.
    pub kl_to_reference: f32,
    /// KL(served ‖ candidate) per completion token, in nats.
    pub kl_to_parent: f32,
    /// Probes answered by the candidate.
    pub candidate: ProbeSummary,
    /// The same probes answered by the served version, with the same random numbers.
    pub parent: ProbeSummary,
    /// The same probes answered by the base model.
    pub base: ProbeSummary,
    /// Mean log-prob per token that the base model's own answers to the fixed prompts lose under the
    /// candidate, in nats: what it forgot of what nobody asked it to change.
    pub golden_loss: f32,
    /// Mean log-prob per token that the base model's own answers to generic prompts lose under the
    /// candidate, in nats.
    pub generic_loss: f32,
    /// Per plain fact, what its answer's log-prob gains under the candidate against the base model.
    pub fact_gains: Vec<f32>,
    /// Per prompt that says how it is to be answered, the mean log-prob per token that the base model's own answer
    /// loses under the candidate, in nats.
    pub instruction_losses: Vec<f32>,
    /// How much the answers do what was asked for; none where nothing was.
    pub wish: Option<WishMeter>,
    /// The person asked for something that none of the model's answers does.
    pub unlearnable: bool,
    /// The model does not know how to do what was asked for.
    pub at_a_loss: Option<AtALoss>,
    /// Mean length of what the base model answers that reads the person's words; 0 where there are
    /// none.
    pub told_tokens: f32,
    /// Share of these answers that end as soon as the probes have to; none where there are none.
    pub told_ended: Option<f32>,
    /// Per held-out turn: its score times the mean log-prob per token, in nats, that its completion
    /// gains under the candidate against the served version.
    pub differences: Vec<f32>,
}

/// What becomes of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is published; provisionally where there was too little to compare on.
    Passes {
        /// The watch has to look after it.
        provisional: bool,
    },
    /// It is not, for these reasons.
    Fails(Vec<String>),
    /// It cannot be told yet, and why.
    Waits(String),
}

/// A mean with its one-sided bounds of 95 % on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// How many differences.
    pub turns: usize,
    /// Their mean.
    pub mean: f64,
    /// It is surely above this,
    pub low: f64,
    /// and below this.
    pub high: f64,
}

/// Standard normal quantile of 95 %.
const Z_95: f64 = 1.644_853_627;

/// The t interval of paired differences; none for fewer than two.
pub fn interval(differences: &[f32]) -> Option<Interval> {
    let turns = differences.len();
    if turns < 2 {
        return None;
    }
    let n = turns as f64;
    let mean = differences.iter().map(|d| f64::from(*d)).sum::<f64>() / n;
    let squares = differences.iter().map(|d| (f64::from(*d) - mean).powi(2));
    let variance = squares.sum::<f64>() / (n - 1.0);
    // The t quantile as an expansion around the normal one (Fisher and Cornish 1960).
    let (z, freedom) = (Z_95, n - 1.0);
    let t = z
        + (z.powi(3) + z) / (4.0 * freedom)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * freedom * freedom);
    let half = t * (variance / n).sqrt();
    Some(Interval {
        turns,
        mean,
        low: mean - half,
        high: mean + half,
    })
}

/// Judges a candidate: first what is broken in itself, then whether it is surely not worse than
/// what is served on turns that nothing was learned from.
pub fn decide(config: &GateConfig, m: &Measured) -> Outcome {
    let mut reasons = objections(config, m);
    if m.golden_loss.is_nan() || m.golden_loss > config.golden_loss_max {
        reasons.push(format!(
            "the base model's own answers to the fixed prompts lose {:.2} nats per token; at most \
             {:.2} are allowed",
            m.golden_loss, config.golden_loss_max
        ));
    }
    reasons.extend(losses(config, m));
    if m.differences.iter().any(|d| !d.is_finite()) {
        reasons.push("a held-out turn has a log-prob that is not finite".to_owned());
    }
    if !reasons.is_empty() {
        return Outcome::Fails(reasons);
    }
    let compared = interval(&m.differences).filter(|i| i.turns >= config.held_out_min);
    let Some(compared) = compared else {
        return Outcome::Passes { provisional: true };
    };
    let margin = f64::from(config.held_out_margin);
    let told = format!(
        "on {} held-out turns it is {:+.3} nats against the served version, between {:+.3} and \
         {:+.3}; {:+.3} is allowed",
        compared.turns, compared.mean, compared.low, compared.high, -margin
    );
    if compared.low > -margin {
        Outcome::Passes { provisional: false }
    } else if compared.high < -margin {
        Outcome::Fails(vec![format!("it is worse than what is served: {told}")])
    } else {
        Outcome::Waits(told)
    }
}

/// What a candidate lost of what nobody asked it to change, and whether it does what was asked.
fn losses(config: &GateConfig, m: &Measured) -> Vec<String> {
    let mut reasons = Vec::new();
    if m.generic_loss.is_nan() || m.generic_loss > config.generic_loss_max {
        reasons.push(format!(
            "the base model's own answers to generic prompts lose {:.2} nats per token; at most {:.2} \
             are allowed",
            m.generic_loss, config.generic_loss_max
        ));
    }
    let least = f64::from(-config.fact_loss_max);
    // A NaN is never within a bound.
    let lost = interval(&m.fact_gains).filter(|i| i.high.is_nan() || i.high < least);
    if let Some(lost) = lost {
        reasons.push(format!(
            "the answers to {} plain facts lose {:.2} nats on average, surely more than the {:.2} that \
             are allowed",
            lost.turns, -lost.mean, config.fact_loss_max
        ));
    }
    let lost = interval(&m.instruction_losses);
    if let Some(lost) =
        lost.filter(|i| i.low.is_nan() || i.low > f64::from(config.instructed_loss_max))
    {
        reasons.push(format!(
            "the base model's own answers to {} prompts that say how they are to be answered lose {:.2} nats per token, \
             surely more than the {:.2} that are allowed",
            lost.turns, lost.mean, config.instructed_loss_max
        ));
    }
    if let Some(AtALoss { told, plain }) = m.at_a_loss {
        reasons.push(format!(
            "the model does not know how to do what was asked for: it is far less sure of what it answers to it \
             ({told:.2} nats per token) than of other answers ({plain:.2})"
        ));
    } else if m.unlearnable {
        reasons.push(
            "none of the model's answers does what was asked for, so it cannot be learned by this model"
                .to_owned(),
        );
    }
    if let Some(wish) = m.wish
        && (wish.candidate.is_nan() || wish.surely_less)
    {
        reasons.push(format!(
            "its answers do no more of what was asked for than those of the served version: {:+.3} \
             against {:+.3} nats per token",
            wish.candidate, wish.served
        ));
    }
    if let Some(wish) = m.wish.filter(WishMeter::shows_nothing) {
        reasons.push(format!(
            "it did not learn what was asked for: in other answers that do it, that is {:+.3} nats per token \
             likelier than before, and its own answers do {:+.3} more of it",
            wish.likelier.unwrap_or_default(),
            wish.candidate - wish.served
        ));
    }
    reasons
}

/// Whether a turn is kept to compare candidates on: a fixed share, by a hash of its id.
pub fn is_held_out(turn: TurnId, share: f32) -> bool {
    let mut hash = Sha256::new();
    hash.update(b"held out");
    hash.update(turn.0.as_bytes());
    let bytes: [u8; 32] = hash.finalize().into();
    let first = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    f64::from(first) < f64::from(share) * 4_294_967_296.0
}

/// Reasons against publishing, in words; none means that the candidate passes.
pub fn objections(config: &GateConfig, m: &Measured) -> Vec<String> {
    let mut reasons = Vec::new();
    if !m.finite {
        reasons.push("a number of the step or of the weights is not finite".to_owned());
    }
    if !m.changed {
        reasons.push("the step changed nothing".to_owned());
    }
    divergence(
        &mut reasons,
        "the base model",
        m.kl_to_reference,
        config.kl_to_reference_max,
    );
    divergence(
        &mut reasons,
        "the served version",
        m.kl_to_parent,
        config.kl_to_parent_max,
    );
    if m.candidate.probes == 0 {
        reasons
            .push("no probe was answered, so nothing can be said about its completions".to_owned());
        return reasons;
    }
    degeneration(&mut reasons, config, m);
    let (served, base) = (config.length_factor_max, config.length_drift_factor_max);
    length(
        &mut reasons,
        "the served version",
        m.parent,
        m.candidate,
        served,
        m.told_tokens,
    );
    length(
        &mut reasons,
        "the base model",
        m.base,
        m.candidate,
        base,
        m.told_tokens,
    );
    reasons
}

fn divergence(reasons: &mut Vec<String>, from: &str, kl: f32, most: f32) {
    // A NaN is never within a bound.
    if kl.is_nan() || kl > most {
        reasons.push(format!(
            "it diverges from {from} by {kl:.3} nats per token; at most {most:.3} are allowed"
        ));
    }
}

fn degeneration(reasons: &mut Vec<String>, config: &GateConfig, m: &Measured) {
    let percent = |share: f32| share * 100.0;
    let (candidate, parent, base) = (m.candidate, m.parent, m.base);
    if candidate.empty_share > config.empty_share_max.max(base.empty_share) {
        reasons.push(format!(
            "{:.0} % of its probe completions are empty; at most {:.0} % are allowed",
            percent(candidate.empty_share),
            percent(config.empty_share_max.max(base.empty_share)),
        ));
    }
    for (name, reference, margin) in [
        ("served version", parent, config.ended_margin),
        ("base model", base, config.ended_drift_max),
    ] {
        // Few probes are answered, and who ends as often as the base model does is not broken.
        let is_sound = candidate.ended_share >= base.ended_share;
        // Who asks for long answers gets answers that do not end within a probe.
        let asked = m.told_ended.unwrap_or(reference.ended_share);
        if !is_sound && candidate.ended_share < reference.ended_share.min(asked) - margin {
            reasons.push(format!(
                "only {:.0} % of its probe completions come to an end; the {name}'s do in {:.0} %",
                percent(candidate.ended_share),
                percent(reference.ended_share),
            ));
        }
    }
    if candidate.looping_share > base.looping_share + config.looping_margin {
        reasons.push(format!(
            "{:.0} % of its probe completions run into a repetition loop; the base model's do in {:.0} %",
            percent(candidate.looping_share),
            percent(base.looping_share),
        ));
    }
}

fn length(
    reasons: &mut Vec<String>,
    name: &str,
    reference: ProbeSummary,
    candidate: ProbeSummary,
    most: f32,
    told_tokens: f32,
) {
    // One token more on both sides keeps the factor defined for empty completions. Where a person's
    // words ask for another length, that one is allowed as well.
    let asked = match told_tokens > 0.0 {
        true => told_tokens,
        false => reference.tokens_mean,
    };
    let shortest = reference.tokens_mean.min(asked) + 1.0;
    let longest = reference.tokens_mean.max(asked) + 1.0;
    let tokens = candidate.tokens_mean + 1.0;
    if !(shortest / most..=longest * most).contains(&tokens) {
        reasons.push(format!(
            "its probe completions have {:.1} tokens on average, those of {name} {:.1}; the factor may be at most {most:.1}",
            candidate.tokens_mean, reference.tokens_mean,
        ));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::config::Config;

    fn good() -> Measured {
        let probes = ProbeSummary {
            probes: 8,
            empty_share: 0.0,
            ended_share: 1.0,
            looping_share: 0.0,
            tokens_mean: 18.0,
        };
        Measured {
            finite: true,
            changed: true,
            kl_to_reference: 0.1,
            kl_to_parent: 0.02,
            candidate: probes,
            parent: probes,
            base: probes,
            golden_loss: 0.2,
            generic_loss: 0.1,
            fact_gains: vec![0.0; 24],
            ..Measured::default()
        }
    }

    #[test]
    fn each_guard_speaks_up_alone() {
        let config = Config::for_tests().gate;
        assert_eq!(objections(&config, &good()), Vec::<String>::new());
        type Change = fn(&mut Measured);
        let rows: &[(Change, &str)] = &[
            (|m| m.finite = false, "not finite"),
            (|m| m.changed = false, "changed nothing"),
            (
                |m| m.kl_to_reference = 1.5,
                "from the base model by 1.500 nats",
            ),
            (|m| m.kl_to_reference = f32::NAN, "from the base model"),
            (
                |m| m.kl_to_parent = f32::INFINITY,
                "from the served version",
            ),
            (|m| m.candidate.probes = 0, "no probe"),
            (
                |m| m.candidate.empty_share = 0.5,
                "50 % of its probe completions are empty",
            ),
            (|m| m.candidate.ended_share = 0.6, "only 60 %"),
            (|m| m.candidate.looping_share = 0.5, "repetition loop"),
            (
                |m| m.candidate.tokens_mean = 3.0,
                "3.0 tokens on average, those of the served",
            ),
            (|m| m.candidate.tokens_mean = 80.0, "80.0 tokens on average"),
        ];
        for (change, words) in rows {
            let mut measured = good();
            change(&mut measured);
            let reasons = objections(&config, &measured);
            assert_eq!(reasons.len(), 1, "{reasons:?}");
            assert!(reasons[0].contains(words), "{reasons:?}");
        }
    }

    #[test]
    fn prompts_that_say_how_they_are_answered_may_not_lose_surely() {
        let mut config = Config::for_tests().gate;
        config.instructed_loss_max = 0.1;
        let mut measured = good();
        for (each, is_lost) in [(0.3, true), (0.05, false), (f32::NAN, true)] {
            measured.instruction_losses = (0..12).map(|n| each + 0.01 * (n % 3) as f32).collect();
            let reasons = losses(&config, &measured);
            assert_eq!(reasons.len(), usize::from(is_lost), "{each}: {reasons:?}");
        }
        // A few that lose much say little of all.
        measured.instruction_losses = vec![0.0, 0.0, 0.0, 1.2, 0.0, 0.0];
        assert_eq!(losses(&config, &measured), Vec::<String>::new());
    }

    #[test]
    fn what_the_model_cannot_do_has_one_reason() {
        let config = Config::for_tests().gate;
        let mut measured = good();
        assert_eq!(losses(&config, &measured), Vec::<String>::new());
        measured.unlearnable = true;
        let reasons = losses(&config, &measured);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(
            reasons[0].contains("cannot be learned by this model"),
            "{reasons:?}"
        );
        // Then there is no answer that does it either.
        measured.at_a_loss = Some(AtALoss {
            told: -1.4,
            plain: -0.9,
        });
        let reasons = losses(&config, &measured);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        let words = "(-1.40 nats per token) than of other answers (-0.90)";
        assert!(reasons[0].contains(words), "{reasons:?}");
    }

    #[test]
    fn many_small_steps_cannot_drift_to_where_one_step_may_not_go() {
        let config = Config::for_tests().gate;
        let mut measured = good();
        // Each version ends a little less often and is a little shorter than the one before.
        let mut refused = None;
        for step in 0..20 {
            measured.parent = measured.candidate;
            measured.candidate.ended_share -= 0.09;
            measured.candidate.tokens_mean *= 0.7;
            let reasons = objections(&config, &measured);
            if !reasons.is_empty() {
                assert!(
                    reasons.iter().all(|r| r.contains("base model")),
                    "{reasons:?}"
                );
                refused = Some(step);
                break;
            }
        }
        assert_eq!(refused, Some(5));
    }

    #[test]
    fn who_asks_for_long_answers_gets_some_that_a_probe_does_not_see_the_end_of() {
        let config = Config::for_tests().gate;
        let mut measured = good();
        measured.candidate.ended_share = 0.55;
        for (told, objected) in [(None, 1), (Some(0.2), 0), (Some(0.9), 1)] {
            measured.told_ended = told;
            assert_eq!(objections(&config, &measured).len(), objected);
        }
    }

    #[test]
    fn who_ends_as_often_as_the_base_model_is_not_broken() {
        let config = Config::for_tests().gate;
        let mut measured = good();
        measured.base.ended_share = 0.5;
        measured.candidate.ended_share = 0.6;
        assert_eq!(objections(&config, &measured), Vec::<String>::new());
        measured.candidate.ended_share = 0.4;
        let reasons = objections(&config, &measured);
        assert!(
            reasons[0].contains("served version's do in 100 %"),
            "{reasons:?}"
        );
    }

    #[test]
    fn a_model_that_never_ended_well_may_still_learn() {
        let config = Config::for_tests().gate;
        let mut measured = good();
        for summary in [
            &mut measured.candidate,
            &mut measured.parent,
            &mut measured.base,
        ] {
            summary.ended_share = 0.1;
            summary.looping_share = 0.6;
            summary.empty_share = 0.3;
        }
        assert_eq!(objections(&config, &measured), Vec::<String>::new());
    }

    /// What trials measured for a policy trained without a KL penalty at a high learning rate with
    /// a reward for brevity: replies shrink to nothing while the reward rises.
    #[test]
    fn the_known_collapse_is_refused() {
        let config = Config::for_tests().gate;
        let mut measured = good();
        measured.kl_to_reference = 4.0;
        measured.kl_to_parent = 0.9;
        measured.candidate.empty_share = 1.0;
        measured.candidate.tokens_mean = 0.0;
        assert_eq!(objections(&config, &measured).len(), 5);
        // Even if the divergences were not seen, the probes are enough.
        measured.kl_to_reference = 0.1;
        measured.kl_to_parent = 0.01;
        assert_eq!(objections(&config, &measured).len(), 3);
    }

    /// `turns` differences around `mean` with deviation `spread`: sums of uniform numbers.
    fn differences(seed: u64, (turns, mean, spread): (usize, f64, f64)) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        (0..turns)
            .map(|_| (mean + spread * normal()) as f32)
            .collect()
    }

    /// What is worse gets through rarely, what is better is rarely held up; and both errors are
    /// what the interval promises.
    #[test]
    fn held_out_turns_tell_better_from_worse() {
        let config = Config::for_tests().gate;
        let rows = [
            // (turns, mean, spread), least that pass, least that fail, of 400.
            ((60, 0.1, 0.3), 390, 0),
            ((60, -0.3, 0.3), 0, 380),
            ((200, 0.0, 0.3), 380, 0),
            ((200, -0.25, 0.3), 0, 390),
        ];
        for (shape, least_passed, least_failed) in rows {
            let (mut passed, mut failed) = (0, 0);
            for seed in 1..=400 {
                let mut measured = good();
                measured.differences = differences(seed, shape);
                match decide(&config, &measured) {
                    Outcome::Passes { provisional } => passed += i32::from(!provisional),
                    Outcome::Fails(_) => failed += 1,
                    Outcome::Waits(_) => {}
                }
            }
            assert!(passed >= least_passed, "{shape:?}: {passed} passed");
            assert!(failed >= least_failed, "{shape:?}: {failed} failed");
            let worse = shape.1 < f64::from(-config.held_out_margin);
            assert!(!worse || passed <= 4, "{shape:?}: {passed} slipped through");
        }
        // Exactly at the margin, one in twenty is let through.
        let at = (50, f64::from(-config.held_out_margin), 0.3);
        let slipped = (1..=2_000)
            .filter(|seed| interval(&differences(*seed, at)).is_some_and(|i| i.low > at.1));
        let slipped = slipped.count();
        assert!((60..=140).contains(&slipped), "{slipped} of 2000");
    }

    #[test]
    fn the_outcome_depends_on_how_much_there_is_to_compare_on() {
        let config = Config::for_tests().gate;
        let mut measured = good();
        let passes = |provisional| Outcome::Passes { provisional };
        assert_eq!(decide(&config, &measured), passes(true));
        measured.differences = vec![-1.0; config.held_out_min - 1];
        assert_eq!(decide(&config, &measured), passes(true), "too few to tell");
        measured.differences = vec![-1.0; config.held_out_min];
        assert!(matches!(decide(&config, &measured), Outcome::Fails(_)));
        measured.differences = vec![0.0; config.held_out_min];
        assert_eq!(
            decide(&config, &measured),
            passes(false),
            "a tie is not worse"
        );
        measured.differences = (0..config.held_out_min)
            .map(|i| if i % 2 == 0 { 0.9 } else { -0.9 })
            .collect();
        let Outcome::Waits(why) = decide(&config, &measured) else {
            panic!("it cannot be told");
        };
        assert!(why.contains("held-out turns"), "{why}");
        measured.differences[0] = f32::NAN;
        assert!(matches!(decide(&config, &measured), Outcome::Fails(_)));
        measured = good();
        for loss in [9.0, f32::NAN] {
            measured.golden_loss = loss;
            let Outcome::Fails(reasons) = decide(&config, &measured) else {
                panic!("it forgot everything");
            };
            assert!(reasons[0].contains("fixed prompts"), "{reasons:?}");
        }
    }

    #[test]
    fn a_fixed_share_of_turns_is_held_out() {
        let turn = |n: u128| TurnId(uuid::Uuid::from_u128(n));
        let count = |share| (0..4_000).filter(|n| is_held_out(turn(*n), share)).count();
        assert_eq!((count(0.0), count(1.0)), (0, 4_000));
        assert!((320..=480).contains(&count(0.1)), "{}", count(0.1));
        let held = (0..4_000).filter(|n| is_held_out(turn(*n), 0.1));
        assert!(
            held.into_iter().all(|n| is_held_out(turn(n), 0.2)),
            "a larger share keeps them"
        );
    }
}
