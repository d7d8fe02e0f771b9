//! How tasks are made of a repository.

use clap::{Args, ValueEnum};
use hone_domain::TASKS_MAX;

/// What tasks are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// Folders that are tasks.
    Folder,
    /// A repository's commits that change code and tests.
    Git,
    /// Functions in Python that tests name; their bodies are to be written.
    Functions,
    /// One mistake each in functions in Python that tests name.
    Mutations,
}

/// How tasks are made of a repository.
#[derive(Clone, Debug, Args)]
pub(crate) struct MineArgs {
    /// What the tasks are made of.
    #[arg(long, value_enum, default_value = "folder")]
    pub(crate) from: Source,
    /// How many checked tasks are wanted of a repository.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=TASKS_MAX as u64))]
    pub(super) tasks: u64,
    /// Most commits that are looked at, newest first.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub(super) commits: usize,
    /// Only commits after this date, as git reads dates.
    #[arg(long, value_name = "DATE")]
    pub(super) since: Option<String>,
    /// Only this folder of the repository; it becomes the work folder.
    #[arg(long, value_name = "FOLDER")]
    pub(super) path: Option<String>,
    /// Command that runs tests, with {files} for the test files; its exit code alone decides. Python and Node need none.
    #[arg(long, value_name = "COMMAND")]
    pub(super) test: Option<String>,
}

impl MineArgs {
    /// Refuses what means nothing for a folder of tasks.
    ///
    /// # Errors
    /// The first option that does.
    pub(crate) fn check_unused(&self) -> Result<(), String> {
        let given = [
            ("--since", self.since.is_some()),
            ("--path", self.path.is_some()),
            ("--test", self.test.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((option, _)) => Err(format!(
                "{option} is for tasks made of a repository; say --from git, functions or mutations as well"
            )),
        }
    }
}
