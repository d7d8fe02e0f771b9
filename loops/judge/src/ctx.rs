//! What the loop is given to work with.

use std::sync::Arc;

use hone_ledger::Ledger;
use hone_runtime::{Clock, Ids, StatusRegistry};

use crate::{Caller, Completer, Config, Reader, Weigher};

/// What the loop works with.
#[derive(Clone)]
pub struct Ctx {
    /// Where transitions are claimed and verdicts recorded.
    pub ledger: Arc<dyn Ledger>,
    /// The model that votes; without one, feedback and rules decide.
    pub completer: Option<Arc<dyn Completer>>,
    /// Who weighs hints by the served policy; without it the first of several is kept.
    pub weigher: Option<Arc<dyn Weigher>>,
    /// Who reads replies by the served base model; without one the rules alone read them.
    pub reader: Option<Arc<dyn Reader>>,
    /// Who makes the calls of callbacks; without one they abstain.
    pub caller: Option<Arc<dyn Caller>>,
    /// Makes verdict ids and the marks of prompts.
    pub ids: Arc<dyn Ids>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The loop's settings.
    pub config: Config,
    /// The status registry.
    pub registry: StatusRegistry,
}
