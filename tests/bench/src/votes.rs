//! A server of votes that takes its time: an OpenAI-compatible endpoint on this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use hone_starter::rng::Rng;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::stale::normal;

/// The server; it ends with its value.
pub(super) struct Votes {
    /// Its base URL.
    pub(super) url: String,
    task: JoinHandle<()>,
}

struct Voter {
    /// Median, and spread of the logarithm.
    time: (Duration, f64),
    seed: u64,
    votes: AtomicU64,
    praises: Vec<String>,
}

impl Votes {
    /// Votes 1 where a prompt quotes a praise and -1 elsewhere, each after a log-normal time.
    pub(super) async fn start(
        time: (Duration, f64),
        seed: u64,
        praises: Vec<String>,
    ) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("the votes' server did not start: {error}");
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let voter = Arc::new(Voter {
            time,
            seed,
            votes: AtomicU64::new(0),
            praises,
        });
        let models = get(|| async { Json(json!({ "data": [{ "id": "slow" }] })) });
        let app = Router::new()
            .route("/v1/models", models)
            .route("/v1/chat/completions", post(vote))
            .with_state(voter);
        let serving = axum::serve(listener, app);
        let task = tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::warn!("the votes' server ended: {error}");
            }
        });
        Ok(Self {
            url: format!("http://{address}/v1"),
            task,
        })
    }
}

impl Drop for Votes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn vote(State(voter): State<Arc<Voter>>, Json(body): Json<Value>) -> Json<Value> {
    let number = voter.votes.fetch_add(1, Ordering::Relaxed);
    let (median, spread) = voter.time;
    let factor = (spread * normal(&mut Rng::at(voter.seed, number))).exp();
    tokio::time::sleep(median.mul_f64(factor)).await;
    let messages = body["messages"].as_array().into_iter().flatten();
    let last = messages
        .last()
        .map_or("", |m| m["content"].as_str().unwrap_or_default());
    let praised = voter
        .praises
        .iter()
        .any(|praise| last.contains(praise.as_str()));
    let grade = if praised { "1" } else { "-1" };
    let said = format!("It shows. \\boxed{{{grade}}}");
    Json(json!({
        "choices": [{ "message": { "role": "assistant", "content": said }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": last.len() / 4, "completion_tokens": 8 },
    }))
}
