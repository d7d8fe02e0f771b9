//! Every differentiable operation alone: its gradient against central differences of the same
//! operation written in f64 from its definition, and its forward against that definition.
#![allow(clippy::unwrap_used)]

use super::attention::AttentionGrad;
use super::batch::{Buffers, LossPosition, Run, Sink};
use super::layer::{GradBufs, LayerBack, LayerSink, Step, embedding_grad};
use super::loss::RowGrad;
use super::objective::{SequenceView, TokenView};
use super::{Distill, KlEstimator, Objective, TopK};
use crate::adapter::{Adapter, Change, Pair};
use crate::attention::Attention;
use crate::batch::{LogitsWanted, SeqInput};
use crate::forward::head;
use crate::kv::{BLOCK_TOKENS, KvLayer};
use crate::kv_format::KvFormat;
use crate::layer::Temp;
use crate::pass::{Dims, Pass};
use crate::rope::{Rope, rotate};
use crate::testing::{model, tiny};
use crate::weights::Model;
use hone_checkpoint::config::{Family, ModelConfig};
use hone_checkpoint::{AdapterConfig, AdapterDtype, DenseConfig, LoraConfig, Target};
use hone_kernels::cpu::{Buf, padded};
use hone_kernels::format::tensor_data::TensorData;
use hone_kernels::matrix::{PackedMatrix, Rows, RowsMut, Store};
use hone_kernels::ops::log_softmax::Shape;
use hone_kernels::ops::{GluShape, NormGrad, RmsNorm, swiglu, swiglu_backward};
use hone_kernels::rng::Rng;
use hone_kernels::thread_pool::Executor;

mod attention;
mod losses;
mod matrices;
mod rows;

use attention::attention;
use losses::{distilled, divergence, policy, prediction};
use matrices::{dense_change, embedding, final_head, linear, low_rank};
use rows::{gated, rms_norm, rotation};

/// Largest error of a gradient, relative to the input's largest gradient.
const TOLERANCE: f64 = 2e-4;
/// Half the distance of a central difference.
const H: f64 = 1e-5;

type Slow = Box<dyn Fn(&[Vec<f64>]) -> Vec<f64>>;
type Fast = Box<dyn Fn(&[Vec<f32>]) -> Vec<f32>>;
type Grads = Box<dyn Fn(&[Vec<f32>], &[f32]) -> Vec<Vec<f32>>>;

/// An operation: flat inputs to one flat output.
struct Op {
    name: String,
    inputs: Vec<Vec<f32>>,
    /// Its definition.
    slow: Slow,
    /// What is served.
    fast: Fast,
    /// Gradients of every input, given that of the output.
    grads: Grads,
}

fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.normal() as f32).collect()
}

/// What is wrong with an operation.
fn check(op: &Op) -> Result<(), String> {
    let mut wide: Vec<Vec<f64>> = op
        .inputs
        .iter()
        .map(|x| x.iter().map(|v| f64::from(*v)).collect())
        .collect();
    let wanted = (op.slow)(&wide);
    let found = (op.fast)(&op.inputs);
    assert_eq!(wanted.len(), found.len(), "{}", op.name);
    let most = wanted.iter().fold(1e-3, |m: f64, v| m.max(v.abs()));
    for (i, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
        if (wanted - f64::from(*found)).abs() > 1e-5 * most {
            return Err(format!("{}: output {i} is {found}, not {wanted}", op.name));
        }
    }
    let dy = random(wanted.len(), 99);
    let grads = (op.grads)(&op.inputs, &dy);
    assert_eq!(grads.len(), op.inputs.len(), "{}", op.name);
    let loss = |x: &[Vec<f64>]| -> f64 {
        let y = (op.slow)(x);
        y.iter().zip(&dy).map(|(y, d)| y * f64::from(*d)).sum()
    };
    for (input, grad) in grads.iter().enumerate() {
        assert_eq!(grad.len(), op.inputs[input].len(), "{} {input}", op.name);
        let most = grad.iter().fold(0.0, |m: f64, g| m.max(f64::from(g.abs())));
        assert!(most > 1e-6, "{}: input {input} has no gradient", op.name);
        // Every entry of a small input, a spread of a large one.
        for at in (0..grad.len()).step_by(grad.len().div_ceil(500)) {
            let mut moved = |by: f64| {
                wide[input][at] += by;
                let loss = loss(&wide);
                wide[input][at] -= by;
                loss
            };
            let slope = (moved(H) - moved(-H)) / (2.0 * H);
            let found = f64::from(grad[at]);
            if (found - slope).abs() > TOLERANCE * most {
                let name = &op.name;
                return Err(format!("{name}: input {input}[{at}]: {found}, not {slope}"));
            }
        }
    }
    Ok(())
}

const PPO: Objective = Objective::DecoupledPpo {
    clip_low: 0.2,
    clip_high: 0.28,
    correction_cap: 2.0,
};

/// Every objective, with no term at its clip.
fn objectives() -> [Objective; 7] {
    let (clip_low, clip_high, correction_cap) = (0.2, 0.28, 2.0);
    [
        Objective::CrossEntropy,
        Objective::Ppo {
            clip_low,
            clip_high,
        },
        PPO,
        Objective::Cispo { ratio_cap: 1.05 },
        Objective::Gspo {
            clip_low,
            clip_high,
            correction_cap,
        },
        Objective::DppoTv {
            threshold: 0.2,
            anchor: 0.5,
        },
        Objective::TokenTis { correction_cap },
    ]
}

/// Every operation with a gradient of its own.
fn ops() -> Vec<Op> {
    let mut ops = vec![
        rms_norm(3, 1, 28),
        rms_norm(2, 3, 10),
        gated(3, 41),
        linear(),
        low_rank(false),
        low_rank(true),
        dense_change(),
        embedding(),
        final_head(Family::Llama),
        final_head(Family::Qwen3),
        prediction(1.0, None),
        prediction(0.7, None),
        prediction(1.3, Some(vec![2, 7, 30, 31, 50])),
        // Outside the clip range on the side that is not cut.
        policy(PPO, 0.8, -0.9),
        policy(PPO, -0.6, -1.9),
        distilled(),
    ];
    for objective in objectives() {
        ops.push(policy(objective, 0.8, -1.35));
        ops.push(policy(objective, -0.6, -1.35));
    }
    for estimator in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
        ops.push(divergence(estimator, -1.0));
        ops.push(divergence(estimator, -2.5));
    }
    for (heads, kv_heads, window) in [
        (2, 2, None),
        (4, 2, None),
        (4, 2, Some(21)),
        (4, 1, Some(3)),
    ] {
        ops.push(attention((heads, kv_heads), window, KvFormat::F32));
        ops.push(attention((heads, kv_heads), window, KvFormat::F16));
    }
    for family in [Family::Llama, Family::Qwen3] {
        ops.push(rotation(family, 0));
        ops.push(rotation(family, 211));
    }
    ops
}

#[test]
fn every_operation_matches_finite_differences() {
    let wrong: Vec<String> = ops().iter().filter_map(|op| check(op).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A gradient that is off by a thousandth of itself is found, whatever the operation.
#[test]
fn a_wrong_gradient_is_found() {
    for mut op in ops() {
        let right = op.grads;
        op.grads = Box::new(move |x, dy| {
            let mut grads = right(x, dy);
            let last = grads.last_mut().unwrap();
            last.iter_mut().for_each(|g| *g *= 1.001);
            grads
        });
        assert!(check(&op).is_err(), "{}", op.name);
    }
}
