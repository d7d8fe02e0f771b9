//! Texts of prompts: templates that are filled in, and next states as text.

use hone_domain::{Message, NextKind, NextState, Role};

/// A system and a user message.
pub(crate) fn messages(system: &str, user: &str) -> Vec<Message> {
    vec![
        Message::text(Role::System, system),
        Message::text(Role::User, user),
    ]
}

/// The texts of a next state, one below the other.
pub(crate) fn texts(next_state: &NextState) -> String {
    let texts: Vec<&str> = next_state
        .items
        .iter()
        .map(|item| item.text.as_str())
        .collect();
    texts.join("\n")
}

/// The texts of a next state with who speaks.
pub(crate) fn spoken(next_state: &NextState) -> String {
    let lines: Vec<String> = next_state
        .items
        .iter()
        .map(|item| {
            let who = match item.kind {
                NextKind::UserReply => "user",
                NextKind::ToolResult => "tool result",
                NextKind::Environment => "environment",
                NextKind::Feedback => "explicit feedback",
            };
            format!("[{who}]\n{}", item.text)
        })
        .collect();
    lines.join("\n\n")
}

/// Replaces each key once, in one pass: what was filled in is not searched again.
pub(crate) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    loop {
        let next = values
            .iter()
            .filter_map(|(key, value)| rest.find(key).map(|at| (at, *key, *value)))
            .min_by_key(|(at, ..)| *at);
        let Some((at, key, value)) = next else {
            filled.push_str(rest);
            return filled;
        };
        filled.push_str(&rest[..at]);
        filled.push_str(value);
        rest = &rest[at + key.len()..];
    }
}
