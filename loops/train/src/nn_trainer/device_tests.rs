//! The trainer on an emulated device: the kernels run on the processor.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_checkpoint::ExpertsConfig;
use hone_cuda::{Device, Driver};
use hone_cuda_emulator::Emulator;
use hone_domain::Turn;

use super::tests::{adopt, config, job, parts, parts_with, sampled, some_experts};
use super::trainer::adapter_config;
use super::*;
use crate::fixture::Fixture;
use crate::wish_answers::WishAnswers;

#[tokio::test]
async fn on_a_device_training_and_the_gate_say_the_same() {
    on_a_device(None).await;
}

/// Their updates are the processor's.
#[tokio::test]
async fn so_they_do_on_a_model_with_experts() {
    on_a_device(Some(some_experts())).await;
}

fn on_emulator(here: &NnParts) -> (Arc<Emulator>, NnParts) {
    let (emulator, model) = (Arc::new(Emulator::new().unwrap()), here.model.clone());
    let device = Device::load(emulator.clone(), model, &here.exec, &mut |_, _| {});
    let there = NnParts {
        device: Some(device.unwrap()),
        ..here.clone()
    };
    (emulator, there)
}

async fn on_a_device(experts: Option<ExpertsConfig>) {
    let fixture = Fixture::new().await;
    let here = parts_with(&fixture, experts);
    let (_, there) = on_emulator(&here);
    let [here_trains, there_trains] =
        [here.clone(), there].map(|parts| NnTrainer::new(parts, &config()).unwrap());
    let mut parent = None;
    for version in 1..3 {
        let turns: Vec<Turn> = (0..3)
            .map(|i| sampled(&fixture, &here, version * 100 + i))
            .collect();
        let job = job(&turns, parent);
        let one = here_trains.step(&job, &mut || false).unwrap();
        let two = there_trains.step(&job, &mut || false).unwrap();
        assert_eq!(one.digest, two.digest, "version {version}");
        assert!(one.files == two.files);
        assert_eq!(one.measured, two.measured);
        assert_eq!((one.parity.mismatches, two.parity.mismatches), (0, 0));
        parent = Some(adopt(&fixture, &one, version));
    }
}

/// A device that is full from a slice on, wherever that is, leaves the rest to the processor; one that
/// fails is told apart from a batch that cannot be trained.
#[tokio::test]
async fn a_device_that_is_full_or_fails_in_the_middle_costs_no_candidate() {
    let fixture = Fixture::new().await;
    let here = parts(&fixture);
    let (emulator, there) = on_emulator(&here);
    let turns: Vec<Turn> = (0..2).map(|i| sampled(&fixture, &here, i)).collect();
    let job = job(&turns, None);
    let [here_trains, there_trains] =
        [here, there].map(|parts| NnTrainer::new(parts, &config()).unwrap());
    let wanted = here_trains.step(&job, &mut || false).unwrap();
    let mut slices = 0;
    let mut count = || {
        slices += 1;
        false
    };
    there_trains.step(&job, &mut count).unwrap();
    for at in (0..slices).step_by(29) {
        let through = |breaks: &dyn Fn()| {
            let mut slice = 0;
            there_trains.step(&job, &mut || {
                if slice == at {
                    breaks();
                }
                slice += 1;
                false
            })
        };
        let found = through(&|| emulator.leave(0)).unwrap();
        emulator.leave(1 << 30);
        assert_eq!(found.digest, wanted.digest, "slice {at}");
        assert_eq!(found.measured, wanted.measured, "slice {at}");
        let failed = through(&|| emulator.fail(true));
        emulator.fail(false);
        assert!(matches!(failed, Err(TrainError::Device(_))), "slice {at}");
    }
}

/// What the learner's passes took is given back before the gate takes what it needs.
#[tokio::test]
async fn the_gate_finds_the_memory_of_the_steps_on_a_device() {
    let fixture = Fixture::new().await;
    let here = parts(&fixture);
    let (emulator, there) = on_emulator(&here);
    let turns: Vec<Turn> = (0..2).map(|i| sampled(&fixture, &here, i)).collect();
    let job = job(&turns, None);
    let trainer = NnTrainer::new(there.clone(), &config()).unwrap();
    let mut seen = Vec::new();
    let mut look = || {
        seen.push(emulator.memory().unwrap().0);
        false
    };
    let candidate = trainer.step(&job, &mut look).unwrap();
    let file = |wanted: &str| {
        let mut files = candidate.files.adapter.iter();
        Some(files.find(|(name, _)| name == wanted)?.1.clone())
    };
    let adapter = peft::load(&file, &there.model.config).unwrap();
    let policies = measure::Compared {
        candidate: &adapter,
        parent: None,
    };
    let job = job.evaluation(candidate.digest, WishAnswers::default());
    let mut alone = Vec::new();
    let mut look = || {
        alone.push(emulator.memory().unwrap().0);
        false
    };
    measure::measure(&there, &trainer.gate, None, &job, policies, &mut look).unwrap();
    let of_steps = seen.len() - alone.len();
    assert!(of_steps > 0);
    assert_eq!(seen[of_steps..], alone);
}

/// A device that has no room for the adapters that a gate compares.
#[tokio::test]
async fn what_a_full_device_was_to_compute_for_the_gate_is_repeated_on_the_processor() {
    let fixture = Fixture::new().await;
    let here = parts(&fixture);
    let (emulator, there) = on_emulator(&here);
    let turns: Vec<Turn> = (0..2).map(|i| sampled(&fixture, &here, i)).collect();
    let job = job(&turns, None);
    let gate = config().gate;
    let model = &here.model.config;
    let form = adapter_config(&here.model, &config().learner).unwrap();
    let adapter = hone_nn::Adapter::random(model, form, 3);
    let job = job.evaluation(adapter_digest(&adapter), WishAnswers::default());
    let measured = |parts: &NnParts, pause: &mut dyn FnMut() -> bool| {
        // A copy is not on the device yet.
        let policies = measure::Compared {
            candidate: &adapter.clone(),
            parent: None,
        };
        measure::measure(parts, &gate, None, &job, policies, pause).unwrap()
    };
    let answered = |parts: &NnParts, pause: &mut dyn FnMut() -> bool| {
        let how = answers::Answering {
            parts,
            memo: None,
            tokens_max: 12,
            temperature: 0.7,
        };
        let said = answers::answers(how, &job.probes, Some(&adapter.clone()), pause).unwrap();
        said.into_iter()
            .map(answers::Answer::probe)
            .collect::<Vec<_>>()
    };
    let full = &mut || {
        emulator.leave(0);
        false
    };
    assert_eq!(measured(&there, full), measured(&here, &mut || false));
    emulator.leave(1 << 30);
    assert_eq!(answered(&there, full), answered(&here, &mut || false));
}
