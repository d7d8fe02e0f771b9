//! Packing: from turns to training rows. Turns of a session whose prompt goes on from an earlier
//! turn's prompt and completion, token by token, share one row and so one forward.

use hone_domain::{
    Digest, Origin, Sample, SampleError, SamplePart, SessionId, Token, TransitionId, Turn,
};
use serde::{Deserialize, Serialize};

/// A turn with its credit.
#[derive(Clone, Copy, Debug)]
pub struct CreditedTurn<'a> {
    /// The transition that is trained.
    pub transition: TransitionId,
    /// Its turn.
    pub turn: &'a Turn,
    /// Advantage of each of its completion tokens.
    pub advantage: f32,
}

/// A training row with the adapter that sampled each of its parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PackedRow {
    /// Tokens and loss spans.
    pub sample: Sample,
    /// Per part.
    pub sampled_by: Vec<SampledBy>,
}

/// What sampled a part of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SampledBy {
    /// The engine here with the adapter of this content hash; none for the base model.
    Here(Option<Digest>),
    /// Another engine, whose log-probs have other bits.
    Elsewhere,
}

/// Every transition that these rows learn from, sorted.
pub(crate) fn transitions(rows: &[PackedRow]) -> Vec<TransitionId> {
    let parts = rows.iter().flat_map(|row| row.sample.parts());
    let mut ids: Vec<_> = parts.map(|part| part.transition).collect();
    ids.sort_unstable();
    ids
}

struct OpenRow {
    session: SessionId,
    tokens: Vec<Token>,
    parts: Vec<SamplePart>,
    sampled_by: Vec<SampledBy>,
}

/// Rows of `turns`. Every completion token is in exactly one row, with its own behavior log-prob,
/// behind exactly the tokens it was sampled after. History that was rewritten starts a new row.
///
/// # Errors
/// A turn that cannot be a training row: empty prompt or completion, temperature 0, numbers that
/// are not finite. [`crate::filter`] takes such turns out beforehand.
pub fn pack(turns: &[CreditedTurn<'_>]) -> Result<Vec<PackedRow>, SampleError> {
    let mut order: Vec<&CreditedTurn> = turns.iter().collect();
    // A prompt can only extend rows of shorter prompts; ties are broken so that equal batches pack
    // equally whatever order they came in.
    order.sort_by_key(|t| (t.turn.prompt_tokens.len(), t.turn.started_ms, t.turn.id));
    let mut rows: Vec<OpenRow> = Vec::new();
    for credited in order {
        let turn = credited.turn;
        let row = rows
            .iter_mut()
            .filter(|row| row.session == turn.session)
            .filter(|row| turn.prompt_tokens.starts_with(&row.tokens))
            .max_by_key(|row| row.tokens.len());
        match row {
            Some(row) => row.extend(credited),
            None => {
                let mut row = OpenRow {
                    session: turn.session,
                    tokens: Vec::new(),
                    parts: Vec::new(),
                    sampled_by: Vec::new(),
                };
                row.extend(credited);
                rows.push(row);
            }
        }
    }
    rows.into_iter().map(OpenRow::close).collect()
}

impl OpenRow {
    /// Appends what `credited` adds to the row's tokens, which its prompt begins with.
    fn extend(&mut self, credited: &CreditedTurn<'_>) {
        let turn = credited.turn;
        let completion = &turn.completion;
        self.tokens
            .extend_from_slice(&turn.prompt_tokens[self.tokens.len()..]);
        self.parts.push(SamplePart {
            transition: credited.transition,
            start: self.tokens.len(),
            behavior_logprobs: completion.behavior_logprobs().to_vec(),
            advantages: vec![credited.advantage; completion.len()],
            kept: completion.kept().to_vec(),
            experts: completion.experts().to_vec(),
            temperature: turn.sampling.temperature,
            version: turn.version(),
        });
        self.tokens.extend_from_slice(completion.tokens());
        self.sampled_by.push(match turn.origin {
            Origin::Outside => SampledBy::Elsewhere,
            _ => SampledBy::Here(turn.digest),
        });
    }

    fn close(self) -> Result<PackedRow, SampleError> {
        Ok(PackedRow {
            sample: Sample::new(self.tokens, self.parts)?,
            sampled_by: self.sampled_by,
        })
    }
}

#[cfg(test)]
#[path = "pack_tests.rs"]
mod tests;
