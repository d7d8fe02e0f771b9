//! The loop under test: a real ledger, real blobs, and a clock that moves when it is told to.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hone_blobs::FsBlobs;
use hone_domain::{
    Digest, Fate, NextState, Policies, Scope, Transition, TransitionId, Turn, TurnId, Verdict,
    VerdictId,
};
use hone_ledger::Ledger;
use hone_ledger_sql::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_runtime::{
    Clock, Ids, Latest, ManualClock, Notification, Outbox, Overflow, SeededIds, ShutdownTrigger,
    StatusRegistry, queue,
};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::testing::turn;
use crate::{Config, Ctx, Error, Evaluator, NAME, Priority, Served, Trainer, run};

pub(crate) struct Fixture {
    _folder: tempfile::TempDir,
    pub(crate) ledger: Arc<SqliteLedger>,
    pub(crate) blobs: Arc<FsBlobs>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) policies: Latest<Policies>,
    pub(crate) registry: StatusRegistry,
    ids: Arc<SeededIds>,
    turns: AtomicU64,
}

/// The loop at work.
pub(crate) struct Running {
    pub(crate) task: JoinHandle<Result<(), Error>>,
    pub(crate) trigger: ShutdownTrigger,
    pub(crate) notifications: Outbox<Notification>,
}

impl Running {
    /// Stops it in good order.
    pub(crate) async fn stop(self) {
        self.trigger.pull();
        self.task.await.unwrap().unwrap();
    }

    /// Ends it as a crash would: nothing more is done.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err());
    }
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        let ledger = SqliteStore::open(&config).await.unwrap();
        let blobs = FsBlobs::open(&folder.path().join("blobs"), 1 << 30).unwrap();
        Self {
            _folder: folder,
            ledger: Arc::new(ledger),
            blobs: Arc::new(blobs),
            clock: Arc::new(ManualClock::at(1_000_000)),
            policies: Latest::new(Policies::default()),
            registry: StatusRegistry::new(),
            ids: Arc::new(SeededIds::new(3)),
            turns: AtomicU64::new(0),
        }
    }

    /// A turn of `scope` with an id of its own.
    pub(crate) fn turn(&self, scope: &Scope, prompt: &[u32], completion: &[u32]) -> Turn {
        let number = self.turns.fetch_add(1, Ordering::Relaxed);
        let mut turn = turn(number as u8, prompt, completion);
        turn.id = TurnId(Uuid::from_u128(u128::from(number) + 1));
        turn.scope = scope.clone();
        turn.started_ms = self.clock.now_ms();
        turn.finished_ms = self.clock.now_ms();
        turn
    }

    /// Records turns with their next states and verdicts: ready to train.
    pub(crate) async fn judge(&self, turns: &[(Turn, f32)]) {
        let all: Vec<Turn> = turns.iter().map(|(turn, _)| turn.clone()).collect();
        self.ledger.record_turns(&all).await.unwrap();
        let now = self.clock.now_ms();
        let transition = |turn: &Turn| Transition {
            id: TransitionId(self.ids.next()),
            turn: turn.id,
            session: turn.session,
            scope: turn.scope.clone(),
            next_state: NextState::feedback(),
            next_turn: None,
            settled_ms: now,
        };
        let transitions: Vec<Transition> = all.iter().map(transition).collect();
        self.ledger.record_transitions(&transitions).await.unwrap();
        let claimed = self
            .ledger
            .claim_transitions(1_000, 1_000, now)
            .await
            .unwrap();
        assert_eq!(claimed.len(), turns.len());
        for claimed in claimed {
            let score = turns
                .iter()
                .find(|(turn, _)| turn.id == claimed.turn.id)
                .unwrap()
                .1;
            let verdict = Verdict {
                id: VerdictId(self.ids.next()),
                transition: claimed.transition.id,
                score: Some(score),
                decided_by: None,
                hint: None,
                wish: None,
                hint_choice: None,
                votes: Vec::new(),
                judged_ms: now,
            };
            self.ledger
                .record_verdict(claimed.claim, &verdict)
                .await
                .unwrap();
        }
    }

    pub(crate) fn ctx<T: Trainer + Evaluator + 'static>(&self, trainer: Arc<T>) -> Ctx {
        Ctx {
            ledger: self.ledger.clone(),
            versions: self.ledger.clone(),
            blobs: self.blobs.clone(),
            evaluator: trainer.clone(),
            trainer,
            policies: self.policies.clone(),
            under_way: Latest::new(None),
            serving: Arc::new(Served::default),
            priority: Priority::new(Arc::new(Served::default)),
            golden: Arc::new(vec![vec![1, 2, 3], vec![4, 5]]),
            ids: self.ids.clone(),
            clock: self.clock.clone(),
            config: Config::for_tests(),
            registry: self.registry.clone(),
        }
    }

    pub(crate) fn start(ctx: Ctx) -> Running {
        let (notifications, inbox) = queue(4, Overflow::DropOldest);
        let trigger = ShutdownTrigger::new();
        let task = tokio::spawn(run(ctx, inbox, trigger.signal()));
        Running {
            task,
            trigger,
            notifications,
        }
    }

    /// Waits, while `step_ms` pass on the clock at each look, until `test` holds.
    pub(crate) async fn until<F: Future<Output = bool>>(&self, step_ms: i64, test: impl Fn() -> F) {
        let mut looks = tokio::time::interval(Duration::from_millis(2));
        for _ in 0..15_000 {
            looks.tick().await;
            if test().await {
                return;
            }
            self.clock.advance(step_ms);
        }
        panic!(
            "it did not happen; the registry says {:?}",
            self.registry.snapshot()
        );
    }

    /// Waits until no turn is on its way any more.
    pub(crate) async fn until_settled(&self, step_ms: i64) {
        let done = || async {
            self.ledger
                .counts()
                .await
                .unwrap()
                .pending
                .iter()
                .all(|p| p.1 == 0)
        };
        self.until(step_ms, done).await;
    }

    pub(crate) async fn fate(&self, turn: TurnId) -> Fate {
        self.ledger.turn(turn).await.unwrap().unwrap().fate
    }

    pub(crate) fn number(&self, name: &str) -> f64 {
        let registry = self.registry.snapshot();
        // A loop that just started has told nothing yet.
        let told = registry
            .get(NAME)
            .and_then(|status| status.numbers.get(name));
        told.copied().unwrap_or(0.0)
    }

    /// The laws, and that serve is told exactly what the ledger holds, durable under its digest.
    pub(crate) async fn check(&self, digest_on_disk: impl Fn(&hone_domain::Policy) -> Digest) {
        assert_eq!(
            self.ledger.check_laws().await.unwrap(),
            Vec::<String>::new()
        );
        let heads = self.ledger.heads().await.unwrap();
        let told = self.policies.get();
        assert_eq!(told.len(), heads.len());
        for head in heads {
            assert_eq!(told.newest(&head.scope), Some(&head));
            let durable =
                hone_domain::invariants::visible_is_durable(&head, Some(digest_on_disk(&head)));
            assert_eq!(durable, Ok(()));
        }
    }
}
