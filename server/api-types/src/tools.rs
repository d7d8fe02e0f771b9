//! The tools an answer is about: `tools`, `tool_choice` and `parallel_tool_calls`, and the grammar of
//! the calls.

use std::collections::HashSet;

use hone_domain::{CALL_CLOSE, CALL_OPEN, CallStyle, FUNCTION_CLOSE, FUNCTION_OPEN};
use serde_json::{Map, Value, json};

use super::formats::{Rule, quoted};
use super::parameters::{self, How, SaidRoom};
use super::schema::{Room, call_space, fitted, read_schema, schema_text};
use crate::RequestError;
use hone_inference::{Calls, Loose, Pattern, Shape};

/// Most tools of one request.
const TOOLS_MAX: usize = 512;
/// Most calls of one answer that is held to calls.
const CALLS_MAX: usize = 16;

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
    pub fn parse(choice: Option<&Value>) -> Result<(Self, Option<Vec<String>>), RequestError> {
        let wrong = || {
            RequestError::invalid(
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
    /// Where each stands in the request.
    pub places: Vec<usize>,
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

/// The rules of the calls of some tools.
#[derive(Default)]
struct CallRules {
    text: String,
    patterns: Vec<Pattern>,
    loose: Loose,
    room: Room,
    /// Where arguments are texts between tags.
    said: Option<SaidRoom>,
}

/// What the arguments of a tool's calls follow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follows {
    /// Its schema, to the letter.
    Strictly,
    /// Its schema, as far as that can be followed.
    Loosely,
    /// Nothing but that they are an object.
    Nothing,
}

/// Any object.
fn any_arguments() -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), json!("object"))])
}

/// What stands around arguments that are texts between tags, within what opens and closes the call.
fn said_around(name: &str, open: &str, close: &str) -> (String, String) {
    let begin = quoted(&format!("{open}{FUNCTION_OPEN}{name}>"));
    (
        format!("{begin} LINE?"),
        quoted(&format!("{FUNCTION_CLOSE}{close}")),
    )
}

/// A schema in a grammar.
fn json_text(schema: &str) -> String {
    format!("%json {schema}")
}

/// A tool's schema as one of objects, which arguments always are. None where it allows no object.
fn arguments_schema(
    param: &str,
    schema: Option<&Value>,
) -> Result<Option<Map<String, Value>>, RequestError> {
    let Some(schema) = schema.filter(|schema| !schema.is_null()) else {
        return Ok(Some(any_arguments()));
    };
    let mut schema = read_schema(param, schema)?;
    let allows_objects = match schema.get("type") {
        None | Some(Value::Null) => true,
        Some(Value::Array(types)) => types.contains(&json!("object")),
        Some(one) => *one == json!("object"),
    };
    // It may stand beside a reference or a choice as well.
    schema.insert("type".to_owned(), json!("object"));
    Ok(allows_objects.then_some(schema))
}

impl CallRules {
    /// Of calls in the words of a family, with the rules before them.
    fn new(text: String, style: CallStyle) -> Self {
        let said = style == CallStyle::Parameters;
        let mut rules = Self {
            text,
            said: said.then(SaidRoom::default),
            ..Self::default()
        };
        rules.loose.arguments = match said {
            true => "any".to_owned(),
            false => json_text(&schema_text("", any_arguments(), call_space()).0),
        };
        if said {
            rules.text.push_str(&parameters::rules());
        }
        rules
    }

    /// Adds the arguments of the tool at a place of the request, which are texts between tags.
    fn said_arguments(
        &mut self,
        at: usize,
        tool: &Value,
        follows: Follows,
        said: &mut SaidRoom,
    ) -> Result<(), RequestError> {
        let param = format!("tools[{at}].function.parameters");
        let schema = match follows {
            Follows::Nothing => None,
            _ => tool.pointer("/function/parameters"),
        };
        let how = How {
            strictly: follows == Follows::Strictly,
            room: &mut self.room,
            said,
        };
        match parameters::arguments(&param, schema, how) {
            Ok(arguments) => {
                self.patterns.extend(arguments.patterns);
                self.text.push_str(&Loose::rule(at, &arguments.rule));
            }
            Err(error) if follows == Follows::Strictly => return Err(error),
            Err(_) => self.text.push_str(&Loose::rule(at, &self.loose.arguments)),
        }
        if follows == Follows::Loosely {
            self.loose.tools.push(at);
        }
        Ok(())
    }

    /// Adds the arguments of the tool at a place of the request.
    fn arguments(&mut self, at: usize, tool: &Value, follows: Follows) -> Result<(), RequestError> {
        if let Some(mut said) = self.said.take() {
            let added = self.said_arguments(at, tool, follows, &mut said);
            self.said = Some(said);
            return added;
        }
        let param = format!("tools[{at}].function.parameters");
        let schema = match follows {
            Follows::Nothing => Some(any_arguments()),
            _ => arguments_schema(&param, tool.pointer("/function/parameters"))?,
        };
        let schema = schema.map(|schema| fitted(&param, schema, &mut self.room));
        let schema = match (schema, follows) {
            (Some(Ok(schema)), _) => schema,
            (Some(Err(error)), Follows::Strictly) => return Err(error),
            (None, Follows::Strictly) => {
                let message = format!("{param} must be a schema of objects, as arguments are one");
                return Err(RequestError::invalid(param, message));
            }
            (Some(Err(_)) | None, _) => any_arguments(),
        };
        let mut options = call_space();
        if follows == Follows::Loosely {
            options["lenient"] = json!(true);
            self.loose.tools.push(at);
        }
        let (schema, patterns) = schema_text(&param, schema, options);
        self.patterns.extend(patterns);
        self.text.push_str(&Loose::rule(at, &json_text(&schema)));
        Ok(())
    }

    /// Adds the rule `call`, a call of one of the tools: what stands `around` the arguments of a tool of
    /// that name, and what these follow.
    fn call<'a>(
        &mut self,
        tools: impl Iterator<Item = (usize, &'a Value)>,
        around: impl Fn(&str) -> (String, String),
        follows: fn(&Value) -> Follows,
    ) -> Result<(), RequestError> {
        let mut names = Vec::new();
        for (at, tool) in tools {
            let (before, behind) = around(name_of(tool));
            let rule = format!("call{at}: {before} args{at} {behind}\n");
            self.text.push_str(&rule);
            self.arguments(at, tool, follows(tool))?;
            names.push(format!("call{at}"));
        }
        self.text
            .push_str(&format!("call: {}\n", names.join(" | ")));
        Ok(())
    }

    /// The form of an answer with these rules.
    fn shape(self, param: &str, calls: Calls) -> Result<Option<Shape>, RequestError> {
        let rule = Rule {
            patterns: self.patterns,
            loose: self.loose,
            calls,
            ..Rule::new(param, self.text)
        };
        rule.shape().map(Some)
    }
}

impl Offer {
    /// Of a request; none where the model is shown no tools.
    pub fn of(
        tools: &[Value],
        choice: Option<&Value>,
        parallel: Option<bool>,
    ) -> Result<Option<Self>, RequestError> {
        if tools.len() > TOOLS_MAX {
            let message = format!("at most {TOOLS_MAX} tools are taken");
            return Err(RequestError::invalid("tools", message));
        }
        let (choice, allowed) = ToolChoice::parse(choice)?;
        let known: HashSet<&str> = tools.iter().map(name_of).collect();
        let named = match &choice {
            ToolChoice::Named(name) => std::slice::from_ref(name),
            _ => allowed.as_deref().unwrap_or_default(),
        };
        if let Some(unknown) = named.iter().find(|name| !known.contains(name.as_str())) {
            let message = format!("tool_choice names {unknown:?}, which is not in tools");
            return Err(RequestError::invalid("tool_choice", message));
        }
        let allowed: Option<HashSet<&str>> = allowed
            .as_ref()
            .map(|all| all.iter().map(String::as_str).collect());
        let is_allowed = |(_, tool): &(usize, &Value)| {
            allowed
                .as_ref()
                .is_none_or(|all| all.contains(name_of(tool)))
        };
        let shown = tools.iter().enumerate().filter(is_allowed);
        let (places, shown): (Vec<usize>, Vec<Value>) =
            shown.map(|(at, tool)| (at, tool.clone())).unzip();
        if shown.is_empty() {
            return match choice {
                ToolChoice::Auto | ToolChoice::None => Ok(None),
                _ => Err(RequestError::invalid(
                    "tool_choice",
                    "tool_choice demands a call, and there are no tools",
                )),
            };
        }
        let single = parallel == Some(false) || matches!(choice, ToolChoice::Named(_));
        Ok((choice != ToolChoice::None).then_some(Self {
            tools: shown,
            places,
            choice,
            single,
        }))
    }

    /// Whether its tools alone may hold an answer to a form.
    pub fn is_held(&self) -> bool {
        self.choice != ToolChoice::Auto || self.tools.iter().any(is_strict)
    }

    /// The form of an answer with these tools, where it also has to be of the form `other`.
    pub fn shape(
        &self,
        style: Option<CallStyle>,
        other: Option<Shape>,
    ) -> Result<Option<Shape>, RequestError> {
        let demanded = !matches!(self.choice, ToolChoice::Auto);
        if !demanded && other.is_none() {
            return self.strict_calls(style);
        }
        let Some(style) = style else {
            return match demanded {
                false => Ok(other),
                true => Err(RequestError::unsupported(
                    "tool_choice",
                    "this model's chat template teaches no form of calls that is known here, so \
                     none can be demanded; use tool_choice auto",
                )),
            };
        };
        let mut rules = self.call_rules(style)?;
        let param = match (demanded, other) {
            (true, _) => {
                rules.text.push_str("answer: calls\n");
                "tools".to_owned()
            }
            (false, Some(other)) if !other.is_own => {
                rules.text.push_str("answer: calls | content\n");
                let content = other.rules.replacen("answer:", "content:", 1);
                rules.text.push_str(&content);
                rules.patterns.extend(other.patterns);
                other.param
            }
            (false, other) => return Ok(other),
        };
        rules.shape(&param, Calls::Within)
    }

    /// The tools, each with its place in the request.
    fn placed(&self) -> impl Iterator<Item = (usize, &Value)> {
        self.places.iter().copied().zip(&self.tools)
    }

    /// The form of calls that the model is free to make, where a function's definition is strict. Only
    /// what a tag opens can be told from the rest of an answer.
    fn strict_calls(&self, style: Option<CallStyle>) -> Result<Option<Shape>, RequestError> {
        let style = style.filter(|style| *style != CallStyle::Json);
        let Some(style) = style.filter(|_| self.tools.iter().any(is_strict)) else {
            return Ok(None);
        };
        let close = quoted(CALL_CLOSE);
        let text = format!("start: GAP? call GAP? {close}\nGAP: /[ \\n]{{1,4}}/\nSPACE: \" \"\n");
        let mut rules = CallRules::new(text, style);
        let around = |name: &str| {
            if style == CallStyle::Parameters {
                return said_around(name, "", "");
            }
            let name = format!("{},", quoted(name));
            let [open, name, key] = ["{\"name\":", &name, "\"arguments\":"].map(quoted);
            let before = format!("{open} SPACE? {name} SPACE? {key} SPACE?");
            (before, quoted("}"))
        };
        rules.call(self.placed(), around, |tool| match is_strict(tool) {
            true => Follows::Strictly,
            false => Follows::Nothing,
        })?;
        rules.shape("tools", Calls::Alone(style))
    }

    /// Rules of `calls` in the words of the model's family.
    fn call_rules(&self, style: CallStyle) -> Result<CallRules, RequestError> {
        let named = |(_, tool): &(usize, &Value)| match &self.choice {
            ToolChoice::Named(name) => name_of(tool) == name,
            _ => true,
        };
        let (open, close, between, arguments) = match style {
            CallStyle::Tags | CallStyle::Parameters => (
                format!("{CALL_OPEN}\n"),
                format!("\n{CALL_CLOSE}"),
                "\n",
                "arguments",
            ),
            CallStyle::Json => (String::new(), String::new(), "; ", "parameters"),
        };
        let text = match self.single {
            true => "calls: call\n".to_owned(),
            false => format!(
                "calls: call ({} call){{0,{}}}\n",
                quoted(between),
                CALLS_MAX - 1
            ),
        };
        let mut rules = CallRules::new(text, style);
        let around = |name: &str| {
            if style == CallStyle::Parameters {
                return said_around(name, &open, &close);
            }
            let name = quoted(name);
            let begin = format!("{open}{{\"name\": {name}, \"{arguments}\": ");
            (quoted(&begin), quoted(&format!("}}{close}")))
        };
        let tools = self.placed().filter(named);
        rules.call(tools, around, |tool| match is_strict(tool) {
            true => Follows::Strictly,
            false => Follows::Loosely,
        })?;
        Ok(rules)
    }
}

#[cfg(test)]
#[path = "parameters_tests.rs"]
mod parameters_tests;
#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
