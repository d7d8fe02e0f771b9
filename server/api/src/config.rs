//! The section `http` of the configuration. Defaults stand in `configs/default.toml`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hone_domain::{Digest, Millis, SessionIndexConfig, UserRole};
use hone_inference::Limits;
use hone_ledger::AnswerLimits;
use hone_net::listen::ListenLimits;
use hone_net::tls::TlsFiles;
use reqwest::Url;
use serde::{Deserialize, Serialize};

use hone_api_types::capture::is_raw;

/// The HTTP server.
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
    /// Most continuations of branches that are computed at once; more wait.
    pub branches_max: usize,
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

    /// Bounds of inference.
    pub fn inference_limits(&self) -> Limits {
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

    /// Whether the values fit together.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
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
            ("branches_max", self.branches_max as u64),
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

/// Digits of a configured key's hash that tell it from others.
const PUBLIC_DIGITS: usize = 16;

/// A known key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Whose.
    pub owner: String,
    /// SHA-256 of the key.
    pub sha256: Digest,
    /// What it may do.
    pub role: UserRole,
}

impl Key {
    /// What tells it from other keys and may be shown: begin of its hash.
    pub(crate) fn public_part(&self) -> String {
        let hash = self.sha256.to_string();
        format!("sha256-{}", &hash[..PUBLIC_DIGITS])
    }
}
