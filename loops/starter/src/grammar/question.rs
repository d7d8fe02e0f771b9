//! The surface of a question: how users capitalise, punctuate and introduce it, and how the checker
//! sees through that.

use super::fact::FactId;
use super::source::capitalised;
use super::style::Wish;
use crate::rng::{Rng, stable_hash};

/// A question and the fact it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub text: String,
    pub fact: FactId,
}

/// Words that users put before a question and that change nothing.
const LEADS: [&str; 7] = [
    "hi, ",
    "hello, ",
    "hey, ",
    "please, ",
    "quick question: ",
    "one question: ",
    "tell me, ",
];

/// What stands between two wishes.
const GAPS: [&str; 4] = [", ", " ", " and ", ". "];

const WHAT_IS: &str = "what is ";
const WHATS: &str = "what's ";

/// Share of (fact, phrasing) pairs that are never trained on.
const HELD_OUT_ONE_IN: u64 = 10;

/// Which phrasings of a fact are kept for evaluation: one in ten by a hash of fact and number, and
/// never so many that fewer than two are left to train on.
pub(super) fn held_out(key: &str, phrasings: usize) -> Vec<bool> {
    let mut left = phrasings;
    let held = |index: usize| {
        let chosen = stable_hash(&format!("{key}#{index}")).is_multiple_of(HELD_OUT_ONE_IN);
        let held = chosen && left > 2;
        left -= usize::from(held);
        held
    };
    (0..phrasings).map(held).collect()
}

/// A question as some user would type it.
pub(super) fn surface(ask: &str, rng: &mut Rng) -> String {
    let mut text = ask.to_owned();
    if rng.chance(0.15) && text.starts_with(WHAT_IS) {
        text = text.replacen(WHAT_IS, WHATS, 1);
    }
    if rng.chance(0.25) {
        text = text.trim_end_matches('?').to_owned();
    }
    if rng.chance(0.12) {
        text = format!("{}{text}", rng.word(&LEADS));
    }
    if rng.chance(0.6) {
        text = capitalised(&text);
    } else if rng.chance(0.15) {
        text = text.to_lowercase();
    }
    if rng.chance(0.04) {
        text = format!("[{}] {text}", stamp(rng));
    }
    text
}

/// A time stamp, as agents put before what their user said.
fn stamp(rng: &mut Rng) -> String {
    let day = rng.word(&["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]);
    let (month, date) = (rng.between(1, 12), rng.between(1, 28));
    let (hour, minute) = (rng.below(24), rng.below(60));
    format!(
        "{day} 20{}-{month:02}-{date:02} {hour:02}:{minute:02} UTC",
        rng.between(24, 35)
    )
}

/// The question with wishes for its style after it.
pub fn with_wishes(question: &str, wishes: &[Wish], rng: &mut Rng) -> String {
    let mut text = question.to_owned();
    for (number, wish) in wishes.iter().enumerate() {
        let gap = match number {
            0 if question.ends_with('?') => " ",
            0 => ", ",
            _ => rng.word(&GAPS),
        };
        text = format!("{text}{gap}{}", rng.word(wish.wordings()));
    }
    text
}

/// The question without capitals and final punctuation.
pub(super) fn normal(question: &str) -> String {
    question
        .trim()
        .trim_end_matches(['?', '.', '!', ','])
        .trim_end()
        .to_lowercase()
}

/// What the question may be once time stamp, leading words and trailing wishes are taken off.
pub(super) fn readings(question: &str) -> impl Iterator<Item = String> + use<> {
    let mut text = normal(question);
    if let Some((_, rest)) = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
    {
        text = rest.to_owned();
    }
    let unled = LEADS
        .iter()
        .find_map(|lead| text.strip_prefix(lead))
        .map(str::to_owned);
    let whole = [Some(text), unled].into_iter().flatten();
    whole
        .map(|text| text.replacen(WHATS, WHAT_IS, 1))
        .flat_map(|text| std::iter::successors(Some(text), |text| without_wish(text)))
}

/// The text without its last wish and what led to it.
fn without_wish(text: &str) -> Option<String> {
    let wordings = Wish::ALL
        .into_iter()
        .flat_map(|wish| wish.wordings().iter());
    wordings
        .filter_map(|wording| text.strip_suffix(wording))
        .map(|rest| normal(rest.strip_suffix(" and ").unwrap_or(rest)))
        .find(|rest| !rest.is_empty())
}
