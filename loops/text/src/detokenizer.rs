//! Turns completion tokens into text as they come, never splitting a character.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// Collects token bytes and gives out whole characters. The pieces concatenated (with [`flush`])
/// are exactly the lossy UTF-8 text of all bytes, however they were cut into tokens.
///
/// [`flush`]: IncrementalDetokenizer::flush
#[derive(Debug, Clone)]
pub struct IncrementalDetokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// The start of a character whose other bytes have not come yet; at most 3 bytes.
    pending: Vec<u8>,
}

impl IncrementalDetokenizer {
    /// Control tokens are written as their text.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            skip_special: false,
            pending: Vec::new(),
        }
    }

    /// Control tokens are left out.
    pub fn without_special(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            skip_special: true,
            pending: Vec::new(),
        }
    }

    /// Text that became complete with token `id`; may be empty.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        self.pending
            .extend_from_slice(self.tokenizer.token_bytes(id));
        take_complete(&mut self.pending)
    }

    /// What is left at the end: U+FFFD for an unfinished character, else nothing.
    pub fn flush(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    /// Whether a character is unfinished.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// Takes everything out of `pending` but an unfinished last character.
fn take_complete(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = pending.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
                break;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                match error.error_len() {
                    Some(bad) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        rest = &after[bad..];
                    }
                    None => {
                        rest = after;
                        break;
                    }
                }
            }
        }
    }
    let keep = rest.len();
    pending.drain(..pending.len() - keep);
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::support::byte_tokenizer;

    fn pieces(bytes: &[u8], cuts: &[usize]) -> String {
        let mut pending = Vec::new();
        let mut text = String::new();
        let mut from = 0;
        for to in cuts.iter().copied().chain([bytes.len()]) {
            let to = to.clamp(from, bytes.len());
            pending.extend_from_slice(&bytes[from..to]);
            text.push_str(&take_complete(&mut pending));
            assert!(
                pending.len() <= 3,
                "an unfinished character has at most 3 bytes"
            );
            from = to;
        }
        text + &String::from_utf8_lossy(&pending)
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_the_same_text(
            bytes in prop::collection::vec(prop_oneof![
                any::<u8>(),
                prop::sample::select(vec![0xe2u8, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80, 0xc3, 0xed]),
            ], 0..60),
            mut cuts in prop::collection::vec(0usize..60, 0..12),
        ) {
            cuts.sort_unstable();
            prop_assert_eq!(pieces(&bytes, &cuts), String::from_utf8_lossy(&bytes).into_owned());
        }

        // Any text but U+FFFD, which is looked for, and the tokenizer's guard, which is no text.
        #[test]
        fn any_text_token_by_token_is_never_split(text in "[^\\x{fffd}\\x{fdd0}]{0,40}") {
            let tokenizer = Arc::new(byte_tokenizer());
            let mut detok = IncrementalDetokenizer::new(Arc::clone(&tokenizer));
            let mut out = String::new();
            for id in tokenizer.encode(&text, false) {
                let piece = detok.push(id);
                prop_assert!(!piece.contains(char::REPLACEMENT_CHARACTER));
                out.push_str(&piece);
            }
            prop_assert_eq!(detok.flush(), "");
            prop_assert_eq!(out, text);
        }
    }

    #[test]
    fn an_unfinished_character_shows_at_the_end() {
        let tokenizer = Arc::new(byte_tokenizer());
        let ids = tokenizer.encode("é", false);
        assert_eq!(ids.len(), 2, "the test tokenizer has one token per byte");
        let mut detok = IncrementalDetokenizer::new(tokenizer);
        assert_eq!(detok.push(ids[0]), "");
        assert!(detok.is_pending());
        assert_eq!(detok.flush(), "\u{fffd}");
        assert_eq!(detok.flush(), "");
    }

    #[test]
    fn control_tokens_are_left_out_on_request() {
        let tokenizer = Arc::new(byte_tokenizer());
        let end = tokenizer.id_of("<|im_end|>").unwrap();
        assert_eq!(
            IncrementalDetokenizer::new(Arc::clone(&tokenizer)).push(end),
            "<|im_end|>"
        );
        assert_eq!(
            IncrementalDetokenizer::without_special(tokenizer).push(end),
            ""
        );
    }
}
