//! A short demo, as a process of its own: the same users, fewer of them and less time.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Bench;
use super::child::Process;
use super::report::Report;

/// Pairs of users, and held-out questions per user.
const USERS: &str = "2";
const QUESTIONS: &str = "10";
/// Longest time besides the conversation, which lasts at most twice the wanted time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Rows of the table: what they say, and the keys they come from.
const ROWS: [(&str, &str, &str); 5] = [
    ("score of learning users", "score_before", "score_after"),
    ("score of their twins", "control_before", "control_after"),
    ("correct", "correct_before", "correct_after"),
    (
        "p50 gap ms, training off and on",
        "gap_p50_ms_off",
        "gap_p50_ms_on",
    ),
    (
        "p99 gap ms, training off and on",
        "gap_p99_ms_off",
        "gap_p99_ms_on",
    ),
];

/// `hone-bench demo-short`.
pub(super) fn demo(bench: &Bench) -> Result<Report, String> {
    // The demo takes whole seconds.
    let time = Duration::from_secs((bench.time(20.0).as_secs_f64().ceil() as u64).max(1));
    let seconds = time.as_secs().to_string();
    let arguments = ["demo", "--json", "--seconds", &seconds];
    let few = ["--users", USERS, "--questions", QUESTIONS];
    let (process, lines) = Process::start(&[&arguments[..], &few[..]].concat())?;
    let until = Instant::now() + 2 * time + PATIENCE;
    let mut last = String::new();
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => last = line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!(
                    "the demo did not end in time: {}",
                    process.errors()
                ));
            }
        }
    }
    match serde_json::from_str::<Value>(&last) {
        Ok(Value::Object(summary)) => Ok(report_of(&summary)),
        _ => Err(format!("the demo gave no summary: {}", process.errors())),
    }
}

/// The demo's summary as a report; its `failed` becomes the report's.
fn report_of(summary: &serde_json::Map<String, Value>) -> Report {
    let head = ["", "before / off", "after / on"];
    let mut report = Report::new(
        "demo: a short one; see hone-bench demo for the whole",
        &head,
    );
    let cell = |key: &str| {
        let number = summary.get(key).and_then(Value::as_f64);
        number.map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"))
    };
    for (name, before, after) in ROWS {
        report.row([name.to_owned(), cell(before), cell(after)]);
    }
    for (key, value) in summary {
        report.set(key, value.clone());
    }
    report.failed = summary.get("failed").and_then(Value::as_u64).unwrap_or(1);
    report
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_summary_becomes_a_report_and_keeps_its_failures() {
        let summary = json!({ "score_before": 0.25, "score_after": 0.5, "failed": 3 });
        let report = report_of(summary.as_object().expect("it is an object"));
        assert_eq!(report.failed, 3);
        assert!(report.table().contains("0.25"), "{}", report.table());
        assert_eq!(report.into_json()["score_after"], 0.5);
        assert_eq!(report_of(&serde_json::Map::new()).failed, 1);
    }
}
