//! The loop's only IO: the ledger, and what the gateway shows.

use std::sync::Arc;

use hone_domain::SkillId;
use hone_runtime::Effects;

use crate::{Ctx, Effect, Report, State};

/// Performs the loop's effects.
#[derive(Clone)]
pub struct MemoryEffects {
    ctx: Arc<Ctx>,
}

impl MemoryEffects {
    /// Effects over a context.
    pub fn new(ctx: Ctx) -> Self {
        Self { ctx: Arc::new(ctx) }
    }
}

impl Effects<State> for MemoryEffects {
    async fn perform(&self, effect: Effect) -> Report {
        match effect {
            Effect::Read { limit } => {
                let unread = self.ctx.ledger.unread(limit).await;
                Report::Read(unread.map_err(|error| error.to_string()))
            }
            Effect::Store { scope, extraction } => {
                let now_ms = self.ctx.clock.now_ms();
                let id = SkillId(self.ctx.ids.next());
                let stored = self.ctx.shared.store(&scope, *extraction, id, now_ms);
                let stored = stored.await;
                Report::Stored(stored.map_err(|error| error.to_string()))
            }
        }
    }
}
