//! Verifiers of the configuration that are asked over HTTP: a signed question out, a score back.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use hone_judge::{CallReply, Caller, CallerError, Calling, Config};
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use ring::hmac;

use hone_net::outbound::{Call, Outbound};

/// Header of the time, in seconds since the Unix epoch.
const TIMESTAMP: &str = "x-hone-timestamp";
/// Header of the signature.
const SIGNATURE: &str = "x-hone-signature";

/// Makes calls.
pub struct HttpCaller {
    outbound: Arc<Outbound>,
}

impl HttpCaller {
    /// For the callbacks of the configuration, if there are any; the error names what is wrong with
    /// one: its address, or a variable that is not set.
    /// One for all, or none where nothing is called back.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn shared(
        outbound: &Arc<Outbound>,
        config: &Config,
    ) -> Result<Option<Arc<dyn Caller>>, String> {
        let callbacks = config.callbacks();
        for (name, url, secret_env) in &callbacks {
            outbound.url(&format!("the url of {name}"), url)?;
            secret(secret_env).map_err(|why| format!("{name}: {why}"))?;
        }
        if callbacks.is_empty() {
            return Ok(None);
        }
        let outbound = outbound.clone();
        Ok(Some(Arc::new(Self { outbound })))
    }
}

fn secret(variable: &str) -> Result<String, String> {
    let secret = std::env::var(variable)
        .ok()
        .filter(|secret| !secret.is_empty());
    secret.ok_or_else(|| {
        format!("secret_env names the environment variable {variable}, which is not set")
    })
}

/// The HMAC-SHA256 of `TIMESTAMP.BODY` under a secret, in hex.
fn signature(secret: &str, timestamp: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let mut context = hmac::Context::with_key(&key);
    for part in [timestamp.as_bytes(), b".", body] {
        context.update(part);
    }
    let bytes = context.sign();
    bytes
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Headers of a signed body.
fn headers(secret: &str, timestamp: &str, body: &[u8]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in [
        (TIMESTAMP, timestamp.to_owned()),
        (SIGNATURE, signature(secret, timestamp, body)),
    ] {
        let value = HeaderValue::from_str(&value).map_err(|error| error.to_string())?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}

#[async_trait]
impl Caller for HttpCaller {
    async fn call(&self, calling: &Calling) -> Result<CallReply, CallerError> {
        let secret = secret(&calling.secret_env).map_err(CallerError)?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let body = calling.body.to_string().into_bytes();
        let headers = headers(&secret, &now.as_secs().to_string(), &body).map_err(CallerError)?;
        let call = Call {
            method: Method::POST,
            url: self
                .outbound
                .url("the url", &calling.url)
                .map_err(CallerError)?,
            headers,
            body,
            deadline: Duration::from_millis(calling.deadline_ms),
        };
        let reply = self.outbound.send(call).await;
        let reply = reply.map_err(|error| CallerError(error.to_string()))?;
        if !(200..300).contains(&reply.status) {
            let status = reply.status;
            return Err(CallerError(format!("it answered with status {status}")));
        }
        serde_json::from_slice(&reply.bytes)
            .map_err(|error| CallerError(format!("its answer has no score and reason: {error}")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::Router;
    use axum::body::Bytes;
    use axum::http::{HeaderMap as Got, StatusCode};
    use axum::routing::post;
    use serde_json::json;

    use super::*;

    /// Any variable that is set in every test run serves as the secret.
    const SECRET: &str = "CARGO_MANIFEST_DIR";

    fn outbound() -> Arc<Outbound> {
        Arc::new(Outbound::new(&crate::defaults::defaults("outbound")).unwrap())
    }

    async fn ask(router: Router, path: &str) -> Result<CallReply, CallerError> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{path}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let caller = HttpCaller {
            outbound: outbound(),
        };
        let calling = Calling {
            url,
            secret_env: SECRET.to_owned(),
            deadline_ms: 300,
            body: json!({"check": "c", "completion": "ä"}),
        };
        caller.call(&calling).await
    }

    /// Answers only what is signed.
    async fn judge(headers: Got, body: Bytes) -> (StatusCode, String) {
        let text = |name: &str| headers[name].to_str().unwrap().to_owned();
        let secret = std::env::var(SECRET).unwrap();
        let timestamp = text(TIMESTAMP);
        if text(SIGNATURE) != signature(&secret, &timestamp, &body) {
            return (StatusCode::UNAUTHORIZED, String::new());
        }
        let asked: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let reply = json!({"score": -0.5, "reason": asked["completion"]});
        (StatusCode::OK, reply.to_string())
    }

    #[tokio::test]
    async fn a_call_is_signed_and_its_reply_read() {
        let reply = ask(Router::new().route("/", post(judge)), "/")
            .await
            .unwrap();
        assert_eq!((reply.score, reply.reason.as_str()), (Some(-0.5), "ä"));
        // RFC 4231, test case 2, with its data cut at the point.
        let known = hmac::Key::new(hmac::HMAC_SHA256, b"Jefe");
        let whole = hmac::sign(&known, b"what do ya want for nothing?.x");
        let hex: String = whole.as_ref().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(signature("Jefe", "what do ya want for nothing?", b"x"), hex);
    }

    #[tokio::test]
    async fn what_is_no_reply_is_an_error_with_its_reason() {
        let slow = || async { tokio::time::sleep(Duration::from_secs(60)).await };
        let away = || async { axum::response::Redirect::temporary("/") };
        let router = || {
            Router::new()
                .route("/words", post(|| async { "fine" }))
                .route("/slow", post(slow))
                .route("/away", post(away))
                .route("/long", post(|| async { "x".repeat(2 << 20) }))
        };
        for (path, why) in [
            ("/words", "no score"),
            ("/none", "status 404"),
            ("/away", "status 307"),
            ("/long", "longer than"),
            ("/slow", ""),
        ] {
            let error = ask(router(), path).await.unwrap_err().to_string();
            assert!(error.contains(why), "{path}: {error}");
            assert!(!error.contains("127.0.0.1"), "{error}");
        }
    }

    #[test]
    fn wrong_settings_are_named() {
        let with = |check: &str| {
            let rule = format!("name = \"tests\"\ncheck = {check}");
            let rule = toml::from_str(&rule).unwrap();
            let config = Config {
                verifiers: vec![rule],
                ..Config::for_tests()
            };
            HttpCaller::shared(&outbound(), &config)
        };
        let callback = |url: &str, secret: &str| {
            with(&format!(
                "{{ kind = \"callback\", url = \"{url}\", secret_env = \"{secret}\", deadline_ms = 9 }}"
            ))
        };
        assert!(with("{ kind = \"exit_code\" }").unwrap().is_none());
        assert!(callback("http://127.0.0.1:9/", SECRET).unwrap().is_some());
        for (url, secret, why) in [
            ("nonsense", SECRET, "tests"),
            ("file:///etc/passwd", SECRET, "only http"),
            (
                "http://127.0.0.1:9/",
                "HONE_TEST_NO_SUCH_VARIABLE",
                "HONE_TEST_NO_SUCH_VARIABLE",
            ),
        ] {
            let error = callback(url, secret).err().unwrap();
            assert!(error.contains(why), "{error}");
        }
    }
}
