//! The commands beside a server that runs.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use toml::Value as Toml;

use super::checks::State;
use super::common::open;
use super::doctor::{Finding, examine};
use super::export_progress::Consumer;
use super::export_trajectories::Format;
use crate::app::App;
use crate::app::tests::config;
use crate::cli;
use crate::config::Config;

async fn chat(url: &str, text: &str) -> String {
    hone_net::outbound::install_tls();
    let body = json!({"model": "hone-null", "messages": [{"role": "user", "content": text}]});
    let request = reqwest::Client::new()
        .post(format!("{url}/v1/chat/completions"))
        .json(&body);
    let reply: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(reply["hone"]["collected"], true, "{reply}");
    reply["hone"]["turn_id"].as_str().unwrap().to_owned()
}

/// Runs the program in this process; true if it succeeded.
async fn hone(arguments: &[&str]) -> bool {
    let arguments: Vec<String> = std::iter::once("hone")
        .chain(arguments.iter().copied())
        .map(str::to_owned)
        .collect();
    let done = tokio::task::spawn_blocking(move || cli::run(arguments));
    done.await.unwrap() == ExitCode::SUCCESS
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The acts in a server's audit log, newest first; of one kind where it is named.
async fn acts(url: &str, kind: &str) -> Vec<Value> {
    let act = match kind {
        "" => String::new(),
        kind => format!("?act={kind}"),
    };
    let log = reqwest::get(format!("{url}/admin/v1/audit{act}"));
    let log: Value = log.await.unwrap().json().await.unwrap();
    let rows = log["data"].as_array().unwrap().iter();
    rows.map(|row| row["act"].clone()).collect()
}

/// Exports beside the server, to a file that must not exist yet.
async fn exported(what: &str, (data, out): (&str, &Path)) -> Vec<Value> {
    let file = out.display().to_string();
    let arguments = ["export", what, "--data", data, "--out", &file];
    assert!(hone(&arguments).await);
    assert!(!hone(&arguments).await, "an export replaces nothing");
    lines(out)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_restore_and_export_beside_an_app_that_answers() {
    let place = tempfile::tempdir().unwrap();
    let (data, fresh) = (place.path().join("data"), place.path().join("fresh"));
    let at = data.display().to_string();
    let copy = place.path().join("copy").display().to_string();
    let app = App::start(config(&data, &[])).await.unwrap();
    let url = format!("http://{}", app.addr);
    let mut before = Vec::new();
    for n in 0..10 {
        before.push(chat(&url, &format!("question {n}")).await);
    }
    let talking = async {
        for n in 0..20 {
            chat(&url, &format!("meanwhile {n}")).await;
        }
    };
    let arguments = ["backup", &copy, "--data", &at];
    let (saved, ()) = tokio::join!(hone(&arguments), talking);
    assert!(saved);
    let turns = exported("turns", (&at, &place.path().join("turns.jsonl"))).await;
    assert_eq!(turns.len(), 30);
    let first = turns.last().unwrap();
    assert_eq!(first["turn"]["messages"][0]["content"], "question 0");
    assert_eq!(first["fate"]["reason"], "backend_cannot_train", "{first}");
    let (nowhere, none) = (at.clone() + "-none", place.path().join("none.jsonl"));
    let out = none.display().to_string();
    assert!(!hone(&["export", "turns", "--data", &nowhere, "--out", &out]).await);
    assert!(!none.exists(), "what failed leaves nothing in the way");
    let samples = exported("samples", (&at, &place.path().join("samples.jsonl"))).await;
    assert!(samples.is_empty(), "the null engine's turns do not train");
    assert!(!hone(&arguments).await, "a backup replaces nothing");
    let backups = acts(&url, "backup").await;
    assert_eq!(backups, ["backup"], "what was refused is not told as done");
    let replace = ["restore", &copy, "--data", &at, "--replace"];
    assert!(!hone(&replace).await, "the folder is in use");
    assert!(app.stop().await);

    assert!(hone(&["restore", &copy, "--check"]).await);
    assert!(hone(&["restore", &copy, "--data", &fresh.display().to_string()]).await);
    let app = App::start(config(&fresh, &[])).await.unwrap();
    let url = format!("http://{}", app.addr);
    for id in &before {
        let turn = reqwest::get(format!("{url}/v1/turns/{id}")).await.unwrap();
        assert_eq!(
            turn.status(),
            200,
            "{id} was acknowledged before the backup"
        );
    }
    let acts = acts(&url, "").await;
    assert_eq!(acts, ["restore", "backup"], "newest first");
    assert!(app.stop().await);
}

/// What did not come to its end is given again, and so is what was written and not noted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_that_fails_takes_nothing_from_the_next_one() {
    let place = tempfile::tempdir().unwrap();
    let app = App::start(config(place.path(), &[])).await.unwrap();
    let url = format!("http://{}", app.addr);
    let mut said = Vec::new();
    for n in 0..3 {
        said.push(chat(&url, &format!("question {n}")).await);
    }
    let config = config(place.path(), &[]);
    let consumer = Consumer {
        name: "trainer",
        format: Format::Tokens,
        owner: None,
        scope: None,
    };
    let ledger = open(&config).await.unwrap();
    let mut left = 2;
    let mut fails = |_: &Value| {
        left -= 1;
        match left {
            0 => Err("the disk is full".to_owned()),
            _ => Ok(()),
        }
    };
    let failed = consumer.write(&*ledger, &mut fails).await;
    assert_eq!(failed.err().unwrap(), "the disk is full");
    for _ in 0..2 {
        let mut turns = Vec::new();
        let mut note = |line: &Value| {
            turns.push(line["metadata"]["turn_id"].as_str().unwrap().to_owned());
            Ok(())
        };
        let written = consumer.write(&*ledger, &mut note).await;
        assert_eq!(written.unwrap().lines, 3);
        assert_eq!(turns, said, "the oldest first");
    }
    ledger.close().await;
    let data = place.path().display().to_string();
    let export = |out: &'static str| {
        let out = place.path().join(out).display().to_string();
        let data = data.clone();
        async move {
            let words = [
                "export",
                "trajectories",
                "--format",
                "tokens",
                "--new-for",
                "trainer",
            ];
            let done = hone(&[&words[..], &["--data", &data, "--out", &out]].concat()).await;
            (done, lines(Path::new(&out)).len())
        }
    };
    assert_eq!(export("first").await, (true, 3));
    chat(&url, "one more").await;
    assert_eq!(export("first").await, (false, 3), "it stays as it is");
    assert_eq!(export("second").await, (true, 1));
    assert_eq!(export("third").await, (true, 0));
    assert!(app.stop().await);
}

fn state(findings: &[Finding], check: &str) -> (State, String) {
    let found = findings.iter().find(|finding| finding.check == check);
    let found = found.unwrap_or_else(|| panic!("{check} was not looked at: {findings:#?}"));
    (
        found.state,
        format!(
            "{} {}",
            found.found,
            found.remedy.as_deref().unwrap_or_default()
        ),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_finds_nothing_wrong_with_an_app_that_runs() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let nothing = examine(&config(&data, &[]), false).await;
    assert_eq!(state(&nothing, "ledger").0, State::Skipped, "no ledger yet");
    assert!(!data.exists(), "looking makes nothing");

    let app = App::start(config(&data, &[])).await.unwrap();
    chat(&format!("http://{}", app.addr), "hi").await;
    let bind = [("http.bind", Toml::from(app.addr.to_string()))];
    let running = examine(&config(&data, &bind), false).await;
    let checks = [
        "data folder",
        "ledger",
        "laws",
        "audit log",
        "adapters",
        "clock",
        "port",
        "access",
    ];
    for check in checks {
        assert_eq!(state(&running, check).0, State::Ok, "{check}: {running:#?}");
    }
    assert!(app.stop().await);
}

/// A configuration in which much is wrong.
fn sick(data: &Path, place: &Path, taken: &std::net::TcpListener) -> Config {
    use std::os::unix::fs::PermissionsExt;
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = format!("http://{}/v1", gone.local_addr().unwrap());
    let key = place.join("key.pem");
    std::fs::write(&key, "secret").unwrap();
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&key, open).unwrap();
    let path = |path: &Path| Toml::from(path.display().to_string());
    let flags = [
        (
            "http.bind",
            Toml::from(taken.local_addr().unwrap().to_string()),
        ),
        ("judge.model.url", Toml::from(dead)),
        ("judge.model.name", Toml::from("m")),
        ("model.engine", Toml::from("builtin")),
        ("model.path", path(place)),
        ("http.tls_cert", path(&key)),
        ("http.tls_key", path(&key)),
    ];
    config(data, &flags)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_finds_what_is_wrong() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let app = App::start(config(&data, &[])).await.unwrap();
    chat(&format!("http://{}", app.addr), "hi").await;
    assert!(app.stop().await);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let findings = examine(&sick(&data, place.path(), &taken), false).await;
    let rows = [
        ("port", "cannot be bound"),
        ("judge", "cannot be reached"),
        ("model", "config.json"),
        ("secrets", "chmod 600"),
    ];
    for (check, part) in rows {
        let (state, text) = state(&findings, check);
        assert_eq!(state, State::Broken, "{check}: {text}");
        assert!(text.contains(part), "{check}: {text}");
    }
    for (key, place) in [
        ("http.bind", "0.0.0.0:0"),
        ("people.public_url", "https://hone.example"),
    ] {
        let public = config(&data, &[(key, Toml::from(place))]);
        let (access, text) = state(&examine(&public, false).await, "access");
        assert_eq!(access, State::Warning, "{text}");
        assert!(
            text.contains("hone user add") && text.contains(place),
            "{text}"
        );
    }

    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&data, everybody).unwrap();
    let mut bytes = std::fs::read(data.join("ledger.db")).unwrap();
    for byte in bytes.iter_mut().skip(4096 * 3).take(4096 * 8) {
        *byte ^= 0x5a;
    }
    std::fs::write(data.join("ledger.db"), bytes).unwrap();
    let damaged = examine(&config(&data, &[]), false).await;
    assert_eq!(state(&damaged, "data folder").0, State::Warning);
    let (ledger, text) = state(&damaged, "ledger");
    assert_eq!(ledger, State::Broken, "{text}");
    assert!(!hone(&["doctor", "--json", "--data", &data.display().to_string()]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shells_get_completions() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(hone(&["completions", shell]).await, "{shell}");
    }
}
