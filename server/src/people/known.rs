//! What was verified a moment ago: keys and sign-ins by SHA-256 of the secret, so that a request
//! costs one look-up. Everything is forgotten whenever people change.

use std::collections::HashMap;

use hone_domain::{Digest, Millis};
use hone_store::Uses;

use crate::http::guard::Caller;

/// A verified key or sign-in.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Whose requests these are.
    pub(super) caller: Caller,
    /// The key's public part; none for a sign-in.
    pub(super) key: Option<String>,
    /// From when on it is not valid any more, used or not.
    pub(super) ends_ms: Millis,
    /// How long it may go unused.
    pub(super) idle_ms: Millis,
    /// When it was last used.
    pub(super) used_ms: Millis,
    /// Whether the store has that.
    pub(super) noted: bool,
}

/// The memory. `revision` tells an answer that was looked up before a change from one after it.
#[derive(Debug)]
pub(super) struct Memory {
    rows_max: usize,
    revision: u64,
    rows: HashMap<Digest, Known>,
    wrong: HashMap<Digest, Millis>,
    /// Uses of what was forgotten.
    uses: Uses,
}

/// What the memory says.
#[derive(Debug)]
pub(super) enum Recall {
    /// It is valid.
    Known(Box<Caller>),
    /// It was found to be wrong a moment ago.
    Wrong,
    /// Ask the store, and say with the answer what this is.
    Ask(u64),
}

/// How long a wrong secret is remembered.
const WRONG_MS: Millis = 10_000;

impl Memory {
    pub(super) fn new(rows_max: usize) -> Self {
        Self {
            rows_max,
            revision: 0,
            rows: HashMap::new(),
            wrong: HashMap::new(),
            uses: Uses::default(),
        }
    }

    /// Whose secret this is. Notes the use.
    pub(super) fn recall(&mut self, secret: &Digest, now_ms: Millis) -> Recall {
        if let Some(known) = self.rows.get_mut(secret) {
            if known.ends_ms > now_ms && known.used_ms + known.idle_ms > now_ms {
                known.used_ms = now_ms;
                known.noted = false;
                return Recall::Known(Box::new(known.caller.clone()));
            }
            self.rows.remove(secret);
        }
        match self.wrong.get(secret) {
            Some(until_ms) if *until_ms > now_ms => Recall::Wrong,
            _ => Recall::Ask(self.revision),
        }
    }

    /// Remembers an answer of the store, unless people changed since it was asked. A full memory
    /// forgets everything: the store knows it still.
    pub(super) fn learn(&mut self, secret: Digest, asked: u64, found: Option<Known>, now: Millis) {
        if asked != self.revision {
            return;
        }
        if self.rows.len() >= self.rows_max {
            self.drain();
        }
        if self.wrong.len() >= self.rows_max {
            self.wrong.clear();
        }
        match found {
            Some(known) => drop(self.rows.insert(secret, known)),
            None => drop(self.wrong.insert(secret, now + WRONG_MS)),
        }
    }

    /// Forgets everything: somebody changed.
    pub(super) fn forget(&mut self) {
        self.revision += 1;
        self.drain();
        self.wrong.clear();
    }

    /// Uses that the store does not have yet.
    pub(super) fn uses(&mut self) -> Uses {
        self.note_all();
        std::mem::take(&mut self.uses)
    }

    fn drain(&mut self) {
        self.note_all();
        self.rows.clear();
        // Too many between two notes to the store: when they were used stays unknown.
        if self.uses.keys.len() + self.uses.sign_ins.len() > self.rows_max {
            self.uses = Uses::default();
        }
    }

    fn note_all(&mut self) {
        for (secret, known) in self.rows.iter_mut().filter(|(_, known)| !known.noted) {
            known.noted = true;
            match &known.key {
                Some(id) => self.uses.keys.push((id.clone(), known.used_ms)),
                None => self.uses.sign_ins.push((*secret, known.used_ms)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Digest = Digest([1; 32]);

    fn known(ends_ms: Millis) -> Known {
        Known {
            caller: Caller::stranger(),
            key: Some("id".to_owned()),
            ends_ms,
            idle_ms: 100,
            used_ms: 0,
            noted: true,
        }
    }

    fn asked(memory: &mut Memory, now_ms: Millis) -> u64 {
        match memory.recall(&SECRET, now_ms) {
            Recall::Ask(asked) => asked,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_is_remembered_until_it_ends_or_idles() {
        let mut memory = Memory::new(2);
        let before = asked(&mut memory, 0);
        memory.learn(SECRET, before, Some(known(250)), 0);
        assert_eq!(memory.uses(), Uses::default());
        for now_ms in [99, 190] {
            assert!(matches!(memory.recall(&SECRET, now_ms), Recall::Known(_)));
        }
        let used = |at_ms| vec![("id".to_owned(), at_ms)];
        assert_eq!(memory.uses().keys, used(190));
        assert_eq!(memory.uses(), Uses::default(), "noted once");
        assert!(matches!(memory.recall(&SECRET, 195), Recall::Known(_)));
        memory
            .rows
            .entry(SECRET)
            .and_modify(|known| known.idle_ms = 10);
        memory.forget();
        assert_eq!(memory.uses().keys, used(195), "also of what was forgotten");
        let before = asked(&mut memory, 200);
        memory.learn(SECRET, before, Some(known(250)), 200);
        asked(&mut memory, 250);
        memory.learn(SECRET, before, Some(known(1_000)), 250);
        asked(&mut memory, 350);
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_remembered() {
        let mut memory = Memory::new(2);
        let before = asked(&mut memory, 0);
        memory.forget();
        memory.learn(SECRET, before, Some(known(100)), 0);
        let after = asked(&mut memory, 0);
        memory.learn(SECRET, after, None, 0);
        assert!(matches!(memory.recall(&SECRET, 1), Recall::Wrong));
        asked(&mut memory, WRONG_MS);
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut memory = Memory::new(3);
        for n in 0..50u8 {
            let found = (n % 2 == 0).then(|| known(100));
            memory.learn(Digest([n; 32]), 0, found, 0);
            assert!(memory.rows.len() <= 3 && memory.wrong.len() <= 3);
        }
    }
}
