//! What the door itself costs: the engine answers at once, so every millisecond is ours. With
//! `--against`, the same load at another OpenAI-compatible server.

use std::time::Duration;

use serde_json::json;

use super::Bench;
use super::child::Server;
use super::load::{Load, Outcome, Pace};
use super::report::{Report, milli};
use super::wire::Wire;
use crate::demo::numbers::Percentiles;

/// Requests a second: turns on disk, and turns that nobody keeps.
const RATE_KEPT: Pace = Pace::Rate(500);
const RATE_NOT_KEPT: Pace = Pace::Rate(3_000);
/// Requests at once where each follows the one before.
const AT_ONCE: Pace = Pace::AtOnce(16);
/// How long it runs before anything is measured.
const WARM: Duration = Duration::from_millis(500);

/// A question to the first model of a server, after some that warm it.
fn load(bench: &Bench, url: &str, store: bool) -> Result<Load, String> {
    let models = bench
        .runtime
        .block_on(async { Wire::new(url)?.models().await })?;
    let body = json!({
        "model": models["data"][0]["id"],
        "messages": [{ "role": "user", "content": "What is the capital of France?" }],
        "max_tokens": 16,
        "store": store,
    });
    let url = format!("{url}/v1/chat/completions");
    let load = Load::post(&url, &body.to_string())?;
    let warm = load.run(AT_ONCE, WARM);
    match warm.failed > 0 || warm.latencies_ms.is_empty() {
        true => Err(format!("{url} does not answer as it should")),
        false => Ok(load),
    }
}

/// `hone bench overhead`.
pub(super) fn overhead(bench: &Bench, against: Option<&str>) -> Result<Report, String> {
    let time = bench.time(10.0);
    let server = Server::start_with(bench, &["--engine", "null"])?;
    let url = &server.url;
    bench
        .runtime
        .block_on(async { Wire::new(url)?.ready().await })?;
    let kept = load(bench, url, true)?;
    let not_kept = load(bench, url, false)?;
    let mut report = Report::new(
        "overhead: the door with an engine that answers at once",
        &["", "per second", "p50 ms", "p99 ms", "failed"],
    );
    let outcome = kept.run(RATE_KEPT, time);
    add(&mut report, ("kept_500", "500/s, turns on disk"), outcome);
    let outcome = not_kept.run(RATE_NOT_KEPT, time);
    let name = ("not_kept_3000", "3,000/s, store: false");
    add(&mut report, name, outcome);
    let outcome = kept.run(AT_ONCE, time);
    let ours = outcome.per_s();
    let name = ("kept_16", "16 at once, turns on disk");
    add(&mut report, name, outcome);
    let outcome = not_kept.run(AT_ONCE, time);
    let ours_not_kept = outcome.per_s();
    let name = ("not_kept_16", "16 at once, store: false");
    add(&mut report, name, outcome);
    if let Some(url) = against {
        let outcome = load(bench, url.trim_end_matches('/'), true)?.run(AT_ONCE, time);
        let theirs = outcome.per_s().max(1e-9);
        let (ratio, not_kept) = (ours / theirs, ours_not_kept / theirs);
        let name = ("against_16", "16 at once, the other server");
        add(&mut report, name, outcome);
        report.set("ratio", milli(ratio));
        report.set("ratio_not_kept", milli(not_kept));
        report.note(format!(
            "{ratio:.1} times the other server's throughput at 16 at once, {not_kept:.1} times \
             where nothing is kept."
        ));
    }
    report.set("seconds", milli(time.as_secs_f64()));
    Ok(report)
}

fn add(report: &mut Report, (key, name): (&str, &str), outcome: Outcome) {
    let per_s = outcome.per_s();
    let of = Percentiles::of(outcome.latencies_ms);
    report.row([
        name.to_owned(),
        format!("{per_s:.0}"),
        format!("{:.2}", of.p50),
        format!("{:.2}", of.p99),
        outcome.failed.to_string(),
    ]);
    let numbers = json!({
        "per_s": milli(per_s), "p50_ms": milli(of.p50), "p99_ms": milli(of.p99),
        "failed": outcome.failed,
    });
    report.set(key, numbers);
    report.failed += outcome.failed;
}
