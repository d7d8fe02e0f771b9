//! What a repository's history holds, asked of the program `git`: nothing in the repository is changed, nothing is fetched.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Between a commit's fields in what `git log` prints; no message has it.
const FIELD: &str = "\u{1}\u{2}\u{1}";
const FIELD_FORMAT: &str = "%x01%x02%x01";

/// A repository, or one folder of it.
pub(super) struct Repository {
    folder: PathBuf,
    /// The folder that tasks are made of, from the top and with a slash at its end; empty where it is the top.
    below: String,
    objects: Option<Objects>,
}

/// A commit with what it changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Commit {
    pub(super) hash: String,
    pub(super) parent: String,
    pub(super) message: String,
    pub(super) changes: Vec<Change>,
}

/// A file that a commit changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) path: String,
    /// The object before and after; none where there is no plain file.
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
}

/// A file of a tree.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) object: String,
    pub(super) bytes: u64,
}

/// The plain files of a tree, and what else there is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tree {
    pub(super) files: Vec<Entry>,
    pub(super) links: usize,
    pub(super) submodules: usize,
}

/// `git cat-file --batch`, which answers one object after another.
struct Objects {
    process: Child,
    ask: ChildStdin,
    answer: BufReader<ChildStdout>,
}

impl Drop for Objects {
    fn drop(&mut self) {
        // It ends with its input; what is left of it is not waited for.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder);
    for setting in [
        "core.quotePath=false",
        "log.showSignature=false",
        "core.fsmonitor=false",
    ] {
        command.args(["-c", setting]);
    }
    for (name, value) in [
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("LC_ALL", "C"),
    ] {
        command.env(name, value);
    }
    command.stdin(Stdio::null());
    command
}

fn unstarted(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => {
            "the program git was not found; tasks from a repository need it installed".to_owned()
        }
        _ => format!("git could not be started: {error}"),
    }
}

fn ask(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = command(folder).args(arguments).output();
    let output = output.map_err(|error| unstarted(&error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    if why.contains("not a git repository") {
        return Err(format!(
            "{} is no git repository; tasks are made of a repository's commits",
            folder.display()
        ));
    }
    let what = arguments.first().copied().unwrap_or_default();
    Err(format!("git {what} failed: {}", why.trim()))
}

/// An object of a plain file, by its mode.
fn plain(mode: &str, object: &str) -> Option<String> {
    mode.starts_with("100").then(|| object.to_owned())
}

impl Repository {
    /// The repository that a folder is in; `path` narrows it to a folder of it.
    pub(super) fn open(folder: &Path, path: Option<&str>) -> Result<Self, String> {
        if !folder.is_dir() {
            return Err(format!("{} is no folder", folder.display()));
        }
        let mut below = ask(folder, &["rev-parse", "--show-prefix"])?
            .trim_end_matches('\n')
            .to_owned();
        if let Some(path) = path
            .map(|path| path.trim_matches('/'))
            .filter(|path| !path.is_empty() && *path != ".")
        {
            below = format!("{below}{path}/");
        }
        let repository = Self {
            folder: folder.to_owned(),
            below,
            objects: None,
        };
        if ask(folder, &["rev-parse", "--verify", "--quiet", "HEAD"]).is_err() {
            return Err(format!("{} has no commits yet", folder.display()));
        }
        if !repository.below.is_empty()
            && ask(folder, &["cat-file", "-e", &repository.tree_of("HEAD")]).is_err()
        {
            return Err(format!(
                "the repository has no folder {}",
                repository.below.trim_end_matches('/')
            ));
        }
        Ok(repository)
    }

    /// Whether commits are missing here that the repository has elsewhere.
    pub(super) fn is_shallow(&self) -> bool {
        ask(&self.folder, &["rev-parse", "--is-shallow-repository"])
            .is_ok_and(|said| said.trim() == "true")
    }

    /// The name of the tree of a commit's folder.
    fn tree_of(&self, commit: &str) -> String {
        format!("{commit}:{}", self.below.trim_end_matches('/'))
    }

    /// Commits that are no merges and have a parent, newest first.
    pub(super) fn commits(&self, most: usize, since: Option<&str>) -> Result<Vec<Commit>, String> {
        let format =
            format!("--format={FIELD_FORMAT}%H{FIELD_FORMAT}%P{FIELD_FORMAT}%B{FIELD_FORMAT}");
        let most = format!("--max-count={most}");
        let mut arguments = vec![
            "log",
            "-z",
            "--no-merges",
            "--raw",
            "--no-abbrev",
            "--no-renames",
            "--no-color",
            "--no-ext-diff",
            "--encoding=UTF-8",
            &format,
            &most,
        ];
        let since = since.map(|since| format!("--since={since}"));
        arguments.extend(since.as_deref());
        let below = format!(":(top){}", self.below);
        arguments.extend(["HEAD", "--", &below]);
        let text = ask(&self.folder, &arguments)?;
        let mut fields = text.split(FIELD).skip(1);
        let mut commits = Vec::new();
        while let (Some(hash), Some(parents), Some(message), Some(raw)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        {
            if let Some(parent) = parents.split_whitespace().next() {
                commits.push(Commit {
                    hash: hash.to_owned(),
                    parent: parent.to_owned(),
                    message: message.to_owned(),
                    changes: self.changes(raw),
                });
            }
        }
        Ok(commits)
    }

    /// Of a line of `--raw` and the path after it each.
    fn changes(&self, raw: &str) -> Vec<Change> {
        let mut words = raw.split('\0').map(|word| word.trim_start_matches('\n'));
        let mut changes = Vec::new();
        while let Some(word) = words.next() {
            let Some(line) = word.strip_prefix(':') else {
                continue;
            };
            let fields: Vec<&str> = line.split(' ').collect();
            let (&[mode_before, mode_after, before, after, _], Some(path)) =
                (&fields[..], words.next())
            else {
                continue;
            };
            if let Some(path) = path.strip_prefix(&self.below) {
                changes.push(Change {
                    path: path.to_owned(),
                    before: plain(mode_before, before),
                    after: plain(mode_after, after),
                });
            }
        }
        changes
    }

    /// The files of a commit.
    pub(super) fn tree(&self, commit: &str) -> Result<Tree, String> {
        let tree = self.tree_of(commit);
        let text = match ask(
            &self.folder,
            &["ls-tree", "-r", "-z", "-l", "--full-tree", &tree],
        ) {
            Ok(text) => text,
            // The folder came with a later commit.
            Err(_) if !self.below.is_empty() => return Ok(Tree::default()),
            Err(why) => return Err(why),
        };
        let mut found = Tree::default();
        for line in text.split('\0').filter(|line| !line.is_empty()) {
            let (what, path) = line.split_once('\t').ok_or("git ls-tree printed no path")?;
            let fields: Vec<&str> = what.split_whitespace().collect();
            let &[mode, _, object, bytes] = &fields[..] else {
                return Err(format!("git ls-tree printed {what:?}"));
            };
            match (mode, plain(mode, object)) {
                (_, Some(object)) => found.files.push(Entry {
                    path: path.to_owned(),
                    object,
                    bytes: bytes
                        .parse()
                        .map_err(|_| format!("git ls-tree printed {what:?}"))?,
                }),
                ("160000", _) => found.submodules += 1,
                _ => found.links += 1,
            }
        }
        Ok(found)
    }

    /// The content of an object.
    pub(super) fn content(&mut self, object: &str) -> Result<Vec<u8>, String> {
        let objects = match &mut self.objects {
            Some(objects) => objects,
            none => none.insert(Objects::start(&self.folder)?),
        };
        objects
            .content(object)
            .map_err(|error| format!("git cat-file failed at {object}: {error}"))
    }
}

impl Objects {
    fn start(folder: &Path) -> Result<Self, String> {
        let mut command = command(folder);
        command
            .args(["cat-file", "--batch"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = command.spawn().map_err(|error| unstarted(&error))?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(ask), Some(answer)) => Ok(Self {
                process,
                ask,
                answer: BufReader::new(answer),
            }),
            _ => Err("git cat-file has no pipes".to_owned()),
        }
    }

    fn content(&mut self, object: &str) -> std::io::Result<Vec<u8>> {
        writeln!(self.ask, "{object}")?;
        self.ask.flush()?;
        let mut line = String::new();
        self.answer.read_line(&mut line)?;
        let bytes = line
            .trim_end()
            .rsplit(' ')
            .next()
            .and_then(|bytes| bytes.parse::<usize>().ok());
        let bytes = bytes.ok_or_else(|| std::io::Error::other(line.trim_end().to_owned()))?;
        let mut content = vec![0; bytes];
        self.answer.read_exact(&mut content)?;
        // A line break follows.
        self.answer.read_exact(&mut [0])?;
        Ok(content)
    }
}
