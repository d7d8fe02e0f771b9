//! Rehearsed answers: each is checked by the hints that have room behind its prompt, and nothing is
//! computed twice.
#![allow(clippy::unwrap_used)]

use super::lessons::hint_words;
use super::rehearsal::{Answered, Asked, Source, tellings};
use super::tests::{config, parts};
use hone_nn::{Control, Learner, TokenLoss, TrainRow};

use super::*;
use crate::fixture::Fixture;

/// A trainer that no hint can satisfy, and its learner.
fn strict(fixture: &Fixture) -> (NnTrainer, Learner) {
    let parts = parts(fixture);
    let mut config = config();
    config.row_tokens_max = 256;
    config.learner.hint_surprise_max = 1000.0;
    config.learner.hint_gain_min = 1000.0;
    let trainer = NnTrainer::new(parts, &config).unwrap();
    let model = trainer.parts.model.clone();
    let learner = Learner::new(model, trainer.learner_config(1.0)).unwrap();
    (trainer, learner)
}

/// Answers given to these words.
fn answered<'a>(trainer: &NnTrainer, asked: &[&'a str], words: &str) -> Answered<'a> {
    let mut answered = Answered::default();
    for text in asked {
        let asked = Asked {
            plain: trainer.opening(text).unwrap(),
            of: Source::Everyday(text),
        };
        let hinted = trainer.hint(&asked, words).unwrap();
        answered.push(asked, &hinted, &[9, 11, 0]);
    }
    answered
}

#[tokio::test]
async fn a_hint_that_does_not_fit_one_prompt_still_checks_the_others() {
    let fixture = Fixture::new().await;
    let (trainer, mut learner) = strict(&fixture);
    let long = vec!["5"; 150].join(" ");
    let words = hint_words(&trainer.learner.hint_template, "9 11");
    let answered = answered(&trainer, &["5 6", &long, "7 8"], &words);
    // As long as the prompt: twice of it is more than the model has positions for.
    let mut sound = |hints: &[&str]| {
        let mut control = || Control::Continue;
        let sound = trainer.sound(&mut learner, &answered, &words, hints, &mut control);
        sound.unwrap().each
    };
    assert_eq!(sound(&[&long]), [false, true, false]);
    assert_eq!(sound(&[]), [true; 3]);
    assert_eq!(sound(&[&long, "9 11"]), [false; 3]);
}

#[tokio::test]
async fn what_the_teacher_thinks_of_its_answers_is_computed_once() {
    let fixture = Fixture::new().await;
    let (trainer, mut learner) = strict(&fixture);
    let words = hint_words(&trainer.learner.hint_template, "9 11");
    let answered = answered(&trainer, &["5 6", "7 8"], &words);
    let mut slices = 0;
    let mut control = || {
        slices += 1;
        Control::Continue
    };
    let known = trainer.thinks(
        &mut learner,
        &answered.hinted,
        trainer.under(),
        &mut control,
    );
    let once = std::mem::take(&mut slices);
    let mut control = || {
        slices += 1;
        Control::Continue
    };
    let sound = trainer.sound(&mut learner, &answered, &words, &["9 11"], &mut control);
    let heard = sound.unwrap().heard;
    // Without the hint and with it; the second is what the student is compared with.
    assert_eq!(slices, 2 * once);
    assert_eq!(heard, Some(known.unwrap()));
    // Told otherwise, the check says nothing about that.
    let sound = trainer.sound(&mut learner, &answered, &words, &["5"], &mut || {
        Control::Continue
    });
    assert_eq!(sound.unwrap().heard, None);
}

#[tokio::test]
async fn answers_are_imitated_with_what_the_teacher_thought_likely() {
    let fixture = Fixture::new().await;
    let (mut trainer, mut learner) = strict(&fixture);
    trainer.learner.hint_soft_top_k = 3;
    let words = hint_words(&trainer.learner.hint_template, "9 11");
    let mut go_on = || Control::Continue;
    let mut softened = |trainer: &NnTrainer| {
        let answered = answered(trainer, &["5 6", "7 8"], &words);
        let hinted = answered.hinted.clone();
        let rows = trainer
            .softened(&mut learner, answered, trainer.under(), &mut go_on)
            .unwrap();
        let ids = |row: &TrainRow| {
            let ids = |loss: &TokenLoss| loss.soft.as_ref().unwrap().ids.clone();
            row.loss.iter().map(ids).collect()
        };
        let ids: Vec<Vec<Vec<u32>>> = match rows[0].loss[0].soft {
            Some(_) => rows.iter().map(ids).collect(),
            None => return (rows, Vec::new()),
        };
        let under = trainer.under();
        let thought = learner.logprobs_of(&hinted, under, &ids, &mut go_on);
        (rows, thought.unwrap())
    };
    let (rows, thought) = softened(&trainer);
    let (mut places, mut mass) = (0, 0.0);
    for (row, thought) in rows.iter().zip(&thought) {
        for (loss, thought) in row.loss.iter().zip(thought) {
            let probs = &loss.soft.as_ref().unwrap().probs;
            assert_eq!(probs.len(), 3);
            assert!(probs.is_sorted_by(|a, b| a >= b));
            for (prob, logprob) in probs.iter().zip(thought) {
                assert!((prob - logprob.exp()).abs() < 1e-6);
            }
            // The student sees no hint and draws at temperature 1.
            assert_eq!(loss.temperature, 1.0);
            places += 1;
            mass += probs.iter().sum::<f32>();
        }
    }
    assert_eq!(places, 6);
    // A cooler teacher was surer of them.
    trainer.learner.hint_temperature = 0.5;
    let (rows, _) = softened(&trainer);
    let losses = rows.iter().flat_map(|row| &row.loss);
    let cooler: f32 = losses
        .flat_map(|loss| loss.soft.as_ref().unwrap().probs.clone())
        .sum();
    assert!(cooler > mass, "{cooler} {mass}");
    // Neither what was taken greedily nor what is not asked for has any.
    for (temperature, k) in [(0.0, 3), (1.0, 0)] {
        trainer.learner.hint_temperature = temperature;
        trainer.learner.hint_soft_top_k = k;
        let (rows, _) = softened(&trainer);
        let mut losses = rows.iter().flat_map(|row| &row.loss);
        assert!(losses.all(|loss| loss.soft.is_none()));
    }
}

#[test]
fn only_who_was_told_every_hint_is_asked_what_else_was_likely() {
    let told = |hints: &[&str]| {
        let tellings = tellings(hints).into_iter();
        let told = tellings.map(|(words, all)| format!("{words}{}", if all { "!" } else { "" }));
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(&["a"]), ["a!"]);
    assert_eq!(told(&["a", "b"]), ["a, b!", "b, a!", "b", "a"]);
}
