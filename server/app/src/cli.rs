//! The command line.

pub(crate) mod accounts;
mod audit;
mod groups;
pub(crate) mod place;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use toml::Value;

use crate::config::{Config, Sources};
use crate::{health, manage, process, starter, upkeep};
use accounts::{KeyCommand, UserCommand};
use audit::AuditCommand;
use groups::{AgentCommand, TeamCommand};

/// Serves a language model that gets better by being used.
#[derive(Debug, Parser)]
#[command(name = "hone", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve (the default).
    Serve(ServeArgs),
    /// Print the API's OpenAPI document.
    Openapi,
    /// Accounts of people and programs.
    #[command(subcommand)]
    User(UserCommand),
    /// Accounts of programs that a person or a team keeps.
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Accounts that share limits and keep agents together.
    #[command(subcommand)]
    Team(TeamCommand),
    /// API keys.
    #[command(subcommand)]
    Key(KeyCommand),
    /// The record of who did what.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Look at published versions of a running server, roll back, pin, compare.
    #[command(subcommand)]
    Versions(manage::VersionsCommand),
    /// Skills that answers of a running server are shown: folders with a SKILL.md.
    #[command(subcommand)]
    Skill(manage::SkillCommand),
    /// Try an answer again from a place in it. Each continuation is kept as a turn of its own, which can be rated and
    /// learned from like any other.
    Branch(manage::BranchArgs),
    /// Tasks that agents try.
    #[command(subcommand)]
    Tasks(manage::TasksCommand),
    /// Have agents try tasks, and learn from it or measure.
    #[command(subcommand)]
    Rollout(manage::RolloutCommand),
    /// Look whether everything is well, and say what to do where it is not.
    Doctor(upkeep::DoctorArgs),
    /// Copy the data folder while the server runs.
    Backup(upkeep::BackupArgs),
    /// Put a backup in the place of a data folder.
    Restore(upkeep::RestoreArgs),
    /// The ledger itself.
    #[command(subcommand)]
    Ledger(upkeep::LedgerCommand),
    /// Ask a running server whether it is ready; for containers and scripts.
    Health(health::HealthArgs),
    /// Write out turns, samples or an adapter.
    #[command(subcommand)]
    Export(upkeep::ExportCommand),
    /// Take in an adapter that was made elsewhere.
    #[command(subcommand)]
    Import(manage::ImportCommand),
    /// Print completions for a shell.
    #[command(
        after_help = "Examples:\n  hone completions bash > ~/.local/share/bash-completion/completions/hone\n  \
        hone completions zsh > \"${fpath[1]}/_hone\"\n  \
        hone completions fish > ~/.config/fish/completions/hone.fish"
    )]
    Completions {
        /// bash, zsh or fish.
        #[arg(value_enum)]
        shell: CompletionShell,
    },
    /// The first process of a jail; started by this program alone.
    #[command(hide = true)]
    Guest,
    /// Make and measure the built-in starter model.
    #[command(subcommand)]
    Starter(starter::StarterCommand),
}

/// A shell that completes commands.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

/// The script that teaches a shell every command and flag.
fn completions(shell: CompletionShell) -> String {
    let shell = match shell {
        CompletionShell::Bash => clap_complete::Shell::Bash,
        CompletionShell::Zsh => clap_complete::Shell::Zsh,
        CompletionShell::Fish => clap_complete::Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "hone", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Configuration file (TOML); it names only what it changes.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port, such as 127.0.0.1:8080; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Folder of the ledger and the adapters.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// A Hugging Face model folder or a GGUF file instead of the built-in starter model, or an id on
    /// a hub such as org/name or org/name@revision.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// How its matrices are kept in memory: stored, f32, bf16, q8 or q4.
    #[arg(long, value_name = "FORMAT")]
    weights: Option<String>,
    /// What answers: builtin, or null (instant, without a model).
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// The loops to run here.
    #[arg(long, value_name = "LOOPS", value_delimiter = ',')]
    loops: Option<Vec<String>>,
    /// Print the configuration that results from file, environment and flags, and exit.
    #[arg(long)]
    print_config: bool,
}

impl ServeArgs {
    fn flags(&self) -> Vec<(String, Value)> {
        let path = |p: &PathBuf| p.display().to_string();
        let texts = [
            ("http.bind", self.bind.clone()),
            ("store.data_dir", self.data.as_ref().map(path)),
            ("model.path", self.model.as_ref().map(path)),
            ("model.engine", self.engine.clone()),
            ("model.weights", self.weights.clone()),
        ];
        let texts = texts
            .into_iter()
            .filter_map(|(key, text)| Some((key.to_owned(), Value::String(text?))));
        let loops = self.loops.as_ref().map(|loops| {
            let names = loops.iter().cloned().map(Value::String).collect();
            ("loops".to_owned(), Value::Array(names))
        });
        texts.chain(loops).collect()
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

/// `hone help --help` asks for what `hone help` shows, and clap knows no help of its help.
fn without_help_of_help(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    if arguments.get(1).is_some_and(|first| first == "help") {
        arguments.retain(|argument| argument != "--help" && argument != "-h");
    }
    arguments
}

/// Runs the program with these arguments; the first is its name.
pub fn run(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    let cli = Cli::parse_from(without_help_of_help(arguments));
    let result = match cli.command {
        None => serve(&cli.serve),
        Some(Command::Serve(args)) => serve(&args),
        Some(Command::Openapi) => put(&hone_api::document(), &mut io::stdout()),
        Some(Command::User(command)) => accounts::user(command),
        Some(Command::Agent(command)) => groups::agent(command),
        Some(Command::Team(command)) => groups::team(command),
        Some(Command::Key(command)) => accounts::key(command),
        Some(Command::Audit(command)) => audit::audit(command),
        Some(Command::Versions(command)) => manage::run(command),
        Some(Command::Doctor(args)) => upkeep::doctor(&args),
        Some(Command::Backup(args)) => upkeep::backup(&args),
        Some(Command::Restore(args)) => upkeep::restore(&args),
        Some(Command::Ledger(command)) => upkeep::ledger(&command),
        Some(Command::Health(args)) => health::health(&args),
        Some(Command::Export(command)) => upkeep::export(&command),
        Some(Command::Import(command)) => manage::import(command),
        Some(Command::Skill(command)) => manage::skill(command),
        Some(Command::Branch(args)) => manage::branch(&args),
        Some(Command::Tasks(command)) => manage::tasks(command),
        Some(Command::Rollout(command)) => manage::rollout(command),
        Some(Command::Completions { shell }) => put(&completions(shell), &mut io::stdout()),
        Some(Command::Guest) => return hone_tools::guest::main(),
        Some(Command::Starter(command)) => starter::run(command),
    };
    match result {
        Ok(code) => code,
        Err(message) => {
            eprintln!("hone: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a text. A reader that wants no more of it is no failure.
fn put(text: &str, out: &mut impl Write) -> Result<ExitCode, String> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("the output could not be written: {error}"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn serve(args: &ServeArgs) -> Result<ExitCode, String> {
    let (file, flags) = (args.config.clone(), args.flags());
    let read = move || {
        let sources = Sources::read(file.as_deref(), flags.clone()).map_err(|e| e.to_string())?;
        Config::load(&sources).map_err(|e| e.to_string())
    };
    let config = read()?;
    if args.print_config {
        return put(
            &config.print().map_err(|e| e.to_string())?,
            &mut io::stdout(),
        );
    }
    process::serve(config, &read)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses every write.
    struct Refusing(ErrorKind);

    impl Write for Refusing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn help_of_help_is_help() {
        use clap::error::ErrorKind::DisplayHelp;
        for line in ["help", "help --help", "help -h", "help versions --help"] {
            let line = std::iter::once("hone").chain(line.split(' '));
            let shown = Cli::try_parse_from(without_help_of_help(line));
            assert_eq!(shown.err().map(|shown| shown.kind()), Some(DisplayHelp));
        }
        let other = without_help_of_help(["hone", "serve", "--help"]);
        assert_eq!(other, ["hone", "serve", "--help"]);
    }

    #[test]
    fn a_reader_that_leaves_is_no_failure_and_a_full_disk_is() {
        assert!(put("text", &mut Refusing(ErrorKind::BrokenPipe)).is_ok());
        let said = put("text", &mut Refusing(ErrorKind::StorageFull));
        assert!(said.is_err_and(|said| said.contains("could not be written")));
        let mut written = Vec::new();
        assert!(put("text", &mut written).is_ok());
        assert_eq!(written, b"text");
    }
}
