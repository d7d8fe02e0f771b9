//! Drafts of a step: who has one, and how much of it is computed.

use std::sync::atomic::Ordering::Relaxed;

use crate::draft::{Candidate, RowCost, lengths};
use crate::plan::Row;
use crate::sequence::SCORED_MAX;
use crate::thread::Core;

/// Most tokens of drafts in one step: each takes a row of logits, and steps with drafts score nothing.
const DRAFTED_MAX: usize = SCORED_MAX;
/// Steps without drafts after the device had no memory for one with them.
const REST_STEPS: u64 = 256;

/// What the engine knows of drafts, and of those of the step.
#[derive(Debug, Default)]
pub(super) struct Drafting {
    pub(super) cost: RowCost,
    /// Tokens of drafts in this step.
    pub(super) drafted: usize,
    /// Until this step there are none.
    rest: u64,
    /// Places in the plan of those who have one.
    who: Vec<usize>,
    candidates: Vec<Candidate>,
    gains: Vec<(f64, usize)>,
    lengths: Vec<usize>,
}

impl Core {
    /// Gives drafts to those who decode in this step, where that pays. Only where nothing else is
    /// computed: what a prompt or a warm-up makes of the time is certain.
    pub(super) fn draft(&mut self) {
        self.drafting.drafted = 0;
        let (rows, config) = (self.plan.rows.len(), &self.ctx.config);
        let most = config.draft_tokens_max;
        let room = self
            .fitting
            .min(config.step_tokens_max)
            .saturating_sub(rows);
        let room = room.min(DRAFTED_MAX);
        let is_one = |row: &Row| row.tokens == 1;
        let may = most > 0
            && room > 0
            && self.step >= self.drafting.rest
            && self.warming.is_empty()
            && self.plan.rows.iter().all(is_one)
            && self.may_pay(rows);
        if !may {
            return;
        }
        let mut drafting = std::mem::take(&mut self.drafting);
        drafting.who.clear();
        drafting.candidates.clear();
        for at in 0..rows {
            let index = self.index_of(self.plan.rows[at].place);
            if let Some(candidate) = self.running[index].look_ahead(most.min(room)) {
                drafting.who.push(index);
                drafting.candidates.push(candidate);
            }
        }
        if !drafting.who.is_empty() {
            self.choose(&mut drafting, (rows, room));
        }
        self.drafting = drafting;
    }

    /// Cuts the drafts to what pays.
    fn choose(&mut self, drafting: &mut Drafting, (rows, room): (usize, usize)) {
        let Drafting {
            cost,
            drafted,
            who,
            candidates,
            gains,
            lengths: chosen,
            ..
        } = drafting;
        let us = |rows| self.row_us(cost, rows);
        lengths(candidates, (rows, room), us, (gains, chosen));
        for (index, tokens) in who.iter().zip(chosen) {
            self.running[*index].cut_draft(*tokens);
            *drafted += *tokens;
        }
        let counters = &self.ctx.shared.counters;
        counters.draft_tokens.fetch_add(*drafted as u64, Relaxed);
    }

    /// What a step of so many rows takes.
    fn row_us(&self, cost: &RowCost, rows: usize) -> f64 {
        match self.is_eager() {
            true => 1.0,
            false => cost.us(rows),
        }
    }

    fn may_pay(&self, rows: usize) -> bool {
        self.is_eager() || self.drafting.cost.may_pay(rows)
    }

    /// Whether tests want every draft, whatever it takes.
    fn is_eager(&self) -> bool {
        cfg!(test) && self.ctx.shared.eager.load(Relaxed)
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
