//! The guard against real listeners and a resolver whose answers change.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;

use async_trait::async_trait;
use axum::Router;
use axum::response::Redirect;
use axum::routing::get;
use tokio::net::TcpListener;

use super::guard::{Realm, realm};
use super::*;
use crate::defaults::defaults;

/// Answers each question with the next row; the last one stays.
struct Changing(Mutex<VecDeque<Vec<IpAddr>>>);

#[async_trait]
impl Names for Changing {
    async fn look_up(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
        let mut rows = self.0.lock().unwrap();
        let row = rows.pop_front().unwrap_or_default();
        if rows.is_empty() {
            rows.push_back(row.clone());
        }
        Ok(row)
    }
}

fn client(allow: &[&str], answers: &[&[IpAddr]]) -> Outbound {
    let config = OutboundConfig {
        allow: allow.iter().map(|entry| (*entry).to_owned()).collect(),
        answer_bytes_max: 1_000,
        ..defaults("outbound")
    };
    let answers = answers.iter().map(|row| row.to_vec()).collect();
    Outbound::with_names(&config, Arc::new(Changing(Mutex::new(answers)))).unwrap()
}

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const NEXT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Serves who it is at an address; a port of 0 takes a free one.
async fn serve(address: SocketAddr, says: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(address).await.unwrap();
    let bound = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/", get(move || async move { format!("\"{says}\"") }))
        .route(
            "/away",
            get(move || async move { Redirect::temporary("http://127.0.0.1/") }),
        )
        .route("/long", get(|| async { "x".repeat(1_001) }))
        .route("/slow", get(std::future::pending::<String>));
    // One connection per request, so that each is looked up.
    let router = router.layer(axum::middleware::map_response(
        |mut response: axum::response::Response| async {
            let close = axum::http::HeaderValue::from_static("close");
            response.headers_mut().insert("connection", close);
            response
        },
    ));
    tokio::spawn(async move { axum::serve(listener, router).await });
    bound
}

async fn fetch(outbound: &Outbound, url: &str) -> Result<Value, String> {
    let url = outbound.url("the.key", url)?;
    outbound.get_json(url, Duration::from_millis(500)).await
}

#[tokio::test]
async fn it_connects_to_the_address_it_judged() {
    let port = serve((HERE, 0).into(), "here").await.port();
    serve((NEXT, port).into(), "next").await;
    let url = format!("http://judge.example:{port}/");
    // The name means something else at every look; only 127.0.0.2 is open.
    let outbound = client(&["127.0.0.2"], &[&[NEXT], &[HERE], &[HERE, NEXT], &[HERE]]);
    assert_eq!(fetch(&outbound, &url).await.unwrap(), "next");
    let refused = fetch(&outbound, &url).await.unwrap_err();
    assert!(
        refused.contains("judge.example is at 127.0.0.1"),
        "{refused}"
    );
    assert!(refused.contains("outbound.allow"), "{refused}");
    assert_eq!(fetch(&outbound, &url).await.unwrap(), "next");
    assert!(fetch(&outbound, &url).await.is_err());
}

#[tokio::test]
async fn names_that_lead_inside_need_to_be_listed() {
    let port = serve((HERE, 0).into(), "here").await.port();
    let url = format!("http://judge.example:{port}/");
    let inside = [
        [10, 1, 2, 3],
        [169, 254, 169, 254],
        [127, 0, 0, 1],
        [0, 0, 0, 0],
    ];
    for address in inside {
        let refused = fetch(&client(&[], &[&[address.into()]]), &url).await;
        assert!(
            refused.unwrap_err().contains("judge.example is at"),
            "{address:?}"
        );
    }
    for allow in ["judge.example", "JUDGE.example", "127.0.0.1", "127.0.0.0/8"] {
        let outbound = client(&[allow], &[&[HERE]]);
        assert_eq!(fetch(&outbound, &url).await.unwrap(), "here", "{allow}");
    }
    assert!(
        fetch(&client(&["10.0.0.0/8"], &[&[HERE]]), &url)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn an_address_in_the_configuration_is_meant() {
    let port = serve((HERE, 0).into(), "here").await.port();
    let outbound = client(&[], &[&[HERE]]);
    for host in ["127.0.0.1", "localhost", "0x7f.1", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{port}/");
        assert_eq!(fetch(&outbound, &url).await.unwrap(), "here", "{host}");
    }
    let metadata = [
        "169.254.169.254",
        "[fd00:ec2::254]",
        "[::ffff:169.254.169.254]",
        "100.100.100.200",
    ];
    for host in metadata {
        let refused = outbound.url("judge.model.url", &format!("http://{host}/latest"));
        let refused = refused.unwrap_err();
        assert!(
            refused.starts_with("judge.model.url cannot be called"),
            "{refused}"
        );
        assert!(refused.contains("metadata"), "{refused}");
    }
    assert!(
        client(&["169.254.169.254"], &[])
            .url("k", "http://169.254.169.254/")
            .is_ok()
    );
    assert!(outbound.url("k", "http://user:word@example.org/").is_err());
    assert!(outbound.url("k", "ftp://example.org/").is_err());
}

#[tokio::test]
async fn localhost_is_this_machine_only() {
    let outbound = client(&[], &[&[[10, 1, 2, 3].into()]]);
    assert!(
        fetch(&outbound, "http://localhost:9/")
            .await
            .unwrap_err()
            .contains("private")
    );
}

#[tokio::test]
async fn redirects_length_and_time_are_bounded() {
    let base = format!("http://{}", serve((HERE, 0).into(), "here").await);
    let outbound = client(&[], &[&[HERE]]);
    let rows = [
        ("/away", "status 307"),
        ("/long", "longer than 1000 bytes"),
        ("/slow", "no answer in time"),
    ];
    for (path, expected) in rows {
        let error = fetch(&outbound, &format!("{base}{path}"))
            .await
            .unwrap_err();
        assert!(error.contains(expected), "{path}: {error}");
        assert!(!error.contains(&base), "{error}");
    }
}

#[test]
fn realms() {
    let rows = [
        ("93.184.216.34", Realm::Public),
        ("2606:2800:220:1::1", Realm::Public),
        ("127.8.9.1", Realm::Here),
        ("::1", Realm::Here),
        ("::ffff:127.0.0.1", Realm::Here),
        ("64:ff9b::7f00:1", Realm::Here),
        ("2002:7f00:1::", Realm::Here),
        ("10.0.0.1", Realm::Private),
        ("172.16.0.1", Realm::Private),
        ("172.32.0.1", Realm::Public),
        ("192.168.1.1", Realm::Private),
        ("100.64.0.1", Realm::Private),
        ("fd12::1", Realm::Private),
        ("::ffff:10.0.0.1", Realm::Private),
        ("169.254.169.254", Realm::Link),
        ("fe80::1", Realm::Link),
        ("fd00:ec2::254", Realm::Link),
        ("0.0.0.0", Realm::Nowhere),
        ("::", Realm::Nowhere),
        ("224.0.0.1", Realm::Nowhere),
        ("255.255.255.255", Realm::Nowhere),
        ("2001:db8::1", Realm::Nowhere),
        ("ff02::1", Realm::Nowhere),
    ];
    for (address, expected) in rows {
        assert_eq!(realm(address.parse().unwrap()), expected, "{address}");
    }
}

#[test]
fn entries_that_mean_nothing_are_named() {
    for entry in ["10.0.0.0/33", "judge.example/8", "http://x", "", "999"] {
        let refused = Allowed::parse(&[entry.to_owned()]).unwrap_err();
        assert!(refused.contains(&format!("{entry:?}")), "{refused}");
    }
    assert!(Allowed::parse(&["::/0".to_owned(), "10.0.0.0/0".to_owned()]).is_ok());
}
