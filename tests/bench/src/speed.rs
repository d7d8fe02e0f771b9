//! Decoding: tokens per second of completions that run at the same time.

use std::thread::sleep;
use std::time::{Duration, Instant};

use hone_serve::{Answer, Backend};
use serde_json::{Value, json};

use super::Bench;
use super::bed::{Bed, ended_well, subjects};
use super::report::{Report, milli};

/// Completions at once.
const CONCURRENT: [usize; 3] = [1, 8, 32];
/// Context that decoding begins at, and tokens of a whole completion.
pub(super) const PROMPT_TOKENS: usize = 64;
pub(super) const COMPLETION_TOKENS: u32 = 512;
/// How often the engine's counters are read; far below a round's length, and cheap.
const LOOK: Duration = Duration::from_millis(2);
/// Longest that prompts may take before the first token.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was decoded in the time in which every completion was decoding.
#[derive(Default)]
struct Decoded {
    tokens: u64,
    time: Duration,
    failed: u64,
    gap_p50_us: u64,
    gap_p99_us: u64,
}

/// `hone-bench decode`.
pub(super) fn decode(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(4.0);
    let title =
        format!("decode: tokens/s through the engine, from a context of {PROMPT_TOKENS} tokens on");
    let head = [
        "model",
        "parameters",
        "at once",
        "tokens/s",
        "gap p50 ms",
        "gap p99 ms",
    ];
    let mut report = Report::new(title, &head);
    for subject in subjects(bench)? {
        let bed = Bed::undrafted(bench, &subject.builtin)?;
        let parameters = bed.model.weights.parameters(&bed.model.config);
        let mut numbers: Vec<Value> = Vec::new();
        for concurrent in CONCURRENT {
            let decoded = measure(&bed, concurrent, time)?;
            let speed = decoded.tokens as f64 / decoded.time.as_secs_f64();
            let gap = |us: u64| us as f64 / 1e3;
            let (p50, p99) = (gap(decoded.gap_p50_us), gap(decoded.gap_p99_us));
            report.row([
                subject.name.to_owned(),
                parameters.to_string(),
                concurrent.to_string(),
                format!("{speed:.0}"),
                format!("{p50:.2}"),
                format!("{p99:.2}"),
            ]);
            report.failed += decoded.failed;
            numbers.push(json!({
                "concurrent": concurrent,
                "tokens_per_s": milli(speed),
                "gap_p50_ms": milli(p50),
                "gap_p99_ms": milli(p99),
            }));
        }
        report.set(subject.name, numbers);
    }
    Ok(report)
}

/// Rounds of `concurrent` completions, until `time` was spent with all of them decoding.
fn measure(bed: &Bed, concurrent: usize, time: Duration) -> Result<Decoded, String> {
    let mut decoded = Decoded::default();
    let (began, before) = (Instant::now(), bed.engine.stats());
    // Rounds have a beginning and an end that do not count, so the whole has a limit of its own.
    while decoded.time < time && began.elapsed() < 3 * time {
        let most = time.saturating_sub(decoded.time);
        let ask = |_| bed.ask(PROMPT_TOKENS, COMPLETION_TOKENS);
        let (tokens, spent, failed) = round(bed, (concurrent, &|_, time| time >= most), &ask)?;
        decoded.tokens += tokens;
        decoded.time += spent;
        decoded.failed += failed;
    }
    if decoded.time.is_zero() {
        return Err(format!(
            "{concurrent} completions were never seen decoding at the same time"
        ));
    }
    let gaps = bed.engine.stats().token_gap_us.since(&before.token_gap_us);
    decoded.gap_p50_us = gaps.quantile(0.5);
    decoded.gap_p99_us = gaps.quantile(0.99);
    Ok(decoded)
}

/// Tokens and time from when all completions that `ask` asks for decode until the first ends or
/// `enough` says so of both, and completions that failed. The answers' channels hold whole
/// completions, so nobody has to read them meanwhile.
pub(super) fn round(
    bed: &Bed,
    (concurrent, enough): (usize, &dyn Fn(u64, Duration) -> bool),
    ask: &dyn Fn(usize) -> Result<Answer, String>,
) -> Result<(u64, Duration, u64), String> {
    let due = bed.engine.stats().ttft_us.count() + concurrent as u64;
    let mut answers = (0..concurrent)
        .map(ask)
        .collect::<Result<Vec<Answer>, String>>()?;
    let first = until_decoding(bed, concurrent, due)?;
    let start = Instant::now();
    let (mut tokens, mut time) = (0, Duration::ZERO);
    while !enough(tokens, time) {
        sleep(LOOK);
        let stats = bed.engine.stats();
        if stats.running < concurrent {
            break;
        }
        let decoded = stats.completion_tokens_total - first;
        // The time of a step under way does not count, because its tokens do not yet.
        if decoded > tokens {
            (tokens, time) = (decoded, start.elapsed());
        }
    }
    for answer in &answers {
        answer.cancel.cancel();
    }
    let well = answers.iter_mut().map(ended_well);
    let failed = well.filter(|well| !well).count();
    Ok((tokens, time, failed as u64))
}

/// Waits until `concurrent` completions have their first token, `due` of all time; returns the
/// tokens sampled so far.
fn until_decoding(bed: &Bed, concurrent: usize, due: u64) -> Result<u64, String> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let stats = bed.engine.stats();
        if stats.running == concurrent && stats.ttft_us.count() >= due {
            return Ok(stats.completion_tokens_total);
        }
        sleep(LOOK);
    }
    Err(format!(
        "{concurrent} completions had no first tokens within {} s",
        PATIENCE.as_secs()
    ))
}
