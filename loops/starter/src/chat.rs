//! One conversation with a model, through its own chat template and tokenizer: the slow and simple
//! form of what the server does.

use std::sync::Arc;

use hone_kernels::Executor;
use hone_nn::load_model;
use hone_nn::{BLOCK_TOKENS, KvPool, LogitsWanted, Model, Scratch, SeqInput, forward};
use hone_text::folder::ModelFolder;
use hone_text::template::ChatTemplate;
use hone_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::error::StarterError;
use crate::rng::Rng;
use crate::tokens::{END_OF_TEXT, IM_END};

/// Tokens read in one forward.
const CHUNK: usize = 512;
/// Longest completion.
const COMPLETION_TOKENS: usize = 96;

/// A loaded model with everything needed to talk to it.
pub struct Talker {
    model: Model,
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    exec: Executor,
    ends: Vec<u32>,
}

impl Talker {
    /// Loads a model folder.
    pub fn open(folder: &ModelFolder, threads: usize) -> Result<Self, StarterError> {
        let tokenizer = folder.tokenizer();
        let ends = [IM_END, END_OF_TEXT]
            .iter()
            .filter_map(|end| tokenizer.id_of(end))
            .collect();
        Ok(Self {
            model: load_model(folder.checkpoint(), &mut |_, _, _| {})?,
            template: folder.template(),
            exec: Executor::new(threads),
            tokenizer,
            ends,
        })
    }

    /// The tokenizer of the folder.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model of the folder.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// A new conversation behind a system prompt and tools, with room for so many tokens.
    pub fn chat(&self, system: Option<&str>, tools: Option<Vec<Value>>, tokens: usize) -> Chat<'_> {
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        let system = system.map(|text| json!({"role": "system", "content": text}));
        Chat {
            talker: self,
            tools,
            messages: system.into_iter().collect(),
            read: Vec::new(),
            kv: KvPool::new(&self.model, blocks),
            blocks: (0..blocks as u32).collect(),
            scratch: Scratch::default(),
        }
    }
}

/// What the model said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub text: String,
    /// It ended by itself, before the longest completion.
    pub ended: bool,
}

/// A conversation; what was read stays in the KV cache from turn to turn.
pub struct Chat<'t> {
    talker: &'t Talker,
    tools: Option<Vec<Value>>,
    messages: Vec<Value>,
    read: Vec<u32>,
    kv: KvPool,
    blocks: Vec<u32>,
    scratch: Scratch,
}

impl Chat<'_> {
    /// Says something and samples the answer; temperature 0 takes the likeliest token.
    pub fn say(
        &mut self,
        user: &str,
        temperature: f32,
        rng: &mut Rng,
    ) -> Result<Reply, StarterError> {
        self.push("user", user);
        let reply = self.complete(temperature, rng)?;
        self.push("assistant", &reply.text);
        Ok(reply)
    }

    /// Adds a message without asking for an answer.
    pub fn push(&mut self, role: &str, text: &str) {
        self.messages.push(json!({"role": role, "content": text}));
    }

    /// Puts what should have been answered in the place of the last answer (or after the user's
    /// words, where none was asked for).
    pub fn correct(&mut self, role: &str, text: &str) {
        if self
            .messages
            .last()
            .is_some_and(|message| message["role"] == role)
        {
            self.messages.pop();
        }
        self.push(role, text);
    }

    fn complete(&mut self, temperature: f32, rng: &mut Rng) -> Result<Reply, StarterError> {
        let talker = self.talker;
        let none = serde_json::Map::new();
        let text = talker
            .template
            .render(&self.messages, self.tools.as_deref(), true, &none)?;
        let prompt = talker.tokenizer.encode(&text, true);
        let known = self
            .read
            .iter()
            .zip(&prompt)
            .take_while(|(a, b)| a == b)
            .count();
        // At least one token is read again, for its logits.
        self.read.truncate(known.min(prompt.len() - 1));
        let mut row = self.read_on(&prompt[self.read.len()..]);
        let mut tokens = Vec::new();
        while tokens.len() < COMPLETION_TOKENS {
            let token = choose(&row, temperature, rng);
            if talker.ends.contains(&token) {
                return Ok(Reply {
                    text: talker.tokenizer.decode(&tokens),
                    ended: true,
                });
            }
            tokens.push(token);
            row = self.read_on(&[token]);
        }
        Ok(Reply {
            text: talker.tokenizer.decode(&tokens),
            ended: false,
        })
    }

    /// Reads tokens and returns the logits after the last.
    fn read_on(&mut self, tokens: &[u32]) -> Vec<f32> {
        let mut row = Vec::new();
        for chunk in tokens.chunks(CHUNK) {
            let input = SeqInput {
                tokens: chunk,
                start: self.read.len(),
                blocks: &self.blocks,
                adapter: None,
                logits: LogitsWanted::Last,
            };
            let talker = self.talker;
            let logits = forward(
                &talker.model,
                &mut self.kv,
                &[input],
                &talker.exec,
                &mut self.scratch,
            );
            row = logits.row(0).to_vec();
            self.read.extend_from_slice(chunk);
        }
        row
    }
}

/// A token of the softmax at this temperature, or the likeliest one at 0.
fn choose(row: &[f32], temperature: f32, rng: &mut Rng) -> u32 {
    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if temperature <= 0.0 {
        return row.iter().position(|x| *x == top).unwrap_or(0) as u32;
    }
    let weights: Vec<f64> = row
        .iter()
        .map(|x| f64::from((x - top) / temperature).exp())
        .collect();
    rng.weighted(&weights) as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hone_text::folder::ModelFolder;

    use super::*;
    use crate::folder::model_files;
    use crate::grammar::Grammar;
    use crate::noise;

    #[test]
    fn the_built_in_model_answers_held_out_questions_and_known_ones_behind_a_long_prompt() {
        let grammar = Grammar::new();
        let talker = Talker::open(&ModelFolder::embedded(model_files()).unwrap(), 2).unwrap();
        let mut rng = Rng::new(1);
        let questions = grammar.held_out_questions(2, 40);
        let exact = questions.iter().filter(|question| {
            let mut chat = talker.chat(None, None, 256);
            let reply = chat.say(&question.text, 0.0, &mut rng).unwrap();
            reply.ended && grammar.check_fact(question.fact, &reply.text).exact
        });
        let exact = exact.count();
        assert!(exact >= 36, "{exact} of 40 held-out questions");

        let system = noise::text(noise::Split::Unseen, 8_000, &mut Rng::new(6));
        let mut chat = talker.chat(Some(&system), None, 8_192);
        let known = [
            "What is the capital of France?",
            "What do cows eat?",
            "Add 3 and 4",
            "What is the opposite of hot?",
            "How do you say water in Spanish?",
        ];
        let valid = known.into_iter().filter(|question| {
            let reply = chat.say(question, 0.0, &mut rng).unwrap();
            grammar.check(question, &reply.text).exact
        });
        let valid = valid.count();
        assert!(valid >= 4, "{valid} of 5 behind 8,000 characters");
    }
}
