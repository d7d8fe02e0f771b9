//! What answers asks, whatever it is inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hone_domain::{Ask, Delta, Digest, Grammar, PolicyVersion, Scope, ServeError, Token};
use tokio::sync::mpsc;

use crate::masks::HeldGrammar;
use crate::stats::EngineStats;

/// Ends a completion or an embedding early. Clones end the same one.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks for the end; a completion ends within one step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A completion on its way.
#[derive(Debug)]
pub struct Answer {
    /// One `Started`, the tokens, then one `End` or `Failed`. It holds a whole completion, so a
    /// reader that is slow or never reads delays nobody. Dropping it cancels. If it closes without
    /// an `End` or `Failed`, the backend broke down.
    pub deltas: mpsc::Receiver<Delta>,
    /// Ends it early.
    pub cancel: Cancel,
}

/// Answers asks.
pub trait Backend: Send + Sync {
    /// Takes an ask or refuses it; never waits.
    fn ask(&self, ask: Ask) -> Result<Answer, ServeError>;

    /// Whether asks with this grammar can be answered; says what is wrong with it. May take a
    /// while for a large grammar; while what it gives is held, an ask with it does not.
    fn check_grammar(&self, grammar: &Grammar) -> Result<HeldGrammar, ServeError> {
        let _unread = grammar;
        Err(ServeError::Grammar(
            "this backend cannot hold its completions to a grammar".to_owned(),
        ))
    }

    /// The base model's embedding of a text; [`ServeError::Late`] once it is cancelled. Computes on
    /// the calling thread, so not for async ones.
    fn embed(&self, tokens: &[Token], cancel: &Cancel) -> Result<Vec<f32>, ServeError> {
        let _unread = (tokens, cancel);
        Err(ServeError::Unsupported(
            "this backend has no embeddings".to_owned(),
        ))
    }

    /// What the base model makes of the tokens from `from` on, given those before: the mean of the
    /// residual stream over them behind the middle layer and behind two thirds of the layers, one
    /// behind the other; [`ServeError::Late`] once it is cancelled. Computes on the calling thread, so
    /// not for async ones.
    fn states(
        &self,
        tokens: &[Token],
        from: usize,
        cancel: &Cancel,
    ) -> Result<Vec<f32>, ServeError> {
        let _unread = (tokens, from, cancel);
        Err(ServeError::Unsupported(
            "this backend shows no hidden states".to_owned(),
        ))
    }

    /// From now on no ask begins with one of these versions of a scope: what is published instead is
    /// loaded, and the base answers where that fails. Completions under way end as they began. One
    /// that serves no adapters has nothing to withdraw.
    fn withdraw(&self, scope: &Scope, versions: &[PolicyVersion]) {
        let _unread = (scope, versions);
    }

    /// What this backend can do.
    fn capabilities(&self) -> Capabilities;

    /// Its counters.
    fn stats(&self) -> EngineStats;
}

/// What a backend can do; decides whether its turns may train.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// Its name.
    pub name: &'static str,
    /// Recomputed log-probs equal served ones bit for bit.
    pub exact_parity: bool,
    /// It reports token ids.
    pub token_ids: bool,
    /// It reports log-probs.
    pub logprobs: bool,
    /// Its turns may train.
    pub can_train: bool,
    /// It holds completions to a form.
    pub forms: bool,
    /// It says sooner what was predicted.
    pub drafts: bool,
    /// Most tokens of prompt and completion together.
    pub max_positions: usize,
    /// What the model itself takes; more where memory for keys and values is the limit.
    pub model_positions: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Arithmetic, weight and key-value format.
    pub fingerprint: String,
    /// Digest of the base model.
    pub base: Digest,
    /// Tokens that end a completion.
    pub end_tokens: Vec<Token>,
    /// Experts that a token uses in a layer of them; 0 where the model has none.
    pub experts_chosen: usize,
}
