//! Every row of `tests/goldens/templates.json` (see the script beside it) renders as in Python.
#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;

use super::*;

#[derive(serde::Deserialize)]
struct Goldens {
    variables: Map<String, Value>,
    expressions: Vec<(String, Option<String>)>,
    templates: BTreeMap<String, String>,
    conversations: BTreeMap<String, Map<String, Value>>,
    renderings: Vec<Vec<Option<String>>>,
}

fn goldens() -> Goldens {
    serde_json::from_str(include_str!("../../../../tests/goldens/templates.json")).unwrap()
}

/// Renders with the variables as the script passed them.
fn render(source: &str, variables: &Map<String, Value>) -> Result<String, TemplateError> {
    let tokens = ["bos_token", "eos_token"].into_iter().zip(["<s>", "</s>"]);
    let tokens = tokens.map(|(name, text)| (name.to_owned(), text.into()));
    let template = ChatTemplate::new(source, tokens.collect())?.with_clock(|| 1_700_000_000);
    let mut extra = variables.clone();
    let messages = extra.remove("messages").unwrap();
    let tools = extra.remove("tools").unwrap();
    let prompt = extra.get("add_generation_prompt") == Some(&Value::Bool(true));
    template.render(
        messages.as_array().unwrap(),
        tools.as_array().map(Vec::as_slice),
        prompt,
        &extra,
    )
}

fn check(failures: &[String], rows: usize) {
    let count = failures.len();
    assert!(count == 0, "{count} of {rows}:\n{}", failures.join("\n"));
}

#[test]
fn every_expression_renders_as_in_python() {
    let goldens = goldens();
    let failed = goldens.expressions.iter().filter_map(|(source, expected)| {
        let ours = render(source, &goldens.variables);
        (ours.as_ref().ok() != expected.as_ref())
            .then(|| format!("{source:?}\n    python {expected:?}\n    ours   {ours:?}"))
    });
    check(&failed.collect::<Vec<_>>(), goldens.expressions.len());
}

#[test]
fn every_family_renders_as_in_python() {
    let goldens = goldens();
    let failed = goldens.renderings.iter().filter_map(|row| {
        let (template, conversation) = (row[0].as_ref().unwrap(), row[1].as_ref().unwrap());
        let ours = render(
            &goldens.templates[template],
            &goldens.conversations[conversation],
        );
        let same = match (&ours, &row[2], row.get(3)) {
            (Ok(ours), Some(expected), _) => ours == expected,
            (Err(TemplateError::Refused(ours)), None, Some(Some(expected))) => ours == expected,
            (Err(TemplateError::Failed(_)), None, Some(None)) => true,
            _ => false,
        };
        (!same).then(|| {
            format!(
                "{template} {conversation}\n    python {:?}\n    ours   {ours:?}",
                &row[2..]
            )
        })
    });
    check(&failed.collect::<Vec<_>>(), goldens.renderings.len());
}
