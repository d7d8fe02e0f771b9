//! Tools: jails in which the commands of an agent run.
//!
//! - In: a [`JailSpec`], then [`Command`]s and files.
//! - Out: [`ToolResult`]s, files and [`Snapshot`]s. A jail that is lost makes an outcome unknown, never failed.
//! - Rights: starts processes; makes cgroups where it may, and folders for temporary files.
//! - Promises: a command reaches nothing but its jail and, when told, one socket. Time, output, memory, processes and
//!   files have limits. When a jail is closed or dropped, or this process dies, nothing of it is left running.
//! - Never: knows models, tokens, the ledger, HTTP, or what a command is for.

pub mod archive;
mod bubblewrap;
mod cgroup;
mod client;
mod command;
mod error;
mod executor;
pub mod guest;
mod jail;
mod leftover;
mod plain;
mod process;
mod relay;
mod snapshot;
mod spec;
mod wire;

pub use bubblewrap::{Bubblewrap, GuestProgram};
pub use command::{
    Command, KilledBy, OUTPUT_BYTES_MAX, Outcome, Output, Program, STDIN_BYTES_MAX, ToolResult,
};
pub use error::ToolsError;
pub use executor::{Capabilities, Executor, HeldBy, Jail, Kind};
pub use plain::PlainProcess;
pub use snapshot::Snapshot;
pub use spec::{Files, JailSpec, Mount};
