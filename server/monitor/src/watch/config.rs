//! What the console reads: samples kept in memory, and the page's files.

use serde::{Deserialize, Serialize};

use super::history::HistoryLimits;

/// The console.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleConfig {
    /// Time between two samples, in milliseconds.
    pub sample_step_ms: u64,
    /// How far back samples are kept, in milliseconds.
    pub fine_ms: u64,
    /// Time between two coarse samples, in milliseconds; a multiple of `sample_step_ms`.
    pub coarse_step_ms: u64,
    /// How far back coarse samples are kept, in milliseconds.
    pub coarse_ms: u64,
    /// Most different numbers in a sample; further ones are left out.
    pub names_max: usize,
    /// Folder of the page's files; empty takes those built into the program.
    pub page_dir: String,
}

impl ConsoleConfig {
    /// Bounds of the samples.
    pub fn history(&self) -> HistoryLimits {
        let count =
            |over: u64, step: u64| usize::try_from(over / step.max(1)).unwrap_or(usize::MAX);
        HistoryLimits {
            fine_max: count(self.fine_ms, self.sample_step_ms),
            coarse_of: count(self.coarse_step_ms, self.sample_step_ms),
            coarse_max: count(self.coarse_ms, self.coarse_step_ms),
            names_max: self.names_max,
        }
    }

    /// Whether the values fit together.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
        const SAMPLES_MAX: usize = 100_000;
        if self.sample_step_ms < 100 {
            return Err("console.sample_step_ms must be at least 100".to_owned());
        }
        let is_multiple = self.coarse_step_ms.is_multiple_of(self.sample_step_ms);
        if self.coarse_step_ms == 0 || !is_multiple {
            return Err(
                "console.coarse_step_ms must be a multiple of console.sample_step_ms".to_owned(),
            );
        }
        let limits = self.history();
        if !(limits.coarse_of..=SAMPLES_MAX).contains(&limits.fine_max) {
            return Err(format!(
                "console.fine_ms must cover at least console.coarse_step_ms and at most {SAMPLES_MAX} samples"
            ));
        }
        if !(1..=SAMPLES_MAX).contains(&limits.coarse_max) {
            return Err(format!(
                "console.coarse_ms must cover 1 to {SAMPLES_MAX} coarse samples"
            ));
        }
        if !(1..=4_096).contains(&self.names_max) {
            return Err("console.names_max must be between 1 and 4096".to_owned());
        }
        Ok(())
    }
}
