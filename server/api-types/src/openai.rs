//! The body of `POST /v1/chat/completions`.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::JsonObject;
use crate::RequestError;
use crate::capture::CaptureFields;
use crate::content::Reader;
use crate::foreign::Functions;
use crate::formats::ShapeFields;
use crate::sampling::SamplingFields;
use crate::session::SessionFields;

/// A chat request. Null counts as absent for every optional field.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// What is asked.
    #[serde(flatten)]
    pub chat: ChatFields,
    /// Sampling and stopping.
    #[serde(flatten)]
    pub sampling: SamplingFields,
    /// What a trainer asks for besides.
    #[serde(flatten)]
    pub capture: CaptureFields,
    /// What the answer has to look like.
    #[serde(flatten)]
    pub shape: ShapeFields,
    /// Whose, which session, what kind of turn.
    #[serde(flatten)]
    pub session: SessionFields,
}

/// Fields that only chat has.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatFields {
    /// A name that `GET /v1/models` lists.
    pub model: String,
    /// The conversation so far; at least one message.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Value>,
    /// Whether to send the completion as server-sent events while it is sampled.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    /// How many completions.
    pub n: Option<i64>,
    /// Most tokens to sample.
    pub max_completion_tokens: Option<i64>,
    /// The older name of `max_completion_tokens`.
    pub max_tokens: Option<i64>,
    /// Whether to report log-probs.
    pub logprobs: Option<bool>,
    /// How many alternatives to report per token; needs `logprobs`.
    pub top_logprobs: Option<i64>,
    /// Tools the model may call; they are rendered into the prompt.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or an object that names a function or the allowed tools.
    pub tool_choice: Option<Value>,
    /// False ends the answer with its first call.
    pub parallel_tool_calls: Option<bool>,
    /// How much to reason: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max`; has an effect
    /// where the model's template reads `reasoning_effort` or `enable_thinking`.
    pub reasoning_effort: Option<String>,
    /// How much to say: `low`, `medium`, `high`; other than `medium` only where the model's template
    /// reads `verbosity`.
    pub verbosity: Option<String>,
    /// What the answer will probably be: `{"type": "content", "content": ...}` with a text or text parts.
    /// Where the answer says the same it comes sooner; what it says does not depend on it.
    #[schema(value_type = Option<Object>)]
    pub prediction: Option<Value>,
    /// Only `text`.
    pub modalities: Option<Vec<String>>,
    /// Variables for the model's chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// Options of a stream.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Whether the last event before `[DONE]` carries the usage.
    pub include_usage: Option<bool>,
    /// Padding against listeners is not sent; true has no effect.
    pub include_obfuscation: Option<bool>,
    /// Usage comes once, at the end; true has no effect.
    pub continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    /// What is asked for and has no effect.
    pub fn without_effect(&self) -> impl Iterator<Item = String> {
        let rows = [
            ("include_obfuscation", self.include_obfuscation),
            ("continuous_usage_stats", self.continuous_usage_stats),
        ];
        let asked = rows.into_iter().filter(|(_, asked)| *asked == Some(true));
        asked.map(|(name, _)| format!("stream_options.{name}"))
    }
}

impl ChatRequest {
    /// Reads a body; the names of its unknown fields come with it.
    pub fn from_object(mut object: JsonObject) -> Result<(Self, Vec<String>), RequestError> {
        let request = Self {
            chat: object.read()?,
            sampling: object.read()?,
            capture: object.read()?,
            shape: object.read()?,
            session: object.read()?,
        };
        refuse_known(&object)?;
        let mut ignored = object.unknown();
        let options = request.chat.stream_options.iter();
        ignored.extend(options.flat_map(StreamOptions::without_effect));
        Ok((request, ignored))
    }
}

/// Fields that are known, would change the completion, and cannot work here yet: refused by name
/// instead of ignored.
const REFUSED: &[(&str, &str)] = &[
    ("audio", "this server answers in text only"),
    ("functions", "use `tools`, its successor"),
    ("function_call", "use `tool_choice`, its successor"),
    ("web_search_options", "this server does not search the web"),
    ("moderation", "this server moderates nothing"),
    (
        "stop_token_ids",
        "the model's own end tokens end a completion by themselves; to end it elsewhere, use `stop` \
         with a text (control tokens have none)",
    ),
    ("best_of", "use `n`"),
    ("echo", "the prompt is not repeated"),
    ("suffix", "text cannot be inserted before a suffix"),
    ("use_beam_search", "completions are sampled"),
    ("bad_words", "use `logit_bias`"),
    ("allowed_token_ids", "use `logit_bias` or `guided_choice`"),
    ("truncate_prompt_tokens", "prompts are never cut"),
    (
        "include_stop_str_in_output",
        "a stop string is never part of the completion",
    ),
    ("logits_processors", "use `logit_bias`"),
    (
        "continue_final_message",
        "the last message is never continued",
    ),
];

/// Refuses what is in [`REFUSED`] with more than an empty value.
pub fn refuse_known(object: &JsonObject) -> Result<(), RequestError> {
    for (name, why) in REFUSED {
        let wanted = object.get(name).is_some_and(|value| match value {
            Value::Bool(wanted) => *wanted,
            Value::Array(items) => !items.is_empty(),
            Value::Object(map) => !map.is_empty(),
            Value::String(text) => !text.is_empty(),
            Value::Number(n) => *name != "best_of" || n.as_i64() != Some(1),
            Value::Null => false,
        });
        if wanted {
            let message = format!("`{name}` is not supported: {why}");
            return Err(RequestError::unsupported(*name, message));
        }
    }
    let modalities = object.get("modalities").and_then(Value::as_array);
    if modalities.is_some_and(|list| list.iter().any(|m| m.as_str() != Some("text"))) {
        return Err(RequestError::unsupported(
            "modalities",
            "this server answers in text only; leave modalities out or send [\"text\"]",
        ));
    }
    Ok(())
}

impl ChatFields {
    /// The tools as functions. What cannot run here is left out.
    pub fn functions(&self, reader: &mut Reader) -> Result<Functions, RequestError> {
        let mut functions = Functions::default();
        for (at, tool) in self.tools.iter().flatten().enumerate() {
            let path = format!("tools[{at}]");
            match tool.get("type").and_then(Value::as_str) {
                None | Some("function") => {
                    let function = tool.get("function").unwrap_or(&Value::Null);
                    functions.plain(&format!("{path}.function"), function)?;
                }
                Some("custom") => {
                    let custom = tool.get("custom").unwrap_or(&Value::Null);
                    functions.custom(&format!("{path}.custom"), custom)?;
                }
                Some(_) => reader.leave_out(&format!("{path}.type")),
            }
        }
        Ok(functions)
    }
}
