//! A simulated user: asks, reads, and says what a person would say. Nothing else is sent.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Result;
use hone_starter::grammar::Grammar;
use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::client::{Chat, Client};
use super::show::Phase;
use super::taste::Taste;

/// Most questions a user asks in one session.
const QUESTIONS_PER_SESSION: usize = 2;

/// Which half a user belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// Is learned from.
    Learn,
    /// Has the same taste and says the same, with `store: false`.
    Control,
}

/// A user with a taste.
pub(crate) struct User {
    /// Its arm.
    pub(crate) arm: Arm,
    /// What it likes.
    pub(crate) taste: Taste,
    name: String,
    seed: u64,
    grammar: Grammar,
}

/// What happened in a phase.
pub(crate) struct Tally(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    sessions: u64,
    gaps_ms: Vec<f64>,
    /// (seconds since the phase began, arm is learn, first answer was right and to taste).
    first_answers: Vec<(f64, bool, bool)>,
    began: Option<Instant>,
}

impl Tally {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Inside {
            began: Some(Instant::now()),
            ..Inside::default()
        }))
    }

    /// Sessions ended.
    pub(crate) fn sessions(&self) -> u64 {
        self.inside().sessions
    }

    /// All token gaps in milliseconds.
    pub(crate) fn gaps(&self) -> Vec<f64> {
        self.inside().gaps_ms.clone()
    }

    /// Mean score of first answers in `bins` equal stretches of time, for an arm. A stretch
    /// without answers repeats the one before.
    pub(crate) fn curve(&self, arm: Arm, bins: usize) -> Vec<f64> {
        let inside = self.inside();
        let end = inside
            .first_answers
            .iter()
            .map(|(t, ..)| *t)
            .fold(1e-9, f64::max)
            * 1.000_001;
        let mut sums = vec![(0.0, 0.0); bins];
        for (t, learn, good) in &inside.first_answers {
            if *learn == (arm == Arm::Learn) {
                let bin = &mut sums[(t / end * bins as f64) as usize];
                *bin = (bin.0 + f64::from(u8::from(*good)), bin.1 + 1.0);
            }
        }
        let mut last = 0.0;
        let mean = |(sum, n): (f64, f64)| {
            last = if n > 0.0 { sum / n } else { last };
            last
        };
        sums.into_iter().map(mean).collect()
    }

    fn answer(&self, gaps_ms: &[f64]) {
        self.inside().gaps_ms.extend_from_slice(gaps_ms);
    }

    fn first_answer(&self, arm: Arm, good: bool) {
        let mut inside = self.inside();
        let at = inside
            .began
            .map_or(0.0, |began| began.elapsed().as_secs_f64());
        inside.first_answers.push((at, arm == Arm::Learn, good));
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl User {
    /// A user; a learner and its twin of the same pair and seed say the same words.
    pub(crate) fn new(pair: u64, taste: Taste, arm: Arm, seed: u64) -> Self {
        let side = if arm == Arm::Learn {
            "learn"
        } else {
            "control"
        };
        let name = format!("demo-{seed}-{}-{side}", taste.name());
        Self {
            arm,
            taste,
            name,
            seed: seed * 1_000_003 + pair,
            grammar: Grammar::new(),
        }
    }

    /// Its name on the server.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Holds one session after another until the time is over, or until the server counts as gone.
    pub(crate) async fn talk(
        &self,
        client: &Client,
        until: Instant,
        first: u64,
        tally: &Tally,
    ) -> Result<()> {
        let mut number = first;
        while Instant::now() < until {
            self.session(client, number, tally).await?;
            tally.inside().sessions += 1;
            number += 1;
        }
        Ok(())
    }

    async fn session(&self, client: &Client, number: u64, tally: &Tally) -> Result<()> {
        let mut rng = Rng::new(self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(number));
        let key = format!("{}-{number}", self.name);
        let mut messages: Vec<Value> = Vec::new();
        for _ in 0..QUESTIONS_PER_SESSION {
            let fact = hone_starter::grammar::FactId(rng.below(self.grammar.facts().len()));
            let question = self.grammar.question(fact, &mut rng).text;
            messages.push(json!({"role": "user", "content": question}));
            let (answer, seed) = (
                self.ask(client, &messages, (&key, &mut rng), tally).await?,
                rng.below(1 << 30),
            );
            let right = self.grammar.check_fact(fact, &answer).exact;
            tally.first_answer(self.arm, right && self.taste.likes(&answer));
            messages.push(json!({"role": "assistant", "content": answer}));
            let says = self.reaction(&answer, right, &mut Rng::new(seed as u64));
            messages.push(json!({"role": "user", "content": says}));
            let reply = self.ask(client, &messages, (&key, &mut rng), tally).await?;
            messages.push(json!({"role": "assistant", "content": reply}));
        }
        Ok(())
    }

    fn reaction(&self, answer: &str, right: bool, rng: &mut Rng) -> &'static str {
        let words = match (self.taste.likes(answer), right) {
            (true, true) => self.taste.praises(),
            (false, _) => self.taste.complaints(),
            (true, false) => Taste::corrections(),
        };
        words[rng.below(words.len())]
    }

    async fn ask(
        &self,
        client: &Client,
        messages: &[Value],
        (key, rng): (&str, &mut Rng),
        tally: &Tally,
    ) -> Result<String> {
        let chat = Chat {
            user: &self.name,
            messages,
            session: (self.arm == Arm::Learn).then_some(key),
            store: self.arm == Arm::Learn,
            seed: rng.below(1 << 30) as u64,
        };
        let answer = client.chat(&chat).await?;
        tally.answer(&answer.gaps_ms);
        Ok(answer.text)
    }

    /// Asks held-out questions, never stored: (share right and to taste, share right).
    pub(crate) async fn score(
        &self,
        client: &Client,
        n: usize,
        progress: &Phase,
    ) -> Result<(f64, f64)> {
        let (mut good, mut correct) = (0.0, 0.0);
        let questions = self.grammar.held_out_questions(self.seed, n);
        for (i, question) in questions.iter().enumerate() {
            let messages = [json!({"role": "user", "content": question.text})];
            let chat = Chat {
                user: &self.name,
                messages: &messages,
                session: None,
                store: false,
                seed: self.seed.wrapping_add(i as u64),
            };
            let answer = client.chat(&chat).await?.text;
            let right = self.grammar.check_fact(question.fact, &answer).exact;
            correct += f64::from(u8::from(right));
            good += f64::from(u8::from(right && self.taste.likes(&answer)));
            progress.step();
        }
        let n = questions.len().max(1) as f64;
        Ok((good / n, correct / n))
    }
}
