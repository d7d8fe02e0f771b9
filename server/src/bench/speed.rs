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
const PROMPT_TOKENS: usize = 64;
const COMPLETION_TOKENS: u32 = 512;
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

/// `hone bench decode`.
pub(super) fn decode(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(4.0);
    let title = format!(
        "decode: tokens/s through the engine, from a context of {PROMPT_TOKENS} tokens on"
    );
    let head = ["model", "parameters", "at once", "tokens/s", "gap p50 ms", "gap p99 ms"];
    let mut report = Report::new(title, &head);
    for subject in subjects(bench)? {
        let bed = Bed::new(bench, &subject.builtin)?;
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
    let began = Instant::now();
    let before = bed.engine.stats();
    // Rounds have a beginning and an end that do not count, so the whole has a limit of its own.
    while decoded.time < time && began.elapsed() < 3 * time + PATIENCE {
        let asked = (0..concurrent).map(|_| bed.ask(PROMPT_TOKENS, COMPLETION_TOKENS));
        let mut answers = asked.collect::<Result<Vec<Answer>, String>>()?;
        let left = time.saturating_sub(decoded.time);
        let (tokens, spent) = round(bed, concurrent, left)?;
        decoded.tokens += tokens;
        decoded.time += spent;
        for answer in &answers {
            answer.cancel.cancel();
        }
        let well = answers.iter_mut().filter_map(|a| ended_well(a).then_some(())).count();
        decoded.failed += (concurrent - well) as u64;
    }
    if decoded.time.is_zero() {
        return Err(format!("{concurrent} completions never decoded at the same time"));
    }
    let gaps = bed.engine.stats().token_gap_us.since(&before.token_gap_us);
    decoded.gap_p50_us = gaps.quantile(0.5);
    decoded.gap_p99_us = gaps.quantile(0.99);
    Ok(decoded)
}

/// Tokens and time from when all completions decode until the first ends or `most` is over. The
/// answers' channels hold whole completions, so nobody has to read them meanwhile.
fn round(bed: &Bed, concurrent: usize, most: Duration) -> Result<(u64, Duration), String> {
    let asked = Instant::now();
    let first = loop {
        let stats = bed.engine.stats();
        let is_decoding = stats.running == concurrent && stats.waiting == 0;
        if is_decoding && stats.batch_rows.count() > 0 && stats.ttft_us.count() >= asked_so_far(&stats)
        {
            break stats.completion_tokens_total;
        }
        if asked.elapsed() > PATIENCE {
            return Err(format!("no first tokens within {} s", PATIENCE.as_secs()));
        }
        sleep(LOOK);
    };
    let start = Instant::now();
    let mut last = (0, Duration::ZERO);
    while last.1 < most {
        sleep(LOOK);
        let stats = bed.engine.stats();
        if stats.running < concurrent {
            break;
        }
        last = (stats.completion_tokens_total - first, start.elapsed());
    }
    Ok(last)
}

/// Requests whose first token is due: all that were accepted, but for those that failed.
fn asked_so_far(stats: &hone_serve::EngineStats) -> u64 {
    stats.requests_total - stats.failed_total
}
