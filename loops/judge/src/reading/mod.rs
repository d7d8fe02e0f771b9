//! Reading replies in words that nobody listed: a probe on hidden states of the served base model,
//! fitted on the committed labelled set.
//!
//! The probe is a logistic regression over the mean states of the reply in its conversation, behind
//! two layers, and the rules' ruling. Its thresholds are where cross-validation shows the precision
//! that is asked for; below them it abstains. Where no threshold shows it, the reading is off.

mod features;
mod fit;

use async_trait::async_trait;
use hone_domain::Outcome;
use serde::{Deserialize, Serialize};

use features::Scale;
pub use features::Seen;
use fit::{Linear, Sample};

use crate::rules::Exchange;

/// Regularisation, as the strength of the fit (C in scikit-learn).
const SLACK: f64 = 6.0;
const FOLDS: usize = 5;
/// How much a row of the older labelled set counts; it was written by the hand that knew the rules.
const OLDER_WEIGHT: f64 = 0.3;
/// A threshold that fewer decided rows than this speak for is none.
const DECIDED_MIN: usize = 10;
/// Least share of the opinions that have to be found in cross-validation.
const FOUND_MIN: f64 = 0.1;
/// Most characters of what was asked and of the completion, from their ends, and of the reply.
const ASKED_CHARS: usize = 160;
const COMPLETION_CHARS: usize = 240;
const REPLY_CHARS: usize = 400;

const BAD: usize = 0;
const GOOD: usize = 1;
const NONE: usize = 2;

/// Why a reply was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The probe is being fitted; later it can be read.
    #[error("the probe is being fitted")]
    NotYet,
    /// A sentence that says why it cannot be told.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for Unreadable {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Reads a reply.
#[async_trait]
pub trait Reader: Send + Sync {
    /// What the reply says of the completion; none where there is no probe. Dropping the future withdraws
    /// the work.
    ///
    /// # Errors
    /// Why it cannot be told.
    async fn read(&self, exchange: Exchange<'_>) -> Result<Option<Reading>, Unreadable>;
}

/// A labelled reply as the model and the rules read it.
#[derive(Clone, Debug)]
pub struct Example {
    /// What is read.
    pub seen: Seen,
    /// `good`, `bad` or `none`.
    pub label: &'static str,
    /// Whether it says how to answer; none where nobody noted it. Such a row is only fitted on.
    pub wish: Option<bool>,
}

/// What a reply says of the completion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Good, bad, or abstained where it is unsure.
    pub outcome: Outcome,
    /// Whether it surely says how to answer.
    pub has_wish: bool,
    /// Probability that it calls the completion good.
    pub good: f64,
    /// Probability that it calls the completion bad.
    pub bad: f64,
    /// Probability that it says how to answer.
    pub wish: f64,
}

impl Reading {
    /// Whether what the rules say may stand where the reading is unsure: it is not less likely than by
    /// chance.
    pub fn allows(&self, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Good => self.good >= 1.0 / 3.0,
            Outcome::Bad => self.bad >= 1.0 / 3.0,
            Outcome::Neutral | Outcome::Abstain => true,
        }
    }
}

/// Least probabilities; above 1 nothing is decided.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Least {
    good: f64,
    bad: f64,
    wish: f64,
}

/// What cross-validation shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Crossed {
    /// Share of the opinions that are found.
    pub found: f64,
    /// Share of the decided ones that are right.
    pub precision: f64,
    /// Share of the replies without an opinion that are taken for blame.
    pub blamed: f64,
    /// Share of the wishes that are found.
    pub wishes: f64,
}

/// The fitted probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    scale: Scale,
    opinion: Linear,
    wish: Linear,
    least: Least,
    /// What cross-validation shows.
    pub crossed: Crossed,
}

impl Probe {
    /// Fits on `examples`, with thresholds where at least `precision_min` of what is decided is right
    /// in cross-validation.
    ///
    /// # Errors
    /// A sentence that says why the model is not able to.
    pub fn fit(examples: &[Example], precision_min: f64) -> Result<Self, String> {
        let scale = Scale::of(examples.iter().map(|example| &example.seen));
        let rows: Vec<(Vec<f64>, &Example)> = examples
            .iter()
            .filter_map(|example| Some((scale.features(&example.seen)?, example)))
            .collect();
        if rows.len() < examples.len() || rows.len() < FOLDS {
            return Err("the states of the labelled replies differ in length".to_owned());
        }
        let held = cross(&rows);
        let least = Least {
            good: threshold(held.iter().map(|h| h.of(GOOD)), precision_min),
            bad: threshold(held.iter().map(|h| h.of(BAD)), precision_min),
            wish: threshold(held.iter().filter_map(Held::of_wish), precision_min),
        };
        let crossed = measured(&held, &least);
        if crossed.found < FOUND_MIN {
            return Err(format!(
                "the model finds {:.0} % of the opinions where at least {:.0} % of them have to be right",
                crossed.found * 100.0,
                precision_min * 100.0
            ));
        }
        let (opinion, wish) = heads(&rows, |_| true);
        Ok(Self {
            scale,
            opinion,
            wish,
            least,
            crossed,
        })
    }

    /// Reads a reply; none where the states come from another model.
    pub fn read(&self, seen: &Seen) -> Option<Reading> {
        let features = self.scale.features(seen)?;
        let opinion = self.opinion.probabilities(&features);
        let wish = self.wish.probabilities(&features)[1];
        let (outcome, has_wish) = self.least.decide(&opinion, wish);
        Some(Reading {
            outcome,
            has_wish,
            good: opinion[GOOD],
            bad: opinion[BAD],
            wish,
        })
    }
}

impl Least {
    fn decide(&self, opinion: &[f64], wish: f64) -> (Outcome, bool) {
        let outcome = match likeliest(opinion) {
            GOOD if opinion[GOOD] >= self.good => Outcome::Good,
            BAD if opinion[BAD] >= self.bad => Outcome::Bad,
            _ => Outcome::Abstain,
        };
        (outcome, wish >= self.wish)
    }
}

fn likeliest(opinion: &[f64]) -> usize {
    (1..opinion.len()).fold(0, |best, at| {
        if opinion[at] > opinion[best] {
            at
        } else {
            best
        }
    })
}

/// A row that was read by a probe which had not seen it.
struct Held {
    label: usize,
    opinion: Vec<f64>,
    wish: f64,
    has_wish: bool,
}

impl Held {
    /// The probability of `class` where it is the likeliest, and whether it is right.
    fn of(&self, class: usize) -> (f64, bool) {
        let is_likeliest = likeliest(&self.opinion) == class;
        let probability = if is_likeliest {
            self.opinion[class]
        } else {
            0.0
        };
        (probability, self.label == class)
    }

    fn of_wish(&self) -> Option<(f64, bool)> {
        (self.wish > 0.5).then_some((self.wish, self.has_wish))
    }
}

fn class(label: &str) -> usize {
    match label {
        "bad" => BAD,
        "good" => GOOD,
        _ => NONE,
    }
}

/// Both heads, fitted on the rows that `is_kept` keeps by their place.
fn heads(rows: &[(Vec<f64>, &Example)], is_kept: impl Fn(usize) -> bool) -> (Linear, Linear) {
    let kept = rows.iter().enumerate().filter(|(at, _)| is_kept(*at));
    let opinion = kept.clone().map(|(_, (features, example))| Sample {
        features,
        label: class(example.label),
        weight: if example.wish.is_some() {
            1.0
        } else {
            OLDER_WEIGHT
        },
    });
    let opinion: Vec<Sample<'_>> = opinion.collect();
    let wish = kept.filter_map(|(_, (features, example))| {
        Some(Sample {
            features,
            label: usize::from(example.wish?),
            weight: 1.0,
        })
    });
    let wish: Vec<Sample<'_>> = wish.collect();
    (
        Linear::fit(&opinion, 3, SLACK),
        Linear::fit(&wish, 2, SLACK),
    )
}

/// Every row with a noted wish, read by a probe that was fitted without its fold.
fn cross(rows: &[(Vec<f64>, &Example)]) -> Vec<Held> {
    let mut next = [0; 3];
    let folds: Vec<Option<usize>> = rows
        .iter()
        .map(|(_, example)| {
            example.wish?;
            let place = &mut next[class(example.label)];
            *place += 1;
            Some(*place % FOLDS)
        })
        .collect();
    let mut held = Vec::new();
    for fold in 0..FOLDS {
        let (opinion, wish) = heads(rows, |at| folds[at] != Some(fold));
        for (at, (features, example)) in rows.iter().enumerate() {
            if folds[at] == Some(fold) {
                held.push(Held {
                    label: class(example.label),
                    opinion: opinion.probabilities(features),
                    wish: wish.probabilities(features)[1],
                    has_wish: example.wish.unwrap_or_default(),
                });
            }
        }
    }
    held
}

/// The lowest probability from which on at least `precision_min` are right; 2 where there is none.
fn threshold(read: impl Iterator<Item = (f64, bool)>, precision_min: f64) -> f64 {
    let mut read: Vec<(f64, bool)> = read.filter(|(probability, _)| *probability > 0.0).collect();
    read.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut right, mut least) = (0usize, 2.0);
    for (before, (probability, is_right)) in read.iter().enumerate() {
        right += usize::from(*is_right);
        let decided = before + 1;
        if decided >= DECIDED_MIN && right as f64 >= precision_min * decided as f64 {
            least = *probability;
        }
    }
    least
}

fn measured(held: &[Held], least: &Least) -> Crossed {
    let decided = |h: &Held| match least.decide(&h.opinion, h.wish).0 {
        Outcome::Good => GOOD,
        Outcome::Bad => BAD,
        Outcome::Neutral | Outcome::Abstain => NONE,
    };
    let share = |of: &dyn Fn(&&Held) -> bool, is: &dyn Fn(&Held) -> bool| {
        let all: Vec<&Held> = held.iter().filter(of).collect();
        all.iter().filter(|h| is(h)).count() as f64 / all.len().max(1) as f64
    };
    Crossed {
        found: share(&|h| h.label != NONE, &|h| decided(h) == h.label),
        precision: share(&|h| decided(h) != NONE, &|h| decided(h) == h.label),
        blamed: share(&|h| h.label == NONE, &|h| decided(h) == BAD),
        wishes: share(&|h| h.has_wish, &|h| h.wish >= least.wish),
    }
}

/// The exchange as the model reads it: cut to what it is about.
pub fn shortened(exchange: Exchange<'_>) -> Exchange<'_> {
    Exchange {
        asked: end(exchange.asked, ASKED_CHARS),
        completion: end(exchange.completion, COMPLETION_CHARS),
        reply: start(exchange.reply.trim(), REPLY_CHARS),
    }
}

fn start(text: &str, chars: usize) -> &str {
    let end = text.char_indices().nth(chars);
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

fn end(text: &str, chars: usize) -> &str {
    let begin = text.char_indices().rev().nth(chars.saturating_sub(1));
    &text[begin.map_or(0, |(at, _)| at)..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Exchange, judge_reply};

    /// A model of two numbers: whether the reply is blame, and whether it asks for something.
    fn examples(clarity: f32) -> Vec<Example> {
        let labels = ["bad", "good", "none"];
        (0..180usize)
            .map(|n| {
                let label = labels[n % 3];
                let noise = |k: usize| ((n * k) % 17) as f32 / 17.0 - 0.5;
                let wish = n % 2 == 0;
                let blame = match label {
                    "bad" => clarity,
                    "good" => -clarity,
                    _ => 0.0,
                };
                let asks = if wish { clarity } else { -clarity };
                let exchange = Exchange {
                    asked: "How far is the moon?",
                    completion: "384,400 km.",
                    reply: "So.",
                };
                let states = vec![blame + noise(5), asks + noise(7), noise(3)];
                let ruling = judge_reply(exchange);
                Example {
                    seen: Seen { states, ruling },
                    label,
                    wish: (n < 150).then_some(wish),
                }
            })
            .collect()
    }

    #[test]
    fn what_the_states_tell_is_read_and_what_they_do_not_is_left() {
        let rows = examples(2.0);
        let probe = Probe::fit(&rows, 0.9).expect("the states tell");
        assert!(probe.crossed.found > 0.9 && probe.crossed.precision >= 0.9);
        let read = probe.read(&rows[0].seen).expect("its own states");
        assert_eq!((read.outcome, read.has_wish), (Outcome::Bad, true));
        let read = probe.read(&rows[1].seen).expect("its own states");
        assert_eq!((read.outcome, read.has_wish), (Outcome::Good, false));
        let stored = serde_json::to_vec(&probe).expect("it is data");
        assert_eq!(
            serde_json::from_slice::<Probe>(&stored).ok(),
            Some(probe.clone())
        );
        let other = Seen {
            states: vec![0.0; 2],
            ..rows[0].seen.clone()
        };
        assert_eq!(probe.read(&other), None);
        let error = Probe::fit(&examples(0.0), 0.9).expect_err("nothing can be told");
        assert!(error.contains("of the opinions"), "{error}");
    }

    #[test]
    fn a_threshold_is_the_lowest_that_keeps_the_precision() {
        let read = |wrong: usize| (0..40).map(move |n| (1.0 - n as f64 / 50.0, n != wrong));
        assert!((threshold(read(50), 0.9) - 0.22).abs() < 1e-9);
        let worse = (0..40).map(|n| (1.0 - n as f64 / 50.0, n < 20));
        assert!((threshold(worse, 0.9) - 0.58).abs() < 1e-9);
        assert!(threshold((0..40).map(|n| (0.9, n % 2 == 0)), 0.9) > 1.0);
        assert!(threshold((0..5).map(|_| (0.9, true)), 0.9) > 1.0);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "ä".repeat(1_000);
        let exchange = shortened(Exchange {
            asked: &long,
            completion: "short",
            reply: &long,
        });
        assert_eq!(exchange.asked.chars().count(), ASKED_CHARS);
        assert_eq!(exchange.completion, "short");
        assert_eq!(exchange.reply.chars().count(), REPLY_CHARS);
    }
}
