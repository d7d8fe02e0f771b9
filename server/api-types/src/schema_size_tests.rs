use serde_json::json;

use super::*;

fn bytes(schema: &Value) -> Option<f64> {
    let mut steps = 100_000;
    expanded_bytes(schema.as_object().expect("an object"), &mut steps)
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

const LONG: usize = 10_000;

fn long() -> Value {
    json!({"properties": {"a": {"const": "A".repeat(LONG)}}})
}

/// Of a schema, how many copies of the long text it becomes.
fn check(rows: &[(Value, usize)]) {
    for (schema, copies) in rows {
        let copied = bytes(schema).expect("counted") / LONG as f64;
        let (least, most) = (*copies as f64, *copies as f64 * 1.3 + 30.0);
        assert!(
            (least..most).contains(&copied),
            "{copied} for {copies}: {}",
            schema.to_string().len()
        );
    }
}

#[test]
fn copies_are_counted() {
    let long = long();
    let many = |of: &Value| json!({"anyOf": vec![of.clone(); 100]});
    let empty = json!({"type": "object"});
    let named = json!({"$ref": "#/$defs/long"});
    let with = |mut schema: Value| {
        schema["$defs"] =
            json!({"long": long, "twice": {"$ref": "#/$defs/long"}, "many": many(&empty)});
        schema
    };
    check(&[
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
    ]);
}

#[test]
fn copies_of_what_a_schema_says_by_itself_are_counted() {
    let (long, empty) = (long(), json!({"type": "object"}));
    check(&[
        // For each type as often as it is listed.
        (
            json!({"type": vec!["object"; 100], "properties": long["properties"]}),
            100,
        ),
        (
            json!({"type": ["object", "array", "string", "null"], "properties": long["properties"]}),
            1,
        ),
        (
            json!({"type": vec!["object"; 10], "properties": long["properties"],
                "allOf": [empty], "required": ["a"]}),
            100,
        ),
        // For each property that a pattern may match.
        (
            json!({"properties": {"x": {}, "y": {}, "z": {}}, "patternProperties": {"": long}}),
            4,
        ),
        (
            json!({"properties": {"x": {}, "y": {}, "z": {}},
                "patternProperties": {"^[xy]$": long, "^x-": long, "^y?$": long}}),
            9,
        ),
    ]);
}

#[test]
fn the_whole_is_copied_where_it_is_named() {
    let many = json!({"anyOf": vec![json!({"type": "object"}); 100]});
    for whole in ["#", "#/"] {
        let named = json!({"allOf": [{"$ref": whole}, many]});
        let schema = json!({"$defs": {"a": named}, "properties": {
            "x": {"$ref": "#/$defs/a"}, "b": {"const": "A".repeat(LONG)}}});
        let copied = bytes(&schema).expect("counted") / LONG as f64;
        assert!((102.0..150.0).contains(&copied), "{copied}");
    }
}

/// What a text becomes as a schema takes more than the text.
#[test]
fn short_texts_that_become_much_are_counted() {
    let of = |part: Value| json!({"type": "object", "properties": {"a": part}});
    let lists = of(json!({"const": vec![json!([]); 4_000]}));
    let untyped: Map<String, Value> = (0..1_000)
        .map(|at| (at.to_string(), json!({"minItems": 1})))
        .collect();
    let untyped = of(json!({"properties": untyped}));
    let required: Vec<String> = (0..8_000).map(|at| at.to_string()).collect();
    let required = of(json!({"required": required}));
    let patterns = |count: usize| -> Value {
        let each = (0..count).map(|at| (format!("^a{at}$"), json!(true)));
        json!({"type": "object", "patternProperties": each.collect::<Map<String, Value>>()})
    };
    let one_by_one: Vec<Value> = (0..100)
        .map(|at| json!({"patternProperties": {(format!("^a{at}$")): true}}))
        .collect();
    // Megabytes that the compiler takes, or what it takes in time.
    for (schema, megabytes) in [
        (lists, 3.5),
        (untyped, 1.5),
        (required, 0.5),
        (patterns(100), 64.0),
        (json!({"allOf": one_by_one}), 64.0),
    ] {
        let counted = bytes(&schema).expect("counted") / 1e6;
        assert!(counted > megabytes, "{counted} for {megabytes}");
    }
    assert!(bytes(&patterns(10)).is_some_and(|bytes| bytes < 1e6));
    // Looking for each name takes as long as the pattern is.
    let names: Map<String, Value> = (0..2_000).map(|at| (at.to_string(), json!({}))).collect();
    let pattern = json!({("a".repeat(200_000)): true});
    let schema = json!({"properties": names, "patternProperties": pattern});
    assert_eq!(bytes(&schema), None);
}

#[test]
fn names_are_told_from_patterns_that_begin_otherwise() {
    for (regex, may) in [
        ("", true),
        ("x-", true),
        ("^x-", false),
        ("^name$", true),
        ("^names", false),
        ("^names?$", true),
        ("^names*$", true),
        ("^names{0,1}$", true),
        ("^names+$", false),
        ("^x|name", true),
        ("^[a-z]+$", true),
        ("^na[a-z]", true),
        ("^\\w", true),
        ("(?i)^N", true),
        ("^é", false),
        ("^é?name", true),
    ] {
        assert_eq!(may_match(regex, "name"), may, "{regex}");
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
        deep(
            |inner| json!({"properties": {"a": inner}, "patternProperties": {"^b": {}, "a": {}}}),
            60,
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
    assert_eq!(counted, [true, true, true, true, false]);
}

/// What is copied to many places takes a step for each of its parts at each.
#[test]
fn large_parts_are_not_copied_without_end() {
    let names = |letter: &str, count: usize| -> Map<String, Value> {
        let names = (0..count).map(|at| (format!("{letter}{at}"), json!(true)));
        names.collect()
    };
    let deep = json!({"properties": {"x": {"properties": names("y", 9_000)}}});
    let schema =
        json!({"allOf": [{"properties": names("p", 4_000)}, {"additionalProperties": deep}]});
    let mut steps = 50_000;
    let schema = schema.as_object().expect("an object");
    assert_eq!(expanded_bytes(schema, &mut steps), None);
}
