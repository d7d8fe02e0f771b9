//! Every key of the train loop.

use hone_domain::SessionCredit;
use serde::{Deserialize, Serialize};

pub use crate::context_config::ContextConfig;
use crate::credit::{Baseline, Method};
pub use crate::guards::{CanaryConfig, GateConfig, PruneConfig, WatchConfig};
pub(crate) use crate::learner_config::AdapterForm;
pub use crate::learner_config::{AdapterPrecision, LearnerConfig};
use crate::objective::{KlName, ObjectiveName};

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
    /// Weight of the reward of an episode, which tests paid.
    pub episode_weight: f32,
    /// What a score is compared with.
    pub baseline: Baseline,
    /// Scores that a scope's mean remembers.
    pub baseline_window_turns: u32,
    /// Scores of 0 that the mean is mixed with, so that a batch whose scores all agree still
    /// teaches a little.
    pub baseline_prior_turns: f32,
    /// How the reward of a whole session reaches its turns.
    pub credit: SessionCredit,
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
        self.credit.validate()?;
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
                self.episode_weight.is_finite() && self.episode_weight >= 0.0,
                "episode_weight must not be negative",
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

/// Combinations that could not do what they say.
fn refused(config: &Config) -> Result<(), String> {
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
            episode_weight: 1.0,
            baseline: Baseline::ScopeMean,
            baseline_window_turns: 64,
            baseline_prior_turns: 4.0,
            credit: SessionCredit {
                rule: hone_domain::ReturnRule::Terminal,
                discount: 0.5,
            },
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
            (|c| c.credit.discount = 1.5, "train.credit.discount"),
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
