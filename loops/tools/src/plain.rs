//! Commands as processes of this machine, for tests and for machines that are jails themselves.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;

use crate::bubblewrap::{GuestProgram, variables};
use crate::client::{self, Client};
use crate::jail::{GuestJail, Made};
use crate::leftover;
use crate::process::{Life, Processes, over_socket};
use crate::wire::{Folder, Setup};
use crate::{Capabilities, Executor, HeldBy, Jail, JailSpec, Kind, ToolsError};

const PREFIX: &str = "hone-work-";

/// Runs commands without isolation: they read, write and reach all that this process can. Only their time, their
/// output and the size of one file are limited. The work folder is a new folder of this machine. Whoever kills the
/// guest leaves its commands running.
pub struct PlainProcess {
    guest: GuestProgram,
    processes: Processes,
}

impl PlainProcess {
    /// Whoever calls this trusts every command as much as this process.
    pub fn without_isolation(guest: GuestProgram) -> Result<Self, ToolsError> {
        leftover::remove_folders(PREFIX);
        Ok(Self {
            guest,
            processes: Processes::new()?,
        })
    }
}

fn setup(spec: &JailSpec, at: &Path) -> Setup {
    let place = |name: &Path, path: &Path| Folder {
        name: name.to_string_lossy().into_owned(),
        path: path.to_string_lossy().into_owned(),
        bytes_max: spec.disk_bytes,
    };
    let further = spec.folders.iter().enumerate();
    let further = further.map(|(i, f)| place(f, &at.join(format!("folder-{i}"))));
    let work = place(&spec.work_folder, &at.join("work"));
    Setup {
        walls: false,
        folders: std::iter::once(work).chain(further).collect(),
        env: variables(spec, &at.join("work").to_string_lossy()),
        processes: spec.processes,
        memory_bytes: spec.memory_bytes,
        watch_memory: true,
        file_bytes: spec.file_bytes,
        open_files: spec.open_files,
        model_socket: None,
    }
}

#[async_trait]
impl Executor for PlainProcess {
    async fn open(&self, spec: &JailSpec) -> Result<Box<dyn Jail>, ToolsError> {
        spec.validate()?;
        if spec.model_socket.is_some() || !spec.read_only.is_empty() {
            return Err(ToolsError::Spec(
                "a plain process has neither a network nor mounts of its own: leave model_socket and read_only out".into(),
            ));
        }
        let failed = |e: std::io::Error| ToolsError::NotAvailable(format!("a plain process: {e}"));
        let folder = tempfile::Builder::new()
            .prefix(&leftover::own(PREFIX))
            .tempdir()
            .map_err(failed)?;
        let setup = setup(spec, folder.path());
        for folder in &setup.folders {
            std::fs::create_dir(&folder.path).map_err(failed)?;
        }
        let mut command = Command::new(&self.guest.path);
        command.args(&self.guest.arguments);
        let (command, near) = over_socket(command).map_err(failed)?;
        let child = self.processes.start(command).await.map_err(failed)?;
        let mut life = self.processes.own(Life {
            child,
            guest: None,
            cgroup: None,
            folder: Some(folder),
            shared: None,
        });
        let client = Client::new(near).map_err(failed)?;
        client::ready(&client, setup, Duration::from_secs(20)).await?;
        if let Some(life) = life.life() {
            drop(life.child.stderr.take());
        }
        let made = Made {
            client,
            capabilities: Capabilities {
                namespaces: false,
                landlock: false,
                seccomp: false,
                memory: HeldBy::Rlimit,
                processes: HeldBy::Nothing,
            },
            life,
            tasks: Vec::new(),
        };
        Ok(Box::new(GuestJail::open(made, spec).await?))
    }

    fn kind(&self) -> Kind {
        Kind::Process
    }
}
