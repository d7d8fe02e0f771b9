//! The real trainer: an adapter on the model that is served, by nn's learner.

mod answer;
mod answers;
mod base_answers;
mod choose;
mod context;
mod distilled;
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
mod telling;
mod texts;
mod trainer;
mod wishes;

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod form_tests;
#[cfg(test)]
mod lesson_tests;
#[cfg(test)]
mod rehearsal_tests;
#[cfg(test)]
mod tests;

use hone_domain::{Digest, Scope, scope_hash};
use hone_nn::{Learner, peft};
use serde_json::json;

use crate::gate::Measured;
use crate::objective::DistillForm;
use crate::progress::Phase;
use crate::trainer::{Candidate, Parity, Trainer};

pub use hints::{hint_words, hinted_prompt};
pub use parts::NnParts;
pub(crate) use parts::{adapter_digest, mean, stopped, train_row};
pub use texts::{Fact, Instructed, Reference, generic_prompts};
pub use trainer::NnTrainer;

pub(crate) use crate::trainer::{TrainError, TrainJob};

impl NnTrainer {
    /// What the gate judges.
    fn measured(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        stepped: &steps::Stepped,
        policies: measure::Compared<'_>,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Measured, TrainError> {
        let distilled = &stepped.taught.distilled;
        let kept = self.kept(learner, &distilled.wishes, pause)?;
        job.progress.at(0.4);
        let wish = self.meter(learner, distilled, &stepped.unseen_before, policies, pause)?;
        // What its passes held is for those of the gate.
        learner.rest();
        job.progress.at(0.7);
        let (parts, memo) = (&self.parts, Some(&self.memo));
        let measured = measure::measure(parts, &self.gate, memo, job, policies, pause)?;
        Ok(Measured {
            generic_loss: kept.generic_loss,
            fact_gains: kept.fact_gains,
            instruction_losses: kept.instruction_losses,
            wish,
            unlearnable: !distilled.wishes.is_empty() && distilled.kept == 0,
            at_a_loss: distilled.at_a_loss,
            told_tokens: distilled.told_tokens,
            ..measured
        })
    }

    fn files(&self, job: &TrainJob, adapter: &hone_nn::Adapter) -> Vec<(String, Vec<u8>)> {
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

    /// The candidate of a job.
    fn candidate(
        &self,
        job: &TrainJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Candidate, TrainError> {
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
        let policies = measure::Compared {
            candidate: &adapter,
            parent: job.parent_digest().is_some().then_some(&parent),
        };
        progress.enter(Phase::Gate);
        let mut measured = self.measured(&mut learner, job, &stepped, policies, pause)?;
        let digest = adapter_digest(&adapter);
        *self.usual() = Some(progress.shares());
        measured.changed = digest != adapter_digest(&parent);
        let candidate = Candidate {
            digest,
            files: self.files(job, &adapter),
            checkpoint: learner.state(),
            measured,
            numbers: steps::numbers(&stepped)
                .into_iter()
                .chain(progress.took())
                .collect(),
            parity,
            wishes: stepped.taught.distilled.turns(job),
        };
        self.learners()
            .put(job.scope.clone(), Some(digest), learner);
        Ok(candidate)
    }
}

impl Trainer for NnTrainer {
    fn train(
        &self,
        job: &TrainJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Candidate, TrainError> {
        let candidate = self.candidate(job, pause);
        self.memo.forget();
        candidate
    }

    fn prepare(&self, pause: &mut dyn FnMut() -> bool) -> Result<(), TrainError> {
        if self.learner.hint_form != DistillForm::Context {
            return Ok(());
        }
        let scope = Scope::from_stored(String::new());
        let learner = learners::load(&self.parts, self.learner_config(1.0), &scope, None);
        let mut learner = learner.map_err(TrainError::Failed)?;
        self.base_of_gate(&mut learner, pause)?;
        self.memo.settle();
        Ok(())
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn base(&self) -> Digest {
        Digest(self.parts.model.digest)
    }
}
