//! The table per model, how far each goal is reached, and the object.

use serde_json::{Map, Value, json};

use super::Size;
use super::arms::Arm;
use super::base::Base;
use super::knowledge::{Paired, share};
use super::outcome::{Learned, Outcome};
use super::{ANSWER_TOKENS, TEMPERATURE};
use crate::report::{Report, milli};

/// Three first answers in a row are as wished within this many sessions.
const SESSIONS_GOAL: usize = 10;
/// Nats per token that learned answers may be from the told model's own.
const NATS_GOAL: f64 = 0.3;

const HEAD: [&str; 15] = [
    "arm, preference, seed",
    "3 in a row",
    "late",
    "told",
    "newer s",
    "versions",
    "refused",
    "before",
    "after",
    "nats",
    "words",
    "told words",
    "facts",
    "instr.",
    "other",
];

/// The report of all runs with one model.
pub(super) fn of(
    model: &str,
    size: &Size,
    base: &Base,
    outcomes: &[Outcome],
    errors: &[String],
) -> Report {
    let title = format!(
        "learn: {model} and people who only talk, {} sessions, {} seeds, temperature {TEMPERATURE}, at most {ANSWER_TOKENS} tokens",
        size.sessions, size.seeds
    );
    let mut report = Report::new(title, &HEAD);
    for outcome in outcomes {
        row(&mut report, outcome);
        report.failed += outcome.run.sessions.failed;
    }
    for tried in base.tried.iter().filter(|tried| !tried.qualifies()) {
        report.note(format!(
            "{} does not qualify: told {:.2}, untold {:.2}",
            tried.preference.name(),
            tried.told,
            tried.untold
        ));
    }
    let mut arms = Map::new();
    for arm in &size.arms {
        let summary = Summary::of(*arm, outcomes);
        for sentence in summary.sentences() {
            report.note(format!("{}: {sentence}", arm.name()));
        }
        arms.insert(arm.name().to_owned(), summary.json());
    }
    for error in errors {
        report.note(error.clone());
        report.failed += 1;
    }
    report.set("model", model);
    report.set("temperature", TEMPERATURE);
    report.set("answer_tokens_max", ANSWER_TOKENS);
    report.set("sessions", size.sessions);
    report.set("seeds", size.seeds);
    report.set("preferences", preferences(base));
    report.set("facts_base", share(&base.facts));
    report.set("instructions_base", share(&base.instructions));
    report.set("arms", arms);
    report.set(
        "runs",
        outcomes.iter().map(Outcome::json).collect::<Vec<_>>(),
    );
    report.set("errors", errors.to_vec());
    report
}

fn preferences(base: &Base) -> Value {
    let each = base.tried.iter().map(|tried| {
        json!({
            "name": tried.preference.name(),
            "told": tried.told,
            "untold": tried.untold,
            "questions": tried.questions,
            "qualifies": tried.qualifies(),
        })
    });
    Value::Array(each.collect())
}

fn row(report: &mut Report, outcome: &Outcome) {
    let (run, seen) = (&outcome.run, &outcome.run.sessions);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let of_learned =
        |cell: &dyn Fn(&Learned) -> String| or_dash(outcome.learned.as_ref().map(cell));
    report.row([
        run.plan.name(),
        or_dash(seen.three_in_a_row().map(|at| at.to_string())),
        format!("{:.2}", share(seen.late())),
        format!("{:.2}", outcome.told),
        or_dash(outcome.newer_s().map(|s| format!("{s:.0}"))),
        run.published.len().to_string(),
        run.refused.len().to_string(),
        format!("{:.2}", outcome.untold),
        of_learned(&|l| format!("{:.2}", l.as_wished)),
        or_dash(outcome.logprob_gap().map(|gap| format!("{gap:+.2}"))),
        of_learned(&|l| format!("{:.0}", l.words.median)),
        of_learned(&|l| format!("{:.0}-{:.0}", l.told_words.lower, l.told_words.upper)),
        of_learned(&|l| format!("{:+.1}", l.facts.change().mean)),
        of_learned(&|l| format!("{:+.1}", l.instructions.change().mean)),
        if run.other_unchanged {
            "same"
        } else {
            "CHANGED"
        }
        .to_owned(),
    ]);
}

/// The runs of one arm whose preferences qualify.
struct Summary {
    runs: usize,
    /// Runs with three in a row within the goal's sessions.
    in_time: usize,
    late: f64,
    /// Mean share as wished when told, over the same runs.
    told: f64,
    /// Runs that learned, those within the goal's nats, and those of the told length.
    learned: usize,
    near: usize,
    told_length: usize,
    empty: f64,
    facts: Paired,
    instructions: Paired,
    others_changed: usize,
    pauses_run_out: usize,
}

impl Summary {
    fn of(arm: Arm, outcomes: &[Outcome]) -> Self {
        let runs: Vec<&Outcome> = outcomes.iter().filter(|o| o.counts_for(arm)).collect();
        let count = |is: &dyn Fn(&Outcome) -> bool| runs.iter().filter(|o| is(o)).count();
        let mean = |of: &dyn Fn(&Outcome) -> f64| {
            runs.iter().map(|o| of(o)).sum::<f64>() / runs.len().max(1) as f64
        };
        let all: Vec<&Learned> = runs.iter().filter_map(|o| o.learned.as_ref()).collect();
        let paired = |of: &dyn Fn(&Learned) -> &Paired| Paired {
            base: all.iter().flat_map(|l| of(l).base.clone()).collect(),
            learned: all.iter().flat_map(|l| of(l).learned.clone()).collect(),
        };
        let in_time = |o: &Outcome| {
            let at = o.run.sessions.three_in_a_row();
            at.is_some_and(|at| at <= SESSIONS_GOAL)
        };
        Self {
            runs: runs.len(),
            in_time: count(&in_time),
            late: mean(&|o| share(o.run.sessions.late())),
            told: mean(&|o| o.told),
            learned: all.len(),
            near: count(&|o| o.logprob_gap().is_some_and(|gap| gap.abs() <= NATS_GOAL)),
            told_length: all.iter().filter(|l| l.has_told_length()).count(),
            empty: all.iter().map(|l| l.empty).sum::<f64>() / all.len().max(1) as f64,
            facts: paired(&|l| &l.facts),
            instructions: paired(&|l| &l.instructions),
            others_changed: count(&|o| !o.run.other_unchanged),
            pauses_run_out: runs.iter().map(|o| o.run.sessions.pauses_run_out).sum(),
        }
    }

    fn sentences(&self) -> Vec<String> {
        if self.runs == 0 {
            return vec!["no run of a preference that qualifies".to_owned()];
        }
        let mut sentences = vec![format!(
            "three in a row within {SESSIONS_GOAL} sessions in {} of {} runs; late {:.2}, {:.0} % of told",
            self.in_time,
            self.runs,
            self.late,
            100.0 * self.late / self.told.max(1e-9)
        )];
        if self.learned > 0 {
            let (facts, instructions) = (self.facts.change(), self.instructions.change());
            sentences.push(format!(
                "answers within {NATS_GOAL} nats of told in {} of {} runs, of told length in {}; {:.1} % empty",
                self.near,
                self.learned,
                self.told_length,
                100.0 * self.empty
            ));
            sentences.push(format!(
                "facts {:+.1} points ({:+.1} to {:+.1}), instructions {:+.1} ({:+.1} to {:+.1}); another person changed in {} runs; {} pauses ran out",
                facts.mean,
                facts.low,
                facts.high,
                instructions.mean,
                instructions.low,
                instructions.high,
                self.others_changed,
                self.pauses_run_out
            ));
        }
        sentences
    }

    fn json(&self) -> Value {
        json!({
            "runs": self.runs,
            "in_time": self.in_time,
            "late_share": milli(self.late),
            "told_share": milli(self.told),
            "learned": self.learned,
            "within_nats": self.near,
            "of_told_length": self.told_length,
            "empty_share": milli(self.empty),
            "facts": self.facts.json(),
            "instructions": self.instructions.json(),
            "others_changed": self.others_changed,
            "pauses_run_out": self.pauses_run_out,
        })
    }
}
