//! The page: the built files of `web/`, inside the program or in a folder. Only files; who may see
//! what is decided where the page asks for data.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rust_embed::RustEmbed;
use sha2::{Digest as _, Sha256};

use super::rights::Right;
use hone_replies::error::ApiError;

/// Nothing but the page's own files: no inline script or style, no other site.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; \
     form-action 'self'; frame-ancestors 'none'";

/// What is shown where no page was built.
const PLACEHOLDER: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Hone</title>
</head>
<body>
<main>
<h1>Hone is running</h1>
<p>This program was built without its page. Build it with <code>make web</code> (it needs Node), then
build the program again: <code>make run</code> does both.</p>
<p>The API works without the page: <a href="/openapi.json">openapi.json</a> says what there is.</p>
</main>
</body>
</html>
"#;

/// Files below these names carry a hash of their content in their name.
const HASHED: &str = "assets/";

/// Encodings by preference, with the ending of files that are stored that way.
const ENCODINGS: [(&str, &str); 2] = [("br", ".br"), ("gzip", ".gz")];

/// Of the build script, to be tested with everything else.
#[cfg(test)]
#[path = "../page_age.rs"]
mod page_age;

#[derive(RustEmbed)]
#[folder = "../../web/dist"]
#[allow_missing = true]
struct Built;

/// Where the files are.
#[derive(Clone, Debug)]
pub enum Page {
    /// Inside the program.
    Built,
    /// In a folder.
    Folder(PathBuf),
}

struct File {
    bytes: Cow<'static, [u8]>,
    sha256: [u8; 32],
}

impl Page {
    /// The folder, or what is inside the program where it is empty.
    pub fn from_config(folder: &str) -> Self {
        match folder {
            "" => Self::Built,
            folder => Self::Folder(PathBuf::from(folder)),
        }
    }

    async fn file(&self, name: &str) -> Option<File> {
        let is_plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        if !name.split('/').all(is_plain) {
            return None;
        }
        match self {
            Self::Built => Built::get(name).map(|file| File {
                sha256: file.metadata.sha256_hash(),
                bytes: file.data,
            }),
            Self::Folder(folder) => {
                let path = folder.join(name);
                let read = tokio::task::spawn_blocking(move || std::fs::read(path));
                let bytes = read.await.ok()?.ok()?;
                Some(File {
                    sha256: Sha256::digest(&bytes).into(),
                    bytes: bytes.into(),
                })
            }
        }
    }

    /// The file as the client takes it best, with its encoding.
    async fn best(&self, name: &str, headers: &HeaderMap) -> Option<(File, Option<&'static str>)> {
        for (encoding, ending) in ENCODINGS {
            if accepts(headers, encoding)
                && let Some(file) = self.file(&format!("{name}{ending}")).await
            {
                return Some((file, Some(encoding)));
            }
        }
        Some((self.file(name).await?, None))
    }

    /// A reply with a file; none where there is no such file.
    async fn reply(&self, name: &str, headers: &HeaderMap) -> Option<Response> {
        let (file, encoding) = self.best(name, headers).await?;
        let tag: String = file.sha256[..16]
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let tag = format!("\"{tag}\"");
        let known = headers
            .get(header::IF_NONE_MATCH)
            .and_then(|v| v.to_str().ok());
        let is_known = known.is_some_and(|known| known.split(',').any(|k| k.trim() == tag));
        let mut response = Response::new(match is_known {
            true => Body::empty(),
            false => Body::from(file.bytes.into_owned()),
        });
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let cache = match name.starts_with(HASHED) {
            true => "public, max-age=31536000, immutable",
            false => "no-cache",
        };
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, kind(name));
        set(&mut response, header::CACHE_CONTROL, cache);
        set(&mut response, header::VARY, "accept-encoding");
        if let Some(encoding) = encoding {
            set(&mut response, header::CONTENT_ENCODING, encoding);
        }
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            response.headers_mut().insert(header::ETAG, tag);
        }
        guarded(&mut response);
        Some(response)
    }
}

/// Whether the client takes an encoding: it is named, and not with a weight of 0.
fn accepts(headers: &HeaderMap, encoding: &str) -> bool {
    let sent = headers.get_all(header::ACCEPT_ENCODING).iter();
    let items = sent
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','));
    items.into_iter().any(|item| {
        let mut parts = item.split(';').map(str::trim);
        let named = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case(encoding));
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        named && weight != Some(0.0)
    })
}

/// The media type that a file's name says; texts are UTF-8.
fn kind(name: &str) -> HeaderValue {
    let kind = mime_guess::from_path(name).first_or_octet_stream();
    let charset = match kind.type_() {
        mime_guess::mime::TEXT => "; charset=utf-8",
        _ => "",
    };
    let text = format!("{kind}{charset}");
    HeaderValue::try_from(text)
        .unwrap_or_else(|_| HeaderValue::from_static("application/octet-stream"))
}

fn set(response: &mut Response, name: HeaderName, value: &'static str) {
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}

fn guarded(response: &mut Response) {
    set(response, header::CONTENT_SECURITY_POLICY, POLICY);
    set(response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(response, header::REFERRER_POLICY, "no-referrer");
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    set(response, opener, "same-origin");
}

/// The page itself.
async fn index(State(page): State<Arc<Page>>, headers: HeaderMap) -> Response {
    if let Some(response) = page.reply("index.html", &headers).await {
        return response;
    }
    let mut response = PLACEHOLDER.into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, kind("index.html"));
    set(&mut response, header::CACHE_CONTROL, "no-store");
    guarded(&mut response);
    response
}

/// One of its files.
async fn asset(
    State(page): State<Arc<Page>>,
    Path(path): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let name = format!("{HASHED}{path}");
    let found = page.reply(&name, &headers).await;
    found.ok_or_else(|| ApiError::UnknownPath(format!("/{name}").chars().take(200).collect()))
}

/// Who may read the page's files.
pub const RIGHTS: &[(&str, Right)] = &[("/", Right::Open), ("/assets/{*path}", Right::Open)];

/// The routes of the page.
pub fn routes<S>(page: Arc<Page>) -> Router<S> {
    Router::new()
        .route("/", get(index))
        .route("/assets/{*path}", get(asset))
        .with_state(page)
}
