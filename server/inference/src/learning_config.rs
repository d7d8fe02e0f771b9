//! What may be learned from whom, and how it is measured.

use hone_domain::{Consent, Holdback, Learning};
use serde::{Deserialize, Serialize};

/// A scale that people score on.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// The number that counts as -1.
    pub worst: f64,
    /// The number that counts as 1.
    pub best: f64,
}

/// What may be learned from whom, until they decide themselves.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LearningConfig {
    /// Consent of the person at this machine.
    pub consent_local: Learning,
    /// Consent of everybody else.
    pub consent_others: Learning,
    /// Share of this machine's sessions that the base model answers as a control, 0 to 1.
    pub holdback_local: f64,
    /// The same for everybody else.
    pub holdback_others: f64,
    /// Seed of that draw.
    pub holdback_seed: u64,
    /// Owners of keys whose users share one policy instead of having one each.
    pub shared_owners: Vec<String>,
    /// Scales that feedback may be given on, besides -1 to 1.
    pub metrics: Vec<Metric>,
    /// Newest scored turns that a report on improvement looks at.
    pub report_turns_max: usize,
    /// Recent prompts with checks of their own that a new version and the base model answer once more
    /// to be compared; 0 is off.
    pub paired_prompts: usize,
    /// How often it is looked for new versions to compare, in milliseconds.
    pub paired_interval_ms: u64,
    /// Turns that are erased by one transaction.
    pub forget_piece_turns: usize,
    /// How long a wish to be forgotten waits for its end before it is answered, in milliseconds.
    pub forget_wait_ms: u64,
}

impl LearningConfig {
    /// Consent where nothing was decided.
    pub fn default_consent(&self, is_local: bool) -> Consent {
        Consent::to(if is_local {
            self.consent_local
        } else {
            self.consent_others
        })
    }

    /// The draw of the control group.
    pub fn holdback(&self, is_local: bool) -> Holdback {
        Holdback {
            share: if is_local {
                self.holdback_local
            } else {
                self.holdback_others
            },
            seed: self.holdback_seed,
        }
    }

    /// Whether the values fit together.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
        let shares = [
            ("holdback_local", self.holdback_local),
            ("holdback_others", self.holdback_others),
        ];
        if let Some((key, _)) = shares.iter().find(|(_, s)| !(0.0..=1.0).contains(s)) {
            return Err(format!("learning.{key} must be between 0 and 1"));
        }
        let counts = [
            ("report_turns_max", self.report_turns_max),
            ("forget_piece_turns", self.forget_piece_turns),
        ];
        if let Some((key, _)) = counts.iter().find(|(_, n)| *n == 0) {
            return Err(format!("learning.{key} must be at least 1"));
        }
        let wrong = |metric: &&Metric| {
            let span = metric.best - metric.worst;
            metric.name.is_empty() || !span.is_finite() || span == 0.0
        };
        if let Some(metric) = self.metrics.iter().find(wrong) {
            return Err(format!(
                "learning.metrics {:?} needs a name and two different numbers, worst and best",
                metric.name
            ));
        }
        Ok(())
    }
}
