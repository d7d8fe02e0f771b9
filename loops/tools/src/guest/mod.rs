//! The guest: the first process in a jail. It starts commands, ends them, and moves their bytes and files.
//!
//! It is one thread and one loop over `poll`. It speaks with the host over its standard input, which is a socket, and
//! ends with it; as it is the first process of its namespace, everything in the jail ends then too.

mod files;
mod forward;
mod running;
mod table;
mod walls;

use std::fs::File;
use std::io::{self, Read};

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{DumpableBehavior, WaitOptions};

use self::files::{Answer, Folders};
use self::forward::Forward;
use self::running::{Running, not_started};
use self::walls::Walls;
use crate::wire::{self, Exec, Reply, Request, Setup};
use crate::{KilledBy, ToolsError};

/// Most commands at a time.
const COMMANDS_MAX: usize = 32;
/// Most pipes of background processes that are read on, so that their writers do not stop.
const PIPES_MAX: usize = 64;
/// How often memory is added up while commands run.
const MEMORY_TICK: Duration = Duration::from_millis(50);
/// How long killed processes have until they are gone.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Runs the guest until the host goes. The program calls this first, before it starts any thread.
#[must_use]
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("the guest ends: {e}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    walls::close_inherited();
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let mut control = UnixStream::from(control);
    let Some((id, Request::Setup(setup), _)) = wire::read(&mut control)? else {
        return Err(io::Error::other("the host did not say what to prepare"));
    };
    let mut guest = Guest::prepare(control, setup)?;
    let ready = Reply::Ready {
        landlock: guest.walls.landlock(),
        seccomp: guest.filtered,
    };
    wire::write(&mut guest.control, id, &ready, &[])?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let ended = guest.run();
    guest.kill_all();
    ended
}

struct Guest {
    control: UnixStream,
    setup: Setup,
    folders: Folders,
    walls: Rc<Walls>,
    filtered: bool,
    forward: Option<Forward>,
    signals: File,
    running: Vec<Running>,
    pipes: Vec<File>,
    memory_looked: Instant,
}

impl Guest {
    fn prepare(control: UnixStream, setup: Setup) -> io::Result<Self> {
        // Nobody in the jail may look into the guest: neither its memory nor its descriptors.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        if !setup.walls {
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        }
        let signals = walls::child_signals()?;
        let folders = Folders::open(setup.folders.clone()).map_err(io::Error::other)?;
        let model = setup.model_socket.clone().map(PathBuf::from);
        let forward = model.map(Forward::listen).transpose()?;
        let (walls, filtered) = Walls::build(&setup);
        Ok(Self {
            control,
            setup,
            folders,
            walls: Rc::new(walls),
            filtered,
            forward,
            signals,
            running: Vec::new(),
            pipes: Vec::new(),
            memory_looked: Instant::now(),
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut piece = vec![0; 64 << 10];
        loop {
            if self.wait()? && !self.answer()? {
                return Ok(());
            }
            while self.signals.read(&mut piece).is_ok_and(|n| n > 0) {}
            self.reap();
            self.pump(&mut piece);
            self.look_at_limits();
            self.finish()?;
        }
    }

    /// Waits for anything to do. Returns whether the host said something.
    fn wait(&self) -> io::Result<bool> {
        let mut waits = vec![
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        let flags = |write| if write { PollFlags::OUT } else { PollFlags::IN };
        for running in &self.running {
            let pipes = running.waits();
            waits.extend(pipes.map(|(fd, write)| PollFd::from_borrowed_fd(fd, flags(write))));
        }
        waits.extend(self.pipes.iter().map(|p| PollFd::new(p, PollFlags::IN)));
        for (fd, read, write) in self.forward.iter().flat_map(Forward::waits) {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, read);
            wanted.set(PollFlags::OUT, write);
            waits.push(PollFd::from_borrowed_fd(fd, wanted));
        }
        let now = Instant::now();
        let deadline = self.running.iter().filter(|r| r.killed_by.is_none());
        let mut next = deadline
            .map(|r| r.deadline.saturating_duration_since(now))
            .min();
        if self.setup.watch_memory && !self.running.is_empty() {
            next = Some(next.unwrap_or(MEMORY_TICK).min(MEMORY_TICK));
        }
        let timeout = next.map(|next| Timespec {
            tv_sec: i64::try_from(next.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: next.subsec_nanos().into(),
        });
        match rustix::event::poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!waits[0].revents().is_empty()),
            Err(e) => Err(e.into()),
        }
    }

    /// Does what the host asks. False when the host is gone.
    fn answer(&mut self) -> io::Result<bool> {
        let Some((id, request, bytes)) = wire::read(&mut self.control)? else {
            return Ok(false);
        };
        let done = match request {
            Request::Exec(exec) => return self.exec(id, &exec, bytes).map(|()| true),
            Request::Cancel { exec } => {
                self.kill(|r| r.id == exec, KilledBy::Cancelled);
                return Ok(true);
            }
            Request::KillAll => {
                let gone = self.kill_all();
                gone.then_some(()).ok_or_else(|| {
                    ToolsError::Files("some processes did not end when they were killed".into())
                })
            }
            Request::Put { path, form } => self.folders.put(&path, form, &mut self.control)?,
            Request::Get {
                path,
                form,
                bytes_max,
            } => {
                let to = Answer::to(&mut self.control, id);
                self.folders.get(&path, form, bytes_max, to)
            }
            Request::Mark => self.folders.mark(),
            Request::Changes => {
                let changes = self.folders.changes(Answer::to(&mut self.control, id));
                match changes {
                    Ok(paths) => {
                        wire::write(&mut self.control, id, &Reply::Removed { paths }, &[])?;
                        Ok(())
                    }
                    Err(e) => Err(e),
                }
            }
            Request::Clear => self.folders.clear(),
            Request::Remove { paths } => self.folders.remove(&paths),
            Request::Setup(_) | Request::Piece => {
                Err(ToolsError::Files("a message out of turn".into()))
            }
        };
        let reply = match done {
            Ok(()) => Reply::Done,
            Err(ToolsError::Refused(why)) => Reply::Refused(why),
            Err(e) => Reply::Failed(e.to_string()),
        };
        wire::write(&mut self.control, id, &reply, &[])?;
        Ok(true)
    }

    fn exec(&mut self, id: u32, exec: &Exec, stdin: Vec<u8>) -> io::Result<()> {
        let started = if self.running.len() < COMMANDS_MAX {
            let work = self.setup.folders.first().map_or("/", |f| &f.path);
            let cwd = Path::new(work).join(self.translated(exec.cwd.as_deref().unwrap_or("")));
            let mut env = self.setup.env.clone();
            env.extend(exec.env.iter().cloned());
            let before = table::processes(self.setup.walls);
            let before = before.iter().map(|p| (p.pid, p.start)).collect();
            Running::start(id, exec, stdin, &cwd, &env, &self.walls, before)
        } else {
            let busy = io::Error::other(format!("{COMMANDS_MAX} commands run already"));
            Err(not_started(&busy, "the command"))
        };
        match started {
            Ok(running) => {
                self.running.push(running);
                Ok(())
            }
            Err(ended) => wire::write(&mut self.control, id, &Reply::Ended(ended), &[]),
        }
    }

    /// A path that callers name, as it is here.
    fn translated(&self, path: &str) -> PathBuf {
        for folder in &self.setup.folders {
            if let Ok(rest) = Path::new(path).strip_prefix(&folder.name) {
                return Path::new(&folder.path).join(rest);
            }
        }
        path.into()
    }

    /// Takes every process that ended, commands and orphans.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get();
            let of = self
                .running
                .iter_mut()
                .find(|r| r.pid == pid && r.status.is_none());
            if let Some(running) = of {
                running.status = Some(status);
            }
        }
    }

    fn pump(&mut self, piece: &mut [u8]) {
        let mut over = Vec::new();
        for running in &mut self.running {
            if running.pump(piece) {
                over.push(running.id);
            }
        }
        self.kill(|r| over.contains(&r.id), KilledBy::Output);
        // What background processes write after their command ended is read and forgotten.
        self.pipes.retain_mut(|pipe| match pipe.read(piece) {
            Ok(n) => n > 0,
            Err(e) => e.kind() == io::ErrorKind::WouldBlock,
        });
        if let Some(forward) = &mut self.forward {
            forward.pump();
        }
    }

    fn look_at_limits(&mut self) {
        let now = Instant::now();
        self.kill(
            |r| r.status.is_none() && r.deadline <= now,
            KilledBy::Timeout,
        );
        let looks = self.setup.watch_memory && !self.running.is_empty();
        if looks && self.memory_looked + MEMORY_TICK <= now {
            self.memory_looked = now;
            if table::memory_bytes(self.setup.walls) > self.setup.memory_bytes {
                self.mark_killed(KilledBy::Memory);
                self.kill_processes();
            }
        }
    }

    fn mark_killed(&mut self, by: KilledBy) {
        let running = self.running.iter_mut().filter(|r| r.status.is_none());
        running.for_each(|r| r.killed_by = r.killed_by.or(Some(by)));
    }

    /// Kills some commands with everything that they started.
    fn kill(&mut self, which: impl Fn(&Running) -> bool, by: KilledBy) {
        for i in 0..self.running.len() {
            if self.running[i].killed_by.is_some() || !which(&self.running[i]) {
                continue;
            }
            self.running[i].killed_by = Some(by);
            let others = self.running.iter().enumerate().filter(|(j, _)| *j != i);
            let others: Vec<_> = others.map(|(_, r)| r.origin()).collect();
            let walls = self.setup.walls;
            kill_until_none(|| {
                table::of_command(&table::processes(walls), &self.running[i].origin(), &others)
            });
        }
    }

    fn kill_processes(&self) {
        if self.setup.walls {
            walls::kill_everything();
        } else {
            let pids = || table::processes(false).iter().map(|p| p.pid).collect();
            kill_until_none(pids);
        }
    }

    /// Kills every process but the guest, and waits until they are gone. False when some are not.
    fn kill_all(&mut self) -> bool {
        self.mark_killed(KilledBy::Cancelled);
        let begin = Instant::now();
        while begin.elapsed() < KILL_WAIT {
            self.kill_processes();
            self.reap();
            if table::processes(self.setup.walls).is_empty() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Tells the host of every command that ended.
    fn finish(&mut self) -> io::Result<()> {
        let mut i = 0;
        while i < self.running.len() {
            let Some(status) = self.running[i].status else {
                i += 1;
                continue;
            };
            let running = self.running.swap_remove(i);
            let id = running.id;
            let (ended, parts, pipes) = running.end(status);
            let parts = parts.each_ref().map(Vec::as_slice);
            wire::write(&mut self.control, id, &Reply::Ended(ended), &parts)?;
            self.pipes.extend(pipes);
            let over = self.pipes.len().saturating_sub(PIPES_MAX);
            self.pipes.drain(..over);
        }
        Ok(())
    }
}

/// Stops all of them first, so that none can start another, and kills them when no further one is found.
fn kill_until_none(pids: impl Fn() -> Vec<i32>) {
    use rustix::process::{Pid, Signal, kill_process};
    let mut stopped = std::collections::HashSet::new();
    for _ in 0..64 {
        let fresh: Vec<i32> = pids().into_iter().filter(|p| stopped.insert(*p)).collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::STOP);
        }
    }
    for pid in pids().into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}
