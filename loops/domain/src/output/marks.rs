//! The tags of a completion: reasoning, calls, functions, parameters.

/// What opens a call in [`CallStyle::Tags`](super::CallStyle::Tags).
pub const CALL_OPEN: &str = "<tool_call>";
/// What closes it.
pub const CALL_CLOSE: &str = "</tool_call>";
/// What Llama writes before a call.
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";
/// What opens a function.
pub const FUNCTION_OPEN: &str = "<function=";
/// What closes it.
pub const FUNCTION_CLOSE: &str = "</function>";
/// What opens a parameter.
pub const PARAMETER_OPEN: &str = "<parameter=";
/// What closes it.
pub const PARAMETER_CLOSE: &str = "</parameter>";
pub(super) const THINK_OPEN: &str = "<think>";
pub(super) const THINK_CLOSE: &str = "</think>";

/// Length of the longest end of `text` that begins `tag` without completing it.
pub(super) fn overlap(text: &str, tag: &str) -> usize {
    let most = text.len().min(tag.len() - 1);
    (1..=most)
        .rev()
        .find(|n| {
            tag.as_bytes()
                .starts_with(&text.as_bytes()[text.len() - n..])
        })
        .unwrap_or(0)
}
