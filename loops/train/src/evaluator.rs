//! What measures a candidate.

use crate::evaluation_job::EvaluationJob;
use crate::gate::Measured;
use crate::trainer::TrainError;

/// Measures candidates against the served version and the base model. The calls compute for long and run on
/// the loop's own thread. Job and result can be sent as those of a [`crate::Trainer`].
pub trait Evaluator: Send + Sync {
    /// The numbers that the gate decides by. The same job gives the same numbers, bit for bit. `pause` is as
    /// in [`crate::Trainer::train`].
    ///
    /// # Errors
    /// See [`TrainError`].
    fn evaluate(
        &self,
        job: &EvaluationJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Measured, TrainError>;

    /// Computes ahead what every candidate is measured against, so that the first one does not wait for it.
    ///
    /// # Errors
    /// See [`TrainError`]; evaluations then compute it themselves.
    fn prepare(&self, _pause: &mut dyn FnMut() -> bool) -> Result<(), TrainError> {
        Ok(())
    }
}
