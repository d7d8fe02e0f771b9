//! The body of `POST /v1/completions`: text or tokens in, text out, no chat template.

use hone_domain::Token;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::JsonObject;
use crate::RequestError;
use crate::capture::CaptureFields;
use crate::formats::ShapeFields;
use crate::openai::{StreamOptions, refuse_known};
use crate::sampling::SamplingFields;
use crate::session::SessionFields;

/// Most prompts of one request.
const PROMPTS_MAX: usize = 16;

/// A text completion request.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// What is asked.
    #[serde(flatten)]
    pub text: CompletionFields,
    /// Sampling and stopping.
    #[serde(flatten)]
    pub sampling: SamplingFields,
    /// What a trainer asks for besides.
    #[serde(flatten)]
    pub capture: CaptureFields,
    /// What the completion has to look like.
    #[serde(flatten)]
    pub shape: ShapeFields,
    /// Whose, which session, what kind of turn.
    #[serde(flatten)]
    pub session: SessionFields,
}

/// Fields that only text completions have.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CompletionFields {
    /// A name that `GET /v1/models` lists.
    pub model: String,
    /// A text, token ids, or up to 16 of either.
    pub prompt: Value,
    /// Whether to send the completion as server-sent events while it is sampled.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    /// How many completions per prompt.
    pub n: Option<i64>,
    /// Most tokens to sample; 16 where absent, as this API always had it.
    pub max_tokens: Option<i64>,
    /// How many alternatives to report per token, up to 20.
    pub logprobs: Option<i64>,
    /// Where the caller wrote what is in `prompt`, in an API that has another name for it.
    #[serde(skip)]
    pub prompt_at: Option<&'static str>,
}

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// To be tokenised.
    Text(String),
    /// Taken as they are.
    Tokens(Vec<Token>),
}

impl CompletionRequest {
    /// Reads a body; the names of its unknown fields come with it.
    pub fn from_object(mut object: JsonObject) -> Result<(Self, Vec<String>), RequestError> {
        let request = Self {
            text: object.read()?,
            sampling: object.read()?,
            capture: object.read()?,
            shape: object.read()?,
            session: object.read()?,
        };
        refuse_known(&object)?;
        let mut ignored = object.unknown();
        let options = request.text.stream_options.iter();
        ignored.extend(options.flat_map(StreamOptions::without_effect));
        Ok((request, ignored))
    }

    /// The checked prompts; token ids are below `vocab`.
    pub fn prompts(&self, vocab: usize) -> Result<Vec<Prompt>, RequestError> {
        let name = self.text.prompt_at.unwrap_or("prompt");
        prompts_of(name, &self.text.prompt, vocab, PROMPTS_MAX)
    }
}

/// The checked texts or token ids of a field, at most `most`; ids are below `vocab`.
pub fn prompts_of(
    name: &str,
    value: &Value,
    vocab: usize,
    most: usize,
) -> Result<Vec<Prompt>, RequestError> {
    let prompts = match value {
        Value::String(text) => vec![Prompt::Text(text.clone())],
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            vec![tokens(name, items, vocab)?]
        }
        Value::Array(items) if items.len() <= most => items
            .iter()
            .enumerate()
            .map(|(at, item)| match item {
                Value::String(text) => Ok(Prompt::Text(text.clone())),
                Value::Array(ids) => tokens(&format!("{name}[{at}]"), ids, vocab),
                _ => Err(wrong(&format!("{name}[{at}]"))),
            })
            .collect::<Result<_, _>>()?,
        Value::Array(_) => {
            let message = format!("at most {most} are taken in {name}");
            return Err(RequestError::invalid(name, message));
        }
        _ => return Err(wrong(name)),
    };
    let is_empty = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Tokens(tokens) => tokens.is_empty(),
    };
    if prompts.is_empty() || prompts.iter().any(is_empty) {
        return Err(RequestError::invalid(
            name,
            format!("{name} cannot be empty"),
        ));
    }
    Ok(prompts)
}

fn wrong(path: &str) -> RequestError {
    RequestError::invalid(
        path,
        format!("{path} must be a text, an array of token ids, or an array of either"),
    )
}

fn tokens(path: &str, ids: &[Value], vocab: usize) -> Result<Prompt, RequestError> {
    ids.iter()
        .enumerate()
        .map(|(at, id)| {
            let id = id.as_u64().filter(|id| (*id as usize) < vocab);
            id.map(|id| id as Token).ok_or_else(|| {
                RequestError::invalid(
                    format!("{path}[{at}]"),
                    format!("{path}[{at}] is not a token id below {vocab}"),
                )
            })
        })
        .collect::<Result<_, _>>()
        .map(Prompt::Tokens)
}
