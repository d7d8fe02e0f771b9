//! The real evaluator: the candidate beside the served version and the base model, on the model that is served.

use hone_domain::{Digest, Policy, PolicyVersion, Scope, adapter_key};
use hone_nn::Learner;

use super::learners::{Fresh, adapter_of, load};
use super::{NnTrainer, TrainError, adapter_digest, measure};
use crate::evaluation_job::EvaluationJob;
use crate::evaluator::Evaluator;
use crate::gate::Measured;
use crate::objective::DistillForm;
use crate::progress::Phase;

impl NnTrainer {
    /// The candidate of a job and what it continues: from memory where it was trained here, else from the
    /// blob store.
    fn candidate(&self, job: &EvaluationJob) -> Result<Fresh, TrainError> {
        let here = self.fresh().take();
        if let Some(fresh) = here.filter(|fresh| fresh.digest == job.candidate) {
            return Ok(fresh);
        }
        let learner_at = |policy: Option<&Policy>| {
            let learner = load(&self.parts, self.learner_config(1.0), &job.scope, policy);
            learner.map_err(TrainError::Failed)
        };
        let parent = learner_at(job.parent.as_ref())?;
        let version = job
            .parent
            .as_ref()
            .map_or(PolicyVersion::BASE, |p| p.version);
        let candidate = Policy {
            scope: job.scope.clone(),
            version: version.next(),
            digest: job.candidate,
            blob: adapter_key(&job.scope, job.candidate),
        };
        Ok(Fresh {
            digest: job.candidate,
            learner: learner_at(Some(&candidate))?,
            parent: adapter_of(&parent),
        })
    }

    /// What the gate judges.
    fn measured(
        &self,
        job: &EvaluationJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Measured, TrainError> {
        job.progress.enter(Phase::Gate);
        let Fresh {
            digest,
            mut learner,
            parent,
        } = self.candidate(job)?;
        let adapter = adapter_of(&learner);
        let policies = measure::Compared {
            candidate: &adapter,
            parent: job.parent.is_some().then_some(&parent),
        };
        let wishes = &job.wishes;
        let kept = self.kept(&mut learner, &wishes.wishes, pause)?;
        job.progress.at(0.4);
        let wish = self.meter(&mut learner, wishes, policies, pause)?;
        // What its passes held is for those of the gate.
        learner.rest();
        job.progress.at(0.7);
        let (parts, memo) = (&self.parts, Some(&self.memo));
        let measured = measure::measure(parts, &self.gate, memo, job, policies, pause)?;
        self.keep(&job.scope, digest, learner);
        *self.usual() = Some(job.progress.shares());
        Ok(Measured {
            changed: digest != adapter_digest(&parent),
            generic_loss: kept.generic_loss,
            fact_gains: kept.fact_gains,
            instruction_losses: kept.instruction_losses,
            wish,
            unlearnable: !wishes.wishes.is_empty() && wishes.kept == 0,
            at_a_loss: wishes.at_a_loss,
            told_tokens: wishes.tokens_mean,
            told_ended: wishes.ended_share,
            ..measured
        })
    }

    /// Keeps a learner for the next job of its scope.
    pub(super) fn keep(&self, scope: &Scope, digest: Digest, learner: Learner) {
        self.learners().put(scope.clone(), Some(digest), learner);
    }
}

impl Evaluator for NnTrainer {
    fn evaluate(
        &self,
        job: &EvaluationJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Measured, TrainError> {
        let measured = self.measured(job, pause);
        self.memo.forget();
        measured
    }

    fn prepare(&self, pause: &mut dyn FnMut() -> bool) -> Result<(), TrainError> {
        if self.learner.hint_form != DistillForm::Context {
            return Ok(());
        }
        let scope = Scope::from_stored(String::new());
        let learner = load(&self.parts, self.learner_config(1.0), &scope, None);
        let mut learner = learner.map_err(TrainError::Failed)?;
        self.base_of_gate(&mut learner, pause)?;
        self.memo.settle();
        Ok(())
    }
}
