//! The loop's numbers, as the status registry shows them.

use hone_domain::{Millis, Reason};

use crate::candidate::Candidate;
use crate::job::{Doing, Job};
use crate::share::ShareTotals;
use crate::trainer::Parity;

/// Counts since the loop began, and the newest readings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Steps that gave a candidate.
    pub steps: u64,
    /// Versions made visible.
    pub versions: u64,
    /// Turns they learned from.
    pub turns_trained: u64,
    /// Those of them that were learned from by their hint.
    pub hints_trained: u64,
    /// Candidates the gate refused.
    pub gate_refusals: u64,
    /// Candidates that could not be told from the served version yet.
    pub gate_waits: u64,
    /// Batches settled because their step failed.
    pub batches_failed: u64,
    /// Steps that failed.
    pub step_failures: u64,
    /// Saves that failed.
    pub save_failures: u64,
    /// Ledger calls that failed.
    pub ledger_failures: u64,
    /// Candidates thrown away because a lease was lost or the head moved.
    pub lost: u64,
    /// Jobs given up after their last attempt.
    pub given_up: u64,
    /// Steps stopped by a pause or the end of the process.
    pub stopped: u64,
    /// Claimed turns that were settled instead of trained.
    pub left_out: u64,
    /// Claims that somebody else took over while their job went on.
    pub leases_lost: u64,
    /// Folders removed because nobody needs them.
    pub folders_pruned: u64,
    /// Rounds of pruning that failed.
    pub prune_failures: u64,
    /// Versions taken back by the watch.
    pub trips: u64,
    /// Recomputed against recorded log-probs.
    pub parity: Parity,
    /// Ready turns, all scopes, when last looked at.
    pub ready_turns: u64,
    /// Scopes with ready turns, when last looked at.
    pub ready_scopes: u64,
    share: ShareTotals,
    kl_to_reference: f32,
    kl_to_parent: f32,
    loss: f64,
    lr_scale: f32,
    score_mean: f32,
    job_ms: Millis,
}

impl Counters {
    pub(crate) fn measured(&mut self, candidate: &Candidate) {
        self.kl_to_reference = candidate.measured.kl_to_reference;
        self.kl_to_parent = candidate.measured.kl_to_parent;
        self.loss = candidate.numbers.get("loss").copied().unwrap_or_default();
    }

    pub(crate) fn share(&mut self, step: ShareTotals) {
        self.share.work_us += step.work_us;
        self.share.sleep_us += step.sleep_us;
        self.share.wait_us += step.wait_us;
        self.share.slices += step.slices;
        self.share.longest_slice_us = self.share.longest_slice_us.max(step.longest_slice_us);
    }

    pub(crate) fn published(&mut self, job: &Job, now: Millis) {
        self.versions += 1;
        self.turns_trained += job.claims.len() as u64;
        self.hints_trained += job.hinted;
        self.ended(job, now);
    }

    pub(crate) fn refused(&mut self, job: &Job, now: Millis) {
        match job.doing {
            Doing::Refuse(Reason::GateRejected) => self.gate_refusals += 1,
            _ => self.batches_failed += 1,
        }
        self.ended(job, now);
    }

    fn ended(&mut self, job: &Job, now: Millis) {
        self.lr_scale = job.lr_scale;
        self.score_mean = job.history.mean;
        self.job_ms = now - job.began_ms;
    }

    pub(crate) fn numbers(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("steps_total", self.steps as f64),
            ("versions_total", self.versions as f64),
            ("turns_trained_total", self.turns_trained as f64),
            ("hints_trained_total", self.hints_trained as f64),
            ("gate_refusals_total", self.gate_refusals as f64),
            ("gate_waits_total", self.gate_waits as f64),
            ("batches_failed_total", self.batches_failed as f64),
            ("step_failures_total", self.step_failures as f64),
            ("save_failures_total", self.save_failures as f64),
            ("ledger_failures_total", self.ledger_failures as f64),
            ("candidates_lost_total", self.lost as f64),
            ("jobs_given_up_total", self.given_up as f64),
            ("steps_stopped_total", self.stopped as f64),
            ("turns_left_out_total", self.left_out as f64),
            ("leases_lost_total", self.leases_lost as f64),
            ("folders_pruned_total", self.folders_pruned as f64),
            ("prune_failures_total", self.prune_failures as f64),
            ("trips_total", self.trips as f64),
            ("parity_tokens_total", self.parity.tokens as f64),
            ("parity_mismatches", self.parity.mismatches as f64),
            (
                "parity_difference_max",
                f64::from(self.parity.difference_max),
            ),
            ("ready_turns", self.ready_turns as f64),
            ("ready_scopes", self.ready_scopes as f64),
            ("train_share", self.share.share()),
            ("train_work_ms_total", self.share.work_us as f64 / 1e3),
            ("train_sleep_ms_total", self.share.sleep_us as f64 / 1e3),
            ("train_wait_ms_total", self.share.wait_us as f64 / 1e3),
            ("train_slices_total", self.share.slices as f64),
            (
                "train_slice_ms_max",
                self.share.longest_slice_us as f64 / 1e3,
            ),
            ("last_kl_to_reference", f64::from(self.kl_to_reference)),
            ("last_kl_to_parent", f64::from(self.kl_to_parent)),
            ("last_loss", self.loss),
            ("last_lr_scale", f64::from(self.lr_scale)),
            ("last_score_mean", f64::from(self.score_mean)),
            ("last_job_ms", self.job_ms as f64),
        ]
    }
}
