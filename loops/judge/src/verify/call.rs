//! A callback: what is asked of another server, and what it may answer.

use async_trait::async_trait;
use hone_domain::{NextState, Outcome, Turn};
use serde::Deserialize;
use serde_json::{Value, json};

use super::finding::{Finding, finding};
use crate::wording::spoken;

/// Most characters of a text that is sent.
const TEXT_CHARS_MAX: usize = 64 * 1024;
/// Most characters of a hint that is taken.
const HINT_CHARS_MAX: usize = 2_000;

/// A call to be made.
#[derive(Clone, Debug)]
pub struct Calling {
    /// Where.
    pub url: String,
    /// Environment variable that holds the secret.
    pub secret_env: String,
    /// How long it may take.
    pub deadline_ms: u64,
    /// What is asked, as JSON.
    pub body: Value,
}

/// What the other server says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CallReply {
    /// From -1 to 1; null where it cannot tell.
    pub score: Option<f64>,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// What should have been done.
    #[serde(default)]
    pub hint: Option<String>,
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallerError(pub String);

/// Makes calls: signs them, and gives up after their deadline.
#[async_trait]
pub trait Caller: Send + Sync {
    /// The reply. Dropping the future withdraws the call.
    async fn call(&self, calling: &Calling) -> Result<CallReply, CallerError>;
}

/// What is sent: the same for every callback.
pub(super) fn body(name: &str, turn: &Turn, next: &NextState) -> Value {
    let cut = |text: &str| text.chars().take(TEXT_CHARS_MAX).collect::<String>();
    json!({
        "check": name,
        "turn_id": turn.id.to_string(),
        "messages": turn.messages,
        "completion": cut(&turn.completion_text),
        "next_state": cut(&spoken(next)),
    })
}

/// What a reply, or its absence, means.
pub(crate) fn read(name: &str, reply: Result<CallReply, String>) -> Finding {
    let reply = match reply {
        Ok(reply) => reply,
        Err(why) => return finding(name, Outcome::Abstain, &why),
    };
    let score = match reply.score {
        Some(score) if (-1.0..=1.0).contains(&score) => score as f32,
        Some(score) => {
            let why = format!("it answered a score of {score}, which is not in [-1, 1]");
            return finding(name, Outcome::Abstain, &why);
        }
        None => return finding(name, Outcome::Abstain, &reply.reason),
    };
    let outcome = match score {
        score if score > 0.0 => Outcome::Good,
        score if score < 0.0 => Outcome::Bad,
        _ => Outcome::Neutral,
    };
    let hint = reply.hint.filter(|hint| !hint.trim().is_empty());
    Finding {
        score: Some(score),
        hint: hint.map(|hint| hint.chars().take(HINT_CHARS_MAX).collect()),
        ..finding(name, outcome, &reply.reason)
    }
}
