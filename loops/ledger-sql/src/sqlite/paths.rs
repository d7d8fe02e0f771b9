//! Where the files of a ledger lie.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

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

/// Where a compaction writes its copy of a database.
pub(super) fn copy_of(file: &Path) -> PathBuf {
    let mut name: OsString = file.as_os_str().to_owned();
    name.push("-compact");
    PathBuf::from(name)
}

/// Removes the copy that a compaction left which did not come to its end: it holds what may be erased later.
pub(super) fn clear_copy(file: &Path) -> io::Result<()> {
    for end in ["", "-journal", "-wal", "-shm"] {
        let mut name = copy_of(file).into_os_string();
        name.push(end);
        match fs::remove_file(PathBuf::from(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
