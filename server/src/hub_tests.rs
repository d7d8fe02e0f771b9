//! A hub on this machine that speaks the file API and has the starter model, and what is fetched
//! from it.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hone_nn::folder::{ModelFolder, load_model};
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

/// The bytes that the `Range` header asks for.
fn part(name: &str, bytes: &'static [u8], headers: &HeaderMap) -> Response {
    let range = headers[header::RANGE].to_str().unwrap();
    let (from, to) = range.trim_start_matches("bytes=").split_once('-').unwrap();
    let from: usize = from.parse().unwrap();
    let to: usize = to.parse().unwrap_or(bytes.len() - 1);
    let headers = [
        ("x-repo-commit", COMMIT.to_owned()),
        ("etag", format!("\"{name}-1\"")),
        (
            "content-range",
            format!("bytes {from}-{to}/{}", bytes.len()),
        ),
    ];
    (StatusCode::PARTIAL_CONTENT, headers, &bytes[from..=to]).into_response()
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
    let digest = |folder: &ModelFolder| load_model(folder, &mut |_, _| {}).unwrap().digest;
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
