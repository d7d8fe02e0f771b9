//! A turn as it is read.

use hone_domain::{Fate, Feedback, Reason, Transition, Turn, Verdict};

use crate::retention::Extent;

/// A turn with everything that became of it.
#[derive(Clone, Debug)]
pub struct TurnView {
    /// The turn.
    pub turn: Turn,
    /// How much of it is stored.
    pub extent: Extent,
    /// What became of it.
    pub fate: Fate,
    /// Its transition.
    pub transition: Option<Transition>,
    /// The transition's current verdict.
    pub verdict: Option<Verdict>,
    /// Explicit feedback.
    pub feedback: Vec<Feedback>,
}

impl TurnView {
    /// What its verdict says.
    pub fn score(&self) -> Option<f32> {
        self.verdict.as_ref().and_then(|verdict| verdict.score)
    }

    /// Whether the log-probs of its tokens are known, and still kept.
    pub fn has_logprobs(&self) -> bool {
        self.extent == Extent::Whole && self.turn.completion.has_logprobs()
    }

    /// Whether it was erased, or its person withdrew it.
    pub fn is_withdrawn(&self) -> bool {
        let reason = Reason::Withdrawn;
        self.fate == Fate::Settled { reason }
    }

    /// Whether its words are still there.
    pub fn has_words(&self) -> bool {
        self.extent != Extent::Row && !self.turn.prompt_tokens.is_empty()
    }
}
