//! Templates that once cost far more than they were charged for. Without its fix, a row hangs,
//! fills the memory, panics, or ends in another way than it says.
#![allow(clippy::unwrap_used)]
use super::*;

#[derive(Debug)]
enum End {
    Text(&'static str),
    Over,
    Failed,
}
use End::{Failed, Over, Text};

/// Renders with a budget of `work_mib`, so that little is enough to go over it.
fn check(work_mib: usize, source: &str, expected: &End) {
    let rendered = ChatTemplate::new(source, Map::new()).and_then(|mut template| {
        template.limits.work_bytes = work_mib << 20;
        template.render(&[], None, true, &Map::new())
    });
    let as_expected = match (&rendered, expected) {
        (Ok(text), Text(expected)) => text == expected,
        (Err(TemplateError::OverLimit(_)), Over) | (Err(TemplateError::Failed(_)), Failed) => true,
        _ => false,
    };
    let start: String = source.chars().take(200).collect();
    assert!(as_expected, "{start}\n    {expected:?}, not {rendered:?}");
}

const GIVEN: &str = "{% set nan = 'nan' | float %}{% set big = 2.0 | int %}{% set big = big ** 100 %}\
    {% set many = 20000 %}";

fn check_all(work_mib: usize, rows: &[(&str, End)]) {
    for (source, expected) in rows {
        check(work_mib, &format!("{GIVEN}{source}"), expected);
    }
}

#[test]
fn filters_are_charged_for_what_they_make_of_each_item() {
    check_all(
        64,
        &[
            (
                "{% set many = 4000000 %}{% set text = 'ab' * many %}\
                 {{ ([[0, 0]] * 1000) | map('tojson', separators=(text, ':')) | first }}",
                Over,
            ),
            (
                "{% set many = 500000 %}{% set some = 'ab' * many %}{% set many = 20000 %}\
                 {{ ([some] * 20) | map('list') | first }}",
                Over,
            ),
            (
                "{% set many = 500000 %}{% set some = 'ab' * many %}{% set many = 20000 %}\
                 {{ [{'a': some}] | sort(attribute='a,' * many ~ 'a') }}",
                Over,
            ),
            (
                "{{ range(20000) | sort(attribute=',' * many) | length }}",
                Over,
            ),
            ("{{ [['a']] | map('map', 'upper') | list }}", Over),
        ],
    );
    let nested = ["'map'"; 1500].join(", ");
    check(64, &format!("{{{{ 'x' | map({nested}) }}}}"), &Over);
}

#[test]
fn what_has_no_order_is_sorted_without_a_panic() {
    check_all(
        64,
        &[
            ("{{ ([3, 'a', 1, 'b'] * 10) | sort }}", Failed),
            (
                "{{ ([3, nan, 1, nan, 2] * 20) | sort | length }}",
                Text("100"),
            ),
            (
                "{{ ([[nan, 1], [1, nan]] * 50) | sort | first }}",
                Text("[nan, 1]"),
            ),
            ("{{ range(-9223372036854775808) }}", Failed),
            ("{{ range(0, 9, -9223372036854775808) }}", Failed),
        ],
    );
    let pair = |i: i32| match i % 2 {
        0 => format!("{i}: 0"),
        _ => format!("'{i}': 0"),
    };
    let dict = (0..50).map(pair).collect::<Vec<_>>().join(", ");
    let source = format!("{{{{ {{{dict}}} | tojson(sort_keys=true) }}}}");
    check(64, &source, &Failed);
}

#[test]
fn sorting_keeps_equal_items_in_order() {
    check_all(
        64,
        &[
            (
                "{{ [[2, 'a'], [1, 'b'], [2, 'c'], [1, 'd'], [0, 'e']] | sort(attribute='0') | map('last') | join }}",
                Text("ebdac"),
            ),
            (
                "{{ [[2, 'a'], [1, 'b'], [2, 'c'], [1, 'd'], [0, 'e']] | sort(true, attribute='0') | map('last') | join }}",
                Text("acbde"),
            ),
            (
                "{{ (range(1000)[::-1] | sort)[::250] }}",
                Text("[0, 250, 500, 750]"),
            ),
            ("{{ [] | sort }}{{ [1] | sort }}", Text("[][1]")),
        ],
    );
}

#[test]
fn keys_with_the_same_hash_are_few() {
    check_all(
        64,
        &[
            ("{{ ([nan] * many) | unique | list | length }}", Over),
            ("{{ ([(nan, 1)] * many) | unique | list | length }}", Over),
            ("{{ dict([[nan, 0]] * many) | length }}", Over),
            (
                "{% set s %}{% for i in range(99) %}{{ big + i }},{% endfor %}{% endset %}\
                 {% set ns = namespace(l=[]) %}{% for i in s.split(',')[:-1] %}{% set ns.l = ns.l + [[i | int, 0]] %}{% endfor %}\
                 {{ dict(ns.l) | length }}",
                Over,
            ),
            (
                "{% for i in range(9) %}{{ ['a', 'b', 'c', 'd'] | unique(attribute='upper') | list }}{% endfor %}",
                Failed,
            ),
            (
                "{{ [nan, 1, 1.0, true, 'a', 'A'] | unique | list }}",
                Text("[nan, 1, 'a']"),
            ),
            ("{{ dict([[big, 1], [(1, 'a'), 2]])[(1, 'a')] }}", Text("2")),
        ],
    );
}

#[test]
fn formats_are_charged_for_each_field() {
    check_all(
        4,
        &[
            (
                "{% set many = 10000 %}{{ ('%(a).0r' * 1000) % {'a': 'ab' * many} }}",
                Over,
            ),
            (
                "{% set many = 10000 %}{{ ('{0!r:.0}' * 1000).format('ab' * many) }}",
                Over,
            ),
            ("{{ ('%(a).999g' * 1000) % {'a': 0.5} }}", Over),
            ("{{ ('{0:.0}' * many * 2).format('a') }}", Over),
            (
                "{{ '%r|%.2r|%5.1a' % ('a', 'b', 'c') }}{{ '{!r:>5.2}'.format('d') }}",
                Text("'a'|'b|    '   'd"),
            ),
        ],
    );
    let names: String = (0..900).map(|i| format!("n{i}='', ")).collect();
    let source = format!("{GIVEN}{{{{ ('{{z}}' * many).format({names}z='') }}}}");
    check(64, &source, &Text(""));
}

#[test]
fn a_long_set_of_characters_is_stripped_at_once() {
    check_all(
        64,
        &[
            (
                "{% set many = 500000 %}{% set some = 'ab' * many %}{% set many = 20000 %}\
                 {% set set = 'y' * many * 40 ~ 'ab' %}{{ some.strip(set) }}|{{ some | trim(set) }}",
                Text("|"),
            ),
            ("{{ 'äbc日x日äb'.strip('0123456789äb日') }}", Text("c日x")),
            (
                "{{ 'äbc日x日äb'.lstrip('0123456789äb日') }}",
                Text("c日x日äb"),
            ),
            ("{{ 'äbc日x日äb'.rstrip('ab日') }}", Text("äbc日x日ä")),
        ],
    );
}
