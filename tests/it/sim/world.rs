//! The ring in one process: real loops, a real ledger, and one seeded scheduler that moves them.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hone_blobs::FsBlobs;
use hone_collect::{Carry, CollectEffects, SharedIndex, Spool};
use hone_domain::{Fate, Policies, PolicyVersion, Reason, Scope, SessionIndex, SessionIndexConfig};
use hone_judge::JudgeEffects;
use hone_ledger::Ledger;
use hone_ledger_sql::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_runtime::{
    Clock, Event, Latest, ManualClock, Notification, Outbox, Overflow, SeededIds, ShutdownTrigger,
    StatusRegistry, queue,
};
use hone_train::{Train, TrainEffects};

use super::ledger::{Plant, SimLedger};
use super::rng::{Rng, mix};
use super::seat::{Seat, crash};
use super::trainer::{FakeTrainer, Mood, SimBlobs};
use super::users::{Gateway, Moment, OWNERS, Told, Users};

/// Steps of the scheduler in one run.
const STEPS: usize = 2_500;
/// Laws are checked after so many steps, and after every crash.
const STEPS_PER_CHECK: usize = 100;
/// Rounds in which everything must come to rest without faults.
const ROUNDS: usize = 120;
/// The spool's folder.
pub(super) const SPOOL: &str = "spool";
/// When a run begins.
const BEGINNING_MS: i64 = 1_700_000_000_000;

/// A loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Collect,
    Judge,
    Train,
}

const LOOPS: [Which; 3] = [Which::Collect, Which::Judge, Which::Train];

/// Everything that can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Ask,
    Finish,
    Look,
    TimeOut,
    Feedback,
    EndSession,
    Deliver,
    Tick,
    Perform,
    Hear,
    LoseNotification,
    ExtraNotification,
    Crash,
    CrashAll,
    Stop,
    Start,
    Leftover,
    Wait,
    Trouble,
    Calm,
    Rollback,
}

/// How often each is chosen, relative to the others.
const ACTIONS: [(Action, usize); 21] = [
    (Action::Ask, 60),
    (Action::Finish, 75),
    (Action::Look, 40),
    (Action::TimeOut, 5),
    (Action::Feedback, 20),
    (Action::EndSession, 4),
    (Action::Deliver, 200),
    (Action::Tick, 60),
    (Action::Perform, 300),
    (Action::Hear, 300),
    (Action::LoseNotification, 10),
    (Action::ExtraNotification, 10),
    (Action::Crash, 8),
    (Action::CrashAll, 1),
    (Action::Stop, 3),
    (Action::Start, 60),
    (Action::Leftover, 12),
    (Action::Wait, 50),
    (Action::Trouble, 6),
    (Action::Calm, 30),
    (Action::Rollback, 5),
];

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Hash over every action and fate: equal for equal seeds.
    pub(super) trace: u64,
    /// How often what happened, by name.
    pub(super) counts: BTreeMap<String, usize>,
}

impl Tally {
    pub(super) fn count(&mut self, what: impl Into<String>, times: usize) {
        *self.counts.entry(what.into()).or_default() += times;
    }

    pub(super) fn join(&mut self, other: &Self) {
        for (what, times) in &other.counts {
            self.count(what.clone(), *times);
        }
    }

    pub(super) fn of(&self, what: &str) -> usize {
        self.counts.get(what).copied().unwrap_or(0)
    }
}

/// One run.
pub(super) struct World {
    folder: tempfile::TempDir,
    rng: Rng,
    clock: Arc<ManualClock>,
    ids: Arc<SeededIds>,
    registry: StatusRegistry,
    carry: Carry,
    spool: Arc<Spool>,
    /// Bytes that the spool takes.
    spool_bytes_max: u64,
    stop: ShutdownTrigger,
    trainer: Arc<FakeTrainer>,
    to_judge: Outbox<Notification>,
    to_train: Outbox<Notification>,
    judge: Seat<hone_judge::State, JudgeEffects>,
    collect_config: hone_collect::Config,
    tally: Tally,
    pub(super) collect: Seat<hone_collect::State, CollectEffects>,
    pub(super) train: Seat<Train, TrainEffects>,
    pub(super) train_config: hone_train::Config,
    pub(super) raw: Arc<SqliteLedger>,
    pub(super) ledger: Arc<SimLedger>,
    pub(super) blobs: Arc<SimBlobs>,
    pub(super) gateway: Gateway,
    pub(super) users: Users,
}

/// Does the same with whichever loop it is.
macro_rules! at {
    ($world:expr, $which:expr, $seat:ident => $done:expr) => {
        match $which {
            Which::Collect => {
                let $seat = &mut $world.collect;
                $done
            }
            Which::Judge => {
                let $seat = &mut $world.judge;
                $done
            }
            Which::Train => {
                let $seat = &mut $world.train;
                $done
            }
        }
    };
}

fn collect_config() -> hone_collect::Config {
    hone_collect::Config {
        batch_turns_max: 4,
        held_max: 12,
        session_ttl_ms: 4_000,
        open_ms_max: 20_000,
        open_max: 24,
        early_max: 4,
        load_max: 32,
        // Effects take no time here.
        spool_after_ms: 3_600_000,
        ship_ms_max: 3_600_000,
        ..hone_collect::Config::for_tests()
    }
}

fn judge_config() -> hone_judge::Config {
    hone_judge::Config {
        lease_ms: 3_000,
        ..hone_judge::Config::for_tests()
    }
}

/// The defaults with small numbers.
fn train_config(folder: &std::path::Path) -> hone_train::Config {
    let mut config = hone_tests::config(folder, &[]).unwrap().train;
    (config.batch_turns, config.batch_turns_min) = (4, 2);
    (config.batch_wait_ms, config.queue_turns_max) = (500, 6);
    (config.staleness_max_versions, config.row_tokens_max) = (1, 32);
    (config.lease_ms, config.attempts_max) = (4_000, 3);
    (config.backoff_first_ms, config.backoff_max_ms) = (10, 80);
    // Rollbacks come from the operator here, who is told apart from the loop.
    config.watch.enabled = false;
    config.validate().unwrap();
    config
}

fn empty_index() -> SessionIndex {
    SessionIndex::new(SessionIndexConfig {
        sessions_max: 12,
        turns_per_session_max: 8,
        transcript_bytes_max: 1 << 20,
        retry_ms: 180_000,
    })
}

/// The spool as the next process finds it: the last one may have died while it wrote a record.
pub(super) fn reopened(folder: &Path, bytes_max: u64, rng: &mut Rng) -> Arc<Spool> {
    let files = std::fs::read_dir(folder).into_iter().flatten();
    let newest = files.map(|file| file.unwrap().path()).max();
    if let Some(newest) = newest.filter(|_| rng.chance(50)) {
        let torn: Vec<u8> = (0..rng.below(200)).map(|_| rng.next() as u8).collect();
        let mut file = OpenOptions::new().append(true).open(newest).unwrap();
        file.write_all(&torn).unwrap();
    }
    Arc::new(Spool::open(folder, bytes_max).unwrap())
}

/// In memory where the machine has it: nothing here tests the disk.
fn folder() -> tempfile::TempDir {
    let memory = PathBuf::from("/dev/shm");
    tempfile::tempdir_in(memory)
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

impl World {
    async fn new(seed: u64, plant: Plant) -> Self {
        let folder = folder();
        let train_config = train_config(folder.path());
        let config = SqliteConfig {
            readers: 1,
            ..SqliteConfig::in_folder(folder.path())
        };
        let raw = Arc::new(SqliteStore::open(&config).await.unwrap());
        let staleness_max = train_config.staleness_max_versions;
        let ledger = SimLedger::new(raw.clone(), plant, (staleness_max, seed ^ 1));
        let blobs = FsBlobs::open(&folder.path().join("blobs"), 1 << 20).unwrap();
        let (to_collect, collect_inbox) = queue(24, Overflow::DropNewest);
        let (to_judge, judge_inbox) = queue(4, Overflow::DropNewest);
        let (to_train, train_inbox) = queue(4, Overflow::DropNewest);
        let index: SharedIndex = Arc::new(Mutex::new(empty_index()));
        // Half of the runs have a spool, a small one.
        let spool_bytes_max = if seed.is_multiple_of(2) { 0 } else { 16 << 10 };
        Self {
            rng: Rng::new(seed),
            clock: Arc::new(ManualClock::at(BEGINNING_MS)),
            ids: Arc::new(SeededIds::new(seed)),
            registry: StatusRegistry::new(),
            carry: Carry::default(),
            spool: Arc::new(Spool::open(&folder.path().join(SPOOL), spool_bytes_max).unwrap()),
            spool_bytes_max,
            stop: ShutdownTrigger::new(),
            trainer: Arc::new(FakeTrainer::new()),
            to_judge,
            to_train,
            judge: Seat::empty(judge_inbox),
            collect_config: collect_config(),
            tally: Tally::default(),
            collect: Seat::empty(collect_inbox),
            train: Seat::empty(train_inbox),
            train_config,
            raw,
            ledger: Arc::new(ledger),
            blobs: Arc::new(SimBlobs::new(blobs, seed ^ 2)),
            gateway: Gateway {
                index,
                policies: Latest::new(Policies::default()),
                to_collect,
            },
            users: Users::default(),
            folder,
        }
    }

    fn now(&self) -> i64 {
        self.clock.now_ms()
    }

    // === loops ===

    fn start(&mut self, which: Which) {
        let now_ms = self.now();
        match which {
            Which::Collect if !self.collect.is_up() => {
                let state = hone_collect::State::new(self.collect_config.clone(), self.ids.clone())
                    .behind(self.spool.status());
                let effects = CollectEffects::new(self.collect_ctx(), self.to_judge.clone());
                self.collect.start(now_ms, state, effects);
            }
            Which::Judge if !self.judge.is_up() => {
                let ctx = hone_judge::Ctx {
                    caller: None,
                    ledger: self.ledger.clone(),
                    completer: None,
                    weigher: None,
                    reader: None,
                    ids: self.ids.clone(),
                    clock: self.clock.clone(),
                    config: judge_config(),
                    registry: self.registry.clone(),
                };
                let state = hone_judge::State::new(judge_config(), self.ids.clone(), false);
                let effects = JudgeEffects::new(ctx, self.to_train.clone());
                self.judge.start(now_ms, state, effects);
            }
            Which::Train if !self.train.is_up() => {
                let state = Train::new(self.train_config.clone());
                let effects = TrainEffects::start(self.train_ctx(), self.stop.signal()).unwrap();
                self.train.start(now_ms, state, effects);
            }
            _ => {}
        }
    }

    fn collect_ctx(&self) -> hone_collect::Ctx {
        hone_collect::Ctx {
            ledger: self.ledger.clone(),
            ids: self.ids.clone(),
            index: self.gateway.index.clone(),
            spool: self.spool.clone(),
            carry: self.carry.clone(),
            clock: self.clock.clone(),
            config: self.collect_config.clone(),
            registry: self.registry.clone(),
        }
    }

    fn train_ctx(&self) -> hone_train::Ctx {
        hone_train::Ctx {
            ledger: self.ledger.clone(),
            versions: self.raw.clone(),
            blobs: self.blobs.clone(),
            trainer: self.trainer.clone(),
            evaluator: self.trainer.clone(),
            policies: self.gateway.policies.clone(),
            under_way: Latest::new(None),
            serving: Arc::new(hone_train::Served::default),
            priority: hone_train::Priority::new(Arc::new(hone_train::Served::default)),
            golden: Arc::new(vec![vec![1, 2, 3]]),
            ids: self.ids.clone(),
            clock: self.clock.clone(),
            config: self.train_config.clone(),
            registry: self.registry.clone(),
        }
    }

    async fn crash(&mut self, which: Which) {
        let faults = (&*self.ledger, &mut self.rng);
        match which {
            // Collect's process is the gateway's: nobody else performs what it left.
            Which::Collect => crash(&mut self.collect, faults, false).await,
            Which::Judge => crash(&mut self.judge, faults, true).await,
            Which::Train => crash(&mut self.train, faults, true).await,
        }
    }

    /// The process dies and begins again, with nothing but the disk.
    async fn crash_all(&mut self) {
        for which in LOOPS {
            self.crash(which).await;
        }
        self.users.cut();
        while self.collect.inbox.try_recv().is_some() {}
        for inbox in [&self.judge.inbox, &self.train.inbox] {
            while inbox.try_recv().is_some() {}
        }
        self.carry = Carry::default();
        self.spool = reopened(
            &self.folder.path().join(SPOOL),
            self.spool_bytes_max,
            &mut self.rng,
        );
        // As a start does.
        let late = self.users.noted_late();
        self.spool.mark_late(late.iter().copied());
        let late: Vec<_> = late
            .into_iter()
            .map(|turn| (turn, Reason::LateReceipt))
            .collect();
        self.raw.settle_turns(&late).await.unwrap();
        *self.gateway.index.lock().unwrap() = empty_index();
        self.gateway.policies.set(Policies::default());
        for which in LOOPS {
            self.start(which);
        }
    }

    async fn perform(&mut self, which: Which) {
        let due = at!(self, which, seat => seat.due(self.clock.now_ms()));
        if due.is_empty() {
            return;
        }
        let moods = [
            (Mood::Good, 75),
            (Mood::TooFar, 8),
            (Mood::Fails, 6),
            (Mood::NotFinite, 5),
            (Mood::Stops, 6),
        ];
        self.trainer.set(weighted(&mut self.rng, &moods));
        let place = *self.rng.pick(&due);
        if which == Which::Collect && self.rng.chance(8) {
            let leaves = self.users.time_out(&mut self.rng);
            // What the spool takes passes no ledger that could let a client leave in the middle.
            let leaves = leaves.filter(|_| self.spool_bytes_max == 0);
            self.ledger.client_leaves(leaves);
        }
        at!(self, which, seat => seat.perform(place).await);
        self.ledger.client_leaves(None);
    }

    fn hear(&mut self, which: Which) {
        let now_ms = self.now();
        let rng = &mut self.rng;
        at!(self, which, seat => {
            if !seat.reports.is_empty() {
                let place = rng.below(seat.reports.len());
                seat.hear(now_ms, place);
            }
        });
    }

    async fn leftover(&mut self) {
        use hone_runtime::Effects as _;
        if !self.judge.leftovers.is_empty() {
            let place = self.rng.below(self.judge.leftovers.len());
            let (effects, effect) = self.judge.leftovers.remove(place);
            drop(Box::pin(effects.perform(effect)).await);
        }
        if !self.train.leftovers.is_empty() {
            let place = self.rng.below(self.train.leftovers.len());
            let (effects, effect) = self.train.leftovers.remove(place);
            drop(Box::pin(effects.perform(effect)).await);
        }
    }

    // === the scheduler ===

    fn user(&mut self, act: impl FnOnce(&mut Users, &mut Moment<'_>)) {
        let mut moment = Moment::now(&self.gateway, &*self.ids, &mut self.rng, &*self.clock);
        act(&mut self.users, &mut moment);
    }

    /// A loop; where there is a choice, one that has something to do.
    fn choose(&mut self, action: Action) -> Which {
        let now_ms = self.now();
        let mut useful = Vec::new();
        for which in LOOPS {
            let has_work = at!(self, which, seat => match action {
                Action::Deliver => seat.is_up() && seat.inbox.stats().depth > 0,
                Action::Perform => !seat.due(now_ms).is_empty(),
                Action::Hear => !seat.reports.is_empty(),
                Action::Start => !seat.is_up(),
                _ => true,
            });
            if has_work {
                useful.push(which);
            }
        }
        let of: &[Which] = if useful.is_empty() { &LOOPS } else { &useful };
        *self.rng.pick(of)
    }

    async fn act(&mut self, action: Action) {
        let which = self.choose(action);
        let now_ms = self.now();
        match action {
            Action::Ask => self.user(Users::ask),
            Action::Finish => self.user(Users::finish),
            Action::Look => self.users.look(),
            Action::TimeOut => drop(self.users.time_out(&mut self.rng)),
            Action::Feedback => self.user(|users, moment| users.give_feedback(moment)),
            Action::EndSession => self.user(|users, moment| users.end_session(moment)),
            Action::Deliver => {
                at!(self, which, seat => seat.deliver(now_ms));
            }
            Action::Tick => at!(self, which, seat => seat.step(now_ms, Event::Ticked)),
            Action::Perform => self.perform(which).await,
            Action::Hear => self.hear(which),
            Action::LoseNotification => drop(self.notifications(which).0.try_recv()),
            Action::ExtraNotification => drop(self.notifications(which).1.send(Notification)),
            Action::Crash => self.crash(which).await,
            Action::CrashAll => self.crash_all().await,
            Action::Stop => at!(self, which, seat => if seat.is_up() && !seat.draining {
                seat.draining = true;
                seat.step(now_ms, Event::Draining);
            }),
            Action::Start => self.start(which),
            Action::Leftover => self.leftover().await,
            Action::Wait => {
                let most = if self.rng.chance(15) { 3_000 } else { 200 };
                self.clock.advance(1 + self.rng.below(most) as i64);
            }
            Action::Trouble => {
                let (fails, loses) = (self.rng.below(60), self.rng.below(20));
                self.ledger.trouble(fails, loses);
                self.blobs.trouble(self.rng.below(40));
            }
            Action::Calm => self.calm(),
            Action::Rollback => self.roll_back().await,
        }
        self.replace_drained();
    }

    /// The two ends of the notifications to a loop other than collect, which gets none.
    fn notifications(
        &self,
        which: Which,
    ) -> (&hone_runtime::Inbox<Notification>, &Outbox<Notification>) {
        match which {
            Which::Collect | Which::Judge => (&self.judge.inbox, &self.to_judge),
            Which::Train => (&self.train.inbox, &self.to_train),
        }
    }

    fn calm(&self) {
        self.ledger.trouble(0, 0);
        self.blobs.trouble(0);
    }

    fn replace_drained(&mut self) {
        for which in LOOPS {
            at!(self, which, seat => if seat.is_drained() {
                seat.at_work = None;
                seat.draining = false;
            });
        }
    }

    /// An operator goes back to an older version.
    async fn roll_back(&mut self) {
        let scope = Scope::of(OWNERS[self.rng.below(OWNERS.len())], None);
        let head = self.gateway.policies.get().version(&scope);
        if head.0 < 2 {
            return;
        }
        let to = PolicyVersion(1 + self.rng.next() % (head.0 - 1));
        if let Ok(policy) = self.raw.rollback(&scope, to, self.now()).await {
            self.ledger.log(|log| log.rolled_back(&policy, to));
            self.tally.count("rollbacks", 1);
            self.gateway
                .policies
                .update(|policies| policies.with(policy));
        }
    }

    // === the end ===

    /// Everything that can happen without chance, once.
    async fn round(&mut self) {
        while self.users.is_sampling() {
            self.user(Users::finish);
        }
        self.replace_drained();
        for which in LOOPS {
            self.start(which);
            let now_ms = self.now();
            while at!(self, which, seat => seat.deliver(now_ms)) {}
            at!(self, which, seat => seat.step(now_ms, Event::Ticked));
            loop {
                let due = at!(self, which, seat => seat.due(now_ms));
                let Some(place) = due.first() else { break };
                at!(self, which, seat => {
                    seat.perform(*place).await;
                    seat.hear(now_ms, seat.reports.len() - 1);
                });
            }
            while at!(self, which, seat => !seat.reports.is_empty()) {
                at!(self, which, seat => seat.hear(now_ms, 0));
            }
        }
        self.users.look();
        self.clock.advance(400);
    }

    async fn come_to_rest(&mut self) -> Vec<String> {
        self.calm();
        self.trainer.set(Mood::Good);
        while !(self.judge.leftovers.is_empty() && self.train.leftovers.is_empty()) {
            self.leftover().await;
        }
        let mut unfinished = Vec::new();
        for _ in 0..ROUNDS / 10 {
            for _ in 0..10 {
                self.round().await;
            }
            unfinished = super::laws::unfinished(self).await;
            if unfinished.is_empty() {
                break;
            }
        }
        unfinished
    }

    async fn steps(&mut self) -> Vec<String> {
        for step in 1..=STEPS {
            let action = weighted(&mut self.rng, &ACTIONS);
            self.act(action).await;
            self.tally.trace = mix(self.tally.trace ^ action as u64 ^ (self.now() as u64) << 8);
            self.tally.count(format!("{action:?}"), 1);
            let crashed = matches!(action, Action::Crash | Action::CrashAll);
            if crashed || step % STEPS_PER_CHECK == 0 {
                let broken = super::laws::broken(self).await;
                if !broken.is_empty() {
                    return described(&format!("at step {step} after {action:?}"), &broken);
                }
            }
        }
        let unfinished = self.come_to_rest().await;
        if !unfinished.is_empty() {
            return described("after everything came to rest", &unfinished);
        }
        described("at the end", &super::laws::broken(self).await)
    }

    /// Closes the ledger and opens it again: what was acknowledged is still there.
    async fn reopen(&mut self) -> Vec<String> {
        self.raw.close().await;
        let opened = SqliteStore::open(&SqliteConfig::in_folder(self.folder.path())).await;
        self.raw = Arc::new(opened.unwrap());
        described("after a new start", &super::laws::unfinished(self).await)
    }

    async fn sum_up(&mut self) {
        for row in self.raw.turns(None, usize::MAX >> 1).await.unwrap() {
            let fate = match row.fate {
                Fate::Trained { .. } => "trained".to_owned(),
                Fate::Settled { reason } => reason.as_str().to_owned(),
                Fate::Pending { stage } => stage.as_str().to_owned(),
            };
            let hash = fate.bytes().fold(0, |hash, b| mix(hash ^ u64::from(b)));
            self.tally.trace = mix(self.tally.trace ^ hash);
            self.tally.count(fate, 1);
        }
        for asked in &self.users.asked {
            let told = match asked.told {
                Told::Nothing => "told nothing",
                Told::Collected => "told collected",
                Told::Spooled => "told spooled",
                Told::NotCollected => "told not collected",
            };
            self.tally.count(told, 1);
        }
        let (publishes, refusals, fenced) =
            (self.ledger).log(|log| (log.publishes, log.refusals, log.fenced));
        self.tally.count("publishes", publishes);
        self.tally.count("refusals", refusals);
        self.tally.count("fenced", fenced);
    }
}

fn described(when: &str, broken: &[String]) -> Vec<String> {
    broken
        .iter()
        .map(|what| format!("{when}: {what}"))
        .collect()
}

fn weighted<T: Copy>(rng: &mut Rng, choices: &[(T, usize)]) -> T {
    let sum: usize = choices.iter().map(|(_, weight)| weight).sum();
    let mut at = rng.below(sum);
    for (choice, weight) in choices {
        if at < *weight {
            return *choice;
        }
        at -= weight;
    }
    unreachable!("the number is below the sum of the weights")
}

/// One run: what it did, or what it broke.
pub(super) fn run(seed: u64, plant: Plant) -> Result<Tally, Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(Box::pin(async {
        let mut world = World::new(seed, plant).await;
        for which in LOOPS {
            world.start(which);
        }
        let mut broken = Box::pin(world.steps()).await;
        if broken.is_empty() {
            world.sum_up().await;
            broken = world.reopen().await;
        }
        world.raw.close().await;
        if broken.is_empty() {
            Ok(world.tally)
        } else {
            Err(broken)
        }
    }))
}
