//! Many questions by themselves, a few at a time, of which nothing is stored.

use futures::future::join_all;
use hone_starter::rng::stable_hash;
use serde_json::json;

use crate::learn::talker::{Ask, Talker};

/// Questions on their way at the same time.
const TOGETHER: usize = 8;

/// Who asks, and how.
#[derive(Clone, Copy)]
pub(super) struct Asker<'a> {
    pub(super) url: &'a str,
    pub(super) user: &'a str,
    /// 0 takes the most likely token.
    pub(super) temperature: f64,
    pub(super) max_tokens: u32,
    /// What requests do with memories; as configured if absent.
    pub(super) memory: Option<&'static str>,
}

impl Asker<'_> {
    /// The answers, in the order of the questions. A question's seed follows from its text, so the
    /// same question of the same weights has the same answer.
    ///
    /// # Errors
    /// A question was not answered.
    pub(super) async fn ask_all(&self, questions: &[String]) -> Result<Vec<String>, String> {
        let parts = (0..TOGETHER).map(|part| self.ask_part(questions, part));
        let parts: Result<Vec<_>, String> = join_all(parts).await.into_iter().collect();
        let mut answers: Vec<(usize, String)> = parts?.into_iter().flatten().collect();
        answers.sort_by_key(|(number, _)| *number);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Every question whose number leaves `part`, with its number.
    async fn ask_part(
        &self,
        questions: &[String],
        part: usize,
    ) -> Result<Vec<(usize, String)>, String> {
        let mut answers = Vec::new();
        if part >= questions.len() {
            return Ok(answers);
        }
        let mut talker = Talker::new(self.url, self.user.to_owned()).await?;
        talker.memory = self.memory;
        for (number, question) in questions.iter().enumerate().skip(part).step_by(TOGETHER) {
            let ask = Ask {
                messages: &[json!({ "role": "user", "content": question })],
                session: None,
                seed: stable_hash(question) >> 34,
                temperature: self.temperature,
                max_tokens: self.max_tokens,
            };
            answers.push((number, talker.ask(ask).await.text));
        }
        match talker.failed {
            0 => Ok(answers),
            failed => Err(format!("{failed} questions were not answered")),
        }
    }
}
