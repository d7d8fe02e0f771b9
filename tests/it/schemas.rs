//! Odd schemas, in every dialect: what a grammar cannot hold is refused before anything is said, and the rest is
//! answered; never is it the server's failure, nor an error in the middle of a stream.

use hone_tests::{TestApp, client, temporary};
use serde_json::{Value, json};

/// What cannot be followed to the letter, one schema a line.
const REFUSED: &str = r##"
false
5
"x"
[]
{"type": "banana"}
{"type": 5}
{"type": []}
{"type": ["string", "banana"]}
{"type": "object", "properties": {"a": false}, "required": ["a"]}
{"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=a)b"}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "pattern": "(a)\\1"}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "pattern": "\\bfoo\\b"}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "pattern": "^a$", "minLength": 5}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 1}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "minLength": 9, "maxLength": 1}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "minLength": -1}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "number", "multipleOf": 0}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "number", "multipleOf": 1e-300}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "number", "minimum": 1e+308, "maximum": 1.7e+308}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "format": "banana"}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"$ref": "https://example.com/x.json"}}, "required": ["a"]}
{"$ref": "#"}
{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
{"$ref": 5}
{"type": "object", "$defs": "x", "properties": {"a": {"$ref": "#/$defs/a"}}}
{"type": "object", "properties": []}
{"type": "object", "properties": "a"}
{"type": "object", "required": "a"}
{"type": "object", "properties": {}, "required": ["a"], "additionalProperties": false}
{"type": "object", "properties": {"a": {}}, "required": [1]}
{"type": "object", "properties": {"a": {"not": {"type": "string"}}}, "required": ["a"]}
{"type": "object", "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
{"allOf": [{"type": "string"}, {"type": "object"}]}
{"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"anyOf": []}}, "required": ["a"]}
{"type": "object", "minProperties": 50, "maxProperties": 2}
{"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}}
{"type": "object", "unevaluatedProperties": false, "properties": {"a": {"type": "string"}}}
{"type": "object", "properties": {"a": {"type": "array", "contains": {"type": "string"}}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true, "items": {"enum": [1, 2]}, "minItems": 3}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}], "items": false, "minItems": 2}}, "required": ["a"]}
{"type": "object", "propertyNames": {"pattern": "^a"}}
{"$id": "https://example.com/a", "type": "object", "properties": {"a": {"$ref": "https://example.com/a#/$defs/x"}}, "$defs": {"x": {"type": "string"}}}
{"type": "object", "properties": {"a": {"$ref": "#x"}}, "$defs": {"x": {"$anchor": "x", "type": "string"}}}
{"type": "object", "properties": {"a": {"$dynamicRef": "#x"}}}
"##;

/// What can, however odd.
const FOLLOWED: &str = r##"
true
{}
{"anyOf": [{"type": "object"}, {"type": "string"}]}
{"type": "object", "properties": {"a": {"enum": [1, "a", null, true, [1], {"b": 2}]}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"const": {"b": [1, 2]}}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "pattern": "(a{1000}){1000}"}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "minLength": 1000000000}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "array", "minItems": 1000000000}}, "required": ["a"]}
{"type": "object", "properties": {"a": {"type": "string", "format": "date-time"}}, "required": ["a"]}
{"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}}
{"type": "object", "properties": {"n": {"$ref": "#"}}}
{"type": "object", "patternProperties": {"^x": {"type": "string"}}, "minProperties": 1}
{"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}, "required": ["a"]}
{"type": "object", "properties": {"": {"type": "string"}, "a\"b\\\n": {"type": "integer"}, "\u0000": {"type": "null"}, "\ud83d\ude00": {"type": "boolean"}}, "required": ["", "a\"b\\\n", "\u0000", "\ud83d\ude00"]}
{"type": "object", "properties": {"a": {"type": "string", "nullable": true}}, "required": ["a"]}
{"type": "object", "additionalProperties": {"type": "integer"}}
{"type": "object", "banana": 1, "properties": {"a": {"type": "string", "x-foo": 1}}}
{"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "properties": {"a": {"type": "number", "minimum": 0, "exclusiveMinimum": true}}, "required": ["a"]}
"##;

/// What one way of writing numbers holds and another does not.
const EITHER: &str = r##"
{"type": "object", "properties": {"a": {"type": "integer", "minimum": -1000000000000000000000000000000, "maximum": 1000000000000000000000000000000}}, "required": ["a"]}
"##;

/// Larger ones: refused, or answered.
fn large() -> Vec<(Value, bool)> {
    let many = |n: usize| -> Value {
        let names = (0..n).map(|n| (format!("p{n}"), json!({"type": "string"})));
        json!({"type": "object", "properties": names.collect::<serde_json::Map<_, _>>()})
    };
    let mut deep = json!({"type": "object"});
    for _ in 0..100 {
        deep = json!({"type": "object", "properties": {"a": deep}, "required": ["a"]});
    }
    vec![(many(2_000), true), (many(9_000), false), (deep, false)]
}

/// A request of each dialect, with a demanded call of a strict function and with an answer of that form.
fn requests(schema: &Value) -> Vec<(&'static str, Value)> {
    let (model, hello) = (
        "hone-starter",
        json!([{"role": "user", "content": "Hello!"}]),
    );
    let function = json!({"name": "f", "strict": true, "parameters": schema});
    let mut flat = function.clone();
    flat["type"] = json!("function");
    let form = json!({"name": "f", "strict": true, "schema": schema});
    let mut typed = form.clone();
    typed["type"] = json!("json_schema");
    let chat = |fields: Value| {
        with(
            json!({"model": model, "messages": hello, "max_tokens": 12}),
            fields,
        )
    };
    let responses = |fields: Value| {
        with(
            json!({"model": model, "input": "Hello!", "max_output_tokens": 12}),
            fields,
        )
    };
    vec![
        (
            "/v1/chat/completions",
            chat(
                json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required"}),
            ),
        ),
        (
            "/v1/chat/completions",
            chat(json!({"response_format": {"type": "json_schema", "json_schema": form}})),
        ),
        (
            "/v1/responses",
            responses(json!({"tools": [flat], "tool_choice": "required"})),
        ),
        (
            "/v1/responses",
            responses(json!({"text": {"format": typed}})),
        ),
        (
            "/v1/messages",
            chat(json!({
                "tools": [{"name": "f", "strict": true, "input_schema": schema}], "tool_choice": {"type": "any"},
            })),
        ),
        (
            "/v1/messages",
            chat(json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}})),
        ),
    ]
}

fn with(mut body: Value, mut fields: Value) -> Value {
    let fields = fields.as_object_mut().unwrap();
    body.as_object_mut().unwrap().append(fields);
    body
}

/// `is_followed` is none where both are right.
async fn check(url: &str, schema: &Value, is_followed: Option<bool>) {
    for (path, body) in requests(schema) {
        for stream in [false, true] {
            let body = with(body.clone(), json!({"stream": stream}));
            let sent = client().unwrap().post(format!("{url}{path}")).json(&body);
            let reply = sent.send().await.unwrap();
            let (status, text) = (reply.status().as_u16(), reply.text().await.unwrap());
            let shown: String = schema.to_string().chars().take(200).collect();
            let shown = format!("{path} {shown}: {status} {text}");
            match is_followed.unwrap_or(status == 200) {
                true => assert!(status == 200 && !text.contains("\"error\":{"), "{shown}"),
                false => {
                    assert_eq!(status, 400, "{shown}");
                    // Functions stand in the prompt, which may be too long with them, or be nested too deeply.
                    let too_long = [
                        "context_length_exceeded",
                        "prompt is too long",
                        "recursion limit exceeded",
                    ];
                    let mut names = ["schema", "parameters", "\"tools\""]
                        .iter()
                        .chain(&too_long);
                    assert!(names.any(|name| text.contains(name)), "{shown}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_schemas_are_followed_or_refused_alike_in_every_dialect() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &[]).await.unwrap();
    let rows = |lines: &'static str| {
        let lines = lines.lines().filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_str(line).unwrap())
    };
    for schema in rows(REFUSED) {
        check(&app.url, &schema, Some(false)).await;
    }
    for schema in rows(FOLLOWED) {
        check(&app.url, &schema, Some(true)).await;
    }
    for schema in rows(EITHER) {
        check(&app.url, &schema, None).await;
    }
    for (schema, is_followed) in large() {
        check(&app.url, &schema, Some(is_followed)).await;
    }
    app.stop().await.unwrap();
}
