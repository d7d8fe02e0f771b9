//! Tokens of an identity provider (OpenID Connect): bearer JWTs, checked with the provider's
//! published keys. Algorithms are pinned by the configuration; issuer, audience, expiry and
//! subject are required.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hone_domain::{Millis, UserRole};
use jsonwebtoken::jwk::{Jwk, JwkSet, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use reqwest::Url;
use serde_json::{Map, Value};

use crate::config::{OidcConfig, algorithms};
use crate::crypto;
use crate::lock::locked;
use crate::{AuthMethod, Caller, EffectiveLimits};
use hone_net::outbound::Outbound;

/// What the owner of a token's requests begins with; no account's name does.
const OWNER_PREFIX: &str = "oidc:";
/// Most bytes of a token.
const TOKEN_BYTES_MAX: usize = 16_384;
/// Most bytes of an owner's name.
const OWNER_BYTES_MAX: usize = 200;
/// Difference of clocks that is forgiven.
const SKEW_S: u64 = 60;
/// Most time for the provider's keys.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a text can be the owner of a token's requests.
pub fn is_owner(text: &str) -> bool {
    let subject = text.strip_prefix(OWNER_PREFIX);
    subject.is_some_and(|subject| {
        (1..=OWNER_BYTES_MAX).contains(&subject.len()) && !subject.chars().any(char::is_control)
    })
}

/// Checks tokens.
pub struct Tokens {
    config: OidcConfig,
    outbound: Arc<Outbound>,
    jwks_url: Url,
    algorithms: Vec<Algorithm>,
    role: UserRole,
    keys: Mutex<Keys>,
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Keys {
    set: Option<JwkSet>,
    /// When they were last asked for, with success or without.
    asked_ms: Option<Millis>,
}

/// Whether a text has a token's form.
pub fn looks_like_token(text: &str) -> bool {
    text.len() <= TOKEN_BYTES_MAX && text.split('.').count() == 3
}

impl Tokens {
    /// Checks tokens as configured.
    pub fn new(config: OidcConfig, outbound: Arc<Outbound>) -> Result<Self, String> {
        crypto::install();
        Ok(Self {
            algorithms: algorithms(&config.algorithms)?,
            role: UserRole::from_name(&config.role)
                .ok_or_else(|| "people.oidc.role is no role".to_owned())?,
            jwks_url: outbound.url("people.oidc.jwks_url", &config.jwks_url)?,
            outbound,
            config,
            keys: Mutex::new(Keys::default()),
            fetching: tokio::sync::Mutex::new(()),
        })
    }

    /// Takes the provider's keys, a JWKS, as of a time.
    ///
    /// # Errors
    /// What is wrong with them; those that were known go on.
    pub fn take_keys(&self, keys: Value, now_ms: Millis) -> Result<(), serde_json::Error> {
        let set = serde_json::from_value(keys)?;
        *locked(&self.keys) = Keys {
            set: Some(set),
            asked_ms: Some(now_ms),
        };
        Ok(())
    }

    /// Whose token this is; none if it is nobody's. The reason goes to the log, not to the caller.
    pub async fn caller(&self, token: &str, now_ms: Millis) -> Option<Caller> {
        let header = decode_header(token).ok()?;
        if !self.algorithms.contains(&header.alg) {
            tracing::debug!(algorithm = ?header.alg, "a token of another algorithm was refused");
            return None;
        }
        let key = self.key(header.kid.as_deref(), header.alg, now_ms).await?;
        match self.claims(token, &key, header.alg) {
            Ok(claims) => self.caller_of(&claims),
            Err(error) => {
                tracing::debug!(%error, "a token was refused");
                None
            }
        }
    }

    fn claims(
        &self,
        token: &str,
        key: &DecodingKey,
        algorithm: Algorithm,
    ) -> jsonwebtoken::errors::Result<Map<String, Value>> {
        let mut validation = Validation::new(algorithm);
        validation.leeway = SKEW_S;
        validation.validate_nbf = true;
        validation.set_audience(&[&self.config.audience]);
        validation.set_issuer(&[&self.config.issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        decode(token, key, &validation).map(|decoded| decoded.claims)
    }

    fn caller_of(&self, claims: &Map<String, Value>) -> Option<Caller> {
        let owner = claims.get(&self.config.owner_claim)?.as_str()?;
        let is_fit = (1..=OWNER_BYTES_MAX).contains(&owner.len());
        if !is_fit || owner.chars().any(char::is_control) {
            tracing::debug!("a token whose owner claim cannot name an owner was refused");
            return None;
        }
        let named = claims.get(&self.config.role_claim);
        let named = named.and_then(Value::as_str).and_then(UserRole::from_name);
        Some(Caller {
            // No account has a colon in its name, so nobody becomes somebody else.
            owner: format!("{OWNER_PREFIX}{owner}"),
            role: named.unwrap_or(self.role),
            via: AuthMethod::Key,
            allowance: EffectiveLimits::default(),
            despite_store_false: false,
            raw_logprobs: None,
            memory: None,
            acted_by: None,
        })
    }

    /// The provider's key of that id. An unknown id may be a rotated key, so the keys are asked
    /// for again, but at most once in `refetch_ms`; keys that are known go on if that fails.
    async fn key(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        now_ms: Millis,
    ) -> Option<DecodingKey> {
        let known = self.known(id, algorithm);
        if known.is_some() && !self.is_older(self.config.refresh_ms, now_ms) {
            return known;
        }
        let _one = self.fetching.lock().await;
        if self.is_older(self.config.refetch_ms, now_ms) {
            locked(&self.keys).asked_ms = Some(now_ms);
            let fetched = self.outbound.get_json(self.jwks_url.clone(), FETCH_TIMEOUT);
            match fetched.await {
                Err(error) => {
                    tracing::warn!(error, "the identity provider's keys are not to be had");
                }
                Ok(value) => {
                    if let Err(error) = self.take_keys(value, now_ms) {
                        tracing::warn!(%error, "the identity provider's keys are no JWKS");
                    }
                }
            }
        }
        self.known(id, algorithm)
    }

    fn is_older(&self, age_ms: Millis, now_ms: Millis) -> bool {
        let asked_ms = locked(&self.keys).asked_ms;
        asked_ms.is_none_or(|asked_ms| asked_ms + age_ms <= now_ms)
    }

    fn known(&self, id: Option<&str>, algorithm: Algorithm) -> Option<DecodingKey> {
        let keys = locked(&self.keys);
        let set = keys.set.as_ref()?;
        let found = match id {
            Some(id) => set.find(id),
            // Without an id there must be no choice.
            None => set.keys.first().filter(|_| set.keys.len() == 1),
        };
        let key = found.filter(|key| is_for(key, algorithm))?;
        DecodingKey::from_jwk(key).ok()
    }
}

/// Whether the provider says nothing else about what the key is for.
fn is_for(key: &Jwk, algorithm: Algorithm) -> bool {
    let named = key.common.key_algorithm;
    named.is_none_or(|named: KeyAlgorithm| named.to_string() == format!("{algorithm:?}"))
}

#[cfg(test)]
#[path = "oidc_tests.rs"]
mod tests;
