//! What a step comes to.

use super::loss::{Logprobs, Sums, per_token};
use super::{StepReport, TrainRow};

/// Sums over the updates of a step.
pub(super) struct Totals {
    pub(super) sums: Sums,
    pub(super) current: Logprobs,
    pub(super) tokens: usize,
    pub(super) grad_norm: f64,
    pub(super) updates: usize,
    pub(super) skipped: bool,
    pub(super) layers_kept: usize,
}

impl Totals {
    pub(super) fn new(rows: &[TrainRow]) -> Self {
        Self {
            sums: Sums::default(),
            current: per_token(rows, 0.0),
            tokens: 0,
            grad_norm: 0.0,
            updates: 0,
            skipped: false,
            layers_kept: usize::MAX,
        }
    }

    pub(super) fn report(self, proximal_logprobs: Logprobs, with_kl: bool) -> StepReport {
        let sums = self.sums;
        let mean = |sum: f64| sum / sums.tokens as f64;
        let of_policy = |sum: f64| sum / sums.policy.max(1) as f64;
        StepReport {
            tokens: self.tokens,
            loss_tokens: sums.tokens,
            loss: mean(sums.loss),
            kl_to_reference: with_kl.then(|| mean(sums.kl)),
            clip_share: of_policy(sums.clipped as f64),
            mean_importance_ratio: of_policy(sums.importance),
            max_correction: sums.max_correction,
            ess: sums.ess(),
            entropy: mean(sums.entropy),
            grad_norm: self.grad_norm,
            updates: self.updates,
            skipped_nonfinite: self.skipped,
            proximal_logprobs,
            layers_kept: self.layers_kept,
            slices: 0,
            longest_slice_us: 0,
        }
    }
}
