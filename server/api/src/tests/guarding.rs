//! Who may call.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method};
use hone_domain::{Digest, UserRole};
use sha2::{Digest as _, Sha256};

use crate::Key;
use crate::defaults::defaults;
use crate::guard::{Credential, Guard, client_of, credential, fresh_cookie, is_by_tls};
use crate::testing::{Recorder, Stage, http_config, read, request};
use hone_accounts::PeopleConfig;

fn guard(loopback: bool) -> Guard {
    let key = |owner: &str, text: &str, role| Key {
        owner: owner.to_owned(),
        sha256: Digest(Sha256::digest(text).into()),
        role,
    };
    Guard {
        loopback,
        sign_in: false,
        trust_loopback: true,
        proxies_trusted: vec!["127.0.0.7".parse().unwrap()],
        keys: vec![
            key("alice", "a-key", UserRole::Developer),
            key("root", "r-key", UserRole::Admin),
        ],
        hosts_allowed: vec!["box.lan".to_owned()],
        origins_allowed: vec!["https://app.example".to_owned()],
    }
}

fn admit(
    guard: &Guard,
    peer: &str,
    headers: &[(&'static str, &str)],
) -> Result<(String, bool), String> {
    admit_to(&Method::GET, guard, peer, headers)
}

fn admit_to(
    method: &Method,
    guard: &Guard,
    peer: &str,
    headers: &[(&'static str, &str)],
) -> Result<(String, bool), String> {
    let mut map = HeaderMap::new();
    map.insert("host", "127.0.0.1:8080".parse().unwrap());
    for (name, value) in headers {
        map.insert(*name, value.parse().unwrap());
    }
    let peer: IpAddr = peer.parse().unwrap();
    let credential = credential(&map);
    let found = match credential {
        Credential::Key(key) => guard.find(key),
        _ => None,
    };
    guard
        .admit(
            (peer, method, &map),
            (credential, found),
            !guard.keys.is_empty(),
        )
        .map(|caller| (caller.owner, caller.role == UserRole::Admin))
        .map_err(|error| error.class().2.to_owned())
}

#[test]
fn loopback_needs_no_key_and_nothing_else_looks_like_loopback() {
    type Row = (
        &'static [(&'static str, &'static str)],
        Result<(&'static str, bool), &'static str>,
    );
    let local = Ok(("local", true));
    let unknown = Err("invalid_api_key");
    let rows: &[Row] = &[
        (&[], local),
        (&[("authorization", "Bearer sk-anything")], unknown),
        (&[("x-api-key", "sk-anything")], unknown),
        (&[("cookie", "hone_session=x")], Err("signed_out")),
        (&[("cookie", "other=x")], local),
        (&[("x-api-key", "a-key")], Ok(("alice", false))),
        (
            &[("cookie", "a=b; hone_session=x"), ("x-api-key", "a-key")],
            Ok(("alice", false)),
        ),
        (&[("host", "localhost")], local),
        (&[("host", "localhost:8080")], local),
        (&[("host", "[::1]:8080")], local),
        (&[("host", "127.8.8.8")], local),
        (&[("host", "BOX.lan:80")], local),
        (&[("host", "evil.example")], Err("host_not_allowed")),
        (
            &[("host", "127.0.0.1.evil.example")],
            Err("host_not_allowed"),
        ),
        (
            &[("host", "localhost.evil.example")],
            Err("host_not_allowed"),
        ),
        (&[("host", "10.0.0.1")], Err("host_not_allowed")),
        (&[("host", "[::1].evil.example")], Err("host_not_allowed")),
        (&[("host", "[::1]:80.evil")], Err("host_not_allowed")),
        (&[("host", "[::1")], Err("host_not_allowed")),
        (&[("host", "")], Err("host_not_allowed")),
        (&[("origin", "http://localhost:3000")], local),
        (&[("origin", "https://app.example")], local),
        (
            &[("origin", "https://evil.example")],
            Err("origin_not_allowed"),
        ),
        (&[("origin", "null")], Err("origin_not_allowed")),
        (
            &[("origin", "http://localhost.evil.example")],
            Err("origin_not_allowed"),
        ),
        (
            &[("sec-fetch-site", "cross-site")],
            Err("origin_not_allowed"),
        ),
        (&[("x-forwarded-for", "1.2.3.4")], Err("forwarded")),
        (&[("forwarded", "for=1.2.3.4")], Err("forwarded")),
        (&[("x-real-ip", "127.0.0.1")], Err("forwarded")),
        (
            &[
                ("x-forwarded-for", "1.2.3.4"),
                ("authorization", "Bearer a-key"),
            ],
            Ok(("alice", false)),
        ),
        (&[("authorization", "bearer r-key")], Ok(("root", true))),
    ];
    for (headers, wanted) in rows {
        let got = admit(&guard(true), "127.0.0.1", headers);
        let wanted = wanted
            .map(|(owner, admin)| (owner.to_owned(), admin))
            .map_err(str::to_owned);
        assert_eq!(got, wanted, "{headers:?}");
    }
}

/// A proxy on this machine need not say that it is one (nginx does not by default): what it passes on
/// looks like this machine's own.
#[test]
fn this_machine_needs_credentials_once_there_are_any() {
    let mut asks = guard(true);
    asks.trust_loopback = false;
    assert_eq!(
        admit(&asks, "127.0.0.1", &[]),
        Err("invalid_api_key".to_owned())
    );
    let key = [("x-api-key", "r-key")];
    assert_eq!(
        admit(&asks, "127.0.0.1", &key),
        Ok(("root".to_owned(), true))
    );
    asks.keys.clear();
    assert_eq!(
        admit(&asks, "127.0.0.1", &[]),
        Ok(("local".to_owned(), true)),
        "nobody has an account or a key yet"
    );
}

/// A page of another program at this machine is another origin: its port differs.
#[test]
fn what_changes_something_comes_from_the_own_page() {
    let local = Ok(("local".to_owned(), true));
    let refused = Err("origin_not_allowed".to_owned());
    let rows: [(&[(&'static str, &str)], _); 8] = [
        (&[], &local),
        (&[("origin", "http://127.0.0.1:8080")], &local),
        (&[("origin", "http://127.0.0.1:3000")], &refused),
        (&[("origin", "http://localhost:8080")], &refused),
        (&[("origin", "http://127.0.0.1")], &refused),
        (&[("origin", "https://app.example")], &local),
        (
            &[("origin", "http://127.0.0.1:3000"), ("x-hone-csrf", "1")],
            &local,
        ),
        (&[("origin", "null"), ("x-hone-csrf", "1")], &refused),
    ];
    for (headers, wanted) in rows {
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            let got = admit_to(&method, &guard(true), "127.0.0.1", headers);
            assert_eq!(got, *wanted, "{method} {headers:?}");
        }
    }
}

#[test]
fn links_are_made_for_names_that_are_known() {
    for (host, known) in [
        ("127.0.0.1:8080", true),
        ("box.lan", true),
        ("evil.example", false),
        ("127.0.0.1/x#", false),
        ("box.lan@evil.example", false),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert("host", host.parse().unwrap());
        let found = guard(true).known_host(&headers).map(str::to_owned);
        assert_eq!(found.is_some(), known, "{host}");
    }
}

#[test]
fn a_proxy_at_this_machine_is_nobody_at_this_machine() {
    let proxied = |headers: &[_]| admit(&guard(true), "127.0.0.7", headers);
    assert_eq!(proxied(&[]), Err("forwarded".to_owned()));
    let key = [("x-api-key", "a-key")];
    assert_eq!(proxied(&key), Ok(("alice".to_owned(), false)));
}

#[test]
fn other_addresses_need_a_key() {
    for peer in ["127.0.0.1", "10.0.0.9"] {
        assert_eq!(
            admit(&guard(false), peer, &[]),
            Err("invalid_api_key".to_owned())
        );
        let wrong = [("authorization", "Bearer b-key")];
        assert_eq!(
            admit(&guard(false), peer, &wrong),
            Err("invalid_api_key".to_owned())
        );
        let right = [("authorization", "Bearer a-key"), ("host", "hone.example")];
        assert_eq!(
            admit(&guard(false), peer, &right),
            Ok(("alice".to_owned(), false))
        );
    }
    assert_eq!(
        admit(&guard(true), "10.0.0.9", &[]),
        Err("invalid_api_key".to_owned())
    );
}

#[test]
fn a_placeholder_is_no_key_where_no_key_exists() {
    let mut nobody = guard(true);
    nobody.keys.clear();
    let local = Ok(("local".to_owned(), true));
    let unknown = Err("invalid_api_key".to_owned());
    let placeholder = [("authorization", "Bearer sk-anything")];
    assert_eq!(admit(&nobody, "127.0.0.1", &placeholder), local);
    // What looks like a key of ours was one: its end must not open more than it did.
    let ours = [("authorization", "Bearer hone_abc")];
    assert_eq!(admit(&nobody, "127.0.0.1", &ours), unknown);
    assert_eq!(admit(&nobody, "10.0.0.9", &placeholder), unknown);
    nobody.sign_in = true;
    assert_eq!(admit(&nobody, "127.0.0.1", &[]), unknown);
    assert_eq!(admit(&nobody, "127.0.0.1", &placeholder), unknown);
}

#[tokio::test]
async fn refusals_are_error_objects_and_probes_are_open() {
    let stage = Stage::new(Recorder::Collects).await;
    let from = |path: &str, headers: &[(&str, &str)]| {
        request("GET", path, headers)
            .body(axum::body::Body::empty())
            .unwrap()
    };
    let stranger: IpAddr = [10, 0, 0, 9].into();
    let reply = read(stage.send_from(stranger, from("/v1/models", &[])).await).await;
    assert_eq!(reply.status, 401);
    assert!(
        reply
            .header("www-authenticate")
            .is_some_and(|v| v.starts_with("Bearer"))
    );
    assert_eq!(reply.json()["error"]["type"], "authentication_error");
    for path in ["/livez", "/readyz", "/startupz"] {
        let reply = read(
            stage
                .send_from(stranger, from(path, &[("host", "pod")]))
                .await,
        )
        .await;
        assert_eq!((reply.status, reply.text.as_str()), (200, "ok\n"), "{path}");
    }
    let evil = from("/v1/models", &[("host", "evil.example")]);
    let reply = read(stage.send(evil).await).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (403, &"host_not_allowed".into())
    );
}

#[test]
fn the_cookie_is_for_tls_wherever_the_browser_speaks_it() {
    let people: PeopleConfig = defaults("people");
    // public_url, tls_cert, peer, x-forwarded-proto, Secure
    let rows = [
        ("", "", "127.0.0.1", "", false),
        ("https://hone.example", "", "127.0.0.1", "", true),
        ("http://hone.example", "", "127.0.0.1", "", false),
        ("", "/tls.crt", "127.0.0.1", "", true),
        ("", "", "10.0.0.2", "https", true),
        ("", "", "10.0.0.2", "http", false),
        ("", "", "10.0.0.3", "https", false),
        ("", "", "::ffff:10.0.0.2", "https", true),
    ];
    for (public_url, tls_cert, peer, proto, secure) in rows {
        let mut http = http_config();
        http.proxies_trusted = vec!["10.0.0.2".parse().unwrap()];
        tls_cert.clone_into(&mut http.tls_cert);
        let mut people = people.clone();
        public_url.clone_into(&mut people.public_url);
        let mut headers = HeaderMap::new();
        if !proto.is_empty() {
            headers.insert("x-forwarded-proto", proto.parse().unwrap());
        }
        let by_tls = is_by_tls(&http, &people, peer.parse().unwrap(), &headers);
        let cookie = fresh_cookie("t", &people, by_tls).unwrap();
        let got = cookie.to_str().unwrap().contains("; Secure");
        assert_eq!(got, secure, "{public_url} {tls_cert} {peer} {proto}");
    }
}

#[test]
fn a_client_is_whom_trusted_proxies_name() {
    let mut http = http_config();
    http.proxies_trusted = ["10.0.0.2", "10.0.0.3"].map(|a| a.parse().unwrap()).into();
    let rows: &[(&str, &[&str], &str)] = &[
        ("8.8.8.8", &[], "8.8.8.8"),
        ("8.8.8.8", &["1.1.1.1"], "8.8.8.8"),
        ("10.0.0.2", &[], "10.0.0.2"),
        ("10.0.0.2", &["1.1.1.1"], "1.1.1.1"),
        ("::ffff:10.0.0.2", &["1.1.1.1"], "1.1.1.1"),
        // What the client itself said stands further to the left.
        ("10.0.0.2", &["9.9.9.9, 1.1.1.1"], "1.1.1.1"),
        ("10.0.0.2", &["9.9.9.9", "1.1.1.1"], "1.1.1.1"),
        ("10.0.0.2", &["1.1.1.1, 10.0.0.3"], "1.1.1.1"),
        ("10.0.0.2", &["nonsense"], "10.0.0.2"),
        ("10.0.0.2", &["1.1.1.1:4711"], "1.1.1.1"),
        ("10.0.0.2", &["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.2", &["2001:db8::1"], "2001:db8::1"),
    ];
    for (peer, lines, expected) in rows {
        let mut headers = HeaderMap::new();
        for line in *lines {
            headers.append("x-forwarded-for", line.parse().unwrap());
        }
        let client = client_of(&http, peer.parse().unwrap(), &headers);
        assert_eq!(
            client,
            expected.parse::<std::net::IpAddr>().unwrap(),
            "{peer} {lines:?}"
        );
    }
}
