//! What enters collect, what it wants done and what comes back.

use hone_domain::{
    Feedback, GroupId, Millis, NextState, Reason, Receipt, Scope, SessionCredit, SessionId,
    SessionReward, StopReason, Transition, TransitionId, Turn, TurnId, TurnKind,
};
use hone_ledger::{FeedbackOutcome, Rewarded};
use tokio::sync::oneshot;

use crate::SpoolStatus;

/// What the gateway sends.
#[derive(Debug)]
pub enum Input {
    /// A turn ended.
    Turn {
        /// The turn.
        turn: Box<Turn>,
        /// Signed when it is on disk, or with the reason why it is not.
        receipt: oneshot::Sender<Receipt>,
    },
    /// A request answers an earlier turn.
    Next(Observed),
    /// A person said something about a turn.
    Feedback {
        /// What was said.
        feedback: Box<Feedback>,
        /// Told what became of it; an error is the ledger's.
        reply: oneshot::Sender<Result<FeedbackOutcome, String>>,
    },
    /// A session got a reward.
    Reward(Rewarding),
    /// The client says that a session is over.
    SessionDone(SessionId),
}

/// What a request answers to the turn it continues.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The continued turn.
    pub parent: TurnId,
    /// The session of the request.
    pub session: SessionId,
    /// Whose policy.
    pub scope: Scope,
    /// What was answered.
    pub next_state: NextState,
    /// The turn that the request begins.
    pub next_turn: Option<TurnId>,
    /// When it was admitted.
    pub at_ms: Millis,
}

/// Where a turn belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its session.
    pub session: SessionId,
    /// Whose policy it may train.
    pub scope: Scope,
}

/// The reward of a session on its way to the ledger.
#[derive(Debug)]
pub struct Rewarding {
    /// The reward.
    pub reward: Box<SessionReward>,
    /// How it reaches the turns.
    pub credit: SessionCredit,
    /// Told what became of it, none where the owner has no such session; an error is the ledger's.
    pub reply: oneshot::Sender<Result<Option<Rewarded>, String>>,
}

/// Feedback on its way to the ledger.
#[derive(Debug)]
pub struct Said {
    /// What was said.
    pub feedback: Box<Feedback>,
    /// Told what became of it.
    pub reply: oneshot::Sender<Result<FeedbackOutcome, String>>,
    /// Where its turn belongs, if the loop knows.
    pub place: Option<Place>,
    /// Id of the transition, should it settle the turn.
    pub transition: TransitionId,
}

impl Said {
    /// Whether it is clear enough to settle an open turn at once. A comment alone may be followed
    /// by a reply that says more.
    pub fn settles(feedback: &Feedback) -> bool {
        feedback.score.is_some() || feedback.correction.is_some()
    }
}

/// What one write holds, in the order in which it is written.
#[derive(Debug, Default)]
pub struct Batch {
    /// Turns; one receipt each.
    pub turns: Vec<Turn>,
    /// Receipts, aligned with `turns`.
    pub receipts: Vec<oneshot::Sender<Receipt>>,
    /// Transitions.
    pub transitions: Vec<Transition>,
    /// Feedback.
    pub said: Vec<Said>,
    /// Rewards of sessions.
    pub rewards: Vec<Rewarding>,
    /// Turns that end without a next state.
    pub settles: Vec<(TurnId, Reason)>,
}

impl Batch {
    /// Number of things in it.
    pub fn len(&self) -> usize {
        let words = self.said.len() + self.rewards.len();
        self.turns.len() + self.transitions.len() + words + self.settles.len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Read the turns that wait for a next state, and restore the index the first time.
    Load,
    /// Write a batch, sign its receipts, notify the judge. What a ledger that does not answer leaves goes into the spool.
    Write(Box<Batch>),
    /// Put a batch into the spool, behind what waits there, and sign its receipts.
    Spool(Box<Batch>),
    /// Write what waited longest in the spool, and notify the judge.
    Ship(Ship),
    /// Wait before the spool is shipped again.
    Rest(u64),
    /// Sign a receipt with a reason.
    Refuse(oneshot::Sender<Receipt>, Reason),
    /// Tell a sender of feedback that it was not taken.
    Decline(oneshot::Sender<Result<FeedbackOutcome, String>>, String),
    /// Tell the sender of a session's reward that it was not taken.
    DeclineReward(oneshot::Sender<Result<Option<Rewarded>, String>>, String),
    /// Wait before the next try.
    Pause(u64),
    /// Forget sessions in the index that were idle since before this time.
    Evict(Millis),
    /// Forget one session in the index.
    Forget(SessionId),
}

/// How the spool is to be shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ship {
    /// Most records.
    pub most: usize,
    /// How long one write may take.
    pub limit_ms: u64,
    /// The first record failed by itself again and again: where a later turn can be written, it is left.
    pub doubts_first: bool,
}

/// How shipping went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shipped {
    /// Turns that are in the ledger now.
    pub turns: u64,
    /// New transitions.
    pub transitions: u64,
    /// Records that were damaged, could not be read, or that the ledger took none of while it took others.
    pub lost: u64,
    /// How full the spool is.
    pub status: SpoolStatus,
    /// Why no more of them were written.
    pub error: Option<String>,
}

/// What the loop remembers of a turn that waits for a next state.
#[derive(Clone, Debug)]
pub struct OpenMeta {
    /// The turn.
    pub turn: TurnId,
    /// Where it belongs.
    pub place: Place,
    /// Owner of its key.
    pub owner: String,
    /// Its siblings' group.
    pub group: Option<GroupId>,
    /// When it ended.
    pub finished_ms: Millis,
    /// Somebody said something about it.
    pub has_feedback: bool,
    /// What was said settles it.
    pub is_settled_by_feedback: bool,
    /// Its completion is to be checked, so it goes to the judge even if nothing answers it.
    pub is_checked: bool,
}

impl OpenMeta {
    /// Of a turn that has just ended; none where the ledger will not keep it waiting for a next state.
    pub(crate) fn of(turn: &Turn) -> Option<Self> {
        let waits = turn.kind == TurnKind::Main
            && turn.untrainable.is_none()
            && !turn.completion.is_empty()
            && turn.completion.stop() != StopReason::Cancelled;
        waits.then(|| Self {
            turn: turn.id,
            place: Place {
                session: turn.session,
                scope: turn.scope.clone(),
            },
            owner: turn.owner.clone(),
            group: turn.group,
            finished_ms: turn.finished_ms,
            has_feedback: false,
            is_settled_by_feedback: false,
            is_checked: !turn.admission.checks.is_empty(),
        })
    }
}

/// What was found in the ledger.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Turns that wait for a next state.
    pub open: Vec<OpenMeta>,
    /// There are more than were read.
    pub truncated: bool,
}

/// What became of feedback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It settled its turn.
    Settled(TurnId),
    /// It is kept with its turn.
    Kept(TurnId),
    /// Its turn is not known yet.
    Early {
        /// The turn it is about.
        turn: TurnId,
        /// Who said it.
        owner: String,
        /// Whether it settles the turn.
        settles: bool,
    },
}

/// How a write went.
#[derive(Debug, Default)]
pub struct Wrote {
    /// Turns recorded.
    pub recorded: u64,
    /// Turns that are in the spool.
    pub spooled: u64,
    /// Turns that nobody tried to record, because the spool is full.
    pub refused: Vec<TurnId>,
    /// How full the spool is.
    pub status: SpoolStatus,
    /// Recorded turns whose client had been told that they are not.
    pub late: Vec<TurnId>,
    /// Turns dropped, because the ledger failed and nobody waited any more, or the spool was full. They may be in the
    /// ledger all the same, where the answer was lost and not the write.
    pub dropped: Vec<TurnId>,
    /// New transitions.
    pub transitions: u64,
    /// Next states of turns that were settled before, or unknown.
    pub ignored: u64,
    /// Turns given a reason.
    pub settled: u64,
    /// Turns that do not wait for a next state any more.
    pub closed: Vec<TurnId>,
    /// What became of feedback.
    pub heard: Vec<Heard>,
    /// What was not written, for another try.
    pub unfinished: Batch,
    /// Why not.
    pub error: Option<String>,
}

/// How an effect went.
#[derive(Debug)]
pub enum Report {
    /// What was loaded.
    Loaded(Result<Loaded, String>),
    /// How a write went.
    Wrote(Box<Wrote>),
    /// How shipping went.
    Shipped(Shipped),
    /// A rest is over.
    Rested,
    /// A pause is over.
    Resumed,
    /// Done, and nothing to say about it.
    Done,
}
