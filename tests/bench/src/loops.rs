//! What every loop still does while another one is stopped or hangs, in a whole server over HTTP.
//!
//! Requests and feedback arrive at a fixed rate, whatever becomes of them, and a stock of answered
//! turns gives judge and train work of their own. Stretches without a stall stand between those
//! with one, and each is compared with the two beside it, so that a machine that grows slower or
//! faster meanwhile says nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::Bench;
use super::report::{Report, milli};
use super::wire::Wire;
use hone::app::App;
use hone::config::Config;
use hone_domain::Loop;

/// Between two requests, and between two pieces of feedback.
const EVERY: Duration = Duration::from_millis(50);
/// Turns answered before every stretch, per second of it, as work for judge and train.
const STOCK_PER_S: f64 = 40.0;
/// Requests at the same time while the stock is made.
const AT_ONCE: usize = 16;
/// Longest completion.
const MAX_TOKENS: u32 = 16;

/// The loops from an ask to a version, in their order.
const LOOPS: [Loop; 4] = [Loop::Serve, Loop::Collect, Loop::Judge, Loop::Train];

/// How a loop stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stall {
    Stopped(Loop),
    Hung(Loop),
}

/// What the loops did in a stretch, as a share of what there was to do (serve, collect, judge) or
/// per second (train, which never runs out).
type Done = [Option<f64>; 4];

/// `hone-bench loops`.
pub(super) fn loops(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(4.0);
    bench.runtime.block_on(async {
        let folder = bench.folder()?;
        let app = App::start(config(bench, folder.text())).await?;
        let wire = Arc::new(Wire::new(&format!("http://{}", app.addr))?);
        let mut world = World {
            app: &app,
            wire,
            time,
            asked: 0,
            failed: 0,
        };
        let report = world.measure().await;
        app.stop().await;
        report
    })
}

/// Small steps, so that there are many, and nothing of the stock is thrown away.
fn config(bench: &Bench, data: String) -> Config {
    let mut config = bench.config.clone();
    config.store.data_dir = data;
    config.http.receipt_timeout_ms = 200;
    let train = &mut config.train;
    (train.batch_turns, train.batch_turns_min) = (4, 2);
    (train.batch_wait_ms, train.queue_turns_max) = (100, 100_000);
    train.staleness_max_versions = 100_000;
    (train.gate.probe_recent, train.gate.probe_golden) = (1, 1);
    train.drain_deadline_ms = 1_000;
    config
}

struct World<'a> {
    app: &'a App,
    wire: Arc<Wire>,
    time: Duration,
    asked: u64,
    failed: u64,
}

impl World<'_> {
    async fn measure(&mut self) -> Result<Report, String> {
        let mut report = Report::new(
            "loops: work done while one loop stands still, against the stretches beside it",
            &["standing still", "serve", "collect", "judge", "train"],
        );
        let mut objects = Map::new();
        let mut before = self.stretch(None).await?;
        for (mode, make) in [
            ("stopped", Stall::Stopped as fn(Loop) -> Stall),
            ("hung", Stall::Hung as fn(Loop) -> Stall),
        ] {
            let mut rows = Map::new();
            for stalled in LOOPS {
                let during = self.stretch(Some(make(stalled))).await?;
                let after = self.stretch(None).await?;
                let shares = shares(stalled, (&before, &during, &after));
                before = after;
                let cell = |at: usize| shares[at].map_or("-".to_owned(), percent);
                let name = format!("{} {mode}", stalled.name());
                report.row([name, cell(0), cell(1), cell(2), cell(3)]);
                let pairs = LOOPS.iter().zip(shares);
                let pairs = pairs.map(|(l, s)| (l.name().to_owned(), json!(s.map(milli))));
                rows.insert(
                    stalled.name().to_owned(),
                    pairs.collect::<Map<_, _>>().into(),
                );
            }
            objects.insert(mode.to_owned(), rows.into());
        }
        for (mode, rows) in objects {
            report.set(&mode, rows);
        }
        report.set("requests", self.asked);
        report.failed = self.failed;
        Ok(report)
    }

    /// A stretch of time with its stock made before it.
    async fn stretch(&mut self, stall: Option<Stall>) -> Result<Done, String> {
        self.pause(Loop::Judge, true).await?;
        self.pause(Loop::Train, true).await?;
        let open = self.stock().await?;
        self.begin(stall).await?;
        for one in [Loop::Judge, Loop::Train] {
            if stall != Some(Stall::Stopped(one)) {
                self.pause(one, false).await?;
            }
        }
        let before = Counts::of(&self.wire.status().await?);
        let began = Instant::now();
        let offered = self.load(open, stall).await;
        let after = Counts::of(&self.wire.status().await?);
        let seconds = began.elapsed().as_secs_f64();
        self.end(stall).await?;
        Ok(offered.done((&before, &after), seconds))
    }

    /// Answers with feedback that the judge has not seen, and answers without, whose ids it
    /// returns.
    async fn stock(&mut self) -> Result<Vec<String>, String> {
        let answered = (self.time.as_secs_f64() * STOCK_PER_S) as u64;
        let open = (self.time.as_secs_f64() / EVERY.as_secs_f64()) as u64 + 1;
        let mut asks: JoinSet<Result<Option<String>, String>> = JoinSet::new();
        let mut ids = Vec::new();
        for number in 0..answered + open {
            if asks.len() >= AT_ONCE {
                ids.extend(next(&mut asks).await?);
            }
            self.asked += 1;
            let (wire, body) = (self.wire.clone(), self.question());
            asks.spawn(async move {
                let id = ask(&wire, &body).await?;
                if number >= answered {
                    return Ok(Some(id));
                }
                say(&wire, &id, number).await?;
                Ok(None)
            });
        }
        while !asks.is_empty() {
            ids.extend(next(&mut asks).await?);
        }
        Ok(ids)
    }

    /// Requests and feedback at their fixed rate, each on its own, until the time is over.
    async fn load(&mut self, open: Vec<String>, stall: Option<Stall>) -> Offered {
        let mut asks: JoinSet<Result<bool, String>> = JoinSet::new();
        let mut says: JoinSet<Result<bool, String>> = JoinSet::new();
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let until = Instant::now() + self.time;
        let (mut asked, mut said) = (0, 0);
        for id in open {
            ticks.tick().await;
            if Instant::now() >= until {
                break;
            }
            self.asked += 1;
            let (wire, body) = (self.wire.clone(), self.question());
            asks.spawn(async move {
                let reply = wire.post("/v1/chat/completions", &body).await?;
                Ok(reply["hone"]["collected"] == true)
            });
            let wire = self.wire.clone();
            says.spawn(async move { say(&wire, &id, 0).await.map(|()| true) });
            (asked, said) = (asked + 1, said + 1);
        }
        // What arrived last has a moment to end.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let (answered, collected, failed) = ended(&mut asks);
        let (heard, _, failed_to_say) = ended(&mut says);
        // Whoever still waits is waiting for the loop that stands still.
        if stall.is_none() {
            self.failed += asked - answered + (said - heard);
        }
        self.failed += failed;
        let recorder = [Stall::Stopped(Loop::Collect), Stall::Hung(Loop::Collect)];
        // Feedback that nobody records is refused in time, as it should be.
        if stall.is_none_or(|stall| !recorder.contains(&stall)) {
            self.failed += failed_to_say;
        }
        Offered {
            asked,
            answered,
            said,
            heard,
            collected,
        }
    }

    /// A question that nobody has asked before.
    fn question(&self) -> Value {
        let said = format!("What is the capital of France? ({})", self.asked);
        json!({
            "model": self.app.model,
            "user": "bench",
            "messages": [{ "role": "user", "content": said }],
            "max_tokens": MAX_TOKENS,
            "seed": self.asked,
        })
    }

    async fn begin(&self, stall: Option<Stall>) -> Result<(), String> {
        match stall {
            Some(Stall::Stopped(one)) => self.pause(one, true).await,
            Some(Stall::Hung(one)) => self.hold(one, true),
            None => Ok(()),
        }
    }

    async fn end(&self, stall: Option<Stall>) -> Result<(), String> {
        match stall {
            Some(Stall::Stopped(one)) => self.pause(one, false).await,
            Some(Stall::Hung(one)) => self.hold(one, false),
            None => Ok(()),
        }
    }

    async fn pause(&self, one: Loop, paused: bool) -> Result<(), String> {
        let verb = if paused { "pause" } else { "resume" };
        let path = format!("/admin/v1/loops/{}/{verb}", one.name());
        self.wire.post(&path, &json!({})).await.map(|_| ())
    }

    fn hold(&self, one: Loop, held: bool) -> Result<(), String> {
        if self.app.hold(one.name(), held) {
            Ok(())
        } else {
            Err(format!("the {} loop does not run", one.name()))
        }
    }
}

/// What was offered in a stretch and what became of it.
struct Offered {
    asked: u64,
    answered: u64,
    collected: u64,
    said: u64,
    heard: u64,
}

impl Offered {
    fn done(&self, (before, after): (&Counts, &Counts), seconds: f64) -> Done {
        let judged = after.judged - before.judged;
        [
            share(self.answered as f64, self.asked as f64),
            // What was never answered was never there to be recorded.
            share(
                (self.collected + self.heard) as f64,
                (self.answered + self.said) as f64,
            ),
            share(judged, judged + after.unjudged),
            Some((after.steps - before.steps) / seconds),
        ]
    }
}

/// Numbers of the status.
struct Counts {
    judged: f64,
    unjudged: f64,
    steps: f64,
}

impl Counts {
    fn of(status: &Value) -> Self {
        let number = |at: &Value| at.as_f64().unwrap_or_default();
        let judge = &status["loops"]["judge"]["numbers"];
        let pending = status["ledger"]["pending"].as_array();
        let unjudged = pending.into_iter().flatten();
        let unjudged = unjudged.filter(|pair| pair[0] == "awaiting_verdict");
        let train = &status["loops"]["train"]["numbers"];
        Self {
            judged: number(&judge["judged_total"]),
            unjudged: unjudged.map(|pair| number(&pair[1])).sum(),
            steps: number(&train["steps_total"]),
        }
    }
}

fn share(done: f64, offered: f64) -> Option<f64> {
    (offered > 0.0).then(|| done / offered)
}

/// Each loop's work against the mean of the stretches beside; none for the one that stands still,
/// and where nothing was offered.
fn shares(stalled: Loop, (before, during, after): (&Done, &Done, &Done)) -> [Option<f64>; 4] {
    std::array::from_fn(|at| {
        if LOOPS[at] == stalled {
            return None;
        }
        let beside = (before[at]? + after[at]?) / 2.0;
        share(during[at]?, beside)
    })
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The id of the answer's turn.
async fn ask(wire: &Wire, body: &Value) -> Result<String, String> {
    let reply = wire.post("/v1/chat/completions", body).await?;
    let id = reply["hone"]["turn_id"].as_str();
    Ok(id.ok_or("a reply has no turn id")?.to_owned())
}

async fn say(wire: &Wire, id: &str, number: u64) -> Result<(), String> {
    let score = if number.is_multiple_of(2) { 1 } else { -1 };
    let body = json!({ "turn_id": id, "score": score });
    wire.post("/v1/feedback", &body).await.map(|_| ())
}

async fn next(
    asks: &mut JoinSet<Result<Option<String>, String>>,
) -> Result<Option<String>, String> {
    match asks.join_next().await {
        Some(done) => done.map_err(|error| error.to_string())?,
        None => Ok(None),
    }
}

/// How many ended well, how many of them with a yes, and how many failed; the others are given up.
fn ended(tasks: &mut JoinSet<Result<bool, String>>) -> (u64, u64, u64) {
    let (mut well, mut yes, mut failed) = (0, 0, 0);
    while let Some(done) = tasks.try_join_next() {
        match done {
            Ok(Ok(said)) => (well, yes) = (well + 1, yes + u64::from(said)),
            Ok(Err(_)) | Err(_) => failed += 1,
        }
    }
    tasks.abort_all();
    (well, yes, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_against_the_mean_beside_and_none_for_the_one_that_stands_still() {
        let beside = [[Some(1.0), Some(1.0), Some(0.5), Some(4.0)]; 2];
        let during = [Some(1.0), None, Some(0.5), Some(6.0)];
        let found = shares(Loop::Serve, (&beside[0], &during, &beside[1]));
        assert_eq!(found, [None, None, Some(1.0), Some(1.5)]);
    }
}
