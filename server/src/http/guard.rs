//! Who is calling: a key's owner, or somebody at this machine.
//!
//! Loopback needs no key, so everything that could make a stranger look like loopback is checked:
//! the peer's address, the Host header (a web page whose name resolves to 127.0.0.1), the Origin
//! (a web page in this machine's browser), and the marks of a proxy.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderValue, header};
use hone_domain::{Digest, UserRole};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use crate::http::error::ApiError;

/// The owner of everything that loopback sends without a key.
pub const LOCAL_OWNER: &str = "local";

/// Marks of a proxy.
const FORWARDED: &[&str] = &[
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-port",
    "x-forwarded-server",
    "x-real-ip",
    "via",
];

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

/// What decides who is calling.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The bound address is a loopback address.
    pub loopback: bool,
    /// Known keys.
    pub keys: Vec<Key>,
    /// Further host names that count as this machine.
    pub hosts_allowed: Vec<String>,
    /// Web origins, besides loopback ones, whose pages may call without a key.
    pub origins_allowed: Vec<String>,
}

/// How a caller is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// By being at this machine.
    Loopback,
    /// By an API key or a token of the identity provider.
    Key,
    /// By the cookie of a sign-in.
    Session,
}

/// Who is calling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Owner of the key, name of the user, or `local`.
    pub owner: String,
    /// What they may do.
    pub role: UserRole,
    /// How they are known.
    pub via: Via,
}

impl Caller {
    /// Whoever calls what is open to everybody; owns nothing.
    pub fn stranger() -> Self {
        Self {
            owner: String::new(),
            role: UserRole::User,
            via: Via::Loopback,
        }
    }
}

impl Guard {
    /// Decides; the error says what to do.
    pub fn admit(&self, peer: IpAddr, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let sent = bearer(headers);
        if let Some(key) = sent.and_then(|sent| self.find(sent)) {
            return Ok(Caller {
                owner: key.owner.clone(),
                role: key.role,
                via: Via::Key,
            });
        }
        if !self.loopback || !peer.is_loopback() {
            return Err(ApiError::Unauthorized(
                if sent.is_some() {
                    "this API key is not known here"
                } else {
                    "this address needs an API key: send the header Authorization: Bearer KEY"
                }
                .to_owned(),
            ));
        }
        if let Some(name) = FORWARDED.iter().find(|name| headers.contains_key(**name)) {
            return Err(forbidden(
                "forwarded",
                format!(
                    "the header {name} says that this request was forwarded, so it does not count as loopback; configure http.keys and send one as a Bearer token"
                ),
            ));
        }
        self.check_host(headers)?;
        self.check_origin(headers)?;
        Ok(Caller {
            owner: LOCAL_OWNER.to_owned(),
            role: UserRole::Admin,
            via: Via::Loopback,
        })
    }

    fn find(&self, sent: &str) -> Option<&Key> {
        let sent: [u8; 32] = Sha256::digest(sent.as_bytes()).into();
        // Hashes of two secrets are compared without an early end; every key is looked at.
        let same = |key: &Key| {
            key.sha256
                .0
                .iter()
                .zip(&sent)
                .fold(0, |d, (a, b)| d | (a ^ b))
                == 0
        };
        self.keys
            .iter()
            .rev()
            .fold(None, |found, key| if same(key) { Some(key) } else { found })
    }

    fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let host = headers
            .get(header::HOST)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        if self.is_this_machine(host_name(host)) {
            return Ok(());
        }
        Err(forbidden(
            "host_not_allowed",
            format!(
                "the Host header {host:?} does not name this machine; use 127.0.0.1 or localhost, or add the name to http.hosts_allowed"
            ),
        ))
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(origin) = headers.get(header::ORIGIN) else {
            let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
            if site == Some(b"cross-site") {
                return Err(other_origin("another site"));
            }
            return Ok(());
        };
        let origin = origin.to_str().unwrap_or_default();
        let host = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        if self.origins_allowed.iter().any(|o| o == origin)
            || host.is_some_and(|host| self.is_this_machine(host_name(host)))
        {
            return Ok(());
        }
        Err(other_origin(origin))
    }

    fn is_this_machine(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.');
        let is_loopback = name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        is_loopback
            || name.eq_ignore_ascii_case("localhost")
            || self
                .hosts_allowed
                .iter()
                .any(|h| h.eq_ignore_ascii_case(name))
    }
}

fn forbidden(code: &'static str, message: String) -> ApiError {
    ApiError::Forbidden { code, message }
}

fn other_origin(origin: &str) -> ApiError {
    forbidden(
        "origin_not_allowed",
        format!(
            "a web page of {origin:?} may not call this server; add it to http.origins_allowed if it should"
        ),
    )
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// The name in `name:port` or `[address]:port`.
fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Refuses addresses that would be open to strangers.
pub fn check_bind(bind: SocketAddr, has_keys: bool) -> Result<(), String> {
    if bind.ip().is_loopback() || has_keys {
        return Ok(());
    }
    Err(format!(
        "http.bind is {bind}, which other machines can reach, but no key is configured, so anybody could use and train this server. \
         Bind to 127.0.0.1, or add a key to the configuration file: [[http.keys]] with owner = \"NAME\" and sha256 = \"...\" \
         (make one: KEY=$(openssl rand -hex 32); printf %s \"$KEY\" | sha256sum)"
    ))
}
