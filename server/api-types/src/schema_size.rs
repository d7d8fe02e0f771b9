//! How large a schema becomes while it is compiled.
//!
//! Choices that hold together, in `allOf` or side by side, are multiplied out, and each pair of options
//! has its own copy of both sides. Here the copies are only counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value};

/// Where copies of schemas with a plain name stand: a keyword that nobody else knows.
pub(super) const PLAIN: &str = "x-hone-named";

/// Bytes of a schema of one type, or of a value that is one.
const NODE_BYTES: usize = 256;
/// Bytes of a list or an object that is a value, beside its parts.
const LIST_BYTES: usize = 768;
/// Bytes of a name, beside its letters.
const NAME_BYTES: usize = 64;
/// Bytes of the expression that a format stands for.
const FORMAT_BYTES: usize = 1_536;
/// Types of a schema that names none.
const TYPES: f64 = 6.0;
/// Bytes that two patterns of an object count as: to compare them takes time, and more with each pair.
const PAIR_BYTES: f64 = 16_384.0;
/// Bytes of a text that take as long to look through as a step takes.
const STEP_BYTES: usize = 64;
/// Deepest schema inside schemas, with those that are named and stand for others.
const DEPTH_MAX: usize = 160;

/// About how many bytes a schema becomes; none where even counting them takes more `steps` than are left.
pub(super) fn expanded_bytes(schema: &Map<String, Value>, steps: &mut usize) -> Option<f64> {
    let mut count = Count {
        root: schema,
        steps,
        named: HashSet::new(),
        waiting: Vec::new(),
    };
    let mut bytes = count.of_map(schema, 0)?.total();
    // Each of those that are named is compiled once by itself.
    while let Some(name) = count.waiting.pop() {
        if let Some(named) = count.target(name) {
            bytes += count.of_map(named, 0)?.total();
        }
    }
    Some(bytes)
}

/// A part of what a schema describes. Those that are named stand before the others of their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Property(&'a str),
    /// Those that have no schema of their own.
    OtherProperties,
    Item(usize),
    OtherItems,
}

impl Part<'_> {
    /// Where it is looked for if it has no schema of its own.
    fn others(self) -> Self {
        match self {
            Self::Property(_) | Self::OtherProperties => Self::OtherProperties,
            Self::Item(_) | Self::OtherItems => Self::OtherItems,
        }
    }

    fn name_bytes(self) -> usize {
        match self {
            Self::Property(name) => name.len(),
            Self::OtherProperties | Self::Item(_) | Self::OtherItems => 0,
        }
    }
}

/// The options of a schema taken together.
#[derive(Clone, Debug, Default)]
struct Size<'a> {
    /// How many there are.
    options: f64,
    /// Bytes of all of them, without their parts.
    bytes: f64,
    /// Their parts, each taken together as well.
    parts: BTreeMap<Part<'a>, Self>,
    /// References that are options and are looked up only where they are copied, and how often each is one.
    references: BTreeMap<&'a str, f64>,
    /// Most patterns of properties that an option has.
    patterns: f64,
}

impl<'a> Size<'a> {
    fn of_options(options: usize, bytes: usize) -> Self {
        Self {
            options: options as f64,
            bytes: (bytes + NODE_BYTES * options) as f64,
            ..Self::default()
        }
    }

    fn is_nothing(&self) -> bool {
        let bare = self.parts.is_empty() && self.references.is_empty();
        bare && self.options == 0.0 && self.bytes == 0.0
    }

    fn total(&self) -> f64 {
        self.bytes + self.parts.values().map(Self::total).sum::<f64>()
    }

    /// How many sizes it is made of.
    fn nodes(&self) -> usize {
        1 + self.references.len() + self.parts.values().map(Self::nodes).sum::<usize>()
    }
}

struct Count<'a, 's> {
    root: &'a Map<String, Value>,
    /// Steps that are left.
    steps: &'s mut usize,
    /// References that were met.
    named: HashSet<&'a str>,
    /// Those of them that are still to be counted.
    waiting: Vec<&'a str>,
}

/// Bytes that comparing the patterns of an object counts.
fn compared(patterns: f64) -> f64 {
    PAIR_BYTES * patterns * (patterns - 1.0).max(0.0) / 2.0
}

/// Whether a name may match a pattern: not where that begins with other letters.
fn may_match(regex: &str, name: &str) -> bool {
    let Some(rest) = regex.strip_prefix('^').filter(|rest| !rest.contains('|')) else {
        return true;
    };
    let letters = rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '@' | '/')));
    let begin = match letters {
        Some(end) if rest[end..].starts_with(['?', '*', '{']) => {
            let last = rest[..end].char_indices().next_back();
            &rest[..last.map_or(0, |(at, _)| at)]
        }
        Some(end) => &rest[..end],
        None => rest,
    };
    name.starts_with(begin)
}

fn is_choice(key: &str) -> bool {
    matches!(key, "const" | "enum" | "allOf" | "anyOf" | "oneOf" | "$ref")
}

/// What says nothing of the value.
fn is_note(key: &str) -> bool {
    matches!(
        key,
        "$defs"
            | "definitions"
            | "title"
            | "description"
            | "default"
            | "examples"
            | "$schema"
            | "$id"
            | "id"
            | "$comment"
            | "$anchor"
            | "readOnly"
            | "writeOnly"
            | "contentMediaType"
            | "contentEncoding"
    )
}

/// How many types a schema lists, how often the one that it lists most, and how many runs of its own keys
/// there may be between choices. Each run is compiled by itself, once for each time that a type is listed.
fn listed(schema: &Map<String, Value>) -> (f64, f64, i32) {
    let types = match schema.get("type") {
        Some(Value::Array(types)) => types,
        Some(_) => return (1.0, 1.0, 1),
        None => return (TYPES, 1.0, 1),
    };
    let mut times: HashMap<&str, f64> = HashMap::new();
    for name in types.iter().filter_map(Value::as_str) {
        // Integers are numbers.
        let name = if name == "integer" { "number" } else { name };
        *times.entry(name).or_default() += 1.0;
    }
    let most = times.into_values().fold(1.0, f64::max);
    let choices = schema.keys().filter(|key| is_choice(key)).count();
    let own = schema
        .keys()
        .filter(|key| !is_choice(key) && !is_note(key))
        .count();
    (types.len() as f64, most, own.min(choices + 1) as i32)
}

impl<'a> Count<'a, '_> {
    /// A step that looks through so many bytes of text.
    fn step(&mut self, bytes: usize) -> Option<()> {
        *self.steps = self.steps.checked_sub(1 + bytes / STEP_BYTES)?;
        Some(())
    }

    fn value_bytes(&mut self, value: &Value) -> Option<usize> {
        Some(match value {
            Value::String(text) => text.len(),
            Value::Array(items) => LIST_BYTES + self.items_bytes(items)?,
            Value::Object(map) => {
                self.step(8 * map.len())?;
                let mut bytes = LIST_BYTES;
                for (name, value) in map {
                    bytes += NODE_BYTES + NAME_BYTES + 2 * name.len() + self.value_bytes(value)?;
                }
                bytes
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        })
    }

    fn items_bytes(&mut self, items: &[Value]) -> Option<usize> {
        self.step(4 * items.len())?;
        let bytes = items
            .iter()
            .map(|item| Some(NODE_BYTES + self.value_bytes(item)?));
        bytes.sum()
    }

    /// What a reference names, where that is more than `true` or `false`.
    fn target(&self, name: &str) -> Option<&'a Map<String, Value>> {
        let path = name.strip_prefix('#')?;
        if matches!(path, "" | "/") {
            return Some(self.root);
        }
        let mut parts = path.strip_prefix('/')?.split('/');
        let mut at = self.root.get(parts.next()?)?;
        for part in parts {
            at = match at {
                Value::Array(items) => items.get(part.parse::<usize>().ok()?)?,
                other => other.get(part)?,
            };
        }
        at.as_object()
    }

    fn of(&mut self, schema: &'a Value, depth: usize) -> Option<Size<'a>> {
        match schema {
            Value::Object(map) => self.of_map(map, depth),
            _ => Some(Size::of_options(1, 0)),
        }
    }

    fn of_map(&mut self, schema: &'a Map<String, Value>, depth: usize) -> Option<Size<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        let mut own = Size::default();
        let mut together = Vec::new();
        for (key, value) in schema {
            self.step(key.len())?;
            match (key.as_str(), value) {
                ("const", value) => together.push(Size::of_options(1, self.value_bytes(value)?)),
                ("enum", Value::Array(values)) => {
                    let bytes = self.items_bytes(values)? as f64;
                    let options = values.len() as f64;
                    together.push(Size {
                        options,
                        bytes,
                        ..Size::default()
                    });
                }
                ("anyOf" | "oneOf", Value::Array(options)) => {
                    let mut any = Size::default();
                    for option in options {
                        let option = self.of(option, depth + 1)?;
                        self.add(&mut any, option)?;
                    }
                    together.push(any);
                }
                ("allOf", Value::Array(all)) => {
                    for one in all {
                        together.push(self.of(one, depth + 1)?);
                    }
                }
                ("$ref", Value::String(name)) => together.push(self.reference(name)?),
                (key, value) => self.assertion(key, value, &mut own, depth)?,
            }
        }
        if own.options > 0.0 {
            self.patterned(schema, &mut own, depth)?;
            let (types, most, runs) = listed(schema);
            let mut own = self.times(own, most.powi(runs))?;
            own.bytes += NODE_BYTES as f64 * types * most.powi(runs - 1);
            together.push(own);
        }
        let mut together = together.into_iter();
        let Some(mut size) = together.next() else {
            return Some(Size::of_options(1, 0));
        };
        for other in together {
            size = self.both(size, other, depth)?;
        }
        Some(size)
    }

    fn reference(&mut self, name: &'a str) -> Option<Size<'a>> {
        self.step(name.len())?;
        if self.named.insert(name) {
            self.waiting.push(name);
        }
        Some(Size {
            references: BTreeMap::from([(name, 1.0)]),
            ..Size::default()
        })
    }

    /// A key that says something by itself.
    fn assertion(
        &mut self,
        key: &'a str,
        value: &'a Value,
        own: &mut Size<'a>,
        depth: usize,
    ) -> Option<()> {
        let mut part = |count: &mut Self, part: Part<'a>, schema: &'a Value| {
            let size = count.of(schema, depth + 1)?;
            count.add(own.parts.entry(part).or_default(), size)
        };
        let mut bytes = 0;
        match (key, value) {
            (key, _) if is_note(key) => return Some(()),
            // Of schemas that have a plain name there: counted where they are named.
            (key, _) if key == PLAIN => {}
            ("properties", Value::Object(parts)) => {
                for (name, schema) in parts {
                    self.step(name.len())?;
                    bytes += NAME_BYTES + name.len();
                    part(self, Part::Property(name), schema)?;
                }
            }
            ("patternProperties", Value::Object(parts)) => {
                for (regex, schema) in parts {
                    self.step(regex.len())?;
                    bytes += NAME_BYTES + regex.len();
                    part(self, Part::OtherProperties, schema)?;
                }
                own.patterns = parts.len() as f64;
                own.bytes += compared(own.patterns);
            }
            ("additionalProperties", schema) => part(self, Part::OtherProperties, schema)?,
            ("prefixItems" | "items", Value::Array(items)) => {
                for (at, schema) in items.iter().enumerate() {
                    self.step(0)?;
                    part(self, Part::Item(at), schema)?;
                }
            }
            ("items" | "additionalItems", schema) => part(self, Part::OtherItems, schema)?,
            ("format", _) => bytes = FORMAT_BYTES,
            ("type", Value::Array(types)) => self.step(4 * types.len())?,
            (_, value) => bytes = self.value_bytes(value)?,
        }
        own.options = 1.0;
        own.bytes += bytes as f64;
        Some(())
    }

    /// Properties are of the patterns that they match as well, each with a copy of its own.
    fn patterned(
        &mut self,
        schema: &'a Map<String, Value>,
        own: &mut Size<'a>,
        depth: usize,
    ) -> Option<()> {
        let of = |key: &str| schema.get(key).and_then(Value::as_object);
        let (Some(names), Some(patterns)) = (of("properties"), of("patternProperties")) else {
            return Some(());
        };
        for name in names.keys() {
            for (regex, schema) in patterns {
                self.step(regex.len())?;
                if may_match(regex, name) {
                    let matched = self.of(schema, depth + 1)?;
                    let named = own.parts.entry(Part::Property(name)).or_default();
                    *named = self.both(std::mem::take(named), matched, depth + 1)?;
                }
            }
        }
        Some(())
    }

    /// Either of two.
    fn add(&mut self, to: &mut Size<'a>, other: Size<'a>) -> Option<()> {
        if to.is_nothing() {
            *to = other;
            return Some(());
        }
        self.step(0)?;
        to.patterns = to.patterns.max(other.patterns);
        to.options += other.options;
        to.bytes += other.bytes;
        for (part, size) in other.parts {
            self.step(part.name_bytes())?;
            self.add(to.parts.entry(part).or_default(), size)?;
        }
        for (name, times) in other.references {
            self.step(name.len())?;
            *to.references.entry(name).or_default() += times;
        }
        Some(())
    }

    /// Takes what holds for a part; for one without a schema of its own, a copy of what holds for such.
    fn part_of(&mut self, size: &mut Size<'a>, part: Part<'a>) -> Option<Option<Size<'a>>> {
        if let Some(own) = size.parts.remove(&part) {
            return Some(Some(own));
        }
        let Some(others) = size.parts.get(&part.others()) else {
            return Some(None);
        };
        self.step(STEP_BYTES * others.nodes())?;
        Some(Some(others.clone()))
    }

    /// Both of two: each option of one with each of the other.
    fn both(&mut self, one: Size<'a>, other: Size<'a>, depth: usize) -> Option<Size<'a>> {
        let (mut one, mut other) = (self.resolved(one, depth)?, self.resolved(other, depth)?);
        self.step(0)?;
        // What nothing fits is seen only once all is made.
        for size in [&mut one, &mut other] {
            size.options = size.options.max(1.0);
        }
        let keys = one.parts.keys().chain(other.parts.keys());
        let all: BTreeSet<Part<'a>> = keys.copied().collect();
        let mut parts = BTreeMap::new();
        for part in all {
            self.step(part.name_bytes())?;
            let both = (
                self.part_of(&mut one, part)?,
                self.part_of(&mut other, part)?,
            );
            let size = match both {
                (Some(first), Some(second)) => self.both(first, second, depth + 1)?,
                (Some(size), None) => self.times(size, other.options)?,
                (None, Some(size)) => self.times(size, one.options)?,
                (None, None) => continue,
            };
            parts.insert(part, size);
        }
        let options = one.options * other.options;
        let patterns = one.patterns + other.patterns;
        let bytes = one.bytes * other.options + other.bytes * one.options;
        Some(Size {
            options,
            bytes: bytes + options * compared(patterns),
            parts,
            patterns,
            ..Size::default()
        })
    }

    fn times(&mut self, mut size: Size<'a>, times: f64) -> Option<Size<'a>> {
        if times == 1.0 {
            return Some(size);
        }
        self.step(0)?;
        size.options *= times;
        size.bytes *= times;
        for copies in size.references.values_mut() {
            self.step(0)?;
            *copies *= times;
        }
        for part in size.parts.values_mut() {
            let whole = std::mem::take(part);
            *part = self.times(whole, times)?;
        }
        Some(size)
    }

    /// With what its references name.
    fn resolved(&mut self, mut size: Size<'a>, mut depth: usize) -> Option<Size<'a>> {
        while !size.references.is_empty() {
            depth += 1;
            for (name, times) in std::mem::take(&mut size.references) {
                self.step(name.len())?;
                let named = match self.target(name) {
                    Some(named) => self.of_map(named, depth)?,
                    None => Size::of_options(1, 0),
                };
                let named = self.times(named, times)?;
                self.add(&mut size, named)?;
            }
            if depth > DEPTH_MAX {
                return None;
            }
        }
        Some(size)
    }
}

#[cfg(test)]
#[path = "schema_size_tests.rs"]
mod tests;
