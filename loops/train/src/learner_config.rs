//! Keys of `train.learner`: how the adapter is trained, and what that is for the learner.

use hone_nn::{Distill, KlEstimator, Objective};
use serde::{Deserialize, Serialize};

use crate::context_config::ContextConfig;
use crate::objective::{DistillForm, KlName, ObjectiveName, Teacher};

/// How the adapter is trained.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LearnerConfig {
    /// What is trained of the projections.
    pub form: AdapterForm,
    /// Rank of the adapter.
    pub lora_rank: usize,
    /// Scale of the adapter: alpha / rank, or alpha / sqrt(rank) with `rslora`.
    pub lora_alpha: f32,
    /// Scale by the square root of the rank (Kalajdzievski 2023).
    pub rslora: bool,
    /// Projections it acts on: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj.
    pub lora_targets: Vec<String>,
    /// Precision of the published adapter: f32 or bf16.
    pub adapter_dtype: AdapterPrecision,
    /// Learning rate of AdamW.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Largest global norm of a gradient; longer ones are scaled down.
    pub clip_norm: f32,
    /// Steps over which a fresh learner's rate rises from 0.
    pub warmup_steps: u32,
    /// Optimizer steps per batch; each recomputes the proximal log-probs.
    pub steps_per_batch: u32,
    /// Optimizer updates per step, each on its part of the batch, around one proximal policy.
    pub updates_per_step: usize,
    /// What a sampled token's advantage does to its log-prob.
    pub objective: ObjectiveName,
    /// Lower clip range of the importance ratio: 1 − this.
    pub clip_low: f32,
    /// Upper clip range of the importance ratio: 1 + this (clip-higher, DAPO).
    pub clip_high: f32,
    /// Cap of the correction ratio (decoupled PPO, AReaL), or of CISPO's ratio.
    pub correction_cap: f32,
    /// Largest move in probability of a token that `dppo_tv` still trains.
    pub tv_threshold: f32,
    /// Weight of its pull back to the policy that sampled.
    pub tv_anchor: f32,
    /// Effective share of samples from which the learning rate shrinks by its root (VCPO); 0 is
    /// off.
    pub ess_base: f32,
    /// Weight of the KL penalty to the base model. Without one a small model collapses within
    /// a minute of training.
    pub kl_coef: f32,
    /// Which estimate of it.
    pub kl_estimator: KlName,
    /// What the teacher reads behind the last user message, with `{hint}` for the hint.
    pub hint_template: String,
    /// Who reads it.
    pub hint_teacher: Teacher,
    /// On which tokens the hint's teacher is followed.
    pub hint_form: DistillForm,
    /// Weight of the teacher beside the score.
    pub hint_coef: f32,
    /// Largest |log teacher − log student| that counts.
    pub hint_clip: f32,
    /// Candidates per place of the form `top_k`.
    pub hint_top_k: usize,
    /// Most answers per batch of the form `rehearsed`.
    pub hint_answers: usize,
    /// Their temperature; 0 takes the most likely token.
    pub hint_temperature: f32,
    /// Likeliest tokens of the teacher that a rehearsed answer is imitated with at each place; with 0 by
    /// the drawn token alone.
    pub hint_soft_top_k: usize,
    /// Nats by which the model without the hint may be surprised by one token of a rehearsed answer;
    /// answers that surprise it more are left out.
    pub hint_surprise_max: f32,
    /// Nats by which each hint by itself has to make a rehearsed answer likelier; one that a hint makes
    /// less likely does not do as it says.
    pub hint_gain_min: f32,
    /// Nats per token by which the student may think them less likely than the teacher does, when
    /// they count as learned.
    pub hint_gap: f32,
    /// Weight of a correction's tokens beside the sampled ones.
    pub correction_coef: f32,
    /// Most optimizer steps on a batch with a correction or with rehearsed answers.
    pub correction_steps_max: usize,
    /// Mean log-prob per token at which a correction counts as learned.
    pub correction_logprob: f32,
    /// Weight of the entropy bonus.
    pub entropy_coef: f32,
    /// Most tokens of one forward.
    pub minibatch_tokens: usize,
    /// Bytes of activations kept for the backward pass; layers that do not fit are computed again.
    pub activation_bytes_max: usize,
    /// How a person's words are distilled, with `hint_form` "context".
    pub context: ContextConfig,
    /// Seed of fresh adapters.
    pub seed: u64,
    /// Learners kept in memory; others are read back from their checkpoints.
    pub learners_cached_max: usize,
}

/// What is trained of the projections. Scopes that have learned keep the form they began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterForm {
    /// Two matrices of low rank beside each (LoRA).
    Lora,
    /// Every weight of each; rank, alpha and `rslora` are not read.
    Full,
}

/// Precision of a published adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterPrecision {
    /// Single precision.
    F32,
    /// Half the size, rounded; the learner's forward uses the rounded values.
    Bf16,
}

impl LearnerConfig {
    pub(crate) fn validate(&self) -> Result<(), String> {
        // What the form does not read may be anything.
        let (alpha, rank) = match self.form {
            AdapterForm::Lora => (self.lora_alpha, self.lora_rank),
            AdapterForm::Full => (1.0, 1),
        };
        let positive = [
            ("lora_alpha", alpha),
            ("lr", self.lr),
            ("eps", self.eps),
            ("clip_norm", self.clip_norm),
            ("clip_low", self.clip_low),
            ("clip_high", self.clip_high),
            ("correction_cap", self.correction_cap),
        ];
        if let Some((key, _)) = positive.iter().find(|(_, v)| !(v.is_finite() && *v > 0.0)) {
            return Err(format!("train.learner.{key} must be above 0"));
        }
        let at_least_zero = [
            ("weight_decay", self.weight_decay),
            ("kl_coef", self.kl_coef),
            ("entropy_coef", self.entropy_coef),
        ];
        if let Some((key, _)) = at_least_zero
            .iter()
            .find(|(_, v)| !(v.is_finite() && *v >= 0.0))
        {
            return Err(format!("train.learner.{key} must not be negative"));
        }
        for (key, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(format!(
                    "train.learner.{key} must be at least 0 and below 1"
                ));
            }
        }
        for (key, count) in [
            ("lora_rank", rank),
            ("lora_targets", self.lora_targets.len()),
            ("minibatch_tokens", self.minibatch_tokens),
            ("steps_per_batch", self.steps_per_batch as usize),
            ("learners_cached_max", self.learners_cached_max),
        ] {
            if count == 0 {
                return Err(format!("train.learner.{key} must not be 0 or empty"));
            }
        }
        self.targets().map(|_| ())
    }

    /// The projections as nn names them.
    ///
    /// # Errors
    /// The name that is not one.
    pub fn targets(&self) -> Result<Vec<hone_checkpoint::Target>, String> {
        let known = hone_checkpoint::Target::ALL
            .map(hone_checkpoint::Target::module)
            .join(", ");
        let target = |name: &String| {
            hone_checkpoint::Target::from_module(name).ok_or_else(|| {
                format!("train.learner.lora_targets: {name:?} is not one of {known}")
            })
        };
        self.lora_targets.iter().map(target).collect()
    }
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

#[cfg(test)]
impl LearnerConfig {
    pub(crate) fn for_tests() -> Self {
        Self {
            form: AdapterForm::Lora,
            lora_rank: 4,
            lora_alpha: 8.0,
            rslora: false,
            lora_targets: hone_checkpoint::Target::ALL
                .map(|t| t.module().to_owned())
                .to_vec(),
            adapter_dtype: AdapterPrecision::F32,
            lr: 2e-3,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.0,
            clip_norm: 1.0,
            warmup_steps: 0,
            steps_per_batch: 1,
            updates_per_step: 1,
            objective: ObjectiveName::DecoupledPpo,
            tv_threshold: 0.2,
            tv_anchor: 1e-3,
            ess_base: 0.0,
            kl_estimator: KlName::K3,
            hint_template: " {hint}".to_owned(),
            hint_teacher: Teacher::Served,
            hint_form: DistillForm::SampledToken,
            hint_coef: 1.0,
            hint_clip: 1.0,
            hint_top_k: 4,
            hint_answers: 16,
            hint_temperature: 1.0,
            hint_soft_top_k: 0,
            hint_surprise_max: 4.0,
            hint_gain_min: 0.0,
            hint_gap: 0.1,
            correction_coef: 1.0,
            correction_steps_max: 8,
            correction_logprob: -0.5,
            clip_low: 0.2,
            clip_high: 0.28,
            correction_cap: 5.0,
            kl_coef: 0.05,
            entropy_coef: 0.0,
            minibatch_tokens: 256,
            activation_bytes_max: 1 << 20,
            context: ContextConfig::for_tests(),
            seed: 7,
            learners_cached_max: 2,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Config;
    use crate::credit::{Baseline, Method};

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
