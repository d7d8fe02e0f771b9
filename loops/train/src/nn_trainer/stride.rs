//! How far the updates of a batch go.

use hone_nn::{Learner, Mark, StepReport};

/// Share of a loss by which it may rise from one update to the next.
const RISE: f64 = 0.01;

/// How far an update goes. One that made the loss of the same rows larger went too far: it is taken back by
/// half, and those that follow go half as far: what one model bears is too far for another.
pub(super) struct Stride {
    lr: f32,
    /// Weights with the smallest loss so far, and that loss.
    best: Option<(Mark, f64)>,
    here: Option<Mark>,
    shortened: usize,
}

impl Stride {
    pub(super) fn new(lr: f32) -> Self {
        Self {
            lr,
            best: None,
            here: None,
            shortened: 0,
        }
    }

    /// Remembers where an update begins.
    pub(super) fn before(&mut self, learner: &mut Learner) {
        self.here = Some(learner.mark());
    }

    /// Takes an update that went too far back by half, on the way from `best` to `here`; further ones go half as far.
    pub(super) fn take_back(&mut self, learner: &mut Learner, best: &Mark, here: &Mark) {
        learner.half_way(best, here);
        self.lr /= 2.0;
        self.shortened += 1;
        learner.set_lr(self.lr);
    }

    /// Looks at the loss where the update began.
    pub(super) fn after(&mut self, learner: &mut Learner, report: &StepReport) {
        let Some(here) = self.here.take() else { return };
        match self.best.take() {
            Some((best, loss)) if report.loss > loss + RISE * loss.abs() => {
                self.take_back(learner, &best, &here);
                self.best = Some((best, loss));
            }
            _ => self.best = Some((here, report.loss)),
        }
    }

    /// The learning rate as it is now.
    pub(super) fn lr(&self) -> f32 {
        self.lr
    }

    /// How often it was halved.
    pub(super) fn shortened(&self) -> usize {
        self.shortened
    }
}
