//! Text that has nothing to do with the facts: rules, tool lists, code, logs, prose. Agents put
//! tens of thousands of characters of it before what their user says, and the starter model must
//! still answer. Some kinds are for training; others are kept for evaluation only.

mod kinds;
mod unseen;
mod words;

use serde_json::Value;

use crate::rng::Rng;
use words::Words;

/// One kind of text: appends a section of it.
type Kind = fn(&Words, &mut Rng, &mut String);

/// The kinds used in training.
const TRAINED: [Kind; 10] = [
    kinds::rules,
    kinds::handbook,
    kinds::tools,
    kinds::files,
    kinds::code,
    kinds::log,
    kinds::prose,
    kinds::settings,
    kinds::soup,
    kinds::memory,
];

/// The kinds kept for evaluation.
const UNSEEN: [Kind; 5] = [
    unseen::contract,
    unseen::ledger,
    unseen::mail,
    unseen::shell,
    unseen::markup,
];

/// Which kinds a text is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Trained,
    Unseen,
}

/// A seeded text of exactly `characters` characters, made of sections of the split's kinds.
pub fn text(split: Split, characters: usize, rng: &mut Rng) -> String {
    let words = Words::shared();
    let kinds: &[Kind] = match split {
        Split::Trained => &TRAINED,
        Split::Unseen => &UNSEEN,
    };
    let mut text = String::new();
    let mut written = 0;
    while written < characters {
        let start = text.len();
        rng.pick(kinds)(words, rng, &mut text);
        text.push_str(if rng.chance(0.5) { "\n" } else { "\n\n" });
        written += text[start..].chars().count();
    }
    let end = text
        .char_indices()
        .nth(characters)
        .map_or(text.len(), |(at, _)| at);
    text.truncate(end);
    text
}

/// Seeded tool definitions in the form chat clients send them.
pub fn tool_list(count: usize, rng: &mut Rng) -> Vec<Value> {
    let words = Words::shared();
    (0..count).map(|_| kinds::tool(words, rng)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_text_has_the_length_asked_for_and_is_decided_by_its_seed() {
        for split in [Split::Trained, Split::Unseen] {
            for characters in [0, 1, 333, 8_000, 50_000] {
                let one = text(split, characters, &mut Rng::new(8));
                assert_eq!(one.chars().count(), characters);
                assert_eq!(one, text(split, characters, &mut Rng::new(8)));
            }
        }
        assert_ne!(
            text(Split::Trained, 500, &mut Rng::new(1)),
            text(Split::Trained, 500, &mut Rng::new(2))
        );
    }

    #[test]
    fn every_kind_writes_something_new_each_time() {
        let words = Words::shared();
        let mut rng = Rng::new(1);
        for kind in TRAINED.into_iter().chain(UNSEEN) {
            let (mut one, mut two) = (String::new(), String::new());
            kind(words, &mut rng, &mut one);
            kind(words, &mut rng, &mut two);
            assert!(one.len() > 20, "{one:?}");
            assert_ne!(one, two);
        }
    }

    #[test]
    fn tools_have_the_form_clients_send() {
        for tool in tool_list(12, &mut Rng::new(2)) {
            assert_eq!(tool["type"], "function");
            assert!(tool["function"]["name"].is_string());
            assert_eq!(tool["function"]["parameters"]["type"], "object");
        }
    }
}
