//! `Idempotency-Key`: a retry gets the answer of the first request, and makes no second turn.
//!
//! The first request with a key runs on, whether or not its client stays, and what it answers is
//! kept. Every further request with the same key and body is answered from there, while it comes in
//! or after. Failures are not kept: a retry of one is a new attempt.
//!
//! An answer whose turn is collected is kept in the ledger before its end is released, so that it
//! outlives the process. Where the process ends in between, the turn is there and its answer is not:
//! a retry is told which turn it is, and makes no second one.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use hone_domain::{Digest, Millis, RequestId};
use hone_ledger::{Answer, AnswerLimits, AnswerName, Answered, Answers, LedgerError};
use hone_runtime::Clock;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::request_context::RequestContext;
use super::rights::Rule;
use crate::body::{BodyLimits, read_bytes};
use hone_accounts::rate_limit::Permit;
use hone_replies::error::ApiError;

/// The header.
const KEY: &str = "idempotency-key";
/// Says that an answer was given before.
const REPLAYED: &str = "idempotent-replayed";
/// Longest key.
const KEY_BYTES_MAX: usize = 255;

/// What the ledger knows of a name is waited for so long; beyond, an answer is not held up by it.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(2);
/// A ledger that did not answer in time is not asked again for so long: who retries then makes a second turn if this
/// process ends.
const SILENT_MS: Millis = 1_000;
/// How the part of an answer looks that says that its turn is on disk. Within texts the quotes are escaped.
const COLLECTED: &[u8] = b"\"collected\":true";

/// (owner, route, key).
type Name = (String, String, String);

/// Answers that retries get.
pub struct Replays {
    limits: AnswerLimits,
    store: Arc<dyn Answers>,
    book: Mutex<Book>,
    /// Until when a ledger that did not answer in time is not asked again.
    silent_until_ms: AtomicI64,
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
    pub fn new(limits: AnswerLimits, store: Arc<dyn Answers>) -> Self {
        Self {
            limits,
            store,
            book: Mutex::default(),
            silent_until_ms: AtomicI64::new(0),
        }
    }

    /// What the ledger says, if it says so in time; none where it does not, or lately did not.
    async fn in_time<T>(
        &self,
        now_ms: Millis,
        asked: impl Future<Output = Result<T, LedgerError>>,
    ) -> Option<Result<T, LedgerError>> {
        if self.silent_until_ms.load(Ordering::Relaxed) > now_ms {
            return None;
        }
        let answered = timeout(LEDGER_TIMEOUT, asked).await.ok();
        if answered.is_none() {
            self.silent_until_ms
                .store(now_ms.saturating_add(SILENT_MS), Ordering::Relaxed);
        }
        answered
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

    /// Forgets what is in memory, as the end of the process does.
    #[cfg(test)]
    pub(super) fn forget_all(&self) {
        *lock(&self.book) = Book::default();
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
    fn drop_until(&mut self, before_ms: Millis, limits: &AnswerLimits) {
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

/// What answering retries takes.
pub struct Replaying {
    /// Answers that were given.
    pub replays: Arc<Replays>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Bounds of request bodies.
    pub limits: BodyLimits,
}

/// Answers requests with a key once, and their retries with the same.
pub async fn layer(
    State(replaying): State<Arc<Replaying>>,
    request: Request,
    next: Next,
) -> Response {
    let rule = request.extensions().get::<Rule>();
    let is_kept = rule.is_some_and(|rule| rule.is_idempotent);
    if !is_kept || !request.headers().contains_key(KEY) {
        return next.run(request).await;
    }
    let route = request.uri().path().to_owned();
    match keyed(&replaying, route, request, next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn keyed(
    replaying: &Arc<Replaying>,
    route: String,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let key = key_of(request.headers())?;
    let context = request.extensions().get::<RequestContext>().cloned();
    let request_id = context.as_ref().map(|context| context.id);
    let owner = context
        .map(|context| context.caller.owner)
        .unwrap_or_default();
    let (parts, body) = request.into_parts();
    let bytes = read_bytes(&parts.headers, body, replaying.limits).await?;
    let name = (owner, route, key);
    let digest = Digest(Sha256::digest(&bytes).into());
    match replaying
        .replays
        .find(&name, digest, replaying.clock.now_ms())
    {
        Found::Other => Err(other_body()),
        Found::Known(kept) => Ok(replay(kept, true).await),
        Found::First(kept) => {
            let stored = stored_name(&name, digest, request_id);
            let mut writing = Writing {
                replaying: replaying.clone(),
                name,
                stored,
                kept: kept.clone(),
                is_whole: false,
                _ticket: parts.extensions.get().cloned(),
            };
            if writing.earlier().await? {
                return Ok(replay(kept, true).await);
            }
            let request = Request::from_parts(parts, Body::from(bytes));
            // Its own task, so that a client that leaves ends nothing.
            tokio::spawn(async move {
                let noted = writing.begin().await;
                let response = next.run(request).await;
                writing.follow(response, noted).await;
            });
            Ok(replay(kept, false).await)
        }
    }
}

fn other_body() -> ApiError {
    ApiError::Mismatch(
        "this Idempotency-Key was sent with another body before; use a new key for a new request"
            .to_owned(),
    )
}

/// A name as the ledger keeps it: no key of a client is stored in the clear.
fn stored_name((owner, route, key): &Name, body: Digest, request: Option<RequestId>) -> AnswerName {
    let mut hash = Sha256::new();
    for part in [owner, route, key] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    AnswerName {
        name: Digest(hash.finalize().into()),
        owner: owner.clone(),
        body,
        request: request.unwrap_or(RequestId(uuid::Uuid::nil())),
    }
}

/// An answer for the ledger.
fn answer_of(kept: &Kept, rest: &[Bytes]) -> Option<Answer> {
    let said = lock(&kept.said);
    let (status, headers) = said.head.as_ref()?;
    let headers: Vec<(&str, &str)> = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
        .collect();
    Some(Answer {
        status: status.as_u16(),
        headers: serde_json::to_vec(&headers).ok()?,
        body: said.chunks.iter().chain(rest).flatten().copied().collect(),
    })
}

/// Its status and headers again.
fn head_of(answer: &Answer) -> Option<(StatusCode, HeaderMap)> {
    let pairs: Vec<(String, String)> = serde_json::from_slice(&answer.headers).ok()?;
    let headers = pairs.into_iter().filter_map(|(name, value)| {
        Some((
            HeaderName::try_from(name).ok()?,
            HeaderValue::try_from(value).ok()?,
        ))
    });
    Some((StatusCode::from_u16(answer.status).ok()?, headers.collect()))
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
    replaying: Arc<Replaying>,
    name: Name,
    stored: AnswerName,
    kept: Arc<Kept>,
    is_whole: bool,
    /// It counts as a completion of its caller while it comes, whether or not they stay.
    _ticket: Option<Arc<Permit>>,
}

/// That a request began is being noted.
type Noted = tokio::task::JoinHandle<Result<(), LedgerError>>;

impl Writing {
    /// Takes the answer from the ledger where an earlier process gave it. False where there was none.
    async fn earlier(&mut self) -> Result<bool, ApiError> {
        let replays = &self.replaying.replays;
        let now_ms = self.replaying.clock.now_ms();
        let since_ms = now_ms - replays.limits.keep_ms;
        let looked_up = replays.in_time(now_ms, replays.store.answered(&self.stored, since_ms));
        let answered = match looked_up.await {
            Some(Ok(answered)) => answered,
            Some(Err(error)) => {
                tracing::warn!(%error, "whether this was answered before could not be read");
                Answered::Unknown
            }
            None => {
                tracing::warn!("the ledger does not say in time whether this was answered before");
                Answered::Unknown
            }
        };
        match answered {
            Answered::Unknown => Ok(false),
            Answered::Other => Err(other_body()),
            Answered::Lost(turn) => Err(ApiError::Conflict {
                code: "answer_lost",
                message: format!(
                    "this was answered before and recorded as {}, and its answer was lost when the server ended; read the turn, or ask again with a new Idempotency-Key",
                    turn.prefixed()
                ),
            }),
            Answered::Whole(answer) => {
                let Some(head) = head_of(&answer) else {
                    return Ok(false);
                };
                lock(&self.kept.said).head = Some(head);
                self.replaying
                    .replays
                    .add(&self.kept, Bytes::from(answer.body));
                self.is_whole = true;
                Ok(true)
            }
        }
    }

    /// Notes in the ledger that it begins, before its turn can be recorded: a process that ends between the
    /// two would know the turn and not whose retry must not make another one. A ledger that takes too long
    /// does not hold up the answer.
    async fn begin(&self) -> Noted {
        let (replaying, stored) = (self.replaying.clone(), self.stored.clone());
        let (done, is_done) = oneshot::channel();
        let noted = tokio::spawn(async move {
            let replays = &replaying.replays;
            let now_ms = replaying.clock.now_ms();
            let begun = replays.store.begin_answer(&stored, replays.limits, now_ms);
            let begun = begun.await;
            // Whoever waits may have given up.
            let _awaited = done.send(()).is_ok();
            begun
        });
        let now_ms = self.replaying.clock.now_ms();
        let is_done = async { Ok(is_done.await.is_ok()) };
        if self
            .replaying
            .replays
            .in_time(now_ms, is_done)
            .await
            .is_none()
        {
            tracing::warn!("the ledger does not note in time that a request with a key began");
        }
        noted
    }

    /// A retry of what failed is a new attempt, in another process too.
    async fn free(&self, noted: Noted) {
        let freed = async {
            match noted.await {
                Ok(Ok(())) => self.replaying.replays.store.drop_answer(&self.stored).await,
                // It is not noted that it began.
                _ => Ok(()),
            }
        };
        let now_ms = self.replaying.clock.now_ms();
        let freed = self.replaying.replays.in_time(now_ms, freed);
        if !matches!(freed.await, Some(Ok(()))) {
            tracing::warn!("a failed request is still noted as one that began");
        }
    }

    /// Keeps the answer with its turn. One that is not collected leaves nothing on the disk.
    async fn keep(&self, noted: Noted, rest: &[Bytes]) {
        let replays = &self.replaying.replays;
        let kept = async {
            match noted.await {
                Ok(noted) => noted?,
                Err(error) => return Err(LedgerError::Failed(error.to_string())),
            }
            let answer = answer_of(&self.kept, rest).filter(|_| !rest.is_empty());
            match answer.filter(|answer| answer.body.len() <= replays.limits.bytes_max) {
                None => replays.store.drop_answer(&self.stored).await,
                Some(answer) => {
                    let kept = replays
                        .store
                        .keep_answer(&self.stored, &answer, replays.limits);
                    kept.await.map(drop)
                }
            }
        };
        match replays.in_time(self.replaying.clock.now_ms(), kept).await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::warn!(%error, "an answer does not outlive this process"),
            None => {
                tracing::warn!("an answer was not kept in time, and may not outlive this process");
            }
        }
    }

    /// Follows the answer to its end. What says that the turn is collected is released once the answer
    /// is kept.
    async fn follow(mut self, response: Response, noted: Noted) {
        let (parts, body) = response.into_parts();
        let mut failed = parts.status.as_u16() >= 400;
        lock(&self.kept.said).head = Some((parts.status, parts.headers));
        self.kept.changed.notify_waiters();
        let mut chunks = body.into_data_stream();
        let mut rest: Vec<Bytes> = Vec::new();
        while let Some(chunk) = chunks.next().await {
            let Ok(chunk) = chunk else {
                failed = true;
                break;
            };
            failed |= tells_failure(&chunk);
            if !rest.is_empty() || is_collected(&chunk) {
                rest.push(chunk);
            } else {
                self.replaying.replays.add(&self.kept, chunk);
            }
        }
        match failed {
            false => self.keep(noted, &rest).await,
            true => self.free(noted).await,
        }
        for chunk in rest {
            self.replaying.replays.add(&self.kept, chunk);
        }
        self.is_whole = !failed;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_whole {
            self.replaying.replays.forget(&self.name, &self.kept);
        }
        lock(&self.kept.said).done = true;
        self.kept.changed.notify_waiters();
    }
}

/// Whether a part of an answer says that its turn is on disk.
fn is_collected(chunk: &[u8]) -> bool {
    chunk
        .windows(COLLECTED.len())
        .any(|window| window == COLLECTED)
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
