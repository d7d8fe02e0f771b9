//! What a jail is made from.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ToolsError;

const MIB: u64 = 1 << 20;

/// What lies in the work folder when a jail opens.
#[derive(Clone, Debug, Default)]
pub enum Files {
    /// Nothing.
    #[default]
    Nothing,
    /// The entries of a tar.
    Tar(Arc<[u8]>),
    /// A copy of a folder of this machine.
    Folder(PathBuf),
}

/// A folder of this machine that a jail may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Where it lies on this machine.
    pub host: PathBuf,
    /// Where it lies in the jail.
    pub jail: PathBuf,
}

/// What a jail is made from, and what it may use.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JailSpec {
    /// What lies in the work folder at first.
    #[serde(skip)]
    pub files: Files,
    /// The folder in which commands run and that [`crate::Jail::snapshot`] keeps.
    pub work_folder: PathBuf,
    /// More folders that commands may write. They are empty at first and in no snapshot.
    pub folders: Vec<PathBuf>,
    /// What of this machine a jail sees beside `/usr`; read-only.
    pub read_only: Vec<Mount>,
    /// Memory of all processes together where there are cgroups, else of each process. Files lie in memory too and
    /// have their own limit.
    pub memory_bytes: u64,
    /// Processes and threads at a time.
    pub processes: u64,
    /// Bytes of all files in the work folder; the same again in `/tmp` and in each further folder.
    pub disk_bytes: u64,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Open files of one process.
    pub open_files: u64,
    /// How long the jail may exist. Then everything in it ends.
    pub wall_ms: u64,
    /// Variables that every command sees. Nothing of this process's environment gets in.
    pub env: BTreeMap<String, String>,
    /// A Unix socket of this machine that is reached in the jail as 127.0.0.1:8088. There is no other network.
    pub model_socket: Option<PathBuf>,
}

impl Default for JailSpec {
    fn default() -> Self {
        Self {
            files: Files::Nothing,
            work_folder: "/work".into(),
            folders: Vec::new(),
            read_only: Vec::new(),
            memory_bytes: 2048 * MIB,
            processes: 256,
            disk_bytes: 1024 * MIB,
            file_bytes: 512 * MIB,
            open_files: 1024,
            wall_ms: 3_600_000,
            env: BTreeMap::new(),
            model_socket: None,
        }
    }
}

/// Folders that a jail makes itself; nothing else may lie there.
const TAKEN: [&str; 11] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/proc", "/sys", "/dev", "/run",
];

impl JailSpec {
    /// Refuses what no jail can be made from.
    pub fn validate(&self) -> Result<(), ToolsError> {
        let limits = [
            ("memory_bytes", self.memory_bytes, MIB),
            ("processes", self.processes, 1),
            ("disk_bytes", self.disk_bytes, 4096),
            ("file_bytes", self.file_bytes, 1),
            ("open_files", self.open_files, 16),
            ("wall_ms", self.wall_ms, 1),
        ];
        for (name, value, least) in limits {
            if value < least {
                return Err(ToolsError::Spec(format!(
                    "{name} is {value} and must be at least {least}"
                )));
            }
        }
        let inside = std::iter::once(&self.work_folder).chain(&self.folders);
        for path in inside.chain(self.read_only.iter().map(|m| &m.jail)) {
            if !free_folder(path) {
                return Err(ToolsError::Spec(format!(
                    "{} cannot be a folder of a jail: give an absolute path without '..' that is not a folder of the system",
                    path.display()
                )));
            }
        }
        for name in self.env.keys() {
            check_variable(name)?;
        }
        Ok(())
    }
}

fn free_folder(path: &Path) -> bool {
    let plain = path
        .components()
        .all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    let own = path == "/" || path == "/tmp" || TAKEN.iter().any(|t| path.starts_with(t));
    path.is_absolute() && plain && !own
}

/// Refuses names of variables that no process can have.
pub(crate) fn check_variable(name: &str) -> Result<(), ToolsError> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(ToolsError::Spec(format!(
            "{name:?} cannot be the name of an environment variable"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_jail_can_be_made_from_is_refused() {
        let folder = |path: &str| JailSpec {
            work_folder: path.into(),
            ..JailSpec::default()
        };
        for bad in [
            "",
            "work",
            "/",
            "/tmp",
            "/etc",
            "/usr/src",
            "/a/../etc",
            "/proc/1",
        ] {
            assert!(folder(bad).validate().is_err(), "{bad:?}");
        }
        for good in ["/work", "/home/agent", "/testbed", "/tmp/x", "/usrx"] {
            assert_eq!(folder(good).validate(), Ok(()), "{good:?}");
        }
        let none = JailSpec {
            processes: 0,
            ..JailSpec::default()
        };
        let said = none.validate().unwrap_err().to_string();
        assert_eq!(said, "processes is 0 and must be at least 1");
        let variable = JailSpec {
            env: [("A=B".to_owned(), String::new())].into(),
            ..JailSpec::default()
        };
        assert!(variable.validate().is_err());
    }

    #[test]
    fn a_section_of_a_configuration_is_read() {
        let read: JailSpec =
            serde_json::from_str(r#"{"processes": 9, "env": {"A": "b"}}"#).unwrap();
        assert_eq!((read.processes, &*read.env["A"]), (9, "b"));
        assert_eq!(read.disk_bytes, JailSpec::default().disk_bytes);
        assert!(serde_json::from_str::<JailSpec>(r#"{"proceses": 9}"#).is_err());
    }
}
