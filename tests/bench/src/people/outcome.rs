//! One run beside the base model and the told model, in numbers.

use serde_json::{Value, json};

use super::arms::Arm;
use super::base::{Base, Tried};
use super::checks::word_count;
use super::knowledge::{Instruction, Paired, share};
use super::run::{Run, reasons};
use crate::demo::numbers::Percentiles;
use crate::report::milli;

/// Answers that the object quotes, for whoever wonders what was learned.
const QUOTED: usize = 4;

/// What a run is held against.
pub(super) struct Against<'a> {
    pub(super) base: &'a Base,
    pub(super) tried: &'a Tried,
    pub(super) all_instructions: &'a [Instruction],
    /// Mean log-prob per token of the told model's own answers under the told model.
    pub(super) told_logprob: Option<f64>,
}

/// A run with what it changed.
pub(super) struct Outcome {
    pub(super) run: Run,
    /// Whether the model follows the preference when told, and seldom otherwise.
    pub(super) qualifies: bool,
    pub(super) told: f64,
    pub(super) untold: f64,
    pub(super) told_logprob: Option<f64>,
    /// Where training ran.
    pub(super) learned: Option<Learned>,
}

/// What the person's policy does at the end.
pub(super) struct Learned {
    /// Share of held-out answers as wished.
    pub(super) as_wished: f64,
    pub(super) empty: f64,
    pub(super) words: Quartiles,
    pub(super) told_words: Quartiles,
    /// The first held-out answers.
    quoted: Vec<String>,
    /// Mean log-prob per token of its answers under the told base.
    pub(super) logprob: Option<f64>,
    pub(super) facts: Paired,
    pub(super) instructions: Paired,
    /// Those that the base model follows and what was learned does not.
    pub(super) instructions_lost: Vec<String>,
}

/// Quartiles of the answers' lengths in words.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Quartiles {
    pub(super) lower: f64,
    pub(super) median: f64,
    pub(super) upper: f64,
}

impl Quartiles {
    pub(super) fn of(answers: &[String]) -> Self {
        let mut words: Vec<usize> = answers.iter().map(|a| word_count(a)).collect();
        words.sort_unstable();
        let rank = |quarters: usize| {
            let at = (quarters * words.len()).div_ceil(4).max(1) - 1;
            words.get(at).copied().unwrap_or_default() as f64
        };
        Self {
            lower: rank(1),
            median: rank(2),
            upper: rank(3),
        }
    }

    fn json(self) -> Value {
        json!([self.lower, self.median, self.upper])
    }
}

impl Learned {
    /// Whether the middle length lies between the quartiles of the told model's lengths.
    pub(super) fn has_told_length(&self) -> bool {
        (self.told_words.lower..=self.told_words.upper).contains(&self.words.median)
    }
}

impl Outcome {
    /// With `logprob`, the mean log-prob per token of answers under the told base.
    pub(super) fn of(
        run: Run,
        against: &Against<'_>,
        logprob: impl FnOnce(&[String]) -> Result<Option<f64>, String>,
    ) -> Result<Self, String> {
        let (base, tried) = (against.base, against.tried);
        let learned = match &run.after {
            None => None,
            Some(after) => {
                let met = after.answers.iter().map(|a| tried.preference.is_met(a));
                let empty = after.answers.iter().map(|a| a.trim().is_empty());
                Some(Learned {
                    as_wished: share(&met.collect::<Vec<_>>()),
                    empty: share(&empty.collect::<Vec<_>>()),
                    words: Quartiles::of(&after.answers),
                    told_words: Quartiles::of(&tried.answers),
                    quoted: after.answers.iter().take(QUOTED).cloned().collect(),
                    logprob: logprob(&after.answers)?,
                    facts: Paired {
                        base: base.facts.clone(),
                        learned: after.facts.clone(),
                    },
                    instructions: Paired {
                        base: base.instructions.clone(),
                        learned: after.instructions.clone(),
                    },
                    instructions_lost: lost(against.all_instructions, base, &after.instructions),
                })
            }
        };
        Ok(Self {
            qualifies: tried.qualifies(),
            told: tried.told,
            untold: tried.untold,
            told_logprob: against.told_logprob,
            learned,
            run,
        })
    }

    /// Whether it is a run of this arm whose preference qualifies.
    pub(super) fn counts_for(&self, arm: Arm) -> bool {
        self.qualifies && self.run.plan.arm == arm
    }

    /// Learned minus told mean log-prob per token, in nats.
    pub(super) fn logprob_gap(&self) -> Option<f64> {
        let learned = self.learned.as_ref()?.logprob?;
        Some(learned - self.told_logprob?)
    }

    /// Middle of the seconds from a complaint to a first answer of a newer version.
    pub(super) fn newer_s(&self) -> Option<f64> {
        let seconds = &self.run.sessions.newer_s;
        (!seconds.is_empty()).then(|| Percentiles::of(seconds.clone()).p50)
    }

    /// Instructions that the base model follows and what was learned does not.
    pub(super) fn instructions_lost(&self) -> &[String] {
        let learned = self.learned.as_ref();
        learned.map_or(&[], |learned| &learned.instructions_lost)
    }

    /// A progress line.
    pub(super) fn sentence(&self) -> String {
        let (run, seen) = (&self.run, &self.run.sessions);
        let three = seen.three_in_a_row();
        let three = three.map_or_else(|| "never".to_owned(), |at| format!("after {at} sessions"));
        let learned = self.learned.as_ref().map_or_else(String::new, |learned| {
            format!(
                ", held out {:.2} to {:.2} (told {:.2}), facts {:+.1}, instructions {:+.1}",
                self.untold,
                learned.as_wished,
                self.told,
                learned.facts.change().mean,
                learned.instructions.change().mean
            )
        });
        format!(
            "{}: three in a row {three}, late {:.2}, {} versions, {} refused{learned}, other {}, {:.0} s",
            run.plan.name(),
            share(seen.late()),
            run.published.len(),
            run.refused.len(),
            if run.other_unchanged {
                "unchanged"
            } else {
                "CHANGED"
            },
            run.seconds
        )
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let (run, seen) = (&self.run, &self.run.sessions);
        let digits: Vec<u8> = seen
            .as_wished
            .iter()
            .map(|is_met| u8::from(*is_met))
            .collect();
        let mut object = json!({
            "arm": run.plan.arm.name(),
            "preference": run.plan.preference.name(),
            "seed": run.plan.seed,
            "qualifies": self.qualifies,
            "as_wished": digits,
            "first_answer_versions": seen.versions,
            "three_in_a_row_at": seen.three_in_a_row(),
            "late_share": share(seen.late()),
            "complaints": seen.complaints,
            "complaint_to_newer_s": seen.newer_s.iter().map(|s| milli(*s)).collect::<Vec<_>>(),
            "pauses_run_out": seen.pauses_run_out,
            "versions": run.published.len(),
            "refused": run.refused.len(),
            "refusal_reasons": reasons(&run.refused),
            "version_reports": run.published,
            "refusal_reports": run.refused,
            "other_unchanged": run.other_unchanged,
            "failed": seen.failed,
            "seconds": milli(run.seconds),
        });
        if let Some(learned) = &self.learned {
            object["learned"] = json!({
                "as_wished_before": self.untold,
                "as_wished_after": learned.as_wished,
                "as_wished_told": self.told,
                "empty_share": learned.empty,
                "words_quartiles": learned.words.json(),
                "words_quartiles_told": learned.told_words.json(),
                "answers": learned.quoted,
                "logprob_told_base": learned.logprob.map(milli),
                "logprob_told_base_of_told": self.told_logprob.map(milli),
                "logprob_gap": self.logprob_gap().map(milli),
                "facts": learned.facts.json(),
                "instructions": learned.instructions.json(),
                "instructions_lost": learned.instructions_lost,
            });
        }
        object
    }
}

/// The instructions that the base model follows and what was learned does not.
fn lost(all: &[Instruction], base: &Base, learned: &[bool]) -> Vec<String> {
    let pairs = all.iter().zip(base.instructions.iter().zip(learned));
    let lost = pairs.filter(|(_, (before, after))| **before && !**after);
    lost.map(|(one, _)| one.prompt.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_of_words() {
        let answers = |lengths: &[usize]| -> Vec<String> {
            lengths.iter().map(|words| "word ".repeat(*words)).collect()
        };
        let quartiles = Quartiles::of(&answers(&[40, 10, 30, 20]));
        let wanted = Quartiles {
            lower: 10.0,
            median: 20.0,
            upper: 30.0,
        };
        assert_eq!(quartiles, wanted);
        assert_eq!(Quartiles::of(&[]), Quartiles::default());
    }
}
