//! Tasks from a developer's own repository: from its commits, from its functions, or from mistakes put into it. The
//! repository is only read; the server's check says which tasks can tell a solution from none.

mod draft;
mod exercises;
mod git;
mod layout;
mod message;
mod miner;
mod options;
mod upload;
mod verifier;

#[cfg(test)]
mod cheat_tests;
#[cfg(test)]
mod mine_tests;

use std::path::Path;

use serde_json::Value;

use super::call::Server;
use miner::Miner;
use upload::Upload;

pub(crate) use options::{MineArgs, Source};

/// Makes tasks of a repository and adds them until enough are checked.
///
/// # Errors
/// A sentence with a remedy.
pub(super) async fn add(
    server: &Server,
    folder: &Path,
    name: String,
    held_out: f64,
    how: &MineArgs,
) -> Result<Value, String> {
    let mut miner = Miner::open(folder, how)?;
    Upload::new(server, name, held_out)
        .fill(&mut miner, how.tasks)
        .await
}
