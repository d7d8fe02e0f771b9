//! What simulated people say and ask in `hone-bench learn --model` stands in nothing that the judge or
//! the learner reads, so that the measurement is of words that nobody listed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

/// Lower case, with one space between words, so that neither case nor line breaks hide a phrase.
fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

/// Every text file under a path, with what it says. Others than text are left out.
fn read(path: &Path) -> Vec<(PathBuf, String)> {
    if path.is_dir() {
        let entries = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        return entries.flat_map(|entry| read(&entry)).collect();
    }
    let text = fs::read(path).map(String::from_utf8).unwrap();
    text.map_or_else(
        |_| Vec::new(),
        |text| vec![(path.to_path_buf(), plain(&text))],
    )
}

fn data(name: &str) -> Value {
    let text = fs::read_to_string(root().join("tests/bench/learn").join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn texts(list: &Value) -> impl Iterator<Item = String> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|text| plain(text.as_str().unwrap()))
}

#[test]
fn no_complaint_of_the_phrase_bank_is_known() {
    let bank = data("phrases.json");
    let phrases = bank.as_object().unwrap().values();
    let complaints: Vec<String> = phrases.flat_map(|one| texts(&one["complaints"])).collect();
    assert!(complaints.len() >= 10 * 12, "{}", complaints.len());
    let places = [
        "loops/judge/labelled",
        "loops/judge/prompts",
        "loops/judge/rules",
        "loops/starter",
        "loops/train/prompts",
        "configs",
        "tests/support/labelled",
    ];
    for place in places {
        let files = read(&root().join(place));
        assert!(!files.is_empty(), "{place}");
        for (path, text) in files {
            let known = complaints
                .iter()
                .find(|complaint| text.contains(complaint.as_str()));
            assert_eq!(known, None, "{}", path.display());
        }
    }
}

#[test]
fn no_question_is_a_prompt_of_training() {
    let questions = data("questions.json");
    let all = questions.as_object().unwrap().values();
    let all: Vec<String> = all.flat_map(texts).collect();
    let prompts = read(&root().join("loops/train/prompts/generic.txt"));
    assert_eq!(prompts.len(), 1);
    for line in &all {
        assert!(!prompts[0].1.contains(line.as_str()), "{line}");
    }
    let instructed = fs::read_to_string(root().join("loops/train/prompts/instructed.tsv")).unwrap();
    for line in instructed.lines().filter(|line| !line.starts_with('#')) {
        let (question, _) = line.split_once('\t').unwrap();
        assert!(!all.contains(&plain(question)), "{question}");
    }
}

/// What is measured with must not be what anchors a version.
#[test]
fn no_measured_instruction_is_a_prompt_of_training() {
    let measured = fs::read_to_string(root().join("tests/bench/learn/instructions.jsonl")).unwrap();
    let trained = fs::read_to_string(root().join("loops/train/prompts/instructed.tsv")).unwrap();
    let trained: Vec<&str> = trained
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    assert!(trained.len() >= 30);
    for line in measured.lines() {
        let one: Value = serde_json::from_str(line).unwrap();
        let prompt = one["prompt"].as_str().unwrap();
        for line in &trained {
            let (question, instruction) = line.split_once('\t').unwrap();
            assert!(!prompt.contains(question), "{prompt}: {question}");
            assert!(!prompt.contains(instruction), "{prompt}: {instruction}");
        }
    }
}
