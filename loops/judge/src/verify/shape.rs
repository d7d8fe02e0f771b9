//! The form of a text: JSON schema and regular expression.

use std::cell::Cell;
use std::error::Error;
use std::fmt::{self, Write};

use boon::{Compiler, SchemaIndex, Schemas, UrlLoader};
use hone_domain::Outcome;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::bound::{PATTERN_BYTES_MAX, Plan, STEPS_MAX};
use super::finding::EVIDENCE_CHARS_MAX;

/// Most bytes of a compiled expression.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a schema.
const SCHEMA_BYTES_MAX: usize = 64 << 10;
/// Where the schema stands for the validator; nothing is ever fetched from there.
const PLACE: &str = "https://schema.invalid/check.json";

/// Loads nothing: a schema refers to itself only.
struct Nowhere;

impl UrlLoader for Nowhere {
    fn load(&self, url: &str) -> Result<Value, Box<dyn Error>> {
        Err(format!("{url} is not part of the schema").into())
    }
}

/// An expression of bounded size.
pub(crate) fn regex(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(format!(
            "a regular expression has at most {PATTERN_BYTES_MAX} bytes, not {}",
            pattern.len()
        ));
    }
    let built = RegexBuilder::new(pattern)
        .size_limit(REGEX_BYTES_MAX)
        .build();
    built.map_err(|error| format!("{pattern:?} is not a regular expression: {error}"))
}

/// Whether a schema is one.
pub(crate) fn check_schema(schema: &Value) -> Result<(), String> {
    Shape::new(schema).map(|_| ())
}

/// A schema that is ready for the texts of one check.
pub(super) struct Shape<'a> {
    plan: Plan<'a>,
    schemas: Schemas,
    index: SchemaIndex,
    /// Steps that are left to the check.
    left: Cell<u64>,
}

impl<'a> Shape<'a> {
    /// Compiles a schema of bounded cost.
    pub(super) fn new(schema: &'a Value) -> Result<Self, String> {
        if schema.to_string().len() > SCHEMA_BYTES_MAX {
            return Err(format!("the schema has more than {SCHEMA_BYTES_MAX} bytes"));
        }
        let plan = Plan::new(schema)?;
        let (schemas, index) = compile(schema)?;
        Ok(Self {
            plan,
            schemas,
            index,
            left: Cell::new(STEPS_MAX),
        })
    }

    /// Whether a text is JSON, alone or in one fence, that fits.
    pub(super) fn tell(&self, text: &str) -> (Outcome, String) {
        let value: Value = match serde_json::from_str(unfenced(text)) {
            Ok(value) => value,
            Err(error) => return (Outcome::Bad, format!("it is not JSON: {error}")),
        };
        match self.plan.steps(&value, self.left.get()) {
            Ok(steps) => self.left.set(self.left.get() - steps),
            Err(why) => return (Outcome::Abstain, why),
        }
        match self.schemas.validate(&value, self.index) {
            Ok(()) => (Outcome::Good, "it fits the schema".to_owned()),
            Err(error) => (Outcome::Bad, Start::of(&error)),
        }
    }
}

fn compile(schema: &Value) -> Result<(Schemas, SchemaIndex), String> {
    let wrong = |error: boon::CompileError| {
        let why = Start::of(&error);
        format!("the schema cannot be used: {why}")
    };
    let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
    compiler.use_loader(Box::new(Nowhere));
    compiler
        .add_resource(PLACE, schema.clone())
        .map_err(wrong)?;
    let index = compiler.compile(PLACE, &mut schemas).map_err(wrong)?;
    Ok((schemas, index))
}

/// The start of a message, which may name every part of a value.
#[derive(Default)]
struct Start(String);

impl Start {
    fn of(message: &dyn fmt::Display) -> String {
        let mut start = Self::default();
        // It breaks off where there is enough.
        let _ = write!(start, "{message}");
        let text = start.0.replace(PLACE, "schema");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

impl Write for Start {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = (4 * EVIDENCE_CHARS_MAX).saturating_sub(self.0.len());
        let part: String = text.chars().take(room).collect();
        self.0.push_str(&part);
        (part.len() == text.len()).then_some(()).ok_or(fmt::Error)
    }
}

fn unfenced(text: &str) -> &str {
    let inside = || {
        let rest = text.trim().strip_prefix("```")?.strip_suffix("```")?;
        let (_, body) = rest.split_once('\n')?;
        (!body.contains("```")).then_some(body)
    };
    inside().unwrap_or(text)
}

/// Whether an expression is found in a text.
pub(super) fn by_regex(text: &str, regex: &Regex) -> (Outcome, String) {
    let pattern = regex.as_str();
    match regex.find(text) {
        Some(found) => {
            let shown: String = found.as_str().chars().take(100).collect();
            (Outcome::Good, format!("{shown:?} matches {pattern:?}"))
        }
        None => (Outcome::Bad, format!("nothing matches {pattern:?}")),
    }
}
