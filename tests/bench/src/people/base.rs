//! The model as it ships: how often it answers as wished, told and not, and what it knows.

use std::collections::BTreeMap;

use super::asker::Asker;
use super::checks::Preference;
use super::knowledge::share;
use super::likelihood::{Meter, Scored};
use super::run::pause_training;
use super::{ANSWER_TOKENS, FACT_TOKENS, Materials, TEMPERATURE};

/// A preference takes part with at least this share as wished when told, and at most that untold.
const TOLD_MIN: f64 = 0.7;
const UNTOLD_MAX: f64 = 0.5;

/// What the untaught model answers.
pub(super) struct Base {
    /// To held-out questions, by question.
    untold: BTreeMap<String, String>,
    pub(super) tried: Vec<Tried>,
    pub(super) facts: Vec<bool>,
    pub(super) instructions: Vec<bool>,
}

/// One preference on the untaught model, over held-out questions.
pub(super) struct Tried {
    pub(super) preference: Preference,
    /// Shares as wished.
    pub(super) untold: f64,
    pub(super) told: f64,
    pub(super) questions: usize,
    /// Answers of the told model.
    pub(super) answers: Vec<String>,
}

impl Tried {
    /// Whether there is something to learn, and something that can be learned.
    pub(super) fn qualifies(&self) -> bool {
        self.told >= TOLD_MIN && self.untold <= UNTOLD_MAX
    }

    /// Mean log-prob per token that the told base gives `answers` to the held-out questions.
    pub(super) fn logprob_mean(
        &self,
        materials: &Materials,
        meter: &Meter,
        answers: &[String],
    ) -> Result<Option<f64>, String> {
        let questions = materials.held_out(self.preference);
        let scored: Vec<Scored<'_>> = questions
            .iter()
            .zip(answers)
            .map(|(question, answer)| Scored {
                prompt: materials.bank.told(question, self.preference),
                answer,
            })
            .collect();
        meter.logprob_mean(&scored)
    }
}

impl Base {
    /// What was measured of this preference.
    pub(super) fn tried(&self, preference: Preference) -> Result<&Tried, String> {
        let found = self.tried.iter().find(|t| t.preference == preference);
        found.ok_or_else(|| format!("{:?} was not tried", preference.name()))
    }

    /// Measures the server at `url`, where nothing is trained.
    pub(super) async fn measure(url: &str, materials: &Materials) -> Result<Self, String> {
        let asker = asker(url);
        let mut base = Self::untold(asker, materials).await?;
        base.facts = materials.facts_known(asker).await?;
        base.instructions = materials.instructions_followed(asker).await?;
        println!(
            "  facts {:.3} of {}, instructions {:.3} of {}",
            share(&base.facts),
            base.facts.len(),
            share(&base.instructions),
            base.instructions.len()
        );
        base.try_all(asker, materials).await?;
        Ok(base)
    }

    /// Measures wishes alone at the server at `url`, where nothing is trained.
    pub(super) async fn measure_wishes(url: &str, materials: &Materials) -> Result<Self, String> {
        let asker = asker(url);
        let mut base = Self::untold(asker, materials).await?;
        base.try_all(asker, materials).await?;
        Ok(base)
    }

    /// What is answered to held-out questions as they are.
    async fn untold(asker: Asker<'_>, materials: &Materials) -> Result<Self, String> {
        pause_training(asker.url, true).await?;
        let mut questions: Vec<String> = Vec::new();
        for preference in &materials.preferences {
            let held_out = materials.held_out(*preference).into_iter();
            let new: Vec<String> = held_out.filter(|q| !questions.contains(q)).collect();
            questions.extend(new);
        }
        println!("  untold: {} held-out questions", questions.len());
        let answers = asker.ask_all(&questions).await?;
        Ok(Self {
            untold: questions.into_iter().zip(answers).collect(),
            tried: Vec::new(),
            facts: Vec::new(),
            instructions: Vec::new(),
        })
    }

    async fn try_all(&mut self, asker: Asker<'_>, materials: &Materials) -> Result<(), String> {
        for preference in &materials.preferences {
            let tried = self.try_one(materials, asker, *preference).await?;
            println!(
                "  {:<14} untold {:.2}, told {:.2}{}",
                preference.name(),
                tried.untold,
                tried.told,
                if tried.qualifies() {
                    ""
                } else {
                    ", does not qualify"
                }
            );
            self.tried.push(tried);
        }
        Ok(())
    }

    async fn try_one(
        &self,
        materials: &Materials,
        asker: Asker<'_>,
        preference: Preference,
    ) -> Result<Tried, String> {
        let questions = materials.held_out(preference);
        let untold = questions.iter().filter_map(|q| self.untold.get(q));
        let untold: Vec<bool> = untold.map(|answer| preference.is_met(answer)).collect();
        let told = questions.iter().map(|q| materials.bank.told(q, preference));
        let answers = asker.ask_all(&told.collect::<Vec<_>>()).await?;
        let told: Vec<bool> = answers.iter().map(|a| preference.is_met(a)).collect();
        Ok(Tried {
            preference,
            untold: share(&untold),
            told: share(&told),
            questions: questions.len(),
            answers,
        })
    }
}

fn asker(url: &str) -> Asker<'_> {
    Asker {
        url,
        user: "nobody",
        temperature: TEMPERATURE,
        max_tokens: ANSWER_TOKENS,
        memory: None,
    }
}

impl Materials {
    /// Which facts this user is answered rightly, greedily.
    pub(super) async fn facts_known(&self, asker: Asker<'_>) -> Result<Vec<bool>, String> {
        let questions: Vec<String> = self.facts.iter().map(|f| f.question.clone()).collect();
        let greedy = Asker {
            temperature: 0.0,
            max_tokens: FACT_TOKENS,
            ..asker
        };
        let answers = greedy.ask_all(&questions).await?;
        let pairs = self.facts.iter().zip(&answers);
        Ok(pairs.map(|(fact, answer)| fact.is_right(answer)).collect())
    }

    /// Which instructions are followed for this user, greedily.
    pub(super) async fn instructions_followed(
        &self,
        asker: Asker<'_>,
    ) -> Result<Vec<bool>, String> {
        let prompts: Vec<String> = self.instructions.iter().map(|i| i.prompt.clone()).collect();
        let greedy = Asker {
            temperature: 0.0,
            ..asker
        };
        let answers = greedy.ask_all(&prompts).await?;
        let pairs = self.instructions.iter().zip(&answers);
        Ok(pairs.map(|(one, answer)| one.is_followed(answer)).collect())
    }
}
