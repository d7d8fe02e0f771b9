//! The trainer: tokens per second, and a session's turns in one row against one row per turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_nn::{
    AdapterDtype, Control, Executor, Learner, LearnerConfig, LoraConfig, LossKind, Model,
    ModelConfig, Objective, Target, TokenLoss, TrainRow, Trainable,
};
use serde_json::json;

use super::Bench;
use super::report::{Report, milli, ms};

/// Turns of the session, tokens a turn adds to the prompt, and tokens of a completion.
const TURNS: usize = 20;
const ASKED: usize = 24;
const ANSWERED: usize = 32;
/// Shapes of about 3 and 30 million parameters, as (name, hidden, layers, heads, kv heads, head
/// size, feed-forward, vocabulary).
type Shape = (&'static str, [usize; 7]);
const SHAPES: [Shape; 3] = [
    ("1 M", [128, 4, 4, 2, 32, 384, 2048]),
    ("3 M", [192, 6, 6, 2, 32, 512, 2048]),
    ("30 M", [512, 8, 8, 4, 64, 1536, 8192]),
];

/// `hone bench trainer`.
pub(super) fn trainer(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(6.0);
    let title = format!("trainer: a session of {TURNS} turns, LoRA rank 8 on every projection");
    let head = [
        "shape",
        "tokens/s",
        "whole ms",
        "by turn ms",
        "factor",
        "log-probs that differ",
        "norm off by",
    ];
    let mut report = Report::new(title, &head);
    let exec = Arc::new(Executor::new(bench.config.model.thread_count()));
    for (name, shape) in SHAPES {
        let model = Arc::new(Model::random(config(shape), 1));
        let measured = session(&model, &exec, time / SHAPES.len() as u32)?;
        report.row([
            name.to_owned(),
            format!("{:.0}", measured.tokens_per_second),
            format!("{:.0}", ms(measured.whole)),
            format!("{:.0}", ms(measured.by_turn)),
            format!("{:.1}", measured.factor()),
            measured.differing.to_string(),
            format!("{:.1e}", measured.norm_off),
        ]);
        report.set(
            name,
            json!({
                "tokens_per_second": milli(measured.tokens_per_second),
                "whole_ms": milli(ms(measured.whole)),
                "by_turn_ms": milli(ms(measured.by_turn)),
                "factor": milli(measured.factor()),
                "logprobs_that_differ": measured.differing,
                "norm_off": measured.norm_off,
            }),
        );
        report.failed += measured.differing as u64;
    }
    Ok(report)
}

fn config([hidden, layers, heads, kv_heads, head_dim, ffn, vocab]: [usize; 7]) -> ModelConfig {
    ModelConfig {
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocab,
        windows: vec![None; layers],
        ..hone_nn::bench::starter_shape()
    }
}

struct Measured {
    tokens_per_second: f64,
    whole: Duration,
    by_turn: Duration,
    /// Log-probs whose bits differ between the two ways.
    differing: usize,
    norm_off: f64,
}

impl Measured {
    fn factor(&self) -> f64 {
        self.by_turn.as_secs_f64() / self.whole.as_secs_f64()
    }
}

/// The median of steps on the whole session and on its turns, taken in turn for `time` (at least
/// twice each).
fn session(model: &Arc<Model>, exec: &Arc<Executor>, time: Duration) -> Result<Measured, String> {
    let (whole, by_turn) = rows(model.config.vocab);
    let learner = || {
        let lora = LoraConfig {
            rank: 8,
            alpha: 16.0,
            targets: Target::ALL.to_vec(),
            rslora: false,
            dtype: AdapterDtype::F32,
        };
        let objective = Objective::DecoupledPpo {
            clip_low: 0.2,
            clip_high: 0.28,
            correction_cap: 5.0,
        };
        let mut config = LearnerConfig::new(Trainable::Lora(lora), objective, 1e-3);
        config.kl_coef = 0.05;
        let learner = Learner::new(model.clone(), config).map_err(|e| e.to_string())?;
        Ok::<_, String>(learner.on(exec.clone()))
    };
    let (mut one, mut other) = (learner()?, learner()?);
    let step = |learner: &mut Learner, rows: &[TrainRow]| {
        let began = Instant::now();
        let report = learner.step(rows, &mut || Control::Continue);
        report
            .map_err(|e| e.to_string())
            .map(|r| (r, began.elapsed()))
    };
    let ((first, _), (second, _)) = (step(&mut one, &whole)?, step(&mut other, &by_turn)?);
    let flat = |logprobs: &[Vec<f32>]| logprobs.concat();
    let (a, b) = (
        flat(&first.proximal_logprobs),
        flat(&second.proximal_logprobs),
    );
    let differing = a
        .iter()
        .zip(&b)
        .filter(|(a, b)| a.to_bits() != b.to_bits())
        .count();
    let (mut wholes, mut turns, began) = (Vec::new(), Vec::new(), Instant::now());
    while wholes.len() < 2 || began.elapsed() < time {
        wholes.push(step(&mut one, &whole)?.1);
        turns.push(step(&mut other, &by_turn)?.1);
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let whole_time = median(&mut wholes);
    Ok(Measured {
        tokens_per_second: first.tokens as f64 / whole_time.as_secs_f64(),
        whole: whole_time,
        by_turn: median(&mut turns),
        differing: differing + a.len().abs_diff(b.len()),
        norm_off: (first.grad_norm / second.grad_norm - 1.0).abs(),
    })
}

/// The session as one row with every completion, and as one row per turn.
fn rows(vocab: usize) -> (Vec<TrainRow>, Vec<TrainRow>) {
    let token = |i: usize| ((i * 31 + i / 7) % vocab) as u32;
    let tokens: Vec<u32> = (0..TURNS * (ASKED + ANSWERED)).map(token).collect();
    let loss = |turn: usize| -> Vec<TokenLoss> {
        let start = turn * (ASKED + ANSWERED) + ASKED;
        let one = |position| TokenLoss {
            advantage: if turn.is_multiple_of(2) { 1.0 } else { -1.0 },
            behavior_logprob: -7.0,
            sequence: turn as u32,
            kind: LossKind::Policy,
            ..TokenLoss::imitated(position)
        };
        (start..start + ANSWERED).map(one).collect()
    };
    let whole = TrainRow {
        tokens: tokens.clone(),
        loss: (0..TURNS).flat_map(loss).collect(),
    };
    let turn = |turn: usize| TrainRow {
        tokens: tokens[..(turn + 1) * (ASKED + ANSWERED)].to_vec(),
        loss: loss(turn),
    };
    (vec![whole], (0..TURNS).map(turn).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_learn_from_the_same_tokens() {
        let (whole, by_turn) = rows(2048);
        let seen = |rows: &[TrainRow]| -> Vec<(usize, u32)> {
            let of = |row: &TrainRow| {
                let token = |l: &TokenLoss| (l.position, row.tokens[l.position]);
                row.loss.iter().map(token).collect::<Vec<_>>()
            };
            rows.iter().flat_map(of).collect()
        };
        assert_eq!(seen(&whole), seen(&by_turn));
        assert_eq!(by_turn.len(), TURNS);
    }
}
