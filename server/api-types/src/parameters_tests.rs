//! Calls whose arguments are texts between tags.

use hone_domain::{OutputFormat, ParsedOutput};

use super::tests::{demanded_as, follows, grammars, tool};
use super::*;

const STYLE: CallStyle = CallStyle::Parameters;

fn call(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameters = parameters.iter();
    let parameters: String = parameters
        .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
        .collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}

fn search() -> Value {
    json!({
        "type": "object",
        "$defs": {"tag": {"type": "string"}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}}},
        "properties": {
            "text": {"type": "string", "description": "What to look for."},
            "count": {"type": "integer"},
            "how": {"$ref": "#/$defs/how"},
            "tags": {"$ref": "#/$defs/tags"},
            "near": {"type": ["string", "null"]},
        },
        "required": ["text", "count"],
        "additionalProperties": false,
    })
}

#[test]
fn demanded_calls_follow_their_schema() {
    let mut schema = search();
    schema["$defs"]["how"] = json!({"type": "string", "enum": ["all", "any \"one\""]});
    let (text, count) = (("text", "a < b\n\n</param> c"), ("count", "3"));
    for strict in [true, false] {
        let held = demanded_as(STYLE, &[tool("f", &schema, strict)]).expect("followed");
        for (parameters, passes) in [
            (&[text, count][..], true),
            (&[("text", ""), count], true),
            (&[text, count, ("how", "any \"one\"")], true),
            (
                &[text, count, ("tags", "[\"x\", \"y\"]"), ("near", "")],
                true,
            ),
            (&[text, count, ("near", "null")], true),
            (&[("text", "a</parameter>b"), count], false),
            (&[text], false),
            (&[count], false),
            (&[text, ("count", "three")], false),
            (&[text, count, ("how", "none")], false),
            (&[text, count, ("tags", "[1]")], false),
            (&[text, count, ("other", "1")], false),
        ] {
            let said = call("f", parameters);
            assert_eq!(follows(&held, &said), passes, "{said}");
            let parsed = ParsedOutput::of(
                &said,
                OutputFormat {
                    calls: Some(STYLE),
                    ..OutputFormat::default()
                },
            );
            assert_eq!(parsed.calls.len(), 1, "{said}");
        }
        assert!(!follows(&held, &call("g", &[text, count])));
        // Line breaks are forgotten at times.
        let bare = "<tool_call>\n<function=f><parameter=text></parameter>\n\
                    <parameter=count>\n3</parameter></function>\n</tool_call>";
        assert!(follows(&held, bare));
        let two = format!("{0}\n{0}", call("f", &[text, count]));
        assert!(follows(&held, &two));
    }
}

/// A schema, whether it can be followed strictly, and arguments that it lets pass.
type Row = (Value, bool, &'static [(&'static str, &'static str)]);

const ANY: &[(&str, &str)] = &[("a", "x"), ("b", "1")];

/// Of one argument.
fn parts() -> Vec<Row> {
    let part = |part: Value| json!({"type": "object", "properties": {"a": part}});
    vec![
        (
            part(json!({"type": "string", "pattern": "^a$"})),
            false,
            &ANY[..1],
        ),
        (
            part(json!({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]})),
            false,
            &ANY[..1],
        ),
        (part(json!({})), true, &ANY[..1]),
        (
            part(json!({"anyOf": [{"enum": ["a", "x"]}, {"type": "null"}]})),
            true,
            &ANY[..1],
        ),
        (
            part(json!({"type": ["string", "null"], "enum": ["a", null]})),
            true,
            &[("a", "null")],
        ),
        (
            part(json!({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]})),
            false,
            &ANY[..1],
        ),
        (
            part(json!({"anyOf": [{"type": "string"}, {"type": "null"}]})),
            true,
            &[("a", "null")],
        ),
        (
            part(json!({"type": ["integer", "null"]})),
            true,
            &[("a", "null")],
        ),
        (
            part(json!({"type": "array", "uniqueItems": true})),
            false,
            &[("a", "[1]")],
        ),
        (part(json!({"type": "no such type"})), false, ANY),
    ]
}

/// Of all arguments.
fn documents() -> Vec<Row> {
    vec![
        (json!({}), true, ANY),
        (json!({"type": "object"}), true, ANY),
        (
            json!({"type": "object", "additionalProperties": false}),
            true,
            &[],
        ),
        (json!({"anyOf": [search(), {}]}), false, ANY),
        (json!({"type": "string"}), false, ANY),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            false,
            ANY,
        ),
        (
            json!({"properties": {"a": {"type": "array", "items": {"$ref": "#"}}}}),
            false,
            &[("a", "[{\"a\": []}]")],
        ),
        (
            json!({"properties": {"a": {"$ref": "#/$defs/n", "maximum": 5}}, "$defs": {"n": {"type": "integer"}}}),
            true,
            &[("a", "4")],
        ),
        (
            json!({"properties": {"a": {"items": {"$ref": "#/$defs/a~1b"}, "type": "array"}},
                "$defs": {"a/b": {"items": {"$ref": "#/$defs/c%20d"}, "type": "array"}, "c d": {"const": 1}}}),
            true,
            &[("a", "[[1, 1], []]")],
        ),
        (
            json!({"properties": {"a": {}, "b<c": {}}}),
            false,
            &ANY[..1],
        ),
        (
            json!({"properties": {"a": {}, "b<c": {}}, "required": ["b<c"]}),
            false,
            ANY,
        ),
    ]
}

#[test]
fn what_has_no_form_between_tags_is_free_or_refused() {
    for (schema, can, parameters) in parts().into_iter().chain(documents()) {
        let held = demanded_as(STYLE, &[tool("f", &schema, false)]).expect("as far as can be");
        let said = call("f", parameters);
        assert!(follows(&held, &said), "{schema}");
        assert!(!follows(
            &held,
            "<tool_call>\n<function=f>\nx</function>\n</tool_call>"
        ));
        let tools = [tool("f", &schema, true)];
        let offer = Offer::of(&tools, Some(&json!("required")), None);
        let shape = offer
            .expect("sound")
            .expect("tools")
            .shape(Some(STYLE), None);
        let followed = match shape {
            Ok(_) => demanded_as(STYLE, &tools).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match followed {
            Ok(held) => assert!(can && follows(&held, &said), "{schema}"),
            Err(error) => assert!(
                !can && error.contains("tools[0].function"),
                "{schema}: {error}"
            ),
        }
    }
}

/// Not even short schemas become rules without end.
#[test]
fn what_is_written_has_a_bound() {
    let texts: Vec<String> = (0..1_000).map(|at| format!("{at:01000}")).collect();
    let names: Vec<String> = (0..2_000).map(|at| format!("p{at}")).collect();
    for named in [
        json!({"enum": texts}),
        json!({"type": "integer", "description": texts.concat()}),
    ] {
        let all = names
            .iter()
            .map(|name| (name.clone(), json!({"$ref": "#/$defs/e"})));
        let properties: Map<String, Value> = all.collect();
        let schema = json!({"properties": properties, "$defs": {"e": named}});
        let tools = |strict| vec![tool("f", &schema, strict)];
        let offer = |strict| Offer::of(&tools(strict), Some(&json!("required")), None);
        let shape = |strict: bool| {
            offer(strict)
                .expect("sound")
                .expect("tools")
                .shape(Some(STYLE), None)
        };
        let rules = shape(false).expect("free").expect("a form").rules;
        assert!(rules.len() < 400_000, "{}", rules.len());
        let error = shape(true).expect_err("too much").to_string();
        assert!(
            error.contains("tools[0].function.parameters.properties.p"),
            "{error}"
        );
    }
}

#[test]
fn strict_calls_are_held_where_the_model_is_free_to_make_them() {
    let mut schema = search();
    schema["$defs"]["how"] = json!({"const": "all"});
    let tools = [tool("f", &schema, true), tool("free", &json!({}), false)];
    let offer = Offer::of(&tools, None, None)
        .expect("sound")
        .expect("tools");
    let shape = offer
        .shape(Some(STYLE), None)
        .expect("sound")
        .expect("a form");
    assert_eq!((shape.calls, shape.is_own), (Calls::Alone(STYLE), false));
    let held = grammars().compile(&shape.rules).expect("sound");
    let behind =
        |name: &str, parameters: &[(&str, &str)]| call(name, parameters).split_off(CALL_OPEN.len());
    for (said, passes) in [
        (behind("f", &[("text", "a"), ("count", "1")]), true),
        (behind("f", &[("text", "a"), ("count", "b")]), false),
        (behind("free", &[("x", "y")]), true),
        (behind("free", &[]), true),
        (behind("other", &[]), false),
    ] {
        assert_eq!(follows(&held, &said), passes, "{said}");
    }
}
