//! The model's own chat template: messages in, prompt text out.
//!
//! Templates are Jinja programs that come with a downloaded folder and see what users type, so they
//! run under limits (see [`guard`]): a hostile one ends in an error, not in a hung or dead server.
//! Semantics follow the transformers library's `apply_chat_template`.

mod arguments;
mod clock;
mod cost;
mod filters;
mod guard;
mod json;
mod lookup;
mod methods;
mod operators;
mod predicates;
mod printf;
mod python;
mod repr;
mod sequences;
mod source;
mod text;
mod values;

use minijinja::machinery::{eval, make_string_output};
use minijinja::value::{Kwargs, Rest};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use self::cost::Limits;

/// Why a conversation could not be rendered.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TemplateError {
    #[error("this model has no chat template; use plain completions, or a folder with a template")]
    None,
    /// The template itself refused the conversation (`raise_exception`).
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),
    #[error("the chat template went over its limit: {0}")]
    OverLimit(String),
    #[error("the chat template failed: {0}")]
    Failed(String),
}

/// A compiled chat template with the special tokens it may name.
pub struct ChatTemplate {
    /// Another template that is for conversations with tools.
    for_tools: Option<Box<Self>>,
    source: Option<String>,
    /// What is compiled in place of the source.
    program: String,
    tokens: Map<String, Value>,
    env: Environment<'static>,
    limits: Limits,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.source.as_ref().map(String::len);
        f.debug_struct("ChatTemplate")
            .field("source_bytes", &bytes)
            .finish_non_exhaustive()
    }
}

/// Marks errors of `raise_exception`, so that they can be told from mistakes in the template.
const RAISED: &str = "\u{1}raised\u{1}";

impl ChatTemplate {
    /// Compiles `source`. `tokens` are the named special tokens (`bos_token`, `eos_token`, ...).
    pub fn new(source: &str, tokens: Map<String, Value>) -> Result<Self, TemplateError> {
        let limits = Limits::default();
        let source = without_generation_marks(&with_plain_line_ends(source));
        let mut template = Self {
            for_tools: None,
            source: None,
            program: String::new(),
            tokens,
            env: environment(clock::system_seconds, limits),
            limits,
        };
        template.program = source::prepared(&source, &limits).map_err(|e| template.explain(&e))?;
        guard::compile(&template.program).map_err(|e| template.explain(&e))?;
        template.source = Some(source);
        Ok(template)
    }

    /// Stands in where a folder has no template; rendering says so.
    pub fn none() -> Self {
        let limits = Limits::default();
        Self {
            for_tools: None,
            source: None,
            program: String::new(),
            tokens: Map::new(),
            env: Environment::empty(),
            limits,
        }
    }

    /// Uses another template for conversations with tools.
    pub fn with_tools(mut self, template: Self) -> Self {
        self.for_tools = Some(Box::new(template));
        self
    }

    /// Uses `now` (seconds since 1970, UTC) instead of the system's clock for `strftime_now`.
    pub fn with_clock(mut self, now: fn() -> u64) -> Self {
        self.env = environment(now, self.limits);
        self
    }

    /// Whether a text can hold this special token because the template writes it: by itself, or by the name
    /// that the settings give it (`eos_token`).
    pub fn writes(&self, token: &str) -> bool {
        let named = |source: &str| {
            let mut names = self.tokens.iter();
            names.any(|(name, text)| text == token && source.contains(name.as_str()))
        };
        let sources = [self.source(), self.source_for_tools()];
        let mut sources = sources.into_iter().flatten();
        sources.any(|source| source.contains(token) || named(source))
    }

    /// Whether there is a template.
    pub fn is_some(&self) -> bool {
        self.source.is_some()
    }

    /// The template's text, for those who need to know what it teaches the model.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// The text of the template for conversations with tools.
    pub fn source_for_tools(&self) -> Option<&str> {
        let template = self.for_tools.as_deref().unwrap_or(self);
        template.source()
    }

    /// Whether it reads a variable of that name.
    pub fn reads(&self, variable: &str) -> bool {
        if self
            .for_tools
            .as_ref()
            .is_some_and(|other| other.reads(variable))
        {
            return true;
        }
        let mut rest = self.source().unwrap_or_default();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        while let Some(at) = rest.find(variable) {
            let (before, after) = (&rest[..at], &rest[at + variable.len()..]);
            if !before.ends_with(is_word) && !after.starts_with(is_word) {
                return true;
            }
            rest = after;
        }
        false
    }

    /// The prompt for `messages`. `extra` holds further variables of the template, such as
    /// `enable_thinking`; it may replace anything but messages and tools.
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        if let Some(template) = self.for_tools.as_ref().filter(|_| tools.is_some()) {
            return template.render(messages, tools, add_generation_prompt, extra);
        }
        if !self.is_some() {
            return Err(TemplateError::None);
        }
        let mut variables = self.tokens.clone();
        variables.insert(
            "add_generation_prompt".to_owned(),
            add_generation_prompt.into(),
        );
        variables.insert("documents".to_owned(), Value::Null);
        variables.extend(extra.iter().map(|(k, v)| (k.clone(), v.clone())));
        variables.insert("messages".to_owned(), messages.into());
        variables.insert("tools".to_owned(), tools.map_or(Value::Null, Value::from));
        let compiled = guard::compile(&self.program).map_err(|e| self.explain(&e))?;
        let root = minijinja::Value::from(minijinja::value::Serde(&variables));
        let mut text = String::new();
        cost::start(&self.limits);
        let mut out = make_string_output(&mut text);
        let ended = eval(
            &self.env,
            &compiled.instructions,
            root,
            &compiled.blocks,
            &mut out,
            AutoEscape::None,
        );
        cost::finish(text.len())
            .and(ended)
            .map_err(|e| self.explain(&e))?;
        Ok(text)
    }

    fn explain(&self, error: &Error) -> TemplateError {
        let detail = error.detail().unwrap_or_default();
        if let Some(message) = detail.strip_prefix(RAISED) {
            return TemplateError::Refused(message.to_owned());
        }
        if let Some(message) = detail.strip_prefix(cost::OVER) {
            return TemplateError::OverLimit(message.to_owned());
        }
        if error.kind() == ErrorKind::OutOfFuel {
            return TemplateError::OverLimit(format!("{} instructions", self.limits.fuel));
        }
        let line = error
            .line()
            .map(|n| format!(" in line {n}"))
            .unwrap_or_default();
        TemplateError::Failed(format!("{}{line}: {detail}", error.kind()))
    }
}

/// Everything a template can call, and how much.
fn environment(now: fn() -> u64, limits: Limits) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_fuel(Some(limits.fuel));
    env.set_recursion_limit(limits.depth);
    env.set_debug(false);
    // Each of these can make much out of little, and no chat template in use needs them.
    for name in ["batch", "slice", "chain", "zip", "pprint", "sum"] {
        env.remove_filter(name);
    }
    env.remove_global("debug");
    env.set_unknown_method_callback(methods::call);
    operators::install(&mut env);
    predicates::install(&mut env);
    filters::install(&mut env);
    sequences::install(&mut env);
    env.add_function(
        "raise_exception",
        |message: Rest<minijinja::Value>| -> Result<String, Error> {
            let message = match message.first() {
                Some(message) => cost::written(message)?,
                None => "(no reason given)".to_owned(),
            };
            Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("{RAISED}{message}"),
            ))
        },
    );
    env.add_function("strftime_now", move |format: &str, _rest: Kwargs| {
        clock::format(format, now())
    });
    guard::install(&mut env);
    env
}

/// Line ends as the lexer of Jinja sees them.
fn with_plain_line_ends(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// `{% generation %}` and `{% endgeneration %}` mark which text the assistant wrote, for training
/// libraries. Here they mean nothing, so they become a block that is always on.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag[2..].find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 4);
        let inside = &tag[2..tag.len() - 2];
        let word = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" | "endgeneration" => {
                let replacement = if word == "generation" {
                    "if true"
                } else {
                    "endif"
                };
                out.push_str(&tag.replacen(word, replacement, 1));
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests;

#[cfg(test)]
#[path = "hostile_tests.rs"]
mod hostile;

#[cfg(test)]
#[path = "goldens_tests.rs"]
mod goldens;

#[cfg(test)]
#[path = "abuse_tests.rs"]
mod abuse;
