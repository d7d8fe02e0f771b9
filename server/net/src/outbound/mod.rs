//! Calls to other servers: one client for every URL of the configuration (judge, identity provider,
//! collector of traces, hub of models). It connects to the address that its guard judged, follows no
//! redirect but those of a hub's files ([`follow`]), uses no proxy, and every call has a deadline and a
//! limit of bytes.

pub mod follow;
pub mod guard;
#[cfg(test)]
mod tests;

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use reqwest::header::HeaderMap;
use reqwest::{Method, Url};
use serde_json::Value;

use guard::{Allowed, Guard, Names, SystemNames};

use crate::OutboundConfig;

/// The one client.
pub struct Outbound {
    client: reqwest::Client,
    guard: Guard,
    answer_bytes_max: usize,
}

/// What is sent.
#[derive(Clone, Debug)]
pub struct Call {
    /// GET or POST.
    pub method: Method,
    /// Where to; from [`Outbound::url`].
    pub url: Url,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Vec<u8>,
    /// Most time until the answer's last byte.
    pub deadline: Duration,
}

/// What came back, whatever its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The body.
    pub bytes: Vec<u8>,
}

/// Why nothing usable came back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutboundError {
    /// No connection, no answer in time, or a name that leads to an address that may not be called.
    #[error("{0}")]
    Unreachable(String),
    /// Somewhere that may not be called.
    #[error("{0}")]
    Refused(String),
    /// The answer is longer than `outbound.answer_bytes_max`.
    #[error("the answer is longer than {0} bytes (outbound.answer_bytes_max)")]
    TooLong(usize),
}

impl Outbound {
    /// A client as configured.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn new(config: &OutboundConfig) -> Result<Self, String> {
        Self::with_names(config, Arc::new(SystemNames))
    }

    /// The same with another resolver.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn with_names(config: &OutboundConfig, names: Arc<dyn Names>) -> Result<Self, String> {
        install_tls();
        let guard = Guard::new(names, Allowed::parse(&config.allow)?);
        let client = reqwest::Client::builder()
            .dns_resolver(Arc::new(guard.clone()))
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_millis(config.connect_timeout_ms))
            .user_agent(concat!("hone/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("the HTTP client could not be made: {error}"))?;
        Ok(Self {
            client,
            guard,
            answer_bytes_max: config.answer_bytes_max,
        })
    }

    /// Reads the URL of a setting.
    ///
    /// # Errors
    /// A sentence that names the setting `key`: no URL, another scheme than http and https, or an
    /// address that may not be called.
    pub fn url(&self, key: &str, text: &str) -> Result<Url, String> {
        let url = Url::parse(text).map_err(|error| format!("{key} is {text:?}: {error}"))?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(format!(
                "{key} is {text:?}, but only http and https are spoken"
            ));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(format!(
                "{key} has a user name or password in it, which would be printed; leave it out"
            ));
        }
        let checked = self.guard.check_host(url.host_str().unwrap_or_default());
        checked.map_err(|why| format!("{key} cannot be called: {why}"))?;
        Ok(url)
    }

    /// Sends a call and reads the whole answer.
    ///
    /// # Errors
    /// See [`OutboundError`]; no message contains the URL.
    pub async fn send(&self, call: Call) -> Result<Reply, OutboundError> {
        let host = call.url.host_str().unwrap_or_default();
        let checked = self.guard.check_host(host);
        checked.map_err(OutboundError::Refused)?;
        let request = self.client.request(call.method, call.url);
        let request = request.headers(call.headers).timeout(call.deadline);
        let response = request.body(call.body).send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(unreachable)?;
            if bytes.len() + chunk.len() > self.answer_bytes_max {
                return Err(OutboundError::TooLong(self.answer_bytes_max));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Reply { status, bytes })
    }

    /// Gets JSON.
    ///
    /// # Errors
    /// A sentence: no answer, another status than success, or no JSON.
    pub async fn get_json(&self, url: Url, deadline: Duration) -> Result<Value, String> {
        let call = Call {
            method: Method::GET,
            url,
            headers: HeaderMap::new(),
            body: Vec::new(),
            deadline,
        };
        let reply = self.send(call).await.map_err(|error| error.to_string())?;
        if !(200..300).contains(&reply.status) {
            return Err(format!("it answered with status {}", reply.status));
        }
        serde_json::from_slice(&reply.bytes).map_err(|error| format!("it is not JSON: {error}"))
    }
}

/// The reason at the bottom of a failure; what reqwest says on top names the URL only.
fn unreachable(error: reqwest::Error) -> OutboundError {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    if error.is_timeout() {
        text = "no answer in time".to_owned();
    }
    OutboundError::Unreachable(text)
}

/// One TLS provider for the process. Another one being there already is just as well.
pub fn install_tls() {
    let _first = rustls::crypto::ring::default_provider()
        .install_default()
        .is_ok();
}
