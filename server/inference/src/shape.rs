//! The form that an answer has to have, and what is wrong with one in the words of whoever wrote it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use hone_domain::{CallStyle, Form, Grammar, Reasoning, ServeError};
use regex_syntax::hir::{Hir, HirKind, Look};
use serde_json::{Map, Value};

use super::error::OpenError;

/// Longest expression that is explained, and longest path of a field that is named, in bytes.
const REGEX_BYTES_MAX: usize = 4_096;
const PARAM_BYTES_MAX: usize = 256;
/// So many schemas of tools go one by one; then all go that the form can do without.
const LOOSENED_MAX: usize = 8;
/// Most expressions of one schema that are looked at.
const PATTERNS_MAX: usize = 256;

/// A regular expression of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Path of its field.
    pub param: String,
    /// The expression.
    pub regex: String,
}

impl Pattern {
    /// Those of a schema, which stands at `param`, and of the schemas in it.
    pub fn of_schema(param: &str, schema: &Map<String, Value>) -> Vec<Self> {
        let mut found = Vec::new();
        find(param, schema, &mut found);
        found
    }

    /// The place of the tool that it is of.
    fn tool(&self) -> Option<usize> {
        let (at, _) = self.param.strip_prefix("tools[")?.split_once("].")?;
        at.parse().ok()
    }
}

/// What is data in a schema is not looked into; names of properties are no keywords.
fn find(param: &str, schema: &Map<String, Value>, found: &mut Vec<Pattern>) {
    for (key, value) in schema {
        let param = format!("{param}.{key}");
        if found.len() >= PATTERNS_MAX || param.len() > PARAM_BYTES_MAX {
            continue;
        }
        match (key.as_str(), value) {
            ("const" | "enum" | "default" | "examples", _) => {}
            ("pattern", Value::String(regex)) => found.push(Pattern {
                regex: regex.clone(),
                param,
            }),
            ("patternProperties", Value::Object(parts)) => {
                let fits = |regex: &&String| regex.len() <= PARAM_BYTES_MAX;
                let names = parts.keys().filter(fits).map(|regex| Pattern {
                    regex: regex.clone(),
                    param: format!("{param}.{regex}"),
                });
                found.extend(names.take(PATTERNS_MAX));
                find_each(&param, parts, found);
            }
            ("properties" | "$defs" | "definitions" | "dependentSchemas", Value::Object(parts)) => {
                find_each(&param, parts, found);
            }
            (_, Value::Object(part)) => find(&param, part, found),
            (_, Value::Array(parts)) => {
                for (at, part) in parts.iter().enumerate() {
                    if let Value::Object(part) = part {
                        find(&format!("{param}[{at}]"), part, found);
                    }
                }
            }
            _ => {}
        }
    }
}

/// In schemas by name.
fn find_each(param: &str, parts: &Map<String, Value>, found: &mut Vec<Pattern>) {
    for (name, part) in parts {
        let param = format!("{param}.{name}");
        if let Value::Object(part) = part
            && param.len() <= PARAM_BYTES_MAX
        {
            find(&param, part, found);
        }
    }
}

/// The form an answer has to have, as rules of a grammar: either its own `start`, or `answer` where
/// reasoning may stand before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The field of the request that it is from.
    pub param: String,
    /// The rules, in Lark notation.
    pub rules: String,
    /// Whether the caller wrote the whole grammar.
    pub is_own: bool,
    /// The regular expressions in it that the caller wrote.
    pub patterns: Vec<Pattern>,
    /// What it says of calls.
    pub calls: Calls,
    /// Tools whose schemas it can do without.
    pub loose: Loose,
}

/// Tools whose calls may have any object as arguments, where their schema cannot be followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loose {
    /// Their places in the request.
    pub tools: Vec<usize>,
    /// What stands for any arguments in a rule.
    pub arguments: String,
}

impl Loose {
    /// The rule of the arguments of the tool at a place of the request: a line of its own.
    pub fn rule(at: usize, arguments: &str) -> String {
        format!("args{at}: {arguments}\n")
    }

    /// The tool whose arguments are wrong, where that is `why` a grammar cannot be followed.
    fn blamed(grammar: &str, why: &str) -> Option<usize> {
        let line = why.strip_prefix("at ").unwrap_or(why);
        let (line, _) = line.split_once('(')?;
        let at: usize = line.parse().ok()?;
        let rule = grammar.lines().nth(at.checked_sub(1)?)?;
        Self::place(rule)
    }

    /// The place of the tool whose arguments a line is the rule of.
    fn place(line: &str) -> Option<usize> {
        let (name, _) = line.split_once(": ")?;
        name.strip_prefix("args")?.parse().ok()
    }
}

/// What the form of an answer says of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// Nothing.
    #[default]
    Untold,
    /// The answer is of the form, calls among it.
    Within,
    /// Each call is of the form, behind what opens it in this style; all else is free. Then the rules have
    /// their own `start`.
    Alone(CallStyle),
}

impl Shape {
    /// What a completion is held to whose prompt says where reasoning may stand, and whose first call
    /// may be its only one.
    fn form(&self, reasoning: Reasoning, single: bool) -> Form {
        let own = || Grammar(Arc::from(self.rules.as_str()));
        match (self.is_own, self.calls) {
            (false, Calls::Alone(style)) => {
                return Form::Calls {
                    grammar: own(),
                    style,
                    reasoning,
                    single,
                };
            }
            (true, _) => return Form::Whole(own()),
            (false, Calls::Untold | Calls::Within) => {}
        }
        let start = match reasoning {
            Reasoning::Never => "start: answer\n",
            Reasoning::Maybe => concat!(
                "start: (\"<think>\" thought GAP?)? answer\n",
                "thought[suffix=\"</think>\"]: /(?s:.*)/\nGAP: /[ \\n]{1,4}/\n",
            ),
            Reasoning::Open => concat!(
                "start: thought GAP? answer\n",
                "thought[suffix=\"</think>\"]: /(?s:.*)/\nGAP: /[ \\n]{1,4}/\n",
            ),
        };
        Form::Whole(Grammar(Arc::from(format!("{start}{}", self.rules))))
    }

    /// What a completion is held to, which the backend has checked. Schemas that it cannot follow go, of
    /// tools that the form can do without.
    ///
    /// # Errors
    /// The form cannot be followed.
    pub fn checked<T>(
        &self,
        (reasoning, single): (Reasoning, bool),
        check: impl Fn(&Grammar) -> Result<T, ServeError>,
    ) -> Result<(Form, T), OpenError> {
        let mut shape = Cow::Borrowed(self);
        let mut loosened = 0;
        loop {
            let form = shape.form(reasoning, single);
            let grammar = form.grammar();
            let why = match check(grammar) {
                Ok(held) => return Ok((form, held)),
                Err(ServeError::Grammar(why)) => why,
                Err(error) => return Err(error.into()),
            };
            let all = loosened >= LOOSENED_MAX;
            let Some(looser) = shape.loosened(&grammar.0, &why, all) else {
                let (param, message) = shape.fault(&grammar.0, &why);
                return Err(OpenError::Shape { param, message });
            };
            shape = Cow::Owned(looser);
            loosened += 1;
        }
    }

    /// The same without the schema of a tool that it can do without, where the backend cannot follow the
    /// `grammar` and says `why`: without the one that is to blame, or without any where it is not known
    /// which one is, or where `all` are to go.
    fn loosened(&self, grammar: &str, why: &str, all: bool) -> Option<Self> {
        let blamed = Loose::blamed(grammar, why).filter(|_| !all);
        let (gone, left): (BTreeSet<usize>, BTreeSet<usize>) = {
            let tools = self.loose.tools.iter();
            tools.partition(|at| blamed.is_none_or(|blamed| blamed == **at))
        };
        let is_gone = |at: &usize| gone.contains(at);
        if gone.is_empty() {
            return None;
        }
        let mut looser = self.clone();
        looser.loose.tools = left.into_iter().collect();
        let any = |line: &str| {
            let at = Loose::place(line).filter(is_gone)?;
            Some(Loose::rule(at, &self.loose.arguments))
        };
        let lines = self.rules.split_inclusive('\n');
        looser.rules = lines
            .map(|line| any(line).unwrap_or_else(|| line.to_owned()))
            .collect();
        let is_left = |pattern: &Pattern| !pattern.tool().is_some_and(|at| is_gone(&at));
        looser.patterns.retain(is_left);
        Some(looser)
    }

    /// The field that is wrong and what is wrong with it, where the backend cannot follow the `grammar`
    /// and says `why`. A place in a grammar tells only those who wrote it something.
    fn fault(&self, grammar: &str, why: &str) -> (String, String) {
        let blamed = Loose::blamed(grammar, why).filter(|_| !self.is_own);
        // A tool that is to blame is so whatever else is wrong.
        let could = |pattern: &&Pattern| blamed.is_none() || pattern.tool() == blamed;
        let wrong = self.patterns.iter().filter(could).find_map(|pattern| {
            let fault = fault(&pattern.regex)?;
            Some((&pattern.param, fault))
        });
        if let Some((param, fault)) = wrong {
            let message =
                format!("{param} is not a regular expression that can be followed: {fault}");
            return (param.clone(), message);
        }
        let param = match blamed {
            Some(at) => format!("tools[{at}].function.parameters"),
            None => self.param.clone(),
        };
        let why = if self.is_own { why } else { placeless(why) };
        let message = format!("{param} cannot be followed: {why}");
        (param, message)
    }
}

/// What is wrong with a regular expression.
fn fault(regex: &str) -> Option<String> {
    if regex.len() > REGEX_BYTES_MAX {
        return None;
    }
    let at = |offset: usize| regex.get(..offset).unwrap_or(regex).chars().count() + 1;
    match regex_syntax::parse(regex) {
        Ok(hir) => looks_around(&hir, true, true).then(|| {
            "^ may stand at its beginning and $ at its end only, and boundaries such as \\b nowhere"
                .to_owned()
        }),
        Err(regex_syntax::Error::Parse(error)) => {
            let place = at(error.span().start.offset);
            Some(format!("{}, at character {place}", error.kind()))
        }
        Err(regex_syntax::Error::Translate(error)) => {
            let place = at(error.span().start.offset);
            Some(format!("{}, at character {place}", error.kind()))
        }
        Err(_) => Some("it cannot be read".to_owned()),
    }
}

/// Whether it asks what stands around it, other than at its own `ends` (beginning, end).
fn looks_around(hir: &Hir, begins: bool, ends: bool) -> bool {
    match hir.kind() {
        HirKind::Look(Look::Start) => !begins,
        HirKind::Look(Look::End) => !ends,
        HirKind::Look(_) => true,
        HirKind::Capture(part) => looks_around(&part.sub, begins, ends),
        HirKind::Alternation(parts) => parts.iter().any(|p| looks_around(p, begins, ends)),
        HirKind::Concat(parts) => parts
            .iter()
            .enumerate()
            .any(|(at, part)| looks_around(part, begins && at == 0, ends && at + 1 == parts.len())),
        HirKind::Repetition(part) => looks_around(&part.sub, false, false),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) => false,
    }
}

/// An explanation without its place in the grammar, `at LINE(COLUMN): `, and without the step that
/// found it.
fn placeless(why: &str) -> &str {
    let behind = why.split_once("): ").filter(|(place, _)| {
        let place = place.strip_prefix("at ").unwrap_or(place);
        !place.is_empty() && place.bytes().all(|b| b.is_ascii_digit() || b == b'(')
    });
    let why = behind.map_or(why, |(_, rest)| rest);
    why.strip_prefix("failed to compile JSON schema: ")
        .unwrap_or(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(rules: &str, patterns: &[(&str, &str)]) -> Shape {
        let pattern = |(param, regex): &(&str, &str)| Pattern {
            param: (*param).to_owned(),
            regex: (*regex).to_owned(),
        };
        Shape {
            param: "guided_json".to_owned(),
            rules: rules.to_owned(),
            is_own: rules.starts_with("start:"),
            patterns: patterns.iter().map(pattern).collect(),
            calls: Calls::Untold,
            loose: Loose::default(),
        }
    }

    #[test]
    fn a_wrong_expression_is_told_by_its_field_and_its_own_error() {
        for (regex, told) in [
            ("ab(c", "unclosed group, at character 3"),
            ("[a", "unclosed character class, at character 1"),
            ("é*{2}(", "unclosed group, at character 6"),
            (
                "*a",
                "repetition operator missing expression, at character 1",
            ),
            (
                "(?=a)b",
                "look-around, including look-ahead and look-behind, is not supported, at character 1",
            ),
            (
                "a\\",
                "incomplete escape sequence, reached end of pattern prematurely, at character 2",
            ),
            ("\\p{Nope}", "Unicode property not found, at character 1"),
            ("\\bword\\b", "boundaries such as \\b nowhere"),
            ("a^b", "^ may stand at its beginning"),
            ("(^a|b)+", "^ may stand at its beginning"),
        ] {
            let shape = shape("answer: /x/\n", &[("ok", "^(a|b$)"), ("a.pattern", regex)]);
            let (param, message) = shape.fault("", "at 2(9): lexer error");
            assert_eq!(param, "a.pattern", "{regex}");
            let begin = "a.pattern is not a regular expression that can be followed: ";
            assert!(message.starts_with(begin), "{message}");
            assert!(message.contains(told), "{message}");
            assert!(!message.contains("2(9)"), "{message}");
        }
    }

    #[test]
    fn an_expression_is_blamed_only_where_its_tool_is() {
        let rules = "call1: \"b\" args1\nargs1: %json {}\nargs0: %json {}\nargs10: %json {}\n";
        let field = |at: usize| format!("tools[{at}].function.parameters");
        let [first, tenth] = [0, 10].map(|at| format!("{}.pattern", field(at)));
        let shape = shape(rules, &[(&first, "\\bword\\b"), (&tenth, "(")]);
        let whys = [
            ("at 2(9): unimplemented", &field(1)),
            ("3(9): lexer error", &first),
            ("at 4(9): lexer error", &tenth),
            // Nobody knows whose fault it is.
            ("at 1(1): unknown", &first),
            ("grammar too large", &first),
        ];
        for (why, blamed) in whys {
            let (param, message) = shape.fault(rules, why);
            assert_eq!(
                (&param, message.starts_with(blamed)),
                (blamed, true),
                "{why}"
            );
        }
    }

    #[test]
    fn expressions_of_a_schema_are_found_with_their_place() {
        let schema = serde_json::json!({
            "pattern": "1",
            "properties": {
                "pattern": {"type": "string", "pattern": "2"},
                "list": {"items": {"anyOf": [{"pattern": "3"}, {"const": {"pattern": "no"}}]}},
            },
            "patternProperties": {"4": {"pattern": "5"}},
            "$defs": {"x": {"not": {"pattern": "6"}}},
            "default": {"pattern": "no"},
            "enum": [{"pattern": "no"}],
        });
        let found = Pattern::of_schema("s", schema.as_object().expect("an object"));
        let found: Vec<_> = found.iter().map(|p| (&*p.regex, &*p.param)).collect();
        let expected = [
            ("1", "s.pattern"),
            ("2", "s.properties.pattern.pattern"),
            ("3", "s.properties.list.items.anyOf[0].pattern"),
            ("4", "s.patternProperties.4"),
            ("5", "s.patternProperties.4.pattern"),
            ("6", "s.$defs.x.not.pattern"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_place_is_for_those_who_wrote_the_grammar() {
        let whys = [
            (
                "at 2(9): failed to compile JSON schema: Invalid type: x",
                "Invalid type: x",
            ),
            ("2(11): lexer error", "lexer error"),
            (
                "at least one rule (start): none",
                "at least one rule (start): none",
            ),
            ("grammar too large", "grammar too large"),
        ];
        for (why, told) in whys {
            let (param, message) = shape("answer: %json {}\n", &[("p", "^a$")]).fault("", why);
            assert_eq!(param, "guided_json");
            assert_eq!(message, format!("guided_json cannot be followed: {told}"));
            let own = "start: x\nargs7: %json {}\n";
            let (_, message) = shape(own, &[]).fault(own, why);
            assert_eq!(message, format!("guided_json cannot be followed: {why}"));
        }
    }
}
