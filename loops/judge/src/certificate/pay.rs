//! What a certificate that passed its check is worth: the share of such certificates that turned out
//! true when some were executed, per bucket of alike changes.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::change::Changed;

/// How certificates are paid.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PayConfig {
    /// Share of sound certificates that are executed as well, by the callback `execute`, once
    /// `audits_min` of their bucket were; until then all are.
    pub audit_share: f64,
    /// Audits of a bucket before which its certificates are worth nothing.
    pub audits_min: u64,
    /// Lowest share of true ones that a bucket may have, at the lower end of what is likely.
    pub precision_min: f64,
    /// Who executes: address, variable of the secret, and deadline; without one nothing is audited.
    pub execute: Option<Execute>,
}

/// Who executes.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Execute {
    /// Where.
    pub url: String,
    /// Environment variable of the secret that signs the request.
    pub secret_env: String,
    /// How long it may take.
    pub deadline_ms: u64,
}

impl Default for PayConfig {
    fn default() -> Self {
        Self {
            audit_share: 0.03,
            audits_min: 20,
            precision_min: 0.5,
            execute: None,
        }
    }
}

/// How often an executed check agreed with its certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditCount {
    /// The bucket.
    pub bucket: String,
    /// Executed and found true.
    pub agreed: u64,
    /// Executed.
    pub executed: u64,
}

/// The counts of every bucket.
#[derive(Clone, Debug, Default)]
pub struct Buckets(HashMap<String, (u64, u64)>);

impl Buckets {
    /// From stored counts.
    pub fn new(counts: impl IntoIterator<Item = AuditCount>) -> Self {
        let counts = counts.into_iter();
        Self(counts.map(|c| (c.bucket, (c.agreed, c.executed))).collect())
    }

    /// Adds one executed check.
    pub fn note(&mut self, bucket: &str, agreed: bool) {
        let (yes, all) = self.0.entry(bucket.to_owned()).or_default();
        *yes += u64::from(agreed);
        *all += 1;
    }

    /// What a sound certificate of this bucket is worth, in (0, 1): the mean of the share of true
    /// ones under a uniform prior (Laplace's rule of succession). None where fewer than `audits_min`
    /// were executed, or too many of those were wrong.
    pub fn pay(&self, bucket: &str, config: &PayConfig) -> Option<f64> {
        let (agreed, executed) = self.0.get(bucket).copied().unwrap_or_default();
        let fit =
            self.is_audited(bucket, config) && lower(agreed, executed) >= config.precision_min;
        fit.then(|| (agreed as f64 + 1.0) / (executed as f64 + 2.0))
    }

    /// Whether enough certificates of this bucket were executed to say what they are worth.
    pub fn is_audited(&self, bucket: &str, config: &PayConfig) -> bool {
        let (_, executed) = self.0.get(bucket).copied().unwrap_or_default();
        executed >= config.audits_min.max(1)
    }
}

/// The lower end of the 90 % interval of a share (Wilson 1927).
fn lower(yes: u64, all: u64) -> f64 {
    const Z: f64 = 1.645;
    let (n, p) = (all as f64, yes as f64 / (all as f64).max(1.0));
    let middle = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    (middle - half) / (1.0 + Z * Z / n)
}

/// The bucket of a change: who argues, in which language, how much changed, in how many files.
pub fn bucket(model: &str, changed: &Changed) -> String {
    let endings = changed
        .hunks
        .iter()
        .filter_map(|h| h.file.rsplit_once('.').map(|(_, e)| e));
    let mut endings: Vec<&str> = endings.collect();
    endings.sort_unstable();
    endings.dedup();
    let language = match endings[..] {
        [one] => one,
        [] => "none",
        _ => "several",
    };
    let lines: usize = changed
        .hunks
        .iter()
        .map(|h| (h.after.1 + 1).saturating_sub(h.after.0))
        .sum();
    let size = match lines {
        0..=5 => "small",
        6..=40 => "medium",
        _ => "large",
    };
    let mut files: Vec<&str> = changed.hunks.iter().map(|h| h.file.as_str()).collect();
    files.dedup();
    let files = if files.len() > 1 {
        "several-files"
    } else {
        "one-file"
    };
    format!("{model}/{language}/{size}/{files}")
}
