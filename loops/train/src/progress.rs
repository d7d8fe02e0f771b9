//! How far a training job is, and where its time goes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hone_domain::Scope;

/// A part of a training job, in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Answers are sampled.
    Answers,
    /// Log-probs of answers are computed.
    Scores,
    /// Forward, backward and updates.
    Steps,
    /// The candidate is measured.
    Gate,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Answers, Self::Scores, Self::Steps, Self::Gate];
    /// Share of a job that each takes where no job has shown it yet.
    const USUAL: [f64; 4] = [0.35, 0.2, 0.25, 0.2];

    /// What it is called in reports and over HTTP.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answers => "answers",
            Self::Scores => "scores",
            Self::Steps => "steps",
            Self::Gate => "gate",
        }
    }

    /// Its key in a version's report, in milliseconds.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Answers => "answers_ms",
            Self::Scores => "scores_ms",
            Self::Steps => "steps_ms",
            Self::Gate => "gate_ms",
        }
    }
}

/// What a job shows of itself. Clones look at the same job.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    began: Instant,
    since: Instant,
    phase: Option<Phase>,
    took: [Duration; 4],
    /// Share of a job that each phase is expected to take.
    usual: [f64; 4],
    /// How much of each phase is over, 0 to 1.
    over: [f64; 4],
    done: f64,
}

impl Default for State {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            since: now,
            phase: None,
            took: [Duration::ZERO; 4],
            usual: Phase::USUAL,
            over: [0.0; 4],
            done: 0.0,
        }
    }
}

/// The job that is under way.
#[derive(Clone, Debug)]
pub struct UnderWay {
    /// Whose policy learns.
    pub scope: Scope,
    /// Answers that it learns from.
    pub turns: usize,
    /// How far it is.
    pub progress: Progress,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stand {
    /// What it is at; none before it begins.
    pub phase: Option<Phase>,
    /// Share of it that is over, 0 to 1.
    pub share: f64,
    /// How long it has taken so far, in seconds.
    pub seconds: f64,
    /// About how long it will take from now on, in seconds; none where too little is known.
    pub seconds_left: Option<f64>,
}

/// Least share from which on the rest of a job's time is told from what it took so far.
const TOLD_FROM: f64 = 0.03;

impl Progress {
    /// The job begins; phases take about the time that `usual` of them took in an earlier one.
    pub(crate) fn begin(&self, usual: Option<[f64; 4]>) {
        let mut state = self.state();
        *state = State {
            usual: usual.unwrap_or(Phase::USUAL),
            ..State::default()
        };
    }

    /// The job is at `phase` from now on. Phases may come again.
    pub(crate) fn enter(&self, phase: Phase) {
        let mut state = self.state();
        state.close();
        state.phase = Some(phase);
    }

    /// So much of the phase is over, 0 to 1. What was told before never shrinks.
    pub(crate) fn at(&self, share: f64) {
        let mut state = self.state();
        let Some(phase) = state.phase else { return };
        let over = &mut state.over[phase as usize];
        *over = over.max(share.clamp(0.0, 1.0));
    }

    /// Share of the job that each phase took, for the next one.
    pub(crate) fn shares(&self) -> [f64; 4] {
        let mut state = self.state();
        state.close();
        let all = state.took.iter().map(Duration::as_secs_f64).sum::<f64>();
        state.took.map(|took| took.as_secs_f64() / all.max(1e-9))
    }

    /// What each phase took, in milliseconds, by its key in a report.
    pub(crate) fn took(&self) -> BTreeMap<&'static str, f64> {
        let mut state = self.state();
        state.close();
        let pairs = Phase::ALL.iter().zip(&state.took);
        let ms = |(phase, took): (&Phase, &Duration)| (phase.key(), took.as_secs_f64() * 1e3);
        pairs.map(ms).collect()
    }

    /// How far it is.
    pub fn stand(&self) -> Stand {
        let mut state = self.state();
        let parts = state.usual.iter().zip(&state.over);
        let share: f64 = parts.map(|(usual, over)| usual * over).sum();
        state.done = state.done.max(share.min(0.99));
        let seconds = state.began.elapsed().as_secs_f64();
        let share = state.done;
        Stand {
            phase: state.phase,
            share,
            seconds,
            seconds_left: (share >= TOLD_FROM).then(|| seconds * (1.0 - share) / share),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Only whole values are ever written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn close(&mut self) {
        let now = Instant::now();
        if let Some(phase) = self.phase {
            self.took[phase as usize] += now - self.since;
        }
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_goes_on_and_never_back() {
        let progress = Progress::default();
        progress.begin(Some([0.5, 0.1, 0.2, 0.2]));
        assert_eq!(progress.stand().phase, None);
        assert_eq!(progress.stand().seconds_left, None);
        progress.enter(Phase::Answers);
        progress.at(0.5);
        assert!((progress.stand().share - 0.25).abs() < 1e-9);
        progress.at(0.2);
        assert!((progress.stand().share - 0.25).abs() < 1e-9);
        assert!(progress.stand().seconds_left.is_some());
        for phase in Phase::ALL {
            progress.enter(phase);
            progress.at(1.0);
        }
        let stand = progress.stand();
        assert_eq!(stand.phase, Some(Phase::Gate));
        assert!(stand.share > 0.98 && stand.share < 1.0);
    }

    #[test]
    fn time_is_accounted_for_once() {
        let progress = Progress::default();
        progress.begin(None);
        for phase in [Phase::Answers, Phase::Scores, Phase::Answers, Phase::Gate] {
            progress.enter(phase);
            std::thread::sleep(Duration::from_millis(2));
        }
        let took: f64 = progress.took().values().sum();
        assert!(took >= 8.0 && took <= progress.stand().seconds * 1e3 + 1.0);
        assert!((progress.shares().iter().sum::<f64>() - 1.0).abs() < 1e-6);
        assert!(progress.took()["steps_ms"] == 0.0);
    }
}
