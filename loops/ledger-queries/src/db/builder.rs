//! Statements that are put together from parts.

use sqlx::AssertSqlSafe;

use super::query::Query;
use super::value::{Bind, Value};

/// A statement under construction. Its parts are the program's own words; values are bound and never
/// written into the text.
pub struct Builder {
    text: String,
    values: Vec<Value>,
}

impl Builder {
    pub fn new(text: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            values: Vec::new(),
        }
    }

    pub fn push(&mut self, words: &'static str) -> &mut Self {
        self.text.push_str(words);
        self
    }

    /// Words that the program put together itself.
    pub fn push_made(&mut self, words: &str) -> &mut Self {
        self.text.push_str(words);
        self
    }

    /// A parameter of its own, with its value.
    pub fn push_bind(&mut self, value: impl Bind) -> &mut Self {
        self.values.push(Bind::value(Some(value)));
        self.text.push_str(&format!("${}", self.values.len()));
        self
    }

    pub fn build(self) -> Query {
        Query::with(AssertSqlSafe(self.text), self.values)
    }
}
