//! Corrections are learned, hints are followed, and neither moves what it should not.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_domain::{Message, Role, SamplePart, Token, Turn};
use hone_nn::{Adapter, score};

use super::lessons::hinted_prompt;
use super::tests::{Digits, config, job, parts, sampled};
use super::*;
use crate::candidate::Candidate;
use crate::fixture::Fixture;
use crate::objective::DistillForm;
use crate::trainer::Lesson;

fn adapter(parts: &NnParts, candidate: &Candidate) -> Adapter {
    let file = |name: &str| {
        let found = candidate.files.adapter.iter().find(|(n, _)| n == name);
        found.map(|(_, bytes)| bytes.clone())
    };
    peft::load(&file, &parts.model.config).unwrap()
}

/// Log-probs of `completion` behind `prompt`.
fn logprobs(
    parts: &NnParts,
    adapter: Option<&Adapter>,
    (prompt, completion): (&[Token], &[Token]),
) -> Vec<f32> {
    let text = [prompt, completion].concat();
    let scores = score(&parts.model, adapter, &text, &parts.exec);
    (prompt.len()..text.len())
        .map(|at| scores.logprob(at, 1.0, None))
        .collect()
}

/// A job of one turn with one lesson and no advantage.
fn lesson_of(turn: &Turn, hint: Option<&str>, correction: Option<&str>) -> TrainJob {
    let mut job = job(std::slice::from_ref(turn), None);
    job.lessons[0].hint = hint.map(str::to_owned);
    job.lessons[0].correction = correction.map(str::to_owned);
    job
}

#[tokio::test]
async fn one_correction_is_known_after_one_batch() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turn = sampled(&fixture, &parts, 1);
    let mut config = config();
    config.learner.lr = 1e-2;
    config.learner.correction_steps_max = 40;
    let trainer = NnTrainer::new(parts.clone(), &config).unwrap();
    let job = lesson_of(&turn, None, Some(" 14 15 16 "));
    let candidate = trainer.step(&job, &mut || false).unwrap();
    assert_eq!(candidate.numbers["corrections"], 1.0);
    assert_eq!(candidate.numbers["lessons_unusable"], 0.0);

    // Seen from outside: the correction with the end token, by the adapter as it would be served.
    let said = (turn.prompt_tokens.as_slice(), [14, 15, 16, 0].as_slice());
    let before = mean(&logprobs(&parts, None, said));
    let after = mean(&logprobs(&parts, Some(&adapter(&parts, &candidate)), said));
    assert!(before < -1.5, "{before}");
    assert!(after >= config.learner.correction_logprob, "{after}");
    let reported = candidate.numbers["correction_logprob_after"];
    assert!((reported - f64::from(after)).abs() < 1e-4);
    assert!(candidate.numbers["updates"] > 1.0);

    // The sampled turn is still in the batch once, with its own log-probs.
    assert_eq!(candidate.parity.tokens as usize, turn.completion.len());
    assert_eq!(candidate.parity.mismatches, 0);
}

#[tokio::test]
async fn what_came_from_outside_is_imitated_token_by_token() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let mut turn = sampled(&fixture, &parts, 1);
    let stop = turn.completion.stop();
    turn.completion = hone_domain::Completion::given(vec![14, 15, 16, 0], stop);
    let mut config = config();
    config.learner.lr = 1e-2;
    config.learner.correction_steps_max = 40;
    let trainer = NnTrainer::new(parts.clone(), &config).unwrap();
    // Nothing else is in the batch.
    let mut job = job(&[], None);
    job.lessons = vec![Lesson {
        transition: crate::testing::transition_of(&turn),
        turn: turn.clone(),
        hint: None,
        wish: None,
        correction: Some("words that are not looked at".to_owned()),
    }];
    let candidate = trainer.step(&job, &mut || false).unwrap();
    assert_eq!(candidate.numbers["corrections"], 1.0);
    assert_eq!(candidate.parity.tokens, 0);
    let said = (turn.prompt_tokens.as_slice(), [14, 15, 16, 0].as_slice());
    let before = mean(&logprobs(&parts, None, said));
    let after = mean(&logprobs(&parts, Some(&adapter(&parts, &candidate)), said));
    assert!(before < -1.5, "{before}");
    assert!(after >= config.learner.correction_logprob, "{after}");
}

#[tokio::test]
async fn the_hinted_model_is_followed_in_either_form() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turn = (0..40)
        .map(|seed| sampled(&fixture, &parts, seed * 2))
        .find(|turn| turn.completion.len() > 6)
        .unwrap();
    // The third form rehearses; it has a test of its own.
    for form in [DistillForm::SampledToken, DistillForm::TopK] {
        let mut config = config();
        config.learner.hint_form = form;
        config.learner.kl_coef = 0.0;
        config.learner.lr = 1e-3;
        let trainer = NnTrainer::new(parts.clone(), &config).unwrap();
        let mut job = lesson_of(&turn, Some("9 11"), None);
        // Only the hint teaches.
        let part = job.rows[0].sample.parts()[0].clone();
        let part = SamplePart {
            advantages: vec![0.0; part.advantages.len()],
            ..part
        };
        let tokens = job.rows[0].sample.tokens().to_vec();
        job.rows[0].sample = hone_domain::Sample::new(tokens, vec![part]).unwrap();
        let candidate = trainer.step(&job, &mut || false).unwrap();
        assert_eq!(candidate.numbers["hints"], 1.0);

        let learned = adapter(&parts, &candidate);
        let own = (turn.prompt_tokens.as_slice(), turn.completion.tokens());
        let prompt = &turn.prompt_tokens;
        let hinted = [&prompt[..2], &[9, 11], &prompt[2..]].concat();
        let teacher = logprobs(&parts, None, (&hinted, turn.completion.tokens()));
        let before = logprobs(&parts, None, own);
        let after = logprobs(&parts, Some(&learned), own);
        // Tokens that the hint makes likelier became likelier, by how much it does.
        let pull = |i: usize| (teacher[i] - before[i]) * (after[i] - before[i]);
        let agreement: f32 = (0..before.len()).map(pull).sum();
        assert!(agreement > 0.0, "{form:?}: {agreement}");
    }
}

#[tokio::test]
async fn what_the_hinted_model_answers_is_rehearsed_without_the_hint() {
    let fixture = Fixture::new().await;
    let mut parts = parts(&fixture);
    parts.everyday = Arc::new(vec!["5 6".to_owned(), "7 8".to_owned()]);
    let turn = sampled(&fixture, &parts, 3);
    let mut config = config();
    config.learner.hint_form = DistillForm::Rehearsed;
    config.learner.hint_teacher = crate::objective::Teacher::Base;
    config.learner.hint_answers = 8;
    config.learner.lr = 1e-3;
    config.learner.kl_coef = 0.0;
    config.learner.hint_gap = 0.0;
    config.learner.correction_steps_max = 30;
    config.learner.hint_surprise_max = 100.0;
    config.learner.hint_gain_min = -1000.0;
    let trainer = NnTrainer::new(parts.clone(), &config).unwrap();
    let mut job = lesson_of(&turn, Some("9 11"), None);
    job.lessons[0].turn.parent = None;
    let candidate = trainer.step(&job, &mut || false).unwrap();
    let number = |name: &str| candidate.numbers[name];
    // The turn's own prompt up to four times, and both everyday prompts; cut answers are left out.
    assert!((1.0..=6.0).contains(&number("rehearsed")));
    assert_eq!(number("hints"), 1.0);
    assert!(number("rehearsed_gap_after") < number("rehearsed_gap_before"));
    assert!(number("updates") > 1.0);
    // The same job gives the same candidate.
    let again = trainer.step(&job, &mut || false).unwrap();
    assert_eq!(again.digest, candidate.digest);

    // A hint of a turn that was trained before is told again; without any nothing is rehearsed.
    job.replayed = std::mem::take(&mut job.lessons);
    let replayed = trainer.step(&job, &mut || false).unwrap();
    assert!(replayed.numbers["rehearsed"] >= 1.0);
    job.replayed.clear();
    let quiet = trainer.step(&job, &mut || false).unwrap();
    assert_eq!(quiet.numbers["rehearsed"], 0.0);

    // Answers that surprise the model without the hint are left out, and those that the hint does not
    // make likelier: all of them, where nothing may surprise or no gain is enough.
    job.lessons = lesson_of(&turn, Some("9 11"), None).lessons;
    job.lessons[0].turn.parent = None;
    let all = number("rehearsed") + number("rehearsed_left_out");
    for (surprise, gain) in [(0.0, -1000.0), (100.0, 1000.0)] {
        config.learner.hint_surprise_max = surprise;
        config.learner.hint_gain_min = gain;
        let strict = NnTrainer::new(parts.clone(), &config).unwrap();
        let left = strict.step(&job, &mut || false).unwrap();
        assert_eq!(left.numbers["rehearsed"], 0.0);
        assert_eq!(left.numbers["rehearsed_left_out"], all);
    }
}

/// So many everyday prompts that some are answered to the end.
fn with_everyday(parts: NnParts) -> NnParts {
    let asked = (3..12).flat_map(|a| (3..7).map(move |b| format!("{a} {b}")));
    NnParts {
        everyday: Arc::new(asked.collect()),
        ..parts
    }
}

#[tokio::test]
async fn beside_a_correction_everyday_prompts_are_answered_as_before() {
    let fixture = Fixture::new().await;
    let parts = with_everyday(parts(&fixture));
    let turn = sampled(&fixture, &parts, 3);
    let mut config = config();
    config.learner.hint_form = DistillForm::Rehearsed;
    config.learner.hint_teacher = crate::objective::Teacher::Base;
    config.learner.hint_answers = 80;
    config.learner.hint_surprise_max = 100.0;
    config.learner.correction_steps_max = 4;
    let trainer = NnTrainer::new(parts.clone(), &config).unwrap();
    let job = lesson_of(&turn, None, Some("7 7 7"));
    let numbers = trainer.step(&job, &mut || false).unwrap().numbers;
    assert!(numbers["rehearsed"] > 0.0, "{numbers:?}");
    assert_eq!(numbers["hints"], 0.0);
    // The student begins as who answered.
    assert_eq!(numbers["rehearsed_gap_before"], 0.0);
    let job = lesson_of(&turn, None, None);
    let numbers = trainer.step(&job, &mut || false).unwrap().numbers;
    assert_eq!(numbers["rehearsed"], 0.0);
}

#[tokio::test]
async fn a_rehearsed_answer_does_as_each_hint_says() {
    let fixture = Fixture::new().await;
    let parts = with_everyday(parts(&fixture));
    let turn = sampled(&fixture, &parts, 3);
    let mut config = config();
    config.learner.hint_form = DistillForm::Rehearsed;
    config.learner.hint_answers = 40;
    config.learner.hint_surprise_max = 100.0;
    config.gate.probe_tokens_max = 24;
    let mut job = lesson_of(&turn, Some("9 11"), None);
    job.lessons[0].turn.parent = None;
    let mut kept = Vec::new();
    for gain in [-1000.0, 0.0] {
        config.learner.hint_gain_min = gain;
        let trainer = NnTrainer::new(parts.clone(), &config).unwrap();
        let numbers = trainer.step(&job, &mut || false).unwrap().numbers;
        kept.push((numbers["rehearsed"], numbers["rehearsed_gap_before"]));
    }
    // Some that were said with the hint in mind have nothing of it, and the student is further from
    // the others.
    let [(all, all_gap), (sound, sound_gap)] = kept[..] else {
        panic!("two trainings");
    };
    assert!(0.0 < sound && sound < all, "{kept:?}");
    assert!(sound_gap > all_gap, "{kept:?}");
}

#[test]
fn a_hint_goes_to_the_end_of_the_last_user_message() {
    let turn = |messages: &[(Role, &str)], prompt: &[Token]| {
        let mut turn = crate::testing::turn(1, prompt, &[4]);
        let message = |(role, text): &(Role, &str)| Message::text(*role, *text);
        turn.messages = messages.iter().map(message).collect();
        turn
    };
    let asked = [
        (Role::User, "5 6"),
        (Role::Assistant, "7"),
        (Role::User, "8"),
    ];
    let in_loop = [
        (Role::User, "5 6"),
        (Role::Assistant, "7"),
        (Role::Tool, "8"),
    ];
    type Row<'a> = (&'a [(Role, &'a str)], &'a [Token], Option<&'a [Token]>);
    let rows: &[Row] = &[
        // Whatever stands before it was recorded otherwise than it renders: the record counts.
        (&asked, &[1, 2, 7, 8, 3], Some(&[1, 2, 7, 8, 20, 21, 3])),
        (&in_loop, &[5, 6, 7, 8, 3], Some(&[5, 6, 20, 21, 7, 8, 3])),
        // Behind it the record is not what the template writes: no teacher.
        (&in_loop, &[5, 6, 7, 9, 3], None),
        (&[(Role::System, "5")], &[5, 3], None),
    ];
    for (messages, prompt, expected) in rows {
        let found = hinted_prompt(&Digits, &turn(messages, prompt), " 20 21");
        assert_eq!(found.as_deref(), *expected, "{messages:?}");
    }
    // What of an answer a branch goes on from stays behind the prompt.
    let mut branch = turn(&asked, &[1, 2, 7, 8, 3, 30, 31]);
    branch.admission.branch = Some(hone_domain::BranchOf {
        turn: branch.id,
        position: 2,
        prefix_tokens: 2,
    });
    let found = hinted_prompt(&Digits, &branch, " 20 21");
    assert_eq!(found, Some(vec![1, 2, 7, 8, 20, 21, 3, 30, 31]));
}

#[tokio::test]
async fn a_lesson_that_does_not_fit_is_counted_and_left() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turn = sampled(&fixture, &parts, 1);
    let trainer = NnTrainer::new(parts, &config()).unwrap();
    let long = vec!["5"; 400].join(" ");
    for (hint, correction) in [(Some(long.as_str()), None), (None, Some(long.as_str()))] {
        let job = lesson_of(&turn, hint, correction);
        let candidate = trainer.step(&job, &mut || false).unwrap();
        assert_eq!(candidate.numbers["lessons_unusable"], 1.0);
        assert_eq!(candidate.numbers["updates"], 1.0);
    }
}

#[tokio::test]
async fn a_replayed_turn_teaches_by_its_words_and_nothing_else() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turns: Vec<Turn> = (0..3).map(|i| sampled(&fixture, &parts, 20 + i)).collect();
    let mut config = config();
    config.learner.hint_form = DistillForm::SampledToken;
    let trainer = NnTrainer::new(parts.clone(), &config).unwrap();
    let mut plain = job(&turns[..1], None);
    plain.lessons.clear();
    let without = trainer.step(&plain, &mut || false).unwrap();
    let lesson = |turn: &Turn, hint: bool| Lesson {
        transition: crate::testing::transition_of(turn),
        turn: turn.clone(),
        hint: hint.then(|| "9 11".to_owned()),
        wish: None,
        correction: (!hint).then(|| "14 15 16".to_owned()),
    };
    let mut with = plain.clone();
    with.replayed = vec![lesson(&turns[1], true), lesson(&turns[2], false)];
    let candidate = trainer.step(&with, &mut || false).unwrap();
    assert_eq!(candidate.numbers["replayed"], 2.0);
    assert_eq!(candidate.numbers["hints"], 1.0);
    assert_eq!(candidate.numbers["corrections"], 0.0);
    // It is no sample: not in the lineage, not in the parity check, and one step is enough.
    assert_eq!(with.transitions(), plain.transitions());
    assert_eq!(candidate.parity, without.parity);
    assert_eq!(candidate.numbers["updates"], 1.0);
    assert!(candidate.numbers["loss_tokens"] > without.numbers["loss_tokens"]);
    assert_ne!(candidate.digest, without.digest);
    // What was said about the replayed turn became likelier than without it.
    let said = (
        turns[2].prompt_tokens.as_slice(),
        [14, 15, 16, 0].as_slice(),
    );
    let known = |c: &Candidate| mean(&logprobs(&parts, Some(&adapter(&parts, c)), said));
    assert!(known(&candidate) > known(&without));
}

#[tokio::test]
async fn a_second_try_becomes_likelier_as_a_first_one_and_a_bad_one_less_likely() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turn = sampled(&fixture, &parts, 1);
    let said: [Token; 3] = [14, 15, 0];
    for advantage in [1.5, -0.5] {
        let mut job = lesson_of(&turn, None, None);
        job.retold = vec![crate::retold::Retold {
            tokens: [turn.prompt_tokens.as_slice(), &said].concat(),
            start: turn.prompt_tokens.len(),
            advantage,
        }];
        let trainer = NnTrainer::new(parts.clone(), &config()).unwrap();
        let candidate = trainer.step(&job, &mut || false).unwrap();
        assert_eq!(candidate.numbers["retold"], 1.0);
        let own = (turn.prompt_tokens.as_slice(), said.as_slice());
        let before = mean(&logprobs(&parts, None, own));
        let after = mean(&logprobs(&parts, Some(&adapter(&parts, &candidate)), own));
        assert!((after - before) * advantage > 0.0, "{before} to {after}");
        // The sampled turn is in the batch once, and as it was sampled.
        assert_eq!(candidate.parity.tokens as usize, turn.completion.len());
        assert_eq!(candidate.parity.mismatches, 0);
    }
}

/// The base model's own answers to everyday prompts go on as before, whatever the learning rate.
#[tokio::test]
async fn an_update_that_goes_too_far_is_shortened() {
    let fixture = Fixture::new().await;
    let everyday: Vec<String> = (0..12).map(|n| format!("{} 5", 6 + n % 8)).collect();
    let parts = NnParts {
        everyday: everyday.into(),
        ..parts(&fixture)
    };
    let turn = sampled(&fixture, &parts, 1);
    let job = lesson_of(&turn, None, Some("14 15 16"));
    let trained = |lr: f32| {
        let mut config = config();
        config.learner.hint_form = DistillForm::Context;
        config.learner.lr = lr;
        config.learner.correction_steps_max = 12;
        let trainer = NnTrainer::new(parts.clone(), &config).unwrap();
        trainer.step(&job, &mut || false).unwrap().numbers
    };
    let careful = trained(1e-3);
    assert_eq!(careful["updates_shortened"], 0.0, "{careful:?}");
    let wild = trained(5.0);
    assert!(wild["updates_shortened"] >= 2.0, "{wild:?}");
    assert!(
        wild["lr"] < 2.0 && wild["loss_last"].is_finite(),
        "{wild:?}"
    );
}

/// The gate sees what answers to prompts that say how they are to be answered lose by steps that go too far.
#[tokio::test]
async fn the_gate_sees_what_instructed_answers_lose() {
    let fixture = Fixture::new().await;
    let instructed = (0..9).map(|n| Instructed {
        question: format!("{}", 6 + n % 8),
        instruction: "5".to_owned(),
    });
    let parts = NnParts {
        everyday: Arc::new((0..12).map(|n| format!("{} 5", 6 + n % 8)).collect()),
        reference: Arc::new(Reference {
            instructed: instructed.collect(),
            ..Reference::default()
        }),
        ..parts(&fixture)
    };
    let turn = sampled(&fixture, &parts, 1);
    let job = lesson_of(&turn, None, Some("14 15 16"));
    let lost = |lr: f32| {
        let mut config = config();
        config.learner.hint_form = DistillForm::Context;
        config.learner.lr = lr;
        let trainer = NnTrainer::new(parts.clone(), &config).unwrap();
        let losses = trainer.step(&job, &mut || false).unwrap();
        let losses = losses.measured.instruction_losses;
        // Every third prompt is the gate's.
        assert_eq!(losses.len(), 3);
        losses.iter().sum::<f32>()
    };
    let (careful, wild) = (lost(1e-4), lost(5.0));
    assert!(careful.abs() < 0.1 && wild > 1.0, "{careful} {wild}");
}

/// Who only says thank you asks for nothing, and what was asked for before is not learned once more.
#[tokio::test]
async fn thanks_alone_repeat_no_wish() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turn = sampled(&fixture, &parts, 1);
    let mut job = lesson_of(&turn, None, None);
    let mut before = job.lessons[0].clone();
    before.hint = Some("shorter".to_owned());
    job.replayed = vec![before];
    assert!(super::wishes::wishes(&job).is_empty());
    job.lessons[0].hint = Some("in lists".to_owned());
    assert_eq!(super::wishes::wishes(&job), ["in lists", "shorter"]);
}
