//! Networks and mounts that belong to one test: namespaces of the kernel, kept by a process that sleeps. They end
//! with it. Whoever runs the tests needs no rights for that, where the system lets users have namespaces.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Longest life of a namespace, in seconds, should its test die without ending it.
const LIFE_S: &str = "900";

/// A process in namespaces of its own.
pub(crate) struct Apart {
    child: Child,
    /// What enters them.
    enter: Vec<String>,
}

impl Apart {
    /// New namespaces of the kinds that these options of `unshare` name, for a user who is root within them; `prepare`
    /// runs in them first. None where the system gives none, which is said; the nightly run needs them.
    pub(crate) fn new(kinds: &[&str], prepare: &str) -> Option<Self> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user"]).args(kinds);
        let made = Self::start(unshare, kinds, prepare);
        if let Err(error) = &made {
            let is_nightly = std::env::var_os("HONE_CHAOS_KILLS").is_some();
            assert!(!is_nightly, "no namespaces: {error}");
            println!("NOT CHECKED, because the system gives no namespaces: {error}");
        }
        made.ok()
    }

    /// Further namespaces of these kinds beside it, for the same user.
    pub(crate) fn beside(&self, kinds: &[&str], prepare: &str) -> Self {
        let mut unshare = Command::new(&self.enter[0]);
        unshare.args(&self.enter[1..]).arg("unshare").args(kinds);
        Self::start(unshare, kinds, prepare).unwrap()
    }

    fn start(mut unshare: Command, kinds: &[&str], prepare: &str) -> Result<Self, String> {
        let script = format!("set -e; {prepare}\necho ready; exec sleep {LIFE_S}");
        unshare.args(["sh", "-c", &script]);
        unshare.stdin(Stdio::null());
        unshare.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = unshare.spawn().map_err(|error| error.to_string())?;
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        if said != "ready\n" {
            let mut errors = String::new();
            let stderr = child.stderr.take().unwrap();
            let _read = BufReader::new(stderr).read_to_string(&mut errors).is_ok();
            let ended = child.wait();
            return Err(format!("{ended:?} {errors}"));
        }
        let words = [
            "nsenter",
            "--target",
            &child.id().to_string(),
            "--user",
            "--preserve-credentials",
        ];
        let enter = words.iter().chain(kinds).map(|word| (*word).to_owned());
        Ok(Self {
            enter: enter.collect(),
            child,
        })
    }

    /// The process that keeps them.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What stands before a command that is to run within.
    pub(crate) fn within(&self) -> &[String] {
        &self.enter
    }

    /// Runs a few words of the shell within.
    pub(crate) fn shell(&self, words: &str) {
        let mut command = Command::new(&self.enter[0]);
        command.args(&self.enter[1..]).args(["sh", "-ec", words]);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{words}: {done:?}");
    }

    /// A path of its mounts, as seen from outside.
    pub(crate) fn path(&self, inner: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid()));
        root.join(inner.strip_prefix("/").unwrap())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _killed = self.child.kill().is_ok();
        let _ended = self.child.wait().is_ok();
    }
}
