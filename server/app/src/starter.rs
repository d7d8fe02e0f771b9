//! `hone starter`: makes and measures the built-in model.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use hone_starter::chat::Talker;
use hone_starter::eval::{EvalOptions, Evaluation, Tally, evaluate};
use hone_starter::model_files;
use hone_starter::recipe::{Progress, TrainOptions, train};
use hone_text::folder::ModelFolder;
use indicatif::{ProgressBar, ProgressStyle};

/// What to do with the starter model.
#[derive(Debug, Subcommand)]
pub(crate) enum StarterCommand {
    /// Train it from nothing; a seed gives the same files again.
    Train(TrainArgs),
    /// Measure it.
    Eval(EvalArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// Folder that gets the model's files.
    #[arg(long, value_name = "FOLDER", default_value = "loops/starter/model")]
    out: PathBuf,
    /// Seed of everything random.
    #[arg(long)]
    seed: Option<u64>,
    /// Optimizer steps.
    #[arg(long)]
    steps: Option<u64>,
    /// Compute threads; one per core if absent.
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// A model folder; the built-in model if absent.
    #[arg(long, value_name = "FOLDER")]
    model: Option<PathBuf>,
    /// Compute threads; one per core if absent.
    #[arg(long)]
    threads: Option<usize>,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// Runs a starter command.
pub(crate) fn run(command: StarterCommand) -> Result<ExitCode, String> {
    match command {
        StarterCommand::Train(args) => run_train(args),
        StarterCommand::Eval(args) => run_eval(&args),
    }
}

fn threads(wanted: Option<usize>) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    wanted.unwrap_or_else(cores).max(1)
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1_000);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent:>3}% {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn run_train(args: TrainArgs) -> Result<ExitCode, String> {
    let mut options = TrainOptions::committed(args.out, threads(args.threads));
    options.seed = args.seed.unwrap_or(options.seed);
    options.steps = args.steps.unwrap_or(options.steps);
    let bar = bar();
    let report = train(&options, &mut |progress| match progress {
        Progress::Tokenizer { seconds } => bar.set_message(format!("tokenizer in {seconds:.1} s")),
        Progress::Step {
            step,
            steps,
            loss,
            tokens_per_second,
            ..
        } => {
            bar.set_position(step * 1_000 / steps.max(1));
            bar.set_message(format!(
                "step {step} of {steps}, loss {loss:.3}, {tokens_per_second:.0} tokens/s"
            ));
            if bar.is_hidden() {
                eprintln!(
                    "step {step} of {steps}, loss {loss:.3}, {tokens_per_second:.0} tokens/s"
                );
            }
        }
        Progress::Evaluating { share } => {
            bar.set_message(format!("measuring, {:.0} %", share * 100.0));
        }
    })
    .map_err(|error| error.to_string())?;
    bar.finish_and_clear();
    println!(
        "{} bytes in {} after {} tokens in {:.0} s, loss {:.4}",
        report.bytes,
        options.out_dir.display(),
        report.tokens,
        report.seconds,
        report.loss
    );
    print!("{}", table(&report.evaluation));
    println!(
        "{}",
        serde_json::to_string(&report).map_err(|e| e.to_string())?
    );
    Ok(ExitCode::SUCCESS)
}

fn run_eval(args: &EvalArgs) -> Result<ExitCode, String> {
    let folder = match args.model.as_deref() {
        Some(path) => ModelFolder::open(Path::new(path)),
        None => ModelFolder::embedded(model_files()),
    };
    let folder = folder.map_err(|error| error.to_string())?;
    let talker = Talker::open(&folder, threads(args.threads)).map_err(|error| error.to_string())?;
    let bar = bar();
    let evaluation = evaluate(&talker, EvalOptions::default(), &mut |share| {
        bar.set_position((share * 1_000.0) as u64);
    })
    .map_err(|error| error.to_string())?;
    bar.finish_and_clear();
    print!("{}", table(&evaluation));
    if args.json {
        println!(
            "{}",
            serde_json::to_string(&evaluation).map_err(|e| e.to_string())?
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The measures as a person reads them.
fn table(evaluation: &Evaluation) -> String {
    let mut text = format!(
        "{:<24}{:>8}{:>10}{:>14}\n",
        "", "asked", "exact", "well formed"
    );
    let mut row = |name: &str, tally: &Tally| {
        text.push_str(&format!(
            "{name:<24}{:>8}{:>9.1}%{:>13.1}%\n",
            tally.asked,
            tally.exact_share() * 100.0,
            tally.well_formed_share() * 100.0
        ));
    };
    row("held out, greedy", &evaluation.held_out_greedy);
    row("held out, sampled", &evaluation.held_out_sampled);
    row("follow-ups", &evaluation.follow_ups);
    row("wishes", &evaluation.wishes);
    row("wishes in other words", &evaluation.wishes_freely);
    row("  as asked for", &evaluation.wishes_freely_met);
    for (turn, tally) in evaluation.behind_8k.iter().enumerate() {
        row(&format!("behind 8k, turn {}", turn + 1), tally);
    }
    for (turn, tally) in evaluation.behind_50k.iter().enumerate() {
        row(&format!("behind 50k, turn {}", turn + 1), tally);
    }
    text
}
