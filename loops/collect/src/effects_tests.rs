#![allow(clippy::unwrap_used)]

use hone_domain::{BindRequest, Fate, Message, Role, SessionId, Stage, Turn, TurnKind};
use hone_ledger::Ledger;
use hone_ledger_sql::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_runtime::{Inbox, Overflow, ShutdownTrigger, SystemClock, queue};
use tempfile::TempDir;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::*;
use crate::testing::{ctx, feedback, observed, turn};
use crate::{Carry, Input, Spool};

struct Rig {
    ctx: Ctx,
    effects: CollectEffects,
    notifications: Inbox<Notification>,
    personal: Arc<SqliteLedger>,
    _folder: TempDir,
}

async fn rig() -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    let ctx = ctx(ledger.clone(), Spool::off(), Carry::default());
    let (outbox, notifications) = queue(4, Overflow::DropNewest);
    Rig {
        effects: CollectEffects::new(ctx.clone(), outbox),
        ctx,
        notifications,
        personal: ledger,
        _folder: folder,
    }
}

fn id(n: u128) -> TurnId {
    TurnId(Uuid::from_u128(n))
}

fn with_turn(turn: Turn) -> (Batch, oneshot::Receiver<Receipt>) {
    let (receipt, signed) = oneshot::channel();
    let batch = Batch {
        turns: vec![turn],
        receipts: vec![receipt],
        ..Batch::default()
    };
    (batch, signed)
}

async fn fate(ledger: &dyn Ledger, n: u128) -> Fate {
    ledger.turn(id(n)).await.unwrap().unwrap().fate
}

const WAITS: Fate = Fate::Pending {
    stage: Stage::AwaitingNextState,
};
const LATE: Fate = Fate::Settled {
    reason: Reason::LateReceipt,
};

/// Its owner had it forgotten while it was answered: the client is told that nothing is kept.
#[tokio::test]
async fn no_receipt_is_signed_for_what_was_forgotten_before_it_came() {
    let rig = rig().await;
    let (batch, signed) = with_turn(turn(1, 1));
    rig.effects.write(batch).await;
    assert_eq!(signed.await, Ok(Receipt::Collected));
    let gone = turn(1, 1);
    let wish = hone_ledger::ForgetWish {
        id: hone_domain::ForgetId(Uuid::from_u128(9)),
        scope: gone.scope.clone(),
        owner: gone.owner.clone(),
        what: hone_ledger::ForgetWhat::Session(gone.session),
        now_ms: 9_000,
        entry: hone_ledger::AuditEntry {
            at_ms: 9_000,
            actor: gone.owner.clone(),
            act: "forget".to_owned(),
            object: String::new(),
            detail: Default::default(),
        },
    };
    hone_ledger::Personal::begin_forget(&*rig.personal, &wish)
        .await
        .unwrap();
    let (batch, signed) = with_turn(turn(2, 1));
    rig.effects.write(batch).await;
    let withdrawn = Receipt::NotCollected(Reason::Withdrawn);
    assert_eq!(signed.await, Ok(withdrawn));
}

#[tokio::test]
async fn a_receipt_is_signed_for_what_is_on_disk_and_late_turns_do_not_train() {
    let rig = rig().await;
    let (batch, signed) = with_turn(turn(1, 1));
    let wrote = rig.effects.write(batch).await;
    assert_eq!(
        (wrote.recorded, wrote.error, signed.await),
        (1, None, Ok(Receipt::Collected))
    );
    assert_eq!(fate(&*rig.ctx.ledger, 1).await, WAITS);

    let (mut batch, signed) = with_turn(turn(2, 1));
    batch.transitions.push(next(2));
    drop(signed);
    let wrote = rig.effects.write(batch).await;
    assert_eq!(
        (wrote.late, wrote.transitions, wrote.error),
        (vec![id(2)], 0, None)
    );
    assert_eq!(fate(&*rig.ctx.ledger, 2).await, LATE);
    assert!(!rig.ctx.carry.doubts(id(1)) && !rig.ctx.carry.doubts(id(2)));
}

fn next(n: u128) -> Transition {
    let observed = observed(n, 1);
    Transition {
        id: hone_domain::TransitionId(Uuid::from_u128(100 + n)),
        turn: id(n),
        session: observed.session,
        scope: observed.scope,
        next_state: observed.next_state,
        next_turn: None,
        settled_ms: 1,
    }
}

#[tokio::test]
async fn new_transitions_wake_the_judge_and_known_ones_do_not() {
    let rig = rig().await;
    let (mut batch, _signed) = with_turn(turn(1, 1));
    batch.transitions.push(next(1));
    let wrote = rig.effects.write(batch).await;
    assert_eq!((wrote.transitions, wrote.ignored), (1, 0));
    assert!(rig.notifications.try_recv().is_some());
    let again = Batch {
        transitions: vec![next(1), next(50)],
        ..Batch::default()
    };
    let wrote = rig.effects.write(again).await;
    assert_eq!(
        (wrote.transitions, wrote.ignored, wrote.error),
        (0, 2, None)
    );
    assert!(rig.notifications.try_recv().is_none());
}

#[tokio::test]
async fn clear_feedback_settles_its_turn_at_once() {
    let rig = rig().await;
    let (batch, _signed) = with_turn(turn(1, 1));
    rig.effects.write(batch).await;
    for (said, outcome, heard, stage) in [
        (
            Feedback {
                owner: "eve".into(),
                ..feedback(1, 1, Some(-1.0))
            },
            FeedbackOutcome::NotYours,
            vec![],
            Stage::AwaitingNextState,
        ),
        (
            feedback(2, 9, Some(1.0)),
            FeedbackOutcome::TurnUnknown,
            vec![Heard::Early {
                turn: id(9),
                owner: "ann".into(),
                settles: true,
            }],
            Stage::AwaitingNextState,
        ),
        (
            feedback(3, 1, None),
            FeedbackOutcome::Stored,
            vec![Heard::Kept(id(1))],
            Stage::AwaitingNextState,
        ),
        (
            feedback(4, 1, Some(1.0)),
            FeedbackOutcome::Stored,
            vec![Heard::Settled(id(1))],
            Stage::AwaitingVerdict,
        ),
    ] {
        let (reply, told) = oneshot::channel();
        let batch = Batch {
            said: vec![Said {
                transition: hone_domain::TransitionId(said.id.0),
                feedback: Box::new(said),
                reply,
                place: None,
            }],
            ..Batch::default()
        };
        let wrote = rig.effects.write(batch).await;
        assert_eq!(told.await.unwrap(), Ok(outcome));
        assert_eq!((wrote.heard, wrote.error), (heard, None));
        assert_eq!(fate(&*rig.ctx.ledger, 1).await, Fate::Pending { stage });
    }
}

#[tokio::test]
async fn a_failing_ledger_keeps_what_is_awaited_and_answers_feedback() {
    let rig = rig().await;
    rig.ctx.ledger.close().await;
    let (mut batch, signed) = with_turn(turn(1, 1));
    let (gone, unawaited) = with_turn(turn(2, 1));
    drop(unawaited);
    batch.turns.extend(gone.turns);
    batch.receipts.extend(gone.receipts);
    batch.transitions.push(next(1));
    let (reply, told) = oneshot::channel();
    batch.said.push(Said {
        feedback: Box::new(feedback(1, 1, Some(1.0))),
        reply,
        place: None,
        transition: hone_domain::TransitionId(Uuid::from_u128(1)),
    });
    let wrote = rig.effects.write(batch).await;
    assert!(wrote.error.is_some());
    assert_eq!(wrote.dropped, [id(2)]);
    assert!(rig.ctx.carry.doubts(id(1)) && rig.ctx.carry.doubts(id(2)));
    assert_eq!(
        (
            wrote.unfinished.turns.len(),
            wrote.unfinished.transitions.len()
        ),
        (1, 1)
    );
    assert!(wrote.unfinished.said.is_empty() && told.await.unwrap().is_err());
    drop(signed);
}

#[tokio::test]
async fn a_turn_whose_answer_was_lost_learns_nothing_until_it_is_settled() {
    let rig = rig().await;
    let ledger = &*rig.ctx.ledger;
    ledger.record_turns(&[turn(1, 1)]).await.unwrap();
    rig.ctx.carry.doubt([id(1)]);
    let (reply, told) = oneshot::channel();
    let batch = Batch {
        transitions: vec![next(1)],
        said: vec![Said {
            feedback: Box::new(feedback(1, 1, Some(1.0))),
            reply,
            place: None,
            transition: hone_domain::TransitionId(Uuid::from_u128(1)),
        }],
        ..Batch::default()
    };
    let wrote = rig.effects.write(batch).await;
    assert_eq!(
        (wrote.transitions, wrote.ignored, wrote.error),
        (0, 2, None)
    );
    assert_eq!(told.await.unwrap(), Ok(FeedbackOutcome::Stored));
    assert_eq!(fate(ledger, 1).await, WAITS);

    let settle = Batch {
        // The other one is not in the ledger at all.
        settles: vec![(id(1), Reason::LateReceipt), (id(2), Reason::LateReceipt)],
        transitions: vec![next(1)],
        ..Batch::default()
    };
    let wrote = rig.effects.write(settle).await;
    assert_eq!((wrote.settled, wrote.ignored, wrote.error), (2, 1, None));
    assert_eq!(fate(ledger, 1).await, LATE);
    assert!(!rig.ctx.carry.doubts(id(1)));
}

async fn is_restored(carry: &Carry) -> bool {
    let told = tokio::time::timeout(Duration::ZERO, carry.restored());
    told.await.is_ok()
}

#[tokio::test]
async fn a_start_restores_the_index_once_and_settles_what_is_in_doubt() {
    let mut rig = rig().await;
    for n in 1..=3 {
        let (batch, _signed) = with_turn(turn(n, n));
        rig.effects.write(batch).await;
    }
    rig.effects
        .ctx
        .ledger
        .record_feedback(&feedback(1, 2, Some(1.0)))
        .await
        .unwrap();
    rig.ctx.carry.doubt([id(3)]);
    assert!(!is_restored(&rig.ctx.carry).await);
    rig.effects.load().await.unwrap();
    assert!(is_restored(&rig.ctx.carry).await, "the gateway may start");
    assert_eq!(fate(&*rig.ctx.ledger, 3).await, WAITS, "its run goes on");
    let (outbox, _wakes) = queue(4, Overflow::DropNewest);
    rig.effects = CollectEffects::new(rig.ctx.clone(), outbox);
    let loaded = rig.effects.load().await.unwrap();
    let mut open: Vec<_> = loaded
        .open
        .iter()
        .map(|o| (o.turn, o.is_settled_by_feedback))
        .collect();
    open.sort();
    assert_eq!(open, [(id(1), false), (id(2), true)]);
    assert_eq!(fate(&*rig.ctx.ledger, 3).await, LATE);
    let messages = [
        Message::text(Role::User, "question 1"),
        Message::text(Role::Assistant, "answer 1"),
        Message::text(Role::User, "and?"),
    ];
    let binding = rig.effects.index().bind(&BindRequest {
        owner: "ann",
        scope: &hone_domain::Scope::of("ann", None),
        session_key: None,
        kind: TurnKind::Main,
        continues: None,
        keeps: true,
        messages: &messages,
        new_session: SessionId(Uuid::from_u128(77)),
        now_ms: 1_000,
    });
    assert_eq!(
        (binding.parent, binding.next_state.items.len()),
        (Some(id(1)), 1)
    );
    let before = rig.effects.index().len();
    rig.effects.load().await.unwrap();
    assert_eq!(rig.effects.index().len(), before);
}

#[tokio::test]
async fn the_loop_turns_inputs_into_transitions_and_drains() {
    let Rig {
        mut ctx, _folder, ..
    } = rig().await;
    ctx.clock = Arc::new(SystemClock::default());
    let (inputs, inbox) = queue(64, Overflow::DropNewest);
    let (outbox, notifications) = queue(4, Overflow::DropNewest);
    let trigger = ShutdownTrigger::new();
    let running = tokio::spawn(crate::run(ctx.clone(), inbox, outbox, trigger.signal()));
    let mut signed = Vec::new();
    for n in 1..=20 {
        let (receipt, waiting) = oneshot::channel();
        let turn = Box::new(Turn {
            finished_ms: ctx.clock.now_ms(),
            ..turn(n, 1)
        });
        inputs.send(Input::Turn { turn, receipt }).unwrap();
        signed.push(waiting);
    }
    for waiting in signed {
        assert_eq!(waiting.await, Ok(Receipt::Collected));
    }
    inputs.send(Input::Next(observed(1, 1))).unwrap();
    notifications.recv().await.unwrap();
    assert_eq!(
        fate(&*ctx.ledger, 1).await,
        Fate::Pending {
            stage: Stage::AwaitingVerdict
        }
    );
    inputs.send(Input::Next(observed(2, 1))).unwrap();
    trigger.pull();
    running.await.unwrap().unwrap();
    assert_eq!(
        fate(&*ctx.ledger, 2).await,
        Fate::Pending {
            stage: Stage::AwaitingVerdict
        }
    );
    assert_eq!(ctx.ledger.check_laws().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn waiting_turns_beyond_a_page_are_all_loaded_newest_first() {
    let mut rig = rig().await;
    let many = 2 * LOAD_PAGE as u128 + 7;
    let turns: Vec<Turn> = (1..=many).map(|n| turn(n, n)).collect();
    rig.ctx.ledger.record_turns(&turns).await.unwrap();
    for (load_max, truncated) in [(many + 1, false), (many, true), (many - 9, true), (3, true)] {
        let load_max = usize::try_from(load_max).unwrap();
        let mut ctx = rig.ctx.clone();
        ctx.config.load_max = load_max;
        let (outbox, _wakes) = queue(4, Overflow::DropNewest);
        rig.effects = CollectEffects::new(ctx, outbox);
        let loaded = rig.effects.load().await.unwrap();
        let found: Vec<TurnId> = loaded.open.iter().map(|open| open.turn).collect();
        let newest = (1..=many).rev().map(id).take(load_max);
        assert_eq!(found, newest.collect::<Vec<_>>(), "{load_max}");
        assert_eq!(loaded.truncated, truncated, "{load_max}");
    }
}

#[tokio::test]
async fn the_reward_of_a_session_settles_its_open_turns() {
    let rig = rig().await;
    for n in 1..=3 {
        let (batch, _signed) = with_turn(turn(n, if n == 3 { 2 } else { 1 }));
        rig.effects.write(batch).await;
    }
    let of = turn(1, 1);
    let give = |session, owner: &str| {
        let (reply, told) = oneshot::channel();
        let reward = hone_domain::SessionReward {
            id: hone_domain::FeedbackId(Uuid::from_u128(7)),
            session,
            owner: owner.to_owned(),
            client_id: None,
            score: 0.5,
            parts: Default::default(),
            peers: Vec::new(),
            received_ms: 20,
        };
        let credit = hone_domain::SessionCredit {
            rule: hone_domain::ReturnRule::Terminal,
            discount: 1.0,
        };
        let rewards = vec![crate::Rewarding {
            reward: Box::new(reward),
            credit,
            reply,
        }];
        let batch = Batch {
            rewards,
            ..Batch::default()
        };
        (batch, told)
    };
    let (batch, told) = give(of.session, "eve");
    let wrote = rig.effects.write(batch).await;
    assert_eq!(told.await.unwrap(), Ok(None));
    assert_eq!((wrote.heard, wrote.transitions), (vec![], 0));
    let (batch, told) = give(of.session, &of.owner);
    let wrote = rig.effects.write(batch).await;
    assert_eq!(told.await.unwrap().unwrap().unwrap().reached.len(), 2);
    let settled = [1, 2].map(|n| Heard::Settled(id(n)));
    assert_eq!((wrote.heard, wrote.transitions), (settled.to_vec(), 2));
    assert!(rig.notifications.try_recv().is_some());
    let judged = Fate::Pending {
        stage: Stage::AwaitingVerdict,
    };
    for (n, expected) in [(1, judged), (2, judged), (3, WAITS)] {
        assert_eq!(fate(&*rig.ctx.ledger, n).await, expected);
    }
}
