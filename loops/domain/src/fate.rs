//! What became of a turn: every turn ends in a counted outcome with a reason.

use serde::{Deserialize, Serialize};

use crate::PolicyVersion;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $says:literal;)*) => {
        /// Why a turn did not train. Closed, so that "why did this not train" always has an answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason { $($(#[$doc])* $name),* }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Whether turns that are left out for it are kept at all.
            pub fn is_kept(self) -> bool {
                !matches!(self, Self::StoreFalse | Self::NoCollector)
            }

            /// The stored and counted name.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// One sentence for a person.
            pub fn explain(self) -> &'static str {
                match self { $(Self::$name => $says),* }
            }

            /// Restores a reason from its stored name.
            pub fn from_stored(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$name),)* _ => None }
            }
        }
    };
}

reasons! {
    /// `store: false`.
    StoreFalse = "store_false", "the request said store: false";
    /// Learning is switched off for this user or server.
    LearningOff = "learning_off", "learning from this user is switched off";
    /// The collect loop does not run in this process.
    NoCollector = "no_collector", "this process does not collect turns";
    /// The queue to collect was full.
    QueueFull = "queue_full", "the recorder could not keep up and dropped it";
    /// The ledger could not be written.
    LedgerFailed = "ledger_failed", "the ledger could not be written; see the server's log";
    /// The ledger does not answer and the spool is full.
    SpoolFull = "spool_full", "the database does not answer, and the spool that takes turns meanwhile is full";
    /// The receipt came after the client was told it would not.
    LateReceipt = "late_receipt", "its record was not confirmed in time, and the client was told that it is not collected";
    /// A housekeeping call.
    SideTurn = "side_turn", "it was a side turn (title, summary, memory), which is never trained on";
    /// The client left before the end.
    Cancelled = "cancelled", "the client left before the completion ended";
    /// Nothing was sampled.
    EmptyCompletion = "empty_completion", "the completion was empty";
    /// Temperature 0.
    Greedy = "greedy", "it was sampled at temperature 0, which has no distribution to learn from";
    /// Penalties or bias.
    NotReplayable = "not_replayable", "penalties, logit bias or very large sets of kept tokens or experts changed the distribution in a way the learner does not replay";
    /// The backend cannot train.
    BackendCannotTrain = "backend_cannot_train", "the backend that answered does not report exact tokens and log-probs";
    /// Another completion of the same request was continued.
    NotChosen = "not_chosen", "the client went on with another completion of the same request";
    /// The session ended without a next state.
    NoNextState = "no_next_state", "the session ended before anything answered this turn";
    /// The judge could not tell.
    Abstained = "abstained", "no signal could tell whether the completion was good";
    /// The judge's claim failed too often.
    JudgeFailed = "judge_failed", "judging failed repeatedly";
    /// Older than the limit.
    Stale = "stale", "its weights version was too old when its batch was made";
    /// The ready queue was full of newer ones.
    QueueDropped = "queue_dropped", "newer turns filled the ready queue (drop oldest)";
    /// The method needs a hint or a correction.
    NoLesson = "no_lesson", "the training method learns from hints or corrections only, and it had neither";
    /// It came from outside, and only imitation learns from that.
    NoLogprobs = "no_logprobs", "it came from outside without log-probs, which only imitation learns from: the training method does not imitate, or it was not good";
    /// The tokens do not fit a training row.
    TooLong = "too_long", "prompt and completion are longer than a training row";
    /// Kept to compare candidates on.
    HeldOut = "held_out", "it was kept to compare new versions on, which is never trained on";
    /// The candidate trained from it was refused.
    GateRejected = "gate_rejected", "the candidate trained from it did not pass the gate";
    /// The optimizer step failed.
    StepFailed = "step_failed", "training on it failed: its step was not finite, it could not be read, or the process ended in it again and again";
    /// The control group.
    Holdback = "holdback", "the base model answered it, to measure what learning brings; it is judged and never trained on";
    /// The user had it forgotten, or withdrew the consent.
    Withdrawn = "withdrawn", "the user had it forgotten, or withdrew the consent to learn from it";
    /// Another arithmetic sampled it.
    OtherFingerprint = "other_fingerprint", "another arithmetic or base model sampled it";
}

/// Where a turn is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Waiting for a next state.
    AwaitingNextState,
    /// Waiting for the judge.
    AwaitingVerdict,
    /// Waiting for a batch.
    AwaitingTraining,
}

impl Stage {
    /// The stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AwaitingNextState => "awaiting_next_state",
            Self::AwaitingVerdict => "awaiting_verdict",
            Self::AwaitingTraining => "awaiting_training",
        }
    }

    /// Restores a stage from its stored name.
    pub fn from_stored(text: &str) -> Option<Self> {
        [
            Self::AwaitingNextState,
            Self::AwaitingVerdict,
            Self::AwaitingTraining,
        ]
        .into_iter()
        .find(|stage| stage.as_str() == text)
    }
}

/// What became of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Fate {
    /// On its way.
    Pending {
        /// Where.
        stage: Stage,
    },
    /// It entered this version.
    Trained {
        /// The version.
        version: PolicyVersion,
    },
    /// It will not train.
    Settled {
        /// Why.
        reason: Reason,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_names_round_trip_and_are_distinct() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_stored(reason.as_str()), Some(*reason));
            assert!(!reason.explain().is_empty());
        }
        assert_eq!(Reason::from_stored("nonsense"), None);
        assert_eq!(
            Stage::from_stored("awaiting_verdict"),
            Some(Stage::AwaitingVerdict)
        );
    }
}
