//! Turns: one model call each, with exactly what the sampler did.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Digest, GroupId, MemoryMode, Message, Millis, PolicyVersion, RequestId, Scope, SessionId,
    ShownMemory, ShownSkill, Token, TurnId,
};

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A person or a program.
    User,
    /// The judge, reading a next state.
    Judge,
    /// The gate, probing a candidate.
    Gate,
    /// A rollout made for training.
    Rollout,
    /// Nobody here: a client brought it as it was said elsewhere.
    Outside,
}

/// Whether a turn may train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnKind {
    /// A step of the conversation.
    Main,
    /// Housekeeping: titles, summaries, memory. Never trained on.
    Side,
}

/// Why sampling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model sampled an end token.
    EndToken,
    /// A stop string of the request appeared.
    StopString,
    /// The token limit was reached.
    Length,
    /// The model called a tool.
    ToolCall,
    /// The client left.
    Cancelled,
}

impl StopReason {
    /// The stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EndToken => "end_token",
            Self::StopString => "stop_string",
            Self::Length => "length",
            Self::ToolCall => "tool_call",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Below this a temperature means "take the most likely token".
pub const GREEDY_BELOW: f32 = 1e-5;

/// How tokens are sampled; the defaults sample the model's own distribution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0, and all below [`GREEDY_BELOW`], takes the most likely token.
    pub temperature: f32,
    /// Nucleus share; 1 is off.
    pub top_p: f32,
    /// Most likely tokens kept; 0 is off.
    pub top_k: u32,
    /// Share of the best token's probability below which tokens are cut; 0 is off.
    pub min_p: f32,
    /// Seed of the counter-based randomness.
    pub seed: u64,
    /// Subtracted per earlier occurrence in the completion.
    pub frequency_penalty: f32,
    /// Subtracted once for tokens that occurred in the completion.
    pub presence_penalty: f32,
    /// Divides (or multiplies) logits of tokens seen in prompt or completion; 1 is off.
    pub repetition_penalty: f32,
    /// Added to single logits.
    pub logit_bias: Vec<(Token, f32)>,
    /// How many alternatives to report per token.
    pub top_logprobs: u8,
    /// Whether the alternatives are reported under the distribution that is sampled from, instead of the
    /// model's own. It changes no draw, so the record of a turn leaves it out.
    #[serde(skip)]
    pub top_behavior: bool,
    /// End tokens are not sampled before this many tokens.
    pub min_tokens: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            top_logprobs: 0,
            top_behavior: false,
            min_tokens: 1,
        }
    }
}

impl Sampling {
    /// Whether the most likely token is taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature.is_nan() || self.temperature < GREEDY_BELOW
    }

    /// Whether the behavior log-probs can be recomputed from temperature and kept set alone.
    /// Greedy decoding has no distribution, and penalties depend on history the learner does not
    /// replay, so such turns stay out of policy gradient. A ban on end tokens shows up as a kept
    /// set of the first `min_tokens` positions and does not matter here.
    pub fn is_replayable(&self) -> bool {
        !self.is_greedy() && self.is_unadjusted()
    }

    /// Whether neither penalties nor a bias change logits.
    pub fn is_unadjusted(&self) -> bool {
        self.frequency_penalty == 0.0
            && self.presence_penalty == 0.0
            && self.repetition_penalty == 1.0
            && self.logit_bias.is_empty()
    }
}

/// Which version sampled a range of completion tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSpan {
    /// Version in the turn's scope.
    pub version: PolicyVersion,
    /// First completion token.
    pub start: u32,
    /// One past the last completion token.
    pub end: u32,
}

/// Sampling mask: the ids that sampling had left to choose from. Positions where the same were left share them, so that
/// a form of answer over a large vocabulary takes little.
pub type SamplingMask = Arc<[Token]>;

/// Sampled tokens with what the sampler knew about them. All arrays have one entry per token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    tokens: Vec<Token>,
    behavior_logprobs: Vec<f32>,
    raw_logprobs: Vec<f32>,
    kept: Vec<Option<SamplingMask>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    experts: Vec<u16>,
    stop: StopReason,
}

/// Why a completion is not one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    /// Arrays of different length.
    #[error(
        "completion arrays differ in length: {tokens} tokens, {behavior} behavior log-probs, {raw} raw log-probs, {kept} kept sets"
    )]
    Misaligned {
        /// Number of tokens.
        tokens: usize,
        /// Number of behavior log-probs.
        behavior: usize,
        /// Number of raw log-probs.
        raw: usize,
        /// Number of kept sets.
        kept: usize,
    },
    /// Not the same number of experts for every token.
    #[error("{ids} experts are recorded for a completion of {tokens} tokens")]
    Experts {
        /// Ids in all.
        ids: usize,
        /// Number of tokens.
        tokens: usize,
    },
    /// A log-prob that is not a finite number, or above zero by more than rounding.
    #[error("log-prob {index} of the completion is not a finite number at most zero")]
    BadLogprob {
        /// Token position.
        index: usize,
    },
}

impl Completion {
    /// Checks alignment: `tokens`, `behavior_logprobs` (of the distribution really sampled from),
    /// `raw_logprobs` (temperature 1, nothing cut) and `kept` (ids left where something was cut).
    pub fn new(
        tokens: Vec<Token>,
        behavior_logprobs: Vec<f32>,
        raw_logprobs: Vec<f32>,
        kept: Vec<Option<SamplingMask>>,
        stop: StopReason,
    ) -> Result<Self, CompletionError> {
        let n = tokens.len();
        if behavior_logprobs.len() != n || raw_logprobs.len() != n || kept.len() != n {
            return Err(CompletionError::Misaligned {
                tokens: n,
                behavior: behavior_logprobs.len(),
                raw: raw_logprobs.len(),
                kept: kept.len(),
            });
        }
        for (index, value) in behavior_logprobs.iter().chain(&raw_logprobs).enumerate() {
            if !value.is_finite() || *value > 1e-4 {
                return Err(CompletionError::BadLogprob {
                    index: index % n.max(1),
                });
            }
        }
        Ok(Self {
            tokens,
            behavior_logprobs,
            raw_logprobs,
            kept,
            experts: Vec::new(),
            stop,
        })
    }

    /// Tokens that nothing here sampled: they have no log-probs.
    pub fn given(tokens: Vec<Token>, stop: StopReason) -> Self {
        Self {
            kept: vec![None; tokens.len()],
            tokens,
            behavior_logprobs: Vec::new(),
            raw_logprobs: Vec::new(),
            experts: Vec::new(),
            stop,
        }
    }

    /// Whether its tokens have log-probs, so that a policy gradient can learn from them.
    pub fn has_logprobs(&self) -> bool {
        self.behavior_logprobs.len() == self.tokens.len()
    }

    /// With the experts that a model of experts used where it predicted each token, the same
    /// number for every token, in the order that the model records them. None for other models.
    pub fn with_experts(self, experts: Vec<u16>) -> Result<Self, CompletionError> {
        let (ids, tokens) = (experts.len(), self.len());
        let even = ids.checked_rem(tokens).unwrap_or(ids);
        if even != 0 {
            return Err(CompletionError::Experts { ids, tokens });
        }
        Ok(Self { experts, ..self })
    }

    /// The sampled tokens, the end token included where one was sampled.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Log-prob of each token under the distribution it was sampled from; empty where nothing here sampled them.
    pub fn behavior_logprobs(&self) -> &[f32] {
        &self.behavior_logprobs
    }

    /// Log-prob of each token at temperature 1 with nothing cut; likewise.
    pub fn raw_logprobs(&self) -> &[f32] {
        &self.raw_logprobs
    }

    /// Ids that were left to choose from, where top-k, top-p or min-p cut some.
    pub fn kept(&self) -> &[Option<SamplingMask>] {
        &self.kept
    }

    /// Experts used where each token was predicted, token by token; empty for models without.
    pub fn experts(&self) -> &[u16] {
        &self.experts
    }

    /// Why it ended.
    pub fn stop(&self) -> StopReason {
        self.stop
    }

    /// Names its end anew, where the text says more about it than the sampler knew.
    pub fn set_stop(&mut self, stop: StopReason) {
        self.stop = stop;
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing was sampled.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// How a turn was admitted, besides its session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// The base model answered because the session belongs to the control group.
    pub holdback: bool,
    /// Who of a shared scope said it; none where the scope belongs to one person.
    pub source: Option<String>,
    /// The distributed trace that the request belongs to, where the client named one.
    #[serde(default)]
    pub trace: Option<Uuid>,
    /// What the client attached, for itself.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// What its completion is to be checked by.
    #[serde(default)]
    pub checks: Vec<crate::Check>,
    /// What it did with memories.
    #[serde(default)]
    pub memory: MemoryUse,
    /// The answer that it goes on from, where it is a branch.
    #[serde(default)]
    pub branch: Option<BranchOf>,
}

/// Where in another turn's answer a branch goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchOf {
    /// The turn that gave the answer.
    pub turn: TurnId,
    /// How many tokens of its completion stay.
    pub position: u32,
    /// How many tokens at the end of the branch's own prompt belong to the answer: those that stay and, where that
    /// turn is a branch too, those that it went on from.
    pub prefix_tokens: u32,
}

impl BranchOf {
    /// Of a branch's prompt the tokens that were asked, and those of the answer that it goes on from.
    pub fn split<'a>(&self, prompt: &'a [Token]) -> (&'a [Token], &'a [Token]) {
        prompt.split_at(prompt.len().saturating_sub(self.prefix_tokens as usize))
    }
}

/// What a turn did with memories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Whether it was shown some, and whether what was said in it can become one.
    pub mode: MemoryMode,
    /// Those that its prompt holds, in the order of the prompt.
    pub shown: Vec<ShownMemory>,
    /// The skills that its prompt holds, likewise.
    #[serde(default)]
    pub skills: Vec<ShownSkill>,
}

impl Turn {
    /// The tokens that were asked, and those of an answer that its completion goes on from; of other turns than
    /// branches the second part is empty.
    pub fn asked_and_prefix(&self) -> (&[Token], &[Token]) {
        let prompt = &*self.prompt_tokens;
        let branch = self.admission.branch;
        branch.map_or((prompt, &[]), |branch| branch.split(prompt))
    }

    /// The distributed trace of this turn: the client's, else one named after the request.
    pub fn trace(&self) -> Uuid {
        self.admission.trace.unwrap_or(self.request.0)
    }
}

/// One model call, as it really happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Its id; clients see it.
    pub id: TurnId,
    /// The HTTP request it belongs to.
    pub request: RequestId,
    /// Which of the request's `n` completions.
    pub choice_index: u32,
    /// Set where a request asked for several completions.
    pub group: Option<GroupId>,
    /// The session it was bound to.
    pub session: SessionId,
    /// The session's key as the client gave it, if it did.
    pub session_key: Option<String>,
    /// The turn whose completion this turn's prompt continues.
    pub parent: Option<TurnId>,
    /// Owner of the API key (or the loopback owner).
    pub owner: String,
    /// Whose policy answered.
    pub scope: Scope,
    /// Who asked.
    pub origin: Origin,
    /// Whether it may train.
    pub kind: TurnKind,
    /// The messages of the request.
    pub messages: Vec<Message>,
    /// The tokens the model was given.
    pub prompt_tokens: Vec<Token>,
    /// What it sampled.
    pub completion: Completion,
    /// The completion as the client saw it.
    pub completion_text: String,
    /// How it was sampled.
    pub sampling: Sampling,
    /// Versions by completion token; the built-in engine writes exactly one span.
    pub spans: Vec<VersionSpan>,
    /// Content hash of the adapter; none for the base model.
    pub digest: Option<Digest>,
    /// Content hash of the base model.
    pub base: Digest,
    /// Kernel family, weight and KV format; log-prob equality holds within one fingerprint.
    pub fingerprint: String,
    /// How it was admitted.
    #[serde(default)]
    pub admission: Admission,
    /// Why it can never train, where that is known at the end of the call.
    pub untrainable: Option<crate::Reason>,
    /// When the ask was admitted.
    pub started_ms: Millis,
    /// When sampling ended.
    pub finished_ms: Millis,
}

impl Turn {
    /// The version that sampled it.
    pub fn version(&self) -> PolicyVersion {
        self.spans
            .iter()
            .map(|s| s.version)
            .min()
            .unwrap_or(PolicyVersion::BASE)
    }

    /// About how many bytes of memory it takes. A set of kept tokens counts in parts where several
    /// turns hold it; while a turn is handed over whoever answers holds it, too.
    pub fn bytes(&self) -> u64 {
        let message = |m: &Message| {
            let calls = m.tool_calls.iter();
            size_of::<Message>()
                + m.content.len()
                + calls
                    .map(|c| c.name.len() + c.arguments.len())
                    .sum::<usize>()
        };
        let said = &self.completion;
        let kept = said.kept.iter().flatten();
        let kept = kept.map(|set| 2 * size_of_val(&**set) / Arc::strong_count(set).max(2));
        let bytes = size_of::<Self>()
            + self.messages.iter().map(message).sum::<usize>()
            + size_of_val(&*self.prompt_tokens)
            + said.len() * size_of::<(Token, f32, f32, Option<SamplingMask>)>()
            + kept.sum::<usize>()
            + size_of_val(&*said.experts)
            + self.completion_text.len();
        bytes as u64
    }

    /// Whether what it is to be checked by looks at the completion alone, so that it need not wait
    /// for an answer.
    pub fn is_checked_at_once(&self) -> bool {
        let checks = &self.admission.checks;
        !checks.is_empty() && checks.iter().all(|check| check.verifier.needs_no_answer())
    }

    /// The completion as an assistant message, as the client will send it back.
    pub fn completion_message(&self) -> Message {
        Message::text(crate::Role::Assistant, self.completion_text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misaligned_or_impossible_completions_cannot_be_built() {
        let build = |behavior: Vec<f32>, kept: usize| {
            Completion::new(
                vec![1, 2],
                behavior,
                vec![-1.0, -1.0],
                vec![None; kept],
                StopReason::Length,
            )
        };
        let whole = build(vec![-1.0, -0.5], 2).unwrap();
        let three = whole.clone().with_experts(vec![0, 1, 2]);
        assert_eq!(
            three.unwrap_err(),
            CompletionError::Experts { ids: 3, tokens: 2 }
        );
        let four = whole.clone().with_experts(vec![0, 1, 2, 3]).unwrap();
        assert_eq!(four.experts(), [0, 1, 2, 3]);
        let stored = |it: &Completion| serde_json::to_value(it).unwrap();
        assert!(stored(&whole).get("experts").is_none());
        let read: Completion = serde_json::from_value(stored(&four)).unwrap();
        assert_eq!(read, four);
        assert!(matches!(
            build(vec![-1.0], 2),
            Err(CompletionError::Misaligned { .. })
        ));
        assert!(matches!(
            build(vec![-1.0, -0.5], 1),
            Err(CompletionError::Misaligned { .. })
        ));
        assert_eq!(
            build(vec![-1.0, f32::NAN], 2),
            Err(CompletionError::BadLogprob { index: 1 })
        );
        assert_eq!(
            build(vec![0.5, -1.0], 2),
            Err(CompletionError::BadLogprob { index: 0 })
        );
    }

    #[test]
    fn what_nothing_here_sampled_has_no_logprobs() {
        let given = Completion::given(vec![1, 2], StopReason::EndToken);
        assert!(!given.has_logprobs() && given.behavior_logprobs().is_empty());
        assert_eq!((given.len(), given.kept().len()), (2, 2));
        let none = Completion::given(Vec::new(), StopReason::EndToken);
        assert!(none.has_logprobs(), "of no token all are known");
    }

    #[test]
    fn what_cannot_be_replayed_is_named() {
        assert!(Sampling::default().is_replayable());
        assert!(
            Sampling {
                top_p: 0.9,
                top_k: 5,
                ..Sampling::default()
            }
            .is_replayable()
        );
        for (temperature, replayable) in
            [(0.0, false), (9e-6, false), (f32::NAN, false), (1e-5, true)]
        {
            let sampling = Sampling {
                temperature,
                ..Sampling::default()
            };
            assert_eq!(sampling.is_replayable(), replayable, "{temperature}");
        }
        assert!(
            !Sampling {
                logit_bias: vec![(1, 1.0)],
                ..Sampling::default()
            }
            .is_replayable()
        );
        assert!(
            !Sampling {
                repetition_penalty: 1.1,
                ..Sampling::default()
            }
            .is_replayable()
        );
    }
}
