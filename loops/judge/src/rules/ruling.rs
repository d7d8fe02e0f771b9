//! What the rules say about a next state.

use hone_domain::Outcome;

/// What the rules say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// How it comes out.
    pub outcome: Outcome,
    /// The rule that decided, or why none did.
    pub reason: &'static str,
    /// What should have been done, in the user's words.
    pub hint: Option<String>,
    /// The manner that the hint asks for, in the words of the table of manners.
    pub wish: Option<String>,
}

/// The reason when a person went on without a word about the completion.
pub const MOVED_ON: &str = "moved_on";

impl Ruling {
    pub(super) fn new(outcome: Outcome, reason: &'static str) -> Self {
        Self {
            outcome,
            reason,
            hint: None,
            wish: None,
        }
    }
}
