//! The loop's only IO: the ledger, and what the gateway shows.

use std::sync::Arc;

use hone_domain::Scope;
use hone_ledger::Lesson;
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

    async fn learn(&self, scope: &Scope, lesson: &Lesson) -> Report {
        let learnt = self.ctx.ledger.learn(lesson, self.ctx.clock.now_ms()).await;
        if learnt.as_ref().is_ok_and(|learnt| learnt.new > 0) {
            self.ctx.shared.refresh(scope).await;
        }
        Report::Learnt(learnt.map_err(|error| error.to_string()))
    }
}

impl Effects<State> for MemoryEffects {
    async fn perform(&self, effect: Effect) -> Report {
        match effect {
            Effect::Read { limit } => {
                let heard = self.ctx.ledger.heard(limit).await;
                Report::Heard(heard.map_err(|error| error.to_string()))
            }
            Effect::Learn { scope, lesson } => self.learn(&scope, &lesson).await,
        }
    }
}
