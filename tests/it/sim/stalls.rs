//! Each loop stopped, then hung, in turn: the others do the same work in the same virtual time.
//!
//! A stock of open, unjudged and untrained turns gives every loop work for the whole span, whoever
//! else stands still. A stopped loop takes nothing; the effects of a hung one call the ledger and
//! never get an answer, so that whatever they hold at that moment stays held.

use std::path::Path;
use std::sync::Arc;

use hone_blobs::FsBlobs;
use hone_collect::{Carry, CollectEffects, Input};
use hone_domain::{Feedback, FeedbackId, Turn};
use hone_judge::JudgeEffects;
use hone_ledger::{FeedbackOutcome, Ledger};
use hone_ledger_sql::SqliteLedger;
use hone_runtime::{
    Clock, Ids, ManualClock, Notification, Overflow, SeededIds, ShutdownTrigger, StatusRegistry,
    queue,
};
use hone_train::{Train, TrainEffects};
use tokio::sync::oneshot;

use super::lane::{Lane, Mode};
use super::ledger::{Plant, SimLedger};
use super::rng::Rng;
use super::stock::{BEGINNING_MS, Stock, gateway, open};
use super::trainer::FakeTrainer;
use super::users::{Gateway, Moment, Users};

/// How long a run lasts.
const SPAN_MS: i64 = 6_000;
/// Between two requests, and between two pieces of feedback.
const ASK_EVERY_MS: i64 = 20;
/// From a request to the end of its completion.
const SAMPLING_MS: i64 = 10;
/// Longer than a run.
const NEVER_MS: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loop {
    Serve,
    Collect,
    Judge,
    Train,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stall {
    Nobody,
    Stopped(Loop),
    Hung(Loop),
}

impl Stall {
    fn mode(self, of: Loop) -> Mode {
        match self {
            Self::Stopped(stalled) if stalled == of => Mode::Stopped,
            Self::Hung(stalled) if stalled == of => Mode::Hung,
            _ => Mode::AtWork,
        }
    }
}

/// What was done in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    /// Completions that ended.
    completions: u64,
    /// Turns recorded with a signed receipt.
    recorded: u64,
    /// Pieces of feedback taken.
    heard: u64,
    /// Verdicts.
    judged: u64,
    /// Versions and refused candidates.
    steps: u64,
}

impl Work {
    /// What the loop did that it could do without the stalled one.
    fn of(&self, of: Loop, stalled: Loop) -> u64 {
        match of {
            Loop::Serve => self.completions,
            // Without completions there are no turns to record.
            Loop::Collect if stalled == Loop::Serve => self.heard,
            Loop::Collect => self.heard + self.recorded,
            Loop::Judge => self.judged,
            Loop::Train => self.steps,
        }
    }
}

fn collect_config() -> hone_collect::Config {
    hone_collect::Config {
        batch_turns_max: 16,
        held_max: 256,
        session_ttl_ms: NEVER_MS,
        open_ms_max: NEVER_MS,
        open_max: 4_096,
        load_max: 4_096,
        ..hone_collect::Config::for_tests()
    }
}

fn judge_config() -> hone_judge::Config {
    hone_judge::Config {
        in_hand_max: 4,
        lease_ms: 60_000,
        ..hone_judge::Config::for_tests()
    }
}

fn train_config(folder: &Path) -> hone_train::Config {
    let mut config = hone_tests::config(folder, &[]).unwrap().train;
    (config.batch_turns, config.batch_turns_min) = (4, 2);
    (config.batch_wait_ms, config.queue_turns_max) = (500, 10_000);
    (config.staleness_max_versions, config.row_tokens_max) = (10_000, 64);
    config.lease_ms = 60_000;
    // Every other verdict of the stock is a complaint; an alarm would rest the trainer.
    config.watch.enabled = false;
    config.validate().unwrap();
    config
}

/// Who says something about the open turns, at a steady rate, and hears what became of it.
#[derive(Default)]
struct Voices {
    next: usize,
    replies: Vec<oneshot::Receiver<Result<FeedbackOutcome, String>>>,
}

impl Voices {
    fn speak(&mut self, open: &[Turn], (ids, gateway): (&SeededIds, &Gateway), now_ms: i64) {
        let turn = &open[self.next];
        self.next += 1;
        let feedback = Feedback {
            id: FeedbackId(ids.next()),
            turn: turn.id,
            owner: turn.owner.clone(),
            client_id: None,
            score: Some(1.0),
            comment: None,
            correction: None,
            of_session: false,
            received_ms: now_ms,
        };
        let (reply, waiting) = oneshot::channel();
        let feedback = Box::new(feedback);
        // A full queue closes the reply, which then counts as not heard.
        let _taken = gateway.to_collect.send(Input::Feedback { feedback, reply });
        self.replies.push(waiting);
    }

    fn heard(&mut self) -> u64 {
        let heard = self.replies.iter_mut().map(oneshot::Receiver::try_recv);
        heard.filter(|said| matches!(said, Ok(Ok(_)))).count() as u64
    }
}

/// Everything of one run.
struct Run {
    resources: Resources,
    collect: Lane<hone_collect::State, CollectEffects>,
    judge: Lane<hone_judge::State, JudgeEffects>,
    train: Lane<Train, TrainEffects>,
    plant: Plant,
    serve: Mode,
    // Keeps the train loop's effects from taking its fall for a stop.
    _stop: ShutdownTrigger,
}

/// What the loops share.
struct Resources {
    folder: tempfile::TempDir,
    raw: Arc<SqliteLedger>,
    clock: Arc<ManualClock>,
    ids: Arc<SeededIds>,
    registry: StatusRegistry,
    gateway: Gateway,
}

impl Resources {
    fn collect(&self, ledger: Arc<SimLedger>) -> hone_collect::Ctx {
        hone_collect::Ctx {
            ledger,
            ids: self.ids.clone(),
            index: self.gateway.index.clone(),
            spool: hone_collect::Spool::off(),
            carry: Carry::default(),
            clock: self.clock.clone(),
            config: collect_config(),
            registry: self.registry.clone(),
        }
    }

    fn judge(&self, ledger: Arc<SimLedger>) -> hone_judge::Ctx {
        hone_judge::Ctx {
            caller: None,
            ledger,
            completer: None,
            weigher: None,
            reader: None,
            ids: self.ids.clone(),
            clock: self.clock.clone(),
            config: judge_config(),
            registry: self.registry.clone(),
        }
    }

    fn train(&self, ledger: Arc<SimLedger>) -> hone_train::Ctx {
        let blobs = FsBlobs::open(&self.folder.path().join("blobs"), 1 << 20);
        let trainer = Arc::new(FakeTrainer::new());
        hone_train::Ctx {
            ledger,
            versions: self.raw.clone(),
            blobs: Arc::new(blobs.unwrap()),
            trainer: trainer.clone(),
            evaluator: trainer,
            policies: self.gateway.policies.clone(),
            under_way: hone_runtime::Latest::new(None),
            serving: Arc::new(|| hone_train::Served {
                now: true,
                total_us: 0,
                ..hone_train::Served::default()
            }),
            priority: hone_train::Priority::new(Arc::new(hone_train::Served::default)),
            golden: Arc::new(vec![vec![1, 2, 3]]),
            ids: self.ids.clone(),
            clock: self.clock.clone(),
            config: train_config(self.folder.path()),
            registry: self.registry.clone(),
        }
    }
}

impl Run {
    async fn new(stock: &Stock, stall: Stall, plant: Plant) -> Self {
        let folder = stock.copy();
        let raw = Arc::new(open(folder.path()).await);
        let first = SimLedger::new(raw.clone(), plant, (10_000, 0));
        let [collects, judges, trains] = [(); 3].map(|()| Arc::new(first.beside()));
        let (to_collect, collect_inbox) = queue(256, Overflow::DropNewest);
        let (to_judge, judge_inbox) = queue::<Notification>(1, Overflow::DropOldest);
        let (to_train, train_inbox) = queue::<Notification>(1, Overflow::DropOldest);
        let resources = Resources {
            folder,
            raw,
            clock: Arc::new(ManualClock::at(BEGINNING_MS)),
            ids: Arc::new(SeededIds::new(2)),
            registry: StatusRegistry::new(),
            gateway: gateway(to_collect),
        };
        let stop = ShutdownTrigger::new();
        let collect = (
            hone_collect::State::new(collect_config(), resources.ids.clone()),
            CollectEffects::new(resources.collect(collects.clone()), to_judge),
        );
        let judge = (
            hone_judge::State::new(judge_config(), resources.ids.clone(), false),
            JudgeEffects::new(resources.judge(judges.clone()), to_train),
        );
        let train = (
            Train::new(train_config(resources.folder.path())),
            TrainEffects::start(resources.train(trains.clone()), stop.signal()).unwrap(),
        );
        let mode = |of| stall.mode(of);
        Self {
            collect: Lane::new(collect, collect_inbox, collects, (mode(Loop::Collect), 16)),
            judge: Lane::new(judge, judge_inbox, judges, (mode(Loop::Judge), 12)),
            train: Lane::new(train, train_inbox, trains, (mode(Loop::Train), 4)),
            resources,
            plant,
            serve: mode(Loop::Serve),
            _stop: stop,
        }
    }

    /// Lets the span pass.
    async fn pass(mut self, stock: &Stock) -> Work {
        let (mut users, mut voices) = (Users::default(), Voices::default());
        let (mut rng, mut completions) = (Rng::new(5), 0);
        for at_ms in 0..SPAN_MS {
            let now_ms = self.resources.clock.now_ms();
            let mut moment = Moment {
                gateway: &self.resources.gateway,
                ids: &*self.resources.ids,
                rng: &mut rng,
                now_ms,
            };
            // A hung engine takes requests and never ends one.
            if at_ms % ASK_EVERY_MS == 0 && self.serve != Mode::Stopped {
                users.ask(&mut moment);
            }
            if at_ms % ASK_EVERY_MS == SAMPLING_MS && self.serve == Mode::AtWork {
                while users.is_sampling() {
                    users.finish(&mut moment);
                    completions += 1;
                }
            }
            users.look();
            if at_ms % ASK_EVERY_MS == 0 {
                voices.speak(
                    &stock.open,
                    (&self.resources.ids, &self.resources.gateway),
                    now_ms,
                );
            }
            self.collect.pass(now_ms).await;
            let rests = self.plant == Plant::JudgeWaitsForTrain && {
                self.train.mode == Mode::Stopped && self.train.inbox.stats().depth > 0
            };
            if !rests {
                self.judge.pass(now_ms).await;
            }
            self.train.pass(now_ms).await;
            self.resources.clock.advance(1);
        }
        self.sum_up(completions, voices.heard()).await
    }

    async fn sum_up(self, completions: u64, heard: u64) -> Work {
        let counts = self.resources.raw.counts().await.unwrap();
        let work = Work {
            completions,
            recorded: self.collect.number("turns_recorded_total"),
            heard,
            judged: self.judge.number("judged_total"),
            steps: counts.versions + counts.refused,
        };
        // A loop that ran out of work would say nothing about its throughput.
        let now_ms = self.resources.clock.now_ms();
        let left = self.resources.raw.ready(now_ms).await.unwrap();
        let left = left.iter().map(|ready| ready.count).sum::<usize>();
        assert!(left > 4, "the trainer ran out of work: {work:?}");
        let left = self
            .resources
            .raw
            .claim_transitions(10, 1, now_ms)
            .await
            .unwrap();
        assert!(left.len() == 10, "the judge ran out of work: {work:?}");
        assert!(self.resources.raw.check_laws().await.unwrap().is_empty());
        self.resources.raw.close().await;
        work
    }
}

/// The work of a run, on a runtime of its own.
fn run(stock: &Stock, stall: Stall, plant: Plant) -> Work {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let run = Box::pin(Run::new(stock, stall, plant)).await;
        Box::pin(run.pass(stock)).await
    })
}

fn stocked() -> Stock {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(Box::pin(Stock::new()))
}

const LOOPS: [Loop; 4] = [Loop::Serve, Loop::Collect, Loop::Judge, Loop::Train];

/// Who did less than 99 % of the undisturbed work while another one stood still.
fn suffering(stock: &Stock, stalls: &[Stall], plant: Plant) -> Vec<String> {
    let undisturbed = run(stock, Stall::Nobody, Plant::None);
    println!("nobody: {undisturbed:?}");
    let mut suffering = Vec::new();
    for &stall in stalls {
        let (Stall::Stopped(stalled) | Stall::Hung(stalled)) = stall else {
            continue;
        };
        let work = run(stock, stall, plant);
        println!("{stall:?}: {work:?}");
        for other in LOOPS.into_iter().filter(|other| *other != stalled) {
            let (wanted, done) = (undisturbed.of(other, stalled), work.of(other, stalled));
            assert!(wanted >= 100, "{other:?} has too little to do: {wanted}");
            if done * 100 < wanted * 99 {
                suffering.push(format!("{stall:?}: {other:?} did {done} of {wanted}"));
            }
        }
        if stalled != Loop::Serve {
            let own = work.of(stalled, stalled);
            assert_eq!(own, 0, "{stall:?} stalls nobody");
        }
    }
    suffering
}

#[test]
fn a_loop_that_stands_still_costs_the_others_nothing() {
    let stock = stocked();
    let stalls: Vec<Stall> = LOOPS
        .into_iter()
        .flat_map(|one| [Stall::Stopped(one), Stall::Hung(one)])
        .collect();
    assert_eq!(
        suffering(&stock, &stalls, Plant::None),
        Vec::<String>::new()
    );
}

#[test]
fn planted_couplings_are_found() {
    let stock = stocked();
    let plants = [
        (
            Plant::HungCallKeepsTheLedger,
            Stall::Hung(Loop::Collect),
            "Judge",
        ),
        (
            Plant::HungCallKeepsTheLedger,
            Stall::Hung(Loop::Train),
            "Collect",
        ),
        (
            Plant::JudgeWaitsForTrain,
            Stall::Stopped(Loop::Train),
            "Judge",
        ),
    ];
    for (plant, stall, who) in plants {
        let found = suffering(&stock, &[stall], plant);
        let named = found.iter().any(|line| line.contains(who));
        assert!(named, "{plant:?}: {found:?}");
    }
}

#[test]
fn a_run_replays_exactly() {
    let stock = stocked();
    let stall = Stall::Hung(Loop::Judge);
    let first = run(&stock, stall, Plant::None);
    assert_eq!(first, run(&stock, stall, Plant::None));
}
