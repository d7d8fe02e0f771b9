//! The body of `POST /v1/messages`, reduced to a conversation.

use hone_domain::{Message, Role, ToolCall};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::JsonObject;
use crate::RequestError;
use crate::capture::CaptureFields;
use crate::content::Reader;
use crate::foreign::Functions;
use crate::formats::ShapeFields;
use crate::messages::newest_from;
use crate::sampling::SamplingFields;
use crate::session::SessionFields;
use crate::wishes::{Wish, without_effect, word_in};

/// A request for a message. Null counts as absent for every optional field.
#[derive(Debug, Deserialize, ToSchema)]
pub struct MessagesRequest {
    /// What is asked.
    #[serde(flatten)]
    pub message: MessageFields,
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

/// Fields that only messages have.
#[derive(Debug, Deserialize, ToSchema)]
pub struct MessageFields {
    /// A name that `GET /v1/models` lists.
    pub model: String,
    /// The conversation so far, by turns of `user` and `assistant`.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Value>,
    /// Instructions: a text or blocks of text.
    pub system: Option<Value>,
    /// Most tokens to sample; required, but for counting.
    pub max_tokens: Option<i64>,
    /// Whether to send events.
    pub stream: Option<bool>,
    /// Up to 16 texts that end the message.
    pub stop_sequences: Option<Vec<String>>,
    /// Functions the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `any`, `none`, or `tool` with a name.
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Map<String, Value>>,
    /// The form of the answer, in `output_config.format`.
    #[schema(value_type = Option<Object>)]
    pub output_config: Option<Map<String, Value>>,
    /// `enabled` and `disabled` reach the model's template as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    pub thinking: Option<Map<String, Value>>,
    /// Variables for the model's chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

impl MessageFields {
    fn output_part(&self, name: &str) -> Option<&Value> {
        let part = self.output_config.as_ref().and_then(|c| c.get(name));
        part.filter(|part| !part.is_null())
    }
}

/// Fields that are known and cannot work here.
const REFUSED: &[(&str, &str)] = &[
    ("mcp_servers", "this server connects to no tools by itself"),
    ("container", "this server runs no code"),
    ("compaction", "conversations are not summarised here"),
    ("thread", "use `session_id`; the messages are sent whole"),
    ("fallbacks", "no other model answers in place of this one"),
    (
        "inference_geo",
        "this server cannot promise a place; it runs where it was started",
    ),
];

impl MessagesRequest {
    /// Reads a body; the names of its unknown fields come with it.
    pub fn from_object(mut object: JsonObject) -> Result<(Self, Vec<String>), RequestError> {
        let request = Self {
            message: object.read()?,
            sampling: object.read()?,
            capture: object.read()?,
            session: object.read()?,
        };
        for (name, why) in REFUSED {
            let wanted = object
                .get(name)
                .is_some_and(|v| *v != json!([]) && *v != json!({}));
            if wanted {
                let message = format!("`{name}` is not supported: {why}");
                return Err(RequestError::unsupported(*name, message));
            }
        }
        if request.message.output_part("task_budget").is_some() {
            return Err(RequestError::unsupported(
                "output_config.task_budget",
                "`output_config.task_budget` is not supported: use max_tokens",
            ));
        }
        let ignored = [object.unknown(), request.without_effect()].concat();
        Ok((request, ignored))
    }

    /// Parts of known fields that have no effect here.
    fn without_effect(&self) -> Vec<String> {
        let fields = &self.message;
        let output = ("output_config", fields.output_config.as_ref());
        let mut names = without_effect(output, &["format", "effort"]);
        let thinking = ("thinking", fields.thinking.as_ref());
        names.extend(without_effect(thinking, &["type"]));
        names
    }

    /// Wishes about reasoning; there is none about verbosity.
    pub fn wishes(&self) -> Result<(Wish<'_>, Wish<'_>), RequestError> {
        let output = ("output_config.effort", self.message.output_config.as_ref());
        Ok(((output.0, word_in(output, "effort")?), ("verbosity", None)))
    }

    /// The form of the answer.
    pub fn shape_fields(&self) -> ShapeFields {
        let format = self.message.output_part("format");
        let response_format = format.map(|format| {
            json!({
                "type": format.get("type"),
                "json_schema": {"name": "output", "schema": format.get("schema")},
            })
        });
        ShapeFields {
            response_format,
            format_at: Some("output_config.format"),
            ..ShapeFields::default()
        }
    }

    /// The tools as functions. Those that a provider's server would run are left out.
    pub fn functions(&self, reader: &mut Reader) -> Result<Functions, RequestError> {
        let mut functions = Functions::default();
        for (at, tool) in self.message.tools.iter().flatten().enumerate() {
            let path = format!("tools[{at}]");
            match tool.get("type").and_then(Value::as_str) {
                None | Some("custom") => {
                    let mut tool = tool.clone();
                    if let Some(schema) = tool.get("input_schema").cloned() {
                        tool["parameters"] = schema;
                    }
                    functions.plain(&path, &tool)?;
                }
                Some(_) => reader.leave_out(&format!("{path}.type")),
            }
        }
        Ok(functions)
    }

    /// The tool choice as chat requests write it, and whether calls may come in parallel.
    pub fn chat_choice(&self) -> Result<(Option<Value>, Option<bool>), RequestError> {
        let Some(choice) = &self.message.tool_choice else {
            return Ok((None, None));
        };
        let single = choice
            .get("disable_parallel_tool_use")
            .and_then(Value::as_bool);
        let parallel = single.map(|single| !single);
        let chat = match choice.get("type").and_then(Value::as_str) {
            Some("auto") => json!("auto"),
            Some("none") => json!("none"),
            Some("any") => json!("required"),
            Some("tool") => json!({"type": "function", "name": choice.get("name")}),
            _ => {
                return Err(RequestError::invalid(
                    "tool_choice.type",
                    "tool_choice.type must be auto, any, none or tool",
                ));
            }
        };
        Ok((Some(chat), parallel))
    }

    /// Variables of the template.
    pub fn template(&self) -> Map<String, Value> {
        let mut variables = self
            .message
            .chat_template_kwargs
            .clone()
            .unwrap_or_default();
        let thinking = self.message.thinking.as_ref().and_then(|t| t.get("type"));
        match thinking.and_then(Value::as_str) {
            Some("disabled") => variables.insert("enable_thinking".to_owned(), json!(false)),
            Some(_) => variables.insert("enable_thinking".to_owned(), json!(true)),
            None => None,
        };
        variables
    }

    /// The conversation, instructions first.
    pub fn messages(
        &self,
        messages_max: usize,
        reader: &mut Reader,
    ) -> Result<Vec<Message>, RequestError> {
        let wire = &self.message.messages;
        if wire.is_empty() || wire.len() > messages_max {
            return Err(RequestError::invalid(
                "messages",
                format!("messages must hold 1 to {messages_max} messages (http.messages_max)"),
            ));
        }
        let mut all = Vec::with_capacity(wire.len() + 1);
        reader.newest(true);
        if let Some(text) = reader.text("system", self.message.system.as_ref())? {
            all.push(Message::text(Role::System, text));
        }
        let newest_from = newest_from(wire.iter().map(role_said));
        for (at, message) in wire.iter().enumerate() {
            reader.newest(at >= newest_from);
            push_message(&format!("messages[{at}]"), message, reader, &mut all)?;
        }
        if all.last().is_some_and(|last| last.role == Role::Assistant) {
            return Err(RequestError::unsupported(
                "messages",
                "the last message must be the user's; an answer is never continued from its \
                 beginning here",
            ));
        }
        Ok(all)
    }
}

/// Who says a message; a tool, where it has the result of one.
fn role_said(message: &Value) -> Option<&str> {
    let blocks = message.get("content").and_then(Value::as_array);
    let is_result = |block: &Value| block.get("type").is_some_and(|kind| kind == "tool_result");
    if blocks.is_some_and(|blocks| blocks.iter().any(is_result)) {
        return Some("tool");
    }
    message.get("role").and_then(Value::as_str)
}

fn push_message(
    path: &str,
    wire: &Value,
    reader: &mut Reader,
    all: &mut Vec<Message>,
) -> Result<(), RequestError> {
    let role = match wire.get("role").and_then(Value::as_str) {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        _ => {
            return Err(RequestError::invalid(
                format!("{path}.role"),
                format!("{path}.role must be user or assistant"),
            ));
        }
    };
    let blocks = match wire.get("content") {
        Some(Value::String(text)) => {
            all.push(Message::text(role, text));
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks,
        // An answer that was cancelled before its first word.
        None | Some(Value::Null) if role == Role::Assistant => {
            all.push(Message::text(role, ""));
            return Ok(());
        }
        _ => {
            return Err(RequestError::invalid(
                format!("{path}.content"),
                format!("{path}.content must be a text or an array of blocks"),
            ));
        }
    };
    let mut message = Message::text(role, "");
    let mut texts = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        let path = format!("{path}.content[{at}]");
        match block.get("type").and_then(Value::as_str).unwrap_or("text") {
            "tool_use" => message.tool_calls.push(tool_use(&path, block)?),
            "tool_result" => all.push(tool_result(&path, block, reader)?),
            // What the model thought is not put before it again.
            "thinking" | "redacted_thinking" => {}
            _ => texts.push(reader.one(&path, block)?),
        }
    }
    let only_results = texts.is_empty() && message.tool_calls.is_empty() && role == Role::User;
    if !only_results {
        message.content = texts.join("\n");
        all.push(message);
    }
    Ok(())
}

fn text_of(path: &str, block: &Value, name: &str) -> Result<String, RequestError> {
    let text = block.get(name).and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| {
        RequestError::invalid(
            format!("{path}.{name}"),
            format!("{path}.{name} must be a string"),
        )
    })
}

/// What Claude Code sends back in place of arguments that were no JSON.
const UNPARSED: &str = "__unparsedToolInput";

fn tool_use(path: &str, block: &Value) -> Result<ToolCall, RequestError> {
    let unparsed = block.pointer(&format!("/input/{UNPARSED}"));
    let arguments = match unparsed.or_else(|| block.get("input")) {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(fields)) if unparsed.is_some() => {
            let raw = ["raw", "text", "input", "json"];
            let raw = raw.iter().find_map(|name| fields.get(*name)?.as_str());
            raw.map_or_else(|| Value::from(fields.clone()).to_string(), str::to_owned)
        }
        Some(other) => other.to_string(),
    };
    Ok(ToolCall {
        id: text_of(path, block, "id")?,
        name: text_of(path, block, "name")?,
        arguments,
    })
}

fn tool_result(path: &str, block: &Value, reader: &mut Reader) -> Result<Message, RequestError> {
    let content = reader.output(&format!("{path}.content"), block.get("content"))?;
    let failed = block.get("is_error").and_then(Value::as_bool) == Some(true);
    let content = match failed && !content.to_ascii_lowercase().contains("error") {
        // Templates know no failed results; the word reaches the model.
        true => format!("Error: {content}"),
        false => content,
    };
    Ok(Message {
        tool_call_id: Some(text_of(path, block, "tool_use_id")?),
        failed: Some(failed),
        ..Message::text(Role::Tool, content)
    })
}
