//! What is known of a scope, and which of it a prompt shows.

use std::sync::{Arc, OnceLock};

use hone_domain::{Memory, MemoryId, MemoryKind, NAME};
use hone_ledger::NewMemory;

use crate::Index;
use crate::replaced::replaced;

/// Most facts looked at that share a word with what is asked.
const RELATED_MAX: usize = 32;
/// Most memories that a later message of a conversation brings.
const LATER_MAX: usize = 3;
/// Memories in a row that do not fit, after which nothing else is tried.
const MISSES_MAX: usize = 8;

/// A memory as prompts show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Its id.
    pub id: MemoryId,
    /// The person's words.
    pub text: Arc<str>,
    /// Whether a new conversation may be shown it: nothing newer replaced it.
    pub is_current: bool,
    /// Whether it is relevant to every question: a preference, or the person's name.
    pub is_general: bool,
    /// The one that replaced it.
    pub superseded_by: Option<MemoryId>,
}

impl From<Memory> for Remembered {
    fn from(memory: Memory) -> Self {
        let is_name = memory.topic.as_deref() == Some(NAME);
        Self {
            id: memory.id,
            is_current: memory.is_current(),
            is_general: memory.kind == MemoryKind::Preference || is_name,
            superseded_by: memory.superseded_by,
            text: memory.text.into(),
        }
    }
}

/// How many tokens may still be taken.
pub struct Budget<'a> {
    /// Tokens left.
    pub left: usize,
    /// Tokens of a text on a line of its own.
    pub tokens: &'a dyn Fn(&str) -> usize,
}

impl Budget<'_> {
    fn take(&mut self, memory: &Remembered, keep: usize) -> bool {
        let takes = (self.tokens)(&memory.text);
        let fits = takes + keep <= self.left;
        if fits {
            self.left -= takes;
        }
        fits
    }
}

/// What is known of a scope.
#[derive(Default)]
pub struct Known {
    /// Newest first; those that were replaced are among them, for conversations that were shown them before.
    newest: Vec<Remembered>,
    /// The current facts, made when they are first searched.
    facts: OnceLock<Facts>,
}

struct Facts {
    index: Index,
    /// Places among `newest`.
    at: Vec<usize>,
}

impl Known {
    /// From memories that may be shown, newest first.
    pub fn new(newest: Vec<Remembered>) -> Self {
        let facts = OnceLock::new();
        Self { newest, facts }
    }

    /// The memory with this id.
    pub fn get(&self, id: MemoryId) -> Option<&Remembered> {
        self.newest.iter().find(|memory| memory.id == id)
    }

    fn current(&self, is_general: bool) -> impl Iterator<Item = usize> {
        let all = self.newest.iter().enumerate();
        all.filter(move |(_, one)| one.is_current && one.is_general == is_general)
            .map(|(at, _)| at)
    }

    fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| {
            let at: Vec<usize> = self.current(false).collect();
            let index = Index::of(at.iter().map(|at| &*self.newest[*at].text));
            Facts { index, at }
        })
    }

    /// Makes the index of facts, which the first search would do otherwise.
    pub(crate) fn make_index(&self) {
        let _made = self.facts();
    }

    /// The current fact that a newer one makes untrue.
    pub fn replaced_by(&self, new: &NewMemory) -> Option<MemoryId> {
        if new.kind != MemoryKind::Fact {
            return None;
        }
        let related = self.related(&new.text).into_iter();
        let related = related.map(|at| &self.newest[at]);
        replaced(related.map(|one| (one.id, &*one.text)), &new.text)
    }

    /// Places of the current facts that share a word with a text, the best first.
    fn related(&self, text: &str) -> Vec<usize> {
        let facts = self.facts();
        let found = facts.index.matches(text, RELATED_MAX);
        found.into_iter().map(|place| facts.at[place]).collect()
    }

    /// What a new conversation is shown, oldest first. What fits is chosen by priority: preferences and the name, facts
    /// that share a word with the question, the newest other facts. A quarter of the budget is kept for facts that
    /// share a word, and a quarter is the most for others.
    pub fn at_start(&self, asked: &str, mut budget: Budget<'_>) -> Vec<&Remembered> {
        let most = budget.left;
        let related = self.related(asked);
        let kept = match related.is_empty() {
            true => 0,
            false => budget.left / 4,
        };
        let general: Vec<usize> = self.current(true).collect();
        let mut chosen = Vec::new();
        self.choose(&general, kept, &mut budget, &mut chosen);
        self.choose(&related, 0, &mut budget, &mut chosen);
        self.choose(&general, 0, &mut budget, &mut chosen);
        // Facts that have nothing to do with the question distract small models (docs/LOG.md).
        budget.left = budget.left.min(most / 4);
        let facts: Vec<usize> = self.current(false).collect();
        self.choose(&facts, 0, &mut budget, &mut chosen);
        self.in_order(chosen)
    }

    /// What a later message of a conversation brings: facts that share a word with it, what replaced something
    /// that was shown, and what was said since on how to answer. `shown` is what the conversation was shown before;
    /// what `is_said` in it already is skipped.
    pub fn later(
        &self,
        asked: &str,
        shown: &[MemoryId],
        is_said: impl Fn(&str) -> bool,
        mut budget: Budget<'_>,
    ) -> Vec<&Remembered> {
        let is_shown = |at: &usize| shown.contains(&self.newest[*at].id);
        let all = 0..self.newest.len();
        let newest_shown = all.clone().find(is_shown).unwrap_or(all.len());
        let replacing = all.filter(is_shown).filter_map(|at| self.replacement(at));
        let since = self.current(true).filter(|at| *at < newest_shown);
        let candidates = replacing.chain(since).chain(self.related(asked));
        let is_new = |at: &usize| !is_shown(at) && !is_said(&self.newest[*at].text);
        let mut new = Vec::new();
        for at in candidates.filter(is_new) {
            if !new.contains(&at) {
                new.push(at);
            }
        }
        new.truncate(LATER_MAX);
        let mut chosen = Vec::new();
        self.choose(&new, 0, &mut budget, &mut chosen);
        self.in_order(chosen)
    }

    /// Follows `superseded_by` from the memory at `at` to the current one.
    fn replacement(&self, at: usize) -> Option<usize> {
        let mut next = self.newest[at].superseded_by?;
        // What replaces is newer, so every round moves towards the first.
        for _ in 0..at {
            let at = self.newest.iter().position(|one| one.id == next)?;
            match self.newest[at].superseded_by {
                Some(newer) => next = newer,
                None => return self.newest[at].is_current.then_some(at),
            }
        }
        None
    }

    /// Adds those that fit while `kept` tokens stay free.
    fn choose(
        &self,
        among: &[usize],
        kept: usize,
        budget: &mut Budget<'_>,
        chosen: &mut Vec<usize>,
    ) {
        let mut misses = 0;
        for at in among {
            if chosen.contains(at) {
                continue;
            }
            match budget.take(&self.newest[*at], kept) {
                true => {
                    chosen.push(*at);
                    misses = 0;
                }
                false => misses += 1,
            }
            if misses == MISSES_MAX {
                return;
            }
        }
    }

    fn in_order(&self, mut chosen: Vec<usize>) -> Vec<&Remembered> {
        chosen.sort_unstable_by(|a, b| b.cmp(a));
        chosen.into_iter().map(|at| &self.newest[at]).collect()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn memory(n: u128, text: &str, is_general: bool) -> Remembered {
        Remembered {
            id: MemoryId(Uuid::from_u128(n)),
            text: text.into(),
            is_current: true,
            is_general,
            superseded_by: None,
        }
    }

    fn replaced(n: u128, text: &str, by: u128) -> Remembered {
        Remembered {
            is_current: false,
            superseded_by: Some(MemoryId(Uuid::from_u128(by))),
            ..memory(n, text, false)
        }
    }

    fn ids(shown: &[&Remembered]) -> Vec<u128> {
        shown.iter().map(|one| one.id.0.as_u128()).collect()
    }

    fn budget(left: usize) -> Budget<'static> {
        let tokens: &'static dyn Fn(&str) -> usize = &str::len;
        Budget { left, tokens }
    }

    #[test]
    fn what_fits_is_shown_in_the_order_it_was_written() {
        let known = Known::new(vec![
            memory(5, "eeeee", true),
            replaced(4, "dddd", 5),
            memory(3, "a long one that does not fit", true),
            memory(2, "bb", true),
            memory(1, "aaa", false),
        ]);
        let shown = |most| ids(&known.at_start("?", budget(most)));
        assert_eq!(shown(7), [2, 5]);
        assert_eq!(shown(10), [2, 5]);
        assert_eq!(shown(12), [1, 2, 5]);
        assert_eq!(shown(0), [0u128; 0]);
        assert!(Known::default().at_start("?", budget(10)).is_empty());
    }

    #[test]
    fn wishes_come_first_then_related_facts_then_the_newest() {
        let mut newest: Vec<_> = (10..20)
            .rev()
            .map(|n| memory(n, "a fact of ten", false))
            .collect();
        newest.push(memory(3, "my dog is Rex", false));
        newest.push(memory(2, "short please!", true));
        let known = Known::new(newest);
        let shown = |asked, most| ids(&known.at_start(asked, budget(most)));
        assert_eq!(shown("What does a dog eat?", 20), [2]);
        assert_eq!(shown("What does a dog eat?", 26), [2, 3]);
        // A quarter of the budget is the most for facts that have nothing to do with it.
        assert_eq!(shown("What does a dog eat?", 51), [2, 3]);
        assert_eq!(shown("What does a dog eat?", 52), [2, 3, 19]);
        assert_eq!(shown("What does a cat eat?", 104), [2, 18, 19]);
    }

    #[test]
    fn many_wishes_leave_place_for_related_facts() {
        let mut newest: Vec<_> = (10..99).map(|n| memory(n, "wish", true)).collect();
        newest.push(memory(1, "my dog is Rex", false));
        let known = Known::new(newest);
        let shown = ids(&known.at_start("dog", budget(60)));
        assert_eq!((shown.len(), shown[0]), (12, 1));
        assert_eq!(ids(&known.at_start("cat", budget(60))).len(), 15);
    }

    #[test]
    fn a_later_message_brings_what_is_new_and_related() {
        let known = Known::new(vec![
            memory(9, "from now on in French", true),
            memory(8, "my car is red", false),
            memory(7, "call me Max", true),
            memory(6, "my dog is Rex", false),
            replaced(5, "call me Tom", 7),
            replaced(4, "call me Sam", 5),
            memory(3, "short please", true),
        ]);
        let id = |n| MemoryId(Uuid::from_u128(n));
        let later = |asked: &str, shown: &[u128], said: &str| {
            let shown: Vec<_> = shown.iter().map(|n| id(*n)).collect();
            let is_said = |text: &str| said.contains(text);
            ids(&known.later(asked, &shown, is_said, budget(100)))
        };
        // A wish that is older than what was shown had no place then.
        assert_eq!(later("?", &[8], ""), [9]);
        assert_eq!(later("the dog", &[8, 9], ""), [6]);
        assert_eq!(later("the dog", &[8, 9, 6], ""), [0u128; 0]);
        assert_eq!(
            later("the dog", &[8, 9], "I said: my dog is Rex"),
            [0u128; 0]
        );
        // What was shown and replaced twice is followed to the newest.
        assert_eq!(later("?", &[4, 9], ""), [7]);
        assert_eq!(later("?", &[4, 9], "Please call me Max now."), [0u128; 0]);
        assert_eq!(later("dog, car", &[], ""), [3, 7, 9]);
    }

    #[test]
    fn replacements_in_a_circle_end() {
        let known = Known::new(vec![replaced(2, "b", 1), replaced(1, "a", 2)]);
        let shown = [MemoryId(Uuid::from_u128(1))];
        assert!(known.later("?", &shown, |_| false, budget(9)).is_empty());
    }
}
