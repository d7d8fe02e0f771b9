//! The program in a process of its own, as a person starts it: this test binary, which has the program's
//! allocator, runs its command line in a child.

use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The child's arguments, one a line; set only in children.
const ARGUMENTS: &str = "HONE_TEST_ARGUMENTS";
/// Longest start, and longest run of a command.
const PATIENCE: Duration = Duration::from_secs(90);
/// What stands before the address in a server's first line.
const LISTENS_ON: &str = " listens on ";

/// Not a test of its own: the child's whole life when `ARGUMENTS` is set, nothing otherwise.
#[test]
fn child() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let code = hone::cli::run(std::iter::once("hone").chain(arguments.lines()));
    let number = (0..=u8::MAX).find(|number| ExitCode::from(*number) == code);
    std::process::exit(number.unwrap().into());
}

/// The program with these arguments.
pub(crate) fn program(arguments: &[&str]) -> Command {
    with_arguments(Command::new(std::env::current_exe().unwrap()), arguments)
}

/// The program as a shell starts it after these words, such as `ulimit -n 1024`.
pub(crate) fn program_after(words: &str, arguments: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{words}; exec \"$0\" \"$@\"")]);
    shell.arg(std::env::current_exe().unwrap());
    with_arguments(shell, arguments)
}

/// The program as another one starts it, which is named first, with its own arguments.
pub(crate) fn program_by(starter: &[String], arguments: &[&str]) -> Command {
    let mut command = Command::new(&starter[0]);
    command.args(&starter[1..]);
    command.arg(std::env::current_exe().unwrap());
    with_arguments(command, arguments)
}

fn with_arguments(mut command: Command, arguments: &[&str]) -> Command {
    command
        .args(["program::child", "--exact", "--nocapture"])
        .env(ARGUMENTS, arguments.join("\n"))
        .env("HONE__LOG__LEVEL", "warn")
        // A panic is told from a sentence by what it prints.
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// How a process ended and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    /// None where a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output, without the words of the test harness.
    pub(crate) out: String,
    /// Standard error, line by line.
    pub(crate) errors: Vec<String>,
}

impl Ended {
    /// What it printed, in one text.
    pub(crate) fn text(&self) -> String {
        format!("{}\n{}", self.out, self.errors.join("\n"))
    }

    /// The one sentence that it ended with.
    ///
    /// # Panics
    /// Where it ended well, or said more or less than one sentence beside its log.
    pub(crate) fn sentence(&self) -> &str {
        assert_eq!(self.code, Some(1), "{self:?}");
        let said: Vec<&str> = self
            .errors
            .iter()
            .filter(|line| !is_log(line))
            .map(String::as_str)
            .collect();
        match said[..] {
            [sentence] if sentence.starts_with("hone: ") => sentence,
            _ => panic!("it says {said:?}"),
        }
    }
}

/// Whether a line begins with a time, as those of the log do.
pub(crate) fn is_log(line: &str) -> bool {
    line.starts_with("20") && line.as_bytes().get(10) == Some(&b'T')
}

/// Runs a command to its end.
pub(crate) fn run(command: Command) -> Ended {
    let mut process = Process::start(command);
    let began = Instant::now();
    while process.child.try_wait().unwrap().is_none() {
        assert!(
            began.elapsed() < PATIENCE,
            "it does not end: {:?}",
            process.end()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    process.end()
}

/// A process and what it prints. It is killed with its value.
struct Process {
    child: Child,
    out: Arc<Mutex<String>>,
    errors: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    listens: Receiver<String>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (out, errors) = (Arc::default(), Arc::default());
        let (found, listens) = channel();
        let (stdout, all): (_, Arc<Mutex<String>>) =
            (child.stdout.take().unwrap(), Arc::clone(&out));
        let reader = std::thread::spawn(move || {
            for line in lines(stdout) {
                if let Some((_, url)) = line.split_once(LISTENS_ON) {
                    // Whoever only runs a command does not ask.
                    let _wanted = found.send(url.trim().to_owned()).is_ok();
                }
                let of_harness = line.is_empty() || line == "running 1 test";
                if !of_harness {
                    let mut all = all.lock().unwrap();
                    all.push_str(&line);
                    all.push('\n');
                }
            }
        });
        let (stderr, all): (_, Arc<Mutex<Vec<String>>>) =
            (child.stderr.take().unwrap(), Arc::clone(&errors));
        let other = std::thread::spawn(move || {
            for line in lines(stderr) {
                all.lock().unwrap().push(line);
            }
        });
        Self {
            child,
            out,
            errors,
            readers: vec![reader, other],
            listens,
        }
    }

    /// Ends it, if it has not ended, and says how.
    fn end(&mut self) -> Ended {
        // It may have ended by itself.
        let _killed = self.child.kill().is_ok();
        let status = self.child.wait().unwrap();
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        Ended {
            code: status.code(),
            out: self.out.lock().unwrap().clone(),
            errors: self.errors.lock().unwrap().clone(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _killed = self.child.kill().is_ok();
        let _ended = self.child.wait().is_ok();
    }
}

fn lines(from: impl Read) -> impl Iterator<Item = String> {
    let lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
    lines.map(|line| String::from_utf8_lossy(&line).into_owned())
}

/// `hone serve`, listening. It is killed with its value.
pub(crate) struct Server {
    /// `http://ADDRESS:PORT`.
    pub(crate) url: String,
    process: Process,
}

impl Server {
    /// Starts it; how it ended where it did not come to listen.
    pub(crate) fn start(command: Command) -> Result<Self, Ended> {
        let mut process = Process::start(command);
        match process.listens.recv_timeout(PATIENCE) {
            Ok(url) => Ok(Self { url, process }),
            Err(RecvTimeoutError::Disconnected) => Err(process.end()),
            Err(RecvTimeoutError::Timeout) => panic!("it does not listen: {:?}", process.end()),
        }
    }

    /// What it has printed to standard error so far.
    pub(crate) fn errors(&self) -> Vec<String> {
        self.process.errors.lock().unwrap().clone()
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) -> Ended {
        self.process.end()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.child), signal).unwrap();
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.child.id()
    }

    /// Halts it, until [`Self::go_on`].
    pub(crate) fn halt(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// `SIGTERM`, and waits until it has ended.
    pub(crate) fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Waits until it has ended.
    pub(crate) fn ended(mut self) -> Ended {
        let began = Instant::now();
        while self.process.child.try_wait().unwrap().is_none() {
            assert!(
                began.elapsed() < PATIENCE,
                "it does not stop: {:?}",
                self.process.end()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        self.process.end()
    }
}

/// `hone serve` that stands by until another process ends. It is killed with its value.
pub(crate) struct StandBy(Process);

impl StandBy {
    /// Starts it; the value and where it answers probes, once it stands by.
    pub(crate) fn start(command: Command) -> (Self, String) {
        let process = Process::start(command);
        let began = Instant::now();
        loop {
            let said = process.errors.lock().unwrap().clone();
            let address = said.iter().find_map(|line| {
                let (_, rest) = line.split_once("standing by on ")?;
                rest.split_once(": ").map(|(address, _)| address.to_owned())
            });
            if let Some(address) = address {
                return (Self(process), format!("http://{address}"));
            }
            assert!(began.elapsed() < PATIENCE, "it does not stand by: {said:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it has taken over.
    pub(crate) fn serves(mut self, within: Duration) -> Server {
        match self.0.listens.recv_timeout(within) {
            Ok(url) => Server {
                url,
                process: self.0,
            },
            Err(_) => panic!("it does not take over: {:?}", self.0.end()),
        }
    }
}

/// Arguments of `hone serve` on a free port with a data folder and a configuration file beside it.
pub(crate) fn serving(data: &Path, config: &str) -> Vec<String> {
    let file = data.with_extension("toml");
    std::fs::write(&file, config).unwrap();
    let text = |path: &Path| path.display().to_string();
    ["serve", "--bind", "127.0.0.1:0", "--data"]
        .map(str::to_owned)
        .into_iter()
        .chain([text(data), "--config".to_owned(), text(&file)])
        .collect()
}
