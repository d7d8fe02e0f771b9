//! A mechanism test on the built-in model: how many sessions a user needs until the model answers as
//! that user likes it, per method. Users, judge and the built-in model's training text share phrases
//! (see `demo/taste.rs`), so the numbers compare methods and say nothing about real people or other
//! models; `bench/people` measures those.
//!
//! The personalisation protocol of OpenClaw-RL (arXiv 2603.10165, version 2), scaled to the built-in
//! model: simulated users, each with a preference the server is never told, hold sessions over HTTP
//! with the live server. What they prefer follows from the untaught model alone (`wanted.rs`). The
//! first answer of a session counts. A user has adapted the model with the session in which three
//! first answers in a row are to its liking; then it goes on to the last session. Time between
//! sessions is as long as the loops need for what was said (people take longer), so that sessions
//! are counted and not seconds.

mod arms;
mod correction;
mod curve;
mod protocol;
pub(super) mod talker;
mod wanted;

use serde_json::{Value, json};

use super::Bench;
use super::report::{Report, milli};
use crate::demo::numbers::Interval;
use arms::Arm;
use curve::Curve;

/// Sessions per user, and seeds, unless the command line says otherwise.
const SESSIONS: usize = 72;
const SEEDS: u64 = 5;
/// The session after which the share of liking first answers is reported.
const HELD_FROM: usize = 14;

/// What the command line says.
#[derive(Clone, Debug)]
pub(super) struct Size {
    seeds: u64,
    sessions: usize,
    arms: Vec<String>,
}

impl Size {
    pub(super) fn of(seeds: Option<u64>, sessions: Option<usize>, arms: Vec<String>) -> Self {
        Self {
            arms,
            seeds: seeds.unwrap_or(SEEDS),
            sessions: sessions.unwrap_or(SESSIONS),
        }
    }
}

impl Size {
    /// How many seeds.
    pub(super) fn seeds(&self) -> u64 {
        self.seeds
    }

    /// The arms that were named, or all.
    fn arms(&self) -> Result<Vec<Arm>, String> {
        let names = || Arm::ALL.map(Arm::name).join(", ");
        let arm = |name: &String| {
            let found = Arm::ALL.into_iter().find(|arm| arm.name() == name);
            found.ok_or_else(|| format!("{name:?} is not an arm; there are {}", names()))
        };
        match self.arms.is_empty() {
            true => Ok(Arm::ALL.to_vec()),
            false => self.arms.iter().map(arm).collect(),
        }
    }
}

/// `hone-bench learn`.
pub(super) fn learn(bench: &Bench, size: &Size) -> Result<Report, String> {
    let arms = size.arms()?;
    bench.runtime.block_on(async {
        let title = format!(
            "learn: mechanism test on the built-in model: sessions until three first answers in a row are as liked, {} seeds, {} sessions",
            size.seeds, size.sessions
        );
        let head = [
            "arm",
            "sessions",
            "95 % low",
            "high",
            "adapted",
            "liked late",
            "golden change",
            "versions",
            "refused",
        ];
        let mut report = Report::new(title, &head);
        let mut objects = serde_json::Map::new();
        let tried = wanted::measure(bench).await?;
        let pairs = wanted::chosen(&tried)?;
        print!("{}", wanted::report(&tried, &pairs).table());
        objects.insert("preferences".to_owned(), wanted::object(&tried, &pairs));
        for arm in arms {
            let mut curves = Vec::new();
            for seed in 1..=size.seeds {
                let curve = protocol::run(bench, (arm, pairs), (seed, size.sessions)).await?;
                report.failed += curve.iter().map(|c| c.failed).sum::<u64>();
                // A seed takes minutes.
                println!("  {:<14} {} seed {seed}: {}", "", curve::plot(&curve), Summary::of(&curve));
                curves.extend(curve);
            }
            row(&mut report, arm, &curves);
            println!("  {:<14} {} {}", arm.name(), curve::plot(&curves), Summary::of(&curves));
            objects.insert(arm.name().to_owned(), object(&curves));
        }
        for batch in [1, 16].into_iter().filter(|_| size.arms.is_empty()) {
            let live = correction::measure(bench, batch).await?;
            report.failed += live.failed;
            report.note(live.sentence());
            objects.insert(format!("correction_batch_{batch}"), live.json());
        }
        for (name, object) in objects {
            report.set(&name, object);
        }
        Ok(report)
    })
}

fn row(report: &mut Report, arm: Arm, curves: &[Curve]) {
    let s = Summary::of(curves);
    report.row([
        arm.name().to_owned(),
        format!("{:.1}", s.sessions.mean),
        format!("{:.1}", s.sessions.low),
        format!("{:.1}", s.sessions.high),
        format!("{:.0} %", s.adapted * 100.0),
        format!("{:.0} %", s.late * 100.0),
        format!("{:+.1} %", s.golden * 100.0),
        format!("{:.0}", s.versions),
        format!("{:.0}", s.refused),
    ]);
}

/// Means over users and seeds.
struct Summary {
    /// Of those that did not adapt, the number of sessions stands.
    sessions: Interval,
    adapted: f64,
    late: f64,
    golden: f64,
    versions: f64,
    refused: f64,
}

impl Summary {
    fn of(curves: &[Curve]) -> Self {
        let n = curves.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Curve) -> f64| curves.iter().map(of).sum::<f64>() / n;
        let sessions: Vec<f64> = curves
            .iter()
            .map(|c| c.adapted_at().unwrap_or(c.liked.len()) as f64)
            .collect();
        Self {
            sessions: Interval::of(&sessions),
            adapted: mean(&|c| f64::from(u8::from(c.adapted_at().is_some()))),
            late: mean(&|c| c.share_from(HELD_FROM)),
            golden: mean(&|c| c.golden_after - c.golden_before),
            versions: mean(&|c| c.versions as f64),
            refused: mean(&|c| c.refused as f64),
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.1} sessions, {:.0} % liked late, golden {:+.1} %",
            self.sessions.mean,
            self.late * 100.0,
            self.golden * 100.0
        )
    }
}

fn object(curves: &[Curve]) -> Value {
    let s = Summary::of(curves);
    let each = curves.iter().map(|c| {
        json!({
            "user": c.user,
            "seed": c.seed,
            "adapted_at": c.adapted_at(),
            "liked": c.liked.iter().map(|l| u8::from(*l)).collect::<Vec<_>>(),
            "golden_before": milli(c.golden_before),
            "golden_after": milli(c.golden_after),
        })
    });
    json!({
        "sessions_mean": milli(s.sessions.mean),
        "sessions_low": milli(s.sessions.low),
        "sessions_high": milli(s.sessions.high),
        "adapted_share": milli(s.adapted),
        "liked_late_share": milli(s.late),
        "golden_change": milli(s.golden),
        "versions_mean": milli(s.versions),
        "refused_mean": milli(s.refused),
        "users": each.collect::<Vec<_>>(),
    })
}
