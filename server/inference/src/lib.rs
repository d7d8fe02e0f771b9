//! One request's way from a conversation to a turn, without HTTP: a checked request becomes asks, asks become completions, and every
//! completion's turn is handed to collect before its end is told to the client.
//!
//! In: wishes parsed from requests · Out: [`Piece`]s per choice · Rights: asks the backend, binds
//! and records in the session index, offers to collect's queue · Promises: the end of a collected
//! turn is released after its receipt or after `receipt_timeout_ms`; a client that leaves cancels
//! its choices, and their turns still reach collect · Never: writes the ledger, waits for judge or
//! train.

mod arguments;
mod binding;
mod branch;
pub mod computed;
mod conduct;
mod counters;
mod episode;
pub mod eraser;
mod error;
mod fair_semaphore;
mod language;
pub mod learning;
mod learning_config;
mod memory;
mod outside;
mod outside_tokens;
pub mod paired;
mod prepare;
mod render;
mod request;
mod score;
mod shape;
mod shown;
mod skills;
mod takes;

#[cfg(test)]
#[path = "../../../tests/support/defaults.rs"]
mod defaults;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hone_collect::{Input, SharedIndex};
use hone_domain::{
    Message, Policies, Reason, RequestId, Scope, ServeError, SessionId, SessionIndex, Token, Trail,
    TurnId,
};
use hone_ledger::LateTurns;
use hone_runtime::{Clock, Ids, LatestReader, Outbox, Shutdown};
use hone_serve::{Backend, Cancel, EngineStats};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::learning::Rules;
use hone_accounts::rate_limit::RateLimiter;
use hone_monitor::telemetry::Telemetry;
use hone_monitor::troubles::Troubles;
use hone_monitor::watch::Serving;

pub use arguments::{Kinds, NOTES, named};
pub use binding::{BindingConfig, SESSION_FIELDS};
pub use branch::{Branched, Branches, Branching};
pub use conduct::{Choice, Ended, Piece};
pub use counters::{COUNTERS, Counter, InferenceCounters};
pub use episode::{EpisodeAccess, EpisodeStatus, EpisodeTerms, StepsUsedUp};
pub use error::OpenError;
pub use fair_semaphore::{FairPermit, FairSemaphore};
pub use hone_memory::{Index, Listed, SharedMemories};
pub use language::{ByteLanguage, Language, LanguageError, Manner, ModelLanguage};
pub use learning_config::{LearningConfig, Metric};
pub use memory::MemoryParts;
pub use outside::{Outside, Unusable};
pub use outside_tokens::{Drawn, TokenTurn};
pub use prepare::Opened;
pub use render::template_message;
pub use request::{PromptSource, Request, chars_of};
pub use shape::{Calls, Loose, Pattern, Shape};
pub use takes::Takes;

/// What the service needs of the server.
pub struct InferenceService {
    /// Answers asks.
    pub backend: Arc<dyn Backend>,
    /// Templates and tokens of the served model.
    pub language: Arc<dyn Language>,
    /// What its template takes, once that was asked.
    pub takes: OnceLock<Takes>,
    /// Sessions and what they continue.
    pub index: SharedIndex,
    /// Collect's queue, where collect runs in this process.
    pub collect: Option<Outbox<Input>>,
    /// Where turns are noted whose clients are told that they are not collected.
    pub late: Arc<LateTurns>,
    /// What may be learned from whom.
    pub rules: Arc<Rules>,
    /// What people said in earlier conversations.
    pub memory: MemoryParts,
    /// What is published, and what of it is on trial.
    pub policies: LatestReader<Policies>,
    /// What is wrong: a turn waits for no receipt of a ledger that is gone.
    pub troubles: Troubles,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Identifiers.
    pub ids: Arc<dyn Ids>,
    /// Bounds.
    pub limits: Limits,
    /// Who pays for the tokens.
    pub rate_limiter: Arc<RateLimiter>,
    /// What was counted.
    pub counters: InferenceCounters,
    /// Completions under way.
    pub live: Live,
    /// Traces and numbers for a collector, where one is configured.
    pub telemetry: Option<Arc<Telemetry>>,
    /// One embedding at a time, because each takes a thread from the others.
    pub embedding: FairSemaphore,
    /// Places for work on long texts, which takes memory as well; one a core.
    pub apart: FairSemaphore,
    /// Places for continuations of branches that are computed at once.
    pub branching: FairSemaphore,
    /// Ends every completion under way, when draining has taken too long.
    pub abort: Shutdown,
}

/// Bounds of inference.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long the end of a completion waits for its receipt.
    pub receipt_timeout: Duration,
    /// How long a completion, or the embeddings of a request, may take in all.
    pub completion_timeout: Duration,
    /// Texts with more characters are tokenised off the async threads.
    pub inline_chars_max: usize,
}

impl InferenceService {
    fn index(&self) -> MutexGuard<'_, SessionIndex> {
        // Every change of the index leaves it whole, whatever panicked later.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What messages are recognised by. Long ones take a while, in which nobody waits for the index.
    fn trail(&self, scope: &Scope, messages: &[Message]) -> Trail {
        let habits = self.index().habits();
        Trail::of(scope, messages, &habits)
    }

    /// What the model's template takes.
    pub fn takes(&self) -> Takes {
        *self.takes.get_or_init(|| Takes::of(&*self.language))
    }

    /// The client says that its session is done: collect closes it and the index forgets it.
    pub fn session_done(&self, session: SessionId) {
        self.index().forget_session(session);
        if let Some(collect) = &self.collect
            && collect.send(Input::SessionDone(session)).is_err()
        {
            self.counters.notes_dropped.add(1);
        }
    }

    /// Embeddings of an owner's texts, in order. They wait for each other, and are paid where they
    /// begin. They end where their client leaves, and where they have taken too long.
    pub async fn embed(
        self: &Arc<Self>,
        whose: (&str, RequestId),
        inputs: Vec<Vec<Token>>,
    ) -> Result<Vec<Vec<f32>>, OpenError> {
        let wanted = Wanted::default();
        let embedding = self.embed_all(whose, inputs, wanted.0.clone());
        let embedded = timeout(self.limits.completion_timeout, embedding).await;
        embedded.unwrap_or_else(|_| Err(ServeError::Late.into()))
    }

    async fn embed_all(
        &self,
        (owner, request): (&str, RequestId),
        inputs: Vec<Vec<Token>>,
        cancel: Cancel,
    ) -> Result<Vec<Vec<f32>>, OpenError> {
        let place = self.embedding.enter(owner, 1).await;
        let place = place.map_err(OpenError::broken)?;
        if let Some(usage) = self.rate_limiter.usage_recorder(request) {
            usage.record(inputs.iter().map(Vec::len).sum());
        }
        let backend = self.backend.clone();
        let work = move || {
            // Held until the end of the work, whether or not its client waits for it.
            let _place = place;
            let embed = |tokens: &Vec<Token>| backend.embed(tokens, &cancel);
            inputs.iter().map(embed).collect()
        };
        // It takes no place of those for texts, which wait for moments and not for this.
        let done: Result<Vec<Vec<f32>>, ServeError> = tokio::task::spawn_blocking(work)
            .await
            .map_err(OpenError::broken)?;
        Ok(done?)
    }

    /// Works on an owner's text of so many characters: off the async threads, unless it is a short one.
    pub async fn apart<T: Send + 'static>(
        self: &Arc<Self>,
        owner: &str,
        chars: usize,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, OpenError> {
        if chars <= self.limits.inline_chars_max {
            return Ok(work(self));
        }
        let place = self.apart.enter(owner, 1).await;
        let place = place.map_err(OpenError::broken)?;
        let inference = self.clone();
        let working = tokio::task::spawn_blocking(move || {
            // Held until the end of the work, whether or not its client waits for it.
            let _place = place;
            work(&inference)
        });
        working.await.map_err(OpenError::broken)
    }

    /// Sessions remembered.
    pub fn sessions(&self) -> usize {
        self.index().len()
    }
}

/// Cancels what it was made for once nobody waits for that any more.
#[derive(Default)]
struct Wanted(Cancel);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// How the client sees a tool call's id. Without underscores, because some clients drop them.
pub fn call_id(turn: TurnId, number: usize) -> String {
    format!("call{}{number}", turn.0.simple())
}

impl Serving for InferenceService {
    fn engine(&self) -> EngineStats {
        self.backend.stats()
    }

    fn can_train(&self) -> bool {
        self.backend.capabilities().can_train
    }

    fn sessions(&self) -> usize {
        Self::sessions(self)
    }

    fn uncollected(&self) -> Vec<(Reason, u64)> {
        let all = self.counters.not_collected();
        all.filter(|(_, n)| *n > 0).collect()
    }

    fn completions_live(&self) -> usize {
        self.live.count()
    }
}

/// Counts completions under way, so that a stop can wait for them.
#[derive(Clone, Debug, Default)]
pub struct Live(Arc<LiveInner>);

#[derive(Debug, Default)]
struct LiveInner {
    count: AtomicUsize,
    changed: Notify,
}

/// One completion under way.
#[derive(Debug)]
pub struct LiveGuard(Live);

impl Live {
    /// Enters one.
    pub fn enter(&self) -> LiveGuard {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        LiveGuard(self.clone())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.count.load(Ordering::Acquire)
    }

    /// Waits until there is none.
    pub async fn none(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.count() == 0 {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        if self.0.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.changed.notify_waiters();
        }
    }
}
