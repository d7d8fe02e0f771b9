//! What the door itself costs: the engine answers at once, so every millisecond is ours. With
//! `--against`, the same load at another OpenAI-compatible server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::Bench;
use super::child::Server;
use super::report::{Report, milli, ms};
use super::wire::Wire;
use crate::demo::numbers::Percentiles;

/// Requests a second: turns on disk, and turns that nobody keeps.
const RATE_KEPT: u32 = 500;
const RATE_NOT_KEPT: u32 = 3_000;
/// Requests at once where each follows the one before.
const AT_ONCE: usize = 16;
/// Requests under way, at most; beyond, one counts as failed.
const UNDER_WAY_MAX: usize = 2_000;
/// Requests before anything is measured.
const WARM: usize = 200;
/// Longest request.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A request that is sent over and over.
struct Load {
    http: reqwest::Client,
    url: String,
    body: Vec<u8>,
}

/// What became of a load.
#[derive(Default)]
struct Outcome {
    latencies_ms: Vec<f64>,
    failed: u64,
    seconds: f64,
}

impl Outcome {
    fn per_s(&self) -> f64 {
        self.latencies_ms.len() as f64 / self.seconds.max(1e-9)
    }
}

impl Load {
    async fn at(url: &str, store: bool) -> Result<Self, String> {
        let models = Wire::new(url)?.models().await?;
        let body = json!({
            "model": models["data"][0]["id"],
            "messages": [{ "role": "user", "content": "What is the capital of France?" }],
            "max_tokens": 16,
            "store": store,
        });
        let http = reqwest::Client::builder().timeout(TIMEOUT).no_proxy();
        let http = http.build().map_err(|error| error.to_string())?;
        Ok(Self {
            http,
            url: format!("{url}/v1/chat/completions"),
            body: body.to_string().into_bytes(),
        })
    }

    /// Whether it was answered with success and to the last byte.
    async fn once(&self) -> bool {
        let request = self.http.post(&self.url);
        let request = request.header("content-type", "application/json");
        match request.body(self.body.clone()).send().await {
            Ok(reply) if reply.status().is_success() => reply.bytes().await.is_ok(),
            _ => false,
        }
    }

    async fn warm(self: &Arc<Self>) -> Result<(), String> {
        for _ in 0..WARM {
            if !self.once().await {
                return Err(format!("{} does not answer as it should", self.url));
            }
        }
        Ok(())
    }

    /// Each of `AT_ONCE` senders sends when its last answer is there.
    async fn closed(self: &Arc<Self>, time: Duration) -> Outcome {
        let began = Instant::now();
        let mut senders = JoinSet::new();
        for _ in 0..AT_ONCE {
            let load = self.clone();
            senders.spawn(async move {
                let mut own = Outcome::default();
                while began.elapsed() < time {
                    let sent = Instant::now();
                    match load.once().await {
                        true => own.latencies_ms.push(ms(sent.elapsed())),
                        false => own.failed += 1,
                    }
                }
                own
            });
        }
        let mut all = Outcome::default();
        while let Some(done) = senders.join_next().await {
            let own = done.unwrap_or_default();
            all.latencies_ms.extend(own.latencies_ms);
            all.failed += own.failed;
        }
        all.seconds = began.elapsed().as_secs_f64();
        all
    }

    /// Requests leave on time whatever became of those before, and wait from that time on.
    async fn open(self: &Arc<Self>, rate: u32, time: Duration) -> Outcome {
        let began = Instant::now();
        let mut all = Outcome::default();
        let mut under_way = JoinSet::new();
        let mut ticks = interval(Duration::from_millis(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sent = 0u64;
        while began.elapsed() < time {
            ticks.tick().await;
            let due = (began.elapsed().as_secs_f64() * f64::from(rate)) as u64;
            while sent < due {
                let on_time = began + Duration::from_secs_f64(sent as f64 / f64::from(rate));
                sent += 1;
                if under_way.len() >= UNDER_WAY_MAX {
                    all.failed += 1;
                    continue;
                }
                let load = self.clone();
                under_way.spawn(async move { load.once().await.then(|| ms(on_time.elapsed())) });
            }
            while let Some(done) = under_way.try_join_next() {
                all.note(done.ok().flatten());
            }
        }
        while let Some(done) = under_way.join_next().await {
            all.note(done.ok().flatten());
        }
        all.seconds = began.elapsed().as_secs_f64();
        all
    }
}

impl Outcome {
    fn note(&mut self, latency_ms: Option<f64>) {
        match latency_ms {
            Some(latency_ms) => self.latencies_ms.push(latency_ms),
            None => self.failed += 1,
        }
    }
}

/// `hone bench overhead`.
pub(super) fn overhead(bench: &Bench, against: Option<&str>) -> Result<Report, String> {
    let time = bench.time(10.0);
    let server = Server::start_with(bench, &["--engine", "null"])?;
    bench.runtime.block_on(async {
        Wire::new(&server.url)?.ready().await?;
        let kept = Arc::new(Load::at(&server.url, true).await?);
        let not_kept = Arc::new(Load::at(&server.url, false).await?);
        kept.warm().await?;
        not_kept.warm().await?;
        let mut report = Report::new(
            "overhead: the door with an engine that answers at once",
            &["", "per second", "p50 ms", "p99 ms", "failed"],
        );
        let outcome = kept.open(RATE_KEPT, time).await;
        add(&mut report, ("kept_500", "500/s, turns on disk"), outcome);
        let outcome = not_kept.open(RATE_NOT_KEPT, time).await;
        add(
            &mut report,
            ("not_kept_3000", "3,000/s, store: false"),
            outcome,
        );
        let outcome = kept.closed(time).await;
        let ours = outcome.per_s();
        add(
            &mut report,
            ("kept_16", "16 at once, turns on disk"),
            outcome,
        );
        let outcome = not_kept.closed(time).await;
        let ours_not_kept = outcome.per_s();
        add(
            &mut report,
            ("not_kept_16", "16 at once, store: false"),
            outcome,
        );
        if let Some(url) = against {
            let other = Arc::new(Load::at(url.trim_end_matches('/'), true).await?);
            other.warm().await?;
            let outcome = other.closed(time).await;
            let theirs = outcome.per_s().max(1e-9);
            let (ratio, not_kept) = (ours / theirs, ours_not_kept / theirs);
            add(
                &mut report,
                ("against_16", "16 at once, the other server"),
                outcome,
            );
            report.set("ratio", milli(ratio));
            report.set("ratio_not_kept", milli(not_kept));
            report.note(format!(
                "{ratio:.1} times the other server's throughput at 16 at once, {not_kept:.1} times \
                 where nothing is kept."
            ));
        }
        report.set("seconds", milli(time.as_secs_f64()));
        Ok(report)
    })
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
