//! Files that are damaged or gone, under a server that runs and before one that starts: nothing is
//! acknowledged that is lost, serving goes on, and what is wrong is said.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hone_tests::{Changes, TestApp, ask, broken_laws, client, get, post, temporary};
use serde_json::{Value, json};

use crate::commands::{check_no_panic, look};
use crate::program::{Ended, Server, program, serving};

/// How long an answer would wait for a receipt.
const RECEIPT_TIMEOUT_MS: i64 = 20_000;

fn null_engine() -> Vec<(&'static str, toml::Value)> {
    vec![
        ("model.engine", "null".into()),
        ("http.receipt_timeout_ms", RECEIPT_TIMEOUT_MS.into()),
    ]
}

async fn probe(app: &TestApp, path: &str) -> (u16, String) {
    let reply = client().unwrap().get(format!("{}{path}", app.url));
    let reply = reply.send().await.unwrap();
    (reply.status().as_u16(), reply.text().await.unwrap())
}

/// Until the alert of that name is told.
async fn alerted(app: &TestApp, id: &str) -> Value {
    let told = |why: &Value| {
        let alerts = why["alerts"].as_array();
        alerts.is_some_and(|alerts| alerts.iter().any(|alert| alert["id"] == id))
    };
    app.until("/admin/v1/why", told).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_folder_that_is_removed_is_noticed_and_nothing_is_acknowledged() {
    let harms: [fn(&Path); 3] = [
        |data| std::fs::remove_dir_all(data).unwrap(),
        |data| std::fs::remove_file(data.join("ledger.db")).unwrap(),
        |data| {
            let away = data.with_extension("away");
            std::fs::rename(data, &away).unwrap();
            std::fs::create_dir(data).unwrap();
        },
    ];
    for harm in harms {
        let (_guard, data) = temporary().unwrap();
        let changes = null_engine();
        let app = TestApp::start(&data, &changes as Changes<'_>)
            .await
            .unwrap();
        let mut body = ask("Hello!", 1);
        body["model"] = json!("hone-null");
        let before = app.chat(body.clone()).await.unwrap();
        assert_eq!(before["hone"]["collected"], true, "{before}");
        assert_eq!(probe(&app, "/readyz/learning").await.0, 200);
        harm(&data);
        let began = Instant::now();
        let why = alerted(&app, "ledger_lost").await;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(why["learning"], "no", "{why}");
        let began = Instant::now();
        for n in 0..3 {
            let answer = app.chat(body.clone()).await.unwrap();
            assert_eq!(answer["hone"]["collected"], false, "{n}: {answer}");
        }
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(10),
            "no answer waits for a receipt that cannot come: {took:?}"
        );
        let (status, text) = probe(&app, "/readyz/learning").await;
        assert_eq!(status, 503, "{text}");
        let (status, text) = probe(&app, "/readyz").await;
        assert_eq!(
            (status, text.contains("ledger_lost")),
            (200, true),
            "{text}"
        );
        app.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_another_program_removes_is_noticed() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &null_engine() as Changes<'_>)
        .await
        .unwrap();
    assert_eq!(probe(&app, "/readyz/learning").await.0, 200);
    let file = data.join("ledger.db");
    let drop =
        "import sqlite3, sys; sqlite3.connect(sys.argv[1], 10).execute('drop table feedback')";
    let other = Command::new("python3")
        .args(["-c", drop, file.to_str().unwrap()])
        .status();
    assert!(other.unwrap().success());
    let why = alerted(&app, "ledger_incomplete").await;
    assert_eq!(why["learning"], "no", "{why}");
    assert_eq!(probe(&app, "/readyz/learning").await.0, 503);
    app.stop().await.unwrap();
}

/// The folder of a scope's newest adapter.
fn adapters(data: &Path) -> Vec<PathBuf> {
    let folders = |above: PathBuf| {
        let entries = std::fs::read_dir(above).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path())
    };
    let mut found: Vec<PathBuf> = folders(data.join("blobs/adapters"))
        .flat_map(folders)
        .collect();
    found.sort_by_key(|folder| std::fs::metadata(folder).unwrap().modified().unwrap());
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_served_version_falls_back_at_the_start_and_says_so() {
    let (_guard, data) = temporary().unwrap();
    let quick: Vec<(&str, toml::Value)> = vec![
        // Every turn counts here.
        ("train.gate.held_out_share", 0.0.into()),
        ("train.batch_turns", 2.into()),
        ("train.batch_turns_min", 2.into()),
        ("train.batch_wait_ms", 100.into()),
        ("train.tick_ms", 100.into()),
        ("train.gate.probe_recent", 1.into()),
        ("train.gate.probe_golden", 1.into()),
    ];
    let app = TestApp::start(&data, &quick as Changes<'_>).await.unwrap();
    for seed in 0..2 {
        let mut body = ask("What color is the sky?", seed);
        body["max_tokens"] = json!(12);
        let reply = app.chat(body).await.unwrap();
        let said = json!({"turn_id": reply["hone"]["turn_id"], "score": 1});
        app.post("/v1/feedback", said).await.unwrap();
    }
    let learned = |v: &Value| v["current"].as_u64() >= Some(1);
    let before = app.until("/v1/versions", learned).await.unwrap();
    app.stop().await.unwrap();
    let newest = adapters(&data).pop().unwrap();
    let weights = newest.join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&weights, bytes).unwrap();

    let app = TestApp::start(&data, &quick as Changes<'_>).await.unwrap();
    let answer = app.chat(ask("Hello!", 3)).await.unwrap();
    let served = answer["hone"]["policy_version"].as_u64();
    assert!(served > before["current"].as_u64(), "{answer}");
    let why = alerted(&app, "adapter_damaged").await;
    assert!(why.to_string().contains("kept aside"), "{why}");
    let (status, text) = probe(&app, "/readyz").await;
    assert_eq!(
        (status, text.contains("adapter_damaged")),
        (200, true),
        "{text}"
    );
    let versions = app.get("/v1/versions").await.unwrap();
    let damaged = versions["data"].as_array().unwrap().iter();
    assert_eq!(
        damaged.filter(|v| v["damaged"] == true).count(),
        1,
        "{versions}"
    );
    assert!(data.join("blobs/damaged").exists() && !newest.exists());
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
}

/// Quick steps, an admin at this machine, and a scrub that is always at it.
const QUICK: &str = r#"
[people]
trust_loopback = true
[http]
receipt_timeout_ms = 20000
[store]
scrub_interval_ms = 300
[learning]
forget_wait_ms = 60000
[train]
batch_turns = 2
batch_turns_min = 2
batch_wait_ms = 100
tick_ms = 100
[train.gate]
probe_recent = 1
probe_golden = 1
held_out_share = 0.0
"#;

/// A word of turns that are erased, and nowhere else.
const ERASED: &str = "zebra7731quokka";

/// A data folder as a killed server left it, and what its clients were told.
struct Left {
    folder: PathBuf,
    turns: Vec<String>,
    /// One file of each kind: of several of a kind the newest, which is what is served.
    kinds: BTreeMap<String, PathBuf>,
}

/// One turn; its id, which is told to be collected.
async fn talk(url: &str, text: &str, seed: u64) -> String {
    let mut body = ask(text, seed);
    body["max_tokens"] = json!(8);
    let reply = post(&client().unwrap(), url, "/v1/chat/completions", body)
        .await
        .unwrap();
    assert_eq!(reply["hone"]["collected"], true, "{reply}");
    reply["hone"]["turn_id"].as_str().unwrap().to_owned()
}

fn served(data: &Path) -> Result<Server, Ended> {
    let arguments = serving(data, QUICK);
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Server::start(program(&words))
}

/// Asks until `good`, for a minute at most.
async fn until(url: &str, path: &str, good: impl Fn(&Value) -> bool) -> Value {
    let (http, mut last) = (client().unwrap(), Value::Null);
    for _ in 0..600 {
        last = get(&http, url, path).await.unwrap();
        if good(&last) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{path} stays {last}")
}

/// Until the ledger's mark stands still, 30 seconds at most. A transaction that is in the log and not yet in the mark
/// could be lost without a word, and nobody was told of it.
async fn until_marked(folder: &Path) {
    let mark = || fs::read(folder.join("ledger.mark")).unwrap();
    for _ in 0..60 {
        let before = mark();
        tokio::time::sleep(Duration::from_millis(500)).await;
        if mark() == before {
            return;
        }
    }
    panic!("the ledger does not come to rest");
}

/// Talks, teaches two versions, makes an account, erases, and is killed with something in its log.
async fn leave(folder: PathBuf) -> Left {
    let server = served(&folder).unwrap();
    let (http, url) = (client().unwrap(), server.url.clone());
    let mut turns = Vec::new();
    for version in 1..=2 {
        for n in 0..2 {
            let id = talk(&url, "What color is the sky?", version * 10 + n).await;
            let said = json!({"turn_id": id, "score": 1});
            post(&http, &url, "/v1/feedback", said).await.unwrap();
            turns.push(id);
        }
        until(&url, "/v1/versions", |v| {
            v["current"].as_u64() >= Some(version)
        })
        .await;
    }
    let account = json!({"name": "ann", "role": "user", "password": "a long password"});
    post(&http, &url, "/admin/v1/users", account).await.unwrap();
    let erased = talk(&url, ERASED, 7).await;
    let wish = json!({"turn_ids": [erased]});
    let wish = post(&http, &url, "/v1/forget", wish).await.unwrap();
    let path = format!("/v1/forget/{}", wish["id"].as_str().unwrap());
    until(&url, &path, |wish| wish["state"] == "done").await;
    for n in 0..5 {
        turns.push(talk(&url, "Hello!", 100 + n).await);
    }
    until_marked(&folder).await;
    server.kill();
    let late = hone_ledger::LateTurns::open(&folder).unwrap();
    late.note(hone_domain::TurnId(uuid::Uuid::now_v7()))
        .unwrap();
    let kinds = kinds(&folder);
    Left {
        folder,
        turns,
        kinds,
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found
}

/// The kinds of files of a data folder, each with one of them as a path within it.
fn kinds(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut all = files(folder);
    all.sort_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
    let kind = |path: PathBuf| {
        let path = path.strip_prefix(folder).unwrap().to_path_buf();
        let (first, name) = (path.iter().nth(1), path.file_name());
        let name = name.unwrap().to_string_lossy();
        let kind = match first.filter(|_| path.starts_with("blobs")) {
            Some(first) => format!("{}: {name}", first.to_string_lossy()),
            None => name.into_owned(),
        };
        (kind, path)
    };
    // A later one of a kind takes the place of an earlier one.
    all.into_iter().map(kind).collect()
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let into = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(into.parent().unwrap()).unwrap();
        fs::copy(&file, into).unwrap();
    }
}

/// What happens to a file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// One bit is another one, at this share of its length.
    Flip(f64),
    /// Its second half is gone.
    Truncate,
    Remove,
}

const HARMS: [Harm; 5] = [
    Harm::Flip(0.0),
    Harm::Flip(0.5),
    Harm::Flip(0.99),
    Harm::Truncate,
    Harm::Remove,
];

impl Harm {
    /// False where the file has nothing to damage.
    fn befall(self, file: &Path) -> bool {
        use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
        let length = fs::metadata(file).map_or(0, |meta| meta.len());
        if length == 0 && !matches!(self, Self::Remove) {
            return false;
        }
        let open = || {
            fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(file)
                .unwrap()
        };
        match self {
            Self::Flip(share) => {
                // In its place, as a bad disk does it: whoever has it open sees it.
                let (mut open, place) = (open(), (length as f64 * share) as u64);
                let (mut byte, place) = ([0], SeekFrom::Start(place));
                open.seek(place).unwrap();
                open.read_exact(&mut byte).unwrap();
                open.seek(place).unwrap();
                open.write_all(&[byte[0] ^ 0x10]).unwrap();
            }
            Self::Truncate => open().set_len(length / 2).unwrap(),
            Self::Remove => fs::remove_file(file).unwrap(),
        }
        true
    }
}

/// What came of a damaged folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The server does not start, and says why and what to do in one sentence.
    Refused,
    /// It serves, has everything, and says what is damaged.
    Told,
    /// It serves and has everything: the file is made again, or was not needed.
    Healed,
}

/// Whether the server says that something is broken. What the doctor found it finds as well, as soon as it has
/// read everything.
async fn tells(what: &str, url: &str, broken: Option<&str>) -> bool {
    let http = client().unwrap();
    for _ in 0..100 {
        let why = get(&http, url, "/admin/v1/why").await.unwrap();
        let mut alerts = why["alerts"].as_array().unwrap().iter();
        let is_told = alerts.any(|alert| alert["severity"] == "bad");
        if is_told || broken.is_none() {
            return is_told;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what}: the doctor says what the server does not: {broken:?}")
}

/// The commands, then the server itself: one that starts has every turn that was acknowledged, or tells of a damaged
/// ledger, and no word of what was erased.
async fn examine(what: &str, data: &Path, turns: &[String]) -> Outcome {
    let broken = look(what, data);
    let server = match served(data) {
        Ok(server) => server,
        Err(ended) => {
            check_no_panic(what, &ended);
            let sentence = ended.sentence();
            assert!(
                sentence.contains(';'),
                "{what}: it names no remedy: {sentence}"
            );
            assert!(
                broken.is_some(),
                "{what}: the doctor is content: {sentence}"
            );
            return Outcome::Refused;
        }
    };
    let (http, url) = (client().unwrap(), server.url.clone());
    // What stands on a damaged page of the ledger is not lost silently: it cannot be read, and that is told.
    let mut unread = Vec::new();
    for id in turns {
        let found = get(&http, &url, &format!("/v1/turns/{id}")).await;
        let Err(error) = found else { continue };
        let is_unread =
            what.starts_with("ledger.db") && error.to_string().contains("ledger_failed");
        assert!(
            is_unread,
            "{what}: turn {id} was acknowledged and is lost: {error}"
        );
        unread.push(id);
    }
    let again = post(&http, &url, "/v1/chat/completions", ask("Hello again!", 1)).await;
    assert!(again.is_ok(), "{what}: {again:?} {:#?}", server.errors());
    let is_told = tells(what, &url, broken.as_deref()).await;
    assert!(
        is_told || unread.is_empty(),
        "{what}: nobody says that these cannot be read: {unread:?}"
    );
    check_no_panic(what, &server.stop());
    // A damaged ledger that says so may not be able to say more.
    let may_not_say = is_told && what.starts_with("ledger.db");
    let laws = broken_laws(data).await;
    assert!(
        may_not_say || laws.as_ref().is_ok_and(Vec::is_empty),
        "{what}: {laws:?}"
    );
    let holds = |path: &PathBuf| {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            // SQLite removes its own files after the last connection, a moment later.
            Err(error) if error.kind() == ErrorKind::NotFound => return false,
            Err(error) => panic!("{what}: {}: {error}", path.display()),
        };
        bytes
            .windows(ERASED.len())
            .any(|window| window == ERASED.as_bytes())
    };
    let found: Vec<PathBuf> = files(data).into_iter().filter(holds).collect();
    assert_eq!(found, Vec::<PathBuf>::new(), "{what}: it was erased");
    match is_told {
        true => Outcome::Told,
        false => Outcome::Healed,
    }
}

/// What has to come of damage to a kind of file; none where it depends on what the bit means.
fn expected(kind: &str, harm: Harm) -> Option<Outcome> {
    match (kind, harm) {
        ("ledger.db", Harm::Flip(share)) if share > 0.0 => None,
        ("ledger.db" | "ledger.db-wal", _) => Some(Outcome::Refused),
        // What changes nothing of what is served is no damage to it.
        ("adapters: adapter_config.json", Harm::Flip(_)) => None,
        ("adapters: probe.json", Harm::Flip(0.99)) => None,
        ("adapters: probe.json", Harm::Remove) => Some(Outcome::Healed),
        ("adapters: manifest.json", _) => Some(Outcome::Healed),
        (kind, _) if kind.starts_with("adapters: ") => Some(Outcome::Told),
        _ => Some(Outcome::Healed),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_to_any_file_at_rest_ends_in_all_there_or_one_sentence() {
    let (guard, folder) = temporary().unwrap();
    let left = leave(folder).await;
    for kind in [
        "ledger.db",
        "ledger.db-wal",
        "ledger.mark",
        "late-turns",
        "owner.lock",
    ] {
        assert!(left.kinds.contains_key(kind), "{:?}", left.kinds);
    }
    let weights = "adapters: adapter_model.safetensors";
    assert!(left.kinds.contains_key(weights), "{:?}", left.kinds);
    let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
    for (kind, file) in &left.kinds {
        for harm in HARMS {
            let what = format!("{kind}, {harm:?}");
            let data = guard.path().join("copy");
            copy(&left.folder, &data);
            if harm.befall(&data.join(file)) {
                let outcome = examine(&what, &data, &left.turns).await;
                println!("{what}: {outcome:?}");
                if let Some(expected) = expected(kind, harm) {
                    assert_eq!(outcome, expected, "{what}");
                }
                *outcomes.entry(outcome).or_default() += 1;
            }
            for left in [data.clone(), data.with_extension("backup")] {
                // There is no backup of what was refused.
                let _removed = fs::remove_dir_all(left).is_ok();
            }
        }
    }
    println!(
        "{} kinds of files, damaged at rest: {outcomes:?}",
        left.kinds.len()
    );
}

/// Asks until the server is gone; notes what was acknowledged. No answer fails.
async fn ask_on(url: String, user: u64, told: Arc<Mutex<Vec<String>>>) {
    let http = client().unwrap();
    for n in 0..10_000 {
        let mut body = ask("What color is the sky?", user * 10_000 + n);
        body["max_tokens"] = json!(8);
        let reply = http
            .post(format!("{url}/v1/chat/completions"))
            .json(&body)
            .send()
            .await;
        let Ok(reply) = reply else { return };
        let status = reply.status();
        let Ok(reply) = reply.json::<Value>().await else {
            return;
        };
        assert_eq!(status, 200, "{reply}");
        if reply["hone"]["collected"] == true {
            let id = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
            told.lock().unwrap().push(id);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_to_any_file_under_load_ends_in_all_there_or_one_sentence() {
    let (guard, folder) = temporary().unwrap();
    let left = leave(folder).await;
    let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
    for (kind, file) in &left.kinds {
        for harm in [Harm::Flip(0.5), Harm::Truncate, Harm::Remove] {
            let what = format!("{kind}, {harm:?}, under load");
            let data = guard.path().join("copy");
            copy(&left.folder, &data);
            let server = served(&data).unwrap();
            let told = Arc::new(Mutex::new(left.turns.clone()));
            let talks: Vec<_> = (0..2)
                .map(|user| tokio::spawn(ask_on(server.url.clone(), user, told.clone())))
                .collect();
            // Until something is answered, however busy the machine is.
            for _ in 0..200 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                if told.lock().unwrap().len() > left.turns.len() {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            let is_done = harm.befall(&data.join(file));
            tokio::time::sleep(Duration::from_millis(800)).await;
            let ended = server.kill();
            check_no_panic(&what, &ended);
            for talk in talks {
                talk.await.unwrap();
            }
            if is_done {
                let told = told.lock().unwrap().clone();
                assert!(told.len() > left.turns.len(), "{what}: nothing was asked");
                let outcome = examine(&what, &data, &told).await;
                println!("{what}: {} turns acknowledged, {outcome:?}", told.len());
                *outcomes.entry(outcome).or_default() += 1;
            }
            for left in [data.clone(), data.with_extension("backup")] {
                // There is no backup of what was refused.
                let _removed = fs::remove_dir_all(left).is_ok();
            }
        }
    }
    println!(
        "{} kinds of files, damaged under load: {outcomes:?}",
        left.kinds.len()
    );
}
