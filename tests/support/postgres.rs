//! A PostgreSQL server for tests, in a scratch folder, on a socket there. It ends with the process that started it, and
//! takes its folder along.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest start: a loaded machine writes the first files slowly.
const START_MAX: Duration = Duration::from_secs(120);

/// What the server's shell does: it hands signals on, and removes the folder at the end. Its parameters are the folder of
/// the programs, the scratch folder, and the server's options.
const RUN: &str = r#"
programs=$1 folder=$2; shift 2
"$programs/initdb" --pgdata "$folder/data" --username hone --auth trust --encoding UTF8 --locale C --no-sync \
    > "$folder/log" 2>&1 || exit 1
"$programs/postgres" -D "$folder/data" -k "$folder" -c listen_addresses= "$@" >> "$folder/log" 2>&1 &
server=$!
trap 'kill -QUIT $server' INT TERM
while kill -0 $server 2> /dev/null; do wait $server; done
rm -rf "$folder"
"#;

/// A running server.
pub(crate) struct Server {
    folder: PathBuf,
    shell: Child,
}

/// Where Debian and others have the programs; the newest that does.
fn programs() -> PathBuf {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(version, path)| *version >= 15 && path.join("initdb").exists())
        .collect();
    found.sort();
    found.pop().map_or_else(
        || panic!("PostgreSQL 15 or newer is not installed: apt-get install postgresql (or make setup)"),
        |(_, path)| path,
    )
}

/// A user that is not root: PostgreSQL refuses to be that.
fn unprivileged() -> Option<(u32, u32)> {
    if fs::metadata("/proc/self").map_or(1, |meta| meta.uid()) != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        let line = users
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    ids("postgres").or_else(|| ids("nobody"))
}

impl Server {
    /// The server of this process.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Starts one of its own; it ends when it is dropped, and with this process.
    pub(crate) fn start() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("pg")
            .tempdir_in("/tmp")
            .unwrap()
            .keep();
        let user = unprivileged();
        if let Some((uid, gid)) = user {
            chown(&folder, Some(uid), Some(gid)).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let server = Self {
            shell: launch(&folder, user, &[]),
            folder,
        };
        server.wait();
        server
    }

    fn wait(&self) {
        let began = Instant::now();
        let ready = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        while !ready().contains("ready to accept connections") {
            assert!(began.elapsed() < START_MAX, "no server: {}", ready());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes a database of that name.
    pub(crate) fn make_database(&self, name: &str) {
        let made = Command::new(programs().join("createdb"))
            .args(["--username", "hone", "--host"])
            .arg(&self.folder)
            .arg(name)
            .status();
        assert!(made.unwrap().success(), "there is no database {name}");
    }

    /// Ends the connections of a program to a database; how many there were.
    #[allow(dead_code, reason = "not every test that has a server needs it")]
    pub(crate) fn cut(&self, database: &str, program: &str) -> usize {
        let sql = format!(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = '{program}'"
        );
        self.asked(database, &sql).lines().count()
    }

    /// What a query says as `psql` prints it: a row a line, without names.
    #[allow(dead_code, reason = "not every test that has a server needs it")]
    pub(crate) fn asked(&self, database: &str, sql: &str) -> String {
        let said = Command::new(programs().join("psql"))
            .args([
                "--username",
                "hone",
                "--no-align",
                "--tuples-only",
                "--host",
            ])
            .arg(&self.folder)
            .args(["--dbname", database, "--command", sql])
            .output()
            .unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap()
    }

    /// The socket on which it listens.
    #[allow(dead_code, reason = "not every test that has a server needs it")]
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// The address of one of its databases, for a user.
    pub(crate) fn url_of(&self, user: &str, database: &str) -> String {
        let socket = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://{user}@{socket}/{database}")
    }
}

/// A thread of its own starts it and stays, because the server ends with the thread that started it.
fn launch(folder: &Path, user: Option<(u32, u32)>, options: &[&str]) -> Child {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]);
    if let Some((uid, gid)) = user {
        command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
        command.arg("--clear-groups");
    }
    command
        .args(["sh", "-c", RUN, "sh"])
        .arg(programs())
        .arg(folder);
    command.args(options).current_dir("/");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _nobody_waits = send.send(command.spawn());
        loop {
            std::thread::park();
        }
    });
    let started = receive.recv().unwrap();
    started.unwrap_or_else(|error| panic!("the server's shell did not start: {error}"))
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = self.shell.id().to_string();
        let _gone = Command::new("kill").args(["-TERM", &pid]).status();
        let _ended = self.shell.wait();
        let _removed = fs::remove_dir_all(&self.folder);
    }
}
