//! Constrained sampling: which tokens may come next so that the text stays inside a grammar.
//!
//! Grammars are written in llguidance's Lark notation, which embeds JSON schemas (`%json`) and
//! regular expressions. A [`Constraint`] follows one completion; its [`TokenMask`] depends on the
//! tokens alone, never on logits, so it can be made while the model computes.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use hone_domain::TokenMask;

use crate::tokenizer::Tokenizer;

/// Why a grammar cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(String);

impl GrammarError {
    /// One that says why.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// Longest grammar, in bytes.
const GRAMMAR_BYTES_MAX: usize = 640 * 1_024;
/// Most of the large classes of characters in one; each takes 8 KiB while an expression is read.
const CLASSES_MAX: usize = 8_192;
const CLASSES: [&str; 4] = [r"\w", r"\W", r"\p", r"\P"];
/// Stack for compiling one, and for each of its bytes. The library calls itself once for a rule or schema that
/// names another, which takes up to half of this; a stack that is too small ends the process.
const STACK_BYTES: usize = 8 << 20;
const STACK_BYTES_PER_BYTE: usize = 1_024;

/// Most ways in which a text may go on at one place: about four for each optional property of an object.
const WAYS_MAX: usize = 20_000;
/// Grammars from so many bytes on are also looked at behind a first token, such as the brace of an object of many
/// properties.
const LARGE_BYTES: usize = 64 * 1_024;
/// A grammar of more bytes is large: its stack is, and it may take seconds.
const SMALL_BYTES_MAX: usize = 16 << 10;

/// Compiles grammars for one tokenizer: of the small ones and of the large ones one at a time each, so that a
/// large one delays no small one.
pub struct Grammars {
    factory: ParserFactory,
    small: Mutex<()>,
    large: Mutex<()>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

/// Longest explanation of what is wrong with a grammar, in characters.
const WHY_CHARS: usize = 400;

impl Grammars {
    /// For a model with `vocab` logits whose completions end with one of `end_tokens`.
    pub fn new(
        tokenizer: &Tokenizer,
        vocab: usize,
        end_tokens: &[u32],
    ) -> Result<Self, GrammarError> {
        let Some(first_end) = end_tokens.first() else {
            return Err(GrammarError(
                "this model has no end token, so no grammar can say where to end".to_owned(),
            ));
        };
        let words: Vec<Vec<u8>> = (0..vocab as u32)
            .map(|id| word(tokenizer, id, end_tokens))
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, *first_end), &words)
            .with_eos_tokens(end_tokens);
        let env: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| explain(&e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            verbose_errors: false,
            max_items_in_row: WAYS_MAX,
            ..ParserLimits::default()
        };
        Ok(Self {
            factory,
            small: Mutex::default(),
            large: Mutex::default(),
        })
    }

    /// A constraint at the beginning of a completion, of which some text is known to begin. The work is bounded
    /// by the library's limits on grammar size and lexer states; it is done on a thread of its own, for its stack.
    pub fn compile(&self, lark: &str) -> Result<Constraint, GrammarError> {
        if lark.len() > GRAMMAR_BYTES_MAX {
            let why = format!("a grammar has at most {GRAMMAR_BYTES_MAX} bytes");
            return Err(GrammarError(why));
        }
        if CLASSES
            .iter()
            .map(|c| lark.matches(c).count())
            .sum::<usize>()
            > CLASSES_MAX
        {
            let why = format!(
                "a grammar has at most {CLASSES_MAX} of {}",
                CLASSES.join(", ")
            );
            return Err(GrammarError(why));
        }
        // What a stack took is given back before the next one grows.
        let lane = match lark.len() <= SMALL_BYTES_MAX {
            true => &self.small,
            false => &self.large,
        };
        let _turn = lane.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("hone-grammar".to_owned())
                .stack_size(STACK_BYTES + STACK_BYTES_PER_BYTE * lark.len())
                .spawn_scoped(scope, || {
                    let grammar = TopLevelGrammar::from_lark(lark.to_owned());
                    begun(
                        Matcher::new(self.factory.create_parser(grammar)),
                        lark.len(),
                    )
                });
            let broken = || GrammarError("compiling it broke".to_owned());
            thread
                .map_err(|error| GrammarError(format!("no thread to compile it: {error}")))?
                .join()
                .map_err(|_| broken())?
        })
    }
}

/// A grammar of so many bytes at its beginning, where there is one: some are sound and no text is of their form.
fn begun(matcher: Matcher, bytes: usize) -> Result<Constraint, GrammarError> {
    if let Some(error) = matcher.get_error() {
        return Err(explain(&error));
    }
    let mut constraint = Constraint {
        matcher,
        first: None,
    };
    let first = constraint.mask()?;
    if let Some(token) = first.first().filter(|_| bytes >= LARGE_BYTES) {
        let mut behind = constraint.fork();
        behind.take(token)?;
        behind.mask()?;
    }
    constraint.first = Some(first);
    Ok(constraint)
}

/// The bytes of a token. Control tokens are marked, so that no text in a grammar matches them;
/// end tokens have none, because only the end of the grammar allows them.
fn word(tokenizer: &Tokenizer, id: u32, end_tokens: &[u32]) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    if tokenizer.is_special(id) || end_tokens.contains(&id) {
        let mut marked = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        marked.extend_from_slice(bytes);
        return marked;
    }
    bytes.to_vec()
}

/// The first line of an explanation, bounded. What is wrong with a regular expression stands further
/// below, under a picture of it.
fn explain(error: &str) -> GrammarError {
    if error.contains("NoExtension") {
        return GrammarError("no text is of this form".to_owned());
    }
    // The library caught itself: what it holds in 64 bits was larger.
    if error.contains("panic:") {
        let why = "something in it cannot be compiled, such as a very large number";
        return GrammarError(why.to_owned());
    }
    let line = error.lines().next().unwrap_or("unknown reason");
    let below = error.lines().find_map(|line| line.strip_prefix("error: "));
    let line = match (line.strip_suffix("regex parse error:"), below) {
        (Some(before), Some(reason)) => format!("{before}{reason}"),
        _ => line.to_owned(),
    };
    GrammarError(line.chars().take(WHY_CHARS).collect())
}

/// Where one completion is in its grammar.
pub struct Constraint {
    matcher: Matcher,
    /// The mask of the first token, until something is taken.
    first: Option<TokenMask>,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constraint {
    /// Another completion at the same place, independent of this one.
    pub fn fork(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            first: self.first.clone(),
        }
    }

    /// Which tokens may come next; the end tokens alone where the grammar is at its end.
    pub fn mask(&mut self) -> Result<TokenMask, GrammarError> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let mask = self.matcher.compute_mask_or_eos();
        let mask = mask.map_err(|e| explain(&e.to_string()))?;
        Ok(TokenMask::from_words(mask.as_slice().to_vec()))
    }

    /// Moves on by the bytes of a text that was said before anything was masked.
    pub fn take_bytes(&mut self, bytes: &[u8]) -> Result<(), GrammarError> {
        let env = self.matcher.tok_env();
        let env = env.map_err(|e| explain(&e.to_string()))?;
        let tokens = env.tok_trie().greedy_tokenize(bytes);
        if env.tok_trie().decode_raw(&tokens) != bytes {
            let why = "the vocabulary cannot write what was said";
            return Err(GrammarError(why.to_owned()));
        }
        self.first = None;
        let took = self.matcher.consume_tokens(&tokens);
        took.map_err(|e| explain(&e.to_string()))
    }

    /// Whether the grammar may end here. One that ends with a fixed text does so behind it and nowhere
    /// else.
    pub fn may_end(&mut self) -> Result<bool, GrammarError> {
        let ends = self.matcher.is_accepting();
        ends.map_err(|e| explain(&e.to_string()))
    }

    /// Moves on by a token that the mask allowed.
    pub fn take(&mut self, token: u32) -> Result<(), GrammarError> {
        self.first = None;
        self.matcher
            .consume_token(token)
            .map_err(|e| explain(&e.to_string()))
    }
}

#[cfg(test)]
#[path = "grammar_tests.rs"]
mod tests;
