//! Recording: turns per second whose receipts say that they are on disk.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use hone_collect::{Carry, Ctx, Input, Spool};
use hone_domain::{
    Ask, AskContext, Collect, Delta, Message, Origin, PolicyChoice, Receipt, RequestId, Role,
    Sampling, Scope, SessionId, SessionIndex, StopRules, Token, Turn, TurnId, TurnKind,
};
use hone_ledger::Ledger;
use hone_runtime::{
    Clock, Notification, Outbox, Overflow, ShutdownTrigger, StatusRegistry, SystemClock, SystemIds,
    queue,
};
use hone_serve::{Backend, NullBackend};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::Bench;
use super::report::{Report, milli, ms};
use crate::demo::numbers::Percentiles;
use hone::model;

/// Turns that wait for their receipt at the same time.
const CONCURRENT: [usize; 2] = [1, 64];
/// What a person says in a turn; the backend without a model takes one token per byte.
const SAID: &str = "Please compare the two plans we talked about yesterday, in short. ";
const SAID_TIMES: usize = 6;

/// What makes turns and where they go.
struct Load {
    backend: NullBackend,
    recorder: Outbox<Input>,
    said: String,
}

/// What became of them.
#[derive(Default)]
struct Recorded {
    receipts_ms: Vec<f64>,
    failed: u64,
}

/// `hone-bench ledger`.
pub(super) fn ledger(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(5.0);
    bench.runtime.block_on(record(bench, time))
}

async fn record(bench: &Bench, time: Duration) -> Result<Report, String> {
    let folder = bench.folder()?;
    let place = bench.config.store.place(folder.path(), &[]);
    let ledger = place.open().await.map_err(|error| error.to_string())?;
    let ledger: Arc<dyn Ledger> = ledger;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let (recorder, inbox) = queue(bench.config.http.record_queue_max, Overflow::DropNewest);
    let (to_judge, _from_collect) = queue::<Notification>(1, Overflow::DropOldest);
    let index = bench.config.http.index(bench.config.binding.retry_ms);
    // What is measured is the ledger.
    let spool = Spool::open(&folder.path().join("spool"), 0).map_err(|error| error.to_string())?;
    let ctx = Ctx {
        spool: Arc::new(spool),
        ledger: ledger.clone(),
        ids: Arc::new(SystemIds),
        index: Arc::new(Mutex::new(SessionIndex::new(index))),
        carry: Carry::default(),
        clock: clock.clone(),
        config: bench.config.collect.clone(),
        registry: StatusRegistry::new(),
    };
    let stop = ShutdownTrigger::new();
    let running = tokio::spawn(hone_collect::run(ctx, inbox, to_judge, stop.signal()));
    let load = Load {
        backend: model::null_backend(clock),
        recorder,
        said: SAID.repeat(SAID_TIMES),
    };
    let report = measure(&load, &*ledger, time).await;
    stop.pull();
    let ended = running.await.map_err(|error| error.to_string())?;
    ended.map_err(|error| error.to_string())?;
    ledger.close().await;
    report
}

async fn measure(load: &Load, ledger: &dyn Ledger, time: Duration) -> Result<Report, String> {
    let title = format!(
        "ledger: turns/s with durable receipts, prompts of {} tokens",
        load.said.len()
    );
    let head = ["at once", "turns/s", "receipt p50 ms", "p99 ms"];
    let mut report = Report::new(title, &head);
    let (mut all, mut rows): (u64, Vec<Value>) = (0, Vec::new());
    for concurrent in CONCURRENT {
        let began = Instant::now();
        let workers = (0..concurrent).map(|_| load.work(began + time));
        let mut receipts_ms = Vec::new();
        for recorded in join_all(workers).await {
            receipts_ms.extend(recorded.receipts_ms);
            report.failed += recorded.failed;
        }
        let turns = receipts_ms.len();
        let turns_per_s = turns as f64 / began.elapsed().as_secs_f64();
        let receipts = Percentiles::of(receipts_ms);
        report.row([
            concurrent.to_string(),
            format!("{turns_per_s:.0}"),
            format!("{:.2}", receipts.p50),
            format!("{:.2}", receipts.p99),
        ]);
        rows.push(json!({
            "concurrent": concurrent,
            "turns_per_s": milli(turns_per_s),
            "receipt_p50_ms": milli(receipts.p50),
            "receipt_p99_ms": milli(receipts.p99),
        }));
        all += turns as u64;
    }
    let counts = ledger.counts().await.map_err(|error| error.to_string())?;
    if counts.turns < all {
        return Err(format!(
            "{all} turns have a receipt, but the ledger holds {}",
            counts.turns
        ));
    }
    report.set("runs", rows);
    report.set("turns", all);
    Ok(report)
}

impl Load {
    /// One turn after the other until the time is over, each waiting for its receipt.
    async fn work(&self, until: Instant) -> Recorded {
        let mut recorded = Recorded::default();
        let session = SessionId(Uuid::now_v7());
        while Instant::now() < until {
            let Some(turn) = self.turn(session).await else {
                recorded.failed += 1;
                continue;
            };
            let start = Instant::now();
            let (receipt, waiting) = oneshot::channel();
            let sent = self.recorder.send(Input::Turn { turn, receipt }).is_ok();
            if sent && waiting.await == Ok(Receipt::Collected) {
                recorded.receipts_ms.push(ms(start.elapsed()));
            } else {
                recorded.failed += 1;
            }
        }
        recorded
    }

    /// A turn as the backend without a model makes it.
    async fn turn(&self, session: SessionId) -> Option<Box<Turn>> {
        let ask = Ask {
            form: None,
            given: Vec::new(),
            predicted: Arc::default(),
            turn: TurnId(Uuid::now_v7()),
            request: RequestId(Uuid::now_v7()),
            choice_index: 0,
            group: None,
            scope: Scope::of("bench", None),
            policy: PolicyChoice::Newest,
            origin: Origin::User,
            kind: TurnKind::Main,
            prompt_tokens: self.said.bytes().map(Token::from).collect(),
            sampling: Sampling::default(),
            stop: StopRules {
                max_tokens: 64,
                ..StopRules::default()
            },
            collect: Collect::Yes,
            context: AskContext {
                session,
                session_key: None,
                parent: None,
                owner: "bench".to_owned(),
                keeper: None,
                messages: [Message::text(Role::User, self.said.as_str())].into(),
                admission: Default::default(),
                untrainable: None,
                admitted_ms: 0,
            },
        };
        let mut answer = self.backend.ask(ask).ok()?;
        while let Some(delta) = answer.deltas.recv().await {
            if let Delta::End(end) = delta {
                return end.turn;
            }
        }
        None
    }
}
