//! Trains the starter model (`train OUT`) or measures a folder (`eval FOLDER`). Further arguments
//! are `key=value`: steps, threads, seed, lr, batch (tokens), noise (share of rows), hidden, layers,
//! ffn, window, words (steps of the second part), words_lr, continue (the folder has the first part's files);
//! of the measures temperature, questions, dialogues. Progress goes to stderr, the result to stdout.

use std::path::PathBuf;

use hone_starter::chat::Talker;
use hone_starter::error::StarterError;
use hone_starter::eval::evaluate;
use hone_starter::recipe::{Progress, TrainOptions, train};
use hone_text::folder::ModelFolder;

fn main() -> Result<(), StarterError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = PathBuf::from(arguments.get(1).map_or("starter-model", String::as_str));
    let mut options = TrainOptions::committed(folder.clone(), 2);
    for argument in arguments.iter().skip(2) {
        set(&mut options, argument);
    }
    if arguments.first().is_some_and(|command| command == "eval") {
        let talker = Talker::open(&ModelFolder::open(&folder)?, options.threads)?;
        let mut told = |share: f64| eprintln!("evaluating {:.0} %", share * 100.0);
        let evaluation = evaluate(&talker, options.eval, &mut told)?;
        println!("{evaluation}");
        return Ok(());
    }
    let report = train(&options, &mut tell)?;
    println!("{}", report.evaluation);
    println!(
        "{}",
        serde_json::to_string(&report).expect("plain data prints")
    );
    Ok(())
}

fn set(options: &mut TrainOptions, argument: &str) {
    let (key, text) = argument.split_once('=').unwrap_or((argument, ""));
    let value: f64 = text
        .parse()
        .unwrap_or_else(|_| panic!("{argument}: want key=number"));
    let whole = value as usize;
    match key {
        "steps" => options.steps = whole as u64,
        "words" => options.words.steps = whole as u64,
        "words_lr" => options.words.lr = value as f32,
        "continue" => options.continues = true,
        "threads" => options.threads = whole,
        "seed" => options.seed = whole as u64,
        "lr" => options.schedule.lr = value as f32,
        "temperature" => options.eval.temperature = value as f32,
        "questions" => options.eval.questions = whole,
        "dialogues" => options.eval.dialogues = whole,
        "batch" => options.schedule.batch_tokens = whole,
        "noise" => options.schedule.noise.share = value,
        "hidden" => options.shape.hidden = whole,
        "layers" => options.shape.layers = whole,
        "ffn" => options.shape.ffn = whole,
        "window" => options.shape.window = whole,
        _ => panic!("{key}: no such setting"),
    }
}

fn tell(progress: Progress) {
    match progress {
        Progress::Tokenizer { seconds } => eprintln!("{seconds:6.0} s  tokenizer trained"),
        Progress::Step {
            step,
            steps,
            loss,
            tokens_per_second,
            seconds,
        } => eprintln!(
            "{seconds:6.0} s  step {step}/{steps}  loss {loss:.3}  {tokens_per_second:.0} tokens/s"
        ),
        Progress::Evaluating { share } => eprintln!("evaluating {:.0} %", share * 100.0),
    }
}
