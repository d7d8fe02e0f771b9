//! What the judge asks of a model: one completion of a chat, by whoever can.

use std::time::Duration;

use async_trait::async_trait;
use hone_domain::Message;

/// How to complete.
#[derive(Clone, Debug, PartialEq)]
pub struct CompleteOptions {
    /// Sampling temperature.
    pub temperature: f32,
    /// Most tokens.
    pub max_tokens: u32,
    /// Seed, so that the votes on one transition differ and can be repeated.
    pub seed: u64,
    /// How long it may take. The judge stops waiting then, whatever the completer does.
    pub deadline: Duration,
}

/// Why there is no completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompleterError {
    /// No connection, or it broke.
    #[error("the judge model cannot be reached: {0}")]
    Unreachable(String),
    /// The server said no.
    #[error("the judge model answered status {status}: {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What the server said.
        message: String,
    },
    /// The answer is not a completion.
    #[error("the judge model's answer cannot be read: {0}")]
    Unreadable(String),
}

/// Completes chats for the judge.
#[async_trait]
pub trait Completer: Send + Sync {
    /// One completion's text. Dropping the future withdraws the request.
    async fn complete(
        &self,
        messages: &[Message],
        options: CompleteOptions,
    ) -> Result<String, CompleterError>;
}
