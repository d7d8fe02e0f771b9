//! What the loop is given.

use std::sync::Arc;

use hone_domain::{Blobs, Policies, Token};
use hone_ledger::{Ledger, Versions};
use hone_runtime::{Clock, Ids, Latest, StatusRegistry};

use crate::config::Config;
use crate::evaluator::Evaluator;
use crate::priority::Priority;
use crate::progress::UnderWay;
use crate::serving::Serving;
use crate::trainer::Trainer;

/// The loop's name in the status registry.
pub const NAME: &str = "train";

/// What the loop is given.
#[derive(Clone)]
pub struct Ctx {
    /// The ledger.
    pub ledger: Arc<dyn Ledger>,
    /// Decisions about versions.
    pub versions: Arc<dyn Versions>,
    /// Where adapters and checkpoints go.
    pub blobs: Arc<dyn Blobs>,
    /// What takes steps.
    pub trainer: Arc<dyn Trainer>,
    /// What measures their candidates.
    pub evaluator: Arc<dyn Evaluator>,
    /// The newest version of every scope, for serve.
    pub policies: Latest<Policies>,
    /// How much is served.
    pub serving: Serving,
    /// Of the threads that the trainer computes on; the loop's own joins them.
    pub priority: Priority,
    /// Fixed prompts that every candidate is probed with, as tokens.
    pub golden: Arc<Vec<Vec<Token>>>,
    /// Makes batch ids.
    pub ids: Arc<dyn Ids>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Where the job under way is shown.
    pub under_way: Latest<Option<UnderWay>>,
    /// Its keys.
    pub config: Config,
    /// The status registry.
    pub registry: StatusRegistry,
}
