//! How large a schema becomes while it is compiled.
//!
//! Choices that hold together, in `allOf` or side by side, are multiplied out, and each pair of options
//! has its own copy of both sides. Here the copies are only counted.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

/// Bytes of a schema that says nothing.
const NODE_BYTES: f64 = 64.0;
/// Most steps of one count.
const STEPS_MAX: usize = 1_000_000;
/// Deepest schema inside schemas, with those that are named and stand for others.
const DEPTH_MAX: usize = 160;

/// About how many bytes a schema becomes; none where even counting them takes too long.
pub(super) fn expanded_bytes(schema: &Map<String, Value>) -> Option<f64> {
    let mut count = Count {
        root: schema,
        steps: 0,
        named: HashSet::new(),
        waiting: Vec::new(),
    };
    let mut bytes = count.of_map(schema, 0)?.total();
    // Each of those that are named is compiled once by itself.
    while let Some(name) = count.waiting.pop() {
        if let Some(named) = count.target(name) {
            bytes += count.of(named, 0)?.total();
        }
    }
    Some(bytes)
}

/// A part of what a schema describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Property(&'a str),
    /// Those that have no schema of their own.
    OtherProperties,
    Item(usize),
    OtherItems,
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
}

impl<'a> Size<'a> {
    fn of_options(options: usize, bytes: usize) -> Self {
        Self {
            options: options as f64,
            bytes: bytes as f64 + NODE_BYTES * options as f64,
            ..Self::default()
        }
    }

    fn total(&self) -> f64 {
        self.bytes + self.parts.values().map(Self::total).sum::<f64>()
    }
}

struct Count<'a> {
    root: &'a Map<String, Value>,
    steps: usize,
    /// References that were met.
    named: HashSet<&'a str>,
    /// Those of them that are still to be counted.
    waiting: Vec<&'a str>,
}

fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 8 + text_bytes(item)).sum(),
        Value::Object(map) => map.iter().map(|(k, v)| 8 + k.len() + text_bytes(v)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

impl<'a> Count<'a> {
    fn step(&mut self) -> Option<()> {
        self.steps += 1;
        (self.steps <= STEPS_MAX).then_some(())
    }

    /// What a reference names.
    fn target(&self, name: &str) -> Option<&'a Value> {
        let mut parts = name.strip_prefix("#/")?.split('/');
        let mut at = self.root.get(parts.next()?)?;
        for part in parts {
            at = match at {
                Value::Array(items) => items.get(part.parse::<usize>().ok()?)?,
                other => other.get(part)?,
            };
        }
        Some(at)
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
            self.step()?;
            match (key.as_str(), value) {
                ("const", value) => together.push(Size::of_options(1, text_bytes(value))),
                ("enum", Value::Array(values)) => {
                    together.push(Size::of_options(values.len(), text_bytes(value)));
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
                ("$ref", Value::String(name)) => {
                    if self.named.insert(name) {
                        self.waiting.push(name);
                    }
                    together.push(Size {
                        references: BTreeMap::from([(name.as_str(), 1.0)]),
                        ..Size::of_options(0, 0)
                    });
                }
                (key, value) => self.assertion((key, value), &mut own, depth)?,
            }
        }
        if own.bytes > 0.0 {
            own.options = 1.0;
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

    /// A key that says something by itself.
    fn assertion(
        &mut self,
        (key, value): (&'a str, &'a Value),
        own: &mut Size<'a>,
        depth: usize,
    ) -> Option<()> {
        let mut part = |count: &mut Self, part: Part<'a>, schema: &'a Value| {
            let size = count.of(schema, depth + 1)?;
            count.add(own.parts.entry(part).or_default(), size)
        };
        let mut bytes = NODE_BYTES;
        match (key, value) {
            ("$defs" | "definitions" | "title" | "description" | "default" | "examples", _)
            | ("$schema" | "$id" | "id" | "$comment" | "$anchor", _)
            | ("readOnly" | "writeOnly" | "contentMediaType" | "contentEncoding", _) => bytes = 0.0,
            // Of schemas that have a plain name there: counted where they are named.
            (key, _) if key == super::schema::PLAIN => bytes = 0.0,
            ("properties", Value::Object(parts)) => {
                for (name, schema) in parts {
                    bytes += name.len() as f64;
                    part(self, Part::Property(name), schema)?;
                }
            }
            ("patternProperties", Value::Object(parts)) => {
                for (regex, schema) in parts {
                    bytes += regex.len() as f64;
                    part(self, Part::OtherProperties, schema)?;
                }
            }
            ("additionalProperties", schema) => part(self, Part::OtherProperties, schema)?,
            ("prefixItems" | "items", Value::Array(items)) => {
                for (at, schema) in items.iter().enumerate() {
                    part(self, Part::Item(at), schema)?;
                }
            }
            ("items" | "additionalItems", schema) => part(self, Part::OtherItems, schema)?,
            (_, value) => bytes += text_bytes(value) as f64,
        }
        own.bytes += bytes;
        Some(())
    }

    /// Either of two.
    fn add(&mut self, to: &mut Size<'a>, other: Size<'a>) -> Option<()> {
        self.step()?;
        to.options += other.options;
        to.bytes += other.bytes;
        for (part, size) in other.parts {
            self.add(to.parts.entry(part).or_default(), size)?;
        }
        for (name, times) in other.references {
            *to.references.entry(name).or_default() += times;
        }
        Some(())
    }

    /// Both of two: each option of one with each of the other.
    fn both(&mut self, one: Size<'a>, other: Size<'a>, depth: usize) -> Option<Size<'a>> {
        let (mut one, mut other) = (self.resolved(one, depth)?, self.resolved(other, depth)?);
        self.step()?;
        // What nothing fits is seen only once all is made.
        for size in [&mut one, &mut other] {
            size.options = size.options.max(1.0);
        }
        let mut parts = BTreeMap::new();
        // What holds for parts that the other side alone names.
        let rests = [&one, &other].map(|size| {
            [Part::OtherProperties, Part::OtherItems].map(|part| size.parts.get(&part).cloned())
        });
        let rest = |of: usize, part: Part<'a>| match part {
            Part::Property(_) => rests[of][0].clone(),
            Part::Item(_) => rests[of][1].clone(),
            Part::OtherProperties | Part::OtherItems => None,
        };
        let all: Vec<Part<'a>> = one
            .parts
            .keys()
            .chain(other.parts.keys())
            .copied()
            .collect();
        for part in all {
            if parts.contains_key(&part) {
                continue;
            }
            let first = one.parts.remove(&part).or_else(|| rest(0, part));
            let second = other.parts.remove(&part).or_else(|| rest(1, part));
            let size = match (first, second) {
                (Some(first), Some(second)) => self.both(first, second, depth + 1)?,
                (Some(size), None) => self.times(size, other.options)?,
                (None, Some(size)) => self.times(size, one.options)?,
                (None, None) => continue,
            };
            parts.insert(part, size);
        }
        Some(Size {
            options: one.options * other.options,
            bytes: one.bytes * other.options + other.bytes * one.options,
            parts,
            references: BTreeMap::new(),
        })
    }

    fn times(&mut self, mut size: Size<'a>, times: f64) -> Option<Size<'a>> {
        self.step()?;
        size.options *= times;
        size.bytes *= times;
        size.references.values_mut().for_each(|n| *n *= times);
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
                let named = match self.target(name) {
                    Some(named) => self.of(named, depth)?,
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
mod tests {
    use serde_json::json;

    use super::*;

    fn bytes(schema: &Value) -> Option<f64> {
        expanded_bytes(schema.as_object().expect("an object"))
    }

    #[test]
    fn what_nothing_fits_counts_and_what_says_nothing_does_not() {
        let text = "A".repeat(1_000);
        let part = json!({"properties": {"a": {"const": text}}});
        let many = json!({"anyOf": vec![json!({"type": "object"}); 100]});
        let impossible = json!({"allOf": [part, many, {"enum": []}]});
        assert!(bytes(&impossible).is_some_and(|bytes| bytes > 100_000.0));
        // A name beside it is not taken apart, so that it may name itself.
        let node = json!({"properties": {"next": {"$ref": "#/$defs/node", "readOnly": true},
            "a": {"const": text}}});
        let named = json!({"$defs": {"node": node}, "$ref": "#/$defs/node"});
        assert!(bytes(&named).is_some_and(|bytes| bytes < 3_000.0));
    }

    #[test]
    fn copies_are_counted() {
        const LONG: usize = 10_000;
        let long = json!({"properties": {"a": {"const": "A".repeat(LONG)}}});
        let many = |of: &Value| json!({"anyOf": vec![of.clone(); 100]});
        let empty = json!({"type": "object"});
        let named = json!({"$ref": "#/$defs/long"});
        let with = |mut schema: Value| {
            schema["$defs"] =
                json!({"long": long, "twice": {"$ref": "#/$defs/long"}, "many": many(&empty)});
            schema
        };
        // A schema, and how many copies of the long text it becomes.
        let rows = [
            (long.clone(), 1),
            (many(&long), 100),
            (json!({"anyOf": [long, empty, empty]}), 1),
            (json!({"allOf": [long, many(&empty)]}), 100),
            (json!({"allOf": [many(&empty), many(&empty), long]}), 10_000),
            (
                json!({"properties": long["properties"], "anyOf": many(&empty)["anyOf"]}),
                100,
            ),
            (
                json!({"properties": long["properties"], "allOf": [many(&empty), many(&empty)]}),
                10_000,
            ),
            // In a part of each of two that hold together.
            (
                json!({"allOf": [{"properties": {"x": many(&empty)}}, {"properties": {"x": long}}]}),
                100,
            ),
            (
                json!({"allOf": [{"properties": {"x": many(&empty)}}, {"properties": {"y": long}}]}),
                1,
            ),
            // In what has no schema of its own on the other side.
            (
                json!({"allOf": [{"additionalProperties": long},
                    {"properties": {"x": {}, "y": {}, "z": {}}}]}),
                4,
            ),
            (
                json!({"allOf": [{"items": long}, {"prefixItems": [{}, {}]}]}),
                3,
            ),
            // Those that are named are compiled once, and are copied where they are taken apart.
            (
                with(json!({"items": named, "properties": {"a": named, "b": named}})),
                1,
            ),
            (with(json!({"allOf": [named]})), 1),
            (
                with(json!({"allOf": [named, {"$ref": "#/$defs/many"}]})),
                101,
            ),
            (
                with(json!({"allOf": [{"$ref": "#/$defs/twice"}, many(&empty)]})),
                101,
            ),
            (
                with(json!({"anyOf": [named, named], "allOf": [many(&empty)]})),
                201,
            ),
            (with(json!({"anyOf": [named, named]})), 1),
        ];
        for (schema, copies) in rows {
            let copied = bytes(&schema).expect("counted") / LONG as f64;
            let most = copies as f64 * 1.1 + 30.0;
            assert!(
                (copies as f64..most).contains(&copied),
                "{copied} for {copies}: {}",
                schema.to_string().len()
            );
        }
    }

    #[test]
    fn what_names_itself_has_an_end() {
        let tree = json!({"properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}});
        let of = |schema: Value| json!({"allOf": [schema], "$defs": {"tree": tree, "loop": {"$ref": "#/$defs/loop"}}});
        let tree = json!({"$ref": "#/$defs/tree"});
        assert!(bytes(&of(tree.clone())).is_some());
        assert!(bytes(&of(json!({"allOf": [tree, {"type": "object"}]}))).is_some());
        assert!(bytes(&of(json!({"$ref": "#"}))).is_some());
        let both = json!({"allOf": [tree, {"properties": {"left": tree, "right": tree}}]});
        assert_eq!(bytes(&of(both)), None);
        assert_eq!(
            bytes(&of(json!({"$ref": "#/$defs/loop", "type": "object"}))),
            None
        );
    }

    /// Requests are read on threads with small stacks.
    #[test]
    fn little_stack_is_taken() {
        let deep = |wrap: fn(Value) -> Value, times: usize| {
            (0..times).fold(json!({"type": "string"}), |inner, _| wrap(inner))
        };
        let schemas = [
            deep(|inner| json!({"items": inner}), 120),
            deep(|inner| json!({"allOf": [inner, {"type": "object"}]}), 60),
            deep(
                |inner| json!({"anyOf": [{"properties": {"a": inner}}], "type": "object"}),
                40,
            ),
            json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
                "a": {"items": {"$ref": "#/$defs/a"}}, "b": {"items": {"$ref": "#/$defs/b"}}}}),
        ];
        let count = move || schemas.each_ref().map(|schema| bytes(schema).is_some());
        let thread = std::thread::Builder::new().stack_size(1 << 20);
        let counted = thread
            .spawn(count)
            .expect("a thread")
            .join()
            .expect("counted");
        assert_eq!(counted, [true, true, true, false]);
    }
}
