//! The demo's HTTP client: streams chat answers like any other client and times their tokens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use serde_json::{Value, json};

use hone::client::Trust;

/// Failures in a row, of all users together, from which on the server counts as gone.
const FAILURES_IN_A_ROW: u64 = 5;

/// Talks to one server and counts what it sends.
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    model: tokio::sync::OnceCell<String>,
    requests: AtomicU64,
    failed: AtomicU64,
    failed_in_a_row: AtomicU64,
}

/// A chat request.
pub(crate) struct Chat<'a> {
    /// Scope of the caller.
    pub(crate) user: &'a str,
    /// The conversation so far.
    pub(crate) messages: &'a [Value],
    /// Session key.
    pub(crate) session: Option<&'a str>,
    /// Whether the turn may be stored and learned from.
    pub(crate) store: bool,
    /// Sampling seed.
    pub(crate) seed: u64,
}

/// A whole answer.
#[derive(Default)]
pub(crate) struct Answer {
    /// Its text.
    pub(crate) text: String,
    /// Milliseconds between consecutive pieces of text.
    pub(crate) gaps_ms: Vec<f64>,
}

impl Client {
    /// For the server at `url`.
    pub(crate) fn new(url: &str) -> Result<Self> {
        Self::trusting(url, &Trust::default())
    }

    /// The same, with whom to trust that it is that server.
    pub(crate) fn trusting(url: &str, trust: &Trust) -> Result<Self> {
        let http = trust.client().map_err(anyhow::Error::msg)?;
        let http = http
            .timeout(Duration::from_secs(60))
            .pool_max_idle_per_host(64)
            .build()
            .context("building the HTTP client")?;
        Ok(Self {
            http,
            url: url.trim_end_matches('/').to_owned(),
            model: tokio::sync::OnceCell::new(),
            requests: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failed_in_a_row: AtomicU64::new(0),
        })
    }

    /// (requests sent, requests failed).
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.requests.load(Ordering::Relaxed),
            self.failed.load(Ordering::Relaxed),
        )
    }

    /// Streams one answer. A failure is counted and gives an empty answer, so that one bad
    /// request shows in the summary and does not end the demo; a few in a row do.
    ///
    /// # Errors
    /// A sentence: [`FAILURES_IN_A_ROW`] requests failed one after another.
    pub(crate) async fn chat(&self, chat: &Chat<'_>) -> Result<Answer> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let error = match self.stream(chat).await {
            Ok(answer) => {
                self.failed_in_a_row.store(0, Ordering::Relaxed);
                return Ok(answer);
            }
            Err(error) => error,
        };
        self.failed.fetch_add(1, Ordering::Relaxed);
        let in_a_row = self.failed_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        if in_a_row >= FAILURES_IN_A_ROW {
            bail!(
                "{in_a_row} requests in a row failed: see whether the server at {url} still runs \
                 (`hone health --url {url}`, and its log), then start again; the last failure was: \
                 {error:#}",
                url = self.url
            );
        }
        tracing::warn!("a request failed: {error:#}");
        Ok(Answer::default())
    }

    async fn stream(&self, chat: &Chat<'_>) -> Result<Answer> {
        let mut body = json!({
            "model": self.model().await?,
            "messages": chat.messages,
            "user": chat.user,
            "stream": true,
            "seed": chat.seed,
            "temperature": 1.0,
            "max_tokens": 160,
            "store": chat.store,
        });
        if let Some(session) = chat.session {
            body["session_id"] = json!(session);
        }
        let url = format!("{}/v1/chat/completions", self.url);
        let reply = self.http.post(url).json(&body).send().await?;
        if !reply.status().is_success() {
            bail!(
                "status {}: {}",
                reply.status(),
                reply.text().await.unwrap_or_default()
            );
        }
        let mut events = Events::default();
        let mut pieces = reply.bytes_stream();
        while let Some(piece) = pieces.next().await {
            events.feed(&piece?)?;
        }
        if !events.finished {
            bail!("the stream ended without a finish reason");
        }
        Ok(Answer {
            text: events.text,
            gaps_ms: events.gaps_ms,
        })
    }

    pub(crate) async fn model(&self) -> Result<&str> {
        let get = || async {
            let list: Value = self.get("/v1/models").await?;
            let id = list["data"][0]["id"]
                .as_str()
                .context("the server lists no model")?;
            anyhow::Ok(id.to_owned())
        };
        Ok(self.model.get_or_try_init(get).await?)
    }

    /// Pauses or resumes the train loop.
    pub(crate) async fn pause_training(&self, paused: bool) -> Result<()> {
        let verb = if paused { "pause" } else { "resume" };
        let url = format!("{}/admin/v1/loops/train/{verb}", self.url);
        let reply = self.http.post(url).send().await;
        reply.with_context(|| self.gone())?.error_for_status()?;
        Ok(())
    }

    /// How many versions were published.
    pub(crate) async fn versions(&self) -> Result<u64> {
        let status = self.get("/admin/v1/status").await?;
        status["ledger"]["versions"]
            .as_u64()
            .context("the status has no ledger.versions")
    }

    /// What the server itself says about whether it helps this user.
    pub(crate) async fn improvement(&self, user: &str) -> Result<String> {
        let reply = self.get(&format!("/v1/improvement?user={user}")).await?;
        let sentence = reply["sentence"].as_str();
        Ok(sentence
            .context("no sentence about improvement")?
            .to_owned())
    }

    /// A POST with a JSON body.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.http.post(format!("{}{path}", self.url)).json(body);
        let reply = request.send().await.with_context(|| self.gone())?;
        let status = reply.status();
        if !status.is_success() {
            bail!(
                "{path}: status {status}: {}",
                reply.text().await.unwrap_or_default()
            );
        }
        Ok(reply.json().await?)
    }

    /// A GET of JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        let reply = self.http.get(format!("{}{path}", self.url)).send().await;
        let reply = reply.with_context(|| self.gone())?;
        Ok(reply.error_for_status()?.json().await?)
    }

    fn gone(&self) -> String {
        format!("the server at {} does not answer", self.url)
    }
}

/// Reads server-sent events piece by piece.
#[derive(Default)]
struct Events {
    rest: Vec<u8>,
    text: String,
    gaps_ms: Vec<f64>,
    last: Option<Instant>,
    finished: bool,
}

impl Events {
    fn feed(&mut self, piece: &[u8]) -> Result<()> {
        self.rest.extend_from_slice(piece);
        while let Some(end) = self.rest.windows(2).position(|w| w == b"\n\n") {
            let event: Vec<u8> = self.rest.drain(..end + 2).collect();
            let event = String::from_utf8(event).context("an event is not UTF-8")?;
            let Some(data) = event.trim().strip_prefix("data:") else {
                continue;
            };
            if data.trim() == "[DONE]" {
                continue;
            }
            let value: Value = serde_json::from_str(data).context("an event is not JSON")?;
            if let Some(error) = value.get("error") {
                bail!("error in the stream: {error}");
            }
            self.take(&value);
        }
        Ok(())
    }

    fn take(&mut self, value: &Value) {
        let choice = &value["choices"][0];
        self.finished |= choice["finish_reason"].is_string();
        let Some(text) = choice["delta"]["content"]
            .as_str()
            .filter(|t| !t.is_empty())
        else {
            return;
        };
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.gaps_ms.push((now - last).as_secs_f64() * 1e3);
        }
        self.text.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::StatusCode;
    use axum::routing::{get, post};

    use super::*;

    #[test]
    fn events_may_be_cut_anywhere() {
        let whole = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\xc3\xa4\"}}]}\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        for cut in 0..whole.len() {
            let mut events = Events::default();
            events.feed(&whole[..cut]).unwrap();
            events.feed(&whole[cut..]).unwrap();
            assert_eq!((events.text.as_str(), events.finished), ("aä", true));
        }
        let error = b"data: {\"error\":{\"message\":\"no\"}}\n\n";
        assert!(Events::default().feed(error).is_err());
    }

    const CHAT: Chat<'_> = Chat {
        user: "somebody",
        messages: &[],
        session: None,
        store: false,
        seed: 1,
    };

    #[tokio::test]
    async fn a_few_failures_in_a_row_say_that_the_server_is_gone() {
        let client = Client::new("http://127.0.0.1:1/").unwrap();
        for _ in 1..FAILURES_IN_A_ROW {
            assert_eq!(client.chat(&CHAT).await.unwrap().text, "");
        }
        let Err(error) = client.chat(&CHAT).await else {
            panic!("nobody answers at port 1")
        };
        let text = format!("{error:#}");
        assert!(text.starts_with("5 requests in a row failed"), "{text}");
        assert!(
            text.contains("`hone health --url http://127.0.0.1:1`"),
            "{text}"
        );
        assert_eq!(client.counts(), (FAILURES_IN_A_ROW, FAILURES_IN_A_ROW));
    }

    #[tokio::test]
    async fn failures_with_an_answer_in_between_do_not_end_the_demo() {
        let asked = Arc::new(AtomicU64::new(0));
        let answer = move || {
            let is_well = asked.fetch_add(1, Ordering::Relaxed) % 3 == 2;
            let finish = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
            async move { is_well.then_some(finish).ok_or(StatusCode::BAD_GATEWAY) }
        };
        let models = || async { axum::Json(json!({"data": [{"id": "m"}]})) };
        let app = axum::Router::new()
            .route("/v1/models", get(models))
            .route("/v1/chat/completions", post(answer));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move { axum::serve(listener, app).await });
        let client = Client::new(&url).unwrap();
        for _ in 0..6 * FAILURES_IN_A_ROW {
            client.chat(&CHAT).await.unwrap();
        }
        let (sent, failed) = client.counts();
        assert_eq!((sent, failed), (30, 20));
        serving.abort();
    }
}
