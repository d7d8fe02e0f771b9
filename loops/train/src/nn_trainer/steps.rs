//! The steps on one batch: which rows an update sees, and when there are enough of them.

use std::collections::BTreeMap;

use hone_nn::{Control, Learner, LossKind, StepError, StepReport, TrainRow, Under};

use super::course::Course;
use super::lessons::Taught;
use super::reference::GenericAnswer;
use super::stride::Stride;
use super::{NnTrainer, TrainError, TrainJob, control, mean, stopped, train_row};
use crate::config::LearnerConfig;
use crate::objective::DistillForm;
use crate::progress::Phase;

/// Generic answers that are looked at between steps, and how much of what the gate allows may be lost
/// on them when the steps end.
const LOOKED_AT: usize = 8;
const KEPT_SHARE: f32 = 0.75;
/// Least share of the learning rate.
const SHARE_MIN: f32 = 0.01;

/// Answers of one update; with more of them each update sees others.
const ANSWERS_PER_UPDATE: usize = 8;

/// What the updates see.
struct Batch {
    rows: Vec<Row>,
    /// Mean log-prob of the tokens that do what the words ask, before the newest update, where it saw them.
    wish: Option<f32>,
    updates: usize,
    /// Anchors of one update.
    anchors: usize,
}

/// A row of a batch.
struct Row {
    row: TrainRow,
    part: RowPart,
    /// Which of its loss tokens do what the words ask.
    wish_tokens: Vec<usize>,
}

/// What a row is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowPart {
    /// Scores, corrections, second tries: every update sees it.
    Turn,
    /// An answer to a person's words.
    Answer,
    /// The base model's own answer.
    Anchor,
}

impl Batch {
    /// A batch whose last rows are the answers to a person's words, and anchors.
    fn new(rows: Vec<TrainRow>, taught: &Taught, anchors: usize) -> Self {
        let turns = rows.len() - taught.distilled.rows.len();
        let wish_tokens = &taught.distilled.wish_tokens;
        let rows = rows.into_iter().enumerate().map(|(at, row)| {
            let tokens = at.checked_sub(turns).map(|at| &wish_tokens[at]);
            let part = match tokens {
                None => RowPart::Turn,
                Some(tokens) if tokens.is_empty() => RowPart::Anchor,
                Some(_) => RowPart::Answer,
            };
            Row {
                row,
                part,
                wish_tokens: tokens.cloned().unwrap_or_default(),
            }
        });
        Self {
            rows: rows.collect(),
            wish: None,
            updates: 0,
            anchors,
        }
    }

    /// The next rows of a kind: each update sees others, and after all of them the first again.
    fn turn_of(&self, part: RowPart, most: usize) -> impl Iterator<Item = usize> + use<> {
        let all = self.rows.iter().enumerate();
        let all = all.filter(|(_, row)| row.part == part).map(|(at, _)| at);
        let all: Vec<usize> = all.collect();
        let (count, start) = (all.len(), self.updates * most.min(all.len()));
        (0..most.min(count)).map(move |next| all[(start + next) % count])
    }

    /// The rows of the next update.
    fn next(&mut self) -> Vec<usize> {
        let turns = self.turn_of(RowPart::Turn, usize::MAX);
        let anchors = self.turn_of(RowPart::Anchor, self.anchors);
        let answers = self.turn_of(RowPart::Answer, ANSWERS_PER_UPDATE);
        let these = turns.chain(anchors).chain(answers).collect();
        self.updates += 1;
        these
    }

    fn step(
        &mut self,
        learner: &mut Learner,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<StepReport, TrainError> {
        let these = self.next();
        let rows: Vec<TrainRow> = these.iter().map(|at| self.rows[*at].row.clone()).collect();
        let report = finite(learner.step(&rows, control))?;
        let tokens = these.iter().zip(&report.proximal_logprobs);
        let tokens = tokens.flat_map(|(at, logprobs)| {
            let of = self.rows[*at].wish_tokens.iter();
            of.filter_map(|at| logprobs.get(*at))
        });
        let tokens: Vec<f32> = tokens.copied().collect();
        self.wish = (!tokens.is_empty()).then(|| mean(&tokens));
        Ok(report)
    }

    /// What was sampled trains once. Further updates are held to it by the divergence alone, or by
    /// the anchors where there are some.
    fn go_on(&mut self, anchored: bool) {
        for loss in self.rows.iter_mut().flat_map(|row| &mut row.row.loss) {
            if loss.kind == LossKind::Policy {
                loss.advantage = 0.0;
                loss.teacher = None;
            }
        }
        if !anchored {
            return;
        }
        let stays = |row: &TrainRow| row.loss.iter().any(|loss| loss.kind != LossKind::Policy);
        self.rows.retain(|row| stays(&row.row));
    }
}

impl NnTrainer {
    /// The steps on a batch, and how well its corrections are known after them.
    pub(super) fn steps(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        lr: f32,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Stepped, TrainError> {
        let mut control = control(pause);
        let mut rows: Vec<TrainRow> = job.rows.iter().map(train_row).collect();
        let mut taught = self.teach(learner, job, &mut rows, &mut control)?;
        let mut known = Known::new(learner, &taught, &mut control)?;
        let unseen = &mut taught.distilled.unseen;
        let before = self.of_unseen(learner, unseen, &mut || control() == Control::Stop)?;
        for (answer, logprob) in unseen.iter_mut().zip(before) {
            answer.logprob_before = logprob;
        }
        let lr = lr * self.share_of_lr(&rows, &taught);
        learner.set_lr(lr);
        let context = &self.learner.context;
        let anchors = context.anchors + context.anchors_instructed;
        let mut batch = Batch::new(rows, &taught, anchors);
        job.progress.enter(Phase::Steps);
        let all = self.learner.steps_per_batch as usize + self.learner.correction_steps_max;
        let mut reports = Vec::new();
        let anchored = !taught.distilled.rows.is_empty();
        let gate = self.gate_answers(LOOKED_AT, &mut || control() == Control::Stop)?;
        let mut stride = Stride::new(lr);
        let mut course = Course::new(&taught);
        course.look(self, learner, &gate, &mut stride, &mut control)?;
        for _ in 0..self.learner.steps_per_batch {
            reports.push(batch.step(learner, &mut control)?);
        }
        batch.go_on(anchored);
        for step in 1..=self.learner.correction_steps_max {
            known.look(learner, &taught, &mut control)?;
            known.wish = batch.wish;
            job.progress.at(reports.len() as f64 / all.max(1) as f64);
            let goes_on = course.look(self, learner, &gate, &mut stride, &mut control)?;
            if step == self.learner.correction_steps_max || !goes_on {
                break;
            }
            if known.enough(&self.learner) && self.is_kept(learner, &gate, &mut control)? {
                break;
            }
            // Beside answers that are looked at, losses of different rows say nothing.
            if anchored && !course.is_seen() {
                stride.before(learner);
            }
            reports.push(batch.step(learner, &mut control)?);
            stride.after(learner, &reports[reports.len() - 1]);
        }
        course.end(learner);
        Ok(Stepped {
            reports,
            taught,
            known,
            stride,
            course,
        })
    }

    /// How far the updates of a batch go, of the learning rate. Every update is normalised, so that the weight of a
    /// score says nothing where scores are all there is: without this one thank-you, and the anchors beside it,
    /// would move the weights as far as a person's words do, and away from what these have taught.
    fn share_of_lr(&self, rows: &[TrainRow], taught: &Taught) -> f32 {
        let says_nothing = taught.corrections.is_empty()
            && taught.retold == 0
            && taught.distilled.wish_tokens.iter().all(Vec::is_empty);
        if self.learner.hint_form != DistillForm::Context || !says_nothing {
            return 1.0;
        }
        let scored = rows.iter().flat_map(|row| &row.loss);
        let scored = scored.filter(|loss| loss.kind == LossKind::Policy);
        let most = scored.map(|loss| loss.advantage.abs()).fold(0.0, f32::max);
        most.clamp(SHARE_MIN, 1.0)
    }

    /// Whether the current weights give the base model's own answers about as likely as it does. The
    /// first steps of a batch disturb more than they should; further ones, in which the anchors pull,
    /// mend it.
    pub(super) fn is_kept(
        &self,
        learner: &mut Learner,
        gate: &[GenericAnswer],
        control: &mut dyn FnMut() -> Control,
    ) -> Result<bool, TrainError> {
        let before = self.mean_of_answers(learner, gate, Under::Reference, control)?;
        let now = self.mean_of_answers(learner, gate, Under::Current, control)?;
        let lost = before.iter().zip(&now).map(|(b, n)| b - n).sum::<f32>();
        Ok(lost <= KEPT_SHARE * self.gate.generic_loss_max * gate.len() as f32)
    }
}

/// What the steps on a batch did.
pub(super) struct Stepped {
    pub(super) reports: Vec<StepReport>,
    pub(super) taught: Taught,
    known: Known,
    stride: Stride,
    course: Course,
}

/// Mean log-prob per token of each correction, before and now, and by how much the rehearsed
/// answers are less likely than under their teacher.
#[derive(Default)]
struct Known {
    before: Vec<f32>,
    now: Vec<f32>,
    gap_before: f32,
    gap: f32,
    /// Mean log-prob of the tokens that do what was asked, before the last step.
    wish: Option<f32>,
}

impl Known {
    fn new(
        learner: &mut Learner,
        taught: &Taught,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Self, TrainError> {
        let mut known = Self::default();
        known.look(learner, taught, control)?;
        known.before.clone_from(&known.now);
        known.gap_before = known.gap;
        Ok(known)
    }

    fn look(
        &mut self,
        learner: &mut Learner,
        taught: &Taught,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), TrainError> {
        self.now = mean_logprobs(learner, &taught.corrections, control)?;
        let rehearsed = &taught.rehearsed;
        let student = mean_logprobs(learner, &rehearsed.rows, control)?;
        let gaps = rehearsed.teacher.iter().zip(&student).map(|(t, s)| t - s);
        self.gap = gaps.sum::<f32>() / student.len().max(1) as f32;
        Ok(())
    }

    fn enough(&self, config: &LearnerConfig) -> bool {
        let enough = config.correction_logprob;
        let follows = self
            .wish
            .is_none_or(|mean| mean >= config.context.wish_logprob);
        self.now.iter().all(|mean| *mean >= enough) && self.gap <= config.hint_gap && follows
    }
}

/// Mean log-prob per loss token of each row.
fn mean_logprobs(
    learner: &mut Learner,
    rows: &[TrainRow],
    control: &mut dyn FnMut() -> Control,
) -> Result<Vec<f32>, TrainError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let logprobs = learner.logprobs(rows, control).map_err(stopped)?;
    Ok(logprobs.iter().map(|row| mean(row)).collect())
}

/// A step whose numbers can be trusted.
fn finite(report: Result<StepReport, StepError>) -> Result<StepReport, TrainError> {
    let report = report.map_err(stopped)?;
    if report.skipped_nonfinite || !report.loss.is_finite() || !report.grad_norm.is_finite() {
        return Err(TrainError::NotFinite(format!(
            "loss {}, gradient norm {}",
            report.loss, report.grad_norm
        )));
    }
    Ok(report)
}

/// What is reported of the steps on one batch: readings of the first, where the proximal policy is
/// the served one, and the largest gradient norm.
pub(super) fn numbers(stepped: &Stepped) -> BTreeMap<&'static str, f64> {
    let Stepped {
        reports,
        taught,
        known,
        stride,
        course,
    } = stepped;
    let lowest = |of: &[f32]| of.iter().copied().fold(0.0_f32, f32::min);
    let first = &reports[0];
    let norm = reports.iter().map(|r| r.grad_norm).fold(0.0, f64::max);
    let slice_us = reports
        .iter()
        .map(|r| r.longest_slice_us)
        .max()
        .unwrap_or_default();
    BTreeMap::from([
        ("loss", first.loss),
        ("loss_last", reports[reports.len() - 1].loss),
        ("kl_at_start", first.kl_to_reference.unwrap_or_default()),
        ("clip_share", first.clip_share),
        ("mean_importance_ratio", first.mean_importance_ratio),
        ("max_correction", first.max_correction),
        ("ess", first.ess),
        ("entropy", first.entropy),
        ("grad_norm_max", norm),
        ("steps", reports.len() as f64),
        (
            "updates",
            reports.iter().map(|r| r.updates).sum::<usize>() as f64,
        ),
        ("tokens", first.tokens as f64),
        ("loss_tokens", first.loss_tokens as f64),
        (
            "slices",
            reports.iter().map(|r| r.slices).sum::<usize>() as f64,
        ),
        ("slice_ms_max", slice_us as f64 / 1e3),
        ("lr", f64::from(stride.lr())),
        ("updates_shortened", stride.shortened() as f64),
        ("hints", taught.hints as f64),
        ("corrections", taught.corrections.len() as f64),
        ("retold", taught.retold as f64),
        ("rehearsed", taught.rehearsed.rows.len() as f64),
        ("rehearsed_left_out", taught.rehearsed.doubtful as f64),
        ("rehearsed_gap_before", f64::from(known.gap_before)),
        ("rehearsed_gap_after", f64::from(known.gap)),
        ("wishes", taught.distilled.wishes.len() as f64),
        ("wishes_replaced", taught.distilled.replaced.len() as f64),
        ("answers_sampled", taught.distilled.sampled as f64),
        ("answers_copied", taught.distilled.copied as f64),
        ("answers_kept", taught.distilled.kept as f64),
        ("answers_checked", taught.distilled.checked.len() as f64),
        ("checked_logprob", f64::from(course.best_logprob())),
        ("best_step", course.best_step() as f64),
        ("answers_gain", f64::from(taught.distilled.gain)),
        ("answers_relevance", f64::from(taught.distilled.relevance)),
        ("wish_logprob", f64::from(known.wish.unwrap_or_default())),
        ("replayed", taught.replayed as f64),
        ("lessons_unusable", taught.unusable as f64),
        (
            "correction_logprob_before",
            f64::from(lowest(&known.before)),
        ),
        ("correction_logprob_after", f64::from(lowest(&known.now))),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::distilled::imitated;
    use super::*;

    #[test]
    fn every_update_sees_the_turns_and_other_answers_and_anchors() {
        let parts = [
            (RowPart::Turn, 2),
            (RowPart::Anchor, 5),
            (RowPart::Answer, 9),
        ];
        let parts = parts.iter().flat_map(|(part, n)| vec![*part; *n]);
        let rows = parts.map(|part| Row {
            row: imitated(&[1], &[2]),
            part,
            wish_tokens: Vec::new(),
        });
        let mut batch = Batch {
            rows: rows.collect(),
            wish: None,
            updates: 0,
            anchors: 3,
        };
        let [first, second] = [batch.next(), batch.next()];
        assert_eq!(first, [0, 1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14]);
        // After the last one the first again.
        assert_eq!(second, [0, 1, 5, 6, 2, 15, 7, 8, 9, 10, 11, 12, 13]);
    }
}
