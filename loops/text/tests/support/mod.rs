//! A tokenizer of bytes, for tests; included by path in those of other crates as well.
#![allow(dead_code)]

use serde_json::json;

use hone_text::tokenizer::{Tokenizer, mapped_char};

pub(crate) fn byte_tokenizer_json() -> Vec<u8> {
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255u8 {
        vocab.insert(mapped_char(byte).to_string(), json!(byte));
    }
    vocab.insert("he".to_owned(), json!(256));
    vocab.insert("hel".to_owned(), json!(257));
    let added = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let value = json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added(258, "<|im_start|>"), added(259, "<|im_end|>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                          "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                    "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                  "byte_fallback": false, "vocab": vocab, "merges": ["h e", "he l"]},
    });
    serde_json::to_vec(&value).unwrap()
}

pub(crate) fn byte_tokenizer() -> Tokenizer {
    Tokenizer::from_json(&byte_tokenizer_json(), "tokenizer.json").unwrap()
}
