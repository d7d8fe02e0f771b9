//! Many connections of one remote address: a network of two ends that this test makes, the server at one and
//! everybody else at the other. Nobody is delayed, nobody loses a place to who has too many, and the log stays short.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use hone_tests::{ask, temporary};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::apart::Apart;
use crate::program::{Server, program_by, serving};

/// Where the server listens; set only in children.
const SERVER: &str = "HONE_TEST_REMOTE_SERVER";
const KEY: &str = "sk-hone-remote-test";
/// The server's end, who has many connections, and others.
const HERE: &str = "10.77.0.1";
const CROWD: &str = "10.77.0.2";
const OTHER: &str = "10.77.0.3";
const SECOND_CROWD: &str = "10.77.0.4";
/// Connections that one address opens.
const IDLE: usize = 1_100;
/// What 1,024 open files allow: all connections but a reserve, and half of these to one address.
const PLACES: usize = 768;
const PER_ADDRESS: usize = PLACES / 2;
const ASKED: u64 = 20;

async fn connect(from: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let from: IpAddr = from.parse().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// What stands before a body of so many bytes.
fn head(length: usize) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {HERE}\r\nauthorization: Bearer {KEY}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// One turn on a connection that stays open.
async fn talk(stream: &mut TcpStream, n: u64) -> io::Result<Value> {
    let mut body = ask(&format!("Hello, number {n}!"), n);
    body["model"] = json!("hone-null");
    let body = body.to_string();
    let request = format!("{}{body}", head(body.len()));
    stream.write_all(request.as_bytes()).await?;
    let reply = read_reply(stream).await?;
    Ok(serde_json::from_slice(&reply).unwrap_or_default())
}

/// The body of a reply; an error where the connection ends before.
async fn read_reply(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let headers = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = headers
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("a length").trim().parse().expect("a number");
        if bytes.len() >= end + 4 + length {
            return Ok(bytes.split_off(end + 4));
        }
    }
}

/// Asks on connections of its own; the longest wait for an answer.
async fn asked(from: &str, to: SocketAddr) -> Duration {
    let mut worst = Duration::ZERO;
    for n in 0..ASKED {
        let began = Instant::now();
        let reply = talk(&mut connect(from, to).await, n).await.unwrap();
        assert_eq!(reply["hone"]["collected"], true, "{from}: {reply}");
        worst = worst.max(began.elapsed());
    }
    assert!(worst < Duration::from_secs(2), "{from}: {worst:?}");
    worst
}

/// How many of these the server has not closed.
async fn still_open(streams: &mut [TcpStream]) -> usize {
    let mut open = 0;
    for stream in streams {
        let read = timeout(Duration::from_millis(1), stream.read(&mut [0; 64])).await;
        open += usize::from(!matches!(read, Ok(Ok(0) | Err(_))));
    }
    open
}

async fn many_idle_delay_nobody(to: SocketAddr) {
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(connect(CROWD, to).await);
    }
    let (own, other) = (asked(CROWD, to).await, asked(OTHER, to).await);
    let open = still_open(&mut idle).await;
    println!(
        "{IDLE} idle connections of one address, {open} kept: its own {ASKED} answers took at most {} ms, those of \
         another {} ms",
        own.as_millis(),
        other.as_millis()
    );
    assert!((1..=PER_ADDRESS).contains(&open), "{open} are open");
}

/// Two addresses fill every place and go on opening; who holds one keeps it.
async fn who_has_one_keeps_it(to: SocketAddr) {
    let mut one = connect(OTHER, to).await;
    talk(&mut one, 1).await.unwrap();
    let mut crowd = Vec::new();
    for n in 0..IDLE as u64 {
        for from in [CROWD, SECOND_CROWD] {
            let mut stream = connect(from, to).await;
            // One that has asked is as good as any other.
            let reply = talk(&mut stream, n).await.unwrap();
            assert_eq!(reply["hone"]["collected"], true, "{reply}");
            crowd.push(stream);
        }
    }
    let open = still_open(&mut crowd).await;
    talk(&mut one, 2)
        .await
        .expect("the one connection of an address was closed for others");
    println!(
        "two addresses opened {} connections that asked, {open} kept; that of a third stayed",
        crowd.len()
    );
    assert!((PER_ADDRESS..=PLACES).contains(&open), "{open} are open");
}

/// Where all of an address are at work, a further one of it is closed, and others are answered.
async fn many_at_work_delay_nobody_else(to: SocketAddr) {
    let mut working = Vec::new();
    for _ in 0..PER_ADDRESS {
        let mut stream = connect(CROWD, to).await;
        // The server asks for the body, which never comes.
        let waits = head(9).replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
        stream.write_all(waits.as_bytes()).await.unwrap();
        let mut told = [0; 64];
        let length = stream.read(&mut told).await.unwrap();
        assert!(told[..length].starts_with(b"HTTP/1.1 100"), "{told:?}");
        working.push(stream);
    }
    let mut refused = 0;
    for n in 0..ASKED {
        refused += u64::from(talk(&mut connect(CROWD, to).await, n).await.is_err());
    }
    let other = asked(OTHER, to).await;
    println!(
        "{PER_ADDRESS} requests of one address that never end: {refused} of {ASKED} further ones closed, {ASKED} \
         answers of another took at most {} ms",
        other.as_millis()
    );
    assert_eq!(
        (refused, still_open(&mut working).await),
        (ASKED, PER_ADDRESS)
    );
}

/// Not a test of its own: the other end of the network when `SERVER` is set, nothing otherwise.
#[test]
fn clients() {
    let Ok(to) = std::env::var(SERVER) else {
        return;
    };
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let to: SocketAddr = to.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        many_idle_delay_nobody(to).await;
        who_has_one_keeps_it(to).await;
        many_at_work_delay_nobody_else(to).await;
    });
}

/// Both ends of a network, where the system gives one.
fn network() -> Option<(Apart, Apart)> {
    let here = Apart::new(&["--net"], "ip link set lo up")?;
    let there = here.beside(&["--net"], "");
    here.shell(&format!(
        "ip link add here type veth peer name there netns {}; ip addr add {HERE}/24 dev here; ip link set here up",
        there.pid()
    ));
    let addresses =
        [CROWD, OTHER, SECOND_CROWD].map(|own| format!("ip addr add {own}/24 dev there; "));
    there.shell(&format!("{}ip link set there up", addresses.concat()));
    Some((here, there))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_of_a_remote_address_delay_nobody_and_fill_no_log() {
    let Some((here, there)) = network() else {
        return;
    };
    let (_guard, data) = temporary().unwrap();
    let digest = ring::digest::digest(&ring::digest::SHA256, KEY.as_bytes());
    let sha256: String = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let config = format!(
        "[model]\nengine = \"null\"\n[http]\nreceipt_timeout_ms = 20000\n\
         keys = [{{owner = \"ann\", sha256 = \"{sha256}\"}}]\n"
    );
    let arguments = serving(&data, &config);
    let arguments = arguments.iter().map(|word| word.replace("127.0.0.1", HERE));
    let arguments: Vec<String> = arguments.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let limited = ["sh", "-c", "ulimit -n 1024; exec \"$0\" \"$@\""].map(str::to_owned);
    let starter = [here.within(), &limited].concat();
    let server = Server::start(program_by(&starter, &words)).unwrap();
    let began = Instant::now();
    let enter = there.within();
    let mut clients = Command::new(&enter[0]);
    clients
        .args(&enter[1..])
        .arg(std::env::current_exe().unwrap());
    clients.args(["remote::clients", "--exact", "--nocapture"]);
    clients.env(SERVER, server.url.trim_start_matches("http://"));
    let done = tokio::task::spawn_blocking(move || clients.output().unwrap())
        .await
        .unwrap();
    let (said, wrong) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    let seconds = began.elapsed().as_secs_f64();
    let lines = server.errors();
    print!("{said}");
    println!("{} lines of log in {seconds:.1} s", lines.len());
    assert!(done.status.success(), "{said}\n{wrong}\n{lines:#?}");
    // One may tell at the start that there are few files.
    assert!(lines.len() as f64 <= 1.0 + seconds.ceil(), "{lines:#?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("connections_per_address_max")),
        "{lines:#?}"
    );
    let ended = server.stop();
    assert!(!ended.text().contains("panicked"), "{}", ended.text());
}
