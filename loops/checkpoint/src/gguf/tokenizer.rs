//! The tokenizer, the chat template and the control tokens: the JSON files that a folder has for
//! them, made of a GGUF file's metadata.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::Gguf;
use super::header::{List, Value};
use crate::error::LoadError;

/// Kinds of tokens in `tokenizer.ggml.token_type`.
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;
const UNUSED: i128 = 5;
const BYTE: i128 = 6;
/// Longer pieces are nothing that is merged.
const PIECE_BYTES_MAX: usize = 1 << 10;
/// Most ways to split the pieces of a vocabulary in two; the largest vocabularies have two million.
const SPLITS_MAX: usize = 16 << 20;

/// What stands for a space in pieces of text that SentencePiece made.
const SPACE: &str = "\u{2581}";

/// How text is cut before it is merged, as the models' own tokenizers do it.
struct Cut {
    split: Split,
    /// Unicode's composed form first.
    nfc: bool,
    /// A piece that is a token is taken whole.
    ignore_merges: bool,
    /// Whether a begin-of-text token is put first where the file does not say.
    adds_begin: bool,
}

enum Split {
    Pattern(&'static str),
    /// As GPT-2 does, with every digit for itself.
    Digits,
}

const QWEN2: Cut = Cut {
    split: Split::Pattern(
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| \
         ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    ),
    nfc: true,
    ignore_merges: false,
    adds_begin: false,
};
const LLAMA3: Cut = Cut {
    split: Split::Pattern(
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| \
         ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    ),
    nfc: false,
    ignore_merges: true,
    adds_begin: true,
};
/// Mistral's of 2024.
const TEKKEN: Cut = Cut {
    split: Split::Pattern(
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|\
         [^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\
         \\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    ),
    nfc: false,
    ignore_merges: true,
    adds_begin: true,
};
const SMOLLM: Cut = Cut {
    split: Split::Digits,
    nfc: false,
    ignore_merges: false,
    adds_begin: false,
};
/// Tokens of the vocabularies of Llama 3 and SmolLM.
const LLAMA3_TOKENS: usize = 128_256;
const SMOLLM_TOKENS: usize = 49_152;
/// By the names that files have for them; some are the same under another name.
const CUTS: [(&str, Cut); 7] = [
    ("qwen2", QWEN2),
    ("deepseek-r1-qwen", QWEN2),
    ("llama-bpe", LLAMA3),
    ("llama3", LLAMA3),
    ("llama-v3", LLAMA3),
    ("tekken", TEKKEN),
    ("smollm", SMOLLM),
];

impl Cut {
    fn json(&self) -> Json {
        let (first, bytes) = match self.split {
            Split::Pattern(pattern) => (
                json!({
                    "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                    "invert": false,
                }),
                byte_level(false),
            ),
            Split::Digits => (
                json!({"type": "Digits", "individual_digits": true}),
                byte_level(true),
            ),
        };
        json!({"type": "Sequence", "pretokenizers": [first, bytes]})
    }
}

/// What writes bytes as characters, and cuts as GPT-2 does if asked to.
fn byte_level(cuts: bool) -> Json {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": cuts,
    })
}

/// Tokens that end a turn whatever the file names as its end.
const TURN_ENDS: [&str; 7] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
];

impl Gguf {
    fn word(&self, key: &str) -> Option<&Value> {
        self.meta.get(&format!("tokenizer.ggml.{key}"))
    }

    fn word_list(&self, key: &str) -> Result<&List, LoadError> {
        match self.word(key) {
            Some(Value::List(list)) => Ok(list),
            _ => Err(self.bad(format!("its metadata lacks the list tokenizer.ggml.{key}"))),
        }
    }

    fn texts(&self, key: &str) -> Result<Vec<&str>, LoadError> {
        let texts = self.word_list(key)?.texts(&self.bytes);
        texts.ok_or_else(|| self.bad(format!("tokenizer.ggml.{key} is not a list of UTF-8 texts")))
    }

    /// The id that `tokenizer.ggml.{key}` names.
    fn token_id(&self, key: &str) -> Option<u32> {
        match self.word(key) {
            Some(Value::Whole(id)) => u32::try_from(*id).ok(),
            _ => None,
        }
    }

    /// A text of the metadata.
    fn named(&self, key: &str) -> &str {
        match self.word(key) {
            Some(Value::Text(text)) => text,
            _ => "(none)",
        }
    }

    fn flag(&self, key: &str, otherwise: bool) -> bool {
        match self.word(key) {
            Some(Value::Flag(flag)) => *flag,
            _ => otherwise,
        }
    }

    /// The tokenizer.json of a folder with this model.
    pub fn tokenizer_json(&self) -> Result<Json, LoadError> {
        let words = Words::of(self)?;
        match self.named("model") {
            "gpt2" => self.byte_pairs(&words),
            "llama" => self.sentence_pieces(&words),
            other => Err(self.unfit(format!(
                "tokenizer {other} is not supported; byte-level BPE (gpt2) and SentencePiece's BPE \
                 (llama) are"
            ))),
        }
    }

    /// How text is cut in a file that does not say, as older ones do not: the family
    /// and the size of the vocabulary tell, where there is one answer.
    fn cut_unnamed(&self, tokens: usize) -> Result<&'static str, LoadError> {
        match (self.architecture()?, tokens) {
            ("qwen2" | "qwen3" | "qwen3moe", _) => Ok("qwen2"),
            ("llama", LLAMA3_TOKENS) => Ok("llama-bpe"),
            ("llama", SMOLLM_TOKENS) => Ok("smollm"),
            _ => Err(self.unfit(
                "tokenizer.ggml.pre is missing, which says how text is cut into tokens; convert the model anew",
            )),
        }
    }

    /// BPE over bytes, with its merges.
    fn byte_pairs(&self, words: &Words) -> Result<Json, LoadError> {
        let name = match self.word("pre") {
            None => self.cut_unnamed(words.texts.len())?,
            Some(_) => self.named("pre"),
        };
        let cut = CUTS.iter().find(|(known, _)| *known == name);
        let (_, cut) = cut.ok_or_else(|| {
            let known = CUTS.map(|(known, _)| known).join(", ");
            self.unfit(format!(
                "pre-tokenizer {name} is not supported; these are: {known}"
            ))
        })?;
        // A part never begins with a space, so the first after it divides.
        let divided = |merge: &&str| {
            let mut spaces = merge.match_indices(' ').filter(|(at, _)| *at > 0);
            let (at, _) = spaces.next()?;
            Some(json!([merge[..at], merge[at + 1..]]))
        };
        let merges = self.texts("merges")?;
        let merges: Option<Vec<Json>> = merges.iter().map(divided).collect();
        let merges =
            merges.ok_or_else(|| self.bad("tokenizer.ggml.merges has an entry that is no pair"))?;
        Ok(json!({
            "version": "1.0",
            "added_tokens": words.added(),
            "normalizer": cut.nfc.then(|| json!({"type": "NFC"})),
            "pre_tokenizer": cut.json(),
            "post_processor": self.begin(cut.adds_begin, &words.texts)?,
            "decoder": byte_level(false),
            "model": {
                "type": "BPE", "vocab": words.vocab(), "merges": merges,
                "ignore_merges": cut.ignore_merges, "fuse_unk": false, "byte_fallback": false,
            },
        }))
    }

    /// SentencePiece's BPE, which merges what makes the piece of the highest score: as merges in the
    /// order of these scores. Bytes stand for characters without a piece.
    fn sentence_pieces(&self, words: &Words) -> Result<Json, LoadError> {
        let scores = self
            .word_list("scores")?
            .reals(&self.bytes, words.texts.len());
        let scores =
            scores.ok_or_else(|| self.bad("tokenizer.ggml.scores does not fit its tokens"))?;
        let unknown = words.kinds.iter().position(|kind| *kind == UNKNOWN);
        let mut normalizers = vec![json!({
            "type": "Replace", "pattern": {"String": " "}, "content": SPACE,
        })];
        if self.flag("add_space_prefix", true) {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        }
        let merges = words.merges(&scores);
        let merges = merges.ok_or_else(|| self.bad("its vocabulary is too long to be merged"))?;
        Ok(json!({
            "version": "1.0",
            "added_tokens": words.added(),
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "post_processor": self.begin(true, &words.texts)?,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ]},
            "model": {
                "type": "BPE", "vocab": words.vocab(), "merges": merges,
                "unk_token": unknown.map(|id| words.texts[id]), "ignore_merges": false,
                "fuse_unk": true, "byte_fallback": true,
            },
        }))
    }

    /// What puts a begin-of-text token first.
    fn begin(&self, otherwise: bool, tokens: &[&str]) -> Result<Json, LoadError> {
        let adds = self.flag("add_bos_token", otherwise);
        let Some(id) = self.token_id("bos_token_id").filter(|_| adds) else {
            return Ok(Json::Null);
        };
        let text = tokens.get(id as usize).ok_or_else(|| {
            self.bad(format!(
                "its begin-of-text token {id} is not among its tokens"
            ))
        })?;
        let begin = json!({"SpecialToken": {"id": text, "type_id": 0}});
        Ok(json!({
            "type": "TemplateProcessing",
            "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {*text: {"id": text, "ids": [id], "tokens": [text]}},
        }))
    }

    /// The tokenizer_config.json: names of control tokens, and the chat template.
    pub fn tokenizer_config_json(&self) -> Result<Json, LoadError> {
        let tokens = self.texts("tokens")?;
        let named = [
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("pad_token", "padding_token_id"),
            ("unk_token", "unknown_token_id"),
        ];
        let mut settings = Map::new();
        for (name, key) in named {
            let text = self.token_id(key).and_then(|id| tokens.get(id as usize));
            settings.extend(text.map(|text| (name.to_owned(), json!(text))));
        }
        let template = |key: &str| match self.meta.get(key) {
            Some(Value::Text(template)) => Some(template),
            _ => None,
        };
        let usual = template("tokenizer.chat_template");
        let for_tools = template("tokenizer.chat_template.tool_use");
        let named = [("default", usual), ("tool_use", for_tools)];
        let named: Vec<Json> = named
            .into_iter()
            .filter_map(|(name, template)| Some(json!({"name": name, "template": template?})))
            .collect();
        match (usual, for_tools) {
            (_, Some(_)) => settings.insert("chat_template".to_owned(), Json::Array(named)),
            (Some(template), None) => settings.insert("chat_template".to_owned(), json!(template)),
            (None, None) => None,
        };
        Ok(Json::Object(settings))
    }

    /// The generation_config.json: which tokens end a completion.
    pub fn generation_json(&self) -> Result<Json, LoadError> {
        let words = Words::of(self)?;
        let named = ["eos_token_id", "eot_token_id", "eom_token_id"];
        let mut ends: Vec<u32> = named.iter().filter_map(|key| self.token_id(key)).collect();
        let known =
            |(_, text, kind): &(u32, &str, i128)| *kind == CONTROL && TURN_ENDS.contains(text);
        ends.extend(words.all().filter(known).map(|(id, ..)| id));
        Ok(json!({ "eos_token_id": ends }))
    }
}

/// All tokens of a file.
struct Words<'a> {
    texts: Vec<&'a str>,
    kinds: Vec<i128>,
}

impl<'a> Words<'a> {
    fn of(gguf: &'a Gguf) -> Result<Self, LoadError> {
        let texts = gguf.texts("tokens")?;
        let kinds = gguf
            .word_list("token_type")?
            .wholes(&gguf.bytes, texts.len());
        let kinds =
            kinds.ok_or_else(|| gguf.bad("tokenizer.ggml.token_type does not fit its tokens"))?;
        Ok(Self { texts, kinds })
    }

    /// (id, text, kind), ascending.
    fn all(&self) -> impl Iterator<Item = (u32, &'a str, i128)> {
        let words = (0u32..).zip(&self.texts).zip(&self.kinds);
        words.map(|((id, text), kind)| (id, *text, *kind))
    }

    /// Ids by text. What is added is among them, because the library numbers what is not by itself.
    fn vocab(&self) -> Map<String, Json> {
        let used = self.all().filter(|(_, _, kind)| *kind != UNUSED);
        used.map(|(id, text, _)| (text.to_owned(), json!(id)))
            .collect()
    }

    /// Tokens that are found in a text before it is cut.
    fn added(&self) -> Vec<Json> {
        let added = self
            .all()
            .filter(|(_, _, kind)| matches!(*kind, UNKNOWN | CONTROL | USER_DEFINED));
        let entry = |(id, text, kind): (u32, &str, i128)| {
            json!({
                "id": id, "content": text, "special": kind != USER_DEFINED, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        };
        added.map(entry).collect()
    }

    /// All pairs of pieces that make a piece, the highest score first. None where there are more ways to
    /// split the pieces than [`SPLITS_MAX`]: to look at them all would take minutes.
    fn merges(&self, scores: &[f64]) -> Option<Vec<Json>> {
        let merged = |kind| !matches!(kind, UNKNOWN | CONTROL | USER_DEFINED | UNUSED | BYTE);
        let pieces = || {
            let all = self.all();
            all.filter(|(_, text, kind)| merged(*kind) && text.len() <= PIECE_BYTES_MAX)
        };
        if pieces().map(|(_, text, _)| text.len()).sum::<usize>() > SPLITS_MAX {
            return None;
        }
        let ids: BTreeMap<&str, u32> = pieces().map(|(id, text, _)| (text, id)).collect();
        let mut merges = Vec::new();
        for (id, text, _) in pieces() {
            for (at, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(at);
                if let (Some(a), Some(b)) = (ids.get(left), ids.get(right)) {
                    merges.push((scores[id as usize], id, (*a, *b)));
                }
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let text = |id: u32| self.texts[id as usize];
        let pairs = merges.into_iter().map(|(_, _, pair)| pair);
        Some(
            pairs
                .map(|(left, right)| json!([text(left), text(right)]))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn merges(texts: &[String]) -> Option<usize> {
        let words = Words {
            texts: texts.iter().map(String::as_str).collect(),
            kinds: vec![1; texts.len()],
        };
        let scores: Vec<f64> = (0..texts.len()).map(|at| -(at as f64)).collect();
        words.merges(&scores).map(|merges| merges.len())
    }

    /// Pieces that begin alike are the slowest to compare.
    #[test]
    fn a_hostile_vocabulary_is_refused_instead_of_taking_minutes() {
        let pieces = |count: usize, length: usize| -> Vec<String> {
            (0..count).map(|n| format!("{n:a>length$}")).collect()
        };
        let began = Instant::now();
        assert_eq!(merges(&pieces(20_000, 1_000)), None);
        assert!(began.elapsed() < Duration::from_secs(30));
        let few: Vec<String> = ["a", "b", "ab", "aab"].map(str::to_owned).into();
        assert_eq!(merges(&few), Some(2));
    }
}
