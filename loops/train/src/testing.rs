#![allow(clippy::unwrap_used)]

//! Makers of test values.

use hone_domain::{
    Completion, Digest, Origin, RequestId, Sampling, SamplingMask, Scope, SessionId, StopReason,
    Token, TransitionId, Turn, TurnId, TurnKind, VersionSpan,
};
use hone_ledger::{Claim, Consumer, SampleMaterial};
use uuid::Uuid;

use crate::candidate::Candidate;
use crate::gate::Measured;
use crate::probe::ProbeSummary;
use crate::trainer::{CandidateFiles, Parity, WishTurns};

/// A turn of session 0, sampled by the base model, whose log-probs are all different.
pub(crate) fn turn(number: u8, prompt: &[Token], completion: &[Token]) -> Turn {
    let n = completion.len();
    let logprobs: Vec<f32> = (0..n)
        .map(|i| -0.1 - f32::from(number) - i as f32 / 64.0)
        .collect();
    let kept = (0..n)
        .map(|i| (i % 2 == 1).then(|| SamplingMask::from([0, completion[i]])))
        .collect();
    let version = Default::default();
    Turn {
        id: TurnId(Uuid::from_u128(u128::from(number) + 1)),
        request: RequestId(Uuid::from_u128(u128::from(number) + 1)),
        choice_index: 0,
        group: None,
        session: SessionId(Uuid::from_u128(1)),
        session_key: None,
        parent: None,
        owner: "o".into(),
        scope: Scope::of("o", None),
        origin: Origin::User,
        kind: TurnKind::Main,
        messages: Vec::new(),
        prompt_tokens: prompt.to_vec(),
        completion: Completion::new(
            completion.to_vec(),
            logprobs.clone(),
            logprobs,
            kept,
            StopReason::EndToken,
        )
        .expect("aligned"),
        completion_text: String::new(),
        sampling: Sampling::default(),
        spans: vec![VersionSpan {
            version,
            start: 0,
            end: n as u32,
        }],
        digest: None,
        base: Digest([7; 32]),
        fingerprint: "test".into(),
        admission: Default::default(),
        untrainable: None,
        started_ms: i64::from(number),
        finished_ms: i64::from(number) + 1,
    }
}

pub(crate) fn with_session(mut turn: Turn, session: u8) -> Turn {
    turn.session = SessionId(Uuid::from_u128(u128::from(session) + 100));
    turn
}

pub(crate) fn transition_of(turn: &Turn) -> TransitionId {
    TransitionId(turn.id.0)
}

pub(crate) fn material(turn: Turn, score: f32) -> SampleMaterial {
    SampleMaterial {
        claim: Claim {
            transition: transition_of(&turn),
            consumer: Consumer::Train,
            fence: 1,
        },
        turn,
        staleness: 0,
        score,
        hint: None,
        wish: None,
        correction: None,
        peers: Vec::new(),
    }
}

/// A candidate that every guard of the gate lets pass.
pub(crate) fn candidate(number: u8) -> Candidate {
    let probes = ProbeSummary {
        probes: 4,
        empty_share: 0.0,
        ended_share: 1.0,
        looping_share: 0.0,
        tokens_mean: 9.0,
    };
    Candidate {
        digest: Digest([number; 32]),
        files: CandidateFiles {
            adapter: vec![("adapter".into(), vec![number])],
            checkpoint: vec![number, 1],
        },
        measured: Measured {
            finite: true,
            changed: true,
            kl_to_reference: 0.01,
            kl_to_parent: 0.01,
            candidate: probes,
            parent: probes,
            base: probes,
            golden_loss: 0.1,
            ..Measured::default()
        },
        numbers: [("loss".to_owned(), 0.5)].into(),
        parity: Parity {
            tokens: 4,
            ..Parity::default()
        },
        wishes: WishTurns::default(),
    }
}
