//! `hone` as a process of its own, for what only a whole process shows.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Bench;
use super::folder::Folder;

/// Longest start.
const PATIENCE: Duration = Duration::from_secs(60);
/// What stands before the address in a server's first line.
const LISTENS_ON: &str = " listens on ";

/// A process of this program; it is killed with its value.
pub(super) struct Process {
    child: Child,
    errors: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts this program with other arguments. Lines of its output arrive on the channel.
    pub(super) fn start(arguments: &[&str]) -> Result<(Self, Receiver<String>), String> {
        let cannot =
            |error: std::io::Error| format!("this program could not be run again: {error}");
        let mut child = Command::new(std::env::current_exe().map_err(cannot)?)
            .args(arguments)
            .env("HONE__LOG__LEVEL", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let (sender, lines) = channel();
        // Both ends of the output are read to the end, so that the process never waits for us.
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    // Whoever started it may have read enough.
                    let _wanted = sender.send(line).is_ok();
                }
            });
        }
        let errors = child.stderr.take().map(|mut errors| {
            std::thread::spawn(move || {
                let mut text = String::new();
                // What was read until a failure is all there is to show.
                let _bytes = errors.read_to_string(&mut text).unwrap_or_default();
                text
            })
        });
        Ok((Self { child, errors }, lines))
    }

    /// Its id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it and returns what it said about its errors.
    pub(super) fn errors(mut self) -> String {
        self.end();
        let text = self
            .errors
            .take()
            .map(|errors| errors.join().unwrap_or_default());
        text.unwrap_or_default().trim().to_owned()
    }

    /// Its data is thrown away, so there is nothing to finish. It may have ended by itself.
    fn end(&mut self) {
        let _killed = self.child.kill().is_ok();
        let _ended = self.child.wait().is_ok();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// `hone serve` on a free port with an empty data folder.
pub(super) struct Server {
    /// Where it listens.
    pub(super) url: String,
    /// When its process was started.
    pub(super) started: Instant,
    process: Process,
    // Goes last, when nothing writes in it any more.
    _folder: Folder,
}

impl Server {
    /// Starts one, with further arguments, and waits until it listens.
    pub(super) fn start(bench: &Bench, further: &[&str]) -> Result<Self, String> {
        let folder = bench.folder()?;
        let started = Instant::now();
        let data = folder.text();
        let arguments = ["serve", "--bind", "127.0.0.1:0", "--data", &data];
        let (process, lines) = Process::start(&[&arguments[..], further].concat())?;
        loop {
            let left = PATIENCE.saturating_sub(started.elapsed());
            match lines.recv_timeout(left) {
                Ok(line) => {
                    let Some(url) = url_of(&line) else { continue };
                    return Ok(Self {
                        url: url.to_owned(),
                        started,
                        process,
                        _folder: folder,
                    });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("the server did not start: {}", process.errors()));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let limit = PATIENCE.as_secs();
                    let errors = process.errors();
                    return Err(format!(
                        "the server did not listen within {limit} s: {errors}"
                    ));
                }
            }
        }
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }
}

fn url_of(line: &str) -> Option<&str> {
    let (_, url) = line.split_once(LISTENS_ON)?;
    url.starts_with("http://").then_some(url.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_first_line_only() {
        let line = "Hone 0.1.0 listens on http://127.0.0.1:41234";
        assert_eq!(url_of(line), Some("http://127.0.0.1:41234"));
        assert_eq!(url_of("  model  hone-starter"), None);
        assert_eq!(url_of("nobody listens on nothing"), None);
    }
}
