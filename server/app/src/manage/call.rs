//! One call to a running server, and its answer on the terminal.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::client::{Address, Trust, unreachable};

/// Longest wait for an answer; a comparison generates.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Which server.
#[derive(Clone, Debug, Args)]
pub(crate) struct Server {
    #[command(flatten)]
    address: Address,
    /// API key; on this machine's loopback none is needed.
    #[arg(long, value_name = "KEY", env = "HONE_API_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Print the server's answer as it is.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trust: Trust,
}

/// What is asked of the server.
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Option<Value>,
    pub(super) show: fn(&Value) -> String,
}

impl Call {
    pub(super) fn get(path: String, show: fn(&Value) -> String) -> Self {
        Self {
            method: Method::GET,
            path,
            body: None,
            show,
        }
    }
}

/// Waits for an answer and prints it.
pub(super) fn show(
    server: &Server,
    answer: impl Future<Output = Result<Value, String>>,
    text: Show,
) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let answer = runtime.block_on(answer)?;
    let text = match server.json {
        true => format!("{answer:#}\n"),
        false => text(&answer),
    };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

pub(super) type Show = fn(&Value) -> String;

pub(crate) fn client(trust: &Trust, timeout: Duration) -> Result<reqwest::Client, String> {
    let client = trust.client()?.timeout(timeout).build();
    client.map_err(|error| format!("the HTTP client could not be made: {error}"))
}

pub(super) fn meant(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(hone_domain::Scope::meant(text).to_string())
}

pub(super) async fn send(server: &Server, call: &Call) -> Result<Value, String> {
    let client = client(&server.trust, TIMEOUT)?;
    let url = format!("{}{}", server.address.url()?, call.path);
    let mut request = client.request(call.method.clone(), &url);
    if let Some(key) = &server.key {
        request = request.bearer_auth(key);
    }
    if let Some(body) = &call.body {
        request = request.json(body);
    }
    let reply = request.send().await;
    let reply = reply.map_err(|error| unreachable(&url, error))?;
    let status = reply.status();
    if status == StatusCode::NO_CONTENT {
        return Ok(Value::Null);
    }
    let answer: Value = reply
        .json()
        .await
        .map_err(|error| format!("{url} did not answer with JSON ({error})"))?;
    if status.is_success() {
        return Ok(answer);
    }
    let message = answer["error"]["message"].as_str().unwrap_or("no message");
    let code = answer["error"]["code"].as_str().unwrap_or("no code");
    Err(format!("{message} ({status}, {code})"))
}
