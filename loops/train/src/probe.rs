//! What can be told from answered probes without knowing the language: emptiness, ends, loops,
//! length.

use hone_domain::Token;
use serde::{Deserialize, Serialize};

/// One answered probe.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeCompletion {
    /// What was sampled, without the end token.
    pub tokens: Vec<Token>,
    /// Whether an end token came before the limit.
    pub ended: bool,
}

/// What a policy's probes look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbeSummary {
    /// How many were answered.
    pub probes: usize,
    /// Share without a single token.
    pub empty_share: f32,
    /// Share that ended by themselves.
    pub ended_share: f32,
    /// Share with a repetition loop.
    pub looping_share: f32,
    /// Mean length, in tokens.
    pub tokens_mean: f32,
}

impl ProbeSummary {
    /// Of `completions`.
    pub fn of(completions: &[ProbeCompletion]) -> Self {
        let count = completions.len();
        let share = |test: &dyn Fn(&ProbeCompletion) -> bool| {
            let hits = completions.iter().filter(|c| test(c)).count();
            hits as f32 / count.max(1) as f32
        };
        let tokens: usize = completions.iter().map(|c| c.tokens.len()).sum();
        Self {
            probes: count,
            empty_share: share(&|c| c.tokens.is_empty()),
            ended_share: share(&|c| c.ended),
            looping_share: share(&|c| is_looping(&c.tokens)),
            tokens_mean: tokens as f32 / count.max(1) as f32,
        }
    }
}

/// Longest phrase whose repetition counts as a loop.
const PERIOD_MAX: usize = 16;
/// How often a phrase follows itself in a loop.
const REPEATS: usize = 4;
/// Shortest stretch that counts as a loop.
const LOOP_TOKENS_MIN: usize = 8;

/// Whether a phrase of at most 16 tokens follows itself so that it stands there four times, over
/// at least eight tokens.
pub fn is_looping(tokens: &[Token]) -> bool {
    (1..=PERIOD_MAX).any(|period| {
        let needed = (REPEATS * period).max(LOOP_TOKENS_MIN) - period;
        let mut run = 0;
        tokens.iter().zip(tokens.iter().skip(period)).any(|(a, b)| {
            run = if a == b { run + 1 } else { 0 };
            run >= needed
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn loops_are_found_and_lists_are_not_loops() {
        let rows: &[(&[Token], bool)] = &[
            (&[], false),
            (&[5; 7], false),
            (&[5; 8], true),
            (&[1, 2, 5, 5, 5, 5, 5, 5, 5, 5, 3], true),
            (&[1, 2, 1, 2, 1, 2], false),
            (&[9, 1, 2, 1, 2, 1, 2, 1, 2], true),
            // A bulleted list repeats its marks, not its words.
            (&[7, 1, 2, 7, 3, 4, 7, 5, 6, 7, 8, 9, 7, 10, 11], false),
            (&[1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 4], false),
            (&[1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3], true),
        ];
        for (tokens, expected) in rows {
            assert_eq!(is_looping(tokens), *expected, "{tokens:?}");
        }
    }

    #[test]
    fn a_summary_counts_shares() {
        let completion = |tokens: &[Token], ended| ProbeCompletion {
            tokens: tokens.to_vec(),
            ended,
        };
        let summary = ProbeSummary::of(&[
            completion(&[], true),
            completion(&[1, 2, 3, 4], true),
            completion(&[5; 8], false),
            completion(&[1, 2, 3, 4], true),
        ]);
        let expected = ProbeSummary {
            probes: 4,
            empty_share: 0.25,
            ended_share: 0.75,
            looping_share: 0.25,
            tokens_mean: 4.0,
        };
        assert_eq!(summary, expected);
        assert_eq!(ProbeSummary::of(&[]), ProbeSummary::default());
    }
}
