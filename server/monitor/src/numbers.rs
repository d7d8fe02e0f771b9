//! Every number of the engine, the gateway and the loops, declared once: its name, unit and meaning, and where it is
//! read. `/metrics`, the history, the status and the alerts are derived from these rows.

use std::collections::BTreeMap;

use hone_domain::Loop;
use hone_runtime::{LoopPhase, LoopStatus};
use hone_serve::{EngineStats, HistogramSnapshot};
use serde::Serialize;
use utoipa::ToSchema;

/// How a number moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, and begins at 0 with the process.
    Counter,
    /// It rises and falls.
    Gauge,
}

impl Kind {
    /// Its name in Prometheus.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// What one of a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A thing, or a part of one.
    One,
    /// A microsecond; `/metrics` has seconds, the history milliseconds.
    Microsecond,
}

impl Unit {
    /// How many make one of the unit that `/metrics` has.
    pub fn per_metric(self) -> f64 {
        match self {
            Self::One => 1.0,
            Self::Microsecond => 1e6,
        }
    }

    /// How many make one of the unit that the history has.
    pub fn per_history(self) -> f64 {
        match self {
            Self::One => 1.0,
            Self::Microsecond => 1e3,
        }
    }
}

/// What the history keeps of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kept {
    /// Nothing.
    No,
    /// The number, under this name.
    As(&'static str),
    /// How much it grew in a second, under this name.
    PerSecond(&'static str),
}

/// A number that is read from an `S`.
#[derive(Debug)]
pub struct Number<S: 'static> {
    /// Its name in `/metrics`, without `hone_`; none where it is not there.
    pub metric: Option<&'static str>,
    /// How it moves.
    pub kind: Kind,
    /// What one of it is.
    pub unit: Unit,
    /// What the history keeps of it.
    pub kept: Kept,
    /// What it counts.
    pub help: &'static str,
    /// Where it is read; not a number where nothing is measured.
    pub read: fn(&S) -> f64,
}

impl<S> Number<S> {
    /// A counter that is in `/metrics` alone.
    pub const fn counter(metric: &'static str, help: &'static str, read: fn(&S) -> f64) -> Self {
        Self {
            metric: Some(metric),
            kind: Kind::Counter,
            unit: Unit::One,
            kept: Kept::No,
            help,
            read,
        }
    }

    /// A gauge that the history keeps under this name.
    pub const fn gauge(
        metric: &'static str,
        kept: &'static str,
        help: &'static str,
        read: fn(&S) -> f64,
    ) -> Self {
        Self {
            metric: Some(metric),
            kind: Kind::Gauge,
            unit: Unit::One,
            kept: Kept::As(kept),
            help,
            read,
        }
    }

    /// Its value in the unit that `/metrics` has.
    pub fn metric_value(&self, source: &S) -> f64 {
        (self.read)(source) / self.unit.per_metric()
    }
}

/// A statistic of what a histogram counted since the sample before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Statistic {
    /// What this share of the values do not exceed.
    Quantile(f64),
    /// The mean.
    Mean,
}

/// A distribution that the engine measures.
#[derive(Debug)]
pub struct Distribution {
    /// Its name in `/metrics`, without `hone_`.
    pub metric: &'static str,
    /// What one of its values is.
    pub unit: Unit,
    /// What the history keeps of it: names and statistics.
    pub kept: &'static [(&'static str, Statistic)],
    /// What it measures.
    pub help: &'static str,
    /// Where it is read.
    pub read: fn(&EngineStats) -> &HistogramSnapshot,
}

/// Declares the engine's numbers: a row per field of [`EngineStats`]. The status has every field, whether or not
/// `/metrics` or the history have it too.
macro_rules! engine_numbers {
    ($($field:ident: $metric:expr, $kind:ident, $unit:ident, $kept:expr, $help:literal;)*) => {
        /// What the engine counts.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
        pub struct EngineStatus {
            $(#[doc = $help] pub $field: u64,)*
            /// Microseconds between two tokens of a request that 99 of 100 do not exceed.
            pub token_gap_p99_us: u64,
            /// Microseconds from ask to first token that half do not exceed.
            pub ttft_p50_us: u64,
        }

        impl From<&EngineStats> for EngineStatus {
            fn from(stats: &EngineStats) -> Self {
                Self {
                    $($field: stats.$field as u64,)*
                    token_gap_p99_us: stats.token_gap_us.quantile(0.99),
                    ttft_p50_us: stats.ttft_us.quantile(0.5),
                }
            }
        }

        /// The engine's counters and gauges, one per field.
        pub const ENGINE: &[Number<EngineStats>] = &[$(Number {
            metric: $metric,
            kind: Kind::$kind,
            unit: Unit::$unit,
            kept: $kept,
            help: $help,
            read: |stats| stats.$field as f64,
        },)*];
    };
}

use Kept::{As, No, PerSecond};

#[rustfmt::skip]
engine_numbers! {
    running: Some("num_requests_running"), Gauge, One, As("running"), "Requests in the batch.";
    waiting: Some("num_requests_waiting"), Gauge, One, As("waiting"), "Requests in the waiting line.";
    waiting_limit: Some("requests_waiting_limit"), Gauge, One, No, "Places in the waiting line.";
    kv_blocks_used: None, Gauge, One, No, "Key-value blocks in use.";
    kv_blocks_total: None, Gauge, One, No, "All key-value blocks.";
    prompt_tokens_total: Some("prompt_tokens_total"), Counter, One, PerSecond("prompt_tokens_per_s"), "Prompt tokens of admitted requests.";
    cached_prompt_tokens_total: Some("prefix_cache_hits_total"), Counter, One, No, "Prompt tokens found in the prefix cache.";
    completion_tokens_total: Some("generation_tokens_total"), Counter, One, PerSecond("tokens_per_s"), "Tokens sampled.";
    draft_tokens_total: Some("draft_tokens_total"), Counter, One, No, "Tokens of drafts that were computed (speculative decoding).";
    draft_tokens_accepted_total: Some("draft_tokens_accepted_total"), Counter, One, No, "Of these, tokens that were drawn as well.";
    scored_tokens_total: Some("scored_tokens_total"), Counter, One, No, "Tokens of known completions that were scored.";
    steps_total: Some("engine_steps_total"), Counter, One, No, "Steps computed.";
    step_failures_total: Some("engine_step_failures_total"), Counter, One, No, "Steps that failed.";
    requests_total: Some("requests_total"), Counter, One, PerSecond("requests_per_s"), "Requests accepted by the engine.";
    overloaded_total: Some("requests_overloaded_total"), Counter, One, No, "Requests refused because the line was full.";
    cancelled_total: Some("requests_cancelled_total"), Counter, One, No, "Requests whose client left.";
    failed_total: Some("requests_failed_total"), Counter, One, No, "Requests that failed in the engine.";
    preemptions_total: Some("num_preemptions_total"), Counter, One, No, "Requests paused for lack of blocks.";
    kv_blocks_copied_total: Some("kv_blocks_copied_total"), Counter, One, No, "Blocks of a prompt's end that were copied from another completion of it.";
    swaps_total: Some("policy_swaps_total"), Counter, One, As("swaps_total"), "Newer versions taken while serving.";
    prewarm_tokens_total: Some("prewarm_tokens_total"), Counter, One, No, "Prompt tokens computed under a newer version before it served.";
    prewarm_cold_tokens_total: Some("prewarm_cold_tokens_total"), Counter, One, No, "Tokens of reusable prefixes that were cold after a swap.";
    prewarm_cold_swaps_total: Some("prewarm_cold_swaps_total"), Counter, One, No, "Swaps after which some were cold.";
    identity_failures_total: Some("policy_identity_failures_total"), Counter, One, No, "Adapters that were not what was published.";
    identity_checks_total: Some("policy_identity_checks_total"), Counter, One, No, "Proofs that an adapter in memory is what was published.";
    adapters_unproven_total: Some("policy_unproven_total"), Counter, One, No, "Loaded adapters that carry no probe.";
    swap_failures_total: Some("policy_swap_failures_total"), Counter, One, As("swap_failures_total"), "Adapters that could not be loaded.";
    last_swap_us: Some("policy_last_swap_seconds"), Gauge, Microsecond, As("last_swap_pause_ms"), "Time between two steps that the last swap took.";
    adapters_resident: Some("adapters_resident"), Gauge, One, As("adapters_resident"), "Adapters in memory.";
    adapter_bytes: Some("adapter_bytes"), Gauge, One, As("adapter_bytes"), "Bytes of adapters in memory.";
}

/// The engine's numbers that follow from its fields.
pub const ENGINE_DERIVED: &[Number<EngineStats>] = &[
    Number::gauge(
        "kv_cache_usage_perc",
        "kv_used_share",
        "Share of key-value blocks in use, 0 to 1.",
        kv_used_share,
    ),
    // vLLM's dashboards read it under this name too.
    Number::counter(
        "prefix_cache_queries_total",
        "Prompt tokens looked up in the prefix cache.",
        |stats| stats.prompt_tokens_total as f64,
    ),
];

/// The share of key-value blocks in use, 0 to 1; not a number where there are none.
pub fn kv_used_share(stats: &EngineStats) -> f64 {
    stats.kv_blocks_used as f64 / stats.kv_blocks_total as f64
}

/// The engine's distributions.
pub const DISTRIBUTIONS: &[Distribution] = &[
    Distribution {
        metric: "time_to_first_token_seconds",
        unit: Unit::Microsecond,
        kept: &[
            ("ttft_p50_ms", Statistic::Quantile(0.5)),
            ("ttft_p99_ms", Statistic::Quantile(0.99)),
        ],
        help: "From ask to first token.",
        read: |stats| &stats.ttft_us,
    },
    Distribution {
        metric: "inter_token_latency_seconds",
        unit: Unit::Microsecond,
        kept: &[
            ("token_gap_p50_ms", Statistic::Quantile(0.5)),
            ("token_gap_p99_ms", Statistic::Quantile(0.99)),
        ],
        help: "Between two tokens of a request.",
        read: |stats| &stats.token_gap_us,
    },
    Distribution {
        metric: "engine_step_seconds",
        unit: Unit::Microsecond,
        kept: &[],
        help: "Time of a step.",
        read: |stats| &stats.step_us,
    },
    Distribution {
        metric: "engine_batch_rows",
        unit: Unit::One,
        kept: &[("batch_rows", Statistic::Mean)],
        help: "Requests per step.",
        read: |stats| &stats.batch_rows,
    },
];

/// What the gateway holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct GatewayStatus {
    /// Scopes with a published policy.
    pub scopes_with_policy: usize,
    /// Sessions remembered.
    pub sessions: usize,
    /// Completions under way.
    pub completions_live: usize,
}

/// The gateway's gauges.
pub const GATEWAY: &[Number<GatewayStatus>] = &[
    Number::gauge(
        "completions_live",
        "completions_live",
        "Completions under way.",
        |now| now.completions_live as f64,
    ),
    Number::gauge("sessions", "sessions", "Sessions remembered.", |now| {
        now.sessions as f64
    }),
    Number::gauge(
        "scopes_with_policy",
        "scopes_with_policy",
        "Scopes with a published policy.",
        |now| now.scopes_with_policy as f64,
    ),
];

/// A number that every loop has. The history keeps it under the loop's name and this one.
#[derive(Debug)]
pub struct StatusNumber {
    /// The number, by its metric's name and the end of its name in the history.
    pub number: Number<LoopStatus>,
    /// Whether the work beside the loops has it too.
    pub beside: bool,
}

impl StatusNumber {
    /// Whether the status of this name has the number.
    pub fn is_of(&self, name: &str) -> bool {
        self.beside || Loop::named(name).is_some()
    }
}

const fn of_loop(
    metric: &'static str,
    kind: Kind,
    kept: Kept,
    help: &'static str,
    read: fn(&LoopStatus) -> f64,
) -> Number<LoopStatus> {
    Number {
        metric: Some(metric),
        kind,
        unit: Unit::One,
        kept,
        help,
        read,
    }
}

/// What is known of every loop.
#[rustfmt::skip]
pub const LOOPS: &[StatusNumber] = &[
    StatusNumber { beside: true, number: of_loop("loop_up", Kind::Gauge, No, "1 while the loop runs.", |s| f64::from(s.state == LoopPhase::Running)) },
    StatusNumber { beside: false, number: of_loop("loop_paused", Kind::Gauge, No, "1 while the loop is switched off.", |s| f64::from(s.state == LoopPhase::Paused)) },
    StatusNumber { beside: false, number: of_loop("loop_steps_total", Kind::Counter, As("steps_total"), "Steps taken.", |s| s.steps as f64) },
    StatusNumber { beside: true, number: of_loop("loop_restarts_total", Kind::Counter, As("restarts_total"), "Restarts after a failure.", |s| s.restarts as f64) },
    StatusNumber { beside: false, number: of_loop("loop_queue_depth", Kind::Gauge, As("queue_depth"), "Values waiting in the inbox.", |s| s.queue_depth as f64) },
    StatusNumber { beside: false, number: of_loop("loop_queue_dropped_total", Kind::Counter, No, "Values the inbox dropped.", |s| s.queue_dropped as f64) },
    StatusNumber { beside: false, number: of_loop("loop_last_step_timestamp_seconds", Kind::Gauge, No, "When the last step was taken.", |s| s.last_step_ms as f64 / 1e3) },
];

/// A number that one loop counts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnNumber {
    /// The loop.
    pub of: Loop,
    /// Its name there.
    pub name: &'static str,
}

impl OwnNumber {
    const fn new(of: Loop, name: &'static str) -> Self {
        Self { of, name }
    }

    /// Its value; none where the loop does not run here or has not counted yet.
    pub fn read(self, loops: &BTreeMap<&'static str, LoopStatus>) -> Option<f64> {
        let status = loops.get(self.of.name())?;
        status.numbers.get(self.name).copied()
    }
}

/// Turns that were handed to the recorder.
pub const TURNS_HANDED: OwnNumber = OwnNumber::new(Loop::Collect, "turns_handed_total");
/// Turns that are in the ledger.
pub const TURNS_RECORDED: OwnNumber = OwnNumber::new(Loop::Collect, "turns_recorded_total");
/// Turns that were taken by the spool.
pub const TURNS_SPOOLED: OwnNumber = OwnNumber::new(Loop::Collect, "turns_spooled_total");
/// Turns that came from the spool into the ledger.
pub const TURNS_SHIPPED: OwnNumber = OwnNumber::new(Loop::Collect, "turns_shipped_total");
/// Records that wait in the spool.
pub const SPOOL_RECORDS: OwnNumber = OwnNumber::new(Loop::Collect, "spool_records");
/// Their bytes.
pub const SPOOL_BYTES: OwnNumber = OwnNumber::new(Loop::Collect, "spool_bytes");
/// Most bytes of the spool; 0 where it takes nothing.
pub const SPOOL_BYTES_MAX: OwnNumber = OwnNumber::new(Loop::Collect, "spool_bytes_max");
/// Records of the spool that are lost.
pub const SPOOL_LOST: OwnNumber = OwnNumber::new(Loop::Collect, "spool_lost_total");
/// 1 while the ledger does not take what waits in the spool.
pub const LEDGER_AWAY: OwnNumber = OwnNumber::new(Loop::Collect, "ledger_away");
/// Turns that could not be recorded.
pub const TURNS_DROPPED: OwnNumber = OwnNumber::new(Loop::Collect, "turns_dropped_total");
/// Turns that wait to be recorded.
pub const TURNS_HELD: OwnNumber = OwnNumber::new(Loop::Collect, "turns_held");
/// Turns with a verdict.
pub const JUDGED: OwnNumber = OwnNumber::new(Loop::Judge, "judged_total");
/// Verdicts that say nothing.
pub const ABSTAINED: OwnNumber = OwnNumber::new(Loop::Judge, "abstained_total");
/// Replies that were read for a verdict.
pub const REPLIES: OwnNumber = OwnNumber::new(Loop::Judge, "replies_total");
/// Replies that said nothing of the answer before.
pub const REPLIES_ABSTAINED: OwnNumber = OwnNumber::new(Loop::Judge, "replies_abstained_total");
/// Sum of the scores.
pub const SCORE_SUM: OwnNumber = OwnNumber::new(Loop::Judge, "score_sum");
/// Verdicts for which somebody said what should have been done.
pub const HINTS_OFFERED: OwnNumber = OwnNumber::new(Loop::Judge, "hint_offered_total");
/// Verdicts that kept a hint.
pub const HINTED: OwnNumber = OwnNumber::new(Loop::Judge, "hinted_total");
/// Hints that the policy chose among several.
pub const HINTS_CHOSEN: OwnNumber = OwnNumber::new(Loop::Judge, "hints_chosen_total");
/// 1 while the judge's model is left alone because it does not answer.
pub const JUDGE_BREAKER_OPEN: OwnNumber = OwnNumber::new(Loop::Judge, "breaker_open");
/// Turns that are in a version.
pub const TURNS_TRAINED: OwnNumber = OwnNumber::new(Loop::Train, "turns_trained_total");
/// Hints that are in a version.
pub const HINTS_TRAINED: OwnNumber = OwnNumber::new(Loop::Train, "hints_trained_total");
/// 1 while a training job is under way.
pub const JOB_UNDER_WAY: OwnNumber = OwnNumber::new(Loop::Train, "job_under_way");
/// Tokens whose log-prob in training was not the served one.
pub const PARITY_MISMATCHES: OwnNumber = OwnNumber::new(Loop::Train, "parity_mismatches");
