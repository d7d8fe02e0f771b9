//! Jails by bubblewrap: namespaces around a guest that is their first process.
//!
//! The work folder and `/tmp` are file systems in memory with a size, which root and ordinary users can make alike; no
//! quota, loop device or overlay is needed, and nothing of them is left when the jail ends. Files come in and go out
//! as tars through the guest.
//!
//! Where this process is root, a jail is another user of this machine (`nobody` when none is named): the files of root
//! would be its own files otherwise, and no limit of processes holds for root.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::cgroup::{Cgroup, Parent};
use crate::client::{self, Client};
use crate::jail::{GuestJail, Made};
use crate::leftover;
use crate::process::{Life, Processes, User, guest_of, over_socket, start_as};
use crate::relay;
use crate::wire::{Folder, Setup};
use crate::{Capabilities, Executor, HeldBy, Jail, JailSpec, Kind, ToolsError};

/// Where the guest and the socket of the model lie in a jail.
const RUN: &str = "/run/hone";
/// Bytes of shared memory of a jail.
const SHARED_BYTES: u64 = 64 << 20;
/// Memory of the guest and of bubblewrap.
const GUEST_BYTES: u64 = 32 << 20;
/// How long a guest may take until it is ready.
const READY_WAIT: Duration = Duration::from_secs(20);
/// Programs are found along this path in a jail.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The user of all jails of a root process: `nobody`.
const NOBODY: User = User {
    uid: 65534,
    gid: 65534,
};
const PREFIX: &str = "hone-jails-";

/// The program that is the guest: one that calls [`crate::guest::main`].
#[derive(Clone, Debug)]
pub struct GuestProgram {
    /// Its file.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// Opens jails by bubblewrap.
pub struct Bubblewrap {
    bwrap: PathBuf,
    guest: GuestProgram,
    user: Option<User>,
    cgroups: Option<Parent>,
    processes: Processes,
    folder: Arc<tempfile::TempDir>,
}

fn unavailable(what: &str) -> impl Fn(std::io::Error) -> ToolsError {
    let what = what.to_owned();
    move |e| ToolsError::NotAvailable(format!("{what}: {e}"))
}

impl Bubblewrap {
    /// Prepares jails whose guest is `guest`. It does not look whether this machine can have jails: see
    /// [`Self::check`].
    pub fn new(guest: GuestProgram) -> Result<Self, ToolsError> {
        let root = rustix::process::geteuid().is_root();
        let user = root.then_some(NOBODY);
        leftover::remove_folders(PREFIX);
        let folder = prepare_folder().map_err(unavailable("a folder for jails cannot be made"))?;
        let guest = reachable(guest, folder.path(), user)
            .map_err(unavailable("the guest's program cannot be copied"))?;
        Ok(Self {
            bwrap: "bwrap".into(),
            guest,
            user,
            cgroups: Parent::find(joins),
            processes: Processes::new()?,
            folder: Arc::new(folder),
        })
    }

    /// The same with another program than the `bwrap` of `PATH`.
    #[must_use]
    pub fn with_bwrap(mut self, bwrap: PathBuf) -> Self {
        self.bwrap = bwrap;
        self
    }

    /// The same without cgroups, even where they can be made: each process is limited by itself.
    #[must_use]
    pub fn without_cgroups(mut self) -> Self {
        self.cgroups = None;
        self
    }

    /// Whether this machine can have jails. The error says in one sentence what to install or to allow.
    pub fn check(&self) -> Result<(), ToolsError> {
        let mut command = Command::new(&self.bwrap);
        command
            .args(walls(&self.folder.path().join("etc")))
            .args(["--remount-ro", "/", "--", "/usr/bin/true"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null());
        start_as(&mut command, self.user, Vec::new());
        let ran = command.output().map_err(|e| missing(&e))?;
        if ran.status.success() {
            return Ok(());
        }
        Err(forbidden(&String::from_utf8_lossy(&ran.stderr)))
    }

    fn command(&self, spec: &JailSpec, model_socket: Option<&Path>) -> Command {
        let mut command = Command::new(&self.bwrap);
        command.args(walls(&self.folder.path().join("etc")));
        let disk = spec.disk_bytes.to_string();
        command.args(["--perms", "1777", "--size", &disk, "--tmpfs", "/tmp"]);
        for folder in std::iter::once(&spec.work_folder).chain(&spec.folders) {
            command.args(["--size", &disk, "--tmpfs"]).arg(folder);
        }
        for mount in &spec.read_only {
            command.arg("--ro-bind").arg(&mount.host).arg(&mount.jail);
        }
        let guest = format!("{RUN}/guest");
        command
            .arg("--ro-bind")
            .args([self.guest.path.as_os_str(), guest.as_ref()]);
        if let Some(socket) = model_socket {
            command
                .arg("--ro-bind")
                .arg(socket)
                .arg(format!("{RUN}/model.sock"));
        }
        command
            .args(["--remount-ro", "/", "--chdir"])
            .arg(&spec.work_folder);
        command.arg("--").arg(guest).args(&self.guest.arguments);
        command
    }

    fn cgroup(&self, spec: &JailSpec) -> Result<Option<Arc<Cgroup>>, ToolsError> {
        let Some(parent) = &self.cgroups else {
            return Ok(None);
        };
        // Files in memory count too, and have limits of their own.
        let folders = 2 + spec.folders.len() as u64;
        let files = spec
            .disk_bytes
            .saturating_mul(folders)
            .saturating_add(SHARED_BYTES);
        let memory = spec
            .memory_bytes
            .saturating_add(files)
            .saturating_add(GUEST_BYTES);
        // Beside the commands there are bubblewrap and the guest.
        let made = Cgroup::make(parent, memory, spec.processes + 2);
        let made = made.map_err(unavailable("a cgroup cannot be made"))?;
        Ok(Some(Arc::new(made)))
    }

    async fn start(&self, spec: &JailSpec) -> Result<Made, ToolsError> {
        let folder = tempfile::Builder::new()
            .prefix("jail-")
            .permissions(fs::Permissions::from_mode(0o711))
            .tempdir_in(self.folder.path())
            .map_err(unavailable("a folder for the jail cannot be made"))?;
        let mut tasks = Vec::new();
        let mut socket = None;
        if let Some(model) = &spec.model_socket {
            let path = folder.path().join("model.sock");
            tasks.push(relay::start(&path, model.clone(), self.user)?);
            socket = Some(path);
        }
        let cgroup = self.cgroup(spec)?;
        let counted = cgroup.is_some();
        let started = over_socket(self.command(spec, socket.as_deref()));
        let (mut command, near) = started.map_err(unavailable("a socket cannot be made"))?;
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let doors = cgroup.as_ref().map(|c| c.doors()).transpose();
        let doors = doors.map_err(unavailable("a cgroup cannot be joined"))?;
        start_as(&mut command, self.user, doors.unwrap_or_default());
        let child = self
            .processes
            .start(command)
            .await
            .map_err(|e| missing(&e))?;
        let mut life = self.processes.own(Life {
            child,
            guest: None,
            cgroup,
            folder: Some(folder),
            shared: Some(self.folder.clone()),
        });
        let client = Client::new(near).map_err(unavailable("the socket of the jail"))?;
        let ready = client::ready(&client, setup(spec, !counted), READY_WAIT).await;
        let (landlock, seccomp) = match (ready, life.life()) {
            (Ok(walls), Some(life)) => {
                life.guest = guest_of(&life.child).map(Arc::new);
                drop(life.child.stderr.take());
                walls
            }
            (_, life) => {
                return Err(forbidden(
                    &life.map(|l| said(&mut l.child)).unwrap_or_default(),
                ));
            }
        };
        let held = if counted {
            HeldBy::Cgroup
        } else {
            HeldBy::Rlimit
        };
        let capabilities = Capabilities {
            namespaces: true,
            landlock,
            seccomp,
            memory: held,
            processes: held,
        };
        Ok(Made {
            client,
            capabilities,
            life,
            tasks,
        })
    }
}

#[async_trait]
impl Executor for Bubblewrap {
    async fn open(&self, spec: &JailSpec) -> Result<Box<dyn Jail>, ToolsError> {
        spec.validate()?;
        let made = self.start(spec).await?;
        Ok(Box::new(GuestJail::open(made, spec).await?))
    }

    fn kind(&self) -> Kind {
        Kind::Bubblewrap
    }
}

/// Whether a process that this one starts can join a group.
fn joins(group: &Cgroup) -> std::io::Result<()> {
    let mut command = Command::new("/usr/bin/true");
    command.stdin(Stdio::null());
    start_as(&mut command, None, group.doors()?);
    command.status().map(|_| ())
}

/// What stands around every jail.
fn walls(etc: &Path) -> Vec<OsString> {
    let mut walls: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| walls.extend(words.iter().map(OsString::from));
    add(&["--unshare-all", "--unshare-user", "--disable-userns"]);
    add(&["--die-with-parent", "--new-session", "--as-pid-1"]);
    add(&["--clearenv", "--cap-drop", "ALL", "--hostname", "jail"]);
    add(&["--uid", "1000", "--gid", "1000"]);
    add(&["--ro-bind", "/usr", "/usr"]);
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = format!("/{name}");
        match fs::read_link(&path) {
            Ok(target) => add(&["--symlink", &target.to_string_lossy(), &path]),
            Err(_) => add(&["--ro-bind-try", &path, &path]),
        }
    }
    let shared = SHARED_BYTES.to_string();
    add(&["--proc", "/proc", "--dev", "/dev"]);
    add(&["--perms", "1777", "--size", &shared, "--tmpfs", "/dev/shm"]);
    add(&["--remount-ro", "/dev"]);
    add(&["--ro-bind", &etc.to_string_lossy(), "/etc"]);
    if etc.join("alternatives").is_dir() {
        // Links to programs of /usr, such as awk.
        add(&["--ro-bind", "/etc/alternatives", "/etc/alternatives"]);
    }
    walls
}

fn setup(spec: &JailSpec, watch_memory: bool) -> Setup {
    let folder = |path: &PathBuf| Folder {
        name: path.to_string_lossy().into_owned(),
        path: path.to_string_lossy().into_owned(),
        bytes_max: spec.disk_bytes,
    };
    let tmp = PathBuf::from("/tmp");
    let folders = std::iter::once(&spec.work_folder).chain(&spec.folders);
    Setup {
        walls: true,
        folders: folders.chain([&tmp]).map(folder).collect(),
        env: variables(spec, "/tmp"),
        processes: spec.processes,
        memory_bytes: spec.memory_bytes,
        watch_memory,
        file_bytes: spec.file_bytes,
        open_files: spec.open_files,
        model_socket: spec
            .model_socket
            .is_some()
            .then(|| format!("{RUN}/model.sock")),
    }
}

/// What every command of a jail sees.
pub(crate) fn variables(spec: &JailSpec, home: &str) -> Vec<(String, String)> {
    let own = [
        ("PATH", PATH),
        ("HOME", home),
        ("USER", "agent"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
    ];
    let own = own.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned()));
    own.chain(spec.env.clone()).collect()
}

/// What bubblewrap said, once it ended.
fn said(child: &mut Child) -> String {
    let _ = child.kill();
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(4096).read_to_end(&mut said);
    }
    String::from_utf8_lossy(&said).trim().to_owned()
}

fn missing(error: &std::io::Error) -> ToolsError {
    ToolsError::NotAvailable(match error.kind() {
        // A folder of PATH that may not be read looks like a program that may not be started.
        std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied => {
            "there is no bubblewrap: install the package bubblewrap (apt install bubblewrap)".into()
        }
        _ => format!("bubblewrap cannot start: {error}"),
    })
}

/// One sentence for what bubblewrap said.
fn forbidden(said: &str) -> ToolsError {
    let said = said.lines().last().unwrap_or("it said nothing").trim();
    let lower = said.to_lowercase();
    ToolsError::NotAvailable(if lower.contains("unknown option") {
        format!("bubblewrap is too old: install version 0.8 or newer ({said})")
    } else if lower.contains("namespace") || lower.contains("uid map") {
        format!(
            "this machine forbids user namespaces: allow them (sysctl user.max_user_namespaces above 0, \
             kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, \
             or the seccomp profile of the container) ({said})"
        )
    } else if lower.contains("mount proc") {
        format!(
            "a part of /proc is hidden here, so no jail can have its own: start this container with it \
             (docker run --security-opt systempaths=unconfined) ({said})"
        )
    } else {
        format!("no jail could be made: {said}")
    })
}

/// The folder of all jails of this executor: theirs, and the files of their `/etc`.
fn prepare_folder() -> std::io::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new()
        .prefix(&leftover::own(PREFIX))
        .permissions(fs::Permissions::from_mode(0o711))
        .tempdir()?;
    let etc = folder.path().join("etc");
    fs::create_dir(&etc)?;
    let files = [
        (
            "passwd",
            "root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:1000:1000:agent:/tmp:/bin/sh\n",
        ),
        ("group", "root:x:0:\nagent:x:1000:\n"),
        ("hosts", "127.0.0.1 localhost jail\n::1 localhost\n"),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files\n",
        ),
    ];
    for (name, text) in files {
        fs::write(etc.join(name), text)?;
    }
    if Path::new("/etc/alternatives").is_dir() {
        fs::create_dir(etc.join("alternatives"))?;
    }
    // Where libraries lie; without it those of /usr/local are not found.
    if Path::new("/etc/ld.so.cache").exists() {
        fs::copy("/etc/ld.so.cache", etc.join("ld.so.cache"))?;
    }
    for entry in fs::read_dir(&etc)? {
        let path = entry?.path();
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    fs::set_permissions(&etc, fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

/// The guest's program where the user of the jails can read it: a copy, when it lies in a folder of root alone.
fn reachable(
    mut guest: GuestProgram,
    folder: &Path,
    user: Option<User>,
) -> std::io::Result<GuestProgram> {
    guest.path = guest.path.canonicalize()?;
    let open = |path: &Path, bits: u32| {
        fs::metadata(path).is_ok_and(|m| m.permissions().mode() & bits == bits)
    };
    let all_may = open(&guest.path, 0o5) && guest.path.ancestors().skip(1).all(|p| open(p, 0o1));
    if user.is_some() && !all_may {
        let copy = folder.join("guest");
        fs::copy(&guest.path, &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        guest.path = copy;
    }
    Ok(guest)
}
