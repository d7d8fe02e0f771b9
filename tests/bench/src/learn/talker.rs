//! Plain chat over HTTP, with what the reply says about itself.

use std::time::Duration;

use serde_json::{Value, json};

/// How long a user waits for an answer: long, for who stops the whole process for a while and lets it go
/// on loses no answer.
const PATIENCE: Duration = Duration::from_secs(600);

/// Longest answer, unless the asker says otherwise.
pub(crate) const ANSWER_TOKENS: u32 = 160;

/// A user of the server.
pub(crate) struct Talker {
    http: reqwest::Client,
    url: String,
    model: String,
    user: String,
    /// What each request says that it does with memories; as configured if absent.
    pub(crate) memory: Option<&'static str>,
    pub(crate) failed: u64,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) turn: String,
    pub(crate) version: u64,
}

/// A request.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) messages: &'a [Value],
    /// None: not stored.
    pub(crate) session: Option<&'a str>,
    pub(crate) seed: u64,
    pub(crate) temperature: f64,
    pub(crate) max_tokens: u32,
}

impl Talker {
    pub(crate) async fn new(url: &str, user: String) -> Result<Self, String> {
        let http = reqwest::Client::builder()
            .timeout(PATIENCE)
            .no_proxy()
            .build()
            .map_err(|error| format!("the HTTP client could not be made: {error}"))?;
        let mut talker = Self {
            http,
            url: url.to_owned(),
            model: String::new(),
            user,
            memory: None,
            failed: 0,
        };
        let models = talker.send("/v1/models", None).await?;
        let id = models["data"][0]["id"].as_str();
        talker.model = id.ok_or("the server lists no model")?.to_owned();
        Ok(talker)
    }

    /// The answer to one question by itself, which is not stored.
    pub(crate) async fn answer(&mut self, question: &str, seed: u64) -> String {
        let ask = Ask {
            messages: &[json!({ "role": "user", "content": question })],
            session: None,
            seed,
            temperature: 1.0,
            max_tokens: ANSWER_TOKENS,
        };
        self.ask(ask).await.text
    }

    /// Asks; a failure is counted and gives an empty answer.
    pub(crate) async fn ask(&mut self, ask: Ask<'_>) -> Answer {
        let mut body = json!({
            "model": self.model,
            "messages": ask.messages,
            "user": self.user,
            "seed": ask.seed,
            "temperature": ask.temperature,
            "max_tokens": ask.max_tokens,
            "store": ask.session.is_some(),
        });
        if let Some(session) = ask.session {
            body["session_id"] = json!(session);
        }
        if let Some(mode) = self.memory {
            body["hone"] = json!({ "memory": mode });
        }
        match self.send("/v1/chat/completions", Some(body)).await {
            Ok(reply) => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                Answer {
                    text: text(&reply["choices"][0]["message"]["content"]),
                    turn: text(&reply["hone"]["turn_id"]),
                    version: reply["hone"]["policy_version"].as_u64().unwrap_or_default(),
                }
            }
            Err(error) => {
                self.failed += 1;
                tracing::warn!("a request failed: {error}");
                Answer::default()
            }
        }
    }

    /// Says what an answer should have been.
    pub(crate) async fn correct(&mut self, turn: &str, correction: &str) {
        let body = json!({ "turn_id": turn, "correction": correction });
        if let Err(error) = self.send("/v1/feedback", Some(body)).await {
            self.failed += 1;
            tracing::warn!("feedback failed: {error}");
        }
    }

    async fn send(&self, path: &str, body: Option<Value>) -> Result<Value, String> {
        let url = format!("{}{path}", self.url);
        let request = match body {
            Some(body) => self.http.post(&url).json(&body),
            None => self.http.get(&url),
        };
        let reply = request.send().await.map_err(|error| error.to_string())?;
        let status = reply.status();
        let text = reply.text().await.map_err(|error| error.to_string())?;
        if !status.is_success() {
            return Err(format!("{url}: {status}: {text}"));
        }
        serde_json::from_str(&text).map_err(|error| format!("{url}: {error}"))
    }
}
