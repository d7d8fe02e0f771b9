//! Habits of clients that binding has to know: what they add to a request in passing, and what they
//! ask for housekeeping under the conversation's own id.

use crate::{Message, Role, TurnKind};

/// Most bytes of a message that patterns are looked for in.
const LOOKED_AT_BYTES: usize = 8_192;

/// Where a housekeeping pattern is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In system and developer messages.
    System,
    /// In the last message of the user.
    User,
}

/// Patterns by which habits are recognised.
#[derive(Clone, Debug, Default)]
pub struct Habits {
    passing: Vec<String>,
    side: Vec<(Place, String)>,
}

impl Habits {
    /// From configuration. `passing` holds what a user message begins with that is in one request
    /// only. `side` holds `system: words` or `user: words`, looked for without regard to case.
    ///
    /// # Errors
    /// The pattern that is none.
    pub fn new(passing: &[String], side: &[String]) -> Result<Self, String> {
        let whole = |text: &str| !text.trim().is_empty();
        if passing.iter().any(|text| !whole(text)) {
            return Err("an empty beginning would match every message".to_owned());
        }
        let side = side.iter().map(|pattern| {
            let (place, words) = pattern
                .split_once(':')
                .ok_or_else(|| format!("{pattern:?} must begin with \"system:\" or \"user:\""))?;
            let place = match place.trim() {
                "system" => Place::System,
                "user" => Place::User,
                other => return Err(format!("{other:?} must be system or user")),
            };
            let words = words.trim().to_lowercase();
            if whole(&words) {
                Ok((place, words))
            } else {
                Err(format!("{pattern:?} has no words"))
            }
        });
        Ok(Self {
            passing: passing.to_vec(),
            side: side.collect::<Result<_, _>>()?,
        })
    }

    /// Whether a message is in this request only.
    pub fn is_passing(&self, message: &Message) -> bool {
        let text = message.content.trim_start();
        message.role == Role::User && self.passing.iter().any(|begin| text.starts_with(begin))
    }

    /// Housekeeping by its words: titles, summaries, memory.
    pub fn kind(&self, messages: &[Message]) -> TurnKind {
        let looked_at = |message: &Message| {
            let text = &message.content;
            let end = (0..=text.len().min(LOOKED_AT_BYTES))
                .rev()
                .find(|at| text.is_char_boundary(*at));
            text[..end.unwrap_or(0)].to_lowercase()
        };
        let is_system = |m: &&Message| matches!(m.role, Role::System | Role::Developer);
        let system: Vec<String> = messages.iter().filter(is_system).map(looked_at).collect();
        let last = messages
            .iter()
            .rfind(|m| m.role == Role::User && !self.is_passing(m))
            .map(looked_at)
            .unwrap_or_default();
        let hit = |(place, words): &(Place, String)| match place {
            Place::System => system.iter().any(|text| text.contains(words)),
            Place::User => last.contains(words),
        };
        if self.side.iter().any(hit) {
            TurnKind::Side
        } else {
            TurnKind::Main
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn housekeeping_is_told_by_its_words() {
        let side = ["system: You are a title generator", "user: concise title"];
        let side = side.map(str::to_owned);
        let passing = ["<<<BEGIN".to_owned()];
        let habits = Habits::new(&passing, &side).expect("patterns");
        let user = |text: &str| Message::text(Role::User, text);
        let rows = [
            (
                vec![user("Write a CONCISE TITLE for this chat")],
                TurnKind::Side,
            ),
            (
                vec![user("a concise title"), user("<<<BEGIN context")],
                TurnKind::Side,
            ),
            (
                vec![user("a concise title"), user("what is rust?")],
                TurnKind::Main,
            ),
            (
                vec![
                    Message::text(Role::System, "you are a title generator."),
                    user("hi"),
                ],
                TurnKind::Side,
            ),
            (vec![user("you are a title generator")], TurnKind::Main),
            (vec![user(&"ä".repeat(9_000))], TurnKind::Main),
            (vec![], TurnKind::Main),
        ];
        for (messages, kind) in rows {
            assert_eq!(habits.kind(&messages), kind, "{messages:?}");
        }
        for wrong in ["title", "assistant: x", "user: "] {
            assert!(Habits::new(&[], &[wrong.to_owned()]).is_err(), "{wrong}");
        }
        assert!(Habits::new(&[" ".to_owned()], &[]).is_err());
    }
}
