//! What the probe sees of a reply: the states of the served model and the ruling of the rules.

use hone_domain::Outcome;
use serde::{Deserialize, Serialize};

use crate::rules::Ruling;

/// Length of the rules' features beside that of the states, which is 1.
const RULES_LENGTH: f64 = 0.15;
/// Rules that a feature stands for.
const RULES: [&str; 12] = [
    "approval",
    "asked_again",
    "complaint",
    "correction",
    "denial",
    "denied_praise",
    "no_words",
    "own_mistake",
    "praise",
    "reports_failure",
    "thanks",
    "wants_other_form",
];

fn ruled(ruling: &Ruling) -> Vec<f64> {
    let flags = [
        ruling.outcome == Outcome::Good,
        ruling.outcome == Outcome::Bad,
        ruling.hint.is_some(),
        ruling.wish.is_some(),
    ];
    let rules = RULES.iter().map(|rule| *rule == ruling.reason);
    let flags = flags.into_iter().chain(rules);
    flags.map(|flag| f64::from(u8::from(flag))).collect()
}

/// A reply as the model and the rules read it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Hidden states, one layer behind the other.
    pub states: Vec<f32>,
    /// What the rules say.
    pub ruling: Ruling,
}

/// Brings each feature to mean 0 and deviation 1 over what was fitted on, and each group of features
/// to its length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Scale {
    states: usize,
    mean: Vec<f64>,
    /// What each feature is multiplied with.
    factor: Vec<f64>,
}

impl Scale {
    pub(super) fn of<'a>(all: impl Iterator<Item = &'a Seen> + Clone) -> Self {
        let states = all.clone().next().map_or(0, |seen| seen.states.len());
        let count = all.clone().count().max(1) as f64;
        let width = states + RULES.len() + 4;
        let (mut mean, mut square) = (vec![0.0; width], vec![0.0; width]);
        for row in all.map(raw) {
            for (at, value) in row.iter().enumerate().take(width) {
                mean[at] += value / count;
                square[at] += value * value / count;
            }
        }
        let factor = (0..width).map(|at| {
            let deviation = (square[at] - mean[at] * mean[at]).max(0.0).sqrt();
            let length = match at < states {
                true => 1.0 / (states as f64).sqrt(),
                false => RULES_LENGTH / ((width - states) as f64).sqrt(),
            };
            if deviation > 1e-6 {
                length / deviation
            } else {
                0.0
            }
        });
        let factor = factor.collect();
        Self {
            states,
            mean,
            factor,
        }
    }

    /// The features of a reply and a constant; none where it comes from another model.
    pub(super) fn features(&self, seen: &Seen) -> Option<Vec<f64>> {
        if seen.states.len() != self.states {
            return None;
        }
        let row = raw(seen);
        let scaled = row.iter().zip(&self.mean).zip(&self.factor);
        let scaled = scaled.map(|((value, mean), factor)| (value - mean) * factor);
        Some(scaled.chain([1.0]).collect())
    }
}

fn raw(seen: &Seen) -> Vec<f64> {
    let states = seen.states.iter().map(|value| f64::from(*value));
    states.chain(ruled(&seen.ruling)).collect()
}
