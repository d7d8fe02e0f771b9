//! Hints as tokens: what the teacher reads, and where it stands in a prompt.

use hone_domain::{Role, Token, Turn};

use crate::trainer::Wording;

/// Stands where a hint goes while the template is rendered: no chat template and no person writes
/// this private character.
const MARK: char = '\u{f8ff}';

/// What the teacher reads of a hint: `train.learner.hint_template` with the hint in its place.
pub fn hint_words(template: &str, hint: &str) -> String {
    template.replace("{hint}", hint.trim())
}

/// The turn's prompt with `hint` at the end of the last user message, around the recorded tokens. What of an answer a
/// branch goes on from stays behind it.
/// None where the template's text behind that place is not what the prompt ends with.
pub fn hinted_prompt(wording: &dyn Wording, turn: &Turn, hint: &str) -> Option<Vec<Token>> {
    let mut messages = turn.messages.clone();
    let asked = messages.iter_mut().rfind(|m| m.role == Role::User)?;
    asked.content.push(MARK);
    let text = wording.render(&messages).ok()?;
    let (_, tail) = text.rsplit_once(MARK)?;
    let tail = wording.encode(tail);
    let (asked, prefix) = turn.asked_and_prefix();
    let head = asked.strip_suffix(tail.as_slice())?;
    Some([head, &wording.encode(hint), &tail, prefix].concat())
}
