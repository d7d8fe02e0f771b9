//! What the judge asks of whoever serves the policy: which hint it would follow best.

use async_trait::async_trait;
use hone_domain::Turn;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Likeliest tokens at each place.
    pub top_k: u8,
    /// Most tokens of the completion, from its start.
    pub tokens_max: usize,
}

/// Weighs hints by the policy that would learn from them.
#[async_trait]
pub trait Weigher: Send + Sync {
    /// Per hint, the share of the policy's likeliest tokens along `turn`'s completion that are among
    /// the likeliest as well once the policy is told the hint: from 0 to 1. Dropping the future
    /// withdraws the asks.
    ///
    /// # Errors
    /// A sentence that says why it cannot be told.
    async fn weigh(
        &self,
        turn: &Turn,
        hints: &[String],
        compared: Compared,
    ) -> Result<Vec<f32>, String>;
}
