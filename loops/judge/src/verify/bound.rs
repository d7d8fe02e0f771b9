//! What a schema may cost. The validator compiles every expression at its own limit, follows every
//! reference anew and goes as deep as they lead; so a schema is read here first, and the steps of a
//! value are counted before it takes them.

use std::collections::HashMap;

use regex::RegexBuilder;
use serde_json::{Map, Value};

/// Most expressions of a schema, and most bytes of all of them once compiled. One that needs more
/// than the small size counts as one of the large.
const PATTERNS_MAX: usize = 128;
const PATTERNS_BYTES_MAX: usize = 8 << 20;
const PATTERN_BYTES_SMALL: usize = 64 << 10;
const PATTERN_BYTES_LARGE: usize = 1 << 20;
/// Most bytes of text that are read while the classes of all expressions are rewritten: the
/// validator reads an expression again for each of its `\d`, `\w` and `\s`.
const PATTERNS_READ_BYTES_MAX: usize = 1 << 20;
/// Deepest nesting of a schema's own text.
const NESTING_MAX: usize = 64;
/// Most steps at one place of a value, and the longest way of them.
const STEPS_AT_ONE_PLACE_MAX: u64 = 10_000;
const WAY_AT_ONE_PLACE_MAX: usize = 64;
/// Most bytes of an expression as it is written: while it is read, a class of two of them may take
/// six thousand.
pub(super) const PATTERN_BYTES_MAX: usize = 8 << 10;
/// Most steps of one check, and the longest way of them: each step is some frames of the stack.
pub(super) const STEPS_MAX: u64 = 200_000;
const WAY_MAX: usize = 384;
/// Most characters of the schema that a message shows.
const SHOWN_CHARS_MAX: usize = 60;
/// Keywords with one schema for the value itself, and with several.
const SAME: [&str; 4] = ["not", "if", "then", "else"];
const SAME_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SAME_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords whose schemas are for none of the value's parts, but are read too.
const ASIDE: [&str; 2] = ["$defs", "definitions"];

/// One schema out of a schema: which others it leads to.
#[derive(Default)]
struct Node<'a> {
    /// For the value itself.
    same: Vec<usize>,
    /// For the member of this name.
    members: HashMap<&'a str, usize>,
    /// For members that have no schema of their own.
    other_members: Vec<usize>,
    /// For every member.
    every_member: Vec<usize>,
    /// For the names of members.
    names: Vec<usize>,
    /// For the items by their place, and for those behind them or for all.
    items_at: Vec<usize>,
    items: Vec<usize>,
    /// Values and names that it compares with.
    words: usize,
    /// Expressions that are looked for in the names of members.
    name_patterns: usize,
    /// Whether a text is searched, or is itself read as an expression.
    is_searching: bool,
    is_for_expressions: bool,
}

/// A schema that may be compiled.
pub(super) struct Plan<'a> {
    nodes: Vec<Node<'a>>,
}

/// A value, or the name of a member of one.
#[derive(Clone, Copy)]
enum Part<'v> {
    Value(&'v Value),
    Name(&'v str),
}

/// Steps, and the longest way of them.
type Cost = (u64, usize);

impl<'a> Plan<'a> {
    /// Reads a schema; the error says what is too much of it.
    pub(super) fn new(schema: &'a Value) -> Result<Self, String> {
        let plan = Reader::new(schema)?.read()?;
        let mut meter = Meter {
            plan: &plan,
            known: HashMap::new(),
            steps_max: STEPS_AT_ONE_PLACE_MAX,
            way_max: WAY_AT_ONE_PLACE_MAX,
        };
        for node in 0..plan.nodes.len() {
            let cost = meter.cost(node, Part::Value(&Value::Null), 1);
            cost.map_err(|why| format!("the schema {why}"))?;
        }
        Ok(plan)
    }

    /// How many steps a value takes at most, where that is not more than `steps_max`.
    pub(super) fn steps(&self, value: &Value, steps_max: u64) -> Result<u64, String> {
        let mut meter = Meter {
            plan: self,
            known: HashMap::new(),
            steps_max,
            way_max: WAY_MAX,
        };
        let cost = meter.cost(0, Part::Value(value), 1);
        cost.map(|(steps, _)| steps)
            .map_err(|why| format!("the schema cannot be evaluated: with this text it {why}"))
    }
}

/// Counts the steps of values as if no branch ended early.
struct Meter<'p, 'a> {
    plan: &'p Plan<'a>,
    /// By schema and by the value's address; none while it is being counted.
    known: HashMap<(usize, usize), Option<Cost>>,
    steps_max: u64,
    way_max: usize,
}

impl Meter<'_, '_> {
    /// The cost of one schema for one value that is reached at step `at` of a way.
    fn cost(&mut self, node: usize, part: Part<'_>, at: usize) -> Result<Cost, String> {
        let address = match part {
            Part::Value(value) => std::ptr::from_ref(value) as usize,
            Part::Name(name) => name.as_ptr() as usize,
        };
        let long = || format!("takes a way of more than {} steps", self.way_max);
        match self.known.get(&(node, address)) {
            Some(Some((_, way))) if at + way > self.way_max + 1 => return Err(long()),
            Some(Some(cost)) => return Ok(*cost),
            Some(None) => return Err("refers to itself for the very same value".to_owned()),
            None if at > self.way_max => return Err(long()),
            None => {}
        }
        self.known.insert((node, address), None);
        let plan = self.plan;
        let node_at = &plan.nodes[node];
        let (mut steps, mut way) = (node_at.own_steps(part), 0);
        let mut add = |meter: &mut Self, node: usize, part: Part<'_>| {
            let (more, longer) = meter.cost(node, part, at + 1)?;
            (steps, way) = (steps.saturating_add(more), way.max(longer));
            let most = meter.steps_max;
            (steps <= most)
                .then_some(())
                .ok_or_else(|| format!("takes more than {most} steps"))
        };
        for next in &node_at.same {
            add(self, *next, part)?;
        }
        match part {
            Part::Value(Value::Object(members)) => {
                for (name, value) in members {
                    for next in node_at.for_member(name) {
                        add(self, next, Part::Value(value))?;
                    }
                    for next in &node_at.names {
                        add(self, *next, Part::Name(name))?;
                    }
                }
            }
            Part::Value(Value::Array(items)) => {
                for (place, value) in items.iter().enumerate() {
                    for next in node_at.for_item(place) {
                        add(self, next, Part::Value(value))?;
                    }
                }
            }
            Part::Value(_) | Part::Name(_) => {}
        }
        self.known.insert((node, address), Some((steps, way + 1)));
        Ok((steps, way + 1))
    }
}

impl Node<'_> {
    /// What it does itself, in steps.
    fn own_steps(&self, part: Part<'_>) -> u64 {
        let text = match part {
            Part::Value(Value::String(text)) => text,
            Part::Name(name) => name,
            Part::Value(_) => "",
        };
        let parts = match part {
            Part::Value(Value::Object(members)) => members.len(),
            Part::Value(Value::Array(items)) => items.len(),
            _ => 0,
        };
        let searched = usize::from(self.is_searching) * text.len() / 64;
        let rewritten = match self.is_for_expressions {
            true => read_bytes(text) / 64,
            false => 0,
        };
        let compared = (self.words + parts * (1 + self.name_patterns)) / 8;
        (1 + searched + rewritten + compared) as u64
    }

    fn for_member(&self, name: &str) -> impl Iterator<Item = usize> {
        let named = self.members.get(name).copied();
        let others = match named {
            Some(_) => &[][..],
            None => &self.other_members,
        };
        let all = named.into_iter().chain(others.iter().copied());
        all.chain(self.every_member.iter().copied())
    }

    fn for_item(&self, place: usize) -> impl Iterator<Item = usize> {
        let placed = self.items_at.get(place).copied();
        placed.into_iter().chain(self.items.iter().copied())
    }
}

/// Reads a schema into nodes.
struct Reader<'a> {
    root: &'a Value,
    /// Schemas by the names that references may call them.
    anchors: HashMap<&'a str, Vec<&'a Value>>,
    /// Whether a part of the schema has an address of its own, which references would start from.
    has_places: bool,
    known: HashMap<usize, usize>,
    found: Vec<&'a Value>,
    expressions: Expressions,
}

impl<'a> Reader<'a> {
    fn new(root: &'a Value) -> Result<Self, String> {
        let mut reader = Self {
            root,
            anchors: HashMap::new(),
            has_places: false,
            known: HashMap::new(),
            found: Vec::new(),
            expressions: Expressions::default(),
        };
        let is_old = root.get("$schema").and_then(Value::as_str);
        let is_old = is_old.is_some_and(|draft| draft.contains("draft-04"));
        let mut waiting = vec![(root, 1)];
        while let Some((value, nesting)) = waiting.pop() {
            if nesting > NESTING_MAX {
                return Err(format!("the schema is nested deeper than {NESTING_MAX}"));
            }
            match value {
                Value::Object(members) => {
                    reader.note(value, members, is_old);
                    waiting.extend(members.values().map(|value| (value, nesting + 1)));
                }
                Value::Array(items) => {
                    waiting.extend(items.iter().map(|value| (value, nesting + 1)));
                }
                _ => {}
            }
        }
        Ok(reader)
    }

    /// Notes what a part may be called by.
    fn note(&mut self, value: &'a Value, members: &'a Map<String, Value>, is_old: bool) {
        let text = |key: &str| members.get(key).and_then(Value::as_str);
        for name in ["$anchor", "$dynamicAnchor"].into_iter().filter_map(text) {
            self.anchors.entry(name).or_default().push(value);
        }
        for id in ["$id", "id"].into_iter().filter_map(text) {
            if let Some(name) = id.strip_prefix('#') {
                self.anchors.entry(name).or_default().push(value);
            }
        }
        let id = if is_old { text("id") } else { text("$id") };
        let is_place = id.is_some_and(|id| !id.is_empty() && !id.starts_with('#'));
        self.has_places |= is_place && !std::ptr::eq(value, self.root);
    }

    fn read(mut self) -> Result<Plan<'a>, String> {
        self.number(self.root);
        let mut nodes = Vec::new();
        while let Some(value) = self.found.get(nodes.len()).copied() {
            nodes.push(match value {
                Value::Object(members) => self.node(members)?,
                _ => Node::default(),
            });
        }
        Ok(Plan { nodes })
    }

    /// The number of a schema's node; a new one is read later.
    fn number(&mut self, schema: &'a Value) -> usize {
        let address = std::ptr::from_ref(schema) as usize;
        *self.known.entry(address).or_insert_with(|| {
            self.found.push(schema);
            self.found.len() - 1
        })
    }

    fn one(&mut self, members: &'a Map<String, Value>, key: &str) -> Option<usize> {
        members.get(key).map(|schema| self.number(schema))
    }

    fn list(&mut self, members: &'a Map<String, Value>, key: &str) -> Vec<usize> {
        let list = members.get(key).and_then(Value::as_array);
        list.into_iter().flatten().map(|s| self.number(s)).collect()
    }

    fn map(&mut self, members: &'a Map<String, Value>, key: &str) -> Vec<(&'a str, usize)> {
        let map = members.get(key).and_then(Value::as_object);
        let map = map.into_iter().flatten();
        map.map(|(name, s)| (name.as_str(), self.number(s)))
            .collect()
    }

    fn node(&mut self, members: &'a Map<String, Value>) -> Result<Node<'a>, String> {
        let mut node = Node::default();
        for key in REFERENCES {
            if let Some(reference) = members.get(key).and_then(Value::as_str) {
                for target in self.resolve(reference)? {
                    node.same.push(self.number(target));
                }
            }
        }
        if members.contains_key("$recursiveRef") && !node.same.contains(&0) {
            node.same.push(0);
        }
        for key in SAME {
            node.same.extend(self.one(members, key));
        }
        for key in SAME_LISTS {
            node.same.extend(self.list(members, key));
        }
        for key in SAME_MAPS {
            let map = self.map(members, key);
            node.same.extend(map.into_iter().map(|(_, schema)| schema));
        }
        for key in ASIDE {
            self.map(members, key);
        }
        self.one(members, "contentSchema");
        self.parts(members, &mut node);
        self.own(members, &mut node)?;
        Ok(node)
    }

    /// The schemas for the parts of a value.
    fn parts(&mut self, members: &'a Map<String, Value>, node: &mut Node<'a>) {
        node.members = self.map(members, "properties").into_iter().collect();
        node.other_members
            .extend(self.one(members, "additionalProperties"));
        let patterns = self.map(members, "patternProperties");
        node.name_patterns = patterns.len();
        let patterns = patterns.into_iter().map(|(_, schema)| schema);
        node.every_member.extend(patterns);
        node.every_member
            .extend(self.one(members, "unevaluatedProperties"));
        node.names.extend(self.one(members, "propertyNames"));
        node.items_at = self.list(members, "items");
        let at_front = self.list(members, "prefixItems");
        // A schema has one of both; with both each item takes the steps of both.
        node.items.extend(match node.items_at.is_empty() {
            true => Vec::new(),
            false => at_front.clone(),
        });
        if node.items_at.is_empty() {
            node.items_at = at_front;
        }
        for key in ["items", "additionalItems", "contains", "unevaluatedItems"] {
            node.items.extend(self.one(members, key));
        }
    }

    /// What a schema does itself.
    fn own(&mut self, members: &'a Map<String, Value>, node: &mut Node<'a>) -> Result<(), String> {
        let len = |value: Option<&Value>| value.and_then(Value::as_array).map_or(0, Vec::len);
        node.words = len(members.get("enum")) + len(members.get("required"));
        for key in ["dependentRequired", "dependencies"] {
            let map = members.get(key).and_then(Value::as_object);
            let lists = map.into_iter().flatten();
            node.words += lists.map(|(_, list)| 1 + len(Some(list))).sum::<usize>();
        }
        let names = members.get("patternProperties").and_then(Value::as_object);
        for name in names.into_iter().flatten().map(|(name, _)| name) {
            self.expressions.take(name)?;
        }
        if let Some(pattern) = members.get("pattern").and_then(Value::as_str) {
            node.is_searching = true;
            self.expressions.take(pattern)?;
        }
        node.is_for_expressions = members.get("format").is_some_and(|name| name == "regex");
        Ok(())
    }

    /// The schemas that a reference may mean.
    fn resolve(&self, reference: &str) -> Result<Vec<&'a Value>, String> {
        let shown = shown(reference);
        if self.has_places {
            return Err(format!(
                "the schema has an $id below its root, beside which no reference such as {shown} is taken"
            ));
        }
        let (place, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let ids = ["$id", "id"].map(|key| self.root.get(key).and_then(Value::as_str));
        let is_own = |id: &str| id.split('#').next() == Some(place);
        if !place.is_empty() && !ids.into_iter().flatten().any(is_own) {
            return Err(format!(
                "the schema refers to {shown}, which is not part of it; references begin with #"
            ));
        }
        let nothing = || format!("the schema refers to {shown}, where there is nothing");
        let fragment = unescaped(fragment).ok_or_else(nothing)?;
        let found = match fragment.is_empty() || fragment.starts_with('/') {
            true => self.root.pointer(&fragment).into_iter().collect(),
            false => self.anchors.get(&*fragment).cloned().unwrap_or_default(),
        };
        match found.is_empty() {
            true => Err(nothing()),
            false => Ok(found),
        }
    }
}

/// What the expressions of a schema need together.
#[derive(Default)]
struct Expressions {
    count: usize,
    bytes: usize,
    read_bytes: usize,
}

impl Expressions {
    fn take(&mut self, pattern: &str) -> Result<(), String> {
        self.count += 1;
        self.read_bytes += read_bytes(pattern);
        let shown = shown(pattern);
        if self.count > PATTERNS_MAX || self.read_bytes > PATTERNS_READ_BYTES_MAX {
            return Err(format!(
                "the schema has too many or too long expressions from {shown} on: at most {PATTERNS_MAX} are taken, with few \\d, \\w and \\s in the long ones"
            ));
        }
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!(
                "the schema's expression {shown} has more than {PATTERN_BYTES_MAX} bytes"
            ));
        }
        let pattern = rewritten(pattern);
        let fits = |limit: usize| RegexBuilder::new(&pattern).size_limit(limit).build();
        let small = fits(PATTERN_BYTES_SMALL).map(|_| PATTERN_BYTES_SMALL);
        let bytes = small.or_else(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                fits(PATTERN_BYTES_LARGE).map(|_| PATTERN_BYTES_LARGE)
            }
            other => Err(other),
        });
        let bytes = bytes.map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => {
                format!("the schema's expression {shown} has more than {limit} bytes once compiled")
            }
            other => format!("the schema's {shown} is not a regular expression: {other}"),
        })?;
        self.bytes += bytes;
        match self.bytes > PATTERNS_BYTES_MAX {
            true => Err(format!(
                "the schema's expressions up to {shown} have more than {PATTERNS_BYTES_MAX} bytes once compiled"
            )),
            false => Ok(()),
        }
    }
}

/// Bytes that are read while the classes of an expression are rewritten one by one, each into up to
/// forty bytes.
fn read_bytes(pattern: &str) -> usize {
    let pairs = pattern.as_bytes().windows(2);
    let classes = pairs.filter(|p| p[0] == b'\\' && b"dDwWsS".contains(&p[1]));
    let classes = classes.count();
    classes * (pattern.len() + 40 * classes)
}

/// An expression as the validator compiles it: classes are of ASCII, as in ECMA 262.
fn rewritten(pattern: &str) -> String {
    let (mut out, mut chars) = (String::with_capacity(pattern.len()), pattern.chars());
    while let Some(c) = chars.next() {
        let escaped = if c == '\\' { chars.next() } else { None };
        match escaped {
            None => out.push(c),
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('w') => out.push_str("[A-Za-z0-9_]"),
            Some('W') => out.push_str("[^A-Za-z0-9_]"),
            Some(other) => out.extend(['\\', other]),
        }
    }
    out
}

/// A fragment without its percent signs.
fn unescaped(fragment: &str) -> Option<String> {
    let (bytes, mut out, mut at) = (fragment.as_bytes(), Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = fragment.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let decoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(decoded.unwrap_or(*byte));
        at += if decoded.is_some() { 3 } else { 1 };
    }
    String::from_utf8(out).ok()
}

fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    format!("{start:?}")
}

#[cfg(test)]
#[path = "bound_tests.rs"]
mod tests;
