#![allow(clippy::unwrap_used)]
use super::*;
use crate::support::byte_tokenizer;

/// `<|im_end|>` of the byte tokenizer.
const END: u32 = 259;
/// Rows of logits are often wider than the tokenizer.
const VOCAB: usize = 264;

fn grammars() -> Grammars {
    Grammars::new(&byte_tokenizer(), VOCAB, &[END]).unwrap()
}

/// A number in `0..1` from a seed and a position (SplitMix64).
fn uniform(seed: u64, position: u64) -> f64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |z: u64| {
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let counter = position.wrapping_add(1).wrapping_mul(GOLDEN);
    (mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(counter)) >> 11) as f64 / (1u64 << 53) as f64
}

/// A text drawn at random from everything the grammar allows; none if it did not end in time.
fn wander(lark: &str, seed: u64) -> Option<String> {
    let mut constraint = grammars().compile(lark).unwrap();
    let mut tokens = Vec::new();
    for position in 0..3_000 {
        let mask = constraint.mask().unwrap();
        let allowed: Vec<u32> = (0..VOCAB as u32).filter(|id| mask.allows(*id)).collect();
        let at = (uniform(seed, position) * allowed.len() as f64) as usize;
        let token = if mask.allows(END) { END } else { allowed[at] };
        if token == END {
            return Some(byte_tokenizer().decode(&tokens));
        }
        tokens.push(token);
        constraint.take(token).unwrap();
    }
    None
}

/// Whether the whole text follows the grammar, token by token.
fn follows(lark: &str, text: &str) -> bool {
    let mut constraint = grammars().compile(lark).unwrap();
    for token in byte_tokenizer().encode(text, false) {
        if !constraint.mask().unwrap().allows(token) {
            return false;
        }
        constraint.take(token).unwrap();
    }
    constraint.mask().unwrap().allows(END)
}

#[test]
fn whatever_is_drawn_is_inside_the_grammar() {
    let schema = r#"start: %json {"type": "object", "properties": {"n": {"type": "integer"},
        "s": {"type": "string", "maxLength": 5}, "e": {"enum": ["x", "yé"]}},
        "required": ["n", "s", "e"], "additionalProperties": false,
        "x-guidance": {"whitespace_flexible": true, "whitespace_pattern": "[ \\n]{1,4}"}}"#;
    let schema = schema.replace('\n', " ");
    let mut ended = 0;
    for seed in 0..20 {
        let Some(text) = wander(&schema, seed) else {
            continue;
        };
        ended += 1;
        let value: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(
            value["n"].is_i64() || value["n"].is_u64() || value["n"].is_number(),
            "{text}"
        );
        assert!(value["s"].as_str().unwrap().chars().count() <= 5, "{text}");
        assert!(
            ["x", "yé"].contains(&value["e"].as_str().unwrap()),
            "{text}"
        );
    }
    assert!(ended > 5, "most wanderings come to an end, {ended} did");
    for seed in 0..20 {
        let choice = wander("start: \"hello\" | \"help\" | \"y\"", seed).unwrap();
        assert!(["hello", "help", "y"].contains(&choice.as_str()));
    }
}

#[test]
fn grammars_as_the_gateway_writes_them() {
    let calls = "start: answer\ncalls: call (\"\\n\" call){0,2}\n\
        call0: \"<tool_call>\\n{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \" args0 \"}\\n</tool_call>\"\n\
        args0: %json {\"type\": \"object\"}\ncall: call0\nanswer: calls\n";
    let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"</tool_call>\"]}}\n</tool_call>";
    assert!(follows(calls, one));
    assert!(follows(calls, &format!("{one}\n{one}")));
    assert!(!follows(calls, "hello"));
    assert!(!follows(calls, &one.replace("\"f\"", "\"g\"")));
    let reasoning = "start: (\"<think>\" thought GAP?)? answer\n\
        thought[suffix=\"</think>\"]: /(?s:.*)/\nGAP: /[ \\n]{1,4}/\nanswer: %json {\"type\": \"boolean\"}\n";
    assert!(follows(reasoning, "true"));
    assert!(follows(
        reasoning,
        "<think>\nis 1 < 2?\nyes</think>\n\ntrue"
    ));
    assert!(!follows(reasoning, "<think>hm</think>\n\nno"));
    let open = "start: thought GAP? answer\nthought[suffix=\"</think>\"]: /(?s:.*)/\n\
        GAP: /[ \\n]{1,4}/\nanswer: /a\\/b\\n/\n";
    assert!(follows(open, "so</think>a/b\n"));
    let either = "start: answer\nanswer: calls | content\ncalls: \"<tool_call>\"\n\
        content: %json {\"type\": \"object\"}\n";
    assert!(follows(either, "{\"a\":1}") && follows(either, "<tool_call>"));
}

#[test]
fn unsound_grammars_are_explained_in_one_line() {
    for lark in [
        "start: nowhere",
        "answer: \"a\"",
        "start: /[/",
        "start: %json {\"type\": \"no such type\"}",
        "start: %json {\"type\": \"string\", \"minLength\": 5, \"maxLength\": 2}",
    ] {
        let error = grammars()
            .compile(lark)
            .err()
            .unwrap_or_else(|| panic!("{lark} was taken"));
        let text = error.to_string();
        assert!(
            !text.is_empty() && !text.contains('\n') && text.chars().count() <= WHY_CHARS,
            "{text}"
        );
    }
}

#[test]
fn what_takes_much_memory_to_read_is_bounded() {
    let of = |n: usize| format!("start: /{}/", r"\w\P{Lu}".repeat(n));
    assert!(grammars().compile(&of(50)).is_ok());
    let refused = grammars().compile(&of(4_097)).map(drop);
    assert!(refused.is_err_and(|why| why.to_string().contains("at most 8192")));
}

#[test]
fn a_wrong_expression_is_explained_by_its_own_error() {
    for lark in [
        "start: /a(b/",
        "start: %json {\"type\": \"string\", \"pattern\": \"a(b\"}",
    ] {
        let error = grammars().compile(lark).expect_err(lark).to_string();
        assert!(error.ends_with("unclosed group"), "{error}");
    }
}

#[test]
fn control_tokens_are_never_text() {
    let mut constraint = grammars().compile("start: /(?s:.*)/").unwrap();
    let mask = constraint.mask().unwrap();
    assert!(mask.allows(END), "an empty text may end");
    assert!(!mask.allows(258), "<|im_start|> is no text");
    assert!(
        (260..VOCAB as u32).all(|id| !mask.allows(id)),
        "ids without text are never drawn"
    );
    assert!(mask.allows(b'a'.into()) && mask.allows(257));
}

#[test]
fn forks_go_their_own_ways() {
    let mut one = grammars().compile("start: \"ab\" | \"cd\"").unwrap();
    let mut two = one.fork();
    one.take(b'a'.into()).unwrap();
    two.take(b'c'.into()).unwrap();
    assert!(one.mask().unwrap().allows(b'b'.into()));
    let mask = two.mask().unwrap();
    let allowed: Vec<u32> = (0..128).filter(|token| mask.allows(*token)).collect();
    assert_eq!(allowed, [u32::from(b'd')]);
    assert!(one.take(b'x'.into()).is_err());
}

/// A grammar of links, each of which names the next one.
fn chain(begin: &str, link: fn(usize) -> String, (end, bytes): (&str, usize)) -> String {
    let (mut grammar, mut links) = (begin.to_owned(), 0);
    while grammar.len() < bytes {
        grammar += &link(links);
        links += 1;
    }
    grammar + &end.replace('@', &links.to_string())
}

/// What nests as deeply as its length allows, in each of the ways that the library follows by calling
/// itself.
#[test]
fn what_nests_deeply_is_followed_or_refused() {
    const DEFS: &str = r##"start: %json {"$ref": "#/$defs/0", "$defs": {"##;
    let (schema, lark) = ((r#""@": {"type": "null"}}}"#, 512 << 10), 64 << 10);
    let rows = [
        (chain("start: ", |_| "a{".into(), ("", lark)), false),
        (
            chain("start: \"a\" %if ", |_| "not(".into(), ("", lark)),
            false,
        ),
        (
            chain(
                "start: r0\n",
                |n| format!("r{n}: r{}\n", n + 1),
                ("r@: \"x\"", lark),
            ),
            true,
        ),
        (
            chain(
                "start: A0\n",
                |n| format!("A{n}: A{}\n", n + 1),
                ("A@: \"x\"", lark),
            ),
            true,
        ),
        (
            chain(
                DEFS,
                |n| format!(r##""{n}": {{"$ref": "#/$defs/{}"}},"##, n + 1),
                schema,
            ),
            true,
        ),
        (
            chain(
                DEFS,
                |n| {
                    format!(
                        r##""{n}": {{"allOf": [{{"$ref": "#/$defs/{}"}}]}},"##,
                        n + 1
                    )
                },
                schema,
            ),
            true,
        ),
        (
            chain(
                DEFS,
                |n| format!(r##""{n}": {{"items": {{"$ref": "#/$defs/{}"}}}},"##, n + 1),
                schema,
            ),
            false,
        ),
    ];
    let grammars = grammars();
    for (grammar, is_sound) in rows {
        let name: String = grammar.chars().take(60).collect();
        let found = grammars.compile(&grammar);
        assert_eq!(found.is_ok(), is_sound, "{name}: {found:?}");
        let Ok(mut constraint) = found else { continue };
        // What follows it runs on ordinary stacks.
        let mask = constraint.fork().mask().unwrap();
        let next = (0..VOCAB as u32).find(|token| mask.allows(*token)).unwrap();
        constraint.mask().unwrap();
        constraint.take(next).unwrap();
    }
    assert!(
        grammars
            .compile(&"x".repeat(GRAMMAR_BYTES_MAX + 1))
            .is_err()
    );
}

#[test]
fn a_grammar_goes_on_from_what_was_said_before_it() {
    let lark = "start: GAP? \"{é\" (\"a\" | \"b\") \"}\"\nGAP: /[ \\n]{1,4}/\n";
    for said in ["", "\n{", "{\u{e9}", " {éa", "{éb}"] {
        let mut constraint = grammars().compile(lark).unwrap();
        constraint.take_bytes(said.as_bytes()).unwrap();
        let rest = "{éb}".strip_prefix(said.trim_start());
        let next = rest.and_then(|rest| rest.bytes().next());
        assert_eq!(constraint.may_end().unwrap(), said == "{éb}", "{said:?}");
        if let Some(next) = next.filter(|_| !said.ends_with('a')) {
            assert!(
                constraint.mask().unwrap().allows(u32::from(next)),
                "{said:?}"
            );
        }
    }
    // Half a character is there.
    let mut constraint = grammars().compile(lark).unwrap();
    constraint.take_bytes(&"{é".as_bytes()[..2]).unwrap();
    let mask = constraint.mask().unwrap();
    let last = u32::from("é".as_bytes()[1]);
    let allowed: Vec<u32> = (0..VOCAB as u32).filter(|id| mask.allows(*id)).collect();
    assert_eq!(allowed, [last]);
    for wrong in ["x", "{x", "{éab", "{éa}}"] {
        let mut constraint = grammars().compile(lark).unwrap();
        assert!(constraint.take_bytes(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

/// An object of so many optional properties.
fn wide(properties: usize) -> String {
    let names: Vec<String> = (0..properties).map(|n| format!("\"p{n}\": {{}}")).collect();
    let names = names.join(", ");
    format!("%json {{\"type\": \"object\", \"properties\": {{{names}}}}}")
}

#[test]
fn what_no_text_can_be_is_refused_before_anything_is_said() {
    let circle = r##"{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}"##;
    for schema in [r##"{"$ref": "#"}"##, circle] {
        let refused = grammars().compile(&format!("start: %json {schema}"));
        assert_eq!(refused.unwrap_err().to_string(), "no text is of this form");
    }
    assert!(follows(&format!("start: {}", wide(2_000)), r#"{"p7":1}"#));
    // Behind its brace there are too many ways to go on.
    assert!(
        grammars()
            .compile(&format!("start: {}", wide(9_000)))
            .is_err()
    );
}

#[test]
fn a_large_grammar_at_work_delays_no_small_one() {
    let grammars = grammars();
    let large = grammars.large.lock().unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(grammars.compile("start: \"a\"").is_ok()));
        let small = ended.recv_timeout(std::time::Duration::from_secs(60));
        drop(large);
        assert_eq!(small, Ok(true));
    });
}
