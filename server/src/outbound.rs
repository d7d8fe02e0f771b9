//! Calls to other servers: one client with deadlines, a size limit and no redirects.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use hone_domain::Message;
use hone_judge::{CompleteOptions, Completer, CompleterError, ModelConfig};
use serde_json::{Value, json};

use crate::door::template_message;

/// Most bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Longest time to a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Completes chats by any OpenAI-compatible server.
pub struct HttpCompleter {
    client: reqwest::Client,
    url: String,
    model: String,
    key: Option<String>,
}

impl HttpCompleter {
    /// A client for the judge's model. The error says which key is wrong.
    pub fn new(config: &ModelConfig) -> Result<Self, String> {
        let url = format!("{}/chat/completions", config.url.trim_end_matches('/'));
        let parsed = reqwest::Url::parse(&url)
            .map_err(|error| format!("judge.model.url is {:?}: {error}", config.url))?;
        if !["http", "https"].contains(&parsed.scheme()) {
            return Err(format!(
                "judge.model.url is {:?}, but only http and https are spoken",
                config.url
            ));
        }
        let variable = config
            .api_key_env
            .as_deref()
            .filter(|name| !name.is_empty());
        let key = match variable {
            None => None,
            Some(name) => Some(std::env::var(name).map_err(|_| {
                format!("judge.model.api_key_env names the environment variable {name}, which is not set")
            })?),
        };
        install_tls();
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("hone/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("the judge's HTTP client could not be made: {error}"))?;
        Ok(Self {
            client,
            url,
            model: config.name.clone(),
            key,
        })
    }

    /// The same, behind the judge's trait.
    pub fn shared(config: &ModelConfig) -> Result<Arc<dyn Completer>, String> {
        Ok(Arc::new(Self::new(config)?))
    }
}

/// Gets JSON from an address of the configuration: no redirects, bounded in time and size.
pub async fn get_json(url: &str, deadline: Duration) -> Result<Value, String> {
    install_tls();
    let client = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(deadline)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("hone/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| error.to_string())?;
    let said = |error: reqwest::Error| error.without_url().to_string();
    let response = client.get(url).send().await.map_err(said)?;
    if !response.status().is_success() {
        return Err(format!(
            "it answered with status {}",
            response.status().as_u16()
        ));
    }
    let mut bytes = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(said)?;
        if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(format!("it is longer than {ANSWER_BYTES_MAX} bytes"));
        }
        bytes.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&bytes).map_err(|error| format!("it is not JSON: {error}"))
}

/// One TLS provider for the process. Another one being there already is just as well.
pub fn install_tls() {
    let _first = rustls::crypto::ring::default_provider()
        .install_default()
        .is_ok();
}

#[async_trait]
impl Completer for HttpCompleter {
    async fn complete(
        &self,
        messages: &[Message],
        options: CompleteOptions,
    ) -> Result<String, CompleterError> {
        let messages: Vec<Value> = messages.iter().map(template_message).collect();
        let body = json!({
            "model": self.model,
            "messages": messages,
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            // Many servers read the seed as a signed number.
            "seed": options.seed >> 1,
            "stream": false,
            "store": false,
        });
        let mut request = self
            .client
            .post(&self.url)
            .timeout(options.deadline)
            // Another Hone would otherwise take the judge's questions for conversation.
            .header("x-turn-type", "side")
            .json(&body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let unreachable =
            |error: reqwest::Error| CompleterError::Unreachable(error.without_url().to_string());
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let mut bytes = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(unreachable)?;
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(CompleterError::Unreadable(format!(
                    "it is longer than {ANSWER_BYTES_MAX} bytes"
                )));
            }
            bytes.extend_from_slice(&chunk);
        }
        let answer: Option<Value> = serde_json::from_slice(&bytes).ok();
        if !status.is_success() {
            let said = answer
                .as_ref()
                .and_then(|a| a.pointer("/error/message"))
                .and_then(Value::as_str);
            return Err(CompleterError::Refused {
                status: status.as_u16(),
                message: said
                    .unwrap_or("no reason given")
                    .chars()
                    .take(200)
                    .collect(),
            });
        }
        let text = answer
            .as_ref()
            .and_then(|a| a.pointer("/choices/0/message/content"))
            .and_then(Value::as_str);
        text.map(str::to_owned).ok_or_else(|| {
            CompleterError::Unreadable("it has no choices[0].message.content".to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::Json;
    use axum::Router;
    use axum::http::{HeaderMap, StatusCode};
    use axum::response::Redirect;
    use axum::routing::post;
    use hone_domain::Role;

    use super::*;

    async fn serve(router: Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    async fn ask(url: String) -> Result<String, CompleterError> {
        let config = ModelConfig {
            url,
            ..ModelConfig::for_tests()
        };
        let options = CompleteOptions {
            temperature: 0.5,
            max_tokens: 9,
            seed: u64::MAX,
            deadline: Duration::from_millis(500),
        };
        let completer = HttpCompleter::new(&config).unwrap();
        let message = Message::text(Role::User, "was it good?");
        completer.complete(&[message], options).await
    }

    fn answering(
        reply: impl Fn(Value) -> (StatusCode, String) + Clone + Send + Sync + 'static,
    ) -> Router {
        Router::new().route(
            "/v1/chat/completions",
            post(move |headers: HeaderMap, Json(body): Json<Value>| {
                assert_eq!(headers["x-turn-type"], "side");
                let reply = reply(body);
                async move { reply }
            }),
        )
    }

    #[tokio::test]
    async fn a_completion_comes_back_as_text() {
        let url = serve(answering(|body| {
            assert_eq!(body["messages"][0]["content"], "was it good?");
            assert_eq!(
                (&body["max_tokens"], &body["store"]),
                (&json!(9), &json!(false))
            );
            let choice = json!({"message": {"content": "yes"}});
            (StatusCode::OK, json!({"choices": [choice]}).to_string())
        }));
        assert_eq!(ask(url.await).await, Ok("yes".to_owned()));
    }

    #[tokio::test]
    async fn failures_are_told_apart() {
        let refusing = serve(answering(|_| {
            let error = json!({"error": {"message": "busy"}});
            (StatusCode::TOO_MANY_REQUESTS, error.to_string())
        }));
        let busy = CompleterError::Refused {
            status: 429,
            message: "busy".to_owned(),
        };
        assert_eq!(ask(refusing.await).await, Err(busy));
        let nonsense = serve(answering(|_| (StatusCode::OK, "hm".to_owned())));
        assert!(matches!(
            ask(nonsense.await).await,
            Err(CompleterError::Unreadable(_))
        ));
        let endless = serve(answering(|_| (StatusCode::OK, "x".repeat(2 << 20))));
        assert!(matches!(
            ask(endless.await).await,
            Err(CompleterError::Unreadable(_))
        ));
        let nobody = ask("http://127.0.0.1:9/v1".to_owned()).await;
        assert!(
            matches!(nobody, Err(CompleterError::Unreachable(_))),
            "{nobody:?}"
        );
        let slow = Router::new().route(
            "/v1/chat/completions",
            post(|| async { tokio::time::sleep(Duration::from_secs(60)).await }),
        );
        let slow = ask(serve(slow).await).await;
        assert!(
            matches!(slow, Err(CompleterError::Unreachable(_))),
            "{slow:?}"
        );
    }

    #[tokio::test]
    async fn redirects_are_not_followed() {
        let elsewhere = || async { Redirect::temporary("/elsewhere") };
        let router = Router::new()
            .route("/v1/chat/completions", post(elsewhere))
            .route(
                "/elsewhere",
                post(|| async { r#"{"choices": [{"message": {"content": "followed"}}]}"# }),
            );
        let answer = ask(serve(router).await).await;
        assert!(
            matches!(answer, Err(CompleterError::Refused { status: 307, .. })),
            "{answer:?}"
        );
    }

    #[test]
    fn wrong_settings_are_named() {
        let with = |url: &str, key: Option<&str>| {
            let config = ModelConfig {
                url: url.to_owned(),
                api_key_env: key.map(str::to_owned),
                ..ModelConfig::for_tests()
            };
            HttpCompleter::new(&config).err().unwrap_or_default()
        };
        assert!(with("file:///etc/passwd", None).contains("judge.model.url"));
        assert!(with("nonsense", None).contains("judge.model.url"));
        let unset = with("http://x/v1", Some("HONE_TEST_NO_SUCH_VARIABLE"));
        assert!(unset.contains("HONE_TEST_NO_SUCH_VARIABLE"), "{unset}");
    }
}
