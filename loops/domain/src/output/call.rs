//! One call in a completion's text: a name and arguments.

use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

use super::manner::CallStyle;
use super::parameters::{self, Functions};
use super::part::Called;

impl Called {
    /// A call from its text: that of a function, or else that of one JSON object: a name, and arguments that are an object or the
    /// text of one. Outside tags an object with a name alone is data, as an answer may be.
    pub(super) fn parse(
        object: &str,
        style: Option<CallStyle>,
        functions: &dyn Functions,
    ) -> Option<Self> {
        if style == Some(CallStyle::Parameters) {
            return parameters::parse(object, functions);
        }
        let whole: Value = serde_json::from_str(object).ok()?;
        whole.as_object()?;
        let name: String = serde_json::from_str(member(object, "name")?).ok()?;
        if name.is_empty() {
            return None;
        }
        let arguments = member(object, "arguments").or_else(|| member(object, "parameters"));
        let arguments = match arguments {
            None if style == Some(CallStyle::Json) => return None,
            None | Some("null") => "{}".to_owned(),
            Some(text) if text.starts_with('{') => text.to_owned(),
            Some(text) => {
                let inner: String = serde_json::from_str(text).ok()?;
                serde_json::from_str::<Value>(&inner).ok()?.as_object()?;
                inner
            }
        };
        Some(Self { name, arguments })
    }
}

/// The name of a call whose object begins with it, and where its arguments begin: none until their
/// brace is there. Those of a function are the function.
pub(super) fn begun(object: &str, style: CallStyle) -> Option<(String, usize)> {
    let arguments = match style {
        CallStyle::Tags => "arguments",
        CallStyle::Json => "parameters",
        CallStyle::Parameters => return Some((parameters::named(object)?, 0)),
    };
    let (key, at) = text_at(object, skip_space(object, 1))?;
    let at = skip_space(object, colon(object, at)?);
    let (name, at) = text_at(object, at).filter(|_| key == "name")?;
    let at = skip_space(object, at);
    let at = skip_space(object, at + object[at..].starts_with(',').then_some(1)?);
    let (key, at) = text_at(object, at)?;
    let at = skip_space(object, colon(object, at).filter(|_| key == arguments)?);
    (object[at..].starts_with('{') && !name.is_empty()).then_some((name, at))
}

/// A JSON text at a place, and where it ends.
fn text_at(object: &str, at: usize) -> Option<(String, usize)> {
    let rest = object[at..].starts_with('"').then_some(&object[at..])?;
    let mut texts = Deserializer::from_str(rest).into_iter::<String>();
    let text = texts.next()?.ok()?;
    Some((text, at + texts.byte_offset()))
}

/// One past the colon at a place.
fn colon(object: &str, at: usize) -> Option<usize> {
    let at = skip_space(object, at);
    object[at..].starts_with(':').then_some(at + 1)
}

/// The text of a member's value in a sound JSON object.
fn member<'a>(object: &'a str, wanted: &str) -> Option<&'a str> {
    let mut members = members(object);
    members.find_map(|(key, value)| (key == wanted).then_some(value))
}

/// The members of a sound JSON object: each name with the text of its value, exactly as written, so that
/// no number changes on its way.
pub fn members(object: &str) -> impl Iterator<Item = (String, &str)> {
    let mut at = skip_space(
        object,
        object.find('{').map_or(object.len(), |open| open + 1),
    );
    std::iter::from_fn(move || {
        let (key, behind) = text_at(object, at)?;
        let from = skip_space(object, colon(object, behind)?);
        let mut values = Deserializer::from_str(&object[from..]).into_iter::<IgnoredAny>();
        values.next()?.ok()?;
        let end = from + values.byte_offset();
        at = skip_space(object, end);
        at = skip_space(object, at + usize::from(object[at..].starts_with(',')));
        Some((key, &object[from..end]))
    })
}

/// Behind the space of JSON at a place.
fn skip_space(text: &str, at: usize) -> usize {
    text.len() - text[at..].trim_start_matches([' ', '\t', '\r', '\n']).len()
}
