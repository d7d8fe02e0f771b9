//! A reverse proxy on the same machine with its defaults: who comes through it is nobody at this machine.

use std::net::SocketAddr;
use std::time::Duration;

use hone_tests::{TestHouse, client, temporary};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What `location / { proxy_pass http://UPSTREAM; }` does, and nothing else: HTTP/1.0 with the upstream's
/// name as Host, the connection closed after one request, no word of whom it is for.
async fn pass_on(mut from: TcpStream, upstream: SocketAddr) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 4_096];
        let read = from.read(&mut piece).await?;
        if read == 0 {
            return Ok(());
        }
        head.extend_from_slice(&piece[..read]);
    }
    let end = head
        .windows(4)
        .position(|end| end == b"\r\n\r\n")
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&head[..end]).into_owned();
    let mut lines = text.split("\r\n");
    let first = lines
        .next()
        .unwrap_or_default()
        .replace("HTTP/1.1", "HTTP/1.0");
    let mut to = TcpStream::connect(upstream).await?;
    let kept = lines.filter(|line| {
        let name = line.split(':').next().unwrap_or_default();
        !["host", "connection"].contains(&&*name.to_ascii_lowercase())
    });
    let mut sent = format!("{first}\r\nHost: {upstream}\r\nConnection: close\r\n");
    for line in kept {
        sent.push_str(line);
        sent.push_str("\r\n");
    }
    sent.push_str("\r\n");
    to.write_all(sent.as_bytes()).await?;
    to.write_all(&head[end + 4..]).await?;
    tokio::io::copy_bidirectional(&mut from, &mut to).await?;
    Ok(())
}

/// nginx itself where it is installed, else what it does.
struct Front {
    url: String,
    nginx: Option<(std::process::Child, tempfile::TempDir)>,
}

impl Front {
    async fn of(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let url = format!("http://{addr}");
        let is_there = std::process::Command::new("nginx")
            .arg("-v")
            .output()
            .is_ok();
        if is_there {
            drop(listener);
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("nginx.conf");
            let place = folder.path().display();
            let text = format!(
                "daemon off; pid {place}/pid; error_log {place}/log; events {{}}
                 http {{ access_log off; client_body_temp_path {place}/a; proxy_temp_path {place}/b;
                 fastcgi_temp_path {place}/c; uwsgi_temp_path {place}/d; scgi_temp_path {place}/e;
                 server {{ listen {addr}; location / {{ proxy_pass http://{upstream}; }} }} }}"
            );
            std::fs::write(&file, text).unwrap();
            let nginx = std::process::Command::new("nginx")
                .arg("-c")
                .arg(&file)
                .spawn();
            let nginx = Some((nginx.unwrap(), folder));
            for _ in 0..200 {
                if TcpStream::connect(addr).await.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            return Self { url, nginx };
        }
        tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                tokio::spawn(pass_on(from, upstream));
            }
        });
        Self { url, nginx: None }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if let Some((nginx, _)) = &mut self.nginx {
            let _ended = nginx.kill().is_ok();
            let _status = nginx.wait().is_ok();
        }
    }
}

async fn status(base: &str, (method, path, body): (&str, &str, Value), key: &str) -> u16 {
    let call = client()
        .unwrap()
        .request(method.parse().unwrap(), format!("{base}{path}"));
    let call = if key.is_empty() {
        call
    } else {
        call.bearer_auth(key)
    };
    let call = if body.is_null() {
        call
    } else {
        call.json(&body)
    };
    call.send().await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_admin_through_a_proxy_with_defaults() {
    let (_guard, data) = temporary().unwrap();
    let null: [(&str, toml::Value); 1] = [("model.engine", "null".into())];
    let house = TestHouse::start(&data, &null).await.unwrap();
    let upstream: SocketAddr = house.url.trim_start_matches("http://").parse().unwrap();
    let front = Front::of(upstream).await;
    let account = json!({"name": "ann", "role": "admin", "password": "a long password"});
    let made = house.post("/admin/v1/users", account).await.unwrap();
    assert_eq!(made["name"], "ann");
    let chat = json!({"model": "hone-null", "messages": [{"role": "user", "content": "hi"}]});
    let asked = || {
        [
            ("GET", "/v1/me", Value::Null),
            ("GET", "/admin/v1/status", Value::Null),
            ("GET", "/v1/turns", Value::Null),
            ("POST", "/admin/v1/invites", json!({"role": "admin"})),
            ("POST", "/v1/forget", json!({"all": true})),
            ("POST", "/v1/chat/completions", chat.clone()),
        ]
    };
    for base in [&front.url, &house.url] {
        for (method, path, body) in asked() {
            let told = status(base, (method, path, body), "").await;
            assert_eq!(told, 401, "{method} {path} at {base}");
        }
        assert_eq!(status(base, ("GET", "/readyz", Value::Null), "").await, 200);
    }
    let sign_in = json!({"name": "ann", "password": "a long password"});
    let told = status(&front.url, ("POST", "/v1/auth/sign-in", sign_in), "").await;
    assert_ne!(told, 401, "people still come in");
    house.stop().await.unwrap();
}
