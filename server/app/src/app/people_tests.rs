//! The command line beside a running server, the first link, and a log without secrets. Children
//! are this test binary running one test of its own.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The arguments of a child, one a line; set only in children.
const ARGUMENTS: &str = "HONE_TEST_ARGUMENTS";
const PASSWORD: &str = "canary password";

/// Not a test of its own: the program when `ARGUMENTS` is set, nothing otherwise.
#[test]
fn child() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let arguments = std::iter::once("hone").chain(arguments.lines());
    let code = crate::cli::run(arguments);
    let is_good = format!("{code:?}") == format!("{:?}", std::process::ExitCode::SUCCESS);
    std::process::exit(i32::from(!is_good));
}

fn hone(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["app::people_tests::child", "--exact", "--nocapture"])
        .env(ARGUMENTS, arguments.join("\n"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command to its end; `input` is piped in.
fn run(arguments: &[&str], input: &str) -> Output {
    let mut child = hone(arguments).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

/// What a command that must succeed printed, without the test runner's own lines.
fn good(arguments: &[&str], input: &str) -> String {
    let output = run(arguments, input);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {error}");
    let text = String::from_utf8(output.stdout).unwrap();
    // The test runner may begin the first line.
    let lines = text.lines().map(|l| match l.strip_prefix("test ") {
        Some(rest) => rest.split_once(" ... ").map_or("", |(_, rest)| rest),
        None => l,
    });
    let own = lines.filter(|l| !l.is_empty() && !l.starts_with("running 1 test"));
    own.collect::<Vec<_>>().join("\n")
}

/// What a command that must fail said.
fn bad(arguments: &[&str]) -> String {
    let output = run(arguments, "");
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A running server that is ended with its guard.
struct Server {
    child: Child,
    url: String,
    lines: Vec<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill().is_ok();
        let _status = self.child.wait().is_ok();
    }
}

impl Server {
    /// Starts one; its log goes into `log`.
    fn start(data: &Path, log: &Path, keys: &[(&str, &str)]) -> Self {
        Self::start_at("127.0.0.1:0", (data, log), keys)
    }

    fn start_at(bind: &str, files: (&Path, &Path), keys: &[(&str, &str)]) -> Self {
        Self::begun(&["--bind", bind, "--engine", "null"], files, keys)
    }

    fn begun(flags: &[&str], (data, log): (&Path, &Path), keys: &[(&str, &str)]) -> Self {
        let data = data.display().to_string();
        let mut arguments = vec!["serve", "--data", &data];
        arguments.extend(flags);
        let log = std::fs::File::create(log).unwrap();
        let mut child = hone(&arguments)
            .envs(keys.iter().copied())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut url = String::new();
        let mut lines = Vec::new();
        let out = BufReader::new(child.stdout.take().unwrap());
        for line in out.lines().map_while(Result::ok) {
            if let Some((_, found)) = line.split_once("listens on ") {
                url = found.to_owned();
            }
            let is_last = line.contains("  try ");
            lines.push(line);
            if is_last {
                break;
            }
        }
        assert!(!url.is_empty(), "it did not start: {lines:?}");
        Self { child, url, lines }
    }

    async fn send(&self, method: &str, path: &str, body: &Value, key: &str) -> (u16, Value) {
        hone_net::outbound::install_tls();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let method = method.parse().unwrap();
        let mut request = client.request(method, format!("{}{path}", self.url));
        if !key.is_empty() {
            request = request.bearer_auth(key);
        }
        if !body.is_null() {
            request = request.json(body);
        }
        let reply = request.send().await.unwrap();
        let status = reply.status().as_u16();
        (status, reply.json().await.unwrap_or(Value::Null))
    }

    async fn me(&self, key: &str) -> (u16, Value) {
        self.send("GET", "/v1/me", &Value::Null, key).await
    }

    /// Waits until a key that was taken away is refused.
    async fn until_refused(&self, key: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.me(key).await.0 == 200 {
            assert!(Instant::now() < until, "the key still works");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends what admins and others send; returns the secrets that came back.
    async fn send_many(&self, key: &str) -> Vec<String> {
        let mut secrets = Vec::new();
        for (method, path, body) in [
            ("POST", "/v1/keys", json!({"name": "canary label"})),
            ("POST", "/admin/v1/invites", json!({"name": "gil"})),
            (
                "POST",
                "/admin/v1/users",
                json!({"name": "eve", "password": "canary of eve"}),
            ),
            (
                "POST",
                "/v1/chat/completions",
                json!({"model": "canary model", "messages": []}),
            ),
            ("GET", "/v1/versions?user=canary-user", Value::Null),
            ("GET", "/canary/path", Value::Null),
            ("GET", "/admin/v1/status", Value::Null),
        ] {
            let (_, reply) = self.send(method, path, &body, key).await;
            for name in ["key", "token"] {
                secrets.extend(reply[name].as_str().map(str::to_owned));
            }
        }
        assert_eq!(secrets.len(), 2, "a key and a link");
        secrets
    }
}

/// The link for the first admin, where one is made.
fn first_link(data: &Path) -> Option<String> {
    let text = std::fs::read_to_string(data.join("first-admin-link")).ok()?;
    Some(text.trim().to_owned())
}

#[test]
fn a_public_address_without_anybody_is_refused_unless_a_link_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let place = data.display().to_string();
    let public = "0.0.0.0:0";
    let serve = [
        "serve", "--bind", public, "--engine", "null", "--data", &place,
    ];
    let said = bad(&serve);
    assert!(said.contains("hone user add NAME --role admin"), "{said}");
    assert!(said.contains("people.first_admin_link"), "{said}");
    let link = |_: &Server| first_link(&data).is_some();
    let wanted = [("HONE__PEOPLE__FIRST_ADMIN_LINK", "true")];
    let server = Server::start_at(public, (&data, &log), &wanted);
    assert!(link(&server), "{:?}", server.lines);
    let shown = server.lines.iter().any(|l| l.contains("/#/invite/"));
    assert!(
        !shown,
        "others may read what is printed: {:?}",
        server.lines
    );
    let names = server.lines.iter().any(|l| l.contains("first-admin-link"));
    assert!(names, "{:?}", server.lines);
    assert!(!first_link(&data).unwrap().contains("//0.0.0.0"));
    let file = std::fs::metadata(data.join("first-admin-link")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.permissions());
    assert_eq!(mode & 0o777, 0o600);
    drop(server);
    good(
        &["user", "add", "ann", "--role", "admin", "--data", &place],
        &format!("{PASSWORD}\n"),
    );
    let server = Server::start_at(public, (&data, &log), &[]);
    assert!(!link(&server), "{:?}", server.lines);
}

#[tokio::test]
async fn the_first_link_ends_once_the_command_line_made_an_account() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let server = Server::start(&data, &log, &[("HONE__PEOPLE__SIGN_IN", "true")]);
    let link = first_link(&data).expect("the first start makes a link");
    let token = link.split_once("/#/invite/").unwrap().1.to_owned();
    let place = data.display().to_string();
    good(
        &["user", "add", "ann", "--role", "admin", "--data", &place],
        &format!("{PASSWORD}\n"),
    );
    let guest = json!({"token": token, "name": "eve", "password": PASSWORD});
    let (status, reply) = server.send("POST", "/v1/auth/invite", &guest, "").await;
    assert_eq!(status, 404, "{reply}");
}

#[tokio::test]
async fn who_is_passed_on_by_a_silent_proxy_is_nobody_at_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let published = [("HONE__PEOPLE__PUBLIC_URL", "https://hone.example")];
    let server = Server::start(&data, &log, &published);
    let (status, reply) = server.me("").await;
    assert_eq!(status, 401, "{reply}");
    let link = "https://hone.example/#/invite/";
    let made = first_link(&data).unwrap();
    assert!(made.starts_with(link), "{made}");
}

#[tokio::test]
async fn the_command_line_works_beside_a_server_and_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let place = data.display().to_string();
    let good = |words: &[&str], input: &str| good(&[words, &["--data", &place]].concat(), input);
    let bad = |words: &[&str]| bad(&[words, &["--data", &place]].concat());
    // Without a server: the database is made.
    good(
        &["user", "add", "ann", "--role", "developer"],
        &format!("{PASSWORD}\n"),
    );
    assert!(bad(&["user", "add", "ann", "--no-password"]).contains("taken"));
    assert!(bad(&["user", "add", "Ann", "--no-password"]).contains("a-z"));
    assert!(bad(&["key", "add", "nobody"]).contains("hone user add"));
    assert!(bad(&["key", "add", "ann", "--role", "admin"]).contains("developer"));
    let first = good(
        &[
            "key",
            "add",
            "ann",
            "--role",
            "developer",
            "--name",
            "laptop",
        ],
        "",
    );

    let server = Server::start(&data, &folder.path().join("log"), &[]);
    let (status, me) = server.me(&first).await;
    assert_eq!(
        (status, &me["name"], &me["role"]),
        (200, &json!("ann"), &json!("developer"))
    );
    assert_eq!(
        server.me("sk-placeholder").await.0,
        401,
        "there are keys now"
    );
    let second = good(&["key", "add", "ann"], "");
    assert_eq!(server.me(&second).await.0, 200, "made beside the server");
    let list = good(&["key", "list", "ann"], "");
    assert!(list.contains("laptop") && !list.contains(&first), "{list}");
    let id = first.split('_').nth(1).unwrap().to_owned();
    good(&["key", "despite-store-false", &id, "yes"], "");
    let list = good(&["key", "list", "ann"], "");
    assert!(list.contains("laptop (despite store: false)"), "{list}");
    assert!(bad(&["key", "despite-store-false", "x", "no"]).contains("hone key list"));
    assert!(bad(&["key", "memory", &id, "some"]).contains("off, read, full or default"));
    good(&["key", "memory", &id, "full"], "");
    let memory = |list: &str| list.contains("(memory: full)");
    assert!(memory(&good(&["key", "list", "ann"], "")));
    good(&["key", "memory", &id, "default"], "");
    assert!(!memory(&good(&["key", "list", "ann"], "")));
    good(&["key", "revoke", &id], "");
    assert!(bad(&["key", "revoke", &id]).contains("hone key list"));
    server.until_refused(&first).await;
    good(&["user", "disable", "ann"], "");
    server.until_refused(&second).await;
    assert!(good(&["user", "list"], "").contains("disabled"));
    let verdict = good(&["audit", "verify"], "");
    assert!(verdict.starts_with("intact: 8 entries"), "{verdict}");
    let log = good(&["audit", "list", "--limit", "1"], "");
    let last: Value = serde_json::from_str(&log).unwrap();
    assert_eq!(
        (&last["act"], &last["object"]),
        (&json!("user.change"), &json!("ann"))
    );
}

#[tokio::test]
async fn a_debug_log_of_a_whole_session_holds_no_text_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let keys = [
        ("HONE__LOG__LEVEL", "debug"),
        ("HONE__PEOPLE__SIGN_IN", "true"),
    ];
    let server = Server::start(&data, &log, &keys);
    let link = first_link(&data).expect("the first start makes a link");
    let token = link.split_once("/#/invite/").unwrap().1.to_owned();
    let mut secrets = vec![token.clone(), PASSWORD.to_owned()];
    assert_eq!(server.me("").await.0, 401, "loopback signs in as well");
    let guest = json!({"token": token, "name": "root", "password": PASSWORD});
    let (status, me) = server.send("POST", "/v1/auth/invite", &guest, "").await;
    assert_eq!((status, &me["role"]), (200, &json!("admin")));
    secrets.push(me["csrf"].as_str().unwrap().to_owned());
    let wrong = json!({"name": "root", "password": "canary wrong password"});
    assert_eq!(
        server.send("POST", "/v1/auth/sign-in", &wrong, "").await.0,
        401
    );
    let place = data.display().to_string();
    let key = good(
        &["key", "add", "root", "--role", "admin", "--data", &place],
        "",
    );
    secrets.push(key.clone());
    let (_, models) = server.send("GET", "/v1/models", &Value::Null, &key).await;
    let message = json!({"role": "user", "content": "canary question \u{0} ?"});
    let chat = json!({
        "model": models["data"][0]["id"], "messages": [message], "user": "canary-user",
        "session_id": "canary-session", "stop": ["canary stop"], "store": true,
    });
    let (status, reply) = server
        .send("POST", "/v1/chat/completions", &chat, &key)
        .await;
    assert_eq!(status, 200, "{reply}");
    let words = json!({
        "turn_id": reply["id"], "score": 1, "comment": "canary comment",
        "correction": "canary correction",
    });
    assert_eq!(
        server.send("POST", "/v1/feedback", &words, &key).await.0,
        200
    );
    let astray = server.send("GET", "/v1/v1/models", &Value::Null, &key);
    assert_eq!(astray.await.0, 404);
    secrets.extend(server.send_many(&key).await);
    assert_eq!(server.me("hone_canary").await.0, 401);
    drop(server);
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("/v1/chat/completions"), "{log}");
    let astray = "path=\"unmatched\" meant=\"/v1/models\"";
    assert!(log.contains(astray), "{log}");
    secrets.push("canary".to_owned());
    for secret in secrets {
        let line = log.lines().find(|line| line.contains(&secret));
        assert!(line.is_none(), "the log holds {secret}: {line:?}");
    }
}

/// A cache that is smaller than a window of the built-in model cuts its context.
#[tokio::test]
async fn the_start_says_what_computes_and_what_of_the_context_is_served() {
    let data = tempfile::tempdir().unwrap();
    let log = data.path().join("log");
    let keys = [("HONE__SERVE__KV_CACHE_BYTES_MAX", "500000")];
    let files = (&data.path().join("data") as &Path, &log as &Path);
    let server = Server::begun(&["--bind", "127.0.0.1:0"], files, &keys);
    let (_, status) = server
        .send("GET", "/admin/v1/status", &Value::Null, "")
        .await;
    let (model, computed) = (&status["model"], &status["model"]["computed"]);
    let line = server
        .lines
        .iter()
        .find_map(|l| l.strip_prefix("  engine "));
    let line = line.unwrap_or_else(|| panic!("{:?}", server.lines));
    for told in ["processor", "arithmetic", "weights", "kv_format"] {
        assert!(line.contains(computed[told].as_str().unwrap()), "{line}");
    }
    let tokens = &computed["kv_tokens"];
    assert!(line.ends_with(&format!(" for {tokens} tokens")), "{line}");
    assert_eq!(&model["max_positions"], tokens);
    let warning = format!("requests may have {tokens} tokens and the model itself takes 32768");
    let began = Instant::now();
    while !std::fs::read_to_string(&log).unwrap().contains(&warning) {
        assert!(began.elapsed() < Duration::from_secs(10), "{warning}");
        tokio::task::yield_now().await;
    }
    let long = json!({"model": "hone-starter", "prompt": vec![1; 600]});
    let (status, error) = server.send("POST", "/v1/completions", &long, "").await;
    assert_eq!(
        (status, &error["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    let message = error["error"]["message"].as_str().unwrap();
    let begins = format!("this model's maximum context length is {tokens} tokens");
    assert!(message.starts_with(&begins), "{message}");
    let remedy = "raise serve.kv_cache_bytes_max (the model itself takes 32768 tokens)";
    assert!(message.ends_with(remedy), "{message}");
}
