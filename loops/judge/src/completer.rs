//! What the judge asks of a model: one completion of a chat, by whoever can.

use std::time::Duration;

use async_trait::async_trait;
use hone_domain::{Message, Usage};

use crate::ModelConfig;

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

/// A completion, and what it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Its text.
    pub words: String,
    /// Tokens read and tokens written, where they were told.
    pub tokens: Option<(u64, u64)>,
}

impl From<&str> for Completed {
    fn from(words: &str) -> Self {
        Self {
            words: words.to_owned(),
            tokens: None,
        }
    }
}

impl Completed {
    /// What it took at the configured prices, which are per million tokens.
    pub(crate) fn usage(&self, config: &ModelConfig) -> Option<Usage> {
        let (prompt_tokens, completion_tokens) = self.tokens?;
        let read = prompt_tokens as f64 * config.price_prompt;
        let written = completion_tokens as f64 * config.price_completion;
        Some(Usage {
            prompt_tokens,
            completion_tokens,
            cost: (read + written) / 1e6,
        })
    }
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
    /// It has more to do than it can.
    #[error("the judge model is busy: {0}")]
    Busy(String),
    /// It gave up.
    #[error("the judge model failed: {0}")]
    Failed(String),
    /// The answer is not a completion.
    #[error("the judge model's answer cannot be read: {0}")]
    Unreadable(String),
}

/// Completes chats for the judge.
#[async_trait]
pub trait Completer: Send + Sync {
    /// One completion. Dropping the future withdraws the request.
    async fn complete(
        &self,
        messages: &[Message],
        options: CompleteOptions,
    ) -> Result<Completed, CompleterError>;
}
