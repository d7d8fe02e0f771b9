//! `hone skill`: folders with a SKILL.md that answers of a running server are shown.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use hone_api_types::tasks::FileContent;
use hone_domain::{SKILL_BYTES_MAX, SKILL_FILE_BYTES_MAX, SKILL_FILES_MAX};
use reqwest::Method;
use serde_json::{Value, json};

use super::call::{Call, Server, Show, send, show};
use super::escaped;
use super::tasks::text_of;
use crate::table::{
    Side::{Left, Right},
    table,
};

/// What an editor or a version control leaves in a folder.
const SKIPPED: [&str; 4] = [".git", ".DS_Store", "__pycache__", ".hg"];

/// What to do with skills.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "A skill is a folder with a SKILL.md (agentskills.io). What looks harmful in one is quarantined: no answer is \
    shown it until you have looked at it and released it.\n\nExamples:\n  hone skill add ./weekly-report\n  hone skill show \
    weekly-report\n  hone skill release weekly-report\n  hone skill restore weekly-report 1\n  hone skill export weekly-report ./skills"
)]
pub(crate) enum SkillCommand {
    /// Your skills, newest first.
    List(Whose),
    /// Add a folder or a tar archive as a skill, or as a version of the skill of its name.
    Add {
        /// The folder with SKILL.md, or a tar archive of it.
        folder: PathBuf,
        #[command(flatten)]
        whose: Whose,
    },
    /// A skill with its text, its versions, and what was found in it.
    Show {
        /// Its name or id.
        skill: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Write a skill's files into a folder of its name.
    Export {
        /// Its name or id.
        skill: String,
        /// Where that folder is made.
        #[arg(default_value = ".")]
        into: PathBuf,
        /// Another version than the current one.
        #[arg(long)]
        version: Option<u32>,
        #[command(flatten)]
        whose: Whose,
    },
    /// Show a skill to no answer until you resume it.
    Pause {
        /// Its name or id.
        skill: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Show a paused skill to answers again.
    Resume {
        /// Its name or id.
        skill: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Show a quarantined skill to answers; look at it first.
    Release {
        /// Its name or id.
        skill: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Remove a skill with all its versions.
    Remove {
        /// Its name or id.
        skill: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Make a version the current one again.
    Restore {
        /// Its name or id.
        skill: String,
        /// The version.
        version: u32,
        #[command(flatten)]
        whose: Whose,
    },
}

/// Which server, and whose skills.
#[derive(Clone, Debug, Args)]
pub(crate) struct Whose {
    /// The `user` field of the requests in question.
    #[arg(long)]
    user: Option<String>,
    #[command(flatten)]
    server: Server,
}

impl Whose {
    fn path(&self, path: &str) -> String {
        match &self.user {
            Some(user) => {
                let sign = if path.contains('?') { '&' } else { '?' };
                format!("/v1/skills{path}{sign}user={}", escaped(user))
            }
            None => format!("/v1/skills{path}"),
        }
    }

    fn change(&self, method: Method, path: &str, mut body: Value) -> Call {
        if let Some(user) = &self.user {
            body["user"] = json!(user);
        }
        Call {
            method,
            path: format!("/v1/skills{path}"),
            body: Some(body),
            show: one,
        }
    }
}

/// Runs one command.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn skill(command: SkillCommand) -> Result<ExitCode, String> {
    let patch = |whose: &Whose, skill: &str, body| {
        let call = whose.change(Method::PATCH, &format!("/{}", escaped(skill)), body);
        told(whose, &call, one)
    };
    match command {
        SkillCommand::List(whose) => told(&whose, &Call::get(whose.path(""), list), list),
        SkillCommand::Add { folder, whose } => told(
            &whose,
            &whose.change(Method::POST, "", packed(&folder)?),
            one,
        ),
        SkillCommand::Show { skill, whose } => show(&whose.server, look(&whose, &skill), whole),
        SkillCommand::Export {
            skill,
            into,
            version,
            whose,
        } => {
            let export = export(&whose, &skill, version, &into);
            show(&whose.server, export, |answer| {
                format!("written to {}\n", text_of(&answer["written"]))
            })
        }
        SkillCommand::Pause { skill, whose } => patch(&whose, &skill, json!({"paused": true})),
        SkillCommand::Resume { skill, whose } => patch(&whose, &skill, json!({"paused": false})),
        SkillCommand::Release { skill, whose } => patch(&whose, &skill, json!({"released": true})),
        SkillCommand::Remove { skill, whose } => {
            let call = Call {
                method: Method::DELETE,
                path: whose.path(&format!("/{}", escaped(&skill))),
                body: None,
                show: one,
            };
            told(&whose, &call, |_| "it is gone\n".to_owned())
        }
        SkillCommand::Restore {
            skill,
            version,
            whose,
        } => {
            let path = format!("/{}/restore", escaped(&skill));
            let call = whose.change(Method::POST, &path, json!({"version": version}));
            told(&whose, &call, one)
        }
    }
}

fn told(whose: &Whose, call: &Call, text: Show) -> Result<ExitCode, String> {
    show(&whose.server, send(&whose.server, call), text)
}

/// A skill with its versions.
async fn look(whose: &Whose, skill: &str) -> Result<Value, String> {
    let path = format!("/{}", escaped(skill));
    let mut found = send(&whose.server, &Call::get(whose.path(&path), one)).await?;
    let versions = whose.path(&format!("{path}/versions"));
    let versions = send(&whose.server, &Call::get(versions, one)).await?;
    found["versions"] = versions["data"].clone();
    Ok(found)
}

async fn export(
    whose: &Whose,
    skill: &str,
    version: Option<u32>,
    into: &Path,
) -> Result<Value, String> {
    let version = version.map(|n| format!("&version={n}")).unwrap_or_default();
    let path = format!("/{}/export?format=json{version}", escaped(skill));
    let answer = send(&whose.server, &Call::get(whose.path(&path), one)).await?;
    let written = unpack(&answer, into)?;
    Ok(json!({"written": written.display().to_string(), "skill": answer}))
}

/// Writes files where nothing is yet. The server is believed no path that leaves the folder.
fn unpack(answer: &Value, into: &Path) -> Result<PathBuf, String> {
    let name = answer["folder"].as_str().unwrap_or_default();
    let is_part =
        |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', ':', '\0']);
    let files: BTreeMap<String, FileContent> = serde_json::from_value(answer["files"].clone())
        .map_err(|error| format!("the server's answer holds no files: {error}"))?;
    if name.contains('/')
        || !is_part(name)
        || !files.keys().all(|path| path.split('/').all(is_part))
    {
        return Err(
            "the server's answer has a path outside the folder, so nothing is written".to_owned(),
        );
    }
    let folder = into.join(name);
    if folder.exists() {
        return Err(format!(
            "{} exists already; move it away or name another folder",
            folder.display()
        ));
    }
    for (path, content) in files {
        let file = folder.join(&path);
        let bytes = match content {
            FileContent::Text(text) => text.into_bytes(),
            FileContent::Bytes { base64 } => STANDARD
                .decode(base64)
                .map_err(|error| format!("{path} is not base64: {error}"))?,
        };
        let unwritable =
            |error: std::io::Error| format!("{} cannot be written: {error}", file.display());
        fs::create_dir_all(file.parent().unwrap_or(&folder)).map_err(unwritable)?;
        fs::write(&file, bytes).map_err(unwritable)?;
    }
    Ok(folder)
}

/// A folder or an archive as the body that adds it.
fn packed(path: &Path) -> Result<Value, String> {
    let unreadable = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let path = path.canonicalize().map_err(unreadable)?;
    if path.is_file() {
        let size = fs::metadata(&path).map_err(unreadable)?.len();
        if size > 4 * SKILL_BYTES_MAX as u64 {
            return Err(format!(
                "{} has {size} bytes, and a skill at most {SKILL_BYTES_MAX}",
                path.display()
            ));
        }
        let tar = STANDARD.encode(fs::read(&path).map_err(unreadable)?);
        return Ok(json!({"tar": tar}));
    }
    let mut files = BTreeMap::new();
    gather(&path, "", &mut files)?;
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    Ok(json!({"files": files, "folder": name}))
}

/// The files of a folder and of the folders in it.
fn gather(
    folder: &Path,
    begin: &str,
    files: &mut BTreeMap<String, FileContent>,
) -> Result<(), String> {
    let unreadable =
        |error: std::io::Error| format!("{} cannot be read: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if SKIPPED.contains(&name.as_str()) {
            continue;
        }
        let (file, path) = (entry.path(), format!("{begin}{name}"));
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() {
            if path.matches('/').count() > 8 {
                return Err(format!("{path} lies more than 8 folders deep"));
            }
            gather(&file, &format!("{path}/"), files)?;
            continue;
        }
        if !kind.is_file() {
            return Err(format!(
                "{path} is a link or a device; a skill has files and folders only"
            ));
        }
        let size = entry.metadata().map_err(unreadable)?.len();
        if size > SKILL_FILE_BYTES_MAX as u64 {
            return Err(format!(
                "{path} has {size} bytes, and a file of a skill at most {SKILL_FILE_BYTES_MAX}"
            ));
        }
        if files.len() == SKILL_FILES_MAX {
            return Err(format!(
                "{} has more than {SKILL_FILES_MAX} files, the most of a skill",
                folder.display()
            ));
        }
        let bytes = fs::read(&file).map_err(unreadable)?;
        files.insert(path, FileContent::of(bytes));
    }
    Ok(())
}

fn list(answer: &Value) -> String {
    let rows = answer["data"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|skill| {
            vec![
                text_of(&skill["name"]),
                text_of(&skill["state"]),
                skill["version"].to_string(),
                text_of(&skill["origin"]),
                skill["listed"].to_string(),
                skill["uses"].to_string(),
                text_of(&skill["id"]),
            ]
        });
    let names = [
        ("name", Left),
        ("state", Left),
        ("version", Right),
        ("from", Left),
        ("listed", Right),
        ("used", Right),
        ("id", Left),
    ];
    table(&names, &rows.collect::<Vec<_>>())
}

fn one(skill: &Value) -> String {
    let mut text = format!(
        "skill {}: {}, version {}\n{}\n",
        text_of(&skill["name"]),
        text_of(&skill["state"]),
        skill["version"],
        text_of(&skill["description"]),
    );
    let findings = skill["findings"].as_array().into_iter().flatten();
    for finding in findings {
        let line = finding["line"]
            .as_u64()
            .map(|line| format!(", line {line}"))
            .unwrap_or_default();
        let _never_fails = writeln!(
            text,
            "found in {}{line}: {}: {}",
            text_of(&finding["path"]),
            text_of(&finding["explanation"]),
            text_of(&finding["excerpt"]),
        );
    }
    if skill["state"] == "quarantined" {
        let name = text_of(&skill["name"]);
        let _never_fails = writeln!(
            text,
            "no answer is shown it; hone skill show {name} shows its text, hone skill release {name} releases it"
        );
    }
    text
}

fn whole(skill: &Value) -> String {
    let mut text = one(skill);
    let turns = skill["turn_ids"]
        .as_array()
        .into_iter()
        .flatten()
        .map(text_of);
    let turns: Vec<String> = turns.collect();
    if !turns.is_empty() {
        let _never_fails = writeln!(text, "made from {}", turns.join(", "));
    }
    let _never_fails = writeln!(
        text,
        "listed for {} answers, used {} times\n",
        skill["listed"], skill["uses"]
    );
    let rows = skill["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|version| {
            let is_current = version["version"] == skill["version"];
            let findings = version["findings"].as_array().map_or(0, Vec::len);
            vec![
                version["version"].to_string(),
                text_of(&version["origin"]),
                version["files"].to_string(),
                version["bytes"].to_string(),
                findings.to_string(),
                if is_current { "current" } else { "" }.to_owned(),
            ]
        });
    let names = [
        ("version", Right),
        ("from", Left),
        ("files", Right),
        ("bytes", Right),
        ("findings", Right),
        ("", Left),
    ];
    text.push_str(&table(&names, &rows.collect::<Vec<_>>()));
    for file in skill["file_list"].as_array().into_iter().flatten() {
        let _never_fails = writeln!(text, "{} ({} bytes)", text_of(&file["path"]), file["bytes"]);
    }
    let _never_fails = writeln!(text, "\n{}", text_of(&skill["text"]));
    text
}

#[cfg(test)]
#[path = "skills_tests.rs"]
mod tests;
