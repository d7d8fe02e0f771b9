//! How likely the base model finds an answer when it is told the wish: what a taught model says should
//! be what the told model could have said.

use std::sync::Arc;

use hone_nn::score;
use serde_json::{Map, json};

use crate::Bench;
use hone::model::Builtin;
use hone_inference::Language;

/// Answers of a list that are scored; each costs a product with the whole vocabulary per token.
const SCORED_MAX: usize = 16;

/// The base model and its language.
pub(super) struct Meter {
    builtin: Builtin,
    language: Arc<dyn Language>,
}

/// A prompt and what was answered to it.
pub(super) struct Scored<'a> {
    pub(super) prompt: String,
    pub(super) answer: &'a str,
}

impl Meter {
    pub(super) fn new(bench: &Bench) -> Result<Self, String> {
        let served = bench.served()?;
        let builtin = served
            .builtin
            .ok_or("the null engine has no model to measure")?;
        Ok(Self {
            builtin,
            language: served.language,
        })
    }

    /// Mean over the answers of the mean log-prob per token in nats, at temperature 1 without an adapter.
    /// Empty answers are left out; none where all are empty.
    ///
    /// # Errors
    /// The model's template refuses a prompt.
    pub(super) fn logprob_mean(&self, scored: &[Scored<'_>]) -> Result<Option<f64>, String> {
        let mut means = Vec::new();
        for one in scored.iter().take(SCORED_MAX) {
            means.extend(self.logprob(one)?);
        }
        let sum: f64 = means.iter().sum();
        Ok((!means.is_empty()).then(|| sum / means.len() as f64))
    }

    /// Mean log-prob per token of one answer.
    fn logprob(&self, scored: &Scored<'_>) -> Result<Option<f64>, String> {
        let message = json!({ "role": "user", "content": scored.prompt });
        let prompt = self.language.render(&[message], None, &Map::new());
        let prompt = prompt.map_err(|error| error.to_string())?;
        let mut tokens = self.language.encode(&prompt, false);
        let from = tokens.len();
        tokens.extend(self.language.encode(scored.answer, false));
        if from == 0 || from == tokens.len() {
            return Ok(None);
        }
        let scores = score(&self.builtin.model, None, &tokens, &self.builtin.executor);
        let logprob = |at| f64::from(scores.logprob(at, 1.0, None));
        let sum: f64 = (from..tokens.len()).map(logprob).sum();
        Ok(Some(sum / (tokens.len() - from) as f64))
    }
}
