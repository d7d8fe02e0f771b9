//! What takes a step: the trait, its job, its result.

use std::collections::BTreeMap;

use hone_domain::{BatchId, Digest, Message, Policy, Scope, Token, TransitionId, Turn, TurnId};
use serde::{Deserialize, Serialize};

use crate::credit::Method;
use crate::evaluation_job::EvaluationJob;
use crate::judged::Judged;
use crate::pack::{PackedRow, SampledBy, transitions};
use crate::progress::Progress;
use crate::retold::Retold;
use crate::wish_answers::WishAnswers;

/// What a person's words teach about a turn, besides its score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lesson {
    /// The transition; one of the job's rows holds its completion, unless it is replayed.
    pub transition: TransitionId,
    /// Its turn.
    pub turn: Turn,
    /// What should have been done, in the person's words: followed by the teacher.
    pub hint: Option<String>,
    /// The manner that the hint asks for, in the words of the rules' table, where it holds it.
    pub wish: Option<String>,
    /// What should have been said: imitated.
    pub correction: Option<String>,
}

/// A person's words about a turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    pub hint: Option<String>,
    pub wish: Option<String>,
    pub correction: Option<String>,
}

impl Lesson {
    /// What `method` learns from a turn's words.
    pub(crate) fn of(
        method: Method,
        transition: TransitionId,
        turn: &Turn,
        words: Words,
    ) -> Option<Self> {
        let Words {
            hint,
            wish,
            correction,
        } = words;
        let uses = method.uses(hint.is_some(), correction.is_some());
        (uses.hint || uses.correction).then(|| Self {
            transition,
            turn: turn.clone(),
            hint: hint.filter(|_| uses.hint),
            wish: wish.filter(|_| uses.hint),
            correction: correction.filter(|_| uses.correction),
        })
    }
}

/// Makes tokens of words, as the gateway does.
pub trait Wording: Send + Sync {
    /// The prompt's text of a conversation, with the opening of the assistant's turn.
    ///
    /// # Errors
    /// What the template said.
    fn render(&self, messages: &[Message]) -> Result<String, String>;

    /// Tokens of a text in the middle of a prompt; special tokens' names stand for them.
    fn encode(&self, text: &str) -> Vec<Token>;

    /// Text of tokens.
    fn decode(&self, tokens: &[Token]) -> String;
}

/// One step's worth of work. The version that it continues is named; its weights are in the blob store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrainJob {
    /// Whose policy.
    pub scope: Scope,
    /// The batch.
    pub batch: BatchId,
    /// The version it continues; none for the base model.
    pub parent: Option<Policy>,
    /// What it learns from.
    pub rows: Vec<PackedRow>,
    /// What else is known of some of their turns.
    pub lessons: Vec<Lesson>,
    /// Lessons of turns that were trained before; learned from by their words only.
    pub replayed: Vec<Lesson>,
    /// Second tries, to be given at once.
    pub retold: Vec<Retold>,
    /// Factor on the learning rate.
    pub lr_scale: f32,
    /// Prompts that the evaluator answers before and after.
    pub probes: Vec<Vec<Token>>,
    /// How many of them, the first, are the fixed ones.
    pub golden: usize,
    /// Judged turns that nothing is learned from.
    pub held_out: Vec<Judged>,
    /// How far it is, for the process that does it.
    #[serde(skip)]
    pub progress: Progress,
}

impl TrainJob {
    /// The measuring of the candidate that it came to.
    pub(crate) fn evaluation(&self, candidate: Digest, wishes: WishAnswers) -> EvaluationJob {
        EvaluationJob {
            scope: self.scope.clone(),
            candidate,
            parent: self.parent.clone().filter(|parent| !parent.is_base()),
            rows: self.rows.clone(),
            probes: self.probes.clone(),
            golden: self.golden,
            held_out: self.held_out.clone(),
            wishes,
            progress: self.progress.clone(),
        }
    }

    /// Content hash of the adapter it continues; none for the base model.
    pub fn parent_digest(&self) -> Option<Digest> {
        let adapted = self.parent.as_ref().filter(|p| !p.is_base());
        adapted.map(|p| p.digest)
    }

    /// Every transition it learns from, sorted.
    pub fn transitions(&self) -> Vec<TransitionId> {
        transitions(&self.rows)
    }
}

/// What a step came to. Its weights are named by their digest: see [`Trainer::files`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trained {
    /// Content hash of the adapter as it would be served.
    pub digest: Digest,
    /// What the step reports, by name: loss, gradient norm, clip share and the like.
    pub numbers: BTreeMap<String, f64>,
    /// Recomputed against recorded log-probs.
    pub parity: Parity,
    /// Which wishes it follows.
    pub wishes: WishTurns,
    /// What the evaluator measures these wishes by.
    pub answers: WishAnswers,
}

/// The files of a candidate, as they are saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateFiles {
    /// The adapter, in PEFT's layout. These depend on the adapter, its parent and its samples only, so
    /// that a step repeated after a crash writes the same bytes.
    pub adapter: Vec<(String, Vec<u8>)>,
    /// Learner state, from which the next step goes on exactly.
    pub checkpoint: Vec<u8>,
}

/// Whose words a candidate follows, by the turns that they are about: the words themselves stand with the
/// turns alone, so that they go with them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WishTurns {
    /// What is followed, the newest wish first.
    pub followed: Vec<TurnId>,
    /// What a newer wish contradicts.
    pub replaced: Vec<TurnId>,
}

/// Promise 4 measured: at the version that sampled them, tokens have the recorded log-prob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    /// Tokens sampled by the very adapter that is trained from.
    pub tokens: u64,
    /// Those whose recomputed log-prob has other bits than the recorded one.
    pub mismatches: u64,
    /// Largest difference.
    pub difference_max: f32,
}

impl Parity {
    /// Compares, row by row, the proximal log-probs of all loss tokens with the behavior log-probs
    /// of those parts that the adapter `parent` sampled.
    ///
    /// # Errors
    /// A sentence, where the learner did not return one log-prob per loss token.
    pub fn compare(
        rows: &[PackedRow],
        proximal: &[Vec<f32>],
        parent: Option<Digest>,
    ) -> Result<Self, String> {
        let mut parity = Self::default();
        if rows.len() != proximal.len() {
            return Err(format!(
                "{} rows, {} of log-probs",
                rows.len(),
                proximal.len()
            ));
        }
        for (row, proximal) in rows.iter().zip(proximal) {
            if row.sample.loss_tokens() != proximal.len() {
                let (wanted, got) = (row.sample.loss_tokens(), proximal.len());
                return Err(format!("{wanted} loss tokens, {got} log-probs"));
            }
            let mut rest = proximal.as_slice();
            for (part, sampled_by) in row.sample.parts().iter().zip(&row.sampled_by) {
                let (now, later) = rest.split_at(part.behavior_logprobs.len());
                rest = later;
                if *sampled_by == SampledBy::Here(parent) {
                    parity.add(now, &part.behavior_logprobs);
                }
            }
        }
        Ok(parity)
    }

    fn add(&mut self, proximal: &[f32], behavior: &[f32]) {
        for (a, b) in proximal.iter().zip(behavior) {
            self.tokens += 1;
            self.mismatches += u64::from(a.to_bits() != b.to_bits());
            self.difference_max = self.difference_max.max((a - b).abs());
        }
    }

    /// Adds another batch's.
    pub fn join(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.mismatches += other.mismatches;
        self.difference_max = self.difference_max.max(other.difference_max);
    }
}

/// Why there is no candidate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum TrainError {
    /// It was asked to stop; nothing changed.
    #[error("the step was stopped")]
    Stopped,
    /// The numbers left the finite ones; the batch cannot be trained on.
    #[error("the step was not finite: {0}")]
    NotFinite(String),
    /// The device failed, which is not the batch's doing.
    #[error("{0}")]
    Device(String),
    /// It could not be done now.
    #[error("{0}")]
    Failed(String),
}

/// Takes steps. The calls compute for long and run on the loop's own thread. Job and result can be sent to
/// another process, in a format that has every float: JSON has no NaN.
pub trait Trainer: Send + Sync {
    /// One step of `job`'s scope from `job`'s parent. Called again with the same job and parent it gives
    /// the same candidate, bit for bit. `pause` is called between slices of work and may sleep; where it
    /// returns true the step ends with [`TrainError::Stopped`].
    ///
    /// # Errors
    /// See [`TrainError`]; after each the scope continues from its published version.
    fn train(&self, job: &TrainJob, pause: &mut dyn FnMut() -> bool)
    -> Result<Trained, TrainError>;

    /// The files of the candidate that `job` measures, until the next step begins.
    ///
    /// # Errors
    /// [`TrainError::Failed`] where the candidate is gone.
    fn files(&self, job: &EvaluationJob) -> Result<CandidateFiles, TrainError>;

    /// Its arithmetic: only turns sampled by the same one can be trained on.
    fn fingerprint(&self) -> String;

    /// Content hash of the base model.
    fn base(&self) -> Digest;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::pack::{CreditedTurn, pack};
    use crate::testing::{transition_of, turn};

    #[test]
    fn parity_counts_only_tokens_of_the_parent_and_every_bit() {
        let first = turn(1, &[1, 2], &[3, 4]);
        let mut second = turn(2, &[1, 2, 3, 4, 9], &[5]);
        second.digest = Some(Digest([9; 32]));
        let credited = |turn| CreditedTurn {
            transition: transition_of(turn),
            turn,
            advantage: 1.0,
        };
        let rows = pack(&[credited(&first), credited(&second)]).unwrap();
        let recorded = first.completion.behavior_logprobs();
        let near = f32::from_bits(recorded[1].to_bits() + 1);
        let proximal = [vec![recorded[0], near, 0.0]];
        let base = Parity::compare(&rows, &proximal, None).unwrap();
        assert_eq!((base.tokens, base.mismatches), (2, 1));
        assert!(base.difference_max > 0.0 && base.difference_max < 1e-6);
        // What another engine sampled has other bits.
        let mut elsewhere = first.clone();
        elsewhere.origin = hone_domain::Origin::Outside;
        let rows = pack(&[credited(&elsewhere), credited(&second)]).unwrap();
        let parity = Parity::compare(&rows, &proximal, None).unwrap();
        assert_eq!(parity, Parity::default());
        let other = Parity::compare(&rows, &proximal, Some(Digest([9; 32]))).unwrap();
        assert_eq!((other.tokens, other.mismatches), (1, 1));
        assert!(Parity::compare(&rows, &[vec![0.0]], None).is_err());
        assert!(Parity::compare(&rows, &[], None).is_err());
    }
}
