//! The host's side of a guest: requests with their replies, over one socket.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use crate::ToolsError;
use crate::wire::{self, PIECE_BYTES, Reply, Request};

/// Replies of one request that wait to be taken. Further ones wait in the socket.
const REPLIES_MAX: usize = 16;
/// Requests that wait to be written. Further callers wait.
const REQUESTS_MAX: usize = 64;

type Replies = mpsc::Receiver<(Reply, Vec<u8>)>;
/// Who waits for replies; nobody can any more when the guest is gone.
type Waiting = Arc<Mutex<Option<HashMap<u32, mpsc::Sender<(Reply, Vec<u8>)>>>>>;

/// What is written at once: a frame, and the bytes of a `Put` as pieces behind it.
struct Message {
    frame: Vec<u8>,
    pieces: Option<(u32, Arc<[u8]>)>,
}

/// A guest that answers.
#[derive(Clone)]
pub(crate) struct Client {
    requests: mpsc::Sender<Message>,
    waiting: Waiting,
    next: Arc<AtomicU32>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn lost() -> ToolsError {
    ToolsError::Lost("its guest does not answer".into())
}

impl Client {
    pub(crate) fn new(socket: std::os::unix::net::UnixStream) -> io::Result<Self> {
        let (read, write) = UnixStream::from_std(socket)?.into_split();
        let (requests, written) = mpsc::channel(REQUESTS_MAX);
        let waiting = Waiting::new(Mutex::new(Some(HashMap::new())));
        tokio::spawn(write_all(write, written));
        tokio::spawn(read_all(read, waiting.clone()));
        Ok(Self {
            requests,
            waiting,
            next: Arc::new(AtomicU32::new(1)),
        })
    }

    fn message(
        &self,
        request: &Request,
        bytes: &[u8],
    ) -> Result<(u32, Message, Replies), ToolsError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let frame = wire::frame(id, request, &[bytes]);
        let frame = frame.map_err(|e| ToolsError::Refused(e.to_string()))?;
        let (reply, replies) = mpsc::channel(REPLIES_MAX);
        let mut waiting = lock(&self.waiting);
        waiting.as_mut().ok_or_else(lost)?.insert(id, reply);
        let message = Message {
            frame,
            pieces: None,
        };
        Ok((id, message, replies))
    }

    async fn send(&self, id: u32, message: Message) -> Result<(), ToolsError> {
        if self.requests.send(message).await.is_err() {
            self.forget(id);
            return Err(lost());
        }
        Ok(())
    }

    fn forget(&self, id: u32) {
        if let Some(waiting) = lock(&self.waiting).as_mut() {
            waiting.remove(&id);
        }
    }

    /// Sends a request; its replies come one after another, and none come any more when the guest is gone.
    pub(crate) async fn ask(
        &self,
        request: &Request,
        bytes: &[u8],
    ) -> Result<(u32, Replies), ToolsError> {
        let (id, message, replies) = self.message(request, bytes)?;
        self.send(id, message).await?;
        Ok((id, replies))
    }

    /// A request whose only reply is that it is done.
    pub(crate) async fn call(&self, request: &Request) -> Result<(), ToolsError> {
        let (_, replies) = self.ask(request, &[]).await?;
        collect(replies, 0).await.map(|_| ())
    }

    /// Sends files.
    pub(crate) async fn put(&self, request: &Request, bytes: Arc<[u8]>) -> Result<(), ToolsError> {
        let (id, mut message, replies) = self.message(request, &[])?;
        message.pieces = Some((id, bytes));
        self.send(id, message).await?;
        collect(replies, 0).await.map(|_| ())
    }

    /// Fetches files of at most `bytes_max`, and the paths that are gone.
    pub(crate) async fn get(
        &self,
        request: &Request,
        bytes_max: u64,
    ) -> Result<(Vec<u8>, Vec<String>), ToolsError> {
        let (_, replies) = self.ask(request, &[]).await?;
        collect(replies, bytes_max).await
    }

    /// Ends a command, if the guest can be told at once. Its timeout ends it otherwise.
    pub(crate) fn cancel(&self, exec: u32) {
        self.forget(exec);
        if let Ok(frame) = wire::frame(0, &Request::Cancel { exec }, &[]) {
            let pieces = None;
            let _ = self.requests.try_send(Message { frame, pieces });
        }
    }
}

/// Bytes that a tar has beside its files: heads and paddings.
fn with_heads(bytes_max: u64) -> u64 {
    bytes_max.saturating_add(crate::archive::ENTRIES_MAX * 2048)
}

async fn collect(
    mut replies: Replies,
    bytes_max: u64,
) -> Result<(Vec<u8>, Vec<String>), ToolsError> {
    let (mut all, mut removed) = (Vec::new(), Vec::new());
    while let Some((reply, bytes)) = replies.recv().await {
        match reply {
            Reply::Done => return Ok((all, removed)),
            Reply::Removed { paths } => removed = paths,
            Reply::Piece => {
                all.extend_from_slice(&bytes);
                if all.len() as u64 > with_heads(bytes_max) {
                    let what = format!("more than {bytes_max} bytes");
                    return Err(ToolsError::Refused(what));
                }
            }
            Reply::Refused(why) => return Err(ToolsError::Refused(why)),
            Reply::Failed(why) => return Err(ToolsError::Files(why)),
            Reply::Ready { .. } | Reply::Ended(_) => return Err(lost()),
        }
    }
    Err(lost())
}

async fn write_all(mut socket: OwnedWriteHalf, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        if write_message(&mut socket, message).await.is_err() {
            return;
        }
    }
}

async fn write_message(socket: &mut OwnedWriteHalf, message: Message) -> io::Result<()> {
    socket.write_all(&message.frame).await?;
    let Some((id, bytes)) = message.pieces else {
        return Ok(());
    };
    for piece in bytes.chunks(PIECE_BYTES).chain([&[][..]]) {
        socket
            .write_all(&wire::frame(id, &Request::Piece, &[piece])?)
            .await?;
    }
    Ok(())
}

/// Hands replies to who waits for them, until the guest is gone. Then nobody waits any more.
async fn read_all(mut socket: OwnedReadHalf, waiting: Waiting) {
    while let Ok((id, reply, bytes)) = read_frame(&mut socket).await {
        let last = !matches!(reply, Reply::Piece | Reply::Removed { .. });
        let to = match lock(&waiting).as_mut() {
            Some(waiting) if last => waiting.remove(&id),
            Some(waiting) => waiting.get(&id).cloned(),
            None => None,
        };
        if let Some(to) = to {
            // Who asked may be gone.
            let _ = to.send((reply, bytes)).await;
        }
    }
    lock(&waiting).take();
}

async fn read_frame(socket: &mut OwnedReadHalf) -> io::Result<(u32, Reply, Vec<u8>)> {
    let mut first = [0; 4];
    socket.read_exact(&mut first).await?;
    let mut rest = vec![0; wire::rest_length(first)?];
    socket.read_exact(&mut rest).await?;
    wire::parse(rest)
}

/// Waits for the first reply of a new guest.
pub(crate) async fn ready(
    client: &Client,
    setup: wire::Setup,
    within: Duration,
) -> Result<(bool, bool), ToolsError> {
    let ask = async {
        let (_, mut replies) = client.ask(&Request::Setup(setup), &[]).await?;
        match replies.recv().await {
            Some((Reply::Ready { landlock, seccomp }, _)) => Ok((landlock, seccomp)),
            _ => Err(lost()),
        }
    };
    tokio::time::timeout(within, ask)
        .await
        .unwrap_or_else(|_| Err(lost()))
}
