//! The effects with a spool, over real ledgers: one that is closed stands for one that does not answer.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use hone_domain::{Fate, NextState, PolicyVersion, Stage, TransitionId, VersionSpan};
use hone_ledger::Ledger;
use hone_ledger_sql::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_runtime::{Effects as _, Overflow, queue};
use tempfile::TempDir;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::*;
use crate::testing::{ctx, feedback, turn};
use crate::{Carry, Effect, Report, Said, Spool};

const ALL: Ship = Ship {
    most: 100,
    limit_ms: 60_000,
    doubts_first: false,
};

/// A data folder, with a spool of so many bytes.
struct Rig {
    folder: TempDir,
    bytes_max: u64,
    spool: Arc<Spool>,
    carry: Carry,
}

fn open(folder: &TempDir, bytes_max: u64) -> Arc<Spool> {
    Arc::new(Spool::open(&folder.path().join("spool"), bytes_max).unwrap())
}

impl Rig {
    fn new(bytes_max: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            spool: open(&folder, bytes_max),
            folder,
            bytes_max,
            carry: Carry::default(),
        }
    }

    async fn ledger(&self) -> Arc<SqliteLedger> {
        let config = SqliteConfig::in_folder(self.folder.path());
        Arc::new(SqliteStore::open(&config).await.unwrap())
    }

    fn effects(&self, ledger: &Arc<SqliteLedger>) -> CollectEffects {
        let ctx = ctx(ledger.clone(), self.spool.clone(), self.carry.clone());
        CollectEffects::new(ctx, queue(4, Overflow::DropNewest).0)
    }

    /// Effects over a ledger that does not answer.
    async fn away(&self) -> CollectEffects {
        let ledger = self.ledger().await;
        ledger.close().await;
        self.effects(&ledger)
    }

    /// The spool as the next process finds it.
    fn restart(&mut self) {
        self.spool = open(&self.folder, self.bytes_max);
        self.carry = Carry::default();
    }
}

type Signed = oneshot::Receiver<Receipt>;

fn batch_of(turns: Vec<Turn>) -> (Batch, Vec<Signed>) {
    let (receipts, signed) = turns.iter().map(|_| oneshot::channel()).unzip();
    let batch = Batch {
        turns,
        receipts,
        ..Batch::default()
    };
    (batch, signed)
}

fn id(n: u128) -> TurnId {
    TurnId(Uuid::from_u128(n))
}

fn next(n: u128, turn: u128) -> Transition {
    Transition {
        id: TransitionId(Uuid::from_u128(n)),
        turn: id(turn),
        session: crate::testing::turn(turn, 1).session,
        scope: crate::testing::turn(turn, 1).scope,
        next_state: NextState::feedback(),
        next_turn: None,
        settled_ms: 9,
    }
}

async fn write(effects: &CollectEffects, batch: Batch) -> Wrote {
    match effects.perform(Effect::Write(Box::new(batch))).await {
        Report::Wrote(wrote) => *wrote,
        other => panic!("{other:?}"),
    }
}

async fn fates(ledger: &SqliteLedger) -> Vec<(TurnId, Fate)> {
    let rows = ledger.turns(None, 100).await.unwrap().into_iter().rev();
    rows.map(|row| (row.id, row.fate)).collect()
}

fn pending(stage: Stage) -> Fate {
    Fate::Pending { stage }
}

const LATE: Fate = Fate::Settled {
    reason: Reason::LateReceipt,
};

#[tokio::test]
async fn what_a_silent_ledger_leaves_waits_and_is_shipped_once_whatever_was_shipped_before() {
    let mut rig = Rig::new(1 << 20);
    let away = rig.away().await;
    let (mut batch, signed) = batch_of(vec![turn(1, 1), turn(2, 1)]);
    batch.transitions.push(next(7, 1));
    batch.settles.push((id(2), Reason::NoNextState));
    let wrote = write(&away, batch).await;
    assert_eq!((wrote.spooled, wrote.recorded, &wrote.error), (2, 0, &None));
    assert_eq!(wrote.closed, [id(1), id(2)]);
    assert!(wrote.status.is_away && wrote.status.records == 4);
    for signed in signed {
        assert_eq!(signed.await, Ok(Receipt::Spooled));
    }
    assert_eq!(rig.spool.turn(id(2)).await, Some(turn(2, 1)));
    assert_eq!(rig.spool.turn(id(3)).await, None);
    let told = away.ship(ALL).await;
    assert!(told.error.is_some() && told.status.records == 4, "{told:?}");
    // The process ends; the next one ships everything, ends before it could forget that, and the third ships it again.
    rig.restart();
    let files: Vec<PathBuf> = fs::read_dir(rig.folder.path().join("spool"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    let before: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let ledger = rig.ledger().await;
    let mut came = Vec::new();
    for is_new in [true, false] {
        let shipped = rig.effects(&ledger).ship(ALL).await;
        assert_eq!((shipped.turns, shipped.lost, &shipped.error), (2, 0, &None));
        assert_eq!(shipped.transitions, u64::from(is_new));
        assert!(rig.spool.is_empty() && !shipped.status.is_away);
        assert!(rig.spool.until_empty(Duration::ZERO).await);
        came.push(fates(&ledger).await);
        for (file, bytes) in files.iter().zip(&before) {
            fs::write(file, bytes).unwrap();
        }
        rig.restart();
    }
    let reason = Reason::NoNextState;
    let expected = [
        (id(1), pending(Stage::AwaitingVerdict)),
        (id(2), Fate::Settled { reason }),
    ];
    assert_eq!(came, [expected, expected]);
    assert_eq!(ledger.turn(id(1)).await.unwrap().unwrap().turn, turn(1, 1));
}

#[tokio::test]
async fn a_turn_whose_client_was_told_no_is_shipped_and_teaches_nothing() {
    let mut rig = Rig::new(1 << 20);
    let away = rig.away().await;
    // Its client left before: it is behind what waits, so nobody tried the ledger.
    let (batch, signed) = batch_of(vec![turn(1, 1)]);
    drop(signed);
    assert_eq!(away.spool(batch).await.spooled, 1);
    // Its client is told so by the gateway, which notes it, after it went in.
    let (batch, signed) = batch_of(vec![turn(2, 1), turn(3, 1)]);
    assert_eq!(away.spool(batch).await.spooled, 2);
    drop(signed);
    rig.restart();
    rig.spool.mark_late([id(2)]);
    let ledger = rig.ledger().await;
    assert_eq!(rig.effects(&ledger).ship(ALL).await.turns, 3);
    let open = pending(Stage::AwaitingNextState);
    assert_eq!(
        fates(&ledger).await,
        [(id(1), LATE), (id(2), LATE), (id(3), open)]
    );
}

#[tokio::test]
async fn a_turn_tried_in_vain_that_nobody_waits_for_is_dropped_and_settled() {
    let rig = Rig::new(1 << 20);
    let away = rig.away().await;
    let (mut batch, mut signed) = batch_of(vec![turn(1, 1), turn(2, 1)]);
    drop(signed.remove(0));
    batch.transitions.push(next(7, 1));
    let wrote = write(&away, batch).await;
    assert_eq!((wrote.spooled, wrote.dropped), (1, vec![id(1)]));
    assert_eq!(wrote.ignored, 1, "no next state goes before the settling");
    let settle = Batch {
        settles: vec![(id(1), Reason::LateReceipt)],
        ..Batch::default()
    };
    let wrote = away.spool(settle).await;
    assert_eq!((wrote.closed, wrote.error), (vec![id(1)], None));
    assert!(!rig.carry.doubts(id(1)));
}

#[tokio::test]
async fn a_full_spool_refuses_turns_and_still_takes_what_settles_others() {
    let rig = Rig::new(4_000);
    let away = rig.away().await;
    let (batch, signed) = batch_of((1..10).map(|n| turn(n, 1)).collect());
    let wrote = write(&away, batch).await;
    let told: Vec<Receipt> = futures_of(signed).await;
    let spooled = told
        .iter()
        .filter(|told| **told == Receipt::Spooled)
        .count();
    assert!((1..9).contains(&spooled), "{told:?}");
    let refused = Receipt::NotCollected(Reason::SpoolFull);
    assert!(told[spooled..].iter().all(|told| *told == refused));
    // The ledger was tried, and may have them.
    assert_eq!((wrote.dropped.len(), wrote.refused.len()), (9 - spooled, 0));
    let (mut batch, signed) = batch_of(vec![turn(20, 1)]);
    batch.settles.push((id(1), Reason::NoNextState));
    let wrote = away.spool(batch).await;
    assert_eq!((wrote.refused, wrote.error), (vec![id(20)], None));
    assert_eq!(wrote.closed, [id(1)]);
    assert_eq!(futures_of(signed).await, [refused]);
    assert!(rig.spool.status().bytes <= 4_500);
}

async fn futures_of(signed: Vec<Signed>) -> Vec<Receipt> {
    let mut told = Vec::new();
    for signed in signed {
        told.push(signed.await.unwrap());
    }
    told
}

#[tokio::test]
async fn a_spool_that_cannot_be_written_leaves_turns_to_be_tried_again() {
    let rig = Rig::new(1 << 20);
    let away = rig.away().await;
    fs::write(rig.folder.path().join("spool"), "in the way").unwrap();
    let (batch, mut signed) = batch_of(vec![turn(1, 1)]);
    let wrote = write(&away, batch).await;
    assert!(wrote.error.is_some() && wrote.unfinished.turns.len() == 1);
    assert!(signed[0].try_recv().is_err(), "its client still waits");
}

#[tokio::test]
async fn a_turn_that_the_ledger_never_takes_holds_up_no_others() {
    let mut rig = Rig::new(1 << 20);
    let away = rig.away().await;
    let mut impossible = turn(1, 1);
    impossible.spans = vec![VersionSpan {
        version: PolicyVersion(u64::MAX),
        start: 0,
        end: 1,
    }];
    let (batch, _signed) = batch_of(vec![impossible]);
    away.spool(batch).await;
    rig.restart();
    let ledger = rig.ledger().await;
    let effects = rig.effects(&ledger);
    let alone = Ship { most: 1, ..ALL };
    let doubted = Ship {
        doubts_first: true,
        ..alone
    };
    // By itself it could be the ledger that is wrong.
    for ship in [ALL, alone, doubted] {
        let shipped = effects.ship(ship).await;
        assert!(shipped.error.is_some() && shipped.lost == 0, "{shipped:?}");
    }
    let (batch, _signed) = batch_of(vec![turn(2, 1)]);
    effects.spool(batch).await;
    assert!(effects.ship(alone).await.error.is_some());
    let shipped = effects.ship(doubted).await;
    assert_eq!((shipped.lost, shipped.error), (1, None));
    let shipped = effects.ship(ALL).await;
    assert_eq!((shipped.turns, shipped.error), (1, None));
    let open = pending(Stage::AwaitingNextState);
    assert_eq!(fates(&ledger).await, [(id(2), open)]);
}

#[tokio::test]
async fn feedback_is_refused_while_the_ledger_is_away_and_kept_while_it_catches_up() {
    let rig = Rig::new(1 << 20);
    let away = rig.away().await;
    let said = |n| {
        let (reply, told) = oneshot::channel();
        let said = Said {
            feedback: Box::new(feedback(n, 1, Some(1.0))),
            reply,
            place: None,
            transition: TransitionId(Uuid::from_u128(50 + n)),
        };
        (said, told)
    };
    let (mut batch, _signed) = batch_of(vec![turn(1, 1)]);
    let (first, told) = said(5);
    batch.said.push(first);
    write(&away, batch).await;
    assert!(told.await.unwrap().is_err());
    let (second, told) = said(6);
    let batch = Batch {
        said: vec![second],
        ..Batch::default()
    };
    let ledger = rig.ledger().await;
    assert!(away.spool(batch).await.error.is_none());
    assert!(told.await.unwrap().is_err(), "nobody asks it again");
    // It answers, and what it took already tells the loop that it does.
    let effects = rig.effects(&ledger);
    rig.spool.note_away(false);
    let (third, told) = said(7);
    let batch = Batch {
        said: vec![third],
        ..Batch::default()
    };
    let wrote = effects.spool(batch).await;
    assert!(told.await.unwrap().is_ok() && wrote.heard.len() == 1);
    effects.ship(ALL).await;
    let view = ledger.turn(id(1)).await.unwrap().unwrap();
    assert_eq!(view.feedback.len(), 1, "it was said before its turn came");
}
