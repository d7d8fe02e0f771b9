//! Completes chats by any OpenAI-compatible server.

use std::sync::Arc;

use async_trait::async_trait;
use hone_domain::Message;
use hone_judge::{CompleteOptions, Completer, CompleterError, ModelConfig};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Value, json};

use super::{Call, Outbound, OutboundError};
use crate::door::template_message;

/// Completes chats by any OpenAI-compatible server.
pub struct HttpCompleter {
    outbound: Arc<Outbound>,
    url: Url,
    model: String,
    headers: HeaderMap,
}

impl HttpCompleter {
    /// A client for the judge's model. The error says which key is wrong.
    pub fn new(outbound: Arc<Outbound>, config: &ModelConfig) -> Result<Self, String> {
        let url = format!("{}/chat/completions", config.url.trim_end_matches('/'));
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
            let key = std::env::var(name).map_err(|_| {
                format!("judge.model.api_key_env names the environment variable {name}, which is not set")
            })?;
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            let mut value = value.map_err(|_| {
                format!("the environment variable {name} has signs that no key can have")
            })?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(Self {
            url: outbound.url("judge.model.url", &url)?,
            outbound,
            model: config.name.clone(),
            headers,
        })
    }

    /// The same, behind the judge's trait.
    pub fn shared(
        outbound: Arc<Outbound>,
        config: &ModelConfig,
    ) -> Result<Arc<dyn Completer>, String> {
        Ok(Arc::new(Self::new(outbound, config)?))
    }
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
                OutboundError::Unreachable(_) => CompleterError::Unreachable(text),
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
    use std::time::Duration;

    use hone_domain::Role;

    use super::*;
    use crate::outbound::tests::defaults;

    fn outbound() -> Arc<Outbound> {
        Arc::new(Outbound::new(&defaults()).unwrap())
    }

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
        let completer = HttpCompleter::new(outbound(), &config).unwrap();
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
            HttpCompleter::new(outbound(), &config)
                .err()
                .unwrap_or_default()
        };
        assert!(with("file:///etc/passwd", None).contains("judge.model.url"));
        assert!(with("nonsense", None).contains("judge.model.url"));
        let unset = with("http://x/v1", Some("HONE_TEST_NO_SUCH_VARIABLE"));
        assert!(unset.contains("HONE_TEST_NO_SUCH_VARIABLE"), "{unset}");
    }
}
