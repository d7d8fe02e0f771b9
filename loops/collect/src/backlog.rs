//! Whether something waits in the spool, and when it is shipped.

use crate::{Config, Ship, Shipped, SpoolStatus};

/// The spool as the loop's state sees it.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// As it was told last.
    pub(crate) status: SpoolStatus,
    /// Something waits: what comes goes behind it.
    pub(crate) is_behind: bool,
    is_under_way: bool,
    is_resting: bool,
    /// A batch was put into the spool since the shipping under way began: it may not have met it.
    has_more: bool,
    /// Little waits, or only what is on its way into the spool: nothing further goes into it, so that a steady stream of
    /// turns does not keep it from being emptied.
    is_closing: bool,
    failures_in_row: u32,
}

/// What follows a shipping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The next one.
    Again,
    /// Nothing until the batch that is being put into the spool is there.
    Wait,
    /// A rest, in milliseconds.
    Rest(u64),
    /// Everything is in the ledger: what comes goes there again.
    CaughtUp,
}

impl Backlog {
    /// Beginning with what an earlier run left.
    pub(crate) fn with(status: SpoolStatus) -> Self {
        Self {
            status,
            is_behind: status.records > 0,
            ..Self::default()
        }
    }

    /// A write is over; something may have gone into the spool.
    pub(crate) fn came(&mut self, status: SpoolStatus) {
        self.has_more |= self.is_under_way;
        self.is_behind |= status.records > 0;
        self.status = status;
    }

    /// The next shipping, if something waits and none is under way. After a failure it takes single records.
    pub(crate) fn next(&mut self, config: &Config) -> Option<Ship> {
        if self.is_under_way || self.is_resting || !self.is_behind {
            return None;
        }
        (self.is_under_way, self.has_more) = (true, false);
        let failures = self.failures_in_row;
        let limit_ms = match self.is_closing {
            // Receipts wait for it.
            true => config.spool_after_ms,
            false => config.ship_ms_max << failures.min(4),
        };
        Some(Ship {
            most: if failures == 0 {
                config.batch_turns_max
            } else {
                1
            },
            limit_ms,
            doubts_first: failures > config.attempts_max,
        })
    }

    /// A shipping is over; `is_writing` while a batch is being put into the spool.
    pub(crate) fn shipped(&mut self, shipped: &Shipped, is_writing: bool, config: &Config) -> Then {
        self.is_under_way = false;
        self.status = shipped.status;
        if shipped.error.is_some() {
            let pause_ms = config.pause_ms(self.failures_in_row);
            self.failures_in_row = self.failures_in_row.saturating_add(1);
            (self.is_resting, self.is_closing) = (true, false);
            return Then::Rest(pause_ms);
        }
        self.failures_in_row = 0;
        if self.status.records > 0 {
            // The rest is small enough for receipts to wait for it.
            self.is_closing |= self.status.records <= (config.batch_turns_max / 4) as u64;
            return Then::Again;
        }
        self.is_closing = is_writing || self.has_more;
        match (is_writing, self.has_more) {
            (true, _) => Then::Wait,
            (false, true) => Then::Again,
            (false, false) => {
                self.is_behind = false;
                Then::CaughtUp
            }
        }
    }

    /// Whether what comes is held until the spool is empty.
    pub(crate) fn holds(&self) -> bool {
        self.is_closing
    }

    /// A rest is over.
    pub(crate) fn rested(&mut self) {
        self.is_resting = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(records: u64) -> SpoolStatus {
        SpoolStatus {
            records,
            ..SpoolStatus::default()
        }
    }

    fn shipped(records: u64, error: Option<&str>) -> Shipped {
        Shipped {
            status: status(records),
            error: error.map(str::to_owned),
            ..Shipped::default()
        }
    }

    #[test]
    fn it_is_behind_until_nothing_waits_and_nothing_is_on_its_way() {
        let config = Config::for_tests();
        let mut backlog = Backlog::default();
        assert_eq!(backlog.next(&config), None);
        backlog.came(status(3));
        assert!(backlog.is_behind);
        let first = backlog.next(&config).expect("something waits");
        assert_eq!((first.most, first.doubts_first), (8, false));
        assert_eq!(backlog.next(&config), None, "one at a time");
        assert_eq!(
            backlog.shipped(&shipped(1, None), false, &config),
            Then::Again
        );
        // A batch goes in while the last one is shipped, and its report comes first.
        backlog.next(&config).expect("one waits");
        backlog.came(status(2));
        assert_eq!(
            backlog.shipped(&shipped(0, None), false, &config),
            Then::Again
        );
        backlog
            .next(&config)
            .expect("it may not have met the batch");
        // A batch is on its way in.
        assert_eq!(
            backlog.shipped(&shipped(0, None), true, &config),
            Then::Wait
        );
        assert!(backlog.holds(), "nothing further goes in");
        backlog.came(status(1));
        let last = backlog.next(&config).expect("it is still behind");
        assert_eq!(last.limit_ms, config.spool_after_ms);
        assert_eq!(
            backlog.shipped(&shipped(0, None), false, &config),
            Then::CaughtUp
        );
        assert!(!backlog.is_behind && !backlog.holds());
        assert_eq!(backlog.next(&config), None);
    }

    #[test]
    fn a_steady_stream_does_not_keep_it_from_being_emptied() {
        let config = Config::for_tests();
        let mut backlog = Backlog::with(status(20));
        backlog.next(&config).expect("something waits");
        let then = backlog.shipped(&shipped(3, None), true, &config);
        assert_eq!((then, backlog.holds()), (Then::Again, false));
        backlog.next(&config).expect("something waits");
        let then = backlog.shipped(&shipped(2, None), true, &config);
        assert_eq!((then, backlog.holds()), (Then::Again, true));
        // What was on its way came in; the little that is left is shipped before anything else is taken.
        backlog.came(status(5));
        backlog.next(&config).expect("something waits");
        let then = backlog.shipped(&shipped(5, None), false, &config);
        assert_eq!((then, backlog.holds()), (Then::Again, true));
        backlog.next(&config).expect("something waits");
        let then = backlog.shipped(&shipped(0, None), false, &config);
        assert_eq!((then, backlog.holds()), (Then::CaughtUp, false));
    }

    #[test]
    fn what_is_held_goes_in_again_where_the_ledger_fails_at_the_last_moment() {
        let config = Config::for_tests();
        let mut backlog = Backlog::with(status(1));
        backlog.next(&config).expect("something waits");
        backlog.shipped(&shipped(0, None), true, &config);
        backlog.came(status(1));
        backlog.next(&config).expect("something came");
        assert!(backlog.holds());
        let failed = shipped(1, Some("away"));
        assert!(matches!(
            backlog.shipped(&failed, false, &config),
            Then::Rest(_)
        ));
        assert!(!backlog.holds() && backlog.is_behind);
    }

    #[test]
    fn after_failures_it_rests_longer_takes_one_at_a_time_and_begins_to_doubt_it() {
        let config = Config::for_tests();
        let mut backlog = Backlog::with(status(5));
        let mut rests = Vec::new();
        for failures in 0..=6 {
            let ship = backlog.next(&config).expect("something waits");
            assert_eq!(ship.most, if failures == 0 { 8 } else { 1 });
            assert_eq!(ship.limit_ms, 1_000 << failures.min(4));
            assert_eq!(ship.doubts_first, failures > config.attempts_max);
            let failed = shipped(5, Some("away"));
            let Then::Rest(ms) = backlog.shipped(&failed, false, &config) else {
                panic!("it rests");
            };
            rests.push(ms);
            assert_eq!(backlog.next(&config), None, "it rests");
            backlog.rested();
        }
        assert_eq!(rests, [10, 20, 40, 80, 80, 80, 80]);
        let once = backlog.next(&config).expect("something waits");
        assert_eq!(once.most, 1);
        assert_eq!(
            backlog.shipped(&shipped(4, None), false, &config),
            Then::Again
        );
        assert_eq!(backlog.next(&config).expect("more wait").most, 8);
    }
}
