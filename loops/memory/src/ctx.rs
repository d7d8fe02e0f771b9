//! What the loop is given to work with.

use std::sync::Arc;

use hone_ledger::Memories;
use hone_runtime::{Clock, Ids, StatusRegistry};

use crate::{Config, SharedMemories};

/// What the loop works with.
#[derive(Clone)]
pub struct Ctx {
    /// Where turns and verdicts are read and memories written.
    pub ledger: Arc<dyn Memories>,
    /// What the gateway shows.
    pub shared: Arc<SharedMemories>,
    /// Makes ids of memories.
    pub ids: Arc<dyn Ids>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The loop's settings.
    pub config: Config,
    /// The status registry.
    pub registry: StatusRegistry,
}
