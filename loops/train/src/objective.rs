//! What the learner minimises, as configured, and which combinations make no sense.

use hone_nn::{Distill, KlEstimator, Objective};
use serde::{Deserialize, Serialize};

use crate::config::{Config, LearnerConfig};
use crate::credit::{Baseline, Method};

/// What a sampled token's advantage does to its log-prob; formulas at [`hone_nn::Objective`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectiveName {
    /// Decoupled PPO with its correction ratio capped; clip-higher where the upper clip is wider.
    DecoupledPpo,
    /// PPO clipped around the policy that sampled: the known-bad form for stale turns.
    Ppo,
    /// CISPO.
    Cispo,
    /// GSPO: one ratio per completion.
    Gspo,
    /// DPPO with the total-variation mask.
    DppoTv,
    /// Truncated importance sampling per token.
    TokenTis,
}

/// Which estimate of the divergence from the base model is penalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KlName {
    /// The squared log-ratio, halved.
    K2,
    /// The estimate that is never negative.
    K3,
    /// The log-ratio. Refused as a penalty: its gradient is zero on average.
    K1,
}

/// On which tokens a hint's teacher is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DistillForm {
    /// On the tokens that were sampled: an advantage of their own.
    SampledToken,
    /// On the student's most likely tokens at every place (hybrid v2).
    TopK,
    /// On answers of its own: with the hint it answers the openings of conversations anew, and
    /// these answers are imitated without it (context distillation, Snell, Klein and Zhong 2022,
    /// arXiv 2209.15189).
    Rehearsed,
    /// On answers of its own that do what a person's words ask, drawn with guidance towards the words
    /// and chosen by how much likelier these make them.
    Context,
}

/// Who reads the hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Teacher {
    /// The version that is trained from: keeps what was learned, and can drift with it.
    Served,
    /// The base model: a fixed target.
    Base,
}

impl LearnerConfig {
    /// The objective as nn computes it.
    pub fn objective(&self) -> Objective {
        let (clip_low, clip_high) = (self.clip_low, self.clip_high);
        let correction_cap = self.correction_cap;
        match self.objective {
            ObjectiveName::DecoupledPpo => Objective::DecoupledPpo {
                clip_low,
                clip_high,
                correction_cap,
            },
            ObjectiveName::Ppo => Objective::Ppo {
                clip_low,
                clip_high,
            },
            ObjectiveName::Cispo => Objective::Cispo {
                ratio_cap: correction_cap,
            },
            ObjectiveName::Gspo => Objective::Gspo {
                clip_low,
                clip_high,
                correction_cap,
            },
            ObjectiveName::DppoTv => Objective::DppoTv {
                threshold: self.tv_threshold,
                anchor: self.tv_anchor,
            },
            ObjectiveName::TokenTis => Objective::TokenTis { correction_cap },
        }
    }

    /// The estimate of the divergence from the base model.
    pub fn kl_estimator(&self) -> KlEstimator {
        match self.kl_estimator {
            KlName::K1 => KlEstimator::K1,
            KlName::K2 => KlEstimator::K2,
            KlName::K3 => KlEstimator::K3,
        }
    }

    /// How a teacher's most likely tokens are followed.
    pub fn distill(&self) -> Distill {
        Distill {
            coef: self.hint_coef,
            clip: self.hint_clip,
            ratio_low: self.clip_low,
            ratio_high: self.clip_high,
        }
    }

    /// Ranges of the keys read here.
    pub(crate) fn validate_objective(&self) -> Result<(), String> {
        for (key, value) in [
            ("tv_threshold", self.tv_threshold),
            ("hint_clip", self.hint_clip),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("train.learner.{key} must be above 0"));
            }
        }
        for (key, value) in [
            ("tv_anchor", self.tv_anchor),
            ("ess_base", self.ess_base),
            ("hint_coef", self.hint_coef),
            ("hint_temperature", self.hint_temperature),
            ("hint_gap", self.hint_gap),
            ("hint_surprise_max", self.hint_surprise_max),
            ("correction_coef", self.correction_coef),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(format!("train.learner.{key} must not be negative"));
            }
        }
        if !self.hint_gain_min.is_finite() {
            return Err("train.learner.hint_gain_min must be a number".to_owned());
        }
        if self.ess_base > 1.0 {
            return Err("train.learner.ess_base must be at most 1".to_owned());
        }
        for (key, value) in [
            ("updates_per_step", self.updates_per_step),
            ("hint_top_k", self.hint_top_k),
            ("hint_answers", self.hint_answers),
            ("correction_steps_max", self.correction_steps_max),
        ] {
            if value == 0 {
                return Err(format!("train.learner.{key} must be at least 1"));
            }
        }
        if !(self.correction_logprob <= 0.0 && self.correction_logprob.is_finite()) {
            return Err("train.learner.correction_logprob must be finite and at most 0".to_owned());
        }
        if !self.hint_template.contains("{hint}") {
            return Err("train.learner.hint_template must hold {hint}".to_owned());
        }
        Ok(())
    }
}

/// Combinations that could not do what they say.
pub(crate) fn refused(config: &Config) -> Result<(), String> {
    let learner = &config.learner;
    if learner.kl_estimator == KlName::K1 && learner.kl_coef > 0.0 {
        return Err(
            "train.learner.kl_estimator k1 has no gradient on average, so it holds nothing back; \
             take k2 or k3, or set kl_coef to 0"
                .to_owned(),
        );
    }
    let by_score = !matches!(config.baseline, Baseline::None | Baseline::ScopeMean);
    if by_score && matches!(config.method, Method::Distillation | Method::Supervised) {
        return Err(
            "train.baseline compares scores, which this train.method does not use; take scope_mean \
             or none, or the method binary_reward or combined"
                .to_owned(),
        );
    }
    let ahead = learner.updates_per_step > 1;
    if learner.objective == ObjectiveName::Gspo && !ahead {
        return Err(
            "train.learner.objective gspo clips a ratio that is 1 in the first update of a step; \
             set updates_per_step to 2 or more"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_could_not_work_is_refused_by_name() {
        type Change = fn(&mut Config);
        let rows: &[(Change, &str)] = &[
            (
                |c| c.learner.kl_estimator = KlName::K1,
                "train.learner.kl_estimator k1",
            ),
            (
                |c| {
                    c.method = Method::Distillation;
                    c.baseline = Baseline::Grpo;
                },
                "train.baseline",
            ),
            (
                |c| c.learner.objective = ObjectiveName::Gspo,
                "train.learner.objective gspo",
            ),
            (|c| c.learner.ess_base = 2.0, "train.learner.ess_base"),
            (
                |c| c.learner.hint_template = "hint".into(),
                "train.learner.hint_template",
            ),
            (
                |c| c.learner.correction_logprob = 0.1,
                "train.learner.correction_logprob",
            ),
        ];
        for (change, words) in rows {
            let mut config = Config::for_tests();
            change(&mut config);
            let message = config.validate().unwrap_err();
            assert!(message.starts_with(words), "{message}");
        }
    }

    #[test]
    fn every_name_stands_for_its_objective() {
        let mut learner = Config::for_tests().learner;
        let (clip_low, clip_high) = (learner.clip_low, learner.clip_high);
        let correction_cap = learner.correction_cap;
        for (name, text, wanted) in [
            (
                ObjectiveName::Ppo,
                "\"ppo\"",
                Objective::Ppo {
                    clip_low,
                    clip_high,
                },
            ),
            (
                ObjectiveName::Gspo,
                "\"gspo\"",
                Objective::Gspo {
                    clip_low,
                    clip_high,
                    correction_cap,
                },
            ),
            (
                ObjectiveName::TokenTis,
                "\"token_tis\"",
                Objective::TokenTis { correction_cap },
            ),
        ] {
            learner.objective = name;
            assert_eq!(learner.objective(), wanted);
            assert_eq!(serde_json::to_string(&name).unwrap(), text);
        }
    }
}
