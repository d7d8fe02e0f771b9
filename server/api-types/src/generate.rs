//! The bodies of token-in, token-out requests as vLLM and SGLang write them, reduced to the body of a text
//! completion.

use hone_domain::Token;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::JsonObject;
use crate::RequestError;

/// Tokens that SGLang samples where the request does not say.
const NEW_TOKENS_DEFAULT: u64 = 128;

/// vLLM's request for tokens.
#[derive(Debug, Deserialize, ToSchema)]
pub struct GenerateRequest {
    /// The prompt.
    pub token_ids: Vec<Token>,
    /// How to sample, as the fields of a text completion; also `logprobs` and `prompt_logprobs`.
    #[schema(value_type = Option<Object>)]
    pub sampling_params: Option<Map<String, Value>>,
    /// A name that `GET /v1/models` lists; the served model where absent.
    pub model: Option<String>,
    /// Whether to send events.
    pub stream: Option<bool>,
    /// Repeated in the reply.
    pub request_id: Option<String>,
    /// `tokens`, or `text` for the text besides.
    pub output_mode: Option<String>,
}

/// SGLang's request for tokens.
#[derive(Debug, Deserialize, ToSchema)]
pub struct SglangRequest {
    /// A prompt, or several.
    #[schema(value_type = Option<Object>)]
    pub text: Option<Value>,
    /// Token ids of a prompt, or of several.
    #[schema(value_type = Option<Object>)]
    pub input_ids: Option<Value>,
    /// How to sample.
    #[schema(value_type = Option<Object>)]
    pub sampling_params: Option<Map<String, Value>>,
    /// A name that `GET /v1/models` lists; the served model where absent.
    pub model: Option<String>,
    /// The request's name.
    pub rid: Option<Value>,
    /// Whether to report log-probs.
    pub return_logprob: Option<bool>,
    /// From which token of the prompt on its log-probs are reported; none where absent or negative.
    pub logprob_start_len: Option<i64>,
    /// How many alternatives to report per token.
    pub top_logprobs_num: Option<i64>,
    /// Not supported; `/inference/v1/generate` streams.
    pub stream: Option<bool>,
}

/// What a reply in tokens looks like.
#[derive(Clone, Debug, Default)]
pub struct Form {
    /// The request's name for itself.
    pub request_id: Option<Value>,
    /// Whether the text is told besides.
    pub text: bool,
    /// From which token of the prompt on its log-probs are told.
    pub input_from: usize,
    /// Whether several prompts or choices were asked for.
    pub many: bool,
}

/// A text completion's body, what the reply looks like, and where the prompt was written.
pub type Reduced = (JsonObject, Form, &'static str);

/// What the server knows that such a body may leave out.
pub struct Served<'a> {
    /// The served model's name.
    pub model: &'a str,
    /// Tokens that end a completion.
    pub end_tokens: &'a [Token],
}

impl Served<'_> {
    /// The fields of a completion; stop tokens are left out where they stop anyway.
    fn body(
        &self,
        fields: Map<String, Value>,
        sampling: Option<Map<String, Value>>,
    ) -> Map<String, Value> {
        let mut body = fields;
        body.extend(sampling.into_iter().flatten());
        let ends = |id: &Value| {
            let id = id.as_u64().and_then(|id| Token::try_from(id).ok());
            id.is_some_and(|id| self.end_tokens.contains(&id))
        };
        let stops = body.get("stop_token_ids").and_then(Value::as_array);
        if stops.is_some_and(|ids| ids.iter().all(ends)) {
            body.remove("stop_token_ids");
        }
        if body.get("model").is_none_or(Value::is_null) {
            body.insert("model".to_owned(), json!(self.model));
        }
        for name in ["return_token_ids", "return_weight_versions"] {
            body.insert(name.to_owned(), json!(true));
        }
        body
    }
}

/// Renames a field where it is there.
fn rename(body: &mut Map<String, Value>, (from, to): (&str, &str)) {
    if let Some(value) = body.remove(from).filter(|value| !value.is_null()) {
        body.insert(to.to_owned(), value);
    }
}

impl GenerateRequest {
    /// Reads a body.
    pub fn reduce(mut object: JsonObject, served: &Served<'_>) -> Result<Reduced, RequestError> {
        let request: Self = object.read()?;
        let text = match request.output_mode.as_deref() {
            None | Some("tokens") => false,
            Some("text") => true,
            Some(_) => {
                return Err(RequestError::unsupported(
                    "output_mode",
                    "`output_mode` is `tokens` or `text`",
                ));
            }
        };
        let mut fields = object.into_fields();
        for name in [
            "sampling_params",
            "output_mode",
            "request_id",
            "return_token_ids",
        ] {
            fields.remove(name);
        }
        let mut body = served.body(fields, request.sampling_params);
        rename(&mut body, ("token_ids", "prompt"));
        if body.get("n").is_some_and(|n| n.as_u64() != Some(1)) {
            return Err(RequestError::invalid(
                "sampling_params.n",
                "n is 1 here; send one request per completion",
            ));
        }
        let form = Form {
            request_id: request.request_id.map(Value::String),
            text,
            ..Form::default()
        };
        Ok((JsonObject::of(body), form, "token_ids"))
    }
}

/// Fields that SGLang takes and that cannot work here.
const REFUSED: &[(&str, &str)] = &[
    (
        "stream",
        "use /inference/v1/generate or /v1/completions to stream",
    ),
    ("token_ids_logprob", "use `top_logprobs_num`"),
    ("image_data", "this server reads text only"),
    ("input_embeds", "send `input_ids`"),
];
/// Fields that become others.
const CONSUMED: &[&str] = &[
    "input_ids",
    "text",
    "sampling_params",
    "rid",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
];
/// SGLang's names of sampling fields, and ours.
const RENAMED: &[(&str, &str)] = &[
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("sampling_seed", "seed"),
    ("regex", "guided_regex"),
];

/// The sampling fields under our names.
fn renamed(body: &mut Map<String, Value>) -> Result<(), RequestError> {
    for names in RENAMED {
        rename(body, *names);
    }
    if body.remove("ebnf").is_some_and(|ebnf| !ebnf.is_null()) {
        let why = "`ebnf` is not supported: use `guided_grammar` in Lark notation";
        return Err(RequestError::unsupported("sampling_params.ebnf", why));
    }
    let schema = body.remove("json_schema");
    if let Some(schema) = schema.filter(|schema| !schema.is_null()) {
        let text = schema.as_str();
        let read = text.map_or(Ok(schema.clone()), serde_json::from_str);
        let schema = read.map_err(|_| {
            RequestError::invalid("sampling_params.json_schema", "json_schema is not JSON")
        })?;
        body.insert("guided_json".to_owned(), schema);
    }
    Ok(())
}

/// Whether there are several prompts.
fn is_batch(prompt: &Value) -> bool {
    match prompt {
        Value::Array(items) => !items.first().is_some_and(Value::is_number),
        _ => false,
    }
}

impl SglangRequest {
    /// Reads a body.
    pub fn reduce(mut object: JsonObject, served: &Served<'_>) -> Result<Reduced, RequestError> {
        let request: Self = object.read()?;
        let mut fields = object.into_fields();
        for (name, why) in REFUSED {
            let empty = [Value::Null, json!(false), json!([])];
            let value = fields.remove(*name);
            if value.is_some_and(|value| !empty.contains(&value)) {
                let message = format!("`{name}` is not supported: {why}");
                return Err(RequestError::unsupported(*name, message));
            }
        }
        let (at, prompt) = match (request.input_ids, request.text) {
            (Some(ids), None) => ("input_ids", ids),
            (None, Some(text)) => ("text", text),
            _ => {
                let message = "send either input_ids or text";
                return Err(RequestError::invalid("input_ids", message));
            }
        };
        CONSUMED.iter().for_each(|name| drop(fields.remove(*name)));
        let mut body = served.body(fields, request.sampling_params);
        renamed(&mut body)?;
        let is_one = |n: &Value| n.as_u64() == Some(1);
        let many = is_batch(&prompt) || body.get("n").is_some_and(|n| !is_one(n));
        body.insert("prompt".to_owned(), prompt);
        body.entry("max_tokens")
            .or_insert(json!(NEW_TOKENS_DEFAULT));
        let top = json!(request.top_logprobs_num.unwrap_or(0));
        let from = request.logprob_start_len;
        let from = from.and_then(|from| usize::try_from(from).ok());
        let is_told = request.return_logprob.unwrap_or(false);
        if is_told {
            body.insert("logprobs".to_owned(), top.clone());
        }
        if is_told && from.is_some() {
            body.insert("prompt_logprobs".to_owned(), top);
        }
        let form = Form {
            request_id: request.rid,
            text: true,
            input_from: from.unwrap_or(0),
            many,
        };
        Ok((JsonObject::of(body), form, at))
    }
}
