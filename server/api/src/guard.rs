//! Who is calling: a key's owner, or somebody at this machine.
//!
//! Loopback needs no key, so everything that could make a stranger look like loopback is checked:
//! the peer's address, the Host header (a web page whose name resolves to 127.0.0.1), the Origin
//! (a web page in this machine's browser), and the marks of a proxy.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderValue, Method, header};
use hone_domain::{LOCAL_OWNER, RateLimits, UserRole};
use sha2::{Digest as _, Sha256};

use hone_accounts::{AuthMethod, Caller, EffectiveLimits, PeopleConfig};

use crate::config::{HttpConfig, Key};
use hone_accounts::secrets::{looks_like_key, same};
use hone_replies::error::ApiError;

/// A header that a page of another origin cannot send unless this server allows it.
const OWN_HEADER: &str = "x-hone-csrf";

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

/// What decides who is calling.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The bound address is a loopback address.
    pub loopback: bool,
    /// Somebody at this machine has to sign in as well.
    pub sign_in: bool,
    /// Somebody at this machine need not, although there are accounts or keys: nothing passes on to this
    /// server what others send.
    pub trust_loopback: bool,
    /// Proxies: who speaks through one is nobody at this machine.
    pub proxies_trusted: Vec<IpAddr>,
    /// Known keys.
    pub keys: Vec<Key>,
    /// Further host names that count as this machine.
    pub hosts_allowed: Vec<String>,
    /// Web origins whose pages may read answers and, like loopback ones, call without a key.
    pub origins_allowed: Vec<String>,
}

/// The credential that a request presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// Nothing.
    Nothing,
    /// A key, or a token of the identity provider.
    Key(&'a str),
    /// The cookie of a sign-in.
    Cookie(&'a str),
}

/// Name of the sign-in's cookie.
pub const COOKIE: &str = "hone_session";
/// Name of the cookie by which a device is known after its sign-in has ended.
const DEVICE_COOKIE: &str = "hone_device";
/// How long a device is known: half a year.
const DEVICE_AGE_S: u32 = 15_552_000;

/// The credential that a request presents. A key takes precedence over a cookie.
pub fn credential(headers: &HeaderMap) -> Credential<'_> {
    let api_key = headers.get("x-api-key").and_then(|v| v.to_str().ok());
    if let Some(key) = bearer(headers).or(api_key.map(str::trim)) {
        return Credential::Key(key);
    }
    cookie(headers, COOKIE).map_or(Credential::Nothing, Credential::Cookie)
}

/// The device on which a request says that somebody signed in before.
pub fn device(headers: &HeaderMap) -> Option<&str> {
    cookie(headers, DEVICE_COOKIE)
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut pairs = cookies
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    pairs
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value)
}

/// Whether the browser speaks TLS: by the address it is told to use, to this server itself, or to a
/// trusted proxy that says so.
pub fn is_by_tls(
    http: &HttpConfig,
    people: &PeopleConfig,
    peer: IpAddr,
    headers: &HeaderMap,
) -> bool {
    let said = headers.get("x-forwarded-proto").map(HeaderValue::as_bytes);
    people.is_tls()
        || http.tls().is_some()
        || (http.trusts(peer) && said.is_some_and(|said| said.eq_ignore_ascii_case(b"https")))
}

/// Who a request comes from: the peer, or whom trusted proxies name. What stands before that is anybody's
/// word.
pub fn client_of(http: &HttpConfig, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let lines = headers.get_all("x-forwarded-for").iter().rev();
    let mut named = lines.flat_map(|line| line.to_str().unwrap_or_default().rsplit(','));
    let mut client = peer.to_canonical();
    while http.trusts(client) {
        let Some(before) = named.next().and_then(|name| address_in(name.trim())) else {
            break;
        };
        client = before;
    }
    client
}

/// The address in `address`, `address:port` or `[address]:port`.
fn address_in(name: &str) -> Option<IpAddr> {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let with_port = || name.parse::<SocketAddr>().ok().map(|both| both.ip());
    let found: Option<IpAddr> = bare.parse().ok().or_else(with_port);
    found.map(|address| address.to_canonical())
}

/// Tells the browser to drop the cookie.
pub fn ended_cookie() -> HeaderValue {
    HeaderValue::from_static("hone_session=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0")
}

/// Hands the browser its cookie; with `by_tls` it is never sent in the open.
pub fn fresh_cookie(token: &str, config: &PeopleConfig, by_tls: bool) -> Option<HeaderValue> {
    let secure = if by_tls { "; Secure" } else { "" };
    let age_s = config.session_absolute_ms / 1_000;
    let cookie =
        format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age_s}{secure}");
    HeaderValue::from_str(&cookie).ok()
}

/// Hands the browser the cookie of its device, which is sent where somebody signs in and nowhere else.
pub fn device_cookie(token: &str, by_tls: bool) -> Option<HeaderValue> {
    let secure = if by_tls { "; Secure" } else { "" };
    let cookie = format!(
        "{DEVICE_COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/v1/auth; Max-Age={DEVICE_AGE_S}{secure}"
    );
    HeaderValue::from_str(&cookie).ok()
}

impl Guard {
    /// Decides, given whom the key or cookie was found to belong to; the error says what to do.
    /// `strict` is false where no key, no account and no identity provider exists at all: then a
    /// placeholder that a program sends because its library demands a key is no key, and whoever is at
    /// this machine needs none.
    pub fn admit(
        &self,
        (peer, method, headers): (IpAddr, &Method, &HeaderMap),
        (credential, found): (Credential<'_>, Option<Caller>),
        strict: bool,
    ) -> Result<Caller, ApiError> {
        let local = || self.local(peer, method, headers, strict && !self.trust_loopback);
        if let Some(caller) = found {
            return Ok(caller);
        }
        match credential {
            Credential::Nothing => local(),
            Credential::Cookie(_) => Err(ApiError::Credentials {
                code: "signed_out",
                message: "this sign-in has ended; sign in again".to_owned(),
            }),
            Credential::Key(key) if !strict && self.loopback && !looks_like_key(key) => local(),
            Credential::Key(_) => Err(ApiError::Unauthorized(
                "this API key is not known here, or it has expired or was revoked".to_owned(),
            )),
        }
    }

    /// Whoever sends neither key nor cookie is somebody at this machine, or nobody.
    /// Where somebody has an account or a key, so does whoever is at this machine: a proxy that passes on
    /// what others send need not say so, and then looks the same.
    fn local(
        &self,
        peer: IpAddr,
        method: &Method,
        headers: &HeaderMap,
        is_inhabited: bool,
    ) -> Result<Caller, ApiError> {
        if is_inhabited && self.loopback && peer.is_loopback() && !self.sign_in {
            return Err(ApiError::Unauthorized(
                "somebody has an account or a key here, so this machine needs one as well: sign in on the page, or send the header Authorization: Bearer KEY (hone key add local --role admin makes one)"
                    .to_owned(),
            ));
        }
        if !self.loopback || !peer.is_loopback() || self.sign_in {
            return Err(ApiError::Unauthorized(
                "this address needs an API key or a sign-in: send the header Authorization: Bearer KEY, or sign in on the page"
                    .to_owned(),
            ));
        }
        if self.proxies_trusted.contains(&peer.to_canonical()) {
            return Err(forbidden(
                "forwarded",
                "a proxy (http.proxies_trusted) sent this request, so it does not count as loopback; make a key (hone key add) and send it as a Bearer token"
                    .to_owned(),
            ));
        }
        if let Some(name) = FORWARDED.iter().find(|name| headers.contains_key(**name)) {
            return Err(forbidden(
                "forwarded",
                format!(
                    "the header {name} says that this request was forwarded, so it does not count as loopback; make a key (hone key add) and send it as a Bearer token"
                ),
            ));
        }
        self.check_host(headers)?;
        self.check_origin(headers)?;
        if ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method) {
            self.check_page(headers)?;
        }
        Ok(Caller {
            owner: LOCAL_OWNER.to_owned(),
            role: UserRole::Admin,
            via: AuthMethod::Loopback,
            allowance: EffectiveLimits::default(),
            despite_store_false: false,
            raw_logprobs: None,
            memory: None,
            acted_by: None,
        })
    }

    /// Whose key of the configuration this is.
    pub fn find(&self, sent: &str) -> Option<Caller> {
        let sent: [u8; 32] = Sha256::digest(sent.as_bytes()).into();
        // Hashes of two secrets are compared without an early end; every key is looked at.
        let found = self.keys.iter().rev().fold(None, |found, key| {
            if same(&key.sha256.0, &sent) {
                Some(key)
            } else {
                found
            }
        });
        found.map(|key| Caller {
            owner: key.owner.clone(),
            role: key.role,
            via: AuthMethod::Key,
            allowance: EffectiveLimits {
                key: Some((key.public_part(), RateLimits::default())),
                ..EffectiveLimits::default()
            },
            despite_store_false: false,
            raw_logprobs: None,
            memory: None,
            acted_by: None,
        })
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
        if self.allows_origin(origin)
            || host.is_some_and(|host| self.is_this_machine(host_name(host)))
        {
            return Ok(());
        }
        Err(other_origin(origin))
    }

    /// What changes something comes from this server's own page, scheme and port included, from no page at
    /// all, or with a header that a page of another origin cannot send without being asked first.
    fn check_page(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(origin) = headers.get(header::ORIGIN) else {
            return Ok(());
        };
        let origin = origin.to_str().unwrap_or_default();
        let host = headers.get(header::HOST).and_then(|v| v.to_str().ok());
        let own = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        let is_own = own.is_some() && own == host;
        if is_own || self.allows_origin(origin) || headers.contains_key(OWN_HEADER) {
            return Ok(());
        }
        Err(other_origin(origin))
    }

    /// Whether the configuration lets pages of this origin call.
    pub fn allows_origin(&self, origin: &str) -> bool {
        self.origins_allowed.iter().any(|allowed| allowed == origin)
    }

    /// The Host header as the address of a link: only a name that this server is known under, whatever a
    /// client or a proxy says.
    pub fn known_host<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let host = headers.get(header::HOST)?.to_str().ok()?;
        let is_plain = host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-.:[]".contains(&b));
        (is_plain && self.is_this_machine(host_name(host))).then_some(host)
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
        let is_port = |end: &str| {
            let port = end
                .strip_prefix(':')
                .unwrap_or(if end.is_empty() { "" } else { "?" });
            port.bytes().all(|b| b.is_ascii_digit())
        };
        return match rest.split_once(']') {
            Some((name, end)) if is_port(end) => name,
            _ => host,
        };
    }
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}
