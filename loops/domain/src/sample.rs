//! Samples: one training row, token-aligned by construction.

use serde::{Deserialize, Serialize};

use crate::{PolicyVersion, SamplingMask, Token, TransitionId};

/// The part of a sample that one transition contributes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplePart {
    /// Which transition; trained at most once per chain.
    pub transition: TransitionId,
    /// Index in the row of its first completion token; at least 1, since a token is predicted
    /// from the one before.
    pub start: usize,
    /// Behavior log-prob per completion token.
    pub behavior_logprobs: Vec<f32>,
    /// Advantage per completion token.
    pub advantages: Vec<f32>,
    /// Ids left to choose from, per completion token, where something was cut.
    pub kept: Vec<Option<SamplingMask>>,
    /// Experts used where each completion token was predicted, the same number for every token;
    /// empty where none are recorded.
    pub experts: Vec<u16>,
    /// Sampling temperature.
    pub temperature: f32,
    /// Version that sampled it.
    pub version: PolicyVersion,
}

/// A training row: the tokens of a trajectory and the spans of it that carry loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Sample {
    tokens: Vec<Token>,
    parts: Vec<SamplePart>,
}

/// A sample as it is read, before [`Sample::new`] has checked it.
#[derive(Deserialize)]
struct Unchecked {
    tokens: Vec<Token>,
    parts: Vec<SamplePart>,
}

impl TryFrom<Unchecked> for Sample {
    type Error = SampleError;

    fn try_from(read: Unchecked) -> Result<Self, SampleError> {
        Self::new(read.tokens, read.parts)
    }
}

/// Why parts and tokens do not form a sample.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// Arrays of a part differ in length.
    #[error(
        "part {part}: {behavior} behavior log-probs, {advantages} advantages and {kept} kept sets"
    )]
    Misaligned {
        /// Part index.
        part: usize,
        /// Behavior log-probs.
        behavior: usize,
        /// Advantages.
        advantages: usize,
        /// Kept sets.
        kept: usize,
    },
    /// Not the same number of experts for every token.
    #[error("part {part}: {ids} experts for {tokens} tokens")]
    Experts {
        /// Part index.
        part: usize,
        /// Ids in all.
        ids: usize,
        /// Completion tokens.
        tokens: usize,
    },
    /// A part lies outside the row, overlaps the one before, or starts at 0.
    #[error("part {part} covers tokens {start}..{end} of a row of {tokens}, after {previous_end}")]
    Misplaced {
        /// Part index.
        part: usize,
        /// First token.
        start: usize,
        /// One past the last.
        end: usize,
        /// Row length.
        tokens: usize,
        /// Where the previous part ends.
        previous_end: usize,
    },
    /// A temperature, advantage or log-prob that cannot be trained on.
    #[error("part {part} holds a number that is not finite, or a temperature of 0")]
    NotFinite {
        /// Part index.
        part: usize,
    },
    /// Nothing to train.
    #[error("a sample needs at least one part with at least one token")]
    Empty,
}

impl SamplePart {
    /// Experts used where completion token `i` was predicted.
    pub fn experts_of(&self, i: usize) -> Option<&[u16]> {
        let each = self.experts.len() / self.behavior_logprobs.len().max(1);
        (each > 0).then(|| &self.experts[i * each..(i + 1) * each])
    }
}

impl Sample {
    /// Checks that every part is aligned, inside the row, in order and finite.
    pub fn new(tokens: Vec<Token>, parts: Vec<SamplePart>) -> Result<Self, SampleError> {
        let mut previous_end = 1;
        for (part, p) in parts.iter().enumerate() {
            let n = p.behavior_logprobs.len();
            if p.advantages.len() != n || p.kept.len() != n {
                return Err(SampleError::Misaligned {
                    part,
                    behavior: n,
                    advantages: p.advantages.len(),
                    kept: p.kept.len(),
                });
            }
            if n == 0 {
                return Err(SampleError::Empty);
            }
            if !p.experts.len().is_multiple_of(n) {
                let (ids, tokens) = (p.experts.len(), n);
                return Err(SampleError::Experts { part, ids, tokens });
            }
            let end = p.start + n;
            if p.start < previous_end || end > tokens.len() {
                let (start, tokens) = (p.start, tokens.len());
                return Err(SampleError::Misplaced {
                    part,
                    start,
                    end,
                    tokens,
                    previous_end,
                });
            }
            let numbers = p.behavior_logprobs.iter().chain(&p.advantages);
            if !(p.temperature.is_finite() && p.temperature > 0.0)
                || numbers.into_iter().any(|x| !x.is_finite())
            {
                return Err(SampleError::NotFinite { part });
            }
            previous_end = end;
        }
        if parts.is_empty() {
            return Err(SampleError::Empty);
        }
        Ok(Self { tokens, parts })
    }

    /// The row's tokens.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Its parts, in order of position.
    pub fn parts(&self) -> &[SamplePart] {
        &self.parts
    }

    /// Number of tokens that carry loss.
    pub fn loss_tokens(&self) -> usize {
        self.parts.iter().map(|p| p.advantages.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: usize, n: usize) -> SamplePart {
        SamplePart {
            transition: TransitionId(uuid::Uuid::nil()),
            start,
            behavior_logprobs: vec![-1.0; n],
            advantages: vec![1.0; n],
            kept: vec![None; n],
            experts: vec![3; 4 * n],
            temperature: 1.0,
            version: PolicyVersion(0),
        }
    }

    #[test]
    fn only_aligned_rows_can_be_built() {
        let row = || vec![7; 10];
        assert!(Sample::new(row(), vec![part(2, 3), part(5, 5)]).is_ok());
        assert_eq!(Sample::new(row(), vec![]), Err(SampleError::Empty));
        assert!(matches!(
            Sample::new(row(), vec![part(0, 3)]),
            Err(SampleError::Misplaced { .. })
        ));
        assert!(matches!(
            Sample::new(row(), vec![part(8, 3)]),
            Err(SampleError::Misplaced { .. })
        ));
        let overlap = vec![part(2, 3), part(4, 2)];
        assert!(matches!(
            Sample::new(row(), overlap),
            Err(SampleError::Misplaced { part: 1, .. })
        ));
        let crooked = SamplePart {
            advantages: vec![1.0; 2],
            ..part(2, 3)
        };
        assert!(matches!(
            Sample::new(row(), vec![crooked]),
            Err(SampleError::Misaligned { .. })
        ));
        let nan = SamplePart {
            advantages: vec![f32::NAN; 3],
            ..part(2, 3)
        };
        assert_eq!(
            Sample::new(row(), vec![nan]),
            Err(SampleError::NotFinite { part: 0 })
        );
    }

    #[test]
    fn a_sample_that_is_read_is_checked_again() {
        let sample = Sample::new(vec![7; 10], vec![part(2, 3), part(5, 5)]).expect("aligned");
        let mut written = serde_json::to_value(&sample).expect("plain values");
        let read = |value: &serde_json::Value| serde_json::from_value::<Sample>(value.clone());
        assert_eq!(read(&written).expect("as it was written"), sample);
        written["parts"][1]["start"] = 4.into();
        let refused = read(&written).expect_err("parts overlap").to_string();
        assert!(refused.contains("part 1 covers tokens 4..9"), "{refused}");
    }
}
