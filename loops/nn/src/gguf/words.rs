//! The tokenizer, the chat template and the control tokens: the JSON files that a folder has for
//! them, made of a GGUF file's metadata.

use serde_json::{Map, Value as Json, json};

use super::Gguf;
use super::header::{List, Value};
use crate::source::LoadError;

/// Kinds of tokens in `tokenizer.ggml.token_type`.
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;
const UNUSED: i128 = 5;

/// How text is cut before it is merged, as the models' own tokenizers do it.
struct Cut {
    pattern: &'static str,
    /// Unicode's composed form first.
    nfc: bool,
    /// A piece that is a token is taken whole.
    ignore_merges: bool,
    /// Whether a begin-of-text token is put first where the file does not say.
    adds_begin: bool,
}

const QWEN2: Cut = Cut {
    pattern: "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| \
              ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    nfc: true,
    ignore_merges: false,
    adds_begin: false,
};
const LLAMA3: Cut = Cut {
    pattern: "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| \
              ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    nfc: false,
    ignore_merges: true,
    adds_begin: true,
};

/// Tokens that end a turn whatever the file names as its end.
const TURN_ENDS: [&str; 4] = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>"];

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

    fn cut(&self) -> Result<Cut, LoadError> {
        let text = |key: &str| match self.word(key) {
            Some(Value::Text(text)) => text.as_str(),
            _ => "(none)",
        };
        let (model, cut) = (text("model"), text("pre"));
        if model != "gpt2" {
            return Err(self.unfit(format!(
                "tokenizer {model} is not supported; byte-level BPE (gpt2) is"
            )));
        }
        match cut {
            "qwen2" => Ok(QWEN2),
            "llama-bpe" | "llama3" | "llama-v3" => Ok(LLAMA3),
            other => Err(self.unfit(format!(
                "pre-tokenizer {other} is not supported; qwen2 and llama-bpe are"
            ))),
        }
    }

    /// The tokenizer.json of a folder with this model.
    pub(crate) fn tokenizer_json(&self) -> Result<Json, LoadError> {
        let cut = self.cut()?;
        let tokens = self.texts("tokens")?;
        let kinds = self
            .word_list("token_type")?
            .wholes(&self.bytes, tokens.len());
        let kinds =
            kinds.ok_or_else(|| self.bad("tokenizer.ggml.token_type does not fit its tokens"))?;
        let (mut vocab, mut added) = (Map::new(), Vec::new());
        for ((id, text), kind) in (0u32..).zip(&tokens).zip(&kinds) {
            match *kind {
                UNUSED => {}
                CONTROL | USER_DEFINED => added.push(json!({
                    "id": id, "content": text, "special": *kind == CONTROL, "normalized": false,
                    "single_word": false, "lstrip": false, "rstrip": false,
                })),
                _ => drop(vocab.insert((*text).to_owned(), json!(id))),
            }
        }
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
        let split = json!({
            "type": "Split", "pattern": {"Regex": cut.pattern}, "behavior": "Isolated",
            "invert": false,
        });
        let bytes = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false,
        });
        Ok(json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": cut.nfc.then(|| json!({"type": "NFC"})),
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes]},
            "post_processor": self.begin(&cut, &tokens)?,
            "decoder": bytes,
            "model": {
                "type": "BPE", "vocab": vocab, "merges": merges,
                "ignore_merges": cut.ignore_merges, "fuse_unk": false, "byte_fallback": false,
            },
        }))
    }

    /// What puts a begin-of-text token first.
    fn begin(&self, cut: &Cut, tokens: &[&str]) -> Result<Json, LoadError> {
        let adds = match self.word("add_bos_token") {
            Some(Value::Flag(adds)) => *adds,
            _ => cut.adds_begin,
        };
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
    pub(crate) fn tokenizer_config_json(&self) -> Result<Json, LoadError> {
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
        if let Some(Value::Text(template)) = self.meta.get("tokenizer.chat_template") {
            settings.insert("chat_template".to_owned(), json!(template));
        }
        Ok(Json::Object(settings))
    }

    /// The generation_config.json: which tokens end a completion.
    pub(crate) fn generation_json(&self) -> Result<Json, LoadError> {
        let tokens = self.texts("tokens")?;
        let kinds = self
            .word_list("token_type")?
            .wholes(&self.bytes, tokens.len());
        let named = ["eos_token_id", "eot_token_id", "eom_token_id"];
        let mut ends: Vec<u32> = named.iter().filter_map(|key| self.token_id(key)).collect();
        let all = (0u32..).zip(&tokens).zip(kinds.unwrap_or_default());
        let known = all.filter(|((_, text), kind)| *kind == CONTROL && TURN_ENDS.contains(*text));
        ends.extend(known.map(|((id, _), _)| id));
        Ok(json!({ "eos_token_id": ends }))
    }
}
