//! What the train loop wants done, and how it went.

use std::sync::Arc;

use hone_domain::{BatchId, BlobKey, Millis, Policy, Scope, Token};
use hone_ledger::{Claim, Publish, Ready, Refusal, Replayed, SampleMaterial};
use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::credit::RecentMean;
use crate::judged::Judged;
use crate::retold::FirstTry;
use crate::share::ShareTotals;
use crate::trainer::{TrainError, TrainJob};
use crate::watch::{WatchDecision, WatchLook};

/// What the loop wants done.
#[derive(Debug)]
pub enum Effect {
    /// Read the heads of all scopes and make them visible.
    Sync,
    /// Ask the ledger which scopes have ready turns.
    Look,
    /// Claim a batch of a scope.
    Claim(Scope),
    /// Take a step and measure the candidate.
    Train(Arc<TrainJob>),
    /// Make the candidate's files durable.
    Save(Scope, Arc<Candidate>),
    /// Make the version visible.
    Publish(Box<Publish>),
    /// Record a refused candidate and settle its samples.
    Refuse(Box<Refusal>),
    /// Give claims back.
    Release(Vec<Claim>, Millis),
    /// Keep claims until a later time.
    Renew(Vec<Claim>, Millis),
    /// Read how what is served does.
    Watch,
    /// Carry out what the watch decided.
    Decide(Box<WatchDecision>),
    /// Remove files that nobody needs.
    Prune,
}

/// How an effect went. Failures are sentences for a person.
#[derive(Debug)]
pub enum Report {
    /// Heads were read.
    Synced(Result<usize, String>),
    /// Scopes with ready turns; none while the loop is paused.
    Looked(Result<Vec<Ready>, String>),
    /// A claim ended.
    Claimed(Result<Claimed, String>),
    /// A candidate, and what the step took of the machine.
    Trained(Result<Arc<Candidate>, TrainError>, ShareTotals),
    /// The files are durable under this key.
    Saved(Result<BlobKey, String>),
    /// The publish ended.
    Published(PublishOutcome),
    /// The refusal is recorded, or why not.
    Refused(Result<(), String>),
    /// The claims are given back, or will run out.
    Released,
    /// How many claims are kept, or why none could be.
    Renewed(Result<u64, String>),
    /// How what is served does; none where nothing is new.
    Watched(Result<Option<Box<WatchLook>>, String>),
    /// How many scopes were taken back.
    Decided(Result<usize, String>),
    /// How many folders were removed.
    Pruned(Result<usize, String>),
}

/// What a claim found.
#[derive(Debug)]
pub enum Claimed {
    /// A batch.
    Batch(Box<ClaimedBatch>),
    /// Turns that were settled, as some of a long backlog are: the rest may be claimed at once.
    Settled,
    /// Nothing.
    Nothing,
}

/// A claimed batch with what is known about its scope.
#[derive(Debug)]
pub struct ClaimedBatch {
    /// Its id.
    pub batch: BatchId,
    /// The scope's newest version; none where nothing was published.
    pub parent: Option<Policy>,
    /// What the scope's last report remembers, of a version or of a refusal.
    pub memory: Option<Memory>,
    /// Turns that may train.
    pub materials: Vec<SampleMaterial>,
    /// Turns of the scope that were trained before, to learn from again by their words.
    pub replayed: Vec<Replayed>,
    /// First tries at what some of the turns try again, where the method learns from that.
    pub first_tries: Vec<FirstTry>,
    /// How many claimed turns were settled instead.
    pub left_out: usize,
    /// Prompts to probe with.
    pub probes: Vec<Vec<Token>>,
    /// How many of them, the first, are the fixed ones.
    pub golden: usize,
    /// Judged turns to compare on.
    pub held_out: Vec<Judged>,
}

/// What the loop keeps about a scope from step to step; stored in the report of every version and
/// every refusal, so that it outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Mean of recent scores.
    pub history: RecentMean,
    /// Factor on the learning rate.
    pub lr_scale: f32,
}

/// How a publish ended.
#[derive(Debug)]
pub enum PublishOutcome {
    /// The version is visible.
    Published(Policy),
    /// Leases were lost or the head moved: the candidate is thrown away.
    Lost(String),
    /// The ledger failed and nothing became visible.
    Failed(String),
}
