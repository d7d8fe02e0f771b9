//! Adapters: what it costs that completions at the same time are under different ones.

use std::time::Duration;

use hone_domain::Scope;
use serde_json::json;

use super::Bench;
use super::bed::{Bed, ended_well, subjects};
use super::report::{Report, milli, ratio};
use super::speed::{COMPLETION_TOKENS, PROMPT_TOKENS, round};
use super::swap::prepare;

/// Completions at once, and the adapters that they are spread over.
const CONCURRENT: usize = 32;
const ADAPTERS: usize = 8;
/// Rounds of each kind, in turn, because machines drift.
const ROUNDS: u32 = 6;
/// The model: random, of about 30 million parameters.
const MODEL: &str = "random_30m";

/// `hone bench adapters`.
pub(super) fn adapters(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(4.0);
    let subject = subjects(bench)?.into_iter().find(|s| s.name == MODEL);
    let subject = subject.ok_or_else(|| format!("there is no model {MODEL}"))?;
    let bed = Bed::new(bench, &subject.builtin)?;
    let scope = |index: usize| Scope::of("bench", Some(&format!("adapter-{index}")));
    for index in 0..ADAPTERS {
        // The engine loads the versions of those who have asked something.
        let mut first = bed.ask_of(scope(index), (PROMPT_TOKENS, 1), None)?;
        if !ended_well(&mut first) {
            return Err(format!("adapter {index} has nobody who asks"));
        }
        prepare(&bed, index as u64 + 1).publish(&bed, scope(index), 1)?;
    }
    let spreads = [1, ADAPTERS];
    let (mut tokens, mut spent, mut failed) = ([0u64; 2], [Duration::ZERO; 2], 0);
    for _ in 0..ROUNDS {
        for (at, spread) in spreads.into_iter().enumerate() {
            let size = (PROMPT_TOKENS, COMPLETION_TOKENS);
            let ask = |index: usize| bed.ask_of(scope(index % spread), size, None);
            let enough = |_, spent| spent >= time / ROUNDS;
            let (more, longer, lost) = round(&bed, (CONCURRENT, &enough), &ask)?;
            tokens[at] += more;
            spent[at] += longer;
            failed += lost;
        }
    }
    if spent.iter().any(Duration::is_zero) {
        return Err(format!(
            "{CONCURRENT} completions were never seen decoding at the same time"
        ));
    }
    let speed = |at: usize| tokens[at] as f64 / spent[at].as_secs_f64();
    let title = format!("adapters: tokens/s of {CONCURRENT} completions at once, {MODEL}");
    let mut report = Report::new(title, &["adapters", "tokens/s"]);
    for (at, spread) in spreads.into_iter().enumerate() {
        report.row([spread.to_string(), format!("{:.0}", speed(at))]);
        report.set(&format!("tokens_per_s_{spread}"), milli(speed(at)));
    }
    let share = ratio(speed(1), speed(0));
    let percent = share.unwrap_or(0.0) * 100.0;
    report.note(format!(
        "with {ADAPTERS} adapters {percent:.0} % of the speed with one"
    ));
    report.set("share", json!(share));
    report.failed = failed;
    Ok(report)
}
