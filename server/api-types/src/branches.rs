//! The body and the reply of `POST /v1/branches`.

use hone_domain::{SessionId, StopReason, TurnId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::RequestError;
use crate::feedback::parse_turn_id;
use crate::sampling::{SamplingFields, whole};
use hone_domain::JobId;

/// Most continuations of one request.
const BRANCHES_MAX: i64 = 16;
/// Tokens of a continuation where the request does not say.
const MAX_TOKENS_DEFAULT: u32 = 1_024;

/// From where to go on, how often, and by which version.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct BranchRequest {
    /// The turn whose answer is tried again.
    pub turn_id: Option<String>,
    /// Instead of a turn, a session: its newest main turn.
    pub session_id: Option<String>,
    /// Instead of a turn, an episode of a rollout: its newest main turn.
    pub episode_id: Option<String>,
    /// How many tokens of the answer stay; 0, the beginning of the answer, if absent.
    pub position: Option<i64>,
    /// How many continuations, 1 to 16; 1 if absent.
    pub n: Option<i64>,
    /// `as-served` (the version that gave the answer; this if absent) or `latest` (what is served now).
    pub version: Option<String>,
    /// 0 to 2. If absent, as the answer was sampled; where that took the likeliest token each time and several
    /// continuations are wanted, 1.
    pub temperature: Option<f64>,
    /// Seed of the first continuation, one more for each other; random if absent.
    pub seed: Option<i64>,
    /// Most tokens of a continuation; 1024 if absent.
    pub max_tokens: Option<i64>,
}

/// What is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchFrom {
    /// This turn.
    Turn(TurnId),
    /// The newest main turn of this session.
    Session(SessionId),
    /// The newest main turn of this episode.
    Episode(JobId),
}

/// Which version goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchVersion {
    /// The one that gave the answer.
    AsServed,
    /// The one that is served now.
    Latest,
}

impl BranchVersion {
    /// The name that clients see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AsServed => "as-served",
            Self::Latest => "latest",
        }
    }
}

/// A checked request.
#[derive(Clone, Debug)]
pub struct BranchWish {
    /// What is tried again.
    pub from: BranchFrom,
    /// Tokens of the answer that stay.
    pub position: u32,
    /// How many continuations.
    pub n: u32,
    /// Which version goes on.
    pub version: BranchVersion,
    /// Temperature and seed, where they are given.
    pub sampling: SamplingFields,
    /// Most tokens of a continuation.
    pub max_tokens: u32,
}

impl BranchRequest {
    /// Checks it.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn resolve(&self) -> Result<BranchWish, RequestError> {
        let version = match self.version.as_deref() {
            None | Some("as-served") => BranchVersion::AsServed,
            Some("latest") => BranchVersion::Latest,
            Some(_) => {
                let why = "version must be \"as-served\" or \"latest\"";
                return Err(RequestError::invalid("version", why));
            }
        };
        let highest = i64::from(i32::MAX);
        let position = whole("position", self.position, (0, highest))?;
        let n = whole("n", self.n, (1, BRANCHES_MAX))?;
        let max_tokens = whole("max_tokens", self.max_tokens, (1, highest))?;
        Ok(BranchWish {
            from: self.from()?,
            position: position.unwrap_or(0) as u32,
            n: n.unwrap_or(1) as u32,
            version,
            sampling: SamplingFields {
                temperature: self.temperature,
                seed: self.seed,
                ..SamplingFields::default()
            },
            max_tokens: max_tokens.map_or(MAX_TOKENS_DEFAULT, |most| most as u32),
        })
    }

    fn from(&self) -> Result<BranchFrom, RequestError> {
        let wrong = |param: &str, what: &str| {
            RequestError::invalid(param, format!("{param} must be the id of {what}"))
        };
        match (&self.turn_id, &self.session_id, &self.episode_id) {
            (Some(id), None, None) => parse_turn_id(id)
                .map(BranchFrom::Turn)
                .ok_or_else(|| wrong("turn_id", "a turn")),
            (None, Some(id), None) => SessionId::parse(id)
                .map(BranchFrom::Session)
                .ok_or_else(|| wrong("session_id", "a session")),
            (None, None, Some(id)) => JobId::parse(id)
                .map(BranchFrom::Episode)
                .ok_or_else(|| wrong("episode_id", "an episode")),
            _ => Err(RequestError::invalid(
                "turn_id",
                "one of turn_id, session_id and episode_id says what is tried again",
            )),
        }
    }
}

/// Where a branch goes on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct BranchOfReply {
    /// The turn that gave the answer.
    pub turn_id: String,
    /// How many tokens of the answer stay.
    pub position: u32,
}

impl From<hone_domain::BranchOf> for BranchOfReply {
    fn from(branch: hone_domain::BranchOf) -> Self {
        Self {
            turn_id: branch.turn.prefixed(),
            position: branch.position,
        }
    }
}

/// What stays of the answer, and what the version that goes on makes of it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct BranchPrefix {
    /// Its text.
    pub text: String,
    /// How many tokens.
    pub tokens: usize,
    /// Log-prob of each token by the version that goes on, at temperature 1 with nothing cut.
    pub logprobs: Vec<f32>,
    /// The same as they were recorded when the answer was sampled; null where they are not kept (any more).
    pub recorded: Option<Vec<f32>>,
    /// Whether both lists are equal bit for bit; null where there is nothing to compare.
    pub logprobs_equal: Option<bool>,
}

impl BranchPrefix {
    /// Compares what was computed with what was recorded.
    pub fn of(text: String, logprobs: Vec<f32>, recorded: Option<Vec<f32>>) -> Self {
        let bits = |all: &[f32]| all.iter().map(|one| one.to_bits()).collect::<Vec<u32>>();
        let recorded = recorded.filter(|recorded| recorded.len() == logprobs.len());
        let compared = recorded.as_ref().filter(|recorded| !recorded.is_empty());
        Self {
            text,
            tokens: logprobs.len(),
            logprobs_equal: compared.map(|recorded| bits(recorded) == bits(&logprobs)),
            logprobs,
            recorded,
        }
    }
}

/// How the answer went on when it was given.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct BranchOriginal {
    /// The turn.
    pub turn_id: String,
    /// The version that gave it.
    pub policy_version: u64,
    /// What followed the tokens that stay.
    pub text: String,
    /// How many tokens that was.
    pub tokens: usize,
    /// Why it ended.
    #[schema(value_type = String)]
    pub stop: StopReason,
    /// What its verdict says, where there is one.
    pub score: Option<f32>,
}

/// A continuation.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct BranchReply {
    /// Its turn, for `POST /v1/feedback` and `GET /v1/turns/{id}`.
    pub turn_id: String,
    /// Which of them.
    pub index: u32,
    /// What follows the tokens that stay, as it was sampled.
    pub text: String,
    /// How many tokens.
    pub tokens: usize,
    /// Why it ended.
    #[schema(value_type = String)]
    pub stop: StopReason,
    /// Whether the turn is on record.
    pub collected: bool,
    /// Why not.
    pub reason: Option<&'static str>,
}

/// Continuations of an answer from a place in it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct BranchesReply {
    /// Always `branches`.
    pub object: &'static str,
    /// Where they go on from.
    pub branch_of: BranchOfReply,
    /// `as-served` or `latest`.
    pub version: &'static str,
    /// The version that went on.
    pub policy_version: u64,
    /// The session of the continuations; they share it.
    pub session_id: String,
    /// What stays of the answer.
    pub prefix: BranchPrefix,
    /// How the answer went on when it was given.
    pub original: BranchOriginal,
    /// The continuations.
    pub data: Vec<BranchReply>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probs_are_compared_by_their_bits() {
        let rows = [
            (vec![-1.5], Some(vec![-1.5]), Some(true)),
            (vec![-0.0], Some(vec![0.0]), Some(false)),
            (vec![-1.5], Some(vec![-1.500_000_1]), Some(false)),
            (vec![-1.5], None, None),
            (vec![-1.5], Some(Vec::new()), None),
            (Vec::new(), Some(Vec::new()), None),
        ];
        for (computed, recorded, equal) in rows {
            let prefix = BranchPrefix::of(String::new(), computed, recorded);
            assert_eq!(prefix.logprobs_equal, equal, "{prefix:?}");
        }
    }
}
