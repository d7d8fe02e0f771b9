//! Every key of the train loop.

use serde::{Deserialize, Serialize};

pub use crate::context_config::ContextConfig;
use crate::credit::{Baseline, Method};
pub use crate::guards::{CanaryConfig, GateConfig, PruneConfig, WatchConfig};
use crate::objective::{DistillForm, KlName, ObjectiveName, Teacher, refused};

/// How the train loop works. The defaults are in `configs/default.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Most turns of one batch; a scope with this many ready trains at once.
    pub batch_turns: usize,
    /// Fewest turns of one batch; a scope with this many trains after `batch_wait_ms`.
    pub batch_turns_min: usize,
    /// Longest that a ready turn waits for `batch_turns`, in milliseconds.
    pub batch_wait_ms: i64,
    /// Longest that a turn with explicit feedback waits, in milliseconds; then its scope trains
    /// with however few turns are ready.
    pub explicit_wait_ms: i64,
    /// Most ready turns per scope; older ones are dropped, counted as `queue_dropped`.
    pub queue_turns_max: usize,
    /// Most versions learned between the one that sampled a turn and the one that is trained from.
    pub staleness_max_versions: u64,
    /// Most of a batch, and of the ready queue, that one source of a shared scope may take, above 0,
    /// at most 1.
    pub source_share_max: f64,
    /// Longest prompt and completion together, in tokens; longer turns are settled as `too_long`.
    pub row_tokens_max: usize,
    /// How long claimed turns are held, in milliseconds. A step that takes longer may lose them to
    /// another claim, and its candidate is then thrown away.
    pub lease_ms: i64,
    /// How often the loop looks for work that no notification announced, in milliseconds.
    pub tick_ms: u64,
    /// How long stopping may take, in milliseconds.
    pub drain_deadline_ms: u64,
    /// How often a failing step, save or publish is tried before its batch is given up, and how often
    /// turns are claimed by processes that end in the middle before they are.
    pub attempts_max: u32,
    /// Pause of a scope after the first failure or claim that found nothing, in milliseconds; doubles
    /// with each further one.
    pub backoff_first_ms: i64,
    /// Longest such pause, in milliseconds.
    pub backoff_max_ms: i64,
    /// Most of the wall time that training takes, reached where nobody is served, 0 to 1.
    pub train_share_max: f64,
    /// Most of the time in which somebody is served that training takes, 0 to 1.
    pub train_share_busy: f64,
    /// Share of the wall time that training gets however busy serving is, above 0, at most 1.
    pub train_share_min: f64,
    /// Over how long the share is measured, in milliseconds.
    pub train_share_window_ms: u64,
    /// What of a verdict a turn is learned by.
    pub method: Method,
    /// Most turns that were trained before and are learned from again by their hint or correction,
    /// per batch.
    pub replay_turns: usize,
    /// Weight of the score's advantage.
    pub score_weight: f32,
    /// What a score is compared with.
    pub baseline: Baseline,
    /// Scores that a scope's mean remembers.
    pub baseline_window_turns: u32,
    /// Scores of 0 that the mean is mixed with, so that a batch whose scores all agree still
    /// teaches a little.
    pub baseline_prior_turns: f32,
    /// Refused candidates in a row after which the scope's learning rate is halved.
    pub refusals_in_row_max: u32,
    /// Publishes in a row after which a halved learning rate is doubled again.
    pub recovery_publishes: u32,
    /// Smallest factor that refusals may bring the learning rate to.
    pub lr_scale_min: f32,
    /// Scopes whose credit history, learning rate and backoff are remembered in memory.
    pub scopes_tracked_max: usize,
    /// The learner.
    pub learner: LearnerConfig,
    /// The gate.
    pub gate: GateConfig,
    /// The watch over what is served.
    pub watch: WatchConfig,
    /// Whether a version is tried on a share of the sessions first.
    pub canary: CanaryConfig,
    /// When files are removed.
    pub prune: PruneConfig,
}

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

impl Config {
    /// Checks ranges.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
        let checks = self.cadence_checks().into_iter().chain(self.limit_checks());
        for (good, message) in checks {
            if !good {
                return Err(format!("train.{message}"));
            }
        }
        self.order()?;
        self.learner.validate()?;
        self.learner.validate_objective()?;
        self.learner.context.validate()?;
        refused(self)?;
        self.watch.validate()?;
        self.canary.validate()?;
        self.prune.validate(self.lease_ms)?;
        self.gate.validate()
    }

    /// Numbers of turns that bound each other: who sets one may never have seen the other.
    fn order(&self) -> Result<(), String> {
        let (least, turns, most) = (self.batch_turns_min, self.batch_turns, self.queue_turns_max);
        if !(1..=turns).contains(&least) {
            return Err(format!(
                "train.batch_turns_min ({least}) must be between 1 and train.batch_turns ({turns})"
            ));
        }
        if most < turns {
            return Err(format!(
                "train.queue_turns_max ({most}) must be at least train.batch_turns ({turns})"
            ));
        }
        Ok(())
    }

    /// What decides when and on what a scope trains.
    fn cadence_checks(&self) -> Vec<(bool, &'static str)> {
        vec![
            (self.batch_turns >= 1, "batch_turns must be at least 1"),
            (
                self.batch_wait_ms >= 0 && self.explicit_wait_ms >= 0,
                "batch_wait_ms and explicit_wait_ms must not be negative",
            ),
            (
                self.score_weight.is_finite() && self.score_weight >= 0.0,
                "score_weight must not be negative",
            ),
            (
                self.source_share_max > 0.0 && self.source_share_max <= 1.0,
                "source_share_max must be above 0 and at most 1",
            ),
            (
                self.row_tokens_max >= 2,
                "row_tokens_max must be at least 2",
            ),
            (
                self.baseline_window_turns >= 1,
                "baseline_window_turns must be at least 1",
            ),
            (
                self.baseline_prior_turns.is_finite() && self.baseline_prior_turns >= 0.0,
                "baseline_prior_turns must not be negative",
            ),
        ]
    }

    /// What bounds time, memory and failures.
    fn limit_checks(&self) -> Vec<(bool, &'static str)> {
        vec![
            (self.lease_ms >= 1_000, "lease_ms must be at least 1000"),
            (self.tick_ms >= 1, "tick_ms must be at least 1"),
            (self.attempts_max >= 1, "attempts_max must be at least 1"),
            (
                0 < self.backoff_first_ms && self.backoff_first_ms <= self.backoff_max_ms,
                "backoff_first_ms must be above 0 and at most backoff_max_ms",
            ),
            (
                (0.0..=1.0).contains(&self.train_share_max),
                "train_share_max must be between 0 and 1",
            ),
            (
                (0.0..=1.0).contains(&self.train_share_busy),
                "train_share_busy must be between 0 and 1",
            ),
            (
                self.train_share_min > 0.0 && self.train_share_min <= 1.0,
                "train_share_min must be above 0 and at most 1",
            ),
            (
                self.train_share_window_ms >= 1,
                "train_share_window_ms must be at least 1",
            ),
            (
                self.refusals_in_row_max >= 1,
                "refusals_in_row_max must be at least 1",
            ),
            (
                self.recovery_publishes >= 1,
                "recovery_publishes must be at least 1",
            ),
            (
                self.lr_scale_min > 0.0 && self.lr_scale_min <= 1.0,
                "lr_scale_min must be above 0 and at most 1",
            ),
            (
                self.scopes_tracked_max >= 1,
                "scopes_tracked_max must be at least 1",
            ),
        ]
    }
}

impl LearnerConfig {
    fn validate(&self) -> Result<(), String> {
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

#[cfg(test)]
impl LearnerConfig {
    fn for_tests() -> Self {
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
impl Config {
    /// Small numbers for tests.
    pub fn for_tests() -> Self {
        Self {
            batch_turns: 8,
            batch_turns_min: 2,
            batch_wait_ms: 500,
            explicit_wait_ms: 100,
            queue_turns_max: 8,
            staleness_max_versions: 4,
            source_share_max: 1.0,
            row_tokens_max: 128,
            lease_ms: 60_000,
            tick_ms: 20,
            drain_deadline_ms: 10_000,
            attempts_max: 3,
            backoff_first_ms: 10,
            backoff_max_ms: 80,
            train_share_max: 1.0,
            train_share_busy: 0.5,
            train_share_min: 0.1,
            train_share_window_ms: 2_000,
            method: Method::Combined,
            replay_turns: 4,
            score_weight: 1.0,
            baseline: Baseline::ScopeMean,
            baseline_window_turns: 64,
            baseline_prior_turns: 4.0,
            refusals_in_row_max: 2,
            recovery_publishes: 3,
            lr_scale_min: 0.125,
            scopes_tracked_max: 64,
            learner: LearnerConfig::for_tests(),
            gate: GateConfig::for_tests(),
            watch: WatchConfig::for_tests(),
            canary: CanaryConfig::for_tests(),
            prune: PruneConfig::for_tests(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_out_of_range_is_named() {
        assert_eq!(Config::for_tests().validate(), Ok(()));
        type Change = fn(&mut Config);
        let rows: &[(Change, &str)] = &[
            (
                |c| c.batch_turns_min = 9,
                "train.batch_turns_min (9) must be between 1 and train.batch_turns (8)",
            ),
            (|c| c.train_share_min = 0.0, "train.train_share_min"),
            (|c| c.train_share_busy = 1.5, "train.train_share_busy"),
            (|c| c.source_share_max = 0.0, "train.source_share_max"),
            (
                |c| c.queue_turns_max = 1,
                "train.queue_turns_max (1) must be at least train.batch_turns (8)",
            ),
            (|c| c.learner.lr = f32::NAN, "train.learner.lr"),
            (|c| c.learner.kl_coef = -0.1, "train.learner.kl_coef"),
            (|c| c.learner.lora_rank = 0, "train.learner.lora_rank"),
            (|c| c.learner.lora_alpha = 0.0, "train.learner.lora_alpha"),
            (
                |c| {
                    (c.learner.form, c.learner.lora_targets) = (AdapterForm::Full, vec![]);
                },
                "train.learner.lora_targets",
            ),
            (
                |c| c.learner.lora_targets = vec!["x".into()],
                "train.learner.lora_targets",
            ),
            (
                |c| c.learner.minibatch_tokens = 0,
                "train.learner.minibatch_tokens",
            ),
            (|c| c.gate.held_out_share = 0.6, "train.gate.held_out_share"),
            (
                |c| (c.prune.keep_versions, c.prune.orphan_age_ms) = (4, 1),
                "train.prune.orphan_age_ms",
            ),
            (
                |c| (c.prune.keep_versions, c.prune.orphan_age_ms) = (0, c.lease_ms as u64),
                "train.prune.orphan_age_ms",
            ),
            (|c| c.watch.ratio = 1.0, "train.watch.ratio"),
            (|c| c.canary.share = 1.0, "train.canary.share"),
            (|c| c.watch.base_turns = 0, "train.watch.base_turns"),
            (
                |c| c.gate.length_factor_max = 0.5,
                "train.gate.length_factor_max",
            ),
            (
                |c| c.gate.kl_to_parent_max = f32::NAN,
                "train.gate.kl_to_parent_max",
            ),
        ];
        for (change, key) in rows {
            let mut config = Config::for_tests();
            change(&mut config);
            let message = config.validate().unwrap_err();
            assert!(message.starts_with(key), "{message}");
        }
        // What only a LoRA has is not read where every weight is trained.
        let mut config = Config::for_tests();
        config.learner.form = AdapterForm::Full;
        (config.learner.lora_rank, config.learner.lora_alpha) = (0, f32::NAN);
        assert_eq!(config.validate(), Ok(()));
    }
}
