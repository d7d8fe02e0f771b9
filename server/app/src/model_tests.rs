//! The built-in model in every arithmetic.

use hone_checkpoint::{AdapterDtype, LoraConfig, Target};
use hone_kernels::WeightFormat;
use hone_nn::{Adapter, prove};

use super::*;
use crate::config::{Config, Sources};

fn starter(format: WeightFormat) -> Arc<Model> {
    let folder = ModelFolder::embedded(hone_starter::model_files()).expect("it is whole");
    let wanted = LoadAs {
        format,
        ..LoadAs::default()
    };
    let model = load_model_as(folder.checkpoint(), wanted, &mut |_, _, _| {}).expect("it is whole");
    Arc::new(model)
}

fn asked(products: Products) -> ModelConfig {
    let config = Config::load(&Sources::default()).expect("the defaults are valid");
    ModelConfig {
        arithmetic: products,
        ..config.model
    }
}

#[test]
fn what_no_matrix_takes_is_refused_only_where_it_is_asked_for() {
    for (format, codes) in [
        (WeightFormat::F32, false),
        (WeightFormat::Bf16, false),
        (WeightFormat::Q8, true),
        (WeightFormat::Q4, true),
    ] {
        let model = starter(format);
        let own = computed(Arc::clone(&model), &asked(Products::Auto), false);
        assert!(own.is_ok(), "{format:?}: {:?}", own.err());
        match computed(model, &asked(Products::Int8), false) {
            Ok(model) => assert!(codes && model.weights.compute_type() == ComputeType::Int8),
            Err(why) => assert!(!codes && why.contains("model.weights"), "{why}"),
        }
    }
}

/// What was published under one arithmetic is served under any other; what says something else is not.
#[test]
fn a_version_is_proven_under_every_arithmetic() {
    let exec = Executor::new(1);
    let lora = LoraConfig {
        rank: 4,
        alpha: 4.0,
        targets: Target::ALL.to_vec(),
        rslora: false,
        dtype: AdapterDtype::F32,
    };
    for format in [WeightFormat::Q8, WeightFormat::Q4, WeightFormat::Bf16] {
        let model = starter(format);
        let published = Adapter::random(&model.config, lora.clone(), 5);
        let ways: Vec<Model> = [
            ComputeType::F32,
            ComputeType::Bf16,
            ComputeType::Amx,
            ComputeType::Int8,
        ]
        .into_iter()
        .filter(|by| by.supported())
        .map(|by| Model::clone(&model).with_compute_type(by))
        .collect();
        for from in &ways {
            let probe = hone_nn::probe(from, Some(&published), &exec);
            for to in &ways {
                assert_eq!(prove(to, Some(&published), &probe, &exec), Ok(()));
                assert!(prove(to, None, &probe, &exec).is_err());
            }
        }
    }
}
