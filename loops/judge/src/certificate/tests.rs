#![allow(clippy::unwrap_used)]

use super::corpus::{Fault, Measured, measure, sample};
use super::*;

#[test]
fn sound_certificates_pass_and_broken_ones_do_not() {
    let Measured {
        sound,
        broken,
        missed,
    } = measure(300);
    println!("sound {sound:?}, broken {broken:?}, missed {missed:?}");
    let first = sample(0);
    assert_eq!(
        check(&first.certificate, &first.changed, &first.tests),
        Ok(first.certificate.conclusion)
    );
    assert_eq!(sound.0, sound.1, "every sound one is accepted");
    assert!(broken.0 > 5_000);
    assert!(broken.1 as f64 >= 0.99 * broken.0 as f64, "{broken:?}");
    let lies = [
        Fault::ConclusionFlipped,
        Fault::LieFluent,
        Fault::QuoteEdited,
    ];
    assert!(
        missed.iter().all(|fault| !lies.contains(fault)),
        "{missed:?}"
    );
}

fn file(path: &str, text: &str) -> SourceFile {
    SourceFile {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

const DIFF: &str = "Here it is:\n```diff\n--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n def f(a):\n-    return a\n+    return a + 1\n```\n";

#[test]
fn the_change_is_read_from_the_answer_and_applied() {
    let files = [file("x.py", "def f(a):\n    return a\n")];
    let case = Case::new(DIFF, &files, &[]);
    let changed = case.changed.clone().unwrap();
    assert_eq!(changed.after[0].text, "def f(a):\n    return a + 1\n");
    let hunk = Hunk {
        file: "x.py".to_owned(),
        before: (2, 2),
        after: (2, 2),
    };
    assert_eq!(changed.hunks, [hunk]);
    let messages = case.messages(Uuid::from_u128(7)).unwrap();
    assert!(
        messages[1].content.contains("2:     return a + 1\n"),
        "{}",
        messages[1].content
    );

    let other = [file("x.py", "def g():\n    pass\n")];
    let unfit = Case::new(DIFF, &other, &[]).changed;
    assert!(matches!(unfit, Err(Unusable::DoesNotApply(_))), "{unfit:?}");
    for answer in ["I would add one.", "```py\nx = 1\n```"] {
        let none = Case::new(answer, &files, &[]).changed;
        assert!(matches!(none, Err(Unusable::NoChange(_))), "{none:?}");
    }
}

#[test]
fn what_differs_too_much_is_not_compared() {
    let text = |from: usize, lines: usize| -> String {
        (from..from + lines).map(|n| format!("{n}\n")).collect()
    };
    let rewritten = |lines: usize| {
        let (old, new) = (text(0, lines), text(lines, lines));
        let minus: String = old.lines().map(|line| format!("-{line}\n")).collect();
        let plus: String = new.lines().map(|line| format!("+{line}\n")).collect();
        let diff = format!("--- a/x\n+++ b/x\n@@ -1,{lines} +1,{lines} @@\n{minus}{plus}");
        Case::new(&diff, &[file("x", &old)], &[]).changed
    };
    assert_eq!(rewritten(500).unwrap().hunks.len(), 1);
    let large = rewritten(12_000);
    assert!(matches!(large, Err(Unusable::TooLarge(_))), "{large:?}");

    // Two lines far apart in a long file are few edits.
    let old = text(0, 12_000);
    let diff = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-0\n+a\n@@ -12000 +12000 @@\n-11999\n+b\n";
    let changed = Case::new(diff, &[file("x", &old)], &[]).changed.unwrap();
    assert_eq!(changed.hunks.len(), 2);
}

#[test]
fn files_come_and_go_with_a_change() {
    let files = [file("x.py", "a = 1\n")];
    let new = "--- /dev/null\n+++ b/y.py\n@@ -0,0 +1 @@\n+b = 2\n";
    let changed = Case::new(new, &files, &[]).changed.unwrap();
    assert_eq!(changed.after[1], file("y.py", "b = 2\n"));
    assert_eq!(
        (changed.hunks[0].after, changed.hunks[0].before),
        ((1, 1), (1, 0))
    );
    let gone = "--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a = 1\n";
    let changed = Case::new(gone, &files, &[]).changed.unwrap();
    assert!(changed.after.is_empty());
    assert_eq!(changed.hunks[0].before, (1, 1));
}

#[test]
fn a_certificate_is_found_in_words() {
    let certificate = sample(3).certificate;
    let json = serde_json::to_string(&certificate).unwrap();
    let words = format!("Let me see {{maybe}}.\n```json\n{json}\n```");
    assert_eq!(parse(&words), Ok(certificate));
    assert!(parse("no").is_err());
    assert!(parse(r#"{"premises": 3}"#).unwrap_err().contains("form"));
}

#[test]
fn other_languages_are_followed_too() {
    let code = "fn double(x: i64) -> i64 {\n    let y = x * 2;\n    y\n}\n\n#[test]\nfn t() {\n    assert_eq!(double(2), 4);\n}\n";
    let changed = Changed::between(Vec::new(), vec![file("a.rs", code)]);
    let lines: Vec<&str> = code.lines().collect();
    let premise = |line: usize| Premise {
        id: line.to_string(),
        file: "a.rs".to_owned(),
        version: Version::After,
        line_from: line,
        line_to: line,
        quote: lines[line - 1].to_owned(),
        claim: String::new(),
    };
    let step = |line: usize, via, holds| Step {
        premise: line.to_string(),
        via,
        binds: Default::default(),
        holds,
    };
    let steps = vec![
        step(7, Via::Start, None),
        step(8, Via::Next, None),
        step(1, Via::Call, None),
        step(2, Via::Next, None),
        step(3, Via::Next, None),
        step(8, Via::Return, Some(true)),
    ];
    let tests = [TestPlace {
        id: "t".to_owned(),
        file: "a.rs".to_owned(),
        line: 7,
    }];
    let mut certificate = Certificate {
        premises: [1, 2, 3, 7, 8].map(premise).to_vec(),
        tests: vec![TestTrace {
            id: "t".to_owned(),
            steps,
            claim: Ends::Pass,
        }],
        conclusion: Ends::Pass,
        counterexample: None,
    };
    assert_eq!(check(&certificate, &changed, &tests), Ok(Ends::Pass));
    certificate.tests[0].steps.remove(3);
    assert!(check(&certificate, &changed, &tests).is_err());
}

#[test]
fn pay_is_the_measured_share_and_an_unfit_bucket_gets_none() {
    let config = PayConfig::default();
    let counts = |bucket: &str, agreed, executed| AuditCount {
        bucket: bucket.to_owned(),
        agreed,
        executed,
    };
    let mut buckets = Buckets::new([
        counts("good", 99, 99),
        counts("coin", 20, 40),
        counts("few", 0, 3),
    ]);
    let pay = |buckets: &Buckets, name: &str| buckets.pay(name, &config);
    assert!((pay(&buckets, "good").unwrap() - 100.0 / 101.0).abs() < 1e-9);
    assert_eq!(pay(&buckets, "coin"), None);
    assert_eq!(pay(&buckets, "few"), Some(0.2), "too few to be sure");
    assert_eq!(pay(&buckets, "new"), Some(0.5));
    buckets.note("new", true);
    assert_eq!(pay(&buckets, "new"), Some(2.0 / 3.0));
}

/// Three hundred audits of a judge that is right in a known share of cases.
#[test]
fn pay_comes_close_to_the_true_share() {
    for (percent, seed) in [(97u64, 1u64), (85, 2), (70, 3)] {
        let (mut buckets, mut state) = (Buckets::default(), seed);
        for _ in 0..300 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            buckets.note("b", (state >> 33) % 100 < percent);
        }
        let pay = buckets.pay("b", &PayConfig::default()).unwrap();
        // Four standard errors of a share of 300.
        let share = percent as f64 / 100.0;
        let error = 4.0 * (share * (1.0 - share) / 300.0).sqrt();
        assert!((pay - share).abs() < error, "{pay} for {share}");
    }
}
