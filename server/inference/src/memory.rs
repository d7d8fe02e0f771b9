//! Which memories a prompt shows.
//!
//! The first turn of a conversation is shown the preferences and facts that fit. A later turn is shown what the turn that
//! it continues was shown, at the same messages, so that the beginning of the prompt stays as it was, and with its newest
//! message what has become new or relevant. Earlier messages change only where a memory was paused, edited or forgotten.
//! The messages on record are the client's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use hone_domain::{MemoryUse, Message, Role, ShownMemory, memory_block};
use hone_memory::{Budget, Config, Known, KnownSkills, Remembered, SharedMemories};
use hone_runtime::{Notification, Outbox};

/// What the service has of memory.
pub struct MemoryParts {
    /// What may be shown.
    pub shared: Arc<SharedMemories>,
    /// The default mode, and how much is shown.
    pub config: Config,
    /// The memory loop, where it runs in this process.
    pub notify: Option<Outbox<Notification>>,
}

/// What a turn is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// What the turn records.
    pub memory: MemoryUse,
    /// The words in its prompt.
    pub blocks: Vec<Block>,
}

impl Shown {
    /// The same without words in the prompt.
    pub(super) fn without(self) -> Self {
        Self {
            memory: MemoryUse {
                mode: self.memory.mode,
                ..MemoryUse::default()
            },
            blocks: Vec::new(),
        }
    }
}

/// Memories and skills before the text of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The message, counted from 0.
    pub at: usize,
    pub text: String,
}

/// What a request is shown, and where; `before` is what the turn that it continues was shown.
pub(super) fn chosen(
    known: &Known,
    messages: &[Message],
    before: Option<&[ShownMemory]>,
    tokens_max: usize,
    tokens: &dyn Fn(&str) -> usize,
) -> Vec<ShownMemory> {
    let line = |text: &str| tokens(&format!("{text}\n"));
    // The empty line between them and what the person asks.
    let begin = tokens("\n").max(1);
    let budget = |taken: usize| Budget {
        left: tokens_max.saturating_sub(taken + begin),
        tokens: &line,
    };
    let users = || {
        messages
            .iter()
            .enumerate()
            .filter(|(_, m)| m.role == Role::User)
    };
    let Some(before) = before else {
        let Some((first, _)) = users().next() else {
            return Vec::new();
        };
        let asked = users().next_back().map_or("", |(_, last)| &*last.content);
        return placed(first, &known.at_start(asked, budget(0)));
    };
    let still = before.iter().filter(|one| known.get(one.id).is_some());
    let mut shown: Vec<ShownMemory> = still.copied().collect();
    let Some((at, newest)) = messages
        .iter()
        .enumerate()
        .next_back()
        .filter(|(_, m)| m.role == Role::User)
    else {
        return shown;
    };
    // A request that is sent again is shown what it was shown.
    if before.iter().any(|one| one.at == at) {
        return shown;
    }
    let ids: Vec<_> = before.iter().map(|one| one.id).collect();
    let taken = shown.iter().filter_map(|one| known.get(one.id));
    let taken = taken.map(|one| line(&one.text)).sum();
    let is_said = |text: &str| {
        messages
            .iter()
            .any(|message| message.content.contains(text))
    };
    let new = known.later(&newest.content, &ids, is_said, budget(taken));
    shown.extend(placed(at, &new));
    shown
}

fn placed(at: usize, found: &[&Remembered]) -> Vec<ShownMemory> {
    let found = found.iter();
    found.map(|one| ShownMemory { id: one.id, at }).collect()
}

/// The blocks that show them: memories, then skills.
pub(super) fn blocks(known: &Known, skills: &KnownSkills, shown: &MemoryUse) -> Vec<Block> {
    let mut texts: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for one in &shown.shown {
        if let Some(memory) = known.get(one.id) {
            let of = texts.entry(one.at).or_default();
            of.push(memory.text.to_string());
        }
    }
    for one in &shown.skills {
        if let Some(text) = super::skills::text_of(skills, one) {
            texts.entry(one.at).or_default().push(text);
        }
    }
    let block = |(at, texts): (usize, Vec<String>)| {
        let text = memory_block(texts.iter().map(String::as_str))?;
        Some(Block { at, text })
    };
    texts.into_iter().filter_map(block).collect()
}

/// The messages with blocks before their text; none if there is no user message. Memories are the user's own words, so
/// they go into user messages, where models follow them more often than in a system message (docs/LOG.md). A block
/// whose message is not a user's goes before the first one.
pub(super) fn with_blocks(messages: &[Message], blocks: &[Block]) -> Option<Vec<Message>> {
    let mut messages = messages.to_vec();
    for block in blocks {
        let is_user = |at: &usize| messages.get(*at).is_some_and(|m| m.role == Role::User);
        let first = || messages.iter().position(|m| m.role == Role::User);
        let at = Some(block.at).filter(is_user).or_else(first)?;
        let message = &mut messages[at];
        message.content = format!("{}\n\n{}", block.text, message.content.trim_start());
    }
    Some(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    use hone_domain::MemoryId;
    use uuid::Uuid;

    fn block(at: usize, text: &str) -> Block {
        let text = text.to_owned();
        Block { at, text }
    }

    #[test]
    fn blocks_stand_before_the_words_of_the_person() {
        let (system, user) = (
            Message::text(Role::System, "Be kind."),
            Message::text(Role::User, "Hi"),
        );
        let answer = Message::text(Role::Assistant, "Hello");
        let talk = [system.clone(), user.clone(), answer.clone(), user.clone()];
        let shown = |text: &str| Message::text(Role::User, format!("{text}\n\nHi"));
        let with = |blocks: &[Block]| with_blocks(&talk, blocks).expect("a person's message");
        let at = |a: &Message, b: &Message| [system.clone(), a.clone(), answer.clone(), b.clone()];
        assert_eq!(with(&[block(1, "Notes")]), at(&shown("Notes"), &user));
        let both = [block(1, "Notes"), block(3, "More")];
        assert_eq!(with(&both), at(&shown("Notes"), &shown("More")));
        // The client dropped a message, so the recorded place is wrong.
        assert_eq!(with(&[block(2, "Notes")]), at(&shown("Notes"), &user));
        assert_eq!(
            with_blocks(std::slice::from_ref(&system), &[block(0, "Notes")]),
            None
        );
        assert_eq!(with(&[]), talk);
    }

    #[test]
    fn a_conversation_keeps_what_it_was_shown_and_gets_what_is_new() {
        let id = |n| MemoryId(Uuid::from_u128(n));
        let memory = |n, text: &str, is_general| Remembered {
            id: id(n),
            text: text.into(),
            is_current: true,
            is_general,
            superseded_by: None,
        };
        let at = |n, at| ShownMemory { id: id(n), at };
        let known = Known::new(vec![
            memory(3, "my cat is Tom", false),
            memory(2, "short please", true),
            memory(1, "my dog is Rex", false),
        ]);
        let talk = |texts: &[&str]| -> Vec<Message> {
            let role = |n| {
                if n % 2 == 0 {
                    Role::User
                } else {
                    Role::Assistant
                }
            };
            let all = texts.iter().enumerate();
            all.map(|(n, text)| Message::text(role(n), *text)).collect()
        };
        let tokens = |text: &str| text.len();
        let shown = |talk: &[Message], before: Option<&[ShownMemory]>, most| {
            chosen(&known, talk, before, most, &tokens)
        };
        let first = talk(&["What does a dog eat?"]);
        let start = shown(&first, None, 29);
        assert_eq!(start, [at(1, 0), at(2, 0)]);
        let blocks = |shown: &[ShownMemory]| {
            let memory = MemoryUse {
                shown: shown.to_vec(),
                ..MemoryUse::default()
            };
            super::blocks(&known, &KnownSkills::default(), &memory)
        };
        assert_eq!(blocks(&start), [block(0, "my dog is Rex\nshort please")]);
        let second = talk(&["What does a dog eat?", "Meat.", "And a cat?"]);
        let later = shown(&second, Some(&start), 60);
        assert_eq!(later, [at(1, 0), at(2, 0), at(3, 2)]);
        assert_eq!(blocks(&later).len(), 2);
        // Sent again, and with nothing left of the budget.
        assert_eq!(shown(&second, Some(&later), 60), later);
        assert_eq!(shown(&second, Some(&start), 29), start);
        // What was forgotten is gone.
        let with_gone = [at(9, 0), at(2, 0)];
        assert_eq!(shown(&first, Some(&with_gone), 60), [at(2, 0)]);
        // A tool's result is not a message of the person's.
        let mut tool = second.clone();
        tool.push(Message::text(Role::Tool, "cat"));
        assert_eq!(shown(&tool, Some(&start), 60), start);
    }
}
