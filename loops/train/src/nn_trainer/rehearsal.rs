//! Rehearsal: what the model answers when it is told, it learns to answer without being told.

use hone_domain::{Message, Role, Token};
use hone_nn::{Control, Learner, PerToken, TokenLoss, TrainRow, Under};

use super::answers::{Answer, Answering, answers};
use super::learners::adapter_of;
use super::lessons::hinted_prompt;
use super::{NnTrainer, TrainError, TrainJob};
use crate::trainer::Lesson;

/// Answers to each of the scope's own prompts, at most: more would teach that prompt's content.
const ANSWERS_PER_PROMPT: usize = 4;
/// Different hints that are told together, the newest ones.
const HINTS_MAX: usize = 4;

/// Answers to imitate.
#[derive(Debug, Default)]
pub(super) struct Rehearsed {
    /// Each answer behind the prompt without the hints.
    pub(super) rows: Vec<TrainRow>,
    /// Mean log-prob per token that the teacher gives each of them.
    pub(super) teacher: Vec<f32>,
    /// Different hints that were told.
    pub(super) hints: usize,
    /// Turns that were trained before and lent their prompt or their hint.
    pub(super) replayed: usize,
}

/// A prompt as it was asked, and with the hints.
#[derive(Clone)]
struct Told {
    plain: Vec<Token>,
    hinted: Vec<Token>,
}

impl NnTrainer {
    /// The teacher, who reads all of the job's hints, answers openings of conversations anew: the
    /// scope's own and everyday ones. Nothing where no hint is new: what was rehearsed once is not
    /// repeated for its own sake.
    pub(super) fn rehearse(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Rehearsed, TrainError> {
        if !job.lessons.iter().any(|lesson| lesson.hint.is_some()) {
            return Ok(Rehearsed::default());
        }
        let hints = hints(job);
        let words = self
            .learner
            .hint_template
            .replace("{hint}", &hints.join(", "));
        let told = self.told(job, &words);
        let how = Answering {
            parts: &self.parts,
            tokens_max: self.gate.probe_tokens_max,
            temperature: self.learner.hint_temperature,
        };
        let prompts: Vec<Vec<Token>> = told.iter().map(|told| told.hinted.clone()).collect();
        let adapter = (self.under() == Under::Current).then(|| adapter_of(learner));
        let mut pause = || control() == Control::Stop;
        let said = answers(how, &prompts, adapter.as_ref(), &mut pause)?;
        let ended = |(told, said): (&Told, Answer)| {
            let end = said.end.filter(|_| !said.tokens.is_empty())?;
            let tokens = [said.tokens.as_slice(), &[end]].concat();
            let rows = (
                imitated(&told.plain, &tokens),
                imitated(&told.hinted, &tokens),
            );
            Some(rows)
        };
        let (rows, heard): (Vec<_>, Vec<_>) = told.iter().zip(said).filter_map(ended).unzip();
        Ok(Rehearsed {
            teacher: self.thinks(learner, &heard, control)?,
            rows,
            hints: hints.len(),
            replayed: job.replayed.iter().filter(|l| l.hint.is_some()).count(),
        })
    }

    /// What is answered: the scope's own openings, at most half of it where there are everyday
    /// prompts too, and of these others in each batch.
    fn told(&self, job: &TrainJob, words: &str) -> Vec<Told> {
        let most = self.learner.hint_answers;
        let everyday = &*self.parts.everyday;
        let mine = if everyday.is_empty() {
            most
        } else {
            most.div_ceil(2)
        };
        let own = self.own(job, words);
        let count = mine.min(own.len() * ANSWERS_PER_PROMPT);
        let own = own.into_iter().cycle().take(count);
        let start = job.batch.0.as_u128() % everyday.len().max(1) as u128;
        let left = (most - count).min(everyday.len());
        let asked = everyday.iter().cycle().skip(start as usize).take(left);
        let others = asked.filter_map(|asked| {
            Some(Told {
                plain: self.opening(asked)?,
                hinted: self.opening(&format!("{asked}{words}"))?,
            })
        });
        let fits = |t: &Told| self.fits(t.hinted.len() + self.gate.probe_tokens_max);
        own.chain(others).filter(fits).collect()
    }

    /// Openings of the scope. Behind a complaint the prompt itself says what is wanted, so later
    /// turns only lend their hint.
    fn own(&self, job: &TrainJob, words: &str) -> Vec<Told> {
        let lessons = job.lessons.iter().chain(&job.replayed);
        let openings = lessons.filter(|lesson| lesson.turn.parent.is_none());
        let told = openings.filter_map(|lesson| {
            Some(Told {
                plain: lesson.turn.prompt_tokens.clone(),
                hinted: hinted_prompt(&*self.parts.wording, lesson, words)?,
            })
        });
        told.collect()
    }

    /// The prompt of a conversation that begins with `asked`.
    fn opening(&self, asked: &str) -> Option<Vec<Token>> {
        let message = Message::text(Role::User, asked);
        let text = self.parts.wording.render(&[message]).ok()?;
        Some(self.parts.wording.encode(&text))
    }

    /// Mean log-prob per token of each row's loss tokens under the teacher.
    fn thinks(
        &self,
        learner: &mut Learner,
        rows: &[TrainRow],
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<f32>, TrainError> {
        let own = |row: &TrainRow| {
            let ids = row.loss.iter().map(|l| vec![row.tokens[l.position]]);
            ids.collect::<Vec<_>>()
        };
        let ids: PerToken<Vec<u32>> = rows.iter().map(own).collect();
        let found = learner.logprobs_of((rows, self.under()), &ids, control);
        let mean =
            |row: &Vec<Vec<f32>>| row.iter().flatten().sum::<f32>() / row.len().max(1) as f32;
        Ok(found.map_err(super::stopped)?.iter().map(mean).collect())
    }
}

/// The newest different hints of a job, older ones first. Its batch is newer than what is replayed,
/// and that stands with the newest first.
fn hints(job: &TrainJob) -> Vec<&str> {
    let lessons = job.lessons.iter().rev().chain(&job.replayed);
    let mut hints: Vec<&str> = Vec::new();
    for hint in lessons.filter_map(|lesson: &Lesson| lesson.hint.as_deref()) {
        if !hints.contains(&hint.trim()) && hints.len() < HINTS_MAX {
            hints.push(hint.trim());
        }
    }
    hints.reverse();
    hints
}

fn imitated(prompt: &[Token], said: &[Token]) -> TrainRow {
    let tokens = [prompt, said].concat();
    let loss = (prompt.len()..tokens.len()).map(TokenLoss::imitated);
    TrainRow {
        loss: loss.collect(),
        tokens,
    }
}
