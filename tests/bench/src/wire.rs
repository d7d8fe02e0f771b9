//! The little HTTP that measurements need besides the demo's client.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use serde_json::{Value, json};

/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often a server that is starting is asked whether it is ready.
const LOOK: Duration = Duration::from_millis(2);
/// How often it is looked whether judging and training are at rest: every twentieth of the time waited
/// so far, between these.
const REST_LOOK_MIN: Duration = Duration::from_millis(10);
const REST_LOOK_MAX: Duration = Duration::from_millis(500);

/// Talks to one server.
pub(super) struct Wire {
    http: reqwest::Client,
    url: String,
}

impl Wire {
    /// For the server at `url`.
    pub(super) fn new(url: &str) -> Result<Self, String> {
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            .build()
            .map_err(|error| format!("the HTTP client could not be made: {error}"))?;
        Ok(Self {
            http,
            url: url.to_owned(),
        })
    }

    /// `/admin/v1/status`.
    pub(super) async fn status(&self) -> Result<Value, String> {
        self.get("/admin/v1/status").await
    }

    /// Waits until everything said so far is judged, and trained or settled, and that for a time of
    /// `still`: a turn or a verdict may be on its way. False where it took longer than `longest`.
    pub(super) async fn rest(&self, longest: Duration, still: Duration) -> Result<bool, String> {
        let (began, mut at_rest_since) = (Instant::now(), None::<Instant>);
        while began.elapsed() < longest {
            if is_waiting(&self.status().await?) {
                at_rest_since = None;
            } else if at_rest_since.get_or_insert_with(Instant::now).elapsed() >= still {
                return Ok(true);
            }
            let look = (began.elapsed() / 20).clamp(REST_LOOK_MIN, REST_LOOK_MAX);
            tokio::time::sleep(look).await;
        }
        Ok(false)
    }

    /// `/v1/models`.
    pub(super) async fn models(&self) -> Result<Value, String> {
        self.get("/v1/models").await
    }

    /// Posts and returns the reply; an error on any other status than 2xx.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        let url = format!("{}{path}", self.url);
        let reply = self.http.post(&url).json(body).send().await;
        let reply = reply.and_then(reqwest::Response::error_for_status);
        let reply = reply.map_err(|error| error.to_string())?;
        let value = reply.json().await;
        value.map_err(|error| format!("{url}: {error}"))
    }

    /// Deletes what stands at `path`; an error on any other status than 2xx.
    pub(super) async fn delete(&self, path: &str) -> Result<(), String> {
        let reply = self.http.delete(format!("{}{path}", self.url)).send().await;
        let reply = reply.and_then(reqwest::Response::error_for_status);
        reply.map(drop).map_err(|error| error.to_string())
    }

    /// Waits until the server says that it is ready.
    pub(super) async fn ready(&self) -> Result<(), String> {
        let (url, began) = (format!("{}/readyz", self.url), Instant::now());
        while began.elapsed() < TIMEOUT {
            let reply = self.http.get(&url).send().await;
            if reply.is_ok_and(|reply| reply.status().is_success()) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(format!(
            "{url} was not ready within {} s",
            TIMEOUT.as_secs()
        ))
    }

    /// Asks something and waits for the first piece of text.
    pub(super) async fn first_text(&self) -> Result<(), String> {
        let models = self.get("/v1/models").await?;
        let body = json!({
            "model": models["data"][0]["id"],
            "messages": [{ "role": "user", "content": "Hello!" }],
            "stream": true,
        });
        let url = format!("{}/v1/chat/completions", self.url);
        let reply = self.http.post(&url).json(&body).send().await;
        let reply = reply.and_then(reqwest::Response::error_for_status);
        let reply = reply.map_err(|error| error.to_string())?;
        let (mut pieces, mut text) = (reply.bytes_stream(), Vec::new());
        while let Some(piece) = pieces.next().await {
            text.extend_from_slice(&piece.map_err(|error| error.to_string())?);
            if has_text(&String::from_utf8_lossy(&text)) {
                return Ok(());
            }
        }
        Err(format!("{url} streamed no text"))
    }

    /// What stands at `path`; an error on any other status than 2xx.
    pub(super) async fn get(&self, path: &str) -> Result<Value, String> {
        let url = format!("{}{path}", self.url);
        let reply = self.http.get(&url).send().await;
        let reply = reply.and_then(reqwest::Response::error_for_status);
        let reply = reply.map_err(|error| error.to_string())?;
        reply
            .json()
            .await
            .map_err(|error| format!("{url}: {error}"))
    }
}

/// Whether turns wait for judging or training.
fn is_waiting(status: &Value) -> bool {
    let pending = status["ledger"]["pending"].as_array();
    pending.into_iter().flatten().any(|stage| {
        let name = stage[0].as_str().unwrap_or_default();
        matches!(name, "awaiting_verdict" | "awaiting_training")
            && stage[1].as_u64().unwrap_or_default() > 0
    })
}

/// Whether a stream of events holds text so far; the last event may still be cut.
fn has_text(events: &str) -> bool {
    let data = events
        .split("\n\n")
        .filter_map(|event| event.trim().strip_prefix("data:"));
    let values = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    values.into_iter().any(|value| {
        let text = value["choices"][0]["delta"]["content"].as_str();
        text.is_some_and(|text| !text.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_that_wait_for_judge_or_trainer_are_seen() {
        let status = |stage: &str, turns: u64| json!({ "ledger": { "pending": [[stage, turns]] } });
        assert!(is_waiting(&status("awaiting_verdict", 1)));
        assert!(is_waiting(&status("awaiting_training", 2)));
        assert!(!is_waiting(&status("awaiting_training", 0)));
        assert!(!is_waiting(&status("awaiting_next_state", 1)));
        assert!(!is_waiting(&json!({})));
    }

    #[test]
    fn text_is_seen_with_the_last_byte_of_its_event() {
        let role =
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
        let word = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}";
        assert!(!has_text(role));
        assert!(!has_text(&format!("{role}{}", &word[..word.len() - 1])));
        assert!(has_text(&format!("{role}{word}")));
        assert!(!has_text(": heartbeat\n\ndata: [DONE]\n\n"));
    }
}
