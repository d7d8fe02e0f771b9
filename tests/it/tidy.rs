//! Reads the source and checks what the compiler cannot: loops of one shape, sizes, words. Sizes are ratchets: they may only go down.

use std::fs;
use std::path::{Path, PathBuf};

/// Longest Rust file outside tests, in lines. Lower it when the longest one shrinks.
const FILE_LINES_MAX: usize = 620;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

fn files(under: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![under.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !["target", "node_modules", ".git", "goldens", "data", "dist"].contains(&&*name)
                {
                    folders.push(path);
                }
            } else if endings.iter().any(|e| name.ends_with(e)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn rust_files() -> Vec<(String, String)> {
    ["server", "loops", "tests"]
        .iter()
        .flat_map(|folder| files(&root().join(folder), &[".rs"]))
        .map(|path| {
            let name = path
                .strip_prefix(root())
                .unwrap()
                .to_string_lossy()
                .into_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .filter(|(name, _)| name != "tests/it/tidy.rs")
        .collect()
}

#[test]
fn loops_have_one_shape() {
    for name in ["serve", "collect", "judge", "train"] {
        let folder = root().join("loops").join(name).join("src");
        let head = fs::read_to_string(folder.join("lib.rs")).unwrap();
        for word in ["In", "Out", "Rights", "Promises", "Never"] {
            let heading = head
                .lines()
                .take(60)
                .any(|l| l.starts_with("//!") && l.contains(word));
            assert!(heading, "{name}/src/lib.rs does not say its {word}");
        }
        assert!(folder.join("config.rs").exists(), "{name} has no config.rs");
    }
    for name in ["collect", "judge", "train"] {
        for file in ["event.rs", "state.rs", "effects.rs"] {
            let path = root().join("loops").join(name).join("src").join(file);
            assert!(path.exists(), "{name} has no {file}");
        }
    }
}

#[test]
fn io_stays_at_its_rim() {
    for (name, text) in rust_files() {
        let sql = text.contains("sqlx::") && !name.starts_with("loops/ledger-");
        assert!(
            !sql,
            "{name}: SQL belongs to loops/ledger-queries and loops/ledger-sql"
        );
        let http =
            text.contains("axum::") && !name.starts_with("server/") && !name.starts_with("tests/");
        assert!(!http, "{name}: HTTP belongs to server");
        let pure = name.ends_with("/state.rs") || name.starts_with("loops/domain/");
        for word in [
            "std::fs",
            "SystemTime::now",
            "Instant::now",
            "tokio::spawn",
            ".await",
        ] {
            assert!(
                !(pure && text.contains(word)),
                "{name}: {word} in a pure file"
            );
        }
    }
}

#[test]
fn files_stay_small() {
    let mut longest = (0, String::new());
    for (name, text) in rust_files() {
        let tests = name.contains("test") || name.starts_with("loops/ledger/src/suite");
        let lines = text.lines().count();
        if !tests && lines > longest.0 {
            longest = (lines, name);
        }
    }
    println!("longest file: {} with {} lines", longest.1, longest.0);
    assert!(
        longest.0 <= FILE_LINES_MAX,
        "{} has {} lines",
        longest.1,
        longest.0
    );
}

#[test]
fn words_that_have_no_place_here() {
    let banned = [
        "/w\u{6f}rk/",
        "sub\u{61}gent",
        "TO\u{44}O",
        "FIX\u{4d}E",
        "XX\u{58}",
        "lorem \u{69}psum",
    ];
    for path in files(
        &root(),
        &[
            ".rs", ".toml", ".md", ".sql", ".sh", ".py", ".mjs", "Makefile",
        ],
    ) {
        let text = fs::read_to_string(&path).unwrap();
        for word in banned {
            assert!(
                !text.contains(word),
                "{}: contains {word:?}",
                path.display()
            );
        }
    }
}

#[test]
fn unsafe_code_says_why() {
    for (name, text) in rust_files() {
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !code.contains("unsafe {") {
                continue;
            }
            let near = &lines[i.saturating_sub(8)..=i];
            let says = near.iter().any(|l| l.contains("SAFETY"));
            assert!(says, "{name}:{}: unsafe without a SAFETY note", i + 1);
        }
    }
}

#[test]
fn features_are_named_in_the_server_only() {
    for (name, text) in rust_files() {
        let named = text.contains("cfg(feature") && !name.starts_with("server/");
        assert!(
            !named || name.starts_with("tests/"),
            "{name}: cfg(feature) outside server"
        );
    }
}
