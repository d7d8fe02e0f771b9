//! The gate: measured numbers of a candidate in, pass or reasons out. Pure.

use serde::Serialize;

use crate::config::GateConfig;
use crate::probe::ProbeSummary;

/// What was measured of a candidate, beside what it continues and what everything began from.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
        ("the base model", m.kl_to_reference),
        config.kl_to_reference_max,
    );
    divergence(
        &mut reasons,
        ("the served version", m.kl_to_parent),
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
        ("the served version", m.parent),
        (m.candidate, served),
    );
    length(
        &mut reasons,
        ("the base model", m.base),
        (m.candidate, base),
    );
    reasons
}

fn divergence(reasons: &mut Vec<String>, (from, kl): (&str, f32), most: f32) {
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
        if candidate.ended_share < reference.ended_share - margin {
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
    (name, reference): (&str, ProbeSummary),
    (candidate, most): (ProbeSummary, f32),
) {
    // One token more on both sides keeps the factor defined for empty completions.
    let factor = (candidate.tokens_mean + 1.0) / (reference.tokens_mean + 1.0);
    if !(1.0 / most..=most).contains(&factor) {
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
}
