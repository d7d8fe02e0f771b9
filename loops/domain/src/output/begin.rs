//! Where calls begin, in the bytes of a completion.

use super::{CALL_OPEN, CallStyle, FUNCTION_OPEN, Reasoning, THINK_CLOSE, THINK_OPEN};

/// Finds the places behind [`CALL_OPEN`], or where a function begins without it, at which a [`OutputParser`](super::OutputParser) begins to read a call.
/// Bytes, because a token may end within a character.
#[derive(Clone, Debug)]
pub struct CallFinder {
    style: CallStyle,
    at: At,
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before anything but space.
    Opening,
    Thinking,
    Text,
}

impl CallFinder {
    /// At the beginning of a completion.
    pub fn new(style: CallStyle, reasoning: Reasoning) -> Self {
        Self {
            style,
            at: match reasoning {
                Reasoning::Never => At::Text,
                Reasoning::Maybe => At::Opening,
                Reasoning::Open => At::Thinking,
            },
            held: Vec::new(),
        }
    }

    /// Takes more of what is said outside calls. Where a call begins in it: what of it belongs to the
    /// call. What comes next is then to be said behind the call.
    pub fn push(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.held.extend_from_slice(bytes);
        if self.at == At::Opening {
            let text = self.held.trim_ascii_start();
            let open = THINK_OPEN.as_bytes();
            if text.len() < open.len() && open.starts_with(text) {
                return None;
            }
            self.at = if text.starts_with(open) {
                At::Thinking
            } else {
                At::Text
            };
        }
        if self.at == At::Thinking {
            match place(&self.held, THINK_CLOSE) {
                Some(at) => {
                    self.held.drain(..at + THINK_CLOSE.len());
                    self.at = At::Text;
                }
                None => self.keep(THINK_CLOSE.len() - 1),
            }
        }
        if self.at != At::Text {
            return None;
        }
        let open = place(&self.held, CALL_OPEN).map(|at| (at, at + CALL_OPEN.len()));
        let function = match self.style {
            CallStyle::Parameters => place(&self.held, FUNCTION_OPEN).map(|at| (at, at)),
            CallStyle::Tags | CallStyle::Json => None,
        };
        let Some((_, from)) = open.into_iter().chain(function).min() else {
            self.keep(CALL_OPEN.len() - 1);
            return None;
        };
        let call = self.held.split_off(from);
        self.held.clear();
        Some(call)
    }

    /// Drops all but so many bytes, in which a mark may have begun.
    fn keep(&mut self, bytes: usize) {
        let until = self.held.len().saturating_sub(bytes);
        self.held.drain(..until);
    }
}

/// Where a mark is.
fn place(bytes: &[u8], mark: &str) -> Option<usize> {
    let mark = mark.as_bytes();
    bytes.windows(mark.len()).position(|part| part == mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What belongs to the calls of a text in pieces of `size` bytes, where each ends with `;`.
    fn calls(text: &str, (style, reasoning): (CallStyle, Reasoning), size: usize) -> Vec<String> {
        let mut finder = CallFinder::new(style, reasoning);
        let (mut found, mut call) = (Vec::new(), None::<Vec<u8>>);
        for piece in text.as_bytes().chunks(size) {
            match &mut call {
                Some(call) => call.extend_from_slice(piece),
                None => call = finder.push(piece),
            }
            let end = |call: &Vec<u8>| call.iter().position(|byte| *byte == b';');
            while let Some((bytes, end)) = call.as_ref().and_then(|c| Some((c, end(c)?))) {
                found.push(String::from_utf8_lossy(&bytes[..end]).into_owned());
                let behind = bytes[end + 1..].to_vec();
                call = finder.push(&behind);
            }
        }
        found
    }

    #[test]
    fn calls_are_found_behind_reasoning_however_the_text_is_cut() {
        use Reasoning::{Maybe, Never, Open};
        let rows = [
            ("", Never, &[][..]),
            ("hé<tool_call>{é};x", Never, &["{é}"]),
            ("<tool_call>1;<tool_call>2;", Never, &["1", "2"]),
            ("<tool_<tool_call>1; <tool_call", Never, &["1"]),
            (
                "<think><tool_call>a</think><tool_call>b;",
                Never,
                &["a</think><tool_call>b"],
            ),
            ("<think><tool_call>a</think><tool_call>b;", Maybe, &["b"]),
            (" \n<think>a</think>b<tool_call>c;", Maybe, &["c"]),
            ("x<think><tool_call>a;</think>", Maybe, &["a"]),
            ("<tool_call>a;", Maybe, &["a"]),
            ("a<tool_call></think><tool_call>b;", Open, &["b"]),
            (
                "a</think>b</think><tool_call>c;<think><tool_call>d;",
                Open,
                &["c", "d"],
            ),
        ];
        for (text, reasoning, expected) in rows {
            for size in 1..=text.len().max(1) {
                for style in [CallStyle::Tags, CallStyle::Parameters] {
                    let found = calls(text, (style, reasoning), size);
                    assert_eq!(found, expected, "{text:?} in pieces of {size}");
                }
            }
        }
        let text = "<think><function=a></think><function=b;<func<tool_call>\n<function=c;";
        for size in 1..=text.len() {
            let found = |style| calls(text, (style, Maybe), size);
            assert_eq!(found(CallStyle::Tags), ["\n<function=c"]);
            let both = ["<function=b", "\n<function=c"];
            assert_eq!(found(CallStyle::Parameters), both, "{size}");
        }
    }
}
