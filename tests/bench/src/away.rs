//! A database that is away for a while under load: what answers say meanwhile, how long they take, and how long it takes
//! until everything is in the database. The way to it is a port of this program, which closes every connection.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hone::config::Engine;
use hone_domain::TurnId;
use hone_ledger::Ledger as _;
use hone_ledger_sql::{PostgresConfig, PostgresStore};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::Bench;
use super::proxy::{Proxy, Way};
use super::report::{Report, milli, ms};
use super::wire::Wire;
use crate::demo::numbers::Percentiles;

/// Requests a second.
const RATE: u32 = 200;
/// Before the database goes away, and after everything is in it again.
const AROUND: Duration = Duration::from_secs(5);
/// Longest wait until everything is in the database.
const CATCH_UP_MAX: Duration = Duration::from_secs(600);
/// How often it is looked whether it is.
const LOOK: Duration = Duration::from_millis(50);

/// When a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Before,
    Away,
    CatchingUp,
    After,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Away => "away",
            Self::CatchingUp => "catching up",
            Self::After => "after",
        }
    }
}

/// What became of the requests of a phase.
#[derive(Default)]
struct Outcome {
    latencies_ms: Vec<f64>,
    failed: u64,
    collected: u64,
    spooled: u64,
    not_collected: u64,
}

#[derive(Default)]
struct Outcomes {
    by_phase: BTreeMap<Phase, Outcome>,
    acknowledged: Vec<TurnId>,
}

impl Outcomes {
    fn note(&mut self, phase: Phase, took: Duration, reply: &Result<Value, String>) {
        let outcome = self.by_phase.entry(phase).or_default();
        let Ok(reply) = reply else {
            outcome.failed += 1;
            return;
        };
        outcome.latencies_ms.push(ms(took));
        let note = &reply["hone"];
        match &note["collected"] {
            Value::Bool(true) => outcome.collected += 1,
            Value::String(_) => outcome.spooled += 1,
            _ => {
                outcome.not_collected += 1;
                return;
            }
        }
        let turn = note["turn_id"].as_str().and_then(TurnId::parse);
        self.acknowledged.extend(turn);
    }
}

/// `hone-bench away`.
pub(super) fn away(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(60.0);
    bench.runtime.block_on(measure(bench, time))
}

/// The socket, the user and the database that `store.url` names.
fn socket_of(url: &str) -> Option<(PathBuf, String)> {
    let rest = url.strip_prefix("postgres://")?;
    let (user, place) = rest.split_once('@')?;
    let (host, database) = place.split_once('/')?;
    let folder = host.replace("%2F", "/");
    let socket = PathBuf::from(folder).join(".s.PGSQL.5432");
    socket
        .is_absolute()
        .then(|| (socket, format!("{user}@HOST/{database}")))
}

async fn measure(bench: &Bench, time: Duration) -> Result<Report, String> {
    let direct = bench.config.store.url.clone();
    let (socket, form) = socket_of(&direct).ok_or(
        "away needs a PostgreSQL server on a socket of this machine: sh tests/with_postgres.sh hone-bench away",
    )?;
    let way = Proxy::start(socket).await;
    let mut config = bench.config.clone();
    let address = way.address.to_string();
    let url = form.replace("HOST", &address);
    config.store.url = format!("postgres://{url}?sslmode=disable");
    config.model.engine = Engine::Null;
    let (outcomes, caught_up) = bench
        .app(config, async |url: &str| load(url, &way, time).await)
        .await?;
    let lost = lost(&direct, &outcomes.acknowledged).await?;
    Ok(report(&outcomes, time, caught_up, lost))
}

/// Sends requests through all phases; what became of them, and how long it took until nothing waited.
async fn load(url: &str, way: &Proxy, time: Duration) -> Result<(Outcomes, Duration), String> {
    let wire = Arc::new(Wire::new(url)?);
    wire.ready().await?;
    let (phase, outcomes) = (
        Arc::new(Mutex::new(Phase::Before)),
        Arc::new(Mutex::new(Outcomes::default())),
    );
    let set = |now: Phase| *locked(&phase) = now;
    let sending = tokio::spawn(send(wire.clone(), phase.clone(), outcomes.clone()));
    sleep(AROUND).await;
    set(Phase::Away);
    way.set(Way::Cut);
    sleep(time).await;
    way.set(Way::Open);
    set(Phase::CatchingUp);
    let began = Instant::now();
    while waiting(&wire).await? > 0.0 {
        if began.elapsed() > CATCH_UP_MAX {
            return Err("the spool is not empty after ten minutes".to_owned());
        }
        sleep(LOOK).await;
    }
    let caught_up = began.elapsed();
    set(Phase::After);
    sleep(AROUND).await;
    sending.abort();
    // Answers that were under way come to their end.
    let _aborted = sending.await.is_err();
    sleep(Duration::from_secs(1)).await;
    let outcomes = std::mem::take(&mut *locked(&outcomes));
    Ok((outcomes, caught_up))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that wait in the spool.
async fn waiting(wire: &Wire) -> Result<f64, String> {
    let status = wire.status().await?;
    let records = &status["loops"]["collect"]["numbers"]["spool_records"];
    records
        .as_f64()
        .ok_or_else(|| format!("no spool_records: {status}"))
}

/// Sends until it is aborted; what is under way then comes to its end in the background.
async fn send(wire: Arc<Wire>, phase: Arc<Mutex<Phase>>, outcomes: Arc<Mutex<Outcomes>>) {
    let mut ticks = interval(Duration::from_secs(1) / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut under_way = JoinSet::new();
    for n in 0_u64.. {
        ticks.tick().await;
        while under_way.try_join_next().is_some() {}
        let (wire, outcomes, now) = (wire.clone(), outcomes.clone(), *locked(&phase));
        under_way.spawn(async move {
            let body = json!({
                "model": "hone-null",
                "messages": [{ "role": "user", "content": format!("Question {n}: how are you?") }],
            });
            let began = Instant::now();
            let reply = wire.post("/v1/chat/completions", &body).await;
            locked(&outcomes).note(now, began.elapsed(), &reply);
        });
    }
}

/// How many turns are not in the ledger.
async fn lost(url: &str, turns: &[TurnId]) -> Result<u64, String> {
    let ledger = PostgresStore::open_beside(&PostgresConfig::at(url)).await;
    let ledger = ledger.map_err(|error| error.to_string())?;
    let mut lost = 0;
    for turn in turns {
        let found = ledger
            .turn(*turn)
            .await
            .map_err(|error| error.to_string())?;
        lost += u64::from(found.is_none());
    }
    ledger.close().await;
    Ok(lost)
}

fn report(outcomes: &Outcomes, time: Duration, caught_up: Duration, lost: u64) -> Report {
    let title = format!(
        "away: PostgreSQL away for {} s at {RATE} requests/s, an engine that answers at once",
        time.as_secs_f64()
    );
    let head = [
        "sent",
        "answers",
        "failed",
        "collected",
        "spooled",
        "neither",
        "p50 ms",
        "p99 ms",
        "most ms",
    ];
    let mut report = Report::new(title, &head);
    for (phase, outcome) in &outcomes.by_phase {
        let most = outcome.latencies_ms.iter().copied().fold(0.0, f64::max);
        let latencies = Percentiles::of(outcome.latencies_ms.clone());
        report.row([
            phase.name().to_owned(),
            outcome.latencies_ms.len().to_string(),
            outcome.failed.to_string(),
            outcome.collected.to_string(),
            outcome.spooled.to_string(),
            outcome.not_collected.to_string(),
            format!("{:.1}", latencies.p50),
            format!("{:.1}", latencies.p99),
            format!("{most:.1}"),
        ]);
        report.failed += outcome.failed;
    }
    let acknowledged = outcomes.acknowledged.len();
    report.note(format!(
        "Everything was in the database {:.1} s after it came back; of {acknowledged} acknowledged turns {lost} are lost.",
        caught_up.as_secs_f64()
    ));
    report.set("seconds_away", milli(time.as_secs_f64()));
    report.set("seconds_to_catch_up", milli(caught_up.as_secs_f64()));
    report.set("acknowledged", acknowledged);
    report.set("lost", lost);
    report.failed += lost;
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_found_in_the_address() {
        let found = socket_of("postgres://hone@%2Ftmp%2Fpg/postgres");
        let expected = (
            PathBuf::from("/tmp/pg/.s.PGSQL.5432"),
            "hone@HOST/postgres".to_owned(),
        );
        assert_eq!(found, Some(expected));
        assert_eq!(socket_of("postgres://hone@db.example:5432/hone"), None);
        assert_eq!(socket_of(""), None);
    }
}
