//! `/admin/v1/turns`: anybody's turns, and everything that is known of one.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use hone_domain::{Message, Reason, Scope, SessionId, Turn, TurnKind};
use hone_ledger::{Extent, TurnEntry, TurnFilter};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::Reply;
use super::sessions::{TurnLineReply, reason, state, turn_page};
use super::turns::TurnReply;
use crate::Http;
use crate::lists;
use crate::request_context::RequestContext;
use hone_api_types::List;
use hone_api_types::feedback::parse_turn_id;
use hone_inference::InferenceService;
use hone_replies::error::{ApiError, ErrorBody};

/// Which turns.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AdminTurnsQuery {
    /// Of this scope, as `GET /admin/v1/scopes` writes it.
    pub scope: Option<String>,
    /// Of this owner's keys.
    pub owner: Option<String>,
    /// Of this session.
    pub session_id: Option<String>,
    /// `pending`, `trained` or `settled`.
    pub state: Option<String>,
    /// Settled for this reason.
    pub reason: Option<String>,
    /// Sampled by this version.
    pub version: Option<u64>,
    /// `main` or `side`.
    pub kind: Option<String>,
    /// With a score of at least this.
    pub score_min: Option<f32>,
    /// With a score of at most this.
    pub score_max: Option<f32>,
    /// Most turns, 1 to 200; 50 if absent.
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub before: Option<String>,
}

fn kind(text: &str) -> Option<TurnKind> {
    match text {
        "main" => Some(TurnKind::Main),
        "side" => Some(TurnKind::Side),
        _ => None,
    }
}

impl AdminTurnsQuery {
    fn filter(&self) -> Result<TurnFilter, ApiError> {
        let parse = (SessionId::parse, "a session's id");
        Ok(TurnFilter {
            scope: lists::said(self.scope.as_ref()).map(Scope::from_stored),
            owner: lists::said(self.owner.as_ref()).map(str::to_owned),
            session: lists::word("session_id", self.session_id.as_deref(), parse)?,
            state: state(self.state.as_deref())?,
            reason: reason(self.reason.as_deref())?,
            version: (self.version.map(|n| lists::version("version", n))).transpose()?,
            kind: lists::word("kind", self.kind.as_deref(), (kind, "main or side"))?,
            score_min: self.score_min,
            score_max: self.score_max,
        })
    }
}

/// Everybody's turns, newest first.
#[utoipa::path(
    get,
    path = "/admin/v1/turns",
    params(AdminTurnsQuery),
    operation_id = "admin_list_turns",
    responses(
        (status = 200, body = List<TurnLineReply>),
    )
)]
pub async fn list_turns(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    query: Result<Query<AdminTurnsQuery>, QueryRejection>,
) -> Reply<List<TurnLineReply>> {
    let query = lists::query(query)?;
    let limit = lists::limit(query.limit)?;
    let before = lists::before(query.before.as_deref())?;
    let page = turn_page(&http, &query.filter()?, before, limit).await?;
    record_list(&http, &context, &query, &page.0.data).await?;
    Ok(page)
}

/// Why a turn does not train.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReasonReply {
    /// Always `reason`.
    pub object: &'static str,
    /// Its name, as turns have it and `reason` of `/admin/v1/turns` takes it.
    pub name: &'static str,
    /// One sentence for a person.
    pub explanation: &'static str,
}

/// Why turns do not train, by name: every reason that a kept turn can have.
#[utoipa::path(
    get,
    path = "/admin/v1/reasons",
    responses(
        (status = 200, body = List<ReasonReply>),
    )
)]
pub async fn list_reasons() -> Json<List<ReasonReply>> {
    let kept = Reason::ALL.iter().filter(|reason| reason.is_kept());
    let mut rows: Vec<ReasonReply> = kept
        .map(|reason| ReasonReply {
            object: "reason",
            name: reason.as_str(),
            explanation: reason.explain(),
        })
        .collect();
    rows.sort_by_key(|row| row.name);
    Json(List::whole(rows))
}

/// Records that the beginnings of what others were told were read.
async fn record_list(
    http: &Http,
    context: &RequestContext,
    query: &AdminTurnsQuery,
    lines: &[TurnLineReply],
) -> Result<(), ApiError> {
    let caller = &context.caller;
    let foreign = lines.iter().filter(|line| line.owner != caller.owner);
    let owners: BTreeSet<&str> = foreign.map(|line| line.owner.as_str()).collect();
    if owners.is_empty() {
        return Ok(());
    }
    const NAMED_MAX: usize = 20;
    let named: Vec<&str> = owners.iter().copied().take(NAMED_MAX).collect();
    let detail = json!({"turns": lines.len(), "owners": owners.len(), "named": named});
    let session = query.session_id.as_deref().unwrap_or_default();
    let recorded = http.audit.record(caller, "turn.list", session, detail);
    Ok(recorded.await?)
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct TokenReply {
    /// Its text. A character of several tokens stands with the last of them.
    pub text: String,
    /// Log-prob of the distribution it was sampled from.
    pub logprob: f32,
    /// What training moved it by; null where no version learned from the turn.
    pub advantage: Option<f64>,
}

/// A batch that the turn entered.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EntryReply {
    /// The batch.
    pub batch_id: Option<String>,
    /// The version that learned from it; null where its candidate was refused.
    pub version: Option<u64>,
    /// Why its candidate was refused.
    pub refused: Option<&'static str>,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// What was measured.
    pub report: Value,
}

impl EntryReply {
    fn of(entry: TurnEntry) -> Self {
        Self {
            batch_id: entry.batch.map(|batch| format!("bat_{batch}")),
            version: entry.version.map(|version| version.0),
            refused: entry.refused.map(Reason::as_str),
            at_ms: entry.at_ms,
            report: entry.report,
        }
    }
}

/// Everything that is known of a turn.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AdminTurnReply {
    /// What its owner sees as well.
    #[serde(flatten)]
    pub turn: TurnReply,
    /// Its scope.
    pub scope: String,
    /// Owner of the key that asked.
    pub owner: String,
    /// The messages of the request.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Message>,
    /// What was sampled; null where another model sampled it than the one that is served here.
    pub tokens: Option<Vec<TokenReply>>,
    /// The batches it entered, oldest first.
    pub entered: Vec<EntryReply>,
}

/// One turn, whoever's it is.
#[utoipa::path(
    get,
    path = "/admin/v1/turns/{id}",
    params(("id" = String, Path, description = "The turn, or the id of its reply")),
    operation_id = "admin_get_turn",
    responses(
        (status = 200, body = AdminTurnReply),
        (status = 404, description = "No such turn", body = ErrorBody),
    )
)]
pub async fn get_turn(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Reply<AdminTurnReply> {
    let unknown = || {
        let shown: String = id.chars().take(100).collect();
        ApiError::NotFound(format!("no turn {shown} is known"))
    };
    let turn = parse_turn_id(&id).ok_or_else(unknown)?;
    let view = http.ledger.turn(turn).await?;
    let view = view.ok_or_else(unknown)?;
    let owner = &view.turn.owner;
    if *owner != context.caller.owner {
        // Reading what others said is an act of its own: without a record there is no reading.
        let detail = json!({ "owner": owner });
        let object = turn.prefixed();
        http.audit
            .record(&context.caller, "turn.read", &object, detail)
            .await?;
    }
    let entered = http.ledger.turn_entries(turn).await?;
    let advantages = advantages(&view.turn, &entered);
    let inference = http.inference.as_deref();
    // Log-probs that are not kept any more are not shown as if they were.
    let inference = inference.filter(|_| view.extent == Extent::Whole);
    let tokens =
        inference.and_then(|inference| tokens(inference, &view.turn, advantages.as_deref()));
    Ok(Json(AdminTurnReply {
        scope: view.turn.scope.as_str().to_owned(),
        owner: view.turn.owner.clone(),
        messages: view.turn.messages.clone(),
        tokens,
        entered: entered.into_iter().map(EntryReply::of).collect(),
        turn: TurnReply::of(view),
    }))
}

/// What the version that learned from the turn noted of it: one number for every token, or one
/// for each.
fn advantages(turn: &Turn, entered: &[TurnEntry]) -> Option<Vec<f64>> {
    let learned = entered.iter().rev().find(|entry| entry.version.is_some())?;
    let noted = &learned.report["advantages"][turn.id.to_string()];
    match noted {
        Value::Number(one) => Some(vec![one.as_f64()?; turn.completion.len()]),
        Value::Array(each) => {
            let each: Option<Vec<f64>> = each.iter().map(Value::as_f64).collect();
            each.filter(|each| each.len() == turn.completion.len())
        }
        _ => None,
    }
}

/// The completion token by token, where the served model's tokenizer made them.
fn tokens(
    inference: &InferenceService,
    turn: &Turn,
    advantages: Option<&[f64]>,
) -> Option<Vec<TokenReply>> {
    // What came from outside has no log-probs to show.
    if inference.backend.capabilities().base != turn.base || !turn.completion.has_logprobs() {
        return None;
    }
    let completion = &turn.completion;
    let mut texts = Texts::default();
    let rows = completion.tokens().iter().enumerate().map(|(at, token)| {
        let is_last = at + 1 == completion.len();
        TokenReply {
            text: texts.push(&inference.language.token_bytes(*token), is_last),
            logprob: completion.behavior_logprobs()[at],
            advantage: advantages.map(|advantages| advantages[at]),
        }
    });
    Some(rows.collect())
}

/// Bytes of tokens as text: what ends within a character waits for the next token.
#[derive(Default)]
struct Texts(Vec<u8>);

impl Texts {
    fn push(&mut self, bytes: &[u8], is_last: bool) -> String {
        self.0.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.0) {
            Ok(_) => self.0.len(),
            // Bytes that begin a character; anything else is broken for good.
            Err(error) if error.error_len().is_none() && !is_last => error.valid_up_to(),
            Err(_) => self.0.len(),
        };
        let rest = self.0.split_off(whole);
        let text = String::from_utf8_lossy(&self.0).into_owned();
        self.0 = rest;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_several_tokens_stand_with_the_last_of_them() {
        let rows: &[(&[&[u8]], &[&str])] = &[
            (&[b"a", b"b"], &["a", "b"]),
            (&["ä".as_bytes(), b"!"], &["ä", "!"]),
            (&[&[b'x', 0xe2], &[0x82], &[0xac, b'y']], &["x", "", "€y"]),
            (&[&[0xff], b"a"], &["\u{fffd}", "a"]),
            (&[b"a", &[0xe2, 0x82]], &["a", "\u{fffd}"]),
        ];
        for (pieces, expected) in rows {
            let mut texts = Texts::default();
            let last = pieces.len() - 1;
            let got: Vec<String> = pieces
                .iter()
                .enumerate()
                .map(|(at, piece)| texts.push(piece, at == last))
                .collect();
            assert_eq!(&got, expected);
        }
    }
}
