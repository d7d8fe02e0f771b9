//! The body of `POST /v1/feedback`.

use hone_domain::TurnId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::RequestError;
use hone_inference::Metric;

/// Most bytes of a comment or correction.
const TEXT_BYTES_MAX: usize = 32_768;

/// What a person says about a turn. At least one of score, thumb, comment and correction.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct FeedbackRequest {
    /// The turn: the id of the reply, its `hone.turn_id`, or its header `x-hone-turn-id`.
    pub turn_id: String,
    /// -1 (bad) to 1 (good), or a number on the scale of `metric`.
    pub score: Option<f64>,
    /// A scale that the configuration declares (`learning.metrics`).
    pub metric: Option<String>,
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
    /// `stored`, `replaced`, `already_learned` (kept, but a version has learned from the turn before) or
    /// `turn_unknown` (kept for an hour in case the turn still comes).
    pub outcome: &'static str,
    /// What the outcome means, where that has to be said; what became of the turn is its fate.
    pub explanation: Option<&'static str>,
}

/// Reads a turn id in any form a client has seen it in.
pub fn parse_turn_id(text: &str) -> Option<TurnId> {
    let prefixes = ["chatcmpl-", "cmpl-", "resp_", "msg_"];
    let bare = prefixes.iter().find_map(|prefix| text.strip_prefix(prefix));
    let bare = bare.unwrap_or(text);
    TurnId::parse(bare)
}

impl FeedbackRequest {
    /// Checks everything; `metrics` are the declared scales.
    pub fn resolve(self, metrics: &[Metric]) -> Result<FeedbackWish, RequestError> {
        let turn = parse_turn_id(&self.turn_id).ok_or_else(|| {
            RequestError::invalid(
                "turn_id",
                "turn_id is not a turn's id; take hone.turn_id of the reply",
            )
        })?;
        let thumb = match self.thumb.as_deref() {
            None => None,
            Some("up") => Some(1.0),
            Some("down") => Some(-1.0),
            Some(other) => {
                return Err(RequestError::invalid(
                    "thumb",
                    format!("thumb must be up or down, not {other:?}"),
                ));
            }
        };
        let score = match self.scored(metrics)? {
            Some(score) => Some(score as f32),
            None => thumb,
        };
        for (name, text) in [("comment", &self.comment), ("correction", &self.correction)] {
            let Some(text) = text else {
                continue;
            };
            let wrong = if text.trim().is_empty() {
                format!("{name} is empty; leave it out, or say something")
            } else if text.len() > TEXT_BYTES_MAX {
                format!("{name} has at most {TEXT_BYTES_MAX} bytes")
            } else {
                continue;
            };
            return Err(RequestError::invalid(name, wrong));
        }
        if self.id.as_ref().is_some_and(|id| id.len() > 256) {
            return Err(RequestError::invalid("id", "id has at most 256 bytes"));
        }
        if score.is_none() && self.comment.is_none() && self.correction.is_none() {
            return Err(RequestError::invalid(
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

    /// The score from -1 to 1, whatever scale it was given on.
    fn scored(&self, metrics: &[Metric]) -> Result<Option<f64>, RequestError> {
        let (worst, best) = match self.metric.as_deref() {
            None => (-1.0, 1.0),
            Some(name) => {
                let known = metrics.iter().find(|metric| metric.name == name);
                let known = known.ok_or_else(|| {
                    let why = format!("metric {name:?} is not declared; {}", known_names(metrics));
                    RequestError::invalid("metric", why)
                })?;
                (known.worst, known.best)
            }
        };
        let Some(score) = self.score else {
            return match &self.metric {
                None => Ok(None),
                Some(name) => Err(RequestError::invalid(
                    "score",
                    format!("a score in {name} needs the number score"),
                )),
            };
        };
        let share = (score - worst) / (best - worst);
        if !(0.0..=1.0).contains(&share) {
            let (low, high) = (worst.min(best), worst.max(best));
            return Err(RequestError::invalid(
                "score",
                format!("score must be between {low} and {high}, not {score}"),
            ));
        }
        Ok(Some(share * 2.0 - 1.0))
    }
}

fn known_names(metrics: &[Metric]) -> String {
    if metrics.is_empty() {
        return "none is; declare it in the configuration (learning.metrics), or leave metric out and give a score from -1 to 1".to_owned();
    }
    let names: Vec<&str> = metrics.iter().map(|m| m.name.as_str()).collect();
    format!("known: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_read_on_its_own_scale() {
        let metrics =
            [("stars", 1.0, 5.0), ("errors", 10.0, 0.0)].map(|(name, worst, best)| Metric {
                name: name.to_owned(),
                worst,
                best,
            });
        for (metric, score, expected) in [
            (None, Some(0.5), Ok(Some(0.5))),
            (None, Some(1.5), Err("between -1 and 1")),
            (Some("stars"), Some(4.0), Ok(Some(0.5))),
            (Some("stars"), Some(0.0), Err("between 1 and 5")),
            (Some("stars"), None, Err("needs the number score")),
            (Some("errors"), Some(10.0), Ok(Some(-1.0))),
            (Some("errors"), Some(0.0), Ok(Some(1.0))),
            (Some("errors"), Some(f64::NAN), Err("between 0 and 10")),
            (Some("moons"), Some(1.0), Err("known: stars, errors")),
        ] {
            let request = FeedbackRequest {
                turn_id: String::new(),
                score,
                metric: metric.map(str::to_owned),
                thumb: None,
                comment: None,
                correction: None,
                id: None,
            };
            match (request.scored(&metrics), expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, expected, "{metric:?}"),
                (Err(error), Err(told)) => {
                    let error = format!("{error:?}");
                    assert!(error.contains(told), "{error}");
                }
                (read, expected) => panic!("{read:?} for {expected:?}"),
            }
        }
    }

    fn request() -> FeedbackRequest {
        FeedbackRequest {
            turn_id: "turn_01a1fc1a-d46f-72b9-a831-d2ab7e585f60".to_owned(),
            score: Some(1.0),
            metric: None,
            thumb: None,
            comment: None,
            correction: None,
            id: None,
        }
    }

    #[test]
    fn a_metric_is_refused_with_where_to_declare_it() {
        let request = FeedbackRequest {
            metric: Some("stars".to_owned()),
            ..request()
        };
        let error = format!("{:?}", request.resolve(&[]).unwrap_err());
        assert!(error.contains("none is; declare it"), "{error}");
        assert!(error.contains("learning.metrics"), "{error}");
    }

    #[test]
    fn empty_texts_are_refused_by_name() {
        for text in ["", " \n\t"] {
            let comment = FeedbackRequest {
                comment: Some(text.to_owned()),
                ..request()
            };
            let correction = FeedbackRequest {
                correction: Some(text.to_owned()),
                ..request()
            };
            for (name, request) in [("comment", comment), ("correction", correction)] {
                let error = format!("{:?}", request.resolve(&[]).unwrap_err());
                assert!(error.contains(&format!("{name} is empty")), "{error}");
            }
        }
        let kept = FeedbackRequest {
            comment: Some(" so ".to_owned()),
            ..request()
        };
        let wish = kept.resolve(&[]).unwrap();
        assert_eq!(wish.comment.as_deref(), Some(" so "));
    }
}
