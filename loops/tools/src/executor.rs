//! The two traits that callers see.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{Command, JailSpec, Snapshot, ToolResult, ToolsError};

/// What kind of jails an executor opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Namespaces by bubblewrap.
    Bubblewrap,
    /// Processes of this machine, without isolation.
    Process,
}

/// Opens jails.
#[async_trait]
pub trait Executor: Send + Sync {
    /// Opens a jail.
    async fn open(&self, spec: &JailSpec) -> Result<Box<dyn Jail>, ToolsError>;

    /// What kind of jails these are.
    fn kind(&self) -> Kind;
}

/// How a limit is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBy {
    /// A cgroup counts the whole jail.
    Cgroup,
    /// The kernel counts each process by itself, and the guest looks at their sum while commands run.
    Rlimit,
    /// Nothing.
    Nothing,
}

/// Which walls a jail really has. What a kernel lacks is left out, and said here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Namespaces of its own for users, mounts, processes, network, host name and IPC.
    pub namespaces: bool,
    /// Landlock: writes only in the folders of the jail.
    pub landlock: bool,
    /// A filter of system calls.
    pub seccomp: bool,
    /// Who holds the limit of memory.
    pub memory: HeldBy,
    /// Who holds the limit of processes.
    pub processes: HeldBy,
}

/// One jail. Commands run in it one after another or at once; its files and background processes stay until it is
/// closed. Dropping it ends everything in it and removes its files.
#[async_trait]
pub trait Jail: Send + Sync {
    /// Which walls it has.
    fn capabilities(&self) -> Capabilities;

    /// Runs a command to its end. Dropping the future kills the command.
    async fn exec(&self, command: Command) -> ToolResult;

    /// Writes one file. The path is in the work folder or in one of the further folders.
    async fn put(&self, path: &str, bytes: &[u8]) -> Result<(), ToolsError>;

    /// Unpacks a tar into a folder.
    async fn put_tar(&self, folder: &str, tar: &[u8]) -> Result<(), ToolsError>;

    /// Reads one file of at most `bytes_max`.
    async fn get(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, ToolsError>;

    /// Reads a folder as a tar of at most `bytes_max`. Links stay links.
    async fn get_tar(&self, folder: &str, bytes_max: u64) -> Result<Vec<u8>, ToolsError>;

    /// What differs in the work folder from the files it began with.
    async fn snapshot(&self) -> Result<Snapshot, ToolsError>;

    /// Makes the work folder what it was at a snapshot of a jail that began with the same files.
    async fn restore(&self, snapshot: &Snapshot) -> Result<(), ToolsError>;

    /// Ends every process in the jail. Commands that run end as cancelled.
    async fn kill_all(&self) -> Result<(), ToolsError>;

    /// Ends the jail and waits until nothing of it is left.
    async fn close(self: Box<Self>);
}
