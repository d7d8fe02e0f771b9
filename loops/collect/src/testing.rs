//! Nouns for the tests of this crate.

use std::sync::{Arc, Mutex};

use hone_domain::{
    Completion, Digest, Feedback, FeedbackId, Message, NextItem, NextKind, NextState, Origin,
    PolicyVersion, RequestId, Role, Sampling, Scope, SessionId, SessionIndex, SessionIndexConfig,
    StopReason, Turn, TurnId, TurnKind, VersionSpan,
};
use hone_ledger_sql::SqliteLedger;
use hone_runtime::{ManualClock, SeededIds, StatusRegistry};
use uuid::Uuid;

use crate::{Carry, Config, Ctx, Observed, Spool};

/// What collect works with, over this ledger.
pub(crate) fn ctx(ledger: Arc<SqliteLedger>, spool: Arc<Spool>, carry: Carry) -> Ctx {
    let bounds = SessionIndexConfig {
        sessions_max: 100,
        turns_per_session_max: 100,
        transcript_bytes_max: 1 << 20,
        retry_ms: 180_000,
    };
    Ctx {
        ledger,
        ids: Arc::new(SeededIds::new(3)),
        index: Arc::new(Mutex::new(SessionIndex::new(bounds))),
        spool,
        carry,
        clock: Arc::new(ManualClock::at(1_000)),
        config: Config::for_tests(),
        registry: StatusRegistry::new(),
    }
}

/// Turn `n` of session `session`, ended at time `n`.
pub(crate) fn turn(n: u128, session: u128) -> Turn {
    Turn {
        id: TurnId(Uuid::from_u128(n)),
        request: RequestId(Uuid::from_u128(n)),
        choice_index: 0,
        group: None,
        session: SessionId(Uuid::from_u128(session)),
        session_key: None,
        parent: None,
        owner: "ann".to_owned(),
        scope: Scope::of("ann", None),
        origin: Origin::User,
        kind: TurnKind::Main,
        messages: vec![Message::text(Role::User, format!("question {n}"))],
        prompt_tokens: vec![1, 2, 3],
        completion: Completion::new(
            vec![4],
            vec![-0.5],
            vec![-0.5],
            vec![None],
            StopReason::EndToken,
        )
        .expect("the arrays align"),
        completion_text: format!("answer {n}"),
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
        finished_ms: i64::try_from(n).expect("a small number"),
    }
}

pub(crate) fn feedback(n: u128, turn: u128, score: Option<f32>) -> Feedback {
    Feedback {
        id: FeedbackId(Uuid::from_u128(n)),
        turn: TurnId(Uuid::from_u128(turn)),
        owner: "ann".to_owned(),
        client_id: None,
        score,
        comment: Some("well".to_owned()),
        correction: None,
        of_session: false,
        received_ms: 20,
    }
}

pub(crate) fn observed(parent: u128, session: u128) -> Observed {
    let items = vec![NextItem {
        kind: NextKind::UserReply,
        text: "thanks".to_owned(),
        failed: None,
    }];
    Observed {
        parent: TurnId(Uuid::from_u128(parent)),
        session: SessionId(Uuid::from_u128(session)),
        scope: Scope::of("ann", None),
        next_state: NextState { items },
        next_turn: None,
        at_ms: 30,
    }
}
