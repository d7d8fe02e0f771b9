//! Tokens of an identity provider that is played here.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::json;

use super::*;
use crate::defaults::defaults;

/// The modulus of an RSA key that was made for this test, and a token signed by it with RS256:
/// issuer `https://id.example`, audience `hone`, subject `ann`, good until the year 2100.
const RSA_MODULUS: &[&str] = &[
    "6nzhwb0DcSvFvbLfS32YIocibcTAeUrCP9V_CuKGaW-iI8VPxN41nuOohdhSdBwtqONkD3tSgJqPqPnDL07g",
    "eoWA9HpdJYZjIsLo7AgakOlgDEIAEonknfIvzGFCdI-uFykhEi6R6AMk5VcgD6QAFZY2A9EHbx74vSZzB52d",
    "Qa5jjnicQ1k2aRjyk5_jQdas45AifXPFWPRlbfrTZEYGRy8MQEL6-oEGvOABoV6u4sO4ojWTlgL_O8LdlGs_",
    "zTW5xwxQ5wS2NPjKA6IbQOINdjDtsDhu5lPjvCi3JW-7LBVflZvYm5DiZAmujDYIGl9d6aQJYgzyxi7a9_TP",
    "KohcSw",
];
const RSA_TOKEN: &[&str] = &[
    "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSJ9.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUiLCJhdWQiOiJ",
    "ob25lIiwic3ViIjoiYW5uIiwiZXhwIjo0MTAyNDQ0ODAwfQ.mhGggRFzvR9DBE_3kRuvkKjdvFmI47C-0ip_",
    "GSZYf11JobIAjkm44vKvKsjarlB6uIIgQYCoC7YKUJ4XUmCLUw2W-TK9DYwbQM9B8BQl-SaTh9jVZhQ3G_bj",
    "4uSju1MvtaeP3umME1RSFvkQCevMnCBmbX7Vqcp5-DprqdFVM_Jp-3_RhsOAjgtGCSYonnMtDc0zdciFYKd7",
    "2sG5AOqN0Wqt7lKeO5W7AIL7pVAmfOWvCMGGcWgMfWn9Jqhchar_M3X-_c_BzZWXKhMbmVwV4Bi3S0D7C6BW",
    "Go-M5BNsO6b5bGwSRtu3jOnbeC8jlZHBnnBgHU4wPUr99ltHXwP__Q",
];

/// A key pair of the provider.
struct Signer {
    id: &'static str,
    pair: EcdsaKeyPair,
}

impl Signer {
    fn new(id: &'static str) -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let secret = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, secret.as_ref(), &random).unwrap();
        Self { id, pair }
    }

    fn published(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        json!({
            "kty": "EC", "crv": "P-256", "kid": self.id, "alg": "ES256", "use": "sig",
            "x": BASE64.encode(&point[1..33]), "y": BASE64.encode(&point[33..65]),
        })
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes());
        format!("{message}.{}", BASE64.encode(signature.unwrap()))
    }

    fn good(&self, claims: &Value) -> String {
        self.token(&json!({"alg": "ES256", "kid": self.id}), claims)
    }
}

fn now_s() -> i64 {
    i64::try_from(jsonwebtoken::get_current_timestamp()).unwrap()
}

fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "iss": "https://id.example", "aud": "hone", "sub": "ann", "exp": now_s() + 300,
    });
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

/// A provider whose keys can be exchanged; counts how often they were asked for.
struct Provider {
    keys: Arc<Mutex<Value>>,
    asked: Arc<AtomicUsize>,
    tokens: Tokens,
}

impl Provider {
    async fn new(keys: Value) -> Self {
        let (keys, asked) = (Arc::new(Mutex::new(keys)), Arc::new(AtomicUsize::new(0)));
        let (served, counted) = (keys.clone(), asked.clone());
        let answer = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let keys = locked(&served).clone();
            async move { Json(json!({"keys": keys})) }
        };
        let router = Router::new().route("/keys", get(answer));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let jwks_url = format!("http://{}/keys", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let config = OidcConfig {
            issuer: "https://id.example".to_owned(),
            audience: "hone".to_owned(),
            jwks_url,
            algorithms: vec!["ES256".to_owned(), "RS256".to_owned()],
            owner_claim: "sub".to_owned(),
            role_claim: "hone_role".to_owned(),
            role: "user".to_owned(),
            refresh_ms: 3_600_000,
            refetch_ms: 60_000,
        };
        let outbound = Arc::new(Outbound::new(&defaults("outbound")).unwrap());
        Self {
            keys,
            asked,
            tokens: Tokens::new(config, outbound).unwrap(),
        }
    }

    async fn owner(&self, token: &str, now_ms: Millis) -> Option<String> {
        let caller = self.tokens.caller(token, now_ms).await;
        caller.map(|caller| format!("{} {}", caller.owner, caller.role.as_str()))
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn claims_are_checked_with_a_minute_of_skew() {
    let signer = Signer::new("k1");
    let provider = Provider::new(json!([signer.published()])).await;
    let ann = Some("oidc:ann user");
    let rows = [
        (json!({}), ann),
        (json!({"aud": ["other", "hone"]}), ann),
        (json!({"hone_role": "auditor"}), Some("oidc:ann auditor")),
        (json!({"hone_role": "god"}), ann),
        (json!({"exp": now_s() - 30}), ann),
        (json!({"nbf": now_s() + 30}), ann),
        (json!({"exp": now_s() - 90}), None),
        (json!({"nbf": now_s() + 90}), None),
        (json!({"exp": null}), None),
        (json!({"aud": "other"}), None),
        (json!({"aud": null}), None),
        (json!({"iss": "https://evil.example"}), None),
        (json!({"iss": null}), None),
        (json!({"sub": null}), None),
        (json!({"sub": ""}), None),
        (json!({"sub": "a\nb"}), None),
        (json!({"sub": "x".repeat(201)}), None),
    ];
    for (changes, wanted) in rows {
        let owner = provider.owner(&signer.good(&claims(&changes)), 0).await;
        assert_eq!(owner.as_deref(), wanted, "{changes}");
    }
    assert_eq!(provider.asked(), 1, "the keys are asked for once");
}

#[tokio::test]
async fn only_pinned_algorithms_and_the_keys_own_family_count() {
    let signer = Signer::new("k1");
    let rsa = json!({"kty": "RSA", "kid": "rsa", "e": "AQAB", "n": RSA_MODULUS.concat()});
    let provider = Provider::new(json!([signer.published(), rsa])).await;
    let rsa_token = RSA_TOKEN.concat();
    assert_eq!(
        provider.owner(&rsa_token, 0).await.as_deref(),
        Some("oidc:ann user")
    );
    let cut = &rsa_token[..rsa_token.len() - 8];
    assert_eq!(provider.owner(&format!("{cut}AAAAAAAA"), 0).await, None);
    let good = claims(&json!({}));
    for header in [
        json!({"alg": "none", "kid": "k1"}),
        json!({"alg": "HS256", "kid": "k1"}),
        json!({"alg": "ES384", "kid": "k1"}),
        json!({"alg": "RS256", "kid": "k1"}),
        json!({"alg": "ES256", "kid": "rsa"}),
        json!({"alg": "ES256"}),
    ] {
        assert_eq!(
            provider.owner(&signer.token(&header, &good), 0).await,
            None,
            "{header}"
        );
    }
    let stranger = Signer::new("k1");
    assert_eq!(provider.owner(&stranger.good(&good), 0).await, None);
    let (head, tail) = rsa_token.split_once('.').unwrap();
    for broken in ["", "..", "a.b.c", head, tail] {
        assert_eq!(provider.owner(broken, 0).await, None, "{broken:?}");
    }
    assert!(algorithms(&["HS256".to_owned()]).is_err());
}

#[tokio::test]
async fn keys_rotate_and_strangers_cannot_make_us_ask_all_the_time() {
    let (first, second) = (Signer::new("k1"), Signer::new("k2"));
    let provider = Provider::new(json!([first.published()])).await;
    let good = claims(&json!({}));
    assert!(provider.owner(&first.good(&good), 0).await.is_some());
    *locked(&provider.keys) = json!([second.published()]);
    for _ in 0..5 {
        assert!(provider.owner(&second.good(&good), 59_999).await.is_none());
    }
    assert_eq!(provider.asked(), 1, "at most once a minute");
    assert!(provider.owner(&second.good(&good), 60_000).await.is_some());
    assert!(
        provider.owner(&first.good(&good), 60_001).await.is_none(),
        "withdrawn"
    );
    assert_eq!(provider.asked(), 2);
    // Keys that are not to be had for a while go on with what is known.
    *locked(&provider.keys) = json!("nonsense");
    assert!(
        provider
            .owner(&second.good(&good), 4_000_000)
            .await
            .is_some()
    );
    assert_eq!(provider.asked(), 3);
}
