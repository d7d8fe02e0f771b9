//! The tokenizer: byte-level BPE trained on dialogues and noise, and the chat layout in tokens.

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, TokenizerBuilder,
};

use crate::error::StarterError;
use crate::grammar::{Dialogue, Grammar};
use crate::noise;
use crate::rng::Rng;

/// Ends a text; also the padding token.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// Starts a message.
pub const IM_START: &str = "<|im_start|>";
/// Ends a message; the model's stop token.
pub const IM_END: &str = "<|im_end|>";

/// Token ids, specials included.
pub const VOCABULARY: usize = 2048;

/// Words with the space before them, single digits, signs, line ends.
const WORDS: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Trains the tokenizer and returns its tokenizer.json. The same grammar and seed give the same
/// file.
pub fn train_tokenizer(grammar: &Grammar, seed: u64) -> Result<String, StarterError> {
    let mut trainer = BpeTrainerBuilder::new()
        .vocab_size(VOCABULARY)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(
            [END_OF_TEXT, IM_START, IM_END]
                .map(|text| AddedToken::from(text, true))
                .to_vec(),
        )
        .initial_alphabet(
            tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet()
                .into_iter()
                .collect(),
        )
        .build();
    let words = Split::new(
        SplitPattern::Regex(WORDS.to_owned()),
        SplitDelimiterBehavior::Isolated,
        false,
    )?;
    let bytes = ByteLevel::new(false, false, false);
    let before = Sequence::new(vec![
        PreTokenizerWrapper::Split(words),
        PreTokenizerWrapper::ByteLevel(bytes),
    ]);
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<tokenizers::NormalizerWrapper>)
        .with_pre_tokenizer(Some(PreTokenizerWrapper::Sequence(before)))
        .with_post_processor(None::<tokenizers::PostProcessorWrapper>)
        .with_decoder(Some(DecoderWrapper::ByteLevel(bytes)))
        .build()?;
    tokenizer.train(&mut trainer, corpus(grammar, seed).into_iter())?;
    Ok(tokenizer.to_string(true)?)
}

/// What the merges are learned from: messages of dialogues with their roles, and noise.
fn corpus(grammar: &Grammar, seed: u64) -> Vec<String> {
    const DIALOGUES: usize = 4_000;
    const NOISE_TEXTS: u64 = 700;
    let mut texts: Vec<String> = Vec::new();
    for dialogue in grammar.dialogues(seed).take(DIALOGUES) {
        for turn in dialogue.turns {
            texts.push(format!("user\n{}", turn.user));
            texts.push(format!("assistant\n{}", turn.assistant));
        }
        texts.push("system\n".to_owned());
    }
    for number in 0..NOISE_TEXTS {
        texts.push(noise::text(
            noise::Split::Trained,
            2_000,
            &mut Rng::at(seed, number),
        ));
    }
    texts
}

/// A conversation as tokens, with the positions the model learns to predict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub tokens: Vec<u32>,
    /// Indices into `tokens` of the assistants' words and of the tokens that end their messages.
    pub learned: Vec<usize>,
}

/// Encodes conversations as the chat template lays them out.
#[derive(Debug)]
pub struct ChatEncoder {
    tokenizer: hone_text::tokenizer::Tokenizer,
    im_start: u32,
    im_end: u32,
    end_of_text: u32,
}

impl ChatEncoder {
    /// Reads a tokenizer.json that has the chat tokens.
    pub fn new(tokenizer_json: &str) -> Result<Self, StarterError> {
        let json = tokenizer_json.as_bytes();
        let tokenizer = hone_text::tokenizer::Tokenizer::from_json(json, "tokenizer.json")?;
        let id = |text: &'static str| {
            tokenizer
                .id_of(text)
                .ok_or(StarterError::MissingToken { token: text })
        };
        let (im_start, im_end, end_of_text) = (id(IM_START)?, id(IM_END)?, id(END_OF_TEXT)?);
        Ok(Self {
            tokenizer,
            im_start,
            im_end,
            end_of_text,
        })
    }

    /// The tokens that end a completion: end of message, end of text.
    pub fn end_ids(&self) -> [u32; 2] {
        [self.im_end, self.end_of_text]
    }

    /// The tokens of plain text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, false)
    }

    /// The text of tokens.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens)
    }

    /// Appends one message.
    pub fn push_message(&self, role: &str, text: &str, tokens: &mut Vec<u32>) {
        tokens.push(self.im_start);
        tokens.extend(self.encode(&format!("{role}\n{text}")));
        tokens.push(self.im_end);
        tokens.extend(self.encode("\n"));
    }

    /// Appends the start of the assistant's message, ready for its first word.
    pub fn push_prompt(&self, tokens: &mut Vec<u32>) {
        tokens.push(self.im_start);
        tokens.extend(self.encode("assistant\n"));
    }

    /// A system prompt (if any) and a dialogue as one training row.
    pub fn row(&self, system: Option<&str>, dialogue: &Dialogue) -> Row {
        let mut tokens = Vec::new();
        let mut learned = Vec::new();
        if let Some(system) = system {
            self.push_message("system", system, &mut tokens);
        }
        for turn in &dialogue.turns {
            self.push_message("user", &turn.user, &mut tokens);
            self.push_prompt(&mut tokens);
            let start = tokens.len();
            tokens.extend(self.encode(&turn.assistant));
            tokens.push(self.im_end);
            learned.extend(start..tokens.len());
            tokens.extend(self.encode("\n"));
        }
        Row { tokens, learned }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn encoder() -> ChatEncoder {
        ChatEncoder::new(&train_tokenizer(&Grammar::new(), 1).unwrap()).unwrap()
    }

    #[test]
    fn training_is_decided_by_its_seed_and_fills_the_vocabulary() {
        let grammar = Grammar::new();
        let one = train_tokenizer(&grammar, 1).unwrap();
        assert_eq!(one, train_tokenizer(&grammar, 1).unwrap());
        let encoder = ChatEncoder::new(&one).unwrap();
        assert_eq!(encoder.tokenizer.vocab_size(), VOCABULARY);
    }

    #[test]
    fn any_text_comes_back_whole() {
        let encoder = encoder();
        for text in [
            "Sure!\n- Paris\n- río",
            "ä€😀 漢字\t x  \n\n y",
            "1234 + 5 = 1239",
            "",
        ] {
            let tokens = encoder.encode(text);
            assert_eq!(encoder.decode(&tokens), text);
        }
        for text in [0, 1, 2].map(|n| noise::text(noise::Split::Unseen, 3_000, &mut Rng::new(n))) {
            assert_eq!(encoder.decode(&encoder.encode(&text)), text);
        }
    }

    #[test]
    fn sixty_thousand_characters_of_unseen_text_fit_the_positions() {
        let encoder = encoder();
        let text = noise::text(noise::Split::Unseen, 60_000, &mut Rng::new(5));
        let per_token = text.len() as f64 / encoder.encode(&text).len() as f64;
        assert!(per_token >= 2.2, "{per_token} characters per token");
    }

    #[test]
    fn a_row_is_the_same_tokens_as_its_text_and_learns_the_answers() {
        let encoder = encoder();
        let grammar = Grammar::new();
        let dialogue = grammar.dialogues(2).next().unwrap();
        let row = encoder.row(Some("Be kind."), &dialogue);
        let mut text = format!("{IM_START}system\nBe kind.{IM_END}\n");
        let mut answers = String::new();
        for turn in &dialogue.turns {
            text += &format!("{IM_START}user\n{}{IM_END}\n", turn.user);
            text += &format!("{IM_START}assistant\n{}{IM_END}\n", turn.assistant);
            answers += &format!("{}{IM_END}", turn.assistant);
        }
        assert_eq!(row.tokens, encoder.encode(&text));
        let learned: Vec<u32> = row.learned.iter().map(|at| row.tokens[*at]).collect();
        assert_eq!(learned, encoder.encode(&answers));
    }
}
