//! Candidates: trained, measured, not published.

use std::collections::BTreeMap;

use hone_domain::Digest;

use crate::evaluator::Evaluator;
use crate::gate::Measured;
use crate::trainer::{CandidateFiles, Parity, TrainError, TrainJob, Trained, Trainer, WishTurns};

/// An adapter that was trained and measured but not published.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Content hash of the adapter as it would be served.
    pub digest: Digest,
    /// What is saved where the gate lets it pass.
    pub files: CandidateFiles,
    /// What the gate judges.
    pub measured: Measured,
    /// What the step reports, by name: loss, gradient norm, clip share and the like.
    pub numbers: BTreeMap<String, f64>,
    /// Recomputed against recorded log-probs.
    pub parity: Parity,
    /// Which wishes it follows.
    pub wishes: WishTurns,
}

/// Takes a step and measures what came of it.
pub(crate) fn candidate(
    trainer: &dyn Trainer,
    evaluator: &dyn Evaluator,
    job: &TrainJob,
    pause: &mut dyn FnMut() -> bool,
) -> Result<Candidate, TrainError> {
    let Trained {
        digest,
        mut numbers,
        parity,
        wishes,
        answers,
    } = trainer.train(job, pause)?;
    let evaluation = job.evaluation(digest, answers);
    let measured = evaluator.evaluate(&evaluation, pause)?;
    let files = trainer.files(&evaluation)?;
    let took = job.progress.took().into_iter();
    numbers.extend(took.map(|(name, ms)| (name.to_owned(), ms)));
    Ok(Candidate {
        digest,
        files,
        measured,
        numbers,
        parity,
        wishes,
    })
}
