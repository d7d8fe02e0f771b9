//! Sharing the machine: how long training sleeps between two slices, and how urgent it is.

use crate::priority::Urgency;

/// What training may take.
#[derive(Clone, Copy, Debug)]
pub struct ShareLimits {
    /// Most of the wall time, reached where nobody is served.
    pub most: f64,
    /// Most of the time in which somebody is, where that is less.
    pub busy: f64,
    /// Wall time that it gets in any case; also the most where the others are smaller.
    pub least: f64,
    /// Over how long the share is measured, in microseconds.
    pub window_us: f64,
}

impl ShareLimits {
    /// Most of the wall time at a `load`, the share of the time in which somebody is served: the one
    /// share of the time that is free and the other of the rest.
    pub fn allowed(&self, load: f64) -> f64 {
        let load = load.clamp(0.0, 1.0);
        let allowed = self.most * (1.0 - load) + self.busy.min(self.most) * load;
        allowed.max(self.least).min(1.0)
    }
}

/// What clocks and the engine say at one moment; all of them only rise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Any steady clock, in microseconds.
    pub wall_us: u64,
    /// Time that training computed.
    pub work_us: u64,
    /// Time in which somebody was served.
    pub served_us: u64,
}

/// Keeps account of working, sleeping and serving.
#[derive(Debug)]
pub struct Pacer {
    limits: ShareLimits,
    /// Times within the window, what is older counting exponentially less.
    wall_us: f64,
    work_us: f64,
    served_us: f64,
    mark: Reading,
    total: ShareTotals,
}

/// What training took so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShareTotals {
    /// Time that training's own thread computed, in microseconds.
    pub work_us: u64,
    /// Time slept for serving's sake, in microseconds.
    pub sleep_us: u64,
    /// Time in which other threads had the core that it wanted, or a disk was waited for, in
    /// microseconds.
    pub wait_us: u64,
    /// Slices.
    pub slices: u64,
    /// Longest slice, in microseconds, waiting included.
    pub longest_slice_us: u64,
}

impl ShareTotals {
    /// Share of the wall time of its steps that training worked; 1 before the first.
    pub fn share(&self) -> f64 {
        let wall = self.work_us + self.sleep_us + self.wait_us;
        if wall == 0 {
            1.0
        } else {
            self.work_us as f64 / wall as f64
        }
    }
}

impl Pacer {
    /// Begins to work at `now`.
    pub fn new(limits: ShareLimits, now: Reading) -> Self {
        Self {
            limits,
            wall_us: 0.0,
            work_us: 0.0,
            served_us: 0.0,
            mark: now,
            total: ShareTotals::default(),
        }
    }

    /// A slice ended.
    pub fn worked(&mut self, now: Reading) {
        let (wall, work) = self.elapse(now);
        self.total.work_us += work;
        self.total.wait_us += wall - work;
        self.total.slices += 1;
        self.total.longest_slice_us = self.total.longest_slice_us.max(wall);
    }

    /// A sleep ended.
    pub fn slept(&mut self, now: Reading) {
        let (wall, _) = self.elapse(now);
        self.total.sleep_us += wall;
    }

    /// How long to sleep from now on: 0 while nobody is served or the share is below what the load
    /// allows.
    pub fn sleep_us(&self, serving: bool) -> u64 {
        let allowed = self.limits.allowed(self.load());
        if !serving && self.limits.most >= 1.0 {
            return 0;
        }
        // work / (wall + sleep) = allowed
        let wanted = self.work_us / allowed - self.wall_us;
        wanted.max(0.0) as u64
    }

    /// Training that gets less than the least it is promised has to take turns with others; one that
    /// gets what it may take of the time in which somebody is served keeps to the pauses.
    pub fn urgency(&self) -> Urgency {
        if self.work_us < self.limits.least * self.wall_us {
            Urgency::Turns
        } else if self.work_us < self.limits.busy * self.served_us {
            Urgency::Leftover
        } else {
            Urgency::Pauses
        }
    }

    /// Share of the window in which somebody was served.
    pub fn load(&self) -> f64 {
        if self.wall_us > 0.0 {
            (self.served_us / self.wall_us).min(1.0)
        } else {
            0.0
        }
    }

    /// What training took so far.
    pub fn totals(&self) -> ShareTotals {
        self.total
    }

    /// Time and work since the last mark.
    fn elapse(&mut self, now: Reading) -> (u64, u64) {
        let mark = std::mem::replace(&mut self.mark, now);
        let wall = now.wall_us.saturating_sub(mark.wall_us);
        // Clocks of different kinds may disagree by a tick.
        let work = now.work_us.saturating_sub(mark.work_us).min(wall);
        let served = now.served_us.saturating_sub(mark.served_us);
        let keep = (-(wall as f64) / self.limits.window_us).exp();
        let add = |sum: &mut f64, time: u64| *sum = *sum * keep + time as f64;
        add(&mut self.wall_us, wall);
        add(&mut self.work_us, work);
        add(&mut self.served_us, served);
        (wall, work)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const LIMITS: ShareLimits = ShareLimits {
        most: 1.0,
        busy: 0.25,
        least: 0.1,
        window_us: 2e6,
    };

    /// A machine on which training gets `core` of the time that it wants, for ten seconds.
    struct Machine<F> {
        limits: ShareLimits,
        slice_us: u64,
        core: f64,
        served: F,
    }

    impl<F: Fn(u64) -> bool> Machine<F> {
        fn run(&self) -> ShareTotals {
            let (mut now, mut pacer) = (
                Reading::default(),
                Pacer::new(self.limits, Reading::default()),
            );
            while now.wall_us < 10_000_000 {
                self.pass(&mut now, self.slice_us);
                now.work_us += (self.slice_us as f64 * self.core) as u64;
                pacer.worked(now);
                loop {
                    let sleep = pacer.sleep_us((self.served)(now.wall_us)).min(5_000);
                    if sleep == 0 {
                        break;
                    }
                    self.pass(&mut now, sleep);
                    pacer.slept(now);
                }
            }
            pacer.totals()
        }

        fn pass(&self, now: &mut Reading, us: u64) {
            if (self.served)(now.wall_us) {
                now.served_us += us;
            }
            now.wall_us += us;
        }
    }

    fn share_of(limits: ShareLimits, slice_us: u64, served: impl Fn(u64) -> bool) -> f64 {
        let machine = Machine {
            limits,
            slice_us,
            core: 1.0,
            served,
        };
        machine.run().share()
    }

    #[test]
    fn the_share_of_busy_time_is_kept_and_free_time_is_training_s_own() {
        for (busy, least, expected) in [(0.5, 0.1, 0.5), (0.2, 0.1, 0.2), (0.0, 0.1, 0.1)] {
            for slice in [100, 1_000, 30_000] {
                let limits = ShareLimits {
                    busy,
                    least,
                    ..LIMITS
                };
                let share = share_of(limits, slice, |_| true);
                assert!(
                    (share - expected).abs() < 0.05,
                    "{limits:?} {slice}: {share}"
                );
            }
        }
        assert_eq!(share_of(LIMITS, 1_000, |_| false), 1.0);
        let half = ShareLimits {
            most: 0.5,
            ..LIMITS
        };
        let share = share_of(half, 1_000, |_| false);
        assert!((share - 0.5).abs() < 0.05, "{share}");
        // Served for 30 of every 50 ms: all of the rest, and a quarter of that.
        let share = share_of(LIMITS, 1_000, |now| now % 50_000 < 30_000);
        assert!((share - (0.4 + 0.6 * 0.25)).abs() < 0.06, "{share}");
    }

    #[test]
    fn a_sleep_ends_when_nobody_is_served_any_more() {
        // Served for the first half only: three eighths of the time are slept.
        let machine = Machine {
            limits: LIMITS,
            slice_us: 1_000,
            core: 1.0,
            served: |now| now < 5_000_000,
        };
        let totals = machine.run();
        let slept = totals.sleep_us as f64 / 10e6;
        assert!((0.33..0.42).contains(&slept), "{totals:?}");
    }

    #[test]
    fn training_that_gets_no_core_stops_sleeping_and_becomes_urgent() {
        let mut pacer = Pacer::new(LIMITS, Reading::default());
        let mut now = Reading::default();
        let mut slice = |pacer: &mut Pacer, work_us| {
            now.wall_us += 10_000;
            now.served_us += 10_000;
            now.work_us += work_us;
            pacer.worked(now);
            (pacer.sleep_us(true) > 0, pacer.urgency())
        };
        assert_eq!(slice(&mut pacer, 9_000), (true, Urgency::Pauses));
        let last = (0..100).map(|_| slice(&mut pacer, 100)).last().unwrap();
        assert_eq!(last, (false, Urgency::Turns));
        let last = (0..100).map(|_| slice(&mut pacer, 2_000)).last().unwrap();
        assert_eq!(last, (false, Urgency::Leftover));
        let totals = pacer.totals();
        assert_eq!((totals.slices, totals.longest_slice_us), (201, 10_000));
        assert_eq!(totals.work_us + totals.wait_us, 2_010_000);
    }

    fn any_limits() -> impl Strategy<Value = ShareLimits> {
        (0.0..=1.0, 0.0..=1.0, 0.01..=1.0).prop_map(|(most, busy, least)| ShareLimits {
            most,
            busy,
            least,
            window_us: 2e6,
        })
    }

    proptest! {
        #[test]
        fn the_allowed_share_falls_steadily_with_load(limits in any_limits(), a in 0.0..=1.0, b in 0.0..=1.0) {
            let (low, high) = (f64::min(a, b), f64::max(a, b));
            let (more, less) = (limits.allowed(low), limits.allowed(high));
            prop_assert!(less <= more + 1e-12);
            // No jump: never steeper than from one end to the other.
            prop_assert!(more - less <= (high - low) * limits.most + 1e-12);
            for share in [more, less] {
                prop_assert!(share >= limits.least);
                prop_assert!(share <= limits.most.max(limits.least) + 1e-12);
            }
            prop_assert_eq!(limits.allowed(0.0), limits.most.max(limits.least));
            let busy = limits.busy.min(limits.most).max(limits.least);
            prop_assert_eq!(limits.allowed(1.0), busy);
        }

        /// Whatever the load does, training never sleeps while it is below what it is promised, and
        /// a pause never asks for more than brings it down to what is allowed.
        #[test]
        fn nobody_takes_what_training_is_promised(
            limits in any_limits(),
            moments in proptest::collection::vec((1_u64..50_000, 0_u64..=100, 0_u64..=100), 1..60),
        ) {
            let (mut now, mut pacer) = (Reading::default(), Pacer::new(limits, Reading::default()));
            for (us, work, served) in moments {
                now.wall_us += us;
                now.work_us += us * work / 100;
                now.served_us += us * served / 100;
                pacer.worked(now);
                let sleep = pacer.sleep_us(true);
                if pacer.urgency() == Urgency::Turns {
                    prop_assert_eq!(sleep, 0);
                }
                prop_assert!((0.0..=1.0).contains(&pacer.load()));
                let after = pacer.work_us / (pacer.wall_us + sleep as f64);
                prop_assert!(sleep == 0 || after + 1e-9 >= limits.allowed(pacer.load()));
            }
        }
    }
}
