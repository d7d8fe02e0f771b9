//! An episode from its first jail to its reward.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_domain::{AgentKind, JobReason, Message, Role};
use hone_inference::{EpisodeAccess, EpisodeStatus};
use hone_rollout::{Episode, Played};
use hone_tools::{Command, Jail, Outcome, Snapshot, ToolResult, ToolsError};
use serde_json::{Value, json};
use tokio::time::timeout_at;

use crate::ask::{Asking, Unanswered, no_model};
use crate::words::{Act, OBSERVATION_BYTES, act, answer, opening, question, tools};
use crate::work::{Verified, broken};
use crate::{ModelSocket, Players};

/// What an agent did.
pub(crate) struct Work {
    /// What it asks with.
    pub(crate) access: Arc<EpisodeAccess>,
    status: EpisodeStatus,
    /// Time that its commands took.
    pub(crate) tool_ms: u64,
    /// The end of what its own command said, where it is one.
    pub(crate) output: Option<String>,
    /// Time that it took in all, and that its jail took to open.
    agent_ms: u64,
    jail_ms: u64,
}

impl Work {
    fn new(access: Arc<EpisodeAccess>) -> Self {
        Self {
            access,
            status: EpisodeStatus::default(),
            tool_ms: 0,
            output: None,
            agent_ms: 0,
            jail_ms: 0,
        }
    }

    fn version(&self) -> Option<u64> {
        self.status.version.map(|version| version.0)
    }

    /// What is told of it, with what else there is to tell.
    fn result(&self, more: Value) -> Value {
        let mut result = json!({
            "steps": self.status.steps, "agent_ms": self.agent_ms, "tool_ms": self.tool_ms, "jail_ms": self.jail_ms,
        });
        if let Some(output) = &self.output {
            result["output"] = json!(output);
        }
        if let (Some(into), Value::Object(more)) = (result.as_object_mut(), more) {
            into.extend(more);
        }
        result
    }
}

impl Players {
    /// Plays an episode to its end.
    pub(crate) async fn played(&self, episode: &Episode) -> Played {
        let begun = Instant::now();
        let access = match self.access(episode).await {
            Ok(access) => access,
            Err(played) => return played,
        };
        let socket = match episode.how.agent {
            AgentKind::Command => Some(self.sockets.open(access.clone())),
            AgentKind::Bash | AgentKind::Answer => None,
        };
        let socket = match socket.transpose() {
            Ok(socket) => socket,
            Err(why) => return no_model(why),
        };
        let path = socket.as_ref().map(ModelSocket::path);
        let jail = match self.jails.open(&episode.files, path).await {
            Ok(jail) => jail,
            Err(error) => return broken(&error),
        };
        let opened_ms = millis(begun);
        let mut work = Work::new(access);
        let deadline = begun + Duration::from_secs(episode.task.agent_seconds);
        let agent = self.agent(episode, &*jail, &mut work, deadline);
        let ended = timeout_at(deadline.into(), agent).await;
        drop(socket);
        work.status = work.access.status();
        let agent_ms = millis(begun) - opened_ms;
        (work.agent_ms, work.jail_ms) = (agent_ms, opened_ms);
        let reason = match ended {
            Ok(Ok(reason)) => reason,
            Err(_) => JobReason::Time,
            Ok(Err(played)) => {
                jail.close().await;
                return played;
            }
        };
        // How long the machine took is no sign of how well the agent did, nor is that there was none.
        if matches!(reason, JobReason::Time | JobReason::Agent) {
            jail.close().await;
            return Played::Unknown {
                reason,
                session: work.status.session,
                result: work.result(Value::Null),
            };
        }
        self.tested(episode, jail, reason, work).await
    }

    /// What the tests say of what an agent left behind.
    async fn tested(
        &self,
        episode: &Episode,
        jail: Box<dyn Jail>,
        reason: JobReason,
        work: Work,
    ) -> Played {
        let snapshot = left(&*jail).await;
        jail.close().await;
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(error @ ToolsError::Lost(_)) => return broken(&error),
            // Work that cannot be carried to the tests is worth nothing.
            Err(error) => {
                return Played::Ended {
                    reason,
                    reward: 0.0,
                    version: work.version(),
                    session: work.status.session,
                    result: work
                        .result(json!({"error": format!("its work cannot be read: {error}")})),
                };
            }
        };
        let testing = Instant::now();
        let verified = self.jails.verify(&episode.task, &episode.files, &snapshot);
        let verified = verified.await;
        match verified {
            Err(error) => broken(&error),
            Ok(Verified::Nothing(why)) => Played::Unknown {
                reason: JobReason::Verifier,
                session: work.status.session,
                result: work.result(json!({"verifier_ms": millis(testing), "error": why})),
            },
            Ok(Verified::Reward(reward, output)) => Played::Ended {
                reason,
                reward,
                version: work.version(),
                session: work.status.session,
                result: work.result(json!({"verifier_ms": millis(testing), "test_output": output})),
            },
        }
    }

    async fn agent(
        &self,
        episode: &Episode,
        jail: &dyn Jail,
        work: &mut Work,
        deadline: Instant,
    ) -> Result<JobReason, Played> {
        match episode.how.agent {
            AgentKind::Bash => self.shell(episode, jail, work).await,
            AgentKind::Answer => self.answer(episode, jail, work).await,
            AgentKind::Command => self.command(episode, jail, work, deadline).await,
        }
    }

    /// The model with a shell.
    async fn shell(
        &self,
        episode: &Episode,
        jail: &dyn Jail,
        work: &mut Work,
    ) -> Result<JobReason, Played> {
        let can_call = self.inference.language.manner().calls.is_some();
        let access = work.access.clone();
        let asking = Asking::new(self, &access, can_call.then(tools))?;
        let mut messages = opening(&episode.task.instruction, can_call);
        for step in 0..episode.how.steps_max {
            let answered = match asking.ask(messages.clone()).await {
                Ok(answered) => answered,
                Err(Unanswered::Full) if step > 0 => return Ok(JobReason::Context),
                Err(why) => return Err(unanswered(why)),
            };
            let shown = match act(&answered.said, can_call) {
                Act::Submit => return Ok(JobReason::Submitted),
                Act::Unclear(what) => what,
                Act::Run(command) => {
                    let command = Command::argv(["bash", "-c", &command]).cwd("/app");
                    let most = Duration::from_secs(self.jails.config().command_seconds);
                    let result = jail.exec(command.timeout(most)).await;
                    if result.outcome == Outcome::Unknown {
                        return Err(Played::Broken {
                            reason: JobReason::Jail,
                            what: observation(&result),
                        });
                    }
                    work.tool_ms += result.wall_ms;
                    observation(&result)
                }
            };
            let call = answered
                .message
                .tool_calls
                .first()
                .map(|call| call.id.clone());
            messages.push(answered.message);
            messages.push(Message {
                tool_call_id: call.clone(),
                ..Message::text(
                    if call.is_some() {
                        Role::Tool
                    } else {
                        Role::User
                    },
                    shown,
                )
            });
        }
        Ok(JobReason::Steps)
    }

    /// The model's one answer, as the file that is asked for.
    async fn answer(
        &self,
        episode: &Episode,
        jail: &dyn Jail,
        work: &Work,
    ) -> Result<JobReason, Played> {
        let asking = Asking::new(self, &work.access, None)?;
        let file = episode.task.answer_file.as_deref();
        let messages = question(&episode.task.instruction, file);
        let answered = asking.ask(messages).await.map_err(unanswered)?;
        let (file, text) = match file {
            Some(file) => (file, answer(&answered.said.content)),
            None => ("answer.txt", answered.said.content),
        };
        let put = jail.put(&format!("/app/{file}"), text.as_bytes()).await;
        put.map_err(|error| broken(&error))?;
        Ok(JobReason::Submitted)
    }
}

/// What an agent leaves behind, once nothing of it runs any more.
async fn left(jail: &dyn Jail) -> Result<Snapshot, hone_tools::ToolsError> {
    jail.kill_all().await?;
    jail.snapshot().await
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn unanswered(why: Unanswered) -> Played {
    no_model(match why {
        Unanswered::Full => "the task is longer than the model can read".to_owned(),
        Unanswered::Broken(what) => what,
    })
}

/// What the agent is shown of a command.
fn observation(result: &ToolResult) -> String {
    let mut text = result.stdout.text();
    let errors = result.stderr.text();
    if !errors.is_empty() {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&errors);
    }
    if let Some(by) = result.killed_by {
        let by = serde_json::to_value(by).unwrap_or_default();
        text.push_str(&format!("\n[ended: {}]", by.as_str().unwrap_or_default()));
    } else if result.exit != Some(0) {
        let code = result
            .exit
            .map_or_else(|| "a signal".to_owned(), |code| code.to_string());
        text.push_str(&format!("\n[exit {code}]"));
    }
    shortened(text.trim_end())
}

/// A text with its middle left out, where it is long.
fn shortened(text: &str) -> String {
    if text.is_empty() {
        return "[no output]".to_owned();
    }
    if text.len() <= OBSERVATION_BYTES {
        return text.to_owned();
    }
    let half = OBSERVATION_BYTES / 2;
    let head = text.floor_char_boundary(half);
    let tail = text.ceil_char_boundary(text.len() - half);
    let cut = tail - head;
    format!(
        "{}\n[{cut} bytes left out]\n{}",
        &text[..head],
        &text[tail..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_outputs_lose_their_middle() {
        assert_eq!(shortened(""), "[no output]");
        assert_eq!(shortened("short"), "short");
        let long = format!("begin{}end", "é".repeat(OBSERVATION_BYTES));
        let cut = shortened(&long);
        assert!(cut.starts_with("begin") && cut.ends_with("end"));
        assert!(cut.contains("bytes left out"));
        assert!(cut.len() < OBSERVATION_BYTES + 64, "{}", cut.len());
    }
}
