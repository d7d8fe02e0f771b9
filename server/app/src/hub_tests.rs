//! A hub on this machine that speaks the file API and has the starter model, and what is fetched
//! from it.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hone_nn::load_model;
use hone_text::folder::ModelFolder;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_test";

/// Paths that were asked for.
type Asked = Arc<Mutex<Vec<String>>>;

async fn answer(State(asked): State<Asked>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    asked.lock().unwrap().push(path.clone());
    let token = request.headers().get(header::AUTHORIZATION);
    if token.is_none_or(|token| token != &format!("Bearer {TOKEN}")) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if let Some(revision) = path.strip_prefix("/api/models/org/starter/revision/") {
        if ![COMMIT, "main", "v1"].contains(&revision) {
            return StatusCode::NOT_FOUND.into_response();
        }
        let files = hone_starter::model_files().iter();
        let files: Vec<_> = files
            .map(|(name, _)| json!({ "rfilename": name }))
            .collect();
        let files = [files, vec![json!({ "rfilename": "README.md" })]].concat();
        return axum::Json(json!({ "siblings": files, "sha": COMMIT })).into_response();
    }
    let file = path.strip_prefix(&format!("/org/starter/resolve/{COMMIT}/"));
    let found = file.and_then(|file| {
        let mut files = hone_starter::model_files().iter();
        files.find(|(name, _)| *name == file)
    });
    match found {
        Some((name, bytes)) => part(name, bytes, request.headers()),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// What a request asks of a file: all of it, or from a byte on.
fn begin_of(headers: &HeaderMap) -> usize {
    let range = headers.get(header::RANGE).and_then(|r| r.to_str().ok());
    let begin = range.map(|r| r.trim_start_matches("bytes=").trim_end_matches('-'));
    begin.map_or(0, |begin| begin.parse().unwrap())
}

/// The bytes that the `Range` header asks for.
fn part(name: &str, bytes: &'static [u8], headers: &HeaderMap) -> Response {
    let from = begin_of(headers);
    let headers = [
        ("x-repo-commit", COMMIT.to_owned()),
        ("etag", format!("\"{name}-1\"")),
        (
            "content-range",
            format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len()),
        ),
    ];
    (StatusCode::PARTIAL_CONTENT, headers, &bytes[from..]).into_response()
}

/// A hub; it is gone when its runtime is.
fn hub() -> (tokio::runtime::Runtime, String, Asked) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let asked = Asked::default();
    let router = Router::new().fallback(answer).with_state(asked.clone());
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    runtime.spawn(async move { axum::serve(listener, router).await });
    (runtime, url, asked)
}

fn access(endpoint: &str, token: Option<&str>, cache: &Path) -> HubAccess {
    HubAccess {
        outbound: crate::defaults::defaults("outbound"),
        endpoint: endpoint.to_owned(),
        token: token.map(str::to_owned),
        cache: cache.to_owned(),
    }
}

#[test]
fn a_model_is_fetched_once_and_then_needs_no_hub() {
    let (runtime, url, asked) = hub();
    let cache = tempfile::tempdir().unwrap();
    let access = access(&url, Some(TOKEN), cache.path());
    let fetched = folder("org/starter@v1", &access).unwrap();
    let digest = |folder: &ModelFolder| {
        load_model(folder.checkpoint(), &mut |_, _, _| {})
            .unwrap()
            .digest
    };
    let built_in = ModelFolder::embedded(hone_starter::model_files()).unwrap();
    assert_eq!(
        digest(&ModelFolder::open(&fetched).unwrap()),
        digest(&built_in)
    );
    let paths = std::mem::take(&mut *asked.lock().unwrap());
    assert!(
        paths.iter().any(|p| p.ends_with("/model.safetensors")),
        "{paths:?}"
    );
    assert!(!paths.iter().any(|p| p.ends_with("README.md")), "{paths:?}");
    assert_eq!(folder("org/starter@v1", &access).as_ref(), Ok(&fetched));
    assert!(
        asked.lock().unwrap().is_empty(),
        "what is here is not asked for"
    );
    drop(runtime);
    assert_eq!(folder("org/starter@v1", &access), Ok(fetched));
    // Another revision was never fetched.
    let error = folder("org/starter@main", &access).unwrap_err();
    assert!(error.contains("could not be fetched"), "{error}");
    assert!(error.contains("give its path"), "{error}");
    assert!(!error.contains('\n'), "{error}");
}

/// Where a hub keeps its large files.
#[derive(Clone)]
struct Store {
    /// What it does to each request in turn; at the end it serves.
    script: Arc<Mutex<Vec<Deed>>>,
    /// The first byte of every request, and whether a token came with it.
    seen: Arc<Mutex<Vec<(usize, bool)>>>,
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    /// Ends after half of the file.
    Breaks,
    /// Sends another last byte.
    Lies,
    /// Is busy.
    Busy,
}

fn weights() -> &'static [u8] {
    let mut files = hone_starter::model_files().iter();
    let found = files.find(|(name, _)| *name == "model.safetensors");
    found.unwrap().1
}

async fn blob(State(store): State<Store>, headers: HeaderMap) -> Response {
    let (bytes, from) = (weights(), begin_of(&headers));
    let has_token = headers.contains_key(header::AUTHORIZATION);
    store.seen.lock().unwrap().push((from, has_token));
    let deed = {
        let mut script = store.script.lock().unwrap();
        (!script.is_empty()).then(|| script.remove(0))
    };
    let mut body = bytes[from..].to_vec();
    if matches!(deed, Some(Deed::Breaks)) {
        body.truncate(bytes.len() / 2);
    }
    let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
    let head = [
        ("content-range", range),
        ("content-length", body.len().to_string()),
    ];
    let body = match deed {
        Some(Deed::Busy) => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Some(Deed::Lies) => {
            let last = body.len() - 1;
            body[last] ^= 1;
            Body::from(body)
        }
        Some(Deed::Breaks) | None => Body::from(body),
    };
    (StatusCode::PARTIAL_CONTENT, head, body).into_response()
}

/// A hub whose weights lie at 127.0.0.2.
fn hub_with_store(script: &[Deed]) -> (tokio::runtime::Runtime, String, Store) {
    let (runtime, _, _) = hub();
    let store = Store {
        script: Arc::new(Mutex::new(script.to_vec())),
        seen: Arc::default(),
    };
    let listen = |ip: [u8; 4]| runtime.block_on(TcpListener::bind(SocketAddr::from((ip, 0))));
    let there = listen([127, 0, 0, 2]).unwrap();
    let blob_url = format!("http://{}/blob", there.local_addr().unwrap());
    let blobs = Router::new().fallback(blob).with_state(store.clone());
    runtime.spawn(async move { axum::serve(there, blobs).await });
    let redirect = move |asked: State<Asked>, request: Request| {
        let blob_url = blob_url.clone();
        async move {
            if !request.uri().path().ends_with("/model.safetensors") {
                return answer(asked, request).await;
            }
            let sha256 = <sha2::Sha256 as sha2::Digest>::digest(weights());
            let sha256 = hone_domain::Digest(sha256.into()).to_hex();
            let head = [
                ("location", blob_url),
                ("x-linked-size", weights().len().to_string()),
                ("x-linked-etag", format!("\"{sha256}\"")),
            ];
            (StatusCode::FOUND, head).into_response()
        }
    };
    let here = listen([127, 0, 0, 1]).unwrap();
    let url = format!("http://{}", here.local_addr().unwrap());
    let router = Router::new()
        .fallback(redirect)
        .with_state(Asked::default());
    runtime.spawn(async move { axum::serve(here, router).await });
    (runtime, url, store)
}

fn allowing(mut access: HubAccess, address: &str) -> HubAccess {
    access.outbound.allow = vec![address.to_owned()];
    access
}

#[test]
fn files_that_lie_elsewhere_are_fetched_without_the_token_and_resumed() {
    let half = weights().len() / 2;
    // What the store does, and from which byte each try asks.
    let rows: [(&[Deed], &[usize]); 4] = [
        (&[], &[0]),
        (&[Deed::Breaks, Deed::Busy], &[0, half, half]),
        (&[Deed::Breaks], &[0, half]),
        (&[Deed::Lies], &[0, 0]),
    ];
    for (script, begins) in rows {
        let (_runtime, url, store) = hub_with_store(script);
        let cache = tempfile::tempdir().unwrap();
        let access = allowing(access(&url, Some(TOKEN), cache.path()), "127.0.0.2");
        let fetched = folder("org/starter", &access).unwrap();
        let file = std::fs::read(fetched.join("model.safetensors")).unwrap();
        assert!(file == weights(), "{script:?}");
        let seen = store.seen.lock().unwrap().clone();
        let froms: Vec<usize> = seen.iter().map(|(from, _)| *from).collect();
        assert_eq!(froms, begins, "{script:?}");
        assert!(seen.iter().all(|(_, token)| !token), "the token went along");
        let names = std::fs::read_dir(&fetched).unwrap();
        let rest = names.filter(|n| {
            n.as_ref()
                .unwrap()
                .path()
                .extension()
                .is_some_and(|e| e == "part")
        });
        assert_eq!(rest.count(), 0, "{script:?}");
    }
}

#[test]
fn a_redirect_leads_to_no_address_that_nobody_opened() {
    let (_runtime, url, store) = hub_with_store(&[]);
    for (allow, part) in [("10.0.0.1", "127.0.0.2"), ("127.0.0.1", "outbound.allow")] {
        let cache = tempfile::tempdir().unwrap();
        let access = allowing(access(&url, Some(TOKEN), cache.path()), allow);
        let error = folder("org/starter", &access).unwrap_err();
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
    }
    assert!(
        store.seen.lock().unwrap().is_empty(),
        "nothing was sent there"
    );
}

#[test]
fn what_the_hub_refuses_is_said_in_one_sentence() {
    let (_runtime, url, _) = hub();
    let cache = tempfile::tempdir().unwrap();
    let rows = [
        ("org/starter", None, "HF_TOKEN"),
        ("org/starter@v9", Some(TOKEN), "has no model org/starter@v9"),
        ("org/other", Some(TOKEN), "has no model org/other@main"),
    ];
    for (id, token, part) in rows {
        let error = folder(id, &access(&url, token, cache.path())).unwrap_err();
        assert!(
            error.contains(part) && !error.contains('\n'),
            "{id}: {error}"
        );
    }
}
