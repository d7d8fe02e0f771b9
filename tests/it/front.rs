//! nginx on the same machine with Debian's defaults in front: who comes through it is nobody at this machine,
//! and people sign in.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hone_tests::{TestApp, client, temporary};
use reqwest::Response;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::program::program;

/// What Debian's package brings.
const DEFAULTS: &str = "/etc/nginx/nginx.conf";
const PASSWORD: &str = "a long password";

fn nginx() -> PathBuf {
    let paths = [
        "/usr/sbin/nginx",
        "/usr/bin/nginx",
        "/usr/local/sbin/nginx",
        "/usr/local/bin/nginx",
    ];
    let found = paths
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists());
    found.expect("nginx is not installed; `make setup` installs it")
}

/// Debian's settings word for word, but for where its files lie and which sites there are.
fn settings(folder: &Path, site: &str) -> String {
    let defaults = std::fs::read_to_string(DEFAULTS);
    let defaults =
        defaults.expect("nginx has no /etc/nginx/nginx.conf; `make setup` installs Debian's");
    let place = folder.display();
    let mut moved = String::new();
    for line in defaults.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        match first {
            "pid" => moved.push_str(&format!("pid {place}/pid;")),
            "error_log" => moved.push_str(&format!("error_log {place}/error.log;")),
            "access_log" => moved.push_str(&format!("access_log {place}/access.log;")),
            "include" if line.contains("sites-enabled") => {
                for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
                    moved.push_str(&format!("{kind}_temp_path {place}/{kind};\n"));
                }
                moved.push_str(site);
            }
            "include" if line.contains("conf.d") => {}
            _ => moved.push_str(line),
        }
        moved.push('\n');
    }
    assert!(
        moved.contains(site),
        "Debian's settings name no sites: {defaults}"
    );
    moved
}

/// nginx in front of a server. It ends with its value.
struct Front {
    url: String,
    nginx: Child,
    _folder: tempfile::TempDir,
}

impl Front {
    /// `within` stands in the location beside `proxy_pass`.
    async fn of(upstream: SocketAddr, within: &str) -> Self {
        let addr = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        // Its workers are another user, where this one may choose.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let site = format!(
            "server {{ listen {addr}; location / {{ proxy_pass http://{upstream}; {within} }} }}"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, settings(folder.path(), &site)).unwrap();
        let mut nginx = Command::new(nginx())
            .args(["-g", "daemon off;", "-e"])
            .arg(folder.path().join("error.log"))
            .arg("-c")
            .arg(&file)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        for _ in 0..500 {
            if TcpStream::connect(addr).await.is_ok() {
                let url = format!("http://{addr}");
                return Self {
                    url,
                    nginx,
                    _folder: folder,
                };
            }
            assert_eq!(nginx.try_wait().unwrap(), None, "nginx ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("nginx does not listen at {addr}");
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // Killed outright, it would leave its workers behind.
        let _asked = kill_process(Pid::from_child(&self.nginx), Signal::TERM).is_ok();
        let _ended = self.nginx.wait().is_ok();
    }
}

/// Headers by name.
type Headers<'a> = &'a [(&'a str, &'a str)];

async fn send(
    base: &str,
    (method, path): (&str, &str),
    body: &Value,
    headers: Headers<'_>,
) -> Response {
    let mut call = client()
        .unwrap()
        .request(method.parse().unwrap(), format!("{base}{path}"));
    for (name, value) in headers {
        call = call.header(*name, *value);
    }
    if !body.is_null() {
        call = call.json(body);
    }
    call.send().await.unwrap()
}

/// What a stranger would like to do.
fn wishes() -> Vec<(&'static str, &'static str, Value)> {
    let chat = json!({"model": "hone-null", "messages": [{"role": "user", "content": "hi"}]});
    vec![
        ("GET", "/v1/me", Value::Null),
        ("GET", "/admin/v1/status", Value::Null),
        ("GET", "/admin/v1/users", Value::Null),
        ("GET", "/v1/turns", Value::Null),
        ("GET", "/metrics", Value::Null),
        ("POST", "/admin/v1/invites", json!({"role": "admin"})),
        (
            "POST",
            "/admin/v1/users",
            json!({"name": "eve", "role": "admin", "password": PASSWORD}),
        ),
        ("POST", "/v1/keys", json!({"name": "mine"})),
        ("POST", "/v1/forget", json!({"all": true})),
        ("POST", "/v1/chat/completions", chat),
    ]
}

/// Signs in as a browser does, reads, changes something with the token against forged requests and not
/// without, and signs out.
async fn sign_in_works(front: &str) {
    let browser = [("origin", front), ("sec-fetch-site", "same-origin")];
    let account = json!({"name": "ann", "password": PASSWORD});
    let reply = send(front, ("POST", "/v1/auth/sign-in"), &account, &browser).await;
    assert_eq!(reply.status(), 200);
    let cookie = reply.headers()["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let me: Value = reply.json().await.unwrap();
    let csrf = me["csrf"].as_str().unwrap().to_owned();
    let signed = [browser[0], browser[1], ("cookie", &cookie)];
    let me = send(front, ("GET", "/v1/me"), &Value::Null, &signed).await;
    let me: Value = me.json().await.unwrap();
    assert_eq!(
        (&me["name"], &me["role"]),
        (&json!("ann"), &json!("admin")),
        "{me}"
    );
    let invite = ("POST", "/admin/v1/invites");
    let refused = send(front, invite, &json!({"role": "user"}), &signed).await;
    assert_eq!(refused.status(), 403, "no token against forged requests");
    let with_token = [signed[0], signed[1], signed[2], ("x-hone-csrf", &csrf)];
    let made = send(front, invite, &json!({"role": "user"}), &with_token).await;
    assert!(made.status().is_success(), "{:?}", made.text().await);
    let out = send(
        front,
        ("POST", "/v1/auth/sign-out"),
        &Value::Null,
        &with_token,
    )
    .await;
    assert_eq!(out.status(), 204);
    let after = send(front, ("GET", "/v1/me"), &Value::Null, &signed).await;
    assert_eq!(after.status(), 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_admin_through_nginx_with_defaults_and_people_sign_in() {
    // What a stranger may claim to be.
    let claims: &[Headers<'_>] = &[
        &[],
        &[("host", "localhost")],
        &[("x-forwarded-for", "127.0.0.1"), ("x-real-ip", "127.0.0.1")],
        &[
            ("forwarded", "for=127.0.0.1"),
            ("x-forwarded-host", "localhost"),
        ],
        &[("authorization", "Bearer sk-placeholder")],
        &[("cookie", "hone_session=guess"), ("x-hone-csrf", "guess")],
    ];
    for within in ["", "include /etc/nginx/proxy_params;"] {
        let (_guard, data) = temporary().unwrap();
        let null: [(&str, toml::Value); 1] = [("model.engine", "null".into())];
        let app = TestApp::start(&data, &null).await.unwrap();
        let upstream: SocketAddr = app.url.trim_start_matches("http://").parse().unwrap();
        let front = Front::of(upstream, within).await;
        let account = json!({"name": "ann", "role": "admin", "password": PASSWORD});
        let made = app.post("/admin/v1/users", account).await.unwrap();
        assert_eq!(made["name"], "ann");
        for base in [&front.url, &app.url] {
            for (method, path, body) in wishes() {
                for claim in claims {
                    let told = send(base, (method, path), &body, claim).await.status();
                    let is_refused = [401, 403].contains(&told.as_u16());
                    assert!(is_refused, "{method} {path} at {base} as {claim:?}: {told}");
                }
            }
            let ready = send(base, ("GET", "/readyz"), &Value::Null, &[]).await;
            assert_eq!(ready.status(), 200);
        }
        sign_in_works(&front.url).await;
        app.stop().await.unwrap();
    }
}

/// Where nginx says whom it serves, and is trusted to, wrong passwords from elsewhere lock out nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_passwords_from_elsewhere_lock_out_no_admin_behind_nginx() {
    let (_guard, data) = temporary().unwrap();
    let trusted = toml::Value::Array(vec!["127.0.0.1".into()]);
    let changes: [(&str, toml::Value); 3] = [
        ("model.engine", "null".into()),
        ("http.proxies_trusted", trusted),
        ("people.attempts_max", 3.into()),
    ];
    let app = TestApp::start(&data, &changes).await.unwrap();
    let upstream: SocketAddr = app.url.trim_start_matches("http://").parse().unwrap();
    let front = Front::of(upstream, "include /etc/nginx/proxy_params;").await;
    add_admin(&data).await;
    // As if another proxy stood before nginx, whose word counts because its address is trusted.
    let from = |address: &'static str| [("x-forwarded-for", address)];
    let try_in = async |password: &str, address| {
        let account = json!({"name": "ann", "password": password});
        let reply = send(
            &front.url,
            ("POST", "/v1/auth/sign-in"),
            &account,
            &from(address),
        )
        .await;
        reply.status().as_u16()
    };
    // The account is known within half a second.
    let mut told = 0;
    for _ in 0..100 {
        told = try_in(PASSWORD, "198.51.100.7").await;
        if told == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(told, 200);
    let mut last = 0;
    for _ in 0..12 {
        last = try_in("wrong", "203.0.113.9").await;
    }
    assert_eq!(last, 429, "guessing is slowed down");
    assert_eq!(try_in(PASSWORD, "203.0.113.9").await, 429);
    assert_eq!(
        try_in(PASSWORD, "198.51.100.7").await,
        200,
        "where she signed in before"
    );
    app.stop().await.unwrap();
}

/// Where nginx says nothing of whom it serves, everybody has its address. Who signed in before is known by their
/// device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_passwords_lock_out_no_known_device_behind_an_nginx_that_nobody_named() {
    let (_guard, data) = temporary().unwrap();
    let changes: [(&str, toml::Value); 2] = [
        ("model.engine", "null".into()),
        ("people.attempts_max", 3.into()),
    ];
    let app = TestApp::start(&data, &changes).await.unwrap();
    let upstream: SocketAddr = app.url.trim_start_matches("http://").parse().unwrap();
    let front = Front::of(upstream, "").await;
    let account = json!({"name": "ann", "role": "admin", "password": PASSWORD});
    app.post("/admin/v1/users", account).await.unwrap();
    let try_in = async |password: &str, headers: Headers<'_>| {
        let account = json!({"name": "ann", "password": password});
        send(&front.url, ("POST", "/v1/auth/sign-in"), &account, headers).await
    };
    let signed = try_in(PASSWORD, &[]).await;
    assert_eq!(signed.status(), 200);
    let cookies = signed.headers().get_all("set-cookie").iter();
    let mut cookies = cookies.filter_map(|cookie| cookie.to_str().unwrap().split(';').next());
    let device = cookies.find(|cookie| cookie.starts_with("hone_device="));
    let device = device.unwrap().to_owned();
    let mut last = 0;
    for _ in 0..12 {
        last = try_in("wrong", &[]).await.status().as_u16();
    }
    assert_eq!(last, 429, "guessing is slowed down");
    assert_eq!(try_in(PASSWORD, &[]).await.status(), 429);
    assert_eq!(try_in(PASSWORD, &[("cookie", &device)]).await.status(), 200);
    app.stop().await.unwrap();
}

/// Makes the admin's account from the command line, as who runs the server does.
async fn add_admin(data: &Path) {
    use std::io::Write as _;
    let data = data.to_str().unwrap();
    let mut command = program(&["user", "add", "ann", "--role", "admin", "--data", data]);
    command.stdin(Stdio::piped());
    let done = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "{PASSWORD}").unwrap();
        child.wait_with_output().unwrap()
    });
    let done = done.await.unwrap();
    assert!(done.status.success(), "{done:?}");
}
