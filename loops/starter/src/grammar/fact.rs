//! Facts: what the starter model knows, and how it is asked for.

use super::style::{Form, Length, Tone};

/// The number of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FactId(pub usize);

/// One intent with its slots bound.
#[derive(Clone, Debug)]
pub struct Fact {
    /// `table/section/first cell`, stable between versions of the files.
    pub key: String,
    pub tone: Tone,
    /// How often it is asked, relative to 1.
    pub weight: f64,
    /// Full questions, all phrasings.
    pub asks: Vec<String>,
    /// Whether the phrasing of the same index is kept for evaluation.
    pub held_out: Vec<bool>,
    /// Short questions that need the subject of the turn before.
    pub follows: Vec<String>,
    /// "What about X", for the X of this fact.
    pub abouts: Vec<String>,
    /// "No, I meant X", for the X of this fact.
    pub meants: Vec<String>,
    /// What may be answered; several only for open questions.
    pub contents: Vec<Content>,
    /// Facts of the same subject (other sections of its row).
    pub same_subject: Vec<FactId>,
    /// Facts of the same intent (other rows of its section); itself if it is an open question.
    pub same_intent: Vec<FactId>,
}

/// One answer without its style: a body for each length and form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub(super) bodies: [[String; 2]; 2],
}

impl Content {
    /// The body as it stands after the opening words.
    pub fn body(&self, length: Length, form: Form) -> &str {
        &self.bodies[length as usize][form as usize]
    }
}
