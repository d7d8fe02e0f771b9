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

/// A line that runs, how it got there, and what it claims of names.
type Ran<'a> = (usize, Via, &'a [(&'a str, i64)]);

/// A certificate of `code` whose trace goes through these lines, each with what it claims of names.
fn traced(code: &str, trace: &[Ran<'_>]) -> Result<Ends, String> {
    let lines: Vec<&str> = code.lines().collect();
    let premises = lines.iter().zip(1..).map(|(text, line)| Premise {
        id: line.to_string(),
        file: "a.py".to_owned(),
        version: Version::After,
        line_from: line,
        line_to: line,
        quote: (*text).to_owned(),
        claim: String::new(),
    });
    let count = trace.len();
    let steps = trace.iter().enumerate();
    let steps = steps.map(|(at, (line, via, binds))| Step {
        premise: line.to_string(),
        via: *via,
        binds: binds
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect(),
        holds: (at + 1 == count).then_some(true),
    });
    let (start, ..) = trace[0];
    let certificate = Certificate {
        premises: premises
            .filter(|premise| !premise.quote.is_empty())
            .collect(),
        tests: vec![TestTrace {
            id: "t".to_owned(),
            steps: steps.collect(),
            claim: Ends::Pass,
        }],
        conclusion: Ends::Pass,
        counterexample: None,
    };
    let changed = Changed::between(Vec::new(), vec![file("a.py", code)]);
    let tests = [TestPlace {
        id: "t".to_owned(),
        file: "a.py".to_owned(),
        line: start,
    }];
    check(&certificate, &changed, &tests)
}

/// A test of one function: its body, what it is called with, what its lines claim, and the assertion.
fn straight(body: &[(&str, &[(&str, i64)])], asserts: &str) -> Result<Ends, String> {
    use Via::{Call, Next, Return, Start};
    let mut code = "def f(x):\n".to_owned();
    body.iter()
        .for_each(|(line, _)| code += &format!("    {line}\n"));
    let test = body.len() + 3;
    code += &format!("\ndef t():\n    r = f(1)\n    {asserts}\n");
    let mut trace: Vec<Ran<'_>> = vec![(test, Start, &[]), (test + 1, Next, &[]), (1, Call, &[])];
    trace.extend(
        body.iter()
            .zip(2..)
            .map(|((_, binds), line)| (line, Next, *binds)),
    );
    trace.extend([(test + 1, Return, &[][..]), (test + 2, Next, &[])]);
    traced(&code, &trace)
}

#[test]
fn what_is_computed_is_computed() {
    let augmented: &[(&str, &[(&str, i64)])] = &[("x += 1", &[("x", 2)]), ("return x", &[])];
    assert_eq!(straight(augmented, "assert r == 2"), Ok(Ends::Pass));
    assert!(
        straight(augmented, "assert r == 1")
            .unwrap_err()
            .contains("is 0 and not 1")
    );
    let lying: &[(&str, &[(&str, i64)])] = &[("x += 1", &[("x", 1)]), ("return x", &[])];
    assert!(
        straight(lying, "assert r == 1")
            .unwrap_err()
            .contains("x is 2 and not 1")
    );
}

#[test]
fn what_cannot_be_computed_is_not_believed() {
    let one = |line: &'static str| [(line, &[][..]), ("return x", &[])];
    for line in [
        "x, y = 2, 3",
        "x = y = 2",
        "x.z = 2",
        "x[0] = 2",
        "for x in range(3): pass",
        "while x > 3: x = 2",
        "with open('a') as x: pass",
        "raise ValueError(x)",
        "global x",
        "del x",
        "(x := 2)",
        "try:",
    ] {
        let told = straight(&one(line), "assert r == 1");
        assert!(told.is_err(), "{line}: {told:?}");
    }
    for (value, asserts) in [
        ("return 'a' + 'b'", "assert r == 'ab'"),
        ("return 0.5", "assert r == 0.5"),
        ("return [x]", "assert len(r) == 1"),
        ("return g(x)", "assert r == 7"),
        ("return 3 > 2 > 1", "assert r == 1"),
    ] {
        let told = straight(&[(value, &[])], asserts);
        assert!(told.is_err(), "{value}: {told:?}");
        // Nor is what the trace says of it.
        let told = straight(&[(value, &[("return", 7)])], "assert r == 7");
        assert!(told.is_err(), "{value}: {told:?}");
    }
}

#[test]
fn no_branch_is_entered_that_would_not_run() {
    use Via::{Next, Start};
    let code = "def t():\n    x = 1\n    if x > 0:\n        y = 1\n    elif x > 5:\n        y = 2\n    else:\n        y = 3\n    assert y == 1\n";
    let trace = |lines: &[usize]| {
        let steps = lines.iter().enumerate();
        let steps = steps.map(|(at, line)| (*line, if at == 0 { Start } else { Next }, &[][..]));
        traced(code, &steps.collect::<Vec<_>>())
    };
    assert_eq!(trace(&[1, 2, 3, 4, 9]), Ok(Ends::Pass));
    let other = code.replace("y == 1", "y == 3");
    let lie = |lines: &[usize]| {
        let steps = lines.iter().enumerate();
        let steps = steps.map(|(at, line)| (*line, if at == 0 { Start } else { Next }, &[][..]));
        traced(&other, &steps.collect::<Vec<_>>())
    };
    for lines in [
        &[1, 2, 3, 4, 7, 8, 9][..],
        &[1, 2, 3, 8, 9],
        &[1, 2, 3, 7, 8, 9],
    ] {
        assert!(lie(lines).is_err(), "{lines:?}");
    }
    let unknown = code.replace("x = 1", "x = z");
    let steps = [(1, Start), (2, Next), (3, Next), (4, Next), (9, Next)];
    let told = traced(&unknown, &steps.map(|(line, via)| (line, via, &[][..])));
    assert!(told.unwrap_err().contains("not something that is computed"));
    // A skipped elif might have run.
    let skipped = code.replace("x > 0", "x > 1").replace("x > 5", "x > 0");
    let steps = [(1, Start), (2, Next), (3, Next), (9, Next)];
    assert!(traced(&skipped, &steps.map(|(line, via)| (line, via, &[][..]))).is_err());
}

#[test]
fn names_with_several_meanings_are_not_followed() {
    use Via::{Call, Next, Return, Start};
    let trace: [Ran<'_>; 6] = [
        (4, Start, &[]),
        (5, Next, &[]),
        (1, Call, &[]),
        (2, Next, &[]),
        (5, Return, &[]),
        (6, Next, &[]),
    ];
    let code = |more: &str| {
        format!("def f(x):\n    return x\n\ndef t():\n    r = f(1)\n    assert r == 1\n{more}")
    };
    assert_eq!(traced(&code(""), &trace), Ok(Ends::Pass));
    for more in ["\ndef f(x):\n    return 2\n", "\nf = abs\n"] {
        assert!(traced(&code(more), &trace).is_err(), "{more}");
    }
    let twice = code("")
        .replace("r = f(1)", "r = f(1) + f(2)")
        .replace("r == 1", "r == 2");
    assert!(traced(&twice, &trace).is_err());
    let decorated = format!("@double\n{}", code(""));
    let moved = trace.map(|(line, via, binds)| (line + 1, via, binds));
    assert!(traced(&decorated, &moved).is_err());
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
    assert_eq!(pay(&buckets, "few"), None, "too few to be sure");
    for executed in 0..config.audits_min {
        assert_eq!(pay(&buckets, "new"), None, "after {executed}");
        buckets.note("new", true);
    }
    assert_eq!(pay(&buckets, "new"), Some(21.0 / 22.0));
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
