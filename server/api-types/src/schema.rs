//! JSON schemas of a request, as a grammar takes them.

use std::collections::BTreeMap;

use serde_json::{Deserializer, Map, Value, json};

use super::schema_size::{PLAIN, expanded_bytes};
use crate::RequestError;
use hone_inference::Pattern;

/// Most bytes that the schemas of one form may become together while they are compiled.
const EXPANDED_BYTES_MAX: f64 = 67_108_864.0;
/// Most steps of counting them.
const STEPS_MAX: usize = 100_000;
/// Most bytes of schemas that are copied to have a plain name.
const COPIED_BYTES_MAX: usize = 512 * 1_024;

/// Space between the parts of a JSON answer: a model that says nothing but space would never end.
const JSON_SPACE: &str = r" {1,2}|\r?\n[ \t]{0,32}";

/// How an answer's JSON may be spaced: as people write it, within bounds.
pub(super) fn answer_space() -> Value {
    json!({"whitespace_flexible": true, "whitespace_pattern": JSON_SPACE})
}

/// How a call's arguments may be spaced: on one line, as templates write them, so that a small
/// model cannot spend its tokens on space.
pub(super) fn call_space() -> Value {
    json!({"whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?"})
}

/// The schema at `param`.
pub(super) fn read_schema(param: &str, schema: &Value) -> Result<Map<String, Value>, RequestError> {
    let parsed: Value;
    let schema = match schema {
        // vLLM also takes the schema's text.
        Value::String(text) => {
            parsed = serde_json::from_str(text).map_err(|error| {
                RequestError::invalid(param, format!("{param} is not valid JSON: {error}"))
            })?;
            &parsed
        }
        other => other,
    };
    match schema {
        Value::Object(map) => Ok(map.clone()),
        Value::Bool(true) => Ok(Map::new()),
        _ => Err(RequestError::invalid(
            param,
            format!("{param} must be a JSON schema, which is an object"),
        )),
    }
}

/// A schema with the `options` of its grammar, such as how space is written around its parts, and the
/// regular expressions in it.
pub(super) fn schema_text(
    param: &str,
    mut schema: Map<String, Value>,
    options: Value,
) -> (String, Vec<Pattern>) {
    let patterns = Pattern::of_schema(param, &schema);
    schema.insert("x-guidance".to_owned(), options);
    (Value::Object(schema).to_string(), patterns)
}

/// What is left for the schemas of one form.
#[derive(Debug)]
pub(super) struct Room {
    bytes: f64,
    steps: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            bytes: EXPANDED_BYTES_MAX,
            steps: STEPS_MAX,
        }
    }
}

impl Room {
    /// Takes what a schema becomes; refuses one that becomes too large.
    fn take(&mut self, param: &str, schema: &Map<String, Value>) -> Result<(), RequestError> {
        // Nobody takes all of them: the others can do without a schema that is odd, not without theirs.
        let most = self.steps.div_ceil(2);
        let mut left = most;
        let bytes = expanded_bytes(schema, &mut left);
        self.steps -= most - left;
        match bytes {
            Some(bytes) if bytes <= self.bytes => {
                self.bytes -= bytes;
                Ok(())
            }
            _ => Err(RequestError::invalid(
                param,
                format!(
                    "{param} becomes too large to be followed: choices that hold together (in allOf, or \
                     anyOf, oneOf and enum beside other keys) are multiplied out; write them as one \
                     choice, or shorten them and the texts beside them"
                ),
            )),
        }
    }

    /// Takes the schemas in a grammar.
    pub(super) fn take_grammar(&mut self, param: &str, grammar: &str) -> Result<(), RequestError> {
        for (at, mark) in grammar.match_indices("%json") {
            let rest = &grammar[at + mark.len()..];
            let schema = Deserializer::from_str(rest).into_iter::<Value>().next();
            if let Some(Ok(Value::Object(schema))) = schema {
                self.take(param, &schema)?;
            }
        }
        Ok(())
    }
}

/// A schema as the grammar's compiler takes it; refused where it would become too large.
pub(super) fn fitted(
    param: &str,
    schema: Map<String, Value>,
    room: &mut Room,
) -> Result<Map<String, Value>, RequestError> {
    let schema = with_plain_names(param, schema)?;
    room.take(param, &schema)?;
    Ok(schema)
}

/// A schema whose references are all plain: the grammar's compiler reads no escapes in them. What they
/// name is copied under a plain name.
fn with_plain_names(
    param: &str,
    schema: Map<String, Value>,
) -> Result<Map<String, Value>, RequestError> {
    let mut names = BTreeMap::new();
    let mut whole = Value::Object(schema);
    find_escaped(&whole, &mut names);
    let mut copies = Map::new();
    let mut bytes = 0;
    for (number, (name, plain)) in names.iter_mut().enumerate() {
        // The compiler tells of what is not there.
        let Some(named) = named_by(&whole, name) else {
            continue;
        };
        bytes += named.to_string().len();
        if bytes > COPIED_BYTES_MAX {
            let message = format!(
                "{param} has too many references with escapes (~0, ~1, %); give what they name a plain name"
            );
            return Err(RequestError::invalid(param, message));
        }
        *plain = format!("#/{PLAIN}/{number}");
        copies.insert(number.to_string(), named.clone());
    }
    if !copies.is_empty() {
        whole[PLAIN] = Value::Object(copies);
        rename(&mut whole, &names);
    }
    match whole {
        Value::Object(schema) => Ok(schema),
        _ => Ok(Map::new()),
    }
}

fn is_escaped(name: &str) -> bool {
    name.starts_with("#/") && name.contains(['~', '%'])
}

/// Whether the value of a key is data, in which nothing is a reference.
fn is_data(key: &str) -> bool {
    matches!(key, "const" | "enum" | "default" | "examples")
}

/// Whether the value of a key has schemas by names, none of which is a keyword.
fn has_names(key: &str) -> bool {
    matches!(
        key,
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
    )
}

/// All references of a schema and of the schemas in it.
pub(super) fn references<'a>(part: &'a Value, found: &mut Vec<&'a str>) {
    match part {
        Value::Array(parts) => parts.iter().for_each(|part| references(part, found)),
        Value::Object(parts) => {
            found.extend(parts.get("$ref").and_then(Value::as_str));
            for (key, part) in parts.iter().filter(|(key, _)| !is_data(key)) {
                match part {
                    Value::Object(named) if has_names(key) => {
                        named.values().for_each(|part| references(part, found));
                    }
                    part => references(part, found),
                }
            }
        }
        _ => {}
    }
}

fn find_escaped(part: &Value, names: &mut BTreeMap<String, String>) {
    let mut all = Vec::new();
    references(part, &mut all);
    let escaped = all.into_iter().filter(|name| is_escaped(name));
    names.extend(escaped.map(|name| (name.to_owned(), String::new())));
}

fn rename(part: &mut Value, names: &BTreeMap<String, String>) {
    match part {
        Value::Array(parts) => parts.iter_mut().for_each(|part| rename(part, names)),
        Value::Object(parts) => {
            if let Some(Value::String(name)) = parts.get_mut("$ref")
                && let Some(plain) = names.get(name).filter(|plain| !plain.is_empty())
            {
                name.clone_from(plain);
            }
            for (key, part) in parts.iter_mut().filter(|(key, _)| !is_data(key)) {
                match part {
                    Value::Object(named) if has_names(key) => {
                        named.values_mut().for_each(|part| rename(part, names));
                    }
                    part => rename(part, names),
                }
            }
        }
        _ => {}
    }
}

/// What a reference with escapes names (RFC 6901, section 6).
fn named_by<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    schema.pointer(&unescaped(name.strip_prefix('#')?)?)
}

/// The text of a URI's part, without its percent signs.
pub(super) fn unescaped(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?].map(char::from);
                let [high, low] = digits.map(|digit| digit.to_digit(16));
                (high? * 16 + low?) as u8
            }
            byte => byte,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_with_escapes_name_what_they_are_for() {
        let schema = json!({
            "$defs": {"a/b": {"type": "integer"}, "c~d": {"$ref": "#/$defs/a~1b"}, "plain": true},
            "definitions": {"e f%": {"items": [{"type": "null"}]}},
            "properties": {
                "one": {"$ref": "#/$defs/a~1b"},
                "two": {"$ref": "#/$defs/c~0d"},
                "three": {"$ref": "#/definitions/e%20f%25/items/0"},
                "four": {"$ref": "#/$defs/plain"},
            },
        });
        let fitted = |schema: &Value| {
            let schema = schema.as_object().expect("an object").clone();
            fitted("p", schema, &mut Room::default())
        };
        let read = Value::Object(fitted(&schema).expect("sound"));
        let of = |name: &str| {
            let name = read["properties"][name]["$ref"].as_str().expect("a name");
            assert!(!name.contains(['~', '%']), "{name}");
            named_by(&read, name).expect("named").clone()
        };
        assert_eq!(of("one"), json!({"type": "integer"}));
        assert_eq!(of("two")["$ref"], read["properties"]["one"]["$ref"]);
        assert_eq!(of("three"), json!({"type": "null"}));
        assert_eq!(of("four"), json!(true));
        let root = json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "object"}}});
        let root = fitted(&root).expect("sound");
        assert_eq!(root["$ref"], "#/x-hone-named/0");
        let missing = json!({"$ref": "#/$defs/a~1b"});
        let left = fitted(&missing).expect("for the compiler to refuse");
        assert_eq!(Value::Object(left), missing);
        let many: Map<String, Value> = (0..100)
            .map(|at| (at.to_string(), json!({"$ref": format!("#/%24defs/{at}")})))
            .collect();
        let long: Map<String, Value> = (0..100)
            .map(|at| (at.to_string(), json!("x".repeat(6_000))))
            .collect();
        let many = json!({"properties": many, "$defs": long});
        let error = fitted(&many).expect_err("too much").to_string();
        assert!(error.contains("too many references"), "{error}");
    }

    #[test]
    fn what_is_data_names_nothing() {
        let fitted = |schema: &Value| {
            let schema = schema.as_object().expect("an object").clone();
            Value::Object(fitted("p", schema, &mut Room::default()).expect("sound"))
        };
        let escaped = json!({"$ref": "#/$defs/a~1b"});
        let data = json!({"const": escaped, "enum": [escaped], "default": {"x": escaped},
            "examples": [[escaped]]});
        let alone = json!({"$defs": {"a/b": {"type": "integer"}}, "items": data});
        assert_eq!(fitted(&alone), alone);
        let mut named = alone.clone();
        named["properties"] = json!({"default": escaped, "enum": {"anyOf": [escaped]}});
        named["$defs"]["const"] = escaped.clone();
        let plain = json!({"$ref": "#/x-hone-named/0"});
        let mut expected = named.clone();
        expected["properties"] = json!({"default": plain, "enum": {"anyOf": [plain]}});
        expected["$defs"]["const"] = plain;
        expected[PLAIN] = json!({"0": {"type": "integer"}});
        assert_eq!(fitted(&named), expected);
    }

    /// Each of these by itself counts for seconds.
    #[test]
    fn all_of_a_form_are_counted_in_a_moment() {
        let of = |schema: Value| schema.as_object().expect("an object").clone();
        let mut names = json!({"0": {"properties": {"a": {"type": "string"}}}});
        for at in 1..40 {
            let below = json!({"$ref": format!("#/$defs/{}", at - 1)});
            names[at.to_string()] = json!({"allOf": [below, below]});
        }
        let odd = of(json!({"$defs": names, "$ref": "#/$defs/39"}));
        let plain: Map<String, Value> = (0..1_000)
            .map(|at| (at.to_string(), json!({"type": "string"})))
            .collect();
        let plain = of(json!({"type": "object", "properties": plain}));
        let mut room = Room::default();
        let taken = [&odd, &plain, &odd].map(|schema| room.take("p", schema).is_ok());
        assert_eq!(taken, [false, true, false]);
        for _ in 0..500 {
            let error = room.take("p", &odd).expect_err("too long").to_string();
            assert!(error.contains("p becomes too large"), "{error}");
        }
        assert!(room.take("p", &plain).is_err(), "nothing is left");
    }

    #[test]
    fn what_would_take_gigabytes_is_refused() {
        let many = json!({"anyOf": vec![json!({"type": "object"}); 150]});
        let of = |bytes: usize| {
            let schema = json!({"type": "object", "properties": {"a": {"const": "A".repeat(bytes)}},
                "allOf": [many, many]});
            schema.as_object().expect("an object").clone()
        };
        let take = |bytes| Room::default().take("p", &of(bytes));
        assert!(take(100).is_ok());
        let error = take(100_000).expect_err("too large").to_string();
        assert!(error.contains("p becomes too large"), "{error}");
        let take = |grammar: &str| Room::default().take_grammar("p", grammar);
        let schema = |bytes| Value::Object(of(bytes));
        assert!(take(&format!("start: a\na: %json {}\n", schema(100_000))).is_err());
        assert!(take("start: %json {\"type\": \"object\"} | \"%json\"").is_ok());
        // Those of one form together.
        let (one, many) = (format!("%json {} ", schema(1_000)), 10);
        assert!(take(&one).is_ok());
        assert!(take(&one.repeat(many)).is_err());
    }
}
