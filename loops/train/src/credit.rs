//! Credit: from scores to advantages. A method is a value of [`Method`]; the rule is one pure
//! function.

use serde::{Deserialize, Serialize};

/// How a verdict becomes an advantage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The score is the reward; every token of the completion gets the same advantage.
    BinaryReward,
}

/// What a score is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// Nothing: the advantage is the score.
    None,
    /// The mean of the scope's recent scores and of the batch's other scores. A sample's own score
    /// is left out of its baseline, so that the gradient stays unbiased (RLOO over a sliding
    /// window, because live traffic has one completion per prompt).
    ScopeMean,
}

/// A mean of recent values with the number of values it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecentMean {
    /// The mean.
    pub mean: f32,
    /// How many values it stands for, at most the window.
    pub weight: f32,
}

impl RecentMean {
    /// With `values` added; of the past at most `window` values keep their weight.
    #[must_use]
    pub fn with(self, values: &[f32], window: u32) -> Self {
        let count = values.len() as f32;
        if count == 0.0 {
            return self;
        }
        let total = self.weight + count;
        let sum = self.mean * self.weight + values.iter().sum::<f32>();
        Self {
            mean: sum / total,
            weight: total.min(window as f32),
        }
    }
}

/// The rule for a batch.
#[derive(Clone, Copy, Debug)]
pub struct CreditRule {
    /// Method.
    pub method: Method,
    /// Baseline.
    pub baseline: Baseline,
    /// Scores the scope's mean remembers.
    pub window_turns: u32,
    /// Scores of 0 that the scope mean is mixed with. They keep a little of the score where all
    /// scores agree, so that a batch of failures still teaches to move away.
    pub prior_turns: f32,
}

/// Advantages of a batch, with the scope's mean after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Credited {
    /// One per score, in its order; the same for every token of that completion.
    pub advantages: Vec<f32>,
    /// The scope's mean of recent scores, this batch included.
    pub history: RecentMean,
}

/// Advantages of a batch of `scores` in [−1, 1] of a scope whose recent scores are `history`.
///
/// Binary reward: A_i = s_i − b_i, with b_i = (w·m + Σ_{j≠i} s_j) / (w + n − 1 + p) for the scope
/// mean m of weight w and p prior turns, and 0 where nothing is known.
pub fn credit(rule: CreditRule, history: RecentMean, scores: &[f32]) -> Credited {
    let Method::BinaryReward = rule.method;
    let sum: f32 = scores.iter().sum();
    let others = history.weight + scores.len() as f32 - 1.0 + rule.prior_turns;
    let baseline_of = |score: f32| match rule.baseline {
        Baseline::ScopeMean if others > 0.0 => {
            (history.mean * history.weight + sum - score) / others
        }
        Baseline::ScopeMean | Baseline::None => 0.0,
    };
    Credited {
        advantages: scores.iter().map(|s| s - baseline_of(*s)).collect(),
        history: history.with(scores, rule.window_turns),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn rule(baseline: Baseline) -> CreditRule {
        CreditRule {
            method: Method::BinaryReward,
            baseline,
            window_turns: 32,
            prior_turns: 0.0,
        }
    }

    #[test]
    fn a_batch_that_failed_as_a_whole_still_teaches_a_little() {
        let rule = CreditRule {
            prior_turns: 4.0,
            ..rule(Baseline::ScopeMean)
        };
        let advantages = credit(rule, RecentMean::default(), &[-1.0; 5]).advantages;
        assert_eq!(advantages, [-0.5; 5]);
        assert_eq!(
            credit(rule, RecentMean::default(), &[1.0]).advantages,
            [1.0]
        );
    }

    #[test]
    fn advantages_are_scores_against_what_is_known() {
        let known = RecentMean {
            mean: 0.5,
            weight: 4.0,
        };
        let none = RecentMean::default();
        type Row<'a> = (Baseline, RecentMean, &'a [f32], &'a [f32]);
        let rows: &[Row] = &[
            (Baseline::None, known, &[1.0, -1.0, 0.0], &[1.0, -1.0, 0.0]),
            // Nothing known and nobody else in the batch: the score itself.
            (Baseline::ScopeMean, none, &[1.0], &[1.0]),
            (Baseline::ScopeMean, none, &[1.0, -1.0], &[2.0, -2.0]),
            (Baseline::ScopeMean, known, &[1.0], &[0.5]),
            // (4 * 0.5 + -1) / 5 = 0.2 and (4 * 0.5 + 1) / 5 = 0.6.
            (Baseline::ScopeMean, known, &[1.0, -1.0], &[0.8, -1.6]),
            // A neutral score below a good mean is a disadvantage.
            (Baseline::ScopeMean, known, &[0.0], &[-0.5]),
            (Baseline::ScopeMean, known, &[], &[]),
        ];
        for (baseline, history, scores, expected) in rows {
            let got = credit(rule(*baseline), *history, scores).advantages;
            assert_eq!(got.len(), expected.len());
            for (a, b) in got.iter().zip(*expected) {
                assert!((a - b).abs() < 1e-6, "{scores:?}: {got:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn equal_scores_teach_nothing_once_they_are_the_mean(score in -1.0f32..1.0, n in 2usize..40) {
            let history = RecentMean { mean: score, weight: 16.0 };
            let credited = credit(rule(Baseline::ScopeMean), history, &vec![score; n]);
            prop_assert!(credited.advantages.iter().all(|a| a.abs() < 1e-5));
        }

        #[test]
        fn the_mean_stays_inside_the_scores_and_its_weight_inside_the_window(
            scores in prop::collection::vec(-1.0f32..1.0, 0..200), window in 1u32..64,
        ) {
            let mut mean = RecentMean::default();
            for chunk in scores.chunks(7) {
                mean = mean.with(chunk, window);
                prop_assert!(mean.weight <= window as f32);
                prop_assert!((-1.0..=1.0).contains(&mean.mean));
            }
        }
    }
}
