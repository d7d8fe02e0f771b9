//! The jails of an episode: the one that the agent works in, and the one that its work is tested in.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use hone_domain::{JobReason, TaskFiles, TaskSpec};
use hone_rollout::{Checked, Played};
use hone_tools::{Command, Jail, KilledBy, Outcome, Snapshot, ToolResult, ToolsError, archive};
use serde_json::Value;

use crate::Jails;

/// Where the agent works.
const WORK: &str = "/app";
/// Where the tests lie, what they say, and what solves a task.
const TESTS: &str = "/tests";
const LOGS: &str = "/logs";
const SOLUTION: &str = "/solution";
/// Longest end of the tests' output that is kept, in bytes.
const TAIL_BYTES: usize = 2_000;
/// Removes links of the work folder that lead out of it.
const UNLINK: &str = "find /app -type l -print0 | while IFS= read -r -d '' link; do \
    case \"$(readlink -m -- \"$link\")\" in /app | /app/*) ;; *) rm -f -- \"$link\" ;; esac; done";
/// Names the first file in which tests say a reward, whatever it is.
const WRITTEN: &str = "cd /logs/verifier && for file in reward.json reward.txt; do \
    if [ -e $file ] || [ -L $file ]; then echo $file; break; fi; done; true";
/// Most bytes of such a file.
const REWARD_BYTES: u64 = 65_536;
/// How often solution and nothing are tried by a check.
const TIMES: u32 = 3;

/// What the tests say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verified {
    /// The reward, in [0, 1], and the end of their output.
    Reward(f32, String),
    /// Nothing: they ended at no number, or not in time.
    Nothing(String),
}

/// A jail that could not be used is no fault of the agent.
pub(crate) fn broken(error: &ToolsError) -> Played {
    Played::Broken {
        reason: JobReason::Jail,
        what: error.to_string(),
    }
}

async fn put_all(
    jail: &dyn Jail,
    folder: &str,
    files: &BTreeMap<String, Vec<u8>>,
) -> Result<(), ToolsError> {
    if files.is_empty() {
        return Ok(());
    }
    jail.put_tar(folder, &archive::of_files(files)?).await
}

/// The end of what a command said.
pub(crate) fn tail(result: &ToolResult) -> String {
    let mut text = result.stdout.text();
    text.push_str(&result.stderr.text());
    let from = text.len().saturating_sub(TAIL_BYTES);
    let from = text.ceil_char_boundary(from);
    text.split_off(from)
}

impl Jails {
    /// A jail with nothing in it; where a socket is named, the model is reached through it.
    async fn jail(&self, model: Option<&Path>) -> Result<Box<dyn Jail>, ToolsError> {
        let mut spec = self.config().spec();
        spec.model_socket = model.map(Path::to_owned);
        spec.work_folder = WORK.into();
        spec.folders = [TESTS, LOGS, SOLUTION].map(Into::into).into();
        let executor = self.executor().await;
        executor.map_err(ToolsError::Lost)?.open(&spec).await
    }

    /// A jail with the files that a task begins with. All jails of a task begin alike.
    pub(crate) async fn open(
        &self,
        files: &TaskFiles,
        model: Option<&Path>,
    ) -> Result<Box<dyn Jail>, ToolsError> {
        let jail = self.jail(model).await?;
        put_all(&*jail, WORK, &files.environment).await?;
        Ok(jail)
    }

    /// What the tests say of a work folder, in a jail of their own.
    pub(crate) async fn verify(
        &self,
        task: &TaskSpec,
        files: &TaskFiles,
        work: &Snapshot,
    ) -> Result<Verified, ToolsError> {
        let jail = self.jail(None).await?;
        let verified = tested(&*jail, task, files, work).await;
        jail.close().await;
        verified
    }

    /// Does nothing, or what the solution does, and asks the tests.
    async fn tried(
        &self,
        task: &TaskSpec,
        files: &TaskFiles,
        solves: bool,
    ) -> Result<Verified, ToolsError> {
        let jail = self.open(files, None).await?;
        let worked = async {
            if solves {
                put_all(&*jail, SOLUTION, &files.solution).await?;
                let solve = Command::argv(["bash", "/solution/solve.sh"]).cwd(WORK);
                let solve = solve.timeout(Duration::from_secs(task.agent_seconds));
                let result = jail.exec(solve).await;
                if result.outcome == Outcome::Unknown {
                    return Err(ToolsError::Lost(tail(&result)));
                }
            }
            jail.snapshot().await
        };
        let work = worked.await;
        jail.close().await;
        match work {
            Ok(work) => self.verify(task, files, &work).await,
            Err(error @ ToolsError::Lost(_)) => Err(error),
            Err(error) => Ok(Verified::Nothing(format!(
                "what is left cannot be read: {error}"
            ))),
        }
    }

    /// Whether a task can tell a solution from none, three times alike.
    pub(crate) async fn checked(&self, task: &TaskSpec, files: &TaskFiles) -> Checked {
        for solves in [false, true] {
            if solves && files.solution.is_empty() {
                continue;
            }
            for _ in 0..TIMES {
                let verified = match self.tried(task, files, solves).await {
                    Ok(verified) => verified,
                    Err(error) => return Checked::Broken(JobReason::Jail, error.to_string()),
                };
                if let Some(why) = objection(&verified, solves) {
                    return Checked::Refused(why);
                }
            }
        }
        Checked::Ready
    }
}

/// What is wrong with a task whose tests say this.
fn objection(verified: &Verified, solves: bool) -> Option<String> {
    match (verified, solves) {
        (Verified::Nothing(why), false) => Some(format!("where nothing was done, {why}")),
        (Verified::Nothing(why), true) => Some(format!("where the solution was run, {why}")),
        (Verified::Reward(reward, _), false) if *reward >= 1.0 => {
            Some("doing nothing passes its tests".to_owned())
        }
        (Verified::Reward(reward, output), true) if *reward < 1.0 => Some(format!(
            "its solution does not pass its tests (reward {reward}): {}",
            output.trim()
        )),
        (Verified::Reward(..), _) => None,
    }
}

/// Runs the tests in a jail that nobody was in.
async fn tested(
    jail: &dyn Jail,
    task: &TaskSpec,
    files: &TaskFiles,
    work: &Snapshot,
) -> Result<Verified, ToolsError> {
    jail.restore(work).await?;
    // A link to where the tests will be would hand their own files to them as work.
    let unlink = jail.exec(Command::argv(["bash", "-c", UNLINK])).await;
    if unlink.outcome != Outcome::Ok {
        return Err(ToolsError::Lost(tail(&unlink)));
    }
    put_all(jail, TESTS, &files.tests).await?;
    jail.put(&format!("{LOGS}/verifier/.keep"), b"").await?;
    let test = Command::argv(["bash", "/tests/test.sh"]).cwd(WORK);
    let test = test.timeout(Duration::from_secs(task.verifier_seconds));
    let result = jail.exec(test).await;
    // What it left running changes no reward any more.
    jail.kill_all().await?;
    let output = tail(&result);
    match (result.outcome, result.killed_by) {
        (Outcome::Unknown, _) => return Err(ToolsError::Lost(output)),
        (_, Some(KilledBy::Timeout)) => {
            let seconds = task.verifier_seconds;
            return Ok(Verified::Nothing(format!(
                "the tests did not end within {seconds} seconds"
            )));
        }
        _ => {}
    }
    Ok(match said(jail).await? {
        // Without a file the exit code says it.
        None => Verified::Reward(f32::from(result.exit == Some(0)), output),
        Some(Some(reward)) => Verified::Reward(reward, output),
        Some(None) => Verified::Nothing(format!(
            "the tests wrote a reward that is no number from 0 to 1; they said: {}",
            output.trim()
        )),
    })
}

/// What the tests wrote: none where they wrote nothing, and none within where that is no reward.
async fn said(jail: &dyn Jail) -> Result<Option<Option<f32>>, ToolsError> {
    let written = jail.exec(Command::argv(["bash", "-c", WRITTEN])).await;
    if written.outcome != Outcome::Ok {
        return Err(ToolsError::Lost(tail(&written)));
    }
    let name = written.stdout.text();
    let name = name.trim();
    if name.is_empty() {
        return Ok(None);
    }
    let path = format!("{LOGS}/verifier/{name}");
    match jail.get(&path, REWARD_BYTES).await {
        Ok(bytes) if name == "reward.json" => Ok(Some(of_json(&bytes))),
        Ok(bytes) => Ok(Some(of_text(&bytes))),
        Err(error @ ToolsError::Lost(_)) => Err(error),
        // A link, a folder, or more than a number needs.
        Err(_) => Ok(Some(None)),
    }
}

/// A number from 0 to 1.
fn sound(reward: f64) -> Option<f32> {
    (0.0..=1.0).contains(&reward).then_some(reward as f32)
}

fn of_text(bytes: &[u8]) -> Option<f32> {
    sound(std::str::from_utf8(bytes).ok()?.trim().parse().ok()?)
}

fn of_json(bytes: &[u8]) -> Option<f32> {
    let said: Value = serde_json::from_slice(bytes).ok()?;
    sound(said.get("reward").unwrap_or(&said).as_f64()?)
}

#[cfg(test)]
#[path = "cheats.rs"]
mod cheats;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_from_0_to_1_are_rewards() {
        for (text, reward) in [
            ("1\n", Some(1.0)),
            (" 0.25", Some(0.25)),
            ("NaN", None),
            ("inf", None),
            ("2", None),
            ("-0.1", None),
            ("", None),
            ("good", None),
        ] {
            assert_eq!(of_text(text.as_bytes()), reward, "{text}");
        }
        for (json, reward) in [
            (r#"{"reward": 0.5, "style": 1}"#, Some(0.5)),
            ("1", Some(1.0)),
            (r#"{"reward": "1"}"#, None),
            (r#"{"reward": 7}"#, None),
            ("{", None),
        ] {
            assert_eq!(of_json(json.as_bytes()), reward, "{json}");
        }
        assert_eq!(of_text(&[0xff]), None);
    }

    #[test]
    fn a_task_has_to_tell_a_solution_from_none() {
        let reward = |reward| Verified::Reward(reward, "FAILED test_a".to_owned());
        assert_eq!(objection(&reward(0.0), false), None);
        assert_eq!(objection(&reward(1.0), true), None);
        let nothing = Verified::Nothing("the tests did not end".to_owned());
        for (verified, solves, says) in [
            (reward(1.0), false, "doing nothing passes"),
            (reward(0.5), true, "FAILED test_a"),
            (
                nothing.clone(),
                false,
                "where nothing was done, the tests did not end",
            ),
            (nothing, true, "where the solution was run"),
        ] {
            let why = objection(&verified, solves).unwrap_or_default();
            assert!(why.contains(says), "{why}");
        }
    }
}
