//! Requests over HTTP/1.1 that cost their sender next to nothing, so that what is measured is the
//! server: they are written whole, answers are read to their end and looked at no further.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use reqwest::Url;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::report::ms;

/// Requests under way or waiting for a connection, at most; beyond, one counts as failed.
const WAITING_MAX: usize = 2_000;
/// Connections, at most.
const CONNECTIONS_MAX: usize = 64;
/// Longest request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Header fields of an answer, at most.
const FIELDS_MAX: usize = 64;

/// When requests leave.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// So many a second, whatever became of those before; each waits from when it was due.
    Rate(u32),
    /// So many at once; each leaves when one before has its answer.
    AtOnce(usize),
}

/// A request that is sent over and over.
pub(super) struct Load {
    address: SocketAddr,
    request: Vec<u8>,
}

/// What became of a load.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// From when a request was due to the last byte of its answer, of those with success.
    pub(super) latencies_ms: Vec<f64>,
    /// Those without.
    pub(super) failed: u64,
    /// From the first request to the last answer.
    pub(super) seconds: f64,
}

impl Outcome {
    /// Requests a second that had their answer.
    pub(super) fn per_s(&self) -> f64 {
        self.latencies_ms.len() as f64 / self.seconds.max(1e-9)
    }
}

impl Load {
    /// A JSON body to post to `url`.
    pub(super) fn post(url: &str, body: &str) -> Result<Self, String> {
        let parsed = Url::parse(url).map_err(|error| format!("{url}: {error}"))?;
        let addresses = parsed.socket_addrs(|| None);
        let addresses = addresses.map_err(|error| format!("{url}: {error}"))?;
        let address = addresses.first().copied();
        let address = address.ok_or_else(|| format!("{url} has no address"))?;
        let (path, length) = (parsed.path(), body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        Ok(Self {
            address,
            request: request.into_bytes(),
        })
    }

    /// Sends for `time` at a pace and waits for every answer.
    pub(super) fn run(&self, pace: Pace, time: Duration) -> Outcome {
        Run {
            load: self,
            pace,
            began: Instant::now(),
            time,
            due: 0,
            waiting: VecDeque::new(),
            connections: Vec::new(),
            outcome: Outcome::default(),
        }
        .until_answered()
    }
}

/// A load under way.
struct Run<'l> {
    load: &'l Load,
    pace: Pace,
    began: Instant,
    time: Duration,
    /// Requests that were due so far.
    due: u64,
    /// When those were due that wait for a connection.
    waiting: VecDeque<Instant>,
    connections: Vec<Connection>,
    outcome: Outcome,
}

impl Run<'_> {
    fn until_answered(mut self) -> Outcome {
        loop {
            let now = Instant::now();
            let over = now >= self.end();
            self.come_due(now);
            self.send();
            if self.under_way() == 0 {
                if over {
                    break;
                }
                if matches!(self.pace, Pace::AtOnce(_)) {
                    // Nobody answers; there is no sense in asking as fast as we can.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            self.wait();
            self.read();
        }
        self.outcome.seconds = self.began.elapsed().as_secs_f64();
        self.outcome
    }

    fn end(&self) -> Instant {
        self.began + self.time
    }

    /// When the next request is due; `None` while it waits for an answer, and where none will be.
    fn next_due(&self) -> Option<Instant> {
        let Pace::Rate(rate) = self.pace else {
            return None;
        };
        let after = self.due as f64 / f64::from(rate.max(1));
        let due = self.began + Duration::from_secs_f64(after);
        Some(due).filter(|due| *due < self.end())
    }

    /// At a rate, what was due before the end is sent however late it has become.
    fn come_due(&mut self, now: Instant) {
        if let Pace::AtOnce(most) = self.pace {
            if now >= self.end() {
                return;
            }
            let under_way = self.under_way();
            self.waiting
                .extend((under_way..most.min(CONNECTIONS_MAX)).map(|_| now));
            return;
        }
        while let Some(on_time) = self.next_due().filter(|due| *due <= now) {
            self.due += 1;
            if self.under_way() >= WAITING_MAX {
                self.outcome.failed += 1;
            } else {
                self.waiting.push_back(on_time);
            }
        }
    }

    fn under_way(&self) -> usize {
        self.busy().count() + self.waiting.len()
    }

    fn busy(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|one| one.due.is_some())
    }

    /// Gives what waits to free connections.
    fn send(&mut self) {
        while let Some(due) = self.waiting.front().copied() {
            let free = self.connections.iter().position(|one| one.due.is_none());
            let at = match free {
                Some(at) => at,
                None if self.connections.len() >= CONNECTIONS_MAX => return,
                None => match Connection::open(self.load.address) {
                    Ok(connection) => {
                        self.connections.push(connection);
                        self.connections.len() - 1
                    }
                    Err(_) => {
                        self.waiting.pop_front();
                        self.outcome.failed += 1;
                        continue;
                    }
                },
            };
            self.waiting.pop_front();
            if !self.connections[at].send(&self.load.request, due) {
                self.connections.swap_remove(at);
                self.outcome.failed += 1;
            }
        }
    }

    /// Sleeps until there is something to read or to send.
    fn wait(&self) {
        let (now, most) = (Instant::now(), TIMEOUT / 100);
        let end = Some(self.end()).filter(|end| *end > now);
        let next = self.next_due().or(end).unwrap_or(now + most);
        let left = next.saturating_duration_since(now).min(most);
        let timeout = Timespec {
            tv_sec: left.as_secs() as _,
            tv_nsec: left.subsec_nanos() as _,
        };
        let busy = self
            .busy()
            .map(|one| PollFd::new(&one.stream, PollFlags::IN));
        let mut busy: Vec<PollFd<'_>> = busy.collect();
        // Interrupted or not: what is there is read and what is due is sent.
        let _ready = poll(&mut busy, Some(&timeout)).is_ok();
    }

    fn read(&mut self) {
        let mut at = 0;
        while at < self.connections.len() {
            let connection = &mut self.connections[at];
            let Some(due) = connection.due else {
                at += 1;
                continue;
            };
            match connection.read() {
                Answer::Success => self.outcome.latencies_ms.push(ms(due.elapsed())),
                Answer::Unfinished if due.elapsed() < TIMEOUT => {}
                Answer::Refusal => self.outcome.failed += 1,
                Answer::Unfinished | Answer::Broken => {
                    self.outcome.failed += 1;
                    self.connections.swap_remove(at);
                    continue;
                }
            }
            at += 1;
        }
    }
}

/// What has come of an answer.
#[derive(Debug, PartialEq)]
enum Answer {
    Unfinished,
    /// All of it, with a status of success.
    Success,
    /// All of it, with another status.
    Refusal,
    /// Something else than HTTP, or an end too early.
    Broken,
}

/// A connection with one request at a time.
struct Connection {
    stream: TcpStream,
    /// When the request under way was due.
    due: Option<Instant>,
    answer: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            due: None,
            answer: Vec::with_capacity(4096),
        })
    }

    /// False if the connection is of no use. A request is far smaller than the socket's buffer, so
    /// it goes out in one piece.
    fn send(&mut self, request: &[u8], due: Instant) -> bool {
        self.answer.clear();
        self.due = Some(due);
        self.stream.write_all(request).is_ok()
    }

    fn read(&mut self) -> Answer {
        let mut piece = [0; 4096];
        let mut ended = false;
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => ended = true,
                Ok(read) => self.answer.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Answer::Broken,
            }
            // A piece that is not full was the last for now; it spares a call that finds nothing.
            if ended || !self.answer.len().is_multiple_of(piece.len()) {
                break;
            }
        }
        let answer = match answer_in(&self.answer) {
            Answer::Unfinished if ended => Answer::Broken,
            answer => answer,
        };
        if matches!(answer, Answer::Success | Answer::Refusal) {
            self.due = None;
        }
        answer
    }
}

/// What stands in the bytes of an answer so far.
fn answer_in(bytes: &[u8]) -> Answer {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut head = httparse::Response::new(&mut fields);
    let body = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => &bytes[length..],
        Ok(httparse::Status::Partial) => return Answer::Unfinished,
        Err(_) => return Answer::Broken,
    };
    let field = |name: &str| {
        let found = head
            .headers
            .iter()
            .find(|f| f.name.eq_ignore_ascii_case(name));
        found.map(|field| {
            String::from_utf8_lossy(field.value)
                .trim()
                .to_ascii_lowercase()
        })
    };
    let whole = match (field("content-length"), field("transfer-encoding")) {
        (Some(length), _) => match length.parse::<usize>() {
            Ok(length) => body.len() >= length,
            Err(_) => return Answer::Broken,
        },
        (None, Some(coding)) if coding == "chunked" => match last_chunk_in(body) {
            Some(last) => last,
            None => return Answer::Broken,
        },
        (None, _) => return Answer::Broken,
    };
    match (whole, head.code) {
        (false, _) => Answer::Unfinished,
        (true, Some(200..=299)) => Answer::Success,
        (true, _) => Answer::Refusal,
    }
}

/// Whether a chunked body is there to its end; `None` if it is none.
fn last_chunk_in(mut body: &[u8]) -> Option<bool> {
    loop {
        let (start, size) = match httparse::parse_chunk_size(body) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return Some(false),
            Err(_) => return None,
        };
        let end = start
            .checked_add(usize::try_from(size).ok()?)?
            .checked_add(2)?;
        if body.len() < end {
            return Some(false);
        }
        if size == 0 {
            return Some(true);
        }
        body = &body[end..];
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use super::*;

    const PLAIN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";

    #[test]
    fn an_answer_ends_with_its_last_byte() {
        for whole in [PLAIN, CHUNKED] {
            for cut in 0..whole.len() {
                let answer = answer_in(&whole.as_bytes()[..cut]);
                assert_eq!(answer, Answer::Unfinished, "{cut} of {whole}");
            }
            assert_eq!(answer_in(whole.as_bytes()), Answer::Success);
        }
        let refusal = PLAIN.replace("200", "429");
        assert_eq!(answer_in(refusal.as_bytes()), Answer::Refusal);
        for broken in ["garbage\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
            assert_eq!(answer_in(broken.as_bytes()), Answer::Broken, "{broken}");
        }
    }

    /// Answers every request on every connection after a time, the first ones with an error.
    fn server(delay: Duration, refused: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/x", listener.local_addr().unwrap());
        let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(refused));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let left = left.clone();
                std::thread::spawn(move || {
                    let mut stream = stream;
                    let mut piece = [0; 1024];
                    while stream.read(&mut piece).is_ok_and(|read| read > 0) {
                        assert!(piece.starts_with(b"POST /v1/x HTTP/1.1\r\n"));
                        std::thread::sleep(delay);
                        let refuse = left
                            .fetch_update(
                                std::sync::atomic::Ordering::AcqRel,
                                std::sync::atomic::Ordering::Acquire,
                                |left| left.checked_sub(1),
                            )
                            .is_ok();
                        let answer = match refuse {
                            true => PLAIN.replace("200", "500"),
                            false => PLAIN.to_owned(),
                        };
                        if stream.write_all(answer.as_bytes()).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        url
    }

    #[test]
    fn at_a_rate_a_slow_answer_does_not_hold_back_the_next_request() {
        let load = Load::post(&server(Duration::from_millis(50), 3), "{}").unwrap();
        let outcome = load.run(Pace::Rate(100), Duration::from_millis(500));
        assert_eq!(outcome.failed, 3);
        let answered = outcome.latencies_ms.len();
        assert!((40..=50).contains(&(answered + 3)), "{answered}");
        assert!(outcome.latencies_ms.iter().all(|latency| *latency >= 50.0));
    }

    #[test]
    fn at_once_the_next_waits_for_an_answer() {
        let load = Load::post(&server(Duration::from_millis(20), 0), "{}").unwrap();
        let outcome = load.run(Pace::AtOnce(4), Duration::from_millis(400));
        assert_eq!(outcome.failed, 0);
        // Four in each 20 ms at most; a busy machine is slower.
        assert!((4..=84).contains(&outcome.latencies_ms.len()));
        assert!(outcome.per_s() <= 210.0);
    }

    #[test]
    fn a_server_that_is_not_there_fails_and_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let load = Load::post(&url, "{}").unwrap();
        let outcome = load.run(Pace::AtOnce(2), Duration::from_millis(50));
        assert!(outcome.failed > 0 && outcome.latencies_ms.is_empty());
        assert!(load.run(Pace::Rate(100), Duration::from_millis(50)).failed > 0);
    }
}
