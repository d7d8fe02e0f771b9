//! The engine on the configured model, in the sizes that other engines' benches use.

use std::time::Instant;

use serde_json::{Value, json};

use super::Bench;
use super::bed::{Bed, ended_well};
use super::report::{Report, milli};
use super::speed::round;

/// Completions at once.
const CONCURRENT: [usize; 3] = [1, 8, 32];
/// Context that decoding begins at, and tokens of the prompt whose time is taken.
const PROMPT_TOKENS: usize = 32;
const PREFILL_TOKENS: usize = 512;

/// `hone-bench engine`.
pub(super) fn engine(bench: &Bench, steps: u32) -> Result<Report, String> {
    let builtin = bench.builtin()?;
    let bed = Bed::undrafted(bench, &builtin)?;
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
        "completions of {steps} tokens after prompts of {PROMPT_TOKENS}, without drafts"
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
    // Those that begin first have to last until the last one has begun, too.
    let each = steps + concurrent as u32;
    let ask = |_| bed.ask(PROMPT_TOKENS, each);
    let wanted = u64::from(steps) * concurrent as u64;
    let enough = |tokens, _| tokens >= wanted;
    let (tokens, time, failed) = round(bed, (concurrent, &enough), &ask)?;
    if tokens == 0 {
        return Err(format!(
            "{concurrent} completions were never seen decoding at the same time; more --steps may help"
        ));
    }
    Ok((tokens as f64 / time.as_secs_f64(), failed))
}
