//! Gaps between tokens as HTTP clients see them, with training paused and running.

use std::time::{Duration, Instant};

use futures::future::join_all;
use hone_starter::grammar::{FactId, Grammar};
use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::Bench;
use super::report::{Gaps, Report, milli, ms, ratio};
use super::wire::Wire;
use crate::demo::client::{Chat, Client};
use crate::house::House;

/// Users who talk at the same time. They share one policy, so that it always has turns to learn from.
const USERS: u64 = 4;
const SCOPE: &str = "bench";
/// Questions of a session; each is answered twice, before and after what the user says about it.
const QUESTIONS: usize = 2;
/// What users say about completions, in turn, so that verdicts differ.
const SAYS: [&str; 2] = [
    "That is wrong, please try again.",
    "Perfect, thank you, exactly what I wanted!",
];
/// Longest that training may take to stop.
const STOP_MS: u64 = 1_000;
/// Talk before anything is measured.
const WARM_UP: Duration = Duration::from_secs(2);

/// A stretch of conversation.
struct Phase {
    gaps: Gaps,
    time: Duration,
    /// Milliseconds of work in the training steps that ended.
    work_ms: f64,
    versions: u64,
}

/// `hone bench gap`.
pub(super) fn gap(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(15.0);
    bench.runtime.block_on(async {
        let folder = bench.folder()?;
        let mut config = bench.config.clone();
        config.store.data_dir = folder.text();
        // Nothing is kept, so a training step under way need not come to its end.
        config.train.drain_deadline_ms = STOP_MS;
        let house = House::start(config).await?;
        let report = measure(&format!("http://{}", house.addr), time).await;
        house.stop().await;
        report
    })
}

async fn measure(url: &str, time: Duration) -> Result<Report, String> {
    let client = Client::new(url).map_err(|error| format!("{error:#}"))?;
    let wire = Wire::new(url)?;
    let pause = async |paused: bool| {
        let done = client.pause_training(paused).await;
        done.map_err(|error| format!("training could not be paused or resumed: {error:#}"))
    };
    pause(true).await?;
    talk(&client, WARM_UP, 0).await;
    let off = phase((&client, &wire), time, 1).await?;
    pause(false).await?;
    let on = phase((&client, &wire), time, 2).await?;
    let (requests, failed) = client.counts();
    let share = on.work_ms / ms(on.time);
    let mut report = Report::new(
        format!("gap: token gaps at {USERS} HTTP clients, training paused and running"),
        &[
            "training",
            "gap p50 ms",
            "p99 ms",
            "worst ms",
            "tokens",
            "share of time",
        ],
    );
    for (name, phase, share) in [("paused", &off, 0.0), ("running", &on, share)] {
        let Gaps {
            p50_ms,
            p99_ms,
            worst_ms,
            count,
        } = phase.gaps;
        report.row([
            name.to_owned(),
            format!("{p50_ms:.2}"),
            format!("{p99_ms:.2}"),
            format!("{worst_ms:.2}"),
            count.to_string(),
            format!("{:.0} %", share * 100.0),
        ]);
    }
    report.failed = failed;
    report.set("off", off.gaps.json());
    report.set("on", on.gaps.json());
    report.set("p50_ratio", json!(ratio(on.gaps.p50_ms, off.gaps.p50_ms)));
    report.set("p99_ratio", json!(ratio(on.gaps.p99_ms, off.gaps.p99_ms)));
    report.set("train_share", milli(share));
    report.set("versions", on.versions);
    report.set("requests", requests);
    Ok(report)
}

/// Lets everybody talk and measures.
async fn phase(
    (client, wire): (&Client, &Wire),
    time: Duration,
    seed: u64,
) -> Result<Phase, String> {
    let before = wire.status().await?;
    let began = Instant::now();
    let gaps = Gaps::of(talk(client, time, seed).await);
    let time = began.elapsed();
    let after = wire.status().await?;
    Ok(Phase {
        gaps,
        time,
        work_ms: work_ms(&after) - work_ms(&before),
        versions: versions(&after).saturating_sub(versions(&before)),
    })
}

/// Work of finished training steps; 0 before the first look at the ledger.
fn work_ms(status: &Value) -> f64 {
    let number = &status["loops"]["train"]["numbers"]["train_work_ms_total"];
    number.as_f64().unwrap_or_default()
}

fn versions(status: &Value) -> u64 {
    status["ledger"]["versions"].as_u64().unwrap_or_default()
}

/// Everybody holds sessions until the time is over; returns all gaps between pieces of text.
async fn talk(client: &Client, time: Duration, seed: u64) -> Vec<f64> {
    let (grammar, until) = (Grammar::new(), Instant::now() + time);
    let users = (0..USERS).map(async |user| {
        let mut gaps_ms = Vec::new();
        let mut number = 0;
        while Instant::now() < until {
            let key = format!("bench-{seed}-{user}-{number}");
            let mut rng = Rng::at(seed * USERS + user, number);
            gaps_ms.extend(session(client, &grammar, (&key, &mut rng), until).await);
            number += 1;
        }
        gaps_ms
    });
    join_all(users).await.concat()
}

async fn session(
    client: &Client,
    grammar: &Grammar,
    (key, rng): (&str, &mut Rng),
    until: Instant,
) -> Vec<f64> {
    let mut messages: Vec<Value> = Vec::new();
    let mut gaps_ms = Vec::new();
    for turn in 0..2 * QUESTIONS {
        if Instant::now() >= until {
            break;
        }
        let says = if turn % 2 == 0 {
            let fact = FactId(rng.below(grammar.facts().len()));
            grammar.question(fact, rng).text
        } else {
            SAYS[rng.below(SAYS.len())].to_owned()
        };
        messages.push(json!({ "role": "user", "content": says }));
        let chat = Chat {
            user: SCOPE,
            messages: &messages,
            session: Some(key),
            store: true,
            seed: rng.below(1 << 30) as u64,
        };
        let answer = client.chat(&chat).await;
        gaps_ms.extend(answer.gaps_ms);
        messages.push(json!({ "role": "assistant", "content": answer.text }));
    }
    gaps_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_training_counts_as_none() {
        let trained = json!({
            "loops": { "train": { "numbers": { "train_work_ms_total": 12.5 } } },
            "ledger": { "versions": 3 },
        });
        assert_eq!((work_ms(&trained), versions(&trained)), (12.5, 3));
        let not = json!({ "loops": {}, "ledger": null });
        assert_eq!((work_ms(&not), versions(&not)), (0.0, 0));
    }
}
