//! Completes chats by any OpenAI-compatible server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hone_domain::Message;
use hone_judge::{CompleteOptions, Completed, Completer, CompleterError, ModelConfig};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Value, json};

use hone_inference::template_message;
use hone_net::outbound::{Call, Outbound, OutboundError};

/// Completes chats by any OpenAI-compatible server.
pub struct HttpCompleter {
    outbound: Arc<Outbound>,
    url: Url,
    models: Url,
    model: String,
    headers: HeaderMap,
}

impl HttpCompleter {
    /// A client for the judge's model on one of its servers, which `key` names. The error says
    /// which key is wrong.
    pub fn new(
        outbound: Arc<Outbound>,
        (key, server): (&str, &str),
        config: &ModelConfig,
    ) -> Result<Self, String> {
        let base = server.trim_end_matches('/');
        let variable = config
            .api_key_env
            .as_deref()
            .filter(|name| !name.is_empty());
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Another Hone would otherwise take the judge's questions for conversation.
        let kind = HeaderName::from_static("x-turn-type");
        headers.insert(kind, HeaderValue::from_static("side"));
        if let Some(name) = variable {
            let secret = std::env::var(name).map_err(|_| {
                format!("judge.model.api_key_env names the environment variable {name}, which is not set")
            })?;
            let value = HeaderValue::from_str(&format!("Bearer {secret}"));
            let mut value = value.map_err(|_| {
                format!("the environment variable {name} has signs that no key can have")
            })?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(Self {
            url: outbound.url(key, &format!("{base}/chat/completions"))?,
            models: outbound.url(key, &format!("{base}/models"))?,
            outbound,
            model: config.name.clone(),
            headers,
        })
    }

    /// Whether the server answers at all; one that is broken says so by its status.
    pub async fn is_well(&self, deadline: Duration) -> bool {
        let call = Call {
            method: Method::GET,
            url: self.models.clone(),
            headers: self.headers.clone(),
            body: Vec::new(),
            deadline,
        };
        let reply = self.outbound.send(call).await;
        reply.is_ok_and(|reply| reply.status < 500)
    }
}

#[async_trait]
impl Completer for HttpCompleter {
    async fn complete(
        &self,
        messages: &[Message],
        options: CompleteOptions,
    ) -> Result<Completed, CompleterError> {
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
        let call = Call {
            method: Method::POST,
            url: self.url.clone(),
            headers: self.headers.clone(),
            body: body.to_string().into_bytes(),
            deadline: options.deadline,
        };
        let reply = self.outbound.send(call).await.map_err(|error| {
            let text = error.to_string();
            match error {
                OutboundError::Unreachable(_) | OutboundError::Refused(_) => {
                    CompleterError::Unreachable(text)
                }
                OutboundError::TooLong(_) => CompleterError::Unreadable(text),
            }
        })?;
        let answer: Option<Value> = serde_json::from_slice(&reply.bytes).ok();
        if !(200..300).contains(&reply.status) {
            let said = answer
                .as_ref()
                .and_then(|a| a.pointer("/error/message"))
                .and_then(Value::as_str);
            return Err(CompleterError::Refused {
                status: reply.status,
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
        let text = text.ok_or_else(|| {
            CompleterError::Unreadable("it has no choices[0].message.content".to_owned())
        })?;
        let count = |name: &str| answer.as_ref()?["usage"][name].as_u64();
        let tokens = count("prompt_tokens").zip(count("completion_tokens"));
        Ok(Completed {
            words: text.to_owned(),
            tokens,
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
    use crate::defaults::defaults;

    fn outbound() -> Arc<Outbound> {
        Arc::new(Outbound::new(&defaults("outbound")).unwrap())
    }

    async fn serve(router: Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    async fn ask(url: String) -> Result<Completed, CompleterError> {
        let config = ModelConfig::for_tests();
        let options = CompleteOptions {
            temperature: 0.5,
            max_tokens: 9,
            seed: u64::MAX,
            deadline: Duration::from_millis(500),
        };
        let server = ("judge.model.url", url.as_str());
        let completer = HttpCompleter::new(outbound(), server, &config).unwrap();
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
            let usage = json!({"prompt_tokens": 11, "completion_tokens": 2});
            let body = json!({"choices": [choice], "usage": usage});
            (StatusCode::OK, body.to_string())
        }));
        let yes = Completed {
            words: "yes".to_owned(),
            tokens: Some((11, 2)),
        };
        assert_eq!(ask(url.await).await, Ok(yes));
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
                api_key_env: key.map(str::to_owned),
                ..ModelConfig::for_tests()
            };
            HttpCompleter::new(outbound(), ("judge.model.url", url), &config)
                .err()
                .unwrap_or_default()
        };
        assert!(with("file:///etc/passwd", None).contains("judge.model.url"));
        assert!(with("nonsense", None).contains("judge.model.url"));
        let unset = with("http://x/v1", Some("HONE_TEST_NO_SUCH_VARIABLE"));
        assert!(unset.contains("HONE_TEST_NO_SUCH_VARIABLE"), "{unset}");
    }
}
