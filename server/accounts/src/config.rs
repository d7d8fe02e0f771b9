//! Accounts, keys, sign-ins, and the limits of callers.

use std::net::IpAddr;

use hone_domain::{Millis, RateLimits, UserRole};
use jsonwebtoken::Algorithm;
use reqwest::Url;
use serde::{Deserialize, Serialize};

use hone_net::outbound::guard::is_localhost;

/// Accounts, keys, sign-ins. Defaults stand in `configs/default.toml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PeopleConfig {
    /// Whether loopback needs a key or a sign-in as well; it does where `public_url` leads elsewhere,
    /// whatever stands here.
    pub sign_in: bool,
    /// Whether who calls from this machine needs neither although there are accounts or keys.
    pub trust_loopback: bool,
    /// Whether a start on a public address without any account or key prints a link that makes the
    /// first admin; without, such a start is refused.
    pub first_admin_link: bool,
    /// How the page is reached from outside, such as `https://hone.example`; empty takes the
    /// request's own.
    pub public_url: String,
    /// Longest that a sign-in may go unused, in milliseconds.
    pub session_idle_ms: Millis,
    /// Longest sign-in, in milliseconds.
    pub session_absolute_ms: Millis,
    /// How long an invitation is valid, in milliseconds.
    pub invite_ms: Millis,
    /// How long a rotated key goes on beside its successor, in milliseconds.
    pub key_overlap_ms: Millis,
    /// Most keys of one owner that are neither revoked nor expired.
    pub keys_per_owner_max: usize,
    /// Most agents of one person or team.
    pub agents_per_keeper_max: usize,
    /// Most failed passwords of one name in a window; of one address five times as many.
    pub attempts_max: u32,
    /// The window, in milliseconds.
    pub attempts_window_ms: Millis,
    /// Most verified keys and sign-ins remembered, and names and addresses counted; beyond, the
    /// longest unused go.
    pub remembered_max: usize,
    /// Most passwords hashed at once.
    pub hashing_parallel: usize,
    /// How often changes of other processes are looked for, in milliseconds.
    pub look_ms: u64,
    /// How long whoever the store knew is still known while it does not answer, in milliseconds.
    pub away_ms_max: i64,
    /// Tokens of an identity provider; none are taken without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc: Option<OidcConfig>,
}

/// Tokens of an identity provider. Defaults stand in `configs/oidc.toml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OidcConfig {
    /// The claim `iss`.
    pub issuer: String,
    /// The claim `aud`.
    pub audience: String,
    /// Where the provider's keys are.
    pub jwks_url: String,
    /// Signatures that are taken.
    pub algorithms: Vec<String>,
    /// The claim that names the owner.
    pub owner_claim: String,
    /// The claim that names the role.
    pub role_claim: String,
    /// The role where that claim names none.
    pub role: String,
    /// After how long the keys are asked for again, in milliseconds.
    pub refresh_ms: Millis,
    /// How often at most because of an unknown key, in milliseconds.
    pub refetch_ms: Millis,
}

impl OidcConfig {
    fn validate(&self) -> Result<(), String> {
        let texts = [
            ("issuer", &self.issuer),
            ("audience", &self.audience),
            ("jwks_url", &self.jwks_url),
            ("owner_claim", &self.owner_claim),
        ];
        if let Some((key, _)) = texts.iter().find(|(_, text)| text.is_empty()) {
            return Err(format!("people.oidc.{key} must not be empty"));
        }
        if !is_https_or_here(&self.jwks_url) {
            return Err(
                "people.oidc.jwks_url begins with https://: who can change what is read there can sign in as anybody"
                    .to_owned(),
            );
        }
        if algorithms(&self.algorithms)?.is_empty() {
            return Err("people.oidc.algorithms must name at least one".to_owned());
        }
        if UserRole::from_name(&self.role).is_none() {
            return Err("people.oidc.role is one of user, developer, auditor, admin".to_owned());
        }
        if self.refresh_ms < 1 || self.refetch_ms < 1_000 {
            return Err(
                "people.oidc.refetch_ms must be at least 1000, and refresh_ms at least 1"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// The algorithms of those names; an error names one that is not taken. Shared secrets never are.
pub(crate) fn algorithms(names: &[String]) -> Result<Vec<Algorithm>, String> {
    let known = [
        ("RS256", Algorithm::RS256),
        ("RS384", Algorithm::RS384),
        ("RS512", Algorithm::RS512),
        ("PS256", Algorithm::PS256),
        ("PS384", Algorithm::PS384),
        ("PS512", Algorithm::PS512),
        ("ES256", Algorithm::ES256),
        ("ES384", Algorithm::ES384),
        ("EdDSA", Algorithm::EdDSA),
    ];
    let of = |name: &String| {
        let found = known.iter().find(|(known, _)| known == name);
        found.map(|(_, algorithm)| *algorithm).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            format!(
                "people.oidc.algorithms names {name:?}; it may name {}",
                names.join(", ")
            )
        })
    };
    names.iter().map(of).collect()
}

/// Whether an address is this machine's.
fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    match address {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => is_localhost(host),
    }
}

/// Nobody between here and there can change what is read.
fn is_https_or_here(url: &str) -> bool {
    let url = Url::parse(url).ok();
    url.is_some_and(|url| match url.scheme() {
        "https" => true,
        "http" => is_here(&url),
        _ => false,
    })
}

impl PeopleConfig {
    /// Whether the page is reached by TLS, so that cookies may say so.
    pub fn is_tls(&self) -> bool {
        self.public_url.starts_with("https://")
    }

    /// Whether loopback needs a key or a sign-in as well. What a proxy on this machine passes on comes
    /// from loopback too, and it need not say so.
    pub fn asks_everybody(&self) -> bool {
        self.sign_in || self.is_published()
    }

    /// Whether the page is reached under a name that is not this machine's own.
    pub fn is_published(&self) -> bool {
        let url = Url::parse(&self.public_url).ok();
        url.is_some_and(|url| !is_here(&url))
    }

    /// Whether the values fit together.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
        let url = &self.public_url;
        let is_web = url.starts_with("http://") || url.starts_with("https://");
        if !url.is_empty() && (!is_web || Url::parse(url).is_err()) {
            return Err(format!(
                "people.public_url is {url:?}; it is an address such as https://hone.example"
            ));
        }
        let counts = [
            ("session_idle_ms", self.session_idle_ms),
            ("session_absolute_ms", self.session_absolute_ms),
            ("invite_ms", self.invite_ms),
            ("attempts_max", i64::from(self.attempts_max)),
            ("attempts_window_ms", self.attempts_window_ms),
            ("remembered_max", self.remembered_max as i64),
            ("hashing_parallel", self.hashing_parallel as i64),
            ("look_ms", self.look_ms as i64),
        ];
        if let Some((key, _)) = counts.iter().find(|(_, value)| *value <= 0) {
            return Err(format!("people.{key} must be at least 1"));
        }
        if self.away_ms_max < 0 {
            return Err("people.away_ms_max must not be negative".to_owned());
        }
        if let Some(oidc) = &self.oidc {
            oidc.validate()?;
        }
        if self.attempts_max > 1_000_000 {
            return Err("people.attempts_max must be at most 1000000".to_owned());
        }
        if self.key_overlap_ms < 0 {
            return Err("people.key_overlap_ms must be at least 0".to_owned());
        }
        Ok(())
    }
}

/// Limits of one key, of one owner's keys together, or of a team. 0 is no limit.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSet {
    /// Most completion requests in a minute.
    pub requests_per_minute: u64,
    /// Most tokens in a minute, prompts and completions together.
    pub tokens_per_minute: u64,
    /// Most tokens in a day.
    pub tokens_per_day: u64,
    /// Most completion requests at once.
    pub streams_max: u64,
}

impl LimitSet {
    /// The same as exceptions are written.
    pub fn rates(self) -> RateLimits {
        RateLimits {
            requests_per_minute: Some(self.requests_per_minute),
            tokens_per_minute: Some(self.tokens_per_minute),
            tokens_per_day: Some(self.tokens_per_day),
            streams_max: Some(self.streams_max),
        }
    }
}

/// Limits of callers. Defaults stand in `configs/default.toml`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Of one key.
    pub key: LimitSet,
    /// Of all requests of one owner.
    pub owner: LimitSet,
    /// Of all requests of a team's members and agents together.
    pub team: LimitSet,
    /// Most keys, owners and teams counted.
    pub counted_max: usize,
}

impl LimitsConfig {
    /// Whether the values fit together.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
        if self.counted_max == 0 {
            return Err("limits.counted_max must be at least 1".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_an_identity_provider_come_by_https_or_from_this_machine() {
        let rows = [
            ("https://id.example/keys", true),
            ("HTTPS://id.example/keys", true),
            ("http://127.0.0.1:8080/keys", true),
            ("http://localhost/keys", true),
            ("http://[::1]:8080/keys", true),
            ("http://id.example/keys", false),
            ("http://192.168.1.2/keys", false),
            ("http://127.0.0.1.id.example/keys", false),
            ("http://127.0.0.1@id.example/keys", false),
            ("http://localhost.id.example/keys", false),
            ("ftp://127.0.0.1/keys", false),
            ("id.example/keys", false),
        ];
        for (jwks_url, good) in rows {
            let config = OidcConfig {
                issuer: "https://id.example".to_owned(),
                audience: "hone".to_owned(),
                jwks_url: jwks_url.to_owned(),
                algorithms: vec!["ES256".to_owned()],
                owner_claim: "sub".to_owned(),
                role_claim: "hone_role".to_owned(),
                role: "user".to_owned(),
                refresh_ms: 3_600_000,
                refetch_ms: 60_000,
            };
            let checked = config.validate();
            assert_eq!(checked.is_ok(), good, "{jwks_url}: {checked:?}");
            if let Err(error) = checked {
                assert!(error.starts_with("people.oidc.jwks_url"), "{error}");
            }
        }
    }
}
