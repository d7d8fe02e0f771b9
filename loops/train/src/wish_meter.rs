//! How much a candidate does of what a person asked for, measured without a dictionary.

use serde::{Deserialize, Serialize};

/// Least nats per token by which what was asked for has to become likelier.
const LIKELIER_MIN: f32 = 0.02;

/// Mean log-prob per token, in nats, that the base model gives to its own answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtALoss {
    /// To the person's words.
    pub told: f32,
    /// To generic prompts without any.
    pub plain: f32,
}

/// How much answers to generic prompts do what a person asked for: by how many nats per token the
/// person's words make them likelier for the base model, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WishMeter {
    /// The candidate's answers.
    pub candidate: f32,
    /// Those of what is served.
    pub served: f32,
    /// Those that were learned from: what the model answers that reads the words.
    pub told: f32,
    /// Whether the candidate's answers surely do less of it than those of what is served.
    pub surely_less: bool,
    /// By how many nats per token the candidate, without the words, gives more than what is served to
    /// what the words ask for, in answers that it did not learn from; none without such answers.
    pub likelier: Option<f32>,
    /// Whether these answers surely became less likely.
    pub surely_unlikelier: bool,
}

impl WishMeter {
    /// Whether neither the answers that were not learned from nor the candidate's own ones show that it
    /// does more of what was asked for: few answers of either kind say little by themselves.
    pub(crate) fn shows_nothing(&self) -> bool {
        let Some(unseen) = self.likelier else {
            return false;
        };
        let has_learned = unseen >= LIKELIER_MIN || self.candidate > self.served;
        unseen.is_nan() || self.surely_unlikelier || !has_learned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_that_does_no_more_of_what_was_asked_shows_nothing() {
        let meter = |likelier, candidate| WishMeter {
            candidate,
            likelier,
            ..WishMeter::default()
        };
        let rows = [
            (meter(Some(0.5), -0.1), false),
            (meter(Some(-0.1), 0.1), false),
            (meter(Some(-0.1), 0.0), true),
            (meter(Some(f32::NAN), 0.1), true),
            (meter(None, 0.0), false),
        ];
        for (wish, nothing) in rows {
            assert_eq!(wish.shows_nothing(), nothing, "{wish:?}");
        }
        let unlikelier = WishMeter {
            surely_unlikelier: true,
            ..meter(Some(-0.1), 0.1)
        };
        assert!(unlikelier.shows_nothing());
    }
}
