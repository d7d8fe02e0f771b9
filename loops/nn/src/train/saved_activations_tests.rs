//! What is kept of layers changes no bit, and stays within its budget.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::saved_activations::{SavedActivations, Size};
use super::*;
use crate::adapter::Adapter;
use crate::shapes::starter_shape;
use crate::testing::{
    PPO, config, forms_of, go_on, lora_of, model, policy, recorded, tokens, with_experts,
};
use hone_checkpoint::AdapterDtype;
use hone_checkpoint::config::ModelConfig;
use hone_kernels::thread_pool::Executor;

/// Rows of different lengths, of which two are packed together.
fn rows(shape: &ModelConfig) -> Vec<TrainRow> {
    let row = |(seed, length): (u64, usize)| TrainRow {
        tokens: tokens(shape, length, seed),
        loss: (1..length)
            .map(|position| TokenLoss {
                behavior_logprob: -7.0,
                ..policy(position)
            })
            .collect(),
    };
    [(0, 50), (1, 37), (2, 90), (3, 21)].map(row).to_vec()
}

/// A dense model, and ones whose layers have experts, with the experts that were used.
fn cases() -> Vec<(ModelConfig, Vec<TrainRow>)> {
    let mut dense = starter_shape();
    dense.windows = vec![Some(64), None, Some(64), None];
    let dense_rows = rows(&dense);
    let with = |normalised: bool| {
        let shape = with_experts(normalised);
        let used = Adapter::random(&shape, lora_of(&shape, AdapterDtype::F32), 3);
        let rows = recorded(&model(&shape, 7), &used, &rows(&shape));
        (shape, rows)
    };
    vec![(dense, dense_rows), with(true), with(false)]
}

const MINIBATCH: usize = 100;

/// Bytes of the layer below the last, in the longest micro-batch.
fn one_layer(shape: &ModelConfig) -> usize {
    Size::of(shape, shape.layers - 2, MINIBATCH).bytes()
}

#[test]
fn bits_do_not_depend_on_what_is_kept() {
    for (shape, rows) in cases() {
        let base = Arc::new(model(&shape, 7));
        let mut trained: Vec<Trainable> = forms_of(&shape, AdapterDtype::F32)
            .map(Trainable::from)
            .into_iter()
            .collect();
        trained.extend(shape.experts.is_none().then_some(Trainable::Full));
        for trainable in trained {
            let run = |activation_bytes_max, threads| {
                let cfg = LearnerConfig {
                    minibatch_tokens: MINIBATCH,
                    activation_bytes_max,
                    kl_coef: 0.0,
                    ..config(trainable.clone(), PPO)
                };
                let learner = Learner::new(Arc::clone(&base), cfg).unwrap();
                let mut learner = learner.on(Arc::new(Executor::new(threads)));
                learner.step(&rows, &mut go_on).unwrap();
                let kept = learner.step(&rows, &mut go_on).unwrap().layers_kept;
                let arrays = learner.sink.arrays_mut();
                let bits = |(array, _): &(&mut [f32], bool)| -> Vec<u32> {
                    array.iter().map(|v| v.to_bits()).collect()
                };
                let gradients: Vec<Vec<u32>> = arrays.iter().map(bits).collect();
                assert!(gradients.iter().flatten().any(|bits| *bits != 0));
                (kept, gradients, learner.state())
            };
            let (kept, gradients, state) = run(0, 1);
            assert_eq!(kept, 1);
            for (budget, layers) in [(one_layer(&shape), 2), (1 << 30, shape.layers)] {
                let (kept, now, now_state) = run(budget, 2);
                assert_eq!(kept, layers, "{trainable:?}");
                assert!(gradients == now, "{trainable:?}: gradients, {budget} bytes");
                assert!(state == now_state, "{trainable:?}: state, {budget} bytes");
            }
        }
    }
}

#[test]
fn what_is_kept_stays_within_its_budget_whatever_the_batch() {
    for (shape, rows) in cases() {
        let base = Arc::new(model(&shape, 7));
        let one = one_layer(&shape);
        for budget in [0, one / 2, one, one + one / 2, 2 * one, 1 << 30] {
            let trainable = Trainable::Lora(lora_of(&shape, AdapterDtype::F32));
            let cfg = LearnerConfig {
                minibatch_tokens: MINIBATCH,
                activation_bytes_max: budget,
                ..config(trainable, PPO)
            };
            let mut learner = Learner::new(Arc::clone(&base), cfg).unwrap();
            // Short, then long, then short again, then all: never more than the budget.
            for rows in [&rows[3..], &rows[2..3], &rows[..1], &rows[..]] {
                learner.step(rows, &mut go_on).unwrap();
                let held = learner.buffers.saved.bytes();
                assert!(held <= budget, "{held} of {budget}");
            }
            learner.rest();
            assert_eq!(learner.buffers.saved.bytes(), 0);
        }
    }
}

#[test]
fn a_longer_row_keeps_fewer_layers() {
    let shape = starter_shape();
    let budget = 3 * Size::of(&shape, 0, 100).bytes();
    let mut kept = SavedActivations::default();
    for (tokens, layers) in [(100, 4), (150, 3), (290, 2), (400, 1), (20, 4), (100, 4)] {
        kept.prepare(&shape, tokens, budget);
        assert_eq!(kept.count(), layers, "{tokens} tokens");
        assert!(kept.bytes() <= budget);
        let found = (0..shape.layers).filter(|layer| kept.has(*layer)).count();
        assert_eq!(found, layers);
    }
}
