//! Which memories and skills a request is shown, and its prompt with them.

use hone_domain::{Binding, MemoryMode, MemoryUse, ShownMemory};
use hone_memory::Budget;
use hone_runtime::Notification;

use super::memory::{Shown, blocks, chosen};
use super::request::{PromptSource, Request};
use super::{InferenceService, skills};

impl InferenceService {
    /// What a bound request is shown.
    fn shown(&self, request: &Request, binding: &Binding) -> Shown {
        let mode = self.memory_mode(request);
        if mode == MemoryMode::Off {
            return Shown::default();
        }
        let known = self.memory.shared.of(&request.scope);
        let skills = self.memory.shared.skills_of(&request.scope);
        let tokens = |text: &str| self.language.encode(text, false).len();
        let earlier = binding.shown.as_deref();
        let before = earlier.map(|shown| &shown.memories[..]);
        let most = self.memory.config.tokens_max;
        let mut shown = chosen(&known, &request.messages, before, most, &tokens);
        let places = self.backend.capabilities().max_positions;
        let budget = Budget {
            left: self.memory.config.skill_tokens_max.min(places / 4),
            tokens: &tokens,
        };
        let offered = skills::chosen(
            &skills,
            &request.messages,
            earlier.map(|shown| &shown.skills[..]),
            budget,
        );
        // What a skill quotes is not shown twice; what a conversation was shown stays where it is.
        let is_old = |one: &ShownMemory| before.is_some_and(|all| all.contains(one));
        let is_quoted = |one: &ShownMemory| {
            let memory = known.get(one.id);
            memory.is_some_and(|memory| skills::says(&skills, &offered, &memory.text))
        };
        shown.retain(|one| is_old(one) || !is_quoted(one));
        let memory = MemoryUse {
            mode,
            shown,
            skills: offered,
        };
        Shown {
            blocks: blocks(&known, &skills, &memory),
            memory,
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
        if shown.blocks.is_empty() {
            return (shown, text);
        }
        match self.text_of(request, &[], &shown.blocks) {
            Ok(Some(with)) => (shown, Some(with)),
            Ok(None) | Err(_) => (shown.without(), text),
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
    pub(super) fn notify_memory(&self, memory: &MemoryUse) {
        if memory.mode != MemoryMode::Off
            && let Some(notify) = &self.memory.notify
        {
            // A full queue holds a notification already.
            let _notified = notify.send(Notification).is_ok();
        }
    }
}
