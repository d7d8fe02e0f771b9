//! Hints and corrections as tokens: rows to imitate, and what the served model would have said had
//! it known the hint.

use hone_domain::{SamplingMask, TransitionId};
use hone_nn::{Control, Learner, LossKind, PerToken, StepError, TokenLoss, TopK, TrainRow, Under};

use super::distilled::Distilled;
pub(super) use super::hints::{hint_words, hinted_prompt};
use super::rehearsal::Rehearsed;
use super::{NnTrainer, TrainError, TrainJob};
use crate::credit::follow;
use crate::objective::{DistillForm, Teacher};
use crate::retold::Retold;
use crate::trainer::Lesson;

/// What a batch's lessons came to.
#[derive(Debug, Default)]
pub(super) struct Taught {
    /// One row per correction.
    pub(super) corrections: Vec<TrainRow>,
    /// Hints whose teacher was followed, replayed ones among them.
    pub(super) hints: usize,
    /// Answers that the hinted teacher gave, to be given without the hint.
    pub(super) rehearsed: Rehearsed,
    /// Answers that do what a person's words ask, to be given without the words.
    pub(super) distilled: Distilled,
    /// Second tries that are learned as first ones.
    pub(super) retold: usize,
    /// Lessons of turns that were trained before.
    pub(super) replayed: usize,
    /// Hints and corrections that could not be put into tokens, or do not fit a row.
    pub(super) unusable: usize,
}

/// A completion with its teacher's prompt.
struct Hinted {
    row: usize,
    /// First of its loss tokens in the row.
    first: usize,
    teacher: TrainRow,
}

impl NnTrainer {
    /// Puts the job's lessons into `rows`, which stand as packed, one loss token per sampled one;
    /// replayed turns and corrections come behind them.
    pub(super) fn teach(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        rows: &mut Vec<TrainRow>,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Taught, TrainError> {
        let mut taught = Taught::default();
        let rehearse = self.learner.hint_form == DistillForm::Rehearsed;
        let distill = self.learner.hint_form == DistillForm::Context;
        let in_place = !rehearse && !distill;
        let (mut fresh, mut again) = (Vec::new(), Vec::new());
        for lesson in &job.lessons {
            let correction = lesson.correction.as_ref();
            let row = correction.map(|words| self.correction(lesson, words));
            taught.unusable += usize::from(matches!(row, Some(None)));
            taught.corrections.extend(row.flatten());
            let place = place(job, lesson.transition);
            let hinted = lesson.hint.as_ref().filter(|_| in_place).map(|hint| {
                let (row, first) = place?;
                let own = &rows[row].loss[first..][..lesson.turn.completion.len()];
                self.hinted(lesson, hint, row, first, own)
            });
            taught.unusable += usize::from(matches!(hinted, Some(None)));
            fresh.extend(hinted.flatten());
        }
        let mut corrected = taught.corrections.clone();
        for lesson in &job.replayed {
            let correction = lesson.correction.as_ref();
            let row = correction.and_then(|words| self.correction(lesson, words));
            let own = sampled(lesson);
            let hint = lesson.hint.as_ref().filter(|_| in_place);
            let hinted = hint.and_then(|hint| self.hinted(lesson, hint, rows.len(), 0, &own.loss));
            taught.replayed += usize::from(row.is_some() || hinted.is_some());
            corrected.extend(row);
            if let Some(hinted) = hinted {
                again.push(hinted);
                rows.push(own);
            }
        }
        taught.hints = fresh.len() + again.len();
        let followed = self.follow(learner, fresh, again, rows, control);
        followed.map_err(super::stopped)?;
        let is_corrected = !corrected.is_empty();
        rows.extend(corrected);
        let retold = job.retold.iter().filter(|r| self.fits(r.tokens.len()));
        let before = rows.len();
        rows.extend(retold.map(again_at_once));
        taught.retold = rows.len() - before;
        if rehearse {
            taught.rehearsed = self.rehearse(learner, job, is_corrected, control)?;
            taught.hints = taught.rehearsed.hints;
            taught.replayed += taught.rehearsed.replayed;
            rows.extend(taught.rehearsed.rows.iter().cloned());
        }
        if distill {
            taught.distilled = self.distill(learner, job, control)?;
            taught.hints = taught.distilled.wishes.len();
            rows.extend(taught.distilled.rows.iter().cloned());
        }
        Ok(taught)
    }

    /// Follows the teachers of the hints of turns that train now and of turns that trained before.
    fn follow(
        &self,
        learner: &mut Learner,
        mut fresh: Vec<Hinted>,
        again: Vec<Hinted>,
        rows: &mut [TrainRow],
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), StepError> {
        match self.learner.hint_form {
            DistillForm::SampledToken => {
                self.follow_sampled(learner, &fresh, rows, control)?;
                self.follow_top(learner, &again, rows, control)
            }
            DistillForm::TopK => {
                fresh.extend(again);
                self.follow_top(learner, &fresh, rows, control)
            }
            DistillForm::Rehearsed | DistillForm::Context => Ok(()),
        }
    }

    pub(super) fn under(&self) -> Under {
        match self.learner.hint_teacher {
            Teacher::Served => Under::Current,
            Teacher::Base => Under::Reference,
        }
    }

    pub(super) fn fits(&self, tokens: usize) -> bool {
        tokens <= self.row_tokens_max && tokens <= self.parts.model.config.max_positions
    }

    /// The correction behind the turn's own prompt, ended as the sampled completion was.
    /// What came from outside is imitated token by token.
    fn correction(&self, lesson: &Lesson, words: &str) -> Option<TrainRow> {
        if !lesson.turn.completion.has_logprobs() {
            let tokens = [
                &lesson.turn.prompt_tokens[..],
                lesson.turn.completion.tokens(),
            ]
            .concat();
            let start = lesson.turn.prompt_tokens.len();
            let loss = (start..tokens.len()).map(TokenLoss::imitated).collect();
            return self.fits(tokens.len()).then_some(TrainRow { tokens, loss });
        }
        let said = self.parts.wording.encode(words.trim());
        let last = lesson.turn.completion.tokens().last();
        let ends = &self.parts.end_tokens;
        let end = last.filter(|t| ends.contains(t)).or(ends.first());
        // A better answer is a whole one, so it takes the place of what a branch goes on from too.
        let (asked, _) = lesson.turn.asked_and_prefix();
        let start = asked.len();
        let mut tokens = asked.to_vec();
        tokens.extend(said.iter().chain(end));
        if said.is_empty() || !self.fits(tokens.len()) {
            return None;
        }
        let loss = (start..tokens.len()).map(TokenLoss::imitated).collect();
        Some(TrainRow { tokens, loss })
    }

    /// The completion whose loss tokens `own` are in row `row` from `first` on, behind the prompt
    /// with the hint.
    fn hinted(
        &self,
        lesson: &Lesson,
        hint: &str,
        row: usize,
        first: usize,
        own: &[TokenLoss],
    ) -> Option<Hinted> {
        let words = hint_words(&self.learner.hint_template, hint);
        let mut tokens = hinted_prompt(&*self.parts.wording, &lesson.turn, &words)?;
        let start = tokens.len();
        tokens.extend_from_slice(lesson.turn.completion.tokens());
        if !self.fits(tokens.len()) {
            return None;
        }
        let moved = |(i, loss): (usize, &TokenLoss)| TokenLoss {
            position: start + i,
            // They were chosen after another prompt.
            experts: None,
            ..loss.clone()
        };
        let loss = own.iter().enumerate().map(moved).collect();
        let teacher = TrainRow { tokens, loss };
        Some(Hinted {
            row,
            first,
            teacher,
        })
    }

    /// The sampled-token form: the teacher's pull is an advantage.
    fn follow_sampled(
        &self,
        learner: &mut Learner,
        hinted: &[Hinted],
        rows: &mut [TrainRow],
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), StepError> {
        if hinted.is_empty() {
            return Ok(());
        }
        let token = |row: &TrainRow, loss: &TokenLoss| vec![row.tokens[loss.position]];
        let own = |h: &Hinted| {
            let losses = h.teacher.loss.iter();
            losses.map(|loss| token(&h.teacher, loss)).collect()
        };
        let ids: PerToken<Vec<u32>> = hinted.iter().map(own).collect();
        let teachers: Vec<TrainRow> = hinted.iter().map(|h| h.teacher.clone()).collect();
        let teacher = learner.logprobs_of(&teachers, self.under(), &ids, control)?;
        let student = learner.logprobs(rows, control)?;
        let (weight, clip) = (self.learner.hint_coef, self.learner.hint_clip);
        for (one, teacher) in hinted.iter().zip(&teacher) {
            let own = &mut rows[one.row].loss[one.first..][..teacher.len()];
            let mut advantages: Vec<f32> = own.iter().map(|loss| loss.advantage).collect();
            let teacher: Vec<f32> = teacher.iter().flatten().copied().collect();
            let student = &student[one.row][one.first..];
            follow(&mut advantages, &teacher, student, weight, clip);
            for (loss, advantage) in own.iter_mut().zip(advantages) {
                loss.advantage = advantage;
            }
        }
        Ok(())
    }

    /// The top-k form: the teacher's distribution over the student's likeliest tokens.
    fn follow_top(
        &self,
        learner: &mut Learner,
        hinted: &[Hinted],
        rows: &mut [TrainRow],
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), StepError> {
        if hinted.is_empty() {
            return Ok(());
        }
        let k = self.learner.hint_top_k;
        let tops = learner.top_logprobs(rows, Under::Current, k, control)?;
        let ids: Vec<Vec<Vec<u32>>> = hinted
            .iter()
            .map(|h| {
                let own = &tops[h.row][h.first..][..h.teacher.loss.len()];
                let ids = |top: &Vec<(u32, f32)>| top.iter().map(|(id, _)| *id).collect();
                own.iter().map(ids).collect()
            })
            .collect();
        let teachers: Vec<TrainRow> = hinted.iter().map(|h| h.teacher.clone()).collect();
        let teacher = learner.logprobs_of(&teachers, self.under(), &ids, control)?;
        for (one, teacher) in hinted.iter().zip(teacher) {
            let own = &mut rows[one.row].loss[one.first..];
            let tops = &tops[one.row][one.first..];
            for ((loss, top), teacher) in own.iter_mut().zip(tops).zip(teacher) {
                let (ids, proximal) = top.iter().copied().unzip();
                loss.teacher = Some(TopK {
                    ids,
                    proximal,
                    teacher,
                });
            }
        }
        Ok(())
    }
}

/// A turn that was trained before, as a row that only its teacher moves.
fn sampled(lesson: &Lesson) -> TrainRow {
    let turn = &lesson.turn;
    let start = turn.prompt_tokens.len();
    let loss = |(i, kept): (usize, &Option<SamplingMask>)| TokenLoss {
        temperature: turn.sampling.temperature,
        kept: kept.clone(),
        kind: LossKind::Taught,
        ..TokenLoss::imitated(start + i)
    };
    TrainRow {
        tokens: [turn.prompt_tokens.as_slice(), turn.completion.tokens()].concat(),
        loss: turn
            .completion
            .kept()
            .iter()
            .enumerate()
            .map(loss)
            .collect(),
    }
}

/// A second try as a row: its log-likelihood, weighted.
fn again_at_once(retold: &Retold) -> TrainRow {
    let loss = |position| TokenLoss {
        advantage: retold.advantage,
        ..TokenLoss::imitated(position)
    };
    TrainRow {
        tokens: retold.tokens.clone(),
        loss: (retold.start..retold.tokens.len()).map(loss).collect(),
    }
}

/// Row and first loss token of a transition's part.
fn place(job: &TrainJob, transition: TransitionId) -> Option<(usize, usize)> {
    job.rows.iter().enumerate().find_map(|(index, row)| {
        let parts = row.sample.parts();
        let at = parts.iter().position(|p| p.transition == transition)?;
        let before = parts[..at].iter().map(|p| p.advantages.len()).sum();
        Some((index, before))
    })
}
