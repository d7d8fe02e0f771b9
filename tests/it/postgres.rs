//! The whole server with its ledger in PostgreSQL: it learns, forgets, restarts, is killed, and shares with no second
//! trainer.

use std::path::Path;
use std::process::Command;

use hone_ledger::Ledger as _;
use hone_ledger_sql::{PostgresConfig, PostgresStore};
use hone_tests::{TestApp, ask, client, get, one_version_per_four_answers, post, temporary};
use serde_json::{Value, json};

use crate::program::{Ended, Server, program, run, serving};

#[path = "../support/postgres.rs"]
pub(crate) mod database;

/// A database of its own on this process's server.
pub(crate) async fn fresh(name: &str) -> String {
    let server = database::Server::shared();
    server.make_database(name);
    server.url_of("hone", name)
}

/// Talks in one session with thumbs; returns the session and the turns.
async fn teach(app: &TestApp, key: &str, n: u64) -> (String, Vec<String>) {
    let (mut session, mut turns) = (String::new(), Vec::new());
    for seed in 0..n {
        let mut body = ask("What is the capital of France?", seed);
        body["session_id"] = json!(key);
        let reply = app.chat(body).await.unwrap();
        assert_eq!(reply["hone"]["collected"], true, "{reply}");
        let text = |name: &str| reply["hone"][name].as_str().unwrap().to_owned();
        let score = if seed.is_multiple_of(2) { 1 } else { -1 };
        let said = json!({"turn_id": text("turn_id"), "score": score});
        app.post("/v1/feedback", said).await.unwrap();
        session = text("session_id");
        turns.push(text("turn_id"));
    }
    (session, turns)
}

pub(crate) async fn broken_laws(url: &str) -> Vec<String> {
    let ledger = PostgresStore::open_beside(&PostgresConfig::at(url))
        .await
        .unwrap();
    let broken = ledger.check_laws().await.unwrap();
    ledger.close().await;
    broken
}

/// Every page of the document that can be asked for without a name answers.
async fn every_list_answers(app: &TestApp) {
    let http = client().unwrap();
    let document = app.get("/openapi.json").await.unwrap();
    let paths = document["paths"].as_object().unwrap();
    let lists = paths
        .iter()
        .filter(|(path, of)| !path.contains('{') && of["get"].is_object());
    let mut asked = 0;
    for (path, _) in lists {
        let reply = http.get(format!("{}{path}", app.url)).send().await.unwrap();
        let status = reply.status();
        assert!(!status.is_server_error(), "{path}: {status}");
        asked += 1;
    }
    assert!(asked > 15, "only {asked} lists");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ring_turns_on_postgresql() {
    let (_guard, data) = temporary().unwrap();
    let url = fresh("ring").await;
    let mut changes = one_version_per_four_answers();
    changes.push(("store.url", url.as_str().into()));
    let app = TestApp::start(&data, &changes).await.unwrap();
    let (session, turns) = teach(&app, "first", 4).await;
    let learned = app.until("/v1/versions", |list| list["current"].as_u64() >= Some(1));
    let head = learned.await.unwrap()["current"].as_u64().unwrap();
    let path = format!("/v1/turns/{}", turns[0]);
    let trained = app.until(&path, |turn| turn["fate"]["state"] == "trained");
    trained.await.unwrap();
    every_list_answers(&app).await;
    assert!(
        !data.join("ledger.db").exists(),
        "nothing is kept in a file"
    );

    // A second server that would train and may not stand by is refused, and so is one without the adapters.
    let (_other_guard, other) = temporary().unwrap();
    let mut second = changes.clone();
    second.push(("store.stand_by", false.into()));
    let refused = TestApp::start(&other, &second).await.err().unwrap();
    let told = refused.to_string();
    assert!(
        told.contains("already with the ledger") && told.contains("--loops"),
        "{told}"
    );
    let mut beside = changes.clone();
    beside.push((
        "loops",
        toml::Value::Array(vec!["serve".into(), "collect".into()]),
    ));
    let refused = TestApp::start(&other, &beside).await.err().unwrap();
    assert!(
        refused.to_string().contains("has none of them"),
        "{refused}"
    );
    app.stop().await.unwrap();

    // A restart serves what was learned, and what is forgotten is gone.
    let app = TestApp::start(&data, &changes).await.unwrap();
    let reply = app.chat(ask("Hello!", 1)).await.unwrap();
    assert!(
        reply["hone"]["policy_version"].as_u64() >= Some(head),
        "{reply}"
    );
    let wish = app
        .post("/v1/forget", json!({"session_id": session}))
        .await
        .unwrap();
    let path = format!("/v1/forget/{}", wish["id"].as_str().unwrap());
    let done = app
        .until(&path, |wish| wish["state"] == "done")
        .await
        .unwrap();
    assert_eq!(done["turns"], 4, "{done}");
    assert!(app.get(&format!("/v1/turns/{}", turns[0])).await.is_err());
    teach(&app, "later", 4).await;
    let more = app.until("/v1/versions", |list| {
        list["current"].as_u64() > Some(head + 1)
    });
    more.await.unwrap();
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&url).await, Vec::<String>::new());
}

/// The program with its ledger in a database.
fn on(url: &str, arguments: &[&str]) -> Command {
    let mut command = program(arguments);
    command.env("HONE__STORE__URL", url);
    command
}

fn start(url: &str, data: &Path) -> Result<Server, Ended> {
    let arguments = serving(data, "[model]\nengine = \"null\"\n");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Server::start(on(url, &arguments))
}

/// Asks until the server is gone; notes what was acknowledged.
async fn talk(url: &str, round: u64, told: &mut Vec<String>) {
    let http = client().unwrap();
    for n in 0..10_000 {
        let mut body = ask("Hello!", round * 10_000 + n);
        body["model"] = json!("hone-null");
        let asked = post(&http, url, "/v1/chat/completions", body);
        let Ok(reply) = asked.await else { return };
        if reply["hone"]["collected"] == true {
            told.push(reply["hone"]["turn_id"].as_str().unwrap().to_owned());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_it_loses_nothing_it_acknowledged() {
    let (_guard, data) = temporary().unwrap();
    let url = fresh("killed").await;
    let mut told = Vec::new();
    for round in 0..5 {
        let server = start(&url, &data).unwrap();
        let address = server.url.clone();
        let wait = crate::chaos::random(round) % 400;
        let kill = async {
            tokio::time::sleep(std::time::Duration::from_millis(300 + wait)).await;
            server.kill()
        };
        tokio::join!(talk(&address, round, &mut told), kill);
    }
    assert!(told.len() > 20, "only {} turns", told.len());
    let server = start(&url, &data).unwrap();
    let http = client().unwrap();
    for turn in &told {
        let found: Result<Value, _> = get(&http, &server.url, &format!("/v1/turns/{turn}")).await;
        assert!(found.is_ok(), "{turn} was acknowledged and is gone");
    }
    let text = data.display().to_string();
    let doctor = run(on(&url, &["doctor", "--data", &text]));
    assert_eq!(doctor.code, Some(0), "{}", doctor.text());
    let backup = run(on(&url, &["backup", "copy", "--data", &text]));
    assert!(backup.sentence().contains("pg_dump"), "{backup:?}");
    // Nobody moves it under a server; once that has ended, all of it goes into a file, which is served.
    let home = data.with_extension("home").display().to_string();
    let moving = ["ledger", "move", "--from", &url, "--to", &home];
    let refused = run(program(&moving));
    assert!(
        refused.sentence().contains("already with the ledger"),
        "{refused:?}"
    );
    let stopped = server.stop();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(broken_laws(&url).await, Vec::<String>::new());
    let moved = run(program(&moving));
    assert_eq!(moved.code, Some(0), "{moved:?}");
    assert!(moved.out.contains("both ledgers are equal"), "{moved:?}");
    let server = start("", Path::new(&home)).unwrap();
    for turn in &told {
        let found: Result<Value, _> = get(&http, &server.url, &format!("/v1/turns/{turn}")).await;
        assert!(found.is_ok(), "{turn} was not moved");
    }
    let stopped = server.stop();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
}

#[test]
fn a_wrong_address_is_told_in_one_sentence_and_nothing_is_written() {
    let (_guard, data) = temporary().unwrap();
    for (url, says) in [
        (
            "postgres://hone:swordfish@127.0.0.1:1/hone",
            "does not answer",
        ),
        ("mysql://hone:swordfish@127.0.0.1/hone", "postgres://USER"),
    ] {
        let ended = start(url, &data).err().unwrap();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let told = ended.sentence();
        assert!(
            told.contains(says) && !ended.text().contains("swordfish"),
            "{ended:?}"
        );
        assert!(!data.join("ledger.db").exists() && !data.join("blobs").exists());
        let doctor = run(on(url, &["doctor", "--data", &data.display().to_string()]));
        assert_eq!(doctor.code, Some(3), "{doctor:?}");
        assert!(doctor.text().contains(says), "{doctor:?}");
    }
}
