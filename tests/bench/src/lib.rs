//! `hone-bench`: what this build does on this machine, in numbers, and a demo of the whole ring.
//!
//! Every measurement uses the configuration of a server (defaults and environment), keeps its data
//! in a folder of its own that goes away, and counts what failed; a bench with failures ends with
//! a failing exit code. None of it is a test: no number is compared with a wanted one.

mod adapters;
mod away;
mod bed;
mod child;
pub mod conversations;
pub mod demo;
mod demo_short;
mod device;
mod drafts;
mod engine;
mod folder;
mod form;
mod gap;
mod gym;
mod idle;
mod judge;
mod learn;
mod ledger;
mod load;
mod loops;
mod memory;
mod moments;
mod overhead;
mod pace;
mod people;
mod prefill;
#[path = "../../support/proxy.rs"]
mod proxy;
mod report;
#[path = "../../../loops/nn/tests/support/shapes.rs"]
mod shapes;
mod speed;
mod stale;
mod start;
mod swap;
mod trainer;
mod turns;
mod votes;
mod wire;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use folder::Folder;
use hone::app::App;
use hone::config::{Config, Sources};
use hone::hub::HubAccess;
use hone::logs;
use hone::model::{self, Builtin, Served};
use hone_net::outbound;
use report::Report;

/// Measures Hone on this machine, and shows how it learns.
#[derive(Debug, Parser)]
#[command(
    name = "hone-bench",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    measure: Option<Options>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watch simulated users teach the model over plain HTTP.
    Demo(demo::Options),
}

/// What to measure.
#[derive(Clone, Debug, Args)]
struct Options {
    /// The measurement.
    #[arg(value_enum)]
    name: Name,
    /// Print one JSON object as the last line; for `all` it is keyed by measurement.
    #[arg(long)]
    json: bool,
    /// Seconds of each timed part instead of the measurement's own; of `learn --model`, the longest
    /// pause between two sessions.
    #[arg(long, value_name = "N", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// The model to measure: a folder, a GGUF file or a hub id; the configured one if absent. With it
    /// `learn` measures whether this model learns from simulated people, and `judge` reads replies with it.
    #[arg(long, value_name = "PATH")]
    model: Option<String>,
    /// Seeds of a measurement that has several.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Sessions per simulated user of `learn`; groups of `gym`
    #[arg(long, value_name = "N", value_parser = parse_sessions)]
    sessions: Option<usize>,
    /// Arms of `learn`, all if absent.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    arms: Vec<String>,
    /// Preferences of `learn --model`. All are tried if absent, and those take part that the model
    /// follows when told and seldom otherwise; those named here take part in any case.
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "model")]
    preferences: Vec<String>,
    /// Most questions of each kind that `learn --model` measures with; all if absent.
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u32).range(1..))]
    questions: Option<u32>,
    /// Most plain facts, and most explicit instructions, of `learn --model`; as `--questions` if absent.
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u32).range(1..))]
    facts: Option<u32>,
    /// Tokens that each completion of `engine` decodes.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    steps: u32,
    /// One shape of `trainer`, such as "30 M"; all if absent, each in a process of its own.
    #[arg(long, value_name = "NAME")]
    shape: Option<String>,
    /// Address of another OpenAI-compatible server that `overhead` sends the same load to.
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// Configuration file (TOML) to measure with; `learn` lays it over what each arm ships with.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder for data while measuring, on the disk to measure; the system's temporary one if absent.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// The measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Tokens per second while decoding 1, 8 and 32 completions at once.
    Decode,
    /// The configured model as other engines' benches measure theirs: decoding from a short context,
    /// and one prompt.
    Engine,
    /// Tokens per second of 32 completions under one adapter, and under eight, per weight format.
    Adapters,
    /// Prompt tokens per second.
    Prefill,
    /// Time to the first token in a conversation of twenty turns, with the prefix cache and without.
    Turns,
    /// Tokens per second of completions that were predicted, well and badly, with drafts and without.
    Drafts,
    /// Gaps between tokens at an HTTP client, with training paused and running.
    Gap,
    /// Gaps between tokens while 1,000 versions are published under load, and in turn while none is.
    Swap,
    /// Gaps between tokens of completions held to a JSON schema, and of others beside them.
    Form,
    /// Turns per second recorded with durable receipts.
    Ledger,
    /// A PostgreSQL server that is away for a minute under load: failed answers, lost turns, seconds to catch up (needs
    /// one on a socket of this machine, tests/with_postgres.sh; not part of `all`).
    Away,
    /// What every loop still does while another one is stopped or hangs.
    Loops,
    /// What the gateway adds to an answer, and how many it gives, with an engine that answers at once.
    Overhead,
    /// Memory and processor time of a server that nobody uses.
    Idle,
    /// Time from the start of the process to ready and to the first token.
    Start,
    /// A session of twenty turns trained in one row, and turn by turn.
    Trainer,
    /// What staleness costs each objective, and how stale turns are under load.
    Async,
    /// Trained turns per second of the loops as they ship, and of loops that wait for each other, with
    /// long-tailed completions and slow votes (minutes; not part of `all`).
    Pace,
    /// What the judge's side can be trusted with: accuracy, binding, commands, certificates, secrets.
    Judge,
    /// Certificates that the model of `[judge.model]` writes about generated programs, and what the check makes of
    /// them (long; not part of `all`).
    Certificates,
    /// The demo with fewer users and less time.
    DemoShort,
    /// With --model: whether a real model learns from simulated people who only talk, with controls.
    /// Without: a mechanism test on the built-in model, whose users, judge and training text share
    /// phrases: sessions until users are answered as they like it, per method (long; not part of `all`).
    Learn,
    /// Whether what a person said once holds in the next conversation, with nothing trained, what that costs, and that
    /// memories of different people stay apart (long; not part of `all`).
    Memory,
    /// Whether a model learns from what tasks pay, on tasks that it was not trained on, beside a control that is paid by a
    /// coin; with --model a real one (long; not part of `all`).
    Gym,
    /// That a CUDA device says what the processor says, and its speed; emulated where there is none
    /// (needs a C++ compiler then; not part of `all`).
    Device,
    /// All of them.
    All,
}

impl Name {
    /// Those that every machine can take in a short time.
    const EACH: [Self; 18] = [
        Self::Decode,
        Self::Engine,
        Self::Adapters,
        Self::Prefill,
        Self::Turns,
        Self::Drafts,
        Self::Gap,
        Self::Swap,
        Self::Form,
        Self::Ledger,
        Self::Loops,
        Self::Overhead,
        Self::Idle,
        Self::Start,
        Self::Trainer,
        Self::Async,
        Self::Judge,
        Self::DemoShort,
    ];

    /// What it stands for.
    fn each(self) -> Vec<Self> {
        if self == Self::All {
            Self::EACH.to_vec()
        } else {
            vec![self]
        }
    }

    /// As it is written on the command line.
    fn text(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn measure(self, bench: &Bench) -> Result<Report, String> {
        match self {
            Self::Decode => speed::decode(bench),
            Self::Engine => engine::engine(bench, bench.steps),
            Self::Turns => turns::turns(bench),
            Self::Drafts => drafts::drafts(bench),
            Self::Adapters => adapters::adapters(bench),
            Self::Prefill => prefill::prefill(bench),
            Self::Gap => gap::gap(bench),
            Self::Swap => swap::swap(bench),
            Self::Form => form::form(bench),
            Self::Ledger => ledger::ledger(bench),
            Self::Away => away::away(bench),
            Self::Loops => loops::loops(bench),
            Self::Overhead => overhead::overhead(bench, bench.against.as_deref()),
            Self::Idle => idle::idle(bench),
            Self::Start => start::start(bench),
            Self::Trainer => trainer::trainer(bench),
            Self::Async => stale::stale(bench, &bench.size),
            Self::Pace => pace::pace(bench, &bench.size),
            Self::Judge => judge::judge(bench),
            Self::Certificates => judge::certificates_of_model(bench),
            Self::DemoShort => demo_short::demo(bench),
            Self::Learn => match &bench.people {
                Some(size) => people::people(bench, size),
                None => learn::learn(bench, &bench.size),
            },
            Self::Memory => match &bench.people {
                Some(size) => people::remember(bench, size),
                None => Err("memory has no size".to_owned()),
            },
            Self::Gym => gym::gym(bench),
            Self::Device => device::device(bench),
            Self::All => Err("all is not one measurement".to_owned()),
        }
    }
}

/// What every measurement works with.
struct Bench {
    config: Config,
    /// Text and name of the configuration file.
    file: Option<(String, String)>,
    seconds: Option<f64>,
    size: learn::Size,
    /// Groups of `gym`, where the command line says.
    groups: Option<u32>,
    /// How `learn` measures the model that the command line names.
    people: Option<people::Size>,
    steps: u32,
    shape: Option<String>,
    against: Option<String>,
    model: Option<String>,
    root: PathBuf,
    runtime: Runtime,
    _logging: logs::Logging,
}

impl Bench {
    fn new(options: &Options) -> Result<Self, String> {
        let text = |key: &str, value: &str| (key.to_owned(), toml::Value::from(value));
        let mut flags = vec![text("http.bind", "127.0.0.1:0")];
        if std::env::var_os("HONE__LOG__LEVEL").is_none() {
            flags.push(text("log.level", "warn"));
        }
        flags.extend(options.model.as_ref().map(|path| text("model.path", path)));
        let of_people = match options.name {
            Name::Learn => options.model.is_some(),
            name => name == Name::Memory,
        };
        let people = of_people.then(|| people::Size::of(options));
        let sources =
            Sources::read(options.config.as_deref(), flags).map_err(|error| error.to_string())?;
        let config = Config::load(&sources).map_err(|error| error.to_string())?;
        let logging = logs::start(&config.log)?;
        outbound::install_tls();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.http.worker_threads)
            .enable_all()
            .build()
            .map_err(|error| format!("the async threads could not be started: {error}"))?;
        Ok(Self {
            _logging: logging,
            config,
            file: sources.file,
            seconds: options.seconds,
            size: learn::Size::of(options.seeds, options.sessions, options.arms.clone()),
            groups: options
                .sessions
                .and_then(|groups| u32::try_from(groups).ok()),
            people: people.transpose()?,
            steps: options.steps,
            shape: options.shape.clone(),
            against: options.against.clone(),
            model: options.model.clone(),
            root: options.folder.clone().unwrap_or_else(std::env::temp_dir),
            runtime,
        })
    }

    /// How long a timed part lasts, where the command line does not say it.
    fn time(&self, default_s: f64) -> Duration {
        Duration::from_secs_f64(self.seconds.unwrap_or(default_s))
    }

    /// Starts a server with an empty data folder, has something done at its address and stops it.
    async fn app<T>(
        &self,
        mut config: Config,
        work: impl AsyncFnOnce(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        let folder = self.folder()?;
        config.store.data_dir = folder.text();
        let app = App::start(config).await?;
        let done = work(&format!("http://{}", app.addr)).await;
        app.stop().await;
        done
    }

    /// A new folder for data.
    fn folder(&self) -> Result<Folder, String> {
        Folder::new(&self.root)
    }

    /// The configured model with its language.
    fn served(&self) -> Result<Served, String> {
        let access = HubAccess::from_env(&self.config.store.folder()?, &self.config.outbound);
        model::load(&self.config.model, &access)
    }

    /// The configured model with its threads; the starter model unless configured otherwise.
    fn builtin(&self) -> Result<Builtin, String> {
        self.served()?
            .builtin
            .ok_or_else(|| "the null engine has no model to measure; unset model.engine".to_owned())
    }
}

/// Runs the program. With `serve` as its first argument it is the server that is measured: a process of
/// its own, of the same build as the bench.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let runs_the_program = |first: &OsString| first == "serve" || first == "guest";
    if arguments.get(1).is_some_and(runs_the_program) {
        return hone::cli::run(arguments);
    }
    let cli = Cli::parse_from(arguments);
    let result = match (cli.command, cli.measure) {
        (Some(Command::Demo(options)), _) => demo::server::command(options),
        (None, Some(options)) => measure(&options),
        (None, None) => Err("say what to measure; hone-bench --help lists it".to_owned()),
    };
    result.unwrap_or_else(|message| {
        eprintln!("hone-bench: {message}");
        ExitCode::FAILURE
    })
}

/// Measures and prints.
fn measure(options: &Options) -> Result<ExitCode, String> {
    if cfg!(debug_assertions) {
        eprintln!(
            "hone-bench: this is a debug build, so its speed says little; build with --release"
        );
    }
    let bench = Bench::new(options)?;
    let mut objects = Map::new();
    let mut failed = false;
    for name in options.name.each() {
        let object = match name.measure(&bench) {
            Ok(report) => {
                println!("{}", report.table());
                failed |= report.failed > 0;
                report.into_json()
            }
            Err(error) if options.name == Name::All => {
                eprintln!("hone-bench: {}: {error}", name.text());
                failed = true;
                json!({ "error": error })
            }
            Err(error) => return Err(error),
        };
        objects.insert(name.text(), object);
    }
    if options.json {
        println!("{}", closing(options.name, objects));
    }
    bench.runtime.shutdown_background();
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The object of one measurement, or all keyed by name.
fn closing(name: Name, mut objects: Map<String, Value>) -> Value {
    match objects.remove(&name.text()) {
        Some(object) => object,
        None => Value::Object(objects),
    }
}

fn parse_sessions(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(sessions) if (1..=10_000).contains(&sessions) => Ok(sessions),
        _ => Err("it must be a number of sessions from 1 to 10000".to_owned()),
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("it must be a number of seconds from 0.1 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_measurement_closes_with_its_object_and_all_with_one_keyed_by_name() {
        let objects = |names: &[&str]| {
            let pairs = names.iter().map(|n| ((*n).to_owned(), json!({ "of": n })));
            pairs.collect::<Map<_, _>>()
        };
        assert_eq!(
            closing(Name::Gap, objects(&["gap"])),
            json!({ "of": "gap" })
        );
        let all = closing(Name::All, objects(&["gap", "swap"]));
        assert_eq!(all["swap"]["of"], "swap");
        assert_eq!(all["gap"]["of"], "gap");
    }

    #[test]
    fn a_measurement_and_the_demo_are_told_apart() {
        let line = |arguments: &str| {
            let words = std::iter::once("hone-bench").chain(arguments.split(' '));
            Cli::try_parse_from(words).map(|cli| (cli.command.is_some(), cli.measure))
        };
        for (arguments, is_demo, name) in [
            ("demo --seconds 5 --json", true, None),
            ("demo-short --json", false, Some(Name::DemoShort)),
            ("learn --model x --sessions 2", false, Some(Name::Learn)),
        ] {
            let (has_command, measure) = line(arguments).expect(arguments);
            assert_eq!(has_command, is_demo, "{arguments}");
            assert_eq!(measure.map(|options| options.name), name, "{arguments}");
        }
        assert!(line("nothing").is_err());
    }

    #[test]
    fn all_stands_for_every_other_short_name() {
        let known: Vec<Name> = Name::value_variants().to_vec();
        let each = Name::All.each();
        let apart = [
            Name::All,
            Name::Away,
            Name::Certificates,
            Name::Device,
            Name::Gym,
            Name::Learn,
            Name::Memory,
            Name::Pace,
        ];
        assert!(known.iter().all(|n| apart.contains(n) || each.contains(n)));
        assert_eq!(each.len() + apart.len(), known.len());
    }

    #[test]
    fn seconds_have_limits() {
        assert_eq!(parse_seconds("2.5"), Ok(2.5));
        for bad in ["0", "-1", "nan", "inf", "1e9", "two", ""] {
            assert!(parse_seconds(bad).is_err(), "{bad:?}");
        }
    }
}
