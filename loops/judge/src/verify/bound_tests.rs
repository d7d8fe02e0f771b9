#![allow(clippy::unwrap_used)]

use hone_domain::{Check, NextState, Outcome, Verifier};
use serde_json::{Value, json};

use super::super::shape::{Shape, check_schema};
use super::super::{Rules, check_verifier};
use crate::testing::turn;

/// Definitions `a0`, `a1`, … of which each refers to the next one so many times.
fn chain(links: usize, times: usize) -> Value {
    let definition = |n: usize| {
        let next = json!({"$ref": format!("#/$defs/a{}", n + 1)});
        (format!("a{n}"), json!({"allOf": vec![next; times]}))
    };
    let mut definitions: serde_json::Map<String, Value> = (0..links).map(definition).collect();
    definitions.insert(format!("a{links}"), json!({"type": "integer"}));
    json!({"$ref": "#/$defs/a0", "$defs": definitions})
}

fn patterns(count: usize, pattern: &str) -> Value {
    json!({"allOf": vec![json!({"pattern": pattern}); count]})
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!({}), |inner, _| json!({"not": inner}))
}

#[test]
fn a_schema_that_costs_too_much_is_refused_with_its_reason() {
    let names: serde_json::Map<String, Value> =
        (0..200).map(|n| (format!("^{n}$"), json!(true))).collect();
    for (schema, why) in [
        (patterns(2_700, r"\w{140}"), "at most 128"),
        (patterns(100, r"\p{L}{40}"), "once compiled"),
        (patterns(1, r"\p{L}{4000}"), "once compiled"),
        (patterns(1, &r"\d".repeat(5_000)), "too long expressions"),
        (json!({"patternProperties": names}), "at most 128"),
        (json!({"$defs": {"a": {"pattern": "("}}}), "not a regular"),
        (chain(20, 2), "more than 10000 steps"),
        (chain(1_500, 1), "way of more than 64"),
        (json!({"$ref": "#"}), "refers to itself"),
        (
            json!({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#"}}}}),
            "refers to itself",
        ),
        (nested(70), "nested deeper"),
        (json!({"$ref": "file:///etc/passwd"}), "not part of it"),
        (
            json!({"$ref": "https://json-schema.org/draft/2020-12/schema"}),
            "not part of it",
        ),
        (json!({"$ref": "#/$defs/none"}), "there is nothing"),
        (json!({"$ref": "#/allOf/00", "allOf": [true]}), "nothing"),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "https://a.example/"}}}),
            "$id below its root",
        ),
    ] {
        let error = check_schema(&schema).unwrap_err();
        let start: String = schema.to_string().chars().take(100).collect();
        assert!(error.contains(why), "{start}: {error}");
        assert!(error.len() < 400, "{error}");
    }
}

#[test]
fn schemas_as_they_are_written_are_taken() {
    for schema in [
        patterns(100, r"^\w{1,255}$"),
        patterns(
            100,
            r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})$",
        ),
        patterns(1, r"^\p{L}[\p{L}\p{N} '’\-]{0,10}$"),
        json!({"$id": "https://a.example/s.json", "$ref": "https://a.example/s.json#/$defs/a",
            "$defs": {"a": {"$ref": "#%2F%24defs/b~1c"}, "b/c": {"type": "integer"}}}),
        json!({"$defs": {"a": {"$anchor": "n", "minimum": 1}}, "items": {"$ref": "#n"}}),
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a",
            "definitions": {"a": {"$id": "#a", "items": [{"$ref": "#a"}]}}}),
        json!({"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": true,
            "properties": {"a": {"$recursiveRef": "#"}}}),
        json!({"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}}),
        json!({"components": {"schemas": {"A": {"type": "string"}}},
            "$ref": "#/components/schemas/A"}),
        json!({"properties": {"id": {"enum": [{"id": "x", "pattern": "("}]}, "pattern": true,
            "$ref": {"type": "string"}}}),
        chain(20, 1),
        nested(50),
        json!(true),
    ] {
        let taken = check_schema(&schema);
        assert_eq!(taken, Ok(()), "{schema}");
    }
}

/// A tree whose branches each take their value by several schemas.
fn tree(times: usize) -> Value {
    let branch = json!({"anyOf": vec![json!({"$ref": "#/$defs/node"}); times]});
    json!({"$ref": "#/$defs/node", "$defs": {"node": {
        "type": ["object", "array"], "properties": {"next": branch}, "items": branch}}})
}

fn deep(levels: usize) -> Value {
    (0..levels).fold(json!({}), |inner, _| json!({"next": inner}))
}

#[test]
fn a_value_that_takes_too_many_steps_abstains_and_others_are_told() {
    use Outcome::{Abstain, Bad, Good};
    let names = json!({"additionalProperties": true, "propertyNames": {"maxLength": 3}});
    let long = "k".repeat(200_000);
    let wide = json!({ long.as_str(): vec![0; 2_000] });
    let texts = json!({"additionalProperties": {"items": {"type": "string"}}});
    for (schema, value, outcome, evidence) in [
        (tree(1), deep(100), Good, "fits"),
        (tree(1), deep(120), Good, "fits"),
        (tree(2), deep(10), Good, "fits"),
        (tree(2), deep(60), Abstain, "more than 200000 steps"),
        (tree(2), json!([deep(10), 1]), Bad, "at '/1'"),
        (chain(14, 1), json!(1), Good, "fits"),
        (
            chain(14, 1),
            json!("1"),
            Bad,
            "want integer, but got string",
        ),
        (names, json!({"long": 1}), Bad, "long"),
        (texts, wide, Bad, "jsonschema validation failed"),
    ] {
        let shape = Shape::new(&schema).unwrap();
        let (got, why) = shape.tell(&value.to_string());
        let shown: String = why.chars().take(300).collect();
        assert_eq!(got, outcome, "{schema}: {shown}");
        assert!(why.contains(evidence), "{schema}: {shown}");
        assert!(why.len() < 10_000, "{}", why.len());
    }
}

/// On this test's own thread, whose stack is of the usual size.
#[test]
fn the_longest_way_fits_the_stack() {
    let links = 20;
    let mut schema = chain(links, 1);
    schema["$defs"][format!("a{links}")] = json!({"items": {"$ref": "#/$defs/a0"}});
    let value = |levels: usize| (0..levels).fold(json!([]), |inner, _| json!([inner]));
    let shape = Shape::new(&schema).unwrap();
    assert_eq!(shape.tell(&value(8).to_string()).0, Outcome::Good);
    let (outcome, why) = shape.tell(&value(40).to_string());
    assert_eq!(outcome, Outcome::Abstain, "{why}");
    assert!(why.contains("way of more than 384"), "{why}");
}

#[test]
fn a_check_shares_its_steps_between_texts() {
    let schema = tree(2);
    let shape = Shape::new(&schema).unwrap();
    let text = deep(14).to_string();
    let outcomes: Vec<Outcome> = (0..20).map(|_| shape.tell(&text).0).collect();
    assert_eq!(outcomes[0], Outcome::Good);
    assert_eq!(outcomes[19], Outcome::Abstain);
}

/// Turns may have been kept before schemas were bounded.
#[test]
fn a_kept_turn_with_such_a_schema_abstains() {
    for schema in [chain(20, 2), patterns(2_700, r"\w{140}")] {
        let check = json!({"kind": "json_schema", "schema": schema});
        let verifier: Verifier = serde_json::from_value(check).unwrap();
        assert!(check_verifier(&verifier).is_err());
        let mut turn = turn(1);
        turn.completion_text = "1".to_owned();
        let name = "c".to_owned();
        turn.admission.checks = vec![Check { name, verifier }];
        let (findings, _) = Rules::default().look(&turn, &NextState::default());
        assert_eq!(findings[0].vote.outcome, Outcome::Abstain);
        assert!(crate::check_answer(&turn, "1".to_owned()).is_none());
    }
}
