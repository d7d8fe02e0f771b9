//! Completions held to a JSON schema, beside others that are not: what masks cost whom.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hone_domain::{Delta, Grammar};
use hone_serve::Answer;
use serde_json::json;

use super::Bench;
use super::bed::{Bed, subjects};
use super::report::{Report, milli};
use crate::demo::numbers::Percentiles;

/// Completions at once, and how many of them are held in the second part.
const CONCURRENT: usize = 8;
const HELD: usize = 4;
const PROMPT_TOKENS: usize = 64;
const COMPLETION_TOKENS: u32 = 256;
/// A list of small objects that never has to end before the token limit.
const SCHEMA: &str = r#"start: %json {"type": "array", "minItems": 1000, "items": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "n": {"type": "integer"}}, "required": ["name", "n"], "additionalProperties": false}}"#;

/// `hone-bench form`.
pub(super) fn form(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(4.0);
    let title = format!(
        "form: gaps between tokens of {CONCURRENT} completions, all free, then {HELD} held to a schema"
    );
    let head = ["model", "completions", "tokens", "gap p50 ms", "gap p99 ms"];
    let mut report = Report::new(title, &head);
    for subject in subjects(bench)? {
        let bed = Bed::new(bench, &subject.builtin)?;
        let (all_free, _, failed) = part(&bed, 0, time)?;
        report.failed += failed;
        let (free, held, failed) = part(&bed, HELD, time)?;
        report.failed += failed;
        let mut numbers = Vec::new();
        for (name, gaps) in [
            ("all free", all_free),
            ("free beside held", free),
            ("held", held),
        ] {
            let tokens = gaps.len();
            let gaps = Percentiles::of(gaps);
            let (p50, p99) = (gaps.p50, gaps.p99);
            report.row([
                subject.name.to_owned(),
                name.to_owned(),
                tokens.to_string(),
                format!("{p50:.2}"),
                format!("{p99:.2}"),
            ]);
            numbers.push(json!({
                "completions": name, "tokens": tokens,
                "gap_p50_ms": milli(p50), "gap_p99_ms": milli(p99),
            }));
        }
        report.set(subject.name, numbers);
    }
    Ok(report)
}

/// Gaps in milliseconds of free and of held completions, and how many failed.
type Part = (Vec<f64>, Vec<f64>, u64);

fn part(bed: &Bed, held: usize, time: Duration) -> Result<Part, String> {
    let (mut free_gaps, mut held_gaps, mut failed) = (Vec::new(), Vec::new(), 0);
    let began = Instant::now();
    while began.elapsed() < time {
        let grammar = |at: usize| (at < held).then(|| Grammar(Arc::from(SCHEMA)));
        let asked =
            (0..CONCURRENT).map(|at| bed.ask_in(PROMPT_TOKENS, COMPLETION_TOKENS, grammar(at)));
        let answers = asked.collect::<Result<Vec<Answer>, String>>()?;
        let readers: Vec<_> = answers
            .into_iter()
            .map(|a| thread::spawn(move || gaps(a)))
            .collect();
        for (at, reader) in readers.into_iter().enumerate() {
            let (gaps, well) = reader.join().map_err(|_| "a reader panicked".to_owned())?;
            failed += u64::from(!well);
            if at < held {
                held_gaps.extend(gaps);
            } else {
                free_gaps.extend(gaps);
            }
        }
    }
    Ok((free_gaps, held_gaps, failed))
}

/// Gaps between an answer's tokens as they come, and whether it ended well.
fn gaps(mut answer: Answer) -> (Vec<f64>, bool) {
    let (mut gaps, mut before, mut well) = (Vec::new(), None::<Instant>, false);
    while let Some(delta) = answer.deltas.blocking_recv() {
        well = matches!(delta, Delta::End(_));
        if matches!(delta, Delta::Token(_)) {
            let now = Instant::now();
            gaps.extend(before.map(|before| (now - before).as_secs_f64() * 1e3));
            before = Some(now);
        }
    }
    (gaps, well)
}
