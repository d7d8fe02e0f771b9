#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::Message;

const TAGS: OutputFormat = OutputFormat {
    calls: Some(CallStyle::Tags),
    reasoning: Reasoning::Maybe,
    single: false,
    held: false,
};
const JSON: OutputFormat = OutputFormat {
    calls: Some(CallStyle::Json),
    reasoning: Reasoning::Never,
    single: false,
    held: false,
};

const PARAMETERS: OutputFormat = OutputFormat {
    calls: Some(CallStyle::Parameters),
    ..TAGS
};

fn parsed(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> ParsedOutput {
    let call = |(name, arguments): &(&str, &str)| Called {
        name: (*name).to_owned(),
        arguments: (*arguments).to_owned(),
    };
    ParsedOutput {
        reasoning: reasoning.to_owned(),
        content: content.to_owned(),
        calls: calls.iter().map(call).collect(),
    }
}

fn by_char(text: &str, output_format: OutputFormat) -> ParsedOutput {
    let mut parser = OutputParser::new(output_format);
    let mut all = ParsedOutput::default();
    for piece in text.split_inclusive(|_| true) {
        all.add(parser.push(piece));
    }
    all.add(parser.finish());
    all
}

/// The spans of pieces: whether they are calls, and their texts.
fn spans(pieces: impl Iterator<Item = String>, output_format: OutputFormat) -> Vec<(bool, String)> {
    let mut parser = OutputParser::new(output_format);
    let mut spans = Vec::new();
    for piece in pieces {
        spans.extend(parser.push_spans(&piece));
    }
    spans.extend(parser.finish_spans());
    let mut merged: Vec<(bool, String)> = Vec::new();
    for span in spans {
        let is_call = !matches!(span, Span::Text(_));
        match merged.last_mut() {
            Some((last, told)) if *last == is_call => told.push_str(span.text()),
            _ => merged.push((is_call, span.text().to_owned())),
        }
    }
    merged
}

/// One text with what it says, parsed whole and character by character.
fn check(text: &str, output_format: OutputFormat, expected: &ParsedOutput) {
    assert_eq!(
        &ParsedOutput::of(text, output_format),
        expected,
        "whole: {text:?}"
    );
    assert_eq!(
        &by_char(text, output_format),
        expected,
        "by character: {text:?}"
    );
}

/// Clients send what they like: no text takes more than a few looks at each of its bytes.
#[test]
fn broken_calls_by_the_thousand_are_text() {
    let f = r#"<tool_call>{"name": "f"}</tool_call>"#;
    for broken in ["<tool_call>{", "<tool_call>x", r#"<tool_call>{"a": {}} "#] {
        let text = broken.repeat((1 << 21) / broken.len());
        let told = ParsedOutput::of(&text, TAGS);
        assert_eq!(told.content.trim_end(), text.trim_end());
        // A few of them hide no sound call.
        let few = format!("{}{f}", broken.repeat(40));
        check(
            &few,
            TAGS,
            &parsed("", broken.repeat(40).trim_end(), &[("f", "{}")]),
        );
    }
    for broken in [
        "<function=",
        "<function=f>x",
        "<function=f><parameter=a></parameter> ",
    ] {
        let text = broken.repeat((1 << 21) / broken.len());
        assert_eq!(
            ParsedOutput::of(&text, PARAMETERS).content.trim_end(),
            text.trim_end()
        );
    }
    let one = r#"{"name": "f", "parameters": {}}; "#;
    let told = ParsedOutput::of(&one.repeat((1 << 21) / one.len()), JSON);
    assert_eq!(told.calls.len(), (1 << 21) / one.len());
    assert_eq!(told.content, "");
}

#[test]
fn calls_in_tags() {
    let f = r#"{"name": "f", "arguments": {"a": 1}}"#;
    let one = [("f", r#"{"a": 1}"#)];
    for (text, expected) in [
        (
            format!("<tool_call>\n{f}\n</tool_call>"),
            parsed("", "", &one),
        ),
        (format!("<tool_call>{f}</tool_call>"), parsed("", "", &one)),
        (
            format!("Hi.\n<tool_call>\n{f}\n</tool_call>\n"),
            parsed("", "Hi.", &one),
        ),
        (
            format!("<think>\nhm\n\nso\n</think>\n\nHi.\n<tool_call>\n{f}\n</tool_call>"),
            parsed("hm\n\nso", "Hi.", &one),
        ),
        (
            format!("<tool_call>{f}</tool_call>\n<tool_call>{f}</tool_call>"),
            parsed("", "", &[one[0], one[0]]),
        ),
        (
            format!("A <tool_call>{f}</tool_call> B"),
            parsed("", "A B", &one),
        ),
        (
            format!("<tool_call>{f}</tool_call>\n\nB "),
            parsed("", "B ", &one),
        ),
        // Cut by a limit or a stop string after the object.
        (format!("<tool_call>\n{f}"), parsed("", "", &one)),
        (format!("<tool_call>\n{f}\n</tool"), parsed("", "", &one)),
        (
            r#"<tool_call>{"name":"f"}</tool_call>"#.to_owned(),
            parsed("", "", &[("f", "{}")]),
        ),
        (
            r#"<tool_call>{"arguments": "{\"a\":1}", "name":"f"}</tool_call>"#.to_owned(),
            parsed("", "", &[("f", r#"{"a":1}"#)]),
        ),
        (
            r#"<tool_call>{"name":"f","arguments":{"t":"}</tool_call>\"{"}}</tool_call>"#
                .to_owned(),
            parsed("", "", &[("f", r#"{"t":"}</tool_call>\"{"}"#)]),
        ),
        (
            r#"<tool_call>{"name":"f","arguments":{"n":12345678901234567890123.0}}</tool_call>"#
                .to_owned(),
            parsed("", "", &[("f", r#"{"n":12345678901234567890123.0}"#)]),
        ),
    ] {
        check(&text, TAGS, &expected);
    }
}

#[test]
fn what_is_no_sound_call_stays_content_as_it_was_written() {
    let f = r#"<tool_call>{"name":"f"}</tool_call>"#;
    for text in [
        "  plain text \n",
        "a < b, <tool, <tool_cal",
        "<tool_call>not json</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {</tool_call>",
        "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"no\"}</tool_call>",
        "<tool_call>{'name': 'f'}</tool_call>",
        "<tool_call>{\"name\": \"f\"} and more",
        "<tool_call>",
        "<tool_call>  ",
        "<tool_call>{\"a",
        "see <think> here",
    ] {
        check(text, TAGS, &parsed("", text, &[]));
    }
    let hidden = format!("<tool_call>oops {f}");
    check(
        &hidden,
        TAGS,
        &parsed("", "<tool_call>oops", &[("f", "{}")]),
    );
    let untouched = OutputFormat::default();
    check(f, untouched, &parsed("", f, &[]));
    check(
        "<think>x</think>y",
        untouched,
        &parsed("", "<think>x</think>y", &[]),
    );
}

#[test]
fn calls_as_the_whole_answer() {
    let f = r#"{"name": "f", "parameters": {"a": "x"}}"#;
    let one = ("f", r#"{"a": "x"}"#);
    for (text, expected) in [
        (f.to_owned(), parsed("", "", &[one])),
        (format!(" \n<|python_tag|>{f}"), parsed("", "", &[one])),
        (format!("{f}; {f}\n"), parsed("", "", &[one, one])),
        (format!("{f}\nDone."), parsed("", "Done.", &[one])),
        (format!("So: {f}"), parsed("", &format!("So: {f}"), &[])),
        (r#"{"a": 1}"#.to_owned(), parsed("", r#"{"a": 1}"#, &[])),
        // Data that has a name.
        (
            r#"{"name": "Ann", "age": 3}"#.to_owned(),
            parsed("", r#"{"name": "Ann", "age": 3}"#, &[]),
        ),
        (r#" {"name": "#.to_owned(), parsed("", r#" {"name": "#, &[])),
        ("<|py".to_owned(), parsed("", "<|py", &[])),
        (
            "<|python_tag|>print(1)".to_owned(),
            parsed("", "<|python_tag|>print(1)", &[]),
        ),
    ] {
        check(&text, JSON, &expected);
    }
}

/// A function with its parameters, as templates write it.
fn function(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameters = parameters.iter();
    let parameters: String = parameters
        .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
        .collect();
    format!("<function={name}>\n{parameters}</function>")
}

#[test]
fn calls_with_parameters() {
    let f = function("f", &[("a", "1"), ("b", "two\nlines\n")]);
    let one = [("f", r#"{"a": 1, "b": "two\nlines\n"}"#)];
    let none = "<function=g></function>";
    let values = [
        ("x", "{\"n\": 12345678901234567890123.0}"),
        ("y", "\"quoted\""),
        ("z", " 5"),
        ("x", "[1,\n2]"),
        ("é", "a</parameter> b</parameter>\n<parameter"),
        ("", ""),
    ];
    let odd = function("f", &values[..5]);
    let told = r#"{"x": [1,
2], "y": "\"quoted\"", "z": " 5", "é": "a</parameter> b</parameter>\n<parameter"}"#;
    for (text, expected) in [
        (
            format!("<tool_call>\n{f}\n</tool_call>"),
            parsed("", "", &one),
        ),
        (
            format!("<think>hm</think>Hi.\n\n<tool_call>\n{f}\n</tool_call>\n"),
            parsed("hm", "Hi.", &one),
        ),
        // The tags around it are forgotten at times.
        (format!("Hi.\n{f}\n</tool_call>"), parsed("", "Hi.", &one)),
        (f.clone(), parsed("", "", &one)),
        (format!("<tool_call>{f}"), parsed("", "", &one)),
        (format!("<tool_call>{f}\n</tool"), parsed("", "", &one)),
        (format!("{f} B"), parsed("", "B", &one)),
        (
            format!("<tool_call>{none}</tool_call>\n<tool_call>{f}</tool_call>{none}"),
            parsed("", "", &[("g", "{}"), one[0], ("g", "{}")]),
        ),
        (odd, parsed("", "", &[("f", told)])),
    ] {
        check(&text, PARAMETERS, &expected);
        let held = OutputFormat {
            held: true,
            ..PARAMETERS
        };
        // What is told cannot be told anew.
        let again = text.matches("<parameter=x>").count() > 1;
        if !again {
            check(&text, held, &expected);
        }
    }
    for text in [
        "a < b, <tool, <function",
        "<tool_call>no function</tool_call>",
        "<tool_call>{\"name\": \"f\"}</tool_call>",
        "<function=>\n</function>",
        "<function=f\n></function>",
        "<function=f> text </function>",
        "<function=f><parameter=a>1",
        "<function=f><parameter=a>1</parameter> 2</function>",
        "<function=f><parameter=a>1</parameter></func",
        &function("f", &values[5..]),
    ] {
        check(text, PARAMETERS, &parsed("", text, &[]));
    }
    let hidden = format!("<tool_call><function=f>oops {f}");
    let told = parsed("", "<tool_call><function=f>oops", &one);
    check(&hidden, PARAMETERS, &told);
}

#[test]
fn a_recorded_text_is_told_whole() {
    let call = r#"<tool_call>{"name":"f"}</tool_call>"#;
    for (text, expected) in [
        ("Tea.".to_owned(), parsed("", "Tea.", &[])),
        (
            "<think>\nhm\n</think>\n\nTea.".to_owned(),
            parsed("hm", "Tea.", &[]),
        ),
        ("hm\n</think>\nTea.".to_owned(), parsed("hm", "Tea.", &[])),
        ("<think>hm".to_owned(), parsed("hm", "", &[])),
        (
            format!("<think>a</think>b {call}"),
            parsed("a", "b", &[("f", "{}")]),
        ),
    ] {
        assert_eq!(ParsedOutput::whole(&text), expected, "{text}");
    }
}

#[test]
fn calls_that_are_held_to_their_form_are_told_as_they_are_said() {
    let held = |output_format| OutputFormat {
        held: true,
        ..output_format
    };
    let mut parser = OutputParser::new(held(TAGS));
    let (begun, more) = (Part::CallBegun("f".to_owned()), |text: &str| {
        vec![Part::Arguments(text.to_owned())]
    });
    for (piece, told) in [
        (
            "Hi.\n<tool_call>\n{\"name\": \"f",
            vec![Part::Content("Hi.".to_owned())],
        ),
        ("\", \"arguments\": ", vec![]),
        (
            "{\"a\": ",
            vec![begun, Part::Arguments("{\"a\": ".to_owned())],
        ),
        ("\"}</tool_call>", more("\"}</tool_call>")),
        ("\"", more("\"")),
        ("}", more("}")),
        ("}\n</tool_", vec![]),
        ("call>\nBye", vec![Part::Content("\nBye".to_owned())]),
    ] {
        assert_eq!(parser.push(piece), told, "{piece}");
    }
}

/// Every argument is a text.
#[derive(Debug)]
struct Texts;

impl Functions for Texts {
    fn has(&self, function: &str) -> bool {
        function == "f"
    }

    fn is_text(&self, _function: &str, _name: &str) -> bool {
        true
    }

    fn json(&self, _function: &str, _name: &str, text: &str) -> String {
        Value::from(text).to_string()
    }
}

#[test]
fn texts_are_told_as_they_are_said() {
    let held = OutputFormat {
        held: true,
        ..PARAMETERS
    };
    let mut parser = OutputParser::among(held, Arc::new(Texts));
    let begun = Part::CallBegun("f".to_owned());
    for (piece, told) in [
        ("A\n<tool_call>\n<function=f", "A"),
        (">\n<parameter=", "{"),
        ("a>", "\"a\": \""),
        ("\n", ""),
        ("one \"", "one \\\""),
        ("\n", ""),
        ("\n</par", "\\n"),
        ("am\n</parameter>", "\\n</param"),
        (" x", "\\n</parameter> x"),
        ("\n</parameter>\n<parameter=b>", "\", \"b\": \""),
        ("</parameter>\n</function>", "\"}"),
        ("\n</tool_call>", ""),
        ("B", "B"),
    ] {
        let mut parts = parser.push(piece);
        if piece.starts_with('>') {
            assert_eq!(parts.remove(0), begun);
        }
        let texts: String = parts
            .iter()
            .map(|part| match part {
                Part::Content(text) | Part::Arguments(text) => text.as_str(),
                Part::Reasoning(_) | Part::CallBegun(_) => panic!("{part:?}"),
            })
            .collect();
        assert_eq!(texts, told, "{piece:?}");
    }
    assert_eq!((parser.finish(), parser.whole_calls()), (vec![], 1));
    // A call without its outer tag is whole, too; one that is cut short is not.
    for (end, whole) in [
        ("</function>", 1),
        ("</function>\n</tool", 1),
        ("</func", 0),
    ] {
        let mut parser = OutputParser::among(held, Arc::new(Texts));
        let mut parsed = ParsedOutput::default();
        parsed.add(parser.push(&format!("<function=f><parameter=a>b</parameter>{end}")));
        parsed.add(parser.finish());
        let close = if whole == 1 { "\"}" } else { "" };
        assert_eq!(parsed.calls[0].arguments, format!("{{\"a\": \"b{close}"));
        assert_eq!((parser.whole_calls(), parsed.content.as_str()), (whole, ""));
    }
}

/// What a text says where there is a function `f`, however it is cut, and how many calls are whole.
fn among_texts(text: &str, output_format: OutputFormat) -> (ParsedOutput, usize) {
    let mut parsed = ParsedOutput::default();
    let mut parser = OutputParser::among(output_format, Arc::new(Texts));
    for piece in text.split_inclusive(|_| true) {
        parsed.add(parser.push(piece));
    }
    parsed.add(parser.finish());
    let mut at_once = OutputParser::among(output_format, Arc::new(Texts));
    let mut whole = ParsedOutput::default();
    whole.add(at_once.push(text));
    whole.add(at_once.finish());
    assert_eq!(whole, parsed, "{text}");
    // What a client sends back is found again.
    assert_eq!(
        ParsedOutput::meaning(text).calls.len(),
        parsed.calls.len(),
        "{text}"
    );
    (parsed, parser.whole_calls())
}

fn call_of_f(arguments: &str) -> String {
    format!("<tool_call>{{\"name\": \"f\", \"arguments\": {arguments}")
}

#[test]
fn calls_of_known_functions_are_told_as_they_are_said_sound_or_not() {
    let (told, call) = (among_texts, call_of_f);
    let as_is = [
        "{\"a\": True}",
        "{\"a\": \"two\nlines\"}",
        "{\"a\": \"</tool_call>\"}",
        "{\"a\": [1",
    ];
    for arguments in as_is {
        for end in ["}</tool_call>", "</tool_call>", "} \n</tool_call>"] {
            let end = if arguments.ends_with('1') {
                "</tool_call>"
            } else {
                end
            };
            let (parsed, whole) = told(&format!("A {}{end} B", call(arguments)), TAGS);
            assert_eq!(
                (parsed.content.trim_end(), whole),
                ("A B", 1),
                "{arguments}"
            );
            assert_eq!(parsed.calls[0].arguments, arguments);
        }
    }
    let (parsed, whole) = told(&call("{\"a\": \"b"), TAGS);
    assert_eq!(
        (parsed.calls[0].arguments.as_str(), whole),
        ("{\"a\": \"b", 0)
    );
    // Another function's are told whole, or not at all.
    let other = call("{\"a\": 1").replace("\"f\"", "\"g\"");
    let (text, calls) = (other.clone() + "</tool_call>", 0);
    let mut parser = OutputParser::among(TAGS, Arc::new(Texts));
    let mut parsed = ParsedOutput::default();
    parsed.add(parser.push(&text));
    parsed.add(parser.finish());
    assert_eq!((parsed.content, parsed.calls.len()), (text, calls));
}

#[test]
fn what_stands_between_arguments_and_the_end_of_a_call_is_no_text() {
    let (told, call) = (among_texts, call_of_f);
    for end in [
        ", \"id\": {\"a\": \"}\"}}</tool_call>",
        ", \"id\": 1}\n</tool_",
        "}",
        "",
    ] {
        let (parsed, whole) = told(&format!("{}{end}", call("{\"a\": 1}")), TAGS);
        assert_eq!((parsed.content.as_str(), whole), ("", 1), "{end}");
        assert_eq!(parsed.calls[0].arguments, "{\"a\": 1}");
    }
    let (parsed, whole) = told(&format!("{}, what}}", call("{\"a\": 1}")), TAGS);
    assert_eq!((parsed.content.as_str(), whole), (", what}", 1));
    let json = "{\"name\": \"f\", \"parameters\": {\"a\": 1}";
    for text in [json.to_owned(), format!("{json}, \"id\": 1}}; {json}}}")] {
        let (parsed, whole) = told(&text, JSON);
        assert_eq!(
            (parsed.content.as_str(), whole),
            ("", parsed.calls.len()),
            "{text}"
        );
    }
    // Space that JSON does not know, and a name that is too long, however the text is cut.
    told(
        &call("{\"a\": 1}}").replace(": \"f\"", ":\u{a0}\"f\""),
        TAGS,
    );
    let long = "é".repeat(200);
    told(
        &format!("<function=f><parameter={long}>1</parameter></function>"),
        PARAMETERS,
    );
}

#[test]
fn a_function_that_goes_on_as_none_does_ends_there_and_so_do_its_arguments() {
    let told = among_texts;
    let part = "<function=f><parameter=a>1</parameter>";
    for (end, content, arguments) in [
        ("</func", "", "{\"a\": \"1"),
        ("<parameter=b\n>2", "<parameter=b\n>2", "{\"a\": \"1\""),
    ] {
        let (parsed, calls) = told(&format!("{part}{end}"), PARAMETERS);
        assert_eq!((parsed.content.trim(), calls), (content.trim(), 0), "{end}");
        assert_eq!(parsed.calls[0].arguments, arguments, "{end}");
    }
    let (parsed, calls) = told("<function=f> well <parameter=a>", PARAMETERS);
    assert_eq!((parsed.content.as_str(), calls), ("well <parameter=a>", 0));
    assert_eq!(parsed.calls[0].arguments, "{");
}

#[test]
fn calls_that_are_held_say_what_they_say_to_those_who_wait_for_them() {
    let held = |output_format| OutputFormat {
        held: true,
        ..output_format
    };
    let f = r#"{"name": "f", "arguments": {"a": [{}, "\"}"]}}"#;
    let g = f.replace("arguments", "parameters");
    let tags = format!("A <tool_call>\n{f}\n</tool_call>\n<tool_call>{f}</tool_call> B");
    for (text, output_format) in [
        (tags.clone(), TAGS),
        (
            tags,
            OutputFormat {
                single: true,
                ..TAGS
            },
        ),
        (
            format!("<think>x</think>\n\n<tool_call>{f}</tool_call>"),
            TAGS,
        ),
        (format!("{g}; {g}"), JSON),
        (format!("<|python_tag|>{g} and text"), JSON),
    ] {
        check(
            &text,
            held(output_format),
            &ParsedOutput::of(&text, output_format),
        );
    }
    // Cut short, what there is of a call is one.
    let cut = [("f", r#"{"a": [{}, "#)];
    check(
        &format!("A <tool_call>{}", &f[..38]),
        held(TAGS),
        &parsed("", "A", &cut),
    );
    check(&g[..39], held(JSON), &parsed("", "", &cut));
    let whole = [("f", r#"{"a": [{}, "\"}"]}"#)];
    for end in [f.len() - 1, f.len()] {
        check(
            &format!("<tool_call>{}", &f[..end]),
            held(TAGS),
            &parsed("", "", &whole),
        );
    }
    // What no grammar would let pass.
    for text in [
        "<tool_call>x",
        "<tool_call>{\"a\": 1}</tool_call>",
        "<tool_call>{\"name\": \"f\"",
    ] {
        check(text, held(TAGS), &parsed("", text, &[]));
    }
    let odd = format!("<tool_call>{} x", &f[..f.len() - 1]);
    check(&odd, held(TAGS), &parsed("", "x", &whole));
}

#[test]
fn reasoning_the_prompt_opened() {
    let open = OutputFormat {
        reasoning: Reasoning::Open,
        ..TAGS
    };
    check("hm\n</think>\n\nYes.", open, &parsed("hm", "Yes.", &[]));
    check("\nhm </thi", open, &parsed("hm </thi", "", &[]));
    check("<think>\nhm", TAGS, &parsed("hm", "", &[]));
    assert_eq!(
        Reasoning::of(true, "<|im_start|>assistant\n<think>\n"),
        Reasoning::Open
    );
    assert_eq!(
        Reasoning::of(true, "assistant\n<think>\n\n</think>\n\n"),
        Reasoning::Maybe
    );
    assert_eq!(Reasoning::of(false, "<think>"), Reasoning::Never);
}

#[test]
fn templates_tell_the_style() {
    let of = CallStyle::of_template;
    assert_eq!(
        of("{{- '<tool_call>\\n{\"name\": \"' }}"),
        Some(CallStyle::Tags)
    );
    assert_eq!(of("{{- \"<|python_tag|>\" }}"), Some(CallStyle::Json));
    assert_eq!(of("<tool_call>\n<function=f>"), Some(CallStyle::Parameters));
    assert_eq!(of("{{ messages[0].content }}"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// However a text is cut, it says the same; and nothing but space, tags and calls gets lost.
    #[test]
    fn cuts_change_nothing(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "<think>", "</think>", "{\"name\": \"f\"", ", ",
            "\"arguments\": ", "{\"a\": [1, {}]}", "}", "{", "\"", "\\", " ", "\n", "é", "text", ";",
            "<|python_tag|>", "<tool", "_call>", "{\"name\":\"g\",\"parameters\":{}}", "\"parameters\": ",
            "<function=f>", "</function>", "<parameter=a>", "</parameter>", "<func", "tion=f>",
        ]), 0..14),
        cuts in prop::collection::vec(0usize..200, 0..10),
        style in prop::sample::select(vec![
            None, Some(CallStyle::Tags), Some(CallStyle::Json), Some(CallStyle::Parameters),
        ]),
        reasoning in prop::sample::select(vec![Reasoning::Never, Reasoning::Maybe, Reasoning::Open]),
        held: bool,
    ) {
        let text = parts.concat();
        let output_format = OutputFormat { calls: style, reasoning, single: false, held };
        let whole = ParsedOutput::of(&text, output_format);
        prop_assert_eq!(&by_char(&text, output_format), &whole);
        let chars: Vec<&str> = text.split_inclusive(|_| true).collect();
        let mut bounds: Vec<usize> = cuts.iter().map(|c| (*c).min(chars.len())).collect();
        bounds.extend([0, chars.len()]);
        bounds.sort_unstable();
        let mut parser = OutputParser::new(output_format);
        let mut cut = ParsedOutput::default();
        for window in bounds.windows(2) {
            cut.add(parser.push(&chars[window[0]..window[1]].concat()));
        }
        cut.add(parser.finish());
        prop_assert_eq!(&cut, &whole);
        let windows = bounds.windows(2).map(|window| chars[window[0]..window[1]].concat());
        let spans = spans(windows, output_format);
        prop_assert_eq!(&spans, &self::spans(chars.iter().map(|c| (*c).to_owned()), output_format));
        let all: String = spans.iter().map(|(_, text)| text.as_str()).collect();
        prop_assert_eq!(&all, &text);
        if whole.calls.is_empty() && reasoning == Reasoning::Never {
            prop_assert_eq!(&whole.content, &text);
        }
        for call in whole.calls.iter().filter(|_| !held) {
            let sound: Value = serde_json::from_str(&call.arguments).unwrap();
            prop_assert!(sound.is_object());
            prop_assert!(text.contains("name") || text.contains("<function="));
        }
    }

    /// Arguments that are told while they are said are those that are told at their end.
    #[test]
    fn texts_are_the_same_told_early(
        values in prop::collection::vec(prop::collection::vec(prop::sample::select(vec![
            "\n", " ", "é", "\"", "\\", "</parameter>", "<", "</", "parameter>", "</function>", "x",
        ]), 0..8), 0..4),
        cuts in prop::collection::vec(0usize..200, 0..10),
    ) {
        let parameters: String = values.iter().enumerate()
            .map(|(at, value)| format!("<parameter={at}>{}</parameter>", value.concat()))
            .collect();
        let text = format!("<function=f>{parameters}</function>");
        let chars: Vec<&str> = text.split_inclusive(|_| true).collect();
        let mut bounds: Vec<usize> = cuts.iter().map(|c| (*c).min(chars.len())).collect();
        bounds.extend([0, chars.len()]);
        bounds.sort_unstable();
        let parsed = |held| {
            let mut parser = OutputParser::among(OutputFormat { held, ..PARAMETERS }, Arc::new(Texts));
            let mut parsed = ParsedOutput::default();
            for window in bounds.windows(2) {
                parsed.add(parser.push(&chars[window[0]..window[1]].concat()));
            }
            parsed.add(parser.finish());
            parsed
        };
        let whole = parsed(false);
        prop_assume!(whole.calls.len() == 1);
        prop_assert_eq!(parsed(true), whole);
    }

    /// What a client sends back binds like what was sampled.
    #[test]
    fn the_meaning_survives_the_way_over_the_client(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1.50, \"b\": \"x\"}}</tool_call>",
            "Looking. ", "\n", "done", "<tool_call>", "{",
            "<tool_call>\n<function=f>\n<parameter=a>\n1.50\n</parameter>\n</function>\n</tool_call>",
        ]), 0..6),
        style in prop::sample::select(vec![TAGS, PARAMETERS]),
        thought in prop::sample::select(vec!["", "<think>\nhm\n</think>\n\n"]),
    ) {
        let text = format!("{thought}{}", parts.concat());
        // A model writes calls in one style.
        let other = if style == PARAMETERS { "{\"name\"" } else { "<function=" };
        prop_assume!(!text.contains(other));
        let parsed = ParsedOutput::of(&text, style);
        let calls = parsed.calls.iter().map(|call| crate::ToolCall {
            id: "callx".to_owned(),
            name: call.name.clone(),
            arguments: serde_json::from_str::<Value>(&call.arguments).unwrap().to_string(),
        });
        let back = crate::Message {
            tool_calls: calls.collect(),
            ..crate::Message::text(crate::Role::Assistant, parsed.content.clone())
        };
        let sampled = crate::Message::text(crate::Role::Assistant, text.clone());
        // A text that says one thing before a call and another after it has one order when
        // sampled and another when sent back; the hash reads both alike.
        prop_assert_eq!(back.chain_hash(), sampled.chain_hash(), "{:?}", text);
    }
}

/// A function that there is.
#[derive(Debug)]
struct Look;

impl Functions for Look {
    fn has(&self, function: &str) -> bool {
        function == "look"
    }

    fn is_any(&self) -> bool {
        true
    }

    fn is_text(&self, _: &str, _: &str) -> bool {
        false
    }

    fn json(&self, _: &str, _: &str, text: &str) -> String {
        guessed(text)
    }
}

/// What is said in pieces of so many characters where `look` is offered.
fn loosely(text: &str, style: CallStyle, size: usize) -> (String, Vec<(String, String)>, usize) {
    let output_format = OutputFormat {
        calls: Some(style),
        ..OutputFormat::default()
    };
    let mut parser = OutputParser::among(output_format, Arc::new(Look));
    let mut parsed = ParsedOutput::default();
    let chars: Vec<char> = text.chars().collect();
    for piece in chars.chunks(size) {
        parsed.add(parser.push(&piece.iter().collect::<String>()));
    }
    parsed.add(parser.finish());
    let calls = parsed.calls.into_iter();
    let calls = calls.map(|call| (call.name, call.arguments)).collect();
    (parsed.content, calls, parser.whole_calls())
}

#[test]
fn calls_of_functions_that_there_are_are_told_in_every_form() {
    const ARGUMENTS: &str = "{\"city\": \"Rome\"}";
    let call = format!("{{\"name\": \"look\", \"arguments\": {ARGUMENTS}}}");
    let rows = [
        (call.clone(), ""),
        (format!("```json\n{call}\n```"), ""),
        (format!("```\n{call}\n```\n"), ""),
        (format!("I will look.\n\n```json\n{call}\n```"), "I will look."),
        (format!("I will look.\n{call}"), "I will look."),
        (format!("{{\"name\": \"look\", \"parameters\": {ARGUMENTS}}}"), ""),
        (format!("{{\"type\": \"function\", \"function\": {call}}}"), ""),
        (format!("[{call}]"), ""),
        (format!("[TOOL_CALLS] [{call}]"), ""),
        (format!("[TOOL_CALLS]look[ARGS]{ARGUMENTS}"), ""),
        (format!("<|python_tag|>{call}"), ""),
        (format!("<function_call>{call}</function_call>"), ""),
        ("```tool_code\nprint(look(city=\"Rome\"))\n```".to_owned(), ""),
        ("[look(city='Rome')]".to_owned(), ""),
        (
            format!(
                "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}><\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function\
                 <\u{ff5c}tool\u{2581}sep\u{ff5c}>look\n```json\n{ARGUMENTS}\n```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>\
                 <\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>"
            ),
            "",
        ),
        (
            "<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>".to_owned(),
            "",
        ),
        (
            format!("<|channel|>commentary to=functions.look <|constrain|>json<|message|>{ARGUMENTS}<|call|>"),
            "",
        ),
        (
            "<tool_call>\n<function=look>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>".to_owned(),
            "",
        ),
        (format!("<tool_call>\n{call}\n</tool_call>"), ""),
    ];
    for (text, content) in rows {
        for size in [1, 3, 7, 1_000] {
            let (said, calls, whole) = loosely(&text, CallStyle::Tags, size);
            assert_eq!(said, content, "{text:?} in pieces of {size}");
            assert_eq!(calls.len(), 1, "{text:?} in pieces of {size}");
            let arguments: serde_json::Value = serde_json::from_str(&calls[0].1).expect("JSON");
            let expected = serde_json::json!({"city": "Rome"});
            assert_eq!((&*calls[0].0, arguments, whole), ("look", expected, 1));
        }
        // It is found again however it comes back.
        let sent = Message {
            tool_calls: vec![crate::ToolCall {
                id: String::new(),
                name: "look".into(),
                arguments: "{\"city\":\"Rome\"}".into(),
            }],
            ..Message::text(crate::Role::Assistant, content)
        };
        let sampled = Message::text(crate::Role::Assistant, text.clone());
        assert_eq!(sampled.chain_hash(), sent.chain_hash(), "{text:?}");
    }
    let two = format!("{call}\n{call}");
    assert_eq!(loosely(&two, CallStyle::Json, 5).1.len(), 2);
}

#[test]
fn prose_about_calls_and_data_are_content() {
    let call = "{\"name\": \"look\", \"arguments\": {\"city\": \"Rome\"}}";
    let rows = [
        format!("You could send\n```json\n{call}\n```\nto the server."),
        format!("Use {call} for that."),
        call.replace("look", "other"),
        "{\"name\": \"look\", \"age\": 5}".to_owned(),
        "{\"city\": \"Rome\"}".to_owned(),
        "```json\n{\"name\": \"Ann\"}\n```".to_owned(),
        "```python\nimport os\nprint(os.name)\n```".to_owned(),
        "[1] A note.\n[link](http://a) and {x}".to_owned(),
        "coffee for two < three".to_owned(),
        "```json\n{\"name\": \"look\", \"arguments\": {".to_owned(),
    ];
    for text in rows {
        for size in [1, 4, 1_000] {
            let (said, calls, whole) = loosely(&text, CallStyle::Tags, size);
            assert_eq!((said, calls.len(), whole), (text.clone(), 0, 0));
        }
    }
}
