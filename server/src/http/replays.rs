//! `Idempotency-Key`: a retry gets the answer of the first request, and makes no second turn.
//!
//! The first request with a key runs on, whether or not its client stays, and what it answers is
//! kept. Every further request with the same key and body is answered from there, while it comes in
//! or after. Failures are not kept: a retry of one is a new attempt.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use hone_domain::{Digest, Millis};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use super::Http;
use super::envelope::Asked;
use super::error::ApiError;
use super::wire::body::read_bytes;
use crate::people::meter::Ticket;

/// The header.
const KEY: &str = "idempotency-key";
/// Says that an answer was given before.
const REPLAYED: &str = "idempotent-replayed";
/// Longest key.
const KEY_BYTES_MAX: usize = 255;
/// Routes whose answers are kept.
const ROUTES: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
];

/// Bounds of what is kept.
#[derive(Clone, Copy, Debug)]
pub struct ReplayLimits {
    /// Most answers; the oldest goes first.
    pub answers_max: usize,
    /// Most bytes of answers; the oldest goes first.
    pub bytes_max: usize,
    /// How long an answer is kept.
    pub keep_ms: Millis,
}

/// (owner, route, key).
type Name = (String, String, String);

/// Answers that retries get.
#[derive(Debug)]
pub struct Replays {
    limits: ReplayLimits,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    known: HashMap<Name, Arc<Kept>>,
    order: VecDeque<(Millis, Name, Arc<Kept>)>,
    bytes: usize,
}

/// One answer, as far as it has come.
#[derive(Debug)]
struct Kept {
    body: Digest,
    said: Mutex<Said>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Said {
    head: Option<(StatusCode, HeaderMap)>,
    chunks: Vec<Bytes>,
    bytes: usize,
    /// Taken out of the book: its bytes no longer count.
    forgotten: bool,
    done: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change leaves what is kept whole, whatever panicked later.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a request with a key finds.
enum Found {
    /// It is the first.
    First(Arc<Kept>),
    /// Its answer is there or on its way.
    Known(Arc<Kept>),
    /// The key belongs to another body.
    Other,
}

impl Replays {
    /// Nothing kept yet.
    pub fn new(limits: ReplayLimits) -> Self {
        Self {
            limits,
            book: Mutex::default(),
        }
    }

    /// Answers and bytes that are kept.
    pub fn size(&self) -> (usize, usize) {
        let book = lock(&self.book);
        (book.known.len(), book.bytes)
    }

    fn find(&self, name: &Name, body: Digest, now_ms: Millis) -> Found {
        let mut book = lock(&self.book);
        book.drop_until(now_ms - self.limits.keep_ms, &self.limits);
        if let Some(kept) = book.known.get(name) {
            return match kept.body == body {
                true => Found::Known(kept.clone()),
                false => Found::Other,
            };
        }
        let kept = Arc::new(Kept {
            body,
            said: Mutex::default(),
            changed: Notify::new(),
        });
        book.known.insert(name.clone(), kept.clone());
        book.order.push_back((now_ms, name.clone(), kept.clone()));
        Found::First(kept)
    }

    /// Adds to an answer; its bytes count while it is in the book.
    fn add(&self, kept: &Kept, chunk: Bytes) {
        let mut book = lock(&self.book);
        let mut said = lock(&kept.said);
        said.bytes += chunk.len();
        if !said.forgotten {
            book.bytes += chunk.len();
        }
        said.chunks.push(chunk);
        drop(said);
        book.drop_until(Millis::MIN, &self.limits);
        kept.changed.notify_waiters();
    }

    /// Forgets every answer of an owner; those who wait for one still get it.
    pub fn forget_owner(&self, owner: &str) {
        let mut book = lock(&self.book);
        book.known.retain(|(of, ..), _| of != owner);
        let order = std::mem::take(&mut book.order);
        for (began_ms, name, kept) in order {
            if name.0 == owner {
                book.uncount(&kept);
            } else {
                book.order.push_back((began_ms, name, kept));
            }
        }
    }

    /// Forgets an answer that failed; those who wait for it still get it.
    fn forget(&self, name: &Name, kept: &Arc<Kept>) {
        let mut book = lock(&self.book);
        if book.known.get(name).is_some_and(|k| Arc::ptr_eq(k, kept)) {
            book.known.remove(name);
        }
        book.order.retain(|(.., k)| !Arc::ptr_eq(k, kept));
        book.uncount(kept);
    }
}

impl Book {
    /// Forgets the oldest while there are too many, too many bytes, or too old ones.
    fn drop_until(&mut self, before_ms: Millis, limits: &ReplayLimits) {
        while let Some((began_ms, ..)) = self.order.front() {
            let full = self.order.len() > limits.answers_max || self.bytes > limits.bytes_max;
            if !full && *began_ms >= before_ms {
                return;
            }
            let Some((_, name, kept)) = self.order.pop_front() else {
                return;
            };
            if self.known.get(&name).is_some_and(|k| Arc::ptr_eq(k, &kept)) {
                self.known.remove(&name);
            }
            self.uncount(&kept);
        }
    }

    fn uncount(&mut self, kept: &Kept) {
        let mut said = lock(&kept.said);
        if !std::mem::replace(&mut said.forgotten, true) {
            self.bytes -= said.bytes;
        }
    }
}

/// Answers requests with a key once, and their retries with the same.
pub async fn layer(State(http): State<Arc<Http>>, request: Request, next: Next) -> Response {
    let route = request.uri().path().to_owned();
    let key = request.headers().get(KEY);
    if request.method() != Method::POST || !ROUTES.contains(&route.as_str()) || key.is_none() {
        return next.run(request).await;
    }
    match keyed(&http, (route, request), next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn keyed(
    http: &Arc<Http>,
    (route, request): (String, Request),
    next: Next,
) -> Result<Response, ApiError> {
    let key = key_of(request.headers())?;
    let asked = request.extensions().get::<Asked>().cloned();
    let owner = asked.map(|asked| asked.caller.owner).unwrap_or_default();
    let (parts, body) = request.into_parts();
    let bytes = read_bytes(&parts.headers, body, http.body_limits()).await?;
    let name = (owner, route, key);
    let digest = Digest(Sha256::digest(&bytes).into());
    match http.replays.find(&name, digest, http.clock.now_ms()) {
        Found::Other => Err(ApiError::Mismatch(
            "this Idempotency-Key was sent with another body before; use a new key for a new \
             request"
                .to_owned(),
        )),
        Found::Known(kept) => Ok(replay(kept, true).await),
        Found::First(kept) => {
            let writing = Writing {
                http: http.clone(),
                name,
                kept: kept.clone(),
                is_whole: false,
                _ticket: parts.extensions.get().cloned(),
            };
            let request = Request::from_parts(parts, Body::from(bytes));
            // Its own task, so that a client that leaves ends nothing.
            tokio::spawn(async move {
                let response = next.run(request).await;
                writing.follow(response).await;
            });
            Ok(replay(kept, false).await)
        }
    }
}

fn key_of(headers: &HeaderMap) -> Result<String, ApiError> {
    let key = headers.get(KEY).and_then(|value| value.to_str().ok());
    let key = key.filter(|key| !key.is_empty() && key.len() <= KEY_BYTES_MAX);
    key.map(str::to_owned).ok_or_else(|| {
        ApiError::invalid(
            KEY,
            format!("Idempotency-Key must have 1 to {KEY_BYTES_MAX} visible characters"),
        )
    })
}

/// An answer that is being written. However that ends, nobody waits for more of it then.
struct Writing {
    http: Arc<Http>,
    name: Name,
    kept: Arc<Kept>,
    is_whole: bool,
    /// It counts as a completion of its caller while it comes, whether or not they stay.
    _ticket: Option<Arc<Ticket>>,
}

impl Writing {
    /// Follows the answer to its end.
    async fn follow(mut self, response: Response) {
        let (parts, body) = response.into_parts();
        let mut failed = parts.status.as_u16() >= 400;
        lock(&self.kept.said).head = Some((parts.status, parts.headers));
        self.kept.changed.notify_waiters();
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let Ok(chunk) = chunk else {
                return;
            };
            failed |= tells_failure(&chunk);
            self.http.replays.add(&self.kept, chunk);
        }
        self.is_whole = !failed;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_whole {
            self.http.replays.forget(&self.name, &self.kept);
        }
        lock(&self.kept.said).done = true;
        self.kept.changed.notify_waiters();
    }
}

/// Whether an event says that the answer failed.
fn tells_failure(chunk: &[u8]) -> bool {
    [
        &b"data: {\"error\""[..],
        b"event: error",
        b"event: response.failed",
    ]
    .iter()
    .any(|mark| chunk.starts_with(mark))
}

/// An answer from its beginning, as it comes.
async fn replay(kept: Arc<Kept>, again: bool) -> Response {
    let head = loop {
        let changed = kept.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let (head, done) = {
            let said = lock(&kept.said);
            (said.head.clone(), said.done)
        };
        match head {
            Some(head) => break head,
            None if done => {
                let error = ApiError::Internal("the first request came to no answer".to_owned());
                return error.into_response();
            }
            None => changed.await,
        }
    };
    let chunks = futures::stream::unfold((kept, 0), |(kept, at)| async move {
        loop {
            let changed = kept.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (chunk, done) = {
                let said = lock(&kept.said);
                (said.chunks.get(at).cloned(), said.done)
            };
            match chunk {
                Some(chunk) => {
                    let chunk: Result<Bytes, std::convert::Infallible> = Ok(chunk);
                    return Some((chunk, (kept.clone(), at + 1)));
                }
                None if done => return None,
                None => changed.await,
            }
        }
    });
    let mut response = Response::new(Body::from_stream(chunks));
    *response.status_mut() = head.0;
    *response.headers_mut() = head.1;
    if again {
        response
            .headers_mut()
            .insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}
