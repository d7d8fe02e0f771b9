//! Judged turns that nothing is learned from.

use hone_domain::Token;
use serde::{Deserialize, Serialize};

/// A judged turn to compare policies on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Prompt and completion.
    pub tokens: Vec<Token>,
    /// Index of the first completion token; at least 1.
    pub start: usize,
    /// -1 to 1.
    pub score: f32,
}
