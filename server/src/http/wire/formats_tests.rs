use hone_nn::grammar::Grammars;

use super::*;

fn shape(fields: Value) -> Result<Option<Shape>, ApiError> {
    let fields: ShapeFields = serde_json::from_value(fields).expect("fields");
    fields.shape()
}

#[test]
fn one_form_at_a_time() {
    assert!(shape(json!({})).expect("sound").is_none());
    assert!(
        shape(json!({"response_format": {"type": "text"}}))
            .expect("sound")
            .is_none()
    );
    let both = json!({"guided_regex": "a", "structured_outputs": {"choice": ["b"]}});
    let error = shape(both).expect_err("two forms");
    assert!(error.to_string().contains("one form only"), "{error}");
}

#[test]
fn texts_are_written_as_grammars_read_them() {
    let of = |fields: Value| shape(fields).expect("sound").expect("a form").rules;
    assert_eq!(
        of(json!({"guided_choice": ["a \"b\"", "c"]})),
        "answer: \"a \\\"b\\\"\" | \"c\"\n"
    );
    assert_eq!(
        of(json!({"guided_regex": "a/b\\/c\n"})),
        "answer: /a\\/b\\/c\\n/\n"
    );
    let schema = of(json!({"guided_json": "{\"type\": \"integer\"}"}));
    assert!(
        schema.starts_with("answer: %json {\"type\":\"integer\",\"x-guidance\""),
        "{schema}"
    );
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
    assert_eq!((shape.calls, shape.is_own), (Calls::Alone, false));

    let mut files = hone_starter::model_files().iter();
    let (name, file) = files
        .find(|(name, _)| *name == "tokenizer.json")
        .expect("there");
    let tokenizer = hone_nn::tokenizer::Tokenizer::from_json(file, name).expect("sound");
    let end = tokenizer.special_ids().next().expect("there");
    let grammars = Grammars::new(&tokenizer, tokenizer.vocab_size(), &[end]).expect("sound");
    let held = grammars.compile(&shape.rules).expect("sound");
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
        let mut constraint = held.fork();
        let took = constraint.take_bytes(call.as_bytes()).is_ok();
        let ends = took && constraint.may_end().expect("sound");
        assert_eq!(ends, passes, "{call}");
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
