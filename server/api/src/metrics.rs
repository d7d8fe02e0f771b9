//! `/metrics` as text. Everything that is counted already lives in snapshots (status registry, engine,
//! gateway, traffic), so a renderer of one page is all it takes. Names follow vLLM's habit, so that
//! dashboards and autoscalers written for it need only another prefix.

use std::fmt::Write as _;

use hone_ledger::ScalingRow;
use hone_serve::EngineStats;

use super::Http;
use hone_inference::{COUNTERS, InferenceService};
use hone_monitor::funnel::funnel;
use hone_monitor::numbers::{
    DISTRIBUTIONS, Distribution, ENGINE, ENGINE_DERIVED, GATEWAY, LOOPS, Number,
};
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

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.value(name, &[], value);
    }

    /// A number of the registry, where it is in this page.
    fn number<S>(&mut self, number: &Number<S>, source: &S) {
        let Some(name) = number.metric else { return };
        self.family(name, number.kind.as_str(), number.help);
        let value = number.metric_value(source);
        self.value(name, &[], if value.is_nan() { 0.0 } else { value });
    }

    fn distribution(&mut self, distribution: &Distribution, stats: &EngineStats) {
        let (name, scale) = (distribution.metric, distribution.unit.per_metric());
        let snapshot = (distribution.read)(stats);
        self.family(name, "histogram", distribution.help);
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
pub fn render(http: &Http, work: &[ScalingRow]) -> String {
    let mut page = Page::default();
    page.family("build_info", "gauge", "Version of the program.");
    page.value("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    traffic(&mut page, http);
    if let Some(inference) = &http.inference {
        engine(&mut page, &inference.backend.stats());
        completions(&mut page, http, inference);
    }
    loops(&mut page, http);
    scaling(&mut page, work);
    process(&mut page, http);
    page.0
}

/// What processes that come and go have to do, where the ledger could be asked.
fn scaling(page: &mut Page, work: &[ScalingRow]) {
    if work.is_empty() {
        return;
    }
    let name = "scaling_open";
    let help = "Jobs that wait, run or are about to be made, by the loop that does them.";
    page.family(name, "gauge", help);
    for row in work {
        page.value(name, &[("loop", &row.role)], row.open as f64);
    }
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
    page.gauge(
        "http_requests_in_flight",
        "Requests without reply headers yet.",
        http.traffic.in_flight() as f64,
    );
}

fn engine(page: &mut Page, stats: &EngineStats) {
    for number in ENGINE.iter().chain(ENGINE_DERIVED) {
        page.number(number, stats);
    }
    for distribution in DISTRIBUTIONS {
        page.distribution(distribution, stats);
    }
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
    for (outcome, count) in [
        ("collected", &counters.collected),
        ("spooled", &counters.spooled),
    ] {
        let labels = [("outcome", outcome), ("reason", "")];
        page.value("turns_total", &labels, count.get() as f64);
    }
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
    for number in COUNTERS {
        page.number(number, counters);
    }
    for number in GATEWAY {
        page.number(number, &http.gateway());
    }
}

fn loops(page: &mut Page, http: &Http) {
    let registry = http.registry.snapshot();
    for of_every in LOOPS {
        let number = &of_every.number;
        let Some(name) = number.metric else { continue };
        page.family(name, number.kind.as_str(), number.help);
        for (one, status) in registry.iter().filter(|(one, _)| of_every.is_of(one)) {
            page.value(name, &[("loop", one)], number.metric_value(status));
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
    page.gauge("uptime_seconds", "Time since the start.", uptime);
    #[cfg(target_os = "linux")]
    if let Some(bytes) = resident_bytes() {
        page.gauge("process_resident_memory_bytes", "Resident memory.", bytes);
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
