//! The grammar of calls whose arguments are texts between tags.

use serde_json::{Map, Value};

use super::formats::quoted;
use super::schema::{Room, call_space, fitted, read_schema, schema_text};
use crate::door::{Kinds, Pattern};
use crate::http::error::ApiError;

/// What closes an argument.
const CLOSE: &str = "\n</parameter>\n";
/// The rule of any text with what closes it, and that of any arguments.
pub(super) const RULES: &str = "said[suffix=\"\\n</parameter>\\n\"]: /(?s:.*)/\n\
    any: (\"<parameter=\" /[^<>\\n]{1,64}/ \">\\n\" said)*\n";
/// No arguments, as the right side of a rule.
const NONE: &str = "\"\"";
/// Most bytes of schemas with names that are copied to where they are named.
const COPIED_BYTES_MAX: usize = 512 * 1_024;
/// Most references that are followed to a schema.
const REFERENCES_MAX: usize = 8;
/// Most texts of one argument that are told apart.
const TEXTS_MAX: usize = 1_024;

/// The arguments of one tool.
pub(super) struct Arguments {
    /// What follows its name, as the right side of a rule.
    pub(super) rule: String,
    /// Regular expressions in it.
    pub(super) patterns: Vec<Pattern>,
}

/// The arguments that a schema of objects allows. Where it is not followed `strictly`, what has no form
/// between tags may be anything.
pub(super) fn arguments(
    param: &str,
    schema: Option<&Value>,
    (strictly, room): (bool, &mut Room),
) -> Result<Arguments, ApiError> {
    let schema = schema.filter(|schema| !schema.is_null());
    let root = schema.map_or(Ok(Map::new()), |schema| read_schema(param, schema))?;
    let root = Value::Object(root);
    let of = |rule: &str| Arguments {
        rule: rule.to_owned(),
        patterns: Vec::new(),
    };
    let object = named(&root, &root);
    if strictly && !is_object_alone(object) {
        return Err(unfollowed(param));
    }
    let closed = object.get("additionalProperties") == Some(&Value::Bool(false));
    let properties = match object.get("properties").and_then(Value::as_object) {
        Some(properties) if !properties.is_empty() => properties,
        _ if closed => return Ok(of(NONE)),
        _ => return Ok(of("any")),
    };
    let required = object.get("required").and_then(Value::as_array);
    let required = |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
    let mut rule = Vec::new();
    let (mut patterns, mut copied) = (Vec::new(), 0);
    for (name, schema) in properties {
        let param = format!("{param}.properties.{name}");
        let with = (strictly, &mut *room, &mut copied);
        let (value, found) = value(&param, (named(schema, &root), &root), with)?;
        patterns.extend(found);
        let open = quoted(&format!("<parameter={name}>\n"));
        let how = if required(name) { "" } else { "?" };
        rule.push(format!("({open} {value}){how}"));
    }
    Ok(Arguments {
        rule: rule.join(" "),
        patterns,
    })
}

/// What a schema names, where it is a name alone.
fn named<'a>(mut schema: &'a Value, root: &'a Value) -> &'a Value {
    for _ in 0..REFERENCES_MAX {
        let name = schema.get("$ref").and_then(Value::as_str);
        let target = name.and_then(|name| root.pointer(name.strip_prefix('#')?));
        match target {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

fn unfollowed(param: &str) -> ApiError {
    let message = format!(
        "{param} cannot be followed strictly: this model says arguments as text between tags; leave \
         strict out, or use types, enum, properties and required only"
    );
    ApiError::invalid(param, message)
}

/// Whether it says of an object what its members are, and nothing else.
fn is_object_alone(schema: &Value) -> bool {
    let Some(schema) = schema.as_object() else {
        return true;
    };
    schema.iter().all(|(key, value)| match key.as_str() {
        "type" => value == "object",
        "properties" | "required" | "additionalProperties" | "$defs" | "definitions" => true,
        key => is_note(key),
    })
}

/// Whether a key says nothing of the value.
fn is_note(key: &str) -> bool {
    let notes = [
        "title",
        "description",
        "default",
        "examples",
        "$schema",
        "$comment",
        "$id",
    ];
    notes.contains(&key)
}

/// A value with what closes it, and the regular expressions in it.
fn value(
    param: &str,
    (schema, root): (&Value, &Value),
    (strictly, room, copied): (bool, &mut Room, &mut usize),
) -> Result<(String, Vec<Pattern>), ApiError> {
    let said = || Ok(("said".to_owned(), Vec::new()));
    let kinds = Kinds::of_schema(schema, root);
    if is_any_text(schema) {
        return said();
    }
    if let Some(texts) = texts(schema) {
        let texts: Vec<String> = texts
            .iter()
            .map(|text| quoted(&format!("{text}{CLOSE}")))
            .collect();
        return Ok((format!("({})", texts.join(" | ")), Vec::new()));
    }
    if kinds.has(Kinds::TEXT) {
        return if strictly {
            Err(unfollowed(param))
        } else {
            said()
        };
    }
    let Some(schema) = with_named(schema, root, copied) else {
        return if strictly {
            Err(unfollowed(param))
        } else {
            said()
        };
    };
    let mut options = call_space();
    if !strictly {
        options["lenient"] = Value::Bool(true);
    }
    let (schema, patterns) = schema_text(param, fitted(param, schema, room)?, options);
    Ok((format!("%json {schema} {}", quoted(CLOSE)), patterns))
}

/// A schema with what it may name; none where too much was copied already.
fn with_named(schema: &Value, root: &Value, copied: &mut usize) -> Option<Map<String, Value>> {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    if !Value::Object(schema.clone()).to_string().contains("$ref") {
        return Some(schema);
    }
    for names in ["$defs", "definitions"] {
        if let Some(all) = root.get(names) {
            *copied += all.to_string().len();
            if *copied > COPIED_BYTES_MAX {
                return None;
            }
            schema.entry(names).or_insert_with(|| all.clone());
        }
    }
    Some(schema)
}

/// Whether every text is allowed.
fn is_any_text(schema: &Value) -> bool {
    let Value::Object(schema) = schema else {
        return *schema == Value::Bool(true);
    };
    schema
        .iter()
        .all(|(key, value)| match (key.as_str(), value) {
            ("type", Value::String(name)) => name == "string",
            ("type", Value::Array(names)) => names.iter().any(|name| name == "string"),
            ("anyOf", Value::Array(options)) => options.iter().any(is_any_text),
            ("nullable", _) => true,
            (key, _) => is_note(key),
        })
}

/// The texts that are allowed, where that is all it says.
fn texts(schema: &Value) -> Option<Vec<&str>> {
    let schema = schema.as_object()?;
    let plain = |key: &String| matches!(key.as_str(), "type" | "enum" | "const") || is_note(key);
    if !schema.keys().all(plain) {
        return None;
    }
    let is_text = schema.get("type").is_none_or(|kind| kind == "string");
    let texts = match (schema.get("const"), schema.get("enum")) {
        (Some(text), None) => vec![text.as_str()?],
        (None, Some(Value::Array(texts))) => {
            texts.iter().map(Value::as_str).collect::<Option<_>>()?
        }
        _ => return None,
    };
    (is_text && (1..=TEXTS_MAX).contains(&texts.len())).then_some(texts)
}
