//! The engine on the configured model, in the sizes that other engines' benches use.

use std::thread::sleep;
use std::time::{Duration, Instant};

use hone_serve::{Answer, Backend};
use serde_json::{Value, json};

use super::Bench;
use super::bed::{Bed, ended_well};
use super::report::{Report, milli};
use super::speed::until_decoding;

/// Completions at once.
const CONCURRENT: [usize; 3] = [1, 8, 32];
/// Context that decoding begins at, and tokens of the prompt whose time is taken.
const PROMPT_TOKENS: usize = 32;
const PREFILL_TOKENS: usize = 512;
/// How often the engine's counters are read; each look costs the engine some of a core.
const LOOK: Duration = Duration::from_millis(2);

/// `hone bench engine`.
pub(super) fn engine(bench: &Bench, steps: u32) -> Result<Report, String> {
    let builtin = bench.builtin()?;
    let bed = Bed::new(bench, &builtin)?;
    let parameters = bed.model.weights.parameters(&bed.model.config);
    let title = format!(
        "engine: {parameters} parameters, {}",
        hone_nn::fingerprint(&bed.model)
    );
    let mut report = Report::new(title, &["measure", "tokens/s"]);
    // The first prompt touches the memory of weights and keys for the first time.
    report.failed += prefill(&bed)?.1;
    let (speed, failed) = prefill(&bed)?;
    report.failed += failed;
    let mut numbers: Vec<Value> = Vec::new();
    for concurrent in CONCURRENT {
        let (speed, failed) = decode(&bed, concurrent, steps)?;
        report.row([
            format!("decode, {concurrent} at once"),
            format!("{speed:.1}"),
        ]);
        report.failed += failed;
        numbers.push(json!({ "concurrent": concurrent, "tokens_per_s": milli(speed) }));
    }
    report.row([format!("prompt of {PREFILL_TOKENS}"), format!("{speed:.1}")]);
    report.note(format!(
        "completions of {steps} tokens after prompts of {PROMPT_TOKENS}"
    ));
    report.set("parameters", parameters);
    report.set("decode", numbers);
    report.set("prefill_tokens_per_s", milli(speed));
    Ok(report)
}

/// Prompt tokens per second up to the first token of one answer, and whether it failed.
fn prefill(bed: &Bed) -> Result<(f64, u64), String> {
    let start = Instant::now();
    let mut answer = bed.ask(PREFILL_TOKENS, 1)?;
    let well = ended_well(&mut answer);
    let speed = PREFILL_TOKENS as f64 / start.elapsed().as_secs_f64();
    Ok((speed, u64::from(!well)))
}

/// Tokens per second from when all of `concurrent` completions decode until the first has its
/// `steps` tokens, and completions that failed.
fn decode(bed: &Bed, concurrent: usize, steps: u32) -> Result<(f64, u64), String> {
    let due = bed.engine.stats().ttft_us.count() + concurrent as u64;
    // Those that begin first have to last until the last one has begun, too.
    let each = steps + concurrent as u32;
    let answers = (0..concurrent).map(|_| bed.ask(PROMPT_TOKENS, each));
    let mut answers = answers.collect::<Result<Vec<Answer>, String>>()?;
    let first = until_decoding(bed, concurrent, due)?;
    let (start, wanted) = (Instant::now(), u64::from(steps) * concurrent as u64);
    let (mut tokens, mut time) = (0, Duration::ZERO);
    while tokens < wanted {
        let stats = bed.engine.stats();
        if stats.running < concurrent {
            break;
        }
        // The time of a step under way does not count, because its tokens do not yet.
        let decoded = stats.completion_tokens_total - first;
        if decoded > tokens {
            (tokens, time) = (decoded, start.elapsed());
        }
        sleep(LOOK);
    }
    answers.iter().for_each(|answer| answer.cancel.cancel());
    let failed = answers.iter_mut().map(ended_well).filter(|well| !well);
    let failed = failed.count() as u64;
    if tokens == 0 {
        return Err(format!(
            "{concurrent} completions were never seen decoding at the same time; more --steps may help"
        ));
    }
    Ok((tokens as f64 / time.as_secs_f64(), failed))
}
