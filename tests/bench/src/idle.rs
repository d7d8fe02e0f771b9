//! Memory and processor time of a server that nobody uses.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Bench;
use super::child::Server;
use super::memory::Memory;
use super::report::{Report, milli};
use super::wire::Wire;

/// What follows the start by itself has ended after this time.
const SETTLE: Duration = Duration::from_secs(1);
/// Clock ticks per second in `/proc`: `USER_HZ`, fixed to 100 in Linux's interface to programs.
const TICKS_PER_S: f64 = 100.0;

/// `hone-bench idle`.
pub(super) fn idle(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(5.0);
    let mut report = Report::new("idle: a server that nobody uses", &["", "takes"]);
    let bare = Used::by(bench, &["--engine", "null"], time)?;
    let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    report.row(["memory without a model".to_owned(), mib(bare.ready.now_kib)]);
    report.set("rss_no_model_bytes", bare.ready.now_kib * 1024);
    report.set("cpu_no_model_percent", milli(bare.cpu * 100.0));
    let model = Used::by(bench, &[], time)?;
    let rows = [
        ("memory when ready", mib(model.ready.now_kib)),
        ("memory after one completion", mib(model.used.now_kib)),
        ("largest memory", mib(model.used.peak_kib)),
        (
            "processor",
            format!("{:.2} % of one core", model.cpu * 100.0),
        ),
    ];
    for (name, value) in rows {
        report.row([name.to_owned(), value]);
    }
    report.set("rss_ready_bytes", model.ready.now_kib * 1024);
    report.set("rss_used_bytes", model.used.now_kib * 1024);
    report.set("rss_peak_bytes", model.used.peak_kib * 1024);
    report.set("cpu_percent", milli(model.cpu * 100.0));
    report.set("seconds", milli(time.as_secs_f64()));
    Ok(report)
}

/// What a server takes.
struct Used {
    /// Share of one core's time while nobody asks.
    cpu: f64,
    ready: Memory,
    /// After a completion.
    used: Memory,
}

impl Used {
    fn by(bench: &Bench, arguments: &[&str], time: Duration) -> Result<Self, String> {
        let server = Server::start(bench, arguments)?;
        let wire = Wire::new(&server.url)?;
        bench.runtime.block_on(wire.ready())?;
        sleep(SETTLE);
        let read = |file: &str| {
            let path = format!("/proc/{}/{file}", server.id());
            std::fs::read_to_string(&path).map_err(|error| {
                format!("{path} cannot be read ({error}); idle needs Linux's /proc")
            })
        };
        let before = cpu_s(&read("stat")?)?;
        let began = Instant::now();
        sleep(time);
        let after = cpu_s(&read("stat")?)?;
        let cpu = (after - before) / began.elapsed().as_secs_f64();
        let ready = Memory::in_status(&read("status")?)?;
        // What the first completion touches stays in memory.
        bench.runtime.block_on(wire.first_text())?;
        sleep(SETTLE);
        let used = Memory::in_status(&read("status")?)?;
        Ok(Self { cpu, ready, used })
    }
}

/// Seconds of processor time in `/proc/PID/stat`: fields 14 and 15 (proc_pid_stat(5)). The second
/// field is the program's name in parentheses and may hold anything.
fn cpu_s(stat: &str) -> Result<f64, String> {
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |index: usize| {
        let field = fields.split_whitespace().nth(index - 3);
        field.and_then(|field| field.parse::<u64>().ok())
    };
    match (ticks(14), ticks(15)) {
        (Some(user), Some(system)) => Ok((user + system) as f64 / TICKS_PER_S),
        _ => Err("a process's stat has no processor times".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "9440 (a ) b) S 1 9440 3374 0 -1 4194304 119 0 0 0 250 50 0 0 20 0 1 0 558192";
        assert_eq!(cpu_s(stat), Ok(3.0));
        assert!(cpu_s("9440 (a) S 1").is_err());
        assert!(cpu_s("").is_err());
    }
}
