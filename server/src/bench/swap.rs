//! Swaps: gaps between tokens while versions are published, and nothing may fail.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use hone_domain::{BlobKey, Delta, Digest, Policy, PolicyVersion, Scope};
use hone_nn::{Adapter, peft};
use hone_serve::Backend;
use serde_json::json;

use super::Bench;
use super::bed::{Bed, lora};
use super::report::{Gaps, Report, milli, ms, ratio};
use crate::demo::numbers::Percentiles;

/// Versions published.
const SWAPS: u64 = 1_000;
/// Bytes of adapters that are prepared at most; where they are fewer than the versions, they come again.
const PREPARED_BYTES: usize = 1 << 30;
/// Completions at the same time, each followed by the next.
const STREAMS: usize = 8;
const PROMPT_TOKENS: usize = 64;
const COMPLETION_TOKENS: u32 = 64;
/// Longest that a published version may take to serve.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the streams saw.
#[derive(Default)]
struct Heard {
    gaps_ms: Vec<f64>,
    requests: u64,
    failed: u64,
    versions: BTreeSet<u64>,
}

/// An adapter's files, ready to be published.
pub(super) struct Prepared {
    digest: Digest,
    files: Vec<(String, Vec<u8>)>,
}

impl Prepared {
    /// Durable files first, then the table, as the trainer does; returns the time until it serves.
    pub(super) fn publish(
        &self,
        bed: &Bed,
        scope: Scope,
        version: u64,
    ) -> Result<Duration, String> {
        let name = format!("adapters/bench/{}", &self.digest.to_hex()[..16]);
        let blob = BlobKey::new(name).map_err(|error| error.to_string())?;
        let put = bed.blobs.put(&blob, &self.files);
        put.map_err(|error| error.to_string())?;
        let policy = Policy {
            scope,
            version: PolicyVersion(version),
            digest: self.digest,
            blob,
        };
        let done = settled(bed) + 1;
        let start = Instant::now();
        bed.policies.update(|policies| policies.with(policy));
        while settled(bed) < done {
            if start.elapsed() > PATIENCE {
                let limit = PATIENCE.as_secs();
                return Err(format!("version {version} did not serve within {limit} s"));
            }
            sleep(Duration::from_micros(500));
        }
        Ok(start.elapsed())
    }
}

/// `hone bench swap`.
pub(super) fn swap(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(60.0);
    let bed = Bed::new(bench, &bench.builtin()?)?;
    let prepared = prepare_all(&bed);
    let (quiet, ()) = listen(&bed, || {
        sleep(time / 4);
        Ok(())
    })?;
    let before = bed.engine.stats();
    let (loaded, live_ms) = listen(&bed, || publish_all(&bed, &prepared, time))?;
    let after = bed.engine.stats();
    let swap_failures = after.swap_failures_total - before.swap_failures_total;
    let failed = quiet.failed + loaded.failed + swap_failures;
    let requests = quiet.requests + loaded.requests;
    let (quiet, gaps) = (Gaps::of(quiet.gaps_ms), Gaps::of(loaded.gaps_ms));
    let title =
        format!("swap: token gaps of {STREAMS} streams while {SWAPS} versions are published");
    let head = ["", "gap p50 ms", "p99 ms", "worst ms", "tokens"];
    let mut report = Report::new(title, &head);
    for (name, gaps) in [("no swaps", &quiet), ("swaps", &gaps)] {
        let cell = |ms: f64| format!("{ms:.2}");
        let (p50, p99, worst) = (gaps.p50_ms, gaps.p99_ms, gaps.worst_ms);
        let count = gaps.count.to_string();
        report.row([name.to_owned(), cell(p50), cell(p99), cell(worst), count]);
    }
    report.failed = failed;
    report.set("quiet", quiet.json());
    report.set("swapping", gaps.json());
    report.set("p99_ratio", json!(ratio(gaps.p99_ms, quiet.p99_ms)));
    report.note(format!(
        "worst gap with swaps: {:.1} ordinary steps",
        gaps.worst_ms / quiet.p50_ms.max(1e-9)
    ));
    report.set("swaps", after.swaps_total - before.swaps_total);
    report.set("versions_answering", loaded.versions.len());
    report.set("requests", requests);
    report.set("publish_to_live_p50_ms", milli(live_ms.p50));
    report.set("publish_to_live_p99_ms", milli(live_ms.p99));
    Ok(report)
}

/// A random adapter of the size that training makes.
pub(super) fn prepare(bed: &Bed, seed: u64) -> Prepared {
    let adapter = Adapter::random(&bed.model.config, lora(), seed);
    Prepared {
        digest: Digest(adapter.digest()),
        files: peft::to_files(&adapter, "bench", &json!({})),
    }
}

/// An adapter for every version, or as many as may be held.
fn prepare_all(bed: &Bed) -> Vec<Prepared> {
    let first = prepare(bed, 1);
    let bytes: usize = first.files.iter().map(|(_, file)| file.len()).sum();
    let count = (PREPARED_BYTES / bytes.max(1)).clamp(2, SWAPS as usize) as u64;
    let others = (2..=count).map(|seed| prepare(bed, seed));
    std::iter::once(first).chain(others).collect()
}

/// Publishes the adapters as versions 1, 2, .. spread over `time`. Returns the times until they served.
fn publish_all(bed: &Bed, prepared: &[Prepared], time: Duration) -> Result<Percentiles, String> {
    let began = Instant::now();
    let every = time / SWAPS as u32;
    let mut live_ms = Vec::new();
    for (number, prepared) in (1..=SWAPS as u32).zip(prepared.iter().cycle()) {
        sleep((every * number).saturating_sub(began.elapsed()));
        let live = prepared.publish(bed, Bed::scope(), u64::from(number))?;
        live_ms.push(ms(live));
    }
    Ok(Percentiles::of(live_ms))
}

/// Published versions that serve or could not be loaded.
fn settled(bed: &Bed) -> u64 {
    let stats = bed.engine.stats();
    stats.swaps_total + stats.swap_failures_total
}

/// Lets the streams run while something happens.
fn listen<T>(bed: &Bed, during: impl FnOnce() -> Result<T, String>) -> Result<(Heard, T), String> {
    let stop = AtomicBool::new(false);
    scope(|threads| {
        let stop = &stop;
        let streams: Vec<_> = (0..STREAMS)
            .map(|_| threads.spawn(move || stream(bed, stop)))
            .collect();
        let result = during();
        stop.store(true, Ordering::Relaxed);
        let mut all = Heard::default();
        for stream in streams {
            let heard = stream.join().map_err(|_| "a stream panicked".to_owned())?;
            all.gaps_ms.extend(heard.gaps_ms);
            all.requests += heard.requests;
            all.failed += heard.failed;
            all.versions.extend(heard.versions);
        }
        Ok((all, result?))
    })
}

/// One completion after the other, at least one.
fn stream(bed: &Bed, stop: &AtomicBool) -> Heard {
    let mut heard = Heard::default();
    while heard.requests == 0 || !stop.load(Ordering::Relaxed) {
        heard.requests += 1;
        heard.failed += u64::from(!complete(bed, &mut heard));
    }
    heard
}

/// Reads one completion as it comes; false if it failed.
fn complete(bed: &Bed, heard: &mut Heard) -> bool {
    let Ok(mut answer) = bed.ask(PROMPT_TOKENS, COMPLETION_TOKENS) else {
        return false;
    };
    let (mut well, mut last) = (false, None::<Instant>);
    while let Some(delta) = answer.deltas.blocking_recv() {
        match delta {
            Delta::Started { version, .. } => {
                heard.versions.insert(version.0);
            }
            Delta::Token(_) => {
                let now = Instant::now();
                if let Some(last) = last.replace(now) {
                    heard.gaps_ms.push(ms(now - last));
                }
            }
            Delta::End(_) => well = true,
            Delta::Failed(_) => {}
        }
    }
    well
}
