//! Speed of this machine on a model of a given shape, and what its arithmetic can do at most.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::adapter::Adapter;
use crate::batch::{LogitsWanted, SeqInput};
use crate::forward::{Scratch, forward};
use crate::kv::{BLOCK_TOKENS, KvFormat, KvPool};
use crate::train::{Control, Learner, LearnerConfig, Objective, TokenLoss, TrainRow, Trainable};
use crate::weights::{Model, Weights};
use hone_checkpoint::config::{Family, ModelConfig, StoredDtype};
use hone_checkpoint::{AdapterDtype, LoraConfig, Target};
use hone_kernels::cpu::{Kernel, LANES, V16};
use hone_kernels::format::block_quant::WeightFormat;
use hone_kernels::gemm;
use hone_kernels::gemm::{Factors, MAX_ROWS, MAX_TILE, Pairs, Quads, Single, Stepped};
use hone_kernels::matrix::compute_type::ComputeType;
use hone_kernels::thread_pool::Executor;

/// One measured speed.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    /// What was measured, e.g. `decode batch 8, context 512`.
    pub name: String,
    pub tokens_per_second: f64,
    /// The longest single call, in milliseconds.
    pub longest_ms: f64,
}

/// A shape of about one million parameters: the size of the built-in starter model.
pub fn starter_shape() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab: 2048,
        hidden: 128,
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        ffn: 384,
        max_positions: 4096,
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: None,
        tied: true,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: true,
        windows: vec![Some(512); 4],
        experts: None,
        dtype: StoredDtype::F32,
    }
}

/// A shape of about thirty million parameters, larger than the caches of most processors.
pub fn medium_shape() -> ModelConfig {
    ModelConfig {
        vocab: 8192,
        hidden: 512,
        layers: 8,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        ffn: 1536,
        rope_theta: 1e6,
        windows: vec![None; 8],
        ..starter_shape()
    }
}

/// A shape of about six hundred million parameters, with a large vocabulary.
pub fn large_shape() -> ModelConfig {
    ModelConfig {
        vocab: 151_936,
        hidden: 1024,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        ffn: 3072,
        windows: vec![None; 28],
        ..medium_shape()
    }
}

const PREFILL: usize = 512;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    pub shape: ModelConfig,
    pub format: WeightFormat,
    /// What is quickest, where nothing is said.
    pub compute_type: Option<ComputeType>,
    pub kv: KvFormat,
    pub threads: usize,
    /// For everything together.
    pub budget: Duration,
    /// Context that decode is measured at.
    pub context: usize,
    /// Training too: every weight, and an adapter.
    pub train: bool,
}

/// The model of a plan, with random weights.
pub fn model(plan: &Plan) -> Model {
    let weights = Weights::random(&plan.shape, 1).into_format(plan.format);
    let compute_type = plan.compute_type.unwrap_or_else(|| weights.quickest());
    let model = Model::new(plan.shape.clone(), weights);
    model.with_compute_type(compute_type).with_kv(plan.kv)
}

/// Sequences at once, and adapters that they are under.
const DECODES: [(usize, usize); 5] = [(1, 0), (8, 0), (32, 0), (32, 1), (32, 8)];

/// Measures decode at batch 1, 8 and 32, without adapters and with, prefill of 512 tokens, and training
/// where it is wanted, each for an equal part of the budget.
pub fn run(plan: &Plan, model: Model) -> Vec<Speed> {
    let exec = Executor::new(plan.threads);
    let share = plan.budget / if plan.train { 8 } else { 6 };
    let mut speeds = Vec::new();
    for (batch, adapters) in DECODES {
        let adapters: Vec<Adapter> = (0..adapters as u64)
            .map(|seed| Adapter::random(&model.config, lora(), seed))
            .collect();
        let size = (batch, plan.context);
        speeds.push(decode(&model, &exec, (size, &adapters), share));
    }
    speeds.push(prefill(&model, &exec, share));
    if plan.train {
        training(model, exec, share, &mut speeds);
    }
    speeds
}

/// An adapter as training makes them.
fn lora() -> LoraConfig {
    LoraConfig {
        rank: 8,
        alpha: 16.0,
        targets: Target::ALL.to_vec(),
        rslora: false,
        dtype: AdapterDtype::F32,
    }
}

fn training(model: Model, exec: Executor, share: Duration, speeds: &mut Vec<Speed>) {
    let (model, exec) = (Arc::new(model), Arc::new(exec));
    for (name, trainable) in [
        ("train full", Trainable::Full),
        ("train adapter", Trainable::Lora(lora())),
    ] {
        let cfg = LearnerConfig::new(trainable, Objective::CrossEntropy, 1e-4);
        let learner = Learner::new(Arc::clone(&model), cfg).expect("the settings are valid");
        speeds.push(train(name, learner.on(Arc::clone(&exec)), share));
    }
}

/// Steps on four rows of 512 tokens, all of them learned from.
fn train(name: &str, mut learner: Learner, share: Duration) -> Speed {
    let vocab = learner.current().config.vocab;
    let loss = TokenLoss::imitated;
    let row = |seed: usize| TrainRow {
        tokens: (0..=PREFILL)
            .map(|i| ((i * 31 + seed) % vocab) as u32)
            .collect(),
        loss: (1..=PREFILL).map(loss).collect(),
    };
    let rows: Vec<TrainRow> = (0..4).map(row).collect();
    measure(name.to_owned(), 4 * PREFILL, share, &mut || {
        let report = learner.step(&rows, &mut || Control::Continue);
        assert!(
            report.is_ok_and(|r| r.updates == 1),
            "a measured step must update"
        );
    })
}

/// Repeats `call`, which handles `tokens` tokens, for `share` (at least twice, the first unmeasured).
fn measure(name: String, tokens: usize, share: Duration, call: &mut dyn FnMut()) -> Speed {
    call();
    let start = Instant::now();
    let (mut calls, mut longest) = (0, Duration::ZERO);
    while calls == 0 || start.elapsed() < share {
        let one = Instant::now();
        call();
        longest = longest.max(one.elapsed());
        calls += 1;
    }
    Speed {
        name,
        tokens_per_second: (calls * tokens) as f64 / start.elapsed().as_secs_f64(),
        longest_ms: longest.as_secs_f64() * 1e3,
    }
}

fn decode(
    model: &Model,
    exec: &Executor,
    ((batch, context), adapters): ((usize, usize), &[Adapter]),
    share: Duration,
) -> Speed {
    let per_seq = (context + 1).div_ceil(BLOCK_TOKENS);
    let mut kv = KvPool::new(model, batch * per_seq);
    kv.touch();
    let mut scratch = Scratch::default();
    let blocks: Vec<u32> = (0..(batch * per_seq) as u32).collect();
    let token = [1];
    let seqs: Vec<SeqInput> = blocks
        .chunks(per_seq)
        .enumerate()
        .map(|(at, blocks)| SeqInput {
            tokens: &token,
            start: context,
            blocks,
            // Those of an adapter stand together, as the engine lays them.
            adapter: adapters.get(at * adapters.len() / batch),
            logits: LogitsWanted::Last,
        })
        .collect();
    let mut name = format!("decode batch {batch}, context {context}");
    if !adapters.is_empty() {
        name.push_str(&format!(", adapters {}", adapters.len()));
    }
    measure(name, batch, share, &mut || {
        let logits = forward(model, &mut kv, &seqs, exec, &mut scratch);
        assert_eq!(logits.rows(), batch);
    })
}

fn prefill(model: &Model, exec: &Executor, share: Duration) -> Speed {
    let blocks: Vec<u32> = (0..PREFILL.div_ceil(BLOCK_TOKENS) as u32).collect();
    let mut kv = KvPool::new(model, blocks.len());
    let mut scratch = Scratch::default();
    let tokens: Vec<u32> = (0..PREFILL)
        .map(|i| (i % model.config.vocab) as u32)
        .collect();
    let seq = SeqInput {
        tokens: &tokens,
        start: 0,
        blocks: &blocks,
        adapter: None,
        logits: LogitsWanted::Last,
    };
    measure(format!("prefill {PREFILL}"), PREFILL, share, &mut || {
        let logits = forward(model, &mut kv, &[seq], exec, &mut scratch);
        assert_eq!(logits.rows(), 1);
    })
}

/// Additions between two looks at the clock.
const ADDITIONS: usize = 24 << 20;

/// Multiply-adds a second that `threads` threads together reach on numbers in registers: no product
/// is faster. Threads that share a core share what it can do.
pub fn roof(compute_type: ComputeType, threads: usize, time: Duration) -> f64 {
    let (exec, start) = (Executor::new(threads), Instant::now());
    let mut rounds = 0;
    let inputs = match compute_type {
        ComputeType::F32 => Single::INPUTS,
        ComputeType::Bf16 | ComputeType::Amx => Pairs::INPUTS,
        ComputeType::Int8 => Quads::INPUTS,
    };
    let each = ADDITIONS * LANES * inputs;
    while start.elapsed() < time {
        exec.run(threads, &|_| {
            std::hint::black_box(match compute_type {
                ComputeType::F32 => Single::dispatch(Sums::<Single>(PhantomData)),
                ComputeType::Amx if gemm::multiply(each) => 0.0,
                ComputeType::Bf16 | ComputeType::Amx => Pairs::dispatch(Sums::<Pairs>(PhantomData)),
                ComputeType::Int8 => Quads::dispatch(QuadSums),
            });
        });
        rounds += 1;
    }
    (rounds * threads * each) as f64 / start.elapsed().as_secs_f64()
}

struct Sums<F>(PhantomData<F>);

impl<F: Stepped> Kernel for Sums<F> {
    type Out = f32;
    #[inline(always)]
    fn run<V: V16>(self) -> f32 {
        // As many sums as a product keeps in registers.
        match V::WIDE {
            true => add::<F, V, MAX_TILE>(),
            false => add::<F, V, MAX_ROWS>(),
        }
    }
}

struct QuadSums;

impl Kernel for QuadSums {
    type Out = f32;
    #[inline(always)]
    fn run<V: V16>(self) -> f32 {
        match V::WIDE {
            true => add_quads::<V, MAX_TILE>(),
            false => add_quads::<V, MAX_ROWS>(),
        }
    }
}

#[inline(always)]
fn add_quads<V: V16, const SUMS: usize>() -> f32 {
    let (x, codes) = ([0.5_f32; SUMS], [1; Quads::INPUTS * LANES]);
    // SAFETY: called at this level; the arrays hold what is read.
    unsafe {
        let (mut sums, weights) = ([V::zero(); SUMS], V::quad_i8(codes.as_ptr()));
        for _ in 0..ADDITIONS / SUMS {
            // Read every time, so that nothing of a step is done once for all. Every sum has inputs of its own, as
            // products are not a part of the addition everywhere.
            let (x, w) = std::hint::black_box((x.as_ptr(), &raw const weights));
            for part in 0..V::QUAD_PARTS {
                for (m, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.dot_quads(x.add(m), w.read(), part);
                }
            }
        }
        total(sums)
    }
}

#[inline(always)]
fn add<F: Stepped, V: V16, const SUMS: usize>() -> f32 {
    let factors = [0.5_f32; 2];
    // SAFETY: called at this level; the arrays hold what is read and written.
    unsafe {
        let mut sums = [V::zero(); SUMS];
        for _ in 0..ADDITIONS / SUMS {
            // Read every time, so that nothing of a step is done once for all.
            let [x, w] = [0, 1].map(|at| std::ptr::read_volatile(&raw const factors[at]));
            let (x, w) = (F::splat::<V>(&raw const x), F::splat::<V>(&raw const w));
            for sum in &mut sums {
                *sum = F::add(*sum, x, w);
            }
        }
        total(sums)
    }
}

/// # Safety
/// As for the methods of [`V16`].
#[inline(always)]
unsafe fn total<V: V16, const SUMS: usize>(sums: [V; SUMS]) -> f32 {
    // SAFETY: same contract.
    unsafe {
        let total = sums.into_iter().reduce(|a, b| a.add(b));
        total.unwrap_or(V::zero()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hone_kernels::matrix::{PackedMatrix, Rows, RowsMut, Store};

    /// Machines are shared: the two are measured at different times, so once in a few is enough.
    #[test]
    fn a_product_is_not_above_the_roof() {
        let (rows, cols, inp) = (48, 256, 256);
        let (x, mut y) = (vec![0.5; rows * inp], vec![0.0; rows * cols]);
        let (matrix, exec) = (PackedMatrix::zeros(cols, inp), Executor::new(1));
        let time = Duration::from_millis(20);
        let mut reached = || {
            let (start, mut count) = (Instant::now(), 0);
            while start.elapsed() < time {
                let from = Rows {
                    data: &x,
                    stride: inp,
                    rows,
                };
                let to = RowsMut {
                    data: &mut y,
                    stride: cols,
                };
                matrix.linear(from, to, Store::Set(None), &exec);
                count += rows * cols * inp;
            }
            count as f64 / start.elapsed().as_secs_f64()
        };
        let shares: Vec<f64> = (0..10)
            .map(|_| reached() / roof(ComputeType::F32, 1, time))
            .collect();
        assert!(shares.iter().any(|share| *share < 1.2), "{shares:?}");
    }
}
