//! A generated corpus: small programs whose tests our own interpreter knows the end of, sound
//! certificates about them, and the same certificates broken in every way we could think of. The
//! tests of `hone-judge` include this file by path.

use std::collections::BTreeMap;

use hone_domain::{SourceFile, TestPlace};
use hone_judge::certificate::{
    Certificate, Changed, Ends, Premise, Step, TestTrace, Version, Via, check,
};

const CODE: &str = "calc.py";
const TESTS: &str = "test_calc.py";

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

/// A change with its tests and a sound certificate about it.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// The files.
    pub(crate) changed: Changed,
    /// The tests.
    pub(crate) tests: Vec<TestPlace>,
    /// The certificate.
    pub(crate) certificate: Certificate,
}

/// A statement; `x` is the name it works on.
#[derive(Clone, Debug)]
enum Statement {
    /// `into = x sign number`
    Assign(String, char, i64),
    /// `into = function(x)`
    Call(String, usize),
    /// `if x > number:` and a return of `x`.
    Guard(i64),
    /// A comment.
    Remark,
}

#[derive(Clone, Debug)]
struct Function {
    /// Each works on what the one before assigned.
    body: Vec<Statement>,
    /// Added to the last name in the return.
    plus: i64,
}

/// Lines of `calc.py`, and of each function where it begins.
fn rendered(functions: &[Function]) -> (String, Vec<usize>) {
    let (mut lines, mut starts) = (Vec::new(), Vec::new());
    for (at, function) in functions.iter().enumerate() {
        starts.push(lines.len() + 1);
        lines.push(format!("def f{at}(x):"));
        let mut name = "x".to_owned();
        for statement in &function.body {
            match statement {
                Statement::Assign(into, sign, number) => {
                    lines.push(format!("    {into} = {name} {sign} {number}"));
                    name.clone_from(into);
                }
                Statement::Call(into, callee) => {
                    lines.push(format!("    {into} = f{callee}({name})"));
                    name.clone_from(into);
                }
                Statement::Guard(most) => {
                    lines.push(format!("    if {name} > {most}:"));
                    lines.push(format!("        return {name}"));
                }
                Statement::Remark => lines.push("    # goes on".to_owned()),
            }
        }
        lines.push(format!("    return {name} + {}", function.plus));
        lines.push(String::new());
    }
    (lines.join("\n") + "\n", starts)
}

/// A line that ran: its file and number, how it got there, and what it bound.
type Ran = (&'static str, usize, Via, Option<(String, i64)>);

/// Writes down what runs.
struct Tracer<'a> {
    functions: &'a [Function],
    starts: &'a [usize],
    steps: Vec<Ran>,
}

impl Tracer<'_> {
    fn note(&mut self, line: usize, via: Via, bind: Option<(String, i64)>) {
        self.steps.push((CODE, line, via, bind));
    }

    /// Runs function `at`; its caller notes the return.
    fn run(&mut self, at: usize, x: i64) -> i64 {
        let (function, mut line) = (&self.functions[at], self.starts[at]);
        self.note(line, Via::Call, Some(("x".to_owned(), x)));
        let mut value = x;
        for statement in &function.body {
            line += 1;
            match statement {
                Statement::Assign(into, sign, number) => {
                    value = match sign {
                        '*' => value * number,
                        '-' => value - number,
                        _ => value + number,
                    };
                    self.note(line, Via::Next, Some((into.clone(), value)));
                }
                Statement::Call(into, callee) => {
                    self.note(line, Via::Next, None);
                    value = self.run(*callee, value);
                    self.note(line, Via::Return, Some((into.clone(), value)));
                }
                Statement::Guard(most) => {
                    self.note(line, Via::Next, None);
                    line += 1;
                    if value > *most {
                        self.note(line, Via::Next, Some(("return".to_owned(), value)));
                        return value;
                    }
                }
                Statement::Remark => {}
            }
        }
        self.note(
            line + 1,
            Via::Next,
            Some(("return".to_owned(), value + function.plus)),
        );
        value + function.plus
    }
}

fn functions(rng: &mut Rng) -> Vec<Function> {
    let count = 2 + rng.below(3);
    (0..count)
        .map(|at| {
            let body = (0..1 + rng.below(4)).map(|n| match rng.below(6) {
                0 if at > 0 => Statement::Call(format!("v{n}"), rng.below(at)),
                1 => Statement::Guard(5 + rng.below(60) as i64),
                2 => Statement::Remark,
                _ => {
                    let sign = ['+', '-', '*'][rng.below(3)];
                    Statement::Assign(format!("v{n}"), sign, 2 + rng.below(7) as i64)
                }
            });
            let mut body: Vec<Statement> = body.collect();
            if at + 1 == count {
                body.push(Statement::Call("last".to_owned(), rng.below(at)));
            }
            Function {
                body,
                plus: 1 + rng.below(9) as i64,
            }
        })
        .collect()
}

/// A change of one number, with one to four tests of the last function.
pub(crate) fn sample(seed: u64) -> Sample {
    let mut rng = Rng(seed);
    let before = functions(&mut rng);
    let mut after = before.clone();
    let at = rng.below(after.len());
    after[at].plus += 1 + rng.below(5) as i64;
    let (code, starts) = rendered(&after);
    let (mut lines, mut traced, mut tests) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..1 + rng.below(4) {
        let mut tracer = Tracer {
            functions: &after,
            starts: &starts,
            steps: Vec::new(),
        };
        let (id, line) = (format!("test_{number}"), lines.len() + 1);
        let x = 1 + rng.below(12) as i64;
        tracer.steps.push((TESTS, line, Via::Start, None));
        tracer.steps.push((TESTS, line + 1, Via::Next, None));
        let last = after.len() - 1;
        let value = tracer.run(last, x);
        tracer
            .steps
            .push((TESTS, line + 1, Via::Return, Some(("r".to_owned(), value))));
        let expected = value + i64::from(rng.below(4) == 0);
        tracer.steps.push((TESTS, line + 2, Via::Next, None));
        lines.push(format!("def {id}():"));
        lines.push(format!("    r = f{last}({x})"));
        lines.push(format!("    assert r == {expected}"));
        lines.push(String::new());
        traced.push((id.clone(), tracer.steps, value == expected));
        let file = TESTS.to_owned();
        tests.push(TestPlace { id, file, line });
    }
    let file = |path: &str, text: String| SourceFile {
        path: path.to_owned(),
        text,
    };
    let written = file(TESTS, lines.join("\n") + "\n");
    let old = file(CODE, rendered(&before).0);
    let changed = Changed::between(vec![old, written.clone()], vec![file(CODE, code), written]);
    let certificate = certificate(&changed, traced);
    Sample {
        changed,
        tests,
        certificate,
    }
}

type Traced = (String, Vec<Ran>, bool);

fn certificate(changed: &Changed, traced: Vec<Traced>) -> Certificate {
    let mut premises: Vec<Premise> = Vec::new();
    let mut cite = |files: &[SourceFile], file: &str, version, line: usize| -> String {
        let id = format!("{file}:{line}:{version:?}");
        if !premises.iter().any(|premise| premise.id == id) {
            let text = files
                .iter()
                .find(|f| f.path == file)
                .map_or("", |f| &f.text);
            premises.push(Premise {
                id: id.clone(),
                file: file.to_owned(),
                version,
                line_from: line,
                line_to: line,
                quote: text.lines().nth(line - 1).unwrap_or_default().to_owned(),
                claim: String::new(),
            });
        }
        id
    };
    for hunk in &changed.hunks {
        cite(&changed.before, &hunk.file, Version::Before, hunk.before.0);
        cite(&changed.after, &hunk.file, Version::After, hunk.after.0);
    }
    let mut tests = Vec::new();
    for (id, steps, passes) in traced {
        let count = steps.len();
        let steps = steps
            .into_iter()
            .enumerate()
            .map(|(at, (file, line, via, bind))| Step {
                premise: cite(&changed.after, file, Version::After, line),
                via,
                binds: bind.into_iter().collect::<BTreeMap<_, _>>(),
                holds: (at + 1 == count).then_some(passes),
            });
        let claim = if passes { Ends::Pass } else { Ends::Fail };
        let steps = steps.collect();
        tests.push(TestTrace { id, steps, claim });
    }
    let failing = tests.iter().find(|test| test.claim == Ends::Fail);
    let counterexample = failing.map(|test| test.id.clone());
    let conclusion = if failing.is_some() {
        Ends::Fail
    } else {
        Ends::Pass
    };
    Certificate {
        premises,
        tests,
        conclusion,
        counterexample,
    }
}

/// A way to break a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// A quotation says something else.
    QuoteEdited,
    /// A citation of lines that are not there.
    LineOutOfRange,
    /// The right words at the wrong line.
    LineShifted,
    /// A file that is not there.
    FileInvented,
    /// A cited premise is missing.
    PremiseMissing,
    /// The change is not cited.
    ChangeUncited,
    /// Line of the old state passed off as the new one.
    OldForNew,
    /// A test is left out.
    TestSkipped,
    /// A test that nobody asked for.
    TestInvented,
    /// A test is traced twice.
    TestTwice,
    /// The trace of another test.
    TestSwapped,
    /// A step is left out.
    StepDropped,
    /// Two steps the wrong way round.
    StepsSwapped,
    /// A step somewhere else.
    StepElsewhere,
    /// The way to a step is another.
    ViaChanged,
    /// The trace breaks off.
    TraceCut,
    /// A value is wrong.
    ValueWrong,
    /// An assertion is said to come out the other way.
    HoldsFlipped,
    /// A test is said to end the other way.
    ClaimFlipped,
    /// The conclusion is not what the tests say.
    ConclusionFlipped,
    /// The counterexample is none.
    CounterexampleWrong,
    /// Assertion, test and conclusion are all bent the same way.
    LieFluent,
}

impl Fault {
    /// All of them.
    pub(crate) const ALL: [Self; 22] = [
        Self::QuoteEdited,
        Self::LineOutOfRange,
        Self::LineShifted,
        Self::FileInvented,
        Self::PremiseMissing,
        Self::ChangeUncited,
        Self::OldForNew,
        Self::TestSkipped,
        Self::TestInvented,
        Self::TestTwice,
        Self::TestSwapped,
        Self::StepDropped,
        Self::StepsSwapped,
        Self::StepElsewhere,
        Self::ViaChanged,
        Self::TraceCut,
        Self::ValueWrong,
        Self::HoldsFlipped,
        Self::ClaimFlipped,
        Self::ConclusionFlipped,
        Self::CounterexampleWrong,
        Self::LieFluent,
    ];
}

fn other(ends: Ends) -> Ends {
    match ends {
        Ends::Pass => Ends::Fail,
        Ends::Fail => Ends::Pass,
    }
}

/// The certificate with one fault; none where it has no place for it.
pub(crate) fn broken(sample: &Sample, fault: Fault, seed: u64) -> Option<Certificate> {
    let mut rng = Rng(seed);
    let mut broken = sample.certificate.clone();
    let test = rng.below(broken.tests.len());
    let step = rng.below(broken.tests[test].steps.len());
    let place = Place { test, step };
    let done = in_citations(&mut broken, sample, (fault, place))
        .or_else(|| in_tests(&mut broken, (fault, place)))
        .or_else(|| in_steps(&mut broken, (fault, place), &mut rng))
        .or_else(|| in_claims(&mut broken, (fault, place)));
    done.filter(|done| *done).map(|_| broken)
}

/// Where the fault goes.
#[derive(Clone, Copy)]
struct Place {
    test: usize,
    step: usize,
}

/// Faults of what is cited. None for other faults, false where there is no place for it.
fn in_citations(c: &mut Certificate, sample: &Sample, (fault, at): (Fault, Place)) -> Option<bool> {
    // A premise that a step really cites.
    let cited = c.tests[at.test].steps[at.step].premise.clone();
    let premise = c.premises.iter().position(|p| p.id == cited)?;
    match fault {
        Fault::QuoteEdited => c.premises[premise].quote.push_str(" + 0"),
        Fault::LineOutOfRange | Fault::LineShifted => {
            let by = if fault == Fault::LineShifted {
                1
            } else {
                1_000
            };
            c.premises[premise].line_from += by;
            c.premises[premise].line_to += by;
        }
        Fault::FileInvented => c.premises[premise].file = "helpers.py".to_owned(),
        Fault::PremiseMissing => drop(c.premises.remove(premise)),
        Fault::ChangeUncited => {
            let hunk = sample.changed.hunks.first()?;
            c.premises.retain(|p| {
                let (from, to) = match p.version {
                    Version::Before => hunk.before,
                    Version::After => hunk.after,
                };
                p.file != hunk.file || p.line_from > to || p.line_to < from
            });
        }
        Fault::OldForNew => {
            let mut all = c.premises.iter();
            let Some(old) = all.find(|p| p.version == Version::Before).cloned() else {
                return Some(false);
            };
            let is_new = |p: &&mut Premise| {
                let is_there = p.file == old.file && p.line_from == old.line_from;
                p.version == Version::After && is_there
            };
            let Some(new) = c.premises.iter_mut().find(is_new) else {
                return Some(false);
            };
            new.quote = old.quote;
        }
        _ => return None,
    }
    Some(true)
}

/// Faults of which tests are traced.
fn in_tests(c: &mut Certificate, (fault, at): (Fault, Place)) -> Option<bool> {
    match fault {
        Fault::TestSkipped => drop(c.tests.remove(at.test)),
        Fault::TestInvented => {
            let mut invented = c.tests[at.test].clone();
            invented.id = "test_more".to_owned();
            c.tests.push(invented);
        }
        Fault::TestTwice => c.tests.push(c.tests[at.test].clone()),
        Fault::TestSwapped => {
            let from = (at.test + 1) % c.tests.len();
            if from == at.test {
                return Some(false);
            }
            c.tests[at.test].steps = c.tests[from].steps.clone();
            c.tests[at.test].claim = c.tests[from].claim;
        }
        _ => return None,
    }
    Some(true)
}

/// Faults of a trace.
fn in_steps(c: &mut Certificate, (fault, at): (Fault, Place), rng: &mut Rng) -> Option<bool> {
    let to = c.premises[rng.below(c.premises.len())].id.clone();
    let steps = &mut c.tests[at.test].steps;
    match fault {
        Fault::StepDropped => drop(steps.remove(at.step)),
        Fault::StepsSwapped if at.step == 0 => return Some(false),
        Fault::StepsSwapped => steps.swap(at.step - 1, at.step),
        Fault::StepElsewhere if steps[at.step].premise == to => return Some(false),
        Fault::StepElsewhere => steps[at.step].premise = to,
        Fault::ViaChanged => {
            let all = [Via::Start, Via::Next, Via::Call, Via::Return];
            let now = steps[at.step].via;
            let others: Vec<Via> = all.into_iter().filter(|via| *via != now).collect();
            steps[at.step].via = others[rng.below(others.len())];
        }
        Fault::TraceCut => steps.truncate(at.step),
        Fault::ValueWrong => {
            let bound = steps.iter_mut().flat_map(|step| step.binds.values_mut());
            let mut bound: Vec<&mut i64> = bound.collect();
            let at = rng.below(bound.len());
            let Some(value) = bound.get_mut(at) else {
                return Some(false);
            };
            **value += 1;
        }
        _ => return None,
    }
    Some(true)
}

/// Faults of what is said to follow.
fn in_claims(c: &mut Certificate, (fault, at): (Fault, Place)) -> Option<bool> {
    let last = c.tests[at.test].steps.last_mut()?;
    match fault {
        Fault::HoldsFlipped => last.holds = last.holds.map(|holds| !holds),
        Fault::ClaimFlipped => c.tests[at.test].claim = other(c.tests[at.test].claim),
        Fault::ConclusionFlipped => c.conclusion = other(c.conclusion),
        Fault::CounterexampleWrong => {
            let passing = c.tests.iter().find(|t| t.claim == Ends::Pass);
            let Some(passing) = passing.map(|test| test.id.clone()) else {
                return Some(false);
            };
            c.counterexample = Some(passing);
        }
        Fault::LieFluent => {
            last.holds = last.holds.map(|holds| !holds);
            c.tests[at.test].claim = other(c.tests[at.test].claim);
            let failing = c.tests.iter().find(|t| t.claim == Ends::Fail);
            c.conclusion = if failing.is_some() {
                Ends::Fail
            } else {
                Ends::Pass
            };
            c.counterexample = failing.map(|t| t.id.clone());
        }
        _ => return None,
    }
    Some(true)
}

/// How the check does on the corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// Sound certificates, and how many of them were accepted.
    pub(crate) sound: (usize, usize),
    /// Broken ones, and how many of them were rejected.
    pub(crate) broken: (usize, usize),
    /// Faults of those that were not.
    pub(crate) missed: Vec<Fault>,
}

/// Checks `samples` sound certificates, and each of them with every fault.
pub(crate) fn measure(samples: u64) -> Measured {
    let mut measured = Measured::default();
    for seed in 0..samples {
        let one = sample(seed);
        let judged = |c: &Certificate| check(c, &one.changed, &one.tests);
        measured.sound.0 += 1;
        measured.sound.1 += usize::from(judged(&one.certificate) == Ok(one.certificate.conclusion));
        for fault in Fault::ALL {
            let Some(certificate) = broken(&one, fault, seed ^ 0x5eed) else {
                continue;
            };
            measured.broken.0 += 1;
            match judged(&certificate) {
                Err(_) => measured.broken.1 += 1,
                Ok(_) => measured.missed.push(fault),
            }
        }
    }
    measured
}
