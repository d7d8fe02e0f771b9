//! What the loop counts.

use crate::SpoolStatus;

/// Everything since the loop began.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) handed: u64,
    pub(crate) recorded: u64,
    pub(crate) spooled: u64,
    pub(crate) shipped: u64,
    pub(crate) late: u64,
    pub(crate) dropped_full: u64,
    pub(crate) dropped_failed: u64,
    pub(crate) dropped_spool: u64,
    pub(crate) spool_lost: u64,
    pub(crate) next_states: u64,
    pub(crate) next_states_ignored: u64,
    pub(crate) next_states_dropped: u64,
    pub(crate) transitions: u64,
    pub(crate) settled: u64,
    pub(crate) feedback: u64,
    pub(crate) writes: u64,
    pub(crate) failures: u64,
    pub(crate) left: u64,
}

impl Counts {
    /// As the status has them.
    #[rustfmt::skip]
    pub(crate) fn numbers(&self) -> Vec<(&'static str, f64)> {
        let number = |name, value: u64| (name, value as f64);
        vec![
            number("turns_handed_total", self.handed),
            number("turns_recorded_total", self.recorded),
            number("turns_dropped_total", self.dropped_full + self.dropped_failed + self.dropped_spool),
            number("turns_dropped_queue_full_total", self.dropped_full),
            number("turns_dropped_ledger_failed_total", self.dropped_failed),
            number("turns_dropped_spool_full_total", self.dropped_spool),
            number("turns_spooled_total", self.spooled),
            number("turns_shipped_total", self.shipped),
            number("turns_late_total", self.late),
            number("next_states_total", self.next_states),
            number("next_states_ignored_total", self.next_states_ignored),
            number("next_states_dropped_total", self.next_states_dropped),
            number("transitions_total", self.transitions),
            number("settled_total", self.settled),
            number("feedback_total", self.feedback),
            number("writes_total", self.writes),
            number("ledger_failures_total", self.failures),
            number("left_total", self.left),
            number("spool_lost_total", self.spool_lost),
        ]
    }
}

/// How full the spool is, as the status has it.
pub(crate) fn spool_numbers(status: &SpoolStatus) -> [(&'static str, f64); 4] {
    [
        ("spool_records", status.records as f64),
        ("spool_bytes", status.bytes as f64),
        ("spool_bytes_max", status.bytes_max as f64),
        ("ledger_away", f64::from(u8::from(status.is_away))),
    ]
}
