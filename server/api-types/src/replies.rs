//! Reply bodies of chat and text completions, whole and in chunks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hone_domain::{Reason, Receipt, ShownMemory, StopReason, Token};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::capture::{Captured, PromptLogprobs};
use crate::skills::{ShownSkillReply, shown_skills};
use hone_inference::{Ended, Language};

/// Token counts.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled, over all choices.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// More about the prompt.
    pub prompt_tokens_details: PromptDetails,
    /// More about what was sampled.
    pub completion_tokens_details: CompletionDetails,
}

/// More about the prompt.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct PromptDetails {
    /// Prompt tokens that did not have to be computed again.
    pub cached_tokens: usize,
}

/// More about what was sampled.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct CompletionDetails {
    /// Tokens of reasoning, its tags among them.
    pub reasoning_tokens: usize,
    /// With a `prediction`: tokens of it that were sampled, and were there sooner for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_prediction_tokens: Option<u32>,
    /// With a `prediction`: tokens of it that were computed and not sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected_prediction_tokens: Option<u32>,
}

/// Whether a turn is durable, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Collected {
    /// Whether it is in the ledger.
    InLedger(bool),
    /// It is somewhere else.
    Elsewhere(Spooled),
}

/// Where a turn waits for the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Spooled {
    /// In the spool of the server.
    Spooled,
}

/// What Hone says about a turn.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HoneNote {
    /// The turn; for `POST /v1/feedback` and `GET /v1/turns/{id}`.
    pub turn_id: String,
    /// The session it was bound to.
    pub session_id: String,
    /// The version that sampled it; 0 is the base model.
    pub policy_version: u64,
    /// Whether the turn is durable: true in the ledger, "spooled" on the server's disk until the database answers again.
    pub collected: Collected,
    /// Why not.
    pub reason: Option<&'static str>,
    /// The same in words.
    pub explanation: Option<&'static str>,
    /// The memories that its prompt shows; for `GET /v1/memories`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memories: Vec<String>,
    /// The skills that its prompt shows; for `GET /v1/skills`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<ShownSkillReply>,
    /// What its person has to decide, until they have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<&'static str>,
    /// With `n > 1`, the notes of the other choices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub others: Vec<Self>,
}

/// Asked where a client says `store: false` with every request and nobody has decided about that.
const LEARN_DESPITE: &str = "this client says store: false, so nothing of it is kept; is it to be learned from \
                             all the same? Answer once, on the page or with PUT /v1/consent and \
                             {\"learning\": \"full\", \"despite_store_false\": true} (or false)";

impl HoneNote {
    /// Of an ended choice.
    pub fn of(ended: &Ended) -> Self {
        let (collected, reason) = match ended.receipt {
            Receipt::Collected => (Collected::InLedger(true), None),
            Receipt::Spooled => (Collected::Elsewhere(Spooled::Spooled), None),
            Receipt::NotCollected(reason) => (Collected::InLedger(false), Some(reason)),
        };
        Self {
            turn_id: ended.turn.prefixed(),
            session_id: ended.session.prefixed(),
            policy_version: ended.version.0,
            collected,
            reason: reason.map(Reason::as_str),
            explanation: reason.map(Reason::explain),
            memories: ids_of(&ended.memories),
            skills: shown_skills(&ended.skills),
            question: ended.asks_consent.then_some(LEARN_DESPITE),
            others: Vec::new(),
        }
    }
}

/// Memories as clients know them.
pub fn ids_of(memories: &[ShownMemory]) -> Vec<String> {
    memories.iter().map(|one| one.id.prefixed()).collect()
}

/// The wire name of a stop reason.
pub fn finish_reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::EndToken | StopReason::StopString | StopReason::Cancelled => "stop",
        StopReason::Length => "length",
        StopReason::ToolCall => "tool_calls",
    }
}

/// One alternative of a token.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TopLogprob {
    /// Its text.
    pub token: String,
    /// Its log-prob under the distribution that is sampled from, or the model's own, as `logprobs_mode` says.
    pub logprob: f32,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
}

/// A token with its log-prob.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TokenLogprob {
    /// The token itself.
    #[serde(flatten)]
    pub token: TopLogprob,
    /// The most likely alternatives, best first.
    pub top_logprobs: Vec<TopLogprob>,
}

/// The log-probs of a token as they are kept; a [`TokenLogprob`] takes many times as much.
#[derive(Clone, Debug)]
pub struct Logprob {
    /// The token.
    pub token: Token,
    /// Its log-prob.
    pub logprob: f32,
    /// The most likely alternatives, best first.
    pub top: Vec<(Token, f32)>,
}

/// How log-probs name tokens.
#[derive(Clone)]
pub struct TokenNames {
    /// Knows their texts.
    pub language: Arc<dyn Language>,
    /// Whether they are named by their ids.
    pub as_ids: bool,
}

impl TokenNames {
    /// The name of a token of these bytes.
    fn name(&self, token: Token, bytes: &[u8]) -> String {
        match self.as_ids {
            true => format!("token_id:{token}"),
            false => String::from_utf8_lossy(bytes).into_owned(),
        }
    }
}

impl Logprob {
    fn told(&self, names: &TokenNames) -> TokenLogprob {
        let told = |token: Token, logprob: f32| {
            let bytes = names.language.token_bytes(token);
            TopLogprob {
                token: names.name(token, &bytes),
                // JSON has no infinity; -9999 is what peers write for "impossible".
                logprob: logprob.max(-9_999.0),
                bytes,
            }
        };
        TokenLogprob {
            token: told(self.token, self.logprob),
            top_logprobs: self.top.iter().map(|(t, l)| told(*t, *l)).collect(),
        }
    }
}

/// Log-probs of tokens, each of which becomes a [`TokenLogprob`] where it is written.
#[derive(Clone)]
pub struct Logprobs {
    names: TokenNames,
    tokens: Arc<[Logprob]>,
}

impl Logprobs {
    /// Of these tokens.
    pub fn new(names: TokenNames, tokens: Vec<Logprob>) -> Self {
        Self {
            names,
            tokens: tokens.into(),
        }
    }
}

impl fmt::Debug for Logprobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tokens.fmt(f)
    }
}

impl Serialize for Logprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.tokens.iter().map(|one| one.told(&self.names)))
    }
}

/// Log-probs of a chat choice.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry per token.
    #[schema(value_type = Vec<TokenLogprob>)]
    pub content: Logprobs,
    /// Always null.
    #[schema(value_type = Option<Object>)]
    pub refusal: Option<()>,
}

/// Log-probs of a text choice, in the older form.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct TextLogprobs {
    /// Texts.
    pub tokens: Vec<String>,
    /// Log-probs.
    pub token_logprobs: Vec<f32>,
    /// The most probable ones and the sampled one.
    pub top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where each token's text begins in the completion, in characters.
    pub text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Adds one token whose text begins at `offset`.
    pub fn push(&mut self, one: &Logprob, (offset, names): (usize, &TokenNames)) {
        let named = |token: TopLogprob| match names.as_ids {
            true => token.token,
            false => named(token.bytes),
        };
        let told = one.told(names);
        let (logprob, sampled) = (told.token.logprob, named(told.token));
        let tops = told.top_logprobs.into_iter();
        let tops = tops.map(|top| (top.logprob, named(top)));
        let tops = tops.map(|(logprob, name)| (name, logprob));
        let sampled_too = std::iter::once((sampled.clone(), logprob));
        self.top_logprobs.push(tops.chain(sampled_too).collect());
        self.tokens.push(sampled);
        self.token_logprobs.push(logprob);
        self.text_offset.push(offset);
    }
}

/// How the older form names a token: by its text, and one that is part of a character by its bytes.
fn named(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|part| {
        let bytes = part.as_bytes().iter();
        let hex: String = bytes.map(|byte| format!("\\x{byte:02x}")).collect();
        format!("bytes:{hex}")
    })
}

/// The assistant's message.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReplyMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// Text for the user; null where the model only called tools.
    pub content: Option<String>,
    /// Always null.
    #[schema(value_type = Option<String>)]
    pub refusal: Option<&'static str>,
    /// What the model thought before it answered, where its template knows reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tools the model calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ReplyCall>,
}

/// A call of a tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReplyCall {
    /// For the message that brings the tool's result.
    pub id: String,
    /// `function`, or `custom` where the tool takes a text.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<ReplyFunction>,
    /// What is called, where it takes a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<ReplyCustom>,
}

/// A tool that takes a text, as it is called.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReplyCustom {
    /// The tool's name.
    pub name: String,
    /// The text.
    pub input: String,
}

/// What is called.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReplyFunction {
    /// The tool's name.
    pub name: String,
    /// JSON text of an object, as the model wrote it.
    pub arguments: String,
}

/// What a chunk adds to a call.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct CallDelta {
    /// Which call.
    pub index: usize,
    /// In its first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function` or `custom`, in its first chunk.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// What is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionDelta>,
    /// What is added, where the tool takes a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomDelta>,
}

/// What a chunk adds to a call of a tool that takes a text.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct CustomDelta {
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The text, in the second one.
    pub input: String,
}

/// What a chunk adds to a call's function.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct FunctionDelta {
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A piece of the arguments.
    pub arguments: String,
}

impl CallDelta {
    /// The first of a call.
    pub fn begin(index: usize, id: String, name: String) -> Self {
        Self {
            index,
            id: Some(id),
            kind: Some("function"),
            function: Some(FunctionDelta {
                name: Some(name),
                arguments: String::new(),
            }),
            custom: None,
        }
    }

    /// More of its arguments.
    pub fn more(index: usize, arguments: String) -> Self {
        Self {
            index,
            function: Some(FunctionDelta {
                name: None,
                arguments,
            }),
            ..Self::default()
        }
    }

    /// The first of a call of a tool that takes a text.
    pub fn begin_custom(index: usize, id: String, name: String) -> Self {
        Self {
            index,
            id: Some(id),
            kind: Some("custom"),
            function: None,
            custom: Some(CustomDelta {
                name: Some(name),
                input: String::new(),
            }),
        }
    }

    /// Its text.
    pub fn custom_input(index: usize, input: String) -> Self {
        Self {
            index,
            custom: Some(CustomDelta { name: None, input }),
            ..Self::default()
        }
    }
}

/// One choice of a chat completion.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Which.
    pub index: u32,
    /// The completion.
    pub message: ReplyMessage,
    /// Log-probs, where asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
    /// What a trainer asked for.
    #[serde(flatten)]
    pub captured: Captured,
}

/// A whole chat completion.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// `chatcmpl-` and the first choice's turn.
    pub id: String,
    /// Always `chat.completion`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created: i64,
    /// The served model.
    pub model: String,
    /// The choices.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    pub usage: Usage,
    /// Base model and policy version.
    pub system_fingerprint: String,
    /// The prompt's tokens, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<Token>>,
    /// Per token of the prompt its log-prob and the alternatives', by token id, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// What became of the turn.
    pub hone: HoneNote,
}

/// What a chunk adds.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ChatDelta {
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// What the model thinks before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// A piece of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[CallDelta; 1]>,
}

/// One choice of a chunk.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Which.
    pub index: u32,
    /// What is added.
    pub delta: ChatDelta,
    /// Log-probs of what is added.
    pub logprobs: Option<ChatLogprobs>,
    /// In the last chunk.
    pub finish_reason: Option<&'static str>,
    /// What a trainer asked for: token ids with their text, the rest in the last chunk.
    #[serde(flatten)]
    pub captured: Captured,
}

/// An event of a chat stream.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChunk<'a> {
    /// The same in every chunk.
    pub id: &'a str,
    /// Always `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created: i64,
    /// The served model.
    pub model: &'a str,
    /// Base model and policy version.
    pub system_fingerprint: &'a str,
    /// One, or none in the usage chunk.
    pub choices: Vec<ChatChunkChoice>,
    /// The prompt's tokens, in the first chunk, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [Token]>,
    /// Per token of the prompt its log-prob and the alternatives', by token id, in the first chunk, where asked
    /// for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub prompt_logprobs: Option<&'a PromptLogprobs>,
    /// Null until the usage chunk; left out where it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// What became of the turn, in its last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hone: Option<HoneNote>,
}

/// One choice of a text completion, whole or in a chunk.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TextChoice {
    /// Which.
    pub index: u32,
    /// The completion, or what is added to it.
    pub text: String,
    /// Log-probs, where asked for.
    pub logprobs: Option<TextLogprobs>,
    /// `stop` or `length`; null in all chunks but the last.
    pub finish_reason: Option<&'static str>,
    /// What a trainer asked for.
    #[serde(flatten)]
    pub captured: Captured,
}

/// A whole text completion, or an event of its stream.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TextCompletion {
    /// `cmpl-` and the first choice's turn.
    pub id: String,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created: i64,
    /// The served model.
    pub model: String,
    /// The choices.
    pub choices: Vec<TextChoice>,
    /// Token counts; null until the usage chunk, left out where it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// Base model and policy version.
    pub system_fingerprint: String,
    /// What became of the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hone: Option<HoneNote>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use hone_inference::ByteLanguage;

    #[test]
    fn what_was_sampled_is_among_the_probable() {
        let mut told = TextLogprobs::default();
        let names = TokenNames {
            language: Arc::new(ByteLanguage),
            as_ids: false,
        };
        for (token, top) in [(98, vec![(97, -0.1)]), (97, vec![(97, -0.2), (98, -0.4)])] {
            let one = Logprob {
                token,
                logprob: if token == 97 { -0.2 } else { -3.0 },
                top,
            };
            told.push(&one, (0, &names));
        }
        let of = |pairs: [(&str, f32); 2]| pairs.map(|(t, l)| (t.to_owned(), l)).into();
        let wanted: [BTreeMap<_, _>; 2] = [
            of([("a", -0.1), ("b", -3.0)]),
            of([("a", -0.2), ("b", -0.4)]),
        ];
        assert_eq!(told.top_logprobs, wanted);
        assert_eq!(told.tokens, ["b", "a"]);
    }
}
