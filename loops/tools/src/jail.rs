//! A jail with a guest in it, whatever stands around the guest.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::cgroup::Cgroup;
use crate::client::Client;
use crate::command::{OUTPUT_BYTES_MAX, STDIN_BYTES_MAX};
use crate::process::{Owned, kill};
use crate::spec::check_variable;
use crate::wire::{Ended, Exec, Form, Reply, Request};
use crate::{
    Capabilities, Command, Files, Jail, JailSpec, KilledBy, Outcome, Output, Snapshot, ToolResult,
    ToolsError, archive, snapshot,
};

/// How much longer than a command's timeout its result may take. Then the guest hangs, and the jail is lost.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What a jail begins with and is put back to.
struct Base {
    tar: Option<Arc<[u8]>>,
    digest: String,
}

/// A jail whose guest answers.
pub(crate) struct GuestJail {
    client: Option<Client>,
    capabilities: Capabilities,
    life: Option<Owned>,
    guest: Option<Arc<OwnedFd>>,
    cgroup: Option<Arc<Cgroup>>,
    base: Base,
    ends: Instant,
    disk_bytes: u64,
    // Tasks that end with the jail.
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

/// What a jail is made of once its guest is ready.
pub(crate) struct Made {
    pub client: Client,
    pub capabilities: Capabilities,
    pub life: Owned,
    pub tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl GuestJail {
    /// Fills the work folder. The jail is gone when this fails.
    pub(crate) async fn open(mut made: Made, spec: &JailSpec) -> Result<Self, ToolsError> {
        let wall = Duration::from_millis(spec.wall_ms);
        let life = made.life.life();
        let (cgroup, guest) = life.map_or((None, None), |l| (l.cgroup.clone(), l.guest.clone()));
        let ends = end_after(wall, made.client.clone(), guest.clone());
        made.tasks.push(tokio::spawn(ends));
        let mut jail = Self {
            client: Some(made.client),
            capabilities: made.capabilities,
            cgroup,
            life: Some(made.life),
            guest,
            base: Base {
                tar: None,
                digest: snapshot::sha256(b""),
            },
            ends: Instant::now() + wall,
            disk_bytes: spec.disk_bytes,
            tasks: made.tasks,
        };
        if let Some(tar) = packed(&spec.files, spec.disk_bytes).await? {
            jail.base.digest = snapshot::sha256(&tar);
            jail.base.tar = Some(tar);
            jail.fill().await?;
        }
        Ok(jail)
    }

    /// Puts the files of the beginning into the empty work folder.
    async fn fill(&self) -> Result<(), ToolsError> {
        if let Some(tar) = &self.base.tar {
            let put = Request::Put {
                path: String::new(),
                form: Form::Tar,
            };
            self.client()?.put(&put, tar.clone()).await?;
        }
        self.client()?.call(&Request::Mark).await
    }

    fn client(&self) -> Result<&Client, ToolsError> {
        if Instant::now() >= self.ends {
            self.kill();
            return Err(ToolsError::Lost("its time is over".into()));
        }
        let client = self.client.as_ref();
        client.ok_or_else(|| ToolsError::Lost("it is closed".into()))
    }

    fn kill(&self) {
        if let Some(guest) = &self.guest {
            kill(guest);
        }
    }

    fn exec_request(&self, command: &Command) -> Result<Exec, ToolsError> {
        if command.stdin.len() > STDIN_BYTES_MAX {
            return Err(ToolsError::Refused(format!(
                "a standard input of {} bytes; at most {STDIN_BYTES_MAX} fit",
                command.stdin.len()
            )));
        }
        command
            .env
            .keys()
            .try_for_each(|name| check_variable(name))?;
        let left = self.ends.saturating_duration_since(Instant::now());
        let timeout = command.timeout.min(left);
        Ok(Exec {
            program: command.program.clone(),
            cwd: command.cwd.clone(),
            env: command.env.clone().into_iter().collect(),
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            output_bytes_max: command.output_bytes_max.min(OUTPUT_BYTES_MAX / 2),
            output_bytes_killed: command.output_bytes_killed,
        })
    }

    async fn run(&self, command: &Command) -> Result<(Ended, Vec<u8>), ToolsError> {
        let exec = self.exec_request(command)?;
        let wait = Duration::from_millis(exec.timeout_ms) + ANSWER_WAIT;
        let client = self.client()?;
        let (id, mut replies) = client.ask(&Request::Exec(exec), &command.stdin).await?;
        let mut cancel = Cancel {
            client: Some(client),
            id,
        };
        let reply = tokio::time::timeout(wait, replies.recv()).await;
        cancel.client = None;
        match reply {
            Ok(Some((Reply::Ended(ended), bytes))) => Ok((ended, bytes)),
            Ok(_) => Err(ToolsError::Lost("its guest ended".into())),
            Err(_) => {
                self.kill();
                Err(ToolsError::Lost("its guest does not answer".into()))
            }
        }
    }

    /// Who killed a command that failed, by what the cgroup counted meanwhile.
    fn killer(&self, before: Option<(u64, u64)>) -> Option<KilledBy> {
        let (memory, processes) = before?;
        let now = self.cgroup.as_ref()?.events();
        if now.0 > memory {
            Some(KilledBy::Memory)
        } else if now.1 > processes {
            Some(KilledBy::Processes)
        } else {
            None
        }
    }
}

/// Kills a command whose caller went away.
struct Cancel<'a> {
    client: Option<&'a Client>,
    id: u32,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            client.cancel(self.id);
        }
    }
}

async fn packed(files: &Files, bytes_max: u64) -> Result<Option<Arc<[u8]>>, ToolsError> {
    match files {
        Files::Nothing => Ok(None),
        Files::Tar(tar) => Ok(Some(tar.clone())),
        Files::Folder(path) => {
            let path = path.clone();
            let pack = move || {
                let folder = archive::open_folder(&path)?;
                let bounds = archive::Bounds::of(bytes_max);
                archive::pack(&folder, &bounds, |_, _| true, Vec::new())
            };
            let packed = tokio::task::spawn_blocking(pack).await;
            let packed = packed.map_err(|e| ToolsError::Files(e.to_string()))??;
            Ok(Some(packed.into()))
        }
    }
}

fn result(ended: Ended, bytes: &[u8], killer: Option<KilledBy>) -> ToolResult {
    let mut rest = bytes;
    let [stdout, stderr] = ended.streams.map(|(head, tail, bytes_cut)| {
        let mut take = |n: usize| {
            let (part, after) = rest.split_at(n.min(rest.len()));
            rest = after;
            part.to_vec()
        };
        Output {
            head: take(head),
            bytes_cut,
            tail: take(tail),
        }
    });
    let ok = ended.exit == Some(0) && ended.killed_by.is_none();
    ToolResult {
        outcome: if ok { Outcome::Ok } else { Outcome::Failed },
        exit: ended.exit,
        signal: ended.signal,
        stdout,
        stderr,
        wall_ms: ended.wall_ms,
        killed_by: ended.killed_by.or(if ok { None } else { killer }),
        reason: ended.reason,
    }
}

#[async_trait]
impl Jail for GuestJail {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn exec(&self, command: Command) -> ToolResult {
        let begin = Instant::now();
        let before = self.cgroup.as_ref().map(|c| c.events());
        match self.run(&command).await {
            Ok((ended, bytes)) => result(ended, &bytes, self.killer(before)),
            Err(ToolsError::Lost(why)) => {
                let wall_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
                ToolResult::unknown(ToolsError::Lost(why).to_string(), wall_ms)
            }
            Err(e) => ToolResult::not_started(e.to_string()),
        }
    }

    async fn put(&self, path: &str, bytes: &[u8]) -> Result<(), ToolsError> {
        let put = Request::Put {
            path: path.to_owned(),
            form: Form::File,
        };
        self.client()?.put(&put, bytes.into()).await
    }

    async fn put_tar(&self, folder: &str, tar: &[u8]) -> Result<(), ToolsError> {
        let put = Request::Put {
            path: folder.to_owned(),
            form: Form::Tar,
        };
        self.client()?.put(&put, tar.into()).await
    }

    async fn get(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, ToolsError> {
        let get = Request::Get {
            path: path.to_owned(),
            form: Form::File,
            bytes_max,
        };
        Ok(self.client()?.get(&get, bytes_max).await?.0)
    }

    async fn get_tar(&self, folder: &str, bytes_max: u64) -> Result<Vec<u8>, ToolsError> {
        let get = Request::Get {
            path: folder.to_owned(),
            form: Form::Tar,
            bytes_max,
        };
        Ok(self.client()?.get(&get, bytes_max).await?.0)
    }

    async fn snapshot(&self) -> Result<Snapshot, ToolsError> {
        let client = self.client()?;
        let (tar, removed) = client.get(&Request::Changes, self.disk_bytes).await?;
        Snapshot::new(&self.base.digest, tar, removed)
    }

    async fn restore(&self, snapshot: &Snapshot) -> Result<(), ToolsError> {
        if !snapshot.fits(&self.base.digest) {
            return Err(ToolsError::Refused(
                "the snapshot is damaged, or of a jail that began with other files".into(),
            ));
        }
        let client = self.client()?;
        client.call(&Request::Clear).await?;
        self.fill().await?;
        let paths = snapshot.removed.clone();
        client.call(&Request::Remove { paths }).await?;
        let put = Request::Put {
            path: String::new(),
            form: Form::Snapshot,
        };
        client.put(&put, snapshot.tar.as_slice().into()).await
    }

    async fn kill_all(&self) -> Result<(), ToolsError> {
        self.client()?.call(&Request::KillAll).await
    }

    async fn close(mut self: Box<Self>) {
        self.leave();
        if let Some(life) = self.life.take() {
            life.end().await;
        }
    }
}

impl GuestJail {
    /// Lets go of everything that keeps the guest's socket or group.
    fn leave(&mut self) {
        self.client = None;
        self.cgroup = None;
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Drop for GuestJail {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Ends everything in a jail whose time is over.
async fn end_after(wall: Duration, client: Client, guest: Option<Arc<OwnedFd>>) {
    // Commands that run time out at this moment too; their results are on their way.
    tokio::time::sleep(wall + Duration::from_millis(200)).await;
    if let Some(guest) = guest {
        kill(&guest);
    } else {
        let _ = client.call(&Request::KillAll).await;
    }
}
