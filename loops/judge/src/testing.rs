//! Nouns for the tests of this crate.

use hone_domain::{
    Check, Completion, Digest, Feedback, FeedbackId, Message, NextItem, NextKind, NextState,
    Origin, PolicyVersion, RequestId, Role, Sampling, Scope, SessionId, StopReason, Transition,
    TransitionId, Turn, TurnId, TurnKind, Verifier, VersionSpan,
};
use hone_ledger::{Claim, Claimed, Consumer};
use uuid::Uuid;

pub(crate) fn turn(n: u128) -> Turn {
    Turn {
        id: TurnId(Uuid::from_u128(n)),
        request: RequestId(Uuid::from_u128(n)),
        choice_index: 0,
        group: None,
        session: SessionId(Uuid::from_u128(7)),
        session_key: None,
        parent: None,
        owner: "ann".to_owned(),
        scope: Scope::of("ann", None),
        origin: Origin::User,
        kind: TurnKind::Main,
        messages: vec![Message::text(Role::User, "Tell me about the moon.")],
        prompt_tokens: vec![1, 2, 3],
        completion: Completion::new(
            vec![4],
            vec![-0.5],
            vec![-0.5],
            vec![None],
            StopReason::EndToken,
        )
        .expect("the arrays align"),
        completion_text: "The moon orbits the Earth in 27 days.".to_owned(),
        sampling: Sampling::default(),
        spans: vec![VersionSpan {
            version: PolicyVersion::BASE,
            start: 0,
            end: 1,
        }],
        digest: None,
        base: Digest([1; 32]),
        fingerprint: "cpu-f32".to_owned(),
        admission: Default::default(),
        untrainable: None,
        started_ms: 0,
        finished_ms: 10,
    }
}

pub(crate) fn feedback(n: u128, score: Option<f32>) -> Feedback {
    Feedback {
        id: FeedbackId(Uuid::from_u128(n)),
        turn: TurnId(Uuid::from_u128(n)),
        owner: "ann".to_owned(),
        client_id: None,
        score,
        comment: None,
        correction: None,
        of_session: false,
        received_ms: 20,
    }
}

pub(crate) fn transition(n: u128, reply: &str) -> Transition {
    let items = vec![NextItem {
        kind: NextKind::UserReply,
        text: reply.to_owned(),
        failed: None,
    }];
    Transition {
        id: TransitionId(Uuid::from_u128(n)),
        turn: TurnId(Uuid::from_u128(n)),
        session: SessionId(Uuid::from_u128(7)),
        scope: Scope::of("ann", None),
        next_state: NextState { items },
        next_turn: None,
        settled_ms: 30,
    }
}

pub(crate) fn claimed(n: u128, fence: u64, reply: &str) -> Claimed {
    let transition = transition(n, reply);
    Claimed {
        claim: Claim {
            transition: transition.id,
            consumer: Consumer::Judge,
            fence,
        },
        transition,
        turn: turn(n),
        feedback: Vec::new(),
        attempts: 0,
    }
}

pub(crate) fn callback() -> Check {
    Check {
        name: "call".to_owned(),
        verifier: Verifier::Callback {
            url: "http://127.0.0.1:9/".to_owned(),
            secret_env: "SECRET".to_owned(),
            deadline_ms: 100,
        },
    }
}

pub(crate) fn says(score: f64) -> crate::Done {
    crate::Done::Reply(crate::CallReply {
        score: Some(score),
        reason: "because".to_owned(),
        hint: None,
    })
}
