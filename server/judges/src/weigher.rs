//! Which of several hints the policy would follow: the served weights of the turn's own scope score the
//! completion with and without each hint, through the engine's own line, behind users.

use async_trait::async_trait;
use hone_domain::{Ask, Delta, PolicyVersion, Sampling, Token, Turn};
use hone_judge::{Compared, Weigher};
use hone_serve::Answer;
use hone_train::{hint_words, hinted_prompt};

use super::base::{BaseParts, ask};
use crate::wording::Words;

/// Weighs hints by what serves here.
pub(super) struct Served {
    parts: BaseParts,
    /// What a teacher reads of a hint, as `train.learner.hint_template` says.
    template: String,
}

/// The likeliest tokens at each place of a completion, and the version that thinks so.
struct Likeliest {
    version: PolicyVersion,
    tokens: Vec<Vec<Token>>,
}

impl Served {
    /// A weigher that asks `parts.backend`, with hints put as `template` says.
    pub(super) fn new(parts: BaseParts, template: &str) -> Self {
        Self {
            parts,
            template: template.to_owned(),
        }
    }

    fn ask(&self, turn: &Turn, prompt_tokens: Vec<Token>, compared: Compared) -> Ask {
        let whole = turn.completion.tokens();
        Ask {
            given: whole[..whole.len().min(compared.tokens_max)].to_vec(),
            sampling: Sampling {
                top_logprobs: compared.top_k,
                ..Sampling::default()
            },
            ..ask(&self.parts, turn.scope.clone(), prompt_tokens)
        }
    }

    async fn likeliest(
        &self,
        turn: &Turn,
        prompt_tokens: Vec<Token>,
        compared: Compared,
    ) -> Result<Likeliest, String> {
        // Dropping the answer, as the deadline does, withdraws the ask.
        let answer = self
            .parts
            .backend
            .ask(self.ask(turn, prompt_tokens, compared));
        read(answer.map_err(|error| error.to_string())?).await
    }
}

async fn read(mut answer: Answer) -> Result<Likeliest, String> {
    let mut tokens = Vec::new();
    while let Some(delta) = answer.deltas.recv().await {
        match delta {
            Delta::Started { .. } => {}
            Delta::Token(token) => tokens.push(token.top.into_iter().map(|(id, _)| id).collect()),
            Delta::Failed(error) => return Err(error.to_string()),
            Delta::End(end) => {
                let version = end.version;
                return Ok(Likeliest { version, tokens });
            }
        }
    }
    Err("the engine broke off".to_owned())
}

/// The share of `untold`'s tokens that `told` has at the same place.
fn agreement(untold: &Likeliest, told: &Likeliest) -> f32 {
    let places = untold.tokens.iter().zip(&told.tokens);
    let shared = places.map(|(a, b)| a.iter().filter(|id| b.contains(id)).count());
    let all: usize = untold.tokens.iter().map(Vec::len).sum();
    shared.sum::<usize>() as f32 / all.max(1) as f32
}

#[async_trait]
impl Weigher for Served {
    /// One score at a time, so that a choice never takes more than one place in the engine's batch,
    /// and finds what the one before left in the prefix cache.
    async fn weigh(
        &self,
        turn: &Turn,
        hints: &[String],
        compared: Compared,
    ) -> Result<Vec<f32>, String> {
        if turn.base != self.parts.backend.capabilities().base {
            return Err("another model than the one served now sampled the turn".to_owned());
        }
        if turn.completion.is_empty() {
            return Err("the completion is empty".to_owned());
        }
        let wording = Words(self.parts.language.clone());
        let prompt = turn.prompt_tokens.clone();
        let untold = self.likeliest(turn, prompt, compared).await?;
        let mut shares = Vec::with_capacity(hints.len());
        for hint in hints {
            let prompt = hinted_prompt(&wording, turn, &hint_words(&self.template, hint));
            let prompt = prompt.ok_or("a hint cannot be put into the recorded prompt")?;
            let told = self.likeliest(turn, prompt, compared).await?;
            if told.version != untold.version {
                return Err("a newer version began to serve meanwhile".to_owned());
            }
            shares.push(agreement(&untold, &told));
        }
        Ok(shares)
    }
}

#[cfg(test)]
#[path = "weigher_tests.rs"]
mod tests;
