//! What the engine counts: one writer (the engine thread), any number of readers, no lock.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Buckets per doubling: a value is known to an eighth.
const PARTS: usize = 8;
/// Doublings covered: 1 to about 10^9 (a thousand seconds in microseconds).
const OCTAVES: usize = 30;
const BUCKETS: usize = PARTS * OCTAVES;

/// A histogram with fixed logarithmic buckets.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: Box<[AtomicU64; BUCKETS]>,
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            counts: Box::new([const { AtomicU64::new(0) }; BUCKETS]),
            sum: AtomicU64::new(0),
        }
    }

    pub(crate) fn record(&self, value: u64) {
        self.counts[bucket(value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            counts: self.counts.iter().map(|c| c.load(Relaxed)).collect(),
            sum: self.sum.load(Relaxed),
        }
    }
}

/// Bucket of a value: values below 8 have one each, above that eight per doubling.
fn bucket(value: u64) -> usize {
    if value < PARTS as u64 {
        return value as usize;
    }
    let exponent = value.ilog2() as usize;
    let part = (value >> (exponent - 3)) as usize & (PARTS - 1);
    ((exponent - 2) * PARTS + part).min(BUCKETS - 1)
}

/// Largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let (exponent, part) = (bucket / PARTS + 2, bucket % PARTS);
    (((PARTS + part + 1) as u64) << (exponent - 3)) - 1
}

/// A copy of a histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    counts: Vec<u64>,
    /// Sum of all values.
    pub sum: u64,
}

impl HistogramSnapshot {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Mean value; 0 when there is none.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count().max(1) as f64
    }

    /// Largest value of every used bucket with the number of values up to it, ascending.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut below = 0;
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(move |(i, n)| {
                below += n;
                (upper(i), below)
            })
    }

    /// A value that `share` (0 to 1) of all values do not exceed, to an eighth; 0 without values.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (share * self.count() as f64).ceil() as u64;
        self.cumulative()
            .find(|(_, below)| *below >= rank.max(1))
            .map_or(0, |(value, _)| value)
    }

    /// What was recorded since an `earlier` snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |i: usize| earlier.counts.get(i).copied().unwrap_or(0);
        Self {
            counts: self
                .counts
                .iter()
                .enumerate()
                .map(|(i, n)| n - before(i))
                .collect(),
            sum: self.sum - earlier.sum,
        }
    }
}

/// A copy of everything the engine counts.
#[derive(Clone, Debug, Default)]
pub struct EngineStats {
    /// Requests in the batch.
    pub running: usize,
    /// Requests in the waiting line.
    pub waiting: usize,
    /// Most requests the waiting line holds.
    pub waiting_limit: usize,
    /// Key-value blocks in use by running requests.
    pub kv_blocks_used: usize,
    /// Key-value blocks that hold reusable prefixes and nothing else.
    pub kv_blocks_cached: usize,
    /// Blocks of a prompt's end that were copied from another completion of it.
    pub kv_blocks_copied_total: u64,
    /// All key-value blocks.
    pub kv_blocks_total: usize,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens_total: u64,
    /// Of these, tokens found in the prefix cache.
    pub cached_prompt_tokens_total: u64,
    /// Tokens sampled.
    pub completion_tokens_total: u64,
    /// Tokens of drafts that were computed.
    pub draft_tokens_total: u64,
    /// Of these, tokens that were drawn as well.
    pub draft_tokens_accepted_total: u64,
    /// Tokens of given completions that were scored.
    pub scored_tokens_total: u64,
    /// Steps computed.
    pub steps_total: u64,
    /// Requests accepted.
    pub requests_total: u64,
    /// Requests refused because the line was full.
    pub overloaded_total: u64,
    /// Requests that ended because the client left.
    pub cancelled_total: u64,
    /// Requests that failed.
    pub failed_total: u64,
    /// Requests paused for lack of blocks, to be computed again.
    pub preemptions_total: u64,
    /// Newer versions taken while serving.
    pub swaps_total: u64,
    /// Tokens computed under a newer version before it served.
    pub prewarm_tokens_total: u64,
    /// Tokens of reusable prefixes that were cold when a newer version began to serve.
    pub prewarm_cold_tokens_total: u64,
    /// Swaps after which some of them were.
    pub prewarm_cold_swaps_total: u64,
    /// Loads that failed.
    pub swap_failures_total: u64,
    /// Adapters that were not what was published.
    pub identity_failures_total: u64,
    /// Proofs of adapters in memory.
    pub identity_checks_total: u64,
    /// Loads of adapters that carry no probe.
    pub adapters_unproven_total: u64,
    /// Microseconds between two steps that the last swap took.
    pub last_swap_us: u64,
    /// Adapters in memory, those of older versions still in use included.
    pub adapters_resident: usize,
    /// Their bytes.
    pub adapter_bytes: u64,
    /// Steps that failed.
    pub step_failures_total: u64,
    /// Microseconds per step.
    pub step_us: HistogramSnapshot,
    /// Microseconds between two tokens of a request.
    pub token_gap_us: HistogramSnapshot,
    /// Microseconds from ask to first token.
    pub ttft_us: HistogramSnapshot,
    /// Requests per step.
    pub batch_rows: HistogramSnapshot,
}

/// How much the engine has to do; cheap to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Requests in the batch and in the waiting line.
    pub requests: usize,
    /// Time in which there were any in the batch or ready to enter it, ever, in microseconds.
    pub served_us: u64,
    /// Whether the step under way computes prompts, not only the next token of everybody and drafts: the
    /// step that others wait for longest.
    pub long_step: bool,
}

/// The live counters. Gauges are stored by the engine thread after every step.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) running: AtomicUsize,
    /// Asks accepted and not yet begun; raised by askers, lowered by the engine.
    pub(crate) waiting: AtomicUsize,
    pub(crate) kv_blocks_used: AtomicUsize,
    pub(crate) kv_blocks_cached: AtomicUsize,
    pub(crate) kv_blocks_copied: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) cached_prompt_tokens: AtomicU64,
    pub(crate) completion_tokens: AtomicU64,
    pub(crate) draft_tokens: AtomicU64,
    pub(crate) draft_tokens_accepted: AtomicU64,
    pub(crate) scored_tokens: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) served_us: AtomicU64,
    pub(crate) long_step: AtomicBool,
    pub(crate) requests: AtomicU64,
    pub(crate) overloaded: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) preemptions: AtomicU64,
    pub(crate) swaps: AtomicU64,
    pub(crate) prewarm_tokens: AtomicU64,
    pub(crate) prewarm_cold_tokens: AtomicU64,
    pub(crate) prewarm_cold_swaps: AtomicU64,
    pub(crate) swap_failures: AtomicU64,
    pub(crate) identity_failures: AtomicU64,
    pub(crate) identity_checks: AtomicU64,
    pub(crate) adapters_unproven: AtomicU64,
    pub(crate) last_swap_us: AtomicU64,
    pub(crate) adapters_resident: AtomicUsize,
    pub(crate) adapter_bytes: AtomicU64,
    pub(crate) step_failures: AtomicU64,
    /// Moving mean of the time a request runs, in microseconds; feeds the retry-after estimate.
    pub(crate) request_us: AtomicU64,
    pub(crate) step_us: Histogram,
    pub(crate) token_gap_us: Histogram,
    pub(crate) ttft_us: Histogram,
    pub(crate) batch_rows: Histogram,
}

impl Counters {
    pub(crate) fn new() -> Self {
        let (n, u) = (|| AtomicUsize::new(0), || AtomicU64::new(0));
        Self {
            running: n(),
            waiting: n(),
            kv_blocks_used: n(),
            kv_blocks_cached: n(),
            kv_blocks_copied: u(),
            prompt_tokens: u(),
            cached_prompt_tokens: u(),
            completion_tokens: u(),
            draft_tokens: u(),
            draft_tokens_accepted: u(),
            scored_tokens: u(),
            steps: u(),
            served_us: u(),
            long_step: AtomicBool::new(false),
            requests: u(),
            overloaded: u(),
            cancelled: u(),
            failed: u(),
            preemptions: u(),
            swaps: u(),
            prewarm_tokens: u(),
            prewarm_cold_tokens: u(),
            prewarm_cold_swaps: u(),
            swap_failures: u(),
            identity_failures: u(),
            identity_checks: u(),
            adapters_unproven: u(),
            last_swap_us: u(),
            adapters_resident: n(),
            adapter_bytes: u(),
            step_failures: u(),
            request_us: u(),
            step_us: Histogram::new(),
            token_gap_us: Histogram::new(),
            ttft_us: Histogram::new(),
            batch_rows: Histogram::new(),
        }
    }

    /// One request ran for `us` microseconds.
    pub(crate) fn finished(&self, us: u64) {
        let mean = self.request_us.load(Relaxed);
        let next = if mean == 0 {
            us
        } else {
            mean - mean / 8 + us / 8
        };
        self.request_us.store(next.max(1), Relaxed);
    }

    pub(crate) fn load(&self) -> EngineLoad {
        EngineLoad {
            requests: self.running.load(Relaxed) + self.waiting.load(Relaxed),
            served_us: self.served_us.load(Relaxed),
            long_step: self.long_step.load(Relaxed),
        }
    }

    pub(crate) fn snapshot(&self, waiting_limit: usize, kv_blocks_total: usize) -> EngineStats {
        EngineStats {
            running: self.running.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            waiting_limit,
            kv_blocks_used: self.kv_blocks_used.load(Relaxed),
            kv_blocks_cached: self.kv_blocks_cached.load(Relaxed),
            kv_blocks_copied_total: self.kv_blocks_copied.load(Relaxed),
            kv_blocks_total,
            prompt_tokens_total: self.prompt_tokens.load(Relaxed),
            cached_prompt_tokens_total: self.cached_prompt_tokens.load(Relaxed),
            completion_tokens_total: self.completion_tokens.load(Relaxed),
            draft_tokens_total: self.draft_tokens.load(Relaxed),
            draft_tokens_accepted_total: self.draft_tokens_accepted.load(Relaxed),
            scored_tokens_total: self.scored_tokens.load(Relaxed),
            steps_total: self.steps.load(Relaxed),
            requests_total: self.requests.load(Relaxed),
            overloaded_total: self.overloaded.load(Relaxed),
            cancelled_total: self.cancelled.load(Relaxed),
            failed_total: self.failed.load(Relaxed),
            preemptions_total: self.preemptions.load(Relaxed),
            swaps_total: self.swaps.load(Relaxed),
            prewarm_tokens_total: self.prewarm_tokens.load(Relaxed),
            prewarm_cold_tokens_total: self.prewarm_cold_tokens.load(Relaxed),
            prewarm_cold_swaps_total: self.prewarm_cold_swaps.load(Relaxed),
            swap_failures_total: self.swap_failures.load(Relaxed),
            identity_failures_total: self.identity_failures.load(Relaxed),
            identity_checks_total: self.identity_checks.load(Relaxed),
            adapters_unproven_total: self.adapters_unproven.load(Relaxed),
            last_swap_us: self.last_swap_us.load(Relaxed),
            adapters_resident: self.adapters_resident.load(Relaxed),
            adapter_bytes: self.adapter_bytes.load(Relaxed),
            step_failures_total: self.step_failures.load(Relaxed),
            step_us: self.step_us.snapshot(),
            token_gap_us: self.token_gap_us.snapshot(),
            ttft_us: self.ttft_us.snapshot(),
            batch_rows: self.batch_rows.snapshot(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_a_bucket_at_most_an_eighth_wide() {
        let mut value = 0u64;
        while value < 1 << 29 {
            let i = bucket(value);
            assert!(
                upper(i) >= value && (i == 0 || upper(i - 1) < value),
                "{value} in {i}"
            );
            assert!(
                upper(i) as f64 <= value as f64 * 1.125 + 1.0,
                "{value}: {}",
                upper(i)
            );
            value += 1 + value / 7;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_and_differences() {
        let histogram = Histogram::new();
        assert_eq!(histogram.snapshot().quantile(0.5), 0);
        (1..=100).for_each(|v| histogram.record(v));
        let first = histogram.snapshot();
        assert_eq!((first.count(), first.sum), (100, 5050));
        assert!(
            (50..=57).contains(&first.quantile(0.5)),
            "{}",
            first.quantile(0.5)
        );
        assert!((99..=112).contains(&first.quantile(0.99)));
        histogram.record(1_000_000);
        let new = histogram.snapshot().since(&first);
        assert_eq!((new.count(), new.sum), (1, 1_000_000));
        assert_eq!(new.quantile(0.5), new.quantile(1.0));
    }
}
