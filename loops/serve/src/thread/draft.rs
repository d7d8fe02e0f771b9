//! Drafts of a step: who has one, and how much of it is computed.

use std::time::Instant;

use crate::draft::{Bounds, Drafting, ROWS_MAX, SLOWER, choose};
use crate::sequence::SCORED_MAX;
use crate::thread::Core;

/// Most tokens of drafts in one step: each takes a row of logits, of which steps without drafts score as many.
const DRAFTED_MAX: usize = SCORED_MAX;
/// Steps without drafts after the device had no memory for one with them.
const REST_STEPS: u64 = 256;
/// A step with drafts lasts no longer than steps should (`serve.step_target_ms`), or so many times as long as
/// it would without.
const LONGER: f64 = 2.0;

impl Core {
    /// Gives drafts to those who decode in this step, where that pays. Only where nothing else is
    /// computed: what a prompt or a warm-up makes of the time is certain.
    pub(super) fn draft(&mut self) {
        self.drafting.drafted = 0;
        let (rows, config) = (self.plan.rows.len(), &self.ctx.config);
        let each = config.draft_tokens_max;
        let room = (self.fitting.min(config.step_tokens_max)).min(ROWS_MAX - 1);
        let most = room.saturating_sub(rows).min(DRAFTED_MAX).min(rows * each);
        let may = most > 0
            && self.step >= self.drafting.rest
            && (self.warming.is_empty() || Instant::now() < self.warm_rest)
            && self.only_decodes()
            && (self.is_eager() || self.drafting.cost.may_pay(rows, most));
        if !may {
            return;
        }
        let mut drafting = std::mem::take(&mut self.drafting);
        drafting.who.clear();
        drafting.candidates.clear();
        for at in 0..rows {
            let index = self.index_of(self.plan.rows[at].place);
            if let Some(candidate) = self.running[index].look_ahead(each.min(most)) {
                drafting.who.push(index);
                drafting.candidates.push(candidate);
            }
        }
        if !drafting.who.is_empty() {
            self.cut_drafts(&mut drafting, rows, most);
        }
        self.drafting = drafting;
    }

    /// Whether the step computes the next token of everybody in it, and nothing else.
    fn only_decodes(&self) -> bool {
        self.plan.rows.iter().all(|row| {
            let sequence = &self.running[self.index_of(row.place)];
            row.tokens == 1 && sequence.samples_after(1)
        })
    }

    /// Cuts the drafts to what pays.
    fn cut_drafts(&mut self, drafting: &mut Drafting, rows: usize, most: usize) {
        let Drafting {
            cost,
            drafted,
            who,
            candidates,
            chosen,
            ..
        } = drafting;
        let is_eager = self.is_eager();
        let us = |rows| if is_eager { 1.0 } else { cost.us(rows) };
        let target_us = (self.ctx.config.step_target_ms * 1_000) as f64;
        let bounds = Bounds {
            rows,
            most,
            longest: target_us.max(LONGER * us(rows)),
            slower: SLOWER,
        };
        choose(candidates, bounds, us, chosen);
        for (index, tokens) in who.iter().zip(&chosen.lengths) {
            self.running[*index].cut_draft(*tokens);
            *drafted += *tokens;
        }
    }

    /// Whether tests want every draft, whatever it takes.
    fn is_eager(&self) -> bool {
        #[cfg(test)]
        return self
            .ctx
            .shared
            .eager
            .load(std::sync::atomic::Ordering::Relaxed);
        #[cfg(not(test))]
        false
    }

    /// Drops the drafts of a step that was not computed; whether there were any.
    pub(super) fn drop_drafts(&mut self) -> bool {
        let any = std::mem::take(&mut self.drafting.drafted) > 0;
        if any {
            self.running.iter_mut().for_each(|s| s.drop_draft());
            self.drafting.rest = self.step + REST_STEPS;
        }
        any
    }
}
