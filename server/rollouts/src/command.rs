//! An agent that is a program: it runs in the jail and asks the model by HTTP, like everywhere else.

use std::time::{Duration, Instant};

use hone_domain::JobReason;
use hone_rollout::{Episode, Played};
use hone_tools::{Command, Jail, KilledBy, Outcome};

use crate::Players;
use crate::agent::Work;
use crate::ask::no_model;
use crate::work::tail;

/// Where the model answers inside of a jail.
const BASE: &str = "http://127.0.0.1:8088";
/// The key that programs demand; the socket itself says whose episode it is.
const KEY: &str = "sk-hone-episode";
/// Home of the agent: its own files are no part of its work.
const HOME: &str = "/tmp/home";
/// How long it takes at most to end an agent and to read what it wrote.
const READING: Duration = Duration::from_millis(500);
/// Most bytes of output of an agent, which may show every step.
const OUTPUT_BYTES: u64 = 256 << 20;

impl Players {
    /// Runs the command that is the agent, until it ends.
    pub(crate) async fn command(
        &self,
        episode: &Episode,
        jail: &dyn Jail,
        work: &mut Work,
        deadline: Instant,
    ) -> Result<JobReason, Played> {
        let line = episode.how.command.as_deref().unwrap_or_default();
        // A little before the episode's own end, so that what it wrote is still read.
        let most = deadline.saturating_duration_since(Instant::now() + READING);
        let command = command(line, &episode.task.instruction, &self.model);
        let result = jail.exec(command.timeout(most)).await;
        work.tool_ms = result.wall_ms;
        work.output = Some(tail(&result));
        if result.outcome == Outcome::Unknown {
            return Err(Played::Broken {
                reason: JobReason::Jail,
                what: tail(&result),
            });
        }
        let status = work.access.status();
        Ok(match (status.failed, status.session) {
            (Some(why), _) => return Err(no_model(why)),
            _ if result.killed_by == Some(KilledBy::Timeout) => JobReason::Time,
            (None, None) if !status.full => JobReason::Agent,
            _ if status.used_up => JobReason::Steps,
            _ if status.full => JobReason::Context,
            _ => JobReason::Submitted,
        })
    }
}

/// A command with what programs read to find the task and the model.
fn command(line: &str, instruction: &str, model: &str) -> Command {
    let line = format!("mkdir -p {HOME} && {{ {line}\n}}");
    let mut command = Command::argv(["bash", "-c", &line]).cwd("/app");
    command.output_bytes_killed = OUTPUT_BYTES;
    let v1 = format!("{BASE}/v1");
    let variables = [
        ("HOME", HOME),
        ("HONE_INSTRUCTION", instruction),
        ("HONE_BASE_URL", BASE),
        ("HONE_MODEL", model),
        ("OPENAI_BASE_URL", &v1),
        ("OPENAI_API_BASE", &v1),
        ("OPENAI_API_KEY", KEY),
        ("OPENAI_MODEL", model),
        ("ANTHROPIC_BASE_URL", BASE),
        ("ANTHROPIC_API_KEY", KEY),
        ("ANTHROPIC_MODEL", model),
    ];
    variables
        .into_iter()
        .fold(command, |command, (name, value)| command.env(name, value))
}
