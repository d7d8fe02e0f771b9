//! An answer to a prompt.

use hone_domain::Token;

use crate::probe::ProbeCompletion;

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) tokens: Vec<Token>,
    /// The token that ended it; none where it was cut off.
    pub(super) end: Option<Token>,
}

impl Answer {
    pub(super) fn probe(self) -> ProbeCompletion {
        ProbeCompletion {
            tokens: self.tokens,
            ended: self.end.is_some(),
        }
    }
}
