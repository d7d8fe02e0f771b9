//! From signals to a verdict, in order of trust.

use hone_domain::{Feedback, Outcome, Signal, Turn, Vote};
use serde::{Deserialize, Serialize};

use crate::reading::Reading;
use crate::rules::{self, Ruling};

/// What it means when a person goes on without a word about the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MovingOn {
    /// It cannot be told whether the completion was good; the turn does not train.
    Abstain,
    /// It was neither good nor bad; the turn trains with score 0.
    Neutral,
}

/// What decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Decision {
    /// The score; none where every signal abstained.
    pub score: Option<f32>,
    /// The signal that decided.
    pub by: Option<Signal>,
    /// What should have been done.
    pub hint: Option<String>,
    /// The manner that the hint asks for, where the rules know it.
    pub wish: Option<String>,
}

fn outcome_of(score: f32) -> Outcome {
    if score > 0.0 {
        Outcome::Good
    } else if score < 0.0 {
        Outcome::Bad
    } else {
        Outcome::Neutral
    }
}

pub(crate) fn vote(signal: Signal, outcome: Outcome, reason: impl Into<String>) -> Vote {
    Vote {
        signal,
        outcome,
        reason: reason.into(),
        model: None,
        latency_ms: 0,
        usage: None,
        prompt: None,
    }
}

/// One vote per piece of feedback; the newest that says anything decides. A score is taken as it
/// is, a correction alone is a −1, a comment alone is read by the rules.
pub(crate) fn by_feedback(feedback: &[Feedback], turn: &Turn) -> (Vec<Vote>, Option<Decision>) {
    let mut votes = Vec::new();
    let mut decision: Option<Decision> = None;
    for said in feedback {
        let (score, reason) = read_feedback(said, turn);
        let outcome = score.map_or(Outcome::Abstain, outcome_of);
        votes.push(vote(Signal::Feedback, outcome, reason));
        if score.is_some() {
            let correction = said.correction.clone().filter(|c| !c.trim().is_empty());
            // A return has no words: those about the turn itself go on being its hint.
            let before = decision.take().and_then(|decision| decision.hint);
            decision = Some(Decision {
                score,
                by: Some(Signal::Feedback),
                wish: None,
                hint: correction
                    .or_else(|| said.comment.clone())
                    .or(before.filter(|_| said.of_session))
                    .filter(|_| outcome == Outcome::Bad),
            });
        }
    }
    (votes, decision)
}

fn read_feedback(said: &Feedback, turn: &Turn) -> (Option<f32>, &'static str) {
    if let Some(score) = said.score.filter(|score| score.is_finite()) {
        let reason = match said.of_session {
            true => "session_reward",
            false => "score",
        };
        return (Some(score.clamp(-1.0, 1.0)), reason);
    }
    if said
        .correction
        .as_ref()
        .is_some_and(|c| !c.trim().is_empty())
    {
        return (Some(-1.0), "correction");
    }
    let Some(comment) = &said.comment else {
        return (None, "says nothing");
    };
    let ruling = rules::judge_comment(comment, turn);
    (ruling.outcome.score(), ruling.reason)
}

/// What the rules decide; moving on counts as configured.
pub(crate) fn by_rules(ruling: &Ruling, moving_on: MovingOn) -> (Vote, Option<Decision>) {
    let outcome = if ruling.reason == rules::MOVED_ON && moving_on == MovingOn::Neutral {
        Outcome::Neutral
    } else {
        ruling.outcome
    };
    let decision = outcome.score().map(|score| Decision {
        score: Some(score),
        by: Some(Signal::Rules),
        hint: ruling.hint.clone(),
        wish: ruling.wish.clone(),
    });
    (vote(Signal::Rules, outcome, ruling.reason), decision)
}

/// What a reading of `reply` decides. A reply that says how to answer and no more is neutral, so that
/// its words teach; an opinion without such a wish has no hint.
pub(crate) fn by_reading(
    reading: &Reading,
    reply: &str,
    wish: Option<String>,
) -> (Vote, Option<Decision>) {
    let outcome = match reading.outcome {
        Outcome::Abstain if reading.has_wish => Outcome::Neutral,
        outcome => outcome,
    };
    let reason = format!(
        "good {:.2}, bad {:.2}, says how {:.2}",
        reading.good, reading.bad, reading.wish
    );
    let decision = outcome.score().map(|score| Decision {
        score: Some(score),
        by: Some(Signal::Reading),
        hint: reading.has_wish.then(|| rules::own_words(reply)),
        wish: wish.filter(|_| reading.has_wish),
    });
    (vote(Signal::Reading, outcome, reason), decision)
}

/// The outcome that more than half of all `votes` share, cast or not; abstentions never win.
pub(crate) fn majority(outcomes: impl Iterator<Item = Outcome>, votes: usize) -> Option<Outcome> {
    let mut counts = [(Outcome::Good, 0), (Outcome::Bad, 0), (Outcome::Neutral, 0)];
    for outcome in outcomes {
        for (counted, count) in &mut counts {
            *count += usize::from(*counted == outcome);
        }
    }
    let winner = counts.into_iter().find(|(_, count)| count * 2 > votes)?;
    Some(winner.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{feedback, turn};

    #[test]
    fn the_newest_feedback_that_says_anything_decides() {
        let said = |score, correction: Option<&str>, comment: Option<&str>| Feedback {
            score,
            correction: correction.map(str::to_owned),
            comment: comment.map(str::to_owned),
            ..feedback(1, None)
        };
        for (feedback, score, hint) in [
            (vec![], None, None),
            (vec![said(Some(0.25), None, None)], Some(0.25), None),
            (vec![said(Some(7.0), None, None)], Some(1.0), None),
            (vec![said(Some(f32::NAN), None, None)], None, None),
            (vec![said(None, Some("42"), None)], Some(-1.0), Some("42")),
            (
                vec![said(None, None, Some("great, thanks"))],
                Some(1.0),
                None,
            ),
            (
                vec![said(Some(-1.0), None, Some("too long"))],
                Some(-1.0),
                Some("too long"),
            ),
            (
                vec![said(Some(-1.0), None, None), said(Some(1.0), None, None)],
                Some(1.0),
                None,
            ),
            (
                vec![said(Some(1.0), None, None), said(None, None, Some("hm"))],
                Some(1.0),
                None,
            ),
        ] {
            let (votes, decision) = by_feedback(&feedback, &turn(1));
            assert_eq!(votes.len(), feedback.len());
            let decision = decision.unwrap_or_default();
            assert_eq!((decision.score, decision.hint.as_deref()), (score, hint));
        }
    }

    #[test]
    fn a_return_keeps_the_words_about_the_turn() {
        let own = Feedback {
            comment: Some("too long".to_owned()),
            ..feedback(1, Some(-1.0))
        };
        for (score, hint) in [(-0.5, Some("too long")), (0.5, None)] {
            let of_session = Feedback {
                of_session: true,
                ..feedback(1, Some(score))
            };
            let (votes, decision) = by_feedback(&[own.clone(), of_session], &turn(1));
            assert_eq!(votes[1].reason, "session_reward");
            let decision = decision.expect("it is decided");
            assert_eq!(decision.score, Some(score));
            assert_eq!(decision.hint.as_deref(), hint);
        }
    }

    #[test]
    fn only_a_strict_majority_of_all_votes_decides() {
        use Outcome::{Abstain, Bad, Good, Neutral};
        for (cast, votes, expected) in [
            (vec![Good, Good], 3, Some(Good)),
            (vec![Good], 3, None),
            (vec![Good, Bad], 2, None),
            (vec![Bad, Bad, Good], 3, Some(Bad)),
            (vec![Abstain, Abstain, Good], 3, None),
            (vec![Neutral], 1, Some(Neutral)),
            (vec![], 3, None),
        ] {
            assert_eq!(majority(cast.iter().copied(), votes), expected, "{cast:?}");
        }
    }

    #[test]
    fn moving_on_counts_as_configured() {
        let ruling = Ruling {
            outcome: Outcome::Abstain,
            reason: rules::MOVED_ON,
            hint: None,
            wish: None,
        };
        assert_eq!(by_rules(&ruling, MovingOn::Abstain).1, None);
        let decision = by_rules(&ruling, MovingOn::Neutral)
            .1
            .expect("it is decided");
        assert_eq!(
            (decision.score, decision.by),
            (Some(0.0), Some(Signal::Rules))
        );
    }
}
