//! What the loop wants done and what comes back.

use hone_domain::{Job, JobId, Millis};
use hone_ledger::{JobEnd, JobLease, NewGroups, OpenRollout};
use hone_runtime::Shutdown;

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Look which rollouts have groups to begin.
    Look,
    /// Begin groups.
    Begin(NewGroups),
    /// Take up to so many jobs.
    Claim(usize),
    /// Do a job until it ends or is to stop.
    Run {
        /// The job.
        job: Box<Job>,
        /// When it is to stop.
        stop: Shutdown,
    },
    /// Note how a job ended.
    End {
        /// The job.
        lease: JobLease,
        /// How.
        end: Box<JobEnd>,
    },
    /// Hold jobs on.
    Renew(Vec<JobLease>),
}

/// What a job came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Ran {
    /// It ended.
    Ended(JobEnd),
    /// Something failed that is no fault of the job.
    Broken(hone_domain::JobReason, String),
    /// It was told to stop.
    Stopped,
}

/// What came of it.
#[derive(Debug)]
pub enum Report {
    /// Rollouts that have groups to begin.
    Looked(Result<Vec<OpenRollout>, String>),
    /// Whether groups were begun.
    Begun(Result<bool, String>),
    /// Jobs that were taken.
    Claimed(Result<Vec<Job>, String>),
    /// What a job came to.
    Ran {
        /// The job.
        job: JobId,
        /// What.
        ran: Ran,
        /// When.
        at_ms: Millis,
    },
    /// Whether an end is noted; false where the job was not held any more.
    Noted {
        /// The job.
        lease: JobLease,
        /// What it was to be told, where that failed.
        left: Option<Box<JobEnd>>,
        /// Whether it changed something.
        result: Result<bool, String>,
    },
    /// Jobs that are not held any more.
    Renewed(Result<Vec<JobId>, String>),
}
