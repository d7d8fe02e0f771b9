//! When the steps of a batch have taught what its answers have in common, and go on to teach them by heart.

use hone_nn::{Control, Learner, Mark, TrainRow, Under};

use super::distilled::CheckedAnswer;
use super::lessons::Taught;
use super::reference::GenericAnswer;
use super::stride::Stride;
use super::{NnTrainer, TrainError};

/// Steps in a row that make answers to other questions no likelier, after which they end.
const PATIENCE: usize = 3;

/// Whether the base model's own answers are kept, and the mean log-prob per token of the checked answers, in nats.
type Worth = (bool, f32);

/// How the steps of a batch go for answers that nothing is learned from (early stopping, Prechelt 1998). Once these
/// become no likelier, the weights before are gone back to.
pub(super) struct Course {
    checked: Vec<CheckedAnswer>,
    /// The best weights so far.
    best: Option<Mark>,
    worths: Worths,
}

/// What the weights were worth after each step.
#[derive(Default)]
struct Worths {
    looks: usize,
    /// The step that was worth most, and how much.
    best: Option<(usize, Worth)>,
}

impl Worths {
    /// Whether this step is the best so far.
    fn add(&mut self, worth: Worth) -> bool {
        self.looks += 1;
        let is_best = self.best.is_none_or(|(_, before)| worth > before);
        if is_best {
            self.best = Some((self.looks, worth));
        }
        is_best
    }

    fn best_step(&self) -> usize {
        self.best.map_or(0, |(at, _)| at)
    }

    /// Whether further steps may be of use.
    fn go_on(&self) -> bool {
        self.looks - self.best_step() < PATIENCE
    }
}

impl Course {
    /// A correction is learned until it is known, so its batches have no course.
    pub(super) fn new(taught: &Taught) -> Self {
        Self {
            checked: match taught.corrections.is_empty() {
                true => taught.distilled.checked.clone(),
                false => Vec::new(),
            },
            best: None,
            worths: Worths::default(),
        }
    }

    /// Looks at the weights before the first step and after each one, and says whether more of them may be of use.
    /// From weights that are no better it goes half the way back to the best ones, and the steps after that go half
    /// as far.
    pub(super) fn look(
        &mut self,
        trainer: &NnTrainer,
        learner: &mut Learner,
        gate: &[GenericAnswer],
        stride: &mut Stride,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<bool, TrainError> {
        if self.checked.is_empty() {
            return Ok(true);
        }
        let rows: Vec<TrainRow> = self.checked.iter().map(|one| one.row.clone()).collect();
        let found = trainer.logprobs_under(learner, &rows, Under::Current, control)?;
        let weight = trainer.learner.context.wish_weight;
        let logprob = weighted(&found, &self.checked, weight);
        let is_kept = trainer.is_kept(learner, gate, control)?;
        tracing::debug!(logprob, is_kept, "answers to other questions after a step");
        if self.worths.add((is_kept, logprob)) {
            self.best = Some(learner.mark());
        } else if let Some(best) = &self.best {
            let here = learner.mark();
            stride.take_back(learner, best, &here);
        }
        Ok(self.worths.go_on())
    }

    /// Goes back to the best weights.
    pub(super) fn end(&self, learner: &mut Learner) {
        if let Some(best) = &self.best
            && self.worths.best_step() < self.worths.looks
        {
            learner.half_way(best, best);
        }
    }

    /// After how many steps the weights were best.
    pub(super) fn best_step(&self) -> usize {
        self.worths.best_step().saturating_sub(1)
    }

    /// Whether it says how far steps go.
    pub(super) fn is_seen(&self) -> bool {
        !self.checked.is_empty()
    }

    /// What the checked answers came to; 0 without any.
    pub(super) fn best_logprob(&self) -> f32 {
        self.worths.best.map_or(0.0, |(_, (_, logprob))| logprob)
    }
}

/// The mean log-prob of these answers' tokens; those that do what the words ask weigh more, as in the loss.
fn weighted(found: &[Vec<f32>], answers: &[CheckedAnswer], weight: f32) -> f32 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (row, answer) in found.iter().zip(answers) {
        for (index, logprob) in row.iter().enumerate() {
            let weight = match answer.wish_tokens.contains(&index) {
                true => weight,
                false => 1.0,
            };
            sum += weight * logprob;
            weights += weight;
        }
    }
    sum / weights.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(worths: &[Worth]) -> (usize, usize) {
        let mut seen = Worths::default();
        for worth in worths {
            seen.add(*worth);
            if !seen.go_on() {
                break;
            }
        }
        (seen.looks, seen.best_step())
    }

    #[test]
    fn steps_end_three_behind_the_best_one() {
        let kept = |logprobs: &[f32]| {
            logprobs
                .iter()
                .map(|one| (true, *one))
                .collect::<Vec<Worth>>()
        };
        assert_eq!(steps(&kept(&[-2.0, -1.5, -1.6, -1.7, -1.8, -1.0])), (5, 2));
        assert_eq!(steps(&kept(&[-2.0, -1.5, -1.6, -1.4])), (4, 4));
        // Weights that lose what nobody asked for are the last choice.
        let lost = [
            (false, -1.0),
            (true, -1.5),
            (false, -0.9),
            (false, -0.8),
            (false, -0.7),
        ];
        assert_eq!(steps(&lost), (5, 2));
    }

    #[test]
    fn tokens_that_do_what_was_asked_weigh_more() {
        let answer = CheckedAnswer {
            row: TrainRow {
                tokens: vec![1, 2, 3],
                loss: Vec::new(),
            },
            wish_tokens: vec![1],
        };
        let found = weighted(&[vec![-1.0, -2.0]], &[answer], 3.0);
        assert!((found + 7.0 / 4.0).abs() < 1e-6, "{found}");
    }
}
