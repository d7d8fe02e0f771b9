//! The way to a database, which can be cut, silenced and mended: a TCP port that passes on to a socket.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// What becomes of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is passed on.
    Open,
    /// Connections are closed, and new ones too.
    Cut,
    /// Nothing is passed on, and nobody is told.
    #[allow(dead_code, reason = "not everybody who has a way silences it")]
    Silent,
}

/// A way to a socket. It ends with its value.
pub(crate) struct Proxy {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    way: watch::Sender<Way>,
}

impl Proxy {
    /// A way to the Unix socket at `to`.
    pub(crate) async fn start(to: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (way, watched) = watch::channel(Way::Open);
        tokio::spawn(listen(listener, to, watched));
        Self { address, way }
    }

    pub(crate) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn listen(listener: TcpListener, to: PathBuf, mut way: watch::Receiver<Way>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            changed = way.changed() => match changed {
                Ok(()) => continue,
                // Nobody holds the way any more.
                Err(_) => return,
            },
        };
        let Ok((stream, _)) = accepted else { continue };
        if *way.borrow() != Way::Cut {
            tokio::spawn(join(stream, to.clone(), way.clone()));
        }
    }
}

async fn join(stream: TcpStream, to: PathBuf, way: watch::Receiver<Way>) {
    let Ok(other) = UnixStream::connect(to).await else {
        return;
    };
    let ((from, into), (other_from, other_into)) = (stream.into_split(), other.into_split());
    tokio::select! {
        () = pass(from, other_into, way.clone()) => {}
        () = pass(other_from, into, way) => {}
    }
}

/// Passes on what comes, until either end closes or the way is cut.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut into: impl AsyncWrite + Unpin,
    mut way: watch::Receiver<Way>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let is_open = match *way.borrow_and_update() {
            Way::Open => true,
            Way::Silent => false,
            Way::Cut => return,
        };
        tokio::select! {
            changed = way.changed() => if changed.is_err() {
                return;
            },
            read = from.read(&mut buffer), if is_open => match read {
                Ok(n) if n > 0 => if into.write_all(&buffer[..n]).await.is_err() {
                    return;
                },
                _ => return,
            },
        }
    }
}
