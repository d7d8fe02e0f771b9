//! What was verified a moment ago: keys and sign-ins by SHA-256 of the secret, so that a request
//! costs one look-up. Whenever people change, everything is verified anew when it comes next; until the store has said
//! so, what was verified before is remembered for the time in which the store does not answer.

use std::collections::{BTreeMap, HashMap};

use hone_domain::{Digest, Millis};
use hone_ledger::Uses;

use crate::Caller;

/// A verified key or sign-in.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// Whose requests these are.
    pub(crate) caller: Caller,
    /// The key's public part; none for a sign-in.
    pub(crate) key: Option<String>,
    /// From when on it is not valid any more, used or not.
    pub(crate) ends_ms: Millis,
    /// How long it may go unused.
    pub(crate) idle_ms: Millis,
    /// When it was last used.
    pub(crate) used_ms: Millis,
    /// Whether the store has that.
    pub(crate) noted: bool,
    /// When the store said so.
    pub(crate) verified_ms: Millis,
    /// People changed since then.
    pub(crate) is_stale: bool,
}

/// Rows by the secret's digest, so many at most.
#[derive(Debug)]
struct Rows<T> {
    rows_max: usize,
    rows: HashMap<Digest, (u64, T)>,
    /// The one that was used the longest ago first.
    order: BTreeMap<u64, Digest>,
    uses: u64,
}

impl<T> Rows<T> {
    fn new(rows_max: usize) -> Self {
        Self {
            rows_max,
            rows: HashMap::new(),
            order: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Uses a row.
    fn get(&mut self, secret: &Digest) -> Option<&mut T> {
        let (number, row) = self.rows.get_mut(secret)?;
        self.order.remove(number);
        self.uses += 1;
        *number = self.uses;
        self.order.insert(self.uses, *secret);
        Some(row)
    }

    /// Puts a row in, and gives out the one that has to go for it.
    fn insert(&mut self, secret: Digest, row: T) -> Option<(Digest, T)> {
        self.remove(&secret);
        let gone = match self.rows.len() >= self.rows_max {
            true => self.order.pop_first(),
            false => None,
        };
        let gone = gone.and_then(|(_, old)| Some((old, self.rows.remove(&old)?.1)));
        self.uses += 1;
        self.rows.insert(secret, (self.uses, row));
        self.order.insert(self.uses, secret);
        gone
    }

    fn remove(&mut self, secret: &Digest) {
        if let Some((number, _)) = self.rows.remove(secret) {
            self.order.remove(&number);
        }
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.order.clear();
    }
}

/// The memory. `revision` tells an answer that was looked up before a change from one after it.
#[derive(Debug)]
pub(crate) struct Memory {
    revision: u64,
    rows: Rows<Known>,
    wrong: Rows<Millis>,
    /// Uses of what was forgotten.
    uses: Uses,
}

/// What the memory says.
#[derive(Debug)]
pub(crate) enum Recall {
    /// It is valid.
    Known(Box<Caller>),
    /// It was valid before people changed: ask the store, and say with the answer what this is.
    Stale(u64, Box<Stale>),
    /// It was found to be wrong a moment ago.
    Wrong,
    /// Ask the store, and say with the answer what this is.
    Ask(u64),
}

/// What was valid before people changed.
#[derive(Debug)]
pub(crate) struct Stale {
    pub(crate) caller: Caller,
    /// When the store said so.
    pub(crate) verified_ms: Millis,
}

/// How long a wrong secret is remembered.
const WRONG_MS: Millis = 10_000;

impl Memory {
    pub(crate) fn new(rows_max: usize) -> Self {
        Self {
            revision: 0,
            rows: Rows::new(rows_max),
            wrong: Rows::new(rows_max),
            uses: Uses::default(),
        }
    }

    /// What an answer of the store that is asked for now belongs to.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Whose secret this is. Notes the use.
    pub(crate) fn recall(&mut self, secret: &Digest, now_ms: Millis) -> Recall {
        if let Some(known) = self.rows.get(secret) {
            if known.ends_ms > now_ms && known.used_ms + known.idle_ms > now_ms {
                known.used_ms = now_ms;
                known.noted = false;
                let caller = known.caller.clone();
                return match known.is_stale {
                    false => Recall::Known(Box::new(caller)),
                    true => {
                        let verified_ms = known.verified_ms;
                        let stale = Stale {
                            caller,
                            verified_ms,
                        };
                        Recall::Stale(self.revision, Box::new(stale))
                    }
                };
            }
            self.rows.remove(secret);
        }
        match self.wrong.get(secret) {
            Some(until_ms) if *until_ms > now_ms => Recall::Wrong,
            _ => Recall::Ask(self.revision),
        }
    }

    /// Remembers an answer of the store, unless people changed since it was asked. A full memory
    /// forgets what was used the longest ago: the store knows it still.
    pub(crate) fn learn(&mut self, secret: Digest, asked: u64, found: Option<Known>, now: Millis) {
        if asked != self.revision {
            return;
        }
        let Some(known) = found else {
            self.rows.remove(&secret);
            self.wrong.insert(secret, now + WRONG_MS);
            return;
        };
        if let Some((secret, mut gone)) = self.rows.insert(secret, known) {
            note(&mut self.uses, &secret, &mut gone);
            self.bound_uses();
        }
    }

    /// Somebody changed: everything is verified anew when it comes next. `now_ms` is when the store was known to
    /// answer, so that what is fresh was right until then.
    pub(crate) fn outdate(&mut self, now_ms: Millis) {
        self.revision += 1;
        for (_, known) in self.rows.rows.values_mut() {
            if !known.is_stale {
                (known.is_stale, known.verified_ms) = (true, now_ms);
            }
        }
        self.wrong.clear();
    }

    /// Forgets everything: somebody has lost a right.
    pub(crate) fn forget(&mut self) {
        self.revision += 1;
        self.note_all();
        self.bound_uses();
        self.rows.clear();
        self.wrong.clear();
    }

    /// Uses that the store does not have yet.
    pub(crate) fn uses(&mut self) -> Uses {
        self.note_all();
        std::mem::take(&mut self.uses)
    }

    fn note_all(&mut self) {
        for (secret, (_, known)) in &mut self.rows.rows {
            note(&mut self.uses, secret, known);
        }
    }

    /// Too many between two notes to the store: when they were used stays unknown.
    fn bound_uses(&mut self) {
        if self.uses.keys.len() + self.uses.sign_ins.len() > self.rows.rows_max {
            self.uses = Uses::default();
        }
    }
}

/// Notes when somebody was here, where that is not noted yet.
fn note(uses: &mut Uses, secret: &Digest, known: &mut Known) {
    if known.noted {
        return;
    }
    known.noted = true;
    match &known.key {
        Some(id) => uses.keys.push((id.clone(), known.used_ms)),
        None => uses.sign_ins.push((*secret, known.used_ms)),
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
            verified_ms: 0,
            is_stale: false,
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
        if let Some(known) = memory.rows.get(&SECRET) {
            known.idle_ms = 10;
        }
        memory.forget();
        assert_eq!(memory.uses().keys, used(195), "also of what was forgotten");
        let before = asked(&mut memory, 200);
        memory.learn(SECRET, before, Some(known(250)), 200);
        asked(&mut memory, 250);
        memory.learn(SECRET, before, Some(known(1_000)), 250);
        asked(&mut memory, 350);
    }

    #[test]
    fn what_a_change_outdates_is_asked_for_anew_and_told_until_then() {
        let mut memory = Memory::new(2);
        let before = asked(&mut memory, 0);
        memory.learn(SECRET, before, Some(known(250)), 0);
        memory.outdate(5);
        memory.outdate(7);
        let Recall::Stale(again, stale) = memory.recall(&SECRET, 8) else {
            panic!("it is known from before");
        };
        assert_eq!(stale.verified_ms, 5, "it was right until the first change");
        memory.learn(SECRET, before, Some(known(250)), 8);
        assert!(matches!(memory.recall(&SECRET, 8), Recall::Stale(..)));
        memory.learn(SECRET, again, Some(known(250)), 8);
        assert!(matches!(memory.recall(&SECRET, 8), Recall::Known(_)));
        memory.outdate(9);
        let Recall::Stale(again, _) = memory.recall(&SECRET, 9) else {
            panic!("it is known from before");
        };
        // The change took it away.
        memory.learn(SECRET, again, None, 9);
        assert!(matches!(memory.recall(&SECRET, 9), Recall::Wrong));
        memory.outdate(10);
        asked(&mut memory, 10);
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
    fn a_full_memory_forgets_what_was_used_the_longest_ago_and_notes_its_use() {
        let mut memory = Memory::new(3);
        for n in 0..50u8 {
            let found = (n % 2 == 0).then(|| Known {
                key: Some(n.to_string()),
                noted: n != 2,
                ..known(100)
            });
            memory.learn(Digest([n; 32]), 0, found, 0);
            assert!(memory.rows.rows.len() <= 3 && memory.rows.order.len() <= 3);
            assert!(memory.wrong.rows.len() <= 3 && memory.wrong.order.len() <= 3);
            // Who goes on calling is not verified anew for others.
            let first = memory.recall(&Digest([0; 32]), 1);
            assert!(matches!(first, Recall::Known(_)), "{n}");
        }
        let known = |n: u8| match memory.recall(&Digest([n; 32]), 1) {
            Recall::Known(_) => "known",
            Recall::Wrong => "wrong",
            Recall::Ask(_) => "asked",
            Recall::Stale(..) => "stale",
        };
        let rows = [44, 46, 48, 43, 45, 47, 49].map(known);
        let expected = [
            "asked", "known", "known", "asked", "wrong", "wrong", "wrong",
        ];
        assert_eq!(rows, expected);
        assert!(memory.uses().keys.contains(&("2".to_owned(), 0)));
    }
}
