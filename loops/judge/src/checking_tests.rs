#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_domain::{SourceFile, Verdict, Verifier};
use hone_runtime::{Event, LoopState, SeededIds};

use super::*;
use crate::certificate::corpus;
use crate::certificate::{AuditCount, Execute};
use crate::testing::{callback, claimed, says};
use crate::{Config, Effect, Report, State};

fn new_judge(config: Config) -> State {
    State::new(config, Arc::new(SeededIds::new(1)), true)
}

fn arrive(judge: &mut State, one: Claimed) -> Vec<Effect> {
    judge.step(0, Event::Reported(Report::Claimed(Ok(vec![one]))))
}

fn verdict(effects: &[Effect]) -> Option<&Verdict> {
    effects.iter().find_map(|effect| match effect {
        Effect::Record { verdict, .. } => Some(&**verdict),
        _ => None,
    })
}

/// Ends the check that `effects` ask for.
fn end(judge: &mut State, effects: Vec<Effect>, result: Result<Done, String>) -> Vec<Effect> {
    let ask = effects.into_iter().find_map(|effect| match effect {
        Effect::Check(ask) => Some(ask),
        _ => None,
    });
    let ask = ask.unwrap();
    let report = Report::Checked {
        claim: ask.claim,
        index: ask.index,
        result,
        latency_ms: 7,
    };
    judge.step(5, Event::Reported(report))
}

fn with_model() -> Config {
    Config {
        model: Some(ModelConfig::for_tests()),
        ..Config::for_tests()
    }
}

#[test]
fn a_check_decides_before_the_model_and_behind_a_person() {
    let checked = || {
        let mut one = claimed(1, 1, "Thanks!");
        one.turn.admission.checks = vec![callback()];
        one
    };
    let mut judge = new_judge(with_model());
    let effects = arrive(&mut judge, checked());
    let effects = end(&mut judge, effects, Ok(says(-0.5)));
    let found = verdict(&effects).unwrap();
    assert_eq!(
        (found.score, found.decided_by),
        (Some(-0.5), Some(Signal::Verifier))
    );
    assert_eq!(found.votes[0].reason, "call: because");
    assert_eq!(
        (found.votes[0].latency_ms, found.votes[1].signal),
        (7, Signal::Rules)
    );
    assert!(!effects.iter().any(|e| matches!(e, Effect::Ask(_))));

    // It cannot tell: the model is asked, and the abstention is kept.
    let mut judge = new_judge(with_model());
    let effects = arrive(&mut judge, checked());
    let effects = end(
        &mut judge,
        effects,
        Err("no answer within 100 ms".to_owned()),
    );
    let asked = effects
        .iter()
        .filter(|e| matches!(e, Effect::Ask(_)))
        .count();
    assert_eq!((asked, verdict(&effects)), (3, None));

    // A person said what they think: nobody is called.
    let mut judge = new_judge(with_model());
    let mut one = checked();
    one.feedback = vec![crate::testing::feedback(1, Some(1.0))];
    let effects = arrive(&mut judge, one);
    let found = verdict(&effects).unwrap();
    assert_eq!(
        (found.score, found.decided_by),
        (Some(1.0), Some(Signal::Feedback))
    );
}

/// The outcome is −0.5; two votes say 1 and one −1, or fewer come.
#[test]
fn the_outcome_can_be_combined_with_the_step() {
    let mean = |votes: &[Option<&str>]| {
        let mut judge = new_judge(Config {
            combine: crate::Combine::Mean,
            ..with_model()
        });
        let mut one = claimed(1, 1, "Thanks!");
        one.turn.admission.checks = vec![callback()];
        let effects = arrive(&mut judge, one);
        let mut effects = end(&mut judge, effects, Ok(says(-0.5)));
        assert!(verdict(&effects).is_none(), "the votes are waited for");
        let asks = std::mem::take(&mut effects);
        for (ask, vote) in asks.into_iter().zip(votes) {
            let Effect::Ask(ask) = ask else {
                panic!("{ask:?}")
            };
            let report = Report::Voted {
                claim: ask.claim,
                index: ask.index,
                result: vote.map(Completed::from).ok_or(crate::VoteError::Deadline),
                latency_ms: 1,
            };
            effects = judge.step(6, Event::Reported(report));
        }
        let told = verdict(&effects).cloned().unwrap();
        assert_eq!(told.decided_by, Some(Signal::Verifier));
        told.score.unwrap()
    };
    let (good, bad) = (Some(r"\boxed{1}"), Some(r"\boxed{-1}"));
    assert!((mean(&[good, bad, good]) - (-0.5 + 1.0 / 3.0) / 2.0).abs() < 1e-6);
    assert!((mean(&[good, None, good]) - 0.25).abs() < 1e-6);
    assert!((mean(&[None, None, None]) + 0.5).abs() < 1e-6);
}

#[test]
fn a_check_that_hangs_delays_no_verdict_beyond_its_lease() {
    let mut judge = new_judge(Config::for_tests());
    let mut one = claimed(1, 1, "Thanks!");
    one.turn.admission.checks = vec![callback()];
    assert!(verdict(&arrive(&mut judge, one)).is_none());
    assert!(verdict(&judge.step(7_000, Event::Ticked)).is_none());
    let effects = judge.step(7_600, Event::Ticked);
    let found = verdict(&effects).unwrap();
    assert_eq!(
        (found.score, found.decided_by),
        (Some(1.0), Some(Signal::Rules))
    );
    assert!(
        found.votes[0].reason.contains("before the lease"),
        "{:?}",
        found.votes
    );
}

#[test]
fn what_a_hanging_check_leaves_to_the_model_is_asked_in_what_is_left_of_the_lease() {
    let hang = || {
        let mut judge = new_judge(with_model());
        let mut one = claimed(1, 1, "What about Mars?");
        one.turn.admission.checks = vec![callback()];
        arrive(&mut judge, one);
        let effects = judge.step(7_500, Event::Ticked);
        assert!(verdict(&effects).is_none(), "{effects:?}");
        let asks = effects.into_iter().filter_map(|effect| match effect {
            Effect::Ask(ask) => Some((ask.claim, ask.index)),
            _ => None,
        });
        (judge, asks.collect::<Vec<_>>())
    };
    let (mut judge, asks) = hang();
    assert_eq!(asks.len(), 3);
    let mut effects = Vec::new();
    for (claim, index) in &asks[..2] {
        let report = Report::Voted {
            claim: *claim,
            index: *index,
            result: Ok(Completed::from(r"\boxed{1}")),
            latency_ms: 1,
        };
        effects = judge.step(8_000, Event::Reported(report));
    }
    let found = verdict(&effects).unwrap();
    assert_eq!(found.decided_by, Some(Signal::Model));
    // Its votes have an end as well, before the lease's.
    let (mut judge, _) = hang();
    assert!(judge.step(8_749, Event::Ticked).is_empty());
    let effects = judge.step(8_750, Event::Ticked);
    let is_release = |e: &Effect| matches!(e, Effect::Release { .. });
    assert!(effects.iter().any(is_release), "{effects:?}");
}

/// One of two may be called at a time, and hangs.
#[test]
fn a_check_that_was_never_begun_is_begun_under_the_next_claim() {
    for (attempts, released, recorded) in [(0, vec![2], vec![1]), (2, vec![], vec![1, 2])] {
        let mut judge = new_judge(Config {
            checks_in_flight_max: 1,
            ..Config::for_tests()
        });
        let claims = [1, 2].map(|n| {
            let mut one = claimed(n, 1, "Thanks!");
            one.turn.admission.checks = vec![callback()];
            Claimed { attempts, ..one }
        });
        judge.step(0, Event::Reported(Report::Claimed(Ok(claims.into()))));
        let effects = judge.step(7_500, Event::Ticked);
        let mut ends = [Vec::new(), Vec::new()];
        for effect in &effects {
            match effect {
                Effect::Release { claim, .. } => ends[0].push(claim.transition.0.as_u128()),
                Effect::Record { claim, .. } => ends[1].push(claim.transition.0.as_u128()),
                _ => {}
            }
        }
        ends[1].sort_unstable();
        assert_eq!(ends, [released, recorded], "after {attempts} claims");
    }
}

/// A claim whose completion makes the corpus' change, and its certificate.
fn proposal(seed: u64, n: u128) -> (Claimed, String) {
    let sample = corpus::sample(seed);
    let (before, after) = (&sample.changed.before[0], &sample.changed.after[0]);
    let mut options = diffy::DiffOptions::new();
    options
        .set_original_filename("a/calc.py")
        .set_modified_filename("b/calc.py");
    let diff = options.create_patch(&before.text, &after.text).to_string();
    let mut one = claimed(n, 1, "ok, and now?");
    one.turn.completion_text = format!("```diff\n{diff}```");
    let files: Vec<SourceFile> = sample.changed.before.clone();
    let tests = sample.tests.clone();
    one.turn.admission.checks = vec![Check {
        name: "certificate".to_owned(),
        verifier: Verifier::Certificate { files, tests },
    }];
    (one, serde_json::to_string(&sample.certificate).unwrap())
}

fn passing() -> u64 {
    let passes = |seed: &u64| corpus::sample(*seed).certificate.conclusion == Ends::Pass;
    (0..100).find(passes).unwrap()
}

#[test]
fn a_sound_certificate_is_paid_as_measured_and_a_broken_one_is_not() {
    let (one, words) = proposal(passing(), 1);
    let count = |agreed, executed| AuditCount {
        bucket: "test-judge/py/small/one-file".to_owned(),
        agreed,
        executed,
    };
    let judge = |words: &str, counts: Vec<AuditCount>| {
        let mut judge = new_judge(with_model()).with_buckets(Buckets::new(counts));
        let effects = arrive(&mut judge, one.clone());
        let effects = end(&mut judge, effects, Ok(Done::Words(words.into())));
        let told = verdict(&effects).cloned();
        (told, effects.iter().any(|e| matches!(e, Effect::Ask(_))))
    };
    for counts in [Vec::new(), vec![count(19, 19)]] {
        let (told, asked) = judge(&words, counts);
        assert!(told.is_none() && asked, "too little is known yet");
    }
    let (told, _) = judge(&words, vec![count(97, 98)]);
    let told = told.unwrap();
    assert_eq!(
        (told.score, told.decided_by),
        (Some(0.98), Some(Signal::Verifier))
    );
    assert_eq!(told.votes[0].model.as_deref(), Some("test-judge"));
    let invented = words.replace("calc.py\"", "help.py\"");
    for words in ["I am sure it works.", &invented] {
        let (told, asked) = judge(words, vec![count(97, 98)]);
        assert!(told.is_none() && asked, "the model is asked instead");
    }
    let (told, asked) = judge(&words, vec![count(20, 40)]);
    assert!(told.is_none() && asked, "a coin is not believed");
}

/// All certificates are executed as well.
fn with_execution() -> Config {
    let mut config = with_model();
    config.certificate.audit_share = 1.0;
    config.certificate.execute = Some(Execute {
        url: "http://127.0.0.1:9/".to_owned(),
        secret_env: "SECRET".to_owned(),
        deadline_ms: 100,
    });
    config
}

#[test]
fn a_share_is_executed_and_the_fact_decides() {
    let config = with_execution();
    let (one, words) = proposal(passing(), 1);
    let count = AuditCount {
        bucket: "test-judge/py/small/one-file".to_owned(),
        agreed: 29,
        executed: 29,
    };
    let mut judge = new_judge(config).with_buckets(Buckets::new([count]));
    let effects = arrive(&mut judge, one);
    let effects = end(&mut judge, effects, Ok(Done::Words(words.as_str().into())));
    assert!(verdict(&effects).is_none());
    let effects = end(&mut judge, effects, Ok(says(-1.0)));
    let told = verdict(&effects).unwrap();
    assert_eq!(
        (told.score, told.decided_by),
        (Some(-1.0), Some(Signal::Verifier))
    );
    let audit = told
        .votes
        .iter()
        .find(|v| v.model.as_deref() == Some("audit:test-judge/py/small/one-file"));
    assert_eq!(audit.unwrap().outcome, Outcome::Bad);
    // The next one of its kind is worth less.
    let (one, _) = proposal(passing(), 2);
    let effects = arrive(&mut judge, one);
    let effects = end(&mut judge, effects, Ok(Done::Words(words.as_str().into())));
    let effects = end(&mut judge, effects, Err("no answer".to_owned()));
    assert_eq!(verdict(&effects).unwrap().score, Some(30.0 / 32.0));
}

#[test]
fn an_unfit_kind_is_executed_on_until_it_pays_again() {
    let config = with_execution();
    let count = AuditCount {
        bucket: "test-judge/py/small/one-file".to_owned(),
        agreed: 13,
        executed: 20,
    };
    let mut judge = new_judge(config).with_buckets(Buckets::new([count]));
    let mut reasons = Vec::new();
    for n in 1..=4 {
        let (one, words) = proposal(passing(), n);
        let effects = arrive(&mut judge, one);
        let effects = end(&mut judge, effects, Ok(Done::Words(words.as_str().into())));
        let effects = end(&mut judge, effects, Ok(says(1.0)));
        let told = verdict(&effects).unwrap();
        assert_eq!(told.score, Some(1.0), "the fact decides");
        reasons.push(told.votes[0].reason.clone());
    }
    let is_unfit = |reason: &String| reason.contains("turned out wrong too often");
    assert!(is_unfit(&reasons[0]), "{reasons:?}");
    assert!(!is_unfit(&reasons[3]), "{reasons:?}");
}

#[test]
fn the_executed_share_is_what_is_configured() {
    let drawn = (0..4_000u128).filter(|n| {
        let mut one = claimed(1, 1, "ok");
        let id = uuid::Uuid::from_u128(
            (0x0190_0000_0000_7000 << 64) | (n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c)),
        );
        one.transition.id = hone_domain::TransitionId(id);
        let mut checking = Checking::new(one, 0, Vec::new(), Vec::new(), None);
        let pay = PayConfig {
            execute: Some(Execute {
                url: String::new(),
                secret_env: String::new(),
                deadline_ms: 1,
            }),
            ..PayConfig::default()
        };
        let counts = [AuditCount {
            bucket: "b".to_owned(),
            agreed: pay.audits_min,
            executed: pay.audits_min,
        }];
        let mut bench = |bucket| {
            let bench = Bench {
                model: None,
                pay: &pay,
                buckets: &mut Buckets::new(counts.clone()),
            };
            checking.audit(&callback(), bucket, Ends::Pass, &bench)
        };
        assert!(bench("of which little is known"));
        bench("b")
    });
    // Four standard deviations around 3 % of 4,000.
    let count = drawn.count() as f64;
    assert!((count - 120.0).abs() < 4.0 * 120.0f64.sqrt(), "{count}");
}

#[test]
fn a_change_that_does_not_fit_is_bad_and_none_at_all_abstains() {
    for (completion, score) in [
        (
            "--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-nothing like it\n+x\n",
            Some(-1.0),
        ),
        ("I would not.", None),
    ] {
        let (mut one, _) = proposal(0, 1);
        one.turn.completion_text = completion.to_owned();
        one.transition.next_state = Default::default();
        let effects = arrive(&mut new_judge(with_model()), one);
        assert_eq!(verdict(&effects).unwrap().score, score, "{completion}");
    }
}

#[test]
fn the_audited_share_is_the_configured_one() {
    let share = PayConfig::default().audit_share;
    assert!((0.02..=0.05).contains(&share), "{share}");
    let drawn = 50_000;
    for share in [0.02, share, 0.05] {
        // Ids as production makes them: the time in front, chance behind.
        let ids = (0..drawn).map(|_| TransitionId(Uuid::now_v7()));
        let audited = ids.filter(|id| is_audited(*id, share)).count();
        let got = audited as f64 / f64::from(drawn);
        // Five standard deviations.
        let spread = 5.0 * (share * (1.0 - share) / f64::from(drawn)).sqrt();
        assert!((got - share).abs() < spread, "{got} of {share}");
    }
    let id = TransitionId(Uuid::now_v7());
    assert!(is_audited(id, 1.0) && !is_audited(id, 0.0));
}
