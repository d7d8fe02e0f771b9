//! The page's files: types, caches, encodings, and what is shown without any.

use axum::body::Body;

use crate::page::Page;
use crate::testing::{Recorder, Reply, Stage, read, request};

/// A stage whose page is a folder with these files.
async fn stage(files: &[(&str, &str)]) -> (Stage, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join("dist").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    std::fs::write(folder.path().join("secret"), "canary").unwrap();
    let page = Page::from_config(folder.path().join("dist").to_str().unwrap());
    (Stage::with_page(Recorder::Collects, page).await, folder)
}

const FILES: &[(&str, &str)] = &[
    ("index.html", "<!doctype html><title>page</title>"),
    ("assets/main-1a.js", "plain script"),
    ("assets/main-1a.js.br", "brotli script"),
    ("assets/main-1a.js.gz", "gzip script"),
    ("assets/style-2b.css", "plain style"),
    ("assets/icon-3c.svg", "<svg/>"),
    ("assets/.hidden", "canary"),
];

async fn get(stage: &Stage, path: &str, headers: &[(&str, &str)]) -> Reply {
    let stranger = [10, 0, 0, 9].into();
    let request = request("GET", path, headers).body(Body::empty());
    read(stage.send_from(stranger, request.unwrap()).await).await
}

#[tokio::test]
async fn files_have_types_caches_and_a_strict_policy() {
    let (stage, _folder) = stage(FILES).await;
    let immutable = "public, max-age=31536000, immutable";
    let rows = [
        (
            "/",
            "text/html; charset=utf-8",
            "no-cache",
            "<!doctype html><title>page</title>",
        ),
        (
            "/assets/main-1a.js",
            "text/javascript; charset=utf-8",
            immutable,
            "plain script",
        ),
        (
            "/assets/style-2b.css",
            "text/css; charset=utf-8",
            immutable,
            "plain style",
        ),
        ("/assets/icon-3c.svg", "image/svg+xml", immutable, "<svg/>"),
    ];
    for (path, kind, cache, text) in rows {
        let reply = get(&stage, path, &[]).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, text), "{path}");
        assert_eq!(reply.header("content-type"), Some(kind), "{path}");
        assert_eq!(reply.header("cache-control"), Some(cache), "{path}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }
}

#[tokio::test]
async fn a_file_comes_as_the_client_takes_it_and_once() {
    let (stage, _folder) = stage(FILES).await;
    let path = "/assets/main-1a.js";
    let rows = [
        ("", None, "plain script"),
        ("identity", None, "plain script"),
        ("gzip", Some("gzip"), "gzip script"),
        ("gzip, deflate, br", Some("br"), "brotli script"),
        ("br;q=0, gzip;q=0.5", Some("gzip"), "gzip script"),
    ];
    let mut tags = std::collections::BTreeSet::new();
    for (sent, encoding, text) in rows {
        let reply = get(&stage, path, &[("accept-encoding", sent)]).await;
        assert_eq!(reply.text, text, "{sent}");
        assert_eq!(reply.header("content-encoding"), encoding, "{sent}");
        assert_eq!(reply.header("vary"), Some("accept-encoding"));
        let tag = reply.header("etag").unwrap();
        let again = [("accept-encoding", sent), ("if-none-match", tag)];
        let again = get(&stage, path, &again).await;
        assert_eq!((again.status, again.text.as_str()), (304, ""), "{sent}");
        tags.insert(tag.to_owned());
    }
    assert_eq!(tags.len(), 3, "each encoding has a tag of its own");
    let other = get(&stage, path, &[("if-none-match", "\"other\"")]).await;
    assert_eq!(other.status, 200);
}

#[tokio::test]
async fn nothing_else_is_a_file() {
    let (stage, _folder) = stage(FILES).await;
    for path in [
        "/assets/unknown.js",
        "/assets/.hidden",
        "/assets/../../secret",
        "/assets/%2e%2e/%2e%2e/secret",
        "/assets/..%2f..%2fsecret",
        "/assets/",
    ] {
        let reply = get(&stage, path, &[]).await;
        assert_ne!(reply.status, 200, "{path}");
        assert!(!reply.text.contains("canary"), "{path}: {}", reply.text);
    }
}

#[tokio::test]
async fn without_a_page_the_way_to_one_is_shown() {
    let (stage, _folder) = stage(&[]).await;
    let reply = get(&stage, "/", &[]).await;
    assert_eq!(reply.status, 200);
    assert!(reply.text.contains("make web"), "{}", reply.text);
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert!(!reply.text.contains("<script") && !reply.text.contains("style="));
}
