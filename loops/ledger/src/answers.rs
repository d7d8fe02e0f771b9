//! Answers that retries get, kept beside the turns that they came to.

use async_trait::async_trait;
use hone_domain::{Digest, Millis, RequestId, TurnId};

use crate::LedgerError;

/// Bounds of what is kept.
#[derive(Clone, Copy, Debug)]
pub struct AnswerLimits {
    /// Most answers; the oldest goes first.
    pub answers_max: usize,
    /// Most bytes of answers; the oldest goes first.
    pub bytes_max: usize,
    /// How long an answer is kept, from when its request began.
    pub keep_ms: Millis,
}

/// A request that may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerName {
    /// Hash over owner, route and the client's key.
    pub name: Digest,
    /// Whose.
    pub owner: String,
    /// Hash over what was asked.
    pub body: Digest,
    /// The first request of this name.
    pub request: RequestId,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers, as JSON.
    pub headers: Vec<u8>,
    /// Its bytes.
    pub body: Vec<u8>,
}

/// What is known of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// Nothing.
    Unknown,
    /// It belongs to another body.
    Other,
    /// The answer of the first request.
    Whole(Answer),
    /// The first request came to this turn, and the process ended before its answer was kept.
    Lost(TurnId),
}

/// Answers that retries get. Every method that writes is one transaction, durable on return.
#[async_trait]
pub trait Answers: Send + Sync {
    /// Notes that a request begins; one of the same name that came to nothing is replaced. What is beyond
    /// the limits goes.
    async fn begin_answer(
        &self,
        name: &AnswerName,
        limits: AnswerLimits,
        now_ms: Millis,
    ) -> Result<(), LedgerError>;

    /// Keeps the answer of a request that began. False where it is not known any more: its owner had it
    /// forgotten.
    async fn keep_answer(
        &self,
        name: &AnswerName,
        answer: &Answer,
        limits: AnswerLimits,
    ) -> Result<bool, LedgerError>;

    /// A request failed, or its answer is not to be kept: its name is free again.
    async fn drop_answer(&self, name: &AnswerName) -> Result<(), LedgerError>;

    /// What is known of a name that began at `since_ms` or later.
    async fn answered(&self, name: &AnswerName, since_ms: Millis) -> Result<Answered, LedgerError>;
}
