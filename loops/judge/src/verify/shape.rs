//! The form of a text: JSON schema and regular expression.

use std::error::Error;

use boon::{Compiler, Schemas, UrlLoader};
use hone_domain::Outcome;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

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
    let built = RegexBuilder::new(pattern)
        .size_limit(REGEX_BYTES_MAX)
        .build();
    built.map_err(|error| format!("{pattern:?} is not a regular expression: {error}"))
}

/// Whether a schema is one.
pub(crate) fn check_schema(schema: &Value) -> Result<(), String> {
    if schema.to_string().len() > SCHEMA_BYTES_MAX {
        return Err(format!("the schema has more than {SCHEMA_BYTES_MAX} bytes"));
    }
    compile(schema).map(|_| ())
}

fn compile(schema: &Value) -> Result<(Schemas, boon::SchemaIndex), String> {
    let wrong = |error: boon::CompileError| format!("the schema cannot be used: {error}");
    let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
    compiler.use_loader(Box::new(Nowhere));
    compiler
        .add_resource(PLACE, schema.clone())
        .map_err(wrong)?;
    let index = compiler.compile(PLACE, &mut schemas).map_err(wrong)?;
    Ok((schemas, index))
}

/// Whether a text is JSON, alone or in one fence, that fits `schema`.
pub(super) fn by_schema(text: &str, schema: &Value) -> (Outcome, String) {
    let (schemas, index) = match compile(schema) {
        Ok(compiled) => compiled,
        Err(why) => return (Outcome::Abstain, why),
    };
    let value: Value = match serde_json::from_str(unfenced(text)) {
        Ok(value) => value,
        Err(error) => return (Outcome::Bad, format!("it is not JSON: {error}")),
    };
    match schemas.validate(&value, index) {
        Ok(()) => (Outcome::Good, "it fits the schema".to_owned()),
        Err(error) => {
            let text = error.to_string().replace(PLACE, "schema");
            (
                Outcome::Bad,
                text.split_whitespace().collect::<Vec<_>>().join(" "),
            )
        }
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
pub(super) fn by_regex(text: &str, pattern: &str) -> (Outcome, String) {
    match regex(pattern) {
        Err(why) => (Outcome::Abstain, why),
        Ok(regex) => match regex.find(text) {
            Some(found) => {
                let shown: String = found.as_str().chars().take(100).collect();
                (Outcome::Good, format!("{shown:?} matches {pattern:?}"))
            }
            None => (Outcome::Bad, format!("nothing matches {pattern:?}")),
        },
    }
}
