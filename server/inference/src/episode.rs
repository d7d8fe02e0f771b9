//! Asks of an agent that plays an episode: what holds of them whatever its requests say, and what was seen of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hone_domain::{
    MemoryMode, Origin, PolicyChoice, PolicyVersion, Sampling, Scope, ServeError, SessionId,
};

use crate::Request;

/// Odd, and far from regular: seeds of an episode's steps are multiples of it apart.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What an agent asks with that plays an episode.
#[derive(Debug)]
pub struct EpisodeAccess {
    /// Who ordered the episode.
    pub owner: String,
    /// Whose policy answers and learns.
    pub scope: Scope,
    /// The version that answers.
    pub policy: PolicyChoice,
    /// All its asks belong to the session of this key.
    pub session_key: String,
    /// Temperature of every answer.
    pub temperature: f32,
    /// Most tokens of an answer.
    pub tokens_max: u32,
    /// Most answers.
    pub steps_max: u32,
    /// The first answer's seed; that of every other follows from it.
    pub seed: u64,
    /// What its turns are marked with.
    pub metadata: BTreeMap<String, String>,
    seen: Mutex<EpisodeSeen>,
}

/// What was seen of an episode's asks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EpisodeSeen {
    /// Asks that were let through.
    pub steps: u32,
    /// An ask beyond the most was refused.
    pub used_up: bool,
    /// An ask was longer than the model can read.
    pub full: bool,
    /// The session of its turns, once there is one.
    pub session: Option<SessionId>,
    /// The version that answered last.
    pub version: Option<PolicyVersion>,
    /// Why the model did not answer, the last time.
    pub failed: Option<String>,
}

/// The episode used all of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this episode has used its {0} steps")]
pub struct StepsUsedUp(pub u32);

/// What an episode's asks have, as whoever orders it says it.
#[derive(Clone, Debug)]
pub struct EpisodeTerms {
    /// See [`EpisodeAccess`].
    pub temperature: f32,
    /// See [`EpisodeAccess`].
    pub tokens_max: u32,
    /// See [`EpisodeAccess`].
    pub steps_max: u32,
}

impl EpisodeAccess {
    /// For an episode of somebody's, by a version of a policy.
    pub fn new(
        (owner, scope): (String, Scope),
        policy: PolicyChoice,
        (session_key, seed): (String, u64),
        terms: &EpisodeTerms,
        metadata: BTreeMap<String, String>,
    ) -> Self {
        Self {
            owner,
            scope,
            policy,
            session_key,
            temperature: terms.temperature,
            tokens_max: terms.tokens_max,
            steps_max: terms.steps_max,
            seed,
            metadata,
            seen: Mutex::default(),
        }
    }

    /// What was seen so far.
    pub fn seen(&self) -> EpisodeSeen {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, EpisodeSeen> {
        // Every change leaves it whole, whatever panicked later.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request one of the episode's.
    ///
    /// # Errors
    /// Where the episode has used its steps.
    pub fn bind(&self, request: &mut Request) -> Result<(), StepsUsedUp> {
        let step = {
            let mut seen = self.lock();
            if seen.steps >= self.steps_max {
                seen.used_up = true;
                return Err(StepsUsedUp(self.steps_max));
            }
            seen.steps += 1;
            seen.steps - 1
        };
        request.owner.clone_from(&self.owner);
        request.keeper = None;
        request.scope = self.scope.clone();
        request.source = None;
        request.policy = self.policy.clone();
        request.session_key = Some(self.session_key.clone());
        request.origin = Origin::Rollout;
        request.done = false;
        // Some agents ask with `store: false` whatever they are told. It was ordered to be learned from.
        request.store = true;
        request.memory = Some(MemoryMode::Off);
        // The same seed or no temperature would make all attempts at a task alike.
        request.sampling = Sampling {
            temperature: self.temperature,
            seed: self
                .seed
                .wrapping_add(u64::from(step).wrapping_mul(SEED_STEP)),
            top_logprobs: request.sampling.top_logprobs,
            top_behavior: request.sampling.top_behavior,
            ..Sampling::default()
        };
        let asked = request.max_tokens.unwrap_or(self.tokens_max);
        request.max_tokens = Some(asked.min(self.tokens_max));
        request.metadata.clone_from(&self.metadata);
        request.metadata.insert("step".to_owned(), step.to_string());
        Ok(())
    }

    pub(crate) fn opened(&self, session: SessionId) {
        self.lock().session = Some(session);
    }

    pub(crate) fn answered(&self, version: PolicyVersion) {
        let mut seen = self.lock();
        seen.version = Some(version);
        seen.failed = None;
    }

    pub(crate) fn failed(&self, error: &ServeError) {
        let mut seen = self.lock();
        match error {
            ServeError::TooLong { .. } => seen.full = true,
            other => seen.failed = Some(other.to_string()),
        }
    }
}
