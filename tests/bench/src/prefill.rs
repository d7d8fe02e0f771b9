//! Prefill: prompt tokens per second.

use std::time::{Duration, Instant};

use hone_domain::Delta;
use hone_serve::{Answer, Backend};
use serde_json::{Value, json};

use super::Bench;
use super::bed::{Bed, subjects};
use super::report::{Report, milli, ms};

/// Tokens of a prompt.
const PROMPT_TOKENS: usize = 512;
/// Prompts at once.
const CONCURRENT: [usize; 2] = [1, 8];

/// What was computed.
#[derive(Default)]
struct Prefilled {
    /// Prompt tokens, without those of the prefix cache.
    tokens: u64,
    time: Duration,
    /// Times to the first token, in milliseconds.
    firsts_ms: Vec<f64>,
    failed: u64,
}

/// `hone-bench prefill`.
pub(super) fn prefill(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(4.0);
    let title = format!("prefill: prompt tokens/s through the engine, {PROMPT_TOKENS} per prompt");
    let head = ["model", "at once", "tokens/s", "first token ms"];
    let mut report = Report::new(title, &head);
    for subject in subjects(bench)? {
        let bed = Bed::new(bench, &subject.builtin)?;
        let mut numbers: Vec<Value> = Vec::new();
        // The first prompt of a fresh engine touches its memory for the first time.
        round(&bed, 1, &mut Prefilled::default())?;
        for concurrent in CONCURRENT {
            let mut prefilled = Prefilled::default();
            while prefilled.time < time {
                round(&bed, concurrent, &mut prefilled)?;
            }
            let speed = prefilled.tokens as f64 / prefilled.time.as_secs_f64();
            let firsts = prefilled.firsts_ms;
            let first_ms = firsts.iter().sum::<f64>() / firsts.len().max(1) as f64;
            report.row([
                subject.name.to_owned(),
                concurrent.to_string(),
                format!("{speed:.0}"),
                format!("{first_ms:.1}"),
            ]);
            report.failed += prefilled.failed;
            numbers.push(json!({
                "concurrent": concurrent,
                "tokens_per_s": milli(speed),
                "first_token_mean_ms": milli(first_ms),
            }));
        }
        report.set(subject.name, numbers);
    }
    Ok(report)
}

/// Asks for one token after each of `concurrent` new prompts and waits for all.
fn round(bed: &Bed, concurrent: usize, sum: &mut Prefilled) -> Result<(), String> {
    let before = bed.engine.stats();
    let start = Instant::now();
    let asked = (0..concurrent).map(|_| bed.ask(PROMPT_TOKENS, 1));
    for mut answer in asked.collect::<Result<Vec<Answer>, String>>()? {
        let mut well = false;
        while let Some(delta) = answer.deltas.blocking_recv() {
            match delta {
                Delta::Token(_) => sum.firsts_ms.push(ms(start.elapsed())),
                Delta::End(_) => well = true,
                Delta::Started { .. } | Delta::Failed(_) => {}
            }
        }
        sum.failed += u64::from(!well);
    }
    sum.time += start.elapsed();
    let after = bed.engine.stats();
    let computed = |stats: &hone_serve::EngineStats| {
        stats.prompt_tokens_total - stats.cached_prompt_tokens_total
    };
    sum.tokens += computed(&after) - computed(&before);
    Ok(())
}
