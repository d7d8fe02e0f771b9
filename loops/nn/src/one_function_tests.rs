//! A model serves and trains one function, whatever computes its products: bf16, int8, tiles, blocks of
//! four and eight bits, exponent-coded weights.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_kernels::format::block_quant::WeightFormat;
use hone_kernels::matrix::ComputeType;
use hone_kernels::thread_pool::Executor;

use crate::adapter::Adapter;
use crate::computing::Computing;
use crate::kernel_support::{BOTH, Levels, with_tiles};
use crate::score::{score, score_chunked};
use crate::testing::{lora, model, tiny, tokens, with_experts};
use crate::train::{Control, Learner, LearnerConfig, Objective, TokenLoss, TrainRow, Trainable};
use crate::weights::{Keep, Model, Weights, fingerprint};
use hone_checkpoint::AdapterDtype;
use hone_checkpoint::config::{Family, ModelConfig};

const BLOCKS: [WeightFormat; 2] = [WeightFormat::Q8, WeightFormat::Q4];

/// Formats that have them, and the arithmetics of bf16.
fn of_bf16() -> impl Iterator<Item = (WeightFormat, ComputeType)> {
    [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4]
        .into_iter()
        .flat_map(|f| BOTH.map(|by| (f, by)))
}

/// What is served is what is trained, whatever the chunks, the threads and the level: log-probs of a
/// text, and the state of a learner after two steps on it.
#[test]
fn a_model_of_bf16_serves_and_trains_one_function() {
    with_tiles();
    let mut wide = tiny(Family::Qwen3);
    (wide.hidden, wide.head_dim, wide.ffn, wide.vocab) = (48, 16, 96, 144);
    for shape in [tiny(Family::Qwen2), wide, with_experts(true)] {
        serves_and_trains_one_function(&shape, (of_bf16(), |weights| weights));
    }
}

/// See [`a_model_of_bf16_serves_and_trains_one_function`]; with weights kept as `kept` makes them.
fn serves_and_trains_one_function(
    shape: &ModelConfig,
    (ways, kept): (
        impl Iterator<Item = (WeightFormat, ComputeType)>,
        impl Fn(Weights) -> Weights,
    ),
) {
    let levels = Levels::ours();
    let text = tokens(shape, 70, 3);
    let row = TrainRow {
        tokens: text.clone(),
        loss: (30..70).map(TokenLoss::imitated).collect(),
    };
    let adapter = Adapter::random(shape, lora(AdapterDtype::Bf16), 5);
    for (format, by) in ways {
        let weights = model(shape, 7).weights.into_format(format);
        let plain = Model::new(shape.clone(), weights);
        let mut base = plain.clone().with_compute_type(by);
        base.weights = kept(base.weights);
        let base = Arc::new(base);
        assert_eq!(base.digest, plain.digest);
        assert_ne!(fingerprint(&base), fingerprint(&plain));
        let logprobs = |model: &Model, chunk: usize, threads: usize| -> Vec<u32> {
            let exec = Executor::new(threads);
            let scores = score_chunked(model, Some(&adapter), (&text, chunk), &exec);
            let bits = |at| scores.logprob(at, 1.0, None).to_bits();
            (1..70).map(bits).collect()
        };
        let trained = |threads: usize, activation_bytes_max: usize| {
            let cfg = LearnerConfig {
                activation_bytes_max,
                ..LearnerConfig::new(
                    Trainable::Lora(lora(AdapterDtype::Bf16)),
                    Objective::CrossEntropy,
                    1e-2,
                )
            };
            let learner = Learner::from_adapter(Arc::clone(&base), cfg, &adapter).unwrap();
            let mut learner = learner.on(Arc::new(Executor::new(threads)));
            let mut go_on = || Control::Continue;
            let first = learner
                .step(std::slice::from_ref(&row), &mut go_on)
                .unwrap();
            learner
                .step(std::slice::from_ref(&row), &mut go_on)
                .unwrap();
            (first.proximal_logprobs.concat(), learner.state())
        };
        let served = logprobs(&base, 70, 1);
        assert!(served != logprobs(&plain, 70, 1), "inputs are rounded");
        let (proximal, state) = trained(1, 0);
        let seen: Vec<u32> = proximal.iter().map(|l| l.to_bits()).collect();
        assert_eq!(seen, served[29..]);
        for level in levels.each() {
            for (chunk, threads) in [(70, 3), (1, 1), (5, 2), (33, 1)] {
                assert_eq!(
                    served,
                    logprobs(&base, chunk, threads),
                    "{format:?} {by:?} {level:?}"
                );
            }
            assert!(
                state == trained(3, 1 << 30).1,
                "{format:?} {by:?} {level:?}"
            );
        }
    }
}

/// Serving and training on codes give the bits of the f32 model that holds the dequantised weights.
#[test]
fn a_quantised_model_serves_and_trains_as_its_dequantised_twin() {
    let shape = tiny(Family::Qwen3);
    let exec = Executor::new(2);
    let text = tokens(&shape, 70, 3);
    let row = TrainRow {
        tokens: text.clone(),
        loss: (30..70).map(TokenLoss::imitated).collect(),
    };
    for format in BLOCKS {
        let weights = model(&shape, 7).weights.into_format(format);
        let twin = Arc::new(Model::new(shape.clone(), weights.widened()));
        let small = Arc::new(Model::new(shape.clone(), weights));
        assert_eq!(small.digest, twin.digest);
        assert_ne!(fingerprint(&small), fingerprint(&twin));
        let adapter = Adapter::random(&shape, lora(AdapterDtype::Bf16), 5);
        let scores = |model: &Model| {
            let scores = score(model, Some(&adapter), &text, &exec);
            (1..70).map(|at| scores.logits(at)).collect::<Vec<_>>()
        };
        assert_eq!(scores(&small), scores(&twin), "{format:?}");
        let trained = |model: &Arc<Model>| {
            let lora = Trainable::Lora(lora(AdapterDtype::Bf16));
            let cfg = LearnerConfig::new(lora, Objective::CrossEntropy, 1e-2);
            let mut learner = Learner::from_adapter(Arc::clone(model), cfg, &adapter).unwrap();
            let report = learner
                .step(std::slice::from_ref(&row), &mut || Control::Continue)
                .unwrap();
            assert_eq!(report.updates, 1);
            learner.state()
        };
        assert!(trained(&small) == trained(&twin), "{format:?}");
    }
}

/// What is taken where nothing is said: what most weights are decides.
#[test]
fn codes_are_computed_so_where_it_is_quickest() {
    let (bytes, pairs) = (ComputeType::Int8, ComputeType::Bf16);
    for shape in [whole(tiny(Family::Qwen3)), whole(with_experts(true))] {
        let weights = model(&shape, 7).weights;
        for (format, quickest) in [
            (WeightFormat::Q8, bytes),
            (WeightFormat::Q4, bytes),
            (WeightFormat::Bf16, pairs),
            (WeightFormat::F32, pairs),
        ] {
            let weights = weights.clone().into_format(format);
            assert_eq!(
                weights.quickest_with(true, Some(pairs)),
                quickest,
                "{format:?}"
            );
            assert_eq!(
                weights.quickest_with(false, Some(pairs)),
                pairs,
                "{format:?}"
            );
            assert_eq!(weights.quickest_with(false, None), ComputeType::F32);
            // What no matrix takes is f32, whatever was quickest.
            let has = format != WeightFormat::F32;
            let computed = weights.with_compute_type(quickest).compute_type();
            assert_eq!(computed, if has { quickest } else { ComputeType::F32 });
        }
        // An embedding of another format decides nothing.
        let mut mixed = weights.clone().into_format(WeightFormat::Bf16);
        mixed.layers = weights.into_format(WeightFormat::Q8).layers;
        assert_eq!(mixed.quickest_with(true, Some(pairs)), bytes);
    }
    // No whole groups.
    let odd = model(&tiny(Family::Qwen2), 7).weights;
    let odd = odd.into_format(WeightFormat::Q8);
    assert_eq!(odd.quickest_with(true, Some(pairs)), pairs);
}

/// The shape with whole groups of inputs.
fn whole(mut shape: ModelConfig) -> ModelConfig {
    (shape.hidden, shape.head_dim, shape.ffn) = (64, 16, 96);
    shape
}

/// See the test of that name for bf16.
#[test]
fn a_model_of_int8_serves_and_trains_one_function() {
    for shape in [whole(tiny(Family::Qwen2)), whole(with_experts(true))] {
        let ways = BLOCKS.map(|format| (format, ComputeType::Int8));
        serves_and_trains_one_function(&shape, (ways.into_iter(), |weights| weights));
    }
}

/// Log-probs of a compact model are those of the plain one, and what it serves is what it trains.
#[test]
fn a_compact_model_serves_and_trains_one_function() {
    with_tiles();
    let mut shape = tiny(Family::Qwen3);
    (shape.hidden, shape.head_dim, shape.ffn, shape.vocab) = (48, 16, 96, 144);
    let half = model(&shape, 7).weights.into_format(WeightFormat::Bf16);
    let plain = Model::new(
        shape.clone(),
        half.clone().with_compute_type(ComputeType::Bf16),
    );
    let compact = Model {
        weights: plain.weights.clone().compacted(),
        ..plain.clone()
    };
    assert!(compact.weights.bytes() < plain.weights.bytes());
    let told = [&plain, &compact].map(Computing::of);
    let halves = told.each_ref().map(|c| c.weights.contains("in 12 bits"));
    assert_eq!((told[0].weights.as_str(), halves), ("bf16", [false, true]));
    assert_eq!(told[1].weights_bytes, compact.weights.bytes());
    assert_eq!(compact.weights.digest(&shape), plain.digest);
    // The same from the moment it is read, and as it was where something else computes it after all.
    let tensors = model(&shape, 7).weights.to_tensors(&shape);
    let keep = Keep {
        format: WeightFormat::Bf16,
        compact: true,
    };
    let read = Weights::from_source_as(&shape, &tensors, keep).unwrap();
    assert!(read == compact.weights && read.with_compute_type(ComputeType::F32) == half);
    let text = tokens(&shape, 70, 3);
    let logprobs = |model: &Model| -> Vec<u32> {
        let exec = Executor::new(2);
        let scores = score_chunked(model, None, (&text, 30), &exec);
        let bits = |at| scores.logprob(at, 1.0, None).to_bits();
        (1..70).map(bits).collect()
    };
    assert_eq!(logprobs(&plain), logprobs(&compact));
    let ways = BOTH.map(|by| (WeightFormat::Bf16, by));
    serves_and_trains_one_function(&shape, (ways.into_iter(), Weights::compacted));
}
