//! What a measurement says: a table for people, an object for programs.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::demo::numbers::Percentiles;

/// A finished measurement.
pub(super) struct Report {
    title: String,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
    json: Map<String, Value>,
    /// Requests (or whatever is measured) that failed.
    pub(super) failed: u64,
}

impl Report {
    /// A table without rows. The first column names, the others count.
    pub(super) fn new(title: impl Into<String>, head: &[&'static str]) -> Self {
        Self {
            title: title.into(),
            head: head.to_vec(),
            rows: Vec::new(),
            notes: Vec::new(),
            json: Map::new(),
            failed: 0,
        }
    }

    /// Adds a row; one cell per column.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(Vec::from(cells));
    }

    /// Adds a sentence under the table.
    pub(super) fn note(&mut self, sentence: String) {
        self.notes.push(sentence);
    }

    /// Sets a field of the object.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.json.insert(key.to_owned(), value.into());
    }

    /// The object; it always says how many failed.
    pub(super) fn into_json(mut self) -> Value {
        self.json.insert("failed".to_owned(), json!(self.failed));
        Value::Object(self.json)
    }

    /// The table, ending with a line break. The first column is aligned to the left.
    pub(super) fn table(&self) -> String {
        let columns = self.head.len();
        let head: Vec<String> = self.head.iter().map(|cell| (*cell).to_owned()).collect();
        let width = |at: usize| {
            let cells = self.rows.iter().chain([&head]);
            let widths = cells.map(|row| row.get(at).map_or(0, |cell| cell.chars().count()));
            widths.max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(at, (cell, width))| match at {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            format!("  {}", cells.collect::<Vec<_>>().join("  "))
        };
        let mut text = format!("{}\n", self.title);
        for row in [&head].into_iter().chain(&self.rows) {
            text.push_str(line(row).trim_end());
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&format!("  {note}\n"));
        }
        if self.failed > 0 {
            text.push_str(&format!("  FAILED: {}\n", self.failed));
        }
        text
    }
}

/// Gaps between tokens, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Gaps {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) worst_ms: f64,
    pub(super) count: usize,
}

impl Gaps {
    /// Of single gaps; zeros where there is none.
    pub(super) fn of(gaps_ms: Vec<f64>) -> Self {
        let (count, worst_ms) = (gaps_ms.len(), gaps_ms.iter().copied().fold(0.0, f64::max));
        let Percentiles { p50, p99 } = Percentiles::of(gaps_ms);
        Self {
            p50_ms: p50,
            p99_ms: p99,
            worst_ms,
            count,
        }
    }

    /// As an object.
    pub(super) fn json(&self) -> Value {
        json!({
            "p50_ms": milli(self.p50_ms),
            "p99_ms": milli(self.p99_ms),
            "worst_ms": milli(self.worst_ms),
            "gaps": self.count,
        })
    }
}

/// The middle of several rounds, and how far apart they were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) lowest: f64,
    pub(super) highest: f64,
}

impl Spread {
    /// None where there was no round.
    pub(super) fn of(rounds: &[f64]) -> Option<Self> {
        let lowest = rounds.iter().copied().min_by(f64::total_cmp)?;
        let highest = rounds.iter().copied().max_by(f64::total_cmp)?;
        let median = Percentiles::of(rounds.to_vec()).p50;
        Some(Self {
            median,
            lowest,
            highest,
        })
    }

    /// As an object.
    pub(super) fn json(&self) -> Value {
        json!({
            "median": milli(self.median),
            "lowest": milli(self.lowest),
            "highest": milli(self.highest),
        })
    }
}

/// `part / whole`; none where the whole is 0.
pub(super) fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| milli(part / whole))
}

/// To three decimals, so that an object stays readable.
pub(super) fn milli(value: f64) -> f64 {
    // Adding 0 makes the sum of nothing, which is -0, plain.
    (value * 1e3).round() / 1e3 + 0.0
}

/// Milliseconds of a time.
pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_failures_show() {
        let mut report = Report::new("speed", &["model", "tokens/s"]);
        report.row(["starter".to_owned(), "1234".to_owned()]);
        report.row(["b".to_owned(), "5".to_owned()]);
        let table = "speed\n  model    tokens/s\n  starter      1234\n  b               5\n";
        assert_eq!(report.table(), table);
        report.failed = 2;
        assert_eq!(report.table(), format!("{table}  FAILED: 2\n"));
        report.set("x", 1);
        assert_eq!(report.into_json(), json!({ "x": 1, "failed": 2 }));
    }

    #[test]
    fn a_spread_keeps_its_ends() {
        let spread = Spread::of(&[1.0, 4.0, 2.0]).map(|s| (s.lowest, s.median, s.highest));
        assert_eq!(spread, Some((1.0, 2.0, 4.0)));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn gaps_keep_the_worst() {
        let gaps = Gaps::of((1..=200).map(f64::from).collect());
        let wanted = Gaps {
            p50_ms: 100.0,
            p99_ms: 198.0,
            worst_ms: 200.0,
            count: 200,
        };
        assert_eq!(gaps, wanted);
        assert_eq!(Gaps::of(Vec::new()), Gaps::default());
        assert_eq!(ratio(3.0, 0.0), None);
        assert_eq!(ratio(2.0, 3.0), Some(0.667));
    }
}
