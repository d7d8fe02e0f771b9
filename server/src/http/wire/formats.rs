//! What an answer has to look like: `response_format`, `tool_choice`, and vLLM's guided fields,
//! all as one grammar.

use std::collections::HashSet;

use hone_domain::{CALL_CLOSE, CALL_OPEN, CallStyle};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::door::{Calls, Pattern, Shape};
use crate::http::error::ApiError;

/// Most choices of `guided_choice`.
const CHOICES_MAX: usize = 512;
/// Most tools of one request.
const TOOLS_MAX: usize = 512;
/// Most bytes of what a request's schemas become.
const GRAMMAR_BYTES_MAX: usize = 512 * 1_024;
/// Most bytes of a grammar that a request sends.
const LARK_BYTES_MAX: usize = 64 * 1_024;
/// Most calls of one answer that is held to calls.
const CALLS_MAX: usize = 16;
/// Space between the parts of a JSON answer: a model that says nothing but space would never end.
const JSON_SPACE: &str = r" {1,2}|\r?\n[ \t]{0,32}";

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
struct Rule {
    param: String,
    body: String,
    /// Whether it is the caller's whole grammar.
    is_own: bool,
    patterns: Vec<Pattern>,
    calls: Calls,
}

impl ShapeFields {
    /// The form of an answer without tools.
    pub fn shape(&self) -> Result<Option<Shape>, ApiError> {
        let mut found = self.found()?.into_iter();
        match (found.next(), found.next()) {
            (Some(one), None) => one.shape().map(Some),
            (None, _) => Ok(None),
            (Some(_), Some(other)) => Err(ApiError::invalid(
                other.param,
                "an answer can have one form only: send one of response_format, guided_json, \
                 guided_regex, guided_choice, guided_grammar and structured_outputs",
            )),
        }
    }

    fn found(&self) -> Result<Vec<Rule>, ApiError> {
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
    fn new(param: &str, body: String) -> Self {
        Self {
            param: param.to_owned(),
            body,
            is_own: false,
            patterns: Vec::new(),
            calls: Calls::Untold,
        }
    }

    fn shape(self) -> Result<Shape, ApiError> {
        if self.body.len() > GRAMMAR_BYTES_MAX {
            let message = format!("the form of the answer has more than {GRAMMAR_BYTES_MAX} bytes");
            return Err(ApiError::invalid(self.param, message));
        }
        Ok(Shape {
            param: self.param,
            rules: self.body,
            is_own: self.is_own,
            patterns: self.patterns,
            calls: self.calls,
        })
    }
}

fn format_rule(format: Option<&Value>, at: Option<&'static str>) -> Result<Option<Rule>, ApiError> {
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
                return Err(ApiError::invalid(
                    format!("{path}.name"),
                    format!("{path} needs a name"),
                ));
            }
            let schema = format.pointer("/json_schema/schema").ok_or_else(|| {
                ApiError::invalid(format!("{path}.schema"), format!("{path} needs a schema"))
            })?;
            json_rule(&format!("{path}.schema"), schema).map(Some)
        }
        _ => Err(ApiError::invalid(
            at,
            format!("{at} must be an object with the type text, json_object or json_schema"),
        )),
    }
}

fn structured_rule(name: &str, value: &Value) -> Result<Option<Rule>, ApiError> {
    let param = format!("structured_outputs.{name}");
    let wrong = |what: &str| ApiError::invalid(param.clone(), format!("{param} must be {what}"));
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
        _ => Err(ApiError::unsupported(
            param.clone(),
            format!("{param} is not supported; send json, regex, choice or grammar"),
        )),
    }
}

/// How an answer's JSON may be spaced: as people write it, within bounds.
fn answer_space() -> Value {
    json!({"whitespace_flexible": true, "whitespace_pattern": JSON_SPACE})
}

/// How a call's arguments may be spaced: on one line, as templates write them, so that a small
/// model cannot spend its tokens on space.
fn call_space() -> Value {
    json!({"whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?"})
}

/// A schema with how space is written around its parts, and the regular expressions in it.
fn schema_text(
    param: &str,
    schema: &Value,
    space: Value,
) -> Result<(String, Vec<Pattern>), ApiError> {
    let parsed: Value;
    let schema = match schema {
        // vLLM also takes the schema's text.
        Value::String(text) => {
            parsed = serde_json::from_str(text).map_err(|error| {
                ApiError::invalid(param, format!("{param} is not valid JSON: {error}"))
            })?;
            &parsed
        }
        other => other,
    };
    let mut schema = match schema {
        Value::Object(map) => map.clone(),
        Value::Bool(true) => Map::new(),
        _ => {
            return Err(ApiError::invalid(
                param,
                format!("{param} must be a JSON schema, which is an object"),
            ));
        }
    };
    let patterns = Pattern::of_schema(param, &schema);
    schema.insert("x-guidance".to_owned(), space);
    Ok((Value::Object(schema).to_string(), patterns))
}

fn json_rule(param: &str, schema: &Value) -> Result<Rule, ApiError> {
    let (schema, patterns) = schema_text(param, schema, answer_space())?;
    Ok(Rule {
        patterns,
        ..Rule::new(param, format!("answer: %json {schema}\n"))
    })
}

fn regex_rule(param: &str, regex: &str) -> Result<Rule, ApiError> {
    if regex.is_empty() {
        return Err(ApiError::invalid(param, format!("{param} cannot be empty")));
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

fn choice_rule(param: &str, choices: &[String]) -> Result<Rule, ApiError> {
    if choices.is_empty() || choices.len() > CHOICES_MAX || choices.iter().any(String::is_empty) {
        return Err(ApiError::invalid(
            param,
            format!("{param} must be 1 to {CHOICES_MAX} texts that are not empty"),
        ));
    }
    let texts: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
    Ok(Rule::new(param, format!("answer: {}\n", texts.join(" | "))))
}

fn lark_rule(param: &str, grammar: &str) -> Result<Rule, ApiError> {
    if grammar.len() > LARK_BYTES_MAX {
        let message = format!("{param} has more than {LARK_BYTES_MAX} bytes");
        return Err(ApiError::invalid(param, message));
    }
    if !grammar
        .lines()
        .any(|line| line.trim_start().starts_with("start"))
    {
        return Err(ApiError::invalid(
            param,
            format!("{param} must be a grammar in Lark notation with a rule `start`"),
        ));
    }
    Ok(Rule {
        is_own: true,
        ..Rule::new(param, grammar.to_owned())
    })
}

/// A text as a grammar writes it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Which tools an answer may, must or must not call.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// No call; the tools are not even shown.
    None,
    /// At least one call.
    Required,
    /// One call of this tool.
    Named(String),
}

impl ToolChoice {
    /// Of the request's field; the second part is the tools it leaves, where it names some.
    pub fn parse(choice: Option<&Value>) -> Result<(Self, Option<Vec<String>>), ApiError> {
        let wrong = || {
            ApiError::invalid(
                "tool_choice",
                "tool_choice must be auto, none, required, or an object that names a function",
            )
        };
        let word = |word: &str| match word {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            "required" => Ok(Self::Required),
            _ => Err(wrong()),
        };
        match choice {
            None | Some(Value::Null) => Ok((Self::Auto, None)),
            Some(Value::String(text)) => Ok((word(text)?, None)),
            Some(object) => match object.get("type").and_then(Value::as_str) {
                Some("function") => {
                    let name = object
                        .pointer("/function/name")
                        .or_else(|| object.get("name"));
                    let name = name.and_then(Value::as_str).ok_or_else(wrong)?;
                    Ok((Self::Named(name.to_owned()), None))
                }
                Some("allowed_tools") => {
                    let allowed = object.get("allowed_tools").unwrap_or(object);
                    let mode = allowed
                        .get("mode")
                        .and_then(Value::as_str)
                        .unwrap_or("auto");
                    let tools = allowed.get("tools").and_then(Value::as_array);
                    let names = tools.ok_or_else(wrong)?.iter().map(|tool| {
                        let name = tool.pointer("/function/name").or_else(|| tool.get("name"));
                        name.and_then(Value::as_str).map(str::to_owned)
                    });
                    let names: Option<Vec<String>> = names.collect();
                    Ok((word(mode)?, Some(names.ok_or_else(wrong)?)))
                }
                _ => Err(wrong()),
            },
        }
    }
}

/// The tools an answer is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Tools that are shown to the model.
    pub tools: Vec<Value>,
    /// What it may do with them.
    pub choice: ToolChoice,
    /// Whether it calls one at most.
    pub single: bool,
}

fn name_of(tool: &Value) -> &str {
    let name = tool.pointer("/function/name").and_then(Value::as_str);
    name.unwrap_or_default()
}

fn is_strict(tool: &Value) -> bool {
    tool.pointer("/function/strict") == Some(&Value::Bool(true))
}

/// Adds the rule `call`, a call of one of the tools: what stands `around` the arguments of a tool of that
/// name, and whether they are as its schema says or any object. Gives the regular expressions of the tools.
fn call_rule<'a>(
    tools: impl Iterator<Item = (usize, &'a Value)>,
    (around, by_schema): (impl Fn(&str) -> (String, String), fn(&Value) -> bool),
    rules: &mut String,
) -> Result<Vec<Pattern>, ApiError> {
    let any = json!({"type": "object"});
    let (mut names, mut patterns) = (Vec::new(), Vec::new());
    for (at, tool) in tools {
        let (before, behind) = around(name_of(tool));
        let schema = tool
            .pointer("/function/parameters")
            .filter(|schema| by_schema(tool) && !schema.is_null());
        let param = format!("tools[{at}].function.parameters");
        let (schema, found) = schema_text(&param, schema.unwrap_or(&any), call_space())?;
        patterns.extend(found);
        rules.push_str(&format!("call{at}: {before} args{at} {behind}\n"));
        rules.push_str(&format!("args{at}: %json {schema}\n"));
        names.push(format!("call{at}"));
    }
    rules.push_str(&format!("call: {}\n", names.join(" | ")));
    Ok(patterns)
}

impl Offer {
    /// Of a request; none where the model is shown no tools.
    pub fn of(
        tools: &[Value],
        choice: Option<&Value>,
        parallel: Option<bool>,
    ) -> Result<Option<Self>, ApiError> {
        if tools.len() > TOOLS_MAX {
            let message = format!("at most {TOOLS_MAX} tools are taken");
            return Err(ApiError::invalid("tools", message));
        }
        let (choice, allowed) = ToolChoice::parse(choice)?;
        let known: HashSet<&str> = tools.iter().map(name_of).collect();
        let named = match &choice {
            ToolChoice::Named(name) => std::slice::from_ref(name),
            _ => allowed.as_deref().unwrap_or_default(),
        };
        if let Some(unknown) = named.iter().find(|name| !known.contains(name.as_str())) {
            let message = format!("tool_choice names {unknown:?}, which is not in tools");
            return Err(ApiError::invalid("tool_choice", message));
        }
        let allowed: Option<HashSet<&str>> = allowed
            .as_ref()
            .map(|all| all.iter().map(String::as_str).collect());
        let is_allowed = |tool: &&Value| {
            allowed
                .as_ref()
                .is_none_or(|all| all.contains(name_of(tool)))
        };
        let shown: Vec<Value> = tools.iter().filter(is_allowed).cloned().collect();
        if shown.is_empty() {
            return match choice {
                ToolChoice::Auto | ToolChoice::None => Ok(None),
                _ => Err(ApiError::invalid(
                    "tool_choice",
                    "tool_choice demands a call, and there are no tools",
                )),
            };
        }
        let single = parallel == Some(false) || matches!(choice, ToolChoice::Named(_));
        Ok((choice != ToolChoice::None).then_some(Self {
            tools: shown,
            choice,
            single,
        }))
    }

    /// The form of an answer with these tools, where it also has to be of the form `other`.
    pub fn shape(
        &self,
        style: Option<CallStyle>,
        other: Option<Shape>,
    ) -> Result<Option<Shape>, ApiError> {
        let demanded = !matches!(self.choice, ToolChoice::Auto);
        if !demanded && other.is_none() {
            return self.strict_calls(style);
        }
        let Some(style) = style else {
            return match demanded {
                false => Ok(other),
                true => Err(ApiError::unsupported(
                    "tool_choice",
                    "this model's chat template teaches no form of calls that is known here, so \
                     none can be demanded; use tool_choice auto",
                )),
            };
        };
        let (mut rules, mut patterns) = self.call_rules(style)?;
        let param = match (demanded, other) {
            (true, _) => {
                rules.push_str("answer: calls\n");
                "tools".to_owned()
            }
            (false, Some(other)) if !other.is_own => {
                rules.push_str("answer: calls | content\n");
                rules.push_str(&other.rules.replacen("answer:", "content:", 1));
                patterns.extend(other.patterns);
                other.param
            }
            (false, other) => return Ok(other),
        };
        let rule = Rule {
            patterns,
            calls: Calls::Within,
            ..Rule::new(&param, rules)
        };
        rule.shape().map(Some)
    }

    /// The form of calls that the model is free to make, where a function's definition is strict. Only
    /// what a tag opens can be told from the rest of an answer.
    fn strict_calls(&self, style: Option<CallStyle>) -> Result<Option<Shape>, ApiError> {
        if style != Some(CallStyle::Tags) || !self.tools.iter().any(is_strict) {
            return Ok(None);
        }
        let close = quoted(CALL_CLOSE);
        let mut rules =
            format!("start: GAP? call GAP? {close}\nGAP: /[ \\n]{{1,4}}/\nSPACE: \" \"\n");
        let around = |name: &str| {
            let name = format!("{},", quoted(name));
            let [open, name, key] = ["{\"name\":", &name, "\"arguments\":"].map(quoted);
            let before = format!("{open} SPACE? {name} SPACE? {key} SPACE?");
            (before, quoted("}"))
        };
        let tools = self.tools.iter().enumerate();
        let patterns = call_rule(tools, (around, is_strict), &mut rules)?;
        let rule = Rule {
            patterns,
            calls: Calls::Alone,
            ..Rule::new("tools", rules)
        };
        rule.shape().map(Some)
    }

    /// Rules of `calls` in the words of the model's family, and the regular expressions of the tools.
    fn call_rules(&self, style: CallStyle) -> Result<(String, Vec<Pattern>), ApiError> {
        let named = |tool: &&Value| match &self.choice {
            ToolChoice::Named(name) => name_of(tool) == name,
            _ => true,
        };
        let (open, close, between, arguments) = match style {
            CallStyle::Tags => (
                format!("{CALL_OPEN}\n"),
                format!("\n{CALL_CLOSE}"),
                "\n",
                "arguments",
            ),
            CallStyle::Json => (String::new(), String::new(), "; ", "parameters"),
        };
        let mut rules = match self.single {
            true => "calls: call\n".to_owned(),
            false => format!(
                "calls: call ({} call){{0,{}}}\n",
                quoted(between),
                CALLS_MAX - 1
            ),
        };
        let around = |name: &str| {
            let name = quoted(name);
            let begin = format!("{open}{{\"name\": {name}, \"{arguments}\": ");
            (quoted(&begin), quoted(&format!("}}{close}")))
        };
        let tools = self.tools.iter().enumerate();
        let tools = tools.filter(|(_, tool)| named(tool));
        let patterns = call_rule(tools, (around, |_| true), &mut rules)?;
        Ok((rules, patterns))
    }
}

#[cfg(test)]
#[path = "formats_tests.rs"]
mod tests;
