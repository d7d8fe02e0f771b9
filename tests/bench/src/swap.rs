//! Swaps: gaps between tokens while versions are published and while none is, in turn, and nothing
//! may fail.
//!
//! A machine that others share stops any thread for milliseconds, so the worst of millions of gaps is
//! the machine's. What a swap costs shows in how often gaps are long with and without, and in the
//! gaps during which a version goes live beside as many random moments.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use hone_domain::{BlobKey, Delta, Digest, Policy, PolicyVersion, Scope};
use hone_nn::{Adapter, PROBE_FILE, peft, probe};
use hone_serve::{Backend, EngineStats};
use hone_starter::rng::Rng;
use serde_json::json;

use super::Bench;
use super::bed::{Bed, ended_well, lora};
use super::moments::{Span, Spans, inside, per_million_above, touching};
use super::report::{Gaps, Report, milli, ms, ratio};
use crate::demo::numbers::Percentiles;

/// Versions published.
const SWAPS: u32 = 1_000;
/// Stretches with swaps, each followed by an equally long one without, because machines drift.
const ROUNDS: u32 = 5;
/// Bytes of adapters that are prepared at most; where they are fewer than the versions, they come again.
const PREPARED_BYTES: usize = 1 << 30;
/// Completions at the same time, each followed by the next.
const STREAMS: usize = 8;
const PROMPT_TOKENS: usize = 64;
const COMPLETION_TOKENS: u32 = 64;
/// Longest that a published version may take to serve, which prefixes are computed for before.
const PATIENCE: Duration = Duration::from_secs(30);
/// Gaps are counted that are longer than so many ordinary steps.
const STEPS: [u32; 3] = [2, 8, 32];

/// What the streams saw, in milliseconds from the beginning.
#[derive(Default)]
struct Heard {
    gaps: Vec<Span>,
    /// From each ask to its first token.
    prompts: Vec<Span>,
    requests: u64,
    failed: u64,
    versions: BTreeSet<u64>,
}

/// What was done when.
#[derive(Default)]
struct Done {
    swapping: Vec<Span>,
    quiet: Vec<Span>,
    /// Between the last look at which a version did not serve and the first at which it did.
    live: Vec<Span>,
    publish_to_live_ms: Vec<f64>,
}

/// An adapter's files, ready to be published.
pub(super) struct Prepared {
    digest: Digest,
    files: Vec<(String, Vec<u8>)>,
}

/// When a version began to serve.
pub(super) struct Live {
    published: Instant,
    /// The last look at which it did not, and the first at which it did.
    between: (Instant, Instant),
}

impl Prepared {
    /// Durable files first, then the policy, in the trainer's order (it writes the version into the
    /// ledger between the two); waits until it serves.
    pub(super) fn publish(&self, bed: &Bed, scope: Scope, version: u64) -> Result<Live, String> {
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
        let published = Instant::now();
        bed.policies.update(|policies| policies.with(policy));
        let mut before = published;
        loop {
            let looked = Instant::now();
            if settled(bed) >= done {
                return Ok(Live {
                    published,
                    between: (before, Instant::now()),
                });
            }
            if published.elapsed() > PATIENCE {
                let limit = PATIENCE.as_secs();
                let why = "HONE__LOG__LEVEL=warn,hone=debug shows what takes how long";
                return Err(format!(
                    "version {version} did not serve within {limit} s; {why}"
                ));
            }
            before = looked;
            sleep(Duration::from_micros(500));
        }
    }
}

/// `hone-bench swap`.
pub(super) fn swap(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(40.0);
    let bed = Bed::new(bench, &bench.builtin()?)?;
    let prepared = prepare_all(&bed);
    // An adapter serves from the beginning, so that swaps are all that differs. The engine loads
    // the versions of those who have asked something.
    if !ended_well(&mut bed.ask(PROMPT_TOKENS, 1)?) {
        return Err("the first completion failed".to_owned());
    }
    prepared[0].publish(&bed, Bed::scope(), 1)?;
    let before = bed.engine.stats();
    let began = Instant::now();
    let (heard, done) = listen((&bed, began), || rounds((&bed, began), &prepared, time))?;
    report((&heard, &done), (&before, &bed.engine.stats()))
}

fn report(
    (heard, done): (&Heard, &Done),
    (before, after): (&EngineStats, &EngineStats),
) -> Result<Report, String> {
    let (quiet, swapping) = (
        Spans::of(done.quiet.clone()),
        Spans::of(done.swapping.clone()),
    );
    let step_ms = ordinary_step_ms(heard, &quiet)?;
    let title = format!(
        "swap: token gaps of {STREAMS} streams while {SWAPS} versions are published and, in turn, while none is"
    );
    let head = [
        "",
        "gap p50 ms",
        "p99 ms",
        "worst ms",
        "worst in steps",
        "gaps",
        "in a million: above 2 steps",
        "8 steps",
        "32 steps",
    ];
    let mut report = Report::new(title, &head);
    let parts = parts(heard, (&quiet, &swapping), &done.live);
    let p99 = parts.map(|(name, key, gaps_ms)| tell(&mut report, (name, key), gaps_ms, step_ms));
    report.note(format!(
        "an ordinary step, in which {STREAMS} streams decode and no prompt is computed, takes {step_ms:.2} ms (median gap of such steps without swaps)"
    ));
    let seconds = swapping.ms() / 1e3;
    let warmed = after.prewarm_tokens_total - before.prewarm_tokens_total;
    report.note(format!(
        "{SWAPS} versions took {seconds:.0} s, each published when the one before served ({warmed} tokens of prefixes were computed for that); the stretches without took as long"
    ));
    let swaps = after.swaps_total - before.swaps_total;
    let swap_failures = after.swap_failures_total - before.swap_failures_total;
    let unproven = after.adapters_unproven_total - before.adapters_unproven_total;
    report.failed = heard.failed + swap_failures + unproven;
    let live_ms = Percentiles::of(done.publish_to_live_ms.clone());
    report.set("step_ms", milli(step_ms));
    report.set("p99_ratio", json!(ratio(p99[1], p99[0])));
    report.set("swaps", swaps);
    report.set("swapping_s", milli(seconds));
    report.set("quiet_s", milli(quiet.ms() / 1e3));
    report.set("prewarm_tokens", warmed);
    report.set("versions_answering", heard.versions.len());
    report.set("requests", heard.requests);
    report.set("publish_to_live_p50_ms", milli(live_ms.p50));
    report.set("publish_to_live_p99_ms", milli(live_ms.p99));
    Ok(report)
}

/// All gaps without swaps and with them, and those at as many random moments without a swap as
/// versions went live, and when they did: name, key, milliseconds.
fn parts(
    heard: &Heard,
    (quiet, swapping): (&Spans, &Spans),
    live: &[Span],
) -> [(&'static str, &'static str, Vec<f64>); 4] {
    let moments = Spans::of(quiet.at_random(live, &mut Rng::new(1)));
    let live = Spans::of(live.to_vec());
    let at_random = touching(&heard.gaps, quiet, &moments);
    let at_swaps = touching(&heard.gaps, swapping, &live);
    [
        ("no swaps", "quiet", inside(&heard.gaps, quiet)),
        ("swaps", "swapping", inside(&heard.gaps, swapping)),
        ("at random moments of no swaps", "at_random", at_random),
        ("as a version goes live", "at_swaps", at_swaps),
    ]
}

/// Adds a row and its object; returns the 99th percentile.
fn tell(report: &mut Report, (name, key): (&str, &str), gaps_ms: Vec<f64>, step_ms: f64) -> f64 {
    let above = STEPS.map(|steps| per_million_above(&gaps_ms, f64::from(steps) * step_ms));
    let gaps = Gaps::of(gaps_ms);
    let worst_steps = gaps.worst_ms / step_ms;
    let [two, eight, many] = above.map(|count| format!("{count:.0}"));
    report.row([
        name.to_owned(),
        format!("{:.2}", gaps.p50_ms),
        format!("{:.2}", gaps.p99_ms),
        format!("{:.2}", gaps.worst_ms),
        format!("{worst_steps:.1}"),
        gaps.count.to_string(),
        two,
        eight,
        many,
    ]);
    let mut object = gaps.json();
    object["worst_steps"] = json!(milli(worst_steps));
    for (steps, count) in STEPS.into_iter().zip(above) {
        object[format!("per_million_above_{steps}_steps")] = json!(milli(count));
    }
    report.set(key, object);
    gaps.p99_ms
}

/// The median gap without swaps in which no stream's prompt was computed.
fn ordinary_step_ms(heard: &Heard, quiet: &Spans) -> Result<f64, String> {
    let prompts = Spans::of(heard.prompts.clone());
    let gaps = heard.gaps.iter().copied();
    let gaps: Vec<Span> = gaps.filter(|gap| !prompts.touch(*gap)).collect();
    let step_ms = Percentiles::of(inside(&gaps, quiet)).p50;
    if step_ms == 0.0 {
        return Err(format!(
            "the {STREAMS} streams were never seen decoding without a prompt; more --seconds may help"
        ));
    }
    Ok(step_ms)
}

/// A random adapter of the size that training makes, with the probe that training writes, so that
/// it is proven when it is loaded.
pub(super) fn prepare(bed: &Bed, seed: u64) -> Prepared {
    let adapter = Adapter::random(&bed.model.config, lora(), seed);
    let mut files = peft::to_files(&adapter, "bench", &json!({}));
    let said = probe(&bed.model, Some(&adapter), &bed.executor);
    files.push((PROBE_FILE.to_owned(), said));
    Prepared {
        digest: Digest(adapter.digest()),
        files,
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

/// Publishes all versions in stretches that take `time` altogether, or longer where versions take
/// longer until they serve, and waits as long after each. Version 1 is there.
fn rounds(
    (bed, began): (&Bed, Instant),
    prepared: &[Prepared],
    time: Duration,
) -> Result<Done, String> {
    let mut done = Done::default();
    let at = |moment: Instant| ms(moment - began);
    let mut coming = (2..).zip(prepared.iter().cycle().skip(1));
    let each = SWAPS / ROUNDS;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for (number, (version, prepared)) in (1..=each).zip(coming.by_ref()) {
            sleep((time / SWAPS * number).saturating_sub(start.elapsed()));
            let live = prepared.publish(bed, Bed::scope(), version)?;
            let (before, seen) = live.between;
            done.publish_to_live_ms.push(ms(seen - live.published));
            done.live.push(Span {
                from_ms: at(before),
                to_ms: at(seen),
            });
        }
        let middle = Instant::now();
        sleep(middle - start);
        done.swapping.push(Span {
            from_ms: at(start),
            to_ms: at(middle),
        });
        done.quiet.push(Span {
            from_ms: at(middle),
            to_ms: at(Instant::now()),
        });
    }
    Ok(done)
}

/// Published versions that serve or could not be loaded.
fn settled(bed: &Bed) -> u64 {
    let stats = bed.engine.stats();
    stats.swaps_total + stats.swap_failures_total
}

/// Lets the streams run while something happens.
fn listen<T>(
    (bed, began): (&Bed, Instant),
    during: impl FnOnce() -> Result<T, String>,
) -> Result<(Heard, T), String> {
    let stop = AtomicBool::new(false);
    scope(|threads| {
        let stop = &stop;
        let streams: Vec<_> = (0..STREAMS)
            .map(|_| threads.spawn(move || stream((bed, began), stop)))
            .collect();
        let result = during();
        stop.store(true, Ordering::Relaxed);
        let mut all = Heard::default();
        for stream in streams {
            let heard = stream.join().map_err(|_| "a stream panicked".to_owned())?;
            all.gaps.extend(heard.gaps);
            all.prompts.extend(heard.prompts);
            all.requests += heard.requests;
            all.failed += heard.failed;
            all.versions.extend(heard.versions);
        }
        Ok((all, result?))
    })
}

/// One completion after the other, at least one.
fn stream((bed, began): (&Bed, Instant), stop: &AtomicBool) -> Heard {
    let mut heard = Heard::default();
    while heard.requests == 0 || !stop.load(Ordering::Relaxed) {
        heard.requests += 1;
        heard.failed += u64::from(!complete((bed, began), &mut heard));
    }
    heard
}

/// Reads one completion as it comes; false if it failed.
fn complete((bed, began): (&Bed, Instant), heard: &mut Heard) -> bool {
    let now_ms = || ms(began.elapsed());
    let asked_ms = now_ms();
    let Ok(mut answer) = bed.ask(PROMPT_TOKENS, COMPLETION_TOKENS) else {
        return false;
    };
    let (mut well, mut last_ms) = (false, None);
    while let Some(delta) = answer.deltas.blocking_recv() {
        match delta {
            Delta::Started { version, .. } => {
                heard.versions.insert(version.0);
            }
            Delta::Token(_) => {
                let to_ms = now_ms();
                match last_ms.replace(to_ms) {
                    Some(from_ms) => heard.gaps.push(Span { from_ms, to_ms }),
                    None => heard.prompts.push(Span {
                        from_ms: asked_ms,
                        to_ms,
                    }),
                }
            }
            Delta::End(_) => well = true,
            Delta::Failed(_) => {}
        }
    }
    well
}
