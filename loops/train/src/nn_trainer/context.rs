//! Context distillation from a person's own words: what the model answers when it reads them, it
//! learns to answer without them (Snell, Klein and Zhong 2022, arXiv 2209.15189).
//!
//! 1. The words are put behind a question, as they were said and as an instruction that the model
//!    itself makes of them. The base model answers the person's own questions and generic ones, with
//!    guidance towards the words.
//! 2. An answer is kept where it does what the words ask (they make it likelier: `gain`), answers its
//!    question (it is likelier behind it than behind another one: `relevance`), and does not repeat
//!    the words. Of several to one question at most three are kept.
//! 3. Tokens that the words made clearly likelier are imitated; at all others the student follows the
//!    distribution of the model that read the words, so that nothing else is learned. The base
//!    model's own answers to generic prompts anchor the student to the base model.
//!
//! Several wishes go together. An older one whose answers a newer one makes unlikely has been
//! replaced by it.

use hone_domain::{Message, Role, Token, words_of};
use hone_nn::{Control, Learner, TrainRow, Under};

use super::answers::{Answer, Answering, answers};
use super::base_answers::{Beginning, beginnings};
use super::choose::{Candidate, best, fluent, parted, wish_tokens};
use super::distilled::ANSWERS_MIN;
pub(super) use super::distilled::{Distilled, checked, imitated};
use super::guided::{Guidance, GuidedPrompt, guided_answers};
use super::lessons::hinted_prompt;
use super::reference::{is_for_gate, opening};
use super::telling::{Asks, Telling, Way, all_ways, best_ways, forms};
use super::wishes::{behind, copies, echoes, framed, last_question, wishes};
use super::{NnTrainer, TrainError, TrainJob, mean};
use crate::probe::is_looping;
use crate::progress::Phase;
use crate::trainer::Lesson;

/// Longest instruction that is made of a person's words, in tokens.
const REWRITE_TOKENS: usize = 32;
/// Nats per token below which an older wish opposes the answers to a newer one.
const CONFLICT_NATS: f32 = -0.02;
/// Nats per token from which on the answers to an older wish are as the newest words ask.
const AGREED_NATS: f32 = 0.02;

/// A question to be answered.
#[derive(Clone)]
enum Asked<'a> {
    Own(&'a Lesson),
    Generic(&'a str),
}

/// What was said to some questions.
struct Sampled {
    /// Answers that do not loop or repeat the words.
    usable: Vec<Candidate>,
    /// How often each way was asked.
    counts: Asks,
    /// The beginnings of answers without guidance.
    beginnings: Vec<Beginning>,
}

/// Every form of every wish.
fn tellings(wishes: &[String], rewrites: &[Option<String>]) -> Vec<Telling> {
    let pairs = wishes.iter().zip(rewrites);
    pairs
        .flat_map(|(wish, rewrite)| forms(wish, rewrite.as_deref()))
        .collect()
}

/// `most` different ones of `count` places, spread over all of them, from a place that depends on `start`.
fn spread(count: usize, start: usize, most: usize) -> impl Iterator<Item = usize> {
    // A prime step comes to every place before it repeats one, unless it divides the number of places.
    let step = if count.is_multiple_of(7) { 11 } else { 7 };
    let step = if count.is_multiple_of(step) { 1 } else { step };
    let begin = start % count.max(1);
    (0..most.min(count)).map(move |number| (begin + number * step) % count)
}

impl NnTrainer {
    /// Answers to imitate for the job's wishes, and anchors. Without a wish there are anchors alone.
    pub(super) fn distill(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Distilled, TrainError> {
        let mut found = Distilled {
            wishes: wishes(job),
            ..Distilled::default()
        };
        if !found.wishes.is_empty() {
            self.follow_wishes(learner, job, &mut found, control)?;
        }
        self.anchor(learner, job, &mut found, control)?;
        Ok(found)
    }

    fn follow_wishes(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        found: &mut Distilled,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), TrainError> {
        let rewrites = self.rewrites(&found.wishes, control)?;
        let asked = self.questions(job);
        // The newest wish is told with half of the questions, in every way. What these answers come to says
        // which older wishes it replaced, and which ways the other half is told.
        let half = asked.len().div_ceil(2);
        let first = self.first_answers(learner, job, &asked[..half], &rewrites, found, control)?;
        let Some((first, sampled)) = first else {
            return Ok(());
        };
        let Sampled {
            usable: mut all,
            counts,
            ..
        } = sampled;
        self.drop_replaced(learner, &asked, &all, found, control)?;
        self.gains(learner, &asked, &mut all, found, control)?;
        let still = |wish: &String| found.wishes.contains(wish);
        let kept: Vec<Option<String>> = self.still(&rewrites, job, still);
        let told = tellings(&found.wishes, &kept);
        let least = self.learner.context.relevance_min;
        let ways = best_ways(&first, &counts, &all, least, &told);
        job.progress.at(0.5);
        let part = (&asked[half..], told.as_slice(), ways.as_slice());
        let mut more = self.sample(learner, job, part, found, control)?.usable;
        for candidate in &mut more {
            candidate.question += half;
        }
        self.gains(learner, &asked, &mut more, found, control)?;
        all.extend(more);
        job.progress.at(0.8);
        let lengths = all.iter().map(|candidate| candidate.said.len());
        found.told_tokens = lengths.sum::<usize>() as f32 / all.len().max(1) as f32;
        let ends = all.iter().filter(|candidate| self.ends(candidate)).count();
        found.told_ended = (!all.is_empty()).then(|| ends as f32 / all.len() as f32);
        let parted = parted(fluent(all), least);
        found.unseen = parted.unseen;
        found.checked = parted.checked.iter().map(checked).collect();
        let mut best = best(parted.others, least);
        // From one or two answers the model would learn these and not what they have in common.
        if best.len() < ANSWERS_MIN.min(asked.len() / 2) {
            best.clear();
        }
        self.take(learner, best, found, control)
    }

    /// Answers to the newest wish, and how it was told. Where the model does not know how to follow it, an older wish
    /// takes its place to which the answers are as the newer words ask: these say the same in a way that it
    /// understands. None where there is no such wish.
    fn first_answers(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        asked: &[Asked],
        rewrites: &[Option<String>],
        found: &mut Distilled,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Option<(Vec<Telling>, Sampled)>, TrainError> {
        let wishes = found.wishes.clone();
        for (at, wish) in wishes.iter().enumerate() {
            let first = tellings(std::slice::from_ref(wish), &rewrites[at..=at]);
            let ways = all_ways(&first);
            let sampled = self.sample(learner, job, (asked, &first, &ways), found, control)?;
            let Some(lost) = self.at_a_loss(learner, &sampled.beginnings, control)? else {
                let newest = Telling::behind(framed(&wishes[0]));
                let usable = &sampled.usable;
                if at > 0 && self.mean_gain(learner, asked, usable, &newest, control)? < AGREED_NATS
                {
                    break;
                }
                found.at_a_loss = None;
                found.wishes = wishes[at..].to_vec();
                return Ok(Some((first, sampled)));
            };
            found.at_a_loss = found.at_a_loss.or(Some(lost));
        }
        Ok(None)
    }

    /// By how many nats per token these words make the answers likelier, on average.
    fn mean_gain(
        &self,
        learner: &mut Learner,
        asked: &[Asked],
        all: &[Candidate],
        words: &Telling,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<f32, TrainError> {
        let gains = self.gain_by(learner, asked, all, words, control)?;
        let gains: Vec<f32> = gains.iter().map(|(gain, _)| *gain).collect();
        Ok(mean(&gains))
    }

    /// Whether an answer comes to its end where the gate's probes may.
    fn ends(&self, candidate: &Candidate) -> bool {
        let last = candidate.said.last();
        candidate.said.len() <= self.gate.probe_tokens_max
            && last.is_some_and(|last| self.parts.end_tokens.contains(last))
    }

    /// The rewrites of the wishes that are still followed.
    fn still(
        &self,
        rewrites: &[Option<String>],
        job: &TrainJob,
        is_followed: impl Fn(&String) -> bool,
    ) -> Vec<Option<String>> {
        let wishes = wishes(job);
        let pairs = wishes.iter().zip(rewrites);
        let kept = pairs.filter(|(wish, _)| is_followed(wish));
        kept.map(|(_, rewrite)| rewrite.clone()).collect()
    }

    /// The instruction that the model makes of each wish; none where it says nothing.
    fn rewrites(
        &self,
        wishes: &[String],
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<Option<String>>, TrainError> {
        let rewrite = &self.parts.reference.rewrite;
        let Some((task, examples)) = rewrite.split_first() else {
            return Ok(vec![None; wishes.len()]);
        };
        let wording = &*self.parts.wording;
        let prompt = |wish: &String| {
            let mut messages = vec![Message::text(Role::System, task)];
            for pair in examples.chunks(2) {
                let roles = [Role::User, Role::Assistant];
                messages.extend(
                    pair.iter()
                        .zip(roles)
                        .map(|(t, role)| Message::text(role, t)),
                );
            }
            messages.push(Message::text(
                Role::User,
                format!("The user said: \"{wish}\""),
            ));
            let text = wording.render(&messages).or_else(|_| {
                // A template without a system message.
                messages.remove(0);
                wording.render(&messages)
            });
            Some(wording.encode(&text.ok()?))
        };
        let prompts: Vec<Option<Vec<Token>>> = wishes.iter().map(prompt).collect();
        let how = Answering {
            parts: &self.parts,
            memo: Some(&self.memo),
            tokens_max: REWRITE_TOKENS,
            temperature: 0.0,
        };
        let fitting: Vec<Vec<Token>> = prompts
            .iter()
            .flatten()
            .filter(|prompt| how.fits(prompt))
            .cloned()
            .collect();
        let mut pause = || control() == Control::Stop;
        let mut said = answers(how, &fitting, None, &mut pause)?.into_iter();
        let read = |prompt: &Option<Vec<Token>>| {
            let answer = prompt.as_ref().filter(|p| how.fits(p)).and(said.next())?;
            let text = wording.decode(&answer.tokens);
            let line = text.lines().next().unwrap_or_default().trim().to_owned();
            (answer.end.is_some() && !line.is_empty()).then_some(line)
        };
        Ok(prompts.iter().map(read).collect())
    }

    /// What is asked: the scope's own openings, a third at most where there are generic prompts, and
    /// of these others in each batch.
    fn questions<'a>(&'a self, job: &'a TrainJob) -> Vec<Asked<'a>> {
        let most = self.learner.context.prompts;
        let generic: Vec<&String> = self
            .parts
            .everyday
            .iter()
            .enumerate()
            .filter(|(number, _)| !is_for_gate(*number))
            .map(|(_, text)| text)
            .collect();
        let lessons = job.lessons.iter().rev().chain(&job.replayed);
        let mut own: Vec<&Lesson> = Vec::new();
        for lesson in lessons.filter(|lesson| lesson.turn.parent.is_none()) {
            if !own
                .iter()
                .any(|other| other.turn.prompt_tokens == lesson.turn.prompt_tokens)
            {
                own.push(lesson);
            }
        }
        let mine = match generic.is_empty() {
            true => own.len().min(most),
            false => own.len().min(most.div_ceil(3)),
        };
        own.truncate(mine);
        let start = job.batch.0.as_u128() as usize;
        let others =
            spread(generic.len(), start, most - mine).map(|at| Asked::Generic(generic[at]));
        own.into_iter().map(Asked::Own).chain(others).collect()
    }

    fn plain_prompt(&self, asked: &Asked) -> Option<Vec<Token>> {
        match asked {
            Asked::Own(lesson) => Some(lesson.turn.prompt_tokens.clone()),
            Asked::Generic(text) => opening(&*self.parts.wording, text),
        }
    }

    /// The prompt with the wish; in a person's own it stands behind the question.
    fn told_prompt(&self, asked: &Asked, telling: &Telling) -> Option<Vec<Token>> {
        match asked {
            Asked::Own(lesson) => {
                let words = behind("", &telling.words);
                hinted_prompt(&*self.parts.wording, &lesson.turn, &words)
            }
            Asked::Generic(text) => opening(&*self.parts.wording, &telling.with(text)),
        }
    }

    /// Longest answer: half as long again as the person's own ones are, within the limits.
    fn tokens_max(&self, job: &TrainJob) -> usize {
        let lessons = job.lessons.iter().chain(&job.replayed);
        let longest = lessons.map(|lesson| lesson.turn.completion.len()).max();
        let most = self.learner.context.tokens_max;
        let own = longest.unwrap_or(most);
        (own + own / 2).clamp(most.min(64), most)
    }

    /// Answers each question several times, in one way after the other.
    fn sample(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        (asked, tellings, ways): (&[Asked], &[Telling], &[Way]),
        found: &mut Distilled,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Sampled, TrainError> {
        let tokens_max = self.tokens_max(job);
        let (prompts, questions) = self.told(asked, tellings, ways, tokens_max);
        let how = Guidance {
            parts: &self.parts,
            progress: &job.progress,
            from_to: match found.sampled {
                0 => (0.0, 0.5),
                _ => (0.5, 1.0),
            },
            tokens_max,
            temperature: self.learner.hint_temperature,
            // Another one for each half.
            seed: (job.batch.0.as_u128() as u64).wrapping_add(found.sampled as u64),
        };
        let mut pause = || control() == Control::Stop;
        job.progress.enter(Phase::Answers);
        let said = guided_answers(how, &prompts, &mut pause)?;
        job.progress.enter(Phase::Scores);
        found.sampled += said.len();
        let count = |way: &Way| questions.iter().filter(|(_, of)| of == way).count();
        let counts = ways.iter().map(|way| (*way, count(way))).collect();
        let beginnings = beginnings(&prompts, &questions, &said);
        let told = prompts.iter().zip(questions.iter().copied());
        let mut left = self.usable_answers(told.zip(said), asked, tellings, found);
        self.token_gains(learner, &mut left, control)?;
        Ok(Sampled {
            usable: left,
            counts,
            beginnings,
        })
    }

    /// Each question in one way after the other, and with each prompt which question and which way it is.
    /// What does not fit is left out.
    fn told(
        &self,
        asked: &[Asked],
        tellings: &[Telling],
        ways: &[Way],
        tokens_max: usize,
    ) -> (Vec<GuidedPrompt>, Vec<(usize, Way)>) {
        let mut prompts = Vec::new();
        let mut questions = Vec::new();
        let each = self.learner.context.answers_per_prompt;
        for (question, one) in asked.iter().enumerate() {
            for try_number in 0..each {
                let way = ways[(question * each + try_number) % ways.len()];
                let told = self.told_prompt(one, &tellings[way.telling]);
                let Some((plain, told)) = self.plain_prompt(one).zip(told) else {
                    continue;
                };
                let strength = match way.is_guided {
                    true => self.learner.context.guidance,
                    false => 0.0,
                };
                if self.fits(told.len() + tokens_max) {
                    prompts.push(GuidedPrompt {
                        told,
                        plain,
                        strength,
                    });
                    questions.push((question, way));
                }
            }
        }
        (prompts, questions)
    }

    /// The answers that do not loop and do not repeat the words or the question. One that was cut off
    /// is learned as far as it goes, without an end: with whole ones alone every wish would teach brevity.
    fn usable_answers<'a>(
        &self,
        said: impl Iterator<Item = ((&'a GuidedPrompt, (usize, Way)), Answer)>,
        asked: &[Asked],
        tellings: &[Telling],
        found: &mut Distilled,
    ) -> Vec<Candidate> {
        let wishes: Vec<Vec<String>> = found
            .wishes
            .iter()
            .chain(tellings.iter().map(|telling| &telling.words))
            .map(|text| words_of(text))
            .collect();
        let mut left = Vec::new();
        for ((prompt, (question, way)), answer) in said {
            if answer.tokens.is_empty() {
                continue;
            }
            let text = words_of(&self.parts.wording.decode(&answer.tokens));
            let own = match &asked[question] {
                Asked::Own(lesson) => last_question(lesson),
                Asked::Generic(text) => (*text).to_owned(),
            };
            let own = words_of(&own);
            let repeats = wishes.iter().any(|wish| copies(&text, wish, &own));
            if is_looping(&answer.tokens) || repeats || echoes(&text, &own) {
                found.copied += 1;
                continue;
            }
            let said: Vec<Token> = answer.tokens.into_iter().chain(answer.end).collect();
            left.push(Candidate {
                question,
                telling: way.telling,
                is_guided: way.is_guided,
                told: imitated(&prompt.told, &said),
                plain: imitated(&prompt.plain, &said),
                said,
                gain: 0.0,
                relevance: 0.0,
                fluency: 0.0,
                token_gains: Vec::new(),
            });
        }
        left
    }

    /// How much likelier the words made each token.
    fn token_gains(
        &self,
        learner: &mut Learner,
        all: &mut [Candidate],
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), TrainError> {
        let rows = |of: fn(&Candidate) -> &TrainRow| -> Vec<TrainRow> {
            all.iter().map(|candidate| of(candidate).clone()).collect()
        };
        let (told, plain) = (rows(|c| &c.told), rows(|c| &c.plain));
        let told = self.logprobs_under(learner, &told, Under::Reference, control)?;
        let plain = self.logprobs_under(learner, &plain, Under::Reference, control)?;
        for ((candidate, told), plain) in all.iter_mut().zip(told).zip(plain) {
            candidate.token_gains = told.iter().zip(&plain).map(|(t, p)| t - p).collect();
            candidate.fluency = mean(&told);
        }
        Ok(())
    }

    /// What each answer gains by these words behind its question, and its mean log-prob with them, both
    /// per token; nothing is gained where they do not fit.
    fn gain_by(
        &self,
        learner: &mut Learner,
        asked: &[Asked],
        all: &[Candidate],
        words: &Telling,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<(f32, f32)>, TrainError> {
        let told = |candidate: &Candidate| {
            let prompt = self.told_prompt(&asked[candidate.question], words);
            let row = prompt.map(|prompt| imitated(&prompt, &candidate.said));
            row.unwrap_or_else(|| candidate.plain.clone())
        };
        let told: Vec<TrainRow> = all.iter().map(told).collect();
        let plain: Vec<TrainRow> = all.iter().map(|c| c.plain.clone()).collect();
        let told = self.logprobs_under(learner, &told, Under::Reference, control)?;
        let plain = self.logprobs_under(learner, &plain, Under::Reference, control)?;
        let pairs = told.iter().zip(&plain);
        Ok(pairs
            .map(|(told, plain)| (mean(told) - mean(plain), mean(told)))
            .collect())
    }

    /// Gives up the older wishes that make the answers to the newest one less likely.
    fn drop_replaced(
        &self,
        learner: &mut Learner,
        asked: &[Asked],
        all: &[Candidate],
        found: &mut Distilled,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), TrainError> {
        if all.is_empty() {
            return Ok(());
        }
        let mut wishes = std::mem::take(&mut found.wishes).into_iter();
        found.wishes.extend(wishes.next());
        for older in wishes {
            let words = Telling::behind(framed(&older));
            match self.mean_gain(learner, asked, all, &words, control)? < CONFLICT_NATS {
                true => found.replaced.push(older),
                false => found.wishes.push(older),
            }
        }
        Ok(())
    }

    /// Gain of each answer by the wishes as they were said, their mean, and its relevance.
    fn gains(
        &self,
        learner: &mut Learner,
        asked: &[Asked],
        all: &mut [Candidate],
        found: &Distilled,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), TrainError> {
        for wish in &found.wishes {
            let found_by =
                self.gain_by(learner, asked, all, &Telling::behind(framed(wish)), control)?;
            for (candidate, (gain, told)) in all.iter_mut().zip(found_by) {
                candidate.gain += gain / found.wishes.len() as f32;
                candidate.fluency = candidate.fluency.min(told);
            }
        }
        let elsewhere = |candidate: &Candidate| {
            let other = (candidate.question + 1 + asked.len() / 2) % asked.len();
            let prompt = self.plain_prompt(&asked[other]);
            imitated(&prompt.unwrap_or_default(), &candidate.said)
        };
        let rows: Vec<TrainRow> = all.iter().map(elsewhere).collect();
        let plain: Vec<TrainRow> = all.iter().map(|c| c.plain.clone()).collect();
        let other = self.logprobs_under(learner, &rows, Under::Reference, control)?;
        let own = self.logprobs_under(learner, &plain, Under::Reference, control)?;
        for ((candidate, own), other) in all.iter_mut().zip(own).zip(other) {
            let sum = |row: &Vec<f32>| row.iter().sum::<f32>();
            candidate.relevance = (sum(&own) - sum(&other)) / own.len().max(1) as f32;
        }
        Ok(())
    }

    /// Makes rows of the best answers.
    fn take(
        &self,
        learner: &mut Learner,
        best: Vec<Candidate>,
        found: &mut Distilled,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), TrainError> {
        found.kept = best.len();
        let all = |of: fn(&Candidate) -> f32| best.iter().map(of).collect::<Vec<f32>>();
        found.gain = mean(&all(|candidate| candidate.gain));
        found.relevance = mean(&all(|candidate| candidate.relevance));
        let told: Vec<TrainRow> = best.iter().map(|c| c.told.clone()).collect();
        let soft = self.soft(learner, told, control)?;
        for (candidate, soft) in best.into_iter().zip(soft) {
            let mut row = candidate.plain;
            let tokens = wish_tokens(&candidate.token_gains);
            for (index, (loss, soft)) in row.loss.iter_mut().zip(soft).enumerate() {
                if tokens.contains(&index) {
                    loss.advantage = self.learner.context.wish_weight;
                } else {
                    loss.soft = Some(soft);
                }
            }
            found.rows.push(row);
            found.wish_tokens.push(tokens);
        }
        Ok(())
    }
}
