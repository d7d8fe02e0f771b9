//! The body of `POST /v1/feedback`.

use std::collections::BTreeMap;

use hone_domain::{SessionId, TurnId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::RequestError;
use hone_inference::Metric;

/// Most bytes of a comment or correction.
const TEXT_BYTES_MAX: usize = 32_768;

/// Most named rewards, and most characters of a name.
const REWARDS_MAX: usize = 16;
const NAME_CHARS_MAX: usize = 64;

/// What a person says about a turn: at least one of score, thumb, comment and correction. Or the reward of a whole
/// session: one of score, thumb and rewards.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct FeedbackRequest {
    /// The turn: the id of the reply, its `hone.turn_id`, or its header `x-hone-turn-id`.
    pub turn_id: Option<String>,
    /// Instead of a turn, a whole session: `hone.session_id` of a reply, or its header `x-hone-session-id`.
    pub session_id: Option<String>,
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
    /// Of a session: what its reward is made of, by name, each from -1 to 1, such as `{"tests": 1, "style": 0.2}`. Without
    /// `score` or `thumb` the reward is their mean.
    pub rewards: Option<BTreeMap<String, f64>>,
    /// Chosen by the client: the same id again replaces what it said before.
    pub id: Option<String>,
}

/// What feedback is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// One turn.
    Turn(TurnId),
    /// All of a session.
    Session(SessionId),
}

/// Checked feedback.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedbackWish {
    /// The turn, or the session.
    pub about: About,
    /// In -1..1; always there for a session.
    pub score: Option<f32>,
    /// Of a session: what the reward is made of.
    pub rewards: BTreeMap<String, f64>,
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
    /// The turn; absent where a session got a reward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<String>,
    /// The session that got a reward; absent for a turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// What became of the session's reward; absent for a turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<RewardReply>,
    /// `stored`, `replaced`, `already_learned` (kept, but a version has learned from the turn before) or
    /// `turn_unknown` (kept for an hour in case the turn still comes).
    pub outcome: &'static str,
    /// What the outcome means, where that has to be said; what became of the turn is its fate.
    pub explanation: Option<&'static str>,
}

/// What became of the reward of a session.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RewardReply {
    /// The reward: the score, or the mean of the named rewards.
    pub score: f32,
    /// Main turns that are judged by it.
    pub turns_rewarded: u64,
    /// Main turns that are not, by why.
    pub turns_left_out: Vec<LeftOut>,
}

/// Turns that a session's reward does not reach.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LeftOut {
    /// `already_learned`, `own_feedback`, `earlier` (only the newest turn gets it), `not_chosen`, `too_early` (more turns
    /// than a reward reaches came after; counted once), `in_training` (a batch holds it), or the reason it was settled for.
    pub reason: &'static str,
    /// How many.
    pub turns: u64,
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
        let about = self.about()?;
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
        let score = match about {
            About::Turn(_) => score,
            About::Session(_) => Some(self.of_session(score)?),
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
            about,
            score,
            rewards: self.rewards.unwrap_or_default(),
            comment: self.comment,
            correction: self.correction,
            client_id: self.id,
        })
    }

    /// The turn or the session.
    fn about(&self) -> Result<About, RequestError> {
        match (&self.turn_id, &self.session_id) {
            (Some(_), Some(_)) => Err(RequestError::invalid(
                "session_id",
                "feedback is about a turn or a session: send turn_id or session_id, not both",
            )),
            (None, Some(session)) => {
                let session = SessionId::parse(session).ok_or_else(|| {
                    RequestError::invalid(
                        "session_id",
                        "session_id is not a session's id; take hone.session_id of a reply",
                    )
                })?;
                Ok(About::Session(session))
            }
            (turn, None) => {
                let Some(turn) = turn else {
                    let why = "send turn_id (hone.turn_id of the reply), or session_id for a whole session";
                    return Err(RequestError::invalid("turn_id", why));
                };
                let turn = parse_turn_id(turn).ok_or_else(|| {
                    RequestError::invalid(
                        "turn_id",
                        "turn_id is not a turn's id; take hone.turn_id of the reply, or send session_id for a whole session",
                    )
                })?;
                match self.rewards {
                    None => Ok(About::Turn(turn)),
                    Some(_) => Err(RequestError::invalid(
                        "rewards",
                        "rewards are of a whole session: send session_id instead of turn_id",
                    )),
                }
            }
        }
    }

    /// The reward of a session.
    fn of_session(&self, score: Option<f32>) -> Result<f32, RequestError> {
        for (name, text) in [("comment", &self.comment), ("correction", &self.correction)] {
            if text.is_some() {
                let why = format!("{name} is about one turn: send turn_id instead of session_id");
                return Err(RequestError::invalid(name, why));
            }
        }
        let mean = match &self.rewards {
            None => None,
            Some(rewards) => Some(mean_of(rewards)?),
        };
        score.or(mean).ok_or_else(|| {
            let why = "the reward of a session needs a score, a thumb or rewards";
            RequestError::invalid("score", why)
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

/// The mean of named rewards.
pub(crate) fn mean_of(rewards: &BTreeMap<String, f64>) -> Result<f32, RequestError> {
    let wrong = |why| Err(RequestError::invalid("rewards", why));
    if !(1..=REWARDS_MAX).contains(&rewards.len()) {
        return wrong(format!("rewards has 1 to {REWARDS_MAX} names"));
    }
    for (name, value) in rewards {
        let chars = name.chars().count();
        if name.trim().is_empty() || chars > NAME_CHARS_MAX {
            return wrong(format!(
                "the name of a reward has 1 to {NAME_CHARS_MAX} characters"
            ));
        }
        if !(-1.0..=1.0).contains(value) {
            return wrong(format!(
                "the reward {name:?} must be between -1 and 1, not {value}"
            ));
        }
    }
    Ok((rewards.values().sum::<f64>() / rewards.len() as f64) as f32)
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
                score,
                metric: metric.map(str::to_owned),
                ..request()
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
            turn_id: Some("turn_01a1fc1a-d46f-72b9-a831-d2ab7e585f60".to_owned()),
            session_id: None,
            rewards: None,
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

    fn of_session(score: Option<f64>, rewards: &[(&str, f64)]) -> FeedbackRequest {
        let rewards = rewards.iter();
        let rewards: BTreeMap<_, _> = rewards.map(|(n, r)| ((*n).to_owned(), *r)).collect();
        FeedbackRequest {
            turn_id: None,
            session_id: Some("sess_01a1fc1a-d46f-72b9-a831-d2ab7e585f60".to_owned()),
            score,
            rewards: (!rewards.is_empty()).then_some(rewards),
            ..request()
        }
    }

    #[test]
    fn a_session_has_a_score_or_the_mean_of_its_rewards() {
        let parts: &[(&str, f64)] = &[("tests", 1.0), ("style", 0.2)];
        for (score, rewards, expected) in [
            (Some(-0.5), &[][..], -0.5),
            (None, parts, 0.6),
            (Some(0.5), parts, 0.5),
        ] {
            let wish = of_session(score, rewards).resolve(&[]).unwrap();
            assert_eq!(wish.score, Some(expected));
            assert_eq!(wish.rewards.len(), rewards.len());
            assert!(matches!(wish.about, About::Session(_)));
        }
    }

    #[test]
    fn what_no_session_can_have_is_refused() {
        let name = "n".repeat(65);
        let many: Vec<String> = (0..17).map(|n| n.to_string()).collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), 0.0)).collect();
        for (request, told) in [
            (of_session(None, &[]), "needs a score"),
            (of_session(Some(f64::NAN), &[]), "between -1 and 1"),
            (of_session(None, &[("tests", f64::NAN)]), "between -1 and 1"),
            (
                of_session(None, &[("tests", f64::INFINITY)]),
                "between -1 and 1",
            ),
            (of_session(None, &[("tests", 1.5)]), "between -1 and 1"),
            (of_session(None, &[(&name, 1.0)]), "1 to 64 characters"),
            (of_session(None, &[("", 1.0)]), "1 to 64 characters"),
            (of_session(None, &many), "1 to 16 names"),
            (
                FeedbackRequest {
                    turn_id: request().turn_id,
                    ..of_session(Some(1.0), &[])
                },
                "not both",
            ),
            (
                FeedbackRequest {
                    rewards: Some(BTreeMap::from([("tests".to_owned(), 1.0)])),
                    ..request()
                },
                "send session_id instead",
            ),
            (
                FeedbackRequest {
                    comment: Some("well".to_owned()),
                    ..of_session(Some(1.0), &[])
                },
                "about one turn",
            ),
            (
                FeedbackRequest {
                    session_id: Some("x".to_owned()),
                    ..of_session(Some(1.0), &[])
                },
                "not a session's id",
            ),
        ] {
            let error = format!("{:?}", request.resolve(&[]).unwrap_err());
            assert!(error.contains(told), "{error}");
        }
    }
}
