//! Rehearsed answers: each is checked by the hints that have room behind its prompt, and nothing is
//! computed twice.
#![allow(clippy::unwrap_used)]

use super::lessons::hint_words;
use super::rehearsal::{Answered, Asked, Source};
use super::tests::{config, parts};
use super::*;
use crate::house::House;

/// A trainer that no hint can satisfy, and its learner.
fn strict(house: &House) -> (NnTrainer, Learner) {
    let parts = parts(house);
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
    let house = House::new().await;
    let (trainer, mut learner) = strict(&house);
    let long = vec!["5"; 150].join(" ");
    let words = hint_words(&trainer.learner.hint_template, "9 11");
    let answered = answered(&trainer, &["5 6", &long, "7 8"], &words);
    // As long as the prompt: twice of it is more than the model has positions for.
    let mut sound = |hints: &[&str]| {
        let mut control = || Control::Continue;
        let sound = trainer.sound(&mut learner, (&answered, &words), hints, &mut control);
        sound.unwrap().each
    };
    assert_eq!(sound(&[&long]), [false, true, false]);
    assert_eq!(sound(&[]), [true; 3]);
    assert_eq!(sound(&[&long, "9 11"]), [false; 3]);
}

#[tokio::test]
async fn what_the_teacher_thinks_of_its_answers_is_computed_once() {
    let house = House::new().await;
    let (trainer, mut learner) = strict(&house);
    let words = hint_words(&trainer.learner.hint_template, "9 11");
    let answered = answered(&trainer, &["5 6", "7 8"], &words);
    let mut slices = 0;
    let mut control = || {
        slices += 1;
        Control::Continue
    };
    let known = trainer.thinks(&mut learner, &answered.hinted, &mut control);
    let once = std::mem::take(&mut slices);
    let mut control = || {
        slices += 1;
        Control::Continue
    };
    let told = (&answered, words.as_str());
    let sound = trainer.sound(&mut learner, told, &["9 11"], &mut control);
    let heard = sound.unwrap().heard;
    // Without the hint and with it; the second is what the student is compared with.
    assert_eq!(slices, 2 * once);
    assert_eq!(heard, Some(known.unwrap()));
    // Told otherwise, the check says nothing about that.
    let sound = trainer.sound(&mut learner, told, &["5"], &mut || Control::Continue);
    assert_eq!(sound.unwrap().heard, None);
}
