//! Which older fact a newer one makes untrue: rules over the words of both.
//!
//! A fact replaces another if it is said about the same thing and
//! - says itself that something changed ("no longer", "moved", "my new …"), or
//! - is the same sentence with another value of the same kind ("my dentist is Dr. Meyer").
//!
//! Properties that hold together ("my dog is black") and verbs with several objects ("I like tea") are left alone, as is what
//! says "also".
//! Word lists are English, German, French, Spanish, Italian, Portuguese and Dutch. `hone-bench memory` counts both kinds of
//! mistake.

use std::collections::HashSet;
use std::ops::Range;

use hone_domain::{MemoryId, words_of};

use crate::change_words::{
    ADDS, ADVERBS_OF_TIME, ARTICLES, CALLED, CHANGES, DAYS_AND_HOURS, FIRST_PERSON, IS, NEW,
    NOUNS_OF_ONE, POSSESSIVES, PREPOSITIONS, VERBS_OF_ONE, VERBS_OF_SEVERAL,
};
use crate::index::{OPENINGS, stems, stop_words_of};

/// Least share of the shorter fact's content words that both have, where the newer one says that something changed.
const SHARED_MIN: f64 = 0.34;
/// Most words that two values share at their beginning ("Dr.").
const VALUE_BEGINS_MAX: usize = 3;
/// Longest value, in words.
const VALUE_WORDS_MAX: usize = 6;

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number,
    Time,
    Place,
    Name,
    Article,
    Other,
}

/// A fact without what asks to remember it.
struct Fact {
    /// In lower case.
    words: Vec<String>,
    /// Whether each begins with a capital letter.
    is_capital: Vec<bool>,
    content: HashSet<String>,
}

impl Fact {
    fn of(text: &str) -> Self {
        let parts = || {
            text.split(|c: char| !c.is_alphanumeric())
                .filter(|part| !part.is_empty())
        };
        let is_own = |word: &str| matches!(word, "i" | "my" | "m");
        let asks = |part: &&str| {
            let word = part.to_lowercase();
            (OPENINGS.contains(&word) || word == "please" || word == "bitte") && !is_own(&word)
        };
        let begin = parts().take_while(asks).count();
        let says = |part: &&str| !is_in(ADVERBS_OF_TIME, &part.to_lowercase());
        let words: Vec<&str> = parts().skip(begin).filter(says).collect();
        let is_capital = words
            .iter()
            .map(|word| word.starts_with(char::is_uppercase));
        let is_capital = is_capital.collect();
        let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
        let stops = stop_words_of(&words_of(text));
        let content = words.iter().filter(|word| {
            !stops.contains(*word) && ![CHANGES, ADDS].iter().any(|list| is_in(list, word))
        });
        let content = content.flat_map(|word| stems(word)).collect();
        Self {
            words,
            is_capital,
            content,
        }
    }

    fn has(&self, list: &str) -> bool {
        self.words.iter().any(|word| is_in(list, word))
    }

    /// The kind of the value between two places.
    fn kind(&self, value: Range<usize>) -> Kind {
        let words = &self.words[value.clone()];
        let is_number = |word: &String| word.starts_with(|c: char| c.is_ascii_digit());
        let is_when = |word: &String| is_in(DAYS_AND_HOURS, word) || is_number(word);
        match words.first() {
            Some(first) if is_in(DAYS_AND_HOURS, first) => Kind::Time,
            Some(first) if is_in(PREPOSITIONS, first) && words.get(1).is_some_and(is_when) => {
                Kind::Time
            }
            Some(first) if is_in(PREPOSITIONS, first) => Kind::Place,
            Some(first) if is_number(first) => Kind::Number,
            Some(first) if is_in(ARTICLES, first) => Kind::Article,
            Some(_) if self.is_capital[value.start] => Kind::Name,
            _ => Kind::Other,
        }
    }

    /// Whether it says that something changed.
    fn says_changed(&self) -> bool {
        let is_new = |pair: &[String]| is_in(POSSESSIVES, &pair[0]) && is_in(NEW, &pair[1]);
        self.has(CHANGES) || self.words.windows(2).any(is_new)
    }

    fn first_content(&self) -> Option<usize> {
        let has = |word: &String| stems(word).iter().any(|stem| self.content.contains(stem));
        self.words.iter().position(has)
    }

    /// Whether it begins with a name.
    fn names_someone(&self) -> bool {
        let is_speaker = self
            .words
            .first()
            .is_some_and(|word| is_in(FIRST_PERSON, word));
        !is_speaker && self.first_content().is_some_and(|at| self.is_capital[at])
    }

    /// Whether it is said of the person who speaks, or of something that both facts name.
    fn is_about(&self, other: &Self) -> bool {
        let is_speaker = |fact: &Self| {
            fact.words
                .first()
                .is_some_and(|word| is_in(FIRST_PERSON, word))
        };
        let names = |fact: &Self, other: &Self| {
            let first = fact.first_content().map(|at| stems(&fact.words[at]));
            first.is_some_and(|stems| stems.iter().any(|stem| other.content.contains(stem)))
        };
        (is_speaker(self) && is_speaker(other)) || (names(self, other) && names(other, self))
    }
}

fn is_in(list: &str, word: &str) -> bool {
    list.split(' ').any(|one| one == word)
}

/// The first of the older facts that a newer one with this text makes untrue.
pub(crate) fn replaced<'a>(
    mut older: impl Iterator<Item = (MemoryId, &'a str)>,
    text: &str,
) -> Option<MemoryId> {
    let new = Fact::of(text);
    if new.has(ADDS) {
        return None;
    }
    let replaces = |old: &Fact| {
        let is_same_sentence = says_another_value(old, &new);
        is_same_sentence || (new.says_changed() && is_about_the_same(old, &new))
    };
    let found = older.find(|(_, old)| replaces(&Fact::of(old)))?;
    Some(found.0)
}

fn is_about_the_same(old: &Fact, new: &Fact) -> bool {
    let shared = old.content.intersection(&new.content).count();
    let least = old.content.len().min(new.content.len());
    // That both are about Paul does not say which property changed.
    let needed = match new.names_someone() {
        true => 2,
        false => 1,
    };
    shared >= needed && shared as f64 >= SHARED_MIN * least as f64 && new.is_about(old)
}

/// Whether both are one sentence with two values of one kind.
fn says_another_value(old: &Fact, new: &Fact) -> bool {
    let alike = |pairs: &mut dyn Iterator<Item = (&String, &String)>| {
        pairs.take_while(|(a, b)| a == b).count()
    };
    let begin = alike(&mut old.words.iter().zip(&new.words));
    let shorter = old.words.len().min(new.words.len());
    let end = alike(&mut old.words.iter().rev().zip(new.words.iter().rev())).min(shorter - begin);
    // A value may begin alike: "Dr. Hall" and "Dr. Singh".
    let leads = |at: &usize| {
        let word = &old.words[*at];
        is_in(IS, word) || is_in(CALLED, word) || is_in(VERBS_OF_ONE, word)
    };
    let least = begin.saturating_sub(VALUE_BEGINS_MAX);
    let start = (least..begin).rev().find(leads).map(|at| at + 1);
    let has_verb_last = end > 0 && is_in(IS, &old.words[old.words.len() - end]);
    let numbers =
        || old.kind(begin..begin + 1) == Kind::Number && new.kind(begin..begin + 1) == Kind::Number;
    let placed = begin
        .checked_sub(1)
        .filter(|at| is_in(PREPOSITIONS, &old.words[*at]));
    let is_number_alone = begin + end + 2 >= shorter && begin < shorter - end && numbers();
    let is_bare = has_verb_last || is_number_alone;
    let Some(start) = placed.or(start).or(is_bare.then_some(begin)) else {
        return false;
    };
    let (old_value, new_value) = (start..old.words.len() - end, start..new.words.len() - end);
    let fits = |value: &Range<usize>| (1..=VALUE_WORDS_MAX).contains(&value.len());
    let said = old.words[..start]
        .iter()
        .chain(&old.words[old.words.len() - end..]);
    let has = |list: &str| said.clone().any(|word| is_in(list, word));
    if start == 0
        || !fits(&old_value)
        || !fits(&new_value)
        || old_value.len() + new_value.len() < 2
        || has(VERBS_OF_SEVERAL)
    {
        return false;
    }
    let kind = old.kind(old_value);
    kind == new.kind(new_value)
        && match kind {
            Kind::Number | Kind::Time | Kind::Name => true,
            // A person is in several groups and lives in one town, so after a name only a capitalised place counts.
            Kind::Place => !new.names_someone() || new.is_capital.get(start + 1) == Some(&true),
            Kind::Article | Kind::Other => has(NOUNS_OF_ONE) || has(VERBS_OF_ONE),
        }
}

#[cfg(test)]
mod tests {
    use hone_domain::MemoryId;
    use uuid::Uuid;

    use super::*;
    fn replaces(old: &str, new: &str) -> bool {
        let older = [(MemoryId(Uuid::from_u128(1)), old)];
        replaced(older.into_iter(), new).is_some()
    }

    #[test]
    fn newer_values_replace_older_ones() {
        for (old, new) in [
            (
                "Remember that my doctor is Dr. Hall.",
                "Remember that my doctor is Dr. Singh.",
            ),
            (
                "Remember that my favourite colour is blue.",
                "Remember that my favourite colour is dark green.",
            ),
            (
                "Remember that my train leaves at 9.",
                "Remember that my train leaves at 10.",
            ),
            (
                "Remember that I live in Leeds.",
                "Remember that I live in York.",
            ),
            (
                "Remember that I work at a bank.",
                "Remember that I now work at a school.",
            ),
            (
                "Merk dir, dass ich in Köln wohne.",
                "Merk dir, dass ich jetzt in Bonn wohne.",
            ),
        ] {
            assert!(replaces(old, new), "{old} {new}");
        }
    }

    #[test]
    fn what_holds_together_is_left_alone() {
        for (old, new) in [
            (
                "Remember that my dog is called Rex.",
                "Remember that my dog is three years old.",
            ),
            (
                "Remember that my dog is black.",
                "Remember that my dog is lazy.",
            ),
            ("Remember that I like Tea.", "Remember that I like Coffee."),
            (
                "Remember that my sister lives in Rome.",
                "Remember that my brother lives in Milan.",
            ),
            (
                "Remember that I play tennis.",
                "Remember that I now also play chess.",
            ),
            (
                "Remember that my car is red.",
                "Remember that my car is a Golf.",
            ),
            (
                "Remember that Ann no longer smokes.",
                "Remember that Ann no longer eats meat.",
            ),
            ("Remember that I am tall.", "Remember that I am tall."),
        ] {
            assert!(!replaces(old, new), "{old} {new}");
        }
    }
}
