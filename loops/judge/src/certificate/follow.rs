//! Whether the steps of a trace follow from one another, as far as lines of common languages tell:
//! where a function begins, what a line calls, returns, assigns, asserts, and which way a condition
//! goes where its value can be computed.

use super::types::{Ends, Step, TestTrace, Via};
use super::value::{Known, arguments, call_of, value};

/// A step with the line that its premise quotes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'a> {
    pub file: &'a str,
    /// From 1.
    pub line: usize,
    pub step: &'a Step,
}

/// The lines of a file after the change.
pub(super) trait Sources {
    /// All lines of a file; none where there is no such file.
    fn lines(&self, file: &str) -> Option<&[&str]>;

    /// How many places give this name a meaning: functions of that name, and assignments to it.
    fn meanings(&self, name: &str) -> usize;

    /// Whether some file defines a function of this name.
    fn defines(&self, name: &str) -> bool;
}

struct Frame<'a> {
    file: &'a str,
    /// The line that defines the function.
    start: usize,
    line: usize,
    known: Known,
    /// What the function is called.
    name: String,
    /// Functions that came back to this line.
    came_back: Vec<String>,
    /// Whether the line's assertion was told.
    told: bool,
}

struct Walk<'a, S> {
    sources: &'a S,
    frames: Vec<Frame<'a>>,
    /// What the callee that just returned gave back.
    given_back: Option<(String, Option<i64>)>,
    failed: bool,
}

/// Follows a trace from its test's line to its end; the error says at which step it breaks.
pub(super) fn follow<S: Sources>(
    sources: &S,
    trace: &TestTrace,
    file: &str,
    line: usize,
    steps: &[Placed<'_>],
) -> Result<(), String> {
    let mut walk = Walk {
        sources,
        frames: Vec::new(),
        given_back: None,
        failed: false,
    };
    for (at, placed) in steps.iter().enumerate() {
        let wrong = |why: String| format!("step {} of {:?}: {why}", at + 1, trace.id);
        if walk.failed {
            return Err(wrong("it runs on after a failed assertion".to_owned()));
        }
        if at == 0 && (placed.file, placed.line) != (file, line) {
            return Err(wrong("the trace does not begin at its test".to_owned()));
        }
        walk.step(at, placed).map_err(wrong)?;
    }
    walk.ends(trace.claim)
        .map_err(|why| format!("{:?}: {why}", trace.id))
}

impl<'a, S: Sources> Walk<'a, S> {
    fn text(&self, file: &str, line: usize) -> &'a str
    where
        S: 'a,
    {
        let lines = self.sources.lines(file).unwrap_or_default();
        line.checked_sub(1)
            .and_then(|at| lines.get(at))
            .copied()
            .unwrap_or_default()
    }

    fn step(&mut self, at: usize, placed: &Placed<'a>) -> Result<(), String> {
        let text = self.text(placed.file, placed.line);
        match placed.step.via {
            Via::Start if at == 0 => self.begin(placed, text, Known::default()),
            Via::Start => Err("only the first step starts".to_owned()),
            _ if at == 0 => Err("the first step has to start".to_owned()),
            Via::Next => self.next(placed),
            Via::Call => self.call(placed, text),
            Via::Return => self.back(placed),
        }?;
        self.run(placed, text)
    }

    fn top(&mut self) -> Result<&mut Frame<'a>, String> {
        let top = self.frames.last_mut();
        top.ok_or_else(|| "it is in no function".to_owned())
    }

    fn begin(&mut self, placed: &Placed<'a>, text: &str, known: Known) -> Result<(), String> {
        let name = defined(text).ok_or("the line defines no function")?;
        if self.frames.len() >= 64 {
            return Err("the calls are nested too deeply".to_owned());
        }
        let above = self.text(placed.file, placed.line.saturating_sub(1));
        if above.trim_start().starts_with('@') {
            return Err(not_computed(above));
        }
        self.frames.push(Frame {
            file: placed.file,
            start: placed.line,
            line: placed.line,
            known,
            name: name.to_owned(),
            came_back: Vec::new(),
            told: false,
        });
        Ok(())
    }

    /// Down in the same function, past nothing that would have run.
    fn next(&mut self, placed: &Placed<'a>) -> Result<(), String> {
        let top = self.frames.last().ok_or("it is in no function")?;
        self.left_nothing_open(top)?;
        if top.file != placed.file || placed.line <= top.line {
            return Err("it is not further down in the same file".to_owned());
        }
        let (from, start) = (
            self.text(top.file, top.line),
            self.text(top.file, top.start),
        );
        let target = self.text(placed.file, placed.line);
        if returned(from).is_some() {
            return Err("the line before returns".to_owned());
        }
        if is_else(target) && !(condition(from).is_some() && indent(from) == indent(target)) {
            return Err("it enters another branch".to_owned());
        }
        for line in top.line + 1..=placed.line {
            let text = self.text(top.file, line);
            if is_blank(text) {
                continue;
            }
            let is_its_else = is_else(text) && indent(text) == indent(from);
            if is_its_else
                && line < placed.line
                && condition(from).is_some()
                && indent(target) <= indent(from)
            {
                return Err(format!("line {line} would be looked at before it"));
            }
            if indent(text) <= indent(start) && line != top.start {
                return Err("the function ends before that line".to_owned());
            }
            let inner = indent(text) > indent(target) || is_else(text);
            if line < placed.line && !inner {
                return Err(format!("line {line} would run before it"));
            }
        }
        if let Some(condition) = condition(from) {
            let truth = value(condition, &top.known).ok_or_else(|| not_computed(condition))?;
            let went_in = indent(target) > indent(from);
            if went_in != (truth != 0) {
                return Err("the condition before goes the other way".to_owned());
            }
        }
        self.top()?.move_to(placed.line);
        Ok(())
    }

    /// Whether every call of a line was followed and its assertion told.
    fn left_nothing_open(&self, frame: &Frame<'_>) -> Result<(), String> {
        let text = self.text(frame.file, frame.line);
        let called = frame.line != frame.start;
        for name in called.then(|| calls(text)).into_iter().flatten() {
            if self.sources.defines(name) && !frame.came_back.iter().any(|n| n == name) {
                return Err(format!(
                    "the call of {name} in the line before is not followed"
                ));
            }
        }
        match asserted(text).is_some() && !frame.told {
            true => Err("whether the assertion before holds is not said".to_owned()),
            false => Ok(()),
        }
    }

    /// Into a function that the line before calls by its name, with what it is given.
    fn call(&mut self, placed: &Placed<'a>, text: &str) -> Result<(), String> {
        let top = self.frames.last().ok_or("it is in no function")?;
        let name = defined(text).ok_or("the line defines no function")?;
        let from = self.text(top.file, top.line);
        let given =
            call_of(from, name).ok_or_else(|| format!("the line before does not call {name}"))?;
        if self.sources.meanings(name) != 1 {
            return Err(format!("{name} may mean several things"));
        }
        if calls(from).iter().filter(|called| **called == name).count() != 1 {
            return Err(format!("the line before calls {name} more than once"));
        }
        let mut known = Known::default();
        let parameters = call_of(text, name).map(arguments).unwrap_or_default();
        for (parameter, argument) in parameters.iter().zip(arguments(given)) {
            let parameter = parameter
                .split([':', '='])
                .next()
                .unwrap_or_default()
                .trim();
            let value = value(argument, &top.known).ok_or_else(|| not_computed(argument))?;
            known.names.insert(parameter.to_owned(), value);
        }
        self.begin(placed, text, known)
    }

    /// Back to the line that called, from a line that returns or is the function's last.
    fn back(&mut self, placed: &Placed<'a>) -> Result<(), String> {
        let done = self.frames.pop().ok_or("it is in no function")?;
        self.left_nothing_open(&done)?;
        let last = self.text(done.file, done.line);
        if returned(last).is_none() && !self.is_last(&done) {
            return Err("the function goes on after the line before".to_owned());
        }
        let expression = returned(last).or_else(|| tail(done.file, last));
        let given = expression.map(|expression| value(expression, &done.known));
        let top = self.frames.last().ok_or("nothing called this function")?;
        if (top.file, top.line) != (placed.file, placed.line) {
            return Err("it does not go back to the line that called".to_owned());
        }
        self.given_back = Some((done.name, given.flatten()));
        Ok(())
    }

    /// What the line does, against what the step claims of it.
    fn run(&mut self, placed: &Placed<'a>, text: &str) -> Result<(), String> {
        let given_back = self.given_back.take();
        let is_start = self.top()?.start == placed.line;
        if !is_start && !is_modelled(placed.file, text) {
            return Err(not_computed(text));
        }
        let top = self.top()?;
        if let Some((name, given)) = given_back {
            top.came_back.push(name.clone());
            match given {
                Some(given) => drop(top.known.returned.insert(name, given)),
                None => drop(top.known.returned.remove(&name)),
            }
        }
        if !is_start && let Some((name, expression)) = assigned(text) {
            match value(&expression, &top.known) {
                Some(value) => drop(top.known.names.insert(name.to_owned(), value)),
                None => drop(top.known.names.remove(name)),
            }
        }
        for (name, claimed) in &placed.step.binds {
            let computed = match name.as_str() {
                "return" => returned(text)
                    .or_else(|| tail(placed.file, text))
                    .and_then(|expression| value(expression, &top.known)),
                name => {
                    let names = top.known.names.get(name);
                    names.or(top.known.returned.get(name)).copied()
                }
            };
            agree(name, *claimed, computed)?;
        }
        match (asserted(text), placed.step.holds) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err("the line asserts nothing".to_owned()),
            // A call on the way to the assertion's value comes back to it.
            (Some(_), None) => Ok(()),
            (Some(assertion), Some(holds)) => {
                agree(
                    "the assertion",
                    i64::from(holds),
                    truth(&assertion, &top.known),
                )?;
                top.told = true;
                self.failed = !holds;
                Ok(())
            }
        }
    }

    fn is_last(&self, frame: &Frame<'_>) -> bool {
        let lines = self.sources.lines(frame.file).unwrap_or_default();
        let start = indent(self.text(frame.file, frame.start));
        let rest = lines.get(frame.line..).unwrap_or_default();
        let next = rest.iter().find(|line| !is_blank(line));
        next.is_none_or(|line| indent(line) <= start)
    }

    /// The end of the test: a failed assertion, or its last line with every assertion held.
    fn ends(&mut self, claim: Ends) -> Result<(), String> {
        let frame = self.frames.pop().ok_or("there are no steps")?;
        if !self.failed {
            self.left_nothing_open(&frame)?;
        }
        if !self.frames.is_empty() && claim == Ends::Pass {
            return Err("the trace ends inside a call".to_owned());
        }
        match claim {
            Ends::Fail if !self.failed => Err("nothing in the trace fails".to_owned()),
            Ends::Fail => Ok(()),
            Ends::Pass if self.failed => Err("an assertion fails".to_owned()),
            Ends::Pass if !self.is_last(&frame) => {
                Err("the trace ends before its test does".to_owned())
            }
            Ends::Pass => Ok(()),
        }
    }
}

impl Frame<'_> {
    fn move_to(&mut self, line: usize) {
        self.line = line;
        self.known.returned.clear();
        self.came_back.clear();
        self.told = false;
    }
}

/// Names that a line calls.
fn calls(line: &str) -> Vec<&str> {
    let brackets = line.match_indices('(');
    let names = brackets.map(|(at, _)| {
        let before = &line[..at];
        let rest = before.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
        &before[rest.len()..]
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// Whether a claimed value is the computed one. What cannot be computed is not believed.
fn agree(name: &str, claimed: i64, computed: Option<i64>) -> Result<(), String> {
    match computed {
        Some(computed) if computed == claimed => Ok(()),
        Some(computed) => Err(format!("{name} is {computed} and not {claimed}")),
        None => Err(not_computed(name)),
    }
}

fn not_computed(what: &str) -> String {
    format!("{:?} is not something that is computed here", what.trim())
}

/// Whether all that a line does is computed here: it assigns whole numbers to a plain name, branches,
/// returns, asserts, calls a function, or is the last value of a function. Loops, several targets,
/// attributes, exceptions, blocks of resources and the like are not.
fn is_modelled(file: &str, line: &str) -> bool {
    let text = statement(line);
    let is_plain_call = || {
        let name = text.split('(').next().unwrap_or_default();
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        !name.is_empty() && name.chars().all(is_name) && text.ends_with(')')
    };
    let known_kind = is_blank(line)
        || text == "pass"
        || (is_else(line) && matches!(text.trim_start_matches(['}', ' ']), "else"))
        || condition(line).is_some()
        || returned(line).is_some()
        || asserted(line).is_some()
        || assigned(line).is_some()
        || is_plain_call()
        || tail(file, line).is_some();
    known_kind && !text.contains("&mut ") && !text.contains(":=")
}

/// What the last line of a function gives back where no `return` is needed.
fn tail<'a>(file: &str, line: &'a str) -> Option<&'a str> {
    let text = line.trim();
    let is_value = file.ends_with(".rs") && !text.ends_with([';', '{', '}']) && !text.is_empty();
    is_value.then_some(text)
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn is_blank(line: &str) -> bool {
    let text = line.trim();
    text.is_empty() || text.starts_with('#') || text.starts_with("//") || text == "}"
}

fn is_else(line: &str) -> bool {
    let text = line.trim_start_matches(['}', ' ', '\t']);
    ["else", "elif", "except", "finally", "catch"]
        .iter()
        .any(|word| text.starts_with(word))
}

/// The function that a line defines.
pub(super) fn defined(line: &str) -> Option<&str> {
    let mut text = line.trim();
    for word in [
        "export ", "pub ", "async ", "static ", "public ", "private ",
    ] {
        text = text.strip_prefix(word).unwrap_or(text);
    }
    let words = ["def ", "fn ", "function ", "func "];
    let rest = words.iter().find_map(|word| text.strip_prefix(word))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (end > 0).then(|| &rest[..end])
}

fn statement(line: &str) -> &str {
    line.trim().trim_end_matches(['{', ';', ':']).trim()
}

/// What a line returns.
fn returned(line: &str) -> Option<&str> {
    let rest = statement(line).strip_prefix("return")?;
    (rest.is_empty() || rest.starts_with([' ', '('])).then(|| rest.trim())
}

/// The condition of a line that branches.
fn condition(line: &str) -> Option<&str> {
    let text = statement(line).trim_start_matches(['}', ' ']);
    let words = ["if ", "elif ", "else if "];
    let rest = words.iter().find_map(|word| text.strip_prefix(word))?;
    Some(rest.trim())
}

/// The name that a line assigns, and what: `x = y`, or `x += y` as `x + (y)`.
fn assigned(line: &str) -> Option<(&str, String)> {
    let mut text = statement(line);
    for word in ["let ", "const ", "var ", "mut "] {
        text = text.strip_prefix(word).unwrap_or(text);
    }
    let at = text.find('=')?;
    let (left, rest) = (text[..at].trim_end(), text[at + 1..].trim());
    if rest.starts_with('=') || text[at..].starts_with("=>") {
        return None;
    }
    let signs = ["//", "+", "-", "*", "/", "%"];
    let sign = signs.iter().find(|sign| left.ends_with(**sign));
    let name = left[..left.len() - sign.map_or(0, |sign| sign.len())].trim_end();
    let name = name
        .trim_end_matches(':')
        .split(':')
        .next()
        .unwrap_or_default();
    let name = name.trim();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let value = match sign {
        Some(sign) => format!("{name} {sign} ({rest})"),
        None => rest.to_owned(),
    };
    is_name.then_some((name, value))
}

/// The name that a line of a module or function gives a new meaning.
pub(super) fn reassigned(line: &str) -> Option<&str> {
    assigned(line).map(|(name, _)| name)
}

/// What a line asserts: a condition, or two things that are to be equal.
fn asserted(line: &str) -> Option<Vec<&str>> {
    let text = statement(line);
    if let Some(rest) = text.strip_prefix("assert ") {
        return Some(vec![arguments(rest).into_iter().next().unwrap_or_default()]);
    }
    for (name, several) in [
        ("assert_eq!", true),
        ("assert!", false),
        ("assertEqual", true),
    ] {
        if let Some(inside) = call_of(text, name) {
            let most = if several { 2 } else { 1 };
            return Some(arguments(inside).into_iter().take(most).collect());
        }
    }
    text.starts_with("expect(").then(|| vec![text])
}

fn truth(assertion: &[&str], known: &Known) -> Option<i64> {
    match assertion {
        [one] => value(one, known).map(|value| i64::from(value != 0)),
        [left, right] => Some(i64::from(value(left, known)? == value(right, known)?)),
        _ => None,
    }
}
