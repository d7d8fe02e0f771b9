//! A task as it is drafted: its request, and its files by the SHA-256 of their contents.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hone_api_types::tasks::{TaskFile, TaskRequest};
use hone_domain::{Digest, TASK_BYTES_MAX, TASK_FILES_MAX, is_inside};

use super::git::{Change, Commit, Entry, Repository, Tree};
use super::layout::{Kind, Language, kind};
use super::message;
use super::verifier::{Runner, solve};

/// Largest file that a task gets, so that it fits a request in any form; larger ones are left out.
pub(super) const FILE_BYTES_MAX: u64 = 4 << 20;
/// Most files that a commit of one task changes.
const CHANGES_MAX: usize = 60;
/// How long tests may take, in seconds.
const VERIFIER_SECONDS: u64 = 120;
/// Settings of pytest beside `pytest.ini`, and the section of each.
const PYTEST_SECTIONS: [(&str, &str); 3] = [
    ("pyproject.toml", "[tool.pytest"),
    ("tox.ini", "[pytest]"),
    ("setup.cfg", "[tool:pytest]"),
];

/// Why no task is made of something.
pub(super) type Skip = String;
/// A task, or why there is none.
pub(super) type Drafted = Result<TaskRequest, Skip>;

/// Contents of a repository by their SHA-256, with those that a server does not have yet.
#[derive(Default)]
pub(super) struct Contents {
    known: HashMap<String, (Digest, u64)>,
    bytes: HashMap<Digest, u64>,
    /// To be sent.
    pub(super) waiting: BTreeMap<Digest, Vec<u8>>,
    sent: BTreeSet<Digest>,
}

impl Contents {
    fn add(&mut self, content: Vec<u8>) -> Digest {
        let digest = Digest::of(&content);
        self.bytes.insert(digest, content.len() as u64);
        if !self.sent.contains(&digest) {
            self.waiting.insert(digest, content);
        }
        digest
    }

    fn object(&mut self, repository: &mut Repository, object: &str) -> Result<Digest, String> {
        if let Some((digest, _)) = self.known.get(object) {
            return Ok(*digest);
        }
        let content = repository.content(object)?;
        let bytes = content.len() as u64;
        let digest = self.add(content);
        self.known.insert(object.to_owned(), (digest, bytes));
        Ok(digest)
    }

    /// Takes what is to be sent.
    pub(super) fn take(&mut self) -> BTreeMap<Digest, Vec<u8>> {
        self.sent.extend(self.waiting.keys());
        std::mem::take(&mut self.waiting)
    }
}

/// Drafts tasks.
pub(super) struct Drafter {
    pub(super) repository: Repository,
    pub(super) contents: Contents,
    /// The command that runs tests, where one is named.
    pub(super) command: Option<String>,
}

/// The three folders of a task.
#[derive(Default)]
struct Folders {
    environment: BTreeMap<String, Digest>,
    tests: BTreeMap<String, Digest>,
    solution: BTreeMap<String, Digest>,
}

/// The test files that decide, in one language.
fn deciding(paths: &[&str]) -> Option<(Language, Vec<String>)> {
    let mut by: BTreeMap<Language, Vec<String>> = BTreeMap::new();
    for path in paths {
        if let Kind::Test(language) = kind(path) {
            by.entry(language).or_default().push((*path).to_owned());
        }
    }
    by.into_iter().max_by_key(|(_, files)| files.len())
}

/// Files that are small enough for a task.
fn usable(tree: &Tree) -> impl Iterator<Item = &Entry> {
    tree.files
        .iter()
        .filter(|entry| entry.bytes <= FILE_BYTES_MAX)
}

/// Why a tree can be no work folder.
pub(super) fn too_large(tree: &Tree) -> Option<Skip> {
    let bytes: u64 = usable(tree).map(|entry| entry.bytes).sum();
    let count = usable(tree).count();
    (bytes > TASK_BYTES_MAX || count > TASK_FILES_MAX).then(|| {
        format!("the tree has more than {TASK_FILES_MAX} files or {} MiB (--path narrows it to a folder)", TASK_BYTES_MAX >> 20)
    })
}

impl Drafter {
    /// How a commit's tests are run, and which they are, where it changes code and tests.
    fn decided(&self, changed: &[&Change]) -> Result<(Runner, Vec<String>), Skip> {
        let there = changed.iter().filter(|change| change.after.is_some());
        let there: Vec<&str> = there.map(|change| change.path.as_str()).collect();
        let (language, files) =
            deciding(&there).ok_or("the commit adds and changes no tests".to_owned())?;
        if !changed
            .iter()
            .any(|change| kind(&change.path) == Kind::Code)
        {
            return Err("the commit changes no code".to_owned());
        }
        if changed.len() > CHANGES_MAX {
            return Err(format!("the commit changes more than {CHANGES_MAX} files"));
        }
        let runner = Runner::of(language, self.command.as_deref());
        Ok((runner.ok_or_else(|| by_command(language))?, files))
    }

    /// The task that a commit is.
    pub(super) fn of_commit(&mut self, commit: &Commit) -> Result<Drafted, String> {
        let changed = commit.changes.iter();
        let changed = changed.filter(|change| change.before.is_some() || change.after.is_some());
        let changed: Vec<&Change> = changed.collect();
        let (runner, files) = match self.decided(&changed) {
            Ok(decided) => decided,
            Err(why) => return Ok(Err(why)),
        };
        let added = self.added_lines(&changed)?;
        let Some(request) = message::request(&commit.message, &added) else {
            return Ok(Err("the commit's message says too little".to_owned()));
        };
        let (before, after) = (
            self.repository.tree(&commit.parent)?,
            self.repository.tree(&commit.hash)?,
        );
        if let Some(why) = too_large(&before).or_else(|| too_large(&after)) {
            return Ok(Err(why));
        }
        let small: BTreeSet<&str> = usable(&after).map(|entry| entry.path.as_str()).collect();
        let is_large =
            |change: &Change| change.after.is_some() && !small.contains(change.path.as_str());
        if changed.iter().any(|change| is_large(change)) {
            let most = FILE_BYTES_MAX >> 20;
            return Ok(Err(format!("the commit changes a file above {most} MiB")));
        }
        let of_tests = |path: &str| {
            kind(path).is_of_tests() && changed.iter().any(|change| change.path == path)
        };
        let mut folders = Folders::default();
        for entry in usable(&before).filter(|entry| !of_tests(&entry.path)) {
            let digest = self.contents.object(&mut self.repository, &entry.object)?;
            folders.environment.insert(entry.path.clone(), digest);
        }
        let mut removed = Vec::new();
        for change in changed
            .iter()
            .filter(|change| !kind(&change.path).is_of_tests())
        {
            match &change.after {
                Some(object) => {
                    let digest = self.contents.object(&mut self.repository, object)?;
                    folders
                        .solution
                        .insert(format!("files/{}", change.path), digest);
                }
                None => removed.push(change.path.clone()),
            }
        }
        folders
            .solution
            .insert("solve.sh".to_owned(), self.contents.add(solve(&removed)));
        self.tests(&mut folders, &runner, &after, &files)?;
        let instruction = format!(
            "Change the code in /app as this says:\n\n{request}\n\n{}",
            tested(&files, &runner, false)
        );
        Ok(self.task(commit.hash.chars().take(12).collect(), instruction, folders))
    }

    /// Lines of code that a commit adds.
    fn added_lines(&mut self, changed: &[&Change]) -> Result<Vec<String>, String> {
        let mut added = Vec::new();
        for change in changed
            .iter()
            .filter(|change| kind(&change.path) == Kind::Code)
        {
            let mut text = |object: &Option<String>| match object {
                Some(object) => {
                    let content = self.repository.content(object)?;
                    Ok::<_, String>(String::from_utf8_lossy(&content).into_owned())
                }
                None => Ok(String::new()),
            };
            let (before, after) = (text(&change.before)?, text(&change.after)?);
            let before: BTreeSet<&str> = before.lines().map(str::trim).collect();
            let new = after
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty() && !before.contains(line));
            added.extend(new.map(str::to_owned));
        }
        Ok(added)
    }

    /// The files of `/tests`: what belongs to tests in a tree, and what runs those that decide.
    fn tests(
        &mut self,
        folders: &mut Folders,
        runner: &Runner,
        tree: &Tree,
        files: &[String],
    ) -> Result<(), String> {
        let mut settings = None;
        for entry in usable(tree) {
            let of = kind(&entry.path);
            if !(of.is_of_tests() || of == Kind::Settings) {
                continue;
            }
            let digest = self.contents.object(&mut self.repository, &entry.object)?;
            folders.tests.insert(format!("tree/{}", entry.path), digest);
            if settings.is_none() && *runner == Runner::Python && self.is_of_pytest(entry)? {
                settings = Some(entry.path.clone());
            }
        }
        for (path, content) in runner.files(files, settings.as_deref()) {
            folders.tests.insert(path, self.contents.add(content));
        }
        Ok(())
    }

    /// Whether pytest finds its settings in this file of the top folder.
    fn is_of_pytest(&mut self, entry: &Entry) -> Result<bool, String> {
        if matches!(entry.path.as_str(), "pytest.ini" | ".pytest.ini") {
            return Ok(true);
        }
        let Some((_, section)) = PYTEST_SECTIONS.iter().find(|(name, _)| *name == entry.path)
        else {
            return Ok(false);
        };
        let content = self.repository.content(&entry.object)?;
        Ok(String::from_utf8_lossy(&content).contains(section))
    }

    /// The task of these folders, where it can be one.
    fn task(&self, name: String, instruction: String, folders: Folders) -> Drafted {
        let all = || {
            [&folders.environment, &folders.tests, &folders.solution]
                .into_iter()
                .flatten()
        };
        if all().any(|(path, _)| !is_inside(path)) {
            return Err("a path is longer than 255 bytes or has a backslash".to_owned());
        }
        let bytes: u64 = all()
            .map(|(path, digest)| path.len() as u64 + self.contents.bytes[digest])
            .sum();
        if bytes > TASK_BYTES_MAX || all().count() > TASK_FILES_MAX {
            return Err(format!(
                "the task would have more than {TASK_FILES_MAX} files or {} MiB",
                TASK_BYTES_MAX >> 20
            ));
        }
        let shared = |files: BTreeMap<String, Digest>| {
            let files = files.into_iter();
            files
                .map(|(path, sha256)| (path, TaskFile::Shared { sha256 }))
                .collect::<BTreeMap<_, _>>()
        };
        Ok(TaskRequest {
            name,
            instruction,
            environment: shared(folders.environment),
            tests: shared(folders.tests),
            solution: shared(folders.solution),
            verifier_seconds: Some(VERIFIER_SECONDS),
            ..TaskRequest::default()
        })
    }

    /// The task to put right what an exercise took out of a file.
    pub(super) fn of_exercise(
        &mut self,
        tree: &Tree,
        exercise: &Exercise,
    ) -> Result<Drafted, String> {
        let Some(runner) = Runner::of(Language::Python, self.command.as_deref()) else {
            return Ok(Err(by_command(Language::Python)));
        };
        let mut folders = Folders::default();
        for entry in usable(tree) {
            if !exercise.shows_tests && exercise.tests.contains(&entry.path) {
                continue;
            }
            let digest = self.contents.object(&mut self.repository, &entry.object)?;
            folders.environment.insert(entry.path.clone(), digest);
            if entry.path == exercise.path {
                folders
                    .solution
                    .insert(format!("files/{}", entry.path), digest);
            }
        }
        let changed = self.contents.add(exercise.text.clone().into_bytes());
        folders.environment.insert(exercise.path.clone(), changed);
        folders
            .solution
            .insert("solve.sh".to_owned(), self.contents.add(solve(&[])));
        self.tests(&mut folders, &runner, tree, &exercise.tests)?;
        let tested = tested(&exercise.tests, &runner, exercise.shows_tests);
        let instruction = match exercise.shows_tests {
            true => format!(
                "Tests of the code in /app fail because of one mistake in the code. Find the mistake and correct it.\n\n{tested}"
            ),
            false => format!(
                "Write the body of the function `{}` in {}: it raises NotImplementedError now. Keep its signature.\n\n{tested}",
                exercise.function, exercise.path
            ),
        };
        let digest = Digest::of(exercise.text.as_bytes()).to_hex();
        let path: String = exercise.path.chars().rev().take(100).collect();
        let path: String = path.chars().rev().collect();
        let name = format!("{path}:{} {}", exercise.function, &digest[..8]);
        Ok(self.task(name, instruction, folders))
    }
}

/// A function of which something is missing or wrong.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
pub(super) struct Exercise {
    pub(super) path: String,
    pub(super) function: String,
    /// What the file is then.
    pub(super) text: String,
    pub(super) tests: Vec<String>,
    /// Whether who solves it sees the tests.
    #[serde(skip)]
    pub(super) shows_tests: bool,
}

fn by_command(language: Language) -> Skip {
    format!(
        "its tests are in {}, which need --test 'COMMAND {{files}}'",
        language.name()
    )
}

/// What a task says of its tests.
fn tested(files: &[String], runner: &Runner, are_here: bool) -> String {
    let hidden = if are_here {
        ""
    } else {
        " You do not have these tests."
    };
    format!(
        "Your work is tested by running {} with {}.{hidden}",
        files.join(", "),
        runner.words()
    )
}
