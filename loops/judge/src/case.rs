//! A claimed transition on its way to a verdict.

use std::sync::Arc;

use hone_domain::{
    ChosenBy, HintCandidate, HintChoice, Message, Millis, NextKind, NextState, Outcome, Signal,
    Turn, Vote,
};
use hone_ledger::Claim;
use tokio::sync::oneshot;

use crate::answer::{Unkept, accept_hint, parse_apart};
use crate::decide::{Decision, majority};
use crate::rules::Ruling;
use crate::{Completed, ModelConfig, VoteError};

/// A transition whose model votes are under way.
#[derive(Debug)]
pub(crate) struct Case {
    pub claim: Claim,
    /// How often it was claimed before.
    pub attempts: u32,
    /// When it is not waited for votes any more.
    pub deadline_ms: Millis,
    pub messages: Arc<[Message]>,
    /// What is decided if the model is not.
    pub otherwise: Option<Decision>,
    /// What a check decided, where the votes count beside it.
    pub outcome: Option<Decision>,
    /// Votes of the other signals.
    pub heard: Vec<Vote>,
    /// The next state's text, which a hint must not repeat.
    pub said: String,
    /// What may be read, where the model abstains.
    pub reply: Option<Reply>,
    /// What became of the hints that votes brought.
    pub hints: Hints,
    /// What is judged.
    pub turn: Arc<Turn>,
    /// Decided but for the hint.
    pub weighing: Option<Weighing>,
    votes: Vec<Slot>,
}

/// A decision whose hint is being chosen.
#[derive(Debug)]
pub(crate) struct Weighing {
    pub decision: Decision,
    pub hints: Vec<String>,
    /// Dropping it withdraws the asks.
    pub _withdraw: oneshot::Sender<()>,
}

impl Weighing {
    /// The decision with the hint that agrees most, the earlier of two alike; where that cannot be
    /// told, with the first, and why.
    pub(crate) fn chosen(self, weighed: Result<Vec<f32>, String>) -> (Decision, HintChoice) {
        let choice = match weighed {
            Ok(shares) if shares.len() == self.hints.len() => by_agreement(self.hints, &shares),
            Ok(_) => by_rule(self.hints, "not every hint was weighed".to_owned()),
            Err(why) => by_rule(self.hints, why),
        };
        let hint = choice.candidates[choice.chosen].hint.clone();
        let decision = Decision {
            hint: Some(hint),
            ..self.decision
        };
        (decision, choice)
    }
}

fn by_agreement(hints: Vec<String>, shares: &[f32]) -> HintChoice {
    let better = |best: usize, at: usize| if shares[at] > shares[best] { at } else { best };
    let chosen = (1..shares.len()).fold(0, better);
    let tied = shares.iter().filter(|share| **share == shares[chosen]);
    let reason = match tied.count() {
        1 => "under it most of the policy's likeliest tokens stay the likeliest",
        _ => "under several as many of the policy's likeliest tokens stay the likeliest; the first",
    };
    let candidates = hints.into_iter().zip(shares).map(|(hint, share)| {
        let agreement = Some(*share);
        HintCandidate { hint, agreement }
    });
    HintChoice {
        candidates: candidates.collect(),
        chosen,
        by: ChosenBy::Agreement,
        reason: reason.to_owned(),
    }
}

/// The first of `hints`.
pub(crate) fn by_rule(hints: Vec<String>, reason: String) -> HintChoice {
    let candidate = |hint| HintCandidate {
        hint,
        agreement: None,
    };
    HintChoice {
        candidates: hints.into_iter().map(candidate).collect(),
        chosen: 0,
        by: ChosenBy::Rule,
        reason,
    }
}

/// Hints by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    pub offered: u64,
    pub short: u64,
    pub long: u64,
    pub repeating: u64,
}

impl Hints {
    fn note(&mut self, hint: Option<&Result<String, Unkept>>) {
        self.offered += u64::from(hint.is_some());
        match hint {
            Some(Err(Unkept::Short)) => self.short += 1,
            Some(Err(Unkept::Long)) => self.long += 1,
            Some(Err(Unkept::Repeats)) => self.repeating += 1,
            Some(Ok(_)) | None => {}
        }
    }
}

#[derive(Debug)]
enum Slot {
    /// Not asked yet.
    Waiting,
    /// Under way; dropping the sender withdraws it.
    Asked { _withdraw: oneshot::Sender<()> },
    /// Cast, perhaps as an abstention.
    Cast { vote: Vote, hint: Option<String> },
}

/// What a case is opened with.
#[derive(Debug)]
pub(crate) struct Opening {
    pub claim: Claim,
    pub attempts: u32,
    pub deadline_ms: Millis,
    pub turn: Arc<Turn>,
    pub messages: Vec<Message>,
    pub otherwise: Option<Decision>,
    pub outcome: Option<Decision>,
    pub heard: Vec<Vote>,
    pub said: String,
    pub reply: Option<Reply>,
}

/// A person's reply, and what the rules make of it.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub words: Arc<str>,
    pub ruling: Ruling,
    /// Nothing but a person answered, so that the ruling is about the same words.
    pub is_alone: bool,
}

impl Reply {
    /// All that a person said in `next_state`; none where nobody did.
    pub(crate) fn of(next_state: &NextState, ruling: &Ruling) -> Option<Self> {
        let items = next_state.items.iter();
        let words = items.filter(|item| item.kind == NextKind::UserReply);
        let words: Vec<&str> = words.map(|item| item.text.as_str()).collect();
        let count = words.len();
        let words = words.join("\n");
        (!words.trim().is_empty()).then(|| Self {
            words: words.into(),
            ruling: ruling.clone(),
            is_alone: next_state.items.len() == count,
        })
    }
}

/// What is left undecided but for a reading and the rules.
#[derive(Debug)]
pub(crate) struct Undecided {
    pub claim: Claim,
    pub turn: Arc<Turn>,
    pub reply: Option<Reply>,
    /// What the rules decide.
    pub by_rules: Option<Decision>,
    pub votes: Vec<Vote>,
    /// Claims of it that ended without a verdict.
    pub attempts: u32,
    /// When it is not waited for any more.
    pub deadline_ms: Millis,
}

/// A reply that is being read.
#[derive(Debug)]
pub(crate) struct Unread {
    pub claim: Claim,
    pub deadline_ms: Millis,
    pub reply: Reply,
    pub by_rules: Option<Decision>,
    pub votes: Vec<Vote>,
    pub attempts: u32,
    /// Dropping it withdraws the ask.
    pub _withdraw: oneshot::Sender<()>,
}

/// What a transition comes to.
#[derive(Debug)]
pub(crate) struct Settled {
    pub decision: Option<Decision>,
    pub hint_choice: Option<HintChoice>,
    pub votes: Vec<Vote>,
    /// Whether it judges what a person replied.
    pub is_reply: bool,
}

impl Case {
    pub(crate) fn open(opening: Opening, votes: usize) -> Self {
        Self {
            claim: opening.claim,
            attempts: opening.attempts,
            deadline_ms: opening.deadline_ms,
            messages: opening.messages.into(),
            otherwise: opening.otherwise,
            outcome: opening.outcome,
            heard: opening.heard,
            said: opening.said,
            reply: opening.reply,
            hints: Hints::default(),
            turn: opening.turn,
            weighing: None,
            votes: (0..votes).map(|_| Slot::Waiting).collect(),
        }
    }

    /// How many votes are to come.
    pub(crate) fn uncast(&self) -> usize {
        let is_cast = |slot: &&Slot| matches!(slot, Slot::Cast { .. });
        self.votes.len() - self.votes.iter().filter(is_cast).count()
    }

    /// Notes that vote `index` is being asked for; gives what tells the asker to stop.
    pub(crate) fn ask(&mut self, index: usize) -> Option<oneshot::Receiver<()>> {
        let slot = self.votes.get_mut(index)?;
        if !matches!(slot, Slot::Waiting) {
            return None;
        }
        let (_withdraw, withdrawn) = oneshot::channel();
        *slot = Slot::Asked { _withdraw };
        Some(withdrawn)
    }

    /// Notes a vote that came in, or why it did not. A second answer to one vote is ignored.
    pub(crate) fn cast(
        &mut self,
        index: usize,
        result: Result<Completed, VoteError>,
        latency_ms: u64,
        config: &ModelConfig,
    ) {
        let Some(slot @ (Slot::Waiting | Slot::Asked { .. })) = self.votes.get_mut(index) else {
            return;
        };
        let usage = result.as_ref().ok().and_then(|said| said.usage(config));
        let (outcome, reason, hint) = match result.map(|said| said.words) {
            Ok(words) => match parse_apart(&words, &self.said) {
                Some(answer) => {
                    let hint = answer
                        .hint
                        .map(|hint| accept_hint(&hint, &self.said, config));
                    self.hints.note(hint.as_ref());
                    let hint = hint.and_then(Result::ok);
                    (answer.outcome, words, hint)
                }
                None => (Outcome::Abstain, format!("no grade in: {words}"), None),
            },
            Err(error) => (Outcome::Abstain, why(&error, config), None),
        };
        let vote = Vote {
            signal: Signal::Model,
            outcome,
            reason: reason.chars().take(config.words_chars_max).collect(),
            model: Some(config.name.clone()),
            latency_ms,
            usage,
            prompt: None,
        };
        *slot = Slot::Cast { vote, hint };
    }

    /// The hints of the votes that made `decision`, in their order and each once, at most `most`.
    pub(crate) fn candidates(&self, decision: &Decision, most: usize) -> Vec<String> {
        let mut hints: Vec<String> = Vec::new();
        if decision.by != Some(Signal::Model) {
            return hints;
        }
        for slot in &self.votes {
            if let Slot::Cast { vote, hint } = slot
                && vote.outcome.score() == decision.score
                && let Some(hint) = hint
                && hints.len() < most
                && !hints.contains(hint)
            {
                hints.push(hint.clone());
            }
        }
        hints
    }

    /// Ends the votes that were not cast; they abstain with `missing`.
    pub(crate) fn end_votes(&mut self, missing: &str, config: &ModelConfig) {
        for slot in &mut self.votes {
            if let Slot::Waiting | Slot::Asked { .. } = slot {
                let vote = uncast(missing, config);
                *slot = Slot::Cast { vote, hint: None };
            }
        }
    }

    /// What the model decides once it cannot be changed by further votes; the inner value is none
    /// where the model as a whole abstains.
    pub(crate) fn model_decision(&self) -> Option<Option<Decision>> {
        let cast = self.votes.iter().filter_map(|slot| match slot {
            Slot::Cast { vote, hint } => Some((vote, hint)),
            Slot::Waiting | Slot::Asked { .. } => None,
        });
        if self.outcome.is_some() {
            return (cast.count() == self.votes.len()).then(|| self.combined());
        }
        let outcomes = cast.clone().map(|(vote, _)| vote.outcome);
        if let Some(outcome) = majority(outcomes, self.votes.len()) {
            let agreeing = cast.filter(|(vote, _)| vote.outcome == outcome);
            return Some(Some(Decision {
                score: outcome.score(),
                by: Some(Signal::Model),
                hint: agreeing.filter_map(|(_, hint)| hint.clone()).next(),
                wish: None,
            }));
        }
        (cast.count() == self.votes.len()).then_some(None)
    }

    /// The check's decision with the mean of the votes that were cast so far: `(outcome + mean) / 2`,
    /// which keeps to [-1, 1]. Without any vote it is the check's alone.
    pub(crate) fn combined(&self) -> Option<Decision> {
        let outcome = self.outcome.clone()?;
        let scores = self.votes.iter().filter_map(|slot| match slot {
            Slot::Cast { vote, .. } => vote.outcome.score(),
            Slot::Waiting | Slot::Asked { .. } => None,
        });
        let scores: Vec<f32> = scores.collect();
        let mean = scores.iter().sum::<f32>() / scores.len().max(1) as f32;
        let score = outcome.score.map(|own| match scores.is_empty() {
            true => own,
            false => (own + mean) / 2.0,
        });
        Some(Decision { score, ..outcome })
    }

    /// All votes, the model's first, once they have ended.
    pub(crate) fn into_votes(self) -> Vec<Vote> {
        let own = self.votes.into_iter().filter_map(|slot| match slot {
            Slot::Cast { vote, .. } => Some(vote),
            Slot::Waiting | Slot::Asked { .. } => None,
        });
        own.chain(self.heard).collect()
    }
}

fn uncast(missing: &str, config: &ModelConfig) -> Vote {
    Vote {
        signal: Signal::Model,
        outcome: Outcome::Abstain,
        reason: missing.to_owned(),
        model: Some(config.name.clone()),
        latency_ms: 0,
        usage: None,
        prompt: None,
    }
}

fn why(error: &VoteError, config: &ModelConfig) -> String {
    match error {
        VoteError::Deadline => format!("no answer within {} ms", config.vote_deadline_ms),
        VoteError::Withdrawn => "withdrawn".to_owned(),
        VoteError::Failed(error) => error.to_string(),
    }
}
