//! Limits on a template's source, before the engine compiles it.
//!
//! The engine's parser and compiler call themselves once for every operator of a chain such as
//! `a + a + a`, without a limit, and compute what is constant while compiling, without a budget. So
//! chains are measured here first. Products and sums get a mark that keeps the engine from computing
//! them; the guard takes it out of the program again.

use super::cost::{Limits, over};
use minijinja::Error;
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// Operators, brackets, attributes and filters that may hold one another.
const CHAIN_MAX: usize = 200;
/// Branches `elif` of a whole template, of which each holds the next.
const BRANCHES_MAX: usize = 200;
/// Names are hashed each time they are looked up.
const NAME_BYTES_MAX: usize = 1000;

/// The mark: a filter that gives back what it gets.
pub(super) const KEPT: &str = "__kept";

pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
}

/// What to compile in place of `source`.
pub(super) fn prepared(source: &str, limits: &Limits) -> Result<String, Error> {
    if source.len() > limits.source_bytes {
        return Err(over("its source is too long"));
    }
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let mut chain = Chain::default();
    let mut branches = 0;
    let mut before = Token::BlockEnd;
    for token in tokenize(source, false, syntax()?) {
        let (token, span) = token?;
        chain.see(&token);
        branches += usize::from(matches!(
            (&before, &token),
            (Token::BlockStart, Token::Ident("elif"))
        ));
        if matches!(&token, Token::Ident(name) if name.len() > NAME_BYTES_MAX) {
            return Err(over("it has too long a name"));
        }
        if chain.now > CHAIN_MAX || branches > BRANCHES_MAX {
            return Err(over("it nests too many operators or branches"));
        }
        if may_grow(&before, &token) {
            let at = span.start_offset as usize;
            out.push_str(&source[copied..at]);
            out.push('|');
            out.push_str(KEPT);
            copied = at;
        }
        before = token;
    }
    Ok(out + &source[copied..])
}

/// Whether `token` is an operator that can make much out of little.
fn may_grow(before: &Token<'_>, token: &Token<'_>) -> bool {
    // In front of an argument it is no product; the guard refuses such calls.
    matches!(token, Token::Mul | Token::Plus | Token::Tilde)
        && !matches!(before, Token::ParenOpen | Token::Comma)
}

/// How deep an expression nests at most: each operator may hold all that came before it in the same
/// tag. Items between commas do not hold each other.
#[derive(Default)]
struct Chain {
    now: usize,
    /// For each open bracket, the depth behind it and that of its deepest item so far.
    open: Vec<(usize, usize)>,
}

impl Chain {
    fn see(&mut self, token: &Token<'_>) {
        match token {
            Token::BlockStart | Token::VariableStart => *self = Self::default(),
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                self.now += 1;
                self.open.push((self.now, self.now));
            }
            Token::Comma | Token::Colon => {
                if let Some((start, deepest)) = self.open.last_mut() {
                    *deepest = self.now.max(*deepest);
                    self.now = *start;
                }
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                let (_, deepest) = self.open.pop().unwrap_or_default();
                self.now = self.now.max(deepest);
            }
            Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::FloorDiv
            | Token::Pow
            | Token::Mod
            | Token::Dot
            | Token::Tilde
            | Token::Pipe
            | Token::Eq
            | Token::Ne
            | Token::Gt
            | Token::Gte
            | Token::Lt
            | Token::Lte
            | Token::Ident("and" | "or" | "not" | "in" | "is" | "if" | "else") => self.now += 1,
            _ => {}
        }
    }
}
