//! Traces and numbers for a collector.

use serde::{Deserialize, Serialize};

/// Traces and numbers for a collector. Defaults stand in `configs/default.toml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Base URL of an OTLP collector; empty sends nothing unless the environment names one.
    pub endpoint: String,
    /// The service's name there.
    pub service_name: String,
    /// Share of the traces that is sent, 0 to 1.
    pub sample_share: f64,
    /// Most spans that wait to be sent; further ones are dropped.
    pub queue_max: usize,
    /// How long spans are gathered, in milliseconds.
    pub span_interval_ms: u64,
    /// Time between two sendings of numbers, in milliseconds.
    pub metric_interval_ms: u64,
    /// Longest call, in milliseconds.
    pub timeout_ms: u64,
}

impl TelemetryConfig {
    /// Whether the values fit together.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.sample_share) {
            return Err("telemetry.sample_share must be between 0 and 1".to_owned());
        }
        let numbers = [
            ("queue_max", self.queue_max as u64),
            ("span_interval_ms", self.span_interval_ms),
            ("metric_interval_ms", self.metric_interval_ms),
            ("timeout_ms", self.timeout_ms),
        ];
        match numbers.iter().find(|(_, n)| *n == 0) {
            Some((key, _)) => Err(format!("telemetry.{key} must be at least 1")),
            None => Ok(()),
        }
    }
}
