//! The body of `POST /v1/responses`, reduced to a conversation.

use std::collections::HashMap;

use hone_domain::{Message, Role, ToolCall};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::JsonObject;
use crate::RequestError;
use crate::capture::CaptureFields;
use crate::content::Reader;
use crate::foreign::{Functions, joined, of_input};
use crate::formats::ShapeFields;
use crate::messages::newest_from;
use crate::openai::StreamOptions;
use crate::sampling::SamplingFields;
use crate::session::SessionFields;
use crate::wishes::{Wish, without_effect, word_in};

/// A request for a response. Null counts as absent for every optional field.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ResponsesRequest {
    /// What is asked.
    #[serde(flatten)]
    pub response: ResponseFields,
    /// Sampling and stopping.
    #[serde(flatten)]
    pub sampling: SamplingFields,
    /// What a trainer asks for besides.
    #[serde(flatten)]
    pub capture: CaptureFields,
    /// Whose, which session, what kind of turn.
    #[serde(flatten)]
    pub session: SessionFields,
}

/// Fields that only responses have.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ResponseFields {
    /// A name that `GET /v1/models` lists.
    pub model: String,
    /// A text, or items: messages, calls and their outputs.
    pub input: Value,
    /// Instructions of this response alone.
    pub instructions: Option<String>,
    /// The response that this one continues.
    pub previous_response_id: Option<String>,
    /// Whether to send events.
    pub stream: Option<bool>,
    /// Most tokens to sample.
    pub max_output_tokens: Option<i64>,
    /// Functions the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or an object that names a function or the allowed tools.
    pub tool_choice: Option<Value>,
    /// False ends the answer with its first call.
    pub parallel_tool_calls: Option<bool>,
    /// The form of the answer, in `text.format`.
    #[schema(value_type = Option<Object>)]
    pub text: Option<Map<String, Value>>,
    /// `message.output_text.logprobs` reports log-probs; the others add nothing.
    pub include: Option<Vec<String>>,
    /// How many alternatives to report per token.
    pub top_logprobs: Option<i64>,
    /// Only `disabled`: no message is left out without a word.
    pub truncation: Option<String>,
    /// How much to reason, in `reasoning.effort`, as chat's `reasoning_effort`.
    #[schema(value_type = Option<Object>)]
    pub reasoning: Option<Map<String, Value>>,
    /// Limits calls to tools that a server runs itself; there are none.
    pub max_tool_calls: Option<i64>,
    /// Events are not padded against listeners; `include_obfuscation: true` has no effect.
    pub stream_options: Option<StreamOptions>,
    /// Variables for the model's chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// Fields that are known and cannot work here.
const REFUSED: &[(&str, &str)] = &[
    (
        "background",
        "responses are answered while the client waits",
    ),
    ("conversation", "use `previous_response_id` or `session_id`"),
    (
        "prompt",
        "prompt templates are not kept here; send the messages",
    ),
    ("n", "a response has one answer; use /v1/chat/completions"),
    ("image", "this server answers in text only"),
    ("moderation", "this server moderates nothing"),
    ("access_programs", "this server has none"),
];
/// What `include` may name besides log-probs: things that this server's responses never hold.
const INCLUDE: &str = "message.output_text.logprobs";

impl ResponsesRequest {
    /// Reads a body; the names of its unknown fields come with it.
    pub fn from_object(mut object: JsonObject) -> Result<(Self, Vec<String>), RequestError> {
        let request = Self {
            response: object.read()?,
            sampling: object.read()?,
            capture: object.read()?,
            session: object.read()?,
        };
        for (name, why) in REFUSED {
            let empty = [json!(false), json!([]), json!({})];
            if object.get(name).is_some_and(|v| !empty.contains(v)) {
                let message = format!("`{name}` is not supported: {why}");
                return Err(RequestError::unsupported(*name, message));
            }
        }
        if request
            .response
            .truncation
            .as_deref()
            .is_some_and(|t| t != "disabled")
        {
            return Err(RequestError::unsupported(
                "truncation",
                "messages are never left out here without a word; send truncation disabled",
            ));
        }
        let ignored = [object.unknown(), request.without_effect()].concat();
        Ok((request, ignored))
    }

    /// Parts of known fields that have no effect here.
    fn without_effect(&self) -> Vec<String> {
        let fields = &self.response;
        let mut names = without_effect(("reasoning", fields.reasoning.as_ref()), &["effort"]);
        let text = ("text", fields.text.as_ref());
        names.extend(without_effect(text, &["format", "verbosity"]));
        let options = fields.stream_options.iter();
        names.extend(options.flat_map(StreamOptions::without_effect));
        let mut include = fields.include.iter().flatten();
        if include.any(|name| name != INCLUDE) {
            names.push("include".to_owned());
        }
        names
    }

    /// Wishes about reasoning and verbosity.
    pub fn wishes(&self) -> Result<(Wish<'_>, Wish<'_>), RequestError> {
        let reasoning = ("reasoning.effort", self.response.reasoning.as_ref());
        let text = ("text.verbosity", self.response.text.as_ref());
        Ok((
            (reasoning.0, word_in(reasoning, "effort")?),
            (text.0, word_in(text, "verbosity")?),
        ))
    }

    /// The form of the answer.
    pub fn shape_fields(&self) -> ShapeFields {
        let format = self
            .response
            .text
            .as_ref()
            .and_then(|text| text.get("format"));
        let response_format = format.filter(|f| !f.is_null()).map(|format| {
            match format.get("type").and_then(Value::as_str) {
                Some("json_schema") => json!({
                    "type": "json_schema",
                    "json_schema": {"name": format.get("name"), "schema": format.get("schema")},
                }),
                _ => format.clone(),
            }
        });
        ShapeFields {
            response_format,
            format_at: Some("text.format"),
            ..ShapeFields::default()
        }
    }

    /// Whether log-probs are reported.
    pub fn wants_logprobs(&self) -> bool {
        let include = self.response.include.iter().flatten();
        let mut named = include.map(String::as_str);
        named.any(|name| name == INCLUDE) || self.response.top_logprobs.is_some_and(|n| n > 0)
    }

    /// The tools as functions. What cannot run here is left out.
    pub fn functions(&self, reader: &mut Reader) -> Result<Functions, RequestError> {
        let mut functions = Functions::default();
        for (at, tool) in self.response.tools.iter().flatten().enumerate() {
            let path = format!("tools[{at}]");
            match tool.get("type").and_then(Value::as_str) {
                None | Some("function") => functions.plain(&path, tool)?,
                Some("custom") => functions.custom(&path, tool)?,
                Some("namespace") => functions.namespace(&path, tool, reader)?,
                Some(_) => reader.leave_out(&format!("{path}.type")),
            }
        }
        Ok(functions)
    }

    /// The tool choice by the names that the model is shown.
    pub fn choice(&self) -> Option<Value> {
        let mut choice = self.response.tool_choice.clone()?;
        let shown = |tool: &mut Value| {
            let name = tool.get("name").and_then(Value::as_str).map(str::to_owned);
            let space = tool.get("namespace").and_then(Value::as_str);
            if let Some(name) = name {
                tool["name"] = json!(joined(space, &name));
            }
        };
        if choice.get("type").is_some_and(|kind| kind == "custom") {
            choice["type"] = json!("function");
        }
        if let Some(tools) = choice.get_mut("tools").and_then(Value::as_array_mut) {
            tools.iter_mut().for_each(shown);
        }
        if choice.is_object() {
            shown(&mut choice);
        }
        Some(choice)
    }

    /// Ids of the stored items that the input names.
    pub fn references(&self) -> impl Iterator<Item = &str> {
        let items = self.response.input.as_array().into_iter().flatten();
        let named = items.filter(|item| kind_of(item) == "item_reference");
        named.filter_map(|item| item.get("id")?.as_str())
    }

    /// The messages of this request, without those of the response it continues.
    pub fn messages(
        &self,
        messages_max: usize,
        (reader, stored): (&mut Reader, &Stored),
    ) -> Result<Vec<Message>, RequestError> {
        let items = match &self.response.input {
            Value::String(text) => return Ok(vec![Message::text(Role::User, text)]),
            Value::Array(items) => items,
            _ => {
                return Err(RequestError::invalid(
                    "input",
                    "input must be a text or an array of items",
                ));
            }
        };
        if items.is_empty() || items.len() > messages_max {
            return Err(RequestError::invalid(
                "input",
                format!("input must hold 1 to {messages_max} items (http.messages_max)"),
            ));
        }
        let mut messages = Vec::with_capacity(items.len());
        let newest_from = newest_from(items.iter().map(role_said));
        for (at, item) in items.iter().enumerate() {
            reader.newest(at >= newest_from);
            let path = format!("input[{at}]");
            push_item(&path, item, reader, stored, &mut messages)?;
        }
        if messages.is_empty() {
            return Err(RequestError::invalid(
                "input",
                "input must hold a message; there are only items here that this server leaves out",
            ));
        }
        Ok(messages)
    }
}

/// Stored items by their ids.
pub type Stored = HashMap<String, StoredItem>;

/// An item of a stored response.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredItem {
    /// What was said.
    Said(String),
    /// A call.
    Call(ToolCall),
    /// Reasoning, which is not put before the model again.
    Reasoning,
}

fn kind_of(item: &Value) -> &str {
    let is_reference = item.get("role").is_none() && item.get("id").is_some_and(Value::is_string);
    match item.get("type").and_then(Value::as_str) {
        Some(kind) => kind,
        // The type of a reference may be left out.
        None if is_reference => "item_reference",
        None => "message",
    }
}

/// Who says an item, as far as it matters for what a person sent last.
fn role_said(item: &Value) -> Option<&str> {
    match kind_of(item) {
        "message" => item.get("role").and_then(Value::as_str),
        kind if kind.ends_with("_output") => Some("tool"),
        kind if kind.ends_with("_call") || kind == "item_reference" => Some("assistant"),
        _ => None,
    }
}

fn text_of<'a>(path: &str, item: &'a Value, name: &str) -> Result<&'a str, RequestError> {
    item.get(name).and_then(Value::as_str).ok_or_else(|| {
        RequestError::invalid(
            format!("{path}.{name}"),
            format!("{path}.{name} must be a string"),
        )
    })
}

/// Text and calls of one answer come as items of their own.
fn push_call(call: ToolCall, messages: &mut Vec<Message>) {
    match messages.last_mut() {
        Some(last) if last.role == Role::Assistant => last.tool_calls.push(call),
        _ => messages.push(Message {
            tool_calls: vec![call],
            ..Message::text(Role::Assistant, "")
        }),
    }
}

fn push_item(
    path: &str,
    item: &Value,
    reader: &mut Reader,
    stored: &Stored,
    messages: &mut Vec<Message>,
) -> Result<(), RequestError> {
    match kind_of(item) {
        "message" => messages.push(said(path, item, reader)?),
        "function_call" | "mcp_call" => {
            let call = function_call(text_of(path, item, "name")?, item);
            push_call(call, messages);
            // Calls that a server made itself have their output with them.
            if let Some(output) = item.get("output").filter(|output| !output.is_null()) {
                let output = reader.output(&format!("{path}.output"), Some(output))?;
                messages.push(result(call_id(item), output, None));
            }
        }
        "custom_tool_call" => {
            let space = item.get("namespace").and_then(Value::as_str);
            push_call(
                ToolCall {
                    id: call_id(item),
                    name: joined(space, text_of(path, item, "name")?),
                    arguments: of_input(text_of(path, item, "input")?),
                },
                messages,
            );
        }
        "item_reference" => match stored.get(text_of(path, item, "id")?) {
            Some(StoredItem::Said(text)) => messages.push(Message::text(Role::Assistant, text)),
            Some(StoredItem::Call(call)) => push_call(call.clone(), messages),
            Some(StoredItem::Reasoning) => {}
            None => {
                return Err(RequestError::invalid(
                    format!("{path}.id"),
                    "no such item of yours is known; responses with store false are not kept, so send \
                     their items whole",
                ));
            }
        },
        kind if kind.ends_with("_output") => {
            let output = item.get("output").or_else(|| item.get("tools"));
            let output = reader.output(&format!("{path}.output"), output)?;
            messages.push(result(call_id(item), output, failed(item)));
        }
        kind @ ("local_shell_call" | "shell_call" | "apply_patch_call" | "tool_search_call"
        | "computer_call") => push_call(own_call(kind, item), messages),
        // What the model thought is not put before it again.
        "reasoning" => {}
        _ => reader.leave_out(&format!("{path}.type")),
    }
    Ok(())
}

fn function_call(name: &str, item: &Value) -> ToolCall {
    let space = ["namespace", "server_label"];
    let space = space.iter().find_map(|name| item.get(*name)?.as_str());
    let arguments = match item.get("arguments") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    ToolCall {
        id: call_id(item),
        name: joined(space, name),
        arguments,
    }
}

/// A call that the client runs in a way of its own.
fn own_call(kind: &str, item: &Value) -> ToolCall {
    let parts = ["action", "arguments", "operation"];
    let action = parts.iter().find_map(|name| item.get(*name));
    ToolCall {
        id: call_id(item),
        name: kind.trim_end_matches("_call").to_owned(),
        arguments: action.map_or_else(|| "{}".to_owned(), Value::to_string),
    }
}

fn said(path: &str, item: &Value, reader: &mut Reader) -> Result<Message, RequestError> {
    let role = match text_of(path, item, "role")? {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        "developer" => Role::Developer,
        other => {
            return Err(RequestError::invalid(
                format!("{path}.role"),
                format!("{path}.role must be user, assistant, system or developer, not {other:?}"),
            ));
        }
    };
    let content = reader.text(&format!("{path}.content"), item.get("content"))?;
    let content = content.or_else(|| (role == Role::Assistant).then(String::new));
    let content = content.ok_or_else(|| {
        RequestError::invalid(
            format!("{path}.content"),
            format!("{path}.content is missing"),
        )
    })?;
    Ok(Message::text(role, content))
}

fn call_id(item: &Value) -> String {
    let id = item.get("call_id").or_else(|| item.get("id"));
    id.and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn result(id: String, output: String, failed: Option<bool>) -> Message {
    Message {
        tool_call_id: Some(id),
        failed,
        ..Message::text(Role::Tool, output)
    }
}

/// Whether a call's output says that it failed.
fn failed(item: &Value) -> Option<bool> {
    let flag = |name: &str| item.get(name).and_then(Value::as_bool);
    let success = flag("success").map(|success| !success);
    flag("is_error").or(success).or_else(|| {
        let status = item.get("status").and_then(Value::as_str)?;
        (status == "failed").then_some(true)
    })
}
