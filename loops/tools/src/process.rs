//! Starts and ends the processes of jails, on two threads of its own.
//!
//! The kernel ends a jail with the thread that started it (`--die-with-parent`), so that thread must live as long as
//! the executor. Ending waits for the kernel, so no caller does it either.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::sync::oneshot;

use crate::ToolsError;
use crate::cgroup::Cgroup;

/// A user and a group of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub uid: u32,
    pub gid: u32,
}

/// Makes a command start as another user, in groups of its own.
pub(crate) fn start_as(command: &mut Command, user: Option<User>, mut doors: Vec<File>) {
    // SAFETY: between fork and exec only system calls are made; nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            for door in &mut doors {
                door.write_all(b"0")?;
            }
            let Some(user) = user else { return Ok(()) };
            let done = libc::setgroups(0, std::ptr::null()) == 0
                && libc::setgid(user.gid) == 0
                && libc::setuid(user.uid) == 0;
            if done {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        });
    }
}

type Started = io::Result<Child>;

/// What belongs to a jail on this machine.
pub(crate) struct Life {
    pub child: Child,
    /// The process whose end ends everything, where there is one.
    pub guest: Option<Arc<OwnedFd>>,
    pub cgroup: Option<Arc<Cgroup>>,
    pub folder: Option<tempfile::TempDir>,
    /// The folder of the executor, which a jail may outlive.
    pub shared: Option<Arc<tempfile::TempDir>>,
}

/// Commands for the threads.
#[derive(Clone)]
pub(crate) struct Processes {
    start: mpsc::SyncSender<(Box<Command>, oneshot::Sender<Started>)>,
    end: mpsc::SyncSender<(Life, Option<oneshot::Sender<()>>)>,
}

/// Jails that wait to be started or ended. More callers wait.
const WAITING_MAX: usize = 1024;

impl Processes {
    pub(crate) fn new() -> Result<Self, ToolsError> {
        let (start, starts) =
            mpsc::sync_channel::<(Box<Command>, oneshot::Sender<Started>)>(WAITING_MAX);
        let (end, ends) = mpsc::sync_channel::<(Life, Option<oneshot::Sender<()>>)>(WAITING_MAX);
        let thread = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let made = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(work);
            made.map_err(|e| ToolsError::NotAvailable(format!("no thread could start: {e}")))
        };
        thread(
            "jails-start",
            Box::new(move || {
                for (mut command, reply) in starts {
                    // A caller that went away drops the child; its socket is closed, so the guest ends by itself.
                    if let Err(Ok(child)) = reply.send(command.spawn()) {
                        end_child(child);
                    }
                }
            }),
        )?;
        thread(
            "jails-end",
            Box::new(move || {
                for (life, reply) in ends {
                    life.end();
                    if let Some(reply) = reply {
                        let _ = reply.send(());
                    }
                }
            }),
        )?;
        Ok(Self { start, end })
    }

    pub(crate) async fn start(&self, command: Command) -> io::Result<Child> {
        let (reply, started) = oneshot::channel();
        let sent = self.start.try_send((Box::new(command), reply));
        sent.map_err(|_| io::Error::other("too many jails are starting"))?;
        started.await.map_err(io::Error::other)?
    }

    /// Ends the jail when what is returned is dropped, also when its caller goes away while it opens.
    pub(crate) fn own(&self, life: Life) -> Owned {
        Owned {
            life: Some(life),
            processes: self.clone(),
        }
    }
}

/// A jail that ends when this is dropped.
pub(crate) struct Owned {
    life: Option<Life>,
    processes: Processes,
}

impl Owned {
    pub(crate) fn life(&mut self) -> Option<&mut Life> {
        self.life.as_mut()
    }

    /// Ends the jail, and waits until nothing of it is left.
    pub(crate) async fn end(mut self) {
        if let Some(life) = self.life.take() {
            let (reply, ended) = oneshot::channel();
            // When the thread has too much to do, this waits for it.
            let _ = self.processes.end.send((life, Some(reply)));
            let _ = ended.await;
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(life) = self.life.take() {
            let _ = self.processes.end.send((life, None));
        }
    }
}

/// Kills the process whose end ends a jail.
pub(crate) fn kill(guest: &OwnedFd) {
    let _ = rustix::process::pidfd_send_signal(guest, Signal::KILL);
}

impl Life {
    fn end(self) {
        if let Some(guest) = &self.guest {
            kill(guest);
        }
        end_child(self.child);
        drop(self.cgroup);
        if let Some(folder) = self.folder {
            remove_folder(folder);
        }
        drop(self.shared);
    }
}

fn remove_folder(folder: tempfile::TempDir) {
    // A command may have closed a folder to its owner; then it is opened and removed again.
    let emptied =
        crate::archive::open_folder(folder.path()).and_then(|open| crate::archive::clear(&open));
    if let Err(e) = emptied.and_then(|()| {
        let closed = folder.close();
        closed.map_err(|e| ToolsError::Files(e.to_string()))
    }) {
        tracing::warn!("a jail's folder cannot be removed: {e}");
    }
}

/// How long a guest has to end everything before it is killed.
const END_WAIT: Duration = Duration::from_secs(7);

/// The guest ends with its socket, which is closed already; bubblewrap ends with the guest.
fn end_child(mut child: Child) {
    drop(child.stderr.take());
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let watched = pid.and_then(|p| rustix::process::pidfd_open(p, PidfdFlags::empty()).ok());
    if let Some(watched) = watched {
        let mut waits = [PollFd::new(&watched, PollFlags::IN)];
        let wait = Timespec {
            tv_sec: i64::try_from(END_WAIT.as_secs()).unwrap_or(1),
            tv_nsec: 0,
        };
        let _ = rustix::event::poll(&mut waits, Some(&wait));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The guest of a bubblewrap, which is its only child; bubblewrap itself where the kernel lists no children.
pub(crate) fn guest_of(child: &Child) -> Option<OwnedFd> {
    let pid = child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let guest = children
        .ok()
        .and_then(|c| c.split_whitespace().next()?.parse().ok());
    let pid = guest.or_else(|| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// A command that speaks over one end of a socket pair; the other end is returned.
pub(crate) fn over_socket(
    mut command: Command,
) -> io::Result<(Command, std::os::unix::net::UnixStream)> {
    let (near, far) = std::os::unix::net::UnixStream::pair()?;
    near.set_nonblocking(true)?;
    command
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(far)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    Ok((command, near))
}
