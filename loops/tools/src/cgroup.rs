//! Cgroups, which count the memory and the processes of a whole jail where this process may make them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::leftover::{self, ownerless};

const PREFIX: &str = "hone-jail-";

/// Where groups can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// Version 2: one tree.
    Unified(PathBuf),
    /// Version 1: a tree each.
    Split { memory: PathBuf, pids: PathBuf },
}

/// A line of /proc/self/mountinfo: mount point, type, options of the file system.
fn mounts(mountinfo: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let kind = right.next()?;
        Some((left.split(' ').nth(4)?, kind, right.nth(1)?))
    })
}

/// This process's group in the tree of a controller; "" names the tree of version 2.
fn own<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let names = parts.next()?;
        let path = parts.next()?;
        let named = names.split(',').any(|n| n == controller);
        named.then_some(path.trim_start_matches('/'))
    })
}

/// The folders in which groups may be made, the best first.
fn candidates(mountinfo: &str, groups: &str) -> Vec<Parent> {
    let mut found = Vec::new();
    for (at, kind, _) in mounts(mountinfo) {
        if let ("cgroup2", Some(own)) = (kind, own(groups, "")) {
            let here = Path::new(at).join(own);
            // A group that holds processes hands no controllers on, so its neighbours are the second choice.
            let beside = here.parent().filter(|p| p.starts_with(at));
            found.extend(beside.map(|p| Parent::Unified(p.to_path_buf())));
            found.insert(0, Parent::Unified(here));
        }
    }
    let split = |controller: &str| {
        let mut trees = mounts(mountinfo)
            .filter(|(_, k, o)| *k == "cgroup" && o.split(',').any(|o| o == controller));
        let at = trees.next()?.0;
        let own = Path::new(at).join(own(groups, controller)?);
        Some(if own.is_dir() { own } else { at.into() })
    };
    if let (Some(memory), Some(pids)) = (split("memory"), split("pids")) {
        found.push(Parent::Split { memory, pids });
    }
    found
}

impl Parent {
    /// Where this process may make groups that `joins` can join, if anywhere.
    pub(crate) fn find(joins: impl Fn(&Cgroup) -> io::Result<()>) -> Option<Self> {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mut all = candidates(&mountinfo, &groups).into_iter();
        all.find(|parent| {
            parent.sweep();
            Cgroup::make(parent, 64 << 20, 16).is_ok_and(|group| joins(&group).is_ok())
        })
    }

    fn folders(&self) -> Vec<&Path> {
        match self {
            Self::Unified(one) => vec![one],
            Self::Split { memory, pids } => vec![memory, pids],
        }
    }

    /// Removes what processes that were killed left behind.
    fn sweep(&self) {
        for folder in self.folders() {
            ownerless(folder, PREFIX).iter().for_each(|f| end(f));
        }
    }
}

/// The group of one jail. Dropping it kills what is in it and removes it.
#[derive(Debug)]
pub(crate) struct Cgroup {
    folders: Vec<PathBuf>,
    memory_events: PathBuf,
    pids_events: PathBuf,
}

impl Cgroup {
    pub(crate) fn make(parent: &Parent, memory_bytes: u64, processes: u64) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{number}", leftover::own(PREFIX));
        let folders: Vec<_> = parent.folders().iter().map(|f| f.join(&name)).collect();
        let (memory, pids) = (&folders[0], &folders[folders.len() - 1]);
        let unified = matches!(parent, Parent::Unified(_));
        let mut made = Self {
            memory_events: memory.join(if unified {
                "memory.events"
            } else {
                "memory.oom_control"
            }),
            pids_events: pids.join("pids.events"),
            folders: Vec::new(),
        };
        for folder in &folders {
            fs::create_dir(folder)?;
            made.folders.push(folder.clone());
        }
        let limit = if unified {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        // Opened without creating: a folder that is no group of the kernel has none of these files.
        write(&memory.join(limit), &memory_bytes.to_string())?;
        write(&pids.join("pids.max"), &processes.to_string())?;
        let swap = if unified {
            ("memory.swap.max", "0".to_owned())
        } else {
            ("memory.memsw.limit_in_bytes", memory_bytes.to_string())
        };
        // A machine that does not count swap has no such file.
        let _ = write(&memory.join(swap.0), &swap.1);
        Ok(made)
    }

    /// The files into which a process writes "0" to join.
    pub(crate) fn doors(&self) -> io::Result<Vec<File>> {
        let open = |folder: &PathBuf| {
            File::options()
                .write(true)
                .open(folder.join("cgroup.procs"))
        };
        self.folders.iter().map(open).collect()
    }

    /// How often the kernel killed for memory, and how often it refused a process.
    pub(crate) fn events(&self) -> (u64, u64) {
        let read = |path: &Path, name: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let lines = text.lines().filter_map(|l| l.split_once(' '));
            let value = lines
                .filter(|(n, _)| *n == name)
                .find_map(|(_, v)| v.parse().ok());
            value.unwrap_or(0)
        };
        (
            read(&self.memory_events, "oom_kill"),
            read(&self.pids_events, "max"),
        )
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.folders.iter().for_each(|f| end(f));
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    io::Write::write_all(
        &mut File::options().write(true).open(path)?,
        text.as_bytes(),
    )
}

/// Kills what is in a group and removes it.
fn end(folder: &Path) {
    let begin = Instant::now();
    loop {
        match fs::remove_dir(folder) {
            Ok(()) => return,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            Err(e) if begin.elapsed() > Duration::from_secs(5) => {
                tracing::warn!("{}: the cgroup cannot be removed: {e}", folder.display());
                return;
            }
            Err(_) => {}
        }
        let pids = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        let pids = pids.lines().filter_map(|l| l.parse().ok());
        for pid in pids.filter_map(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_of_both_versions_are_found() {
        let at = tempfile::tempdir().unwrap();
        let at = at.path().to_str().unwrap();
        fs::create_dir_all(format!("{at}/memory/a/b")).unwrap();
        let v1 = format!(
            "30 24 0:26 / {at}/pids rw - cgroup cgroup rw,pids\n\
             31 24 0:27 / {at}/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
        );
        // The own group of pids is not in the tree that is seen here, so the root of the tree is taken.
        let split = Parent::Split {
            memory: format!("{at}/memory/a/b").into(),
            pids: format!("{at}/pids").into(),
        };
        let groups = "8:pids:/far\n4:cpu,memory:/a/b\n0::/x/y\n";
        assert_eq!(candidates(&v1, groups), [split]);
        let v2 = "30 24 0:26 / /cg rw - cgroup2 cgroup rw,nsdelegate\n";
        let unified = ["/cg/x/y", "/cg/x"].map(|p| Parent::Unified(p.into()));
        assert_eq!(candidates(v2, groups), unified);
        assert_eq!(candidates("", groups), []);
    }

    #[test]
    fn a_folder_that_is_no_group_is_refused_and_goes() {
        let at = tempfile::tempdir().unwrap();
        let parent = Parent::Unified(at.path().into());
        assert!(Cgroup::make(&parent, 1 << 20, 5).is_err());
        assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0);
    }
}
