use super::*;

fn shape(fields: Value) -> Result<Option<Shape>, RequestError> {
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
