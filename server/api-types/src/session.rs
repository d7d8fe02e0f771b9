//! Whose request it is, which session it belongs to, and what kind of turn it is: body fields
//! first, then the headers that clients are known to send.

use std::collections::BTreeMap;

use hone_domain::{Check, MemoryMode, TurnKind, Verifier};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::RequestError;
use crate::plain;
use hone_inference::BindingConfig;
use hone_inference::chars_of;

/// Most bytes of a user name or session key.
const KEY_BYTES_MAX: usize = 512;
/// Most pairs of `metadata`, and most characters of a name and a text in it.
const METADATA_PAIRS_MAX: usize = 16;
const METADATA_NAME_CHARS_MAX: usize = 64;
const METADATA_CHARS_MAX: usize = 512;
/// What the turn's metadata calls the key of the session that its own one comes from.
const PARENT_SESSION: &str = "parent_session";
/// Most checks of a request.
const CHECKS_MAX: usize = 8;
/// Most bytes of all of them, about.
const CHECKS_CHARS_MAX: usize = 512 << 10;

/// Fields about the session.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct SessionFields {
    /// Whose policy answers and learns, under the owner of the key.
    pub user: Option<String>,
    /// What the client attaches for itself: kept with the turn, up to 16 texts of 512 characters
    /// under names of 64.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// False keeps the turn out of the ledger and out of training.
    pub store: Option<bool>,
    /// The conversation this request belongs to; also header `X-Session-Id`.
    pub session_id: Option<String>,
    /// `main` or `side` (by its words if absent); also header `X-Turn-Type`. Side turns never train.
    pub turn_type: Option<String>,
    /// Whether the session ends with this turn; also header `X-Session-Done`.
    pub session_done: Option<Value>,
    /// Used as the session's key where nothing else names one.
    pub prompt_cache_key: Option<String>,
    /// What is Hone's own.
    pub hone: Option<HoneFields>,
    /// What the completion is to be checked by: one check or several, each an object with `kind`
    /// (`exit_code`, `test_report`, `json_schema`, `regex`, `exact`, `numeric`, `certificate`) and
    /// what that kind needs.
    pub verify: Option<Value>,
}

/// Fields that are Hone's own.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoneFields {
    /// What the request does with memories: `off`, `read` (it is shown them) or `full` (what is said in it can
    /// become one); also header `X-Hone-Memory`.
    pub memory: Option<String>,
}

/// The checked outcome of body and headers.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionWish {
    /// The `user` field.
    pub user: Option<String>,
    /// The session's key.
    pub session_key: Option<String>,
    /// Main or side, where the client says so.
    pub kind: Option<TurnKind>,
    /// Whether the session ends with this turn.
    pub done: bool,
    /// Whether the turn may be collected.
    pub store: bool,
    /// What is kept of `metadata`.
    pub metadata: BTreeMap<String, String>,
    /// What its completion is to be checked by.
    pub checks: Vec<Check>,
    /// What it does with memories, where it says.
    pub memory: Option<MemoryMode>,
}

impl SessionFields {
    /// Fields that were taken and are not kept.
    pub fn not_kept(&self) -> Option<String> {
        let sent = self.metadata.as_ref().map_or(0, Map::len);
        (self.kept_metadata().len() < sent).then(|| "metadata".to_owned())
    }

    /// The pairs of `metadata` that are within OpenAI's bounds.
    fn kept_metadata(&self) -> BTreeMap<String, String> {
        let fits = |(name, value): (&String, &Value)| {
            let value = value.as_str()?;
            let short = name.chars().count() <= METADATA_NAME_CHARS_MAX
                && value.chars().count() <= METADATA_CHARS_MAX;
            short.then(|| (name.clone(), value.to_owned()))
        };
        let pairs = self.metadata.iter().flatten();
        pairs.filter_map(fits).take(METADATA_PAIRS_MAX).collect()
    }

    /// Body fields and headers, checked.
    pub fn resolve(
        &self,
        headers: &HeaderMap,
        places: &BindingConfig,
    ) -> Result<SessionWish, RequestError> {
        let key = self
            .field_key(&places.fields_first)
            .or_else(|| header_key(headers, places))
            .or_else(|| self.field_key(&places.fields_last));
        let parent = places.parents.iter().find_map(|name| {
            let parent = non_empty(text(headers, name))?;
            key.is_some_and(|(_, key)| key != parent).then_some(parent)
        });
        let mut metadata = self.kept_metadata();
        if let Some(parent) = parent.filter(|parent| parent.len() <= METADATA_CHARS_MAX) {
            let edge = (PARENT_SESSION.to_owned(), parent.to_owned());
            metadata.extend([edge]);
        }
        for (name, value) in key
            .iter()
            .copied()
            .chain(self.user.as_deref().map(|u| ("user", u)))
        {
            fits(name, value)?;
        }
        Ok(SessionWish {
            user: non_empty(self.user.as_deref()).map(str::to_owned),
            session_key: key.map(|(_, key)| key.to_owned()),
            kind: self.kind(headers)?,
            done: self.done(headers)?,
            store: self.store.unwrap_or(true),
            metadata,
            checks: self.checks()?,
            memory: self.memory(headers)?,
        })
    }

    /// The first of these fields that names a session.
    fn field_key<'a>(&'a self, fields: &'a [String]) -> Option<(&'a str, &'a str)> {
        fields.iter().find_map(|field| {
            let value = match field.as_str() {
                "session_id" => self.session_id.as_deref(),
                "prompt_cache_key" => self.prompt_cache_key.as_deref(),
                other => self
                    .metadata
                    .as_ref()
                    .and_then(|metadata| metadata.get(other.strip_prefix("metadata.")?))
                    .and_then(Value::as_str),
            };
            Some((field.as_str(), non_empty(value)?))
        })
    }

    /// The checks, each sound by itself. A callback is the operator's to name.
    fn checks(&self) -> Result<Vec<Check>, RequestError> {
        let wanted = match &self.verify {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(several)) => several.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        if wanted.len() > CHECKS_MAX {
            let message = format!("verify takes at most {CHECKS_MAX} checks");
            return Err(RequestError::invalid("verify", message));
        }
        // They are kept with every choice of the answer.
        if wanted.iter().map(chars_of).sum::<usize>() > CHECKS_CHARS_MAX {
            let message = format!("verify takes checks of at most {CHECKS_CHARS_MAX} bytes");
            return Err(RequestError::invalid("verify", message));
        }
        let read = |(at, check): (usize, &Value)| {
            let wrong = |why: String| RequestError::invalid(format!("verify[{at}]"), why);
            let name = check.get("kind").and_then(Value::as_str);
            let name = name.unwrap_or_default().to_owned();
            let verifier: Verifier = serde_json::from_value(check.clone()).map_err(|error| {
                let text = error.to_string();
                let is_kind = text.starts_with("unknown variant ");
                let kind = if is_kind { ".kind" } else { "" };
                wrong(plain::told(&format!("verify[{at}]{kind}"), &text))
            })?;
            if matches!(verifier, Verifier::Callback { .. }) {
                let why = "a callback can only be named in the server's configuration";
                return Err(wrong(why.to_owned()));
            }
            hone_judge::check_verifier(&verifier)
                .map_err(|why| wrong(format!("verify[{at}]: {why}")))?;
            Ok(Check { name, verifier })
        };
        wanted.iter().enumerate().map(read).collect()
    }

    fn kind(&self, headers: &HeaderMap) -> Result<Option<TurnKind>, RequestError> {
        let (param, word) = match (self.turn_type.as_deref(), text(headers, "x-turn-type")) {
            (Some(word), _) => ("turn_type", word),
            (None, Some(word)) => ("x-turn-type", word),
            (None, None) => return Ok(None),
        };
        match word.trim().to_ascii_lowercase().as_str() {
            "" => Ok(None),
            "main" => Ok(Some(TurnKind::Main)),
            "side" => Ok(Some(TurnKind::Side)),
            other => Err(RequestError::invalid(
                param,
                format!("{param} must be main or side, not {other:?}"),
            )),
        }
    }

    fn memory(&self, headers: &HeaderMap) -> Result<Option<MemoryMode>, RequestError> {
        let of_body = self.hone.as_ref().and_then(|hone| hone.memory.as_deref());
        let (param, word) = match (of_body, text(headers, "x-hone-memory")) {
            (Some(word), _) => ("hone.memory", word),
            (None, Some(word)) => ("x-hone-memory", word),
            (None, None) => return Ok(None),
        };
        let word = word.trim().to_ascii_lowercase();
        if word.is_empty() {
            return Ok(None);
        }
        let mode = MemoryMode::from_stored(&word);
        mode.map(Some).ok_or_else(|| {
            RequestError::invalid(param, format!("{param} must be off, read or full"))
        })
    }

    fn done(&self, headers: &HeaderMap) -> Result<bool, RequestError> {
        match &self.session_done {
            Some(Value::Bool(done)) => Ok(*done),
            Some(Value::Number(n)) => Ok(n.as_i64() == Some(1)),
            Some(Value::String(word)) => Ok(is_yes(word)),
            Some(Value::Null) | None => Ok(text(headers, "x-session-done").is_some_and(is_yes)),
            Some(_) => Err(RequestError::invalid(
                "session_done",
                "session_done must be true or false",
            )),
        }
    }
}

fn is_yes(word: &str) -> bool {
    ["1", "true", "yes", "on"].contains(&word.trim().to_ascii_lowercase().as_str())
}

/// The user that is named, if any; one that is too long is refused.
pub fn named_user(user: Option<&str>) -> Result<Option<&str>, RequestError> {
    fits("user", user.unwrap_or_default())?;
    Ok(non_empty(user))
}

fn fits(name: &str, value: &str) -> Result<(), RequestError> {
    if value.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    Err(RequestError::invalid(
        name,
        format!("{name} has at most {KEY_BYTES_MAX} bytes"),
    ))
}

fn non_empty(value: Option<&str>) -> Option<&str> {
    value.filter(|v| !v.trim().is_empty())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|v| v.to_str().ok())
}

fn header_key<'a>(headers: &'a HeaderMap, places: &'a BindingConfig) -> Option<(&'a str, &'a str)> {
    let named = |name: &'a String| Some((name.as_str(), non_empty(text(headers, name))?));
    let plain = places.headers.iter().find_map(named);
    plain.or_else(|| {
        let counted = places.headers_counted.iter().filter_map(named);
        counted.into_iter().find(|(_, key)| is_counted(key))
    })
}

/// `UUID:NUMBER`: a session's id with how often it began anew.
fn is_counted(key: &str) -> bool {
    let Some((id, count)) = key.rsplit_once(':') else {
        return false;
    };
    uuid::Uuid::try_parse(id).is_ok()
        && count.bytes().all(|b| b.is_ascii_digit())
        && !count.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn checks_are_kept_with_every_choice_so_they_have_a_bound() {
        let of = |bytes: usize| SessionFields {
            verify: Some(json!({"kind": "exact", "expected": "x".repeat(bytes)})),
            ..SessionFields::default()
        };
        assert_eq!(of(CHECKS_CHARS_MAX - 100).checks().map(|c| c.len()), Ok(1));
        let refused = of(CHECKS_CHARS_MAX).checks().map_err(|e| e.to_string());
        assert!(refused.is_err_and(|why| why.contains("at most 524288 bytes")));
    }
}
