//! From the start of the process to ready and to the first token.

use std::time::Instant;

use super::Bench;
use super::child::Server;
use super::report::{Report, milli, ms};
use super::wire::Wire;
use crate::demo::numbers::Percentiles;

/// Fewest starts, however long they take.
const STARTS_MIN: usize = 3;

/// `hone bench start`. Every start has an empty data folder, so it makes the ledger as well.
pub(super) fn start(bench: &Bench) -> Result<Report, String> {
    let (time, began) = (bench.time(6.0), Instant::now());
    let mut marks: [Vec<f64>; 3] = Default::default();
    while marks[0].len() < STARTS_MIN || began.elapsed() < time {
        let server = Server::start(bench)?;
        let listens = ms(server.started.elapsed());
        let (ready, first) = bench.runtime.block_on(async {
            let wire = Wire::new(&server.url)?;
            wire.ready().await?;
            let ready = ms(server.started.elapsed());
            wire.first_text().await?;
            Ok::<_, String>((ready, ms(server.started.elapsed())))
        })?;
        for (mark, value) in marks.iter_mut().zip([listens, ready, first]) {
            mark.push(value);
        }
    }
    let head = ["from the start of the process to", "median ms", "worst ms"];
    let mut report = Report::new(format!("start: {} starts", marks[0].len()), &head);
    report.set("starts", marks[0].len());
    for (name, values) in ["listening", "ready", "first_token"].into_iter().zip(marks) {
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
