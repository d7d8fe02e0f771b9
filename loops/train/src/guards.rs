//! Keys of what stands between training and people: the gate, the watch, what is kept.

use serde::{Deserialize, Serialize};

/// What a candidate must fulfil to be published.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GateConfig {
    /// Largest KL divergence per token from the base model, in nats, on the batch's completions.
    pub kl_to_reference_max: f32,
    /// Largest KL divergence per token from the served version, in nats.
    pub kl_to_parent_max: f32,
    /// Most completion tokens of the batch that the divergences are measured on.
    pub kl_tokens_max: usize,
    /// Recent prompts of the scope, outside the batch, that are answered as a probe.
    pub probe_recent: usize,
    /// Fixed prompts that are answered as a probe.
    pub probe_golden: usize,
    /// Longest completion of a probe, in tokens.
    pub probe_tokens_max: usize,
    /// Longest prompt of a probe, in tokens; longer ones are passed over.
    pub probe_prompt_tokens_max: usize,
    /// Temperature of probes; 0 takes the most likely token.
    pub probe_temperature: f32,
    /// Largest share of probes answered with nothing, unless the base model does so as well.
    pub empty_share_max: f32,
    /// By how much the share of probes that end by themselves may fall below the served version's.
    pub ended_margin: f32,
    /// By how much it may fall below the base model's.
    pub ended_drift_max: f32,
    /// By how much the share of probes with repetition loops may exceed the base model's.
    pub looping_margin: f32,
    /// Largest factor between the mean lengths of the candidate's and the served version's probes.
    pub length_factor_max: f32,
    /// Largest factor between the mean lengths of the candidate's and the base model's probes.
    pub length_drift_factor_max: f32,
    /// Largest loss of log-prob per token of the base model's own answers to the fixed prompts, in
    /// nats.
    pub golden_loss_max: f32,
    /// Largest loss of log-prob per token of the base model's own answers to generic prompts, in nats.
    pub generic_loss_max: f32,
    /// Nats that the answers to plain facts may lose on average, surely (95 %, one-sided).
    pub fact_loss_max: f32,
    /// Log-prob per token, in nats, that the base model's own answers to prompts that say how they are to be answered
    /// may lose on average, surely (95 %, one-sided).
    pub instructed_loss_max: f32,
    /// Share of judged turns that are kept to compare candidates on and never trained, 0 to 0.5.
    /// A turn that was corrected by its user always trains.
    pub held_out_share: f32,
    /// Most of them that a candidate is compared on, the newest first.
    pub held_out_max: usize,
    /// With fewer a version is published provisionally, if nothing else objects.
    pub held_out_min: usize,
    /// By how many nats per token, weighted with the scores, a candidate may be worse on them.
    pub held_out_margin: f32,
    /// How long a candidate that cannot be told from the served version gives its turns back for,
    /// in milliseconds.
    pub wait_ms: i64,
    /// How often in a row; after that it is refused.
    pub waits_max: u32,
}

/// When served versions are taken back by themselves.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WatchConfig {
    /// Whether it watches.
    pub enabled: bool,
    /// Judged turns, or answers, that tell what rate is usual in a scope; as many again tell it
    /// better.
    pub base_turns: u32,
    /// How many times the usual rate is worth an alarm.
    pub ratio: f64,
    /// Sum of log-likelihood ratios that alarms: higher is later and more surely.
    pub threshold: f64,
    /// Lowest rate that counts as usual.
    pub rate_min: f64,
    /// Answers after which a scope that was taken back may learn again; 0 leaves it to a person.
    pub resume_turns: u64,
    /// Most turns and verdicts of one look.
    pub news_max: usize,
}

/// Whether a published version answers a share of the sessions first.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CanaryConfig {
    /// Share of the sessions, below 1; 0 lets every version answer all of them at once.
    pub share: f64,
    /// Judged turns of a version on trial after which it answers every session, where the watch had
    /// nothing against it; 0 leaves that to a person.
    pub turns: u64,
}

/// Which files of versions are kept. What is served, pinned or on trial, and what that continues,
/// always is.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PruneConfig {
    /// Newest versions of each scope that keep their files; 0 keeps those of all versions.
    pub keep_versions: usize,
    /// How often it is looked for what can go, in milliseconds.
    pub interval_ms: i64,
    /// How old a folder that no version names has to be to go, in milliseconds; above
    /// `lease_ms`, so that no candidate under way is taken for one.
    pub orphan_age_ms: u64,
}

impl WatchConfig {
    pub(crate) fn validate(&self) -> Result<(), String> {
        let checks = [
            (self.base_turns >= 10, "base_turns must be at least 10"),
            (
                self.ratio > 1.0 && self.ratio.is_finite(),
                "ratio must be above 1",
            ),
            (
                self.threshold > 0.0 && self.threshold.is_finite(),
                "threshold must be above 0",
            ),
            (
                self.rate_min > 0.0 && self.rate_min < 0.5,
                "rate_min must be above 0 and below 0.5",
            ),
            (self.news_max >= 1, "news_max must be at least 1"),
        ];
        let broken = checks.iter().find(|(good, _)| !good);
        broken.map_or(Ok(()), |(_, what)| Err(format!("train.watch.{what}")))
    }
}

impl CanaryConfig {
    pub(crate) fn validate(&self) -> Result<(), String> {
        if (0.0..1.0).contains(&self.share) {
            return Ok(());
        }
        Err("train.canary.share must be at least 0 and below 1".to_owned())
    }
}

impl PruneConfig {
    /// Checks ranges; `lease_ms` is the loop's.
    pub(crate) fn validate(&self, lease_ms: i64) -> Result<(), String> {
        let lease_ms = u64::try_from(lease_ms).unwrap_or(0);
        if self.orphan_age_ms <= lease_ms {
            return Err("train.prune.orphan_age_ms must be above train.lease_ms".to_owned());
        }
        if self.interval_ms < 1 {
            return Err("train.prune.interval_ms must be at least 1".to_owned());
        }
        Ok(())
    }
}

impl GateConfig {
    pub(crate) fn validate(&self) -> Result<(), String> {
        let positive = [
            ("kl_to_reference_max", self.kl_to_reference_max),
            ("kl_to_parent_max", self.kl_to_parent_max),
        ];
        if let Some((key, _)) = positive.iter().find(|(_, v)| v.is_nan() || *v <= 0.0) {
            return Err(format!("train.gate.{key} must be above 0"));
        }
        let shares = [
            ("empty_share_max", self.empty_share_max),
            ("ended_margin", self.ended_margin),
            ("ended_drift_max", self.ended_drift_max),
            ("looping_margin", self.looping_margin),
        ];
        if let Some((key, _)) = shares.iter().find(|(_, v)| !(0.0..=1.0).contains(v)) {
            return Err(format!("train.gate.{key} must be between 0 and 1"));
        }
        let factors = [
            ("length_factor_max", self.length_factor_max),
            ("length_drift_factor_max", self.length_drift_factor_max),
        ];
        if let Some((key, _)) = factors.iter().find(|(_, v)| v.is_nan() || *v < 1.0) {
            return Err(format!("train.gate.{key} must be at least 1"));
        }
        let least = self.fact_loss_max.min(self.instructed_loss_max);
        if !(self.generic_loss_max > 0.0 && least >= 0.0) {
            return Err(
                "train.gate.generic_loss_max must be above 0, fact_loss_max and instructed_loss_max not below"
                    .to_owned(),
            );
        }
        if !(self.golden_loss_max > 0.0 && self.held_out_margin >= 0.0) {
            return Err(
                "train.gate.golden_loss_max must be above 0, held_out_margin not below".to_owned(),
            );
        }
        if !(0.0..=0.5).contains(&self.held_out_share) {
            return Err("train.gate.held_out_share must be between 0 and 0.5".to_owned());
        }
        if self.held_out_min < 2 || self.held_out_max < self.held_out_min {
            return Err(
                "train.gate.held_out_min must be at least 2 and at most held_out_max".to_owned(),
            );
        }
        if self.wait_ms < 0 {
            return Err("train.gate.wait_ms must not be negative".to_owned());
        }
        if self.kl_tokens_max == 0 {
            return Err("train.gate.kl_tokens_max must be at least 1".to_owned());
        }
        if self.probe_tokens_max < 2 {
            return Err("train.gate.probe_tokens_max must be at least 2".to_owned());
        }
        if self.probe_golden + self.probe_recent == 0 {
            return Err("train.gate.probe_golden or probe_recent must be at least 1".to_owned());
        }
        if !(self.probe_temperature.is_finite() && self.probe_temperature >= 0.0) {
            return Err("train.gate.probe_temperature must not be negative".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
impl GateConfig {
    pub(crate) fn for_tests() -> Self {
        Self {
            kl_to_reference_max: 1.0,
            kl_to_parent_max: 0.3,
            kl_tokens_max: 4_096,
            probe_recent: 4,
            probe_golden: 4,
            probe_tokens_max: 32,
            probe_prompt_tokens_max: 64,
            probe_temperature: 1.0,
            empty_share_max: 0.1,
            ended_margin: 0.3,
            ended_drift_max: 0.5,
            looping_margin: 0.3,
            length_factor_max: 3.0,
            length_drift_factor_max: 8.0,
            golden_loss_max: 3.0,
            generic_loss_max: 3.0,
            fact_loss_max: 3.0,
            instructed_loss_max: 3.0,
            held_out_share: 0.0,
            held_out_max: 64,
            held_out_min: 20,
            held_out_margin: 0.1,
            wait_ms: 1_000,
            waits_max: 2,
        }
    }
}

#[cfg(test)]
impl WatchConfig {
    /// Switched off, for tests that switch it on.
    pub(crate) fn for_tests() -> Self {
        Self {
            enabled: false,
            base_turns: 20,
            ratio: 2.0,
            threshold: 4.0,
            rate_min: 0.05,
            resume_turns: 100,
            news_max: 64,
        }
    }
}

#[cfg(test)]
impl CanaryConfig {
    /// Switched off, for tests that switch it on.
    pub(crate) fn for_tests() -> Self {
        Self {
            share: 0.0,
            turns: 5,
        }
    }
}

#[cfg(test)]
impl PruneConfig {
    /// Keeps every version, and looks for orphans next to never, for tests that look more often.
    pub(crate) fn for_tests() -> Self {
        Self {
            keep_versions: 0,
            interval_ms: 86_400_000,
            orphan_age_ms: 120_000,
        }
    }
}
