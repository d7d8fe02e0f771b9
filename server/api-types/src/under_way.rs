//! What is learned at the moment, and how far it is.

use hone_domain::Scope;
use serde::Serialize;
use utoipa::ToSchema;

/// What is learned for a person at the moment.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LearningReply {
    /// Always `learning`.
    pub object: &'static str,
    /// The job; null where none is under way for this person.
    pub under_way: Option<UnderWayReply>,
}

/// The training job that is under way in this process.
#[derive(Clone, Debug)]
pub struct TrainingJob {
    /// Whose policy learns.
    pub scope: Scope,
    /// Answers that it learns from.
    pub answers: usize,
    /// What it is at; none at the very beginning.
    pub phase: Option<&'static str>,
    /// Share of it that is over, 0 to 1.
    pub share: f64,
    /// How long it has taken, in seconds.
    pub seconds: f64,
    /// About how long it will take, in seconds; none where that cannot be told yet.
    pub seconds_left: Option<f64>,
}

/// A training job under way.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UnderWayReply {
    /// Answers that it learns from.
    pub answers: usize,
    /// What it is at: `answers` (the model answers with the person's words), `scores` (the answers are
    /// compared), `steps` (the weights change), `gate` (the new version is checked); null at the very
    /// beginning.
    pub phase: Option<&'static str>,
    /// Share of it that is over, 0 to 1.
    pub share: f64,
    /// How long it has taken, in seconds.
    pub seconds: f64,
    /// About how long it will take, in seconds; null where that cannot be told yet.
    pub seconds_left: Option<f64>,
    /// The whole as one sentence.
    pub sentence: String,
}

impl UnderWayReply {
    /// How far `job` is.
    pub fn new(job: &TrainingJob) -> Self {
        let answers = match job.answers {
            1 => "an answer".to_owned(),
            turns => format!("{turns} answers"),
        };
        let left = match job.seconds_left {
            Some(seconds) => format!(", about {} left", in_words(seconds)),
            None => String::new(),
        };
        let percent = (job.share * 100.0).floor();
        Self {
            answers: job.answers,
            phase: job.phase,
            share: job.share,
            seconds: job.seconds,
            seconds_left: job.seconds_left,
            sentence: format!("Learning from {answers}: {percent} %{left}."),
        }
    }
}

/// A length of time for people.
fn in_words(seconds: f64) -> String {
    if seconds < 90.0 {
        // To five seconds, which is more than is known.
        return format!("{:.0} s", (seconds / 5.0).ceil() * 5.0);
    }
    format!("{:.0} min", (seconds / 60.0).ceil())
}
