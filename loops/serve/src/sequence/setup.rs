//! What the engine knows that every sequence needs.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use hone_domain::{SamplingMask, Token};
use hone_text::tokenizer::Tokenizer;

/// What the engine knows that every sequence needs.
pub(crate) struct Setup {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) end_tokens: Vec<Token>,
    /// Most tokens of prompt and completion.
    pub(crate) max_positions: usize,
    /// Ids in the kept sets of all completions that run.
    pub(super) kept_ids: Arc<AtomicUsize>,
    /// All tokens but those that end a completion, once somebody drew from them.
    all_but_ends: OnceLock<SamplingMask>,
}

impl Setup {
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        end_tokens: Vec<Token>,
        max_positions: usize,
    ) -> Self {
        Self {
            tokenizer,
            end_tokens,
            max_positions,
            kept_ids: Arc::default(),
            all_but_ends: OnceLock::new(),
        }
    }

    /// What is drawn from where nothing but an end is ruled out; made once, however many hold it.
    pub(super) fn all_but_ends(&self, vocab: usize) -> SamplingMask {
        let made = self.all_but_ends.get_or_init(|| {
            let tokens = 0..vocab as Token;
            tokens
                .filter(|token| !self.end_tokens.contains(token))
                .collect()
        });
        SamplingMask::clone(made)
    }
}
