//! Which crate may depend on which, held against `cargo metadata`: docs/ARCHITECTURE.md, "Code map".
//! Dependencies of tests alone are free.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Crates with one job in the ring; none knows another.
const LOOPS: [&str; 7] = [
    "hone-serve",
    "hone-collect",
    "hone-judge",
    "hone-train",
    "hone-memory",
    "hone-rollout",
    "hone-tools",
];

/// What a crate must never reach, directly or through others; `hone-*` is every crate of the project.
const NEVER: &[(&str, &[&str])] = &[
    (
        "hone-domain",
        &["hone-*", "tokio", "sqlx", "axum", "reqwest", "candle-core"],
    ),
    ("hone-runtime", &["hone-*", "sqlx", "axum"]),
    (
        "hone-kernels",
        &["hone-*", "tokio", "serde_json", "safetensors", "memmap2"],
    ),
    (
        "hone-checkpoint",
        &["hone-nn", "hone-text", "hone-cuda", "tokio"],
    ),
    ("hone-text", &["hone-nn", "hone-cuda", "tokio"]),
    (
        "hone-nn",
        &[
            "hone-cuda",
            "hone-text",
            "hone-ledger",
            "hone-runtime",
            "tokio",
            "sqlx",
            "reqwest",
            "candle-core",
            "minijinja",
            "tokenizers",
            "llguidance",
        ],
    ),
    (
        "hone-ledger",
        &["hone-nn", "hone-kernels", "sqlx", "axum", "reqwest"],
    ),
    (
        "hone-ledger-queries",
        &[
            "hone-nn",
            "hone-kernels",
            "hone-ledger-sql",
            "axum",
            "reqwest",
        ],
    ),
    (
        "hone-ledger-sql",
        &["hone-nn", "hone-kernels", "axum", "reqwest"],
    ),
    ("hone-blobs", &["hone-ledger", "hone-nn", "sqlx"]),
    (
        "hone-serve",
        &["hone-cuda", "hone-ledger", "axum", "sqlx", "reqwest"],
    ),
    (
        "hone-collect",
        &["hone-nn", "hone-cuda", "hone-ledger-sql", "axum", "reqwest"],
    ),
    (
        "hone-judge",
        &["hone-nn", "hone-cuda", "hone-ledger-sql", "axum", "reqwest"],
    ),
    (
        "hone-memory",
        &[
            "hone-nn",
            "hone-text",
            "hone-cuda",
            "hone-ledger-sql",
            "axum",
            "reqwest",
        ],
    ),
    (
        "hone-rollout",
        &[
            "hone-nn",
            "hone-text",
            "hone-cuda",
            "hone-ledger-sql",
            "axum",
            "reqwest",
        ],
    ),
    (
        "hone-tools",
        &["hone-*", "sqlx", "axum", "reqwest", "candle-core"],
    ),
    (
        "hone-train",
        &["hone-cuda", "hone-ledger-sql", "axum", "reqwest"],
    ),
    ("hone-tools", &["hone-*", "sqlx", "axum", "reqwest"]),
    (
        "hone-starter",
        &[
            "hone-ledger",
            "hone-cuda",
            "tokio",
            "sqlx",
            "axum",
            "candle-core",
            "reqwest",
        ],
    ),
    ("hone-cuda", &["hone-text", "hone-ledger", "tokio"]),
    ("hone-net", &["hone-domain", "hone-ledger", "hone-nn"]),
    (
        "hone-accounts",
        &[
            "hone-monitor",
            "hone-inference",
            "hone-api",
            "hone-nn",
            "hone-ledger-sql",
        ],
    ),
    (
        "hone-monitor",
        &[
            "hone-accounts",
            "hone-inference",
            "hone-api",
            "hone-train",
            "hone-ledger-sql",
        ],
    ),
    (
        "hone-inference",
        &["hone-api", "hone-judges", "hone-train", "hone-ledger-sql"],
    ),
    ("hone-judges", &["hone-api", "hone-cuda", "hone-ledger-sql"]),
    (
        "hone-api-types",
        &["hone-api", "hone-judges", "hone-train", "hone-ledger-sql"],
    ),
    (
        "hone-rollouts",
        &["hone-api", "hone-judges", "hone-train", "hone-ledger-sql"],
    ),
    (
        "hone-replies",
        &["hone-api", "hone-judges", "hone-train", "hone-ledger-sql"],
    ),
    (
        "hone-api",
        &["hone-judges", "hone-train", "hone-cuda", "hone-ledger-sql"],
    ),
];

/// What a crate must not name itself, although what it knows may.
const NEVER_DIRECT: &[(&str, &[&str])] = &[(
    "hone-api",
    &["hone-nn", "hone-kernels", "hone-checkpoint", "hone-text"],
)];

/// The crates of the server; no loop knows one of them.
const SERVER: [&str; 9] = [
    "hone-accounts",
    "hone-api",
    "hone-api-types",
    "hone-inference",
    "hone-judges",
    "hone-monitor",
    "hone-net",
    "hone-replies",
    "hone-rollouts",
];

/// A feature of what tests need and no program may have.
const SWITCHES: &str = "test-switches";

/// Packages of tests: what ships knows none of them, and they may know everything.
const TESTS: [&str; 3] = ["hone-tests", "hone-bench", "hone-cuda-emulator"];

/// Libraries that belong to some crates: what else names them in its manifest is wrong.
const ONLY: [(&str, &[&str]); 11] = [
    ("sqlx", &["hone-ledger-queries", "hone-ledger-sql"]),
    ("axum", &["hone-api", "hone-replies"]),
    (
        "utoipa",
        &[
            "hone-api",
            "hone-api-types",
            "hone-accounts",
            "hone-inference",
            "hone-monitor",
            "hone-replies",
        ],
    ),
    ("rust-embed", &["hone-api"]),
    ("hyper", &["hone-net"]),
    ("minijinja", &["hone-text"]),
    ("llguidance", &["hone-text"]),
    ("tokenizers", &["hone-text", "hone-starter"]),
    ("memmap2", &["hone-checkpoint", "hone-nn"]),
    ("cudarc", &["hone"]),
    ("candle-core", &["hone-judges"]),
];

/// The dependencies that ship, by package.
fn shipped() -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let ran = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let metadata: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let names = |package: &Value| -> BTreeSet<String> {
        let all = package["dependencies"].as_array().unwrap().iter();
        let shipped = all.filter(|d| d["kind"] != "dev");
        shipped
            .map(|d| d["name"].as_str().unwrap().to_owned())
            .collect()
    };
    packages
        .iter()
        .map(|p| (p["name"].as_str().unwrap().to_owned(), names(p)))
        .filter(|(name, _)| !TESTS.contains(&name.as_str()))
        .collect()
}

/// All that a crate reaches through crates of the project.
fn reached(from: &str, shipped: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut next = vec![from];
    while let Some(name) = next.pop() {
        for dependency in shipped.get(name).into_iter().flatten() {
            if found.insert(dependency.clone()) {
                next.push(dependency);
            }
        }
    }
    found
}

#[test]
fn arrows_between_crates_point_one_way() {
    let shipped = shipped();
    assert!(shipped.len() >= 12, "the workspace was read: {shipped:?}");
    for (name, never) in NEVER {
        assert!(shipped.contains_key(*name), "there is no {name}");
        let reached = reached(name, &shipped);
        for never in *never {
            let broken = match never.strip_suffix('*') {
                Some(start) => reached.iter().find(|found| found.starts_with(start)),
                None => reached.get(*never),
            };
            assert!(broken.is_none(), "{name} must never reach {broken:?}");
        }
    }
    for (name, never) in NEVER_DIRECT {
        let named = never.iter().find(|never| shipped[*name].contains(**never));
        assert!(named.is_none(), "{name} must not name {named:?}");
    }
    for (name, dependencies) in &shipped {
        let is_of_server = name == "hone" || SERVER.contains(&name.as_str());
        let upward = dependencies.iter().find(|d| SERVER.contains(&d.as_str()));
        assert!(
            is_of_server || upward.is_none(),
            "{name} knows the server: {upward:?}"
        );
        let others = dependencies.iter().filter(|d| LOOPS.contains(&d.as_str()));
        let is_loop = LOOPS.contains(&name.as_str());
        assert!(!is_loop || others.count() == 0, "{name} knows another loop");
        assert!(
            name == "hone" || !dependencies.contains("hone"),
            "{name} depends on the program"
        );
        let tests = dependencies.iter().find(|d| TESTS.contains(&d.as_str()));
        assert!(tests.is_none(), "{name} ships {tests:?}");
        for (library, allowed) in ONLY {
            let allowed = allowed.contains(&name.as_str());
            assert!(
                allowed || !dependencies.contains(library),
                "{library} is no business of {name}"
            );
        }
    }
}

/// The program that ships, as `make run` and the release build it.
#[test]
fn the_program_has_no_switches_of_tests() {
    let tree = |of: &[&str]| {
        let ran = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args([
                "tree",
                "--offline",
                "--prefix",
                "none",
                "--format",
                "{p} {f}",
            ])
            .args(["--edges", "normal"])
            .args(of)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .output()
            .unwrap();
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        String::from_utf8(ran.stdout).unwrap()
    };
    let shipped = tree(&["--package", "hone", "--features", "hone/candle"]);
    assert!(shipped.contains("hone-judge v"), "{shipped}");
    assert!(!shipped.contains(SWITCHES), "{shipped}");
    // The tests have them, so the search finds what it looks for.
    assert!(tree(&["--package", "hone-tests"]).contains(SWITCHES));
}
