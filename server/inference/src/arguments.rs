//! Arguments of calls that were said as text, as what their tool's schema makes of them.

use std::sync::Arc;

use hone_domain::{Functions, guessed, worded};
use serde_json::Value;

/// Most schemas that are looked at for one argument.
const STEPS_MAX: usize = 256;

/// Most references that are followed to a schema.
const REFERENCES_MAX: usize = 8;

/// Kinds of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// None at all.
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self(0x7f);
    /// Texts.
    pub const TEXT: Self = Self(1 << 4);

    fn named(name: &str) -> Self {
        Self(match name {
            "null" => 1,
            "boolean" => 1 << 1,
            "integer" => 1 << 2,
            "number" => 1 << 2 | 1 << 3,
            "string" => Self::TEXT.0,
            "array" => 1 << 5,
            "object" => 1 << 6,
            _ => 0,
        })
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::named("null"),
            Value::Bool(_) => Self::named("boolean"),
            Value::Number(number) if number.as_f64().is_some_and(|n| n.fract() == 0.0) => {
                Self::named("integer")
            }
            Value::Number(_) => Self(1 << 3),
            Value::String(_) => Self::TEXT,
            Value::Array(_) => Self::named("array"),
            Value::Object(_) => Self::named("object"),
        }
    }

    /// Whether one of these is among them.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that a schema in the document `root` allows; more than these where it is intricate.
    pub fn of_schema(schema: &Value, root: &Value) -> Self {
        let mut steps = STEPS_MAX;
        Self::allowed(schema, root, &mut steps)
    }

    fn allowed(schema: &Value, root: &Value, steps: &mut usize) -> Self {
        if *steps == 0 {
            return Self::ALL;
        }
        *steps -= 1;
        let map = match schema {
            Value::Bool(false) => return Self::NONE,
            Value::Object(map) => map,
            _ => return Self::ALL,
        };
        let mut kinds = Self::ALL;
        for (key, value) in map {
            let mut each = |of: &[Value]| -> Vec<Self> {
                let of = of.iter();
                of.map(|schema| Self::allowed(schema, root, steps))
                    .collect()
            };
            kinds = kinds.and(match (key.as_str(), value) {
                ("type", Value::String(name)) => Self::named(name),
                ("type", Value::Array(names)) => {
                    let names = names.iter().filter_map(Value::as_str);
                    names.map(Self::named).fold(Self::NONE, Self::or)
                }
                ("const", value) => Self::of_value(value),
                ("enum", Value::Array(values)) => {
                    values.iter().map(Self::of_value).fold(Self::NONE, Self::or)
                }
                ("anyOf" | "oneOf", Value::Array(options)) => {
                    each(options).into_iter().fold(Self::NONE, Self::or)
                }
                ("allOf", Value::Array(all)) => each(all).into_iter().fold(Self::ALL, Self::and),
                ("$ref", Value::String(name)) => {
                    let pointer = name.strip_prefix('#');
                    match pointer.and_then(|pointer| root.pointer(pointer)) {
                        Some(named) => Self::allowed(named, root, steps),
                        None => Self::ALL,
                    }
                }
                _ => Self::ALL,
            });
        }
        match map.get("nullable") {
            Some(Value::Bool(true)) => kinds.or(Self::named("null")),
            _ => kinds,
        }
    }
}

/// Keys that say nothing of the value.
pub const NOTES: [&str; 10] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
];

/// What a schema in the document `root` names, where it says nothing else.
pub fn named<'a>(mut schema: &'a Value, root: &'a Value) -> &'a Value {
    for _ in 0..REFERENCES_MAX {
        let is_silent = |key: &String| key == "$ref" || NOTES.contains(&key.as_str());
        let alone = schema.as_object().filter(|map| map.keys().all(is_silent));
        let name = alone.and_then(|map| map.get("$ref")?.as_str()?.strip_prefix('#'));
        match name.and_then(|name| root.pointer(name)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

/// The tools that a request offers.
#[derive(Debug)]
pub(super) struct Offered(pub(super) Vec<Value>);

impl Offered {
    /// Their names.
    pub(super) fn names(&self) -> Arc<[String]> {
        let names = self.0.iter();
        names
            .filter_map(|tool| tool.pointer("/function/name")?.as_str())
            .map(str::to_owned)
            .collect()
    }

    fn tool(&self, function: &str) -> Option<&Value> {
        let is_meant = |tool: &&Value| {
            let name = tool.pointer("/function/name").and_then(Value::as_str);
            name == Some(function)
        };
        self.0.iter().find(is_meant)
    }

    /// Whether a value may be meant for an argument, perhaps as a text.
    fn fits(&self, function: &str, name: &str, value: &Value) -> bool {
        let kinds = self.kinds(function, name);
        let worded = value.as_str().and_then(worded);
        let as_text = worded.is_some_and(|value| kinds.has(Kinds::of_value(&value)));
        // Null is how models leave something out.
        let is_plain = value.is_number() || value.is_boolean();
        kinds.has(Kinds::of_value(value))
            || value.is_null()
            || as_text
            || (is_plain && kinds.has(Kinds::TEXT))
    }

    /// What an argument may be; all, where nothing is known of it.
    fn kinds(&self, function: &str, argument: &str) -> Kinds {
        let tool = self.tool(function);
        let Some(root) = tool.and_then(|tool| tool.pointer("/function/parameters")) else {
            return Kinds::ALL;
        };
        let object = named(root, root);
        let own = object.get("properties").and_then(|all| all.get(argument));
        let schema = own.or_else(|| object.get("additionalProperties"));
        schema.map_or(Kinds::ALL, |schema| Kinds::of_schema(schema, root))
    }
}

impl Functions for Offered {
    fn has(&self, function: &str) -> bool {
        self.tool(function).is_some()
    }

    fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    fn is_text(&self, function: &str, name: &str) -> bool {
        self.kinds(function, name) == Kinds::TEXT
    }

    fn json(&self, function: &str, name: &str, text: &str) -> String {
        fitted(&guessed(text), self.kinds(function, name))
    }

    /// A model that means the function may leave something out, or write a number as a text. What names
    /// nothing that the function knows, or gives it values of another kind, is something else.
    fn takes(&self, function: &str, arguments: &str) -> bool {
        let tool = self.tool(function);
        let Some(root) = tool.and_then(|tool| tool.pointer("/function/parameters")) else {
            return true;
        };
        let Ok(Value::Object(said)) = serde_json::from_str(arguments) else {
            return false;
        };
        let object = named(root, root);
        let Some(Value::Object(known)) = object.get("properties") else {
            return true;
        };
        let is_strange = |name: &String| !known.contains_key(name);
        let is_open = !matches!(
            object.get("additionalProperties"),
            None | Some(Value::Bool(false))
        );
        if !said.is_empty() && !is_open && said.keys().all(is_strange) {
            return false;
        }
        let has_required = match object.get("required") {
            Some(Value::Array(names)) if said.is_empty() => names.is_empty(),
            _ => true,
        };
        has_required
            && said
                .iter()
                .all(|(name, value)| self.fits(function, name, value))
    }
}

/// The JSON of a value that was said as text and guessed at, as one of the kinds. Where it cannot be,
/// the guess stays.
fn fitted(guess: &str, kinds: Kinds) -> String {
    let Ok(value) = serde_json::from_str::<Value>(guess) else {
        return guess.to_owned();
    };
    if kinds.has(Kinds::of_value(&value)) {
        return guess.to_owned();
    }
    match value.as_str() {
        Some(text) => match worded(text) {
            Some(value) if kinds.has(Kinds::of_value(&value)) => {
                let is_python = matches!(text.trim(), "True" | "False" | "None");
                // As it was written, so that no number changes.
                if is_python {
                    value.to_string()
                } else {
                    text.trim().to_owned()
                }
            }
            _ => guess.to_owned(),
        },
        None if kinds.has(Kinds::TEXT) => Value::from(guess).to_string(),
        None => guess.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use hone_domain::{CallStyle, OutputFormat, OutputParser, ParsedOutput};
    use serde_json::json;

    use super::*;

    /// The arguments of the call that a text is, told character by character.
    fn parsed(tool: &Value, text: &str, output_format: OutputFormat) -> String {
        let mut parser = OutputParser::among(output_format, Arc::new(Offered(vec![tool.clone()])));
        let mut parsed = ParsedOutput::default();
        for piece in text.split_inclusive(|_| true) {
            parsed.add(parser.push(piece));
        }
        parsed.add(parser.finish());
        assert_eq!(parser.whole_calls(), 1);
        parsed.calls.remove(0).arguments
    }

    #[test]
    fn arguments_of_another_kind_are_not_meant() {
        let schema = json!({"type": "object", "required": ["path"], "properties": {
            "path": {"type": "string"}, "lines": {"type": "integer"}, "edits": {"type": "array"}}});
        let offered = Offered(vec![
            json!({"function": {"name": "read", "parameters": schema}}),
            json!({"function": {"name": "now"}}),
            json!({"function": {"name": "list", "parameters": {"type": "object", "properties": {}}}}),
        ]);
        for (name, arguments, wanted) in [
            ("read", r#"{"path": "a.txt"}"#, true),
            ("read", r#"{"path": "a.txt", "lines": "12"}"#, true),
            ("read", r#"{"path": 7, "lines": null}"#, true),
            ("read", r#"{"lines": 12}"#, true),
            ("read", r#"{"path": "a.txt", "extra": {}}"#, true),
            ("read", r#"{"path": {"a": 1}}"#, false),
            ("read", r#"{"path": "a.txt", "lines": "many"}"#, false),
            ("read", r#"{"path": "a.txt", "edits": "none"}"#, false),
            ("read", r#"{"title": "a", "price": 3}"#, false),
            ("read", "{}", false),
            ("read", "[1]", false),
            ("now", "{}", true),
            ("now", r#"{"zone": "UTC"}"#, true),
            ("list", "{}", true),
        ] {
            assert_eq!(offered.takes(name, arguments), wanted, "{name} {arguments}");
        }
    }

    #[test]
    fn a_schema_tells_what_it_allows() {
        let root = json!({"$defs": {
            "word": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"},
            "many": {"anyOf": vec![json!({"$ref": "#/$defs/many"}); 9]},
        }});
        let number = Kinds::named("number");
        let text_or_null = Kinds::TEXT.or(Kinds::named("null"));
        for (schema, kinds) in [
            (json!({}), Kinds::ALL),
            (json!(true), Kinds::ALL),
            (json!(false), Kinds::NONE),
            (json!({"type": "string", "pattern": "a"}), Kinds::TEXT),
            (json!({"type": ["string", "null"]}), text_or_null),
            (json!({"type": "string", "nullable": true}), text_or_null),
            (
                json!({"anyOf": [{"type": "null"}, {"enum": ["a"]}]}),
                text_or_null,
            ),
            (json!({"enum": [1, 2.5]}), number),
            (json!({"const": 2.0}), Kinds::named("integer")),
            (
                json!({"allOf": [{"type": ["string", "integer"]}, {"type": "number"}]}),
                Kinds::named("integer"),
            ),
            (json!({"$ref": "#/$defs/word"}), Kinds::TEXT),
            (json!({"$ref": "#/$defs/none"}), Kinds::ALL),
            (json!({"$ref": "#/$defs/loop"}), Kinds::ALL),
            (json!({"$ref": "#/$defs/many"}), Kinds::ALL),
        ] {
            assert_eq!(Kinds::of_schema(&schema, &root), kinds, "{schema}");
        }
    }

    #[test]
    fn said_texts_become_what_the_tool_takes() {
        let rows = [
            ("{\"type\": \"string\"}", "42", "\"42\""),
            ("{\"type\": \"string\"}", "{ \"a\":1 }", r#""{ \"a\":1 }""#),
            ("{\"type\": \"string\"}", "null", "\"null\""),
            ("{\"type\": [\"string\", \"null\"]}", "null", "null"),
            ("{\"type\": [\"string\", \"null\"]}", "4", "\"4\""),
            ("{\"type\": \"boolean\"}", "True", "true"),
            ("{\"type\": \"boolean\"}", "yes", "\"yes\""),
            ("{\"type\": \"integer\"}", " 7 ", "7"),
            ("{\"type\": \"integer\"}", "7.0", "7.0"),
            ("{\"type\": \"integer\"}", "7.5", "7.5"),
            ("{\"type\": \"number\"}", "7", "7"),
            ("{\"type\": \"number\"}", "1e999", "\"1e999\""),
            ("{\"type\": \"array\"}", "[1, \"a\"]", "[1, \"a\"]"),
            ("{}", "7", "7"),
            ("{}", "None", "\"None\""),
            (
                "{\"type\": \"array\"}",
                "\n[12345678901234567890123]",
                "[12345678901234567890123]",
            ),
        ];
        for (schema, said, wanted) in rows {
            let schema: Value = serde_json::from_str(schema).expect("sound");
            let parameters = json!({"properties": {"a": schema}});
            let tool = json!({"function": {"name": "f", "parameters": parameters}});
            for (name, wanted) in [("f", Some(wanted)), ("g", None)] {
                let text =
                    format!("<function={name}><parameter=a>\n{said}\n</parameter></function>");
                let output_format = OutputFormat {
                    calls: Some(CallStyle::Parameters),
                    ..OutputFormat::default()
                };
                let guess = ParsedOutput::of(&text, output_format).calls[0]
                    .arguments
                    .clone();
                let parsed = |held| {
                    parsed(
                        &tool,
                        &text,
                        OutputFormat {
                            held,
                            ..output_format
                        },
                    )
                };
                assert_eq!(parsed(false), parsed(true), "{said}");
                let wanted = wanted.map(|wanted| format!("{{\"a\": {wanted}}}"));
                assert_eq!(parsed(true), wanted.unwrap_or(guess), "{said}");
            }
        }
    }

    /// A form that the model's template does not teach makes no difference.
    #[test]
    fn said_texts_of_other_forms_become_what_the_tool_takes() {
        let glm = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>42</arg_value>\n</tool_call>";
        let tags = "<function=f>\n<parameter=a>\n42\n</parameter>\n</function>";
        for (kind, wanted) in [("string", json!("42")), ("integer", json!(42))] {
            let parameters = json!({"properties": {"a": {"type": kind}}});
            let tool = json!({"function": {"name": "f", "parameters": parameters}});
            for text in [glm, tags] {
                let output_format = OutputFormat {
                    calls: Some(CallStyle::Json),
                    ..OutputFormat::default()
                };
                let arguments = parsed(&tool, text, output_format);
                let arguments: Value = serde_json::from_str(&arguments).expect("sound");
                assert_eq!(arguments, json!({ "a": wanted }), "{text}");
            }
        }
    }

    #[test]
    fn arguments_without_a_schema_of_their_own_follow_the_others() {
        let named = json!({"$ref": "#/definitions/a", "$schema": "x", "definitions": {
            "a": {"properties": {"zip": {"type": "string"}}, "additionalProperties": {"type": "boolean"}}}});
        let tool = json!({"function": {"name": "f", "parameters": named}});
        let text =
            "<function=f><parameter=zip>90210</parameter><parameter=x>True</parameter></function>";
        let output_format = OutputFormat {
            calls: Some(CallStyle::Parameters),
            ..OutputFormat::default()
        };
        let told = "{\"zip\": \"90210\", \"x\": true}";
        assert_eq!(parsed(&tool, text, output_format), told);
    }
}
