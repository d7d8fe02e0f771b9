//! Gaps between tokens as HTTP clients see them, with training paused and running: where the server
//! has all it can do, and where sessions begin by themselves at a share of the rate there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use hone_starter::grammar::{FactId, Grammar};
use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::Bench;
use super::report::{Gaps, Report, Spread, milli, ms, ratio};
use super::wire::Wire;
use crate::demo::client::{Chat, Client};
use crate::demo::numbers::Percentiles;

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
/// How often it is asked whether it has.
const LOOK: Duration = Duration::from_millis(5);
/// Talk before anything is measured; as often as it takes until a version is served that was learned,
/// so that with training and without it the same is computed.
const WARM_UP: Duration = Duration::from_secs(2);
const WARM_UPS_MAX: usize = 10;

/// Share of the sessions per second of users without a pause, at which they come by themselves.
const OPEN_SHARE: f64 = 0.6;
/// Sessions at once there, at most; one that would be more is left out and counted as failed.
const OPEN_MAX: usize = 64;
/// Stretches of each kind, in turn, because machines drift. An odd number has a middle.
const ROUNDS: u32 = 7;

/// Who talks when.
#[derive(Clone, Copy)]
enum Load {
    /// Everybody always, one session after the other.
    Saturated,
    /// Sessions begin at so many a second, at random, whatever became of those before; in the same round
    /// at the same moments.
    Open { per_s: f64, round: u64 },
}

/// Stretches of conversation.
#[derive(Default)]
struct Phase {
    /// Of each stretch.
    gaps_ms: Vec<Vec<f64>>,
    time: Duration,
    sessions: u64,
    /// Tokens that the engine decoded.
    tokens: u64,
    left_out: u64,
    /// Milliseconds that training's thread computed.
    work_ms: f64,
    versions: u64,
}

impl Phase {
    fn train_share(&self) -> f64 {
        self.work_ms / ms(self.time).max(1.0)
    }

    fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.time.as_secs_f64().max(1e-3)
    }

    /// The 99th percentile of each stretch's gaps.
    fn p99s_ms(&self) -> impl Iterator<Item = f64> {
        self.gaps_ms
            .iter()
            .map(|gaps| Percentiles::of(gaps.clone()).p99)
    }
}

/// `hone-bench gap`.
pub(super) fn gap(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(28.0);
    let mut config = bench.config.clone();
    // Nothing is kept, so a training step under way need not come to its end.
    config.train.drain_deadline_ms = STOP_MS;
    let measured = bench.app(config, async |url| measure(url, time).await);
    bench.runtime.block_on(measured)
}

async fn measure(url: &str, time: Duration) -> Result<Report, String> {
    let client = Client::new(url).map_err(|error| format!("{error:#}"))?;
    let talkers = Talkers {
        client: &client,
        wire: &Wire::new(url)?,
        grammar: Grammar::new(),
        number: AtomicU64::new(0),
    };
    let learned = talkers.warm_up().await?;
    let saturated = talkers.both(|_| Load::Saturated, time).await?;
    let capacity = saturated[0].per_s(saturated[0].sessions);
    let per_s = capacity * OPEN_SHARE;
    let open = talkers
        .both(|round| Load::Open { per_s, round }, time)
        .await?;
    let mut report = Report::new(
        format!(
            "gap: token gaps at HTTP clients, training paused and running ({USERS} without a pause; sessions at {:.0} % of their rate)",
            OPEN_SHARE * 100.0
        ),
        &[
            "load",
            "training",
            "gap p50 ms",
            "p99 ms",
            "worst ms",
            "gaps",
            "tokens/s",
            "share of time",
        ],
    );
    report.note(what_open_is((&saturated[0], &open[0]), capacity));
    for (name, phases) in [("saturated", saturated), ("open", open)] {
        tell(&mut report, name, phases);
    }
    let (requests, failed) = client.counts();
    report.failed += failed;
    report.set("requests", requests);
    report.set("sessions_per_s", milli(capacity));
    report.set("versions_before", learned);
    Ok(report)
}

/// What share of what the open load is.
fn what_open_is((saturated, open): (&Phase, &Phase), capacity: f64) -> String {
    let [all, some] = [saturated, open].map(|phase| phase.per_s(phase.tokens));
    format!(
        "open: {:.1} sessions/s, {:.0} % of the {capacity:.1} that {USERS} users without a pause begin; that is {some:.0} tokens/s of their {all:.0} ({:.0} %), with training paused",
        capacity * OPEN_SHARE,
        OPEN_SHARE * 100.0,
        100.0 * some / all.max(1e-3)
    )
}

fn tell(report: &mut Report, load: &str, [off, on]: [Phase; 2]) {
    report.failed += off.left_out + on.left_out;
    let (share, versions) = (on.train_share(), on.versions);
    let ratios = off.p99s_ms().zip(on.p99s_ms());
    let ratios: Vec<f64> = ratios.filter_map(|(off, on)| ratio(on, off)).collect();
    let rounds = Spread::of(&ratios);
    let speeds = [&off, &on].map(|phase| phase.per_s(phase.tokens));
    let (off, on) = (
        Gaps::of(off.gaps_ms.concat()),
        Gaps::of(on.gaps_ms.concat()),
    );
    for ((name, gaps, share), speed) in [("paused", &off, 0.0), ("running", &on, share)]
        .into_iter()
        .zip(speeds)
    {
        report.row([
            load.to_owned(),
            name.to_owned(),
            format!("{:.2}", gaps.p50_ms),
            format!("{:.2}", gaps.p99_ms),
            format!("{:.2}", gaps.worst_ms),
            gaps.count.to_string(),
            format!("{speed:.0}"),
            format!("{:.0} %", share * 100.0),
        ]);
    }
    let p99 = ratio(on.p99_ms, off.p99_ms);
    let of_rounds = rounds.map_or_else(String::new, |rounds| {
        let (median, lowest, highest) = (rounds.median, rounds.lowest, rounds.highest);
        format!(", {median:.2} ({lowest:.2} to {highest:.2}) in the median of {ROUNDS} rounds")
    });
    report.note(format!(
        "{load}: with training the p99 gap is {:.2} times that without over all gaps{of_rounds}",
        p99.unwrap_or_default()
    ));
    report.set(
        load,
        json!({
            "off": off.json(), "on": on.json(), "p50_ratio": ratio(on.p50_ms, off.p50_ms),
            "p99_ratio": p99, "p99_ratio_rounds": rounds.map(|rounds| rounds.json()),
            "tokens_per_s_off": milli(speeds[0]), "tokens_per_s_on": milli(speeds[1]),
            "train_share": milli(share), "versions": versions,
        }),
    );
}

/// Users of one server.
struct Talkers<'a> {
    client: &'a Client,
    wire: &'a Wire,
    grammar: Grammar,
    /// Sessions begun.
    number: AtomicU64,
}

impl Talkers<'_> {
    async fn pause(&self, paused: bool) -> Result<(), String> {
        let done = self.client.pause_training(paused).await;
        done.map_err(|error| format!("training could not be paused or resumed: {error:#}"))
    }

    /// Talks until something was learned, and leaves training paused. Returns the versions published.
    async fn warm_up(&self) -> Result<u64, String> {
        self.pause(false).await?;
        for _ in 0..WARM_UPS_MAX {
            self.talk(Load::Saturated, WARM_UP).await?;
            if versions(&self.wire.status().await?) > 0 {
                break;
            }
        }
        self.at_rest().await.map(|status| versions(&status))
    }

    /// Talk with training paused and running, in turn, each for `time` altogether; `load` is that of a round.
    async fn both(&self, load: impl Fn(u64) -> Load, time: Duration) -> Result<[Phase; 2], String> {
        let mut phases = [Phase::default(), Phase::default()];
        for round in 0..ROUNDS {
            let load = load(u64::from(round));
            // Neither of the two is always the first.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for at in order {
                self.pause(at == 0).await?;
                self.phase(load, time / ROUNDS, &mut phases[at]).await?;
            }
        }
        Ok(phases)
    }

    /// Lets people talk and adds what came of it.
    async fn phase(&self, load: Load, time: Duration, phase: &mut Phase) -> Result<(), String> {
        let (before, began) = (self.wire.status().await?, Instant::now());
        let number = self.number.load(Ordering::Relaxed);
        let (gaps_ms, left_out) = self.talk(load, time).await?;
        phase.gaps_ms.push(gaps_ms);
        phase.left_out += left_out;
        phase.sessions += self.number.load(Ordering::Relaxed) - number;
        phase.time += began.elapsed();
        phase.tokens += tokens(&self.wire.status().await?).saturating_sub(tokens(&before));
        let after = self.at_rest().await?;
        phase.work_ms += work_ms(&after) - work_ms(&before);
        phase.versions += versions(&after).saturating_sub(versions(&before));
        Ok(())
    }

    /// Ends training's step; what it worked is known only then.
    async fn at_rest(&self) -> Result<Value, String> {
        self.pause(true).await?;
        let until = Instant::now() + Duration::from_millis(STOP_MS);
        loop {
            let status = self.wire.status().await?;
            if effects(&status) == 0 || Instant::now() >= until {
                return Ok(status);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// All gaps between pieces of text, and sessions that were left out.
    async fn talk(&self, load: Load, time: Duration) -> Result<(Vec<f64>, u64), String> {
        match load {
            Load::Saturated => Ok((self.saturated(time).await?, 0)),
            Load::Open { per_s, round } => self.open((per_s, round), time).await,
        }
    }

    async fn saturated(&self, time: Duration) -> Result<Vec<f64>, String> {
        let until = Instant::now() + time;
        let users = (0..USERS).map(async |_| {
            let mut gaps_ms = Vec::new();
            while Instant::now() < until {
                gaps_ms.extend(self.session(until).await?);
            }
            Ok::<_, String>(gaps_ms)
        });
        Ok(try_join_all(users).await?.concat())
    }

    /// Sessions with exponential pauses between their beginnings.
    async fn open(
        &self,
        (per_s, round): (f64, u64),
        time: Duration,
    ) -> Result<(Vec<f64>, u64), String> {
        let (began, until) = (Instant::now(), Instant::now() + time);
        let mut rng = Rng::at(OPEN_MAX as u64, round);
        let (mut gaps_ms, mut left_out, mut due) = (Vec::new(), 0, Duration::ZERO);
        let mut under_way = FuturesUnordered::new();
        while due < time || !under_way.is_empty() {
            let next = tokio::time::sleep(due.saturating_sub(began.elapsed()));
            tokio::select! {
                () = next, if due < time => {
                    due += Duration::from_secs_f64(-(1.0 - rng.unit()).ln() / per_s.max(1e-3));
                    match under_way.len() < OPEN_MAX {
                        true => under_way.push(self.session(until)),
                        false => left_out += 1,
                    }
                }
                Some(gaps) = under_way.next() => gaps_ms.extend(gaps?),
            }
        }
        Ok((gaps_ms, left_out))
    }

    /// One session, cut short where the time is over.
    async fn session(&self, until: Instant) -> Result<Vec<f64>, String> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let key = format!("bench-{number}");
        let mut rng = Rng::at(USERS, number);
        let (mut messages, mut gaps_ms): (Vec<Value>, _) = (Vec::new(), Vec::new());
        for turn in 0..2 * QUESTIONS {
            if Instant::now() >= until {
                break;
            }
            let says = if turn % 2 == 0 {
                let fact = FactId(rng.below(self.grammar.facts().len()));
                self.grammar.question(fact, &mut rng).text
            } else {
                SAYS[rng.below(SAYS.len())].to_owned()
            };
            messages.push(json!({ "role": "user", "content": says }));
            let chat = Chat {
                user: SCOPE,
                messages: &messages,
                session: Some(&key),
                store: true,
                seed: rng.below(1 << 30) as u64,
            };
            let answer = self.client.chat(&chat).await;
            let answer = answer.map_err(|error| format!("{error:#}"))?;
            gaps_ms.extend(answer.gaps_ms);
            messages.push(json!({ "role": "assistant", "content": answer.text }));
        }
        Ok(gaps_ms)
    }
}

/// Work of training steps that ended; 0 before the first look at the ledger.
fn work_ms(status: &Value) -> f64 {
    let number = &status["loops"]["train"]["numbers"]["train_work_ms_total"];
    number.as_f64().unwrap_or_default()
}

/// Tokens that the engine decoded.
fn tokens(status: &Value) -> u64 {
    let tokens = &status["engine"]["completion_tokens_total"];
    tokens.as_u64().unwrap_or_default()
}

/// What training has under way.
fn effects(status: &Value) -> u64 {
    let under_way = &status["loops"]["train"]["effects_in_flight"];
    under_way.as_u64().unwrap_or_default()
}

fn versions(status: &Value) -> u64 {
    status["ledger"]["versions"].as_u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_training_counts_as_none() {
        let trained = json!({
            "loops": { "train": {
                "numbers": { "train_work_ms_total": 12.5 }, "effects_in_flight": 1,
            } },
            "ledger": { "versions": 3 },
            "engine": { "completion_tokens_total": 40 },
        });
        assert_eq!((work_ms(&trained), versions(&trained)), (12.5, 3));
        assert_eq!((effects(&trained), tokens(&trained)), (1, 40));
        let not = json!({ "loops": {}, "ledger": null, "engine": null });
        assert_eq!((work_ms(&not), versions(&not)), (0.0, 0));
        assert_eq!((effects(&not), tokens(&not)), (0, 0));
    }
}
