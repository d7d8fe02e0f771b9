//! The loops as they ship against the same loops in lockstep.
//!
//! In lockstep a batch of completions is asked for together, all of them and all of their votes are
//! waited for, a version is trained and published, and then comes the next batch. Apart, as many
//! completions are under way all the time and nothing waits for anything, but that no more turns are
//! begun than can be trained before they are stale (AReaL, arXiv 2505.24298, equation 3). Server,
//! model, questions, lengths of completions, speed of votes and the number of completions under way
//! are the same; the lengths have a long tail, and votes are slow.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use hone_starter::grammar::{FactId, Grammar};
use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::Bench;
use super::learn::Size;
use super::report::{Report, milli, ratio};
use super::stale::normal;
use super::votes::Votes;
use super::wire::Wire;
use crate::demo::numbers::Interval;
use crate::demo::taste::Taste;
use hone::config::Config;

/// Turns of a batch, and completions under way.
const BATCH: usize = 16;
/// Batches in lockstep; apart, as many turns are trained.
const BATCHES: usize = 10;
/// Tokens of a completion: log-normal.
const TOKENS_MEDIAN: f64 = 32.0;
const TOKENS_SPREAD: f64 = 1.0;
const TOKENS_MAX: f64 = 512.0;
/// Times of a vote: log-normal, each of these medians in a run of its own. A model that reasons
/// before it grades takes seconds.
const VOTE_MEDIANS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];
const VOTE_SPREAD: f64 = 0.6;
/// What users like.
const TASTE: Taste = Taste::Greeted;
/// Held-out questions, before and after.
const HELD_OUT: usize = 64;
/// Longest wait for one batch, and how often it is looked.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(10);

/// How the loops go together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Lockstep,
    Apart,
}

/// What one run came to.
#[derive(Clone, Copy, Default)]
struct Run {
    trained: u64,
    seconds: f64,
    versions: u64,
    refused: u64,
    dropped: u64,
    reward_before: f64,
    reward_after: f64,
    failed: u64,
}

impl Run {
    fn per_second(&self) -> f64 {
        self.trained as f64 / self.seconds
    }
}

/// `hone-bench pace`.
pub(super) fn pace(bench: &Bench, size: &Size) -> Result<Report, String> {
    let title = format!("pace: {BATCH} completions under way, {BATCHES} batches");
    let head = [
        "loops",
        "vote, median s",
        "trained turns/s",
        "trained",
        "seconds",
        "versions",
        "refused",
        "dropped",
        "reward before",
        "after",
    ];
    let mut report = Report::new(title, &head);
    for median in VOTE_MEDIANS {
        let (mut lockstep, mut apart) = (Vec::new(), Vec::new());
        for seed in 1..=size.seeds() {
            let case = |pace| Case { pace, seed, median };
            let first = case(Pace::Lockstep).run(bench, BATCH * BATCHES)?;
            let as_many = first.trained as usize;
            if as_many == 0 {
                return Err("nothing was trained in lockstep".to_owned());
            }
            lockstep.push(first);
            apart.push(case(Pace::Apart).run(bench, as_many)?);
        }
        for (name, runs) in [("lockstep", &lockstep), ("apart", &apart)] {
            tell(&mut report, (name, median), runs);
        }
        compare(&mut report, median, (&lockstep, &apart));
    }
    Ok(report)
}

/// How many times as fast, and whether what was learned is as good.
fn compare(report: &mut Report, median: Duration, (lockstep, apart): (&[Run], &[Run])) {
    let pairs = || lockstep.iter().zip(apart);
    let ratios: Vec<f64> = pairs()
        .filter_map(|(lockstep, apart)| ratio(apart.per_second(), lockstep.per_second()))
        .collect();
    let rewards: Vec<f64> = pairs()
        .map(|(lockstep, apart)| apart.reward_after - lockstep.reward_after)
        .collect();
    let (speed, reward) = (Interval::of(&ratios), Interval::of(&rewards));
    let seconds = median.as_secs_f64();
    report.note(format!(
        "votes of {seconds} s: apart trains {:.2} times as many turns a second (95 % interval {:.2} \
         to {:.2}), reward after as many turns {:+.2} ({:+.2} to {:+.2})",
        speed.mean, speed.low, speed.high, reward.mean, reward.low, reward.high
    ));
    report.set(
        &format!("ratio_{}ms", median.as_millis()),
        json!({
            "mean": milli(speed.mean), "low": milli(speed.low), "high": milli(speed.high),
            "reward_mean": milli(reward.mean), "reward_low": milli(reward.low),
            "reward_high": milli(reward.high),
        }),
    );
}

fn tell(report: &mut Report, (name, median): (&str, Duration), runs: &[Run]) {
    let n = runs.len().max(1) as f64;
    let mean = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / n;
    let cells = [
        mean(&Run::per_second),
        mean(&|r| r.trained as f64),
        mean(&|r| r.seconds),
        mean(&|r| r.versions as f64),
        mean(&|r| r.refused as f64),
        mean(&|r| r.dropped as f64),
        mean(&|r| r.reward_before),
        mean(&|r| r.reward_after),
    ];
    let [
        rate,
        trained,
        seconds,
        versions,
        refused,
        dropped,
        before,
        after,
    ] = cells;
    report.row([
        name.to_owned(),
        format!("{}", median.as_secs_f64()),
        format!("{rate:.2}"),
        format!("{trained:.0}"),
        format!("{seconds:.1}"),
        format!("{versions:.1}"),
        format!("{refused:.1}"),
        format!("{dropped:.0}"),
        format!("{before:.2}"),
        format!("{after:.2}"),
    ]);
    report.failed += runs.iter().map(|r| r.failed).sum::<u64>();
    report.set(
        &format!("{name}_{}ms", median.as_millis()),
        json!({
            "trained_turns_per_s": milli(rate), "trained": milli(trained),
            "seconds": milli(seconds), "versions": milli(versions), "refused": milli(refused),
            "dropped": milli(dropped), "reward_before": milli(before), "reward_after": milli(after),
        }),
    );
}

/// One run: how the loops go together, which questions, how slow votes are.
#[derive(Clone, Copy)]
struct Case {
    pace: Pace,
    seed: u64,
    median: Duration,
}

impl Case {
    fn run(self, bench: &Bench, turns: usize) -> Result<Run, String> {
        bench.runtime.block_on(self.app(bench, turns))
    }

    /// One server from its base model on.
    async fn app(self, bench: &Bench, turns: usize) -> Result<Run, String> {
        let said = TASTE.praises().iter().map(|text| (*text).to_owned());
        let votes = Votes::start((self.median, VOTE_SPREAD), self.seed, said.collect()).await?;
        let config = configured(&bench.config, &votes.url)?;
        let begun_max = (config.train.staleness_max_versions as usize + 1) * BATCH;
        let run = async |url: &str| {
            let wire = Wire::new(url)?;
            let users = Users::new(&wire, (self.seed, begun_max)).await?;
            users.run(self.pace, turns).await
        };
        bench.app(config, run).await
    }
}

/// As it ships, but for the judge, and with whole batches only, so that both paces train equal ones.
fn configured(config: &Config, url: &str) -> Result<Config, String> {
    let judge = format!(
        "[judge.model]\nkind = \"endpoint\"\nurl = \"{url}\"\nname = \"slow\"\n\
         votes_in_flight_max = 256\n"
    );
    let config = config.with((&judge, "the judge of this measurement"));
    let mut config = config.map_err(|error| error.to_string())?;
    config.train.batch_turns = BATCH;
    config.train.batch_turns_min = BATCH;
    config.train.drain_deadline_ms = 2_000;
    // Completions are cut where their length is drawn to end; the watch would call that broken.
    config.train.watch.enabled = false;
    Ok(config)
}

/// Everybody who talks.
struct Users<'a> {
    wire: &'a Wire,
    model: String,
    grammar: Grammar,
    seed: u64,
    /// Most turns that are begun and not trained or settled yet, apart.
    begun_max: usize,
    failed: AtomicU64,
}

impl<'a> Users<'a> {
    async fn new(wire: &'a Wire, (seed, begun_max): (u64, usize)) -> Result<Self, String> {
        wire.ready().await?;
        let models = wire.models().await?;
        let model = models["data"][0]["id"].as_str();
        Ok(Self {
            wire,
            model: model.ok_or("the server lists no model")?.to_owned(),
            grammar: Grammar::new(),
            seed,
            begun_max,
            failed: AtomicU64::new(0),
        })
    }

    async fn run(&self, pace: Pace, turns: usize) -> Result<Run, String> {
        let reward_before = self.reward().await;
        let began = Instant::now();
        match pace {
            Pace::Lockstep => self.lockstep(turns).await?,
            Pace::Apart => self.apart(turns).await?,
        }
        let seconds = began.elapsed().as_secs_f64();
        let ledger = self.wire.status().await?["ledger"].clone();
        let number = |key: &str| ledger[key].as_u64().unwrap_or_default();
        Ok(Run {
            trained: number("trained"),
            seconds,
            versions: number("versions"),
            refused: number("refused"),
            dropped: settled(&ledger, "queue_dropped") + settled(&ledger, "stale"),
            reward_before,
            reward_after: self.reward().await,
            failed: self.failed.load(Ordering::Relaxed),
        })
    }

    /// Batch after batch, each when all of the one before is judged and trained or settled.
    async fn lockstep(&self, turns: usize) -> Result<(), String> {
        for first in (0..turns).step_by(BATCH) {
            join_all((first..first + BATCH).map(|number| self.exchange(number))).await;
            self.until(|ledger| pending(ledger) == 0).await?;
        }
        Ok(())
    }

    /// The same number of completions under way, where no more turns wait than may, until as many
    /// are trained.
    async fn apart(&self, turns: usize) -> Result<(), String> {
        let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let (under_way, waiting) = (AtomicU64::new(0), AtomicU64::new(0));
        let begun = || under_way.load(Ordering::Relaxed) + waiting.load(Ordering::Relaxed);
        let talk = || async {
            while !over.load(Ordering::Relaxed) {
                if begun() >= self.begun_max as u64 {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
                under_way.fetch_add(1, Ordering::Relaxed);
                let number = next.fetch_add(1, Ordering::Relaxed);
                self.exchange(number as usize).await;
                // Until the next look it waits without being counted there.
                waiting.fetch_add(1, Ordering::Relaxed);
                under_way.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let talkers = join_all((0..BATCH).map(|_| talk()));
        let watch = async {
            let trained = |ledger: &Value| {
                waiting.store(pending(ledger), Ordering::Relaxed);
                ledger["trained"].as_u64().unwrap_or_default() >= turns as u64
            };
            let done = self.until(trained).await;
            over.store(true, Ordering::Relaxed);
            done
        };
        tokio::pin!(talkers);
        tokio::select! {
            done = watch => done,
            _ = &mut talkers => Ok(()),
        }
    }

    async fn until(&self, done: impl Fn(&Value) -> bool) -> Result<(), String> {
        let (mut began, mut before) = (Instant::now(), Value::Null);
        loop {
            let ledger = self.wire.status().await?["ledger"].clone();
            if done(&ledger) {
                return Ok(());
            }
            if ledger["trained"] != before {
                (began, before) = (Instant::now(), ledger["trained"].clone());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("nothing was trained for two minutes: {ledger}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A question, a completion of its length, and what the user says about it.
    async fn exchange(&self, number: usize) {
        let mut rng = Rng::at(self.seed, number as u64);
        let fact = FactId(rng.below(self.grammar.facts().len()));
        let question = self.grammar.question(fact, &mut rng).text;
        let tokens = TOKENS_MEDIAN * (TOKENS_SPREAD * normal(&mut rng)).exp();
        let mut body = json!({
            "model": self.model, "user": "bench", "temperature": 1.0,
            "seed": rng.below(1 << 30), "ignore_eos": true,
            "session_id": format!("{}-{number}", self.seed),
            "max_tokens": tokens.clamp(8.0, TOKENS_MAX) as u64,
            "messages": [{ "role": "user", "content": question }],
        });
        let Some(said) = self.ask(&body).await else {
            return;
        };
        let says = if TASTE.likes(&said) {
            TASTE.praises()
        } else {
            TASTE.complaints()
        };
        body["messages"] = json!([
            { "role": "user", "content": question },
            { "role": "assistant", "content": said },
            { "role": "user", "content": says[rng.below(says.len())] },
        ]);
        body["max_tokens"] = json!(1);
        self.ask(&body).await;
    }

    /// The share of held-out questions answered as users like it; nothing of this is stored.
    async fn reward(&self) -> f64 {
        let questions = self.grammar.held_out_questions(self.seed, HELD_OUT);
        let mut liked = 0;
        for (i, question) in questions.iter().enumerate() {
            let body = json!({
                "model": self.model, "user": "bench", "temperature": 1.0, "seed": i,
                "max_tokens": 160, "store": false,
                "messages": [{ "role": "user", "content": question.text }],
            });
            let answer = self.ask(&body).await.unwrap_or_default();
            liked += usize::from(TASTE.likes(&answer));
        }
        liked as f64 / questions.len().max(1) as f64
    }

    async fn ask(&self, body: &Value) -> Option<String> {
        match self.wire.post("/v1/chat/completions", body).await {
            Ok(reply) => {
                let text = reply["choices"][0]["message"]["content"].as_str();
                Some(text.unwrap_or_default().to_owned())
            }
            Err(error) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("a request failed: {error}");
                None
            }
        }
    }
}

/// Turns that wait for their next state's verdict or for training.
fn pending(ledger: &Value) -> u64 {
    let stages = ledger["pending"].as_array().into_iter().flatten();
    let waits = |stage: &&Value| {
        let name = stage[0].as_str().unwrap_or_default();
        matches!(name, "awaiting_verdict" | "awaiting_training")
    };
    let count = |stage: &Value| stage[1].as_u64().unwrap_or_default();
    stages.filter(waits).map(count).sum()
}

fn settled(ledger: &Value, reason: &str) -> u64 {
    let reasons = ledger["settled"].as_array().into_iter().flatten();
    let mut counts = reasons.filter(|r| r[0] == reason);
    counts
        .next()
        .and_then(|r| r[1].as_u64())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_and_what_was_dropped_is_read_off_the_status() {
        let ledger = json!({
            "pending": [["awaiting_next_state", 5], ["awaiting_verdict", 2], ["awaiting_training", 3]],
            "settled": [["queue_dropped", 4], ["held_out", 1]],
        });
        assert_eq!(pending(&ledger), 5);
        assert_eq!(
            (settled(&ledger, "queue_dropped"), settled(&ledger, "stale")),
            (4, 0)
        );
        assert_eq!(pending(&json!({})), 0);
    }
}
