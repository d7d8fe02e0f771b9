//! Credit: from scores to advantages. A method is a value of [`Method`]; the rule is one pure
//! function.

use hone_domain::GroupId;
use serde::{Deserialize, Serialize};

/// What of a verdict a turn is learned by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The score is the reward; every token of the completion gets the same advantage.
    BinaryReward,
    /// Hindsight distillation: where the verdict has a hint, the served model with the hint in its
    /// prompt is the teacher of the tokens that were sampled without it.
    Distillation,
    /// Only what the user says the completion should have been is imitated.
    Supervised,
    /// All three, each where there is something to learn by it.
    Combined,
    /// The score, and besides: a second try, made after a complaint, is learned as an answer to what
    /// was asked first, see [`second_tries`].
    RltfSd,
}

/// What of a turn a method uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// The score.
    pub score: bool,
    /// The hint.
    pub hint: bool,
    /// The correction.
    pub correction: bool,
}

impl Method {
    /// What it uses of a turn that has these. A correction says all that its turn's hint could say,
    /// so the hint is left alone then.
    pub fn uses(self, has_hint: bool, has_correction: bool) -> Uses {
        let (score, hint, correction) = match self {
            Self::BinaryReward | Self::RltfSd => (true, false, false),
            Self::Distillation => (false, true, false),
            Self::Supervised => (false, false, true),
            Self::Combined => (true, true, true),
        };
        let correction = correction && has_correction;
        Uses {
            score,
            hint: hint && has_hint && !correction,
            correction,
        }
    }

    /// What it uses of a turn with this score that came from outside, without log-probs: what was good is imitated.
    pub fn uses_given(self, score: f32) -> Uses {
        Uses {
            score: false,
            hint: false,
            correction: score > 0.0 && self.uses(false, true).correction,
        }
    }

    /// Whether it learns from second tries.
    pub fn retells(self) -> bool {
        self == Self::RltfSd
    }
}

impl Uses {
    /// Whether anything is left to learn by.
    pub fn any(self) -> bool {
        self.score || self.hint || self.correction
    }
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
    /// The mean of the group's other scores (RLOO, Ahmadian et al. 2024, arXiv 2402.14740).
    Rloo,
    /// The group's mean, divided by its standard deviation (GRPO, arXiv 2402.03300, section 4.1).
    Grpo,
    /// The group's mean, not divided (Dr. GRPO, arXiv 2503.20783; its constant length divisor is
    /// the mean over all tokens of a batch that every objective here takes).
    DrGrpo,
    /// The batch's mean, divided by its standard deviation (REINFORCE++, arXiv 2501.03262).
    ReinforcePp,
}

/// Added to standard deviations.
const TINY: f32 = 1e-4;

/// A score with the completions it is compared to.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// In [−1, 1].
    pub score: f32,
    /// The request's several completions; group baselines take the scope's mean without one.
    pub group: Option<GroupId>,
    /// The rewards of all episodes of its group of episodes, its own among them, whether or not these are in the batch.
    pub peers: Vec<f32>,
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
    /// Weight of the score.
    pub weight: f32,
    /// Weight of an episode's reward, in its place.
    pub episode_weight: f32,
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

/// Advantages of a batch of scores of a scope whose recent scores are `history`.
///
/// With the scope's mean m of weight w and p prior turns, `A_i = s_i − b_i` with
/// `b_i = (w·m + Σ_{j≠i} s_j) / (w + n − 1 + p)`, and 0 where nothing is known. The other baselines
/// are their papers' (see [`Baseline`]); a group, or for REINFORCE++ a batch, of one takes the
/// scope's mean. An episode is compared with its group, `A_i = r_i − Σ_{j≠i} r_j / (n − 1)`, where the baseline is the
/// scope's mean; it is no part of the scope's mean itself. All are multiplied by the rule's weights.
pub fn credit(rule: CreditRule, history: RecentMean, scored: &[Scored]) -> Credited {
    let scores: Vec<f32> = scored.iter().map(|s| s.score).collect();
    // What has a group of episodes is no measure of what people say.
    let said = scored.iter().filter(|s| s.peers.is_empty());
    let said: Vec<f32> = said.map(|s| s.score).collect();
    let sum: f32 = said.iter().sum();
    let others = history.weight + said.len() as f32 - 1.0 + rule.prior_turns;
    let against_scope = |score: f32| {
        if others > 0.0 {
            score - (history.mean * history.weight + sum - score) / others
        } else {
            score
        }
    };
    let group_of = |s: &Scored| -> Vec<f32> {
        if !s.peers.is_empty() {
            return s.peers.clone();
        }
        let same = |other: &&Scored| s.group.is_some() && other.group == s.group;
        scored.iter().filter(same).map(|s| s.score).collect()
    };
    let advantage = |s: &Scored| {
        let peers = match rule.baseline {
            Baseline::ScopeMean if !s.peers.is_empty() => {
                let advantage = against_peers(Baseline::Rloo, s.score, &s.peers);
                return advantage.unwrap_or_default();
            }
            Baseline::None => return s.score,
            Baseline::ScopeMean => return against_scope(s.score),
            Baseline::ReinforcePp => scores.clone(),
            Baseline::Rloo | Baseline::Grpo | Baseline::DrGrpo => group_of(s),
        };
        against_peers(rule.baseline, s.score, &peers).unwrap_or_else(|| against_scope(s.score))
    };
    let weight = |s: &Scored| match s.peers.is_empty() {
        true => rule.weight,
        false => rule.episode_weight,
    };
    Credited {
        advantages: scored.iter().map(|s| weight(s) * advantage(s)).collect(),
        history: history.with(&said, rule.window_turns),
    }
}

/// The score against those of its peers, itself among them; none where it has none.
fn against_peers(baseline: Baseline, score: f32, peers: &[f32]) -> Option<f32> {
    let n = peers.len() as f32;
    if n < 2.0 {
        return None;
    }
    let sum: f32 = peers.iter().sum();
    let mean = sum / n;
    let deviation = || {
        let squares: f32 = peers.iter().map(|p| (p - mean) * (p - mean)).sum();
        (squares / (n - 1.0)).sqrt()
    };
    Some(match baseline {
        Baseline::Rloo => score - (sum - score) / (n - 1.0),
        Baseline::Grpo | Baseline::ReinforcePp => (score - mean) / (deviation() + TINY),
        Baseline::DrGrpo | Baseline::ScopeMean | Baseline::None => score - mean,
    })
}

/// Advantages of second tries: `A_i = R(second_i) − mean R(first)` (RLTF-SD, arXiv 2602.02482: the
/// second try, made with the critique in view, is learned behind the first prompt, without the
/// critique, weighted by its advantage and without importance ratios). The baseline is the mean of
/// the *first* tries: against the mean of the second ones, tries that all succeed would teach nothing.
/// 0 where nothing is known of first tries.
pub fn second_tries(second: &[f32], first: &[f32]) -> Vec<f32> {
    let mean = first.iter().sum::<f32>() / first.len() as f32;
    let known = !first.is_empty();
    let advantage = |score: &f32| if known { score - mean } else { 0.0 };
    second.iter().map(advantage).collect()
}

/// Advantages of sampled tokens from a teacher: `weight · clip(log teacher − log student, ±clip)`
/// per token, added to what they have (OpenClaw-RL, arXiv 2603.10165: the sampled-token form; the
/// student's log-probs are those at the start of the step, not the recorded ones, which keeps the
/// signal right for stale turns).
pub fn follow(advantages: &mut [f32], teacher: &[f32], student: &[f32], weight: f32, clip: f32) {
    for ((advantage, teacher), student) in advantages.iter_mut().zip(teacher).zip(student) {
        *advantage += weight * (teacher - student).clamp(-clip, clip);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn rule(baseline: Baseline) -> CreditRule {
        CreditRule {
            weight: 1.0,
            episode_weight: 1.0,
            baseline,
            window_turns: 32,
            prior_turns: 0.0,
        }
    }

    fn singles(scores: &[f32]) -> Vec<Scored> {
        let single = |score: &f32| Scored {
            score: *score,
            group: None,
            peers: Vec::new(),
        };
        scores.iter().map(single).collect()
    }

    #[test]
    fn group_baselines_are_as_pytorch_computes_them() {
        const GOLDEN: &str = include_str!("../../../tests/goldens/objectives.json");
        let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        let golden = &golden["baselines"];
        let numbers = |key: &str| -> Vec<f64> {
            let values = golden[key].as_array().unwrap();
            values.iter().map(|v| v.as_f64().unwrap()).collect()
        };
        let group = |n: &f64| GroupId(uuid::Uuid::from_u128(*n as u128));
        let scored: Vec<Scored> = numbers("scores")
            .iter()
            .zip(numbers("groups"))
            .map(|(score, g)| Scored {
                score: *score as f32,
                group: Some(group(&g)),
                peers: Vec::new(),
            })
            .collect();
        for (name, baseline) in [
            ("rloo", Baseline::Rloo),
            ("grpo", Baseline::Grpo),
            ("dr_grpo", Baseline::DrGrpo),
            ("reinforce_pp", Baseline::ReinforcePp),
        ] {
            let got = credit(rule(baseline), RecentMean::default(), &scored).advantages;
            for (a, b) in got.iter().zip(numbers(name)) {
                assert!((f64::from(*a) - b).abs() < 1e-5, "{name}: {a} not {b}");
            }
            // Without groups, or alone in a batch, the scope's mean is what is left.
            let alone = credit(rule(baseline), RecentMean::default(), &singles(&[-1.0]));
            assert_eq!(alone.advantages, [-1.0], "{name}");
        }
    }

    #[test]
    fn second_tries_are_as_pytorch_computes_them() {
        const GOLDEN: &str = include_str!("../../../tests/goldens/objectives.json");
        let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        let cases = golden["rltf_sd"].as_array().unwrap();
        assert_eq!(cases.len(), 3);
        for case in cases {
            let numbers = |key: &str| -> Vec<f32> {
                let values = case[key].as_array().unwrap();
                values.iter().map(|v| v.as_f64().unwrap() as f32).collect()
            };
            let got = second_tries(&numbers("second"), &numbers("first"));
            let wanted = numbers("advantages");
            assert_eq!(got.len(), wanted.len());
            for (a, b) in got.iter().zip(&wanted) {
                assert!((a - b).abs() < 1e-6, "{a} not {b}");
            }
            // As a loss: advantage-weighted log-likelihood, mean over tokens. The learner's
            // cross-entropy has the same derivative by every token's log-prob.
            let lengths = numbers("lengths");
            let tokens: f32 = lengths.iter().sum();
            let per_token = got.iter().zip(&lengths);
            let weights: Vec<f32> = per_token
                .flat_map(|(a, n)| std::iter::repeat_n(*a, *n as usize))
                .collect();
            for (weight, slope) in weights.iter().zip(numbers("slopes")) {
                let term = hone_nn::Objective::CrossEntropy.term(&hone_nn::TokenView {
                    advantage: *weight,
                    behavior: -9.0,
                    proximal: -5.0,
                    current: -1.0,
                    sequence: Default::default(),
                });
                let difference = (term.slope / tokens - slope).abs();
                assert!(difference < 1e-6, "{} not {slope}", term.slope / tokens);
            }
        }
        assert_eq!(second_tries(&[1.0], &[]), [0.0]);
        // All second tries succeed: they teach against first tries, and against themselves nothing.
        assert!(
            second_tries(&[1.0; 3], &[-1.0, 1.0])
                .iter()
                .all(|a| *a > 0.9)
        );
        assert!(second_tries(&[1.0; 3], &[1.0; 3]).iter().all(|a| *a == 0.0));
    }

    #[test]
    fn a_method_uses_what_it_is_for_and_what_is_there() {
        use Method::{BinaryReward, Combined, Distillation, RltfSd, Supervised};
        for (method, hint, correction, used) in [
            (BinaryReward, true, true, [true, false, false]),
            (RltfSd, true, true, [true, false, false]),
            (Distillation, true, true, [false, true, false]),
            (Distillation, false, true, [false, false, false]),
            (Supervised, true, false, [false, false, false]),
            (Supervised, true, true, [false, false, true]),
            (Combined, true, false, [true, true, false]),
            (Combined, true, true, [true, false, true]),
        ] {
            let uses = method.uses(hint, correction);
            assert_eq!([uses.score, uses.hint, uses.correction], used, "{method:?}");
            assert_eq!(uses.any(), used.contains(&true));
        }
        // What came from outside is imitated where it was good.
        for (method, score, imitated) in [
            (Combined, 0.5, true),
            (Supervised, 0.5, true),
            (Supervised, 0.0, false),
            (BinaryReward, 1.0, false),
        ] {
            let uses = method.uses_given(score);
            assert_eq!(
                [uses.score, uses.hint, uses.correction],
                [false, false, imitated]
            );
        }
    }

    #[test]
    fn a_teacher_pulls_within_its_clip() {
        let mut advantages = [0.5, 0.5, 0.5];
        follow(
            &mut advantages,
            &[-1.0, -5.0, -0.1],
            &[-1.5, -1.0, -4.0],
            2.0,
            1.0,
        );
        assert_eq!(advantages, [1.5, -1.5, 2.5]);
    }

    #[test]
    fn what_tests_pay_has_a_weight_of_its_own() {
        let rule = CreditRule {
            weight: 0.5,
            episode_weight: 2.0,
            ..rule(Baseline::ScopeMean)
        };
        let episode = Scored {
            score: 1.0,
            group: None,
            peers: vec![1.0, 0.0],
        };
        let batch = [episode, singles(&[1.0])[0].clone()];
        let advantages = credit(rule, RecentMean::default(), &batch).advantages;
        assert_eq!(advantages, [2.0, 0.5]);
    }

    /// What is in the batch makes no difference: the group's rewards are all known.
    #[test]
    fn an_episode_is_compared_with_its_group() {
        let episode = |score| Scored {
            score,
            group: None,
            peers: vec![1.0, 0.0, 0.0, 0.0],
        };
        let batch = [episode(1.0), episode(0.0), singles(&[-1.0])[0].clone()];
        let known = RecentMean {
            mean: 0.5,
            weight: 4.0,
        };
        for (baseline, won, lost) in [
            (Baseline::ScopeMean, 1.0, -1.0 / 3.0),
            (Baseline::Rloo, 1.0, -1.0 / 3.0),
            (Baseline::DrGrpo, 0.75, -0.25),
            (Baseline::Grpo, 1.5, -0.5),
        ] {
            let credited = credit(rule(baseline), known, &batch);
            let [first, second, _] = credited.advantages[..] else {
                panic!("not one advantage per score");
            };
            assert!((first - won).abs() < 1e-3, "{baseline:?}: {first}");
            assert!((second - lost).abs() < 1e-3, "{baseline:?}: {second}");
            // Only what people said counts among the scope's scores.
            assert_eq!(credited.history, known.with(&[-1.0], 32), "{baseline:?}");
        }
    }

    #[test]
    fn a_batch_that_failed_as_a_whole_still_teaches_a_little() {
        let rule = CreditRule {
            prior_turns: 4.0,
            ..rule(Baseline::ScopeMean)
        };
        let advantages = credit(rule, RecentMean::default(), &singles(&[-1.0; 5])).advantages;
        assert_eq!(advantages, [-0.5; 5]);
        assert_eq!(
            credit(rule, RecentMean::default(), &singles(&[1.0])).advantages,
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
            let got = credit(rule(*baseline), *history, &singles(scores)).advantages;
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
            let credited = credit(rule(Baseline::ScopeMean), history, &singles(&vec![score; n]));
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
