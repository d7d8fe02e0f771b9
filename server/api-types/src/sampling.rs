//! Sampling and stopping fields, shared by chat and text completions.

use std::collections::BTreeMap;

use hone_domain::{Sampling, Token};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::RequestError;

/// Most stop strings of a request.
const STOPS_MAX: usize = 16;
/// Most bytes of one stop string.
const STOP_BYTES_MAX: usize = 1_024;
/// Most log-probs of a reply: every token of every completion has its own and its alternatives'.
const LOGPROBS_MAX: usize = 1 << 21;
/// Most biased tokens of a request.
const BIASES_MAX: usize = 1_024;

/// How to sample and when to stop. Absent fields take the model's own defaults.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct SamplingFields {
    /// 0 to 2; 0 takes the most likely token.
    pub temperature: Option<f64>,
    /// 0 to 1.
    pub top_p: Option<f64>,
    /// Most likely tokens kept; 0 or -1 is off.
    pub top_k: Option<i64>,
    /// 0 to 1; share of the best token's probability below which tokens are cut.
    pub min_p: Option<f64>,
    /// A seed gives the same completion again.
    pub seed: Option<i64>,
    /// Up to 16 texts that end the completion.
    pub stop: Option<Stop>,
    /// -2 to 2.
    pub presence_penalty: Option<f64>,
    /// -2 to 2.
    pub frequency_penalty: Option<f64>,
    /// Above 0, at most 10; 1 is off.
    pub repetition_penalty: Option<f64>,
    /// Token id (as a string) to -100..100.
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// Tokens before which an end token is not sampled.
    pub min_tokens: Option<i64>,
    /// Whether end tokens do not end the completion.
    pub ignore_eos: Option<bool>,
}

/// One stop string or several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "stop must be a string or an array of at most 16 strings"
)]
pub enum Stop {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// What a request may choose from.
#[derive(Clone, Debug)]
pub struct SamplingBounds {
    /// The model's own defaults.
    pub defaults: Sampling,
    /// Number of token ids.
    pub vocab: usize,
}

fn ranged(
    name: &str,
    value: Option<f64>,
    low: f64,
    high: f64,
    default: f32,
) -> Result<f32, RequestError> {
    match value {
        None => Ok(default),
        Some(v) if v.is_finite() && (low..=high).contains(&v) => Ok(v as f32),
        Some(v) => Err(RequestError::invalid(
            name,
            format!("{name} must be between {low} and {high}, not {v}"),
        )),
    }
}

/// Checks a whole number.
pub fn whole(
    name: &str,
    value: Option<i64>,
    (low, high): (i64, i64),
) -> Result<Option<i64>, RequestError> {
    match value {
        Some(v) if !(low..=high).contains(&v) => Err(RequestError::invalid(
            name,
            format!("{name} must be between {low} and {high}, not {v}"),
        )),
        other => Ok(other),
    }
}

/// The token limit of each completion of a reply, such that its log-probs can be held. One that was
/// asked for is refused where it goes beyond, in the name of `param`.
pub fn limit_of_logprobs(
    param: &str,
    max_tokens: Option<u32>,
    alternatives: Option<u8>,
    completions: usize,
    max_positions: usize,
) -> Result<Option<u32>, RequestError> {
    let Some(alternatives) = alternatives else {
        return Ok(max_tokens);
    };
    let each = (usize::from(alternatives) + 1) * completions.max(1);
    let most = (LOGPROBS_MAX / each).max(1);
    let wanted = max_tokens.map(|wanted| (wanted as usize).min(max_positions));
    if wanted.is_some_and(|wanted| wanted > most) {
        return Err(RequestError::invalid(
            param,
            format!(
                "a reply holds {LOGPROBS_MAX} log-probs, so with n = {completions} and \
                 {alternatives} alternatives of each token a completion has at most {most} tokens; \
                 lower the token limit, n or {param}"
            ),
        ));
    }
    Ok(max_tokens.or(u32::try_from(most).ok()))
}

impl SamplingFields {
    /// The checked parameters; `seed` is used where the request names none.
    pub fn sampling(&self, bounds: &SamplingBounds, seed: u64) -> Result<Sampling, RequestError> {
        let defaults = &bounds.defaults;
        let repetition = ranged(
            "repetition_penalty",
            self.repetition_penalty,
            0.0,
            10.0,
            defaults.repetition_penalty,
        )?;
        if repetition <= 0.0 {
            return Err(RequestError::invalid(
                "repetition_penalty",
                "repetition_penalty must be above 0",
            ));
        }
        let top_k = whole("top_k", self.top_k, (-1, i64::from(i32::MAX)))?;
        let min_tokens = whole("min_tokens", self.min_tokens, (0, i64::from(i32::MAX)))?;
        Ok(Sampling {
            temperature: ranged(
                "temperature",
                self.temperature,
                0.0,
                2.0,
                defaults.temperature,
            )?,
            top_p: ranged("top_p", self.top_p, 0.0, 1.0, defaults.top_p)?,
            top_k: top_k.map_or(defaults.top_k, |k| k.max(0) as u32),
            min_p: ranged("min_p", self.min_p, 0.0, 1.0, defaults.min_p)?,
            seed: self.seed.map_or(seed, |s| s as u64),
            frequency_penalty: ranged("frequency_penalty", self.frequency_penalty, -2.0, 2.0, 0.0)?,
            presence_penalty: ranged("presence_penalty", self.presence_penalty, -2.0, 2.0, 0.0)?,
            repetition_penalty: repetition,
            logit_bias: self.biases(bounds.vocab)?,
            top_logprobs: 0,
            top_behavior: false,
            // An agent's turn fails on an empty text, so one token is sampled at least.
            min_tokens: min_tokens.map_or(defaults.min_tokens, |n| n as u32).max(1),
        })
    }

    fn biases(&self, vocab: usize) -> Result<Vec<(Token, f32)>, RequestError> {
        let Some(biases) = &self.logit_bias else {
            return Ok(Vec::new());
        };
        if biases.len() > BIASES_MAX {
            return Err(RequestError::invalid(
                "logit_bias",
                format!("at most {BIASES_MAX} tokens can be biased"),
            ));
        }
        biases
            .iter()
            .map(|(id, bias)| {
                let token = id.parse::<Token>().ok().filter(|t| (*t as usize) < vocab);
                let token = token.ok_or_else(|| {
                    RequestError::invalid(
                        "logit_bias",
                        format!("logit_bias names tokens by an id below {vocab}, not {id:?}"),
                    )
                })?;
                Ok((
                    token,
                    ranged("logit_bias", Some(*bias), -100.0, 100.0, 0.0)?,
                ))
            })
            .collect()
    }

    /// The checked stop strings.
    pub fn stops(&self) -> Result<Vec<String>, RequestError> {
        let stops = match &self.stop {
            None => return Ok(Vec::new()),
            Some(Stop::One(one)) => std::slice::from_ref(one),
            Some(Stop::Many(many)) => many.as_slice(),
        };
        if stops.len() > STOPS_MAX {
            return Err(RequestError::invalid(
                "stop",
                format!(
                    "at most {STOPS_MAX} stop strings are taken, not {}",
                    stops.len()
                ),
            ));
        }
        if stops.iter().any(String::is_empty) {
            return Err(RequestError::invalid(
                "stop",
                "a stop string cannot be empty",
            ));
        }
        if stops.iter().any(|s| s.len() > STOP_BYTES_MAX) {
            return Err(RequestError::invalid(
                "stop",
                format!("a stop string has at most {STOP_BYTES_MAX} bytes"),
            ));
        }
        Ok(stops.to_vec())
    }
}
