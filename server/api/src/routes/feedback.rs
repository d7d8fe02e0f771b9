//! `POST /v1/feedback`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use hone_collect::Input;
use hone_domain::{Fate, Feedback, FeedbackId, Reason, TurnId};
use hone_ledger::FeedbackOutcome;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Reply;
use super::auth::strict;
use crate::Http;
use crate::error::{ApiError, ErrorBody};
use crate::request_context::RequestContext;
use hone_api_types::feedback::{FeedbackReply, FeedbackRequest};

/// Why feedback waits for its turn.
const UNKNOWN: &str = "this answer is not on record, so nothing is learned from it unless it comes";

/// What its user can do about it.
const NOT_ALLOWED: &str = "nothing learns from it, because this user's turns were not allowed to be \
                           learned from when it was answered; PUT /v1/consent {\"learning\": \"full\"} \
                           allows it for what is said from then on";

/// Says what a person thinks of a turn.
#[utoipa::path(
    post,
    path = "/v1/feedback",
    request_body = FeedbackRequest,
    responses(
        (status = 200, description = "It is on disk", body = FeedbackReply),
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

/// Hands what a person says of a turn to the recorder.
pub(crate) async fn give(
    http: &Http,
    context: RequestContext,
    body: FeedbackRequest,
) -> Result<FeedbackReply, ApiError> {
    let wish = body.resolve(&http.rules.config().metrics)?;
    let Some(collect) = &http.collect else {
        return Err(unavailable(
            "no_collector",
            "the collect loop does not run in this process",
        ));
    };
    let feedback = Feedback {
        id: FeedbackId(http.ids.next()),
        turn: wish.turn,
        owner: context.caller.owner,
        client_id: wish.client_id,
        score: wish.score,
        comment: wish.comment,
        correction: wish.correction,
        received_ms: http.clock.now_ms(),
    };
    let (id, turn) = (feedback.id, feedback.turn);
    let is_corrected = feedback.correction.is_some();
    let (reply, waiting) = oneshot::channel();
    let feedback = Box::new(feedback);
    if collect.send(Input::Feedback { feedback, reply }).is_err() {
        return Err(unavailable("queue_full", "the recorder is busy; try again"));
    }
    let wait = Duration::from_millis(http.config.feedback_timeout_ms);
    let outcome = match timeout(wait, waiting).await {
        Ok(Ok(Ok(outcome))) => outcome,
        Ok(Ok(Err(error))) => {
            tracing::error!(error, "feedback could not be stored");
            return Err(unavailable(
                "ledger_failed",
                "the ledger could not be written; see the server's log",
            ));
        }
        Ok(Err(_)) | Err(_) => {
            return Err(unavailable(
                "feedback_timeout",
                "the feedback was not stored in time; send it again with the same id",
            ));
        }
    };
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
        id: format!("fb_{id}"),
        turn_id: turn.prefixed(),
        outcome,
        explanation,
    })
}

/// Why nothing will learn from feedback on this turn, where its user can change that.
async fn unheard(http: &Http, turn: TurnId) -> Option<&'static str> {
    let view = http.ledger.turn(turn).await.ok().flatten()?;
    let settled = Fate::Settled {
        reason: Reason::LearningOff,
    };
    (view.fate == settled).then_some(NOT_ALLOWED)
}

fn unavailable(code: &'static str, message: &str) -> ApiError {
    ApiError::Unavailable {
        code,
        message: message.to_owned(),
    }
}
