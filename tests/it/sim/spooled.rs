//! A ledger that comes and goes, clients, crashes, and the spool between them, in many short runs over one ledger:
//! whatever was acknowledged is in the ledger once in the end, behind what it continues.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use hone_collect::{Carry, CollectEffects, Ctx, Spool, State};
use hone_domain::{Fate, Policies, Reason, TurnId};
use hone_ledger::Ledger as _;
use hone_ledger_sql::SqliteLedger;
use hone_runtime::{
    Clock as _, Event, Inbox, ManualClock, Notification, Outbox, Overflow, SeededIds,
    StatusRegistry, queue,
};

use super::ledger::{Plant, SimLedger};
use super::rng::Rng;
use super::seat::{Seat, crash};
use super::stock::{self, BEGINNING_MS, empty_index};
use super::users::{Gateway, Moment, Told, Users};
use super::world::reopened;

/// Runs.
const SEEDS: u64 = 1_000;
/// Steps of a run.
const STEPS: usize = 160;
/// Rounds without faults in which everything must come to rest.
const ROUNDS: usize = 120;
/// Sizes of the spool: none, one that fills up, one that does not.
const SPOOLS: [u64; 4] = [0, 8 << 10, 1 << 20, 1 << 20];

struct Run {
    rng: Rng,
    clock: Arc<ManualClock>,
    ids: Arc<SeededIds>,
    raw: Arc<SqliteLedger>,
    ledger: Arc<SimLedger>,
    folder: tempfile::TempDir,
    spool_bytes_max: u64,
    spool: Arc<Spool>,
    carry: Carry,
    collect: Seat<State, CollectEffects>,
    notifications: (Outbox<Notification>, Inbox<Notification>),
    gateway: Gateway,
    users: Users,
}

fn config() -> hone_collect::Config {
    hone_collect::Config {
        batch_turns_max: 4,
        session_ttl_ms: 4_000,
        open_ms_max: 20_000,
        spool_after_ms: 3_600_000,
        ship_ms_max: 3_600_000,
        ..hone_collect::Config::for_tests()
    }
}

impl Run {
    fn new(seed: u64, raw: &Arc<SqliteLedger>) -> Self {
        let folder = stock::folder();
        let mut rng = Rng::new(seed);
        let (to_collect, inbox) = queue(24, Overflow::DropNewest);
        let spool_bytes_max = *rng.pick(&SPOOLS);
        Self {
            clock: Arc::new(ManualClock::at(BEGINNING_MS)),
            ids: Arc::new(SeededIds::new(seed)),
            raw: raw.clone(),
            ledger: Arc::new(SimLedger::new(raw.clone(), Plant::None, (0, seed ^ 1))),
            spool: Arc::new(Spool::open(&folder.path().join("spool"), spool_bytes_max).unwrap()),
            folder,
            spool_bytes_max,
            carry: Carry::default(),
            collect: Seat::empty(inbox),
            notifications: queue(1, Overflow::DropOldest),
            gateway: stock::gateway(to_collect),
            users: Users::default(),
            rng,
        }
    }

    fn start(&mut self) {
        let ctx = Ctx {
            ledger: self.ledger.clone(),
            ids: self.ids.clone(),
            index: self.gateway.index.clone(),
            spool: self.spool.clone(),
            carry: self.carry.clone(),
            clock: self.clock.clone(),
            config: config(),
            registry: StatusRegistry::new(),
        };
        let state = State::new(config(), self.ids.clone()).behind(self.spool.status());
        let effects = CollectEffects::new(ctx, self.notifications.0.clone());
        self.collect.start(self.clock.now_ms(), state, effects);
    }

    /// The loop ends at once, and begins again in the same process.
    async fn crash(&mut self) {
        crash(&mut self.collect, (&self.ledger, &mut self.rng), false).await;
    }

    /// `kill -9`, and the next start, which the ledger answers.
    async fn kill(&mut self) {
        self.crash().await;
        self.users.cut();
        while self.collect.inbox.try_recv().is_some() {}
        self.carry = Carry::default();
        let folder = self.folder.path().join("spool");
        self.spool = reopened(&folder, self.spool_bytes_max, &mut self.rng);
        let late = self.users.noted_late();
        self.spool.mark_late(late.iter().copied());
        let late: Vec<_> = late
            .into_iter()
            .map(|turn| (turn, Reason::LateReceipt))
            .collect();
        self.raw.settle_turns(&late).await.unwrap();
        let empty = empty_index();
        std::mem::swap(
            &mut *self.gateway.index.lock().unwrap(),
            &mut *empty.lock().unwrap(),
        );
        self.gateway.policies.set(Policies::default());
    }

    fn user(&mut self, act: impl FnOnce(&mut Users, &mut Moment<'_>)) {
        let mut moment = Moment::now(&self.gateway, &*self.ids, &mut self.rng, &*self.clock);
        act(&mut self.users, &mut moment);
    }

    async fn perform(&mut self) {
        let due = self.collect.due(self.clock.now_ms());
        if due.is_empty() {
            return;
        }
        if self.rng.chance(10) {
            let leaves = self.users.time_out(&mut self.rng);
            // What the spool takes passes no ledger that could let a client leave in the middle.
            let leaves = leaves.filter(|_| self.spool_bytes_max == 0);
            self.ledger.client_leaves(leaves);
        }
        let place = *self.rng.pick(&due);
        self.collect.perform(place).await;
        self.ledger.client_leaves(None);
    }

    async fn step(&mut self) {
        let now_ms = self.clock.now_ms();
        match self.rng.below(100) {
            0..14 => self.user(Users::ask),
            14..32 => self.user(Users::finish),
            32..40 => self.users.look(),
            40..41 => drop(self.users.time_out(&mut self.rng)),
            41..43 => self.user(|users, moment| users.end_session(moment)),
            43..45 => self.user(|users, moment| users.give_feedback(moment)),
            45..63 => drop(self.collect.deliver(now_ms)),
            63..66 => self.collect.step(now_ms, Event::Ticked),
            66..82 => self.perform().await,
            82..92 if !self.collect.reports.is_empty() => {
                let place = self.rng.below(self.collect.reports.len());
                self.collect.hear(now_ms, place);
            }
            92..95 => self.clock.advance(1 + self.rng.below(300) as i64),
            // Away, flaky, back.
            95 => self.ledger.trouble(100, 0),
            96 => self.ledger.trouble(self.rng.below(60), self.rng.below(30)),
            97 => self.ledger.trouble(0, 0),
            98 => self.crash().await,
            99 => self.kill().await,
            _ => {}
        }
        if !self.collect.is_up() && self.rng.chance(70) {
            self.start();
        }
    }

    /// Everything that is left to be done, without chance.
    async fn rest(&mut self) {
        self.ledger.trouble(0, 0);
        for _ in 0..ROUNDS {
            while self.users.is_sampling() {
                self.user(Users::finish);
            }
            if !self.collect.is_up() {
                self.start();
            }
            let now_ms = self.clock.now_ms();
            while self.collect.deliver(now_ms) {}
            self.collect.step(now_ms, Event::Ticked);
            while !self.collect.reports.is_empty() {
                self.collect.hear(now_ms, 0);
            }
            while let Some(place) = self.collect.due(now_ms).first() {
                self.collect.perform(*place).await;
                while !self.collect.reports.is_empty() {
                    self.collect.hear(now_ms, 0);
                }
            }
            self.users.look();
            self.clock.advance(400);
        }
    }

    /// What is wrong in the end.
    async fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let files: Vec<_> = std::fs::read_dir(self.folder.path().join("spool"))
            .into_iter()
            .flatten()
            .map(|file| file.unwrap().file_name())
            .collect();
        let status = self.spool.status();
        if status.records > 0 || !files.is_empty() {
            let failures = self.collect.number("ledger_failures_total");
            broken.push(format!(
                "left in the spool: {status:?} {files:?}, {failures} failures"
            ));
        }
        let rows = self.raw.turns(None, 2 * self.users.asked.len() + 1).await;
        let mut places: HashMap<TurnId, Vec<usize>> = HashMap::new();
        let mut fates = HashMap::new();
        for (place, row) in rows.unwrap().into_iter().rev().enumerate() {
            places.entry(row.id).or_default().push(place);
            fates.insert(row.id, row.fate);
        }
        for asked in &self.users.asked {
            let (id, told) = (asked.turn.id, asked.told);
            let times = places.get(&id).map_or(0, Vec::len);
            if times > 1 || (told.is_promised() && times != 1) {
                broken.push(format!("{id} was told {told:?} and is there {times} times"));
            }
            let is_open = matches!(fates.get(&id), Some(Fate::Pending { .. }));
            if told == Told::NotCollected && is_open {
                broken.push(format!(
                    "{id} was told not to be collected, and is {:?}",
                    fates[&id]
                ));
            }
            let place = |turn: &TurnId| places.get(turn).and_then(|places| places.first());
            let parent = asked.turn.parent.as_ref().and_then(place);
            if parent > place(&id) && times > 0 {
                broken.push(format!("{id} overtook the turn that it continues"));
            }
            if told.is_promised() {
                let view = self.raw.turn(id).await.unwrap();
                if view.is_none_or(|view| view.turn != asked.turn) {
                    broken.push(format!("{id} reads back otherwise"));
                }
            }
        }
        broken
    }
}

async fn run(seed: u64, raw: &Arc<SqliteLedger>) -> (Users, Vec<String>) {
    let mut run = Run::new(seed, raw);
    run.start();
    for _ in 0..STEPS {
        run.step().await;
    }
    run.rest().await;
    let broken = run.broken().await;
    (run.users, broken)
}

async fn all(folder: &Path, seeds: std::ops::Range<u64>) -> HashMap<&'static str, usize> {
    let raw = Arc::new(stock::open(folder).await);
    let mut told: HashMap<&'static str, usize> = HashMap::new();
    for seed in seeds {
        let (users, broken) = Box::pin(run(seed, &raw)).await;
        assert!(
            broken.is_empty(),
            "HONE_SIM_SEED={seed}: {}",
            broken.join("\n")
        );
        for asked in &users.asked {
            let name = match asked.told {
                Told::Nothing => "nothing",
                Told::Collected => "collected",
                Told::Spooled => "spooled",
                Told::NotCollected => "not collected",
            };
            *told.entry(name).or_default() += 1;
        }
    }
    let broken = raw.check_laws().await.unwrap();
    assert_eq!(broken, Vec::<String>::new());
    raw.close().await;
    told
}

#[test]
fn what_was_acknowledged_is_in_the_ledger_once_however_often_it_was_away() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let seeds = match super::number("HONE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..SEEDS,
    };
    let folder = stock::folder();
    let is_whole = seeds.end - seeds.start == SEEDS;
    let told = runtime.block_on(Box::pin(all(folder.path(), seeds)));
    println!("{told:?}");
    if is_whole {
        for name in ["nothing", "collected", "spooled", "not collected"] {
            assert!(told.get(name).copied() > Some(500), "{name}: {told:?}");
        }
    }
}
