//! Certificates that a real model writes about the programs of the corpus.

use std::collections::BTreeMap;
use std::time::Duration;

use hone_judge::CompleteOptions;
use hone_judge::certificate::{Case, check, parse};
use serde_json::json;
use uuid::Uuid;

use super::{Bench, Report, endpoint, line, programs};

/// Programs that it is asked about.
const PROGRAMS: u64 = 20;

/// What became of the certificates.
#[derive(Default)]
struct Counts {
    /// Requests that failed, or ran into the deadline.
    failed: usize,
    /// Answers in the form of a certificate.
    written: usize,
    /// Of these, the ones in which the check finds nothing wrong.
    accepted: usize,
    /// Of the accepted ones, those whose conclusion is what the tests really do.
    right: usize,
    /// Why the others were not accepted, and how often.
    refused: BTreeMap<String, usize>,
}

impl Counts {
    fn refuse(&mut self, why: String) {
        *self.refused.entry(why).or_default() += 1;
    }
}

/// Asks the configured judge model, if there is one, for a certificate of each program.
pub(super) async fn measure(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let Some((model, completer)) = endpoint(bench).await? else {
        return Ok(());
    };
    let mut counts = Counts::default();
    for seed in 0..PROGRAMS {
        let sample = programs::sample(seed);
        let case = Case {
            changed: Ok(sample.changed.clone()),
            tests: sample.tests.clone(),
        };
        let Some(messages) = case.messages(Uuid::from_u128(u128::from(seed))) else {
            continue;
        };
        let options = CompleteOptions {
            temperature: 0.0,
            max_tokens: model.certificate_tokens_max,
            seed: 0,
            deadline: Duration::from_millis(model.certificate_deadline_ms),
        };
        let said = match completer.complete(&messages, options).await {
            Ok(said) => said,
            Err(why) => {
                counts.failed += 1;
                counts.refuse(why.to_string());
                continue;
            }
        };
        let certificate = match parse(&said.words) {
            Ok(certificate) => certificate,
            Err(why) => {
                counts.refuse(why);
                continue;
            }
        };
        counts.written += 1;
        match check(&certificate, &sample.changed, &sample.tests) {
            Ok(_) => {
                counts.accepted += 1;
                let is_right = certificate.conclusion == sample.certificate.conclusion;
                counts.right += usize::from(is_right);
            }
            Err(why) => counts.refuse(why),
        }
    }
    tell(&counts, report);
    Ok(())
}

fn tell(counts: &Counts, report: &mut Report) {
    let of = PROGRAMS.to_string();
    for (what, name, count) in [
        (
            "certificates of the model that failed",
            "argued_failed",
            counts.failed,
        ),
        (
            "certificates of the model with the form of one",
            "argued_written",
            counts.written,
        ),
        (
            "of these, accepted by the check",
            "argued_accepted",
            counts.accepted,
        ),
        (
            "of these, with the right conclusion",
            "argued_right",
            counts.right,
        ),
    ] {
        line(
            report,
            (what, name),
            (count.to_string(), of.clone()),
            json!(count),
        );
    }
    for (why, count) in &counts.refused {
        report.note(format!("not accepted, {count} of {of}: {why}"));
    }
    report.set("argued_not_accepted", json!(counts.refused));
}
