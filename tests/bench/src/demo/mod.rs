//! `hone-bench demo`: simulated users talk to a server over plain HTTP and do nothing but talk.
//!
//! Every user has a taste the server is not told. Half of the users are learned from; each has a
//! twin with the same taste, the same questions and the same words whose turns are not stored, so
//! nothing can be learned from it. A score is the share of held-out questions that are answered
//! correctly *and* to the user's taste.
//!
//! With the built-in model this is a mechanism test. The users' wishes and complaints, the judge's
//! rules and the text that the built-in model was trained on share phrases (`taste.rs` says which), so
//! it shows that the loop works and not how well real people are understood. `hone-bench learn --model`
//! measures that, with words that stand in none of them.

pub(crate) mod client;
pub(crate) mod numbers;
pub(crate) mod plot;
mod real;
pub(crate) mod server;
mod show;
mod talk;
pub(crate) mod taste;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use client::Client;
use numbers::{Interval, Percentiles};
use show::Show;
use talk::{Arm, Tally, User};
use taste::Taste;

use hone::client::Trust;

/// What the demo does.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// First seed of the users' words and the server's sampling.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run this many seeds, one after another, and report the interval over them.
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// Seconds of conversation with learning on, per seed.
    #[arg(long, default_value_t = 150)]
    pub seconds: u64,
    /// Held-out questions per user, before and after.
    #[arg(long, default_value_t = 40)]
    pub questions: usize,
    /// Tastes to try, one user and one twin each (at most 4).
    #[arg(long, default_value_t = 4)]
    pub users: usize,
    /// Print the closing JSON object only.
    #[arg(long)]
    pub json: bool,
    /// A real model (a folder, a GGUF file or a hub id): one person asks it to be briefer, beside a twin
    /// that nothing is learned from. The other options are of the demo with the built-in model.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["url", "seeds"])]
    pub model: Option<String>,
    /// With `--model`: somebody else chats without a pause while the model learns.
    #[arg(long, requires = "model")]
    pub busy: bool,
    /// Talk to this server instead of starting one; its users must be new to it.
    #[arg(long)]
    pub url: Option<String>,
    /// Configuration file for the server that is started.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Whom to trust that they are the server of `url`.
    #[command(flatten)]
    pub trust: Trust,
}

/// The last line of the demo. Scores are shares in [0, 1]; gaps are milliseconds between tokens
/// as a client sees them, with training paused and with training on, under equal load.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Mean score of the learning users before.
    pub score_before: f64,
    /// And after.
    pub score_after: f64,
    /// Mean score of the twins before.
    pub control_before: f64,
    /// And after.
    pub control_after: f64,
    /// (gain − twins' gain): mean and 95 % interval over pairs of users, or over seeds.
    pub lift: Interval,
    /// Sessions held.
    pub sessions: u64,
    /// Versions published.
    pub versions: u64,
    /// Requests sent.
    pub requests: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Median token gap, training on.
    pub gap_p50_ms_on: f64,
    /// 99th percentile, training on.
    pub gap_p99_ms_on: f64,
    /// Median token gap, training paused.
    pub gap_p50_ms_off: f64,
    /// 99th percentile, training paused.
    pub gap_p99_ms_off: f64,
    /// Share of correct answers after, whatever their style: learning must not cost knowledge.
    pub correct_before: f64,
    /// The same after.
    pub correct_after: f64,
    /// Wall time.
    pub seconds: f64,
}

/// Runs the demo and prints its summary.
pub async fn run(options: Options, server: impl AsyncFn(u64) -> Result<Running>) -> Result<()> {
    if options.model.is_some() {
        let running = server(options.seed).await;
        let running = running.context("the demo's server did not start")?;
        let done = real::run(&running.url, options.json, options.busy).await;
        if let Some(stop) = running.stop {
            stop.await;
        }
        return done;
    }
    ensure!((1..=4).contains(&options.users), "--users must be 1 to 4");
    ensure!(options.seeds >= 1, "--seeds must be at least 1");
    let mut all = Vec::new();
    for seed in options.seed..options.seed + options.seeds {
        let running = match &options.url {
            Some(url) => Running {
                url: url.clone(),
                stop: None,
            },
            None => server(seed)
                .await
                .context("the demo's server did not start")?,
        };
        let summary = one(&options, seed, &running.url).await;
        if let Some(stop) = running.stop {
            stop.await;
        }
        let summary = summary?;
        if options.seeds > 1 {
            eprintln!("seed {seed}: {}", serde_json::to_string(&summary)?);
        }
        all.push(summary);
    }
    let summary = if all.len() == 1 {
        all.remove(0)
    } else {
        over_seeds(&all)
    };
    if !options.json {
        show::closing(&summary, options.seeds);
    }
    println!("{}", serde_json::to_string(&summary)?);
    ensure!(
        summary.failed == 0,
        "{} of {} requests failed",
        summary.failed,
        summary.requests
    );
    Ok(())
}

/// A server the demo talks to.
pub struct Running {
    /// Its address.
    pub url: String,
    /// Ends it.
    pub stop: Option<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>,
}

async fn one(options: &Options, seed: u64, url: &str) -> Result<Summary> {
    let began = Instant::now();
    let client = Arc::new(Client::trusting(url, &options.trust)?);
    let show = Show::new(options, seed);
    let users = users(options.users, seed);
    let before = measure(&client, &users, options, &show.phase("before")).await?;

    client.pause_training(true).await?;
    let quiet = Duration::from_secs((options.seconds / 8).max(5));
    let off = converse(&client, &users, (quiet, 1_000_000), &show).await;
    // However that went, a server of somebody else's is not left paused.
    let resumed = client.pause_training(false).await;
    let off = off?;
    resumed?;
    let on = converse(
        &client,
        &users,
        (Duration::from_secs(options.seconds), 0),
        &show,
    )
    .await?;

    let after = measure(&client, &users, options, &show.phase("after")).await?;
    let versions = client.versions().await?;
    show.finish(&on);
    for user in users.iter().filter(|user| user.arm == Arm::Learn) {
        let sentence = client.improvement(user.name()).await?;
        show.says(user.taste.name(), &sentence);
    }
    Ok(summary(
        &users,
        (&before, &after),
        (&off, &on),
        Closing {
            versions,
            counts: client.counts(),
            took: began.elapsed(),
        },
    ))
}

fn users(pairs: usize, seed: u64) -> Vec<User> {
    let tastes = Taste::ALL.into_iter().take(pairs);
    tastes
        .enumerate()
        .flat_map(|(i, taste)| {
            [Arm::Learn, Arm::Control].map(|arm| User::new(i as u64, taste, arm, seed))
        })
        .collect()
}

/// Score per user: (to taste and correct, correct).
async fn measure(
    client: &Arc<Client>,
    users: &[User],
    options: &Options,
    progress: &show::Phase,
) -> Result<Vec<Score>> {
    let mut scores = Vec::new();
    for group in users.chunks(4) {
        let asked = group
            .iter()
            .map(|user| user.score(client, options.questions, progress));
        scores.extend(futures::future::try_join_all(asked).await?);
    }
    Ok(scores)
}

/// Lets every user hold sessions until the time is over. `first` keeps the questions of two
/// phases apart.
async fn converse(
    client: &Arc<Client>,
    users: &[User],
    (time, first): (Duration, u64),
    show: &Show,
) -> Result<Tally> {
    let until = Instant::now() + time;
    let tally = Tally::new();
    let talks = users
        .iter()
        .map(|user| user.talk(client, until, first, &tally));
    let ticker = async {
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(500)).await;
            show.tick(&tally, until, client.counts());
        }
        Ok(())
    };
    tokio::try_join!(futures::future::try_join_all(talks), ticker)?;
    Ok(tally)
}

fn mean_of(scores: &[Score], users: &[User], arm: Arm) -> (f64, f64) {
    let of_arm: Vec<_> = users
        .iter()
        .zip(scores)
        .filter(|(u, _)| u.arm == arm)
        .collect();
    let n = of_arm.len().max(1) as f64;
    let sum = of_arm
        .iter()
        .fold((0.0, 0.0), |sum, (_, s)| (sum.0 + s.0, sum.1 + s.1));
    (sum.0 / n, sum.1 / n)
}

/// Shares of one user's held-out questions: (right and to taste, right).
type Score = (f64, f64);

/// What is known at the end besides scores and gaps.
struct Closing {
    versions: u64,
    counts: (u64, u64),
    took: Duration,
}

fn summary(
    users: &[User],
    (before, after): (&[Score], &[Score]),
    talks: (&Tally, &Tally),
    Closing {
        versions,
        counts: (requests, failed),
        took,
    }: Closing,
) -> Summary {
    let (off, on) = talks;
    let gains: Vec<f64> = before.iter().zip(after).map(|(b, a)| a.0 - b.0).collect();
    let pairs: Vec<f64> = gains.chunks(2).map(|pair| pair[0] - pair[1]).collect();
    let learn = (
        mean_of(before, users, Arm::Learn),
        mean_of(after, users, Arm::Learn),
    );
    let control = (
        mean_of(before, users, Arm::Control),
        mean_of(after, users, Arm::Control),
    );
    let (gaps_on, gaps_off) = (Percentiles::of(on.gaps()), Percentiles::of(off.gaps()));
    Summary {
        score_before: learn.0.0,
        score_after: learn.1.0,
        control_before: control.0.0,
        control_after: control.1.0,
        lift: Interval::of(&pairs),
        sessions: on.sessions() + off.sessions(),
        versions,
        requests,
        failed,
        gap_p50_ms_on: gaps_on.p50,
        gap_p99_ms_on: gaps_on.p99,
        gap_p50_ms_off: gaps_off.p50,
        gap_p99_ms_off: gaps_off.p99,
        correct_before: learn.0.1,
        correct_after: learn.1.1,
        seconds: took.as_secs_f64(),
    }
}

fn over_seeds(all: &[Summary]) -> Summary {
    let mean = |of: fn(&Summary) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    let sum = |of: fn(&Summary) -> u64| all.iter().map(of).sum::<u64>();
    let lifts: Vec<f64> = all
        .iter()
        .map(|s| (s.score_after - s.score_before) - (s.control_after - s.control_before))
        .collect();
    Summary {
        score_before: mean(|s| s.score_before),
        score_after: mean(|s| s.score_after),
        control_before: mean(|s| s.control_before),
        control_after: mean(|s| s.control_after),
        lift: Interval::of(&lifts),
        sessions: sum(|s| s.sessions),
        versions: sum(|s| s.versions),
        requests: sum(|s| s.requests),
        failed: sum(|s| s.failed),
        gap_p50_ms_on: mean(|s| s.gap_p50_ms_on),
        gap_p99_ms_on: mean(|s| s.gap_p99_ms_on),
        gap_p50_ms_off: mean(|s| s.gap_p50_ms_off),
        gap_p99_ms_off: mean(|s| s.gap_p99_ms_off),
        correct_before: mean(|s| s.correct_before),
        correct_after: mean(|s| s.correct_after),
        seconds: mean(|s| s.seconds) * all.len() as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn talking_ends_long_before_its_time_where_the_server_is_gone() {
        let client = Arc::new(Client::new("http://127.0.0.1:1").unwrap());
        let options = Options {
            seed: 1,
            seeds: 1,
            seconds: 3_600,
            questions: 1_000,
            users: 4,
            model: None,
            busy: false,
            json: true,
            url: None,
            config: None,
            trust: Trust::default(),
        };
        let (show, users) = (Show::new(&options, 1), users(options.users, 1));
        let patience = Duration::from_secs(20);
        let an_hour = (Duration::from_secs(options.seconds), 0);
        let talk = converse(&client, &users, an_hour, &show);
        let talked = tokio::time::timeout(patience, talk).await;
        assert!(talked.expect("it ends").is_err());
        let phase = show.phase("before");
        let asked = measure(&client, &users, &options, &phase);
        let asked = tokio::time::timeout(patience, asked).await;
        assert!(asked.expect("it ends").is_err());
        let (requests, _) = client.counts();
        assert!(requests < 40, "{requests} requests at nobody");
    }
}
