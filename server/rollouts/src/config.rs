//! Settings of jails, and the executor that they name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hone_tools::{Bubblewrap, Executor, GuestProgram, JailSpec, Mount};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

/// Where agents work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutorKind {
    /// In jails by bubblewrap.
    Bubblewrap,
    /// Nowhere: tasks can be neither checked nor tried.
    Off,
}

/// Settings of jails; the defaults stand in `configs/default.toml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ToolsConfig {
    /// Where agents work.
    pub executor: ExecutorKind,
    /// Most memory of a jail.
    pub memory_bytes: u64,
    /// Most processes of a jail.
    pub processes: u64,
    /// Most bytes of all files of a jail.
    pub disk_bytes: u64,
    /// How long one command of an agent may take.
    pub command_seconds: u64,
    /// Folders of this machine that jails see beside `/usr`: read-only, under the same path.
    pub mounts: Vec<PathBuf>,
    /// The program that runs inside jails as their first process; empty is this one.
    pub guest: String,
}

impl ToolsConfig {
    /// Checks what types cannot; the message names the key.
    ///
    /// # Errors
    /// The first key that cannot be.
    pub fn validate(&self) -> Result<(), String> {
        let counts = [
            ("tools.memory_bytes", self.memory_bytes, 64 << 20),
            ("tools.processes", self.processes, 8),
            ("tools.disk_bytes", self.disk_bytes, 1 << 20),
            ("tools.command_seconds", self.command_seconds, 1),
        ];
        if let Some((key, _, least)) = counts.iter().find(|(_, value, least)| value < least) {
            return Err(format!("{key} must be at least {least}"));
        }
        let spec = self.spec().validate();
        spec.map_err(|error| format!("tools.mounts: {error}"))
    }

    /// A jail of these limits.
    pub(crate) fn spec(&self) -> JailSpec {
        JailSpec {
            memory_bytes: self.memory_bytes,
            processes: self.processes,
            disk_bytes: self.disk_bytes,
            file_bytes: self.disk_bytes,
            read_only: self.mounts.iter().map(|folder| mount(folder)).collect(),
            ..JailSpec::default()
        }
    }
}

fn mount(folder: &Path) -> Mount {
    Mount {
        host: folder.to_owned(),
        jail: folder.to_owned(),
    }
}

/// The executor that the settings name, made when it is first needed.
pub struct Jails {
    config: ToolsConfig,
    made: OnceCell<Arc<dyn Executor>>,
}

impl Jails {
    /// Jails of these settings.
    pub fn new(config: ToolsConfig) -> Self {
        Self {
            config,
            made: OnceCell::new(),
        }
    }

    pub(crate) fn config(&self) -> &ToolsConfig {
        &self.config
    }

    /// What opens jails.
    ///
    /// # Errors
    /// Why there is none, and what to do; it is looked again the next time.
    pub async fn executor(&self) -> Result<Arc<dyn Executor>, String> {
        let make = async || {
            let config = self.config.clone();
            let made = tokio::task::spawn_blocking(move || executor(&config));
            made.await.map_err(|error| error.to_string())?
        };
        self.made.get_or_try_init(make).await.cloned()
    }
}

fn executor(config: &ToolsConfig) -> Result<Arc<dyn Executor>, String> {
    let path = match config.guest.is_empty() {
        true => std::env::current_exe().map_err(|error| error.to_string())?,
        false => PathBuf::from(&config.guest),
    };
    let guest = GuestProgram {
        path,
        arguments: vec!["guest".to_owned()],
    };
    match config.executor {
        ExecutorKind::Off => Err(
            "tools.executor is \"off\" on this server; an admin can set it to \"bubblewrap\""
                .to_owned(),
        ),
        ExecutorKind::Bubblewrap => {
            // A jail that cannot be made is no fault of a task.
            if let Some(missing) = config.mounts.iter().find(|folder| !folder.is_dir()) {
                return Err(format!(
                    "tools.mounts has {}, which is no folder here; correct it, or leave it out",
                    missing.display()
                ));
            }
            let jails = Bubblewrap::new(guest).map_err(|error| error.to_string())?;
            jails.check().map_err(|error| error.to_string())?;
            Ok(Arc::new(jails))
        }
    }
}
