//! Rewards of whole sessions, and how they reach the turns: the return of every step, as one pure function.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{FeedbackId, Millis, SessionId};

/// The reward of a whole session, as its client gave it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionReward {
    /// Its id.
    pub id: FeedbackId,
    /// The session.
    pub session: SessionId,
    /// Owner of the key that sent it; must own the session.
    pub owner: String,
    /// Chosen by the client: the same id again replaces what it said before.
    pub client_id: Option<String>,
    /// The reward, in [−1, 1].
    pub score: f32,
    /// Its parts by name, each in [−1, 1]; empty where only the reward was given.
    pub parts: BTreeMap<String, f64>,
    /// The rewards of all episodes of its group, its own among them; empty where it belongs to none.
    pub peers: Vec<f32>,
    /// When it came.
    pub received_ms: Millis,
}

/// Which turns of a session its reward reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReturnRule {
    /// The newest turn that can learn.
    Turn,
    /// Every turn, in full.
    Terminal,
    /// Every turn, the less the earlier it is.
    Discounted,
}

/// How the reward of a session becomes the returns of its turns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionCredit {
    /// Which turns it reaches.
    #[serde(rename = "return")]
    pub rule: ReturnRule,
    /// Discount γ per later turn, 0 to 1; only `discounted` reads it.
    pub discount: f32,
}

/// A turn of a session, as far as credit needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The reward of this turn alone, where its user gave one.
    pub own: Option<f32>,
    /// Whether a reward can still be learned from.
    pub can_learn: bool,
}

impl SessionCredit {
    /// Whether the values fit together.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
        match (0.0..=1.0).contains(&self.discount) {
            true => Ok(()),
            false => Err("train.credit.discount must be between 0 and 1".to_owned()),
        }
    }

    /// The return of every step, oldest first; none where the session's reward R does not reach it.
    ///
    /// - `turn`: R for the newest step that can learn.
    /// - `terminal`: R for every step.
    /// - `discounted`: `G_t = r_t + γ·G_{t+1}` with `G_T = r_T + R` of the last step T, where r is a step's own reward,
    ///   0 where it has none (Sutton and Barto 2018, Reinforcement Learning, equations 3.8 and 3.9). Without own
    ///   rewards it is `γ^(T−t)·R`.
    ///
    /// A step with a reward of its own keeps that under `turn` and `terminal`. Returns are clipped to [−1, 1] at the
    /// end, not on the way.
    pub fn returns(self, reward: f32, steps: &[Step]) -> Vec<Option<f32>> {
        let unless_own = |step: &Step| step.own.is_none().then(|| reward.clamp(-1.0, 1.0));
        match self.rule {
            ReturnRule::Terminal => steps.iter().map(unless_own).collect(),
            ReturnRule::Turn => {
                let newest = steps.iter().rposition(|step| step.can_learn);
                let steps = steps.iter().enumerate();
                let only = |(at, step)| unless_own(step).filter(|_| Some(at) == newest);
                steps.map(only).collect()
            }
            ReturnRule::Discounted => {
                let mut later = None;
                let mut returns: Vec<_> = steps
                    .iter()
                    .rev()
                    .map(|step| {
                        let future = later.map_or(reward, |g: f32| self.discount * g);
                        let g = step.own.unwrap_or(0.0) + future;
                        later = Some(g);
                        Some(g.clamp(-1.0, 1.0))
                    })
                    .collect();
                returns.reverse();
                returns
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(own: Option<f32>) -> Step {
        Step {
            own,
            can_learn: true,
        }
    }

    #[test]
    fn a_reward_reaches_turns_as_the_rule_says() {
        use ReturnRule::{Discounted, Terminal, Turn};
        let plain = [step(None); 3];
        let own = [step(None), step(Some(-0.5)), step(None)];
        let own_last = [step(None), step(Some(-0.5))];
        let mut spent = [step(None); 3];
        spent[2].can_learn = false;
        type Row<'a> = (ReturnRule, f32, f32, &'a [Step], &'a [Option<f32>]);
        let rows: &[Row] = &[
            (Turn, 1.0, 0.5, &plain, &[None, None, Some(0.5)]),
            (Turn, 1.0, 0.5, &spent, &[None, Some(0.5), None]),
            (Turn, 1.0, 0.5, &own_last, &[None, None]),
            (Terminal, 0.5, -1.0, &plain, &[Some(-1.0); 3]),
            (Terminal, 0.5, 1.0, &own, &[Some(1.0), None, Some(1.0)]),
            // What cannot learn is a step all the same.
            (
                Discounted,
                0.5,
                1.0,
                &spent,
                &[Some(0.25), Some(0.5), Some(1.0)],
            ),
            // 1; -0.5 + 0.5 * 1 = 0; 0.5 * 0 = 0.
            (
                Discounted,
                0.5,
                1.0,
                &own,
                &[Some(0.0), Some(0.0), Some(1.0)],
            ),
            // -0.5 + -1 = -1.5 is clipped at the end; 0.5 * -1.5 = -0.75 is not.
            (Discounted, 0.5, -1.0, &own_last, &[Some(-0.75), Some(-1.0)]),
            (Discounted, 1.0, 0.5, &plain, &[Some(0.5); 3]),
            (
                Discounted,
                0.0,
                0.5,
                &plain,
                &[Some(0.0), Some(0.0), Some(0.5)],
            ),
            (Turn, 1.0, 1.0, &[], &[]),
            (Discounted, 1.0, 1.0, &[], &[]),
        ];
        for (rule, discount, reward, steps, expected) in rows {
            let credit = SessionCredit {
                rule: *rule,
                discount: *discount,
            };
            assert_eq!(credit.returns(*reward, steps), *expected, "{rule:?}");
        }
    }

    #[test]
    fn a_discount_is_a_share() {
        for (discount, good) in [(0.0, true), (1.0, true), (1.5, false), (f32::NAN, false)] {
            let credit = SessionCredit {
                rule: ReturnRule::Discounted,
                discount,
            };
            assert_eq!(credit.validate().is_ok(), good, "{discount}");
        }
    }
}
