//! The text of content: strings, parts, and what this server cannot read.
//!
//! An image in the newest message of a person is refused, because the answer would be about something
//! that the model never saw. What stands earlier in the history or in a tool's result was answered
//! without it already, or cannot be taken back by whoever sends it: a short text stands in its place, and
//! is named.

use hone_domain::{Message, Role};
use serde_json::Value;

use crate::RequestError;

/// Most characters of a name in a text that stands for something else.
const NAME_CHARS_MAX: usize = 200;
/// How deep content may hold content.
const DEPTH_MAX: usize = 4;

/// How content is read: where, and what stands for what cannot be.
#[derive(Debug, Default)]
pub struct Reader {
    /// Places of what was replaced.
    replaced: Vec<String>,
    /// Whether images are refused, as in the newest message of a person.
    is_newest: bool,
}

impl Reader {
    /// Whether what is read from here on is the newest message of a person.
    pub fn newest(&mut self, is_newest: bool) {
        self.is_newest = is_newest;
    }

    /// Notes that something was left out or replaced.
    pub fn leave_out(&mut self, path: &str) {
        // Each kind of place once.
        let kind: String = path.chars().filter(|c| !c.is_ascii_digit()).collect();
        let kind = kind.replace("[]", "");
        if !self.replaced.contains(&kind) {
            self.replaced.push(kind);
        }
    }

    /// What was left out or replaced.
    pub fn ignored(self) -> Vec<String> {
        self.replaced
    }

    /// The text at `path`: a string, or an array of parts, one line each.
    pub fn text(
        &mut self,
        path: &str,
        text: Option<&Value>,
    ) -> Result<Option<String>, RequestError> {
        match text {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Array(parts)) => self.parts(path, parts).map(Some),
            Some(_) => Err(RequestError::invalid(
                path,
                format!("{path} must be a string, an array of parts, or null"),
            )),
        }
    }

    fn parts(&mut self, path: &str, parts: &[Value]) -> Result<String, RequestError> {
        let parts = parts.iter().enumerate();
        let texts = parts
            .map(|(at, part)| self.part(&format!("{path}[{at}]"), 0, part))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(texts.join("\n"))
    }

    /// What a tool gave: a text, parts, or any other value as its JSON.
    pub fn output(&mut self, path: &str, output: Option<&Value>) -> Result<String, RequestError> {
        let was_newest = std::mem::take(&mut self.is_newest);
        let text = match output {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Array(parts)) if parts.iter().all(is_part) => self.parts(path, parts),
            Some(other) => Ok(other.to_string()),
        };
        self.is_newest = was_newest;
        text
    }

    /// The text of one part.
    pub fn one(&mut self, path: &str, part: &Value) -> Result<String, RequestError> {
        self.part(path, 0, part)
    }

    fn part(&mut self, path: &str, depth: usize, part: &Value) -> Result<String, RequestError> {
        if let Value::String(text) = part {
            return Ok(text.clone());
        }
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        let field = match kind {
            "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" => "text",
            "refusal" => "refusal",
            "" => {
                return Err(RequestError::invalid(
                    format!("{path}.type"),
                    format!("{path} must be an object with a type"),
                ));
            }
            _ => return self.other(path, depth, kind, part),
        };
        let text = match part.get(field) {
            // What a tool gave, or what was said before, cannot be taken back by whoever sends it.
            None | Some(Value::Null) if !self.is_newest => Some(String::new()),
            text => text.and_then(Value::as_str).map(str::to_owned),
        };
        text.ok_or_else(|| {
            RequestError::invalid(
                format!("{path}.{field}"),
                format!("{path}.{field} must be a string"),
            )
        })
    }

    /// What is no text: the text within it, or a short one in its place.
    fn other(
        &mut self,
        path: &str,
        depth: usize,
        kind: &str,
        part: &Value,
    ) -> Result<String, RequestError> {
        let shown = ["image", "audio", "video"];
        let shown = shown.iter().find(|word| kind.contains(**word));
        if self.is_newest && (shown.is_some() || !is_known(kind)) {
            return Err(RequestError::unsupported(
                format!("{path}.type"),
                format!("content of type {kind:?} is not supported; this model reads text only"),
            ));
        }
        if let Some(text) = self.within(path, depth, kind, part)? {
            return Ok(text);
        }
        self.leave_out(path);
        let kind = shown.copied().unwrap_or(kind).replace('_', " ");
        let kind = kind.strip_prefix("input ").unwrap_or(&kind);
        Ok(match name_of(part) {
            Some(name) => format!("[{kind} {name:?} left out: this model reads text only]"),
            None => format!("[{kind} left out: this model reads text only]"),
        })
    }

    /// The text that a document, a search result or a reference has in it.
    fn within(
        &mut self,
        path: &str,
        depth: usize,
        kind: &str,
        part: &Value,
    ) -> Result<Option<String>, RequestError> {
        if kind == "tool_reference" {
            return Ok(text_at(part, "/tool_name").map(|name| format!("[tool {name}]")));
        }
        let source = match kind {
            "document" => match text_at(part, "/source/type") {
                Some("text") => text_at(part, "/source/data").map(str::to_owned),
                Some("content") => {
                    let content = part.pointer("/source/content");
                    self.nested(&format!("{path}.source"), depth, content)?
                }
                _ => None,
            },
            "search_result"
            | "tool_result"
            | "web_search_tool_result"
            | "web_fetch_tool_result"
            | "code_execution_tool_result" => self.nested(path, depth, part.get("content"))?,
            "web_search_result" => Some(String::new()),
            "resource" => text_at(part, "/resource/text").map(str::to_owned),
            _ => None,
        };
        let Some(source) = source else {
            return Ok(None);
        };
        let heads = [text_at(part, "/title"), text_at(part, "/url")];
        let heads = heads
            .into_iter()
            .chain([part.get("source").and_then(Value::as_str)]);
        let lines: Vec<&str> = heads.flatten().chain([source.as_str()]).collect();
        Ok(Some(lines.join("\n").trim_end().to_owned()))
    }

    fn nested(
        &mut self,
        path: &str,
        depth: usize,
        content: Option<&Value>,
    ) -> Result<Option<String>, RequestError> {
        let path = format!("{path}.content");
        match content {
            Some(Value::Array(parts)) if depth < DEPTH_MAX => {
                let parts = parts.iter().enumerate();
                let texts =
                    parts.map(|(at, part)| self.part(&format!("{path}[{at}]"), depth + 1, part));
                Ok(Some(texts.collect::<Result<Vec<_>, _>>()?.join("\n")))
            }
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Object(_)) => Ok(content.map(Value::to_string)),
            _ => Ok(None),
        }
    }
}

/// Takes blocks out of the instructions that are for a provider's accounts: lines that begin with one of
/// these.
pub fn hide(messages: &mut Vec<Message>, begins: &[String], reader: &mut Reader) {
    messages.retain_mut(|message| {
        if !matches!(message.role, Role::System | Role::Developer) {
            return true;
        }
        let is_hidden = |text: &str| begins.iter().any(|begin| text.starts_with(begin));
        while is_hidden(message.content.trim_start()) {
            let text = message.content.trim_start();
            let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
            message.content = rest.trim_start().to_owned();
            reader.leave_out("system");
            if message.content.is_empty() {
                return false;
            }
        }
        true
    });
}

/// Whether a value is a part of content.
fn is_part(value: &Value) -> bool {
    value.is_string() || value.get("type").is_some_and(Value::is_string)
}

/// Kinds that a short text may stand for in a message of a person, too.
fn is_known(kind: &str) -> bool {
    const KNOWN: [&str; 8] = [
        "document",
        "search_result",
        "tool_reference",
        "file",
        "input_file",
        "container_upload",
        "resource",
        "resource_link",
    ];
    KNOWN.contains(&kind)
}

fn text_at<'a>(part: &'a Value, pointer: &str) -> Option<&'a str> {
    part.pointer(pointer).and_then(Value::as_str)
}

/// What a part calls itself.
fn name_of(part: &Value) -> Option<String> {
    let places = [
        "/title",
        "/name",
        "/filename",
        "/file/filename",
        "/file_id",
        "/uri",
    ];
    let name = places.iter().find_map(|place| text_at(part, place))?;
    Some(name.chars().take(NAME_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_short_text_stands_for_what_cannot_be_read() {
        let image = json!({"type": "image", "source": {"type": "base64", "data": "aaaa"}});
        let rows = [
            (json!("x"), "x", vec![]),
            (json!(null), "", vec![]),
            (json!(5), "5", vec![]),
            (json!({"rows": [1]}), "{\"rows\":[1]}", vec![]),
            (json!([1, 2]), "[1,2]", vec![]),
            (
                json!([{"type": "text", "text": null}, {"type": "text"}, {"type": "text", "text": "b"}]),
                "\n\nb",
                vec![],
            ),
            (
                json!(["a", image]),
                "a\n[image left out: this model reads text only]",
                vec!["o"],
            ),
            (
                json!([{"type": "input_image", "image_url": "data:"}, {"type": "text", "text": "b"}]),
                "[image left out: this model reads text only]\nb",
                vec!["o"],
            ),
            (
                json!([{"type": "input_file", "filename": "a.pdf"}]),
                "[file \"a.pdf\" left out: this model reads text only]",
                vec!["o"],
            ),
            (
                json!([{"type": "document", "title": "T", "source": {"type": "text", "data": "words"}}]),
                "T\nwords",
                vec![],
            ),
            (
                json!([{"type": "document", "source": {"type": "base64"}}]),
                "[document left out: this model reads text only]",
                vec!["o"],
            ),
            (
                json!([{"type": "search_result", "title": "T", "source": "http://a", "content":
                    [{"type": "text", "text": "b"}]}]),
                "T\nhttp://a\nb",
                vec![],
            ),
            (
                json!([{"type": "tool_reference", "tool_name": "f"}]),
                "[tool f]",
                vec![],
            ),
        ];
        for (output, text, ignored) in rows {
            let mut reader = Reader::default();
            reader.newest(true);
            assert_eq!(
                reader.output("o[3]", Some(&output)).ok().as_deref(),
                Some(text)
            );
            assert_eq!(reader.ignored(), ignored, "{output}");
        }
        let mut reader = Reader::default();
        reader.newest(true);
        let refused = reader.one("m", &image).map_err(|error| error.code());
        assert_eq!(refused, Err("unsupported_parameter"));
    }
}
