//! `POST /v1/feedback`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use hone_collect::{Input, Rewarding};
use hone_domain::{Fate, Feedback, FeedbackId, Reason, SessionId, SessionReward, TurnId};
use hone_ledger::{FeedbackOutcome, Rewarded};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Reply;
use super::auth::strict;
use crate::Http;
use crate::request_context::RequestContext;
use hone_api_types::feedback::{
    About, FeedbackReply, FeedbackRequest, FeedbackWish, LeftOut, RewardReply,
};
use hone_replies::error::{ApiError, ErrorBody};

/// Why feedback waits for its turn.
const UNKNOWN: &str = "this answer is not on record, so nothing is learned from it unless it comes";

/// What its user can do about it.
const NOT_ALLOWED: &str = "nothing learns from it, because this user's turns were not allowed to be \
                           learned from when it was answered; PUT /v1/consent {\"learning\": \"full\"} \
                           allows it for what is said from then on";

/// Says what a person thinks of a turn, or gives a whole session its reward.
#[utoipa::path(
    post,
    path = "/v1/feedback",
    request_body = FeedbackRequest,
    responses(
        (status = 200, description = "It is on disk", body = FeedbackReply),
        (status = 404, description = "No such session of yours", body = ErrorBody),
        (status = 503, description = "It could not be stored", body = ErrorBody),
    )
)]
pub async fn feedback(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<FeedbackReply> {
    let body: FeedbackRequest = strict(&http, request).await?;
    Ok(Json(give(&http, context, body).await?))
}

/// Hands what a person says to the recorder.
pub(crate) async fn give(
    http: &Http,
    context: RequestContext,
    body: FeedbackRequest,
) -> Result<FeedbackReply, ApiError> {
    let wish = body.resolve(&http.rules.config().metrics)?;
    let owner = context.caller.owner;
    match wish.about {
        About::Turn(turn) => about_turn(http, owner, turn, wish).await,
        About::Session(session) => about_session(http, owner, session, wish).await,
    }
}

async fn about_turn(
    http: &Http,
    owner: String,
    turn: TurnId,
    wish: FeedbackWish,
) -> Result<FeedbackReply, ApiError> {
    let feedback = Feedback {
        id: FeedbackId(http.ids.next()),
        turn,
        owner,
        client_id: wish.client_id,
        score: wish.score,
        comment: wish.comment,
        correction: wish.correction,
        of_session: false,
        received_ms: http.clock.now_ms(),
    };
    let id = feedback.id;
    let is_corrected = feedback.correction.is_some();
    let (reply, waiting) = oneshot::channel();
    let feedback = Box::new(feedback);
    let outcome = stored(http, Input::Feedback { feedback, reply }, waiting).await?;
    let (outcome, explanation) = match outcome {
        FeedbackOutcome::Stored => ("stored", unheard(http, turn).await),
        FeedbackOutcome::Replaced => ("replaced", unheard(http, turn).await),
        FeedbackOutcome::AlreadyLearned => {
            let lessons = http.rules.lessons();
            ("already_learned", Some(lessons.too_late(is_corrected)))
        }
        // Nobody learns whether somebody else has a turn of that id.
        FeedbackOutcome::TurnUnknown | FeedbackOutcome::NotYours => ("turn_unknown", Some(UNKNOWN)),
    };
    Ok(FeedbackReply {
        object: "feedback",
        id: id.prefixed(),
        turn_id: Some(turn.prefixed()),
        session_id: None,
        reward: None,
        outcome,
        explanation,
    })
}

async fn about_session(
    http: &Http,
    owner: String,
    session: SessionId,
    wish: FeedbackWish,
) -> Result<FeedbackReply, ApiError> {
    let score = wish.score.unwrap_or_default();
    let reward = SessionReward {
        id: FeedbackId(http.ids.next()),
        session,
        owner,
        client_id: wish.client_id,
        score,
        parts: wish.rewards,
        peers: Vec::new(),
        received_ms: http.clock.now_ms(),
    };
    let id = reward.id;
    let rewarded = reward_session(http, reward).await?;
    let left_out = rewarded.missed.iter().map(|(why, turns)| LeftOut {
        reason: why.as_str(),
        turns: *turns,
    });
    Ok(FeedbackReply {
        object: "feedback",
        id: id.prefixed(),
        turn_id: None,
        session_id: Some(session.prefixed()),
        reward: Some(RewardReply {
            score,
            turns_rewarded: rewarded.reached.len() as u64,
            turns_left_out: left_out.collect(),
        }),
        outcome: match rewarded.is_replaced {
            true => "replaced",
            false => "stored",
        },
        explanation: None,
    })
}

/// Gives a session its reward.
pub(super) async fn reward_session(
    http: &Http,
    reward: SessionReward,
) -> Result<Rewarded, ApiError> {
    let session = reward.session;
    let (reply, waiting) = oneshot::channel();
    let rewarding = Rewarding {
        reward: Box::new(reward),
        credit: http.rules.lessons().credit,
        reply,
    };
    let rewarded = stored(http, Input::Reward(rewarding), waiting).await?;
    // Nobody learns whether somebody else has a session of that id.
    rewarded.ok_or_else(|| {
        ApiError::NotFound(format!(
            "no session {} of yours is known",
            session.prefixed()
        ))
    })
}

/// Hands something to the recorder and waits until it is on disk.
async fn stored<T>(
    http: &Http,
    input: Input,
    waiting: oneshot::Receiver<Result<T, String>>,
) -> Result<T, ApiError> {
    let Some(collect) = &http.collect else {
        return Err(unavailable(
            "no_collector",
            "the collect loop does not run in this process",
        ));
    };
    if collect.send(input).is_err() {
        return Err(unavailable("queue_full", "the recorder is busy; try again"));
    }
    let wait = Duration::from_millis(http.config.feedback_timeout_ms);
    match timeout(wait, waiting).await {
        Ok(Ok(Ok(outcome))) => Ok(outcome),
        Ok(Ok(Err(error))) => {
            tracing::error!(error, "feedback could not be stored");
            Err(unavailable(
                "ledger_failed",
                "the ledger could not be written; see the server's log",
            ))
        }
        Ok(Err(_)) | Err(_) => Err(unavailable(
            "feedback_timeout",
            "the feedback was not stored in time; send it again with the same id",
        )),
    }
}

/// Why nothing will learn from feedback on this turn, where its user can change that.
async fn unheard(http: &Http, turn: TurnId) -> Option<&'static str> {
    let view = http.ledger.turn(turn).await.ok().flatten()?;
    let settled = Fate::Settled {
        reason: Reason::LearningOff,
    };
    (view.fate == settled).then_some(NOT_ALLOWED)
}

pub(super) fn unavailable(code: &'static str, message: &str) -> ApiError {
    ApiError::Unavailable {
        code,
        message: message.to_owned(),
    }
}
