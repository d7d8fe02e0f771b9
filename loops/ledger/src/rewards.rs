//! What becomes of the reward of a whole session.

use std::collections::BTreeMap;

use hone_domain::{Reason, Scope, TurnId};

/// Most turns of a session that a reward reaches, counted from the newest.
pub const REWARDED_TURNS_MAX: usize = 1_024;

/// Most rewards kept of one session: the newest is the one that counts.
pub const REWARDS_KEPT: usize = 32;

/// What became of a session's reward.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewarded {
    /// It replaced what the same client id said before.
    pub is_replaced: bool,
    /// Whose policy answered in the session.
    pub scope: Scope,
    /// Turns that are judged by it, oldest first.
    pub reached: Vec<RewardedTurn>,
    /// How many turns are not, by why.
    pub missed: BTreeMap<Missed, u64>,
}

/// A turn that a session's reward reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RewardedTurn {
    /// The turn.
    pub turn: TurnId,
    /// Its return, in [−1, 1].
    pub score: f32,
    /// It waits for a next state, and nothing else settles it: the reward does.
    pub is_open: bool,
}

/// Why a session's reward does not reach one of its main turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missed {
    /// A version has learned from it.
    AlreadyLearned,
    /// It has feedback of its own, which counts.
    OwnFeedback,
    /// Only the newest turn gets the reward.
    Earlier,
    /// It is one of several choices of its request, and nothing continued it.
    NotChosen,
    /// It lies before the [`REWARDED_TURNS_MAX`] newest.
    TooEarly,
    /// A batch that is being trained holds it.
    InTraining,
    /// It was settled for this reason, which no feedback changes.
    Settled(Reason),
}

impl Missed {
    /// The name that clients see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AlreadyLearned => "already_learned",
            Self::OwnFeedback => "own_feedback",
            Self::Earlier => "earlier",
            Self::NotChosen => "not_chosen",
            Self::TooEarly => "too_early",
            Self::InTraining => "in_training",
            Self::Settled(reason) => reason.as_str(),
        }
    }
}
