//! The body of `POST /v1/trajectories`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::RequestError;
use crate::feedback::mean_of;

/// Most bytes of an id or a label.
const LABEL_BYTES_MAX: usize = 256;
/// Temperatures at which tokens with log-probs may have been drawn: what is drawn greedily has none.
const TEMPERATURE_MIN: f32 = 0.01;
const TEMPERATURE_MAX: f32 = 2.0;

/// A conversation that was had elsewhere, with what it was worth.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct TrajectoryRequest {
    /// The messages, as chat completions take them; at least one is the assistant's.
    #[schema(value_type = Vec<Object>)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Value>,
    /// Instead of messages: each call of the model as token ids of the served model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<Vec<TokenTurn>>,
    /// Tools that the prompts show.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// What the whole of it was worth, -1 to 1.
    pub reward: Option<f64>,
    /// What that is made of, by name, each from -1 to 1; without `reward` it is their mean.
    pub rewards: Option<BTreeMap<String, f64>>,
    /// Chosen by the client: the same trajectory again is stored once; another under the same id is refused.
    pub id: Option<String>,
    /// A label of trajectories that belong together; kept with the turns.
    pub group_id: Option<String>,
    /// A label of the session that it was; kept with the turns.
    pub session_id: Option<String>,
    /// Whose policy learns from it, under the owner of the key.
    pub user: Option<String>,
}

/// A call of the model in token ids, as `hone export trajectories --format tokens` writes it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenTurn {
    /// The tokens of its prompt.
    pub prompt_ids: Vec<u32>,
    /// The tokens that were sampled, with the one that ended the answer.
    pub completion_ids: Vec<u32>,
    /// The natural logarithm of the probability with which each of them was drawn, where a version served here drew
    /// them with nothing cut (`top_p` 1, no `top_k`). Without them the turn is imitated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f32>>,
    /// At which temperature they were drawn; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// The version that drew them; 0 is the base model. Needed with `logprobs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// What became of a trajectory.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TrajectoryReply {
    /// Always `trajectory`.
    pub object: &'static str,
    /// The client's id.
    pub id: Option<String>,
    /// The session that it became; for `GET /v1/sessions/{id}`.
    pub session_id: String,
    /// Its turns: one for each assistant message that can be one, in their order.
    pub turn_ids: Vec<String>,
    /// Assistant messages that are no turns.
    pub left_out: Vec<MessageLeftOut>,
    /// Whether the turns are on record.
    pub collected: bool,
    /// Why not.
    pub reason: Option<&'static str>,
    /// The same in words.
    pub explanation: Option<&'static str>,
}

/// An assistant message that is no turn.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MessageLeftOut {
    /// Its place among the messages, from 0.
    pub message: usize,
    /// `no_prompt` (nothing stands before it), `template` (the model's template writes what stands before it
    /// differently once it is there, or no end behind it) or `too_long` (for the model's context).
    pub reason: &'static str,
}

impl TokenTurn {
    /// Checks what can be checked without the model; the version and the temperature where it has log-probs.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn drawn_by(&self, at: usize) -> Result<Option<(u64, f32)>, RequestError> {
        let refuse = |field: &str, why: String| {
            Err(RequestError::invalid(format!("turns[{at}].{field}"), why))
        };
        if self.prompt_ids.is_empty() || self.completion_ids.is_empty() {
            let why = "a turn has at least one token of a prompt and one of a completion";
            return refuse("completion_ids", why.to_owned());
        }
        let Some(logprobs) = &self.logprobs else {
            return match (self.version, self.temperature) {
                (None, None) => Ok(None),
                _ => refuse(
                    "logprobs",
                    "version and temperature say how log-probs came about; add logprobs or leave them out".to_owned(),
                ),
            };
        };
        let (given, tokens) = (logprobs.len(), self.completion_ids.len());
        if given != tokens {
            return refuse("logprobs", format!("{given} log-probs for {tokens} tokens"));
        }
        let Some(version) = self.version else {
            let why = "log-probs need the version that drew the tokens; 0 is the base model";
            return refuse("version", why.to_owned());
        };
        let temperature = self.temperature.unwrap_or(1.0);
        if !(TEMPERATURE_MIN..=TEMPERATURE_MAX).contains(&temperature) {
            let why =
                format!("temperature must be between {TEMPERATURE_MIN} and {TEMPERATURE_MAX}");
            return refuse("temperature", why);
        }
        Ok(Some((version, temperature)))
    }
}

impl TrajectoryRequest {
    /// Checks labels and numbers; the reward, where there is one.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn reward(&self) -> Result<Option<f32>, RequestError> {
        let labels = [
            ("id", &self.id),
            ("group_id", &self.group_id),
            ("session_id", &self.session_id),
        ];
        for (name, label) in labels {
            let wrong = |label: &String| label.is_empty() || label.len() > LABEL_BYTES_MAX;
            if label.as_ref().is_some_and(wrong) {
                let why = format!("{name} has 1 to {LABEL_BYTES_MAX} bytes");
                return Err(RequestError::invalid(name, why));
            }
        }
        let mean = self.rewards.as_ref().map(mean_of).transpose()?;
        match self.reward {
            Some(reward) if !(-1.0..=1.0).contains(&reward) => Err(RequestError::invalid(
                "reward",
                format!("reward must be between -1 and 1, not {reward}"),
            )),
            Some(reward) => Ok(Some(reward as f32)),
            None => Ok(mean),
        }
    }
}
