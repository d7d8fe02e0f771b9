//! What a trainer asks for beside an answer, in the spellings of vLLM and SGLang, and the form in which it
//! is told.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hone_domain::{Completion, PolicyVersion, SamplingMask, Token, TokenDelta};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::RequestError;
use crate::sampling::whole;
use hone_inference::Language;

/// Most ids of the sampling masks of one completion in a reply; beyond, they are null.
const MASK_IDS_MAX: usize = 1 << 20;

/// What a trainer asks for beside an answer.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct CaptureFields {
    /// Whether to add the token ids of prompt and completion to the reply.
    pub return_token_ids: Option<bool>,
    /// SGLang's name for the prompt's half of `return_token_ids`: the ids stand in each choice.
    pub return_prompt_token_ids: Option<bool>,
    /// Whether log-probs name tokens as `token_id:N` instead of by their text.
    pub return_tokens_as_token_ids: Option<bool>,
    /// Whether each choice names the policy versions that sampled it.
    pub return_weight_versions: Option<bool>,
    /// Whether each choice lists the token ids that could be drawn at each position, where some could not.
    pub return_sampling_mask: Option<bool>,
    /// Whether each choice lists the experts that predicted its tokens; nothing in a model without experts.
    pub return_routed_experts: Option<bool>,
    /// Whether each choice has SGLang's `meta_info`.
    pub return_meta_info: Option<bool>,
    /// `processed_logprobs`: log-probs of the distribution that is sampled from; `raw_logprobs`: of the
    /// model's own. Where absent, `http.logprobs_mode` says which.
    pub logprobs_mode: Option<String>,
    /// How many alternatives to report per token of the prompt, 0 to 20.
    pub prompt_logprobs: Option<i64>,
}

/// [`CaptureFields`], checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// Token ids of prompt and completion.
    pub token_ids: bool,
    /// Those of the prompt in each choice.
    pub prompt_in_choice: bool,
    /// Log-probs name tokens by id.
    pub as_ids: bool,
    /// Versions that sampled.
    pub versions: bool,
    /// Ids that could be drawn.
    pub masks: bool,
    /// Experts that predicted.
    pub experts: bool,
    /// SGLang's summary.
    pub meta_info: bool,
    /// Log-probs are the model's own.
    pub raw: bool,
    /// Alternatives per token of the prompt.
    pub prompt_logprobs: Option<u8>,
}

/// Whether log-probs are the model's own, by the word of a request or of the configuration.
pub fn is_raw(word: &str) -> Option<bool> {
    match word {
        "raw" | "raw_logprobs" => Some(true),
        "processed" | "processed_logprobs" => Some(false),
        _ => None,
    }
}

/// The word for log-probs that are the model's own, or are not.
pub fn mode_of(raw: bool) -> &'static str {
    match raw {
        true => "raw_logprobs",
        false => "processed_logprobs",
    }
}

impl CaptureFields {
    /// What is wanted; `default` is the server's word for log-probs. What has no effect with this model is
    /// named in `ignored`.
    pub fn checked(
        &self,
        default: &str,
        chosen: usize,
        ignored: &mut Vec<String>,
    ) -> Result<Capture, RequestError> {
        let word = self.logprobs_mode.as_deref().unwrap_or(default);
        let Some(raw) = is_raw(word) else {
            return Err(RequestError::invalid(
                "logprobs_mode",
                "logprobs_mode is processed_logprobs (of the distribution that is sampled from) or \
                 raw_logprobs (of the model's own)",
            ));
        };
        let top = whole("prompt_logprobs", self.prompt_logprobs, (0, 20))?;
        let is = |field: Option<bool>| field.unwrap_or(false);
        if is(self.return_routed_experts) && chosen == 0 {
            ignored.push("return_routed_experts".to_owned());
        }
        Ok(Capture {
            token_ids: is(self.return_token_ids) || is(self.return_prompt_token_ids),
            prompt_in_choice: is(self.return_prompt_token_ids),
            as_ids: is(self.return_tokens_as_token_ids),
            versions: is(self.return_weight_versions),
            masks: is(self.return_sampling_mask),
            experts: is(self.return_routed_experts),
            meta_info: is(self.return_meta_info),
            raw,
            prompt_logprobs: top.map(|top| top as u8),
        })
    }
}

/// A log-prob as JSON takes it, in the digits that tell it from all others: a wider number made of it would be
/// told in digits of its own. There is no infinity, and -9999 is what peers write for "impossible".
pub fn told(logprob: f32) -> f64 {
    let logprob = logprob.max(-9_999.0);
    logprob.to_string().parse().unwrap_or(f64::from(logprob))
}

/// Tokens that one version sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct WeightVersion {
    /// The version's number, as a text; `0` is the base model.
    pub version: String,
    /// The first completion token.
    pub start: usize,
    /// One past the last.
    pub end: usize,
}

/// What a choice, a response or a message says to a trainer.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Captured {
    /// The prompt's tokens, where a choice is to have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<Token>>,
    /// Sampled tokens, the end token among them; in a stream those of this event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<Token>>,
    /// The same in SGLang's spelling, in a whole reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_token_ids: Option<Vec<Token>>,
    /// In Responses and Messages: one log-prob per sampled token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_logprobs: Option<Vec<f64>>,
    /// Versions that sampled it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_versions: Option<Vec<WeightVersion>>,
    /// Per token the ids that could be drawn, or null where all could; null as a whole where they are more
    /// than a reply holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Vec<u32>>>>)]
    pub sampling_mask: Option<Option<Vec<Option<SamplingMask>>>>,
    /// Experts as a `.npy` file in base64, of shape tokens, layers with experts, experts of a token; null in a
    /// model without experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<Option<String>>,
    /// SGLang's summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub meta_info: Option<Value>,
    /// Per token of the prompt its log-prob and the alternatives', by token id; of a chat they stand at the top.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// The one version that sampled a completion, as spans.
pub fn spans(version: PolicyVersion, completion: &Completion) -> Vec<WeightVersion> {
    vec![WeightVersion {
        version: version.to_string(),
        start: 0,
        end: completion.len(),
    }]
}

/// The sampling masks of a completion, where a reply holds them.
pub fn masks(completion: &Completion) -> Option<Vec<Option<SamplingMask>>> {
    let ids: usize = completion.kept().iter().flatten().map(|k| k.len()).sum();
    (ids <= MASK_IDS_MAX).then(|| completion.kept().to_vec())
}

/// The experts of a completion as a `.npy` file in base64; `chosen` is how many a token uses in a layer.
pub fn experts(completion: &Completion, chosen: usize) -> Option<String> {
    let ids = completion.experts();
    let each = ids.len().checked_div(completion.len())?;
    let layers = each.checked_div(chosen).filter(|layers| *layers > 0)?;
    let shape = format!("({}, {layers}, {chosen})", completion.len());
    let mut header = format!("{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}");
    // The numbers begin at a multiple of 64 bytes, behind 10 bytes and a line end.
    let padding = (64 - (header.len() + 11) % 64) % 64;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    let length = u16::try_from(header.len()).ok()?;
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend(length.to_le_bytes());
    file.extend(header.bytes());
    file.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    Some(STANDARD.encode(file))
}

/// The log-prob of one token at a place of a prompt.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PromptLogprob {
    /// Its log-prob under the model's own distribution.
    pub logprob: f64,
    /// Its place among all tokens, from 1; null where it is not among the alternatives.
    pub rank: Option<usize>,
    /// Its text.
    pub decoded_token: String,
}

/// Per token of a prompt its log-prob and the alternatives', by token id; null for the first.
pub type PromptLogprobs = Vec<Option<BTreeMap<Token, PromptLogprob>>>;

/// The log-probs of a prompt of which `scored` are all tokens but the first.
pub fn prompt_logprobs(scored: &[TokenDelta], language: &dyn Language) -> PromptLogprobs {
    let of = |delta: &TokenDelta| {
        let entry = |(at, (token, logprob)): (Option<usize>, (Token, f32))| {
            let bytes = language.token_bytes(token);
            let entry = PromptLogprob {
                logprob: told(logprob),
                rank: at.map(|at| at + 1),
                decoded_token: String::from_utf8_lossy(&bytes).into_owned(),
            };
            (token, entry)
        };
        let own = entry((None, (delta.token, delta.logprob)));
        let top = delta.top.iter().copied().enumerate();
        let top = top.map(|(at, one)| entry((Some(at), one)));
        Some(std::iter::once(own).chain(top).collect())
    };
    std::iter::once(None).chain(scored.iter().map(of)).collect()
}

#[cfg(test)]
mod tests {
    use hone_domain::StopReason;

    use super::*;

    #[test]
    fn log_probs_keep_their_digits() {
        for logprob in [-0.1f32, -1.484_375_1, -12.739_194, 0.0] {
            assert_eq!(told(logprob).to_string(), logprob.to_string());
        }
        assert_eq!(told(f32::NEG_INFINITY), -9_999.0);
    }

    #[test]
    fn experts_are_a_file_that_numpy_reads() {
        let plain = Completion::new(
            vec![7, 8],
            vec![-0.5; 2],
            vec![-0.5; 2],
            vec![None; 2],
            StopReason::Length,
        );
        let plain = plain.unwrap();
        assert_eq!(experts(&plain, 0), None);
        let sparse = plain.with_experts((0..8).collect()).unwrap();
        let file = STANDARD.decode(experts(&sparse, 2).unwrap()).unwrap();
        let length = usize::from(u16::from_le_bytes([file[8], file[9]]));
        assert_eq!((10 + length) % 64, 0);
        let header = std::str::from_utf8(&file[10..10 + length]).unwrap();
        assert!(header.contains("'shape': (2, 2, 2)"), "{header}");
        assert_eq!(file.len(), 10 + length + 16);
        assert_eq!(file[10 + length + 14..], [7, 0]);
    }
}
