//! Adapters: what it costs that completions at the same time are under different ones.

use std::time::Duration;

use hone_domain::Scope;
use serde_json::json;

use super::Bench;
use super::bed::{Bed, Subject, ended_well, subjects};
use super::report::{Report, Spread, milli};
use super::speed::{COMPLETION_TOKENS, PROMPT_TOKENS, round};
use super::swap::prepare;

/// Completions at once, and the adapters that they are spread over.
const CONCURRENT: usize = 32;
const ADAPTERS: usize = 8;
/// Rounds with one adapter and with all of them, in turn, because machines drift. An odd number has
/// a middle.
const ROUNDS: u32 = 7;
/// The model, random, of about 30 million parameters: the less the products with its weights take,
/// the more those with adapters weigh.
const MODELS: [&str; 3] = ["random_30m", "random_30m_bf16", "random_30m_q8"];

/// What the rounds of one model showed.
struct Seen {
    /// Tokens per second with one adapter, and with all.
    speed: [Spread; 2],
    /// All adapters' share of the speed that one had in the same round.
    share: Spread,
    failed: u64,
}

/// `hone-bench adapters`.
pub(super) fn adapters(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(4.0);
    let title = format!(
        "adapters: tokens/s of {CONCURRENT} completions at once under one adapter and under {ADAPTERS}, medians of {ROUNDS} rounds"
    );
    let head = ["model", "one", "eight", "share", "lowest", "highest"];
    let mut report = Report::new(title, &head);
    let subjects = subjects(bench)?;
    for subject in subjects.iter().filter(|s| MODELS.contains(&s.name)) {
        let seen = measure(bench, subject, time)?;
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let [one, all] = seen.speed;
        report.row([
            subject.name.to_owned(),
            format!("{:.0}", one.median),
            format!("{:.0}", all.median),
            percent(seen.share.median),
            percent(seen.share.lowest),
            percent(seen.share.highest),
        ]);
        report.failed += seen.failed;
        report.set(
            subject.name,
            json!({
                "tokens_per_s_1": milli(one.median),
                "tokens_per_s_8": milli(all.median),
                "share": seen.share.json(),
            }),
        );
    }
    Ok(report)
}

/// Rounds with one adapter and with all, each for `time` altogether.
fn measure(bench: &Bench, subject: &Subject, time: Duration) -> Result<Seen, String> {
    let bed = Bed::new(bench, &subject.builtin)?;
    for index in 0..ADAPTERS {
        // The engine loads the versions of those who have asked something.
        let mut first = bed.ask_of(scope(index), (PROMPT_TOKENS, 1), None)?;
        if !ended_well(&mut first) {
            return Err(format!("adapter {index} has nobody who asks"));
        }
        prepare(&bed, index as u64 + 1).publish(&bed, scope(index), 1)?;
    }
    let (mut speeds, mut shares, mut failed) = ([Vec::new(), Vec::new()], Vec::new(), 0);
    for number in 0..ROUNDS {
        let mut each = [None; 2];
        // Neither of the two is always the first.
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for at in order {
            let (speed, lost) = speed(&bed, [1, ADAPTERS][at], time / ROUNDS)?;
            each[at] = speed;
            failed += lost;
        }
        if let [Some(one), Some(all)] = each {
            speeds[0].push(one);
            speeds[1].push(all);
            shares.push(all / one);
        }
    }
    let [one, all] = speeds.map(|speeds| Spread::of(&speeds));
    let (Some(one), Some(all), Some(share)) = (one, all, Spread::of(&shares)) else {
        return Err(format!(
            "{CONCURRENT} completions were never seen decoding at the same time"
        ));
    };
    Ok(Seen {
        speed: [one, all],
        share,
        failed,
    })
}

/// Tokens per second of completions spread over so many adapters, none where they never decoded at
/// the same time, and how many failed.
fn speed(bed: &Bed, spread: usize, time: Duration) -> Result<(Option<f64>, u64), String> {
    let size = (PROMPT_TOKENS, COMPLETION_TOKENS);
    let ask = |index: usize| bed.ask_of(scope(index % spread), size, None);
    let (tokens, spent, failed) = round(bed, (CONCURRENT, &|_, spent| spent >= time), &ask)?;
    let speed = (!spent.is_zero()).then(|| tokens as f64 / spent.as_secs_f64());
    Ok((speed, failed))
}

/// Whose adapter it is.
fn scope(index: usize) -> Scope {
    Scope::of("bench", Some(&format!("adapter-{index}")))
}
