//! Requests recorded from real clients (tests/traces, made by record.py there), replayed.

use std::collections::HashMap;
use std::path::Path;

use hone_domain::TurnId;
use serde_json::{Value, json};

use hone_bench::conversations::gateway::{Gateway, Sent, Table};

/// What binding reads of a body.
const FIELDS: &[&str] = &[
    "session_id",
    "prompt_cache_key",
    "metadata",
    "store",
    "turn_type",
];

/// Replays every trace. Two conversations of a trace say the same for a while; with `apart` they are
/// of two users, else of one.
pub(super) fn replay_all(apart: bool) -> Vec<(String, Table)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .collect();
    files.sort();
    let read = |path: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    files
        .iter()
        .map(|path| replay(&read(path), apart))
        .collect()
}

fn replay(trace: &Value, apart: bool) -> (String, Table) {
    let mut gateway = Gateway::new(1_000);
    let mut names: Vec<&str> = Vec::new();
    // Per conversation: how many messages each request had, and the turn it became.
    let mut made: HashMap<usize, Vec<(Vec<Value>, TurnId)>> = HashMap::new();
    for request in trace["requests"].as_array().unwrap() {
        let name = request["conversation"].as_str().unwrap();
        let conversation = names.iter().position(|n| *n == name).unwrap_or(names.len());
        if conversation == names.len() {
            names.push(name);
        }
        let body = &request["body"];
        let messages = body["messages"].as_array().unwrap().clone();
        let earlier = made.entry(conversation).or_default();
        // A client that resends its history continues the last request whose messages it repeats.
        let kept = lasting(&messages);
        let continued = earlier.iter().rev().find(|(asked, _)| {
            asked.len() < kept.len() && last_said(&kept[..asked.len()]) == last_said(asked)
        });
        let mut fields = json!({});
        for field in FIELDS.iter().filter(|field| !body[**field].is_null()) {
            fields[*field] = body[*field].clone();
        }
        let headers = request["headers"].as_object().unwrap().iter();
        let sent = Sent {
            conversation,
            class: if continued.is_some() {
                "continues"
            } else {
                "begins"
            },
            continues: continued.map(|(_, turn)| *turn),
            user: apart.then(|| name.to_owned()),
            headers: headers
                .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
                .collect(),
            fields,
            messages: messages.clone(),
            answer: request["answer"].clone(),
            ..Sent::default()
        };
        gateway.now_ms += 1_000;
        let turn = gateway.ask(&sent);
        earlier.push((kept, turn));
    }
    let client = format!(
        "{} {}",
        trace["client"].as_str().unwrap(),
        trace["version"].as_str().unwrap()
    );
    (client, gateway.table)
}

/// The messages without those that a client adds to one request only.
fn lasting(messages: &[Value]) -> Vec<Value> {
    let passes = |message: &&Value| {
        message["content"]
            .to_string()
            .contains("_INTERNAL_CONTEXT>>>")
    };
    messages.iter().filter(|m| !passes(m)).cloned().collect()
}

/// The text of the last message of a person or a tool.
fn last_said(messages: &[Value]) -> Option<String> {
    let spoken = messages
        .iter()
        .rfind(|message| message["role"] != "assistant" && message["role"] != "system")?;
    Some(spoken["content"].to_string())
}
