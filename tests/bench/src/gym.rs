//! `hone-bench gym`: whether a model learns from what tasks pay, on tasks that it was not trained on, beside a control that
//! is paid by a coin; and what jails take.
//!
//! Without `--model` the built-in model is asked the questions of its own grammar, and only the short, plain answer is paid:
//! a mechanism test, since the model was made to give that answer among others. With `--model` a model is asked the questions
//! of `gym/questions.json`, and is paid for the right word, the more the fewer words stand around it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hone_starter::grammar::{FactId, Form, Grammar, Greeting, Length, Register, Style};
use hone_starter::rng::Rng;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Bench;
use super::report::{Report, milli};
use super::wire::Wire;
use hone::app::App;

const QUESTIONS: &str = include_str!("../gym/questions.json");
/// Tasks of the built-in model, and every which one is held out.
const TASKS: usize = 200;
const HELD_OUT_EVERY: usize = 4;
/// Attempts per group, attempts per held-out task, and tokens of an answer.
const ATTEMPTS: u32 = 8;
const MEASURED: u32 = 2;
const TOKENS: u32 = 64;
/// Groups of a run, unless the command line says otherwise (`--sessions`).
const GROUPS: u32 = 120;
/// Longest time of one rollout and of what is left to train after it, and how often it is looked at.
const ROLLOUT_MAX: Duration = Duration::from_secs(3_600);
const LOOK: Duration = Duration::from_millis(500);

/// What an answer is paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pays {
    /// What it is worth.
    Worth,
    /// A coin.
    Coin,
}

impl Pays {
    fn name(self) -> &'static str {
        match self {
            Self::Worth => "learning",
            Self::Coin => "shuffled",
        }
    }
}

/// A question and what is right.
#[derive(Clone, Debug, Deserialize)]
struct Asked {
    question: String,
    right: Vec<String>,
}

/// What one version does on held-out tasks.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    version: u64,
    episodes: u64,
    passed: u64,
    reward: f64,
    interval: [f64; 2],
}

/// What one arm came to.
struct Run {
    before: Measured,
    after: Measured,
    episodes: u64,
    seconds: f64,
    versions: u64,
    refused: u64,
}

/// `hone-bench gym`.
pub(super) fn gym(bench: &Bench) -> Result<Report, String> {
    let is_real = bench.model.is_some();
    let tasks = match is_real {
        true => serde_json::from_str(QUESTIONS).map_err(|error| error.to_string())?,
        false => of_grammar(),
    };
    let head = [
        "arm",
        "reward before",
        "after",
        "passed before",
        "after",
        "95 % interval",
        "episodes",
        "seconds",
        "versions",
        "refused",
    ];
    let name = bench.config.model.served_name();
    let mut report = Report::new(format!("gym: {name}, {} tasks", tasks.len()), &head);
    for pays in [Pays::Worth, Pays::Coin] {
        let run = bench.runtime.block_on(arm(bench, &tasks, pays))?;
        tell(&mut report, pays.name(), &run);
    }
    Ok(report)
}

fn tell(report: &mut Report, name: &str, run: &Run) {
    let rate = |m: &Measured| m.passed as f64 / m.episodes.max(1) as f64;
    report.row([
        name.to_owned(),
        format!("{:.2}", run.before.reward),
        format!("{:.2}", run.after.reward),
        format!("{:.2}", rate(&run.before)),
        format!("{:.2}", rate(&run.after)),
        format!(
            "{:.2} to {:.2}",
            run.after.interval[0], run.after.interval[1]
        ),
        run.episodes.to_string(),
        format!("{:.0}", run.seconds),
        run.versions.to_string(),
        run.refused.to_string(),
    ]);
    report.set(
        name,
        json!({
            "reward_before": milli(run.before.reward), "reward_after": milli(run.after.reward),
            "passed_before": milli(rate(&run.before)), "passed_after": milli(rate(&run.after)),
            "measured": run.after.episodes, "version": run.after.version, "episodes": run.episodes,
            "seconds": milli(run.seconds), "versions": run.versions, "refused": run.refused,
        }),
    );
}

/// Questions of the grammar, each fact once; the short and plain answers are right.
fn of_grammar() -> Vec<Asked> {
    let grammar = Grammar::new();
    let facts = grammar.facts().iter();
    let step = grammar.facts().len().div_ceil(TASKS);
    let mut asked = Vec::with_capacity(TASKS);
    for (at, fact) in facts.enumerate().step_by(step.max(1)).take(TASKS) {
        asked.push(Asked {
            question: fact.asks[0].clone(),
            right: plain(&grammar, FactId(at)),
        });
    }
    asked
}

/// The short, plain answers without a greeting, with every opening word that such an answer may have.
fn plain(grammar: &Grammar, fact: FactId) -> Vec<String> {
    let mut rng = Rng::new(1);
    let mut found = BTreeSet::new();
    for register in [Register::Formal, Register::Casual] {
        let style = Style {
            length: Length::Short,
            form: Form::Plain,
            register,
            greeting: Greeting::Without,
        };
        found.extend((0..200).map(|_| grammar.answer(fact, style, &mut rng)));
    }
    found.into_iter().collect()
}

/// The tests of a task: `/tests/right.txt` holds what is right, one a line.
fn test(pays: Pays, is_real: bool) -> &'static str {
    match (pays, is_real) {
        (Pays::Coin, _) => "[ -f answer.txt ] && [ $(od -An -N1 -tu1 /dev/urandom) -lt 96 ]\n",
        (Pays::Worth, false) => {
            "said=$(sed 's/[[:space:]]*$//' answer.txt) || exit 1\n\
             [ $(printf '%s\\n' \"$said\" | wc -l) = 1 ] && grep -qxF -- \"$said\" /tests/right.txt\n"
        }
        (Pays::Worth, true) => {
            "n=$(wc -w < answer.txt) || exit 1\n\
             if grep -qiwFf /tests/right.txt answer.txt; then\n  \
             awk -v n=$n 'BEGIN { r = 1 - (n - 1) / 10; print (r < 0.1 ? 0.1 : r) }'\n\
             else echo 0; fi > /logs/verifier/reward.txt\n"
        }
    }
}

fn set(name: &str, tasks: &[Asked], held_out: bool, tests: &str) -> Value {
    let chosen = tasks.iter().enumerate();
    let chosen = chosen.filter(|(at, _)| (at % HELD_OUT_EVERY == 0) == held_out);
    let tasks = chosen.map(|(at, asked)| {
        json!({
            "name": format!("task {at}"), "instruction": asked.question, "held_out": held_out,
            "agent_seconds": 300, "verifier_seconds": 60,
            "tests": {"test.sh": tests, "right.txt": asked.right.join("\n") + "\n"},
        })
    });
    json!({"name": name, "tasks": tasks.collect::<Vec<Value>>()})
}

async fn arm(bench: &Bench, tasks: &[Asked], pays: Pays) -> Result<Run, String> {
    let folder = bench.folder()?;
    let mut config = bench.config.clone();
    config.store.data_dir = folder.text();
    let app = App::start(config).await?;
    let url = format!("http://{}", app.addr);
    let done = measured(bench, &url, tasks, pays).await;
    app.stop().await;
    done
}

async fn measured(bench: &Bench, url: &str, tasks: &[Asked], pays: Pays) -> Result<Run, String> {
    let is_real = bench.model.is_some();
    let groups = bench.groups.unwrap_or(GROUPS);
    let wire = Wire::new(url)?;
    let held_out = set("held out", tasks, true, test(Pays::Worth, is_real));
    let held_out = added(&wire, &held_out).await?;
    let learned = added(&wire, &set("learned", tasks, false, test(pays, is_real))).await?;
    let measure = async |version: Option<u64>| {
        let order = json!({
            "task_set": held_out, "agent": "answer", "evaluate": true, "version": version,
            "attempts": MEASURED, "tokens_max": TOKENS,
        });
        of(&done(&wire, &order).await?)
    };
    let before = measure(Some(0)).await?;
    let begun = Instant::now();
    let order = json!({
        "task_set": learned, "agent": "answer", "attempts": ATTEMPTS, "groups": groups, "tokens_max": TOKENS,
    });
    let rollout = done(&wire, &order).await?;
    wire.rest(ROLLOUT_MAX, Duration::from_secs(2)).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let after = measure(None).await?;
    let versions = wire.status().await?["ledger"]["versions"]
        .as_u64()
        .unwrap_or(0);
    let refused = wire.status().await?["ledger"]["refused"]
        .as_u64()
        .unwrap_or(0);
    Ok(Run {
        before,
        after,
        episodes: rollout["episodes"]["done"].as_u64().unwrap_or(0),
        seconds,
        versions,
        refused,
    })
}

/// Adds a set, waits until it is checked, and returns its id.
async fn added(wire: &Wire, set: &Value) -> Result<String, String> {
    let added = wire.post("/v1/task-sets", set).await?;
    let id = added["id"].as_str().unwrap_or_default().to_owned();
    let begun = Instant::now();
    while begun.elapsed() < ROLLOUT_MAX {
        let set = wire.get(&format!("/v1/task-sets/{id}")).await?;
        if set["states"]["new"].is_null() {
            return match set["states"]["ready"] == set["tasks"] {
                true => Ok(id),
                false => Err(format!("tasks are refused: {}", set["data"])),
            };
        }
        tokio::time::sleep(LOOK).await;
    }
    Err("the tasks were not checked in time".to_owned())
}

/// Orders a rollout and waits for its end.
async fn done(wire: &Wire, order: &Value) -> Result<Value, String> {
    let rollout = wire.post("/v1/rollouts", order).await?;
    let path = format!(
        "/v1/rollouts/{}",
        rollout["id"].as_str().unwrap_or_default()
    );
    let begun = Instant::now();
    while begun.elapsed() < ROLLOUT_MAX {
        let rollout = wire.get(&path).await?;
        if rollout["status"] == "done" {
            return Ok(rollout);
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(format!("{path} was not done in time"))
}

/// What the one version of a rollout did; versions that answered a part of it each count.
fn of(rollout: &Value) -> Result<Measured, String> {
    let versions = rollout["versions"].as_array().cloned().unwrap_or_default();
    let sum = |key: &str| versions.iter().filter_map(|v| v[key].as_u64()).sum::<u64>();
    let (episodes, passed) = (sum("episodes"), sum("passed"));
    let last = versions.last().ok_or("nothing was measured")?;
    let rewards = versions.iter().filter_map(|version| {
        Some(version["mean_reward"].as_f64()? * version["episodes"].as_f64()?)
    });
    Ok(Measured {
        version: last["version"].as_u64().unwrap_or(0),
        episodes,
        passed,
        reward: rewards.sum::<f64>() / episodes.max(1) as f64,
        interval: hone_api_types::rollouts::wilson(passed, episodes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_task_is_learned_from_and_measured_on() {
        let tasks = of_grammar();
        assert!(tasks.len() > TASKS / 2, "{}", tasks.len());
        let questions = |held_out| {
            let set = set("x", &tasks, held_out, test(Pays::Worth, false));
            let tasks = set["tasks"].as_array().cloned().unwrap_or_default();
            let of = tasks
                .iter()
                .filter_map(|task| Some(task["instruction"].as_str()?.to_owned()));
            of.collect::<std::collections::BTreeSet<String>>()
        };
        let (learned, held_out) = (questions(false), questions(true));
        assert!(learned.is_disjoint(&held_out));
        assert_eq!(learned.len() + held_out.len(), tasks.len());
    }

    #[test]
    fn every_question_of_the_bank_has_an_answer() {
        let bank: Vec<Asked> = serde_json::from_str(QUESTIONS).unwrap();
        assert!(bank.len() >= 80, "{}", bank.len());
        for asked in &bank {
            assert!(
                !asked.question.is_empty() && !asked.right.is_empty(),
                "{asked:?}"
            );
        }
    }
}
