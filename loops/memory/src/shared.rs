//! What the gateway shows to the model: the newest memories of every scope, in memory of the process, so that
//! no answer waits for the ledger.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hone_domain::{Memory, MemoryId, Scope};
use hone_ledger::{LedgerError, Memories};

/// Most memories held of a scope; of these a prompt shows the newest that fit.
const PER_SCOPE: usize = 64;

/// A memory as prompts show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Its id.
    pub id: MemoryId,
    /// The person's words.
    pub text: Arc<str>,
    /// Whether a new conversation may be shown it: nothing newer replaced it.
    pub is_current: bool,
}

impl From<Memory> for Remembered {
    fn from(memory: Memory) -> Self {
        Self {
            id: memory.id,
            is_current: memory.is_current(),
            text: memory.text.into(),
        }
    }
}

type ByScope = HashMap<Scope, Arc<[Remembered]>>;

/// What is shown, always as the ledger has it.
pub struct SharedMemories {
    ledger: Arc<dyn Memories>,
    by_scope: Mutex<ByScope>,
    /// One reads at a time, so that what was read last is what is shown.
    reading: tokio::sync::Mutex<()>,
}

impl SharedMemories {
    /// What the ledger holds now.
    ///
    /// # Errors
    /// The ledger's.
    pub async fn load(ledger: Arc<dyn Memories>) -> Result<Self, LedgerError> {
        let mut by_scope: HashMap<Scope, Vec<Remembered>> = HashMap::new();
        for memory in ledger.newest_memories(None, PER_SCOPE).await? {
            by_scope
                .entry(memory.scope.clone())
                .or_default()
                .push(memory.into());
        }
        let shared = by_scope
            .into_iter()
            .map(|(scope, memories)| (scope, memories.into()));
        Ok(Self {
            by_scope: Mutex::new(shared.collect()),
            ledger,
            reading: tokio::sync::Mutex::new(()),
        })
    }

    fn by_scope(&self) -> MutexGuard<'_, ByScope> {
        // Every change leaves it whole.
        self.by_scope.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memories of a scope that may be shown, newest first; those that were replaced are among them, for
    /// conversations that were shown them before.
    pub fn of(&self, scope: &Scope) -> Arc<[Remembered]> {
        self.by_scope().get(scope).cloned().unwrap_or_default()
    }

    /// Takes up what the ledger has of a scope, after something changed there. Where it cannot be read, nothing
    /// is shown rather than what may be forgotten.
    pub async fn refresh(&self, scope: &Scope) {
        let _reading = self.reading.lock().await;
        let found = self.ledger.newest_memories(Some(scope), PER_SCOPE).await;
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "memories cannot be read, and none is shown in this scope");
            Vec::new()
        });
        let mut by_scope = self.by_scope();
        match found.is_empty() {
            true => by_scope.remove(scope),
            false => by_scope.insert(
                scope.clone(),
                found.into_iter().map(Remembered::from).collect(),
            ),
        };
    }
}

/// The newest current memories that take at most `tokens_max` tokens together with `begin`, what stands beside
/// them; in the order they were written. `tokens` counts those of a text.
pub fn newest_within(
    memories: &[Remembered],
    tokens_max: usize,
    begin: usize,
    tokens: impl Fn(&str) -> usize,
) -> Vec<&Remembered> {
    let mut left = tokens_max.saturating_sub(begin);
    let mut chosen = Vec::new();
    for memory in memories.iter().filter(|memory| memory.is_current) {
        let takes = tokens(&memory.text);
        if takes <= left {
            left -= takes;
            chosen.push(memory);
        }
    }
    chosen.reverse();
    chosen
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_newest_that_fit_are_shown_in_their_order() {
        let memory = |n: u128, text: &str, is_current| Remembered {
            id: MemoryId(Uuid::from_u128(n)),
            text: text.into(),
            is_current,
        };
        let newest_first = [
            memory(5, "eeeee", true),
            memory(4, "dddd", false),
            memory(3, "a long one that does not fit", true),
            memory(2, "bb", true),
            memory(1, "aaa", true),
        ];
        let shown = |most| -> Vec<u128> {
            newest_within(&newest_first, most, 10, str::len)
                .iter()
                .map(|m| m.id.0.as_u128())
                .collect()
        };
        assert_eq!(shown(17), [2, 5]);
        assert_eq!(shown(20), [1, 2, 5]);
        assert_eq!(shown(10), [0u128; 0]);
        assert_eq!(shown(0), [0u128; 0]);
    }
}
