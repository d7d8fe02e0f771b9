//! Rehearsal: what the model answers when it is told, it learns to answer without being told.

use hone_domain::Token;
use hone_nn::{Control, Learner, PerToken, SoftTargets, TrainRow, Under};

use super::answers::{Answer, Answering, answers};
use super::context::imitated;
use super::learners::adapter_of;
use super::lessons::{hint_words, hinted_prompt};
use super::reference::opening;
use super::{NnTrainer, TrainError, TrainJob, mean};
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
    /// Answers left out: without the hints the model finds one of their tokens all but impossible,
    /// or they do not do as a hint says.
    pub(super) doubtful: usize,
    /// Turns that were trained before and lent their prompt or their hint.
    pub(super) replayed: usize,
}

/// An opening of a conversation, to be answered by the model that has read the hints.
pub(super) struct Asked<'a> {
    pub(super) plain: Vec<Token>,
    pub(super) of: Source<'a>,
}

/// What was answered to hinted prompts.
#[derive(Default)]
pub(super) struct Answered<'a> {
    asked: Vec<Asked<'a>>,
    /// Each answer behind the prompt without hints, and behind the one that it was given to.
    plain: Vec<TrainRow>,
    pub(super) hinted: Vec<TrainRow>,
}

impl<'a> Answered<'a> {
    /// Adds an answer.
    pub(super) fn push(&mut self, asked: Asked<'a>, hinted: &[Token], said: &[Token]) {
        self.plain.push(imitated(&asked.plain, said));
        self.hinted.push(imitated(hinted, said));
        self.asked.push(asked);
    }

    /// The sound ones, and what was asked by the others.
    fn part(self, sound: &[bool]) -> (Self, Vec<Asked<'a>>) {
        let mut found = Self {
            plain: only(self.plain, sound),
            hinted: only(self.hinted, sound),
            asked: Vec::new(),
        };
        let mut others = Vec::new();
        for (asked, sound) in self.asked.into_iter().zip(sound) {
            let to = if *sound {
                &mut found.asked
            } else {
                &mut others
            };
            to.push(asked);
        }
        (found, others)
    }
}

/// Those that are sound.
fn only<T>(all: Vec<T>, sound: &[bool]) -> Vec<T> {
    let all = all.into_iter().zip(sound);
    all.filter_map(|(one, sound)| sound.then_some(one))
        .collect()
}

/// What was found out about answers.
pub(super) struct Sound {
    /// Whether each is sound.
    pub(super) each: Vec<bool>,
    /// Log-probs of the answers under the teacher who was told what they were given to, where a check
    /// needed them.
    pub(super) heard: Option<PerToken<f32>>,
}

/// Whose opening it is.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Own(&'a Lesson),
    Everyday(&'a str),
}

impl NnTrainer {
    /// The teacher, who reads all of the job's hints, answers openings of conversations anew: the
    /// scope's own and everyday ones. Hints of turns that were trained before are told again, so that
    /// what was learned by them stays; once the student answers as the teacher does, that is one step
    /// whose gradient is small, and an anchor to the batch's scores.
    ///
    /// A hint may change the manner of an answer. Where it confuses the teacher it changes the matter
    /// as well, and there the same model without the hint is surprised by a token: such answers are
    /// left out (`hint_surprise_max`). So are answers that do not do as told: by the same model each
    /// hint by itself has to make them likelier (`hint_gain_min`). Several hints confuse more than
    /// one, so what is left is asked again with them in reverse order, and with one at a time.
    ///
    /// Where there is no hint but a correction, everyday prompts are answered as the served version
    /// does: a correction in words that the model never says would cost it what it knew.
    pub(super) fn rehearse(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        corrected: bool,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Rehearsed, TrainError> {
        let hints = hints(job);
        let mut rehearsed = Rehearsed::default();
        if hints.is_empty() {
            if corrected {
                let open = self.everyday(job, self.learner.hint_answers.div_ceil(2));
                self.answer(learner, open, &hints, ("", true), &mut rehearsed, control)?;
            }
            return Ok(rehearsed);
        }
        rehearsed.hints = hints.len();
        rehearsed.replayed = job.replayed.iter().filter(|l| l.hint.is_some()).count();
        let mut open = self.asked(job);
        for (told, all) in tellings(&hints) {
            let words = hint_words(&self.learner.hint_template, &told);
            let told = (words.as_str(), all);
            open = self.answer(learner, open, &hints, told, &mut rehearsed, control)?;
            if open.is_empty() {
                break;
            }
        }
        rehearsed.doubtful = open.len();
        Ok(rehearsed)
    }

    /// Answers what is open with these words of hints; returns what has no sound answer yet.
    fn answer<'a>(
        &self,
        learner: &mut Learner,
        open: Vec<Asked<'a>>,
        hints: &[&str],
        (words, all): (&str, bool),
        rehearsed: &mut Rehearsed,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<Asked<'a>>, TrainError> {
        let hinted: Vec<Option<Vec<Token>>> = open.iter().map(|a| self.hint(a, words)).collect();
        let prompts: Vec<Vec<Token>> = hinted.iter().flatten().cloned().collect();
        let how = Answering {
            parts: &self.parts,
            memo: None,
            tokens_max: self.gate.probe_tokens_max,
            temperature: self.learner.hint_temperature,
        };
        let under = self.teacher(hints);
        let adapter = (under == Under::Current).then(|| adapter_of(learner));
        let mut pause = || control() == Control::Stop;
        let said = answers(how, &prompts, adapter.as_ref(), &mut pause)?;
        let mut said = said.into_iter();
        let mut rest = Vec::new();
        let mut answered = Answered::default();
        for (asked, hinted) in open.into_iter().zip(hinted) {
            let answer = hinted.and_then(|hinted| Some((ended(&said.next()?)?, hinted)));
            match answer {
                Some((tokens, hinted)) => answered.push(asked, &hinted, &tokens),
                None => rest.push(asked),
            }
        }
        let sound = self.sound(learner, &answered, words, hints, control)?;
        let (found, unsound) = answered.part(&sound.each);
        rest.extend(unsound);
        let teacher = match sound.heard {
            Some(heard) => only(heard, &sound.each),
            None => self.thinks(learner, &found.hinted, under, control)?,
        };
        rehearsed
            .teacher
            .extend(teacher.iter().map(|row| mean(row)));
        let rows = match all {
            true => self.softened(learner, found, under, control)?,
            // Who was told one hint says nothing of how the others are done.
            false => found.plain,
        };
        rehearsed.rows.extend(rows);
        Ok(rest)
    }

    /// The answers without the hints, each token with what the teacher gave its likeliest ones there:
    /// the drawn token alone would teach what was chance in it. Taken greedily, nothing was.
    pub(super) fn softened(
        &self,
        learner: &mut Learner,
        found: Answered,
        under: Under,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<TrainRow>, TrainError> {
        let Answered {
            mut plain,
            mut hinted,
            ..
        } = found;
        let temperature = self.learner.hint_temperature;
        let k = self.learner.hint_soft_top_k;
        if k == 0 || temperature <= 0.0 || hinted.is_empty() {
            return Ok(plain);
        }
        for loss in hinted.iter_mut().flat_map(|row| &mut row.loss) {
            loss.temperature = temperature;
        }
        let tops = learner
            .top_logprobs(&hinted, under, k, control)
            .map_err(super::stopped)?;
        for (row, tops) in plain.iter_mut().zip(tops) {
            for (loss, top) in row.loss.iter_mut().zip(tops) {
                let (ids, probs) = top
                    .into_iter()
                    .map(|(id, p)| (id, p.exp().min(1.0)))
                    .unzip();
                loss.soft = Some(SoftTargets { ids, probs });
            }
        }
        Ok(plain)
    }

    /// Which of these answers keep to the matter and do as every hint says. A prompt that a hint does
    /// not fit behind is not checked by it.
    pub(super) fn sound(
        &self,
        learner: &mut Learner,
        answered: &Answered,
        told: &str,
        hints: &[&str],
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Sound, TrainError> {
        let under = self.teacher(hints);
        let unhinted = self.thinks(learner, &answered.plain, under, control)?;
        let least = -self.learner.hint_surprise_max;
        let in_character = |row: &Vec<f32>| row.iter().all(|logprob| *logprob >= least);
        let mut sound = Sound {
            each: unhinted.iter().map(in_character).collect(),
            heard: None,
        };
        for hint in hints {
            let words = hint_words(&self.learner.hint_template, hint);
            let (at, heard) = if words == told {
                // The answers were given to these very words.
                let heard = self.thinks(learner, &answered.hinted, under, control)?;
                sound.heard = Some(heard.clone());
                ((0..heard.len()).collect(), heard)
            } else {
                let (at, rows) = self.behind(answered, &words);
                (at, self.thinks(learner, &rows, under, control)?)
            };
            for (at, heard) in at.into_iter().zip(&heard) {
                let gain = heard.iter().sum::<f32>() - unhinted[at].iter().sum::<f32>();
                sound.each[at] &= gain >= self.learner.hint_gain_min;
            }
        }
        Ok(sound)
    }

    /// The answers behind their prompts with these words of a hint, and which those are that have
    /// room for them.
    fn behind(&self, answered: &Answered, words: &str) -> (Vec<usize>, Vec<TrainRow>) {
        let all = answered.asked.iter().zip(&answered.plain).enumerate();
        let row = |(at, (asked, plain)): (usize, (&Asked, &TrainRow))| {
            let said = &plain.tokens[asked.plain.len()..];
            Some((at, imitated(&self.hint(asked, words)?, said)))
        };
        all.filter_map(row).unzip()
    }

    /// What is asked: the scope's own openings, at most half of it where there are everyday prompts
    /// too, and of these others in each batch. Behind a complaint the prompt itself says what is
    /// wanted, so later turns only lend their hint.
    fn asked<'a>(&'a self, job: &'a TrainJob) -> Vec<Asked<'a>> {
        let most = self.learner.hint_answers;
        let everyday = &*self.parts.everyday;
        let mine = if everyday.is_empty() {
            most
        } else {
            most.div_ceil(2)
        };
        let lessons = job.lessons.iter().chain(&job.replayed);
        let own: Vec<&Lesson> = lessons.filter(|l| l.turn.parent.is_none()).collect();
        let count = mine.min(own.len() * ANSWERS_PER_PROMPT);
        let own = own.into_iter().cycle().take(count).map(|lesson| Asked {
            plain: lesson.turn.prompt_tokens.clone(),
            of: Source::Own(lesson),
        });
        own.chain(self.everyday(job, most - count)).collect()
    }

    /// Everyday prompts, at most so many and of these others in each batch.
    fn everyday(&self, job: &TrainJob, most: usize) -> Vec<Asked<'_>> {
        let all = &*self.parts.everyday;
        let start = job.batch.0.as_u128() % all.len().max(1) as u128;
        let these = all.iter().cycle().skip(start as usize);
        let asked = these.take(most.min(all.len())).filter_map(|asked| {
            Some(Asked {
                plain: self.opening(asked)?,
                of: Source::Everyday(asked),
            })
        });
        asked.collect()
    }

    /// Who answers: with no hints it is the version that is trained from.
    fn teacher(&self, hints: &[&str]) -> Under {
        match hints {
            [] => Under::Current,
            _ => self.under(),
        }
    }

    /// The prompt with these words of hints behind it; none where that cannot be put, or leaves no
    /// room for an answer.
    pub(super) fn hint(&self, asked: &Asked, words: &str) -> Option<Vec<Token>> {
        let hinted = match asked.of {
            Source::Own(lesson) => hinted_prompt(&*self.parts.wording, &lesson.turn, words)?,
            Source::Everyday(text) => self.opening(&format!("{text}{words}"))?,
        };
        self.fits(hinted.len() + self.gate.probe_tokens_max)
            .then_some(hinted)
    }

    /// The prompt of a conversation that begins with `asked`.
    pub(super) fn opening(&self, asked: &str) -> Option<Vec<Token>> {
        opening(&*self.parts.wording, asked)
    }

    /// Log-probs of each row's loss tokens under the model that teaches.
    pub(super) fn thinks(
        &self,
        learner: &mut Learner,
        rows: &[TrainRow],
        under: Under,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<PerToken<f32>, TrainError> {
        self.logprobs_under(learner, rows, under, control)
    }
}

/// The newest different hints of a job, older ones first. Its batch is newer than what is replayed,
/// and that stands with the newest first. A wish in the words of the rules' table stands for its hint.
fn hints<'a>(job: &'a TrainJob) -> Vec<&'a str> {
    let lessons = job.lessons.iter().rev().chain(&job.replayed);
    let mut hints: Vec<&str> = Vec::new();
    let words = |lesson: &'a Lesson| lesson.wish.as_deref().or(lesson.hint.as_deref());
    for hint in lessons.filter_map(words) {
        if !hints.contains(&hint.trim()) && hints.len() < HINTS_MAX {
            hints.push(hint.trim());
        }
    }
    hints.reverse();
    hints
}

/// All hints together, in either order, then one at a time, the newest first; with each whether it
/// says all.
pub(super) fn tellings(hints: &[&str]) -> Vec<(String, bool)> {
    let newest_first: Vec<&str> = hints.iter().rev().copied().collect();
    let mut tellings = vec![(hints.join(", "), true)];
    if hints.len() > 1 {
        tellings.push((newest_first.join(", "), true));
        let alone = newest_first
            .into_iter()
            .map(|hint| (hint.to_owned(), false));
        tellings.extend(alone);
    }
    tellings
}

/// An answer with the token that ended it; none where it was cut off or is empty.
fn ended(answer: &Answer) -> Option<Vec<Token>> {
    let end = answer.end.filter(|_| !answer.tokens.is_empty())?;
    Some([answer.tokens.as_slice(), &[end]].concat())
}
