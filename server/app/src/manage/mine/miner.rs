//! Makes one task after the other of a repository.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use hone_api_types::tasks::TaskRequest;

use super::draft::{Contents, Drafter, Exercise, too_large};
use super::exercises;
use super::git::{Commit, Repository, Tree};
use super::options::{MineArgs, Source};

/// Where tasks come from.
enum Candidates {
    Commits(VecDeque<Commit>),
    Exercises(Box<Tree>, VecDeque<Exercise>),
}

/// Makes one task after the other.
pub(super) struct Miner {
    pub(super) drafter: Drafter,
    candidates: Candidates,
    /// Of commits or exercises.
    pub(super) all: usize,
    /// Why something became no task, and how often.
    pub(super) skipped: BTreeMap<String, usize>,
}

impl Miner {
    pub(super) fn open(folder: &Path, how: &MineArgs) -> Result<Self, String> {
        let repository = Repository::open(folder, how.path.as_deref())?;
        let mut drafter = Drafter {
            repository,
            contents: Contents::default(),
            command: how.test.clone(),
        };
        let tree = drafter.repository.tree("HEAD")?;
        if let Some(why) = too_large(&tree) {
            // Older trees may be smaller, but what a developer works on today is not.
            return Err(format!("{} is too large: {why}", folder.display()));
        }
        for (count, what) in [
            (tree.links, "symbolic links"),
            (tree.submodules, "submodules"),
        ] {
            if count > 0 {
                eprintln!("{count} {what} are left out of the tasks");
            }
        }
        let candidates = match how.from {
            Source::Folder | Source::Git => Candidates::Commits(
                drafter
                    .repository
                    .commits(how.commits, how.since.as_deref())?
                    .into(),
            ),
            Source::Functions | Source::Mutations => {
                let is_wrong = how.from == Source::Mutations;
                let found = exercises::of(&mut drafter.repository, &tree, is_wrong)?;
                Candidates::Exercises(Box::new(tree), found.into())
            }
        };
        let all = match &candidates {
            Candidates::Commits(commits) => commits.len(),
            Candidates::Exercises(_, exercises) => exercises.len(),
        };
        Ok(Self {
            drafter,
            candidates,
            all,
            skipped: BTreeMap::new(),
        })
    }

    /// The next task.
    pub(super) fn next(&mut self) -> Result<Option<TaskRequest>, String> {
        loop {
            let drafted = match &mut self.candidates {
                Candidates::Commits(commits) => match commits.pop_front() {
                    Some(commit) => self.drafter.of_commit(&commit)?,
                    None => return Ok(None),
                },
                Candidates::Exercises(tree, exercises) => match exercises.pop_front() {
                    Some(exercise) => self.drafter.of_exercise(tree, &exercise)?,
                    None => return Ok(None),
                },
            };
            match drafted {
                Ok(task) => return Ok(Some(task)),
                Err(why) => *self.skipped.entry(why).or_default() += 1,
            }
        }
    }

    pub(super) fn progress(&self) -> String {
        let (left, what) = match &self.candidates {
            Candidates::Commits(commits) => (commits.len(), "commits"),
            Candidates::Exercises(_, exercises) => (exercises.len(), "functions"),
        };
        format!("{} of {} {what} looked at", self.all - left, self.all)
    }

    /// What would bring more tasks.
    pub(super) fn hint(&self) -> Option<String> {
        match &self.candidates {
            Candidates::Commits(_) if self.drafter.repository.is_shallow() => Some(format!(
                "this clone is shallow, and {} commits were read; git fetch --unshallow brings the others",
                self.all
            )),
            Candidates::Commits(_) => Some(
                "all commits that --commits and --since select were read; raise --commits, give an earlier --since, or use \
                 --from functions or --from mutations (Python)"
                    .to_owned(),
            ),
            Candidates::Exercises(..) => None,
        }
    }

    /// Why there is not one task.
    pub(super) fn nothing(&self) -> String {
        match &self.candidates {
            Candidates::Commits(_) => format!(
                "none of {} commits became a task: one has to change code and tests, and to say what it does",
                self.all
            ),
            Candidates::Exercises(..) => {
                "no function was found that a test in Python names".to_owned()
            }
        }
    }
}
