//! Where the files of a ledger lie.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where a restore gathers files; a data folder that has it is not opened.
pub(crate) const RESTORING: &str = ".restoring";

/// Where a move gathers a ledger; a data folder that has it is not opened.
pub(crate) const MOVING: &str = ".moving";

/// The folder of a file, `.` for a bare name.
pub(crate) fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The write-ahead log of a database.
pub(super) fn log_of(file: &Path) -> PathBuf {
    let mut name: OsString = file.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}
