//! Verifiers: the signal between explicit feedback and a model's votes.
//!
//! A check comes from the request (its field `verify`) or from a rule of the configuration, which
//! says what turns it is for. All but two kinds are pure functions of the transition; a callback and
//! a certificate are [`Job`]s that somebody else does.

mod answer;
mod bound;
mod call;
mod finding;
mod report;
mod shape;

use hone_domain::{
    Check, NextKind, NextState, Outcome, ParsedOutput, Role, Signal, Subject, Turn, Verifier,
};
use hone_ledger::Claimed;
use regex::Regex;
use serde::{Deserialize, Serialize};

pub(crate) use call::read as read_reply;
pub use call::{CallReply, Caller, CallerError, Calling};
pub(crate) use finding::{Finding, finding};

use crate::certificate;
use crate::decide::Decision;

/// Most checks of one turn.
const CHECKS_MAX: usize = 16;

/// A check of the configuration, and which turns it is for.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name; it stands before the evidence.
    pub name: String,
    /// Turns that call a tool of this name; `*` stands for any characters. Its results are looked at.
    pub tool: Option<String>,
    /// Turns whose last user message this regular expression is found in.
    pub asked: Option<String>,
    /// How they are checked.
    pub check: Verifier,
}

/// A check that somebody else does.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// Asks an address.
    Call(Calling),
    /// Has a model argue, and checks the argument.
    Certify(certificate::Case),
}

/// The configured rules, ready for use.
#[derive(Debug, Default)]
pub(crate) struct Rules(Vec<Ready>);

#[derive(Debug)]
struct Ready {
    check: Check,
    tool: Option<Regex>,
    asked: Option<Regex>,
}

/// What a verifier is given of a transition.
struct Scene<'a> {
    turn: &'a Turn,
    said: ParsedOutput,
    next: &'a NextState,
}

/// Whether a verifier can be used at all; the message says what is wrong with it.
pub fn check_verifier(verifier: &Verifier) -> Result<(), String> {
    match verifier {
        Verifier::JsonSchema { schema, .. } => shape::check_schema(schema),
        Verifier::Regex { pattern, .. } => shape::regex(pattern).map(|_| ()),
        Verifier::Numeric {
            expected,
            tolerance,
            ..
        } => {
            let sound = expected.is_finite() && tolerance.is_finite() && *tolerance >= 0.0;
            let message = "expected and tolerance must be finite, and tolerance not below 0";
            sound.then_some(()).ok_or_else(|| message.to_owned())
        }
        Verifier::Callback { deadline_ms, .. } if *deadline_ms == 0 => {
            Err("deadline_ms must be at least 1".to_owned())
        }
        Verifier::Certificate { files, tests } => certificate::check_sources(files, tests),
        Verifier::ExitCode {}
        | Verifier::TestReport {}
        | Verifier::Exact { .. }
        | Verifier::Callback { .. } => Ok(()),
    }
}

impl Rules {
    /// From the configuration; the error names the rule.
    pub(crate) fn new(rules: &[Rule]) -> Result<Self, String> {
        let ready = rules.iter().map(|rule| {
            let at = |why| format!("judge.verifiers {:?}: {why}", rule.name);
            check_verifier(&rule.check).map_err(at)?;
            let asked = rule.asked.as_deref().map(shape::regex);
            let tool = rule.tool.as_deref().map(|name| {
                let parts: Vec<String> = name.split('*').map(regex::escape).collect();
                shape::regex(&format!("^(?s:{})$", parts.join(".*")))
            });
            Ok(Ready {
                check: Check {
                    name: rule.name.clone(),
                    verifier: rule.check.clone(),
                },
                tool: tool.transpose().map_err(at)?,
                asked: asked.transpose().map_err(at)?,
            })
        });
        ready.collect::<Result<_, String>>().map(Self)
    }

    /// What is found at once, and what somebody else has to find out.
    pub(crate) fn look(&self, turn: &Turn, next: &NextState) -> (Vec<Finding>, Vec<(Check, Job)>) {
        let scene = Scene {
            turn,
            said: ParsedOutput::meaning(&turn.completion_text),
            next,
        };
        let own = turn.admission.checks.iter().map(|check| (check, None));
        let rules = self.0.iter().filter(|rule| rule.is_for(&scene));
        let all = own.chain(rules.map(|rule| (&rule.check, rule.tool.as_ref())));
        let (mut findings, mut jobs) = (Vec::new(), Vec::new());
        for (check, tool) in all.take(CHECKS_MAX) {
            match job(&scene, check) {
                Some(job) => jobs.push((check.clone(), job)),
                None => {
                    let (outcome, evidence) = verify(&scene, &check.verifier, tool);
                    findings.push(finding(&check.name, outcome, &evidence));
                }
            }
        }
        (findings, jobs)
    }
}

impl Ready {
    fn is_for(&self, scene: &Scene<'_>) -> bool {
        let calls = |tool: &Regex| {
            scene
                .said
                .calls
                .iter()
                .any(|call| tool.is_match(&call.name))
        };
        let asks = |asked: &Regex| asked.is_match(scene.asked());
        self.tool.as_ref().is_none_or(calls) && self.asked.as_ref().is_none_or(asks)
    }
}

impl Scene<'_> {
    fn asked(&self) -> &str {
        let messages = self.turn.messages.iter().rev();
        let asked = messages.into_iter().find(|m| m.role == Role::User);
        asked.map_or("", |message| message.content.as_str())
    }

    /// The results that a check looks at. With several calls a result is its call's by its place;
    /// where the numbers differ only calls of one tool can be told apart from none.
    fn results(&self, tool: Option<&Regex>) -> Result<Vec<&str>, &'static str> {
        let is_result = |kind| matches!(kind, NextKind::ToolResult | NextKind::Environment);
        let items = self.next.items.iter().filter(|item| is_result(item.kind));
        let results: Vec<&str> = items.map(|item| item.text.as_str()).collect();
        let Some(tool) = tool else {
            return Ok(results);
        };
        let wanted: Vec<bool> = self
            .said
            .calls
            .iter()
            .map(|c| tool.is_match(&c.name))
            .collect();
        if wanted.iter().all(|wanted| *wanted) {
            return Ok(results);
        }
        if wanted.len() != results.len() {
            return Err("which result belongs to the call cannot be told");
        }
        let of_tool = results
            .into_iter()
            .zip(wanted)
            .filter(|(_, wanted)| *wanted);
        Ok(of_tool.map(|(result, _)| result).collect())
    }

    fn subjects(&self, of: Subject, tool: Option<&Regex>) -> Result<Vec<&str>, &'static str> {
        let found: Vec<&str> = match of {
            Subject::Answer => vec![self.said.content.trim()],
            Subject::Call => {
                let calls = self.said.calls.iter();
                let wanted = calls.filter(|c| tool.is_none_or(|tool| tool.is_match(&c.name)));
                wanted.map(|call| call.arguments.as_str()).collect()
            }
            Subject::Result => self.results(tool)?,
        };
        let found: Vec<&str> = found.into_iter().filter(|text| !text.is_empty()).collect();
        match (found.is_empty(), of) {
            (false, _) => Ok(found),
            (true, Subject::Answer) => Err("there is no answer, only calls or nothing"),
            (true, Subject::Call) => Err("there is no such call"),
            (true, Subject::Result) => Err("there is no result"),
        }
    }
}

fn job(scene: &Scene<'_>, check: &Check) -> Option<Job> {
    match &check.verifier {
        Verifier::Callback {
            url,
            secret_env,
            deadline_ms,
        } => Some(Job::Call(Calling {
            url: url.clone(),
            secret_env: secret_env.clone(),
            deadline_ms: *deadline_ms,
            body: call::body(&check.name, scene.turn, scene.next),
        })),
        Verifier::Certificate { files, tests } => {
            let case = certificate::Case::new(&scene.said.content, files, tests);
            Some(Job::Certify(case))
        }
        _ => None,
    }
}

/// What a callback is asked about a claimed transition.
pub(crate) fn call_body(name: &str, claimed: &Claimed) -> serde_json::Value {
    call::body(name, &claimed.turn, &claimed.transition.next_state)
}

/// Outcome and evidence. Of several subjects each has to hold.
fn verify(scene: &Scene<'_>, verifier: &Verifier, tool: Option<&Regex>) -> (Outcome, String) {
    let each = |of: Subject, check: &dyn Fn(&str) -> (Outcome, String)| {
        let subjects = match scene.subjects(of, tool) {
            Ok(subjects) => subjects,
            Err(why) => return (Outcome::Abstain, why.to_owned()),
        };
        let found = subjects.into_iter().map(check);
        let worst = found.min_by_key(|(outcome, _)| match outcome {
            Outcome::Bad => 0,
            Outcome::Abstain => 1,
            Outcome::Neutral => 2,
            Outcome::Good => 3,
        });
        worst.unwrap_or((Outcome::Abstain, "nothing to look at".to_owned()))
    };
    match verifier {
        Verifier::ExitCode {} => each(Subject::Result, &by_exit_code),
        Verifier::TestReport {} => each(Subject::Result, &by_report),
        Verifier::JsonSchema { schema, of } => match shape::Shape::new(schema) {
            Ok(shape) => each(*of, &|text| shape.tell(text)),
            Err(why) => (Outcome::Abstain, why),
        },
        Verifier::Regex { pattern, of } => match shape::regex(pattern) {
            Ok(regex) => each(*of, &|text| shape::by_regex(text, &regex)),
            Err(why) => (Outcome::Abstain, why),
        },
        Verifier::Exact {
            expected,
            ignore_case,
            of,
        } => each(*of, &|text| by_text(text, expected.trim(), *ignore_case)),
        Verifier::Numeric {
            expected,
            tolerance,
            of,
        } => each(*of, &|text| by_number(text, *expected, *tolerance)),
        Verifier::Callback { .. } | Verifier::Certificate { .. } => {
            (Outcome::Abstain, "it is asked elsewhere".to_owned())
        }
    }
}

fn told(holds: bool, evidence: String) -> (Outcome, String) {
    let outcome = if holds { Outcome::Good } else { Outcome::Bad };
    (outcome, evidence)
}

fn by_exit_code(result: &str) -> (Outcome, String) {
    match crate::rules::exit_code(result) {
        Some(code) => told(code == 0, format!("exit code {code}")),
        None => (Outcome::Abstain, "no exit code is stated".to_owned()),
    }
}

fn by_report(result: &str) -> (Outcome, String) {
    let Some(report) = report::read(result) else {
        return (Outcome::Abstain, "it is no report of tests".to_owned());
    };
    if report.passed + report.failed == 0 {
        return (Outcome::Abstain, "no test ran".to_owned());
    }
    let all = report.passed + report.failed;
    let mut evidence = format!("{} of {all} tests passed", report.passed);
    if !report.names.is_empty() {
        evidence = format!("{evidence}; failed: {}", report.names.join(", "));
    }
    told(report.failed == 0, evidence)
}

fn by_text(text: &str, expected: &str, ignore_case: bool) -> (Outcome, String) {
    let answer = answer::last(text);
    let same = if ignore_case {
        answer.to_lowercase() == expected.to_lowercase()
    } else {
        answer == expected
    };
    let relation = if same { "is" } else { "is not" };
    let shown: String = answer.chars().take(100).collect();
    told(same, format!("{shown:?} {relation} {expected:?}"))
}

fn by_number(text: &str, expected: f64, tolerance: f64) -> (Outcome, String) {
    match answer::last_number(text) {
        Some(number) => {
            let near = (number - expected).abs() <= tolerance;
            let relation = if near { "is" } else { "is not" };
            told(
                near,
                format!("{number} {relation} {expected} ± {tolerance}"),
            )
        }
        None => (Outcome::Bad, "the answer has no number".to_owned()),
    }
}

/// What all findings together decide: bad where one is bad, else what the others agree on. A score
/// of a finding's own counts; of several the lowest.
pub(crate) fn decide(findings: &[Finding]) -> Option<Decision> {
    let score = |found: &Finding| found.score.or(found.vote.outcome.score());
    let lowest = |is_argued: bool| {
        findings
            .iter()
            .filter(|found| found.is_argued == is_argued)
            .filter_map(|found| Some((score(found)?, found)))
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
    };
    let lowest = lowest(false).or_else(|| lowest(true))?;
    Some(Decision {
        score: Some(lowest.0),
        by: Some(Signal::Verifier),
        hint: lowest.1.hint.clone(),
        wish: None,
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
