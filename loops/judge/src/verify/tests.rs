#![allow(clippy::unwrap_used)]

use hone_domain::{NextItem, SourceFile, TestPlace};
use serde_json::{Value, json};

use super::finding::EVIDENCE_CHARS_MAX;
use super::*;
use crate::testing::turn;

fn told(completion: &str, results: &[&str], check: &Value) -> (Outcome, String) {
    let verifier: Verifier = serde_json::from_value(check.clone()).unwrap();
    check_verifier(&verifier).unwrap();
    let mut turn = turn(1);
    turn.completion_text = completion.to_owned();
    let name = "c".to_owned();
    turn.admission.checks = vec![Check { name, verifier }];
    let (findings, jobs) = Rules::default().look(&turn, &answered(results));
    assert!(jobs.is_empty());
    let vote = findings[0].vote.clone();
    assert_eq!(vote.signal, Signal::Verifier);
    (vote.outcome, vote.reason)
}

fn answered(results: &[&str]) -> NextState {
    let item = |text: &&str| NextItem {
        kind: NextKind::ToolResult,
        text: (*text).to_owned(),
        failed: None,
    };
    NextState {
        items: results.iter().map(item).collect(),
    }
}

type Row<'a> = (&'a str, &'a [&'a str], &'a Value, Outcome, &'a str);

fn check_all(rows: &[Row]) {
    for (completion, results, check, outcome, evidence) in rows {
        let (got, why) = told(completion, results, check);
        assert_eq!(got, *outcome, "{completion} {results:?} {check}: {why}");
        assert!(why.contains(evidence), "{why} has not {evidence}");
        assert!(why.chars().count() <= EVIDENCE_CHARS_MAX);
    }
}

#[test]
fn results_tell_by_their_exit_code_or_their_report() {
    use Outcome::{Abstain, Bad, Good};
    let code = json!({"kind": "exit_code"});
    let report = json!({"kind": "test_report"});
    check_all(&[
        ("", &["ok\nexit code: 0"], &code, Good, "c: exit code 0"),
        (
            "",
            &["exit code: 0", "exit code: 3"],
            &code,
            Bad,
            "c: exit code 3",
        ),
        (
            "",
            &[r#"{"exit_code": 1, "out": "exit code: 0"}"#],
            &code,
            Bad,
            "exit code 1",
        ),
        ("", &["done"], &code, Abstain, "no exit code"),
        ("", &[], &code, Abstain, "no result"),
        (
            "",
            &["=== 3 passed in 0.1s ==="],
            &report,
            Good,
            "3 of 3 tests passed",
        ),
        (
            "",
            &["FAILED a.py::b - x\n=== 1 failed, 2 passed in 0.1s ==="],
            &report,
            Bad,
            "2 of 3 tests passed; failed: a.py::b",
        ),
        (
            "",
            &["test result: ok. 0 passed; 0 failed; 0 ignored"],
            &report,
            Abstain,
            "no test ran",
        ),
    ]);
}

#[test]
fn every_kind_tells_good_from_bad_and_says_why() {
    use Outcome::{Abstain, Bad, Good};
    let schema = json!({"kind": "json_schema", "schema": {
        "type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}});
    let number = json!({"kind": "numeric", "expected": 2.54, "tolerance": 0.01});
    let exact = json!({"kind": "exact", "expected": "Paris", "ignore_case": true});
    let pattern = json!({"kind": "regex", "pattern": "^\\d{4}$"});
    let called = json!({"kind": "json_schema", "of": "call", "schema": {"required": ["path"]}});
    let call = |arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"read\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let (fits, misses) = (call("{\"path\": \"a\"}"), call("{\"file\": \"a\"}"));
    let long = "x".repeat(5_000);
    check_all(&[
        ("{\"n\": 3}", &[], &schema, Good, "fits"),
        ("```json\n{\"n\": 3}\n```", &[], &schema, Good, "fits"),
        (
            "<think>no json</think>{\"n\": 3}",
            &[],
            &schema,
            Good,
            "fits",
        ),
        ("{\"n\": 3.5}", &[], &schema, Bad, "schema"),
        ("three", &[], &schema, Bad, "not JSON"),
        ("about 2.545", &[], &number, Good, "2.545 is 2.54"),
        ("about 3", &[], &number, Bad, "3 is not 2.54"),
        ("pi", &[], &number, Bad, "no number"),
        ("The capital is \\boxed{PARIS}.", &[], &exact, Good, "is"),
        ("Paris, I think", &[], &exact, Bad, "is not"),
        (&long, &[], &exact, Bad, "is not"),
        ("", &[], &exact, Abstain, "no answer"),
        ("1999", &[], &pattern, Good, "matches"),
        ("in 1999", &[], &pattern, Bad, "nothing matches"),
        (&fits, &[], &called, Good, "fits"),
        (&misses, &[], &called, Bad, "path"),
        ("none", &[], &called, Abstain, "no such call"),
    ]);
}

#[test]
fn what_cannot_be_used_is_refused_with_its_reason() {
    for (check, why) in [
        (
            json!({"kind": "regex", "pattern": "("}),
            "not a regular expression",
        ),
        (
            json!({"kind": "regex", "pattern": "(a{999}){999}"}),
            "not a regular expression",
        ),
        (
            json!({"kind": "json_schema", "schema": {"type": "nonsense"}}),
            "schema",
        ),
        (
            json!({"kind": "json_schema", "schema": {"$ref": "file:///etc/passwd"}}),
            "schema",
        ),
        (
            json!({"kind": "json_schema", "schema": {"$ref": "https://example.com/s.json"}}),
            "schema",
        ),
        (
            json!({"kind": "numeric", "expected": 1.0, "tolerance": -1.0}),
            "tolerance",
        ),
        (
            json!({"kind": "certificate", "files": [], "tests": []}),
            "tests",
        ),
    ] {
        let verifier: Verifier = serde_json::from_value(check.clone()).unwrap();
        let error = check_verifier(&verifier).unwrap_err();
        assert!(error.contains(why), "{check}: {error}");
    }
    for check in [
        json!({"kind": "magic"}),
        json!({"kind": "exit_code", "more": 1}),
    ] {
        assert!(serde_json::from_value::<Verifier>(check).is_err());
    }
}

fn rules(tool: Option<&str>, asked: Option<&str>) -> Rules {
    let rule = Rule {
        name: "r".to_owned(),
        tool: tool.map(str::to_owned),
        asked: asked.map(str::to_owned),
        check: Verifier::ExitCode {},
    };
    Rules::new(&[rule]).unwrap()
}

fn calling(names: &[&str]) -> Turn {
    let call = |name: &&str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{}}}}\n</tool_call>\n")
    };
    let mut turn = turn(1);
    turn.completion_text = names.iter().map(call).collect();
    turn
}

#[test]
fn rules_choose_turns_by_tool_and_question_and_results_by_their_place() {
    use Outcome::{Abstain, Bad, Good};
    let shell = || rules(Some("shell*"), None);
    let both = ["exit code: 1", "exit code: 0"];
    for (rules, names, results, expected) in [
        (
            shell(),
            &["shell_run"][..],
            &["exit code: 0"][..],
            Some(Good),
        ),
        (shell(), &["my_shell"], &["exit code: 0"], None),
        (shell(), &["read", "shell"], &both, Some(Good)),
        (shell(), &["shell", "read"], &both, Some(Bad)),
        (shell(), &["read", "shell"], &both[..1], Some(Abstain)),
        (shell(), &["shell", "shell"], &both[..1], Some(Bad)),
        (
            rules(None, Some("(?i)moon")),
            &["any"],
            &["exit code: 0"],
            Some(Good),
        ),
        (rules(None, Some("sun")), &["any"], &["exit code: 0"], None),
    ] {
        let (findings, _) = rules.look(&calling(names), &answered(results));
        let outcome = findings.first().map(|found| found.vote.outcome);
        assert_eq!(outcome, expected, "{names:?} {results:?}");
    }
    let wrong = Rule {
        name: "r".to_owned(),
        tool: None,
        asked: Some("(".to_owned()),
        check: Verifier::ExitCode {},
    };
    assert!(
        Rules::new(&[wrong])
            .unwrap_err()
            .contains("judge.verifiers \"r\"")
    );
}

#[test]
fn one_bad_check_decides_and_abstentions_do_not() {
    use Outcome::{Abstain, Bad, Good, Neutral};
    let found = |outcome| finding("c", outcome, "");
    let paid = |score| Finding {
        score: Some(score),
        ..found(Good)
    };
    let argued = |score| Finding {
        is_argued: true,
        ..paid(score)
    };
    for (findings, score) in [
        (vec![], None),
        (vec![found(Abstain)], None),
        (vec![found(Good), found(Abstain)], Some(1.0)),
        (vec![found(Good), found(Bad)], Some(-1.0)),
        (vec![found(Good), found(Neutral)], Some(0.0)),
        (vec![found(Good), paid(0.75)], Some(0.75)),
        (vec![found(Good), argued(-0.9)], Some(1.0)),
        (vec![found(Abstain), argued(-0.9)], Some(-0.9)),
    ] {
        let decision = decide(&findings);
        assert_eq!(
            decision.as_ref().and_then(|d| d.score),
            score,
            "{findings:?}"
        );
        assert!(decision.is_none_or(|d| d.by == Some(Signal::Verifier)));
    }
}

#[test]
fn callbacks_and_certificates_are_left_to_others() {
    let certificate = Verifier::Certificate {
        files: vec![SourceFile {
            path: "a".to_owned(),
            text: "x\n".to_owned(),
        }],
        tests: vec![TestPlace {
            id: "t".to_owned(),
            file: "a".to_owned(),
            line: 1,
        }],
    };
    let callback = Verifier::Callback {
        url: "http://127.0.0.1:9/".to_owned(),
        secret_env: "SECRET".to_owned(),
        deadline_ms: 10,
    };
    let mut turn = turn(1);
    let check = |verifier| Check {
        name: "c".to_owned(),
        verifier,
    };
    turn.admission.checks = vec![check(certificate), check(callback)];
    assert!(!turn.is_checked_at_once(), "a callback may want the answer");
    let (findings, jobs) = Rules::default().look(&turn, &answered(&["done"]));
    assert!(findings.is_empty());
    let [(_, Job::Certify(_)), (_, Job::Call(calling))] = &jobs[..] else {
        panic!("{jobs:?}");
    };
    assert_eq!(calling.body["next_state"], "[tool result]\ndone");
    assert_eq!(calling.body["messages"][0]["role"], "user");
}

#[test]
fn a_reply_counts_only_within_its_range() {
    let reply = |score| CallReply {
        score,
        reason: "why".to_owned(),
        hint: Some("do it".to_owned()),
    };
    for (score, outcome, counts) in [
        (Some(0.5), Outcome::Good, Some(0.5)),
        (Some(-1.0), Outcome::Bad, Some(-1.0)),
        (Some(0.0), Outcome::Neutral, Some(0.0)),
        (Some(2.0), Outcome::Abstain, None),
        (Some(f64::NAN), Outcome::Abstain, None),
        (None, Outcome::Abstain, None),
    ] {
        let found = read_reply("c", Ok(reply(score)));
        assert_eq!(
            (found.vote.outcome, found.score),
            (outcome, counts),
            "{score:?}"
        );
    }
    let late = read_reply("c", Err("no answer within 10 ms".to_owned()));
    assert_eq!(late.vote.reason, "c: no answer within 10 ms");
}
