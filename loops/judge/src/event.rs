//! What the judge wants done and what comes back.

use std::sync::Arc;
use std::time::Duration;

use hone_domain::{Message, Millis, TransitionId, Turn, Verdict};
use hone_ledger::{Claim, Claimed};
use tokio::sync::oneshot;

use crate::reading::{Reading, Unreadable};
use crate::{Compared, CompleteOptions, Completed, CompleterError, Doing, Done};

/// A claimed transition: its id and the fence it was claimed under.
pub(crate) type Key = (TransitionId, u64);

pub(crate) fn key(claim: &Claim) -> Key {
    (claim.transition, claim.fence)
}

/// One vote to be asked for.
#[derive(Debug)]
pub struct VoteAsk {
    /// The lease it is for.
    pub claim: Claim,
    /// Which of the votes.
    pub index: usize,
    /// The prompt.
    pub messages: Arc<[Message]>,
    /// How to sample, and how long to wait.
    pub options: CompleteOptions,
    /// Ends when the vote is not needed any more.
    pub withdrawn: oneshot::Receiver<()>,
}

/// Hints to be weighed.
#[derive(Debug)]
pub struct WeighAsk {
    /// The lease it is for.
    pub claim: Claim,
    /// What they are about.
    pub turn: Arc<Turn>,
    /// The hints.
    pub hints: Vec<String>,
    /// What is compared.
    pub compared: Compared,
    /// How long it may take.
    pub deadline: Duration,
    /// Ends when the answer is not needed any more.
    pub withdrawn: oneshot::Receiver<()>,
}

/// A reply to be read.
#[derive(Debug)]
pub struct ReadAsk {
    /// The lease it is for.
    pub claim: Claim,
    /// What it answers.
    pub turn: Arc<Turn>,
    /// The reply.
    pub reply: Arc<str>,
    /// How long it may take.
    pub deadline: Duration,
    /// Ends when the answer is not needed any more.
    pub withdrawn: oneshot::Receiver<()>,
}

/// One check that somebody else does.
#[derive(Debug)]
pub struct CheckAsk {
    /// The lease it is for.
    pub claim: Claim,
    /// Which of the checks.
    pub index: usize,
    /// What is to be done.
    pub doing: Doing,
    /// Ends when the check is not needed any more.
    pub withdrawn: oneshot::Receiver<()>,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Claim up to so many transitions.
    Claim {
        /// Most transitions.
        limit: usize,
    },
    /// Ask for a vote.
    Ask(Box<VoteAsk>),
    /// Have hints weighed.
    Weigh(Box<WeighAsk>),
    /// Have a reply read.
    Read(Box<ReadAsk>),
    /// Have a check done.
    Check(Box<CheckAsk>),
    /// Record a verdict, after a pause if this is a retry.
    Record {
        /// Under this lease.
        claim: Claim,
        /// The verdict.
        verdict: Box<Verdict>,
        /// Pause before.
        after_ms: u64,
    },
    /// Settle the transition as `judge_failed`.
    GiveUp(Claim),
    /// Give the lease back.
    Release {
        /// The lease.
        claim: Claim,
        /// When it may be claimed again.
        retry_at_ms: Millis,
    },
}

/// Why there is no vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VoteError {
    /// It took longer than its deadline.
    Deadline,
    /// It was not needed any more.
    Withdrawn,
    /// The completer failed.
    Failed(CompleterError),
}

/// Why a verdict was not recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The lease was taken over; somebody else judges it.
    Fenced,
    /// The ledger failed.
    Failed(String),
}

/// How an effect went.
#[derive(Debug)]
pub enum Report {
    /// What was claimed.
    Claimed(Result<Vec<Claimed>, String>),
    /// A vote came in, or did not.
    Voted {
        /// For which lease.
        claim: Claim,
        /// Which of the votes.
        index: usize,
        /// What the model said.
        result: Result<Completed, VoteError>,
        /// How long it took.
        latency_ms: u64,
    },
    /// Hints were weighed, or not.
    Weighed {
        /// For which lease.
        claim: Claim,
        /// Per hint, or why not.
        result: Result<Vec<f32>, String>,
    },
    /// A reply was read, or not.
    Read {
        /// For which lease.
        claim: Claim,
        /// What it says, none where nothing reads yet, or why not.
        result: Result<Option<Reading>, Unreadable>,
    },
    /// A check was done, or not.
    Checked {
        /// For which lease.
        claim: Claim,
        /// Which of the checks.
        index: usize,
        /// What came of it, or why nothing did.
        result: Result<Done, String>,
        /// How long it took.
        latency_ms: u64,
    },
    /// A verdict was recorded, or not.
    Recorded {
        /// Under which lease.
        claim: Claim,
        /// The verdict, for another try.
        verdict: Box<Verdict>,
        /// How it went.
        result: Result<(), RecordError>,
    },
    /// A transition was given up, or not.
    GaveUp(Result<(), String>),
    /// A lease was given back, or not.
    Released(Result<(), String>),
}
