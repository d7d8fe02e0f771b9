//! What one step computes: a pure function over plain numbers.
//!
//! Every request has a place in one order: its arrival, later by a fixed time per priority class.
//! So a user overtakes a rollout, and a rollout that waited long enough is overtaken no more.
//! Decoding requests go first, one token each. What is left of the token budget goes to prefills
//! by turns. When blocks run out, the last in the order gives its blocks back and is computed
//! again later; the first in the order is never paused, so the engine always moves on. While the first
//! of the waiting line does not fit, small ones behind it may pass it, so many times. Where all is taken,
//! the last of the owner who has most gives its place to one of an owner who will still have fewer.

use hone_nn::BLOCK_TOKENS;

/// Place in the order: (arrival and head start in milliseconds, number). Smaller goes first.
pub(crate) type Place = (i64, u64);

/// Steps a prefill of one class may wait for its turn before it precedes the class above.
const CLASS_TURNS: u64 = 8;

/// So many requests may pass one that waits for blocks.
pub(crate) const PASSES_MAX: u32 = 32;
/// What passes another takes at most this part of all blocks.
const SMALL_PART: usize = 16;

/// Numbers that hold for the whole engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most tokens in this step; more than `rows`, but where a device lacks memory.
    pub(crate) tokens: usize,
    /// Most running requests.
    pub(crate) rows: usize,
    /// Most prompt tokens of one request.
    pub(crate) chunk: usize,
    /// Blocks in all.
    pub(crate) blocks: usize,
    /// Blocks after which a request gives back as many as it takes (sliding windows).
    pub(crate) blocks_each: usize,
}

/// A request as the plan sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// Unique, so it also names the request in the plan.
    pub(crate) place: Place,
    /// Priority class; 0 is the best.
    pub(crate) class: u8,
    /// Whose it is.
    pub(crate) owner: u64,
    /// Tokens it has: prompt and completion so far.
    pub(crate) tokens: usize,
    /// Of these, tokens whose keys and values are stored. For one that waits: those it would find.
    pub(crate) computed: usize,
    /// Blocks in its table. For one that waits: the cached blocks it would find.
    pub(crate) blocks: usize,
    /// Running: blocks that would become free if it paused. Waiting: cached blocks it would find
    /// that count as free now.
    pub(crate) own: usize,
    /// Waiting: cached blocks it would find that a single running request holds; if that one
    /// pauses, they do not become free.
    pub(crate) tied: usize,
    /// The step that last computed prompt tokens of it, at first the step in which it arrived.
    pub(crate) last_turn: u64,
    /// Most tokens of it to compute in one step, at least 1.
    pub(crate) chunk: usize,
    /// Waiting: how many passed it so far.
    pub(crate) passed: u32,
}

impl View {
    fn remaining(&self) -> usize {
        self.tokens - self.computed
    }

    /// Blocks it still needs for the tokens it has and the next one.
    fn missing(&self, limits: &Limits) -> usize {
        let whole = (self.tokens + 1).div_ceil(BLOCK_TOKENS);
        let wanted = whole.min(limits.blocks_each).saturating_sub(self.blocks);
        // The next one is taken before one is given back.
        wanted.max(usize::from(whole > self.blocks))
    }
}

/// All a plan depends on.
#[derive(Debug)]
pub(crate) struct Situation<'a> {
    /// Ascends by place.
    pub(crate) running: &'a [View],
    /// The first of the waiting line, in the order of admission; as many as are worth a look, without
    /// those whose prefix another request computes right now: they had better wait.
    pub(crate) waiting: &'a [View],
    /// Blocks that can be taken now.
    pub(crate) free: usize,
    pub(crate) limits: Limits,
}

/// Tokens of one request to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) place: Place,
    pub(crate) tokens: usize,
}

/// What to do, in this order: pause, admit, compute.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) pause: Vec<Place>,
    pub(crate) admit: Vec<Place>,
    pub(crate) rows: Vec<Row>,
}

/// Makes the plan of a step into `plan`, whose buffers are reused with `scratch`'s.
pub(crate) fn plan(situation: &Situation, scratch: &mut PlanScratch, plan: &mut Plan) {
    plan.pause.clear();
    plan.admit.clear();
    plan.rows.clear();
    scratch.running.clear();
    scratch.running.extend_from_slice(situation.running);
    let mut work = Work {
        limits: situation.limits,
        free: situation.free,
        budget: situation.limits.tokens,
        tied: 0,
        running: &mut scratch.running,
        prefills: &mut scratch.prefills,
        victims: &mut scratch.victims,
        shares: &mut scratch.shares,
        plan,
    };
    work.admit(situation.waiting);
    work.decode();
    work.prefill();
    while work.plan.rows.is_empty() && work.is_stuck() {
        let last = work.running.len() - 1;
        work.pause(last);
        work.decode();
        work.prefill();
    }
}

/// Buffers that a caller keeps between plans.
#[derive(Debug, Default)]
pub(crate) struct PlanScratch {
    running: Vec<View>,
    prefills: Vec<View>,
    victims: Vec<usize>,
    shares: Vec<Share>,
}

/// What the running requests of one owner in one class have.
#[derive(Clone, Copy, Debug)]
struct Share {
    owner: u64,
    seats: usize,
    blocks: usize,
}

struct Work<'a> {
    limits: Limits,
    free: usize,
    budget: usize,
    /// Blocks of running requests that admitted ones share since this plan, and that were not counted
    /// yet as staying in use when a running one pauses.
    tied: usize,
    /// Running and not paused, ascending.
    running: &'a mut Vec<View>,
    prefills: &'a mut Vec<View>,
    /// Which of the running ones pause for the one that is looked at.
    victims: &'a mut Vec<usize>,
    /// Who has what in the class of that one.
    shares: &'a mut Vec<Share>,
    plan: &'a mut Plan,
}

impl Work<'_> {
    /// Whether one before the last has tokens to compute. Where nobody has, all wait for something
    /// else than blocks.
    fn is_stuck(&self) -> bool {
        let before = self
            .running
            .split_last()
            .map_or(&[][..], |(_, before)| before);
        before.iter().any(|view| view.remaining() > 0)
    }

    fn pause(&mut self, at: usize) {
        let paused = self.running.remove(at);
        let admitted = &mut self.plan.admit;
        if let Some(at) = admitted.iter().position(|place| *place == paused.place) {
            // Admitted by this very plan: it simply stays in line.
            admitted.remove(at);
            self.free += paused.own;
        } else {
            self.plan.pause.push(paused.place);
            let gain = self.gain(&paused);
            self.tied -= paused.own - gain;
            self.free += gain;
        }
    }

    /// Blocks that surely become free when `view` pauses.
    fn gain(&self, view: &View) -> usize {
        view.own.saturating_sub(self.tied)
    }

    /// Lets waiting requests in, in order, as long as every running one still gets the blocks for all
    /// tokens it has. One of a better class may take the place of a later one. Behind one that does not
    /// fit only small ones come in, which pause nobody.
    fn admit(&mut self, waiting: &[View]) {
        let mut promised: usize = self.running.iter().map(|v| v.missing(&self.limits)).sum();
        let mut held_up = false;
        for view in waiting {
            let needed = view.missing(&self.limits) + view.own;
            let is_small = needed + view.tied <= self.limits.blocks / SMALL_PART;
            let may_pause = !held_up;
            let fits = (may_pause || is_small) && self.victims(view, needed + promised, may_pause);
            if !fits {
                if view.passed >= PASSES_MAX {
                    break;
                }
                held_up = true;
                continue;
            }
            self.victims.sort_unstable();
            while let Some(at) = self.victims.pop() {
                promised -= self.running[at].missing(&self.limits);
                self.pause(at);
            }
            promised += view.missing(&self.limits);
            self.free -= view.own;
            if self.plan.pause.is_empty() {
                self.tied += view.tied;
            } else {
                self.free -= view.tied;
            }
            let at = self.running.partition_point(|v| v.place < view.place);
            self.running.insert(at, *view);
            self.plan.admit.push(view.place);
        }
    }

    /// Counts what everybody has in the class of `view`, who is among them.
    fn count_shares(&mut self, view: &View) {
        self.shares.clear();
        let none = |owner| Share {
            owner,
            seats: 0,
            blocks: 0,
        };
        self.shares.push(none(view.owner));
        for v in self.running.iter().filter(|v| v.class == view.class) {
            let known = self.shares.iter().position(|s| s.owner == v.owner);
            let at = known.unwrap_or_else(|| {
                self.shares.push(none(v.owner));
                self.shares.len() - 1
            });
            self.shares[at].seats += 1;
            self.shares[at].blocks += v.blocks;
        }
    }

    /// Which of the running ones `view` displaces next in its own class: the last one of the owner who has
    /// most, who must have no fewer places even then, nor fewer blocks, unless a place is all that
    /// lacks.
    fn next_of_class(&mut self, view: &View, for_blocks: bool) -> Option<usize> {
        if self.shares.is_empty() {
            self.count_shares(view);
        }
        let own = self.shares[0];
        let wanted = own.blocks + view.blocks + view.missing(&self.limits);
        let most = self.shares.iter().map(|s| s.seats).max()?;
        let all = self.running.iter().enumerate().rev();
        for (at, v) in all.filter(|(at, v)| v.class == view.class && !self.victims.contains(at)) {
            let share = self.shares.iter_mut().find(|s| s.owner == v.owner)?;
            let gives = share.seats == most
                && share.seats >= own.seats + 2
                && !(for_blocks && share.blocks < wanted + v.blocks);
            if gives {
                share.seats -= 1;
                share.blocks -= v.blocks;
                return Some(at);
            }
        }
        None
    }

    /// Finds who must pause so that `view` fits with `needed` blocks, if anybody may; whether it
    /// can fit. Those of a worse class go first, the last of them before the others.
    fn victims(&mut self, view: &View, needed: usize, may_pause: bool) -> bool {
        // A little room to grow, so that a newcomer is not paused again at once.
        let spare = if self.running.is_empty() {
            0
        } else {
            self.limits.blocks / 64 + 1
        };
        let (mut rows, mut free, mut needed) = (self.running.len(), self.free, needed + spare);
        if !self.plan.pause.is_empty() {
            needed += view.tied;
        }
        self.victims.clear();
        self.shares.clear();
        let mut below = self.running.len();
        while rows >= self.limits.rows || free < needed {
            if !may_pause {
                return false;
            }
            let is_below = |v: &View| v.class > view.class && v.place > view.place;
            let worse = self.running[..below].iter().rposition(is_below);
            below = worse.unwrap_or(0);
            let victim = worse.or_else(|| self.next_of_class(view, rows < self.limits.rows));
            let Some(at) = victim else {
                return false;
            };
            let victim = self.running[at];
            self.victims.push(at);
            rows -= 1;
            free += self.gain(&victim);
            if self.victims.len() == 1 && self.plan.pause.is_empty() {
                needed += view.tied;
            }
            needed -= victim.missing(&self.limits).min(needed);
        }
        true
    }

    /// One token for every request whose other tokens are all computed.
    fn decode(&mut self) {
        let mut at = 0;
        while at < self.running.len() && self.budget > 0 {
            let view = self.running[at];
            if view.remaining() != 1 {
                at += 1;
                continue;
            }
            let needed = usize::from(view.computed / BLOCK_TOKENS >= view.blocks);
            while self.free < needed && at + 1 < self.running.len() {
                self.pause(self.running.len() - 1);
            }
            if self.free >= needed {
                self.free -= needed;
                self.budget -= 1;
                self.plan.rows.push(Row {
                    place: view.place,
                    tokens: 1,
                });
            }
            at += 1;
        }
    }

    /// Shares the rest of the budget among prefills, the longest unserved first; of those served
    /// last in the same step the shortest, so that a long one never leaves it a few tokens a step.
    fn prefill(&mut self) {
        self.prefills.clear();
        self.prefills
            .extend(self.running.iter().filter(|v| v.remaining() > 1));
        let turn = |v: &View| v.last_turn + u64::from(v.class) * CLASS_TURNS;
        self.prefills
            .sort_unstable_by_key(|v| (turn(v), v.remaining(), v.place));
        for view in &*self.prefills {
            let room = (view.blocks + self.free) * BLOCK_TOKENS - view.computed;
            let tokens = view
                .remaining()
                .min(self.budget)
                .min(self.limits.chunk)
                .min(view.chunk)
                .min(room);
            if tokens == 0 {
                continue;
            }
            let blocks = (view.computed + tokens).div_ceil(BLOCK_TOKENS);
            self.free -= blocks.saturating_sub(view.blocks);
            self.budget -= tokens;
            self.plan.rows.push(Row {
                place: view.place,
                tokens,
            });
        }
    }
}

#[cfg(test)]
#[path = "tests/plan.rs"]
mod tests;
