//! The one way out: connections to 127.0.0.1:8088 in the jail go to the socket of the model.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Where commands reach the model.
const PORT: u16 = 8088;
/// Most connections at a time. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// Bytes on their way in one direction of one connection.
const BUFFER_BYTES: usize = 64 << 10;
/// Buffers that one connection may fill before others have their turn.
const ROUNDS_MAX: usize = 16;

/// Bytes on their way from one side to the other.
#[derive(Default)]
struct Way {
    bytes: Vec<u8>,
    at: usize,
    read_ended: bool,
    write_ended: bool,
    /// The receiver takes no more. What comes is dropped, so that what the receiver says can still be read.
    refused: bool,
}

impl Way {
    /// Moves what can be moved, and leaves the rest of much to the next time.
    fn pump(&mut self, from: &mut impl Read, to: &mut impl Write, end: impl Fn()) {
        for _ in 0..ROUNDS_MAX {
            if self.at == self.bytes.len() && !self.read_ended {
                self.bytes.resize(BUFFER_BYTES, 0);
                self.at = 0;
                let read = from.read(&mut self.bytes);
                self.bytes.truncate(*read.as_ref().unwrap_or(&0));
                match read {
                    Ok(0) => self.read_ended = true,
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                    Err(_) => self.read_ended = true,
                }
            }
            if self.refused {
                self.at = self.bytes.len();
            }
            if self.at == self.bytes.len() {
                if !self.read_ended {
                    continue;
                }
                if !self.write_ended {
                    self.write_ended = true;
                    end();
                }
                return;
            }
            match to.write(&self.bytes[self.at..]) {
                Ok(n) => self.at += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.refused = true,
            }
        }
    }

    fn full(&self) -> bool {
        self.at < self.bytes.len()
    }
}

struct Connection {
    near: TcpStream,
    far: UnixStream,
    out: Way,
    back: Way,
}

impl Connection {
    /// Moves what can be moved. False once nothing can come any more.
    fn pump(&mut self) -> bool {
        let (near, far) = (&self.near, &self.far);
        self.out.pump(&mut &*near, &mut &*far, || {
            let _ = far.shutdown(Shutdown::Write);
        });
        self.back.pump(&mut &*far, &mut &*near, || {
            let _ = near.shutdown(Shutdown::Write);
        });
        let ended =
            |way: &Way, other: &Way| way.write_ended && (other.write_ended || other.refused);
        !ended(&self.out, &self.back) && !ended(&self.back, &self.out)
    }
}

/// The listener and its connections.
pub(super) struct Forward {
    listener: TcpListener,
    model: PathBuf,
    connections: Vec<Connection>,
}

impl Forward {
    pub(super) fn listen(model: PathBuf) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", PORT))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            model,
            connections: Vec::new(),
        })
    }

    pub(super) fn pump(&mut self) {
        while self.connections.len() < CONNECTIONS_MAX {
            let Ok((near, _)) = self.listener.accept() else {
                break;
            };
            // A model that is away closes the connection at once.
            if let Ok(connection) = self.connect(near) {
                self.connections.push(connection);
            }
        }
        self.connections.retain_mut(Connection::pump);
    }

    fn connect(&self, near: TcpStream) -> io::Result<Connection> {
        // Never waits: commands may reach the same socket and fill its queue.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let far = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        net::connect(&far, &SocketAddrUnix::new(&self.model)?)?;
        let far = UnixStream::from(far);
        near.set_nonblocking(true)?;
        near.set_nodelay(true)?;
        Ok(Connection {
            near,
            far,
            out: Way::default(),
            back: Way::default(),
        })
    }

    /// What is waited for: a descriptor, to read, to write.
    pub(super) fn waits(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool, bool)> {
        let more = self.connections.len() < CONNECTIONS_MAX;
        let listener = more.then(|| (self.listener.as_fd(), true, false));
        let connections = self.connections.iter().flat_map(|c| {
            [
                (
                    c.near.as_fd(),
                    !c.out.full() && !c.out.read_ended,
                    c.back.full(),
                ),
                (
                    c.far.as_fd(),
                    !c.back.full() && !c.back.read_ended,
                    c.out.full(),
                ),
            ]
        });
        // A descriptor of which nothing is wanted would still wake the loop when it hangs up.
        listener
            .into_iter()
            .chain(connections.filter(|(_, read, write)| *read || *write))
    }
}
