//! What the starter model is taught to say: facts, the ways of asking for them and the ways of
//! answering.
//!
//! A *fact* is one intent with its slots bound (the capital of France). Users ask for it in several
//! phrasings; one in ten pairs of (fact, phrasing) is never trained on and kept for evaluation. The
//! answer has one *content* (or several, for jokes) and sixteen *styles*.

mod dialogue;
mod fact;
mod phrasing;
mod question;
mod source;
mod style;

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

pub use dialogue::{Dialogue, Dialogues, Turn, TurnKind};
pub use fact::{Content, Fact, FactId};
pub use phrasing::Parts;
pub use question::{Question, with_wishes};
pub use style::{Form, Greeting, Length, Register, Style, Tone, Wish};

use crate::rng::Rng;
use source::{Section, Table};

/// What a completion is worth as an answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// It is one of the valid answers, to the letter.
    pub exact: bool,
    /// The style it was said in; None if greeting and opening words are not of one register.
    /// For an answer that is not exact, the length is that of the nearer body.
    pub style: Option<Style>,
}

/// All facts, with an index from question text to fact.
#[derive(Debug)]
pub struct Grammar {
    facts: Vec<Fact>,
    index: HashMap<String, FactId>,
    words: OnceLock<HashSet<String>>,
}

impl Default for Grammar {
    fn default() -> Self {
        Self::new()
    }
}

impl Grammar {
    /// The grammar of the files compiled into this crate.
    pub fn new() -> Self {
        let mut facts = Vec::new();
        for (name, text) in source::FILES {
            let table = source::parse(name, text);
            let table = table.and_then(|table| add_table(&mut facts, name, &table));
            table.expect("the fact files are compiled in and tested");
        }
        let mut index = HashMap::new();
        for (number, fact) in facts.iter().enumerate() {
            for ask in &fact.asks {
                index.insert(question::normal(ask), FactId(number));
            }
        }
        Self {
            facts,
            index,
            words: OnceLock::new(),
        }
    }

    /// All facts; a [`FactId`] is an index into them.
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// One fact.
    pub fn fact(&self, id: FactId) -> &Fact {
        &self.facts[id.0]
    }

    /// The fact a full question asks for, however it is capitalised, punctuated or introduced.
    pub fn find(&self, question: &str) -> Option<FactId> {
        question::readings(question).find_map(|reading| self.index.get(&reading).copied())
    }

    /// Judges an answer to a full question. Not exact if the question is none of ours.
    pub fn check(&self, question: &str, answer: &str) -> Validity {
        match self.find(question) {
            Some(fact) => self.check_fact(fact, answer),
            None => Validity {
                exact: false,
                style: parse_style(answer, &[]),
            },
        }
    }

    /// Judges an answer to a question whose fact is known, as in a dialogue.
    pub fn check_fact(&self, id: FactId, answer: &str) -> Validity {
        let fact = self.fact(id);
        let answer = answer.trim_end();
        let style = parse_style(answer, &fact.contents);
        let exact = style
            .zip(style::undress(answer))
            .is_some_and(|(style, parts)| {
                let is_body =
                    |content: &Content| content.body(style.length, style.form) == parts.body;
                parts.tone == fact.tone && fact.contents.iter().any(is_body)
            });
        Validity { exact, style }
    }

    /// One valid answer in the given style.
    pub fn answer(&self, id: FactId, style: Style, rng: &mut Rng) -> String {
        let fact = self.fact(id);
        let content = rng.pick(&fact.contents);
        style::dress(
            style,
            fact.tone,
            content.body(style.length, style.form),
            rng,
        )
    }

    /// Whether every word of the text is a word of some valid answer, and the text is not empty:
    /// the model stayed in its language even where the answer is not exact.
    pub fn well_formed(&self, answer: &str) -> bool {
        let words = self.words();
        !answer.trim().is_empty() && words_of(answer).all(|word| words.contains(&word))
    }

    /// The words of all valid answers; collected when first asked for.
    fn words(&self) -> &HashSet<String> {
        self.words.get_or_init(|| {
            let mut words = HashSet::new();
            let mut rng = Rng::new(0);
            for (number, fact) in self.facts.iter().enumerate() {
                for style in Style::all() {
                    for content in &fact.contents {
                        words.extend(words_of(content.body(style.length, style.form)));
                    }
                    // So many facts draw each greeting and opening at least once.
                    words.extend(words_of(&self.answer(FactId(number), style, &mut rng)));
                }
            }
            words
        })
    }

    /// `n` different questions from the held-out pairs, in an order decided by the seed (fewer if
    /// there are not so many).
    pub fn held_out_questions(&self, seed: u64, n: usize) -> Vec<Question> {
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for (number, fact) in self.facts.iter().enumerate() {
            pairs.extend(
                (0..fact.asks.len())
                    .filter(|i| fact.held_out[*i])
                    .map(|i| (number, i)),
            );
        }
        let mut rng = Rng::new(seed);
        for last in (1..pairs.len()).rev() {
            pairs.swap(last, rng.below(last + 1));
        }
        pairs.truncate(n);
        let question = |(number, ask): (usize, usize)| Question {
            fact: FactId(number),
            text: source::capitalised(&self.facts[number].asks[ask]),
        };
        pairs.into_iter().map(question).collect()
    }

    /// A question for this fact in a trained phrasing, with a surface as users type it.
    pub fn question(&self, id: FactId, rng: &mut Rng) -> Question {
        let fact = self.fact(id);
        let trained: Vec<&String> = fact
            .asks
            .iter()
            .zip(&fact.held_out)
            .filter(|(_, held)| !**held)
            .map(|p| p.0)
            .collect();
        Question {
            fact: id,
            text: question::surface(rng.word(&trained), rng),
        }
    }
}

/// The words of a text: letters, digits and apostrophes, lower case.
fn words_of(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|w| !w.is_empty())
        .map(str::to_lowercase)
}

/// The style of an answer by its surface; the length by the nearest body of the contents (by
/// characters where there are none).
fn parse_style(answer: &str, contents: &[Content]) -> Option<Style> {
    const LONG_CHARACTERS: usize = 45;
    let parts = style::undress(answer.trim_end())?;
    let distance = |length: Length| {
        let bodies = contents
            .iter()
            .map(|content| content.body(length, parts.form));
        bodies
            .map(|body| (body != parts.body, body.len().abs_diff(parts.body.len())))
            .min()
            .unwrap_or((
                true,
                usize::from((parts.body.len() > LONG_CHARACTERS) == (length == Length::Short)),
            ))
    };
    let length = if distance(Length::Long) < distance(Length::Short) {
        Length::Long
    } else {
        Length::Short
    };
    Some(Style {
        length,
        form: parts.form,
        register: parts.register,
        greeting: parts.greeting,
    })
}

/// Adds the facts of one table. Errors name the template that cannot be filled.
fn add_table(facts: &mut Vec<Fact>, name: &str, table: &Table) -> Result<(), String> {
    let base = facts.len();
    let rows_of = |section: &Section| if section.any { 1 } else { table.rows.len() };
    let mut starts = Vec::new();
    for section in &table.sections {
        starts.push(facts.len());
        for row in 0..rows_of(section) {
            facts.push(new_fact(name, table, section, row)?);
        }
    }
    for (section, start) in table.sections.iter().zip(&starts) {
        for row in 0..rows_of(section) {
            let this = start + row;
            let by_row = table.sections.iter().zip(&starts);
            facts[this].same_subject = by_row
                .filter(|(other, _)| !other.any && !other.follow.is_empty())
                .map(|(_, other)| FactId(other + row))
                .filter(|id| id.0 != this)
                .collect();
            let others = (*start..start + rows_of(section)).filter(|n| section.any || *n != this);
            facts[this].same_intent = others.map(FactId).collect();
        }
    }
    debug_assert!(facts.len() > base, "a fact file has facts");
    Ok(())
}

fn new_fact(name: &str, table: &Table, section: &Section, row: usize) -> Result<Fact, String> {
    let fill = |templates: &[String]| -> Result<Vec<String>, String> {
        templates
            .iter()
            .map(|template| table.fill(template, row))
            .collect()
    };
    let key = format!("{name}/{}/{}", section.name, table.rows[row].join("/"));
    let asks = fill(&section.ask)?;
    let held_out = question::held_out(&key, asks.len());
    let rows = if section.any {
        0..table.rows.len()
    } else {
        row..row + 1
    };
    Ok(Fact {
        key,
        tone: section.tone,
        weight: section.weight,
        held_out,
        asks,
        follows: fill(&section.follow)?,
        abouts: fill(&table.about)?,
        meants: fill(&table.meant)?,
        contents: rows
            .map(|row| content(table, section, row))
            .collect::<Result<_, _>>()?,
        same_subject: Vec::new(),
        same_intent: Vec::new(),
    })
}

fn content(table: &Table, section: &Section, row: usize) -> Result<Content, String> {
    let body = |key: &str| -> Result<String, String> {
        let template = section
            .bodies
            .get(key)
            .ok_or_else(|| format!("no {key} body"))?;
        table.fill(template, row)
    };
    let list = |key: &str| -> Result<String, String> {
        let items: Vec<String> = body(key)?
            .split(" / ")
            .map(|item| format!("- {item}"))
            .collect();
        Ok(items.join("\n"))
    };
    Ok(Content {
        bodies: [
            [body("short")?, list("short-list")?],
            [body("long")?, list("long-list")?],
        ],
    })
}

#[cfg(test)]
mod tests;
