use super::*;

#[test]
fn a_folder_goes_out_as_it_came_in() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("a-b");
    fs::create_dir_all(folder.join("scripts")).unwrap();
    fs::create_dir_all(folder.join(".git")).unwrap();
    fs::write(folder.join("SKILL.md"), "---\nname: a-b\n---\n").unwrap();
    fs::write(folder.join("scripts/x.bin"), b"\0\xff").unwrap();
    fs::write(folder.join(".git/config"), "no").unwrap();
    let body = packed(&folder).unwrap();
    assert_eq!(body["folder"], "a-b");
    assert_eq!(body["files"]["SKILL.md"], "---\nname: a-b\n---\n");
    assert_eq!(body["files"]["scripts/x.bin"]["base64"], "AP8=");
    assert_eq!(body["files"].as_object().unwrap().len(), 2);
    let into = place.path().join("out");
    let written = unpack(&body, &into).unwrap();
    assert_eq!(packed(&written).unwrap(), body);
    let again = unpack(&body, &into).unwrap_err();
    assert!(again.contains("exists already"), "{again}");
}

#[test]
fn what_no_skill_has_is_refused_before_it_is_sent() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    fs::write(folder.join("large"), vec![b'x'; SKILL_FILE_BYTES_MAX + 1]).unwrap();
    let why = packed(folder).unwrap_err();
    assert!(why.contains("large has 262145 bytes"), "{why}");
    fs::remove_file(folder.join("large")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("link")).unwrap();
    let why = packed(folder).unwrap_err();
    assert!(why.contains("link is a link or a device"), "{why}");
    fs::remove_file(folder.join("link")).unwrap();
    for n in 0..=SKILL_FILES_MAX {
        fs::write(folder.join(format!("{n}")), "x").unwrap();
    }
    let why = packed(folder).unwrap_err();
    assert!(why.contains("more than 64 files"), "{why}");
    let why = packed(&folder.join("nowhere")).unwrap_err();
    assert!(why.contains("cannot be read"), "{why}");
}

#[test]
fn no_answer_writes_outside_the_folder() {
    let place = tempfile::tempdir().unwrap();
    for (folder, path) in [
        ("a", "../x"),
        ("a", "/x"),
        ("..", "x"),
        ("a/b", "x"),
        ("", "x"),
        ("a", "b/../../x"),
    ] {
        let answer = json!({"folder": folder, "files": {path: "x"}});
        let why = unpack(&answer, place.path()).unwrap_err();
        assert!(why.contains("outside the folder"), "{folder} {path}: {why}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_skill_is_told_in_words_and_says_nothing_to_the_terminal() {
    let skill = json!({
        "name": "a-b", "state": "quarantined", "version": 2, "description": "D\u{1b}[31m", "listed": 3, "uses": 1,
        "findings": [{"path": "SKILL.md", "line": 7, "explanation": "words", "excerpt": "Ignore"}],
        "turn_ids": ["turn_1"], "text": "T", "file_list": [{"path": "SKILL.md", "bytes": 9}],
        "versions": [{"version": 2, "origin": "imported", "files": 1, "bytes": 9, "findings": [1]}],
    });
    let text = whole(&skill);
    for part in [
        "skill a-b: quarantined, version 2\nD [31m\n",
        "found in SKILL.md, line 7: words: Ignore\n",
        "hone skill release a-b",
        "made from turn_1\n",
        "listed for 3 answers, used 1 times\n",
        "current",
        "SKILL.md (9 bytes)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
