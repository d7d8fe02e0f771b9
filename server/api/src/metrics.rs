//! `/metrics` as text. Everything that is counted already lives in snapshots (status registry, engine,
//! gateway, traffic), so a renderer of one page is all it takes. Names follow vLLM's habit, so that
//! dashboards and autoscalers written for it need only another prefix.

use std::fmt::Write as _;

use hone_domain::Loop;
use hone_runtime::{LoopPhase, LoopStatus};
use hone_serve::{EngineStats, HistogramSnapshot};

use super::Http;
use hone_inference::InferenceService;
use hone_monitor::funnel::funnel;
use hone_monitor::traffic::BOUNDS_S;

/// A page in the text format 0.0.4.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP hone_{name} {help}"));
        self.line(format_args!("# TYPE hone_{name} {kind}"));
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _cannot_fail = self.0.write_fmt(text).is_ok();
        self.0.push('\n');
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str("hone_");
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            self.0.push(if at == 0 { '{' } else { ',' });
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            self.0.push_str(&format!("{label}=\"{text}\""));
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        self.line(format_args!(" {value}"));
    }

    fn one(&mut self, (name, kind, help): (&str, &str, &str), value: f64) {
        self.family(name, kind, help);
        self.value(name, &[], value);
    }

    /// A histogram whose values are counted in `1 / scale` of the exported unit.
    fn histogram(&mut self, (name, help): (&str, &str), snapshot: &HistogramSnapshot, scale: f64) {
        self.family(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (upper, below) in snapshot.cumulative() {
            let le = format!("{}", upper as f64 / scale);
            self.value(&bucket, &[("le", &le)], below as f64);
        }
        let count = snapshot.count() as f64;
        self.value(&bucket, &[("le", "+Inf")], count);
        self.value(&format!("{name}_sum"), &[], snapshot.sum as f64 / scale);
        self.value(&format!("{name}_count"), &[], count);
    }
}

/// The whole page.
pub fn render(http: &Http) -> String {
    let mut page = Page::default();
    page.family("build_info", "gauge", "Version of the program.");
    page.value("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    traffic(&mut page, http);
    if let Some(inference) = &http.inference {
        engine(&mut page, &inference.backend.stats());
        completions(&mut page, http, inference);
    }
    loops(&mut page, http);
    process(&mut page, http);
    page.0
}

fn traffic(page: &mut Page, http: &Http) {
    let (answered, durations) = http.traffic.snapshot();
    page.family("http_requests_total", "counter", "Answered HTTP requests.");
    for ((method, route, status), count) in answered {
        let status = status.to_string();
        let labels = [("method", method), ("route", &*route), ("status", &*status)];
        page.value("http_requests_total", &labels, count as f64);
    }
    let name = "http_request_duration_seconds";
    page.family(
        name,
        "histogram",
        "Time until the reply's headers were out.",
    );
    for (route, durations) in durations {
        let mut below = 0;
        for (bound, count) in BOUNDS_S.iter().zip(durations.buckets) {
            below += count;
            let le = bound.to_string();
            let labels = [("route", &*route), ("le", &*le)];
            page.value(&format!("{name}_bucket"), &labels, below as f64);
        }
        let labels = [("route", &*route), ("le", "+Inf")];
        page.value(&format!("{name}_bucket"), &labels, durations.count as f64);
        page.value(&format!("{name}_sum"), &labels[..1], durations.sum_s);
        page.value(
            &format!("{name}_count"),
            &labels[..1],
            durations.count as f64,
        );
    }
    page.one(
        (
            "http_requests_in_flight",
            "gauge",
            "Requests without reply headers yet.",
        ),
        http.traffic.in_flight() as f64,
    );
}

/// One number of the engine: name, type, help, and where it is read.
type EngineRow = (
    &'static str,
    &'static str,
    &'static str,
    fn(&EngineStats) -> f64,
);

#[rustfmt::skip]
const ENGINE: &[EngineRow] = &[
    ("num_requests_running", "gauge", "Requests in the batch.", |s| s.running as f64),
    ("num_requests_waiting", "gauge", "Requests in the waiting line.", |s| s.waiting as f64),
    ("requests_waiting_limit", "gauge", "Places in the waiting line.", |s| s.waiting_limit as f64),
    ("kv_cache_usage_perc", "gauge", "Share of key-value blocks in use, 0 to 1.", |s| s.kv_blocks_used as f64 / s.kv_blocks_total.max(1) as f64),
    ("prompt_tokens_total", "counter", "Prompt tokens of admitted requests.", |s| s.prompt_tokens_total as f64),
    ("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.", |s| s.prompt_tokens_total as f64),
    ("prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", |s| s.cached_prompt_tokens_total as f64),
    ("generation_tokens_total", "counter", "Tokens sampled.", |s| s.completion_tokens_total as f64),
    ("draft_tokens_total", "counter", "Tokens of drafts that were computed (speculative decoding).", |s| s.draft_tokens_total as f64),
    ("draft_tokens_accepted_total", "counter", "Of these, tokens that were drawn as well.", |s| s.draft_tokens_accepted_total as f64),
    ("scored_tokens_total", "counter", "Tokens of known completions that were scored.", |s| s.scored_tokens_total as f64),
    ("engine_steps_total", "counter", "Steps computed.", |s| s.steps_total as f64),
    ("engine_step_failures_total", "counter", "Steps that failed.", |s| s.step_failures_total as f64),
    ("requests_total", "counter", "Requests accepted by the engine.", |s| s.requests_total as f64),
    ("requests_overloaded_total", "counter", "Requests refused because the line was full.", |s| s.overloaded_total as f64),
    ("requests_cancelled_total", "counter", "Requests whose client left.", |s| s.cancelled_total as f64),
    ("requests_failed_total", "counter", "Requests that failed in the engine.", |s| s.failed_total as f64),
    ("num_preemptions_total", "counter", "Requests paused for lack of blocks.", |s| s.preemptions_total as f64),
    ("kv_blocks_copied_total", "counter", "Blocks of a prompt's end that were copied from another completion of it.", |s| s.kv_blocks_copied_total as f64),
    ("policy_swaps_total", "counter", "Newer versions taken while serving.", |s| s.swaps_total as f64),
    ("prewarm_tokens_total", "counter", "Prompt tokens computed under a newer version before it served.", |s| s.prewarm_tokens_total as f64),
    ("prewarm_cold_tokens_total", "counter", "Tokens of reusable prefixes that were cold after a swap.", |s| s.prewarm_cold_tokens_total as f64),
    ("prewarm_cold_swaps_total", "counter", "Swaps after which some were cold.", |s| s.prewarm_cold_swaps_total as f64),
    ("policy_identity_failures_total", "counter", "Adapters that were not what was published.", |s| s.identity_failures_total as f64),
    ("policy_identity_checks_total", "counter", "Proofs that an adapter in memory is what was published.", |s| s.identity_checks_total as f64),
    ("policy_unproven_total", "counter", "Loaded adapters that carry no probe.", |s| s.adapters_unproven_total as f64),
    ("policy_swap_failures_total", "counter", "Adapters that could not be loaded.", |s| s.swap_failures_total as f64),
    ("policy_last_swap_seconds", "gauge", "Time between two steps that the last swap took.", |s| s.last_swap_us as f64 / 1e6),
    ("adapters_resident", "gauge", "Adapters in memory.", |s| s.adapters_resident as f64),
    ("adapter_bytes", "gauge", "Bytes of adapters in memory.", |s| s.adapter_bytes as f64),
];

fn engine(page: &mut Page, stats: &EngineStats) {
    for (name, kind, help, read) in ENGINE {
        page.one((name, kind, help), read(stats));
    }
    let us = 1e6;
    let ttft = ("time_to_first_token_seconds", "From ask to first token.");
    page.histogram(ttft, &stats.ttft_us, us);
    let gap = (
        "inter_token_latency_seconds",
        "Between two tokens of a request.",
    );
    page.histogram(gap, &stats.token_gap_us, us);
    page.histogram(
        ("engine_step_seconds", "Time of a step."),
        &stats.step_us,
        us,
    );
    page.histogram(
        ("engine_batch_rows", "Requests per step."),
        &stats.batch_rows,
        1.0,
    );
}

fn completions(page: &mut Page, http: &Http, inference: &InferenceService) {
    let counters = &inference.counters;
    page.family(
        "request_success_total",
        "counter",
        "Ended completions by reason.",
    );
    for (reason, count) in counters.stops() {
        page.value(
            "request_success_total",
            &[("finished_reason", reason)],
            count as f64,
        );
    }
    page.family(
        "turns_total",
        "counter",
        "Ended turns by what became of their record.",
    );
    let collected = counters.collected.get() as f64;
    page.value(
        "turns_total",
        &[("outcome", "collected"), ("reason", "")],
        collected,
    );
    for (reason, count) in counters.not_collected().filter(|(_, n)| *n > 0) {
        let labels = [("outcome", "not_collected"), ("reason", reason.as_str())];
        page.value("turns_total", &labels, count as f64);
    }
    page.family(
        "binds_total",
        "counter",
        "Requests by how their session was found.",
    );
    for (how, count) in counters.binds() {
        page.value("binds_total", &[("how", how)], count as f64);
    }
    counters_page(page, http, inference);
}

#[rustfmt::skip]
fn counters_page(page: &mut Page, http: &Http, inference: &InferenceService) {
    let counters = &inference.counters;
    let rows = [
        ("prompts_reused_total", "Prompts that began with a recorded turn's exact tokens.", &counters.prompts_reused),
        ("prompts_mismatched_total", "Prompts whose text differed from the recorded turn's.", &counters.prompts_mismatched),
        ("prompt_tokens_reused_total", "Prompt tokens taken over from recorded turns.", &counters.tokens_reused),
        ("collect_notes_dropped_total", "Next states and session ends that found the queue full.", &counters.notes_dropped),
        ("turns_unnoted_total", "Turns that are not collected, and could not be noted as such.", &counters.late_unnoted),
        ("completions_failed_total", "Completions that failed.", &counters.failed),
    ];
    for (name, help, counter) in rows {
        page.one((name, "counter", help), counter.get() as f64);
    }
    page.one(("completions_live", "gauge", "Completions under way."), inference.live.count() as f64);
    page.one(("sessions", "gauge", "Sessions remembered."), inference.sessions() as f64);
    let scopes = http.policies.get().len() as f64;
    page.one(("scopes_with_policy", "gauge", "Scopes with a published policy."), scopes);
}

/// One number of every loop: name, type, help, and where it is read.
type LoopRow = (
    &'static str,
    &'static str,
    &'static str,
    fn(&LoopStatus) -> f64,
);

#[rustfmt::skip]
const LOOPS: &[LoopRow] = &[
    ("loop_up", "gauge", "1 while the loop runs.", |s| f64::from(s.state == LoopPhase::Running)),
    ("loop_paused", "gauge", "1 while the loop is switched off.", |s| f64::from(s.state == LoopPhase::Paused)),
    ("loop_steps_total", "counter", "Steps taken.", |s| s.steps as f64),
    ("loop_restarts_total", "counter", "Restarts after a failure.", |s| s.restarts as f64),
    ("loop_queue_depth", "gauge", "Values waiting in the inbox.", |s| s.queue_depth as f64),
    ("loop_queue_dropped_total", "counter", "Values the inbox dropped.", |s| s.queue_dropped as f64),
    ("loop_last_step_timestamp_seconds", "gauge", "When the last step was taken.", |s| s.last_step_ms as f64 / 1e3),
];

/// What the work beside the loops has of these.
const BESIDE: [&str; 2] = ["loop_up", "loop_restarts_total"];

fn loops(page: &mut Page, http: &Http) {
    let registry = http.registry.snapshot();
    for (name, kind, help, read) in LOOPS {
        page.family(name, kind, help);
        let told = |one: &str| BESIDE.contains(name) || Loop::named(one).is_some();
        for (one, status) in registry.iter().filter(|(one, _)| told(one)) {
            page.value(name, &[("loop", one)], read(status));
        }
    }
    page.family(
        "funnel_total",
        "counter",
        "Turns by how far their hints came since the start.",
    );
    for (stage, count) in funnel(&registry) {
        page.value("funnel_total", &[("stage", stage)], count as f64);
    }
    page.family("loop_number", "gauge", "The loops' own numbers.");
    for (one, status) in &registry {
        for (name, value) in &status.numbers {
            page.value("loop_number", &[("loop", one), ("name", name)], *value);
        }
    }
}

fn process(page: &mut Page, http: &Http) {
    let uptime = http.started.elapsed().as_secs_f64();
    page.one(("uptime_seconds", "gauge", "Time since the start."), uptime);
    #[cfg(target_os = "linux")]
    if let Some(bytes) = resident_bytes() {
        page.one(
            ("process_resident_memory_bytes", "gauge", "Resident memory."),
            bytes,
        );
    }
}

/// Resident pages times the page size, as the kernel tells them.
#[cfg(target_os = "linux")]
fn resident_bytes() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024.0)
}
