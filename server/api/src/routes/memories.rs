//! What people said once, kept for later conversations: their own list of it.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use hone_domain::{
    Learning, MEMORIES_MAX, Memory, MemoryId, MemoryKind, MemoryMode, MemoryOrigin, MemoryRefusal,
    Scope, TurnKind, kept_text, topic_of,
};
use hone_inference::{Index, Listed};
use hone_ledger::{Added, LedgerError, NewMemory};
use serde_json::json;

use super::Reply;
use super::auth::{Made, strict};
use super::learning::whole_scope;
use crate::Http;
use crate::lists;
use crate::request_context::RequestContext;
use hone_api_types::List;
use hone_api_types::learning::UserQuery;
use hone_api_types::memories::{
    ImportRefusal, MemoriesForgotten, MemoriesImport, MemoriesImported, MemoriesReply, MemoryPage,
    MemoryPatch, MemoryReply, MemoryRequest, words,
};
use hone_api_types::memory_markdown::{self, Entry};
use hone_replies::error::{ApiError, ErrorBody};

fn id_of(text: &str) -> Result<MemoryId, ApiError> {
    MemoryId::parse(text).ok_or_else(|| unknown(text))
}

fn unknown(id: &str) -> ApiError {
    ApiError::unknown("memory", id)
}

fn conflict(message: String) -> ApiError {
    ApiError::Conflict {
        code: "memory_conflict",
        message,
    }
}

/// The caller's memories, newest first; those that newer ones replaced are among them.
#[utoipa::path(
    get,
    path = "/v1/memories",
    params(MemoryPage),
    responses(
        (status = 200, body = MemoriesReply),
    )
)]
pub async fn list_memories(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    query: Result<Query<MemoryPage>, QueryRejection>,
) -> Reply<MemoriesReply> {
    let query = lists::query(query)?;
    let scope = whole_scope(&http, &context, query.user.as_deref())?;
    let window = lists::window(query.limit, query.before.as_deref())?;
    let page = match &query.q {
        None => {
            let rows = http.memories.memories(&scope, window).await?;
            if query.before.is_none() {
                let current = rows.iter().filter(|row| row.memory.is_current());
                let listed = Listed::Memories(current.map(|row| row.memory.id).collect());
                http.remembered.show_listed(&scope, listed).await;
            }
            lists::page(rows, window.limit, |row| (row.number, row.memory.into()))
        }
        Some(_) if query.before.is_some() => {
            let why = "q gives the best ones, which have no further page";
            return Err(ApiError::invalid("before", why));
        }
        Some(words) => List::whole(search(&http, &scope, words, window.limit).await?),
    };
    let (mode, mode_max) = modes(&http, &context, &scope);
    Ok(Json(MemoriesReply {
        page,
        mode,
        mode_max,
    }))
}

/// The memories of a scope that may be shown and share a word with `words`, the best first.
pub(crate) async fn search(
    http: &Http,
    scope: &Scope,
    words: &str,
    most: usize,
) -> Result<Vec<MemoryReply>, ApiError> {
    let current = current(http, scope).await?;
    let index = Index::of(current.iter().map(|one| one.text.as_str()));
    let found = index.matches(words, most).into_iter();
    Ok(found.map(|at| current[at].clone().into()).collect())
}

/// The memories of a scope that may be shown, newest first.
async fn current(http: &Http, scope: &Scope) -> Result<Vec<Memory>, ApiError> {
    let all = http
        .memories
        .newest_memories(Some(scope), MEMORIES_MAX)
        .await?;
    Ok(all.into_iter().filter(Memory::is_current).collect())
}

/// What a main turn of the caller does with memories where its request does not say, and the most that it may do.
pub(super) fn modes(
    http: &Http,
    context: &RequestContext,
    scope: &Scope,
) -> (MemoryMode, MemoryMode) {
    let (learning, is_shared) = allowed(http, context, scope);
    let most = MemoryMode::Full.allowed(learning, TurnKind::Main, is_shared);
    let inference = http.inference.as_ref();
    // Where nothing is answered, nothing is shown.
    let configured = inference.map_or(MemoryMode::Off, |inference| inference.memory.config.mode);
    let mode = context.caller.memory.unwrap_or(configured);
    (mode.min(most), most)
}

/// Adds a memory; one that says the same is given back as it is.
#[utoipa::path(
    post,
    path = "/v1/memories",
    request_body = MemoryRequest,
    responses(
        (status = 200, description = "A memory says the same already", body = MemoryReply),
        (status = 201, description = "It is on disk", body = MemoryReply),
        (status = 403, description = "The consent is `off`, or several people share this policy", body = ErrorBody),
        (status = 409, description = "There are 10000 of them already", body = ErrorBody),
    )
)]
pub async fn add_memory(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<MemoryReply> {
    let body: MemoryRequest = strict(&http, request).await?;
    let (status, memory) = add(&http, &context, &body).await?;
    Ok((status, Json(memory)))
}

/// Adds a memory of the caller; 200 where one says the same already.
pub(crate) async fn add(
    http: &Http,
    context: &RequestContext,
    body: &MemoryRequest,
) -> Result<(StatusCode, MemoryReply), ApiError> {
    let scope = whole_scope(http, context, body.user.as_deref())?;
    let kind = body.kind.unwrap_or(MemoryKind::Fact);
    let new = new_memory(http, kind, words(&body.text)?, MemoryOrigin::Said);
    may_keep(http, context, &scope)?;
    noted(http, context, "memory.add", &scope, Some(new.id)).await?;
    let added = http.remembered.add(&scope, new, http.clock.now_ms());
    let (status, memory) = match added.await? {
        Added::New(memory) => (StatusCode::CREATED, memory),
        Added::Same(memory) => (StatusCode::OK, memory),
        Added::Full => return Err(conflict(MemoryRefusal::Full.to_string())),
    };
    Ok((status, memory.into()))
}

fn new_memory(http: &Http, kind: MemoryKind, text: String, origin: MemoryOrigin) -> NewMemory {
    NewMemory {
        id: MemoryId(http.ids.next()),
        kind,
        topic: topic_of(&text),
        replaces: None,
        text,
        turn: None,
        origin,
    }
}

/// The caller's current memories as a Markdown file, oldest first.
#[utoipa::path(
    get,
    path = "/v1/memories/export",
    params(UserQuery),
    responses(
        (status = 200, description = "The file", body = String, content_type = "text/markdown"),
    )
)]
pub async fn export_memories(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    query: Result<Query<UserQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let query = lists::query(query)?;
    let scope = whole_scope(&http, &context, query.user.as_deref())?;
    let mut current = current(&http, &scope).await?;
    current.reverse();
    let kind = [(CONTENT_TYPE, "text/markdown; charset=utf-8")];
    Ok((kind, memory_markdown::write(&current)).into_response())
}

/// Adds the entries of a Markdown file as memories. One that looks like a secret or is too long is left out and named.
#[utoipa::path(
    post,
    path = "/v1/memories/import",
    request_body = MemoriesImport,
    responses(
        (status = 200, description = "They are on disk", body = MemoriesImported),
        (status = 403, description = "The consent is `off`, or several people share this policy", body = ErrorBody),
    )
)]
pub async fn import_memories(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<MemoriesImported> {
    let body: MemoriesImport = strict(&http, request).await?;
    let scope = whole_scope(&http, &context, body.user.as_deref())?;
    let entries = memory_markdown::read(&body.markdown);
    match entries.len() {
        0 => {
            return Err(ApiError::invalid(
                "markdown",
                "the file has no list and no line to keep",
            ));
        }
        n if n > MEMORIES_MAX => {
            let why =
                format!("the file has {n} entries; a user has at most {MEMORIES_MAX} memories");
            return Err(ApiError::invalid("markdown", why));
        }
        _ => {}
    }
    may_keep(&http, &context, &scope)?;
    noted(&http, &context, "memory.import", &scope, None).await?;
    let mut imported = Imported::default();
    let kept = entries
        .iter()
        .filter_map(|entry| imported.kept(&http, entry));
    let kept: Vec<(usize, NewMemory)> = kept.collect();
    for some in kept.chunks(IMPORT_AT_ONCE) {
        let new: Vec<NewMemory> = some.iter().map(|(_, new)| new.clone()).collect();
        let added = http
            .memories
            .add_memories(&scope, &new, http.clock.now_ms());
        let lines = some.iter().map(|(line, _)| *line);
        match added.await {
            Ok(added) => lines
                .zip(added)
                .for_each(|(line, one)| imported.count(line, &one)),
            Err(error) => {
                // What was kept before is shown.
                http.remembered.refresh(&scope).await;
                return Err(error.into());
            }
        }
    }
    http.remembered.refresh(&scope).await;
    Ok(Json(imported.reply()))
}

/// Memories that one transaction of an import adds.
const IMPORT_AT_ONCE: usize = 200;
/// Reasons that a reply names.
const REASONS_MAX: usize = 100;

/// What became of a file's entries so far.
#[derive(Default)]
struct Imported {
    added: u64,
    same: u64,
    refused: u64,
    reasons: Vec<ImportRefusal>,
}

impl Imported {
    /// An entry as it is kept, with its line.
    fn kept(&mut self, http: &Http, entry: &Entry) -> Option<(usize, NewMemory)> {
        match kept_text(&entry.text) {
            Ok(text) => {
                let new = new_memory(http, entry.kind, text, MemoryOrigin::Imported);
                Some((entry.line, new))
            }
            Err(why) => {
                self.refuse(entry.line, why);
                None
            }
        }
    }

    fn refuse(&mut self, line: usize, why: MemoryRefusal) {
        self.refused += 1;
        if self.reasons.len() < REASONS_MAX {
            let reason = why.to_string();
            self.reasons.push(ImportRefusal { line, reason });
        }
    }

    fn count(&mut self, line: usize, one: &Added) {
        match one {
            Added::New(_) => self.added += 1,
            Added::Same(_) => self.same += 1,
            Added::Full => self.refuse(line, MemoryRefusal::Full),
        }
    }

    fn reply(mut self) -> MemoriesImported {
        self.reasons.sort_by_key(|refusal| refusal.line);
        MemoriesImported {
            object: "memories.imported",
            added: self.added,
            same: self.same,
            refused: self.refused,
            reasons: self.reasons,
        }
    }
}

/// What may be learned from a scope of the caller, and whether several people share its policy.
fn allowed(http: &Http, context: &RequestContext, scope: &Scope) -> (Learning, bool) {
    let owner = &context.caller.owner;
    let (consent, _) = http.rules.consent(owner, scope);
    (consent.learning, http.rules.scope(owner, None).1.is_some())
}

/// Whether anything may be kept of a scope, and whether it is one person's.
pub(super) fn may_keep(
    http: &Http,
    context: &RequestContext,
    scope: &Scope,
) -> Result<(), ApiError> {
    let (learning, is_shared) = allowed(http, context, scope);
    if is_shared {
        return Err(ApiError::Forbidden {
            code: "shared_policy",
            message: "several people share this policy, so it has no memories".to_owned(),
        });
    }
    match learning {
        Learning::Off => Err(ApiError::Forbidden {
            code: "learning_off",
            message: "nothing is kept of you, as you decided (PUT /v1/consent)".to_owned(),
        }),
        Learning::Serve | Learning::Full => Ok(()),
    }
}

/// Changes a memory: its words, its kind, whether it is set aside. Holds from the next request on.
#[utoipa::path(
    patch,
    path = "/v1/memories/{id}",
    params(("id" = String, Path, description = "The memory")),
    request_body = MemoryPatch,
    responses(
        (status = 200, body = MemoryReply),
        (status = 404, description = "No such memory of yours", body = ErrorBody),
        (status = 409, description = "Another memory says the same", body = ErrorBody),
    )
)]
pub async fn change_memory(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    request: Request,
) -> Reply<MemoryReply> {
    let body: MemoryPatch = strict(&http, request).await?;
    let scope = whole_scope(&http, &context, body.user.as_deref())?;
    let change = body.change()?;
    let memory = id_of(&id)?;
    noted(&http, &context, "memory.change", &scope, Some(memory)).await?;
    let changed = http.memories.change_memory(&scope, memory, &change);
    let changed = match changed.await {
        Err(LedgerError::Conflict(why)) => return Err(conflict(why)),
        changed => changed?.ok_or_else(|| unknown(&id))?,
    };
    http.remembered.refresh(&scope).await;
    Ok(Json(changed.into()))
}

/// Forgets a memory. The next request is not shown it, also in conversations that were.
#[utoipa::path(
    delete,
    path = "/v1/memories/{id}",
    params(("id" = String, Path, description = "The memory"), UserQuery),
    responses(
        (status = 200, body = MemoriesForgotten),
        (status = 404, description = "No such memory of yours", body = ErrorBody),
    )
)]
pub async fn forget_memory(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    query: Result<Query<UserQuery>, QueryRejection>,
) -> Reply<MemoriesForgotten> {
    let query = lists::query(query)?;
    let forgotten = forget_one(&http, &context, &id, query.user.as_deref()).await?;
    Ok(Json(forgotten))
}

/// Forgets a memory of the caller.
pub(crate) async fn forget_one(
    http: &Http,
    context: &RequestContext,
    id: &str,
    user: Option<&str>,
) -> Result<MemoriesForgotten, ApiError> {
    let scope = whole_scope(http, context, user)?;
    let memory = id_of(id)?;
    noted(http, context, "memory.forget", &scope, Some(memory)).await?;
    match forget(http, &scope, Some(memory)).await? {
        0 => Err(unknown(id)),
        forgotten => Ok(MemoriesForgotten::new(forgotten)),
    }
}

/// Forgets every memory of the caller.
#[utoipa::path(
    delete,
    path = "/v1/memories",
    params(UserQuery),
    responses(
        (status = 200, body = MemoriesForgotten),
    )
)]
pub async fn forget_memories(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    query: Result<Query<UserQuery>, QueryRejection>,
) -> Reply<MemoriesForgotten> {
    let query = lists::query(query)?;
    let scope = whole_scope(&http, &context, query.user.as_deref())?;
    noted(&http, &context, "memory.forget", &scope, None).await?;
    let forgotten = forget(&http, &scope, None).await?;
    Ok(Json(MemoriesForgotten::new(forgotten)))
}

/// Writes an act into the audit log, before it is done; without the words.
async fn noted(
    http: &Http,
    context: &RequestContext,
    act: &'static str,
    scope: &Scope,
    id: Option<MemoryId>,
) -> Result<(), ApiError> {
    let object = id.map_or_else(|| "all".to_owned(), MemoryId::prefixed);
    let detail = json!({"scope": scope.as_str()});
    let recorded = http.audit.record(&context.caller, act, &object, detail);
    Ok(recorded.await?)
}

async fn forget(http: &Http, scope: &Scope, id: Option<MemoryId>) -> Result<u64, ApiError> {
    let forgotten = http.memories.forget_memories(scope, id).await;
    // Also after a failure: what the ledger no longer has is not shown.
    http.remembered.refresh(scope).await;
    Ok(forgotten?)
}
