//! What a candidate is measured on.

use hone_domain::{Digest, Policy, Scope, Token, TransitionId};
use serde::{Deserialize, Serialize};

use crate::judged::Judged;
use crate::pack::{PackedRow, transitions};
use crate::progress::Progress;
use crate::wish_answers::WishAnswers;

/// What a candidate is measured on. Weights are named by their digest: an evaluator has them in memory, or reads
/// them from the blob store, where [`hone_domain::adapter_key`] says. Whoever sends the job to another process
/// puts the candidate's files there first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EvaluationJob {
    /// Whose policy.
    pub scope: Scope,
    /// Content hash of the candidate's adapter.
    pub candidate: Digest,
    /// The served version, which the candidate continues; none where that is the base model.
    pub parent: Option<Policy>,
    /// What it learned from: divergences are means over these completions.
    pub rows: Vec<PackedRow>,
    /// Prompts to answer.
    pub probes: Vec<Vec<Token>>,
    /// How many of them, the first, are the fixed ones.
    pub golden: usize,
    /// Judged turns that nothing is learned from.
    pub held_out: Vec<Judged>,
    /// What the batch's wishes came to.
    pub wishes: WishAnswers,
    /// How far it is, for the process that does it.
    #[serde(skip)]
    pub progress: Progress,
}

impl EvaluationJob {
    /// Content hash of the adapter that the candidate continues; none for the base model.
    pub fn parent_digest(&self) -> Option<Digest> {
        self.parent.as_ref().map(|parent| parent.digest)
    }

    /// Every transition that the candidate learned from, sorted.
    pub fn transitions(&self) -> Vec<TransitionId> {
        transitions(&self.rows)
    }
}
