use super::*;

fn header(lines: &str) -> Result<SkillHeader, HeaderFault> {
    read(&format!("---\n{lines}\n---\n# Body\n"))
}

fn description(value: &str) -> Result<String, HeaderFault> {
    header(&format!("name: a\ndescription: {value}")).map(|header| header.description)
}

#[test]
fn a_whole_header_is_read() {
    let text = "\u{feff}---\nname: pdf-tools  # a comment\n# another\ndescription: >-\n  Reads PDFs.\n  Use it for forms.\n\n\
        license: MIT\ncompatibility: 'Needs poppler''s tools'\nmetadata:\n  author: \"Ann \\u00e9\"\n  version: 1.0\n\
        allowed-tools: Bash(git:*) Read\nmodel:\n  anything: [here, &x]\n---\n\n# Steps\n";
    let header = read(text).expect("a header");
    assert_eq!(header.name, "pdf-tools");
    assert_eq!(header.description, "Reads PDFs. Use it for forms.");
    assert_eq!(header.license.as_deref(), Some("MIT"));
    assert_eq!(
        header.compatibility.as_deref(),
        Some("Needs poppler's tools")
    );
    assert_eq!(header.metadata["author"], "Ann é");
    assert_eq!(header.metadata["version"], "1.0");
    assert_eq!(header.allowed_tools.as_deref(), Some("Bash(git:*) Read"));
    assert_eq!(body_of(text), "\n# Steps\n");
    let windows = read("---\r\nname: a\r\ndescription: b\r\n---\r\nBody").expect("a header");
    assert_eq!(windows.description, "b");
}

#[test]
fn texts_in_every_style_are_read() {
    for (value, text) in [
        ("plain words", "plain words"),
        ("Use when: the person asks", "Use when: the person asks"),
        ("over\n  two lines # with a comment", "over two lines"),
        ("|\n  one\n    two\n\n  three", "one\n  two\n\nthree"),
        (">\n  one\n  two\n\n  three", "one two\nthree"),
        ("\"a \\\"b\\\" \\n c\" # end", "a \"b\" \n c"),
        ("'it''s # no comment'", "it's # no comment"),
        ("C#-code", "C#-code"),
    ] {
        assert_eq!(description(value).as_deref(), Ok(text), "{value}");
    }
    let list = header("name: a\ndescription: b\nallowed-tools:\n- Read\n- Bash").expect("a header");
    assert_eq!(list.allowed_tools.as_deref(), Some("Read Bash"));
}

#[test]
fn what_is_not_so_is_named_with_its_line() {
    let long = "x".repeat(1_025);
    for (lines, line, part) in [
        ("description: b", 1, "name is missing"),
        ("name: a", 1, "description is missing"),
        ("name: a\ndescription: \"\"", 3, "description is empty"),
        (
            &format!("name: a\ndescription: {long}"),
            3,
            "1025 characters; the most is 1024",
        ),
        (
            "name: A-b\ndescription: b",
            2,
            "a-z, 0-9 and single hyphens",
        ),
        ("name: a--b\ndescription: b", 2, "single hyphens"),
        ("name: -a\ndescription: b", 2, "single hyphens"),
        ("name: größe\ndescription: b", 2, "a-z"),
        (
            &format!("name: {}\ndescription: b", "a".repeat(65)),
            2,
            "65 characters; it needs 1 to 64",
        ),
        ("name: a\nname: b\ndescription: c", 3, "name is given twice"),
        ("name: a\n  - b\nwords\ndescription: c", 2, "single hyphens"),
        (
            "name: a\nwords alone\ndescription: c",
            3,
            "write `key: value`",
        ),
    ] {
        let fault = header(lines).expect_err(lines);
        assert_eq!(fault.line, line, "{lines}: {fault}");
        assert!(fault.what.contains(part), "{lines}: {fault}");
    }
}

#[test]
fn what_is_more_than_texts_is_named_with_its_line() {
    for (lines, line, part) in [
        ("  name: a\ndescription: c", 2, "indented"),
        (
            "name: &a x\ndescription: *a",
            2,
            "anchors, aliases and tags",
        ),
        ("name: a\ndescription: *a", 3, "anchors, aliases and tags"),
        (
            "name: a\ndescription: !!python/object:os.system x",
            3,
            "anchors, aliases and tags",
        ),
        ("name: a\ndescription: {a: b}", 3, "needs quotes"),
        (
            "name: a\ndescription: \"open",
            3,
            "closing quote is missing",
        ),
        ("name: a\ndescription: 'x' y", 3, "behind the closing quote"),
        ("name: a\ndescription: \"\\q\"", 3, "escape"),
        ("name: a\ndescription: \"\\ud800\"", 3, "escape"),
        (
            "name: a\ndescription: b\nmetadata: {a: b}",
            4,
            "map of texts",
        ),
        (
            "name: a\ndescription: b\nmetadata:\n  a:\n    b: c",
            5,
            "map of texts",
        ),
        ("name: a\ndescription: b\nmetadata:\n  a: *x", 5, "anchors"),
        (
            "name: a\ndescription: b\nmetadata:\n  a: b\n  a: c",
            6,
            "twice",
        ),
    ] {
        let fault = header(lines).expect_err(lines);
        assert_eq!(fault.line, line, "{lines}: {fault}");
        assert!(fault.what.contains(part), "{lines}: {fault}");
    }
}

#[test]
fn a_file_without_a_header_is_refused() {
    for text in [
        "",
        "# no header",
        "---",
        "---\nname: a\ndescription: b\n",
        " ---\nname: a",
    ] {
        let fault = read(text).expect_err(text);
        assert!(fault.what.contains("three hyphens"), "{text}: {fault}");
    }
}

/// Nothing is expanded, so what would become gigabytes is refused at its first reference, and what is long is not read.
#[test]
fn bombs_are_refused_at_once() {
    let mut bomb = "name: a\ndescription: b\na: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (one, before) in "bcdefghi".chars().zip("abcdefgh".chars()) {
        bomb += &format!("{one}: &{one} [*{before},*{before},*{before},*{before}]\n");
    }
    // Keys that nobody reads are not expanded.
    assert!(header(&bomb).is_ok());
    assert!(header(&format!("{bomb}license: *i")).is_err());
    let deep = format!("name: a\ndescription: {}", "[".repeat(10_000));
    assert!(header(&deep).is_err());
    let long = format!("---\nname: a\n{}---\n", "x: y\n".repeat(1 << 20));
    assert!(read(&long).expect_err("long").what.contains("16384 bytes"));
}
