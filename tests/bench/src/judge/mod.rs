//! What the judge's side of the server can be trusted with: how often verdicts are right, whether
//! requests find their sessions, whether every turn is accounted for, whether a next state can command
//! its judge, whether broken certificates are seen, and whether one user's secrets reach another.
//!
//! With a table `[judge.model]` in the environment (`HONE__JUDGE__MODEL__URL` and `__NAME`) that model
//! judges the labelled set and the commanding next states as well, and writes certificates.

mod argued;
mod canary;
mod commanded;
#[path = "../../../support/injections.rs"]
mod injections;
mod judge_loop;
mod programs;
mod reading;
mod script;

use std::collections::BTreeMap;
use std::sync::Arc;

use hone_judge::ModelConfig;
use hone_judge::labelled::{Labelled, labelled};
use serde_json::{Value, json};

use super::Bench;
use super::report::{Report, milli};
use crate::conversations;
use hone_net::outbound::Outbound;
use judge_loop::{Judged, Said, Voter};

/// Conversations of the binding corpus, and its seed; the test uses the same.
const CONVERSATIONS: usize = 10_000;
const SEED: u64 = 7;
/// Programs of the certificate corpus.
const PROGRAMS: u64 = 1_000;

/// `hone-bench judge`.
pub(super) fn judge(bench: &Bench) -> Result<Report, String> {
    let mut report = Report::new(
        "judge: what verdicts, bindings and erasures are worth",
        &["measure", "value", "of"],
    );
    bench.runtime.block_on(async {
        let rows = labelled();
        accuracy(bench, &rows, &mut report).await?;
        commanded::measure(bench, &mut report).await?;
        argued::measure(bench, &mut report).await?;
        Ok::<(), String>(())
    })?;
    reading::measure(bench, &mut report)?;
    binding(&mut report);
    certificates(&mut report);
    bench
        .runtime
        .block_on(canary::measure(bench, &mut report))?;
    Ok(report)
}

/// `hone-bench certificates`.
pub(super) fn certificates_of_model(bench: &Bench) -> Result<Report, String> {
    if bench.config.judge.model.is_none() {
        return Err(
            "no judge model is configured; set HONE__JUDGE__MODEL__URL and HONE__JUDGE__MODEL__NAME, or a \
             table [judge.model] in --config"
                .to_owned(),
        );
    }
    let mut report = Report::new(
        "certificates: what a model argues about changes of code, and what the check makes of it",
        &["measure", "value", "of"],
    );
    bench
        .runtime
        .block_on(argued::measure(bench, &mut report))?;
    certificates(&mut report);
    Ok(report)
}

/// The loop's verdicts on these next states, in their order.
async fn verdicts(
    bench: &Bench,
    all: &[Said],
    voter: Option<Voter>,
) -> Result<Vec<Judged>, String> {
    let folder = bench.folder()?;
    judge_loop::judge_in(folder.path(), &bench.config.judge, (all, voter)).await
}

/// Puts a line into table and object.
fn line(
    report: &mut Report,
    (name, key): (&str, &str),
    (value, of): (String, String),
    number: Value,
) {
    report.row([name.to_owned(), value, of]);
    report.set(key, number);
}

fn said(row: &Labelled) -> Said {
    Said {
        kind: row.kind,
        asked: row.asked.clone(),
        completion: row.completion.clone(),
        text: row.text.clone(),
    }
}

/// The label that a verdict gives.
fn given(judged: &Judged) -> &'static str {
    match judged.verdict.score {
        Some(score) if score > 0.0 => "good",
        Some(score) if score < 0.0 => "bad",
        _ => "none",
    }
}

/// How the judge's model is asked where the configuration names none: the file of the presets.
fn model_of(bench: &Bench) -> Result<ModelConfig, String> {
    if let Some(model) = &bench.config.judge.model {
        return Ok(model.clone());
    }
    let preset: toml::Value = toml::from_str(include_str!("../../../../configs/judge-model.toml"))
        .map_err(|error| error.to_string())?;
    let table = preset.get("judge").and_then(|judge| judge.get("model"));
    let table = table
        .cloned()
        .ok_or("configs/judge-model.toml has no [judge.model]")?;
    table
        .try_into()
        .map_err(|error: toml::de::Error| error.to_string())
}

/// The configured model, if there is one.
async fn endpoint(bench: &Bench) -> Result<Option<Voter>, String> {
    let Some(model) = bench.config.judge.model.clone() else {
        return Ok(None);
    };
    let outbound = Arc::new(Outbound::new(&bench.config.outbound)?);
    let completer = hone_judges::voter(&model, &outbound, None).await?;
    Ok(Some((model, completer)))
}

async fn accuracy(bench: &Bench, rows: &[Labelled], report: &mut Report) -> Result<(), String> {
    let states: Vec<Said> = rows.iter().map(said).collect();
    let scripted = script::Script::new(rows.iter().map(|row| (row.text.clone(), row.label)));
    let script: Voter = (model_of(bench)?, Arc::new(scripted));
    let mut judges = vec![("rules", None), ("scripted model", Some(script))];
    if let Some(voter) = endpoint(bench).await? {
        judges.push(("configured model", Some(voter)));
    }
    let (mut turns, mut explained) = (0, 0);
    for (name, voter) in judges {
        let judged = verdicts(bench, &states, voter).await?;
        turns += judged.len();
        explained += judged.iter().filter(|one| one.is_explained).count();
        let mut object = serde_json::Map::new();
        for half in ["tune", "test", "fresh"] {
            let of_half = rows.iter().zip(&judged).filter(|(row, _)| row.half == half);
            let pairs: Vec<(&str, &str)> =
                of_half.map(|(row, one)| (row.label, given(one))).collect();
            let right = pairs.iter().filter(|(label, given)| label == given).count();
            let share = right as f64 / pairs.len().max(1) as f64;
            report.row([
                format!("{name}, {half} half: right"),
                format!("{:.1} %", share * 100.0),
                pairs.len().to_string(),
            ]);
            let table = confusion(&pairs);
            report.note(format!("{name}, {half}: {}", sentence(&table)));
            object.insert(
                half.to_owned(),
                json!({"right": milli(share), "n": pairs.len(), "label_given": table}),
            );
        }
        report.set(
            &format!("accuracy_{}", name.replace(' ', "_")),
            Value::Object(object),
        );
    }
    let share = explained as f64 / turns.max(1) as f64;
    report.failed += (turns - explained) as u64;
    line(
        report,
        ("turns with an explained outcome", "explained_share"),
        (format!("{:.1} %", share * 100.0), turns.to_string()),
        json!(milli(share)),
    );
    Ok(())
}

fn confusion(pairs: &[(&str, &str)]) -> BTreeMap<String, BTreeMap<String, usize>> {
    let mut table: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for (label, given) in pairs {
        let row = table.entry((*label).to_owned()).or_default();
        *row.entry((*given).to_owned()).or_default() += 1;
    }
    table
}

fn sentence(table: &BTreeMap<String, BTreeMap<String, usize>>) -> String {
    let rows = table.iter().map(|(label, row)| {
        let cells: Vec<String> = row
            .iter()
            .map(|(given, n)| format!("{given} {n}"))
            .collect();
        format!("{label} -> {}", cells.join(", "))
    });
    rows.collect::<Vec<_>>().join("; ")
}

fn binding(report: &mut Report) {
    let table = conversations::run(SEED, CONVERSATIONS);
    let (crossed, wrong) = (table.cross_links(), table.wrong_turns());
    let requests = table.requests();
    report.failed += (crossed + wrong) as u64;
    line(
        report,
        ("requests bound to another session", "binding_crossed"),
        (crossed.to_string(), requests.to_string()),
        json!(crossed),
    );
    line(
        report,
        ("requests bound to another turn", "binding_wrong_turns"),
        (wrong.to_string(), requests.to_string()),
        json!(wrong),
    );
}

fn certificates(report: &mut Report) {
    let measured = programs::measure(PROGRAMS);
    let percent = |(all, good): (usize, usize)| 100.0 * good as f64 / all.max(1) as f64;
    let ((sound, accepted), (broken, rejected)) = (measured.sound, measured.broken);
    line(
        report,
        (
            "sound certificates accepted",
            "certificates_accepted_percent",
        ),
        (
            format!("{:.2} %", percent((sound, accepted))),
            sound.to_string(),
        ),
        json!(milli(percent((sound, accepted)))),
    );
    line(
        report,
        (
            "broken certificates rejected",
            "certificates_rejected_percent",
        ),
        (
            format!("{:.2} %", percent((broken, rejected))),
            broken.to_string(),
        ),
        json!(milli(percent((broken, rejected)))),
    );
    let mut missed: BTreeMap<String, usize> = BTreeMap::new();
    for fault in measured.missed {
        *missed.entry(format!("{fault:?}")).or_default() += 1;
    }
    report.set("certificates_missed", json!(missed));
}
