//! What a prompt shows of what its person said in earlier conversations.
//!
//! The first turn of a conversation is shown the newest memories that fit; later turns are shown what the turn
//! that they continue was shown, so that the beginning of the prompt stays as it was. Only what was paused,
//! edited or forgotten since changes there. The client's own messages are never touched.

use std::sync::Arc;

use hone_domain::{MemoryId, MemoryUse, Message, Role};
use hone_memory::{Config, Remembered, SharedMemories, newest_within};
use hone_runtime::{Notification, Outbox};

use super::Language;

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
    pub block: Option<String>,
}

impl Shown {
    /// The same without words in the prompt.
    pub(super) fn without(self) -> Self {
        Self {
            memory: MemoryUse {
                shown: Vec::new(),
                ..self.memory
            },
            block: None,
        }
    }
}

pub(super) fn within<'a>(
    known: &'a [Remembered],
    tokens_max: usize,
    language: &dyn Language,
) -> Vec<&'a Remembered> {
    let tokens = |text: &str| language.encode(text, false).len();
    let line = |text: &str| tokens(&format!("{text}\n"));
    // The empty line between them and what the person asks.
    let begin = tokens("\n").max(1);
    newest_within(known, tokens_max, begin, line)
}

/// Those of `before` that may still be shown, in their order.
pub(super) fn still_there<'a>(known: &'a [Remembered], before: &[MemoryId]) -> Vec<&'a Remembered> {
    let find = |id: &MemoryId| known.iter().find(|memory| memory.id == *id);
    before.iter().filter_map(find).collect()
}

/// The messages with a block before the words of the person's first message; none where there is no such message.
/// It is the person's own words, so it stands where these have the weight that the person has, and models follow it
/// more often there than as a system message (docs/LOG.md).
pub(super) fn with_block(messages: &[Message], block: &str) -> Option<Vec<Message>> {
    let at = messages.iter().position(|m| m.role == Role::User)?;
    let mut messages = messages.to_vec();
    let first = &mut messages[at];
    first.content = format!("{block}\n\n{}", first.content.trim_start());
    Some(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_stands_before_the_first_words_of_the_person() {
        let (system, user) = (
            Message::text(Role::System, "Be kind."),
            Message::text(Role::User, "Hi"),
        );
        let answer = Message::text(Role::Assistant, "Hello");
        let talk = [system.clone(), answer.clone(), user.clone(), user.clone()];
        let shown = Message::text(Role::User, "Notes\n\nHi");
        let with = [system.clone(), answer, shown, user];
        assert_eq!(with_block(&talk, "Notes").as_deref(), Some(&with[..]));
        assert_eq!(with_block(&[system], "Notes"), None);
    }
}
