//! Drafts: how much sooner completions are said that are predicted well, and how much later those
//! that are predicted badly. Also that they are the same.

use std::time::{Duration, Instant};

use hone_domain::{Ask, Delta, Token};
use hone_serve::{Answer, Backend};
use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::Bench;
use super::bed::Bed;
use super::report::{Report, milli, ratio};
use super::turns::model;

/// Completions at once, and tokens of each and of its prompt.
const CONCURRENT: [usize; 3] = [1, 4, 16];
const TOKENS: u32 = 128;
const PROMPT_TOKENS: usize = 32;
/// Shares of the predicted tokens that are right; the first stands for no prediction.
const RIGHT: [Option<f64>; 6] = [None, Some(0.0), Some(0.5), Some(0.8), Some(0.95), Some(1.0)];

/// The same completions without drafts and with them.
#[derive(Default)]
struct Compared {
    rounds: u64,
    tokens: u64,
    without: Duration,
    with: Duration,
    drafted: u64,
    accepted: u64,
    /// Completions that were not the same.
    differ: u64,
}

/// `hone-bench drafts`.
pub(super) fn drafts(bench: &Bench) -> Result<Report, String> {
    let (name, builtin) = model(bench)?;
    let beds = (Bed::undrafted(bench, &builtin)?, Bed::new(bench, &builtin)?);
    let time = bench.time(2.0);
    let title = format!("drafts: tokens/s of completions of {TOKENS} tokens, {name}");
    let head = [
        "at once",
        "predicted",
        "without",
        "with",
        "ratio",
        "drafts accepted",
    ];
    let mut report = Report::new(title, &head);
    let mut numbers: Vec<Value> = Vec::new();
    // The first completions touch the memory of weights and keys for the first time.
    compare(&beds, (1, None), Duration::ZERO)?;
    for concurrent in CONCURRENT {
        for right in RIGHT {
            let compared = compare(&beds, (concurrent, right), time)?;
            let speed = |time: Duration| compared.tokens as f64 / time.as_secs_f64();
            let (without, with) = (speed(compared.without), speed(compared.with));
            let factor = ratio(with, without);
            report.row([
                concurrent.to_string(),
                right.map_or("nothing".to_owned(), |right| {
                    format!("{:.0} % right", right * 100.0)
                }),
                format!("{without:.1}"),
                format!("{with:.1}"),
                format!("{:.2}", factor.unwrap_or_default()),
                format!("{} of {}", compared.accepted, compared.drafted),
            ]);
            report.failed += compared.differ;
            numbers.push(json!({
                "concurrent": concurrent,
                "right": right,
                "without_tokens_per_s": milli(without),
                "with_tokens_per_s": milli(with),
                "ratio": factor,
                "rounds": compared.rounds,
                "drafted": compared.drafted,
                "accepted": compared.accepted,
            }));
        }
    }
    report.note("what is wrong is inserted, left out or another token, a third each".to_owned());
    if report.failed == 0 {
        report.note("every completion is the same with drafts and without".to_owned());
    }
    report.set("compared", numbers);
    Ok(report)
}

/// Rounds of `concurrent` completions, without drafts and then with, until all together took this long; one
/// at least.
fn compare(
    (without, with): &(Bed, Bed),
    (concurrent, right): (usize, Option<f64>),
    time: Duration,
) -> Result<Compared, String> {
    let mut compared = Compared::default();
    let mut rng = Rng::at(7, concurrent as u64);
    while compared.rounds == 0 || compared.without + compared.with < time {
        compared.rounds += 1;
        let mut asks: Vec<Ask> = (0..concurrent)
            .map(|_| without.made(Bed::scope(), (without.words(PROMPT_TOKENS), TOKENS), None))
            .collect();
        let (said, took) = say(without, &asks)?;
        compared.without += took;
        for (ask, said) in asks.iter_mut().zip(&said) {
            if let Some(right) = right {
                ask.predicted = nearly(said, (right, with.vocab()), &mut rng).into();
            }
        }
        let before = with.engine.stats();
        let (again, took) = say(with, &asks)?;
        compared.with += took;
        let after = with.engine.stats();
        compared.drafted += after.draft_tokens_total - before.draft_tokens_total;
        compared.accepted += after.draft_tokens_accepted_total - before.draft_tokens_accepted_total;
        compared.tokens += said.iter().map(|tokens| tokens.len() as u64).sum::<u64>();
        let differ = said
            .iter()
            .zip(&again)
            .filter(|(said, again)| said != again);
        compared.differ += differ.count() as u64;
    }
    Ok(compared)
}

/// What was said, of which this share is right.
fn nearly(said: &[Token], (right, vocab): (f64, usize), rng: &mut Rng) -> Vec<Token> {
    let mut nearly = Vec::with_capacity(said.len());
    for token in said {
        if rng.chance(right) {
            nearly.push(*token);
            continue;
        }
        match rng.below(3) {
            0 => nearly.push(rng.below(vocab) as Token),
            1 => nearly.extend([rng.below(vocab) as Token, *token]),
            _ => {}
        }
    }
    nearly
}

/// The completions, and how long all of them took.
fn say(bed: &Bed, asks: &[Ask]) -> Result<(Vec<Vec<Token>>, Duration), String> {
    let start = Instant::now();
    let answers = asks.iter().map(|ask| bed.engine.ask(ask.clone()));
    let answers: Result<Vec<Answer>, _> = answers.collect();
    let mut all = Vec::new();
    for mut answer in answers.map_err(|error| error.to_string())? {
        let mut tokens = Vec::new();
        while let Some(delta) = answer.deltas.blocking_recv() {
            match delta {
                Delta::Token(token) => tokens.push(token.token),
                Delta::Failed(error) => return Err(format!("a completion failed: {error}")),
                Delta::Started { .. } | Delta::End(_) => {}
            }
        }
        all.push(tokens);
    }
    Ok((all, start.elapsed()))
}
