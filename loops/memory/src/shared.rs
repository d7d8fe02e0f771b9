//! What the gateway shows to the model: the memories and skills of every scope, held in RAM, so that no answer waits for
//! the ledger.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hone_domain::{
    Correction, MEMORIES_MAX, Memory, MemoryId, Millis, Scope, SkillId, SkillOrigin, drafted, scan,
};
use hone_ledger::{
    Added, Extraction, LedgerError, Memories, MemoryCounts, NewMemory, NewSkill, Skills,
};

use crate::known::{Known, Remembered};
use crate::skills::{KnownSkills, OfferedSkill};

type ByScope<T> = HashMap<Scope, Arc<T>>;

/// What the newest page of a list names that answers may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Memories that are neither paused nor replaced.
    Memories(Vec<MemoryId>),
    /// Active skills.
    Skills(Vec<SkillId>),
}

/// What is shown, always as the ledger has it.
pub struct SharedMemories {
    ledger: Arc<dyn Memories>,
    skills: Arc<dyn Skills>,
    by_scope: Mutex<ByScope<Known>>,
    skills_by_scope: Mutex<ByScope<KnownSkills>>,
    /// One reads at a time, so that what was read last is what is shown.
    reading: tokio::sync::Mutex<()>,
    /// One adds at a time, so that a fact sees the one that was kept just before.
    adding: tokio::sync::Mutex<()>,
}

impl SharedMemories {
    /// What the ledger holds now.
    ///
    /// # Errors
    /// The ledger's.
    pub async fn load(
        ledger: Arc<dyn Memories>,
        skills: Arc<dyn Skills>,
    ) -> Result<Self, LedgerError> {
        let mut by_scope: HashMap<Scope, Vec<Remembered>> = HashMap::new();
        for memory in ledger.newest_memories(None, MEMORIES_MAX).await? {
            by_scope
                .entry(memory.scope.clone())
                .or_default()
                .push(memory.into());
        }
        let shared = by_scope
            .into_iter()
            .map(|(scope, memories)| (scope, Arc::new(Known::new(memories))));
        let mut offered: HashMap<Scope, Vec<OfferedSkill>> = HashMap::new();
        for active in skills.active_skills(None).await? {
            let of = offered.entry(active.skill.scope.clone()).or_default();
            of.push(active.into());
        }
        let offered = offered
            .into_iter()
            .map(|(scope, skills)| (scope, Arc::new(KnownSkills::new(skills))));
        Ok(Self {
            by_scope: Mutex::new(shared.collect()),
            skills_by_scope: Mutex::new(offered.collect()),
            ledger,
            skills,
            reading: tokio::sync::Mutex::new(()),
            adding: tokio::sync::Mutex::new(()),
        })
    }

    fn by_scope(&self) -> MutexGuard<'_, ByScope<Known>> {
        // Every change leaves it whole.
        self.by_scope.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn skills_by_scope(&self) -> MutexGuard<'_, ByScope<KnownSkills>> {
        let locked = self.skills_by_scope.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// The skills of a scope that may be shown.
    pub fn skills_of(&self, scope: &Scope) -> Arc<KnownSkills> {
        let known = self.skills_by_scope();
        known.get(scope).cloned().unwrap_or_default()
    }

    /// What is known of a scope.
    pub fn of(&self, scope: &Scope) -> Arc<Known> {
        self.by_scope().get(scope).cloned().unwrap_or_default()
    }

    /// Keeps a memory, in place of the fact that it makes untrue.
    ///
    /// # Errors
    /// The ledger's.
    pub async fn add(
        &self,
        scope: &Scope,
        mut new: NewMemory,
        now_ms: Millis,
    ) -> Result<Added, LedgerError> {
        let _adding = self.adding.lock().await;
        new.replaces = self.of(scope).replaced_by(&new);
        let added = self.ledger.add_memory(scope, &new, now_ms).await?;
        self.refresh(scope).await;
        Ok(added)
    }

    /// Keeps what came of a turn, in place of the facts that it makes untrue, with the skill that its correction and earlier
    /// ones make; `id` is that skill's.
    ///
    /// # Errors
    /// The ledger's.
    pub(crate) async fn store(
        &self,
        scope: &Scope,
        mut extraction: Extraction,
        id: SkillId,
        now_ms: Millis,
    ) -> Result<MemoryCounts, LedgerError> {
        let _adding = self.adding.lock().await;
        if let Some(correction) = &extraction.correction {
            extraction.skill = self.made_of(scope, correction, id).await?;
        }
        let known = self.of(scope);
        for new in &mut extraction.memories {
            new.replaces = known.replaced_by(new);
        }
        let counts = self.ledger.store_extraction(&extraction, now_ms).await?;
        if counts.new > 0 || counts.skills > 0 {
            self.refresh(scope).await;
        }
        Ok(counts)
    }

    /// The skill that a correction and earlier ones of the same wish make.
    async fn made_of(
        &self,
        scope: &Scope,
        correction: &Correction,
        id: SkillId,
    ) -> Result<Option<NewSkill>, LedgerError> {
        let state = self.skills.wish_state(scope, &correction.wish).await?;
        if state.has_skill {
            return Ok(None);
        }
        let mut all = state.corrections;
        all.retain(|one| one.turn != correction.turn);
        all.push(correction.clone());
        let is_taken = |name: &str| state.names.iter().any(|known| known == name);
        let Some(folder) = drafted(&all, is_taken) else {
            return Ok(None);
        };
        // Words that are no memory were not kept as a correction either.
        let Ok(findings) = scan(&folder) else {
            return Ok(None);
        };
        Ok(Some(NewSkill {
            id,
            folder,
            findings,
            origin: SkillOrigin::Corrections,
            wish: Some(correction.wish.clone()),
            turns: all.iter().map(|one| one.turn).collect(),
        }))
    }

    /// Takes up what the ledger has of a scope, after something changed there. Where it cannot be read, nothing
    /// is shown rather than what may be forgotten.
    pub async fn refresh(&self, scope: &Scope) {
        let _reading = self.reading.lock().await;
        self.refresh_memories(scope).await;
        self.refresh_skills(scope).await;
    }

    /// Takes up what the ledger has where a list of it names memories or skills that answers are not shown yet: what comes of
    /// a turn is in the ledger a moment before it is here, or was kept by another process. So whoever has read the list finds
    /// all of it in the next answer.
    pub async fn show_listed(&self, scope: &Scope, listed: Listed) {
        let is_shown = match listed {
            Listed::Memories(ids) => {
                let known = self.of(scope);
                ids.iter().all(|id| known.get(*id).is_some())
            }
            Listed::Skills(ids) => {
                let known = self.skills_of(scope);
                ids.iter().all(|id| known.get(*id).is_some())
            }
        };
        if !is_shown {
            self.refresh(scope).await;
        }
    }

    async fn refresh_memories(&self, scope: &Scope) {
        let found = self.ledger.newest_memories(Some(scope), MEMORIES_MAX).await;
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "memories cannot be read, and none is shown in this scope");
            Vec::new()
        });
        let mut by_scope = self.by_scope();
        match found.is_empty() {
            true => by_scope.remove(scope),
            false => {
                let found = found.into_iter().map(Memory::into).collect();
                let known = Arc::new(Known::new(found));
                // The first question after a change does not wait for the index.
                let indexed = known.clone();
                tokio::task::spawn_blocking(move || indexed.make_index());
                by_scope.insert(scope.clone(), known)
            }
        };
    }

    async fn refresh_skills(&self, scope: &Scope) {
        let found = self.skills.active_skills(Some(scope)).await;
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "skills cannot be read, and none is shown in this scope");
            Vec::new()
        });
        let mut known = self.skills_by_scope();
        match found.is_empty() {
            true => known.remove(scope),
            false => {
                let found = found.into_iter().map(OfferedSkill::from).collect();
                let skills = Arc::new(KnownSkills::new(found));
                let indexed = skills.clone();
                tokio::task::spawn_blocking(move || indexed.make_index());
                known.insert(scope.clone(), skills)
            }
        };
    }
}
