//! `hone tasks`: sets of tasks that agents of a running server try.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hone_api_types::tasks::{FileContent, TaskFile, TaskRequest, TaskSetRequest};
use hone_domain::TASK_BYTES_MAX;
use reqwest::Method;
use serde_json::{Value, json};
use toml::Table;

use super::call::{Call, Server, send, show};
use super::mine::{self, MineArgs, Source};
use crate::table::{
    Side::{Left, Right},
    table,
};

/// Most bytes of a request, as servers are configured where nobody says otherwise.
const REQUEST_BYTES_MAX: usize = 8 << 20;
/// How often a set is looked at while its tasks are checked, and how often at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOKS_MAX: u32 = 60 * 60;

/// What `hone tasks add` says of repositories.
const MINED: &str = "--from git makes tasks of a repository's commits that change code and tests: the agent gets the tree before the \
    commit and its message as the request; the commit's tests decide. --from functions has it write the bodies of functions in \
    Python that tests name, --from mutations find a mistake put into one. The repository is only read. Each task is checked \
    on the server: its solution has to pass, and doing nothing must not.\n\n\
    Tests in Python (pytest where the server has it, else unittest) and Node run as they are. Other languages need --test; its \
    exit code alone decides then.\n\nExamples:\n  hone tasks add ./my-repo --from git\n  hone tasks add ./my-repo --from git \
    --tasks 20 --since 2025-01-01 --path services/api\n  hone tasks add ./my-repo --from git --test 'prove {files}'\n  \
    hone tasks add ./my-repo --from functions --name my-functions";

/// What to do with tasks.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "A task is a folder: instruction.md, tests/test.sh, and what else there is of environment/ (files of \
    the work folder), solution/solve.sh and task.toml (agent.timeout_sec, verifier.timeout_sec, hone.answer_file, \
    hone.held_out).\n\nExamples:\n  hone tasks add ./tasks\n  hone tasks add ./my-repo --from git\n  hone tasks show tasks\n  \
    hone rollout run tasks"
)]
pub(crate) enum TasksCommand {
    /// Add a folder of tasks, one task, or tasks made of a repository, and wait until they are checked.
    #[command(after_help = MINED)]
    Add {
        /// The folder or the repository.
        folder: PathBuf,
        /// Name of the set; the folder's own if absent.
        #[arg(long)]
        name: Option<String>,
        /// Share of the tasks that is kept to measure on.
        #[arg(long, default_value_t = 0.2)]
        held_out: f64,
        #[command(flatten)]
        mine: MineArgs,
        #[command(flatten)]
        server: Server,
    },
    /// Your sets, newest first.
    List(Server),
    /// The tasks of a set, what is known of each, and why.
    Show {
        /// Its name or id.
        set: String,
        #[command(flatten)]
        server: Server,
    },
    /// Put a quarantined task back: it is checked again, and tried once it is ready. `hone tasks show` says why it is
    /// quarantined.
    Release {
        /// The set's name or id.
        set: String,
        /// The task's name or id.
        task: String,
        #[command(flatten)]
        server: Server,
    },
    /// Remove a set with its rollouts.
    Remove {
        /// Its name or id.
        set: String,
        #[command(flatten)]
        server: Server,
    },
}

/// Runs one command.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn tasks(command: TasksCommand) -> Result<ExitCode, String> {
    match command {
        TasksCommand::Add {
            folder,
            name,
            held_out,
            mine,
            server,
        } => match mine.from {
            Source::Folder => {
                mine.check_unused()?;
                let set = set_of(&folder, name, held_out)?;
                show(&server, add(&server, set), one)
            }
            Source::Git | Source::Functions | Source::Mutations => {
                let name = match name {
                    Some(name) => name,
                    None => named(
                        &folder
                            .canonicalize()
                            .map_err(|error| unreadable(&folder, &error))?,
                    ),
                };
                show(
                    &server,
                    mine::add(&server, &folder, name, held_out, &mine),
                    one,
                )
            }
        },
        TasksCommand::List(server) => {
            let call = Call::get("/v1/task-sets".to_owned(), list);
            show(&server, send(&server, &call), list)
        }
        TasksCommand::Show { set, server } => show(&server, look(&server, &set), one),
        TasksCommand::Release { set, task, server } => {
            show(&server, release(&server, &set, &task), |_| {
                "it is being checked; hone tasks show says what came of it\n".to_owned()
            })
        }
        TasksCommand::Remove { set, server } => show(&server, remove(&server, &set), |_| {
            "it is gone\n".to_owned()
        }),
    }
}

async fn add(server: &Server, set: TaskSetRequest) -> Result<Value, String> {
    let body = serde_json::to_value(&set).map_err(|error| error.to_string())?;
    let bytes = body.to_string().len();
    if bytes > REQUEST_BYTES_MAX {
        return Err(format!(
            "the set takes {bytes} bytes and a request at most {REQUEST_BYTES_MAX} (http.body_bytes_max); add it in parts"
        ));
    }
    let call = Call {
        method: Method::POST,
        path: "/v1/task-sets".to_owned(),
        body: Some(body),
        show: one,
    };
    let added = send(server, &call).await?;
    let id = added["id"].as_str().unwrap_or_default().to_owned();
    let all = added["tasks"].as_u64().unwrap_or(0);
    let mut told = None;
    for _ in 0..LOOKS_MAX {
        let set = get(server, &id).await?;
        let left = set["states"]["new"].as_u64().unwrap_or(0);
        if left == 0 {
            return Ok(set);
        }
        if told != Some(left) {
            eprintln!("checking: {} of {all} tasks", all - left);
            told = Some(left);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(format!(
        "tasks are still being checked; hone tasks show {id} says how far that is"
    ))
}

async fn get(server: &Server, id: &str) -> Result<Value, String> {
    send(server, &Call::get(format!("/v1/task-sets/{id}"), one)).await
}

/// The id of a set that is named or given by its id.
pub(super) async fn resolved(server: &Server, set: &str) -> Result<String, String> {
    let sets = send(server, &Call::get("/v1/task-sets".to_owned(), list)).await?;
    let sets = sets["data"].as_array().cloned().unwrap_or_default();
    let found = sets
        .iter()
        .find(|row| row["name"] == set || row["id"] == set);
    let id = found.and_then(|row| row["id"].as_str());
    id.map(str::to_owned).ok_or_else(|| {
        let names: Vec<&str> = sets.iter().filter_map(|row| row["name"].as_str()).collect();
        match names.is_empty() {
            true => "you have no task sets; hone tasks add FOLDER makes one".to_owned(),
            false => format!(
                "you have no task set {set:?}; there is {}",
                names.join(", ")
            ),
        }
    })
}

async fn look(server: &Server, set: &str) -> Result<Value, String> {
    let id = resolved(server, set).await?;
    get(server, &id).await
}

async fn release(server: &Server, set: &str, task: &str) -> Result<Value, String> {
    let id = resolved(server, set).await?;
    let path = format!("/v1/task-sets/{id}");
    let known = send(server, &Call::get(path.clone(), one)).await?;
    let tasks = known["data"].as_array().cloned().unwrap_or_default();
    let found = tasks
        .iter()
        .find(|row| row["name"] == task || row["id"] == task);
    let found = found.and_then(|row| row["id"].as_str());
    let found = found
        .ok_or_else(|| format!("{set} has no task {task:?}; hone tasks show {set} lists them"))?;
    let call = Call {
        method: Method::POST,
        path: format!("{path}/tasks/{found}/release"),
        body: None,
        show: one,
    };
    send(server, &call).await
}

async fn remove(server: &Server, set: &str) -> Result<Value, String> {
    let id = resolved(server, set).await?;
    let call = Call {
        method: Method::DELETE,
        path: format!("/v1/task-sets/{id}"),
        body: None,
        show: one,
    };
    send(server, &call).await
}

pub(super) fn text_of(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    // A terminal does as it is told.
    text.replace(|c: char| c.is_control() && c != '\n', " ")
}

fn list(answer: &Value) -> String {
    let rows = answer["data"].as_array().into_iter().flatten().map(|set| {
        let states = set["states"].as_object().into_iter().flatten();
        let states: Vec<String> = states.map(|(state, n)| format!("{n} {state}")).collect();
        vec![
            text_of(&set["name"]),
            set["tasks"].to_string(),
            set["held_out"].to_string(),
            states.join(", "),
            text_of(&set["id"]),
        ]
    });
    let names = [
        ("name", Left),
        ("tasks", Right),
        ("held out", Right),
        ("", Left),
        ("id", Left),
    ];
    table(&names, &rows.collect::<Vec<_>>())
}

fn one(set: &Value) -> String {
    let mut text = format!(
        "task set {}: {} tasks, {} held out\n",
        text_of(&set["name"]),
        set["tasks"],
        set["held_out"]
    );
    let rows = set["data"].as_array().into_iter().flatten().map(|task| {
        let mean = task["mean_reward"].as_f64();
        vec![
            text_of(&task["name"]),
            if task["held_out"] == true {
                "held out"
            } else {
                ""
            }
            .to_owned(),
            text_of(&task["state"]),
            task["tries"].to_string(),
            mean.map_or("-".to_owned(), |mean| format!("{mean:.2}")),
            text_of(&task["note"]).replace('\n', " "),
        ]
    });
    let names = [
        ("task", Left),
        ("", Left),
        ("state", Left),
        ("tries", Right),
        ("reward", Right),
        ("", Left),
    ];
    text.push_str(&table(&names, &rows.collect::<Vec<_>>()));
    text
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("{} cannot be read: {error}", path.display())
}

/// What a folder is called.
fn named(folder: &Path) -> String {
    let name = folder.file_name();
    name.map_or("tasks".to_owned(), |name| {
        name.to_string_lossy().into_owned()
    })
}

/// The set that a folder holds.
fn set_of(folder: &Path, name: Option<String>, held_out: f64) -> Result<TaskSetRequest, String> {
    let unreadable = |error: std::io::Error| unreadable(folder, &error);
    let folder = &folder.canonicalize().map_err(unreadable)?;
    let mut folders: Vec<PathBuf> = match folder.join("instruction.md").exists() {
        true => vec![folder.clone()],
        false => {
            let entries = fs::read_dir(folder).map_err(unreadable)?;
            let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
            paths
                .filter(|path| path.join("instruction.md").exists())
                .collect()
        }
    };
    if folders.is_empty() {
        return Err(format!(
            "{} holds no task: a task is a folder with instruction.md and tests/test.sh",
            folder.display()
        ));
    }
    folders.sort();
    let tasks = folders.iter().map(|path| task_of(path, named(path)));
    Ok(TaskSetRequest {
        name: name.unwrap_or_else(|| named(folder)),
        files: Vec::new(),
        tasks: tasks.collect::<Result<_, _>>()?,
        held_out_share: Some(held_out),
    })
}

fn task_of(folder: &Path, name: String) -> Result<TaskRequest, String> {
    let read = |path: &Path| {
        fs::read_to_string(path)
            .map_err(|error| format!("{} cannot be read: {error}", path.display()))
    };
    let settings = folder.join("task.toml");
    let settings: Table = match settings.exists() {
        true => {
            let text = read(&settings)?;
            let parsed = text.parse();
            parsed.map_err(|error| format!("{} is not TOML: {error}", settings.display()))?
        }
        false => Table::new(),
    };
    let settings = Settings::of(&settings).map_err(|why| format!("{name}: task.toml: {why}"))?;
    let mut environment = files(&folder.join("environment"))?;
    if let Some(file) = environment.remove("Dockerfile") {
        docker_free(&name, &file)?;
    }
    Ok(TaskRequest {
        instruction: read(&folder.join("instruction.md"))?,
        environment,
        tests: files(&folder.join("tests"))?,
        solution: files(&folder.join("solution"))?,
        answer_file: settings.answer_file,
        held_out: settings.held_out,
        agent_seconds: settings.agent_seconds,
        verifier_seconds: settings.verifier_seconds,
        name,
    })
}

/// What `task.toml` says. Sections of other programs may say what they like; what is read here is checked.
#[derive(Default)]
struct Settings {
    agent_seconds: Option<u64>,
    verifier_seconds: Option<u64>,
    answer_file: Option<String>,
    held_out: Option<bool>,
}

impl Settings {
    fn of(table: &Table) -> Result<Self, String> {
        let seconds = |section: &str| {
            let Some(value) = table
                .get(section)
                .and_then(|section| section.get("timeout_sec"))
            else {
                return Ok(None);
            };
            let whole = value.as_integer().map(|n| n as f64);
            match value.as_float().or(whole) {
                Some(seconds) if seconds >= 1.0 => Ok(Some(seconds as u64)),
                _ => Err(format!(
                    "{section}.timeout_sec must be a number of at least 1"
                )),
            }
        };
        let mut settings = Self {
            agent_seconds: seconds("agent")?,
            verifier_seconds: seconds("verifier")?,
            ..Self::default()
        };
        let own = table.get("hone").and_then(|own| own.as_table());
        for (key, value) in own.into_iter().flatten() {
            match (key.as_str(), value.as_str(), value.as_bool()) {
                ("answer_file", Some(file), _) => settings.answer_file = Some(file.to_owned()),
                ("held_out", _, Some(held_out)) => settings.held_out = Some(held_out),
                _ => {
                    return Err(format!(
                        "hone.{key} is not known or not of its kind; there are hone.answer_file (a text) and \
                         hone.held_out (true or false)"
                    ));
                }
            }
        }
        Ok(settings)
    }
}

/// Refuses a task whose image is more than files: jails have this machine's programs.
fn docker_free(name: &str, file: &TaskFile) -> Result<(), String> {
    let TaskFile::Content(FileContent::Text(text)) = file else {
        return Err(format!("{name}: environment/Dockerfile is no text"));
    };
    let needs = text.lines().map(str::trim).find(|line| {
        let word = line
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .to_uppercase();
        let is_plain = matches!(word.as_str(), "" | "FROM" | "WORKDIR" | "COPY" | "ADD");
        !is_plain && !line.starts_with('#')
    });
    match needs {
        None => Ok(()),
        Some(line) => Err(format!(
            "{name}: environment/Dockerfile needs Docker ({line}); jails have the programs of this machine, so install \
             what the task needs here and take that line out"
        )),
    }
}

/// The files below a folder, by path; none where there is no folder. Links are not followed.
fn files(folder: &Path) -> Result<BTreeMap<String, TaskFile>, String> {
    let (mut found, mut left, mut bytes) = (BTreeMap::new(), vec![folder.to_path_buf()], 0);
    while let Some(path) = left.pop() {
        let unreadable =
            |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(error)),
        };
        if meta.is_symlink() {
            return Err(format!("{} is a link; a task holds files", path.display()));
        } else if meta.is_dir() {
            let entries = fs::read_dir(&path).map_err(unreadable)?;
            left.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
        } else if meta.is_file() {
            bytes += meta.len();
            if bytes > TASK_BYTES_MAX {
                return Err(format!(
                    "{} has more than {TASK_BYTES_MAX} bytes, which is the most of a task",
                    folder.display()
                ));
            }
            let name = path.strip_prefix(folder).unwrap_or(&path);
            let content = fs::read(&path).map_err(unreadable)?;
            found.insert(
                name.to_string_lossy().into_owned(),
                FileContent::of(content).into(),
            );
        }
    }
    Ok(found)
}

/// What a request says of a set.
pub(super) fn of_set(id: &str) -> Value {
    json!({ "task_set": id })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn write(folder: &Path, path: &str, text: &str) {
        let file = folder.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn a_folder_of_tasks_is_a_set() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        write(at, "b/instruction.md", "Do b.");
        write(at, "b/tests/test.sh", "exit 1");
        write(at, "a/instruction.md", "Do a.");
        write(at, "a/tests/test.sh", "exit 1");
        write(at, "a/tests/deep/x.py", "1");
        write(
            at,
            "a/environment/Dockerfile",
            "# base\nFROM ubuntu\nWORKDIR /app\nCOPY . .\n",
        );
        write(at, "a/environment/data.txt", "7");
        write(
            at,
            "a/task.toml",
            "[agent]\ntimeout_sec = 30.0\n[hone]\nheld_out = true\nanswer_file = \"x.py\"\n",
        );
        write(at, "notes/readme.md", "no task");
        let set = set_of(at, Some("mine".to_owned()), 0.5).unwrap();
        assert_eq!((set.name.as_str(), set.tasks.len()), ("mine", 2));
        let a = &set.tasks[0];
        assert_eq!(
            (a.name.as_str(), a.agent_seconds, a.held_out),
            ("a", Some(30), Some(true))
        );
        assert_eq!(a.answer_file.as_deref(), Some("x.py"));
        assert!(a.tests.contains_key("deep/x.py"));
        assert_eq!(a.environment.keys().collect::<Vec<_>>(), ["data.txt"]);
        assert!(set.checked().is_ok());
        // One task alone is a set of one.
        let one = set_of(&at.join("b"), None, 0.2).unwrap();
        assert_eq!((one.name.as_str(), one.tasks.len()), ("b", 1));
    }

    #[test]
    fn what_cannot_be_a_task_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        assert!(set_of(at, None, 0.2).unwrap_err().contains("holds no task"));
        write(at, "a/instruction.md", "Do a.");
        write(
            at,
            "a/environment/Dockerfile",
            "FROM x\nRUN apt-get install gcc\n",
        );
        let why = set_of(at, None, 0.2).unwrap_err();
        assert!(why.contains("RUN apt-get install gcc"), "{why}");
        fs::remove_file(at.join("a/environment/Dockerfile")).unwrap();
        for (toml, says) in [
            ("[agent]\ntimeout_sec = 0", "agent.timeout_sec must be"),
            (
                "[verifier]\ntimeout_sec = \"1\"",
                "verifier.timeout_sec must be",
            ),
            ("[hone]\nheldout = true", "hone.heldout is not known"),
            (
                "[hone]\nheld_out = \"yes\"",
                "hone.held_out is not known or not of its kind",
            ),
        ] {
            write(at, "a/task.toml", toml);
            let why = set_of(at, None, 0.2).unwrap_err();
            assert!(why.contains(says), "{toml}: {why}");
        }
        write(at, "a/task.toml", "= 1");
        assert!(set_of(at, None, 0.2).unwrap_err().contains("is not TOML"));
        fs::remove_file(at.join("a/task.toml")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at.join("a/environment/p")).unwrap();
        assert!(set_of(at, None, 0.2).unwrap_err().contains("is a link"));
    }
}
