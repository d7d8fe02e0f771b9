//! What people say and ask. The data is committed beside the tests, and a test holds it apart from
//! everything that the judge or the learner reads.

use hone_starter::rng::Rng;
use serde::Deserialize;
use std::collections::BTreeMap;

use super::checks::Preference;

const PHRASES: &str = include_str!("../../learn/phrases.json");
const QUESTIONS: &str = include_str!("../../learn/questions.json");

/// Short thanks after an answer that was as wished.
pub(super) const THANKS: [&str; 4] = [
    "Thanks!",
    "Perfect, thank you.",
    "Great, just what I needed.",
    "Lovely, thanks a lot.",
];

/// The words for one preference.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Phrases {
    /// What a person says after an answer that was not as wished.
    pub(super) complaints: Vec<String>,
    /// The same wish as an instruction.
    pub(super) told: String,
}

/// All words and questions.
pub(super) struct PhraseBank {
    phrases: BTreeMap<String, Phrases>,
    questions: Questions,
}

/// Questions of people.
#[derive(Clone, Debug, Deserialize)]
struct Questions {
    /// Asked in sessions.
    asked: Vec<String>,
    /// Never asked in a session: what the measurements before and after ask.
    held_out: Vec<String>,
}

impl PhraseBank {
    /// The committed one.
    pub(super) fn load() -> Result<Self, String> {
        let phrases: BTreeMap<String, Phrases> = serde_json::from_str(PHRASES)
            .map_err(|error| format!("the phrase bank cannot be read: {error}"))?;
        let questions = serde_json::from_str(QUESTIONS)
            .map_err(|error| format!("the questions cannot be read: {error}"))?;
        for preference in Preference::ALL {
            let name = preference.name();
            let complete = phrases.get(name).is_some_and(|p| !p.complaints.is_empty());
            if !complete {
                return Err(format!("the phrase bank has no complaints for {name:?}"));
            }
        }
        Ok(Self { phrases, questions })
    }

    /// The words for a preference.
    pub(super) fn of(&self, preference: Preference) -> &Phrases {
        &self.phrases[preference.name()]
    }

    /// A question with the wish told behind it, after an empty line.
    pub(super) fn told(&self, question: &str, preference: Preference) -> String {
        format!("{question}\n\n{}", self.of(preference).told)
    }

    /// Questions of sessions that can show the preference.
    pub(super) fn asked(&self, preference: Preference) -> Vec<String> {
        suiting(&self.questions.asked, preference)
    }

    /// Held-out questions that can show the preference, at most `most`.
    pub(super) fn held_out(&self, preference: Preference, most: usize) -> Vec<String> {
        let mut questions = suiting(&self.questions.held_out, preference);
        questions.truncate(most);
        questions
    }

    /// Held-out questions, whatever they can show.
    pub(super) fn questions(&self) -> &[String] {
        &self.questions.held_out
    }
}

fn suiting(questions: &[String], preference: Preference) -> Vec<String> {
    let suits = questions.iter().filter(|q| preference.suits(q));
    suits.cloned().collect()
}

/// Texts in an order of their own; none comes twice before all came.
pub(super) struct Deck {
    texts: Vec<String>,
    next: usize,
}

impl Deck {
    pub(super) fn shuffled(mut texts: Vec<String>, rng: &mut Rng) -> Self {
        for at in (1..texts.len()).rev() {
            texts.swap(at, rng.below(at + 1));
        }
        Self { texts, next: 0 }
    }

    /// The next text; empty where there is none at all.
    pub(super) fn draw(&mut self) -> String {
        let at = self.next % self.texts.len().max(1);
        self.next += 1;
        self.texts.get(at).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_preference_has_enough_words_and_questions() {
        let bank = PhraseBank::load().unwrap();
        for preference in Preference::ALL {
            let name = preference.name();
            assert_eq!(bank.of(preference).complaints.len(), 16, "{name}");
            assert!(bank.asked(preference).len() >= 20, "{name}");
            assert!(bank.held_out(preference, 40).len() >= 10, "{name}");
        }
        assert_eq!(bank.phrases.len(), Preference::ALL.len());
        let held_out = bank.questions();
        assert!(bank.questions.asked.iter().all(|q| !held_out.contains(q)));
        let told = bank.told("Why?", Preference::Spanish);
        assert_eq!(told, "Why?\n\nWrite the answer in Spanish.");
    }

    #[test]
    fn nothing_is_said_twice_before_all_was_said() {
        let texts: Vec<String> = (0..16).map(|n| n.to_string()).collect();
        let mut deck = Deck::shuffled(texts.clone(), &mut Rng::new(3));
        let mut drawn: Vec<String> = (0..16).map(|_| deck.draw()).collect();
        assert_eq!(deck.draw(), drawn[0]);
        assert_ne!(drawn, texts);
        drawn.sort_by_key(|text| text.parse::<u32>().unwrap());
        assert_eq!(drawn, texts);
        assert_eq!(Deck::shuffled(Vec::new(), &mut Rng::new(1)).draw(), "");
    }
}
