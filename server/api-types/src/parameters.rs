//! The grammar of calls whose arguments are texts between tags.
//!
//! A text ends with the first tag that closes it, so what the grammar lets pass is what is heard.

use hone_domain::{PARAMETER_CLOSE, PARAMETER_OPEN};
use serde_json::{Map, Value};

use super::formats::quoted;
use super::schema::{Room, call_space, fitted, read_schema, references, schema_text, unescaped};
use crate::RequestError;
use hone_inference::{Kinds, NOTES, Pattern, named};

/// Rules of any text with what closes it, of any arguments, and of the line break that templates write and
/// models forget.
pub(super) fn rules() -> String {
    let [open, close] = [PARAMETER_OPEN, PARAMETER_CLOSE].map(quoted);
    format!(
        "said[suffix={close}]: /(?s:.*)/\n\
         any: ({open} /[^<>\\n]{{1,64}}/ \">\" said LINE?)*\nLINE: \"\\n\"\n"
    )
}

/// No arguments, as the right side of a rule.
const NONE: &str = "\"\"";
/// Most bytes of what is written for the arguments of all tools of a form.
const SAID_BYTES_MAX: usize = 256 * 1_024;
/// Longest name of an argument, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// What may still be written.
#[derive(Debug)]
pub(super) struct SaidRoom(usize);

impl Default for SaidRoom {
    fn default() -> Self {
        Self(SAID_BYTES_MAX)
    }
}

impl SaidRoom {
    /// Takes so many bytes; where they are not left, nothing is any more.
    fn take(&mut self, bytes: usize) -> Option<()> {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(0);
        left.map(drop)
    }
}

/// The arguments of one tool.
pub(super) struct Arguments {
    /// What follows its name, as the right side of a rule.
    pub(super) rule: String,
    /// Regular expressions in it.
    pub(super) patterns: Vec<Pattern>,
}

/// How arguments follow a schema, and in what room.
pub(super) struct How<'a> {
    /// Whether to the letter. Else what has no form between tags may be anything.
    pub(super) strictly: bool,
    pub(super) room: &'a mut Room,
    pub(super) said: &'a mut SaidRoom,
}

/// The arguments that a schema of objects allows.
pub(super) fn arguments(
    param: &str,
    schema: Option<&Value>,
    mut how: How<'_>,
) -> Result<Arguments, RequestError> {
    let schema = schema.filter(|schema| !schema.is_null());
    let root = schema.map_or(Ok(Map::new()), |schema| read_schema(param, schema))?;
    let root = Value::Object(root);
    let of = |rule: &str| Arguments {
        rule: rule.to_owned(),
        patterns: Vec::new(),
    };
    let object = named(&root, &root);
    if how.strictly && !is_object_alone(object) {
        return Err(unfollowed(param));
    }
    let others = object.get("additionalProperties");
    let properties = match object.get("properties").and_then(Value::as_object) {
        Some(properties) if !properties.is_empty() => properties,
        _ if others == Some(&Value::Bool(false)) => return Ok(of(NONE)),
        _ if how.strictly && others.is_some_and(|others| !is_any_text(others)) => {
            return Err(unfollowed(param));
        }
        _ => return Ok(of("any")),
    };
    let required = object.get("required").and_then(Value::as_array);
    let required = |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
    let mut rule = Vec::new();
    let mut patterns = Vec::new();
    for (name, schema) in properties {
        let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
        if !fits || name.contains(['<', '>', '\n']) || how.said.take(name.len()).is_none() {
            // It cannot be said.
            match how.strictly || required(name) {
                true if how.strictly => return Err(unfollowed(param)),
                true => return Ok(of("any")),
                false => continue,
            }
        }
        let param = format!("{param}.properties.{name}");
        let (value, found) = value(&param, (named(schema, &root), &root), &mut how)?;
        patterns.extend(found);
        let open = quoted(&format!("{PARAMETER_OPEN}{name}>"));
        let times = if required(name) { "" } else { "?" };
        rule.push(format!("({open} {value} LINE?){times}"));
    }
    Ok(Arguments {
        rule: rule.join(" "),
        patterns,
    })
}

fn unfollowed(param: &str) -> RequestError {
    let message = format!(
        "{param} cannot be followed strictly: this model says arguments as text between tags; leave \
         strict out, or use types, enum, properties and required only, and less of them"
    );
    RequestError::invalid(param, message)
}

fn is_note(key: &str) -> bool {
    NOTES.contains(&key)
}

/// Whether it says of an object what its members are, and nothing else.
fn is_object_alone(schema: &Value) -> bool {
    let Some(schema) = schema.as_object() else {
        return true;
    };
    schema.iter().all(|(key, value)| match key.as_str() {
        "type" => value == "object",
        "properties" | "required" | "additionalProperties" => true,
        key => is_note(key),
    })
}

/// A value between line breaks, and what closes it.
fn between(value: &str) -> String {
    format!("LINE? {value} LINE? {}", quoted(PARAMETER_CLOSE))
}

/// A value with what closes it, and the regular expressions in it.
fn value(
    param: &str,
    (schema, root): (&Value, &Value),
    how: &mut How<'_>,
) -> Result<(String, Vec<Pattern>), RequestError> {
    if is_any_text(schema) {
        return Ok(("said".to_owned(), Vec::new()));
    }
    let free = || match how.strictly {
        true => Err(unfollowed(param)),
        false => Ok(("said".to_owned(), Vec::new())),
    };
    if let Some(texts) = texts(schema, root) {
        let bytes = texts.iter().map(|text| text.len() + 8).sum();
        if texts.is_empty() || how.said.take(bytes).is_none() {
            return free();
        }
        let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
        return Ok((between(&format!("({})", texts.join(" | "))), Vec::new()));
    }
    if Kinds::of_schema(schema, root).has(Kinds::TEXT) {
        return free();
    }
    let Some(schema) = with_named(schema, root, how.said) else {
        return free();
    };
    let mut options = call_space();
    if !how.strictly {
        options["lenient"] = Value::Bool(true);
    }
    let (schema, patterns) = schema_text(param, fitted(param, schema, how.room)?, options);
    Ok((between(&format!("%json {schema}")), patterns))
}

/// A schema with what it names. None where that is not among the definitions of the document, whose
/// beginning the schema becomes, or where it is too much.
fn with_named(schema: &Value, root: &Value, said: &mut SaidRoom) -> Option<Map<String, Value>> {
    // Once it is used up, long schemas are not even looked at.
    said.take(1)?;
    said.take(schema.to_string().len())?;
    let mut whole = schema.as_object().cloned().unwrap_or_default();
    let mut waiting = Vec::new();
    references(schema, &mut waiting);
    if !waiting.is_empty()
        && ["$defs", "definitions"]
            .iter()
            .any(|own| whole.contains_key(*own))
    {
        return None;
    }
    while let Some(name) = waiting.pop() {
        let path = name.strip_prefix("#/")?;
        let (place, name) = path.split_once('/')?;
        if !matches!(place, "$defs" | "definitions") {
            return None;
        }
        let name = unescaped(name.split('/').next()?)?;
        let name = name.replace("~1", "/").replace("~0", "~");
        let target = root.get(place)?.get(&name)?;
        let copied = whole
            .entry(place)
            .or_insert_with(|| Value::Object(Map::new()));
        let copied = copied.as_object_mut()?;
        if !copied.contains_key(&name) {
            said.take(target.to_string().len())?;
            references(target, &mut waiting);
            copied.insert(name, target.clone());
        }
    }
    Some(whole)
}

/// Whether every text is allowed, and everything else of a kind that is.
fn is_any_text(schema: &Value) -> bool {
    let has_text = |schema: &Value| match schema.get("type") {
        Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
        Some(name) => name == "string",
        None => true,
    };
    let options = schema.get("anyOf").and_then(Value::as_array);
    match options {
        Some(options) => {
            is_kinds(schema) && options.iter().all(is_kinds) && options.iter().any(has_text)
        }
        None => is_kinds(schema) && has_text(schema),
    }
}

/// Whether it says nothing but of which kinds a value may be.
fn is_kinds(schema: &Value) -> bool {
    let Some(map) = schema.as_object() else {
        return *schema == Value::Bool(true);
    };
    let either = map.contains_key("anyOf") && map.contains_key("type");
    !either
        && map
            .keys()
            .all(|key| matches!(key.as_str(), "type" | "anyOf" | "nullable") || is_note(key))
}

/// The texts that are allowed and what stands for nothing, where that is all it says.
fn texts<'a>(schema: &'a Value, root: &'a Value) -> Option<Vec<&'a str>> {
    let map = schema.as_object()?;
    let plain = |key: &String| {
        matches!(
            key.as_str(),
            "type" | "enum" | "const" | "anyOf" | "nullable"
        ) || is_note(key)
    };
    if !map.keys().all(plain) {
        return None;
    }
    let text = |value: &'a Value| match value {
        Value::Null => Some("null"),
        value => value.as_str(),
    };
    let is_text = |name: &Value| name == "string" || name == "null";
    let typed = match map.get("type") {
        Some(Value::Array(names)) => names.iter().all(is_text),
        Some(name) => is_text(name),
        None => true,
    };
    let mut found = match (map.get("const"), map.get("enum"), map.get("anyOf")) {
        (Some(value), None, None) => vec![text(value)?],
        (None, Some(Value::Array(values)), None) => {
            values.iter().map(text).collect::<Option<_>>()?
        }
        (None, None, Some(Value::Array(options))) => {
            let mut all = Vec::new();
            for option in options {
                match named(option, root) {
                    null if null.get("type").is_some_and(|kind| kind == "null") => all.push("null"),
                    option if option.get("anyOf").is_none() => all.extend(texts(option, root)?),
                    _ => return None,
                }
            }
            all
        }
        _ => return None,
    };
    if map.get("nullable") == Some(&Value::Bool(true)) {
        found.push("null");
    }
    typed.then_some(found)
}
