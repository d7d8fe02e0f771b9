//! The body of `POST /v1/feedback`.

use hone_domain::TurnId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::error::ApiError;

/// Most bytes of a comment or correction.
const TEXT_BYTES_MAX: usize = 32_768;

/// What a person says about a turn. At least one of score, thumb, comment and correction.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct FeedbackRequest {
    /// The turn: the id of the reply, its `hone.turn_id`, or its header `x-hone-turn-id`.
    pub turn_id: String,
    /// -1 (bad) to 1 (good).
    pub score: Option<f64>,
    /// `up` or `down`; the same as a score of 1 or -1.
    pub thumb: Option<String>,
    /// Free words.
    pub comment: Option<String>,
    /// What the answer should have been.
    pub correction: Option<String>,
    /// Chosen by the client: the same id again replaces what it said before.
    pub id: Option<String>,
}

/// Checked feedback.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedbackWish {
    /// The turn.
    pub turn: TurnId,
    /// In -1..1.
    pub score: Option<f32>,
    /// Free words.
    pub comment: Option<String>,
    /// What the answer should have been.
    pub correction: Option<String>,
    /// The client's id.
    pub client_id: Option<String>,
}

/// The reply.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FeedbackReply {
    /// Always `feedback`.
    pub object: &'static str,
    /// This feedback's id.
    pub id: String,
    /// The turn.
    pub turn_id: String,
    /// `stored`, `replaced`, or `turn_unknown` (kept in case the turn still comes).
    pub outcome: &'static str,
}

/// Reads a turn id in any form a client has seen it in.
pub fn parse_turn_id(text: &str) -> Option<TurnId> {
    let prefixes = ["chatcmpl-", "cmpl-", "resp_", "msg_"];
    let bare = prefixes.iter().find_map(|prefix| text.strip_prefix(prefix));
    let bare = bare.unwrap_or(text);
    TurnId::parse(bare)
}

impl FeedbackRequest {
    /// Checks everything.
    pub fn resolve(self) -> Result<FeedbackWish, ApiError> {
        let turn = parse_turn_id(&self.turn_id).ok_or_else(|| {
            ApiError::invalid(
                "turn_id",
                "turn_id is not a turn's id; take hone.turn_id of the reply",
            )
        })?;
        let thumb = match self.thumb.as_deref() {
            None => None,
            Some("up") => Some(1.0),
            Some("down") => Some(-1.0),
            Some(other) => {
                return Err(ApiError::invalid(
                    "thumb",
                    format!("thumb must be up or down, not {other:?}"),
                ));
            }
        };
        let score = match (self.score, thumb) {
            (Some(score), None | Some(_)) if !(-1.0..=1.0).contains(&score) => {
                return Err(ApiError::invalid(
                    "score",
                    format!("score must be between -1 and 1, not {score}"),
                ));
            }
            (Some(score), _) => Some(score as f32),
            (None, thumb) => thumb,
        };
        for (name, text) in [("comment", &self.comment), ("correction", &self.correction)] {
            if text.as_ref().is_some_and(|t| t.len() > TEXT_BYTES_MAX) {
                return Err(ApiError::invalid(
                    name,
                    format!("{name} has at most {TEXT_BYTES_MAX} bytes"),
                ));
            }
        }
        if self.id.as_ref().is_some_and(|id| id.len() > 256) {
            return Err(ApiError::invalid("id", "id has at most 256 bytes"));
        }
        if score.is_none() && self.comment.is_none() && self.correction.is_none() {
            return Err(ApiError::invalid(
                "score",
                "feedback needs a score, a thumb, a comment or a correction",
            ));
        }
        Ok(FeedbackWish {
            turn,
            score,
            comment: self.comment,
            correction: self.correction,
            client_id: self.id,
        })
    }
}
