//! The loops as they ship against the same loops in lockstep.
//!
//! In lockstep a batch of completions is asked for together, all of them and all of their votes are
//! waited for, a version is trained and published, and then comes the next batch. Apart, nothing waits
//! for anything, as long as no more turns are begun than can still be trained before they are stale
//! (AReaL's rule, arXiv 2505.24298, equation 3). A crowd begins as many as it can: traffic cannot be
//! throttled, and what is too much of it takes the machine from training. House, model, questions,
//! lengths of completions, speed of votes and the most completions under way are the same; the lengths
//! have a long tail.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
use crate::config::Config;
use crate::demo::taste::Taste;
use crate::house::House;

/// Turns of a batch, and completions under way.
const BATCH: usize = 16;
/// Batches in lockstep; apart, as many turns are trained.
const BATCHES: usize = 8;
/// Most turns that are begun in one run.
const TURNS_MAX: usize = 100_000;
/// Tokens of a completion: log-normal.
const TOKENS_MEDIAN: f64 = 32.0;
const TOKENS_SPREAD: f64 = 1.0;
const TOKENS_MAX: f64 = 512.0;
/// Time of a vote: log-normal, of these medians.
const VOTES_MS: [u64; 2] = [250, 1_000];
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
    Crowd,
}

impl Pace {
    const ALL: [Self; 3] = [Self::Lockstep, Self::Apart, Self::Crowd];

    fn name(self) -> &'static str {
        match self {
            Self::Lockstep => "lockstep",
            Self::Apart => "apart",
            Self::Crowd => "crowd",
        }
    }
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

/// `hone bench pace`.
pub(super) fn pace(bench: &Bench, size: &Size) -> Result<Report, String> {
    let title = format!(
        "pace: at most {BATCH} completions under way, {BATCHES} batches, {} seeds",
        size.seeds()
    );
    let head = [
        "loops",
        "vote ms",
        "trained turns/s",
        "times lockstep",
        "trained",
        "seconds",
        "versions",
        "refused",
        "dropped",
        "reward before",
        "after",
    ];
    let mut report = Report::new(title, &head);
    for vote_ms in VOTES_MS {
        let mut runs: [Vec<Run>; 3] = Default::default();
        for seed in 1..=size.seeds() {
            let mut turns = BATCH * BATCHES;
            for (pace, runs) in Pace::ALL.into_iter().zip(&mut runs) {
                let votes = Duration::from_millis(vote_ms);
                let one = run(bench, (pace, seed, votes), turns);
                let one = bench.runtime.block_on(one)?;
                if one.trained == 0 {
                    return Err(format!("nothing was trained in {}", pace.name()));
                }
                // Of the turns in lockstep some were held out; the others train as many.
                turns = turns.min(one.trained as usize);
                runs.push(one);
            }
        }
        for (pace, of) in Pace::ALL.into_iter().zip(&runs) {
            let pairs = of.iter().zip(&runs[0]);
            let ratios = pairs.filter_map(|(a, b)| ratio(a.per_second(), b.per_second()));
            tell(
                &mut report,
                (pace, vote_ms),
                (of.as_slice(), ratios.collect()),
            );
        }
    }
    Ok(report)
}

fn tell(report: &mut Report, (pace, vote_ms): (Pace, u64), (runs, ratios): (&[Run], Vec<f64>)) {
    let n = runs.len().max(1) as f64;
    let mean = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / n;
    let times = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
    let (rate, trained) = (mean(&Run::per_second), mean(&|r| r.trained as f64));
    let (seconds, versions) = (mean(&|r| r.seconds), mean(&|r| r.versions as f64));
    let (refused, dropped) = (mean(&|r| r.refused as f64), mean(&|r| r.dropped as f64));
    let (before, after) = (mean(&|r| r.reward_before), mean(&|r| r.reward_after));
    report.row([
        pace.name().to_owned(),
        vote_ms.to_string(),
        format!("{rate:.2}"),
        format!("{times:.2}"),
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
        &format!("{}_{vote_ms}", pace.name()),
        json!({
            "trained_turns_per_s": milli(rate), "trained": milli(trained),
            "times_lockstep": ratios.into_iter().map(milli).collect::<Value>(),
            "seconds": milli(seconds), "versions": milli(versions), "refused": milli(refused),
            "dropped": milli(dropped), "reward_before": milli(before), "reward_after": milli(after),
        }),
    );
}

/// One house from its base model on.
async fn run(
    bench: &Bench,
    (pace, seed, votes): (Pace, u64, Duration),
    turns: usize,
) -> Result<Run, String> {
    let folder = bench.folder()?;
    let said = TASTE.praises().iter().map(|text| (*text).to_owned());
    let votes = Votes::start((votes, VOTE_SPREAD), seed, said.collect()).await?;
    let mut config = configured(&bench.config, &votes.url)?;
    config.store.data_dir = folder.text();
    let most = (config.train.staleness_max_versions as usize + 1) * BATCH;
    let house = House::start(config).await?;
    let wire = Wire::new(&format!("http://{}", house.addr))?;
    let users = Users::new(&wire, seed).await;
    let outcome = match &users {
        Ok(users) => users.run(pace, (turns, most)).await,
        Err(error) => Err(error.clone()),
    };
    house.stop().await;
    outcome
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
    failed: AtomicU64,
}

impl<'a> Users<'a> {
    async fn new(wire: &'a Wire, seed: u64) -> Result<Self, String> {
        wire.ready().await?;
        let models = wire.models().await?;
        let model = models["data"][0]["id"].as_str();
        Ok(Self {
            wire,
            model: model.ok_or("the server lists no model")?.to_owned(),
            grammar: Grammar::new(),
            seed,
            failed: AtomicU64::new(0),
        })
    }

    async fn run(&self, pace: Pace, (turns, most): (usize, usize)) -> Result<Run, String> {
        let reward_before = self.reward().await;
        let began = Instant::now();
        match pace {
            Pace::Lockstep => self.lockstep(turns).await?,
            Pace::Apart => self.apart((turns, most)).await?,
            Pace::Crowd => self.apart((turns, usize::MAX)).await?,
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

    /// As many completions under way until so many turns are trained, with at most `most` begun and
    /// neither trained nor settled.
    async fn apart(&self, (turns, most): (usize, usize)) -> Result<(), String> {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let talk = || async {
            while next.load(Ordering::Relaxed) < TURNS_MAX {
                let number = next.load(Ordering::Relaxed);
                if number >= most.saturating_add(done.load(Ordering::Relaxed)) {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
                self.exchange(next.fetch_add(1, Ordering::Relaxed)).await;
            }
        };
        let watch = self.until(|ledger| {
            done.store(finished(ledger) as usize, Ordering::Relaxed);
            ledger["trained"].as_u64().unwrap_or_default() >= turns as u64
        });
        tokio::select! {
            watched = watch => watched,
            _ = join_all((0..BATCH).map(|_| talk())) => Ok(()),
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

/// Turns that were trained or settled.
fn finished(ledger: &Value) -> u64 {
    let reasons = ledger["settled"].as_array().into_iter().flatten();
    let counts = reasons.filter_map(|reason| reason[1].as_u64());
    counts.sum::<u64>() + ledger["trained"].as_u64().unwrap_or_default()
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
            "trained": 6,
        });
        assert_eq!(finished(&ledger), 11);
        assert_eq!(pending(&ledger), 5);
        assert_eq!(
            (settled(&ledger, "queue_dropped"), settled(&ledger, "stale")),
            (4, 0)
        );
        assert_eq!(pending(&json!({})), 0);
    }
}
