//! Several processes over one ledger: gateways that answer, and one that judges and trains. What one does the others know,
//! adapters lie in an object store, and any of them may be killed.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hone_tests::{TestApp, ask, client, get, one_version_per_four_answers, post, temporary};
use serde_json::{Value, json};
use toml::Value as Toml;

use crate::chaos::random;
use crate::postgres::{broken_laws, database, fresh};
use crate::program::{Server, StandBy, program, serving};

/// How often something is looked at, and how long it may take until another process knows it.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: usize = 600;

fn loops(names: &[&str]) -> (&'static str, Toml) {
    let names = names.iter().map(|name| Toml::from(*name)).collect();
    ("loops", Toml::Array(names))
}

const GATEWAY: [&str; 2] = ["serve", "collect"];
const LEARNER: [&str; 3] = ["serve", "judge", "train"];

/// Files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => left.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found
}

/// Talks in one session, with thumbs; the turns.
async fn teach(app: &TestApp, session: &str, n: u64) -> Vec<String> {
    let mut turns = Vec::new();
    for seed in 0..n {
        let mut body = ask("What is the capital of France?", seed);
        body["session_id"] = json!(session);
        let reply = app.chat(body).await.unwrap();
        assert_eq!(reply["hone"]["collected"], true, "{reply}");
        let turn = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
        let score = if seed.is_multiple_of(2) { 1 } else { -1 };
        let said = json!({"turn_id": turn, "score": score});
        app.post("/v1/feedback", said).await.unwrap();
        turns.push(turn);
    }
    turns
}

/// Decides what may be learned.
async fn consent(app: &TestApp, learning: &str) {
    let http = client().unwrap();
    let decided = http.put(format!("{}/v1/consent", app.url));
    let decided = decided.json(&json!({"learning": learning})).send().await;
    assert!(decided.unwrap().status().is_success());
}

/// Asks until an answer is as wanted.
async fn answers(app: &TestApp, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut reply = Value::Null;
    for seed in 0..LOOKS {
        reply = app.chat(ask("Hello!", seed as u64)).await.unwrap();
        if wanted(&reply["hone"]) {
            return reply;
        }
        tokio::time::sleep(LOOK).await;
    }
    panic!("the other process does not know it: {reply}");
}

/// A conversation goes on wherever it is sent, and what is said there answers what was said here.
async fn a_conversation_goes_on(one: &TestApp, other: &TestApp) {
    let first = one
        .chat(ask("What is the capital of Italy?", 3))
        .await
        .unwrap();
    let hone = |reply: &Value, name: &str| reply["hone"][name].as_str().unwrap().to_owned();
    let (turn, session) = (hone(&first, "turn_id"), hone(&first, "session_id"));
    // The other one looks every second, on a busy machine later.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let mut body = ask("What is the capital of Italy?", 4);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": "Thank you, that helps!"}));
    let second = other.chat(body).await.unwrap();
    assert_eq!(hone(&second, "session_id"), session, "{second}");
    let path = format!("/v1/turns/{turn}");
    let answered = other.until(&path, |turn| {
        turn["next_state"][0]["text"] == "Thank you, that helps!"
    });
    answered.await.unwrap();
}

/// A version that is withdrawn at one is answered by neither.
async fn a_version_is_withdrawn(one: &TestApp, other: &TestApp) {
    let before = other.chat(ask("Hello!", 1)).await.unwrap();
    let before = before["hone"]["policy_version"].as_u64().unwrap();
    let undone = other
        .post("/v1/versions/0/rollback", json!({}))
        .await
        .unwrap();
    let now = undone["version"].as_u64().unwrap();
    assert!(now > before, "{undone}");
    answers(one, |hone| hone["policy_version"].as_u64() == Some(now)).await;
}

/// What is forgotten at one leaves the store and every copy.
async fn forgotten_everywhere(one: &TestApp, other: &TestApp, folder: &Path) {
    let wish = other
        .post("/v1/forget", json!({"all": true}))
        .await
        .unwrap();
    let path = format!("/v1/forget/{}", wish["id"].as_str().unwrap());
    other
        .until(&path, |wish| wish["state"] == "done")
        .await
        .unwrap();
    let mut left = Vec::new();
    for _ in 0..LOOKS {
        left = files_below(folder);
        left.retain(|path| path.to_string_lossy().contains("adapters"));
        if left.is_empty() {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    assert_eq!(left, Vec::<PathBuf>::new());
    // The other gateway still answers.
    one.chat(ask("Hello!", 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_process_does_the_others_know() {
    let (folder, _) = temporary().unwrap();
    let url = fresh("roles").await;
    let store = folder.path().join("store");
    let mut common = one_version_per_four_answers();
    common.push(("store.url", url.as_str().into()));
    common.push((
        "store.objects",
        format!("file://{}", store.display()).into(),
    ));
    let start = async |name: &str, names: &[&str]| {
        let mut changes = common.clone();
        changes.push(loops(names));
        TestApp::start(&folder.path().join(name), &changes)
            .await
            .unwrap()
    };
    let one = start("one", &GATEWAY).await;
    let other = start("other", &GATEWAY).await;
    let learner = start("learner", &LEARNER).await;

    // What is taught at one gateway is learned elsewhere and answered by both.
    let turns = teach(&one, "first", 4).await;
    let has_learned = |hone: &Value| hone["policy_version"].as_u64() >= Some(1);
    answers(&one, has_learned).await;
    answers(&other, has_learned).await;
    let turn = other.get(&format!("/v1/turns/{}", turns[0])).await.unwrap();
    assert_eq!(turn["fate"]["state"], "trained", "{turn}");
    assert!(
        !folder.path().join("one/blobs").exists(),
        "adapters are in the store"
    );

    a_conversation_goes_on(&one, &other).await;

    // A memory of one is known to the other.
    let noted = json!({"text": "The user is vegetarian."});
    let memory = one.post("/v1/memories", noted).await.unwrap();
    let id = memory["id"].as_str().unwrap();
    let told = other.until("/v1/memories", |list| {
        !list["data"].as_array().unwrap().is_empty()
    });
    told.await.unwrap();

    a_version_is_withdrawn(&one, &other).await;

    // Who may not be learned from any more is not, wherever they ask.
    consent(&one, "off").await;
    answers(&other, |hone| hone["collected"] == false).await;
    consent(&one, "full").await;
    answers(&other, |hone| hone["collected"] == true).await;

    forgotten_everywhere(&one, &other, folder.path()).await;
    let listed = one.get("/v1/memories").await.unwrap();
    assert!(!listed.to_string().contains(id), "{listed}");
    assert!(one.get(&format!("/v1/turns/{}", turns[0])).await.is_err());
    for app in [one, other, learner] {
        app.stop().await.unwrap();
    }
    assert_eq!(broken_laws(&url).await, Vec::<String>::new());
}

/// Adapters that were learned with a data folder alone are served from an object store that is added later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapters_of_a_data_folder_are_copied_to_a_store_that_is_added() {
    let (folder, data) = temporary().unwrap();
    let url = fresh("roles_adopted").await;
    let mut changes = one_version_per_four_answers();
    changes.push(("store.url", url.as_str().into()));
    let app = TestApp::start(&data, &changes).await.unwrap();
    teach(&app, "first", 4).await;
    let has_learned = |hone: &Value| hone["policy_version"].as_u64() >= Some(1);
    answers(&app, has_learned).await;
    app.stop().await.unwrap();
    let store = folder.path().join("store");
    let address = format!("file://{}", store.display());
    changes.push(("store.objects", address.into()));
    let app = TestApp::start(&data, &changes).await.unwrap();
    answers(&app, has_learned).await;
    let copied = files_below(&store);
    let is_manifest = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    assert!(copied.iter().any(is_manifest), "{copied:?}");
    app.stop().await.unwrap();

    // Without them, nothing starts that would serve another model than was learned.
    std::fs::remove_dir_all(&store).unwrap();
    for left in ["blobs", "objects"] {
        std::fs::remove_dir_all(data.join(left)).unwrap();
    }
    let refused = TestApp::start(&data, &changes).await.err().unwrap();
    let told = refused.to_string();
    assert!(
        told.contains("set store.objects to the store that has them"),
        "{told}"
    );
}

/// An S3 server on a port of its own; it ends with this.
struct S3 {
    child: Child,
    url: String,
}

impl S3 {
    async fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let program = root.join("target/venv/bin/moto_server");
        assert!(program.exists(), "moto is not installed: make setup");
        // Free a moment ago; nobody else of this test takes it.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let child = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let s3 = Self {
            child,
            url: format!("http://127.0.0.1:{port}"),
        };
        let http = client().unwrap();
        for _ in 0..LOOKS {
            let made = http.put(format!("{}/hone", s3.url)).send().await;
            if made.is_ok_and(|made| made.status().is_success()) {
                return s3;
            }
            tokio::time::sleep(LOOK).await;
        }
        panic!("the S3 server does not start");
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process of one of the roles, which begins again as long as another one's place is not free yet.
fn begun(command: &dyn Fn() -> Command) -> Server {
    for _ in 0..40 {
        match Server::start(command()) {
            Ok(server) => return server,
            Err(ended) => assert!(
                ended.text().contains("already with the ledger"),
                "{}",
                ended.text()
            ),
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    panic!("the role is never free");
}

/// Talks with thumbs until the gateway is gone; notes what was acknowledged.
async fn talk(url: &str, round: u64, told: &mut Vec<String>) {
    let http = client().unwrap();
    for n in 0..10_000 {
        let mut body = ask("What is the capital of France?", round * 10_000 + n);
        body["session_id"] = json!(format!("of round {round}"));
        let Ok(reply) = post(&http, url, "/v1/chat/completions", body).await else {
            return;
        };
        if reply["hone"]["collected"] != true {
            continue;
        }
        let turn = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
        let score = if n.is_multiple_of(2) { 1 } else { -1 };
        let said = json!({"turn_id": turn, "score": score});
        told.push(turn);
        if post(&http, url, "/v1/feedback", said).await.is_err() {
            return;
        }
    }
}

/// The program with some loops, over a database and an S3 server.
fn process(folder: &Path, names: &[&str], url: &str, s3: &S3) -> Command {
    let config = format!(
        "loops = {names:?}\n[store]\nurl = {url:?}\nobjects = \"s3://hone/adapters\"\n\
         [train]\nbatch_turns = 4\nbatch_turns_min = 4\ntick_ms = 100\nexplicit_wait_ms = 600000\n\
         [train.gate]\nheld_out_share = 0.0\n[serve]\nprove_interval_ms = 100\n[judge]\nlease_ms = 1000\n"
    );
    let arguments = serving(folder, &config);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = program(&arguments);
    command.env("AWS_ENDPOINT_URL", &s3.url);
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", "none"),
        ("AWS_SECRET_ACCESS_KEY", "none"),
        ("AWS_REGION", "us-east-1"),
    ] {
        command.env(name, value);
    }
    command
}

/// The version of which both gateways answer, which has learned something.
async fn both_answer_with(gateways: &[&str]) -> u64 {
    let http = client().unwrap();
    let mut versions = Vec::new();
    for _ in 0..LOOKS {
        versions.clear();
        for at in gateways {
            let reply = post(&http, at, "/v1/chat/completions", ask("Hello!", 1))
                .await
                .unwrap();
            versions.push(reply["hone"]["policy_version"].as_u64().unwrap());
        }
        if versions[0] >= 1 && versions[0] == versions[1] {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    assert!(
        versions[0] >= 1 && versions[0] == versions[1],
        "{versions:?}"
    );
    versions[0]
}

/// Two gateways and a learner over PostgreSQL and S3, one of them killed in each round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_process_may_be_killed_and_nothing_acknowledged_is_lost() {
    const ROUNDS: u64 = 6;
    let (folder, _) = temporary().unwrap();
    let url = fresh("roles_killed").await;
    let s3 = S3::start().await;
    let process = |name: &str, names: &[&str]| process(&folder.path().join(name), names, &url, &s3);
    let makes: [&dyn Fn() -> Command; 3] = [
        &|| process("one", &GATEWAY),
        &|| process("other", &GATEWAY),
        &|| process("learner", &LEARNER),
    ];
    let mut servers = makes.map(|make| Some(begun(make)));
    let mut told = Vec::new();
    for round in 0..ROUNDS {
        // Each of them is killed twice.
        let victim = (round % 3) as usize;
        let urls: Vec<String> = servers[..2]
            .iter()
            .map(|server| server.as_ref().unwrap().url.clone())
            .collect();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let patience = Duration::from_millis(1_500 + random(round) % 1_500);
        let kill = async {
            tokio::time::sleep(patience).await;
            servers[victim].take().unwrap().kill()
        };
        let clients = async {
            let talking = async {
                tokio::join!(
                    talk(&urls[0], round * 2, &mut first),
                    talk(&urls[1], round * 2 + 1, &mut second)
                )
            };
            // The others are talked to for a while after the kill.
            let _ = tokio::time::timeout(patience + Duration::from_millis(700), talking).await;
        };
        tokio::join!(clients, kill);
        told.append(&mut first);
        told.append(&mut second);
        servers[victim] = Some(begun(makes[victim]));
    }
    assert!(told.len() > 50, "only {} turns", told.len());
    let http = client().unwrap();
    let gateways: Vec<&str> = servers[..2]
        .iter()
        .flatten()
        .map(|server| &*server.url)
        .collect();
    for (turn, at) in told.iter().zip(gateways.iter().cycle()) {
        let found: Result<Value, _> = get(&http, at, &format!("/v1/turns/{turn}")).await;
        assert!(found.is_ok(), "{turn} was acknowledged and is gone");
    }
    let version = both_answer_with(&gateways).await;
    for server in servers.into_iter().flatten() {
        let ended = server.stop();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    // No turn was trained twice.
    assert_eq!(broken_laws(&url).await, Vec::<String>::new());
    println!(
        "{} turns were acknowledged over {ROUNDS} kills, and version {} serves",
        told.len(),
        version
    );
}

/// What a probe of a process that stands by is told.
async fn probe(at: &str, path: &str) -> (u16, String) {
    let reply = client().unwrap().get(format!("{at}{path}")).send().await;
    let reply = reply.unwrap();
    (reply.status().as_u16(), reply.text().await.unwrap())
}

/// Ends the connections of a process to the database of that name.
fn cut(database: &str, server: &Server) {
    let program = format!("hone, process {}", server.id());
    assert!(database::Server::shared().cut(database, &program) > 0);
}

/// Longest that a learner that stands by takes to take over.
const WITHIN: Duration = Duration::from_secs(10);

/// Waits, on a thread of its own, until a process that stands by has taken over.
async fn taken_over(process: StandBy) -> Server {
    let waiting = tokio::task::spawn_blocking(move || process.serves(WITHIN));
    waiting.await.unwrap()
}

/// The version that a gateway answers with.
async fn version_at(url: &str) -> u64 {
    let http = client().unwrap();
    let asked = post(&http, url, "/v1/chat/completions", ask("Hello!", 1)).await;
    asked.unwrap()["hone"]["policy_version"].as_u64().unwrap()
}

/// A learner is killed while its gateway is talked to, and the one that stood by learns on; notes what was acknowledged.
async fn killed(first: Server, second: StandBy, gateway: &str, told: &mut Vec<String>) -> Server {
    let killing = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        first.kill();
        taken_over(second).await
    };
    let second = tokio::select! {
        () = talk(gateway, 1, told) => panic!("the gateway ended"),
        second = killing => second,
    };
    let before = version_at(gateway).await;
    for round in 2..60 {
        let talking = talk(gateway, round, told);
        let ended = tokio::time::timeout(Duration::from_millis(500), talking).await;
        assert!(ended.is_err(), "the gateway ended");
        if version_at(gateway).await > before {
            return second;
        }
    }
    panic!("nothing is learned after version {before}");
}

/// A learner that is halted loses its role with its connections. When it goes on it ends, and says why.
async fn halted(second: Server, third: StandBy, database: &str) -> Server {
    second.halt();
    cut(database, &second);
    let third = taken_over(third).await;
    second.go_on();
    let ended = tokio::task::spawn_blocking(move || second.ended());
    let ended = ended.await.unwrap();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let holder = format!("process {} ", third.id());
    for says in ["lost its connection to the database", &holder] {
        assert!(ended.text().contains(says), "{ended:?}");
    }
    third
}

/// Another learner waits while there is one, and takes over when that one is killed or loses its connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_that_stands_by_takes_over() {
    let (folder, _) = temporary().unwrap();
    let database = "roles_standby";
    let url = fresh(database).await;
    let s3 = S3::start().await;
    let process = |name: &str, names: &[&str]| process(&folder.path().join(name), names, &url, &s3);
    let gateway = Server::start(process("gateway", &GATEWAY)).unwrap();
    let first = Server::start(process("first", &LEARNER)).unwrap();
    let (second, at) = StandBy::start(process("second", &LEARNER));
    assert_eq!(probe(&at, "/livez").await.0, 200);
    let (status, said) = probe(&at, "/readyz").await;
    let holder = format!("process {} ", first.id());
    assert_eq!(status, 503, "{said}");
    assert!(
        said.contains("standing_by") && said.contains(&holder),
        "{said}"
    );

    let mut told = Vec::new();
    let second = killed(first, second, &gateway.url, &mut told).await;
    let (third, _) = StandBy::start(process("first", &LEARNER));
    let third = halted(second, third, database).await;
    // While nobody stands by, connections that were cut are made again.
    cut(database, &third);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(probe(&third.url, "/readyz").await.0, 200);
    let http = client().unwrap();
    for turn in &told {
        let found: Result<Value, _> = get(&http, &gateway.url, &format!("/v1/turns/{turn}")).await;
        assert!(found.is_ok(), "{turn} was acknowledged and is gone");
    }
    for server in [gateway, third] {
        server.stop();
    }
    assert_eq!(broken_laws(&url).await, Vec::<String>::new());
}
