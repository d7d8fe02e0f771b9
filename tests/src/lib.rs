//! A server in this process, on a free port and with its own data folder, and a client for it.

pub mod parsers;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use hone::app::App;
use hone::config::{Config, Sources};
use hone::device::OpenCuda;
use hone_ledger::Ledger as _;
use hone_ledger_sql::{SqliteConfig, SqliteStore};
use serde_json::{Value, json};

/// How a test's server differs from the defaults: configuration keys and values.
pub type Changes<'a> = &'a [(&'a str, toml::Value)];

/// A running server and its address.
pub struct TestApp {
    app: App,
    /// `http://127.0.0.1:PORT`.
    pub url: String,
    http: reqwest::Client,
}

/// The configuration of a test's server: defaults, a free port, `data`, and `changes`.
pub fn config(data: &Path, changes: Changes<'_>) -> Result<Config> {
    let text = |key: &str, value: String| (key.to_owned(), toml::Value::String(value));
    let mut flags = vec![
        text("http.bind", "127.0.0.1:0".into()),
        text("store.data_dir", data.display().to_string()),
        // Jails need a program of their own, which a test names that has some.
        text("tools.executor", "off".into()),
    ];
    // A busy disk costs no receipt.
    let patience = toml::Value::Integer(20_000);
    flags.push(("http.receipt_timeout_ms".into(), patience));
    flags.extend(
        changes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone())),
    );
    let sources = Sources {
        file: None,
        env: Vec::new(),
        flags,
    };
    Ok(Config::load(&sources)?)
}

impl TestApp {
    /// Starts a server with the built-in model.
    pub async fn start(data: &Path, changes: Changes<'_>) -> Result<Self> {
        Self::start_on(data, changes, hone::device::cuda).await
    }

    /// The same on another CUDA device.
    pub async fn start_on(data: &Path, changes: Changes<'_>, cuda: OpenCuda) -> Result<Self> {
        let app = App::start_on(config(data, changes)?, cuda)
            .await
            .map_err(anyhow::Error::msg)?;
        let url = format!("http://{}", app.addr);
        Ok(Self {
            app,
            url,
            http: client()?,
        })
    }

    /// Stops it; an error if a reply was cut.
    pub async fn stop(self) -> Result<()> {
        if self.app.stop().await {
            Ok(())
        } else {
            bail!("the app cut replies short")
        }
    }

    /// Holds the effects of a loop, so that it hangs, or lets them go.
    ///
    /// # Panics
    /// Where no such loop runs.
    pub fn hold(&self, name: &str, held: bool) {
        assert!(self.app.hold(name, held), "{name} does not run");
    }

    /// One chat turn: the parsed reply.
    pub async fn chat(&self, body: Value) -> Result<Value> {
        post(&self.http, &self.url, "/v1/chat/completions", body).await
    }

    /// A POST with a JSON body; an error on any other status than 2xx.
    pub async fn post(&self, path: &str, body: Value) -> Result<Value> {
        post(&self.http, &self.url, path, body).await
    }

    /// A POST with a JSON body: status and reply, whatever they are.
    pub async fn try_post(&self, path: &str, body: Value) -> Result<(u16, Value)> {
        let call = self.http.post(format!("{}{path}", self.url)).json(&body);
        let reply = call.send().await?;
        Ok((reply.status().as_u16(), reply.json().await?))
    }

    /// A DELETE; an error on any other status than 2xx.
    pub async fn delete(&self, path: &str) -> Result<Value> {
        let reply = self
            .http
            .delete(format!("{}{path}", self.url))
            .send()
            .await?;
        Ok(reply.error_for_status()?.json().await?)
    }

    /// A GET of JSON.
    pub async fn get(&self, path: &str) -> Result<Value> {
        get(&self.http, &self.url, path).await
    }

    /// The status and the body of a GET, whatever it says.
    pub async fn try_get(&self, path: &str) -> Result<(u16, Value)> {
        let reply = self.http.get(format!("{}{path}", self.url)).send().await?;
        Ok((reply.status().as_u16(), reply.json().await?))
    }

    /// Asks again until `good` or the limit of two minutes.
    pub async fn until(&self, path: &str, good: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        for _ in 0..2_400 {
            last = self.get(path).await?;
            if good(&last) {
                return Ok(last);
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        bail!("{path} did not become what was waited for; the last answer was {last}")
    }
}

/// A client without proxies. An answer of an emulated device takes long on a busy machine.
pub fn client() -> Result<reqwest::Client> {
    hone_net::outbound::install_tls();
    let timeout = std::time::Duration::from_secs(300);
    Ok(reqwest::Client::builder()
        .no_proxy()
        .timeout(timeout)
        .build()?)
}

/// A POST with a JSON body.
pub async fn post(http: &reqwest::Client, url: &str, path: &str, body: Value) -> Result<Value> {
    let reply = http.post(format!("{url}{path}")).json(&body).send().await?;
    let (status, value) = (reply.status(), reply.json::<Value>().await);
    if !status.is_success() {
        bail!("{path}: {status}: {value:?}");
    }
    value.context("the reply is not JSON")
}

/// A GET of JSON.
pub async fn get(http: &reqwest::Client, url: &str, path: &str) -> Result<Value> {
    let reply = http.get(format!("{url}{path}")).send().await?;
    let (status, value) = (reply.status(), reply.json::<Value>().await);
    if !status.is_success() {
        bail!("{path}: {status}: {value:?}");
    }
    value.context("the reply is not JSON")
}

/// A chat body with one user message.
pub fn ask(text: &str, seed: u64) -> Value {
    json!({
        "model": "hone-starter",
        "messages": [{"role": "user", "content": text}],
        "seed": seed,
        "max_tokens": 48,
        "temperature": 1.0,
    })
}

/// What the ledger of a stopped server says against itself.
pub async fn broken_laws(data: &Path) -> Result<Vec<String>> {
    let ledger = SqliteStore::open(&SqliteConfig::in_folder(data)).await?;
    let broken = ledger.check_laws().await?;
    ledger.close().await;
    Ok(broken)
}

/// Settings under which a version comes per four answers, however explicit what is said to them.
pub fn one_version_per_four_answers() -> Vec<(&'static str, toml::Value)> {
    vec![
        // Which turns are held out depends on random ids, and every one counts here.
        ("train.gate.held_out_share", 0.0.into()),
        ("train.batch_turns", 4.into()),
        ("train.batch_turns_min", 4.into()),
        ("train.explicit_wait_ms", 600_000.into()),
        ("train.tick_ms", 100.into()),
        ("serve.prove_interval_ms", 100.into()),
    ]
}

/// A folder that goes away with its guard, and a data folder inside it.
pub fn temporary() -> Result<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    Ok((folder, data))
}
