//! The body of `POST /v1/responses`, reduced to a conversation.

use hone_domain::{Message, Role, ToolCall};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::http::error::ApiError;
use crate::http::wire::body::JsonObject;
use crate::http::wire::formats::ShapeFields;
use crate::http::wire::messages::{parse_content, parse_text};
use crate::http::wire::openai::StreamOptions;
use crate::http::wire::sampling::SamplingFields;
use crate::http::wire::session::SessionFields;
use crate::http::wire::wishes::{Wish, without_effect, word_in};

/// A request for a response. Null counts as absent for every optional field.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ResponsesRequest {
    /// What is asked.
    #[serde(flatten)]
    pub response: ResponseFields,
    /// Sampling and stopping.
    #[serde(flatten)]
    pub sampling: SamplingFields,
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
    (
        "context_management",
        "messages are never left out here without a word",
    ),
    ("image", "this server answers in text only"),
    ("moderation", "this server moderates nothing"),
    ("access_programs", "this server has none"),
];
/// What `include` may name besides log-probs: things that this server's responses never hold.
const INCLUDE: &str = "message.output_text.logprobs";

impl ResponsesRequest {
    /// Reads a body; the names of its unknown fields come with it.
    pub fn from_object(mut object: JsonObject) -> Result<(Self, Vec<String>), ApiError> {
        let request = Self {
            response: object.read()?,
            sampling: object.read()?,
            session: object.read()?,
        };
        for (name, why) in REFUSED {
            let empty = [json!(false), json!([]), json!({})];
            if object.get(name).is_some_and(|v| !empty.contains(v)) {
                let message = format!("`{name}` is not supported: {why}");
                return Err(ApiError::unsupported(*name, message));
            }
        }
        if request
            .response
            .truncation
            .as_deref()
            .is_some_and(|t| t != "disabled")
        {
            return Err(ApiError::unsupported(
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
    pub fn wishes(&self) -> Result<(Wish<'_>, Wish<'_>), ApiError> {
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

    /// The tools, as chat templates know them.
    pub fn chat_tools(&self) -> Result<Vec<Value>, ApiError> {
        let tools = self.response.tools.iter().flatten().enumerate();
        tools
            .map(|(at, tool)| chat_tool(&format!("tools[{at}]"), tool))
            .collect()
    }

    /// The messages of this request, without those of the response it continues.
    pub fn messages(&self, messages_max: usize) -> Result<Vec<Message>, ApiError> {
        let items = match &self.response.input {
            Value::String(text) => return Ok(vec![Message::text(Role::User, text)]),
            Value::Array(items) => items,
            _ => {
                return Err(ApiError::invalid(
                    "input",
                    "input must be a text or an array of items",
                ));
            }
        };
        if items.is_empty() || items.len() > messages_max {
            return Err(ApiError::invalid(
                "input",
                format!("input must hold 1 to {messages_max} items (http.messages_max)"),
            ));
        }
        let mut messages = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            push_item(&format!("input[{at}]"), item, &mut messages)?;
        }
        Ok(messages)
    }
}

fn chat_tool(path: &str, tool: &Value) -> Result<Value, ApiError> {
    let kind = tool
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or("function");
    if kind != "function" {
        return Err(ApiError::unsupported(
            format!("{path}.type"),
            format!("tools of type {kind:?} are not run here; only functions are supported"),
        ));
    }
    let name = tool.get("name").and_then(Value::as_str);
    let name = name
        .filter(|name| !name.is_empty())
        .ok_or_else(|| ApiError::invalid(format!("{path}.name"), "every function needs a name"))?;
    let mut function = json!({"name": name});
    for field in ["description", "parameters", "strict"] {
        if let Some(value) = tool.get(field).filter(|v| !v.is_null()) {
            function[field] = value.clone();
        }
    }
    Ok(json!({"type": "function", "function": function}))
}

fn text_of<'a>(path: &str, item: &'a Value, name: &str) -> Result<&'a str, ApiError> {
    item.get(name).and_then(Value::as_str).ok_or_else(|| {
        ApiError::invalid(
            format!("{path}.{name}"),
            format!("{path}.{name} must be a string"),
        )
    })
}

fn push_item(path: &str, item: &Value, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let kind = item.get("type").and_then(Value::as_str);
    match kind.unwrap_or("message") {
        "message" => {
            let role = match text_of(path, item, "role")? {
                "user" => Role::User,
                "assistant" => Role::Assistant,
                "system" => Role::System,
                "developer" => Role::Developer,
                other => {
                    return Err(ApiError::invalid(
                        format!("{path}.role"),
                        format!(
                            "{path}.role must be user, assistant, system or developer, not {other:?}"
                        ),
                    ));
                }
            };
            let content = parse_content(path, item.get("content"))?.ok_or_else(|| {
                ApiError::invalid(
                    format!("{path}.content"),
                    format!("{path}.content is missing"),
                )
            })?;
            messages.push(Message::text(role, content));
        }
        "function_call" => {
            let call = ToolCall {
                id: text_of(path, item, "call_id")?.to_owned(),
                name: text_of(path, item, "name")?.to_owned(),
                arguments: text_of(path, item, "arguments")?.to_owned(),
            };
            // Text and calls of one answer come as items of their own.
            match messages.last_mut() {
                Some(last) if last.role == Role::Assistant => last.tool_calls.push(call),
                _ => messages.push(Message {
                    tool_calls: vec![call],
                    ..Message::text(Role::Assistant, "")
                }),
            }
        }
        "function_call_output" => {
            let output = match item.get("output") {
                Some(Value::String(text)) => text.clone(),
                other => parse_text(&format!("{path}.output"), other)?.unwrap_or_default(),
            };
            messages.push(Message {
                tool_call_id: Some(text_of(path, item, "call_id")?.to_owned()),
                ..Message::text(Role::Tool, output)
            });
        }
        // What the model thought is not put before it again.
        "reasoning" => {}
        other => {
            return Err(ApiError::unsupported(
                format!("{path}.type"),
                format!(
                    "items of type {other:?} are not supported; send messages, function calls and \
                     their outputs"
                ),
            ));
        }
    }
    Ok(())
}
