//! From the start of the process to ready and to the first token.

use std::time::{Duration, Instant};

use super::Bench;
use super::child::Server;
use super::report::{Report, milli, ms};
use super::wire::Wire;
use crate::demo::numbers::Percentiles;

/// Fewest starts, however long they take.
const STARTS_MIN: usize = 3;

/// `hone-bench start`. Every start has an empty data folder, so it makes the ledger as well.
pub(super) fn start(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(6.0);
    let head = ["from the start of the process to", "median ms", "worst ms"];
    let model = Marks::of(bench, &[], time)?;
    let bare = Marks::of(bench, &["--engine", "null"], time)?;
    let starts = model.listening.len() + bare.listening.len();
    let mut report = Report::new(format!("start: {starts} starts"), &head);
    report.set("starts", starts);
    let rows = [
        ("listening", model.listening),
        ("ready", model.ready),
        ("first_token", model.first_token),
        ("ready_without_a_model", bare.ready),
    ];
    for (name, values) in rows {
        let worst = values.iter().copied().fold(0.0, f64::max);
        let median = Percentiles::of(values).p50;
        report.row([
            name.replace('_', " "),
            format!("{median:.0}"),
            format!("{worst:.0}"),
        ]);
        report.set(&format!("{name}_median_ms"), milli(median));
        report.set(&format!("{name}_worst_ms"), milli(worst));
    }
    Ok(report)
}

/// Milliseconds after the start of a process, one of each per start.
#[derive(Default)]
struct Marks {
    listening: Vec<f64>,
    ready: Vec<f64>,
    first_token: Vec<f64>,
}

impl Marks {
    fn of(bench: &Bench, arguments: &[&str], time: Duration) -> Result<Self, String> {
        let (began, mut marks) = (Instant::now(), Self::default());
        while marks.ready.len() < STARTS_MIN || began.elapsed() < time {
            let server = Server::start(bench, arguments)?;
            let since = || ms(server.started.elapsed());
            marks.listening.push(since());
            bench.runtime.block_on(async {
                let wire = Wire::new(&server.url)?;
                wire.ready().await?;
                marks.ready.push(since());
                wire.first_text().await?;
                marks.first_token.push(since());
                Ok::<_, String>(())
            })?;
        }
        Ok(marks)
    }
}
