//! The real trainer and evaluator: an adapter on the model that is served, by nn's learner.

mod answer;
mod answers;
mod base_answers;
mod choose;
mod context;
mod course;
mod distilled;
mod evaluation;
mod guided;
mod hints;
mod instructed;
mod learners;
mod lessons;
mod measure;
mod memo;
mod meter;
mod parts;
mod reference;
mod rehearsal;
mod steps;
mod stride;
mod telling;
mod texts;
mod trainer;
mod wishes;

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod evaluation_tests;
#[cfg(test)]
mod form_tests;
#[cfg(test)]
mod lesson_tests;
#[cfg(test)]
mod rehearsal_tests;
#[cfg(test)]
mod tests;

use hone_domain::{Digest, scope_hash};
use hone_nn::{Learner, peft};
use serde_json::json;

use crate::evaluation_job::EvaluationJob;
use crate::progress::Phase;
use crate::trainer::{CandidateFiles, Parity, Trained, Trainer};
use learners::Fresh;

pub use hints::{hint_words, hinted_prompt};
pub use parts::NnParts;
pub(crate) use parts::{adapter_digest, control, mean, stopped, train_row};
pub use texts::{Fact, Instructed, Reference, generic_prompts};
pub use trainer::NnTrainer;

pub(crate) use crate::trainer::{TrainError, TrainJob};

impl NnTrainer {
    fn candidate_files(&self, job: &EvaluationJob, learner: &mut Learner) -> CandidateFiles {
        CandidateFiles {
            adapter: self.adapter_files(job, &learners::adapter_of(learner)),
            checkpoint: learner.state(),
        }
    }

    fn adapter_files(
        &self,
        job: &EvaluationJob,
        adapter: &hone_nn::Adapter,
    ) -> Vec<(String, Vec<u8>)> {
        let manifest = json!({
            "scope": scope_hash(&job.scope),
            "digest": adapter_digest(adapter),
            "base": self.base(),
            "fingerprint": self.fingerprint,
            "parent": job.parent_digest(),
            "transitions": job.transitions(),
        });
        let mut files = peft::to_files(adapter, &self.parts.base_name, &manifest);
        let (model, exec) = (&self.parts.model, &self.parts.exec);
        let probe = hone_nn::probe(model, Some(adapter), exec);
        files.push((hone_nn::PROBE_FILE.to_owned(), probe));
        files
    }

    /// A step of a job; its learner waits to be evaluated.
    fn trained(
        &self,
        job: &TrainJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Trained, TrainError> {
        let progress = &job.progress;
        progress.begin(*self.usual());
        progress.enter(Phase::Answers);
        let config = self.learner_config(job.lr_scale);
        let lr = config.lr;
        let cached = self.learners().take(&job.scope, job.parent_digest());
        let mut learner = match cached {
            Some(learner) => learner,
            None => learners::load(&self.parts, config, &job.scope, job.parent.as_ref())
                .map_err(TrainError::Failed)?,
        };
        learner.set_lr(lr);
        let parent = learners::adapter_of(&learner);
        let stepped = self.steps(&mut learner, job, lr, pause)?;
        let adapter = learners::adapter_of(&learner);
        if adapter
            .to_tensors()
            .iter()
            .any(|t| t.data.iter().any(|v| !v.is_finite()))
        {
            return Err(TrainError::NotFinite("a trained weight".to_owned()));
        }
        let parity = Parity::compare(
            &job.rows,
            &stepped.reports[0].proximal_logprobs[..job.rows.len()],
            job.parent_digest(),
        )
        .map_err(TrainError::Failed)?;
        let digest = adapter_digest(&adapter);
        let numbers = steps::numbers(&stepped).into_iter();
        let trained = Trained {
            digest,
            numbers: numbers.map(|(name, of)| (name.to_owned(), of)).collect(),
            parity,
            wishes: stepped.taught.distilled.turns(job),
            answers: stepped.taught.distilled.answers(),
        };
        *self.fresh() = Some(Fresh {
            digest,
            learner,
            parent,
        });
        Ok(trained)
    }
}

impl Trainer for NnTrainer {
    fn train(
        &self,
        job: &TrainJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Trained, TrainError> {
        // One that nobody evaluated.
        *self.fresh() = None;
        let trained = self.trained(job, pause);
        if trained.is_err() {
            self.memo.forget();
        }
        trained
    }

    fn files(&self, job: &EvaluationJob) -> Result<CandidateFiles, TrainError> {
        let digest = job.candidate;
        let mut fresh = self.fresh();
        if let Some(fresh) = fresh.as_mut().filter(|fresh| fresh.digest == digest) {
            return Ok(self.candidate_files(job, &mut fresh.learner));
        }
        let learner = self.learners().take(&job.scope, Some(digest));
        let gone = || TrainError::Failed(format!("candidate {digest} is not in memory"));
        let mut learner = learner.ok_or_else(gone)?;
        let files = self.candidate_files(job, &mut learner);
        self.keep(&job.scope, digest, learner);
        Ok(files)
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn base(&self) -> Digest {
        Digest(self.parts.model.digest)
    }
}
