//! `hone-bench learn --model PATH`: whether a real model learns from a person who only talks, and
//! loses nothing.
//!
//! Simulated people hold sessions over HTTP with a server in its default configuration, one person and
//! one server a run. A person has one preference that the server is never told. The first answer of a
//! session is checked by a few lines of code; if it is not as wished, the person says so in words of
//! the phrase bank, reads one more answer and leaves. No rule, labelled row, prompt or training text
//! contains a phrase of the bank or a question; a test holds them apart. Between sessions judging and
//! training come to rest, so that sessions are counted and not seconds.
//!
//! Never: what the person wants in a form that only this build would understand.

mod arms;
mod asker;
mod base;
mod checks;
mod knowledge;
mod likelihood;
mod outcome;
mod phrases;
mod reading;
mod remember;
mod report;
mod run;
mod session;

use std::time::Duration;

use super::report::Report;
use super::{Bench, Options};
use arms::Arm;
use base::Base;
use checks::Preference;
use knowledge::{Fact, Instruction};
use likelihood::Meter;
use outcome::Outcome;
use phrases::PhraseBank;
use reading::Reading;
pub(super) use remember::remember;
use run::run;
use session::Plan;

/// Sessions per person, and seeds, unless the command line says otherwise.
const SESSIONS: usize = 20;
const SEEDS: u64 = 1;
/// Temperature of sessions and of held-out questions.
const TEMPERATURE: f64 = 0.7;
/// Longest answer, and longest answer to a plain question about a fact.
const ANSWER_TOKENS: u32 = 384;
const FACT_TOKENS: u32 = 96;
/// Longest pause between two sessions, in seconds; `--seconds` sets another.
const PAUSE_MAX_S: f64 = 240.0;

/// What the command line says.
#[derive(Clone, Debug)]
pub(super) struct Size {
    seeds: u64,
    sessions: usize,
    arms: Vec<Arm>,
    /// Those that were named; all are tried if there is none.
    preferences: Vec<Preference>,
    /// Most held-out questions.
    questions: usize,
    /// Most plain facts, and most explicit instructions.
    facts: usize,
}

impl Size {
    /// # Errors
    /// An arm or a preference that there is not.
    pub(super) fn of(options: &Options) -> Result<Self, String> {
        let named = options
            .preferences
            .iter()
            .map(|name| Preference::named(name));
        Ok(Self {
            seeds: options.seeds.unwrap_or(SEEDS),
            sessions: options.sessions.unwrap_or(SESSIONS),
            arms: Arm::named(&options.arms)?,
            preferences: named.collect::<Result<_, String>>()?,
            questions: options.questions.map_or(usize::MAX, |most| most as usize),
            facts: options
                .facts
                .or(options.questions)
                .map_or(usize::MAX, |most| most as usize),
        })
    }
}

/// What people say, ask and know.
struct Materials {
    bank: PhraseBank,
    /// Those that are tried.
    preferences: Vec<Preference>,
    facts: Vec<Fact>,
    instructions: Vec<Instruction>,
    questions: usize,
}

impl Materials {
    fn load(size: &Size) -> Result<Self, String> {
        let preferences = match size.preferences.is_empty() {
            true => Preference::ALL.to_vec(),
            false => size.preferences.clone(),
        };
        Ok(Self {
            bank: PhraseBank::load()?,
            preferences,
            facts: Fact::load(size.facts)?,
            instructions: Instruction::load(size.facts)?,
            questions: size.questions,
        })
    }

    /// Held-out questions that can show the preference.
    fn held_out(&self, preference: Preference) -> Vec<String> {
        self.bank.held_out(preference, self.questions)
    }
}

/// `hone-bench learn --model PATH`.
pub(super) fn people(bench: &Bench, size: &Size) -> Result<Report, String> {
    let materials = Materials::load(size)?;
    let model = bench.config.model.served_name();
    println!("learn: {model}, as it ships");
    let reading = Reading::new(bench)?;
    let of_base = async |url: &str| Base::measure(url, &materials).await;
    let base = bench.runtime.block_on(reading.app(bench, of_base))?;
    let meter = Meter::new(bench)?;
    let taking_part = |preference: &Preference| {
        let tried = base.tried(*preference);
        !size.preferences.is_empty() || tried.is_ok_and(base::Tried::qualifies)
    };
    let taking_part = materials.preferences.iter().copied().filter(taking_part);
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut errors: Vec<String> = Vec::new();
    for preference in taking_part {
        let tried = base.tried(preference)?;
        let told_logprob = tried.logprob_mean(&materials, &meter, &tried.answers)?;
        for plan in plans(size, preference) {
            let outcome = one((bench, &reading), plan, &materials).and_then(|run| {
                Outcome::of(
                    run,
                    &outcome::Against {
                        base: &base,
                        tried,
                        all_instructions: &materials.instructions,
                        told_logprob,
                    },
                    |answers| tried.logprob_mean(&materials, &meter, answers),
                )
            });
            match outcome {
                Ok(outcome) => {
                    println!("  {}", outcome.sentence());
                    for prompt in outcome.instructions_lost() {
                        println!("    no longer followed: {prompt}");
                    }
                    outcomes.push(outcome);
                }
                // Hours may lie behind and before this run.
                Err(error) => {
                    let error = format!("{} failed: {error}", plan.name());
                    eprintln!("hone: {error}");
                    errors.push(error);
                }
            }
        }
    }
    Ok(report::of(&model, size, &base, &outcomes, &errors))
}

/// Every arm and seed of a preference.
fn plans(size: &Size, preference: Preference) -> Vec<Plan> {
    let of_arm = |arm: &Arm| {
        let arm = *arm;
        (1..=size.seeds).map(move |seed| (arm, seed))
    };
    let all = size.arms.iter().flat_map(of_arm);
    let plan = |(arm, seed)| Plan {
        arm,
        preference,
        seed,
        sessions: size.sessions,
    };
    all.map(plan).collect()
}

/// One run at a server of its own.
fn one(
    (bench, reading): (&Bench, &Reading),
    plan: Plan,
    materials: &Materials,
) -> Result<run::Run, String> {
    let pause_max: Duration = bench.time(PAUSE_MAX_S);
    let work = async |url: &str| run(url, plan, materials, pause_max).await;
    bench.runtime.block_on(reading.app(bench, work))
}
