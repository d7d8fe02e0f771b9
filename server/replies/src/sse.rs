//! Server-sent events: framing, headers, heartbeat.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures::Stream;
use serde::Serialize;

/// A comment goes out after this long without an event, so that proxies keep the connection.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// The last event of an OpenAI stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// A comment line.
pub const COMMENT: &[u8] = b": keep-alive\n\n";

/// One event with `value` as its data. JSON text never holds a line break, so one line is enough.
pub fn event(value: &impl Serialize) -> Bytes {
    named_event(None, value)
}

/// One event with a name and an id: a follower that comes back says the last id it got.
pub fn numbered_event(name: &str, id: i64, value: &impl Serialize) -> Bytes {
    let mut text = format!("id: {id}\n").into_bytes();
    text.extend_from_slice(&named_event(Some(name), value));
    text.into()
}

/// One event, with its name where it has one.
pub fn named_event(name: Option<&str>, value: &impl Serialize) -> Bytes {
    let mut text = Vec::with_capacity(256);
    if let Some(name) = name {
        text.extend_from_slice(b"event: ");
        text.extend_from_slice(name.as_bytes());
        text.push(b'\n');
    }
    text.extend_from_slice(b"data: ");
    let before = text.len();
    if serde_json::to_writer(&mut text, value).is_err() {
        // Reply types have string keys and finite numbers, so this is for the type checker.
        text.truncate(before);
        text.extend_from_slice(b"null");
    }
    text.extend_from_slice(b"\n\n");
    text.into()
}

/// A reply that streams events.
pub fn response(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    use futures::StreamExt;
    let mut response = Response::new(Body::from_stream(events.map(Ok::<_, Infallible>)));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-transform"),
    );
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
