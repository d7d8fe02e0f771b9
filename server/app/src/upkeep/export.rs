//! `hone export`: what was recorded, as lines of JSON, and adapters as PEFT folders.

use std::fs;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use hone_domain::{BlobKey, Digest, Fate, PolicyVersion, Scope};
use hone_ledger::{Extent, FateState, TurnFilter, TurnView};
use hone_ledger_sql::StoredLedger;
use hone_nn::peft;
use serde_json::{Value, json};

use super::adapters::Adapters;
use super::common::{check_adapter, entry, open, run};
use super::export_progress::{Consumer, ConsumersArgs, Written, consumers, parse_name};
use super::export_trajectories::{Format, trajectories};
use crate::cli::place::Place;
use crate::config::Config;
use hone_domain::LOCAL_OWNER;

/// Turns read at a time.
const PAGE: usize = 256;
/// Versions looked through for one by its number.
const VERSIONS_MAX: usize = 1_000_000;

/// What to write out.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  hone export turns --owner ann > turns.jsonl\n  \
    hone export samples --out samples.jsonl\n  hone export trajectories --format messages > chats.jsonl\n  \
    hone export trajectories --new-for trainer --out new.jsonl\n  hone export consumers\n  \
    hone export adapter --scope local --out my-adapter"
)]
pub(crate) enum ExportCommand {
    /// Every turn with what became of it, newest first, one JSON object a line.
    Turns(Lines),
    /// Every turn that a version learned from, as long as its log-probs are kept: tokens, log-probs, score, hint,
    /// correction.
    Samples(Lines),
    /// Conversations with their rewards, for fine-tuning elsewhere. Left out is what its people did not allow to be
    /// learned from, and what lost what the format needs with age.
    Trajectories {
        /// What a line is.
        #[arg(long, value_enum, default_value = "messages")]
        format: Format,
        /// Only what was not written for this name before, and what was judged anew since, the oldest turn first. A line
        /// counts as written once the whole export is. A name keeps its --format, --owner and --scope.
        #[arg(long, value_name = "NAME", value_parser = parse_name)]
        new_for: Option<String>,
        #[command(flatten)]
        lines: Lines,
    },
    /// The names of `--new-for`: what each has had, and what there is for it.
    Consumers(ConsumersArgs),
    /// A version's adapter as a folder that PEFT and vLLM load.
    Adapter {
        /// Whose policy: a scope as `hone versions scopes` shows it, or an owner's name.
        #[arg(long, default_value = LOCAL_OWNER)]
        scope: String,
        /// Its number; the newest if absent.
        #[arg(long)]
        version: Option<u64>,
        /// Folder that it becomes; it must not exist yet.
        #[arg(long, value_name = "FOLDER")]
        out: PathBuf,
        #[command(flatten)]
        place: Place,
    },
}

/// Which lines, and where to.
#[derive(Debug, Args)]
pub(crate) struct Lines {
    /// Only of this owner.
    #[arg(long)]
    owner: Option<String>,
    /// Only of this scope as `hone versions scopes` shows it, or of this owner's own.
    #[arg(long)]
    scope: Option<String>,
    /// File to write; it must not exist yet. The standard output if absent.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

impl Lines {
    fn filter(&self, state: Option<FateState>) -> TurnFilter {
        TurnFilter {
            owner: self.owner.clone(),
            scope: self.scope.as_deref().map(Scope::meant),
            state,
            ..TurnFilter::default()
        }
    }

    /// Who gets only what is new to it, where somebody does.
    fn consumer<'a>(&'a self, what: What<'a>) -> Option<Consumer<'a>> {
        let What::Trajectories { format, new_for } = what else {
            return None;
        };
        Some(Consumer {
            name: new_for?,
            format,
            owner: self.owner.as_deref(),
            scope: self.scope.as_deref().map(Scope::meant),
        })
    }
}

/// Runs one export.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn export(command: &ExportCommand) -> Result<ExitCode, String> {
    match command {
        ExportCommand::Turns(lines) => write_lines(lines, What::Turns),
        ExportCommand::Samples(lines) => write_lines(lines, What::Samples),
        ExportCommand::Trajectories {
            format,
            new_for,
            lines,
        } => {
            let (format, new_for) = (*format, new_for.as_deref());
            write_lines(lines, What::Trajectories { format, new_for })
        }
        ExportCommand::Consumers(args) => consumers(args),
        ExportCommand::Adapter {
            scope,
            version,
            out,
            place,
        } => run(adapter(&place.config()?, scope, *version, out)),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Whoever reads the output has enough of it, as `head` has.
const UNREAD: &str = "nobody reads on";

/// What is written out as lines.
#[derive(Clone, Copy)]
enum What<'a> {
    Turns,
    Samples,
    Trajectories {
        format: Format,
        new_for: Option<&'a str>,
    },
}

impl What<'_> {
    /// What the audit log calls it.
    fn act(self) -> &'static str {
        match self {
            Self::Turns => "export.turns",
            Self::Samples => "export.samples",
            Self::Trajectories { .. } => "export.trajectories",
        }
    }
}

fn write_lines(lines: &Lines, what: What<'_>) -> Result<(), String> {
    let config = lines.place.config()?;
    let written = match &lines.out {
        None => {
            let out = &mut std::io::stdout().lock();
            let written = run(write_to(&config, lines, what, out));
            if written.as_ref().is_err_and(|why| why == UNREAD) {
                return Ok(());
            }
            written
        }
        Some(path) => {
            let out = BufWriter::new(made(path)?);
            let written = write_file(&config, lines, what, path, out);
            if written.is_err() {
                // So that the next try finds nothing in its way.
                fs::remove_file(path).ok();
            }
            written
        }
    }?;
    eprintln!("{} lines", written.lines);
    match lines.consumer(what) {
        Some(consumer) => consumer.acknowledge(&config, &written.read),
        None => Ok(()),
    }
}

/// Makes a file that must not exist yet.
fn made(path: &Path) -> Result<fs::File, String> {
    let mut make = fs::OpenOptions::new();
    make.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut make, 0o600);
    let file = make.open(path);
    file.map_err(|error| unwritable(path, &error, "file"))
}

/// Writes a file, which is on the disk with its name when this returns.
fn write_file(
    config: &Config,
    lines: &Lines,
    what: What<'_>,
    path: &Path,
    mut out: BufWriter<fs::File>,
) -> Result<Written, String> {
    let written = run(write_to(config, lines, what, &mut out))?;
    let synced = out.get_ref().sync_all().and_then(|()| {
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    });
    synced.map_err(|error| unwritable(path, &error, "file"))?;
    Ok(written)
}

async fn write_to(
    config: &Config,
    lines: &Lines,
    what: What<'_>,
    out: &mut dyn Write,
) -> Result<Written, String> {
    let ledger = open(config).await?;
    let consumer = lines.consumer(what);
    let new_for = consumer.as_ref().map(|consumer| consumer.name);
    let detail = json!({"owner": lines.owner, "scope": lines.scope, "new_for": new_for});
    let noted = ledger.record(&entry(what.act(), "", detail)).await;
    noted.map_err(|error| error.to_string())?;
    let unwritable = |error: std::io::Error| match error.kind() {
        ErrorKind::BrokenPipe => UNREAD.to_owned(),
        _ => format!("the output cannot be written ({error})"),
    };
    let mut put = |line: &Value| writeln!(out, "{line}").map_err(unwritable);
    let counted = |lines| Written {
        lines,
        ..Written::default()
    };
    let done = match (what, &consumer) {
        (What::Turns, _) => {
            let filter = lines.filter(None);
            let done = pages(&*ledger, &filter, &mut |view| put(&turn_line(view))).await;
            done.map(counted)
        }
        (What::Samples, _) => {
            let filter = lines.filter(Some(FateState::Trained));
            let done = pages(&*ledger, &filter, &mut |view| put(&sample_line(view))).await;
            done.map(counted)
        }
        (What::Trajectories { .. }, Some(consumer)) => consumer.write(&*ledger, &mut put).await,
        (What::Trajectories { format, .. }, None) => {
            let done = trajectories(&*ledger, &lines.filter(None), format, &mut put).await;
            done.map(counted)
        }
    };
    ledger.close().await;
    out.flush().map_err(unwritable)?;
    done
}

/// Hands every turn that passes to `each`; returns how many there were.
async fn pages(
    ledger: &dyn StoredLedger,
    filter: &TurnFilter,
    each: &mut dyn FnMut(&TurnView) -> Result<(), String>,
) -> Result<u64, String> {
    let (mut before, mut count) = (None, 0);
    let wants_samples = filter.state == Some(FateState::Trained);
    loop {
        let page = ledger.turn_page(filter, before, PAGE).await;
        let page = page.map_err(|error| error.to_string())?;
        for row in page.rows {
            let view = ledger.turn(row.id).await.map_err(|e| e.to_string())?;
            // One that was erased meanwhile is gone; one that lost something with age is no sample any more.
            let is_sample = |view: &TurnView| view.extent == Extent::Whole;
            if let Some(view) = view.filter(|view| !wants_samples || is_sample(view)) {
                each(&view)?;
                count += 1;
            }
        }
        before = page.next;
        if before.is_none() {
            return Ok(count);
        }
    }
}

fn turn_line(view: &TurnView) -> Value {
    json!({
        "turn": view.turn,
        "stored": view.extent,
        "fate": view.fate,
        "transition": view.transition,
        "verdict": view.verdict,
        "feedback": view.feedback,
    })
}

fn sample_line(view: &TurnView) -> Value {
    let turn = &view.turn;
    let trained = match view.fate {
        Fate::Trained { version } => Some(version),
        _ => None,
    };
    let correction = view
        .feedback
        .iter()
        .rev()
        .find_map(|f| f.correction.as_ref());
    json!({
        "turn": turn.id,
        "scope": turn.scope,
        "version": turn.spans.first().map(|span| span.version),
        "trained_version": trained,
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.completion.tokens(),
        "behavior_logprobs": turn.completion.behavior_logprobs(),
        "completion_text": turn.completion_text,
        "score": view.score(),
        "hint": view.verdict.as_ref().and_then(|verdict| verdict.hint.as_ref()),
        "correction": correction,
    })
}

/// Why nothing can be written to a place that must not exist yet; `kind` is what it becomes.
fn unwritable(out: &Path, error: &std::io::Error, kind: &str) -> String {
    let shown = out.display();
    match error.kind() {
        ErrorKind::AlreadyExists => {
            format!("{shown} exists already, and nothing is written over; choose another {kind}")
        }
        _ => format!("{shown} cannot be written ({error}); choose another {kind}"),
    }
}

async fn adapter(
    config: &Config,
    scope: &str,
    version: Option<u64>,
    out: &Path,
) -> Result<(), String> {
    if out.exists() {
        return Err(unwritable(out, &ErrorKind::AlreadyExists.into(), "folder"));
    }
    let ledger = open(config).await?;
    let found = find(&*ledger, (scope, version.map(PolicyVersion))).await;
    let noted = match &found {
        Ok(_) => {
            let detail = json!({"version": version});
            let noted = ledger.record(&entry("export.adapter", scope, detail)).await;
            noted.map(drop).map_err(|error| error.to_string())
        }
        Err(_) => Ok(()),
    };
    ledger.close().await;
    noted?;
    let (blob, digest) = found?;
    let stored = Adapters::open(config, &config.store.folder()?)?;
    let key = BlobKey::new(blob).map_err(|error| error.to_string())?;
    let from = stored.folder_of(&key)?;
    let unreadable = |error: &dyn std::fmt::Display| {
        format!(
            "{} cannot be read ({error}); restore a backup (`hone restore`)",
            from.display()
        )
    };
    check_adapter(&from, digest).map_err(|error| unreadable(&error))?;
    let files = read(&from).map_err(|error| unreadable(&error))?;
    let files = peft::for_peft(files).map_err(|error| unreadable(&error))?;
    write(&files, out).map_err(|error| unwritable(out, &error, "folder"))
}

/// Where the version's adapter lies.
async fn find(
    ledger: &dyn StoredLedger,
    (scope, version): (&str, Option<PolicyVersion>),
) -> Result<(String, Digest), String> {
    let known = Scope::meant(scope);
    let most = if version.is_some() { VERSIONS_MAX } else { 1 };
    let records = ledger.versions(Some(&known), most).await;
    let records = records.map_err(|error| error.to_string())?;
    let wanted = |record: &&hone_ledger::PolicyRecord| {
        version.is_none_or(|version| record.policy.version == version)
    };
    let Some(record) = records.iter().find(wanted) else {
        return Err(format!(
            "{scope} has no such version; `hone versions scopes` and `hone versions list` show what there is"
        ));
    };
    let number = record.policy.version;
    if record.policy.is_base() {
        return Err(format!(
            "version {number} of {scope} is the base model, which has no adapter"
        ));
    }
    if record.is_damaged {
        return Err(format!(
            "the files of version {number} of {scope} are damaged; choose another version, or restore a backup (`hone restore`)"
        ));
    }
    if record.is_pruned || record.is_tainted {
        return Err(format!(
            "the files of version {number} of {scope} were removed; choose another"
        ));
    }
    Ok((record.policy.blob.as_str().to_owned(), record.policy.digest))
}

/// The files of an adapter: name and content.
type Files = Vec<(String, Vec<u8>)>;

fn read(from: &Path) -> std::io::Result<Files> {
    let file = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        Ok((name, fs::read(entry.path())?))
    };
    fs::read_dir(from)?.map(file).collect()
}

fn write(files: &Files, out: &Path) -> std::io::Result<()> {
    fs::create_dir(out)?;
    let mut files = files.iter();
    files.try_for_each(|(name, bytes)| fs::write(out.join(name), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_of_an_export_is_told() {
        for (kind, told) in [
            (ErrorKind::AlreadyExists, "x exists already"),
            (ErrorKind::NotFound, "x cannot be written ("),
        ] {
            let said = unwritable(Path::new("x"), &kind.into(), "file");
            assert!(said.starts_with(told), "{said}");
            assert!(said.ends_with("; choose another file"), "{said}");
        }
    }
}
