//! Asks of an agent that plays an episode: what holds of them whatever its requests say, and what became of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hone_domain::{PolicyChoice, PolicyVersion, Scope, ServeError, SessionId};

/// Odd, and far from regular: seeds of an episode's steps are multiples of it apart.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What holds of all asks of an episode.
#[derive(Clone, Debug)]
pub struct EpisodeTerms {
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
}

/// What an agent asks with that plays an episode.
#[derive(Debug)]
pub struct EpisodeAccess {
    /// What holds of its asks.
    pub terms: EpisodeTerms,
    status: Mutex<EpisodeStatus>,
}

/// What became of an episode's asks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EpisodeStatus {
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

impl EpisodeAccess {
    /// For an episode of which nothing was asked yet.
    pub fn new(terms: EpisodeTerms) -> Self {
        Self {
            terms,
            status: Mutex::default(),
        }
    }

    /// What became of them so far.
    pub fn status(&self) -> EpisodeStatus {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, EpisodeStatus> {
        // Every change leaves it whole, whatever panicked later.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one more ask through: its number.
    pub(crate) fn step(&self) -> Result<u32, StepsUsedUp> {
        let mut status = self.lock();
        if status.steps >= self.terms.steps_max {
            status.used_up = true;
            return Err(StepsUsedUp(self.terms.steps_max));
        }
        status.steps += 1;
        Ok(status.steps - 1)
    }

    pub(crate) fn seed_of(&self, step: u32) -> u64 {
        let by = u64::from(step).wrapping_mul(SEED_STEP);
        self.terms.seed.wrapping_add(by)
    }

    pub(crate) fn opened(&self, session: SessionId) {
        self.lock().session = Some(session);
    }

    pub(crate) fn answered(&self, version: PolicyVersion) {
        let mut status = self.lock();
        status.version = Some(version);
        status.failed = None;
    }

    pub(crate) fn failed(&self, error: &ServeError) {
        let mut status = self.lock();
        match error {
            ServeError::TooLong { .. } => status.full = true,
            other => status.failed = Some(other.to_string()),
        }
    }
}
