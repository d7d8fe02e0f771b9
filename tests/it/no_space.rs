//! A disk that fills up under load, and gets room again: a file system in memory that belongs to this test. Answers
//! go on, nothing acknowledged is lost, nothing erased is found, and learning goes on where there is room again.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hone_tests::{ask, broken_laws, client, get, temporary};
use reqwest::Client;
use serde_json::{Value, json};

use crate::apart::Apart;
use crate::chaos::{files_with, random, word};
use crate::program::{Server, program, program_by, serving};

/// Room for a model that learns for a minute.
const DISK_MIB: usize = 48;
const PEOPLE: u64 = 3;
/// Answers that are told to be not kept before a full disk gets room again.
const NOT_KEPT: u64 = 5;
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// Quick steps, and an admin at this machine.
const QUICK: &str = r#"
[people]
trust_loopback = true
[http]
receipt_timeout_ms = 500
[train]
batch_turns = 4
batch_turns_min = 2
batch_wait_ms = 100
tick_ms = 100
lease_ms = 1500
[judge]
lease_ms = 1000
[train.gate]
probe_recent = 1
probe_golden = 1
held_out_share = 0.0
[train.watch]
enabled = false
"#;

/// What clients were told.
#[derive(Default)]
struct Told {
    /// Turns that are collected, and that nobody wished away.
    turns: BTreeSet<String>,
    /// Words of turns that are forgotten.
    forgotten: Vec<String>,
    /// Accounts that were made.
    accounts: Vec<String>,
    /// What was refused for the time being.
    refused: u64,
}

/// Everybody who talks, until they are to stop or the server is gone.
#[derive(Default)]
struct Crowd {
    told: Mutex<Told>,
    answers: AtomicU64,
    not_kept: AtomicU64,
    is_over: AtomicBool,
    may_break: AtomicBool,
}

/// The reply to a request: what it says where it was done, and none where it was refused for the time being.
async fn done(http: &Client, url: String, body: Value) -> Result<Option<Value>, reqwest::Error> {
    let reply = http.post(&url).json(&body).send().await?;
    let (status, reply) = (reply.status().as_u16(), reply.json::<Value>().await?);
    match status {
        200..300 => Ok(Some(reply)),
        503 => {
            let error = &reply["error"];
            assert!(
                error["message"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty()),
                "{reply}"
            );
            Ok(None)
        }
        _ => panic!("{url}: {status} {reply}"),
    }
}

impl Crowd {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap()
    }

    async fn talk(self: Arc<Self>, url: String, (user, round): (u64, u64)) {
        let http = client().unwrap();
        for n in 0..10_000 {
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) = self.one(&http, &url, (user, round, n)).await {
                assert!(self.may_break.load(Ordering::Acquire), "{error}");
                return;
            }
        }
    }

    /// A turn, and what is done with it.
    async fn one(
        &self,
        http: &Client,
        url: &str,
        (user, round, n): (u64, u64, u64),
    ) -> Result<(), reqwest::Error> {
        let (word, scope) = (word(user, round, n), format!("user-{user}"));
        let mut body = ask(&format!("What is the capital of France? {word}"), n);
        body["user"] = json!(scope);
        body["max_tokens"] = json!(12);
        let reply = done(http, format!("{url}/v1/chat/completions"), body).await?;
        let reply = reply.expect("an answer needs no room on the disk");
        self.answers.fetch_add(1, Ordering::AcqRel);
        let collected = &reply["hone"]["collected"];
        // The spool is on the same disk; where it still finds room, what it takes is kept as well.
        let is_kept = *collected == true || *collected == "spooled";
        if !is_kept {
            assert!(reply["hone"]["explanation"].is_string(), "{reply}");
            self.not_kept.fetch_add(1, Ordering::AcqRel);
        }
        let id = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
        if is_kept {
            self.told().turns.insert(id.clone());
        }
        let score = if n.is_multiple_of(2) { 1 } else { -1 };
        let said = json!({"turn_id": id, "score": score});
        let said = done(http, format!("{url}/v1/feedback"), said).await?;
        self.told().refused += u64::from(said.is_none());
        match random(user * 7_919 + round * 131 + n) % 16 {
            0 => {
                let name = format!("u{user}-{round}-{n}");
                let account = json!({"name": name, "role": "user", "password": "a long password"});
                let made = done(http, format!("{url}/admin/v1/users"), account).await?;
                match made {
                    Some(_) => self.told().accounts.push(name),
                    None => self.told().refused += 1,
                }
            }
            1 if is_kept => {
                // Before it is sent: whether it was done is not known when the server is gone.
                self.told().turns.remove(&id);
                let wish = json!({"turn_ids": [id], "user": scope});
                match done(http, format!("{url}/v1/forget"), wish).await? {
                    Some(_) => self.told().forgotten.push(word),
                    None => self.told().refused += 1,
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The disk, and what fills it.
struct Disk {
    apart: Apart,
    data: PathBuf,
}

impl Disk {
    fn new(data: PathBuf) -> Option<Self> {
        let shown = data.display();
        let mount = format!("mkdir {shown}; mount -t tmpfs -o size={DISK_MIB}m tmpfs {shown}");
        let apart = Apart::new(&["--mount"], &mount)?;
        Some(Self { apart, data })
    }

    fn serve(&self) -> Server {
        let arguments = serving(&self.data, QUICK);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Server::start(program_by(self.apart.within(), &words)).unwrap()
    }

    /// The data folder as it is seen from outside.
    fn folder(&self) -> PathBuf {
        self.apart.path(&self.data)
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .append(true)
            .open(self.folder().join("filler"));
        let mut file = file.unwrap();
        let mut bytes: &[u8] = &[0; 1 << 16];
        while !bytes.is_empty() {
            if let Err(error) = file.write_all(bytes) {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                bytes = &bytes[bytes.len().div_ceil(2)..];
            }
        }
    }

    fn make_room(&self) {
        std::fs::remove_file(self.folder().join("filler")).unwrap();
    }
}

async fn until(what: &str, url: &str, path: &str, good: impl Fn(&Value) -> bool) -> Value {
    let (began, http) = (Instant::now(), client().unwrap());
    loop {
        let last = get(&http, url, path).await.unwrap();
        if good(&last) {
            println!("{what} after {:.1} s", began.elapsed().as_secs_f64());
            return last;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {path} stays {last}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn tells_of_the_disk(why: &Value) -> bool {
    let alerts = why["alerts"].as_array();
    alerts.is_some_and(|alerts| alerts.iter().any(|alert| alert["id"] == "disk_full"))
}

/// Fills the disk until so many answers are told to be not kept.
async fn fill_until_told(disk: &Disk, crowd: &Crowd) {
    let (before, began) = (crowd.not_kept.load(Ordering::Acquire), Instant::now());
    while crowd.not_kept.load(Ordering::Acquire) < before + NOT_KEPT {
        assert!(began.elapsed() < PATIENCE, "a full disk is not noticed");
        disk.fill();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What was acknowledged is there, and what was forgotten is not.
async fn check_kept(url: &str, (folder, told): (&Path, &Told)) {
    let http = client().unwrap();
    for id in &told.turns {
        let found = get(&http, url, &format!("/v1/turns/{id}")).await;
        assert!(
            found.is_ok(),
            "turn {id} was acknowledged and is lost: {found:?}"
        );
    }
    let accounts = get(&http, url, "/admin/v1/users")
        .await
        .unwrap()
        .to_string();
    for name in &told.accounts {
        assert!(
            accounts.contains(&format!("\"{name}\"")),
            "account {name} is lost"
        );
    }
    until(
        "the wishes done",
        url,
        "/admin/v1/forgets?limit=200",
        |wishes| {
            let all = wishes["data"].as_array().unwrap();
            all.iter().all(|wish| wish["state"] == "done")
        },
    )
    .await;
    assert_eq!(files_with(folder, &told.forgotten), Vec::<String>::new());
}

/// How long it takes until an answer is kept.
async fn is_kept_again(url: &str) -> Duration {
    let (began, http) = (Instant::now(), client().unwrap());
    let chat = format!("{url}/v1/chat/completions");
    loop {
        let reply = done(&http, chat.clone(), ask("Hello!", 1))
            .await
            .unwrap()
            .unwrap();
        if reply["hone"]["collected"] == true {
            return began.elapsed();
        }
        assert!(
            began.elapsed() < PATIENCE,
            "answers are not kept again: {reply}"
        );
    }
}

fn start_talks(crowd: &Arc<Crowd>, url: &str, round: u64) -> Vec<tokio::task::JoinHandle<()>> {
    let talk = |user| tokio::spawn(crowd.clone().talk(url.to_owned(), (user, round)));
    (0..PEOPLE).map(talk).collect()
}

/// Until there are versions beyond this one.
async fn learns(what: &str, url: &str, least: u64) -> u64 {
    let learned = until(what, url, "/admin/v1/status", |status| {
        status["ledger"]["versions"].as_u64() > Some(least)
    });
    learned.await["ledger"]["versions"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_disk_that_fills_up_under_load_loses_nothing_and_goes_on_with_room() {
    let (guard, data) = temporary().unwrap();
    let Some(disk) = Disk::new(data) else { return };
    let crowd = Arc::new(Crowd::default());
    let server = disk.serve();
    let url = server.url.clone();
    let talks = start_talks(&crowd, &url, 0);
    let versions = learns("learned before", &url, 1).await;
    fill_until_told(&disk, &crowd).await;
    let told = until("told to be full", &url, "/admin/v1/why", tells_of_the_disk).await;
    assert_eq!(told["learning"], "no", "{told}");
    disk.make_room();
    let began = Instant::now();
    until("the alert over", &url, "/admin/v1/why", |why| {
        !tells_of_the_disk(why)
    })
    .await;
    let over = began.elapsed();
    let kept = began.elapsed() + is_kept_again(&url).await;
    let versions = learns("learned with room", &url, versions).await;
    // Full once more, and killed.
    fill_until_told(&disk, &crowd).await;
    crowd.may_break.store(true, Ordering::Release);
    let ended = server.kill();
    assert!(!ended.text().contains("panicked"), "{}", ended.text());
    for talk in talks {
        talk.await.unwrap();
    }
    // It starts without room, and goes on with it.
    let server = disk.serve();
    let url = server.url.clone();
    let chat = format!("{url}/v1/chat/completions");
    assert!(
        done(&client().unwrap(), chat, ask("Hello!", 1))
            .await
            .unwrap()
            .is_some()
    );
    disk.make_room();
    let talks = start_talks(&crowd, &url, 1);
    learns("learned after the start", &url, versions).await;
    crowd.is_over.store(true, Ordering::Release);
    for talk in talks {
        talk.await.unwrap();
    }
    let told = std::mem::take(&mut *crowd.told());
    check_kept(&url, (&disk.folder(), &told)).await;
    let ended = server.stop();
    assert!(!ended.text().contains("panicked"), "{}", ended.text());
    assert_eq!(
        files_with(&disk.folder(), &told.forgotten),
        Vec::<String>::new()
    );
    assert_eq!(
        broken_laws(&disk.folder()).await.unwrap(),
        Vec::<String>::new()
    );
    println!(
        "{} answers while the disk was full twice, {} told that they are not kept; {} turns and {} accounts \
         acknowledged and found, {} forgotten and not found, {} requests refused for the time being; with room again the alert \
         was over after {} ms and an answer was kept after {} ms",
        crowd.answers.load(Ordering::Acquire),
        crowd.not_kept.load(Ordering::Acquire),
        told.turns.len(),
        told.accounts.len(),
        told.forgotten.len(),
        told.refused,
        over.as_millis(),
        kept.as_millis()
    );
    drop(guard);
}

/// Runs SQL in the ledger of a stopped server.
fn in_ledger(data: &Path, sql: &str) {
    let script = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])";
    let done = Command::new("python3")
        .args(["-c", script, data.join("ledger.db").to_str().unwrap(), sql])
        .status();
    assert!(done.unwrap().success());
}

/// What a client was told not to be kept needs a write at the start; without room for it the start goes on, and
/// with room nothing is learned from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_room_settles_later_what_was_told_not_to_be_kept() {
    let (_guard, data) = temporary().unwrap();
    let serve = |bytes_max| {
        let store = format!("[store]\ndatabase_bytes_max = {bytes_max}\n");
        let arguments = serving(&data, &store);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Server::start(program(&words)).unwrap()
    };
    let asks = async |server: &Server| {
        let chat = format!("{}/v1/chat/completions", server.url);
        let reply = done(&client().unwrap(), chat, ask("Hello!", 1)).await;
        let reply = reply.unwrap().unwrap();
        (reply["hone"]["turn_id"].as_str().unwrap().to_owned(), reply)
    };
    let server = serve(0);
    let (turn, reply) = asks(&server).await;
    assert_eq!(reply["hone"]["collected"], true, "{reply}");
    server.stop();
    let late = hone_ledger::LateTurns::open(&data).unwrap();
    late.note(turn.parse().unwrap()).unwrap();
    // Whoever changes a turn needs more room than there is.
    in_ledger(
        &data,
        "create table filler (bytes blob); create trigger fills before update on turns begin \
         insert into filler values (zeroblob(8000000)); end; pragma wal_checkpoint(truncate)",
    );
    let bytes = std::fs::metadata(data.join("ledger.db")).unwrap().len();
    let server = serve(bytes.max(2 << 20));
    let (_, reply) = asks(&server).await;
    let path = format!("/v1/turns/{turn}");
    let seen = get(&client().unwrap(), &server.url, &path).await.unwrap();
    assert_eq!(
        seen["fate"]["stage"], "awaiting_next_state",
        "{seen} {reply}"
    );
    server.stop();
    in_ledger(&data, "drop trigger fills; drop table filler");
    let server = serve(0);
    let seen = get(&client().unwrap(), &server.url, &path).await.unwrap();
    assert_eq!(seen["fate"]["reason"], "late_receipt", "{seen}");
    server.stop();
}
