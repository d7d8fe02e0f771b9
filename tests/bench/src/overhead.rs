//! What the gateway itself costs: the engine answers at once, so every millisecond is ours, the machine's
//! or the load's. A bare server beside it says what the latter two are. With `--against`, the same
//! load at another OpenAI-compatible server.

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

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
/// Turns of the server and the bare one at a rate.
const ROUNDS: u32 = 3;
/// How long it runs before anything is measured.
const WARM: Duration = Duration::from_millis(500);

/// As long as an answer of the gateway to the load, about.
const BARE_ANSWER: &str = concat!(
    r#"{"id":"chatcmpl-0","object":"chat.completion","created":0,"model":"bare","choices":[{"#,
    r#""index":0,"message":{"role":"assistant","content":"An answer."},"finish_reason":"stop"}],"#,
    r#""usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#
);

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

/// The same HTTP stack with nothing behind it: it answers with the same few bytes whatever is asked.
struct Bare {
    url: String,
    _runtime: Runtime,
}

impl Bare {
    fn start() -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("a bare server could not be started: {error}");
        let mut threads = Builder::new_multi_thread();
        let runtime = threads.worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(cannot)?;
        let listen = tokio::net::TcpListener::bind("127.0.0.1:0");
        let listener = runtime.block_on(listen).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let answer = |_: Bytes| async { ([(CONTENT_TYPE, "application/json")], BARE_ANSWER) };
        let app = Router::new().route("/", post(answer));
        runtime.spawn(async move { axum::serve(listener, app).await });
        Ok(Self {
            url: format!("http://{address}/"),
            _runtime: runtime,
        })
    }
}

/// `hone-bench overhead`.
pub(super) fn overhead(bench: &Bench, against: Option<&str>) -> Result<Report, String> {
    let time = bench.time(10.0);
    let server = Server::start(bench, &["--engine", "null"])?;
    let url = &server.url;
    bench
        .runtime
        .block_on(async { Wire::new(url)?.ready().await })?;
    let kept = load(bench, url, true)?;
    let not_kept = load(bench, url, false)?;
    let nothing_behind = Bare::start()?;
    let bare = Load::post(&nothing_behind.url, "{}")?;
    bare.run(AT_ONCE, WARM);
    let mut report = Report::new(
        "overhead: the gateway with an engine that answers at once",
        &[
            "",
            "per second",
            "p50 ms",
            "p99 ms",
            "bare p99 ms",
            "added p99 ms",
            "failed",
        ],
    );
    let rates = [
        ("kept_500", "500/s, turns on disk", &kept, RATE_KEPT),
        (
            "not_kept_3000",
            "3,000/s, store: false",
            &not_kept,
            RATE_NOT_KEPT,
        ),
    ];
    for (key, name, load, pace) in rates {
        let both = || {
            Round::of(
                &bare.run(pace, time / ROUNDS),
                &load.run(pace, time / ROUNDS),
            )
        };
        let rounds: Vec<Round> = (0..ROUNDS).map(|_| both()).collect();
        add_rounds(&mut report, (key, name), &rounds);
    }
    let at_once = [
        ("kept_16", "16 at once, turns on disk", &kept),
        ("not_kept_16", "16 at once, store: false", &not_kept),
    ];
    let [ours, ours_not_kept] = at_once.map(|(key, name, load)| {
        let outcome = load.run(AT_ONCE, time);
        let per_s = outcome.per_s();
        add(&mut report, (key, name), outcome);
        per_s
    });
    if let Some(url) = against {
        let url = url.trim_end_matches('/');
        let outcome = load(bench, url, true)?.run(AT_ONCE, time);
        add_other(&mut report, outcome, (ours, ours_not_kept));
    }
    report.note(
        "Bare: the same load at the same HTTP stack with nothing behind it, in turn; every number of \
         a rate is the median of its rounds, also what is added."
            .to_owned(),
    );
    report.set("seconds", milli(time.as_secs_f64()));
    Ok(report)
}

fn add_other(report: &mut Report, outcome: Outcome, (ours, ours_not_kept): (f64, f64)) {
    let theirs = outcome.per_s().max(1e-9);
    let (ratio, not_kept) = (ours / theirs, ours_not_kept / theirs);
    let name = ("against_16", "16 at once, the other server");
    add(report, name, outcome);
    report.set("ratio", milli(ratio));
    report.set("ratio_not_kept", milli(not_kept));
    report.note(format!(
        "{ratio:.1} times the other server's throughput at 16 at once, {not_kept:.1} times where \
         nothing is kept."
    ));
}

/// The bare server and ours, one after the other.
struct Round {
    bare: Percentiles,
    ours: Percentiles,
    per_s: f64,
    failed: u64,
}

impl Round {
    fn of(bare: &Outcome, ours: &Outcome) -> Self {
        Self {
            bare: Percentiles::of(bare.latencies_ms.clone()),
            ours: Percentiles::of(ours.latencies_ms.clone()),
            per_s: ours.per_s(),
            failed: bare.failed + ours.failed,
        }
    }
}

fn add_rounds(report: &mut Report, (key, name): (&str, &str), rounds: &[Round]) {
    let failed: u64 = rounds.iter().map(|round| round.failed).sum();
    let middle = |of: &dyn Fn(&Round) -> f64| Percentiles::of(rounds.iter().map(of).collect()).p50;
    let per_s = middle(&|round| round.per_s);
    let p50 = middle(&|round| round.ours.p50);
    let p99 = middle(&|round| round.ours.p99);
    let bare = middle(&|round| round.bare.p99);
    let added = middle(&|round| round.ours.p99 - round.bare.p99);
    report.row([
        name.to_owned(),
        format!("{per_s:.0}"),
        format!("{p50:.2}"),
        format!("{p99:.2}"),
        format!("{bare:.2}"),
        format!("{added:.2}"),
        failed.to_string(),
    ]);
    let numbers = json!({
        "per_s": milli(per_s), "p50_ms": milli(p50), "p99_ms": milli(p99),
        "bare_p99_ms": milli(bare), "added_p99_ms": milli(added), "failed": failed,
    });
    report.set(key, numbers);
    report.failed += failed;
}

fn add(report: &mut Report, (key, name): (&str, &str), outcome: Outcome) {
    let per_s = outcome.per_s();
    let of = Percentiles::of(outcome.latencies_ms);
    report.row([
        name.to_owned(),
        format!("{per_s:.0}"),
        format!("{:.2}", of.p50),
        format!("{:.2}", of.p99),
        String::new(),
        String::new(),
        outcome.failed.to_string(),
    ]);
    let numbers = json!({
        "per_s": milli(per_s), "p50_ms": milli(of.p50), "p99_ms": milli(of.p99),
        "failed": outcome.failed,
    });
    report.set(key, numbers);
    report.failed += outcome.failed;
}
