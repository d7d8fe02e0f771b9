//! What a check found.

use hone_domain::{Outcome, Signal, Vote};

/// Most characters of evidence that are kept.
pub(super) const EVIDENCE_CHARS_MAX: usize = 400;

/// What a check found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finding {
    /// The vote: outcome, and the check's name with its evidence.
    pub vote: Vote,
    /// The score it is worth, where it is not the outcome's own.
    pub score: Option<f32>,
    /// What should have been done.
    pub hint: Option<String>,
    /// Whether nothing was run or compared: a certificate.
    pub is_argued: bool,
}

/// A finding of the check `name`.
pub(crate) fn finding(name: &str, outcome: Outcome, evidence: &str) -> Finding {
    let reason: String = format!("{name}: {evidence}");
    Finding {
        vote: Vote {
            signal: Signal::Verifier,
            outcome,
            reason: reason.chars().take(EVIDENCE_CHARS_MAX).collect(),
            model: None,
            latency_ms: 0,
            usage: None,
            prompt: None,
        },
        score: None,
        hint: None,
        is_argued: false,
    }
}
