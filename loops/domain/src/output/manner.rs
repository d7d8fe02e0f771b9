//! The format of a model's output, as its template teaches it.

use super::marks::{CALL_OPEN, FUNCTION_OPEN, PYTHON_TAG, THINK_CLOSE, THINK_OPEN};

/// How a model family writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStyle {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen write it.
    Tags,
    /// The whole answer is `{"name": ..., "parameters": {...}}`, one or several, as Llama 3 writes.
    Json,
    /// `<tool_call><function=...><parameter=...>...</parameter></function></tool_call>`, as Qwen3-Coder
    /// writes it: each argument as text. Its outer tags may be missing.
    Parameters,
}

impl CallStyle {
    /// The style that a chat template teaches its model; none where it teaches none that is known.
    pub fn of_template(source: &str) -> Option<Self> {
        if source.contains(CALL_OPEN) && source.contains(FUNCTION_OPEN) {
            Some(Self::Parameters)
        } else if source.contains(CALL_OPEN) {
            Some(Self::Tags)
        } else if source.contains(PYTHON_TAG) || source.contains("\"parameters\": ") {
            Some(Self::Json)
        } else {
            None
        }
    }
}

/// Where reasoning may stand in a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reasoning {
    /// Nowhere: `<think>` is text like any other.
    #[default]
    Never,
    /// At its beginning, between `<think>` and `</think>`.
    Maybe,
    /// The prompt opened it already.
    Open,
}

impl Reasoning {
    /// Of a template and the prompt it rendered.
    pub fn of(template_reasons: bool, prompt: &str) -> Self {
        match template_reasons {
            false => Self::Never,
            true if prompt.trim_end().ends_with(THINK_OPEN) => Self::Open,
            true => Self::Maybe,
        }
    }

    /// Whether a template knows reasoning.
    pub fn in_template(source: &str) -> bool {
        source.contains(THINK_CLOSE)
    }
}

/// How a completion is parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputFormat {
    /// Calls in this style; none leaves them in the content.
    pub calls: Option<CallStyle>,
    /// Reasoning.
    pub reasoning: Reasoning,
    /// Whether the first call is the only one; what follows it is content.
    pub single: bool,
    /// Whether a grammar holds calls to their form, so that they are told while they are said. Only a
    /// completion that is cut short leaves one that is not whole.
    pub held: bool,
}
