//! What the loop is given to work with.

use std::sync::{Arc, Mutex};

use hone_domain::SessionIndex;
use hone_ledger::Ledger;
use hone_runtime::{Clock, Ids, StatusRegistry};

use crate::{Carry, Config, Spool};

/// The index that the gateway binds with. The gateway records ended turns into it.
pub type SharedIndex = Arc<Mutex<SessionIndex>>;

/// What the loop works with.
#[derive(Clone)]
pub struct Ctx {
    /// Where everything is recorded.
    pub ledger: Arc<dyn Ledger>,
    /// Makes transition ids.
    pub ids: Arc<dyn Ids>,
    /// The gateway's session index.
    pub index: SharedIndex,
    /// Where turns wait while the ledger does not answer.
    pub spool: Arc<Spool>,
    /// What survives a restart of the loop; made once per process, cloned into every run.
    pub carry: Carry,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The loop's settings.
    pub config: Config,
    /// The status registry.
    pub registry: StatusRegistry,
}
