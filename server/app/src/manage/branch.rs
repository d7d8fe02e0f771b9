//! `hone branch`: an answer of a running server is tried again from a place in it.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use reqwest::Method;
use serde_json::{Value, json};

use super::call::{Call, Server, send, show};
use super::tasks::text_of as text_only;

/// Longest text that is shown of one continuation, in characters; --json shows all.
const SHOWN_CHARS: usize = 2_000;

/// What is tried again, and how.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hone branch turn_019ad0c2-...\n  hone branch turn_019ad0c2-... --at 12 --n 8 --temperature 1.2\n  \
    hone branch turn_019ad0c2-... --version latest\n  hone branch --session sess_019ad0c2-... --any --json"
)]
pub(crate) struct BranchArgs {
    /// The turn: its id, or the id of its reply.
    #[arg(required_unless_present_any = ["session", "episode"])]
    turn: Option<String>,
    /// Instead of a turn, a session: its newest main turn.
    #[arg(long, value_name = "SESSION", conflicts_with_all = ["turn", "episode"])]
    session: Option<String>,
    /// Instead of a turn, an episode of a rollout: its newest main turn.
    #[arg(long, value_name = "EPISODE", conflicts_with = "turn")]
    episode: Option<String>,
    /// How many tokens of the answer stay; 0 tries all of it again.
    #[arg(long, value_name = "N", default_value_t = 0)]
    at: u32,
    /// How many continuations, 1 to 16.
    #[arg(long, default_value_t = 4)]
    n: u32,
    /// Which version goes on.
    #[arg(long, value_enum, default_value = "as-served")]
    version: Which,
    /// Temperature; as the answer was sampled if absent.
    #[arg(long)]
    temperature: Option<f64>,
    /// Seed of the first continuation.
    #[arg(long)]
    seed: Option<i64>,
    /// Most tokens of a continuation; 1024 if absent.
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Option<u32>,
    /// Somebody else's turn; needs an admin, and the audit log keeps it.
    #[arg(long)]
    any: bool,
    #[command(flatten)]
    server: Server,
}

/// Which version goes on.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    /// The one that gave the answer.
    AsServed,
    /// The one that is served now.
    Latest,
}

/// Asks for the continuations and prints them beside the answer.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn branch(args: &BranchArgs) -> Result<ExitCode, String> {
    let version = match args.version {
        Which::AsServed => "as-served",
        Which::Latest => "latest",
    };
    let fields = [
        ("turn_id", json!(args.turn)),
        ("session_id", json!(args.session)),
        ("episode_id", json!(args.episode)),
        ("position", json!(args.at)),
        ("n", json!(args.n)),
        ("version", json!(version)),
        ("temperature", json!(args.temperature)),
        ("seed", json!(args.seed)),
        ("max_tokens", json!(args.max_tokens)),
    ];
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    let body = given
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let path = match args.any {
        true => "/admin/v1/branches",
        false => "/v1/branches",
    };
    let call = Call {
        method: Method::POST,
        path: path.to_owned(),
        body: Some(Value::Object(body)),
        show: text_of,
    };
    show(&args.server, send(&args.server, &call), text_of)
}

fn text_of(told: &Value) -> String {
    let prefix = &told["prefix"];
    let mut text = format!(
        "{} continuations by version {} ({}), after {} tokens of the answer\n",
        told["data"].as_array().map_or(0, Vec::len),
        told["policy_version"],
        told["version"].as_str().unwrap_or_default(),
        prefix["tokens"],
    );
    text.push_str(match prefix["logprobs_equal"].as_bool() {
        Some(true) => "log-probs of these tokens: equal to those recorded, bit for bit\n",
        Some(false) => "log-probs of these tokens: not those recorded\n",
        None => "",
    });
    if prefix["tokens"] != 0 {
        text.push_str(&said("what stays", &prefix["text"]));
    }
    let original = &told["original"];
    let head = |one: &Value| {
        let id = one["turn_id"].as_str().unwrap_or_default();
        let (tokens, stop) = (&one["tokens"], one["stop"].as_str().unwrap_or_default());
        format!("{id} · {tokens} tokens · {stop}")
    };
    text.push_str(&said(
        &format!("the answer: {}", head(original)),
        &original["text"],
    ));
    for one in told["data"].as_array().into_iter().flatten() {
        let mut head = head(one);
        if let Some(reason) = one["reason"].as_str() {
            head.push_str(&format!(" · not on record ({reason})"));
        }
        text.push_str(&said(&head, &one["text"]));
    }
    text
}

fn said(head: &str, text: &Value) -> String {
    let text = text_only(text);
    let mut shown: String = text.chars().take(SHOWN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("\n── {head}\n{shown}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuations_are_shown_beside_the_answer() {
        let one = |id: &str, text: &str, reason: Value| json!({"turn_id": id, "text": text, "tokens": 2, "stop": "length", "reason": reason});
        let mut told = json!({
            "policy_version": 3, "version": "as-served",
            "prefix": {"text": "It ", "tokens": 2, "logprobs_equal": true},
            "original": one("turn_1", "rains.", Value::Null),
            "data": [one("turn_2", "is sunny.", Value::Null), one("turn_3", "snows.", json!("queue_full"))],
        });
        let text = text_of(&told);
        for words in [
            "2 continuations by version 3 (as-served), after 2 tokens",
            "equal to those recorded",
            "the answer: turn_1 · 2 tokens · length\nrains.",
            "turn_2 · 2 tokens · length\nis sunny.",
            "not on record (queue_full)",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        told["prefix"] = json!({"text": "", "tokens": 0, "logprobs_equal": null});
        assert!(!text_of(&told).contains("log-probs"));
    }
}
