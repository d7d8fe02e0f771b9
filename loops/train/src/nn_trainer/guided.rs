//! Answers sampled with guidance: what a wish in the prompt changes is done more strongly.

use hone_checkpoint::ModelConfig;
use hone_domain::Token;
use hone_nn::DeviceError;
use hone_nn::sample::{SampleScratch, SamplingParams, TokenCounts, sample};
use hone_nn::{BLOCK_TOKENS, LogitsWanted, Runner, SeqInput};

use super::NnParts;
use super::answers::Answer;
use crate::progress::Progress;
use crate::trainer::TrainError;

/// Sequences that are answered side by side, at most.
const TOGETHER_MAX: usize = 12;
/// Multiplications of one slice: small, because serving waits for no longer than a slice.
const SLICE_PRODUCTS: usize = 8_000_000_000;
/// A token that is so many nats less likely than the likeliest one is never drawn: guidance would
/// lift what is merely strange (the plausibility constraint of Li et al. 2022, arXiv 2210.15097).
const PLAUSIBLE_NATS: f32 = 3.0;

/// Tokens of one slice.
fn slice_tokens(config: &ModelConfig) -> usize {
    let attention = config.hidden * config.head_dim * 2 * (config.heads + config.kv_heads);
    let layer = attention + 3 * config.hidden * config.ffn;
    let products = config.layers * layer + config.vocab * config.hidden;
    (SLICE_PRODUCTS / products.max(1)).clamp(8, 256)
}

/// A prompt with the wish in it, and the same one without.
#[derive(Clone, Debug)]
pub(super) struct GuidedPrompt {
    pub(super) told: Vec<Token>,
    pub(super) plain: Vec<Token>,
    /// How much further than the wish itself the answer goes: with `g` it is drawn from
    /// `log p(told) + g (log p(told) - log p(plain))` (classifier-free guidance, Sanchez et al.
    /// 2023, arXiv 2306.17806, eq. 7). 0 draws from the model that reads the wish.
    pub(super) strength: f32,
}

impl GuidedPrompt {
    /// The prompts that are read for it: without guidance the one with the wish alone.
    fn read(&self) -> Vec<&[Token]> {
        match self.strength == 0.0 {
            true => vec![&self.told],
            false => vec![&self.told, &self.plain],
        }
    }
}

/// How answers are sampled from the base model.
#[derive(Clone, Copy)]
pub(super) struct Guidance<'a> {
    pub(super) parts: &'a NnParts,
    /// Where it is told how many answers are there, and from where to where these go of all.
    pub(super) progress: &'a Progress,
    pub(super) from_to: (f64, f64),
    /// Longest answer.
    pub(super) tokens_max: usize,
    pub(super) temperature: f32,
    /// Seed of the first prompt; the others count on from it.
    pub(super) seed: u64,
}

/// A prompt in the cache.
struct Context<'a> {
    prompt: &'a [Token],
    blocks: Vec<u32>,
    /// Tokens in the cache.
    done: usize,
}

impl Context<'_> {
    /// Prompt tokens before the last one that are not in the cache yet. The last one runs with the
    /// first draw.
    fn left(&self) -> usize {
        (self.prompt.len() - 1).saturating_sub(self.done)
    }
}

/// An answer under way.
struct Sequence<'a> {
    index: usize,
    contexts: Vec<Context<'a>>,
    said: Vec<Token>,
}

impl Sequence<'_> {
    fn left(&self) -> usize {
        self.contexts.iter().map(Context::left).sum()
    }

    /// The one token to run before the next draw.
    fn last(&self, context: usize) -> &[Token] {
        match self.said.len() {
            0 => {
                let prompt = self.contexts[context].prompt;
                &prompt[prompt.len() - 1..]
            }
            said => &self.said[said - 1..],
        }
    }
}

/// What one forward runs of a sequence.
enum Piece {
    /// So many prompt tokens of one context.
    Prompt {
        slot: usize,
        context: usize,
        tokens: usize,
    },
    /// The last token of every context, to draw the next.
    Draw { slot: usize },
}

/// Answers every prompt, one slice of work after another.
pub(super) fn guided_answers(
    how: Guidance<'_>,
    prompts: &[GuidedPrompt],
    pause: &mut dyn FnMut() -> bool,
) -> Result<Vec<Answer>, TrainError> {
    let longest = |p: &GuidedPrompt| p.told.len().max(p.plain.len());
    let Some(longest) = prompts.iter().map(longest).max() else {
        return Ok(Vec::new());
    };
    let budget = slice_tokens(&how.parts.model.config);
    let together = (budget / 2).clamp(1, TOGETHER_MAX).min(prompts.len());
    let each = (longest + how.tokens_max).div_ceil(BLOCK_TOKENS);
    let mut runner = how
        .parts
        .runner(2 * each * together, budget, 2 * together)?;
    let mut run = Run {
        how,
        prompts,
        each,
        slots: (0..together).map(|_| None).collect(),
        next: 0,
        answers: Vec::new(),
        scratch: SampleScratch::default(),
    };
    run.begin();
    while run.slots.iter().any(Option::is_some) {
        if pause() {
            return Err(TrainError::Stopped);
        }
        if let Err(error) = run.slice(&mut runner, budget) {
            // From the first token again, on the processor.
            runner = how.parts.instead(&error, 2 * each * together)?;
            run.begin();
        }
        let open = run.slots.iter().flatten().count();
        let over = (run.next - open) as f64 / prompts.len() as f64;
        let (from, to) = how.from_to;
        how.progress.at(from + (to - from) * over);
    }
    Ok(run.answers)
}

struct Run<'a> {
    how: Guidance<'a>,
    prompts: &'a [GuidedPrompt],
    /// Blocks of one context.
    each: usize,
    slots: Vec<Option<Sequence<'a>>>,
    next: usize,
    answers: Vec<Answer>,
    scratch: SampleScratch,
}

impl<'a> Run<'a> {
    fn begin(&mut self) {
        let nothing = Answer {
            tokens: Vec::new(),
            end: None,
        };
        self.answers = vec![nothing; self.prompts.len()];
        self.next = 0;
        self.slots.iter_mut().for_each(|slot| *slot = None);
        self.fill();
    }

    /// Gives free slots to the prompts that wait.
    fn fill(&mut self) {
        let (each, prompts) = (self.each, self.prompts);
        for (slot, place) in self.slots.iter_mut().enumerate() {
            if place.is_some() || self.next >= prompts.len() {
                continue;
            }
            let index = self.next;
            self.next += 1;
            let context = |at: usize, prompt: &'a [Token]| Context {
                prompt,
                blocks: (0..each)
                    .map(|block| ((slot * 2 + at) * each + block) as u32)
                    .collect(),
                done: 0,
            };
            let read = prompts[index].read().into_iter().enumerate();
            *place = Some(Sequence {
                index,
                contexts: read.map(|(at, prompt)| context(at, prompt)).collect(),
                said: Vec::new(),
            });
        }
    }

    /// What to run next: all draws that are due, then prompts as far as the budget goes.
    fn plan(&self, budget: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut room = budget;
        let open = || {
            let slots = self.slots.iter().enumerate();
            slots.filter_map(|(slot, sequence)| Some((slot, sequence.as_ref()?)))
        };
        for (slot, sequence) in open().filter(|(_, sequence)| sequence.left() == 0) {
            pieces.push(Piece::Draw { slot });
            room = room.saturating_sub(sequence.contexts.len());
        }
        for (slot, sequence) in open() {
            for (context, of) in sequence.contexts.iter().enumerate() {
                let tokens = of.left().min(room);
                if tokens > 0 {
                    pieces.push(Piece::Prompt {
                        slot,
                        context,
                        tokens,
                    });
                    room -= tokens;
                }
            }
        }
        pieces
    }

    fn slice(&mut self, runner: &mut Runner, budget: usize) -> Result<(), DeviceError> {
        let pieces = self.plan(budget);
        let mut batch = Vec::new();
        for piece in &pieces {
            let (slot, contexts, tokens) = match *piece {
                Piece::Prompt {
                    slot,
                    context,
                    tokens,
                } => (slot, context..context + 1, Some(tokens)),
                Piece::Draw { slot } => (slot, 0..2, None),
            };
            let Some(sequence) = &self.slots[slot] else {
                continue;
            };
            for context in contexts.start..contexts.end.min(sequence.contexts.len()) {
                let of = &sequence.contexts[context];
                batch.push(SeqInput {
                    tokens: match tokens {
                        Some(count) => &of.prompt[of.done..of.done + count],
                        None => sequence.last(context),
                    },
                    start: of.done,
                    blocks: &of.blocks,
                    adapter: None,
                    logits: match tokens {
                        Some(_) => LogitsWanted::None,
                        None => LogitsWanted::Last,
                    },
                });
            }
        }
        let logits = runner.forward(&batch)?;
        drop(batch);
        let mut row = 0;
        for piece in pieces {
            match piece {
                Piece::Prompt {
                    slot,
                    context,
                    tokens,
                } => {
                    if let Some(sequence) = &mut self.slots[slot] {
                        sequence.contexts[context].done += tokens;
                    }
                }
                Piece::Draw { slot } => {
                    let Some(sequence) = &self.slots[slot] else {
                        continue;
                    };
                    let strength = self.prompts[sequence.index].strength;
                    let told = logits.row(row);
                    // Without guidance there is no other row, and it has no weight.
                    let plain = match sequence.contexts.len() {
                        1 => told,
                        _ => logits.row(row + 1),
                    };
                    row += sequence.contexts.len();
                    let guided = guided(told, plain, strength);
                    self.draw(slot, &guided);
                }
            }
        }
        self.fill();
        Ok(())
    }

    /// Draws the next token of a slot's answer, and ends the answer where that ends it.
    fn draw(&mut self, slot: usize, logits: &[f32]) {
        let Some(sequence) = &mut self.slots[slot] else {
            return;
        };
        let params = SamplingParams {
            temperature: self.how.temperature,
            seed: self.how.seed.wrapping_add(sequence.index as u64),
            ..SamplingParams::default()
        };
        let position = sequence.said.len() as u64;
        let counts = TokenCounts::default();
        let drawn = sample(logits, &params, &counts, position, &mut self.scratch).token;
        for context in &mut sequence.contexts {
            context.done += 1;
        }
        let end = self.how.parts.end_tokens.contains(&drawn).then_some(drawn);
        if end.is_none() {
            sequence.said.push(drawn);
        }
        if end.is_some() || sequence.said.len() >= self.how.tokens_max {
            self.answers[sequence.index] = Answer {
                tokens: std::mem::take(&mut sequence.said),
                end,
            };
            self.slots[slot] = None;
        }
    }
}

/// The guided log-probs, up to a constant.
fn guided(told: &[f32], plain: &[f32], strength: f32) -> Vec<f32> {
    let norm = |logits: &[f32]| {
        let most = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = logits.iter().map(|z| (z - most).exp()).sum();
        (most, most + sum.ln())
    };
    let ((most, told_norm), (_, plain_norm)) = (norm(told), norm(plain));
    let least = most - PLAUSIBLE_NATS;
    let one = |(told, plain): (&f32, &f32)| {
        if *told < least {
            return f32::MIN / 4.0;
        }
        let (told, plain) = (told - told_norm, plain - plain_norm);
        told + strength * (told - plain)
    };
    told.iter().zip(plain).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guidance_lifts_what_the_wish_lifts_and_nothing_implausible() {
        let told = [2.0, 1.0, -5.0];
        let plain = [2.0, 0.0, -20.0];
        let without = guided(&told, &plain, 0.0);
        assert!((without[0] - without[1] - 1.0).abs() < 1e-5);
        let with = guided(&told, &plain, 1.0);
        // One nat more of what the wish made one nat likelier against the other.
        assert!((with[0] - with[1]).abs() < 1e-5, "{with:?}");
        assert!(with[2] < -1e30, "{with:?}");
    }
}
