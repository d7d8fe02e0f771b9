//! Templates and tokens of what is served.

use std::sync::Arc;

use hone_domain::{CallStyle, Reasoning, Sampling, Token};
use hone_text::template::ChatTemplate;
use hone_text::tokenizer::Tokenizer;
use serde_json::{Map, Value};

/// Why messages could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model's chat template refused the messages: {0}")]
pub struct LanguageError(pub String);

/// How the model writes what is not plain text; its chat template tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// How it writes tool calls; none where its template teaches none.
    pub calls: Option<CallStyle>,
    /// Whether it may reason before it answers.
    pub reasons: bool,
}

/// Text in, tokens out, and back.
pub trait Language: Send + Sync {
    /// The prompt's text with the opening of the assistant's turn.
    fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        extra: &Map<String, Value>,
    ) -> Result<String, LanguageError>;

    /// Tokens of `text`; with `special` the tokenizer adds its own, such as a begin-of-text token.
    fn encode(&self, text: &str, special: bool) -> Vec<Token>;

    /// Text of tokens, special ones included.
    fn decode(&self, tokens: &[Token]) -> String;

    /// The exact bytes of one token.
    fn token_bytes(&self, token: Token) -> Vec<u8>;

    /// How the model's makers sample it.
    fn defaults(&self) -> Sampling;

    /// How it writes calls and reasoning.
    fn manner(&self) -> Manner;

    /// Whether the template reads a variable of that name.
    fn reads(&self, variable: &str) -> bool;
}

/// A loaded model's own tokenizer and template.
pub struct ModelLanguage {
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its template.
    pub template: Arc<ChatTemplate>,
    /// Its sampling defaults.
    pub defaults: Sampling,
}

impl ModelLanguage {
    /// A value whose texts cannot become control tokens, whatever they spell.
    fn guarded(&self, value: &Value) -> Value {
        let guard = |text: &str| self.tokenizer.guard(text).into_owned();
        match value {
            Value::String(text) => Value::String(guard(text)),
            Value::Array(all) => all.iter().map(|one| self.guarded(one)).collect(),
            Value::Object(map) => {
                let pairs = map.iter();
                let pairs = pairs.map(|(key, value)| (guard(key), self.guarded(value)));
                Value::Object(pairs.collect())
            }
            other => other.clone(),
        }
    }
}

impl Language for ModelLanguage {
    fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        extra: &Map<String, Value>,
    ) -> Result<String, LanguageError> {
        let guarded = |values: &[Value]| -> Vec<Value> {
            values.iter().map(|value| self.guarded(value)).collect()
        };
        let (messages, tools) = (guarded(messages), tools.map(guarded));
        let extra = extra.iter();
        let extra = extra.map(|(key, value)| (key.clone(), self.guarded(value)));
        self.template
            .render(&messages, tools.as_deref(), true, &extra.collect())
            .map_err(|error| LanguageError(error.to_string()))
    }

    fn encode(&self, text: &str, special: bool) -> Vec<Token> {
        self.tokenizer.encode(text, special)
    }

    fn decode(&self, tokens: &[Token]) -> String {
        self.tokenizer.decode(tokens)
    }

    fn token_bytes(&self, token: Token) -> Vec<u8> {
        self.tokenizer.token_bytes(token).to_vec()
    }

    fn defaults(&self) -> Sampling {
        self.defaults.clone()
    }

    fn manner(&self) -> Manner {
        let source = self.template.source().unwrap_or_default();
        let for_tools = self.template.source_for_tools().unwrap_or_default();
        Manner {
            calls: CallStyle::of_template(for_tools),
            reasons: Reasoning::in_template(source),
        }
    }

    fn reads(&self, variable: &str) -> bool {
        self.template.reads(variable)
    }
}

/// One token per byte and a plain template, for the backend without a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByteLanguage;

impl Language for ByteLanguage {
    fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        _extra: &Map<String, Value>,
    ) -> Result<String, LanguageError> {
        let mut text = String::new();
        for tool in tools.unwrap_or_default() {
            text.push_str(&format!("tool {tool}\n"));
        }
        for message in messages {
            for part in ["role", "content"] {
                text.push_str(message[part].as_str().unwrap_or_default());
                text.push('\n');
            }
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                text.push_str(&format!("call {}\n", call["function"]));
            }
        }
        text.push_str("assistant\n");
        Ok(text)
    }

    fn encode(&self, text: &str, _special: bool) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }

    fn decode(&self, tokens: &[Token]) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .filter_map(|t| u8::try_from(*t).ok())
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn token_bytes(&self, token: Token) -> Vec<u8> {
        u8::try_from(token).into_iter().collect()
    }

    fn defaults(&self) -> Sampling {
        Sampling::default()
    }

    fn manner(&self) -> Manner {
        Manner {
            calls: Some(CallStyle::Tags),
            reasons: true,
        }
    }

    fn reads(&self, _variable: &str) -> bool {
        false
    }
}
