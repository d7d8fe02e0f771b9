//! A command that runs, and what it writes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ChildStdin, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::WaitStatus;

use super::table::{self, Known};
use super::walls::{self, Walls};
use crate::wire::{Ended, Exec};
use crate::{KilledBy, Program};

/// Most bytes that are read from a stream before others have their turn.
const TURN_BYTES: usize = 1 << 20;

/// The beginning and the end of a stream.
struct Kept {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    half: usize,
    bytes_cut: u64,
}

impl Kept {
    fn new(bytes_max: usize) -> Self {
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            half: bytes_max / 2,
            bytes_cut: 0,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = self.half.saturating_sub(self.head.len());
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        let skip = rest.len().saturating_sub(self.half);
        let over = (self.tail.len() + rest.len() - skip).saturating_sub(self.half);
        self.tail.drain(..over);
        self.bytes_cut += (over + skip) as u64;
        self.tail.extend(&rest[skip..]);
    }

    /// Head and tail; one piece where nothing was cut.
    fn parts(mut self) -> (Vec<u8>, Vec<u8>, u64) {
        if self.bytes_cut == 0 {
            self.head.extend(self.tail.drain(..));
        }
        (self.head, self.tail.into(), self.bytes_cut)
    }
}

struct Stream {
    pipe: Option<File>,
    kept: Kept,
}

impl Stream {
    fn new(pipe: Option<impl Into<OwnedFd>>, bytes_max: usize) -> io::Result<Self> {
        let pipe = pipe.map(|p| File::from(p.into()));
        if let Some(pipe) = &pipe {
            unblock(pipe)?;
        }
        Ok(Self {
            pipe,
            kept: Kept::new(bytes_max),
        })
    }

    /// Reads what is there; returns how many bytes.
    fn pump(&mut self, piece: &mut [u8]) -> u64 {
        let mut all = 0;
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(piece) {
                Ok(0) => self.pipe = None,
                Ok(n) => {
                    self.kept.push(&piece[..n]);
                    all += n;
                    if all >= TURN_BYTES {
                        break;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.pipe = None,
            }
        }
        all as u64
    }
}

fn unblock(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

/// A command that runs.
pub(super) struct Running {
    pub id: u32,
    pub pid: i32,
    pub before: Known,
    pub killed_by: Option<KilledBy>,
    pub status: Option<WaitStatus>,
    pub deadline: Instant,
    started: Instant,
    stdin: Option<(ChildStdin, Vec<u8>, usize)>,
    streams: [Stream; 2],
    output_bytes: u64,
    output_bytes_killed: u64,
}

/// Why a command did not start, as the host is told.
pub(super) fn not_started(error: &io::Error, program: &str) -> Ended {
    let busy = error.raw_os_error() == Some(libc::EAGAIN);
    let reason = match error.raw_os_error() {
        Some(libc::ENOENT) => format!("{program}: there is no such program or folder"),
        Some(libc::E2BIG) => format!("{program}: the arguments and variables are too long"),
        Some(libc::EAGAIN) => "the jail has no process left".to_owned(),
        _ => format!("{program}: {error}"),
    };
    Ended {
        reason: Some(reason),
        killed_by: busy.then_some(KilledBy::Processes),
        ..Ended::default()
    }
}

/// The program and its arguments.
pub(super) fn argv(program: &Program) -> Vec<String> {
    match program {
        Program::Argv(argv) => argv.clone(),
        Program::Shell(line) => {
            let bash = ["/bin/bash", "/usr/bin/bash"];
            let bash = bash.iter().find(|b| std::path::Path::new(b).exists());
            let shell = bash.copied().unwrap_or("/bin/sh");
            vec![shell.to_owned(), "-c".to_owned(), line.clone()]
        }
    }
}

impl Running {
    /// Starts a command in `cwd` with exactly the variables `env`.
    pub(super) fn start(
        id: u32,
        exec: &Exec,
        stdin: Vec<u8>,
        cwd: &std::path::Path,
        env: &[(String, String)],
        walls: &Rc<Walls>,
        before: Known,
    ) -> Result<Self, Ended> {
        let argv = argv(&exec.program);
        let Some((program, arguments)) = argv.split_first() else {
            let error = io::Error::other("no program is named");
            return Err(not_started(&error, "the command"));
        };
        let mut command = std::process::Command::new(program);
        command
            .args(arguments)
            .current_dir(cwd)
            .env_clear()
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(if stdin.is_empty() {
                Stdio::null()
            } else {
                Stdio::piped()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let started = Instant::now();
        let child = walls::spawn(&mut command, walls).map_err(|e| not_started(&e, program))?;
        Self::of(child, id, exec, stdin, started, before).map_err(|e| not_started(&e, program))
    }

    fn of(
        mut child: Child,
        id: u32,
        exec: &Exec,
        stdin: Vec<u8>,
        started: Instant,
        before: Known,
    ) -> io::Result<Self> {
        let pipe = child.stdin.take();
        if let Some(pipe) = &pipe {
            unblock(pipe)?;
        }
        let bytes_max = exec.output_bytes_max;
        Ok(Self {
            id,
            pid: i32::try_from(child.id()).map_err(io::Error::other)?,
            before,
            killed_by: None,
            status: None,
            deadline: started + Duration::from_millis(exec.timeout_ms),
            started,
            stdin: pipe.map(|pipe| (pipe, stdin, 0)),
            streams: [
                Stream::new(child.stdout.take(), bytes_max)?,
                Stream::new(child.stderr.take(), bytes_max)?,
            ],
            output_bytes: 0,
            output_bytes_killed: exec.output_bytes_killed,
        })
    }

    /// Moves bytes in and out. Returns whether it wrote more than it may.
    pub(super) fn pump(&mut self, piece: &mut [u8]) -> bool {
        self.feed();
        for stream in &mut self.streams {
            self.output_bytes += stream.pump(piece);
        }
        self.killed_by.is_none() && self.output_bytes > self.output_bytes_killed
    }

    fn feed(&mut self) {
        while let Some((pipe, bytes, at)) = &mut self.stdin {
            match pipe.write(&bytes[*at..]) {
                Ok(n) if *at + n < bytes.len() => *at += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // All is written, or the command does not read on.
                _ => self.stdin = None,
            }
        }
    }

    /// The pipes that something is waited for on.
    pub(super) fn waits(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let read = self.streams.iter().filter_map(|s| s.pipe.as_ref());
        let write = self.stdin.iter().map(|(pipe, _, _)| (pipe.as_fd(), true));
        read.map(|pipe| (pipe.as_fd(), false)).chain(write)
    }

    pub(super) fn origin(&self) -> table::Origin<'_> {
        table::Origin {
            pid: self.pid,
            before: &self.before,
        }
    }

    /// What came of it, the parts of its output, and the pipes that background processes still hold.
    pub(super) fn end(self, status: WaitStatus) -> (Ended, [Vec<u8>; 4], Vec<File>) {
        let mut pipes = Vec::new();
        let [(a, b, cut_out), (c, d, cut_err)] = self.streams.map(|stream| {
            pipes.extend(stream.pipe);
            stream.kept.parts()
        });
        let ended = Ended {
            exit: status.exit_status(),
            signal: status.terminating_signal(),
            killed_by: self.killed_by,
            wall_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            reason: None,
            streams: [(a.len(), b.len(), cut_out), (c.len(), d.len(), cut_err)],
        };
        (ended, [a, b, c, d], pipes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_keeps_its_beginning_and_its_end() {
        for piece in [1, 3, 7, 1000] {
            let bytes: Vec<u8> = (0..100).collect();
            let mut kept = Kept::new(20);
            bytes.chunks(piece).for_each(|b| kept.push(b));
            let (head, tail, cut) = kept.parts();
            assert_eq!((&head[..], &tail[..]), (&bytes[..10], &bytes[90..]));
            assert_eq!(cut, 80, "in pieces of {piece}");
        }
    }

    #[test]
    fn short_output_is_one_piece() {
        let mut kept = Kept::new(20);
        kept.push(&[1; 12]);
        kept.push(&[2; 8]);
        let (head, tail, cut) = kept.parts();
        assert_eq!((head.len(), tail.len(), cut), (20, 0, 0));
    }
}
