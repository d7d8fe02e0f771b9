//! Learning on models with experts: gradients as PyTorch computes them, and recorded experts.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::Arc;

use serde_json::Value;

use super::tests::{SlowLoss, gradients};
use super::*;
use crate::adapter::Adapter;
use crate::goldens_test;
use crate::testing::{
    Oracle, PPO, bits, config, go_on, lora, lora_of, model, recorded, rows, with_experts,
};
use hone_checkpoint::AdapterDtype;
use hone_checkpoint::config::ModelConfig;

#[test]
fn gradients_are_those_of_pytorch() {
    for name in ["qwen3_moe", "qwen3_moe_shares"] {
        let base = Arc::new(goldens_test::model(name));
        let adapter = goldens_test::adapter(&base, name);
        let json = |file: &str| -> Value {
            let path = goldens_test::folder(name).join(file);
            serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
        };
        let tokens = goldens_test::numbers(&json("golden_adapter.json")["tokens"]);
        let tokens: Vec<u32> = tokens.iter().map(|t| *t as u32).collect();
        let loss = (1..tokens.len()).map(TokenLoss::imitated).collect();
        let trainable = Trainable::from(adapter.config.clone());
        let cfg = LearnerConfig {
            lr: 0.0,
            ..LearnerConfig::new(trainable, Objective::CrossEntropy, 0.0)
        };
        let mut learner = Learner::from_adapter(Arc::clone(&base), cfg, &adapter).unwrap();
        let report = learner
            .step(&[TrainRow { tokens, loss }], &mut go_on)
            .unwrap();
        let golden = json("golden_gradients.json");
        let wanted = golden["loss"].as_f64().unwrap();
        assert!(
            (report.loss - wanted).abs() < 1e-4,
            "{} for {wanted}",
            report.loss
        );
        let found = gradients(&learner, &base.config);
        assert_eq!(found.len(), golden["gradients"].as_object().unwrap().len());
        for tensor in found {
            let wanted = goldens_test::numbers(&golden["gradients"][&tensor.name]);
            let largest = wanted.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            assert!(largest > 1e-4, "{name}: {} has no gradient", tensor.name);
            assert_eq!(wanted.len(), tensor.data.len());
            for (found, wanted) in tensor.data.iter().zip(&wanted) {
                let error = (f64::from(*found) - wanted).abs();
                assert!(
                    error < 1e-3 * largest,
                    "{name}: {}: {found} for {wanted} (largest {largest})",
                    tensor.name
                );
            }
        }
    }
}

#[test]
fn recorded_experts_are_used_again_whatever_the_weights_are_now() {
    for shape in [with_experts(true), with_experts(false)] {
        let base = Arc::new(model(&shape, 7));
        let lora = lora_of(&shape, AdapterDtype::F32);
        let before = Adapter::random(&shape, lora.clone(), 3);
        let now = Adapter::random(&shape, lora.clone(), 4);
        let plain = rows(&shape, 2);
        let replayed = recorded(&base, &before, &plain);
        let cfg = config(Trainable::Lora(lora), PPO);
        let learner =
            |adapter| Learner::from_adapter(Arc::clone(&base), cfg.clone(), adapter).unwrap();
        // The same weights: the same bits.
        let mut same = learner(&before);
        assert_eq!(
            bits(&same.logprobs(&plain, &mut go_on).unwrap()),
            bits(&same.logprobs(&replayed, &mut go_on).unwrap())
        );
        // Other weights choose other experts, except where they are recorded.
        let mut other = learner(&now);
        let free = other.logprobs(&plain, &mut go_on).unwrap();
        let found = other.logprobs(&replayed, &mut go_on).unwrap();
        assert_ne!(bits(&free), bits(&found));
        let mut oracle = Oracle::new(&base, Some(&now));
        for (row, found) in replayed.iter().zip(&found) {
            oracle.recorded = vec![None; row.tokens.len()];
            for loss in &row.loss {
                oracle.recorded[loss.position - 1].clone_from(&loss.experts);
            }
            let wanted = SlowLoss::logprobs(&oracle, std::slice::from_ref(row));
            for (found, wanted) in found.iter().zip(&wanted[0]) {
                let error = (f64::from(*found) - wanted).abs();
                assert!(error < 1e-3, "{found} for {wanted}");
            }
        }
        let report = other.step(&replayed, &mut go_on).unwrap();
        assert_eq!(bits(&report.proximal_logprobs), bits(&found));
        assert!(report.updates == 1 && report.grad_norm > 0.0);
    }
}

#[test]
fn what_is_not_trained_of_a_model_with_experts_is_refused() {
    let shape = with_experts(true);
    let base = Arc::new(model(&shape, 7));
    let new = |trainable| Learner::new(Arc::clone(&base), config(trainable, PPO));
    assert_eq!(new(Trainable::Full).err(), Some(LearnerError::Experts));
    let error = new(Trainable::Lora(lora(AdapterDtype::F32))).err().unwrap();
    assert!(error.to_string().contains("gate_proj"), "{error}");

    let refused = |shape: &ModelConfig, experts: Vec<u16>| {
        let base = Arc::new(model(shape, 7));
        let trainable = Trainable::Lora(lora_of(shape, AdapterDtype::F32));
        let mut learner = Learner::new(base, config(trainable, PPO)).unwrap();
        let mut rows = rows(shape, 2);
        rows[0].loss[0].experts = Some(experts);
        let error = learner.logprobs(&rows, &mut go_on).unwrap_err();
        assert!(error.to_string().contains("experts"), "{error}");
    };
    refused(&shape, vec![0, 1, 2]);
    refused(&shape, vec![0, 1, 2, 0, 1, 7]);
    refused(&shape, vec![0, 1, 1, 0, 1, 2]);
    refused(
        &crate::testing::tiny(hone_checkpoint::Family::Qwen3),
        vec![0],
    );
}
