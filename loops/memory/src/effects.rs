//! The loop's only IO: the ledger, and what the gateway shows.

use std::sync::Arc;

use hone_domain::{MemoryKind, Scope};
use hone_ledger::Extraction;
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

    async fn store(&self, scope: &Scope, extraction: &mut Extraction) -> Report {
        let known = self.ctx.shared.of(scope);
        let facts = extraction
            .memories
            .iter_mut()
            .filter(|new| new.kind == MemoryKind::Fact);
        for new in facts {
            new.replaces = known.replaced(&new.text);
        }
        let stored = self
            .ctx
            .ledger
            .store_extraction(extraction, self.ctx.clock.now_ms())
            .await;
        if stored.as_ref().is_ok_and(|counts| counts.new > 0) {
            self.ctx.shared.refresh(scope).await;
        }
        Report::Stored(stored.map_err(|error| error.to_string()))
    }
}

impl Effects<State> for MemoryEffects {
    async fn perform(&self, effect: Effect) -> Report {
        match effect {
            Effect::Read { limit } => {
                let unread = self.ctx.ledger.unread(limit).await;
                Report::Read(unread.map_err(|error| error.to_string()))
            }
            Effect::Store {
                scope,
                mut extraction,
            } => self.store(&scope, &mut extraction).await,
        }
    }
}
