//! How far long work has come: a bar where a person looks at stderr, lines of the log elsewhere.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shortest time between two lines of the log; the last one comes at once.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Layers,
}

/// Work of a known size.
pub(crate) struct Progress {
    what: String,
    unit: Unit,
    /// Work below this size is too short to tell of.
    from: u64,
    began: Instant,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Lines),
}

impl Progress {
    /// Begins to tell how far `what` is.
    pub(crate) fn new(what: impl Into<String>, (unit, from): (Unit, u64)) -> Self {
        let shown = match std::io::stderr().is_terminal() {
            true => Shown::Bar(ProgressBar::hidden().with_style(style(unit))),
            false => Shown::Lines(Lines::default()),
        };
        Self {
            what: what.into(),
            unit,
            from,
            began: Instant::now(),
            shown,
        }
    }

    /// So much of all is done.
    pub(crate) fn at(&mut self, done: u64, total: u64) {
        if total < self.from {
            return;
        }
        match &mut self.shown {
            Shown::Bar(bar) => {
                if bar.is_hidden() {
                    bar.set_message(self.what.clone());
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                }
                bar.set_length(total);
                bar.set_position(done);
            }
            Shown::Lines(lines) => {
                let line = lines.at(self.began.elapsed(), done, total, self.unit);
                if let Some(line) = line {
                    tracing::info!("{}: {line}", self.what);
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

fn style(unit: Unit) -> ProgressStyle {
    let template = match unit {
        Unit::Bytes => "{msg} {bar:30} {bytes}/{total_bytes} {eta}",
        Unit::Layers => "{msg} {bar:30} {pos}/{len} layers {eta}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// What the log hears.
#[derive(Default)]
struct Lines {
    /// When the last line was, since the beginning.
    last: Duration,
    is_over: bool,
}

impl Lines {
    /// The line that is due now.
    fn at(&mut self, now: Duration, done: u64, total: u64, unit: Unit) -> Option<String> {
        let is_end = done >= total;
        if self.is_over || !(is_end || now >= self.last + LINE_EVERY) {
            return None;
        }
        (self.last, self.is_over) = (now, is_end);
        let unit = match unit {
            Unit::Bytes => "bytes",
            Unit::Layers => "layers",
        };
        let seconds = now.as_secs_f64();
        Some(format!("{done} of {total} {unit} after {seconds:.1} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_hears_of_it_now_and_then_and_of_the_end_once() {
        let mut lines = Lines::default();
        let rows = [
            (0, 1, None),
            (4_999, 2, None),
            (5_000, 3, Some("3 of 9 bytes after 5.0 s")),
            (9_999, 4, None),
            (11_000, 5, Some("5 of 9 bytes after 11.0 s")),
            (11_500, 9, Some("9 of 9 bytes after 11.5 s")),
            (20_000, 9, None),
        ];
        for (ms, done, wanted) in rows {
            let line = lines.at(Duration::from_millis(ms), done, 9, Unit::Bytes);
            assert_eq!(line.as_deref(), wanted, "{ms}");
        }
    }
}
