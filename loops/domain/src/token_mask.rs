//! Which tokens of a vocabulary may come next.

/// A set of tokens, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask(Vec<u32>);

impl TokenMask {
    /// Of the bits in `words`: token `t` is bit `t % 32` of word `t / 32`.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self(words)
    }

    /// Of these tokens.
    pub fn of(tokens: &[u32]) -> Self {
        let words = tokens
            .iter()
            .max()
            .map_or(0, |most| *most as usize / 32 + 1);
        let mut bits = vec![0; words];
        for token in tokens {
            bits[*token as usize / 32] |= 1 << (token % 32);
        }
        Self(bits)
    }

    /// The first of them.
    pub fn first(&self) -> Option<u32> {
        let mut words = self.0.iter().zip(0u32..);
        let (word, at) = words.find(|(word, _)| **word != 0)?;
        Some(32 * at + word.trailing_zeros())
    }

    /// Whether `token` is in it.
    pub fn allows(&self, token: u32) -> bool {
        let word = self.0.get(token as usize / 32);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }
}
