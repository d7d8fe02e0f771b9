//! Teacher-forced scoring and a plain reference generator, both on the served forward.

use crate::adapter::Adapter;
use crate::batch::{LogitsWanted, SeqInput};
use crate::forward::{Layers, Scratch, forward, head, hidden_states, hidden_states_through};
use crate::kv::{BLOCK_TOKENS, KvPool};
use crate::weights::Model;
use hone_kernels::cpu::{Buf, padded};
use hone_kernels::ops::RmsNorm;
use hone_kernels::ops::log_softmax::token_logprob;
use hone_kernels::rng::Rng;
use hone_kernels::thread_pool::Executor;

/// Tokens per forward call unless the caller chooses; the results do not depend on it.
const CHUNK: usize = 256;

/// Final hidden states of a scored text; logits are computed for the positions asked about only.
pub struct Scores<'a> {
    model: &'a Model,
    exec: &'a Executor,
    tokens: Vec<u32>,
    hidden: Buf,
}

/// Runs the model over `tokens` and keeps what is needed to ask for log-probs.
pub fn score<'a>(
    model: &'a Model,
    adapter: Option<&Adapter>,
    tokens: &[u32],
    exec: &'a Executor,
) -> Scores<'a> {
    score_chunked(model, adapter, (tokens, CHUNK), exec)
}

/// As [`score`] with a chosen number of tokens per forward call.
pub fn score_chunked<'a>(
    model: &'a Model,
    adapter: Option<&Adapter>,
    text: (&[u32], usize),
    exec: &'a Executor,
) -> Scores<'a> {
    let (tokens, chunk) = text;
    let count = tokens.len().div_ceil(BLOCK_TOKENS);
    let blocks: Vec<u32> = (0..count as u32).collect();
    let mut kv = KvPool::new(model, count);
    let mut scratch = Scratch::default();
    let ld = padded(model.config.hidden);
    let mut hidden = Buf::zeros(tokens.len() * ld);
    for (index, part) in tokens.chunks(chunk.max(1)).enumerate() {
        let start = index * chunk.max(1);
        let seq = SeqInput {
            tokens: part,
            start,
            blocks: &blocks,
            adapter,
            logits: LogitsWanted::None,
        };
        hidden_states(model, &mut kv, &[seq], exec, &mut scratch);
        hidden.as_mut()[start * ld..][..part.len() * ld]
            .copy_from_slice(&scratch.x.as_slice()[..part.len() * ld]);
    }
    Scores {
        model,
        exec,
        tokens: tokens.to_vec(),
        hidden,
    }
}

/// The base model's embedding of a text: the mean over all tokens of the final hidden states after
/// the last norm, scaled to length 1. `[hidden]` numbers; zeros for an empty text. None once it is
/// not wanted any more, which is asked before every chunk.
pub fn embed(
    model: &Model,
    tokens: &[u32],
    exec: &Executor,
    is_wanted: impl Fn() -> bool,
) -> Option<Vec<f32>> {
    let count = tokens.len().div_ceil(BLOCK_TOKENS);
    let blocks: Vec<u32> = (0..count as u32).collect();
    let mut kv = KvPool::new(model, count);
    let mut scratch = Scratch::default();
    let (hidden, ld) = (model.config.hidden, padded(model.config.hidden));
    let norm = RmsNorm {
        weight: &model.weights.norm,
        eps: model.config.rms_eps,
        groups: 1,
    };
    let mut normed = Buf::default();
    let mut sums = vec![0f64; hidden];
    for (index, part) in tokens.chunks(CHUNK).enumerate() {
        if !is_wanted() {
            return None;
        }
        let seq = SeqInput {
            tokens: part,
            start: index * CHUNK,
            blocks: &blocks,
            adapter: None,
            logits: LogitsWanted::None,
        };
        hidden_states(model, &mut kv, &[seq], exec, &mut scratch);
        let rows = part.len();
        let normed = normed.take(rows * ld);
        norm.forward(&scratch.x.as_slice()[..rows * ld], normed, (rows, ld), exec);
        for row in normed[..rows * ld].chunks(ld) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += f64::from(*value);
            }
        }
    }
    let length = sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    Some(sums.iter().map(|sum| (sum * scale) as f32).collect())
}

/// What the base model makes of the tokens from `from` on, given those before: behind each of
/// `layers` (ascending, 1 is the first layer), the mean of the residual stream over these tokens.
/// `[layers][hidden]`; zeros where there are no such tokens. None once it is not wanted any more,
/// which is asked before every chunk. Layers above the last of `layers` are not computed.
pub fn states(
    model: &Model,
    tokens: &[u32],
    from: usize,
    layers: &[usize],
    exec: &Executor,
    is_wanted: impl Fn() -> bool,
) -> Option<Vec<Vec<f32>>> {
    let count = tokens.len().div_ceil(BLOCK_TOKENS);
    let blocks: Vec<u32> = (0..count as u32).collect();
    let mut kv = KvPool::new(model, count);
    let mut scratch = Scratch::default();
    let (hidden, ld) = (model.config.hidden, padded(model.config.hidden));
    let end = layers.iter().copied().max().unwrap_or(0);
    let mut sums = vec![vec![0f64; hidden]; layers.len()];
    for (index, part) in tokens.chunks(CHUNK).enumerate() {
        if !is_wanted() {
            return None;
        }
        let start = index * CHUNK;
        let seq = SeqInput {
            tokens: part,
            start,
            blocks: &blocks,
            adapter: None,
            logits: LogitsWanted::None,
        };
        let skipped = from.saturating_sub(start).min(part.len());
        let mut after = |layer: usize, x: &[f32]| {
            let Some(at) = layers.iter().position(|wanted| *wanted == layer) else {
                return;
            };
            for row in x[..part.len() * ld].chunks(ld).skip(skipped) {
                for (sum, value) in sums[at].iter_mut().zip(row) {
                    *sum += f64::from(*value);
                }
            }
        };
        let mut pass = Layers {
            end,
            after: &mut after,
        };
        hidden_states_through(model, &mut kv, &[seq], exec, &mut scratch, &mut pass);
    }
    let counted = tokens.len().saturating_sub(from).max(1) as f64;
    let mean = |sums: Vec<f64>| sums.iter().map(|sum| (sum / counted) as f32).collect();
    Some(sums.into_iter().map(mean).collect())
}

impl Scores<'_> {
    /// Log-prob of the token at `position` (1 or later) given all before it.
    ///
    /// # Panics
    /// When `position` is 0 or beyond the text.
    pub fn logprob(&self, position: usize, temperature: f32, kept: Option<&[u32]>) -> f32 {
        let token = self.tokens[position];
        token_logprob(&self.logits(position), token, temperature, kept)
    }

    /// The logits that predict the token at `position` (1 or later, up to the text's length: the
    /// token after the end).
    pub fn logits(&self, position: usize) -> Vec<f32> {
        assert!(position >= 1, "nothing predicts the first token");
        let ld = padded(self.model.config.hidden);
        let row = &self.hidden.as_slice()[(position - 1) * ld..][..ld];
        let mut logits = Buf::default();
        head(self.model, row, 1, &mut logits, self.exec);
        logits.as_slice()[..self.model.config.vocab].to_vec()
    }

    /// Number of tokens scored.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// How [`generate`] continues a prompt.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    pub max_tokens: usize,
    /// 0 takes the most likely token (the lowest id on ties).
    pub temperature: f32,
    pub seed: u64,
    pub stop_ids: Vec<u32>,
}

/// Continues `prompt` one token at a time: the plain form of what the serving engine does. A stop
/// token ends the completion and is its last element.
///
/// # Panics
/// When the prompt is empty.
pub fn generate(
    model: &Model,
    adapter: Option<&Adapter>,
    prompt: &[u32],
    options: &GenerateOptions,
    exec: &Executor,
) -> Vec<u32> {
    assert!(
        !prompt.is_empty(),
        "a completion needs at least one prompt token"
    );
    let count = (prompt.len() + options.max_tokens).div_ceil(BLOCK_TOKENS);
    let blocks: Vec<u32> = (0..count as u32).collect();
    let mut kv = KvPool::new(model, count);
    let mut scratch = Scratch::default();
    let mut rng = Rng::new(options.seed);
    let mut completion: Vec<u32> = Vec::new();
    let mut start = 0;
    while completion.len() < options.max_tokens {
        let tokens = match completion.last() {
            None => prompt,
            Some(last) => std::slice::from_ref(last),
        };
        let logits = LogitsWanted::Last;
        let seq = SeqInput {
            tokens,
            start,
            blocks: &blocks,
            adapter,
            logits,
        };
        let step = tokens.len();
        let row = forward(model, &mut kv, &[seq], exec, &mut scratch);
        let token = pick(row.row(0), options.temperature, rng.uniform());
        start += step;
        completion.push(token);
        if options.stop_ids.contains(&token) {
            break;
        }
    }
    completion
}

/// The token at quantile `u` of `softmax(row / temperature)`.
fn pick(row: &[f32], temperature: f32, u: f64) -> u32 {
    let best = (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
    if temperature <= 0.0 {
        return best as u32;
    }
    let mass = |z: f32| (f64::from(z - row[best]) / f64::from(temperature)).exp();
    let mut left = u * row.iter().map(|&z| mass(z)).sum::<f64>();
    for (id, &z) in row.iter().enumerate() {
        left -= mass(z);
        if left < 0.0 {
            return id as u32;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{model, tiny, tokens};
    use hone_checkpoint::config::Family;

    #[test]
    fn an_embedding_is_the_mean_of_the_normed_hidden_states_at_length_one() {
        let cfg = tiny(Family::Qwen3);
        let (model, exec) = (model(&cfg, 3), Executor::new(2));
        // More than one chunk.
        let text = tokens(&cfg, CHUNK + 40, 5);
        let embed = |text: &[u32], exec| embed(&model, text, exec, || true).expect("it is wanted");
        let got = embed(&text, &exec);
        let hidden = score(&model, None, &text, &exec).hidden;
        let mut mean = vec![0f64; cfg.hidden];
        for row in hidden.as_slice().chunks(padded(cfg.hidden)) {
            let row = &row[..cfg.hidden];
            let square: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
            let scale = 1.0 / (square / cfg.hidden as f64 + f64::from(cfg.rms_eps)).sqrt();
            for ((sum, x), w) in mean.iter_mut().zip(row).zip(&model.weights.norm) {
                *sum += f64::from(*x) * scale * f64::from(*w);
            }
        }
        let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert_eq!(got.len(), cfg.hidden);
        for (got, wanted) in got.iter().zip(&mean) {
            assert!((f64::from(*got) - wanted / length).abs() < 1e-5);
        }
        let one = Executor::new(1);
        assert_eq!(got, embed(&text, &one), "threads change nothing");
        assert_ne!(got, embed(&text[1..], &exec));
        assert!(embed(&[], &exec).iter().all(|x| *x == 0.0));
    }

    #[test]
    fn states_are_the_mean_of_the_residual_stream_behind_their_layers() {
        let cfg = tiny(Family::Qwen3);
        let (model, exec) = (model(&cfg, 3), Executor::new(2));
        // More than one chunk.
        let text = tokens(&cfg, CHUNK + 40, 5);
        let last = cfg.layers;
        let got = |from, layers: &[usize]| {
            states(&model, &text, from, layers, &exec, || true).expect("it is wanted")
        };
        let hidden = score(&model, None, &text, &exec).hidden;
        for from in [0, 3, CHUNK - 1, CHUNK + 7] {
            let ld = padded(cfg.hidden);
            let rows = hidden.as_slice().chunks(ld).skip(from);
            let count = rows.len() as f64;
            let mut mean = vec![0f64; cfg.hidden];
            for row in rows {
                for (sum, x) in mean.iter_mut().zip(row) {
                    *sum += f64::from(*x) / count;
                }
            }
            let states = got(from, &[1, last]);
            assert_eq!(states.len(), 2);
            for (got, wanted) in states[1].iter().zip(&mean) {
                assert!((f64::from(*got) - wanted).abs() < 1e-4, "from {from}");
            }
            // Layers above the last that is asked for change nothing.
            assert_eq!(got(from, &[1])[0], states[0], "from {from}");
        }
        assert!(got(text.len(), &[1])[0].iter().all(|x| *x == 0.0));
        assert!(states(&model, &text, 0, &[1], &exec, || false).is_none());
    }

    #[test]
    fn an_embedding_that_nobody_wants_any_more_ends_with_its_chunk() {
        let cfg = tiny(Family::Qwen3);
        let (model, exec) = (model(&cfg, 3), Executor::new(1));
        let text = tokens(&cfg, CHUNK + 40, 5);
        for (asks_left, is_whole) in [(0_u32, false), (1, false), (2, true)] {
            let left = std::cell::Cell::new(asks_left);
            let is_wanted = || left.replace(left.get().saturating_sub(1)) > 0;
            let got = embed(&model, &text, &exec, is_wanted);
            assert_eq!(got.is_some(), is_whole, "{asks_left}");
        }
    }
}
