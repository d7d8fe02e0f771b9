//! Low rank or every weight: both learn, go on exactly, and a scope keeps what it began with.
#![allow(clippy::unwrap_used)]

use hone_domain::{Blobs, Policy, Turn};
use serde_json::Value;

use super::tests::{adopt, config, job, parts, rises, sampled};
use super::*;
use crate::candidate::Candidate;
use crate::config::{AdapterForm, Config};
use crate::fixture::Fixture;
use hone_domain::checkpoint_key;

/// Every weight learns at a fraction of the rate of a LoRA.
fn in_form(form: AdapterForm) -> Config {
    let mut config = config();
    config.learner.form = form;
    if form == AdapterForm::Full {
        config.learner.lr = 2e-4;
        // Not read.
        (config.learner.lora_rank, config.learner.lora_alpha) = (0, -1.0);
    }
    config
}

/// The form that a candidate's files say.
fn form_of(candidate: &Candidate) -> AdapterForm {
    let mut files = candidate.files.adapter.iter();
    let (_, bytes) = files.find(|(name, _)| name == peft::CONFIG_FILE).unwrap();
    let settings: Value = serde_json::from_slice(bytes).unwrap();
    match settings["peft_type"].as_str() {
        Some("LORA") => AdapterForm::Lora,
        Some("HONE_DENSE") => AdapterForm::Full,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_every_weight_scores_rise_and_every_logprob_is_reproduced_to_the_bit() {
    let mut config = in_form(AdapterForm::Full);
    config.learner.lr = 2e-3;
    rises(config).await;
}

#[tokio::test]
async fn a_step_on_every_weight_goes_on_exactly_from_memory_and_from_disk() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let fresh = || NnTrainer::new(parts.clone(), &in_form(AdapterForm::Full)).unwrap();
    let (warm, mut parent) = (fresh(), None);
    for version in 1..4 {
        let turns = turns(&fixture, &parts, version);
        let job = job(&turns, parent);
        // Stopped on its way, nothing is left of it.
        let mut slices = 0;
        let stopped = warm.step(&job, &mut || {
            slices += 1;
            slices > 7 * version
        });
        assert_eq!(stopped.unwrap_err(), TrainError::Stopped);
        let one = warm.step(&job, &mut || false).unwrap();
        let two = fresh().step(&job, &mut || false).unwrap();
        assert_eq!(one.digest, two.digest, "version {version}");
        assert!(one.files == two.files);
        assert!(one.measured.changed && one.measured.kl_to_reference > 0.0);
        assert_eq!(
            (one.parity.mismatches, form_of(&one)),
            (0, AdapterForm::Full)
        );
        parent = Some(adopt(&fixture, &one, version));
    }
}

fn turns(fixture: &Fixture, parts: &NnParts, version: u64) -> Vec<Turn> {
    let seeds = (0..6).map(|i| version * 100 + i);
    seeds.map(|seed| sampled(fixture, parts, seed)).collect()
}

#[tokio::test]
async fn a_scope_goes_on_in_the_form_it_began_with_and_others_begin_in_the_new_one() {
    for (begun, now) in [
        (AdapterForm::Lora, AdapterForm::Full),
        (AdapterForm::Full, AdapterForm::Lora),
    ] {
        let fixture = Fixture::new().await;
        let parts = parts(&fixture);
        let trainer = |form| NnTrainer::new(parts.clone(), &in_form(form)).unwrap();
        let first = turns(&fixture, &parts, 1);
        let one = trainer(begun).step(&job(&first, None), &mut || false);
        let one = one.unwrap();
        let parent = adopt(&fixture, &one, 1);
        let next = job(&turns(&fixture, &parts, 2), Some(parent.clone()));
        // Same rate in both, so that only the form could differ.
        let mut changed = in_form(now);
        changed.learner.lr = in_form(begun).learner.lr;
        let changed = NnTrainer::new(parts.clone(), &changed).unwrap();
        let (wanted, two) = (
            trainer(begun).step(&next, &mut || false).unwrap(),
            changed.step(&next, &mut || false).unwrap(),
        );
        assert_eq!((form_of(&two), two.digest), (begun, wanted.digest));
        assert!(
            two.files.checkpoint == wanted.files.checkpoint,
            "with its moments"
        );
        // So it does where the checkpoint is gone.
        without_checkpoint(&fixture, &parent);
        let three = trainer(now).step(&next, &mut || false).unwrap();
        assert_eq!((form_of(&three), three.parity.mismatches), (begun, 0));
        // What begins, and what was rolled back to the base model, begins in the new form.
        let other = trainer(now).step(&job(&first, None), &mut || false);
        assert_eq!(form_of(&other.unwrap()), now);
    }
}

fn without_checkpoint(fixture: &Fixture, policy: &Policy) {
    let key = checkpoint_key(&policy.scope, policy.digest);
    fixture.blobs.remove(&key).unwrap();
}

/// Every weight of every projection moves: none is left out, padding is not in the files.
#[tokio::test]
async fn every_weight_of_the_projections_moves() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let trainer = NnTrainer::new(parts.clone(), &in_form(AdapterForm::Full)).unwrap();
    let turns = turns(&fixture, &parts, 1);
    let one = trainer.step(&job(&turns, None), &mut || false).unwrap();
    let policy = adopt(&fixture, &one, 1);
    let file = |name: &str| fixture.blobs.get(&policy.blob, name).ok();
    let adapter = peft::load(&file, &parts.model.config).unwrap();
    let tensors = adapter.to_tensors();
    assert_eq!(tensors.len(), 2 * 7);
    let (checkpoint, _) = trainer.learner_bytes();
    let values: usize = tensors.iter().map(|t| t.data.len()).sum();
    assert_eq!(checkpoint, 12 * values as u64);
    for tensor in &tensors {
        let moved = tensor.data.iter().filter(|v| **v != 0.0).count();
        assert!(moved * 10 > tensor.data.len() * 9, "{}", tensor.name);
    }
}
