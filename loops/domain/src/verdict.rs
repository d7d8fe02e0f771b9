//! Verdicts: what the signals said about a transition.

use serde::{Deserialize, Serialize};

use crate::{FeedbackId, Millis, TransitionId, TurnId, VerdictId};

/// Which signal spoke, in order of trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// A person's thumb or score.
    Feedback,
    /// An exit code, a test, a schema.
    Verifier,
    /// Votes of a model.
    Model,
    /// A reading of a person's words by the served base model.
    Reading,
    /// Rules over the words of the next state.
    Rules,
}

impl Signal {
    /// The stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Feedback => "feedback",
            Self::Verifier => "verifier",
            Self::Model => "model",
            Self::Reading => "reading",
            Self::Rules => "rules",
        }
    }
}

/// How a signal or a verdict comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The completion helped; +1.
    Good,
    /// The completion was wrong or unwanted; −1.
    Bad,
    /// It can be told that it was neither; 0.
    Neutral,
    /// It cannot be told; no score.
    Abstain,
}

impl Outcome {
    /// The numeric form; none for abstain.
    pub fn score(self) -> Option<f32> {
        match self {
            Self::Good => Some(1.0),
            Self::Bad => Some(-1.0),
            Self::Neutral => Some(0.0),
            Self::Abstain => None,
        }
    }

    /// The stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Neutral => "neutral",
            Self::Abstain => "abstain",
        }
    }
}

/// One answer of one signal, kept with its words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    /// Who voted.
    pub signal: Signal,
    /// How.
    pub outcome: Outcome,
    /// The rule's name, the model's words, or why it abstained.
    pub reason: String,
    /// Model name, where a model voted.
    pub model: Option<String>,
    /// How long it took.
    pub latency_ms: u64,
    /// What it took, where a model voted and said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Version of the prompt that a model voted under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// What a model's answer took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens it read.
    pub prompt_tokens: u64,
    /// Tokens it wrote.
    pub completion_tokens: u64,
    /// What they cost, in the currency of the configured prices; 0 where none are.
    pub cost: f64,
}

/// The settled outcome of all votes: one revision, of which one is current.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Its id.
    pub id: VerdictId,
    /// What it judges.
    pub transition: TransitionId,
    /// +1 good, −1 bad, 0 neutral, or a score in [−1, 1] from feedback; none when all abstained.
    pub score: Option<f32>,
    /// The signal that decided.
    pub decided_by: Option<Signal>,
    /// What should have been done, where the next state says so, in the words it says it in.
    pub hint: Option<String>,
    /// The manner that the hint asks for, in the words of the rules' table, where it holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wish: Option<String>,
    /// How the hint was chosen, where several could be kept.
    pub hint_choice: Option<HintChoice>,
    /// Every vote.
    pub votes: Vec<Vote>,
    /// When it was settled.
    pub judged_ms: Millis,
}

/// What chose among several hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChosenBy {
    /// The policy: told this hint, it agrees most with itself untold.
    Agreement,
    /// The order of the votes.
    Rule,
}

/// A hint that could have been kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HintCandidate {
    /// Its words.
    pub hint: String,
    /// Share of the policy's likeliest tokens along the completion that stay among the likeliest
    /// once it is told the hint, from 0 to 1; none where it was not looked at.
    pub agreement: Option<f32>,
}

/// How one hint was chosen among several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HintChoice {
    /// The hints, in the order of their votes.
    pub candidates: Vec<HintCandidate>,
    /// Which of them was chosen.
    pub chosen: usize,
    /// What chose.
    pub by: ChosenBy,
    /// Why, as a short sentence.
    pub reason: String,
}

/// What a person said explicitly about a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Feedback {
    /// Its id.
    pub id: FeedbackId,
    /// The turn.
    pub turn: TurnId,
    /// Owner of the key that sent it; must own the turn.
    pub owner: String,
    /// Chosen by the client: the same id again replaces what it said before.
    pub client_id: Option<String>,
    /// In [−1, 1]; a thumb is ±1.
    pub score: Option<f32>,
    /// Free words.
    pub comment: Option<String>,
    /// What the answer should have been.
    pub correction: Option<String>,
    /// Its score is this turn's return of a reward that the whole session got.
    #[serde(default)]
    pub of_session: bool,
    /// When it came.
    pub received_ms: Millis,
}
