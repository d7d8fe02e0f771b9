//! The mechanical check. It believes nothing that it cannot see: every quotation is looked up, every
//! change has to be cited, every test traced, every step has to follow, and the conclusion has to be
//! what the traces say.

use std::collections::{HashMap, HashSet};

use hone_domain::{SourceFile, TestPlace};

use super::change::Changed;
use super::follow::{Placed, Sources, defined, follow, reassigned};
use super::types::{Certificate, Ends, Premise, TestTrace, Version};

/// Most premises, and most steps of all traces together.
const PREMISES_MAX: usize = 2_000;
const STEPS_MAX: usize = 20_000;

/// Lines of both states.
struct Lines<'a> {
    before: HashMap<&'a str, Vec<&'a str>>,
    after: HashMap<&'a str, Vec<&'a str>>,
    defined: HashSet<&'a str>,
    /// Places that give a name a meaning.
    meanings: HashMap<&'a str, usize>,
}

impl<'a> Lines<'a> {
    fn of(changed: &'a Changed) -> Self {
        let of = |files: &'a [SourceFile]| -> HashMap<&'a str, Vec<&'a str>> {
            let file = |file: &'a SourceFile| (file.path.as_str(), file.text.lines().collect());
            files.iter().map(file).collect()
        };
        let lines = || changed.after.iter().flat_map(|file| file.text.lines());
        let mut meanings = HashMap::new();
        for name in lines().filter_map(|line| defined(line).or_else(|| reassigned(line))) {
            *meanings.entry(name).or_default() += 1;
        }
        Self {
            before: of(&changed.before),
            after: of(&changed.after),
            defined: lines().filter_map(defined).collect(),
            meanings,
        }
    }

    fn in_version(&self, version: Version, file: &str) -> Option<&Vec<&'a str>> {
        match version {
            Version::Before => self.before.get(file),
            Version::After => self.after.get(file),
        }
    }
}

impl Sources for Lines<'_> {
    fn lines(&self, file: &str) -> Option<&[&str]> {
        self.after.get(file).map(Vec::as_slice)
    }

    fn meanings(&self, name: &str) -> usize {
        self.meanings.get(name).copied().unwrap_or_default()
    }

    fn defines(&self, name: &str) -> bool {
        self.defined.contains(name)
    }
}

/// Whether a certificate is sound: its conclusion, or the first thing that is wrong with it.
///
/// # Errors
/// A sentence. It says nothing about the change, only about the certificate.
pub fn check(
    certificate: &Certificate,
    changed: &Changed,
    tests: &[TestPlace],
) -> Result<Ends, String> {
    let steps: usize = certificate.tests.iter().map(|test| test.steps.len()).sum();
    if certificate.premises.len() > PREMISES_MAX || steps > STEPS_MAX {
        return Err(format!(
            "it has more than {PREMISES_MAX} premises or {STEPS_MAX} steps"
        ));
    }
    let lines = Lines::of(changed);
    let premises = premises(certificate, &lines)?;
    every_change_is_cited(certificate, changed)?;
    every_test_is_traced(certificate, tests)?;
    for trace in &certificate.tests {
        let test = tests.iter().find(|test| test.id == trace.id);
        let test =
            test.ok_or_else(|| format!("the test {:?} is not among those asked for", trace.id))?;
        let placed = placed(trace, &premises)?;
        follow(&lines, trace, &test.file, test.line, &placed)?;
    }
    concluded(certificate)
}

/// Every premise by its name, each quoting what is really there.
fn premises<'a>(
    certificate: &'a Certificate,
    lines: &Lines<'_>,
) -> Result<HashMap<&'a str, &'a Premise>, String> {
    let mut known = HashMap::new();
    for premise in &certificate.premises {
        let wrong = |why: &str| Err(format!("premise {:?}: {why}", premise.id));
        let Some(file) = lines.in_version(premise.version, &premise.file) else {
            return wrong("there is no such file");
        };
        let from = premise.line_from.checked_sub(1);
        let cited = from.and_then(|from| file.get(from..premise.line_to));
        let Some(cited) = cited.filter(|cited| !cited.is_empty()) else {
            return wrong("there are no such lines");
        };
        let quoted: Vec<&str> = premise.quote.lines().map(str::trim_end).collect();
        if quoted.is_empty() || quoted != cited.iter().map(|l| l.trim_end()).collect::<Vec<_>>() {
            return wrong("the lines say something else");
        }
        if known.insert(premise.id.as_str(), premise).is_some() {
            return wrong("there are two of that name");
        }
    }
    Ok(known)
}

fn every_change_is_cited(certificate: &Certificate, changed: &Changed) -> Result<(), String> {
    for hunk in &changed.hunks {
        let touches = |premise: &Premise| {
            let (from, to) = match premise.version {
                Version::Before => hunk.before,
                Version::After => hunk.after,
            };
            let is_there = from <= to;
            premise.file == hunk.file
                && is_there
                && premise.line_from <= to
                && premise.line_to >= from
        };
        if !certificate.premises.iter().any(touches) {
            let (line, _) = hunk.after;
            return Err(format!(
                "no premise is about the change at {}:{line}",
                hunk.file
            ));
        }
    }
    Ok(())
}

fn every_test_is_traced(certificate: &Certificate, tests: &[TestPlace]) -> Result<(), String> {
    let mut traced = HashSet::new();
    for trace in &certificate.tests {
        if !traced.insert(trace.id.as_str()) {
            return Err(format!("the test {:?} is traced twice", trace.id));
        }
    }
    let missing = tests.iter().find(|test| !traced.contains(test.id.as_str()));
    match missing {
        Some(test) => Err(format!("the test {:?} is not traced", test.id)),
        None => Ok(()),
    }
}

fn placed<'a>(
    trace: &'a TestTrace,
    premises: &HashMap<&'a str, &'a Premise>,
) -> Result<Vec<Placed<'a>>, String> {
    let mut placed = Vec::with_capacity(trace.steps.len());
    for step in &trace.steps {
        let Some(premise) = premises.get(step.premise.as_str()) else {
            return Err(format!(
                "{:?} cites the premise {:?}, which is not there",
                trace.id, step.premise
            ));
        };
        if premise.version != Version::After || premise.line_from != premise.line_to {
            return Err(format!(
                "{:?}: a step is one line after the change",
                trace.id
            ));
        }
        placed.push(Placed {
            file: &premise.file,
            line: premise.line_from,
            step,
        });
    }
    Ok(placed)
}

fn concluded(certificate: &Certificate) -> Result<Ends, String> {
    let fails = |id: &str| {
        let mut tests = certificate.tests.iter();
        tests.any(|test| test.id == id && test.claim == Ends::Fail)
    };
    let all_pass = certificate
        .tests
        .iter()
        .all(|test| test.claim == Ends::Pass);
    match (certificate.conclusion, &certificate.counterexample) {
        (Ends::Pass, _) if !all_pass => Err("it concludes that all pass, and one fails".to_owned()),
        (Ends::Pass, Some(_)) => {
            Err("it concludes that all pass, with a counterexample".to_owned())
        }
        (Ends::Pass, None) => Ok(Ends::Pass),
        (Ends::Fail, Some(id)) if fails(id) => Ok(Ends::Fail),
        (Ends::Fail, _) => Err("it concludes that one fails, and names none that does".to_owned()),
    }
}
