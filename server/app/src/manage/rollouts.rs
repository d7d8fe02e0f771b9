//! `hone rollout`: agents of a running server try tasks.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::Value;

use super::call::{Call, Server, send, show};
use super::tasks::{of_set, resolved, text_of};
use crate::table::{
    Side::{Left, Right},
    table,
};

/// How often a rollout is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What to do with rollouts.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  hone rollout run tasks --attempts 8\n  hone rollout run tasks --evaluate --version 0\n  \
    hone rollout run tasks --evaluate\n  hone rollout run tasks --command 'claude -p \"$HONE_INSTRUCTION\"'"
)]
pub(crate) enum RolloutCommand {
    /// Have an agent try the tasks of a set, and learn from it; with --evaluate only measure, on held-out tasks.
    Run(RunArgs),
    /// Your rollouts, newest first.
    List(Server),
    /// Where a rollout stands, and how many episodes passed by version.
    Show {
        /// Its id.
        id: String,
        #[command(flatten)]
        server: Server,
    },
    /// The newest episodes of a rollout.
    Episodes {
        /// The rollout's id.
        id: String,
        #[command(flatten)]
        server: Server,
    },
    /// Cancel a rollout.
    Cancel {
        /// Its id.
        id: String,
        #[command(flatten)]
        server: Server,
    },
}

/// How tasks are tried.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Name or id of the task set.
    set: String,
    /// bash (the served model with a shell), answer (its one answer is the task's answer file) or command; bash, or command
    /// where --command is given.
    #[arg(long)]
    agent: Option<String>,
    /// A program in the jail that asks the served model: the line for the shell that starts it. It finds the task
    /// in $HONE_INSTRUCTION, and the model at $OPENAI_BASE_URL and $ANTHROPIC_BASE_URL.
    #[arg(long)]
    command: Option<String>,
    /// Attempts at a task, compared with each other; 4, or 1 with --evaluate.
    #[arg(long)]
    attempts: Option<u32>,
    /// How often a task is chosen; once per task if absent.
    #[arg(long)]
    groups: Option<u32>,
    /// Measure on held-out tasks, and learn nothing.
    #[arg(long)]
    evaluate: bool,
    /// With --evaluate: the version that answers; 0 is the base model.
    #[arg(long)]
    version: Option<u64>,
    /// Most steps of an agent.
    #[arg(long, default_value_t = 20)]
    steps: u32,
    /// Most tokens of a step.
    #[arg(long, default_value_t = 1024)]
    tokens: u32,
    /// Temperature.
    #[arg(long, default_value_t = 1.0)]
    temperature: f32,
    /// Do not wait until it is done.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    server: Server,
}

/// Runs one command.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn rollout(command: RolloutCommand) -> Result<ExitCode, String> {
    let by_id = |server: Server, method: Method, path: String, text: fn(&Value) -> String| {
        let call = Call {
            method,
            path,
            body: None,
            show: text,
        };
        show(&server, send(&server, &call), text)
    };
    match command {
        RolloutCommand::Run(args) => show(&args.server, run(&args), one),
        RolloutCommand::List(server) => by_id(server, Method::GET, "/v1/rollouts".to_owned(), list),
        RolloutCommand::Show { id, server } => {
            by_id(server, Method::GET, format!("/v1/rollouts/{id}"), one)
        }
        RolloutCommand::Episodes { id, server } => {
            let path = format!("/v1/rollouts/{id}/episodes");
            by_id(server, Method::GET, path, episodes)
        }
        RolloutCommand::Cancel { id, server } => by_id(
            server,
            Method::POST,
            format!("/v1/rollouts/{id}/cancel"),
            one,
        ),
    }
}

async fn run(args: &RunArgs) -> Result<Value, String> {
    let mut body = of_set(&resolved(&args.server, &args.set).await?);
    body["evaluate"] = args.evaluate.into();
    body["steps_max"] = args.steps.into();
    body["tokens_max"] = args.tokens.into();
    body["temperature"] = args.temperature.into();
    for (key, value) in [
        ("agent", args.agent.clone().map(Value::from)),
        ("command", args.command.clone().map(Value::from)),
        ("attempts", args.attempts.map(Value::from)),
        ("groups", args.groups.map(Value::from)),
        ("version", args.version.map(Value::from)),
    ] {
        if let Some(value) = value {
            body[key] = value;
        }
    }
    let call = Call {
        method: Method::POST,
        path: "/v1/rollouts".to_owned(),
        body: Some(body),
        show: one,
    };
    let mut rollout = send(&args.server, &call).await?;
    let id = text_of(&rollout["id"]);
    let mut told = String::new();
    while !args.detach && rollout["status"] == "running" {
        let line = progress(&rollout);
        if line != told {
            eprintln!("{id}: {line}");
            told = line;
        }
        tokio::time::sleep(LOOK_EVERY).await;
        let call = Call::get(format!("/v1/rollouts/{id}"), one);
        rollout = send(&args.server, &call).await?;
    }
    Ok(rollout)
}

fn progress(rollout: &Value) -> String {
    let count = |state: &str| rollout["episodes"][state].as_u64().unwrap_or(0);
    let ended = count("done") + count("failed") + count("skipped") + count("cancelled");
    let all = rollout["attempts"].as_u64().unwrap_or(0) * rollout["groups"].as_u64().unwrap_or(0);
    let versions = rollout["versions"].as_array().into_iter().flatten();
    let (passed, of) = versions.fold((0, 0), |(passed, of), version| {
        let number = |key: &str| version[key].as_u64().unwrap_or(0);
        (passed + number("passed"), of + number("episodes"))
    });
    format!("{ended} of {all} episodes, {passed} of {of} passed")
}

fn list(answer: &Value) -> String {
    let rows = answer["data"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|rollout| {
            vec![
                text_of(&rollout["id"]),
                text_of(&rollout["task_set_name"]),
                text_of(&rollout["status"]),
                if rollout["evaluate"] == true {
                    "measures"
                } else {
                    "learns"
                }
                .to_owned(),
                progress(rollout),
            ]
        });
    let names = [
        ("id", Left),
        ("tasks", Left),
        ("status", Left),
        ("", Left),
        ("", Left),
    ];
    table(&names, &rows.collect::<Vec<_>>())
}

fn one(rollout: &Value) -> String {
    let mut text = format!(
        "rollout {} of {}: {}, {}\n",
        text_of(&rollout["id"]),
        text_of(&rollout["task_set_name"]),
        text_of(&rollout["status"]),
        progress(rollout)
    );
    let share = |value: &Value| value.as_f64().map_or("-".to_owned(), |x| format!("{x:.2}"));
    let rows = rollout["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|version| {
            let interval = &version["interval"];
            vec![
                version["version"].to_string(),
                version["episodes"].to_string(),
                version["passed"].to_string(),
                share(&version["rate"]),
                format!("{} to {}", share(&interval[0]), share(&interval[1])),
                share(&version["mean_reward"]),
            ]
        });
    let names = [
        ("version", Right),
        ("episodes", Right),
        ("passed", Right),
        ("rate", Right),
        ("95 % interval", Left),
        ("mean reward", Right),
    ];
    text.push_str(&table(&names, &rows.collect::<Vec<_>>()));
    let count = |state: &str| rollout["episodes"][state].as_u64().unwrap_or(0);
    let without = count("failed") + count("skipped");
    if without > 0 {
        let id = text_of(&rollout["id"]);
        text.push_str(&format!(
            "{without} without a reward; hone rollout episodes {id} says why\n"
        ));
    }
    text
}

/// Why an episode has no reward, as far as it was told: the last line of what its agent or its tests wrote.
fn why(episode: &Value) -> String {
    let result = &episode["result"];
    let said = [&result["error"], &result["output"], &result["what"]];
    let said = said.into_iter().find(|text| text.is_string());
    let said = said.map(text_of).unwrap_or_default();
    let last = said.trim_end().lines().next_back().unwrap_or_default();
    match episode["reward"].is_null() {
        true => last.trim().chars().take(80).collect(),
        false => String::new(),
    }
}

fn episodes(answer: &Value) -> String {
    let rows = answer["data"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|episode| {
            let number = |value: &Value| match value {
                Value::Null => "-".to_owned(),
                other => other.to_string(),
            };
            vec![
                text_of(&episode["id"]),
                text_of(&episode["state"]),
                text_of(&episode["reason"]),
                number(&episode["reward"]),
                number(&episode["version"]),
                number(&episode["result"]["steps"]),
                text_of(&episode["session_id"]),
                why(episode),
            ]
        });
    let names = [
        ("id", Left),
        ("state", Left),
        ("reason", Left),
        ("reward", Right),
        ("version", Right),
        ("steps", Right),
        ("session", Left),
        ("", Left),
    ];
    table(&names, &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_episode_without_a_reward_says_why() {
        let episode = json!({
            "id": "job_1", "state": "failed", "reason": "agent", "reward": null, "version": null, "session_id": null,
            "result": {"steps": 0, "output": "starting\n\u{1b}[31mclaude: not found\n"},
        });
        let text = episodes(&json!({"data": [episode]}));
        assert!(text.contains("[31mclaude: not found"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let rollout = json!({"id": "rol_1", "episodes": {"failed": 2}, "versions": []});
        assert!(one(&rollout).contains("2 without a reward; hone rollout episodes rol_1"));
    }

    #[test]
    fn a_rollout_is_told_in_lines() {
        let rollout = json!({
            "id": "rol_1", "task_set_name": "tasks", "status": "running", "attempts": 4, "groups": 2,
            "evaluate": false, "episodes": {"done": 3, "running": 1},
            "versions": [{
                "version": 0, "episodes": 3, "passed": 1, "rate": 0.3333, "interval": [0.06, 0.79], "mean_reward": 0.5,
            }],
        });
        let text = one(&rollout);
        assert!(
            text.starts_with("rollout rol_1 of tasks: running, 3 of 8 episodes, 1 of 3 passed\n"),
            "{text}"
        );
        assert!(text.contains("0.06 to 0.79"), "{text}");
        let text = list(&json!({"data": [rollout]}));
        assert!(
            text.contains("learns") && text.contains("3 of 8 episodes"),
            "{text}"
        );
    }
}
