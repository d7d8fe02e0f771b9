//! Messages as chat templates read them.

use std::sync::Arc;

use hone_domain::{Message, Role, ToolCall};
use serde_json::{Value, json};

/// Messages for the template. Leading system and developer messages become one, because many
/// templates read only the first. `recorded` names assistant messages by their place, with the
/// texts that were sampled: they stand in the prompt as they were.
pub(super) fn template_messages(
    messages: &[Message],
    recorded: &[(usize, Arc<str>)],
) -> Vec<Value> {
    let is_system = |m: &&Message| matches!(m.role, Role::System | Role::Developer);
    let leading = messages.iter().take_while(is_system).count();
    let merged = (leading > 1).then(|| {
        let texts: Vec<&str> = messages[..leading]
            .iter()
            .map(|m| m.content.as_str())
            .collect();
        template_message(&Message::text(Role::System, texts.join("\n\n")))
    });
    let from = if merged.is_some() { leading } else { 0 };
    let rest = messages.iter().enumerate().skip(from).map(|(at, message)| {
        match recorded.iter().find(|(place, _)| *place == at) {
            Some((_, text)) => template_message(&Message::text(message.role, &**text)),
            None => template_message(message),
        }
    });
    merged.into_iter().chain(rest).collect()
}

/// A message as chat templates read it. Developer instructions become system ones, which every
/// template knows; call arguments are parsed where they are JSON.
pub fn template_message(message: &Message) -> Value {
    let role = match message.role {
        Role::Developer => Role::System,
        role => role,
    };
    let mut value = json!({ "role": role.as_str(), "content": message.content });
    let Some(fields) = value.as_object_mut() else {
        return value;
    };
    if let Some(name) = &message.name {
        fields.insert("name".to_owned(), json!(name));
    }
    if let Some(id) = &message.tool_call_id {
        fields.insert("tool_call_id".to_owned(), json!(id));
    }
    if !message.tool_calls.is_empty() {
        let calls: Vec<Value> = message.tool_calls.iter().map(template_call).collect();
        fields.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    value
}

fn template_call(call: &ToolCall) -> Value {
    let arguments = serde_json::from_str::<Value>(&call.arguments)
        .ok()
        .filter(Value::is_object)
        .unwrap_or_else(|| Value::String(call.arguments.clone()));
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": arguments },
    })
}
