use hone_domain::{Grammar, Reasoning, ServeError};
use hone_text::grammar::{Constraint, Grammars};

use super::*;
use hone_inference::OpenError;

pub(super) fn grammars() -> Grammars {
    let mut files = hone_starter::model_files().iter();
    let (name, file) = files
        .find(|(name, _)| *name == "tokenizer.json")
        .expect("there");
    let tokenizer = hone_text::tokenizer::Tokenizer::from_json(file, name).expect("sound");
    let end = tokenizer.special_ids().next().expect("there");
    Grammars::new(&tokenizer, tokenizer.vocab_size(), &[end]).expect("sound")
}

pub(super) fn follows(held: &Constraint, text: &str) -> bool {
    let mut constraint = held.fork();
    let took = constraint.take_bytes(text.as_bytes()).is_ok();
    took && constraint.may_end().expect("sound")
}

pub(super) fn tool(name: &str, parameters: &Value, strict: bool) -> Value {
    let function = json!({"name": name, "parameters": parameters, "strict": strict});
    json!({"type": "function", "function": function})
}

/// What calls of tools are held to that a request demands.
fn demanded(tools: &[Value]) -> Result<Constraint, OpenError> {
    demanded_as(CallStyle::Tags, tools)
}

pub(super) fn demanded_as(style: CallStyle, tools: &[Value]) -> Result<Constraint, OpenError> {
    let offer = Offer::of(tools, Some(&json!("required")), None);
    let offer = offer.expect("sound").expect("tools");
    let shape = offer.shape(Some(style), None).expect("sound");
    let grammars = grammars();
    let check = |grammar: &Grammar| {
        let held = grammars.compile(&grammar.0);
        held.map_err(|error| ServeError::Grammar(error.to_string()))
    };
    let checked = shape.expect("a form");
    let checked = checked.checked((Reasoning::Maybe, false), check);
    checked.map(|(_, held)| held)
}

fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// Whatever a schema leaves open: arguments that are no object are no call.
#[test]
fn arguments_are_objects_whatever_their_schema_says() {
    let named = json!({"properties": {"n": {"type": "integer"}}});
    let escaped = json!({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": named}});
    let defined = json!({"$ref": "#/$defs/a", "$defs": {"a": named}});
    let drafted = json!({"$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/a", "definitions": {"a": named}});
    let rows = [
        (json!({}), true),
        (json!(true), true),
        (json!(null), true),
        (named.clone(), false),
        (
            json!({"type": ["object", "null"], "properties": named["properties"]}),
            false,
        ),
        (json!({"anyOf": [named, {"type": "null"}]}), false),
        (json!({"oneOf": [named, {"type": "null"}]}), false),
        (json!({"allOf": [named]}), false),
        (json!({"enum": [{"n": 1}, {}, "text", null]}), false),
        (defined, false),
        (drafted, false),
        (escaped, false),
    ];
    for (schema, any) in rows {
        for strict in [true, false] {
            let held = demanded(&[tool("f", &schema, strict)]);
            let held = held.unwrap_or_else(|error| panic!("{schema}: {error}"));
            for (arguments, passes) in [
                ("{}", true),
                ("{\"n\": 1}", true),
                ("{\"n\": \"x\"}", any),
                ("null", false),
                ("\"text\"", false),
                ("[]", false),
                ("1", false),
            ] {
                let took = follows(&held, &call("f", arguments));
                assert_eq!(took, passes, "{schema} {strict} {arguments}");
            }
        }
    }
    let text = tool("f", &json!({"type": "string"}), true);
    let offer = Offer::of(&[text], Some(&json!("required")), None);
    let offer = offer.expect("sound").expect("tools");
    let error = offer
        .shape(Some(CallStyle::Tags), None)
        .expect_err("no object");
    assert!(
        error.to_string().contains("must be a schema of objects"),
        "{error}"
    );
    let held = demanded(&[tool("f", &json!({"type": "string"}), false)]).expect("any object");
    assert!(follows(&held, &call("f", "{}")));
}

/// One tool that cannot be followed leaves the others as they are.
#[test]
fn schemas_of_tools_that_are_not_strict_are_followed_as_far_as_can_be() {
    let of = |part: Value| {
        json!({"type": "object", "required": ["n"], "properties": {
        "n": {"type": "integer"}, "x": part}})
    };
    let sound = of(json!({"type": "string"}));
    let one = json!({"$ref": "#/$defs/a"});
    let rows = [
        (of(json!({"type": "array", "uniqueItems": true})), true),
        (of(json!({"type": "string", "format": "path"})), true),
        (of(json!({"not": {"type": "string"}})), true),
        (
            json!({"type": "object", "required": ["n"],
                "$defs": {"a": {"type": "object"}, "b": {"type": "object"}},
                "properties": {"n": {"type": "integer"}, "x": {"oneOf": [one, {"$ref": "#/$defs/b"}]}}}),
            true,
        ),
        // Not even loosely.
        (of(json!({"type": "string", "pattern": "(?=a)b"})), false),
        (of(json!({"type": "no such type"})), false),
        (
            of(json!({"type": "string", "minLength": 5, "maxLength": 2})),
            true,
        ),
    ];
    for (schema, in_part) in &rows {
        let tools = [
            tool("sound", &sound, false),
            tool("odd", schema, false),
            tool("strict", &sound, true),
        ];
        let held = demanded(&tools).unwrap_or_else(|error| panic!("{schema}: {error}"));
        for (name, arguments, passes) in [
            ("sound", "{\"n\": 1}", true),
            ("sound", "{}", false),
            ("strict", "{\"n\": \"1\"}", false),
            ("odd", "{\"n\": 1}", true),
            ("odd", "{}", !in_part),
            ("odd", "1", false),
        ] {
            let took = follows(&held, &call(name, arguments));
            assert_eq!(took, passes, "{schema} {name} {arguments}");
        }
    }
    let many: Vec<Value> = (0..20)
        .map(|at| tool(&format!("f{at}"), &rows[at % rows.len()].0, false))
        .collect();
    assert!(demanded(&many).is_ok());
}

/// By its place in the request, whichever tools the choice leaves out.
#[test]
fn a_strict_schema_that_cannot_be_followed_is_named_by_its_place() {
    let odd = json!({"type": "object", "properties": {"x": {"not": {}}}});
    let sound = json!({"type": "object"});
    let tools = [
        tool("out", &odd, true),
        tool("loose", &odd, false),
        tool("strict", &odd, true),
    ];
    let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "loose"}},
        {"type": "function", "function": {"name": "strict"}}]}});
    let told = |tools: &[Value]| {
        let offer = Offer::of(tools, Some(&choice), None).expect("sound");
        let shape = offer.expect("tools").shape(Some(CallStyle::Tags), None);
        let grammars = grammars();
        let check = |grammar: &Grammar| {
            let held = grammars.compile(&grammar.0);
            held.map_err(|error| ServeError::Grammar(error.to_string()))
        };
        let shape = shape.expect("sound").expect("a form");
        let checked = [Reasoning::Never, Reasoning::Maybe, Reasoning::Open]
            .map(|reasoning| shape.checked((reasoning, false), check).map(drop));
        checked.map(|one| one.err().map(|error| error.to_string()))
    };
    for told in told(&tools) {
        let expected = "tools[2].function.parameters: tools[2].function.parameters cannot be followed: \
                        Unimplemented keys: [\"not\"]";
        assert_eq!(told.as_deref(), Some(expected));
    }
    let tools = [
        tools[0].clone(),
        tools[1].clone(),
        tool("strict", &sound, true),
    ];
    assert_eq!(told(&tools), [None, None, None]);
    let wrong = tool("strict", &json!([]), true);
    let offer = Offer::of(
        &[tools[0].clone(), tools[1].clone(), wrong],
        Some(&choice),
        None,
    );
    let shape = offer
        .expect("sound")
        .expect("tools")
        .shape(Some(CallStyle::Tags), None);
    let error = shape.expect_err("no schema").to_string();
    assert!(error.contains("tools[2].function.parameters"), "{error}");
}

#[test]
fn strict_calls_are_held_the_way_models_write_them() {
    let tool = |name: &str, strict: bool| {
        json!({"type": "function", "function": {"name": name, "strict": strict, "parameters":
            {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
             "additionalProperties": false}}})
    };
    let offer = |tools: &[Value]| Offer::of(tools, None, None).expect("sound").expect("tools");
    let tags = Some(CallStyle::Tags);
    let free = offer(&[tool("a\"b", false)]);
    assert_eq!(free.shape(tags, None).expect("sound"), None);
    let strict = offer(&[tool("a\"b", true), tool("free", false)]);
    assert_eq!(
        strict.shape(Some(CallStyle::Json), None).expect("sound"),
        None
    );
    let shape = strict.shape(tags, None).expect("sound").expect("a form");
    assert_eq!(
        (shape.calls, shape.is_own),
        (Calls::Alone(CallStyle::Tags), false)
    );

    let held = grammars().compile(&shape.rules).expect("sound");
    for (call, passes) in [
        (
            r#"{"name": "a\"b", "arguments": {"n": 1}}</tool_call>"#,
            true,
        ),
        (
            "\n{\"name\":\"free\",\"arguments\":{\"x\":[true, 2]}}\n</tool_call>",
            true,
        ),
        (r#" {"name": "free", "arguments": {}} </tool_call>"#, true),
        (
            r#"{"name": "a\"b", "arguments": {"n": "1"}}</tool_call>"#,
            false,
        ),
        (r#"{"name": "a\"b", "arguments": {}}</tool_call>"#, false),
        (r#"{"name": "other", "arguments": {}}</tool_call>"#, false),
        (r#"{"name": "free", "arguments": []}</tool_call>"#, false),
        (r#"{"name": "free", "arguments": {}}</tool_call>!"#, false),
    ] {
        assert_eq!(follows(&held, call), passes, "{call}");
    }
}

#[test]
fn tools_that_are_left_out_are_not_shown() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let tools = [tool("a"), tool("b")];
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required",
        "tools": [{"type": "function", "function": {"name": "b"}}]}});
    let offer = Offer::of(&tools, Some(&allowed), None)
        .expect("sound")
        .expect("tools");
    assert_eq!(
        (offer.tools.len(), &offer.choice),
        (1, &ToolChoice::Required)
    );
    assert!(
        Offer::of(&tools, Some(&json!("none")), None)
            .expect("sound")
            .is_none()
    );
    assert!(Offer::of(&[], Some(&json!("required")), None).is_err());
    let unknown = json!({"type": "function", "function": {"name": "c"}});
    assert!(Offer::of(&tools, Some(&unknown), None).is_err());
}

/// Of a tool that is not strict there is nothing to refuse.
#[test]
fn a_schema_that_becomes_too_large_is_refused_or_left_out() {
    let many = json!({"anyOf": vec![json!({"type": "object"}); 150]});
    let large = json!({"type": "object", "allOf": [many, many],
        "properties": {"a": {"const": "A".repeat(100_000)}}});
    let held = demanded(&[tool("f", &large, false)]).expect("any object");
    assert!(follows(&held, &call("f", "{\"a\": 1}")));
    let offer = Offer::of(&[tool("f", &large, true)], Some(&json!("required")), None);
    let shape = offer
        .expect("sound")
        .expect("tools")
        .shape(Some(CallStyle::Tags), None);
    let error = shape.expect_err("too large").to_string();
    assert!(
        error.contains("tools[0].function.parameters becomes too large"),
        "{error}"
    );
}
