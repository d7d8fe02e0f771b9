//! The sections that belong to the server itself. Defaults stand in `configs/default.toml`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hone_domain::{Digest, Millis, SessionIndexConfig, UserRole};
use hone_kernels::{Arithmetic, WeightFormat};
use hone_ledger::AnswerLimits;
use hone_ledger_sql::SqliteConfig;
use hone_nn::{KvFormat, Model};
use reqwest::Url;
use serde::{Deserialize, Serialize};

use crate::device::Choice;
use crate::door::Limits;
use crate::http::guard::Key;
use crate::http::wire::capture::is_raw;
use hone_net::listen::ListenLimits;
use hone_net::tls::TlsFiles;

/// What answers asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The built-in engine with a model.
    Builtin,
    /// Instant fixed completions without a model, for load tests.
    Null,
}

/// How the matrices of the model are kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// As they are stored.
    Stored,
    /// Thirty-two bits.
    F32,
    /// Sixteen bits.
    Bf16,
    /// Eight bits, a scale per 32 weights.
    Q8,
    /// Four bits, a scale per 32 weights.
    Q4,
}

impl From<Weights> for WeightFormat {
    fn from(weights: Weights) -> Self {
        match weights {
            Weights::Stored => Self::Stored,
            Weights::F32 => Self::F32,
            Weights::Bf16 => Self::Bf16,
            Weights::Q8 => Self::Q8,
            Weights::Q4 => Self::Q4,
        }
    }
}

/// How products with the model's matrices are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Products {
    /// As the processor is quickest with the model's weights.
    Auto,
    /// Inputs as they are.
    F32,
    /// Inputs rounded to bf16.
    Bf16,
    /// Inputs rounded to bf16, in tiles.
    Amx,
    /// Inputs rounded to eight bits.
    Int8,
}

impl Products {
    /// What it comes to on this machine, where a device serves or not, with weights for which one is
    /// quickest.
    pub fn arithmetic(self, quickest: Arithmetic, on_device: bool) -> Result<Arithmetic, String> {
        let asked = match self {
            Self::Auto if on_device => return Ok(Arithmetic::F32),
            Self::Auto => return Ok(quickest),
            Self::F32 => return Ok(Arithmetic::F32),
            Self::Bf16 => Arithmetic::Bf16,
            Self::Amx => Arithmetic::Amx,
            Self::Int8 => Arithmetic::Int8,
        };
        let why = match asked {
            _ if on_device => "a CUDA device computes in f32; set it to \"auto\"",
            _ if asked.supported() => return Ok(asked),
            Arithmetic::Amx => {
                "this processor has no tiles of bf16 (AMX, with AVX-512), the system does not let them be \
                 used (Linux from 5.16 on does), or they add up otherwise; set it to \"auto\" or \"f32\""
            }
            Arithmetic::F32 | Arithmetic::Int8 => unreachable!("any processor has them"),
            Arithmetic::Bf16 => {
                "this processor has no products of bf16 (AVX512-BF16); set it to \"auto\" or \"f32\""
            }
        };
        Err(format!(
            "model.arithmetic is \"{}\", but {why}",
            self.name()
        ))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Amx => "amx",
            Self::Int8 => "int8",
        }
    }
}

/// How keys and values of past tokens are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyValues {
    /// As f16 where the model's matrices are kept in sixteen bits or less, else as f32.
    Auto,
    /// As they are computed.
    F32,
    /// Rounded to f16, in half the memory.
    F16,
}

impl KeyValues {
    /// What it comes to for a model, where a device serves or not.
    pub fn format(self, model: &Model, on_device: bool) -> Result<KvFormat, String> {
        match self {
            Self::F32 => Ok(KvFormat::F32),
            Self::Auto if on_device || model.weights.attends_in_f32() => Ok(KvFormat::F32),
            Self::F16 if on_device => Err(
                "model.kv is \"f16\", but a CUDA device keeps keys and values as f32; set it to \"auto\""
                    .to_owned(),
            ),
            Self::Auto | Self::F16 => Ok(KvFormat::F16),
        }
    }
}

/// The HTTP door.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HttpConfig {
    /// Address and port; port 0 takes a free one.
    pub bind: String,
    /// Most bytes of a request body.
    pub body_bytes_max: usize,
    /// Most bytes of the large bodies of all requests under way.
    pub bodies_bytes_max: usize,
    /// Most bytes of a request body that brings an adapter.
    pub import_bytes_max: usize,
    /// Longest time until a body's last byte, in milliseconds.
    pub body_timeout_ms: u64,
    /// Longest time from the first byte of a request to the end of its headers, in milliseconds.
    pub header_timeout_ms: u64,
    /// Longest time that a connection waits between two requests, in milliseconds.
    pub idle_timeout_ms: u64,
    /// Longest time that a client may take nothing of its reply, in milliseconds.
    pub write_timeout_ms: u64,
    /// Most connections at once.
    pub connections_max: usize,
    /// Most connections of one address, loopback aside; 0 is no limit.
    pub connections_per_address_max: usize,
    /// Files of the certificate and its private key, in PEM; empty speaks plain HTTP.
    pub tls_cert: String,
    /// The key's.
    pub tls_key: String,
    /// Most messages of a request.
    pub messages_max: usize,
    /// Most choices of a request.
    pub choices_max: usize,
    /// Log-probs where a request does not say: `processed_logprobs` or `raw_logprobs`.
    pub logprobs_mode: String,
    /// Prompts with more characters are worked on off the async threads.
    pub inline_chars_max: usize,
    /// How long the end of a completion waits for its receipt, in milliseconds.
    pub receipt_timeout_ms: u64,
    /// Longest completion, in milliseconds.
    pub completion_timeout_ms: u64,
    /// How long feedback waits to be stored, in milliseconds.
    pub feedback_timeout_ms: u64,
    /// Most turns and notes that wait for the recorder; a turn beyond is not collected.
    pub record_queue_max: usize,
    /// Most sessions remembered; beyond, the longest idle one of the owner who has most goes.
    pub sessions_max: usize,
    /// Most turns remembered per session; the oldest goes first.
    pub turns_per_session_max: usize,
    /// Most bytes of texts and tokens kept for reuse; the oldest go first.
    pub transcript_bytes_max: usize,
    /// Shortest time between two events of `/admin/v1/events`, in milliseconds.
    pub events_interval_ms: u64,
    /// Most answers kept for retries with the same `Idempotency-Key`; the oldest goes first.
    pub replays_max: usize,
    /// Most bytes of such answers; the oldest goes first.
    pub replay_bytes_max: usize,
    /// How long such an answer is kept, in milliseconds.
    pub replay_keep_ms: u64,
    /// Most watchers of `/admin/v1/events`.
    pub watchers_max: usize,
    /// How long replies under way may take once the stop began, in milliseconds.
    pub drain_deadline_ms: u64,
    /// Async threads; engine and training have their own.
    pub worker_threads: usize,
    /// Further host names that count as this machine.
    pub hosts_allowed: Vec<String>,
    /// Web origins whose pages may read answers and, like loopback ones, call without a key.
    pub origins_allowed: Vec<String>,
    /// Addresses of proxies whose `x-forwarded-proto` is believed.
    pub proxies_trusted: Vec<IpAddr>,
    /// API keys.
    pub keys: Vec<KeyConfig>,
}

/// An API key.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// Whose turns and policies it stands for.
    pub owner: String,
    /// SHA-256 of the key, in hexadecimal.
    pub sha256: String,
    /// Whether it opens `/admin` and `/metrics`.
    #[serde(default)]
    pub admin: bool,
}

impl HttpConfig {
    /// The address.
    pub fn address(&self) -> Result<SocketAddr, String> {
        let bind = self.bind.replace("localhost", "127.0.0.1");
        bind.parse().map_err(|_| {
            format!(
                "http.bind is {:?}, which is not an address with a port, such as 127.0.0.1:8080",
                self.bind
            )
        })
    }

    /// Bounds of the session index.
    pub fn index(&self, retry_ms: Millis) -> SessionIndexConfig {
        SessionIndexConfig {
            sessions_max: self.sessions_max,
            turns_per_session_max: self.turns_per_session_max,
            transcript_bytes_max: self.transcript_bytes_max,
            retry_ms,
        }
    }

    /// Bounds of the answers kept for retries.
    pub fn replay_limits(&self) -> AnswerLimits {
        AnswerLimits {
            answers_max: self.replays_max,
            bytes_max: self.replay_bytes_max,
            keep_ms: i64::try_from(self.replay_keep_ms).unwrap_or(i64::MAX),
        }
    }

    /// Bounds of the door.
    pub fn door_limits(&self) -> Limits {
        Limits {
            receipt_timeout: Duration::from_millis(self.receipt_timeout_ms),
            completion_timeout: Duration::from_millis(self.completion_timeout_ms),
            inline_chars_max: self.inline_chars_max,
        }
    }

    /// Bounds of connections, of which there is room for so many.
    pub fn listen_limits(&self, connections_max: usize) -> ListenLimits {
        // One address never gets more than half of the places.
        let half = (connections_max / 2).max(1);
        ListenLimits {
            connections_max,
            per_address_max: self.connections_per_address_max.min(half),
            header_timeout: Duration::from_millis(self.header_timeout_ms),
            idle_timeout: Duration::from_millis(self.idle_timeout_ms),
            write_timeout: Duration::from_millis(self.write_timeout_ms),
        }
    }

    /// Whether an address is that of a trusted proxy.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.proxies_trusted.contains(&peer.to_canonical())
    }

    /// `https` where TLS is spoken, else `http`.
    pub fn scheme(&self) -> &'static str {
        if self.tls_cert.is_empty() {
            "http"
        } else {
            "https"
        }
    }

    /// The files of TLS, where it is spoken.
    pub fn tls(&self) -> Option<TlsFiles> {
        (!self.tls_cert.is_empty()).then(|| TlsFiles {
            cert: PathBuf::from(&self.tls_cert),
            key: PathBuf::from(&self.tls_key),
        })
    }

    /// The keys, ready to compare.
    pub fn known_keys(&self) -> Result<Vec<Key>, String> {
        let keys = self.keys.iter().enumerate();
        keys.map(|(at, key)| {
            let sha256 = Digest::from_hex(&key.sha256).ok_or_else(|| {
                format!("http.keys[{at}].sha256 is not a SHA-256 in 64 hexadecimal digits")
            })?;
            if key.owner.is_empty() || key.owner == hone_domain::LOCAL_OWNER {
                return Err(format!(
                    "http.keys[{at}].owner must be a name other than \"local\""
                ));
            }
            Ok(Key {
                owner: key.owner.clone(),
                sha256,
                role: if key.admin {
                    UserRole::Admin
                } else {
                    UserRole::Developer
                },
            })
        })
        .collect()
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        self.address()?;
        self.known_keys()?;
        self.origins_allowed.iter().try_for_each(check_origin)?;
        if self.tls_cert.is_empty() != self.tls_key.is_empty() {
            return Err(
                "http.tls_cert and http.tls_key belong together; set both or none".to_owned(),
            );
        }
        if is_raw(&self.logprobs_mode).is_none() {
            return Err(
                "http.logprobs_mode is \"processed_logprobs\" or \"raw_logprobs\"".to_owned(),
            );
        }
        let counts = [
            ("body_bytes_max", self.body_bytes_max as u64),
            ("import_bytes_max", self.import_bytes_max as u64),
            ("body_timeout_ms", self.body_timeout_ms),
            ("header_timeout_ms", self.header_timeout_ms),
            ("idle_timeout_ms", self.idle_timeout_ms),
            ("write_timeout_ms", self.write_timeout_ms),
            ("connections_max", self.connections_max as u64),
            ("messages_max", self.messages_max as u64),
            ("choices_max", self.choices_max as u64),
            ("receipt_timeout_ms", self.receipt_timeout_ms),
            ("completion_timeout_ms", self.completion_timeout_ms),
            ("feedback_timeout_ms", self.feedback_timeout_ms),
            ("record_queue_max", self.record_queue_max as u64),
            ("sessions_max", self.sessions_max as u64),
            ("turns_per_session_max", self.turns_per_session_max as u64),
            ("replays_max", self.replays_max as u64),
            ("watchers_max", self.watchers_max as u64),
            ("worker_threads", self.worker_threads as u64),
        ];
        if let Some((key, _)) = counts.iter().find(|(_, value)| *value == 0) {
            return Err(format!("http.{key} must be at least 1"));
        }
        if self.bodies_bytes_max / 2 < self.body_bytes_max {
            return Err(
                "http.bodies_bytes_max must be at least twice http.body_bytes_max".to_owned(),
            );
        }
        if self.connections_max > 1_000_000 {
            return Err("http.connections_max must be at most 1000000".to_owned());
        }
        if self.events_interval_ms < 100 {
            return Err("http.events_interval_ms must be at least 100".to_owned());
        }
        Ok(())
    }
}

/// Refuses what no browser sends as the origin of a page, because it would never be found there.
fn check_origin(origin: &String) -> Result<(), String> {
    let (scheme, host) = origin.split_once("://").unwrap_or_default();
    let is_sent = match scheme {
        "http" | "https" => {
            Url::parse(origin).is_ok_and(|url| url.origin().ascii_serialization() == *origin)
        }
        // Of apps that are pages in a frame of their own.
        _ => {
            let is_odd =
                |c: char| c.is_ascii_uppercase() || c.is_whitespace() || "/?#@".contains(c);
            !scheme.is_empty()
                && !host.is_empty()
                && !scheme.contains(is_odd)
                && !host.contains(is_odd)
        }
    };
    if is_sent && !origin.contains('*') {
        return Ok(());
    }
    Err(format!(
        "http.origins_allowed has {origin:?}, which no browser sends; write scheme://host or \
         scheme://host:port in small letters, without a path, a \"*\" or the scheme's own port, such \
         as \"https://app.example\""
    ))
}

/// Where data lives.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// Folder of the ledger and the adapters; empty takes the user's data folder.
    pub data_dir: String,
    /// Connections that only read.
    pub readers: u32,
    /// How long to wait for another process that holds the database's lock, in milliseconds.
    pub busy_timeout_ms: u64,
    /// Most bytes of the database; 0 leaves it to the disk.
    pub database_bytes_max: u64,
    /// Most bytes of one adapter or checkpoint file.
    pub blob_file_bytes_max: u64,
    /// Time between two passes that read again what is served, in milliseconds; 0 reads at the start only.
    pub scrub_interval_ms: u64,
}

impl StoreConfig {
    /// The folder, with the default resolved.
    pub fn folder(&self) -> Result<PathBuf, String> {
        if !self.data_dir.is_empty() {
            return Ok(PathBuf::from(&self.data_dir));
        }
        let set = |name: &str| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        set("XDG_DATA_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".local/share")))
            .map(|folder| folder.join("hone"))
            .ok_or_else(|| {
                "there is no home folder to keep data in; set store.data_dir or --data".to_owned()
            })
    }

    /// How the ledger in `folder` is opened.
    pub fn sqlite(&self, folder: &Path) -> SqliteConfig {
        SqliteConfig {
            readers: self.readers,
            busy_timeout_ms: self.busy_timeout_ms,
            bytes_max: Some(self.database_bytes_max).filter(|n| *n > 0),
            ..SqliteConfig::in_folder(folder)
        }
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        if self.readers == 0 || self.blob_file_bytes_max == 0 {
            return Err(
                "store.readers and store.blob_file_bytes_max must be at least 1".to_owned(),
            );
        }
        Ok(())
    }
}

/// What is served.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// What answers asks.
    pub engine: Engine,
    /// A Hugging Face folder, or a hub id; empty takes the built-in starter model.
    pub path: String,
    /// How its matrices are kept; serving and training see the same numbers.
    pub weights: Weights,
    /// How products with them are computed.
    pub arithmetic: Products,
    /// How keys and values of past tokens are kept.
    pub kv: KeyValues,
    /// Name in `/v1/models`; empty takes the folder's or file's name, or `hone-starter`.
    pub name: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Compute threads of serving and training; 0 takes one per core.
    pub threads: usize,
    /// What computes the steps of serving.
    pub device: Choice,
    /// Questions that every trained candidate has to answer before it is published.
    pub probe_prompts: Vec<String>,
    /// Everyday prompts on which hints are rehearsed beside the user's own, so that learning a
    /// manner costs no knowledge.
    pub rehearsal_prompts: Vec<String>,
}

impl ModelConfig {
    /// Whether the model in the program is served.
    pub fn is_built_in(&self) -> bool {
        self.engine == Engine::Builtin && self.path.is_empty()
    }

    /// The name in `/v1/models`.
    pub fn served_name(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let folder = std::path::Path::new(&self.path).file_name();
        match (self.engine, folder) {
            (Engine::Null, _) => "hone-null".to_owned(),
            (Engine::Builtin, Some(folder)) => {
                let name = folder.to_string_lossy();
                let name = name.strip_suffix(".gguf").unwrap_or(&name);
                // `NAME@...` names policies; here it is the revision of a hub id.
                name.split('@').next().unwrap_or_default().to_owned()
            }
            (Engine::Builtin, None) => "hone-starter".to_owned(),
        }
    }

    /// Number of compute threads.
    pub fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            n => n,
        }
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        if self.threads > 1_024 {
            return Err("model.threads must be at most 1024".to_owned());
        }
        Ok(())
    }
}

/// Logs.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// What is logged, such as `info` or `warn,hone=debug`.
    pub level: String,
    /// How.
    pub format: LogFormat,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}
