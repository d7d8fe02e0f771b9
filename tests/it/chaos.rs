//! `kill -9` at random moments: every turn a client was told is collected is found again, and no
//! law is broken. The server is a child process: this test binary running one test of its own.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hone_tests::{Changes, TestApp, ask, broken_laws, client, config, get, post, temporary};
use serde_json::{Value, json};

/// Names the data folder of a child; set only in children.
const CHILD: &str = "HONE_TEST_CHILD_DATA";
/// Makes a child write its log; set only in children.
const CHILD_LOGS: &str = "HONE_TEST_CHILD_LOGS";
/// How often the server is killed; `HONE_CHAOS_KILLS` says otherwise.
const KILLS: u64 = 20;

fn kills() -> u64 {
    let wanted = std::env::var("HONE_CHAOS_KILLS").ok();
    wanted.map_or(KILLS, |n| n.parse().expect("HONE_CHAOS_KILLS is a number"))
}

/// Not a test of its own: the child's whole life when `CHILD` is set, nothing otherwise.
#[test]
fn child_server() {
    let Ok(data) = std::env::var(CHILD) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let quick: Vec<(&str, toml::Value)> = vec![
            ("train.batch_turns", 4.into()),
            ("train.batch_turns_min", 2.into()),
            ("train.batch_wait_ms", 100.into()),
            ("train.lease_ms", 1500.into()),
            ("judge.lease_ms", 1000.into()),
            ("learning.forget_piece_turns", 1.into()),
            // Accounts are made by whoever is at this machine.
            ("people.trust_loopback", true.into()),
            // Probes are the gate's own tests' business; here many small steps matter.
            ("train.gate.probe_recent", 1.into()),
            ("train.gate.probe_golden", 1.into()),
        ];
        let config = config(Path::new(&data), &quick as Changes<'_>).unwrap();
        let _logging = std::env::var(CHILD_LOGS).map(|_| hone::logs::start(&config.log).unwrap());
        let app = hone::app::App::start(config).await.unwrap();
        println!("listening on http://{}", app.addr);
        // A parent that is gone must not leave a child behind.
        tokio::time::sleep(Duration::from_secs(600)).await;
        std::process::exit(3);
    });
}

fn spawn(data: &Path) -> (Child, String) {
    start(child_of(data))
}

fn child_of(data: &Path) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["chaos::child_server", "--exact", "--nocapture"])
        .env(CHILD, data);
    child
}

fn start(mut child: Command) -> (Child, String) {
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        if let Some((_, url)) = line.split_once("listening on ") {
            return (child, url.to_owned());
        }
    }
    panic!("the child did not start: {:?}", child.wait());
}

/// A small deterministic generator, so that a failing run can be told apart from a passing one.
pub(crate) fn random(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What clients were told.
#[derive(Default)]
struct Told {
    /// Turns that are collected, and that nobody wished away.
    turns: BTreeSet<String>,
    /// Words of turns that are forgotten.
    forgotten: Vec<String>,
    /// Accounts that were made.
    accounts: Vec<String>,
    feedback: u64,
}

fn of(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap()
}

/// A word that occurs in one turn only.
pub(crate) fn word(user: u64, round: u64, n: u64) -> String {
    format!("quixo{user}x{round:03}x{n:04}marvel")
}

/// Talks, gives feedback, makes accounts and has turns forgotten until the server is gone; notes what was
/// acknowledged.
async fn talk(url: String, (user, round): (u64, u64), told: Arc<Mutex<Told>>) {
    // Whatever fails here, fails because the server is gone.
    let _ended = talk_on(&url, (user, round), &told).await.is_ok();
}

async fn talk_on(
    url: &str,
    (user, round): (u64, u64),
    told: &Mutex<Told>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let http = client()?;
    let scope = format!("user-{user}");
    for n in 0..1000 {
        let word = word(user, round, n);
        let text = format!("What is the capital of France? {word}");
        let mut body = ask(&text, random(round * 1000 + n));
        body["user"] = json!(scope);
        body["max_tokens"] = json!(12);
        let reply = post(&http, url, "/v1/chat/completions", body).await?;
        if reply["hone"]["collected"] != true {
            continue;
        }
        let id = reply["hone"]["turn_id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        of(told).turns.insert(id.clone());
        let chance = random(user * 7_919 + round * 131 + n) % 8;
        let score = if chance.is_multiple_of(2) { 1 } else { -1 };
        let said = json!({"turn_id": id, "score": score});
        post(&http, url, "/v1/feedback", said).await?;
        of(told).feedback += 1;
        match chance {
            0 => {
                let name = format!("u{user}-{round}-{n}");
                let account = json!({"name": name, "role": "user", "password": "a long password"});
                post(&http, url, "/admin/v1/users", account).await?;
                of(told).accounts.push(name);
            }
            1 => {
                // Before it is sent: whether it was done is not known when the server is gone.
                of(told).turns.remove(&id);
                let wish = json!({"turn_ids": [id], "user": scope});
                post(&http, url, "/v1/forget", wish).await?;
                of(told).forgotten.push(word);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Every file under `folder` that holds one of the words, with the word.
pub(crate) fn files_with(folder: &Path, words: &[String]) -> Vec<String> {
    let needles: BTreeSet<&[u8]> = words.iter().map(String::as_bytes).collect();
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            // All words are of one length and begin alike.
            let length = words.first().map_or(1, String::len);
            let is_one = |window: &&[u8]| window.starts_with(b"quixo") && needles.contains(window);
            let first = bytes.windows(length).find(is_one);
            found
                .extend(first.map(|word| {
                    format!("{} in {}", String::from_utf8_lossy(word), path.display())
                }));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_it_loses_nothing_it_acknowledged() {
    let (_guard, data) = temporary().unwrap();
    let (told, kills) = (Arc::new(Mutex::new(Told::default())), kills());
    for round in 0..kills {
        let (mut child, url) = spawn(&data);
        let talks: Vec<_> = (0..3)
            .map(|user| tokio::spawn(talk(url.clone(), (user, round), told.clone())))
            .collect();
        tokio::time::sleep(Duration::from_millis(50 + random(round) % 950)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        for talk in talks {
            talk.await.unwrap();
        }
    }
    let told = std::mem::take(&mut *of(&told));
    assert!(
        told.turns.len() as u64 >= kills,
        "only {} turns were acknowledged",
        told.turns.len()
    );
    let trusting: [(&str, toml::Value); 1] = [("people.trust_loopback", true.into())];
    let app = TestApp::start(&data, &trusting).await.unwrap();
    for id in &told.turns {
        let view: Value = get(&client().unwrap(), &app.url, &format!("/v1/turns/{id}"))
            .await
            .unwrap_or_else(|error| panic!("turn {id} was acknowledged and is lost: {error}"));
        assert!(!view["fate"]["state"].is_null(), "{view}");
    }
    let accounts = app.get("/admin/v1/users").await.unwrap().to_string();
    for name in &told.accounts {
        let is_there = accounts.contains(&format!("\"{name}\""));
        assert!(is_there, "account {name} was acknowledged and is lost");
    }
    let is_over = |wishes: &Value| {
        let wishes = wishes["data"].as_array();
        wishes.is_some_and(|all| all.iter().all(|wish| wish["state"] == "done"))
    };
    app.until("/admin/v1/forgets?limit=200", is_over)
        .await
        .unwrap();
    assert_eq!(files_with(&data, &told.forgotten), Vec::<String>::new());
    let status = app.get("/admin/v1/status").await.unwrap();
    println!(
        "{kills} kills: {} turns, {} pieces of feedback, {} accounts acknowledged and found, {} turns \
         forgotten and not found; ledger {}",
        told.turns.len(),
        told.feedback,
        told.accounts.len(),
        told.forgotten.len(),
        status["ledger"]
    );
    app.stop().await.unwrap();
    assert_eq!(files_with(&data, &told.forgotten), Vec::<String>::new());
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
}

/// What a request with a key came to: status and reply.
async fn keyed(url: &str, (key, seed): (&str, u64)) -> Result<(u16, Value), reqwest::Error> {
    let mut body = ask("What is the capital of France?", seed);
    body["max_tokens"] = json!(12);
    let http = client().unwrap();
    let call = http.post(format!("{url}/v1/chat/completions")).json(&body);
    let reply = call.header("idempotency-key", key).send().await?;
    Ok((reply.status().as_u16(), reply.json().await?))
}

/// However often the server is killed between a turn and its answer, one key makes one turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_makes_one_turn_over_every_kill() {
    let (_guard, data) = temporary().unwrap();
    let (mut told, mut cut) = (Vec::new(), Vec::new());
    for round in 0..8 {
        let (mut child, url) = spawn(&data);
        let talk = tokio::spawn(async move {
            let mut told = Vec::new();
            for n in 0..1_000 {
                let key = format!("key-{round}-{n}");
                match keyed(&url, (&key, round * 1_000 + n)).await {
                    Ok((200, reply)) => told.push((key, round * 1_000 + n, reply)),
                    _ => return (told, (key, round * 1_000 + n)),
                }
            }
            panic!("it was not killed");
        });
        tokio::time::sleep(Duration::from_millis(100 + random(round) % 400)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        let (answered, last) = talk.await.unwrap();
        told.extend(answered);
        cut.push(last);
    }
    let app = TestApp::start(&data, &[]).await.unwrap();
    let mut turns = BTreeSet::new();
    for (key, seed, reply) in &told {
        let again = keyed(&app.url, (key, *seed)).await.unwrap();
        assert_eq!(again, (200, reply.clone()), "{key}");
        turns.insert(reply["hone"]["turn_id"].as_str().unwrap().to_owned());
    }
    let mut lost = 0;
    for (key, seed) in &cut {
        let (status, reply) = keyed(&app.url, (key, *seed)).await.unwrap();
        let turn = match status {
            200 => reply["hone"]["turn_id"].as_str().unwrap().to_owned(),
            _ => {
                assert_eq!(reply["error"]["code"], "answer_lost", "{reply}");
                lost += 1;
                let message = reply["error"]["message"].as_str().unwrap();
                let words = message.split([' ', ',']);
                words
                    .into_iter()
                    .find(|word| word.starts_with("turn_"))
                    .unwrap()
                    .to_owned()
            }
        };
        turns.insert(turn);
    }
    let status = app.get("/admin/v1/status").await.unwrap();
    assert_eq!(status["ledger"]["turns"], turns.len(), "{status}");
    println!(
        "{} keys answered alike over 8 kills, {lost} told which turn they made",
        told.len()
    );
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_nobody_reads_holds_up_nobody() {
    /// More than the kernel keeps for a reader that does not read, at about 100 bytes a request.
    const REQUESTS: usize = 3_000;
    let (_guard, data) = temporary().unwrap();
    let mut command = child_of(&data);
    command.env(CHILD_LOGS, "1").stderr(Stdio::piped());
    let (mut child, url) = start(command);
    let http = client().unwrap();
    for _ in 0..REQUESTS {
        let asked = get(&http, &url, "/v1/models");
        let answer = tokio::time::timeout(Duration::from_secs(20), asked).await;
        answer.expect("the server waits for its log").unwrap();
    }
    child.kill().unwrap();
    let mut unread = Vec::new();
    std::io::Read::read_to_end(&mut child.stderr.take().unwrap(), &mut unread).unwrap();
    child.wait().unwrap();
    assert!(unread.len() > 30_000, "it did log: {} bytes", unread.len());
}
