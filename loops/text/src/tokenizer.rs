//! Text to token ids and back, with the exact bytes of every token.
//!
//! Two kinds of tokenizer are taken: byte-level BPE (GPT-2, Qwen, Llama 3) and BPE with byte
//! fallback (Llama 2). In both every text can be written and every token stands for fixed bytes, so
//! a completion can be turned into text token by token without asking the decoder again.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::Tokenizer as Inner;

use hone_checkpoint::LoadError;

/// A tokenizer.json, ready to use from any thread.
pub struct Tokenizer {
    inner: Inner,
    /// Where the tokenizer puts a space before a text: it without that, for what goes on behind a
    /// [`GUARD`].
    within: Option<Box<Inner>>,
    /// Bytes of all tokens in one run; token `id` is `bytes[starts[id]..starts[id + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    special: BTreeSet<u32>,
    /// How control tokens are written.
    special_texts: Vec<String>,
    /// Token of each single byte; some vocabularies lack bytes that no text they know has.
    byte_ids: Vec<Option<u32>>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

/// Stands in guarded text where a control token must not begin: a code point that Unicode keeps out
/// of text for ever. [`Tokenizer::encode`] cuts there and leaves it out.
pub const GUARD: char = '\u{fdd0}';

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    ByteLevel,
    ByteFallback,
}

impl Tokenizer {
    /// Reads a tokenizer.json. `file` is the name used in errors.
    pub fn from_json(json: &[u8], file: &str) -> Result<Self, LoadError> {
        let bad = |why: String| LoadError::Tokenizer {
            file: file.to_owned(),
            why,
        };
        let inner = plain(json).map_err(bad)?;
        let within = without_space_first(&inner).map(Box::new);
        let kind = kind_of(&inner).ok_or_else(|| {
            bad(
                "has no ByteLevel and no ByteFallback decoder; only byte-level BPE and BPE with \
                 byte fallback are supported"
                    .to_owned(),
            )
        })?;
        let (bytes, starts) = all_bytes(&inner, kind).map_err(bad)?;
        let added = inner.get_added_tokens_decoder().into_iter();
        let controls: Vec<_> = added.filter(|(_, token)| token.special).collect();
        let special = controls.iter().map(|(id, _)| *id).collect();
        let texts = controls.into_iter().map(|(_, token)| token.content);
        let special_texts = texts.filter(|text| !text.is_empty()).collect();
        let byte_ids: Vec<Option<u32>> = (0..=255u8)
            .map(|byte| byte_token(&inner, kind, byte))
            .collect();
        let lacks = |byte: &u8| byte_ids[usize::from(*byte)].is_none();
        if let Some(byte) = (b' '..=b'~').chain(*b"\t\n\r").find(lacks) {
            return Err(bad(format!(
                "has no token for {:?}, so some text could not be written; fetch it again",
                char::from(byte)
            )));
        }
        // These are in no UTF-8.
        let written = (0..=0xf4u8).filter(|byte| !matches!(byte, 0xc0 | 0xc1));
        let missing = written.filter(lacks).count();
        if missing > 0 {
            tracing::info!(
                "{file} has no token for {missing} bytes: characters written with them are lost, as \
                 with the model's own tokenizer"
            );
        }
        Ok(Self {
            inner,
            within,
            bytes,
            starts,
            special,
            special_texts,
            byte_ids,
        })
    }

    /// `text` with a [`GUARD`] inside everything that is written like a control token, so that
    /// [`Self::encode`] reads it as plain text. For what users and tools say: only the template
    /// may write control tokens. A guard that was there before becomes U+FFFD.
    pub fn guard<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let begins = |at: usize| {
            let rest = &text[at..];
            self.special_texts
                .iter()
                .any(|s| rest.starts_with(s.as_str()))
        };
        let harmless = !text.contains(GUARD)
            && (self.special_texts.iter()).all(|special| !text.contains(special.as_str()));
        if harmless {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len() + 16);
        for (at, c) in text.char_indices() {
            out.push(if c == GUARD { '\u{fffd}' } else { c });
            if begins(at) {
                out.push(GUARD);
            }
        }
        Cow::Owned(out)
    }

    /// Token ids of `text`. Special tokens written out in the text become their ids, except where
    /// a [`GUARD`] stands in them; with `special` the tokenizer also adds its own (such as a
    /// begin-of-text token).
    pub fn encode(&self, text: &str, special: bool) -> Vec<u32> {
        let mut pieces = text.split(GUARD);
        let mut ids = self.encode_by(&self.inner, pieces.next().unwrap_or_default(), special);
        for piece in pieces {
            let within = self.within.as_deref().unwrap_or(&self.inner);
            ids.extend(self.encode_by(within, piece, false));
        }
        ids
    }

    fn encode_by(&self, inner: &Inner, text: &str, special: bool) -> Vec<u32> {
        match inner.encode_fast(text, special) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            // No merge table can fail that covers the bytes; should a later version of the library
            // refuse a text all the same, bytes are an exact encoding of it.
            Err(error) => {
                tracing::warn!(bytes = text.len(), %error, "text encoded byte by byte");
                text.bytes()
                    .filter_map(|b| self.byte_ids[usize::from(b)])
                    .collect()
            }
        }
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD, unknown ids nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|id| self.token_bytes(*id))
            .copied()
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The exact bytes token `id` stands for, special tokens as their text; empty if unknown.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let at = id as usize;
        match (self.starts.get(at), self.starts.get(at + 1)) {
            (Some(start), Some(end)) => &self.bytes[*start as usize..*end as usize],
            _ => &[],
        }
    }

    /// One more than the largest id, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.starts.len() - 1
    }

    /// Id of the token that is written exactly `text`.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// Whether `id` is a control token (end of turn and the like) rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// All control tokens, ascending.
    pub fn special_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.special.iter().copied()
    }
}

/// Reads a tokenizer that neither pads nor cuts.
fn plain(json: &[u8]) -> Result<Inner, String> {
    let mut inner = Inner::from_bytes(json)
        .map_err(|e| format!("is not a tokenizer that can be read ({e}); fetch it again"))?;
    inner.with_padding(None);
    inner.with_truncation(None).map_err(|e| e.to_string())?;
    Ok(inner)
}

/// The tokenizer without what puts a space before a text; none where there is no such thing.
fn without_space_first(inner: &Inner) -> Option<Inner> {
    let normalizer = changed(inner.get_normalizer(), "normalizers");
    let pre_tokenizer = changed(inner.get_pre_tokenizer(), "pretokenizers");
    if normalizer.is_none() && pre_tokenizer.is_none() {
        return None;
    }
    let mut within = inner.clone();
    if let Some(normalizer) = normalizer {
        within.with_normalizer(normalizer).ok()?;
    }
    if let Some(pre_tokenizer) = pre_tokenizer {
        within.with_pre_tokenizer(pre_tokenizer);
    }
    Some(within)
}

/// A part of a tokenizer without what puts a space first, alone or in its `list`: what is left of it,
/// where there was such a thing.
fn changed<P: Serialize + DeserializeOwned>(part: Option<&P>, list: &str) -> Option<Option<P>> {
    let mut part = serde_json::to_value(part?).ok()?;
    let before = part.clone();
    if let Some(several) = part.get_mut(list).and_then(Value::as_array_mut) {
        several.retain(|one| !is_prepend(one));
        several.iter_mut().for_each(never_first);
    } else if is_prepend(&part) {
        return Some(None);
    } else {
        never_first(&mut part);
    }
    let left = serde_json::from_value(part.clone()).ok().map(Some);
    left.filter(|_| part != before)
}

/// Has a `Metaspace` put no space first.
fn never_first(part: &mut Value) {
    if part["type"] == "Metaspace" {
        part["prepend_scheme"] = "never".into();
    }
}

fn is_prepend(part: &Value) -> bool {
    part["type"] == "Prepend"
}

fn kind_of(inner: &Inner) -> Option<Kind> {
    let decoder = serde_json::to_value(inner.get_decoder()?).ok()?;
    let mut kinds = vec![decoder["type"].clone()];
    let parts = decoder["decoders"].as_array().into_iter().flatten();
    kinds.extend(parts.map(|part| part["type"].clone()));
    let has = |name: &str| kinds.iter().any(|k| k == name);
    if has("ByteLevel") {
        Some(Kind::ByteLevel)
    } else if has("ByteFallback") {
        Some(Kind::ByteFallback)
    } else {
        None
    }
}

/// Largest vocabulary taken; the largest in use are below 300,000.
const VOCAB_MAX: u32 = 1 << 22;

fn all_bytes(inner: &Inner, kind: Kind) -> Result<(Vec<u8>, Vec<u32>), String> {
    let added = inner.get_added_tokens_decoder();
    let vocab = inner.get_vocab(true);
    let largest = vocab
        .values()
        .copied()
        .max()
        .ok_or("has an empty vocabulary")?;
    if largest >= VOCAB_MAX {
        return Err(format!(
            "has token id {largest}; the largest supported is {VOCAB_MAX}"
        ));
    }
    let mut pieces: Vec<Option<&str>> = vec![None; largest as usize + 1];
    for (text, id) in &vocab {
        pieces[*id as usize] = Some(text);
    }
    let unmap = unmap_table();
    let mut bytes = Vec::new();
    let mut starts = Vec::with_capacity(pieces.len() + 1);
    for (id, piece) in pieces.iter().enumerate() {
        starts.push(bytes.len() as u32);
        let Some(piece) = piece else { continue };
        if added.contains_key(&(id as u32)) {
            bytes.extend_from_slice(piece.as_bytes());
            continue;
        }
        match kind {
            Kind::ByteFallback => match fallback_byte(piece) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(piece.replace('\u{2581}', " ").as_bytes()),
            },
            Kind::ByteLevel => {
                for c in piece.chars() {
                    let byte = unmap.get(c as usize).copied().flatten();
                    bytes.push(byte.ok_or_else(|| {
                        format!("has token {id} ({piece:?}) that is not byte-level BPE")
                    })?);
                }
            }
        }
    }
    starts.push(bytes.len() as u32);
    Ok((bytes, starts))
}

/// `<0x0A>` stands for byte 10.
fn fallback_byte(piece: &str) -> Option<u8> {
    let hex = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2)
        .then(|| u8::from_str_radix(hex, 16).ok())
        .flatten()
}

/// The character that stands for `byte` in byte-level BPE (GPT-2's table: printable Latin-1 stands
/// for itself, the other 68 bytes for U+0100 and up, in order).
/// The character that stands for a byte in the vocabulary of a byte-level tokenizer.
pub fn mapped_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(256 + before).expect("U+0100 to U+0143 are characters")
}

fn unmap_table() -> Vec<Option<u8>> {
    let mut table = vec![None; 512];
    for byte in 0..=255u8 {
        table[mapped_char(byte) as usize] = Some(byte);
    }
    table
}

fn byte_token(inner: &Inner, kind: Kind, byte: u8) -> Option<u32> {
    match kind {
        Kind::ByteLevel => inner.token_to_id(&mapped_char(byte).to_string()),
        Kind::ByteFallback => inner.token_to_id(&format!("<0x{byte:02X}>")),
    }
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
