//! A database that goes away and comes back: answers go on, whatever was acknowledged is found again, and nothing that
//! was forgotten comes back.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hone_domain::{ForgetId, Scope};
use hone_ledger::{AuditEntry, ForgetWhat, ForgetWish, Ledger as _, Personal as _};
use hone_ledger_sql::{PostgresConfig, PostgresStore};
use hone_tests::{client, get, post, temporary};
use reqwest::Client;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::postgres::database;
use crate::program::{Ended, Server, program, serving};

#[path = "../support/proxy.rs"]
mod proxy;

use proxy::{Proxy, Way};

/// Longest wait for what is to happen by itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// People who talk at once: few enough for a loaded machine to record more than they say.
const PEOPLE: usize = 4;
/// Pause between two of their turns.
const PAUSE: Duration = Duration::from_millis(100);

/// A database behind a way that can be cut.
async fn fresh(name: &str) -> (Proxy, String, String) {
    let server = database::Server::shared();
    server.make_database(name);
    let proxy = Proxy::start(server.socket()).await;
    let address = proxy.address;
    let url = format!("postgres://hone@{address}/{name}?sslmode=disable");
    (proxy, url, server.url_of("hone", name))
}

/// An engine, and its model's name.
type Engine = (&'static str, &'static str);

/// What answers at once.
const NULL: Engine = ("null", "hone-null");
/// What answers with turns that may train, so that a restart remembers their sessions.
const STARTER: Engine = ("builtin", "hone-starter");

fn start(url: &str, data: &Path, (engine, _): Engine) -> Result<Server, Ended> {
    let further = format!("[model]\nengine = {engine:?}\n[people]\ntrust_loopback = true\n");
    let arguments = serving(data, &further);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = program(&arguments);
    command.env("HONE__STORE__URL", url);
    Server::start(command)
}

fn body((_, model): Engine, messages: &[Value]) -> Value {
    json!({"model": model, "messages": messages, "max_tokens": 8})
}

/// What people were told.
struct Told {
    engine: Engine,
    turns: Mutex<BTreeSet<String>>,
    spooled: AtomicU64,
    slowest_ms: AtomicU64,
    is_over: AtomicBool,
}

impl Told {
    fn by(engine: Engine) -> Self {
        Self {
            engine,
            turns: Mutex::default(),
            spooled: AtomicU64::new(0),
            slowest_ms: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// Asks on in one conversation; returns what is answered.
    async fn ask(
        &self,
        http: &Client,
        url: &str,
        messages: &mut Vec<Value>,
    ) -> Result<Value, String> {
        let began = Instant::now();
        let asked = post(
            http,
            url,
            "/v1/chat/completions",
            body(self.engine, messages),
        );
        let reply = asked.await.map_err(|error| error.to_string())?;
        let took_ms = began.elapsed().as_millis() as u64;
        self.slowest_ms.fetch_max(took_ms, Ordering::AcqRel);
        let note = &reply["hone"];
        match &note["collected"] {
            Value::Bool(true) => {}
            Value::String(text) if text == "spooled" => {
                self.spooled.fetch_add(1, Ordering::AcqRel);
            }
            _ => return Err(format!("it is not collected: {reply}")),
        }
        let id = note["turn_id"].as_str().ok_or("no turn")?.to_owned();
        self.turns.lock().unwrap().insert(id);
        messages.push(reply["choices"][0]["message"].clone());
        messages.push(json!({"role": "user", "content": "And what else?"}));
        Ok(note.clone())
    }

    /// Talks until everything is over, a few turns in each conversation.
    async fn talk(self: Arc<Self>, url: String, person: usize) -> Result<(), String> {
        let http = client().map_err(|error| error.to_string())?;
        for n in 0.. {
            let first = json!({"role": "user", "content": format!("Question {n} of {person}")});
            let (mut messages, mut session) = (vec![first], None);
            for _ in 0..3 {
                if self.is_over.load(Ordering::Acquire) {
                    return Ok(());
                }
                let note = self.ask(&http, &url, &mut messages).await?;
                let now = note["session_id"].clone();
                if session.get_or_insert_with(|| now.clone()) != &now {
                    return Err(format!("a conversation went on in another session: {note}"));
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }
}

async fn number(http: &Client, url: &str, name: &str) -> f64 {
    let page = http.get(format!("{url}/metrics")).send().await.unwrap();
    let page = page.text().await.unwrap();
    let label = format!("name=\"{name}\"}} ");
    let line = page.lines().find_map(|line| line.split_once(&label));
    line.unwrap_or_else(|| panic!("{name} is not in /metrics"))
        .1
        .parse()
        .unwrap()
}

async fn until_caught_up(http: &Client, url: &str) {
    let began = Instant::now();
    while number(http, url, "spool_records").await > 0.0 {
        if began.elapsed() > PATIENCE {
            let status: Value = get(http, url, "/admin/v1/status").await.unwrap();
            panic!("it does not catch up: {}", status["loops"]["collect"]);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn all_are_there(http: &Client, url: &str, turns: &BTreeSet<String>) {
    for turn in turns {
        let found: Result<Value, _> = get(http, url, &format!("/v1/turns/{turn}")).await;
        assert!(found.is_ok(), "{turn} was acknowledged and is gone");
    }
}

async fn status(http: &Client, url: &str, path: &str, body: Value) -> (u16, Value) {
    let request = http.post(format!("{url}{path}")).json(&body);
    let reply = request.send().await.unwrap();
    (reply.status().as_u16(), reply.json().await.unwrap())
}

async fn broken_laws(url: &str) -> Vec<String> {
    let ledger = PostgresStore::open_beside(&PostgresConfig::at(url)).await;
    let ledger = ledger.unwrap();
    let broken = ledger.check_laws().await.unwrap();
    ledger.close().await;
    broken
}

fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_go_on_and_everything_comes_into_the_database_later() {
    let (_guard, data) = temporary().unwrap();
    let (way, url, direct) = fresh("away").await;
    let server = start(&url, &data, NULL).unwrap();
    let http = client().unwrap();
    let key: Value = post(&http, &server.url, "/v1/keys", json!({"name": "mine"}))
        .await
        .unwrap();
    let told = Arc::new(Told::by(NULL));
    let talking: Vec<_> = (0..PEOPLE)
        .map(|person| tokio::spawn(told.clone().talk(server.url.clone(), person)))
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let with_key = async || {
        let asked = http.post(format!("{}/v1/chat/completions", server.url));
        let asked = asked.bearer_auth(key["key"].as_str().unwrap());
        let one = json!({"role": "user", "content": "hi"});
        asked
            .json(&body(NULL, &[one]))
            .send()
            .await
            .unwrap()
            .status()
    };
    assert_eq!(with_key().await, 200);
    // Closed connections first, then none that answers.
    for away in [Way::Cut, Way::Silent] {
        let before = told.spooled.load(Ordering::Acquire);
        way.set(away);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(with_key().await, 200, "whoever was known is known");
        let (code, reply) = status(&http, &server.url, "/v1/forget", json!({"all": true})).await;
        assert_eq!(code, 503, "{reply}");
        assert!(number(&http, &server.url, "ledger_away").await > 0.0);
        way.set(Way::Open);
        let spooled = told.spooled.load(Ordering::Acquire) - before;
        assert!(spooled > 50, "only {spooled} turns in the spool");
        until_caught_up(&http, &server.url).await;
    }
    told.is_over.store(true, Ordering::Release);
    for talking in talking {
        talking.await.unwrap().unwrap();
    }
    until_caught_up(&http, &server.url).await;
    let slowest_ms = told.slowest_ms.load(Ordering::Acquire);
    assert!(slowest_ms < 3_000, "an answer took {slowest_ms} ms");
    assert_eq!(files_in(&data.join("spool")), 0);
    let turns = told.turns.lock().unwrap().clone();
    println!(
        "{} turns, {} of them spooled",
        turns.len(),
        told.spooled.load(Ordering::Acquire)
    );
    all_are_there(&http, &server.url, &turns).await;
    let ended = server.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(broken_laws(&direct).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_while_the_database_is_away_loses_nothing() {
    let (_guard, data) = temporary().unwrap();
    let (way, url, direct) = fresh("away_killed").await;
    let http = client().unwrap();
    let told = Told::by(STARTER);
    let first = json!({"role": "user", "content": "Question 1"});
    let (mut messages, mut session) = (vec![first], Value::Null);
    for round in 0..3 {
        let server = start(&url, &data, STARTER).unwrap();
        for n in 0..6 {
            if n == 2 {
                way.set(Way::Cut);
            }
            let note = told.ask(&http, &server.url, &mut messages).await.unwrap();
            if session.is_null() {
                session = note["session_id"].clone();
            }
            assert_eq!(note["session_id"], session, "round {round}: {note}");
        }
        assert!(files_in(&data.join("spool")) > 0);
        server.kill();
        let refused = start(&url, &data, STARTER).err().unwrap();
        assert!(
            refused.sentence().contains("does not answer"),
            "{refused:?}"
        );
        way.set(Way::Open);
    }
    let server = start(&url, &data, STARTER).unwrap();
    until_caught_up(&http, &server.url).await;
    let turns = told.turns.lock().unwrap().clone();
    assert_eq!(turns.len(), 18);
    all_are_there(&http, &server.url, &turns).await;
    let ended = server.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(broken_laws(&direct).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_forgotten_meanwhile_comes_without_its_words() {
    let (_guard, data) = temporary().unwrap();
    let (way, url, direct) = fresh("away_forgotten").await;
    let http = client().unwrap();
    let server = start(&url, &data, NULL).unwrap();
    let told = Told::by(NULL);
    let mut messages = vec![json!({"role": "user", "content": "My secret is xylophone."})];
    told.ask(&http, &server.url, &mut messages).await.unwrap();
    way.set(Way::Cut);
    for _ in 0..2 {
        told.ask(&http, &server.url, &mut messages).await.unwrap();
    }
    server.kill();
    way.set(Way::Open);
    // Another process of the same ledger takes the wish, before the turns are there.
    let ledger = PostgresStore::open_beside(&PostgresConfig::at(&direct)).await;
    let ledger = ledger.unwrap();
    let now_ms = i64::try_from(
        std::time::UNIX_EPOCH
            .elapsed()
            .map_or(0, |now| now.as_millis()),
    );
    let now_ms = now_ms.unwrap();
    let wish = ForgetWish {
        id: ForgetId(Uuid::from_u128(7)),
        scope: Scope::of("local", None),
        owner: "local".to_owned(),
        what: ForgetWhat::All,
        now_ms,
        entry: AuditEntry {
            at_ms: now_ms,
            actor: "local".to_owned(),
            act: "forget".to_owned(),
            object: String::new(),
            detail: json!({}),
        },
    };
    ledger.begin_forget(&wish).await.unwrap();
    ledger.close().await;
    let server = start(&url, &data, NULL).unwrap();
    until_caught_up(&http, &server.url).await;
    let turns = told.turns.lock().unwrap().clone();
    for turn in &turns {
        let found: Result<Value, _> = get(&http, &server.url, &format!("/v1/turns/{turn}")).await;
        let text = found.map(|found| found.to_string()).unwrap_or_default();
        assert!(!text.contains("xylophone"), "{text}");
    }
    let ended = server.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(crate::chaos::files_with(&data, &["xylophone".to_owned()]).is_empty());
    assert_eq!(broken_laws(&direct).await, Vec::<String>::new());
}
