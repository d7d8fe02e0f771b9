//! What the caller talked about: `/v1/sessions` and the list `GET /v1/turns`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use hone_domain::{Message, Reason, Scope, SessionId, SessionReward, TurnId, TurnKind};
use hone_ledger::{FateState, SessionLine, SessionTurn, TurnFilter, TurnLine};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Reply;
use super::turns::{FateReply, FeedbackView};
use crate::Http;
use crate::lists;
use crate::request_context::RequestContext;
use hone_api_types::List;
use hone_inference::call_id;
use hone_replies::error::{ApiError, ErrorBody};

/// Most bytes of a search.
const SEARCH_BYTES_MAX: usize = 512;

/// Which sessions.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SessionsQuery {
    /// The `user` field of the requests in question.
    pub user: Option<String>,
    /// Part of the title, letter case aside.
    pub search: Option<String>,
    /// Most sessions, 1 to 200; 50 if absent.
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub before: Option<String>,
}

/// A session in a list.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SessionReply {
    /// The session.
    pub id: String,
    /// Its key as the client gave it (`session_id` of the requests); null where it gave none.
    pub key: Option<String>,
    /// How its first user message begins; null where it has none.
    pub title: Option<String>,
    /// When its first turn was admitted, in milliseconds since the Unix epoch.
    pub first_ms: i64,
    /// When its newest turn ended, in milliseconds since the Unix epoch.
    pub last_ms: i64,
    /// Its turns, side turns included.
    pub turns: u64,
}

impl SessionReply {
    fn of(line: SessionLine) -> Self {
        Self {
            id: line.id.prefixed(),
            key: line.key,
            title: line.title,
            first_ms: line.first_ms,
            last_ms: line.last_ms,
            turns: line.turns,
        }
    }
}

/// The caller's sessions, last used first.
#[utoipa::path(
    get,
    path = "/v1/sessions",
    params(SessionsQuery),
    responses(
        (status = 200, body = List<SessionReply>),
    )
)]
pub async fn list_sessions(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    query: Result<Query<SessionsQuery>, QueryRejection>,
) -> Reply<List<SessionReply>> {
    let query = lists::query(query)?;
    let limit = lists::limit(query.limit)?;
    let before = lists::before_ms(query.before.as_deref())?;
    let search = lists::said(query.search.as_ref()).map(str::trim);
    if search.is_some_and(|s| s.len() > SEARCH_BYTES_MAX) {
        return Err(ApiError::invalid(
            "search",
            format!("search must have at most {SEARCH_BYTES_MAX} bytes"),
        ));
    }
    let scope = listed(&http, &context.caller.owner, query.user.as_ref())?;
    let page = http.ledger.session_page((&scope, search), before, limit);
    let page = page.await?;
    let next = page.next.map(|(ms, number)| format!("{ms}.{number}"));
    let data = page.rows.into_iter().map(SessionReply::of).collect();
    Ok(Json(List::page(data, next)))
}

/// The scope whose sessions or turns are listed.
fn listed(http: &Http, owner: &str, user: Option<&String>) -> Result<Scope, ApiError> {
    match http.rules.scope(owner, lists::said(user)) {
        (_, Some(source)) if !source.is_empty() => Err(ApiError::Forbidden {
            code: "shared_policy",
            message: "several people share this policy, and lists do not tell them apart: leave \
                      `user` out to see all"
                .to_owned(),
        }),
        (scope, _) => Ok(scope),
    }
}

/// Which part of a session.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SessionQuery {
    /// Most turns, 1 to 200, counted from the newest; 50 if absent.
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub before: Option<String>,
}

/// A tool call, as chat completions write it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CallReply {
    /// What its result refers to.
    pub id: String,
    /// Always `function`.
    pub r#type: &'static str,
    /// What is called.
    pub function: CalledReply,
}

/// What a tool call calls.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CalledReply {
    /// Name of the function.
    pub name: String,
    /// JSON text of the arguments.
    pub arguments: String,
}

/// A turn as a part of its conversation.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SessionTurnReply {
    /// The turn.
    pub turn_id: String,
    /// The turn it continues.
    pub parent_id: Option<String>,
    /// Which of its request's choices.
    pub choice_index: u32,
    /// `main` or `side`.
    #[schema(value_type = String)]
    pub kind: TurnKind,
    /// What was said beyond the parent's messages and completion.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Message>,
    /// The completion as it was sampled.
    pub completion: String,
    /// What of it was said to the user.
    pub content: String,
    /// What was thought before; empty where nothing was.
    pub reasoning: String,
    /// The tools it calls.
    pub tool_calls: Vec<CallReply>,
    /// The version that sampled it.
    pub policy_version: u64,
    /// What became of it.
    pub fate: FateReply,
    /// The current verdict's score.
    pub score: Option<f32>,
    /// Explicit feedback, oldest first.
    pub feedback: Vec<FeedbackView>,
    /// When it was admitted, in milliseconds since the Unix epoch.
    pub started_ms: i64,
}

impl SessionTurnReply {
    fn of(turn: SessionTurn) -> Self {
        let parsed = hone_domain::ParsedOutput::whole(&turn.completion);
        let calls = parsed.calls.into_iter().enumerate();
        let calls = calls.map(|(number, called)| CallReply {
            id: call_id(turn.id, number),
            r#type: "function",
            function: CalledReply {
                name: called.name,
                arguments: called.arguments,
            },
        });
        Self {
            tool_calls: calls.collect(),
            content: parsed.content,
            reasoning: parsed.reasoning,
            turn_id: turn.id.prefixed(),
            parent_id: turn.parent.map(TurnId::prefixed),
            choice_index: turn.choice_index,
            kind: turn.kind,
            messages: turn.messages,
            completion: turn.completion,
            policy_version: turn.version.0,
            fate: FateReply::of(turn.fate),
            score: turn.score,
            feedback: turn.feedback.into_iter().map(FeedbackView::of).collect(),
            started_ms: turn.started_ms,
        }
    }
}

/// A reward that the whole session got.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SessionRewardReply {
    /// The reward, -1 to 1.
    pub score: f32,
    /// What it was made of, by name.
    pub rewards: BTreeMap<String, f64>,
    /// When, in milliseconds since the Unix epoch.
    pub received_ms: i64,
}

impl SessionRewardReply {
    fn of(reward: SessionReward) -> Self {
        Self {
            score: reward.score,
            rewards: reward.parts,
            received_ms: reward.received_ms,
        }
    }
}

/// A session's conversation.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ConversationReply {
    /// Always `session`.
    pub object: &'static str,
    /// The session.
    #[serde(flatten)]
    pub session: SessionHead,
    /// Rewards that it got as a whole, oldest first.
    pub rewards: Vec<SessionRewardReply>,
    /// Its newest turns, oldest of them first.
    pub turns: Vec<SessionTurnReply>,
    /// Send it as `before` to get older turns; null where there are none.
    pub next: Option<String>,
}

/// What a conversation begins with.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SessionHead {
    /// The session.
    pub id: String,
    /// Its key as the client gave it (`session_id` of the requests); null where it gave none.
    pub key: Option<String>,
    /// How its first user message begins; null where it has none.
    pub title: Option<String>,
    /// When its first turn was admitted, in milliseconds since the Unix epoch.
    pub first_ms: i64,
    /// When its newest turn ended, in milliseconds since the Unix epoch.
    pub last_ms: i64,
    /// How many turns it has in all.
    pub turns_total: u64,
}

/// One of the caller's sessions.
#[utoipa::path(
    get,
    path = "/v1/sessions/{id}",
    params(("id" = String, Path, description = "The session"), SessionQuery),
    responses(
        (status = 200, body = ConversationReply),
        (status = 404, description = "No such session of yours", body = ErrorBody),
    )
)]
pub async fn get_session(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    query: Result<Query<SessionQuery>, QueryRejection>,
) -> Reply<ConversationReply> {
    let query = lists::query(query)?;
    let limit = lists::limit(query.limit)?;
    let before = lists::before(query.before.as_deref())?;
    let unknown = || ApiError::unknown("session", &id);
    let session = SessionId::parse(&id).ok_or_else(unknown)?;
    let view = http.ledger.session(session, before, limit).await?;
    let view = view.filter(|view| view.owner == context.caller.owner);
    let view = view.ok_or_else(unknown)?;
    let line = view.line;
    Ok(Json(ConversationReply {
        object: "session",
        session: SessionHead {
            id: line.id.prefixed(),
            key: line.key,
            title: line.title,
            first_ms: line.first_ms,
            last_ms: line.last_ms,
            turns_total: line.turns,
        },
        rewards: view
            .rewards
            .into_iter()
            .map(SessionRewardReply::of)
            .collect(),
        turns: view
            .turns
            .rows
            .into_iter()
            .map(SessionTurnReply::of)
            .collect(),
        next: view.turns.next.map(|number| number.to_string()),
    }))
}

/// A turn in a list.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TurnLineReply {
    /// The turn.
    pub id: String,
    /// Its session.
    pub session_id: String,
    /// Its scope.
    pub scope: String,
    /// Owner of the key that asked.
    pub owner: String,
    /// `main` or `side`.
    #[schema(value_type = String)]
    pub kind: TurnKind,
    /// The version that sampled it.
    pub policy_version: u64,
    /// What became of it.
    pub fate: FateReply,
    /// The current verdict's score.
    pub score: Option<f32>,
    /// How the completion begins.
    pub preview: String,
    /// When it was admitted, in milliseconds since the Unix epoch.
    pub started_ms: i64,
    /// When sampling ended, in milliseconds since the Unix epoch.
    pub finished_ms: i64,
}

impl TurnLineReply {
    pub(super) fn of(line: TurnLine) -> Self {
        Self {
            id: line.id.prefixed(),
            session_id: line.session.prefixed(),
            scope: line.scope.as_str().to_owned(),
            owner: line.owner,
            kind: line.kind,
            policy_version: line.version.0,
            fate: FateReply::of(line.fate),
            score: line.score,
            preview: line.preview,
            started_ms: line.started_ms,
            finished_ms: line.finished_ms,
        }
    }
}

/// Words of filters, as clients write them.
pub(super) fn state(text: Option<&str>) -> Result<Option<FateState>, ApiError> {
    lists::word(
        "state",
        text,
        (FateState::from_name, "pending, trained or settled"),
    )
}

pub(super) fn reason(text: Option<&str>) -> Result<Option<Reason>, ApiError> {
    let known = "a reason as in a turn's fate, such as no_next_state";
    lists::word("reason", text, (Reason::from_stored, known))
}

/// Which turns.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct TurnsQuery {
    /// The `user` field of the requests in question; not needed with `session_id`.
    pub user: Option<String>,
    /// Of this session.
    pub session_id: Option<String>,
    /// `pending`, `trained` or `settled`.
    pub state: Option<String>,
    /// Settled for this reason.
    pub reason: Option<String>,
    /// Sampled by this version.
    pub version: Option<u64>,
    /// Most turns, 1 to 200; 50 if absent.
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub before: Option<String>,
}

impl TurnsQuery {
    fn filter(&self, http: &Http, owner: &str) -> Result<TurnFilter, ApiError> {
        let parse = (SessionId::parse, "a session's id");
        let session = lists::word("session_id", self.session_id.as_deref(), parse)?;
        let by_scope = session.is_none() || lists::said(self.user.as_ref()).is_some();
        let scope = by_scope.then(|| listed(http, owner, self.user.as_ref()));
        Ok(TurnFilter {
            scope: scope.transpose()?,
            owner: Some(owner.to_owned()),
            session,
            state: state(self.state.as_deref())?,
            reason: reason(self.reason.as_deref())?,
            version: (self.version.map(|n| lists::version("version", n))).transpose()?,
            ..TurnFilter::default()
        })
    }
}

/// The caller's turns, newest first.
#[utoipa::path(
    get,
    path = "/v1/turns",
    params(TurnsQuery),
    responses(
        (status = 200, body = List<TurnLineReply>),
    )
)]
pub async fn list_turns(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    query: Result<Query<TurnsQuery>, QueryRejection>,
) -> Reply<List<TurnLineReply>> {
    let query = lists::query(query)?;
    let limit = lists::limit(query.limit)?;
    let before = lists::before(query.before.as_deref())?;
    let filter = query.filter(&http, &context.caller.owner)?;
    turn_page(&http, &filter, before, limit).await
}

/// One page of turns as a reply.
pub(super) async fn turn_page(
    http: &Http,
    filter: &TurnFilter,
    before: Option<u64>,
    limit: usize,
) -> Reply<List<TurnLineReply>> {
    let page = http.ledger.turn_page(filter, before, limit).await?;
    let data = page.rows.into_iter().map(TurnLineReply::of).collect();
    Ok(Json(List::page(data, page.next.map(|n| n.to_string()))))
}
