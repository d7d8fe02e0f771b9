//! Chat messages as clients send them, reduced to what learning and binding need.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::output::{ParsedOutput, worded};

/// Who speaks. `developer` is kept apart from `system` because clients re-send what they sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions of the operator.
    System,
    /// Instructions of the program's author.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

impl Role {
    /// The wire name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A tool call inside an assistant message; `arguments` is the JSON text as sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Client-visible call id; frameworks rewrite it, so it is never used for matching.
    pub id: String,
    /// Function name.
    pub name: String,
    /// JSON text of the arguments.
    pub arguments: String,
}

/// One chat message. Content parts are joined to one text before they get here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text; empty where the client sent null.
    pub content: String,
    /// Speaker name, where the client gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Calls made by an assistant message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Whether the call that a tool message answers failed, where its client says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<bool>,
}

impl Message {
    /// A message with text only.
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            name: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            failed: None,
        }
    }

    /// Hash of what the message means to a conversation: role, trimmed text, and each call's name
    /// with parsed arguments. Call ids are left out because clients rewrite them, and arguments
    /// are compared parsed because clients re-serialise them. An assistant's text counts by its
    /// [`ParsedOutput::meaning`], so a turn is found again whether a client sends back the text as it was
    /// sampled, or content and calls apart, with or without the reasoning.
    pub fn chain_hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.role.as_str());
        hash.update([0]);
        if self.role == Role::Assistant {
            let parsed = ParsedOutput::meaning(&self.content);
            hash.update(parsed.content.trim());
            for call in &parsed.calls {
                hash_call(&mut hash, &call.name, &call.arguments);
            }
        } else {
            hash.update(self.content.trim());
        }
        for call in &self.tool_calls {
            hash_call(&mut hash, &call.name, &call.arguments);
        }
        hash.finalize().into()
    }
}

/// So many bytes of arguments that are no JSON tell them from others.
const BROKEN_BYTES: usize = 1_024;

fn hash_call(hash: &mut Sha256, name: &str, arguments: &str) {
    hash.update([1]);
    hash.update(name);
    hash.update([2]);
    // No arguments are sent as nothing or as an empty object.
    let arguments = match arguments.trim() {
        "" => "{}",
        text => text,
    };
    match serde_json::from_str::<Value>(arguments) {
        Ok(value) => hash_json(hash, &as_said(value)),
        // Some clients send back the beginning only of what is no JSON.
        Err(_) => hash.update(&arguments[..arguments.floor_char_boundary(BROKEN_BYTES)]),
    }
}

/// Arguments, where texts that stand for other values are these. Some families say every argument as
/// text, and only the tool's schema tells which ones are text.
fn as_said(mut arguments: Value) -> Value {
    if let Value::Object(members) = &mut arguments {
        for value in members.values_mut() {
            if let Some(other) = value.as_str().and_then(worded) {
                *value = other;
            }
        }
    }
    arguments
}

/// Feeds a JSON value in a canonical form: object keys in order, numbers by their value.
fn hash_json(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            hash.update(b"{");
            for key in keys {
                hash.update(key);
                hash.update(b":");
                hash_json(hash, &map[key]);
            }
            hash.update(b"}");
        }
        Value::Array(items) => {
            hash.update(b"[");
            for item in items {
                hash_json(hash, item);
                hash.update(b",");
            }
            hash.update(b"]");
        }
        Value::Number(number) => match number.as_f64() {
            // 1.0 and 1 are one number to most clients.
            Some(n) if n.fract() == 0.0 && n.abs() < 9e15 => hash.update((n as i64).to_string()),
            _ => hash.update(number.to_string()),
        },
        other => hash.update(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, arguments: &str) -> Message {
        Message {
            tool_calls: vec![ToolCall {
                id: id.into(),
                name: "f".into(),
                arguments: arguments.into(),
            }],
            ..Message::text(Role::Assistant, "")
        }
    }

    #[test]
    fn a_turn_is_the_same_as_sampled_and_as_clients_send_it_back() {
        let sampled = |text: &str| Message::text(Role::Assistant, text).chain_hash();
        let raw = "<think>\nhm\n</think>\n\nLooking.\n<tool_call>\n{\"name\": \"f\", \
                   \"arguments\": {\"a\": 1}}\n</tool_call>";
        let apart = Message {
            content: "Looking.".into(),
            ..call("calla", r#"{"a":1}"#)
        };
        assert_eq!(sampled(raw), apart.chain_hash());
        let with_reasoning = Message {
            content: "<think>hm</think>Looking.".into(),
            ..apart.clone()
        };
        assert_eq!(sampled(raw), with_reasoning.chain_hash());
        let llama = r#"{"name": "f", "parameters": {"a": 1}}"#;
        assert_eq!(sampled(llama), call("x", r#"{"a":1}"#).chain_hash());
        assert_eq!(
            sampled(r#"<tool_call>{"name": "f"}</tool_call>"#),
            call("x", "").chain_hash(),
            "no arguments are an empty object"
        );
        assert_ne!(
            sampled(r#"{"name": "f"}"#),
            call("x", "").chain_hash(),
            "outside tags a name alone is data"
        );
        assert_ne!(sampled(raw), sampled("Looking."));
        // Arguments that were said as text come back as what the tool's schema makes of them.
        let said = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n\
                    <parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>";
        for arguments in [r#"{"a": 1, "b": true}"#, r#"{"b": "True", "a": "1"}"#] {
            assert_eq!(sampled(said), call("x", arguments).chain_hash());
        }
        // Each may hold the other's form.
        let text = r#"{"t": "<function=x></function>"}"#;
        let tags = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {text}}}</tool_call>");
        assert_eq!(sampled(&tags), call("x", text).chain_hash());
        let inner = tags.replace("<function=x></function>", "");
        let parameters =
            format!("<tool_call><function=f><parameter=t>{inner}</parameter></function>");
        let text = serde_json::json!({ "t": inner }).to_string();
        assert_eq!(sampled(&parameters), call("x", &text).chain_hash());
        assert_ne!(
            sampled(said),
            call("x", r#"{"a": 1, "b": "true?"}"#).chain_hash()
        );
        // What a person writes is never read as a call.
        let person = |text: &str| Message::text(Role::User, text).chain_hash();
        assert_ne!(
            person(llama),
            person(r#"{"name":"f","parameters":{"a":1}}"#)
        );
    }

    #[test]
    fn rewritten_ids_and_spacing_do_not_change_the_hash() {
        assert_eq!(
            call("call_a", r#"{"a":1,"b":[2]}"#).chain_hash(),
            call("calla", r#"{ "b": [2], "a": 1 }"#).chain_hash()
        );
        assert_ne!(
            call("x", r#"{"a":1}"#).chain_hash(),
            call("x", r#"{"a":2}"#).chain_hash()
        );
        assert_ne!(
            Message::text(Role::User, "a").chain_hash(),
            Message::text(Role::Assistant, "a").chain_hash()
        );
    }
}
