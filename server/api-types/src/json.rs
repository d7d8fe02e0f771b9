//! A JSON object whose fields are read by type, with the path of what is wrong.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{RequestError, plain};

/// A JSON object on its way to typed fields.
///
/// Requests are read in parts (`read::<A>()`, `read::<B>()`), because a flattened struct would lose
/// the path of what is wrong in it. What no part knows is named by [`JsonObject::unknown`].
#[derive(Debug)]
pub struct JsonObject {
    value: Value,
    known: Vec<&'static str>,
}

impl JsonObject {
    /// Parses JSON bytes. Nesting deeper than 128 is refused by the parser.
    pub fn parse(bytes: &[u8]) -> Result<Self, RequestError> {
        let parsed = match serde_json::from_slice(bytes) {
            Err(error) => match without_lone_surrogates(bytes) {
                Some(mended) => serde_json::from_slice(&mended),
                None => Err(error),
            },
            parsed => parsed,
        };
        let value: Value =
            parsed.map_err(|error| RequestError::Syntax(plain::syntax(&error.to_string())))?;
        if !value.is_object() {
            return Err(RequestError::invalid(
                "",
                "the request body must be a JSON object",
            ));
        }
        Ok(Self {
            value,
            known: Vec::new(),
        })
    }

    /// Of these fields.
    pub fn of(fields: Map<String, Value>) -> Self {
        Self {
            value: Value::Object(fields),
            known: Vec::new(),
        }
    }

    /// Its fields.
    pub fn into_fields(self) -> Map<String, Value> {
        match self.value {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }

    /// The fields of `T`, with the path of the first that is wrong.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<T, RequestError> {
        self.known.extend(field_names::<T>());
        serde_path_to_error::deserialize(&self.value).map_err(|error| {
            let text = error.inner().to_string();
            let path = error.path().to_string();
            let param = match (plain::missing(&text), path.as_str()) {
                (Some(field), ".") => field.to_owned(),
                (None, ".") => String::new(),
                (Some(field), path) => format!("{path}.{field}"),
                (None, path) => path.to_owned(),
            };
            RequestError::invalid(param, plain::told(&path, &text))
        })
    }

    /// All of the body as `T`. A field that `T` lacks is refused: a misspelt `dry_run` must not
    /// erase, and a misspelt `correction` must not be lost without a word.
    pub fn strictly<T: DeserializeOwned>(mut self) -> Result<T, RequestError> {
        let body = self.read()?;
        let Some(field) = self.unknown().into_iter().next() else {
            return Ok(body);
        };
        let shown: String = field.chars().take(64).collect();
        let known = self.known.join(", ");
        let message = format!("there is no field {shown:?} here; known: {known}");
        Err(RequestError::invalid(shown, message))
    }

    /// A field as it is; null counts as absent.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.value.get(name).filter(|v| !v.is_null())
    }

    /// Names of fields that nothing has read, nulls left out; also hints about caching inside of
    /// messages and tools, which have no effect: what can be reused is, without being told.
    pub fn unknown(&self) -> Vec<String> {
        let fields = self.value.as_object().into_iter().flatten();
        let unread = fields
            .filter(|(name, value)| !value.is_null() && !self.known.contains(&name.as_str()))
            .map(|(name, _)| name.clone());
        unread.chain(self.cache_hints()).collect()
    }

    /// Where the body says `cache_control`, each kind of place once. Arguments and schemas are not
    /// looked into: there it is somebody's own word.
    fn cache_hints(&self) -> impl Iterator<Item = String> {
        const PLACES: [&[&str]; 10] = [
            &["messages"],
            &["messages", "content"],
            &["messages", "content", "content"],
            &["input"],
            &["input", "content"],
            &["input", "output"],
            &["prediction", "content"],
            &["system"],
            &["tools"],
            &["tools", "function"],
        ];
        let hinted = PLACES.iter().filter(|path| is_hinted(&self.value, path));
        hinted.map(|path| format!("{}.cache_control", path.join(".")))
    }
}

/// The body with U+FFFD for each half of a surrogate pair that stands alone, as where a client cut a text
/// within a character; none where there is no such half. Both are six bytes long.
fn without_lone_surrogates(bytes: &[u8]) -> Option<Vec<u8>> {
    let unit = |at: usize| {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        let digits = std::str::from_utf8(digits).ok()?;
        let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
        u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)
    };
    let (mut mended, mut is_changed, mut at) = (bytes.to_vec(), false, 0);
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        let is_low = |unit: Option<u16>| unit.is_some_and(|unit| (0xdc00..0xe000).contains(&unit));
        at += match unit(at) {
            None => 2,
            Some(0xd800..0xdc00) if is_low(unit(at + 6)) => 12,
            Some(0xd800..0xe000) => {
                mended[at..at + 6].copy_from_slice(b"\\ufffd");
                is_changed = true;
                6
            }
            Some(_) => 6,
        };
    }
    is_changed.then_some(mended)
}

/// Whether anything at the end of a path has a hint about caching; lists on the way are gone through.
fn is_hinted(value: &Value, path: &[&str]) -> bool {
    if let Value::Array(items) = value {
        return items.iter().any(|item| is_hinted(item, path));
    }
    match path.split_first() {
        Some((name, rest)) => value.get(name).is_some_and(|inner| is_hinted(inner, rest)),
        None => value
            .get("cache_control")
            .is_some_and(|hint| !hint.is_null()),
    }
}

/// The field names of a struct that derives `Deserialize`.
fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut probe = Probe(&[]);
    // The probe answers every struct with an error; it is only asked which fields there are.
    let _always_an_error = T::deserialize(&mut probe).is_ok();
    probe.0
}

struct Probe(&'static [&'static str]);

impl<'de> serde::Deserializer<'de> for &mut Probe {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("only a probe"))
    }

    fn deserialize_struct<V: serde::de::Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
