//! A model judge by script: it reads the loop's own prompt, and is right as often as it is told to be.

use std::time::Duration;

use async_trait::async_trait;
use hone_domain::Message;
use hone_judge::{CompleteOptions, Completed, Completer, CompleterError};

/// Shares of votes, in percent.
const RIGHT: u64 = 85;
const GARBLED: u64 = 4;
const REFUSED: u64 = 3;

/// Votes by what it knows of each next state.
pub(super) struct Script {
    /// Next states as the prompt quotes them, with the label; longest first, because a short one may
    /// be part of another.
    known: Vec<(String, &'static str)>,
}

impl Script {
    pub(super) fn new(known: impl Iterator<Item = (String, &'static str)>) -> Self {
        let mut known: Vec<_> = known
            .map(|(text, label)| (format!("]\n{text}\n---"), label))
            .collect();
        known.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Self { known }
    }
}

#[async_trait]
impl Completer for Script {
    async fn complete(
        &self,
        messages: &[Message],
        options: CompleteOptions,
    ) -> Result<Completed, CompleterError> {
        let prompt = messages
            .last()
            .map_or("", |message| message.content.as_str());
        let known = self.known.iter().find(|(text, _)| prompt.contains(text));
        let Some((_, label)) = known else {
            return Err(CompleterError::Unreadable(
                "the next state is not in the prompt".to_owned(),
            ));
        };
        // Votes of one transition follow one another, so the seed is mixed.
        let drawn = options
            .seed
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        let drawn = (drawn ^ (drawn >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33;
        tokio::time::sleep(Duration::from_micros(drawn % 300)).await;
        let said = |words: &str| Completed {
            tokens: Some((prompt.len() as u64 / 4, words.len() as u64 / 4)),
            ..words.into()
        };
        let grades = [
            ("good", r"\boxed{1}"),
            ("bad", r"\boxed{-1}"),
            ("none", r"\boxed{0}"),
        ];
        let right = grades
            .iter()
            .position(|(name, _)| name == label)
            .unwrap_or(2);
        match drawn % 100 {
            percent if percent < RIGHT => Ok(said(&format!("It shows. {}", grades[right].1))),
            percent if percent < RIGHT + GARBLED => Ok(said("I would rather not say.")),
            percent if percent < RIGHT + GARBLED + REFUSED => Err(CompleterError::Refused {
                status: 503,
                message: "busy".to_owned(),
            }),
            percent => {
                let other = (right + 1 + (percent % 2) as usize) % 3;
                Ok(said(&format!("It shows. {}", grades[other].1)))
            }
        }
    }
}
