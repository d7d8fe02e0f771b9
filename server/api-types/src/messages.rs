//! Messages as clients send them, checked and reduced to the domain's.

use hone_domain::{Message, Role, ToolCall};
use serde_json::{Map, Value};

use super::content::Reader;
use crate::RequestError;
pub use hone_inference::template_message;

/// Parses all messages of a request; errors name the exact place.
pub fn parse_messages(
    wire: &[Value],
    messages_max: usize,
    reader: &mut Reader,
) -> Result<Vec<Message>, RequestError> {
    if wire.is_empty() {
        return Err(RequestError::invalid(
            "messages",
            "messages must hold at least one message",
        ));
    }
    if wire.len() > messages_max {
        return Err(RequestError::invalid(
            "messages",
            format!(
                "at most {messages_max} messages are taken (http.messages_max), not {}",
                wire.len()
            ),
        ));
    }
    let mut messages: Vec<Message> = Vec::with_capacity(wire.len());
    let newest_from = newest_from(wire.iter().map(|m| m.get("role").and_then(Value::as_str)));
    for (at, message) in wire.iter().enumerate() {
        reader.newest(at >= newest_from);
        let mut message = parse_message(at, &format!("messages[{at}]"), message, reader)?;
        if message.role == Role::Tool && message.tool_call_id.is_none() {
            message.tool_call_id = call_answered(&messages, message.name.as_deref());
        }
        messages.push(message);
    }
    Ok(messages)
}

/// Where the newest messages of a person begin, which nobody has answered. What follows a tool's result at
/// once may be from the tool.
pub fn newest_from<'a>(
    roles: impl DoubleEndedIterator<Item = Option<&'a str>> + ExactSizeIterator,
) -> usize {
    let count = roles.len();
    let mut before = roles.enumerate().rev();
    let last = before.find(|(_, role)| matches!(role, Some("assistant" | "tool" | "function")));
    match last {
        Some((at, Some("assistant"))) => at + 1,
        Some(_) => count,
        None => 0,
    }
}

/// The text of a predicted answer: its parts, one right behind the other.
pub fn parse_prediction(wire: Option<&Value>) -> Result<Option<String>, RequestError> {
    let Some(wire) = wire.filter(|wire| !wire.is_null()) else {
        return Ok(None);
    };
    let Some(fields) = wire.as_object() else {
        return Err(RequestError::invalid(
            "prediction",
            "prediction must be an object",
        ));
    };
    if fields.get("type").and_then(Value::as_str) != Some("content") {
        let why = "prediction.type must be \"content\"";
        return Err(RequestError::invalid("prediction.type", why));
    }
    match fields.get("content") {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let path = |at| format!("prediction.content[{at}]");
            let parts = parts.iter().enumerate();
            let mut reader = Reader::default();
            reader.newest(true);
            let texts = parts.map(|(at, part)| reader.one(&path(at), part));
            texts.collect::<Result<String, _>>().map(Some)
        }
        _ => Err(RequestError::invalid(
            "prediction.content",
            "prediction.content must be a string or an array of parts",
        )),
    }
}

/// The id of the older form's call that a result without an id answers: the only call of the message
/// before it, which has the result's name.
fn call_answered(before: &[Message], name: Option<&str>) -> Option<String> {
    let at = before.len().checked_sub(1)?;
    let call = before[at].tool_calls.first()?;
    let is_answered = call.id == older_call_id(at) && name.is_none_or(|name| name == call.name);
    is_answered.then(|| call.id.clone())
}

/// The id of a call in the older form, which has none. Nine characters, as some templates demand.
fn older_call_id(message_at: usize) -> String {
    format!("call{message_at:05}")
}

fn parse_message(
    at: usize,
    path: &str,
    wire: &Value,
    reader: &mut Reader,
) -> Result<Message, RequestError> {
    let Some(fields) = wire.as_object() else {
        return Err(RequestError::invalid(
            path,
            format!("{path} must be an object"),
        ));
    };
    let role = parse_role(path, fields.get("role"))?;
    let mut tool_calls = parse_calls(path, fields)?;
    if tool_calls.is_empty() {
        tool_calls.extend(older_call(at, path, fields)?);
    }
    let content_at = format!("{path}.content");
    let content = match role {
        Role::Tool => Some(reader.output(&content_at, fields.get("content"))?),
        _ => reader.text(&content_at, fields.get("content"))?,
    };
    let content = match content {
        Some(text) => text,
        // An assistant that only called a tool, or refused, comes back without content.
        None if role == Role::Assistant => {
            optional_text(path, "refusal", fields)?.unwrap_or_default()
        }
        None => {
            return Err(RequestError::invalid(
                format!("{path}.content"),
                format!(
                    "{path}.content is missing; only assistant and tool messages may leave it out"
                ),
            ));
        }
    };
    Ok(Message {
        role,
        content,
        name: optional_text(path, "name", fields)?,
        tool_calls,
        tool_call_id: optional_text(path, "tool_call_id", fields)?,
        failed: failed(role, fields),
    })
}

fn parse_role(path: &str, role: Option<&Value>) -> Result<Role, RequestError> {
    let word = role.and_then(Value::as_str).ok_or_else(|| {
        RequestError::invalid(
            format!("{path}.role"),
            format!("{path}.role is missing or not a string"),
        )
    })?;
    match word {
        "system" => Ok(Role::System),
        "developer" => Ok(Role::Developer),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "tool" | "function" => Ok(Role::Tool),
        other => Err(RequestError::invalid(
            format!("{path}.role"),
            format!(
                "{path}.role must be system, developer, user, assistant or tool, not {other:?}"
            ),
        )),
    }
}

fn optional_text(
    path: &str,
    name: &str,
    fields: &Map<String, Value>,
) -> Result<Option<String>, RequestError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(RequestError::invalid(
            format!("{path}.{name}"),
            format!("{path}.{name} must be a string"),
        )),
    }
}

/// Whether a tool's result says that its call failed: no field of the API, but some clients have one.
fn failed(role: Role, fields: &Map<String, Value>) -> Option<bool> {
    let names = ["is_error", "isError"];
    let said = names.iter().find_map(|name| fields.get(*name)?.as_bool());
    said.filter(|_| role == Role::Tool)
}

fn parse_calls(path: &str, fields: &Map<String, Value>) -> Result<Vec<ToolCall>, RequestError> {
    let path = format!("{path}.tool_calls");
    let calls = match fields.get("tool_calls") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(calls)) => calls,
        Some(_) => {
            return Err(RequestError::invalid(
                &path,
                format!("{path} must be an array"),
            ));
        }
    };
    calls
        .iter()
        .enumerate()
        .map(|(at, call)| {
            let id = call.get("id").and_then(Value::as_str).unwrap_or_default();
            if let Some(custom) = call.get("custom").filter(|custom| custom.is_object()) {
                return parse_custom(&format!("{path}[{at}].custom"), id, custom);
            }
            let path = format!("{path}[{at}].function");
            parse_call(&path, id, call.get("function").unwrap_or(&Value::Null))
        })
        .collect()
}

/// A call of a tool that takes a text.
fn parse_custom(path: &str, id: &str, custom: &Value) -> Result<ToolCall, RequestError> {
    let input = custom
        .get("input")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut call = parse_call(path, id, custom)?;
    call.arguments = super::foreign::of_input(input);
    Ok(call)
}

/// The call in `function_call`, the form before `tool_calls`.
fn older_call(
    at: usize,
    path: &str,
    fields: &Map<String, Value>,
) -> Result<Option<ToolCall>, RequestError> {
    let call = fields.get("function_call").filter(|call| !call.is_null());
    let path = format!("{path}.function_call");
    call.map(|call| parse_call(&path, &older_call_id(at), call))
        .transpose()
}

/// A call of the function at `path`: its name and its arguments.
fn parse_call(path: &str, id: &str, function: &Value) -> Result<ToolCall, RequestError> {
    let name = function.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| {
        let path = format!("{path}.name");
        let message = format!("{path} is missing or not a string; every call needs one");
        RequestError::invalid(path, message)
    })?;
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        // Some clients send the parsed object.
        Some(other) => other.to_string(),
    };
    Ok(ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments,
    })
}
