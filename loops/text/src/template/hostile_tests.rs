//! Templates that would take much time, memory or stack if one check were missing.
#![allow(clippy::unwrap_used)]
use serde_json::json;

use super::*;

/// Renders with a budget so small that a check of each step ends the rendering soon.
fn render(source: &str) -> Result<String, TemplateError> {
    let mut template = ChatTemplate::new(source, Map::new())?;
    template.limits.work_bytes = 16 << 20;
    let mut extra = Map::new();
    extra.insert("s".to_owned(), json!("x".repeat(100_000)));
    extra.insert("m".to_owned(), json!(-2));
    template.render(&[], None, true, &extra)
}

fn check_over(source: &str) {
    let shown: String = source.chars().take(200).collect();
    let ended = render(source);
    assert!(
        matches!(ended, Err(TemplateError::OverLimit(_))),
        "{shown}: {ended:?}"
    );
}

/// Puts an expression into a loop.
fn looped(expression: &str) -> String {
    format!("{{% for i in range(99999) %}}{{{{ {expression} }}}}{{% endfor %}}")
}

#[test]
fn every_operation_is_charged() {
    for expression in [
        "s|max",
        "([0] * 100000000)[-1]",
        "s[:1]",
        "s[::-1][:1]",
        "{'a': 1, 'b': 2}[s]",
    ] {
        check_over(&looped(expression));
    }
    let list = "0, ".repeat(1000);
    check_over(&looped(&format!("([{list}] + [{list}])[-1]")));
    for (before, expression) in [
        ("{% set l = range(9999)|list %}", "l[:1]"),
        ("{% set t = (s, 1) %}{% set d = {'a': 1} %}", "d[t]"),
        ("{% set t = (s, 1) %}{% set d = {'a': 1} %}", "d.get(t)"),
        ("{% set l = [['x' * 2000, 0]] * 50 %}", "dict(l)|length"),
    ] {
        check_over(&(before.to_owned() + &looped(expression)));
    }
    for source in [
        "{{ ['xxxxxxxxxx'] * 100000000 ~ '' }}",
        "{{ 9 * 'x' * 99999999 }}{{ [0] * 9 * 99999999 }}",
        "{{ range(9999)|map(attribute='.' * 1000, default={})|list }}",
        "{% set f = dict %}{{ f([]) }}",
        "{{ (dict if dict is defined)([]) }}",
        "{{ raise_exception([s] * 9999) }}",
    ] {
        check_over(source);
    }
}

#[test]
fn the_prompt_has_a_longest_length() {
    let source = |body: &str| format!("{{% set t = 'x' * 8000000 %}}{body}");
    for body in [
        "{{ t }}{{ t }}",
        "{% for i in range(99) %}{{ t }}{% endfor %}",
        "{% set u %}{% for i in range(99) %}{{ t }}{% endfor %}{% endset %}",
    ] {
        let template = ChatTemplate::new(&source(body), Map::new()).unwrap();
        let ended = template.render(&[], None, true, &Map::new());
        assert!(matches!(ended, Err(TemplateError::OverLimit(_))), "{body}");
    }
}

#[test]
fn long_chains_are_refused_and_shorter_ones_fit_the_stack() {
    let chains = [
        ("a", " + a"),
        ("a", " * a"),
        ("a", " ~ a"),
        ("a", " and a"),
        ("a", " if a"),
        ("a", " if a else a"),
        ("a", " == (a)"),
        ("a", ".a"),
        ("a", "[0]"),
        ("a", "()"),
        ("a", "|string"),
        ("a", " is defined"),
        ("1", " + 1"),
        ("not ", "not "),
        ("- ", "- "),
    ];
    for (first, more) in chains {
        let chain = |times| {
            let last = if first.ends_with(' ') { "a" } else { "" };
            format!("{first}{}{last}", more.repeat(times))
        };
        check_over(&format!("{{{{ {} }}}}", chain(20_000)));
        let nested = format!("{}{}{}", "[".repeat(60), chain(60), "]".repeat(60));
        for inside in [chain(90), nested] {
            let ended = ChatTemplate::new(&format!("{{{{ {inside} }}}}"), Map::new());
            assert!(ended.is_ok(), "{inside}: {ended:?}");
        }
    }
    let branches = |times| format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(times));
    check_over(&branches(20_000));
    assert_eq!(render(&branches(190)).as_deref(), Ok(""));
    check_over(&format!("{{{{ {} }}}}", "a".repeat(5000)));
    let wide = format!("{{{{ [{}]|length }}}}", "1 + 1, ".repeat(2000));
    assert_eq!(render(&wide).as_deref(), Ok("2000"));
}

#[test]
fn extreme_values_end_as_in_python_or_in_an_error() {
    let many: String = (0..5000).map(|i| format!("{i}: {i}, ")).collect();
    let large_map = format!("{{% set d = {{{many}}} %}}{{{{ d == d }}}}");
    for (source, expected) in [
        ("{% set a = [] %}{{ a * 9223372036854775807 }}", Some("[]")),
        ("{% set a = () %}{{ a * 9223372036854775807 }}", Some("()")),
        ("{{ 'abc'[::m ** 127] }}", Some("c")),
        ("{{ range(5)[::m ** 127]|list }}", Some("[4]")),
        ("{{ range(5)[1::2 ** 126]|list }}", Some("[1]")),
        ("{{ range(9)[::2][::-1]|list }}", Some("[8, 6, 4, 2, 0]")),
        (
            "{% set y = 2 ** 126 - 1 + 2 ** 126 %}{{ 'abc'|truncate(y, leeway=y) }}",
            Some("abc"),
        ),
        ("{{ -(m ** 127) }}", None),
        ("{{ 1|round(m ** 127) }}", None),
        ("{{ 'abc'|truncate(m ** 127) }}", None),
        (&large_map, Some("True")),
        (
            "{{ {1: 'a'}[true] }}{{ {true: 'b'}[1.0] }}{{ {0: 'c'}[false] }}{{ 1.0 in {1: 0} }}",
            Some("abcTrue"),
        ),
        (
            "{{ {1: 'a', 2: 'b'}.get(true) }}{{ {2: 'b'}[true] is defined }}",
            Some("aFalse"),
        ),
        (
            "{{ 'ab' * 2 + 'c' }} {{ [1] + [2] * 2 }} {{ -2 * 3 }} {{ 2 ** 3 * 2 }} {{ (1) + 2 }}",
            Some("ababc [1, 2, 2] -6 16 3"),
        ),
    ] {
        let ended = render(source);
        match expected {
            Some(text) => assert_eq!(ended.as_deref(), Ok(text), "{source}"),
            None => assert!(
                matches!(ended, Err(TemplateError::Failed(_))),
                "{source}: {ended:?}"
            ),
        }
    }
}

#[test]
fn broken_tags_are_errors() {
    for source in [
        "{%}",
        "{%",
        "a{%}{% generation %}b",
        "{%-%}",
        "{% generation %}{%}",
    ] {
        let ended = ChatTemplate::new(source, Map::new());
        assert!(matches!(ended, Err(TemplateError::Failed(_))), "{source}");
    }
}
