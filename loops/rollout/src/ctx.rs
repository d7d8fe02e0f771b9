//! What the loop is given to work with.

use std::sync::Arc;

use hone_ledger::Jobs;
use hone_runtime::{Clock, Ids, StatusRegistry};

use crate::{Config, Player};

/// What the loop works with.
#[derive(Clone)]
pub struct Ctx {
    /// Where tasks, rollouts and jobs are.
    pub ledger: Arc<dyn Jobs>,
    /// Who plays episodes.
    pub player: Arc<dyn Player>,
    /// Makes ids of groups.
    pub ids: Arc<dyn Ids>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The loop's settings.
    pub config: Config,
    /// The status registry.
    pub registry: StatusRegistry,
}
