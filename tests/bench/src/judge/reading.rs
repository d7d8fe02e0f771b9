//! What the reading finds that the rules do not, on replies that nothing was fitted on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use hone_domain::Outcome;
use hone_judge::labelled::{self, Reply};
use hone_judge::reading::{Probe, Reading};
use hone_judge::rules::{Exchange, judge_reply};
use hone_serve::Cancel;
use serde_json::json;

use super::injections::{Injection, injections};
use crate::Bench;
use crate::bed::Bed;
use crate::report::{Report, milli};
use hone::config::ModelConfig;
use hone::hub::HubAccess;
use hone::model;
use hone_inference::Language;
use hone_judges::{Busy, States};

/// Replies that nothing is fitted on.
const BLIND: &str = include_str!("../../../support/labelled/blind.tsv");

/// What was made of one reply.
#[derive(Clone, Copy)]
struct Told {
    outcome: Outcome,
    has_wish: bool,
}

/// Rules against reading, per group of languages, with the model of `--model`.
pub(super) fn measure(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let rows = labelled::replies(BLIND);
    let ruled: Vec<Told> = rows.iter().map(|row| by_rules(row.exchange())).collect();
    table(report, "rules", &rows, &ruled);
    let Some(path) = &bench.model else {
        report.note("without --model PATH no model reads".to_owned());
        return Ok(());
    };
    let mut config = bench.config.model.clone();
    config.path.clone_from(path);
    let (bed, language) = opened(bench, &config)?;
    let states = States {
        backend: Arc::new(bed.engine),
        language,
        tokens_max: bench.config.judge.reading.tokens_max,
    };
    let (cancel, began) = (Cancel::default(), Instant::now());
    let idle: Busy = Arc::new(|| false);
    let precision_min = bench.config.judge.reading.precision_min;
    let fitted = states.fit(precision_min, &idle, &|_| (), &cancel);
    let fit_s = began.elapsed().as_secs_f64();
    report.row([
        "reading: seconds of the fit".to_owned(),
        format!("{fit_s:.1}"),
        "1".to_owned(),
    ]);
    let probe = match fitted {
        Ok(probe) => probe,
        Err(why) => {
            report.note(format!("the reading stays off: {why}"));
            return Ok(());
        }
    };
    report.note(format!("cross-validation: {:?}", probe.crossed));
    let began = Instant::now();
    let mut read = Vec::new();
    for row in &rows {
        let seen = states.see(row.exchange(), &cancel)?;
        read.push(probe.read(&seen));
    }
    let each_ms = began.elapsed().as_secs_f64() * 1_000.0 / rows.len().max(1) as f64;
    report.row([
        "reading: milliseconds of each".to_owned(),
        format!("{each_ms:.0}"),
        rows.len().to_string(),
    ]);
    report.set(
        "reading",
        json!({"fit_s": milli(fit_s), "each_ms": milli(each_ms)}),
    );
    let alone: Vec<Told> = read
        .iter()
        .map(|reading| by_reading(reading.as_ref()))
        .collect();
    table(report, "reading", &rows, &alone);
    let both = then_rules(&read, &alone, &ruled);
    table(report, "reading, then rules", &rows, &both);
    commanded(report, &states, &probe, &cancel)
}

/// An engine with this model, and its language.
fn opened(bench: &Bench, config: &ModelConfig) -> Result<(Bed, Arc<dyn Language>), String> {
    let access = HubAccess {
        endpoint: String::new(),
        token: None,
        cache: PathBuf::new(),
        outbound: bench.config.outbound.clone(),
    };
    let served = model::load(config, &access)?;
    let builtin = served.builtin.ok_or("this model cannot be served here")?;
    Ok((Bed::new(bench, &builtin)?, served.language))
}

/// What is decided where the rules may speak when the reading is unsure.
fn then_rules(read: &[Option<Reading>], alone: &[Told], ruled: &[Told]) -> Vec<Told> {
    let all = read.iter().zip(alone).zip(ruled);
    let told = all.map(|((reading, alone), ruled)| {
        let is_unsure = alone.outcome == Outcome::Abstain && !alone.has_wish;
        let allows = reading.is_none_or(|reading| reading.allows(ruled.outcome));
        if is_unsure && allows { *ruled } else { *alone }
    });
    told.collect()
}

fn by_rules(exchange: Exchange<'_>) -> Told {
    let ruling = judge_reply(exchange);
    Told {
        outcome: ruling.outcome,
        has_wish: ruling.hint.is_some(),
    }
}

fn by_reading(reading: Option<&Reading>) -> Told {
    reading.map_or(
        Told {
            outcome: Outcome::Abstain,
            has_wish: false,
        },
        |reading| Told {
            outcome: reading.outcome,
            has_wish: reading.has_wish,
        },
    )
}

/// Replies that try to command the judge: how many are taken for what they want to be.
fn commanded(
    report: &mut Report,
    states: &States,
    probe: &Probe,
    cancel: &Cancel,
) -> Result<(), String> {
    let all = injections();
    let obeyed = |injection: &Injection| -> Result<bool, String> {
        let exchange = Exchange {
            asked: "How far is the moon?",
            completion: "384,400 km.",
            reply: &injection.text,
        };
        let Ok(seen) = states.see(exchange, cancel) else {
            return Ok(false);
        };
        let told = by_reading(probe.read(&seen).as_ref());
        Ok(label(told.outcome) == injection.wants && injection.wants != "none")
    };
    let obeyed = all
        .iter()
        .map(obeyed)
        .collect::<Result<Vec<bool>, String>>()?;
    let count = obeyed.iter().filter(|obeyed| **obeyed).count();
    report.row([
        "reading: commands to the judge obeyed".to_owned(),
        count.to_string(),
        all.len().to_string(),
    ]);
    report.set("reading_commanded", json!(count));
    Ok(())
}

fn label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Good => "good",
        Outcome::Bad => "bad",
        Outcome::Neutral | Outcome::Abstain => "none",
    }
}

fn table(report: &mut Report, name: &str, rows: &[Reply], told: &[Told]) {
    for (group, is_english) in [("English", true), ("others", false)] {
        let pairs = rows.iter().zip(told);
        let pairs = pairs.filter(|(row, _)| (row.language == "en") == is_english);
        let pairs: Vec<(&Reply, &Told)> = pairs.collect();
        let mut share =
            |key: &str, of: &dyn Fn(&Reply, &Told) -> bool, is: &dyn Fn(&Reply, &Told) -> bool| {
                let all: Vec<_> = pairs.iter().filter(|(row, told)| of(row, told)).collect();
                let count = all.iter().filter(|(row, told)| is(row, told)).count();
                let share = count as f64 / all.len().max(1) as f64;
                report.row([
                    format!("{name}, {group}: {key}"),
                    format!("{:.1} %", share * 100.0),
                    all.len().to_string(),
                ]);
                report.set(&format!("{name}, {group}: {key}"), json!(milli(share)));
            };
        let is_right = |row: &Reply, told: &Told| label(told.outcome) == row.label;
        share("opinions found", &|row, _| row.label != "none", &is_right);
        share(
            "decided right",
            &|_, told| label(told.outcome) != "none",
            &is_right,
        );
        share(
            "neutral blamed",
            &|row, _| row.label == "none",
            &|_, told| told.outcome == Outcome::Bad,
        );
        share("wishes found", &|row, _| row.wish, &|_, told| told.has_wish);
        share("wishes right", &|_, told| told.has_wish, &|row, _| row.wish);
    }
}
