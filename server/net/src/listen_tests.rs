//! Real sockets.
#![allow(clippy::unwrap_used)]

use axum::Router;
use axum::routing::get;
use futures::StreamExt;
use hone_runtime::ShutdownTrigger;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::tls::{Tls, TlsFiles};
use tokio::time::Instant;

fn limits() -> ListenLimits {
    ListenLimits {
        connections_max: 2,
        per_address_max: 0,
        header_timeout: Duration::from_millis(100),
        idle_timeout: Duration::from_millis(400),
        write_timeout: Duration::from_millis(100),
    }
}

async fn start(app: Router) -> (SocketAddr, ShutdownTrigger, tokio::task::JoinHandle<()>) {
    start_within(limits(), app).await
}

async fn start_within(
    limits: ListenLimits,
    app: Router,
) -> (SocketAddr, ShutdownTrigger, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let stop = ShutdownTrigger::new();
    let task = tokio::spawn(listen((listener, None), app, (limits, stop.signal())));
    (addr, stop, task)
}

async fn read_all(mut stream: TcpStream) -> String {
    let mut text = String::new();
    // A reset by the server ends the reading as well.
    let _closed = stream.read_to_string(&mut text).await.is_ok();
    text
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

/// Sends headers a byte at a time, faster than either timer, and tells how long that went well.
async fn drip(mut stream: TcpStream) -> Duration {
    let began = Instant::now();
    let endless = b"GET / HTTP/1.1\r\nx-slow: "
        .iter()
        .chain(std::iter::repeat(&b'a'));
    for byte in endless {
        if began.elapsed() > Duration::from_secs(20) || stream.write_all(&[*byte]).await.is_err() {
            break;
        }
        let mut one = [0];
        let read = timeout(Duration::from_millis(20), stream.read(&mut one)).await;
        if matches!(read, Ok(Ok(0) | Err(_))) {
            break;
        }
    }
    began.elapsed()
}

#[tokio::test]
async fn headers_that_drip_are_closed_at_their_own_deadline() {
    let (addr, stop, task) = start(Router::new().route("/", get(|| async { "hi" }))).await;
    let fresh = TcpStream::connect(addr).await.unwrap();
    let mut used = TcpStream::connect(addr).await.unwrap();
    used.write_all(GET).await.unwrap();
    let mut reply = [0; 64];
    assert!(used.read(&mut reply).await.unwrap() > 0);
    let (fresh, used) = tokio::join!(drip(fresh), drip(used));
    for (what, took) in [("fresh", fresh), ("used", used)] {
        // Were bytes to move the deadline, it would never come.
        assert!(took >= Duration::from_millis(90), "{what} {took:?}");
        assert!(took < Duration::from_secs(10), "{what} {took:?}");
    }
    stop.pull();
    task.await.unwrap();
}

#[tokio::test]
async fn a_connection_may_idle_longer_than_headers_may_take_and_not_for_ever() {
    // A machine that is busy elsewhere is not to make the pauses too long.
    let limits = ListenLimits {
        idle_timeout: Duration::from_secs(3),
        ..limits()
    };
    let header_timeout = limits.header_timeout;
    let app = Router::new().route("/", get(|| async { "hi" }));
    let (addr, stop, task) = start_within(limits, app).await;
    let silent = TcpStream::connect(addr).await.unwrap();
    let mut idle = TcpStream::connect(addr).await.unwrap();
    for _ in 0..2 {
        idle.write_all(GET).await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"hi") {
            let mut piece = [0; 256];
            let read = idle.read(&mut piece).await.unwrap();
            assert!(read > 0, "closed after {header_timeout:?}");
            seen.extend_from_slice(&piece[..read]);
        }
        sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(read_all(idle).await, "", "closed when it idled too long");
    assert_eq!(read_all(silent).await, "", "closed without a request");
    stop.pull();
    task.await.unwrap();
}

#[tokio::test]
async fn an_answer_may_take_longer_than_headers_and_idling() {
    let slow = || async {
        sleep(Duration::from_millis(700)).await;
        "hi"
    };
    let (addr, stop, task) = start(Router::new().route("/", get(slow))).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(GET).await.unwrap();
    let reply = read_all(stream).await;
    assert!(reply.ends_with("hi"), "{reply}");
    stop.pull();
    task.await.unwrap();
}

#[tokio::test]
async fn a_stop_lets_a_reply_finish_and_takes_nothing_new() {
    let ticks = || async {
        let ticks = futures::stream::iter(0..5).then(|n| async move {
            sleep(Duration::from_millis(20)).await;
            Ok::<_, std::convert::Infallible>(format!("tick {n}\n"))
        });
        axum::body::Body::from_stream(ticks)
    };
    let (addr, stop, task) = start(Router::new().route("/", get(ticks))).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(GET).await.unwrap();
    let mut first = [0; 15];
    stream.read_exact(&mut first).await.unwrap();
    stop.pull();
    let rest = read_all(stream).await;
    assert!(rest.contains("tick 4"), "{rest}");
    task.await.unwrap();
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_dropped() {
    let flood = || async {
        let chunk = || futures::future::ready(Some((Ok::<_, io::Error>("x".repeat(65_536)), ())));
        axum::body::Body::from_stream(futures::stream::unfold((), move |()| chunk()))
    };
    let (addr, stop, task) = start(Router::new().route("/", get(flood))).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(GET).await.unwrap();
    stop.pull();
    // Ends only because the write timeout closes the connection.
    tokio::time::timeout(Duration::from_secs(20), task)
        .await
        .unwrap()
        .unwrap();
}

/// A folder with a pair of certificate and key under fixed names.
struct Pair(tempfile::TempDir);

impl Pair {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn files(&self) -> TlsFiles {
        TlsFiles {
            cert: self.0.path().join("tls.crt"),
            key: self.0.path().join("tls.key"),
        }
    }

    fn put(&self, cert: &str, key: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        let files = self.files();
        std::fs::write(&files.cert, cert).unwrap();
        std::fs::write(&files.key, key).unwrap();
        let only_mine = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&files.key, only_mine).unwrap();
    }
}

const FIRST: (&str, &str) = (
    include_str!("fixtures/first.crt"),
    include_str!("fixtures/first.key"),
);
const SECOND: (&str, &str) = (
    include_str!("fixtures/second.crt"),
    include_str!("fixtures/second.key"),
);

/// Asks with trust in one certificate only.
async fn ask(addr: SocketAddr, trusted: &str) -> Result<String, reqwest::Error> {
    crate::outbound::install_tls();
    let root = reqwest::Certificate::from_pem(trusted.as_bytes()).unwrap();
    let client = reqwest::Client::builder()
        .tls_certs_only([root])
        .no_proxy()
        .build()?;
    let url = format!("https://127.0.0.1:{}/", addr.port());
    client.get(url).send().await?.text().await
}

#[tokio::test]
async fn a_certificate_is_exchanged_while_it_serves() {
    let pair = Pair::new();
    pair.put(FIRST.0, FIRST.1, 0o600);
    let tls = Tls::load(pair.files()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let app = Router::new().route("/", get(|| async { "hi" }));
    let stop = ShutdownTrigger::new();
    let with = (listener, Some(tls.acceptor().unwrap()));
    let patient = ListenLimits {
        connections_max: 8,
        header_timeout: Duration::from_secs(5),
        ..limits()
    };
    let task = tokio::spawn(listen(with, app, (patient, stop.signal())));
    assert_eq!(ask(addr, FIRST.0).await.unwrap(), "hi");
    assert!(ask(addr, SECOND.0).await.is_err());
    assert_eq!(tls.look(), Ok(false));

    // What does not fit is refused, and the first one goes on.
    pair.put(SECOND.0, FIRST.1, 0o600);
    assert!(tls.reload().is_err());
    pair.put(SECOND.0, SECOND.1, 0o644);
    assert!(tls.reload().unwrap_err().contains("open to everybody"));
    assert_eq!(ask(addr, FIRST.0).await.unwrap(), "hi");

    pair.put(SECOND.0, SECOND.1, 0o640);
    tls.reload().unwrap();
    assert_eq!(ask(addr, SECOND.0).await.unwrap(), "hi");
    assert!(ask(addr, FIRST.0).await.is_err());
    stop.pull();
    task.await.unwrap();
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_closed() {
    let pair = Pair::new();
    pair.put(FIRST.0, FIRST.1, 0o600);
    let tls = Tls::load(pair.files()).unwrap().acceptor().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let stop = ShutdownTrigger::new();
    let app = Router::new();
    let task = tokio::spawn(listen(
        (listener, Some(tls)),
        app,
        (limits(), stop.signal()),
    ));
    let mut slow = TcpStream::connect(addr).await.unwrap();
    slow.write_all(&[22, 3, 1]).await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(20), read_all(slow)).await;
    assert_eq!(closed.unwrap(), "");
    stop.pull();
    task.await.unwrap();
}

/// As many idle connections as there are places hold up nobody.
#[tokio::test]
async fn who_only_holds_a_place_gives_it_to_who_asks() {
    const PLACES: usize = 8;
    let limits = ListenLimits {
        connections_max: PLACES,
        header_timeout: Duration::from_secs(60),
        idle_timeout: Duration::from_secs(60),
        ..limits()
    };
    let app = Router::new().route("/", get(|| async { "hi" }));
    let (addr, stop, task) = start_within(limits, app).await;
    let mut idle = Vec::new();
    for _ in 0..3 * PLACES {
        idle.push(TcpStream::connect(addr).await.unwrap());
    }
    let began = Instant::now();
    for n in 0..3 * PLACES {
        let mut asking = TcpStream::connect(addr).await.unwrap();
        asking.write_all(GET).await.unwrap();
        let mut reply = [0; 64];
        let read = timeout(Duration::from_secs(20), asking.read(&mut reply)).await;
        assert!(read.unwrap().unwrap() > 0, "{n}");
        // It stays open as well, and idles from now on.
        idle.push(asking);
        if n % PLACES == PLACES - 1 {
            // Those that have just answered are left alone for a moment.
            sleep(Duration::from_millis(300)).await;
        }
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    stop.pull();
    drop(idle);
    task.await.unwrap();
}

#[test]
fn what_happens_often_is_said_seldom() {
    let mut seldom = Seldom::default();
    let said: Vec<u64> = (0..1_000).filter_map(|_| seldom.says()).collect();
    assert_eq!(said, [1]);
    seldom.said = None;
    assert_eq!(seldom.says(), Some(1_000));
}
