//! Answers for retries.

use hone_domain::{Digest, ForgetId, RequestId};
use serde_json::Value;
use uuid::Uuid;

use super::World;
use super::world::{NOW, OWNER};
use crate::{
    Answer, AnswerLimits, AnswerName, Answered, Answers, AuditEntry, ForgetStep, ForgetWhat,
    ForgetWish, Personal,
};

const LIMITS: AnswerLimits = AnswerLimits {
    answers_max: 3,
    bytes_max: 100,
    keep_ms: 1_000,
};

fn name(n: u8) -> AnswerName {
    AnswerName {
        name: Digest([n; 32]),
        owner: OWNER.to_owned(),
        body: Digest([7; 32]),
        request: RequestId(Uuid::from_u128(u128::from(n) + 1)),
    }
}

fn answer(bytes: usize) -> Answer {
    Answer {
        status: 200,
        headers: b"[]".to_vec(),
        body: vec![0; bytes],
    }
}

async fn told(answers: &dyn Answers, name: &AnswerName) -> Answered {
    answers.answered(name, 0).await.expect("answered")
}

/// A retry gets the answer, or is told which turn the lost one came to; another request under the name is told so.
pub(super) async fn a_retry_gets_its_answer(
    world: &World,
    answers: &dyn Answers,
    _: &dyn Personal,
) {
    let whole = name(1);
    answers
        .begin_answer(&whole, LIMITS, 5)
        .await
        .expect("begun");
    let kept = answers.keep_answer(&whole, &answer(2), LIMITS).await;
    assert!(kept.expect("kept"));
    let turn = world.turn();
    let cut = AnswerName {
        request: turn.request,
        ..name(2)
    };
    let nothing = name(3);
    for name in [&cut, &nothing] {
        answers.begin_answer(name, LIMITS, 6).await.expect("begun");
    }
    world.record(&turn).await;
    assert_eq!(told(answers, &whole).await, Answered::Whole(answer(2)));
    let other = AnswerName {
        body: Digest([8; 32]),
        ..whole.clone()
    };
    assert_eq!(told(answers, &other).await, Answered::Other);
    assert_eq!(told(answers, &cut).await, Answered::Lost(turn.id));
    assert_eq!(told(answers, &nothing).await, Answered::Unknown);
    let later = answers.answered(&whole, 6).await.expect("answered");
    assert_eq!(later, Answered::Unknown);
    answers.drop_answer(&whole).await.expect("dropped");
    assert_eq!(told(answers, &whole).await, Answered::Unknown);
}

/// The oldest go beyond the limits of number, bytes and age.
pub(super) async fn what_is_beyond_the_limits_goes(
    _: &World,
    answers: &dyn Answers,
    _: &dyn Personal,
) {
    let kept = async |n: u8| told(answers, &name(n)).await != Answered::Unknown;
    for n in 0..5 {
        let begun = answers.begin_answer(&name(n), LIMITS, i64::from(n)).await;
        begun.expect("begun");
        let kept = answers.keep_answer(&name(n), &answer(10), LIMITS).await;
        kept.expect("kept");
    }
    assert!(!kept(0).await && !kept(1).await && kept(2).await && kept(4).await);
    let large = answers.keep_answer(&name(4), &answer(85), LIMITS).await;
    large.expect("kept");
    assert!(
        !kept(2).await && kept(3).await && kept(4).await,
        "too many bytes"
    );
    let begun = answers.begin_answer(&name(9), LIMITS, 2_000).await;
    begun.expect("begun");
    assert!(!kept(3).await && !kept(4).await, "too old");
}

/// Who forgets everything leaves no answer behind, and none comes after.
pub(super) async fn an_erasure_takes_answers_along(
    world: &World,
    answers: &dyn Answers,
    personal: &dyn Personal,
) {
    world.record(&world.turn()).await;
    for n in [1, 2] {
        answers
            .begin_answer(&name(n), LIMITS, 1)
            .await
            .expect("begun");
    }
    let first = answers.keep_answer(&name(1), &answer(3), LIMITS).await;
    assert!(first.expect("kept"));
    let wish = ForgetWish {
        id: ForgetId(Uuid::from_u128(1)),
        scope: world.scope(),
        owner: OWNER.to_owned(),
        what: ForgetWhat::All,
        now_ms: NOW + 100,
        entry: AuditEntry {
            at_ms: 1,
            actor: OWNER.to_owned(),
            act: "forget".to_owned(),
            object: String::new(),
            detail: Value::Null,
        },
    };
    personal.begin_forget(&wish).await.expect("begun");
    let late = answers.keep_answer(&name(2), &answer(3), LIMITS).await;
    assert!(!late.expect("refused"));
    assert_eq!(told(answers, &name(1)).await, Answered::Unknown);
    for _ in 0..1_000 {
        if personal.forget_piece(wish.id, 9).await.expect("a piece") == ForgetStep::Done {
            return;
        }
    }
    panic!("the erasure does not end");
}
