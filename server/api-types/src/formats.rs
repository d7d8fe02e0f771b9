//! What an answer has to look like: `response_format` and vLLM's guided fields, as one grammar.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::schema::{Room, answer_space, fitted, read_schema, schema_text};
use crate::RequestError;
use hone_inference::{Calls, Loose, Pattern, Shape};

/// Most choices of `guided_choice`.
const CHOICES_MAX: usize = 512;
/// Most bytes of what a request's schemas become.
const GRAMMAR_BYTES_MAX: usize = 512 * 1_024;
/// Most bytes of a grammar that a request sends.
const LARK_BYTES_MAX: usize = 64 * 1_024;

/// Fields that hold an answer to a form. At most one of them has an effect at a time.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct ShapeFields {
    /// `{"type": "text"}`, `{"type": "json_object"}` or `{"type": "json_schema", ...}`.
    #[schema(value_type = Option<Object>)]
    pub response_format: Option<Value>,
    /// A JSON schema, as vLLM takes it.
    pub guided_json: Option<Value>,
    /// A regular expression that the whole answer matches.
    pub guided_regex: Option<String>,
    /// Texts of which the answer is one.
    pub guided_choice: Option<Vec<String>>,
    /// A grammar in Lark notation.
    pub guided_grammar: Option<String>,
    /// The same four as one object: `json`, `regex`, `choice`, `grammar`.
    #[schema(value_type = Option<Object>)]
    pub structured_outputs: Option<Map<String, Value>>,
    /// Where the caller wrote what is in `response_format`, in an API that has another place for it.
    #[serde(skip)]
    pub format_at: Option<&'static str>,
}

/// The rule of the answer, before it is known where reasoning may stand.
pub(super) struct Rule {
    pub(super) param: String,
    pub(super) body: String,
    /// Whether it is the caller's whole grammar.
    pub(super) is_own: bool,
    pub(super) patterns: Vec<Pattern>,
    pub(super) calls: Calls,
    pub(super) loose: Loose,
}

impl ShapeFields {
    /// Whether there is something in them that may hold an answer.
    pub fn is_any(&self) -> bool {
        let holds = |format: &&Value| format.get("type").is_none_or(|kind| kind != "text");
        let format = self.response_format.as_ref().filter(holds);
        format.is_some_and(|format| !format.is_null())
            || self.guided_json.is_some()
            || self.guided_regex.is_some()
            || self.guided_choice.is_some()
            || self.guided_grammar.is_some()
            || self.structured_outputs.is_some()
    }

    /// Names of the members of the JSON object that the answer has to be, where it has to be one.
    pub fn members(&self) -> Option<Vec<String>> {
        let format = self.response_format.as_ref();
        let of_format = format.and_then(|format| format.pointer("/json_schema/schema"));
        let outputs = self.structured_outputs.as_ref();
        let schema = of_format
            .or(self.guided_json.as_ref())
            .or_else(|| outputs.and_then(|outputs| outputs.get("json")))?;
        let members = schema.get("properties")?.as_object()?;
        Some(members.keys().cloned().collect())
    }

    /// The form of an answer without tools.
    pub fn shape(&self) -> Result<Option<Shape>, RequestError> {
        let mut found = self.found()?.into_iter();
        match (found.next(), found.next()) {
            (Some(one), None) => one.shape().map(Some),
            (None, _) => Ok(None),
            (Some(_), Some(other)) => Err(RequestError::invalid(
                other.param,
                "an answer can have one form only: send one of response_format, guided_json, \
                 guided_regex, guided_choice, guided_grammar and structured_outputs",
            )),
        }
    }

    fn found(&self) -> Result<Vec<Rule>, RequestError> {
        let mut found = Vec::new();
        found.extend(format_rule(self.response_format.as_ref(), self.format_at)?);
        if let Some(schema) = &self.guided_json {
            found.push(json_rule("guided_json", schema)?);
        }
        if let Some(regex) = &self.guided_regex {
            found.push(regex_rule("guided_regex", regex)?);
        }
        if let Some(choices) = &self.guided_choice {
            found.push(choice_rule("guided_choice", choices)?);
        }
        if let Some(grammar) = &self.guided_grammar {
            found.push(lark_rule("guided_grammar", grammar)?);
        }
        let outputs = self.structured_outputs.iter().flatten();
        for (name, value) in outputs.filter(|(_, value)| !value.is_null()) {
            found.extend(structured_rule(name, value)?);
        }
        Ok(found)
    }
}

impl Rule {
    pub(super) fn new(param: &str, body: String) -> Self {
        Self {
            param: param.to_owned(),
            body,
            is_own: false,
            patterns: Vec::new(),
            calls: Calls::Untold,
            loose: Loose::default(),
        }
    }

    pub(super) fn shape(self) -> Result<Shape, RequestError> {
        if self.body.len() > GRAMMAR_BYTES_MAX {
            let message = format!("the form of the answer has more than {GRAMMAR_BYTES_MAX} bytes");
            return Err(RequestError::invalid(self.param, message));
        }
        Ok(Shape {
            param: self.param,
            rules: self.body,
            is_own: self.is_own,
            patterns: self.patterns,
            calls: self.calls,
            loose: self.loose,
        })
    }
}

fn format_rule(
    format: Option<&Value>,
    at: Option<&'static str>,
) -> Result<Option<Rule>, RequestError> {
    let (at, path) = match at {
        None => ("response_format", "response_format.json_schema"),
        Some(at) => (at, at),
    };
    let Some(format) = format.filter(|format| !format.is_null()) else {
        return Ok(None);
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => json_rule(at, &json!({"type": "object"})).map(Some),
        Some("json_schema") => {
            let name = format.pointer("/json_schema/name").and_then(Value::as_str);
            if name.is_none_or(str::is_empty) {
                return Err(RequestError::invalid(
                    format!("{path}.name"),
                    format!("{path} needs a name"),
                ));
            }
            let schema = format.pointer("/json_schema/schema").ok_or_else(|| {
                RequestError::invalid(format!("{path}.schema"), format!("{path} needs a schema"))
            })?;
            json_rule(&format!("{path}.schema"), schema).map(Some)
        }
        _ => Err(RequestError::invalid(
            at,
            format!("{at} must be an object with the type text, json_object or json_schema"),
        )),
    }
}

fn structured_rule(name: &str, value: &Value) -> Result<Option<Rule>, RequestError> {
    let param = format!("structured_outputs.{name}");
    let wrong =
        |what: &str| RequestError::invalid(param.clone(), format!("{param} must be {what}"));
    match name {
        "json" => json_rule(&param, value).map(Some),
        "json_object" => match value.as_bool() {
            Some(true) => json_rule(&param, &json!({"type": "object"})).map(Some),
            Some(false) => Ok(None),
            None => Err(wrong("true or false")),
        },
        "regex" => {
            let regex = value.as_str().ok_or_else(|| wrong("a string"))?;
            regex_rule(&param, regex).map(Some)
        }
        "grammar" => {
            let grammar = value.as_str().ok_or_else(|| wrong("a string"))?;
            lark_rule(&param, grammar).map(Some)
        }
        "choice" => {
            let texts = value.as_array().into_iter().flatten();
            let texts: Option<Vec<String>> = texts.map(|v| v.as_str().map(str::to_owned)).collect();
            choice_rule(&param, &texts.unwrap_or_default()).map(Some)
        }
        _ => Err(RequestError::unsupported(
            param.clone(),
            format!("{param} is not supported; send json, regex, choice or grammar"),
        )),
    }
}

fn json_rule(param: &str, schema: &Value) -> Result<Rule, RequestError> {
    let schema = fitted(param, read_schema(param, schema)?, &mut Room::default())?;
    let (schema, patterns) = schema_text(param, schema, answer_space());
    Ok(Rule {
        patterns,
        ..Rule::new(param, format!("answer: %json {schema}\n"))
    })
}

fn regex_rule(param: &str, regex: &str) -> Result<Rule, RequestError> {
    if regex.is_empty() {
        return Err(RequestError::invalid(
            param,
            format!("{param} cannot be empty"),
        ));
    }
    let pattern = Pattern {
        param: param.to_owned(),
        regex: regex.to_owned(),
    };
    Ok(Rule {
        patterns: vec![pattern],
        ..Rule::new(param, format!("answer: /{}/\n", in_slashes(regex)))
    })
}

/// A regular expression as it stands between slashes.
fn in_slashes(regex: &str) -> String {
    let mut out = String::with_capacity(regex.len() + 8);
    let mut escaped = false;
    for c in regex.chars() {
        match c {
            '/' if !escaped => out.push_str("\\/"),
            '\n' if !escaped => out.push_str("\\n"),
            c => out.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    out
}

fn choice_rule(param: &str, choices: &[String]) -> Result<Rule, RequestError> {
    if choices.is_empty() || choices.len() > CHOICES_MAX || choices.iter().any(String::is_empty) {
        return Err(RequestError::invalid(
            param,
            format!("{param} must be 1 to {CHOICES_MAX} texts that are not empty"),
        ));
    }
    let texts: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
    Ok(Rule::new(param, format!("answer: {}\n", texts.join(" | "))))
}

fn lark_rule(param: &str, grammar: &str) -> Result<Rule, RequestError> {
    if grammar.len() > LARK_BYTES_MAX {
        let message = format!("{param} has more than {LARK_BYTES_MAX} bytes");
        return Err(RequestError::invalid(param, message));
    }
    if !grammar
        .lines()
        .any(|line| line.trim_start().starts_with("start"))
    {
        return Err(RequestError::invalid(
            param,
            format!("{param} must be a grammar in Lark notation with a rule `start`"),
        ));
    }
    Room::default().take_grammar(param, grammar)?;
    Ok(Rule {
        is_own: true,
        ..Rule::new(param, grammar.to_owned())
    })
}

/// A text as a grammar writes it.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
#[path = "formats_tests.rs"]
mod tests;
