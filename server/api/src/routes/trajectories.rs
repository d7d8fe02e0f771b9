//! `POST /v1/trajectories`: conversations that were had elsewhere, to be learned from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use hone_collect::{Input, Observed};
use hone_domain::{
    Collect, Digest, Message, NextState, Policy, PolicyChoice, PolicyVersion, Receipt, Role, Scope,
    SessionReward, Turn,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use super::Reply;
use super::auth::strict;
use super::branches::as_served;
use super::feedback::{reward_session, unavailable};
use super::talk::{Talk, serving};
use crate::Http;
use crate::request_context::RequestContext;
use hone_api_types::content::Reader;
use hone_api_types::messages::parse_messages;
use hone_api_types::session::SessionFields;
use hone_api_types::trajectories::{MessageLeftOut, TokenTurn, TrajectoryReply, TrajectoryRequest};
use hone_inference::{Drawn, Outside};
use hone_replies::error::{ApiError, ErrorBody};

/// Under which name the digest of a trajectory stands in the metadata of its turns.
const SHA256: &str = "trajectory_sha256";

/// Takes a conversation that was had elsewhere: each assistant message becomes a turn of a new session.
#[utoipa::path(
    post,
    path = "/v1/trajectories",
    request_body = TrajectoryRequest,
    responses(
        (status = 200, description = "It is on disk, or the reply says why not", body = TrajectoryReply),
        (status = 409, description = "Another trajectory has that id", body = ErrorBody),
        (status = 503, description = "It could not be stored", body = ErrorBody),
    )
)]
pub async fn add_trajectory(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<TrajectoryReply> {
    let body: TrajectoryRequest = strict(&http, request).await?;
    let score = body.reward()?;
    let digest = digest_of(&body)?;
    let (messages, outside) = match &body.turns {
        None => turns(&http, &context, &body, &digest).await?,
        Some(given) => (
            Vec::new(),
            token_turns(&http, &context, &body, given, &digest).await?,
        ),
    };
    // Of two under one id that come at once, the second sees the first.
    let _one_by_one = match body.id {
        Some(_) => Some(NAMED.lock().await),
        None => None,
    };
    let is_rewarded = body.id.is_some() && refuse_another(&http, &outside, &digest).await?;
    let mut reply = reply_of(body.id.clone(), &outside);
    let refused = match outside.collect {
        Collect::No(reason) => Some(reason),
        Collect::Yes => match store(&http, outside.turns.clone()).await? {
            Receipt::NotCollected(reason) => Some(reason),
            Receipt::Collected | Receipt::Spooled => None,
        },
    };
    if let Some(reason) = refused {
        reply.collected = false;
        (reply.reason, reply.explanation) = (Some(reason.as_str()), Some(reason.explain()));
        return Ok(Json(reply));
    }
    match score {
        _ if outside.turns.is_empty() => {
            reply.reason = Some("nothing_usable");
            reply.explanation =
                Some("no message of the assistant can be a turn; left_out says why");
        }
        // A retry does not undo what was said since.
        Some(_) if is_rewarded => {}
        None => go_on(&http, &messages, &outside),
        Some(score) => {
            let reward = SessionReward {
                id: hone_domain::FeedbackId(http.ids.next()),
                session: outside.session,
                owner: context.caller.owner,
                client_id: body.id,
                score,
                parts: body.rewards.unwrap_or_default(),
                peers: Vec::new(),
                received_ms: http.clock.now_ms(),
            };
            reward_session(&http, reward).await?;
        }
    }
    Ok(Json(reply))
}

/// Held while a trajectory with an id is stored.
static NAMED: Mutex<()> = Mutex::const_new(());
/// Most messages of the assistant.
const TURNS_MAX: usize = 256;

/// The reply where its turns are stored.
fn reply_of(id: Option<String>, outside: &Outside) -> TrajectoryReply {
    let left_out = outside.unusable.iter();
    let left_out = left_out.map(|(message, why)| MessageLeftOut {
        message: *message,
        reason: why.as_str(),
    });
    let turns = outside.turns.iter();
    TrajectoryReply {
        object: "trajectory",
        id,
        session_id: outside.session.prefixed(),
        turn_ids: turns.map(|turn| turn.id.prefixed()).collect(),
        left_out: left_out.collect(),
        collected: !outside.turns.is_empty(),
        reason: None,
        explanation: None,
    }
}

/// The messages, and what becomes of them.
async fn turns(
    http: &Arc<Http>,
    context: &RequestContext,
    body: &TrajectoryRequest,
    digest: &str,
) -> Result<(Vec<Message>, Outside), ApiError> {
    let inference = serving(http)?;
    let most = http.config.messages_max;
    let messages = parse_messages(&body.messages, most, &mut Reader::default())?;
    let answers = messages
        .iter()
        .filter(|message| message.role == Role::Assistant);
    let answers = answers.count();
    if !(1..=TURNS_MAX).contains(&answers) {
        let why =
            format!("a trajectory has 1 to {TURNS_MAX} messages of the assistant, not {answers}");
        return Err(ApiError::invalid("messages", why));
    }
    let tools = body.tools.as_deref().unwrap_or_default();
    let talk = Talk::prompt_of(inference, messages.clone(), tools)?;
    let (request, name) = request_of(http, context, body, talk, digest).await?;
    Ok((messages, inference.outside(request, name).await?))
}

/// What becomes of a trajectory in token ids.
async fn token_turns(
    http: &Arc<Http>,
    context: &RequestContext,
    body: &TrajectoryRequest,
    given: &[TokenTurn],
    digest: &str,
) -> Result<Outside, ApiError> {
    let inference = serving(http)?;
    if !body.messages.is_empty() || body.tools.is_some() {
        let why = "a trajectory has messages or turns in token ids, and tools only with messages";
        return Err(ApiError::invalid("turns", why));
    }
    if body.reward.is_none() && body.rewards.is_none() {
        let why =
            "turns in token ids need reward or rewards: nothing here reads what followed them";
        return Err(ApiError::invalid("reward", why));
    }
    if !(1..=TURNS_MAX).contains(&given.len()) {
        let why = format!(
            "a trajectory has 1 to {TURNS_MAX} turns, not {}",
            given.len()
        );
        return Err(ApiError::invalid("turns", why));
    }
    let talk = Talk::prompt_of(inference, Vec::new(), &[])?;
    let (request, name) = request_of(http, context, body, talk, digest).await?;
    let mut turns = Vec::with_capacity(given.len());
    let mut known: BTreeMap<u64, Option<Policy>> = BTreeMap::new();
    for (at, turn) in given.iter().enumerate() {
        let drawn = match turn.drawn_by(at)? {
            None => None,
            Some((version, temperature)) => {
                let by = match known.get(&version) {
                    Some(by) => by.clone(),
                    None => drawn_by(http, &request.scope, at, version).await?,
                };
                known.insert(version, by.clone());
                let logprobs = turn.logprobs.clone().unwrap_or_default();
                Some(Drawn {
                    by,
                    temperature,
                    logprobs,
                })
            }
        };
        turns.push(hone_inference::TokenTurn {
            prompt: turn.prompt_ids.clone(),
            completion: turn.completion_ids.clone(),
            drawn,
        });
    }
    Ok(inference.outside_tokens(request, name, turns).await?)
}

/// The version that drew the tokens of the turn at a place, none for the base model.
async fn drawn_by(
    http: &Http,
    scope: &Scope,
    at: usize,
    version: u64,
) -> Result<Option<Policy>, ApiError> {
    let version = PolicyVersion(version);
    as_served(http, scope, version).await?.map_err(|why| {
        let why = format!("version {version} {why}; leave logprobs out to have the turn imitated");
        ApiError::invalid(format!("turns[{at}].version"), why)
    })
}

/// The request that a trajectory is taken by, and the name that its ids are made of.
async fn request_of(
    http: &Arc<Http>,
    context: &RequestContext,
    body: &TrajectoryRequest,
    talk: Talk,
    digest: &str,
) -> Result<(hone_inference::Request, Option<Digest>), ApiError> {
    let inference = serving(http)?;
    let fields = SessionFields {
        user: body.user.clone(),
        ..SessionFields::default()
    };
    let wish = fields.resolve(&HeaderMap::new(), &http.binding)?;
    let mut request = talk
        .plan(inference, PolicyChoice::Newest, wish, context)
        .await?;
    // Whatever its words, it is a conversation.
    request.kind = Some(hone_domain::TurnKind::Main);
    request.metadata = metadata(body, digest);
    let name = body.id.as_ref().map(|id| {
        let mut hash = Sha256::new();
        for part in ["trajectory", request.scope.as_str(), id] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Digest(hash.finalize().into())
    });
    Ok((request, name))
}

/// What tells a trajectory from another one.
fn digest_of(body: &TrajectoryRequest) -> Result<String, ApiError> {
    let written = serde_json::to_vec(body);
    let written = written.map_err(|error| ApiError::invalid("body", error.to_string()))?;
    Ok(Digest(Sha256::digest(written).into()).to_hex())
}

fn metadata(body: &TrajectoryRequest, digest: &str) -> BTreeMap<String, String> {
    let labels = [
        ("trajectory_id", body.id.as_deref()),
        ("group_id", body.group_id.as_deref()),
        ("session_id", body.session_id.as_deref()),
        (SHA256, Some(digest)),
    ];
    let labels = labels.into_iter();
    let labels = labels.filter_map(|(name, label)| Some((name.to_owned(), label?.to_owned())));
    labels.collect()
}

/// Whether turns and reward of this trajectory are stored already; refuses one whose id another one has.
async fn refuse_another(http: &Http, outside: &Outside, digest: &str) -> Result<bool, ApiError> {
    let Some(session) = http.ledger.session(outside.session, None, 1).await? else {
        return Ok(false);
    };
    let is_rewarded = !session.rewards.is_empty();
    let Some(newest) = session.turns.rows.into_iter().next() else {
        return Ok(false);
    };
    let is_last = outside
        .turns
        .last()
        .is_some_and(|turn| turn.id == newest.id);
    let turn = http.ledger.turn(newest.id).await?;
    let known = turn
        .as_ref()
        .and_then(|view| view.turn.admission.metadata.get(SHA256));
    match known.is_none_or(|known| known == digest) {
        true => Ok(is_rewarded && is_last),
        false => Err(ApiError::Conflict {
            code: "trajectory_exists",
            message: "another trajectory was stored under this id; choose another".to_owned(),
        }),
    }
}

/// Hands turns to the recorder; the first receipt that is not good, where there is one.
async fn store(http: &Http, turns: Vec<Turn>) -> Result<Receipt, ApiError> {
    let Some(collect) = &http.collect else {
        return Err(unavailable(
            "no_collector",
            "the collect loop does not run in this process",
        ));
    };
    let mut waiting = Vec::with_capacity(turns.len());
    for turn in turns {
        let (receipt, signed) = oneshot::channel();
        let turn = Box::new(turn);
        if collect.send(Input::Turn { turn, receipt }).is_err() {
            return Err(unavailable("queue_full", "the recorder is busy; try again"));
        }
        waiting.push(signed);
    }
    let all = async {
        for signed in waiting {
            match signed.await {
                Ok(Receipt::Collected | Receipt::Spooled) => {}
                Ok(receipt) => return Some(receipt),
                Err(_) => return None,
            }
        }
        Some(Receipt::Collected)
    };
    let wait = Duration::from_millis(http.config.feedback_timeout_ms);
    timeout(wait, all).await.ok().flatten().ok_or_else(|| {
        unavailable(
            "feedback_timeout",
            "the trajectory was not stored in time; send it again with the same id",
        )
    })
}

/// Without a reward its turns are judged by what followed them.
fn go_on(http: &Http, messages: &[Message], outside: &Outside) {
    let Some(collect) = &http.collect else { return };
    for pair in outside.turns.windows(2) {
        let (turn, next) = (&pair[0], &pair[1]);
        let between = turn.messages.len() + 1..next.messages.len();
        let observed = Observed {
            parent: turn.id,
            session: turn.session,
            scope: turn.scope.clone(),
            next_state: NextState::from_messages(messages.get(between).unwrap_or_default()),
            next_turn: Some(next.id),
            at_ms: next.started_ms,
        };
        // What is lost here ends with its session.
        let _dropped = collect.send(Input::Next(observed)).is_err();
    }
    let _dropped = collect.send(Input::SessionDone(outside.session)).is_err();
}
