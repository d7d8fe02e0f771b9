//! What the gateway shows to the model: the memories of every scope, held in RAM, so that no answer waits for the
//! ledger.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hone_domain::{MEMORIES_MAX, Memory, Millis, Scope};
use hone_ledger::{Added, Extraction, LedgerError, Memories, MemoryCounts, NewMemory};

use crate::known::{Known, Remembered};

type ByScope = HashMap<Scope, Arc<Known>>;

/// What is shown, always as the ledger has it.
pub struct SharedMemories {
    ledger: Arc<dyn Memories>,
    by_scope: Mutex<ByScope>,
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
    pub async fn load(ledger: Arc<dyn Memories>) -> Result<Self, LedgerError> {
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
        Ok(Self {
            by_scope: Mutex::new(shared.collect()),
            ledger,
            reading: tokio::sync::Mutex::new(()),
            adding: tokio::sync::Mutex::new(()),
        })
    }

    fn by_scope(&self) -> MutexGuard<'_, ByScope> {
        // Every change leaves it whole.
        self.by_scope.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Keeps what came of a turn, in place of the facts that it makes untrue.
    ///
    /// # Errors
    /// The ledger's.
    pub(crate) async fn store(
        &self,
        scope: &Scope,
        mut extraction: Extraction,
        now_ms: Millis,
    ) -> Result<MemoryCounts, LedgerError> {
        let _adding = self.adding.lock().await;
        let known = self.of(scope);
        for new in &mut extraction.memories {
            new.replaces = known.replaced_by(new);
        }
        let counts = self.ledger.store_extraction(&extraction, now_ms).await?;
        if counts.new > 0 {
            self.refresh(scope).await;
        }
        Ok(counts)
    }

    /// Takes up what the ledger has of a scope, after something changed there. Where it cannot be read, nothing
    /// is shown rather than what may be forgotten.
    pub async fn refresh(&self, scope: &Scope) {
        let _reading = self.reading.lock().await;
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
}
