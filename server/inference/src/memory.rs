//! What a prompt shows of what its person said in earlier conversations.
//!
//! The first turn of a conversation is shown the newest memories that fit; later turns are shown what the turn
//! that they continue was shown, so that the beginning of the prompt stays as it was. Only what was paused,
//! edited or forgotten since changes there. The client's own messages are never touched.

use std::sync::Arc;

use hone_domain::{Binding, MemoryId, MemoryMode, MemoryUse, Message, Role, memory_block};
use hone_memory::{Config, Remembered, SharedMemories, newest_within};
use hone_runtime::{Notification, Outbox};

use super::prepare::{PromptSource, Request};
use super::{InferenceService, Language};

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

impl InferenceService {
    /// What a bound request is shown.
    fn shown(&self, request: &Request, binding: &Binding) -> Shown {
        let mode = self.memory_mode(request);
        if mode == MemoryMode::Off {
            return Shown::default();
        }
        let known = self.memory.shared.of(&request.scope);
        let chosen = match &binding.memories {
            Some(before) => still_there(&known, before),
            None => {
                let most = self.memory.config.tokens_max;
                within(&known, most, &*self.language)
            }
        };
        Shown {
            memory: MemoryUse {
                mode,
                shown: chosen.iter().map(|memory| memory.id).collect(),
            },
            block: memory_block(chosen.iter().map(|memory| &*memory.text)),
        }
    }

    /// What a request is shown of memory, and its prompt's text with that. A template that does not take it
    /// leaves the prompt as it was.
    pub(super) fn text_shown(
        &self,
        request: &Request,
        binding: &Binding,
        text: Option<String>,
    ) -> (Shown, Option<String>) {
        let shown = self.shown(request, binding);
        let Some(block) = &shown.block else {
            return (shown, text);
        };
        match self.text_of(request, &[], Some(block)) {
            Ok(with) => (shown, with),
            Err(_) => (shown.without(), text),
        }
    }

    fn memory_mode(&self, request: &Request) -> MemoryMode {
        if !matches!(request.prompt, PromptSource::Chat { .. }) {
            return MemoryMode::Off;
        }
        let (consent, _) = self.rules.consent(&request.owner, &request.scope);
        let wanted = request.memory.unwrap_or(self.memory.config.mode);
        wanted.allowed(consent.learning, request.kind(), request.source.is_some())
    }

    /// A turn was recorded in which something may have been said.
    pub(super) fn heard(&self, memory: &MemoryUse) {
        if memory.mode != MemoryMode::Off
            && let Some(notify) = &self.memory.notify
        {
            // A full queue holds a notification already.
            let _notified = notify.send(Notification).is_ok();
        }
    }
}

fn within<'a>(
    known: &'a [Remembered],
    tokens_max: usize,
    language: &dyn Language,
) -> Vec<&'a Remembered> {
    let tokens = |text: &str| language.encode(text, false).len();
    let line = |text: &str| tokens(&format!("\n- {text}"));
    // What stands before the memories, and the empty line before it.
    let begin = memory_block([""]).map_or(0, |begin| tokens(&begin) + 2);
    newest_within(known, tokens_max, begin, line)
}

/// Those of `before` that may still be shown, in their order.
fn still_there<'a>(known: &'a [Remembered], before: &[MemoryId]) -> Vec<&'a Remembered> {
    let find = |id: &MemoryId| known.iter().find(|memory| memory.id == *id);
    before.iter().filter_map(find).collect()
}

/// The messages with a block behind the first instructions, and how far their places moved.
pub(super) fn with_block(messages: &[Message], block: &str) -> (Vec<Message>, usize) {
    let mut messages = messages.to_vec();
    match messages.first_mut() {
        Some(first) if matches!(first.role, Role::System | Role::Developer) => {
            first.content = format!("{}\n\n{block}", first.content.trim_end());
            (messages, 0)
        }
        _ => {
            messages.insert(0, Message::text(Role::System, block));
            (messages, 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_follows_the_first_instructions_or_becomes_them() {
        let (system, user) = (
            Message::text(Role::System, "Be kind.\n"),
            Message::text(Role::User, "Hi"),
        );
        let (with, moved) = with_block(&[system, user.clone()], "Notes");
        assert_eq!((with[0].content.as_str(), moved), ("Be kind.\n\nNotes", 0));
        assert_eq!(with[1], user);
        let (with, moved) = with_block(std::slice::from_ref(&user), "Notes");
        assert_eq!(with, [Message::text(Role::System, "Notes"), user]);
        assert_eq!(moved, 1);
    }
}
