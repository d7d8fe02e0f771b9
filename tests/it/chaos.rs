//! `kill -9` at random moments: every turn a client was told is collected is found again, and no
//! law is broken. The server is a child process: this test binary running one test of its own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hone_tests::{Changes, TestHouse, ask, broken_laws, client, config, get, post, temporary};
use serde_json::{Value, json};

/// Names the data folder of a child; set only in children.
const CHILD: &str = "HONE_TEST_CHILD_DATA";
/// Makes a child write its log; set only in children.
const CHILD_LOGS: &str = "HONE_TEST_CHILD_LOGS";
/// How often the server is killed.
const KILLS: u64 = 50;

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
            // Probes are the gate's own tests' business; here many small steps matter.
            ("train.gate.probe_recent", 1.into()),
            ("train.gate.probe_golden", 1.into()),
        ];
        let config = config(Path::new(&data), &quick as Changes<'_>).unwrap();
        let _logging = std::env::var(CHILD_LOGS).map(|_| hone::logs::start(&config.log).unwrap());
        let house = hone::house::House::start(config).await.unwrap();
        println!("listening on http://{}", house.addr);
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
fn random(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Talks and gives feedback until the server is gone; notes what was acknowledged.
async fn talk(url: String, user: u64, round: u64, acknowledged: Arc<Mutex<Vec<String>>>) {
    let http = client().unwrap();
    for n in 0..1000 {
        let mut body = ask("What is the capital of France?", random(round * 1000 + n));
        body["user"] = json!(format!("user-{user}"));
        body["max_tokens"] = json!(12);
        let Ok(reply) = post(&http, &url, "/v1/chat/completions", body).await else {
            return;
        };
        if reply["hone"]["collected"] == true {
            let id = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
            acknowledged.lock().unwrap().push(id.clone());
            let score = if random(n).is_multiple_of(2) { 1 } else { -1 };
            let said = json!({"turn_id": id, "score": score});
            if post(&http, &url, "/v1/feedback", said).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_it_loses_nothing_it_acknowledged() {
    let (_guard, data) = temporary().unwrap();
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    for round in 0..KILLS {
        let (mut child, url) = spawn(&data);
        let talks: Vec<_> = (0..3)
            .map(|user| tokio::spawn(talk(url.clone(), user, round, acknowledged.clone())))
            .collect();
        tokio::time::sleep(Duration::from_millis(50 + random(round) % 450)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        for talk in talks {
            talk.await.unwrap();
        }
    }
    let ids = acknowledged.lock().unwrap().clone();
    assert!(
        ids.len() as u64 >= KILLS,
        "only {} turns were acknowledged",
        ids.len()
    );
    let house = TestHouse::start(&data, &[]).await.unwrap();
    for id in &ids {
        let view: Value = get(&client().unwrap(), &house.url, &format!("/v1/turns/{id}"))
            .await
            .unwrap_or_else(|error| panic!("turn {id} was acknowledged and is lost: {error}"));
        assert!(!view["fate"]["state"].is_null(), "{view}");
    }
    let status = house.get("/admin/v1/status").await.unwrap();
    println!(
        "{} turns acknowledged over {KILLS} kills; ledger {}",
        ids.len(),
        status["ledger"]
    );
    house.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
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
