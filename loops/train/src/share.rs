//! Sharing the machine: how long training sleeps between two slices while serving is busy.

/// What training may take.
#[derive(Clone, Copy, Debug)]
pub struct ShareLimits {
    /// Most of the wall time while serving is busy.
    pub most: f64,
    /// Wall time that it gets in any case; also the most where `most` is smaller.
    pub least: f64,
    /// Over how long the share is measured, in microseconds.
    pub window_us: f64,
}

/// Keeps account of working and sleeping. Times are microseconds of any steady clock.
#[derive(Debug)]
pub struct Pacer {
    limits: ShareLimits,
    /// Work within the window, older work counting exponentially less.
    work_us: f64,
    sleep_us: f64,
    mark_us: u64,
    total: ShareTotals,
}

/// What training took so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShareTotals {
    /// Time spent in slices, in microseconds.
    pub work_us: u64,
    /// Time slept for serving's sake, in microseconds.
    pub sleep_us: u64,
    /// Slices.
    pub slices: u64,
    /// Longest slice, in microseconds.
    pub longest_slice_us: u64,
}

impl ShareTotals {
    /// Share of the wall time of its steps that training worked; 1 where it never slept.
    pub fn share(&self) -> f64 {
        let wall = self.work_us + self.sleep_us;
        if wall == 0 {
            1.0
        } else {
            self.work_us as f64 / wall as f64
        }
    }
}

impl Pacer {
    /// Begins to work at `now_us`.
    pub fn new(limits: ShareLimits, now_us: u64) -> Self {
        Self {
            limits,
            work_us: 0.0,
            sleep_us: 0.0,
            mark_us: now_us,
            total: ShareTotals::default(),
        }
    }

    /// A slice ended at `now_us`.
    pub fn worked(&mut self, now_us: u64) {
        let spent = self.elapse(now_us);
        self.work_us += spent as f64;
        self.total.work_us += spent;
        self.total.slices += 1;
        self.total.longest_slice_us = self.total.longest_slice_us.max(spent);
    }

    /// A sleep ended at `now_us`.
    pub fn slept(&mut self, now_us: u64) {
        let spent = self.elapse(now_us);
        self.sleep_us += spent as f64;
        self.total.sleep_us += spent;
    }

    /// How long to sleep from now on: 0 while serving is idle or the share is below the most.
    pub fn sleep_us(&self, busy: bool) -> u64 {
        let most = self.limits.most.max(self.limits.least);
        if !busy || most >= 1.0 {
            return 0;
        }
        // work / (work + sleep) = most
        let wanted = self.work_us / most - self.work_us - self.sleep_us;
        wanted.max(0.0) as u64
    }

    /// What training took so far.
    pub fn totals(&self) -> ShareTotals {
        self.total
    }

    fn elapse(&mut self, now_us: u64) -> u64 {
        let spent = now_us.saturating_sub(self.mark_us);
        self.mark_us = now_us;
        let keep = (-(spent as f64) / self.limits.window_us).exp();
        self.work_us *= keep;
        self.sleep_us *= keep;
        spent
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Runs slices of `slice_us` for ten seconds and returns the totals.
    fn run(most: f64, least: f64, slice_us: u64, busy: impl Fn(u64) -> bool) -> ShareTotals {
        let limits = ShareLimits {
            most,
            least,
            window_us: 2e6,
        };
        let (mut now, mut pacer) = (0, Pacer::new(limits, 0));
        while now < 10_000_000 {
            now += slice_us;
            pacer.worked(now);
            loop {
                let sleep = pacer.sleep_us(busy(now)).min(5_000);
                if sleep == 0 {
                    break;
                }
                now += sleep;
                pacer.slept(now);
            }
        }
        pacer.totals()
    }

    #[test]
    fn the_share_is_kept_while_serving_is_busy_and_whole_while_it_is_idle() {
        for (most, least, expected) in [(0.5, 0.1, 0.5), (0.2, 0.1, 0.2), (0.0, 0.1, 0.1)] {
            for slice in [1_000, 30_000] {
                let share = run(most, least, slice, |_| true).share();
                assert!(
                    (share - expected).abs() < 0.05,
                    "{most} {least} {slice}: {share}"
                );
            }
        }
        assert_eq!(run(0.2, 0.1, 1_000, |_| false).sleep_us, 0);
        assert_eq!(run(1.0, 0.1, 1_000, |_| true).sleep_us, 0);
    }

    #[test]
    fn a_sleep_ends_when_serving_falls_idle() {
        // Busy for the first half only: about a quarter of the time is slept.
        let totals = run(0.5, 0.1, 1_000, |now| now < 5_000_000);
        let slept = totals.sleep_us as f64 / 10e6;
        assert!((0.2..0.3).contains(&slept), "{totals:?}");
    }
}
