//! A ledger full of work: open, unjudged and untrained turns for every loop.

use std::path::Path;
use std::sync::{Arc, Mutex};

use hone_collect::{Input, SharedIndex};
use hone_domain::{
    BindHow, Binding, Completion, Message, NextState, Policies, Role, Scope, SessionId,
    SessionIndex, SessionIndexConfig, Signal, StopReason, Transition, TransitionId, Turn, Verdict,
    VerdictId,
};
use hone_ledger::Ledger;
use hone_ledger_sql::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_runtime::{Ids, Latest, Outbox, Overflow, SeededIds, queue};

use super::rng::Rng;
use super::trainer::FINGERPRINT;
use super::users::{Gateway, Moment, OWNERS, sampled};

/// When a run begins.
pub(super) const BEGINNING_MS: i64 = 1_700_000_000_000;
/// Turns in stock: open, with a next state, and judged.
const STOCK: [usize; 3] = [320, 480, 600];

/// A ledger full of work, to be copied for every run.
pub(super) struct Stock {
    folder: tempfile::TempDir,
    /// Turns that wait for somebody to say something.
    pub(super) open: Vec<Turn>,
}

pub(super) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

pub(super) fn empty_index() -> SharedIndex {
    Arc::new(Mutex::new(SessionIndex::new(SessionIndexConfig {
        sessions_max: 4_096,
        turns_per_session_max: 64,
        transcript_bytes_max: 1 << 20,
        retry_ms: 0,
    })))
}

pub(super) fn gateway(to_collect: Outbox<Input>) -> Gateway {
    Gateway {
        index: empty_index(),
        policies: Latest::new(Policies::default()),
        to_collect,
    }
}

pub(super) async fn open(folder: &Path) -> SqliteLedger {
    let config = SqliteConfig {
        readers: 1,
        ..SqliteConfig::in_folder(folder)
    };
    SqliteStore::open(&config).await.unwrap()
}

/// A turn that may train.
fn turn(number: usize, moment: &mut Moment<'_>) -> Turn {
    let owner = OWNERS[number % OWNERS.len()];
    let said = format!("Question {number}: where is the moon?");
    let messages = [Message::text(Role::User, said)];
    let binding = Binding {
        session: SessionId(moment.ids.next()),
        how: BindHow::New,
        parent: None,
        next_state: NextState::default(),
        transcript: None,
        recorded: Vec::new(),
        shown: None,
        retry_of: None,
    };
    let scope = Scope::of(owner, None);
    let mut turn = sampled(moment, (owner, &scope), (&messages, &binding));
    let tokens = vec![number as u32 % 50, 7, 9];
    let logprobs = vec![-0.5; 3];
    turn.completion = Completion::new(
        tokens,
        logprobs.clone(),
        logprobs,
        vec![None; 3],
        StopReason::EndToken,
    )
    .unwrap();
    turn.completion_text = format!("Answer {number}.");
    turn.spans[0].end = 3;
    turn.prompt_tokens.truncate(8);
    turn.sampling.temperature = 1.0;
    (turn.fingerprint, turn.untrainable) = (FINGERPRINT.to_owned(), None);
    turn
}

impl Stock {
    pub(super) async fn new() -> Self {
        let folder = folder();
        let ledger = open(folder.path()).await;
        let (ids, mut rng) = (SeededIds::new(1), Rng::new(1));
        let (to_collect, _inbox) = queue(1, Overflow::DropNewest);
        let mut moment = Moment {
            gateway: &gateway(to_collect),
            ids: &ids,
            rng: &mut rng,
            now_ms: BEGINNING_MS,
        };
        let [open, unjudged, judged] = STOCK;
        let count = open + unjudged + judged;
        let turns: Vec<Turn> = (0..count).map(|n| turn(n, &mut moment)).collect();
        for some in turns.chunks(100) {
            ledger.record_turns(some).await.unwrap();
        }
        let answered = turns[open..].iter().map(|turn| Transition {
            id: TransitionId(ids.next()),
            turn: turn.id,
            session: turn.session,
            scope: turn.scope.clone(),
            next_state: NextState::from_messages(&[Message::text(
                Role::User,
                "Thanks, that was perfect.",
            )]),
            next_turn: None,
            settled_ms: BEGINNING_MS,
        });
        let answered: Vec<Transition> = answered.collect();
        for some in answered.chunks(100) {
            ledger.record_transitions(some).await.unwrap();
        }
        let claimed = ledger.claim_transitions(judged, 60_000, BEGINNING_MS).await;
        for (number, claimed) in claimed.unwrap().into_iter().enumerate() {
            let verdict = Verdict {
                id: VerdictId(ids.next()),
                transition: claimed.transition.id,
                score: Some(if number.is_multiple_of(2) { 1.0 } else { -1.0 }),
                decided_by: Some(Signal::Rules),
                hint: None,
                wish: None,
                hint_choice: None,
                votes: Vec::new(),
                judged_ms: BEGINNING_MS,
            };
            ledger
                .record_verdict(claimed.claim, &verdict)
                .await
                .unwrap();
        }
        ledger.close().await;
        let open = turns.into_iter().take(open).collect();
        Self { folder, open }
    }

    pub(super) fn copy(&self) -> tempfile::TempDir {
        let copy = folder();
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
            }
        }
        copy
    }
}
