//! What a person sees while the demo runs and when it ends.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::talk::{Arm, Tally};
use super::{Options, Summary, plot};

/// The terminal.
pub(crate) struct Show {
    bar: ProgressBar,
    seconds: u64,
    steps: u64,
    quiet: bool,
}

/// One phase with a known number of steps.
pub(crate) struct Phase(ProgressBar);

impl Phase {
    /// One step done.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }
}

impl Show {
    /// Says what is going to happen.
    pub(crate) fn new(options: &Options, seed: u64) -> Self {
        let bar = ProgressBar::hidden();
        if !options.json {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            let (users, seconds) = (options.users, options.seconds);
            eprintln!(
                "{users} users with a taste each talk to the server for {seconds} s, beside {users} \
                 twins it may not learn from (seed {seed})."
            );
        }
        let template = "{prefix:>8} {bar:28} {percent:>3} %  {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸ "));
        }
        let steps = (2 * options.users * options.questions) as u64;
        Self {
            bar,
            seconds: options.seconds,
            steps,
            quiet: options.json,
        }
    }

    /// Begins the measurement before or after.
    pub(crate) fn phase(&self, name: &'static str) -> Phase {
        self.bar.set_prefix(name);
        self.bar.set_length(self.steps);
        self.bar.set_position(0);
        self.bar.set_message("asking held-out questions");
        Phase(self.bar.clone())
    }

    /// Shows how the conversation goes.
    pub(crate) fn tick(&self, tally: &Tally, until: Instant, (requests, failed): (u64, u64)) {
        let left = until.saturating_duration_since(Instant::now()).as_secs();
        self.bar.set_prefix("talking");
        self.bar.set_length(self.seconds.max(left));
        self.bar.set_position(self.seconds.saturating_sub(left));
        let line = |arm| {
            let curve = tally.curve(arm, 16);
            format!(
                "{} {:.2}",
                plot::spark(&curve),
                curve.last().copied().unwrap_or_default()
            )
        };
        let (learn, control) = (line(Arm::Learn), line(Arm::Control));
        self.bar.set_message(format!(
            "learning {learn}  control {control}  {requests} requests, {failed} failed"
        ));
    }

    /// What the server says about one user's control sessions, a tenth of all.
    pub(crate) fn says(&self, taste: &str, sentence: &str) {
        if !self.quiet {
            eprintln!("{taste}: {sentence}");
        }
    }

    /// Draws the curve.
    pub(crate) fn finish(&self, tally: &Tally) {
        self.bar.finish_and_clear();
        if !self.quiet {
            let (learn, control) = (tally.curve(Arm::Learn, 60), tally.curve(Arm::Control, 60));
            eprintln!("\nscore of first answers over time: ● learning  ○ control");
            eprintln!("{}", plot::curves(&learn, &control, 11));
        }
    }
}

/// The summary in words.
pub(crate) fn closing(s: &Summary, seeds: u64) {
    let over = if seeds > 1 {
        format!("{seeds} seeds")
    } else {
        format!("{} pairs of users", s.lift.n)
    };
    eprintln!(
        "\nscore, held-out questions      before {:.2}  after {:.2}\n\
         the same for the twins         before {:.2}  after {:.2}\n\
         lift over the twins            {:+.2}  (95 % interval {:+.2} to {:+.2}, {over})\n\
         correct whatever the style     before {:.2}  after {:.2}\n\
         versions published             {}\n\
         sessions, requests, failed     {}, {}, {}\n\
         token gap, training paused     p50 {:.1} ms  p99 {:.1} ms\n\
         token gap, training on         p50 {:.1} ms  p99 {:.1} ms\n\
         seconds                        {:.0}\n",
        s.score_before,
        s.score_after,
        s.control_before,
        s.control_after,
        s.lift.mean,
        s.lift.low,
        s.lift.high,
        s.correct_before,
        s.correct_after,
        s.versions,
        s.sessions,
        s.requests,
        s.failed,
        s.gap_p50_ms_off,
        s.gap_p99_ms_off,
        s.gap_p50_ms_on,
        s.gap_p99_ms_on,
        s.seconds,
    );
}
