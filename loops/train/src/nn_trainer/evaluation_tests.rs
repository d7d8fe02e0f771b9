//! Jobs and results go to another process and back, and mean the same there.
#![allow(clippy::unwrap_used)]

use std::fmt::Debug;
use std::sync::Arc;

use hone_domain::{Message, Policy, Token, Turn};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::tests::{Digits, adopt, config, job, parts, sampled};
use super::*;
use crate::candidate::Candidate;
use crate::evaluator::Evaluator;
use crate::fixture::Fixture;
use crate::save::save;
use crate::testing::candidate;
use crate::trainer::Wording;
use crate::wish_answers::{UnseenAnswer, WishAnswers};

/// Written and read in a format that has every float; JSON has no NaN.
fn sent<T: Serialize + DeserializeOwned>(value: &T) -> T {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).unwrap();
    ciborium::from_reader(bytes.as_slice()).unwrap()
}

fn answers() -> WishAnswers {
    let unseen = |first: u32| UnseenAnswer {
        tokens: vec![first, 6, 3, 9, 11, 0],
        start: 3,
        wish_tokens: vec![0, 1],
        logprob_before: -2.5,
    };
    WishAnswers {
        wishes: vec!["9 11".to_owned()],
        kept: 3,
        gain: 0.25,
        tokens_mean: 4.0,
        ended_share: Some(1.0),
        at_a_loss: None,
        unseen: vec![unseen(1), unseen(2)],
    }
}

/// Numbers are tokens, and every other word is token 5: the sentence around a wish has words.
struct Words;

impl Wording for Words {
    fn render(&self, messages: &[Message]) -> Result<String, String> {
        Digits.render(messages)
    }

    fn encode(&self, text: &str) -> Vec<Token> {
        let words = text.split_whitespace();
        words.map(|word| word.parse().unwrap_or(5)).collect()
    }

    fn decode(&self, tokens: &[Token]) -> String {
        Digits.decode(tokens)
    }
}

/// With generic prompts, some of which are the gate's.
fn with_everyday(fixture: &Fixture) -> NnParts {
    let asked = (3..9).map(|a| format!("{a} 5"));
    NnParts {
        everyday: Arc::new(asked.collect()),
        wording: Arc::new(Words),
        ..parts(fixture)
    }
}

/// Without the one number that is a time.
fn untimed(mut trained: Trained) -> Trained {
    assert!(trained.numbers.remove("slice_ms_max").is_some());
    trained
}

#[tokio::test]
async fn another_process_trains_and_measures_the_same() {
    let fixture = Fixture::new().await;
    let parts = with_everyday(&fixture);
    let process = || NnTrainer::new(parts.clone(), &config()).unwrap();
    let (here, mut parent) = (process(), None::<Policy>);
    for version in 1..3 {
        let turns: Vec<Turn> = (0..4)
            .map(|i| sampled(&fixture, &parts, version * 100 + i))
            .collect();
        let mut job = job(&turns, parent);
        job.held_out = vec![crate::judged::Judged {
            tokens: vec![1, 6, 3, 7, 8],
            start: 3,
            score: -0.5,
        }];
        let trained = here.train(&job, &mut || false).unwrap();
        assert_eq!(sent(&trained), trained);
        let elsewhere = process().train(&sent(&job), &mut || false).unwrap();
        assert_eq!(
            untimed(elsewhere),
            untimed(trained.clone()),
            "version {version}"
        );

        let evaluation = job.evaluation(trained.digest, answers());
        let early = here.files(&evaluation).unwrap();
        let measured = here.evaluate(&evaluation, &mut || false).unwrap();
        assert!(measured.wish.unwrap().likelier.is_some() && measured.generic_loss != 0.0);
        assert_eq!(measured.differences.len(), 1);
        assert_eq!(sent(&measured), measured);
        // The other process reads the candidate from the blob store.
        let unsaved = process().evaluate(&sent(&evaluation), &mut || false);
        assert!(matches!(unsaved, Err(TrainError::Failed(_))), "{unsaved:?}");
        let made = Candidate {
            digest: trained.digest,
            files: here.files(&evaluation).unwrap(),
            ..candidate(1)
        };
        assert_eq!(made.files, early);
        save(&*fixture.blobs, &job.scope, &made).unwrap();
        let elsewhere = process().evaluate(&sent(&evaluation), &mut || false);
        assert_eq!(elsewhere.unwrap(), measured, "version {version}");
        parent = Some(adopt(&fixture, &made, version));
    }
}

#[tokio::test]
async fn files_of_a_candidate_that_is_gone_are_refused() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turns: Vec<Turn> = (0..3).map(|i| sampled(&fixture, &parts, i)).collect();
    let trainer = NnTrainer::new(parts, &config()).unwrap();
    let evaluation = |job: &TrainJob| {
        let trained = trainer.train(job, &mut || false).unwrap();
        job.evaluation(trained.digest, trained.answers)
    };
    let first = evaluation(&job(&turns[..2], None));
    assert!(trainer.files(&first).is_ok());
    let second = evaluation(&job(&turns, None));
    let gone = trainer.files(&first);
    assert!(matches!(gone, Err(TrainError::Failed(_))), "{gone:?}");
    assert!(trainer.files(&second).is_ok());
}

#[test]
fn numbers_that_are_none_and_failures_are_sent_as_they_are() {
    fn same<T: Serialize + DeserializeOwned + Debug>(value: &T) {
        // A NaN is not equal to itself.
        assert_eq!(format!("{:?}", sent(value)), format!("{value:?}"));
    }
    let mut measured = candidate(1).measured;
    measured.kl_to_reference = f32::NAN;
    measured.kl_to_parent = f32::INFINITY;
    measured.fact_gains = vec![f32::NAN, -1.0];
    measured.wish = Some(crate::gate::WishMeter {
        likelier: Some(f32::NAN),
        ..Default::default()
    });
    same(&measured);
    for failure in [
        TrainError::Stopped,
        TrainError::NotFinite("loss NaN".to_owned()),
        TrainError::Device("lost".to_owned()),
        TrainError::Failed("no disk".to_owned()),
    ] {
        same(&Err::<Trained, _>(failure));
    }
}
