//! What must not be lost: plain facts and explicit instructions, answered greedily.

use serde::Deserialize;
use serde_json::{Value, json};

use super::checks::{bullet_lines, numbered_lines, word_count};
use crate::demo::numbers::Interval;
use crate::report::milli;

const FACTS: &str = include_str!("../../learn/facts.tsv");
const INSTRUCTIONS: &str = include_str!("../../learn/instructions.jsonl");

/// A question with a right answer.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    pub(super) question: String,
    /// Any of these, in lower case.
    accepted: Vec<String>,
}

impl Fact {
    /// The committed ones, at most `most`, spread evenly over all.
    pub(super) fn load(most: usize) -> Result<Vec<Self>, String> {
        let fact = |(number, line): (usize, &str)| {
            let parts = line.split_once('\t');
            let (question, accepted) =
                parts.ok_or_else(|| format!("facts, line {}: no tab", number + 1))?;
            Ok(Self {
                question: question.to_owned(),
                accepted: accepted
                    .split('|')
                    .map(|a| a.trim().to_lowercase())
                    .collect(),
            })
        };
        let all: Result<Vec<Self>, String> = FACTS.lines().enumerate().map(fact).collect();
        Ok(spread(all?, most))
    }

    /// Whether the answer holds one of the accepted ones between word boundaries.
    pub(super) fn is_right(&self, answer: &str) -> bool {
        let answer = answer.to_lowercase();
        self.accepted
            .iter()
            .any(|accepted| holds(&answer, accepted))
    }
}

fn holds(text: &str, words: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    text.match_indices(words).any(|(at, _)| {
        is_edge(text[..at].chars().next_back()) && is_edge(text[at + words.len()..].chars().next())
    })
}

/// A request that says how its answer must look.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Instruction {
    pub(super) prompt: String,
    check: Check,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Check {
    MinWords { n: usize },
    MaxWords { n: usize },
    LinesAtLeast { n: usize },
    BulletsAtLeast { n: usize },
    NumberedAtLeast { n: usize },
    Contains { any: Vec<String> },
    No { text: String },
    StartsWith { text: String },
    EndsWith { text: String },
    LowerCase,
    UpperCase,
}

impl Instruction {
    /// The committed ones, at most `most`, spread evenly over all.
    pub(super) fn load(most: usize) -> Result<Vec<Self>, String> {
        let all: Result<Vec<Self>, _> = INSTRUCTIONS.lines().map(serde_json::from_str).collect();
        let all = all.map_err(|error| format!("the instructions cannot be read: {error}"))?;
        Ok(spread(all, most))
    }

    /// Whether the answer does what was asked. An empty one never does.
    pub(super) fn is_followed(&self, answer: &str) -> bool {
        let answer = answer.trim();
        let lines = || {
            answer
                .lines()
                .filter(|line| !line.trim().is_empty())
                .count()
        };
        let letters = || answer.chars().any(char::is_alphabetic);
        !answer.is_empty()
            && match &self.check {
                Check::MinWords { n } => word_count(answer) >= *n,
                Check::MaxWords { n } => word_count(answer) <= *n,
                Check::LinesAtLeast { n } => lines() >= *n,
                Check::BulletsAtLeast { n } => bullet_lines(answer) >= *n,
                Check::NumberedAtLeast { n } => numbered_lines(answer) >= *n,
                Check::Contains { any } => any.iter().any(|text| answer.contains(text)),
                Check::No { text } => !answer.to_lowercase().contains(&text.to_lowercase()),
                Check::StartsWith { text } => answer.trim_start_matches('"').starts_with(text),
                Check::EndsWith { text } => answer.trim_end_matches('"').ends_with(text),
                Check::LowerCase => letters() && !answer.chars().any(char::is_uppercase),
                Check::UpperCase => letters() && !answer.chars().any(char::is_lowercase),
            }
    }
}

/// At most `most` of them, taken at even steps.
fn spread<T>(all: Vec<T>, most: usize) -> Vec<T> {
    let (len, taken) = (all.len(), most.min(all.len()));
    let is_taken = |at: usize| (at * taken) / len.max(1) != ((at + 1) * taken) / len.max(1);
    let kept = all.into_iter().enumerate().filter(|(at, _)| is_taken(*at));
    kept.map(|(_, one)| one).collect()
}

/// The same questions answered by the base and by what a person taught.
#[derive(Clone, Debug, Default)]
pub(super) struct Paired {
    pub(super) base: Vec<bool>,
    pub(super) learned: Vec<bool>,
}

impl Paired {
    /// Learned minus base, in points.
    pub(super) fn change(&self) -> Interval {
        let points = |is_right: &bool| if *is_right { 100.0 } else { 0.0 };
        let pairs = self.base.iter().zip(&self.learned);
        let changes: Vec<f64> = pairs.map(|(b, l)| points(l) - points(b)).collect();
        Interval::of(&changes)
    }

    pub(super) fn json(&self) -> Value {
        let change = self.change();
        json!({
            "base": share(&self.base),
            "learned": share(&self.learned),
            "change_points": milli(change.mean),
            "change_points_low": milli(change.low),
            "change_points_high": milli(change.high),
            "questions": change.n,
        })
    }
}

/// Share of true ones.
pub(super) fn share(all: &[bool]) -> f64 {
    let yes = all.iter().filter(|one| **one).count();
    milli(yes as f64 / all.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn facts_are_matched_between_word_boundaries() {
        let fact = Fact {
            question: "At how many degrees?".to_owned(),
            accepted: vec!["32".to_owned(), "thirty-two".to_owned()],
        };
        for (answer, right) in [
            ("At 32°F.", true),
            ("THIRTY-TWO degrees", true),
            ("At 320.", false),
            ("At 132.", false),
            ("", false),
        ] {
            assert_eq!(fact.is_right(answer), right, "{answer:?}");
        }
    }

    #[test]
    fn instructions_are_checked_by_kind() {
        let rows = [
            (r#"{"kind": "min_words", "n": 2}"#, "two words", "one"),
            (r#"{"kind": "max_words", "n": 1}"#, "OK.", "OK then"),
            (r#"{"kind": "lines_at_least", "n": 2}"#, "a\n\nb", "a\n\n"),
            (r#"{"kind": "bullets_at_least", "n": 1}"#, "- a", "a"),
            (r#"{"kind": "numbered_at_least", "n": 1}"#, "1. a", "a"),
            (r#"{"kind": "contains", "any": ["x", "y"]}"#, "a y", "a"),
            (r#"{"kind": "no", "text": "blue"}"#, "green", "Blue"),
            (
                r#"{"kind": "starts_with", "text": "Once"}"#,
                "\"Once",
                "At once",
            ),
            (
                r#"{"kind": "ends_with", "text": "soon!"}"#,
                "Soon, soon!",
                "soon! Yes",
            ),
            (r#"{"kind": "lower_case"}"#, "dogs", "Dogs"),
            (r#"{"kind": "upper_case"}"#, "DOGS", "Dogs"),
        ];
        for (check, follows, does_not) in rows {
            let instruction = Instruction {
                prompt: String::new(),
                check: serde_json::from_str(check).unwrap(),
            };
            assert!(instruction.is_followed(follows), "{check}: {follows:?}");
            assert!(!instruction.is_followed(does_not), "{check}: {does_not:?}");
            assert!(!instruction.is_followed(" "), "{check}");
        }
    }

    #[test]
    fn there_are_enough_of_both_and_fewer_are_spread() {
        assert!(Fact::load(usize::MAX).unwrap().len() >= 100);
        assert!(Instruction::load(usize::MAX).unwrap().len() >= 30);
        let few = Fact::load(8).unwrap();
        assert_eq!(few.len(), 8);
        assert_ne!(few[0].question, few[1].question);
        assert_eq!(spread(vec![0, 1, 2, 3], 2), [1, 3]);
        assert!(spread(Vec::<u8>::new(), 2).is_empty());
    }

    #[test]
    fn a_paired_change_is_in_points() {
        let paired = Paired {
            base: vec![true, true, false, false],
            learned: vec![true, false, false, false],
        };
        assert_eq!(paired.change().mean, -25.0);
        assert_eq!(paired.json()["base"], 0.5);
    }
}
