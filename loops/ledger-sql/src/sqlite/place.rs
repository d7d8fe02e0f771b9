//! Whether the ledger's files are still where they were opened. A file that is removed or replaced takes
//! writes as before, and nobody finds them again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::mark;
use super::paths::{folder_of, log_of};
use hone_ledger::LedgerError;

/// What tells a file from another one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    number: u64,
}

impl Identity {
    #[cfg(unix)]
    fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let meta = fs::metadata(path)?;
        Ok(Self {
            device: meta.dev(),
            number: meta.ino(),
        })
    }

    /// Whether it is there, where files have no numbers.
    #[cfg(not(unix))]
    fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path)?;
        Ok(Self {
            device: 0,
            number: 0,
        })
    }
}

/// The folder, the file and its log, as they were when the ledger was opened.
pub(super) struct Place(Vec<(PathBuf, Identity)>);

impl Place {
    /// Of an open ledger. The log is there as long as a connection is.
    pub(super) fn of(file: &Path) -> io::Result<Self> {
        let mut parts = Vec::with_capacity(3);
        for part in [folder_of(file), file] {
            parts.push((part.to_owned(), Identity::of(part)?));
        }
        let log = log_of(file);
        if let Ok(identity) = Identity::of(&log) {
            parts.push((log, identity));
        }
        Ok(Self(parts))
    }

    /// That every part is the one that was opened.
    ///
    /// # Errors
    /// `Unusable`, naming the part and a remedy.
    pub(super) fn check(&self) -> Result<(), LedgerError> {
        for (part, identity) in &self.0 {
            let what = match Identity::of(part) {
                Ok(found) if found == *identity => continue,
                Ok(_) => "was replaced",
                Err(error) if error.kind() == io::ErrorKind::NotFound => "was removed",
                // Rights that changed: what is open is still the file of that name.
                Err(_) => continue,
            };
            return Err(LedgerError::Unusable(format!(
                "{} {what} while the server runs, and what is recorded now would be found by nobody; put \
                 it back or restore a backup (`hone restore`), then restart the server",
                part.display()
            )));
        }
        Ok(())
    }
}

/// Refuses to begin a new ledger where an older one was: beside its log, its mark, or what it learned.
///
/// # Errors
/// `Unusable`, naming what is there and the remedies.
pub fn check_not_lost(file: &Path) -> Result<(), LedgerError> {
    let bytes = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
    if bytes(file) > 0 {
        return Ok(());
    }
    let log = log_of(file);
    let blobs = folder_of(file).join("blobs");
    let left = match (bytes(&log) > 0, holds_blobs(&blobs), mark::read(file)) {
        (true, _, _) => log,
        (false, true, _) => blobs,
        (false, false, Some(_)) => folder_of(file).join(mark::FILE),
        (false, false, None) => return Ok(()),
    };
    let state = if file.exists() {
        "is empty"
    } else {
        "is not there"
    };
    Err(LedgerError::Unusable(format!(
        "the ledger {} {state}, and {} is left of one; put the file back, restore a backup (`hone restore`), \
         or move {} away to begin anew",
        file.display(),
        left.display(),
        left.display()
    )))
}

/// Whether anything was ever stored there: the store itself makes nothing but a hidden folder.
fn holds_blobs(blobs: &Path) -> bool {
    let Ok(entries) = fs::read_dir(blobs) else {
        return false;
    };
    entries
        .flatten()
        .any(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;
    use crate::{SqliteConfig, SqliteStore};
    use hone_ledger::{Ledger, suite};

    type Harm = fn(&Path);

    /// What is done to a folder under an open ledger, and what is said of it.
    const HARMS: &[(Harm, &str)] = &[
        (|folder| fs::remove_dir_all(folder).unwrap(), "was removed"),
        (
            |folder| fs::rename(folder, folder.with_extension("away")).unwrap(),
            "was removed",
        ),
        (
            |folder| {
                fs::rename(folder, folder.with_extension("away")).unwrap();
                fs::create_dir(folder).unwrap();
            },
            "was replaced",
        ),
        (
            |folder| fs::remove_file(folder.join("ledger.db")).unwrap(),
            "was removed",
        ),
        (
            |folder| {
                let file = folder.join("ledger.db");
                fs::copy(&file, folder.join("copy")).unwrap();
                fs::rename(folder.join("copy"), file).unwrap();
            },
            "was replaced",
        ),
        (
            |folder| fs::remove_file(folder.join("ledger.db-wal")).unwrap(),
            "was removed",
        ),
    ];

    #[tokio::test]
    async fn nothing_is_acknowledged_once_the_files_are_gone() {
        for (n, (harm, says)) in HARMS.iter().enumerate() {
            let above = tempfile::tempdir().unwrap();
            let folder = above.path().join("data");
            let config = SqliteConfig::in_folder(&folder);
            let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
            let world = suite::World::new(ledger.clone());
            world.record(&world.turn()).await;
            ledger.in_place().unwrap();
            harm(&folder);
            let told = ledger.in_place().unwrap_err().to_string();
            assert!(
                told.contains(says) && told.contains("put it back"),
                "{n}: {told}"
            );
            let turn = world.turn();
            let refused = ledger.record_turns(std::slice::from_ref(&turn)).await;
            assert_eq!(refused.unwrap_err().to_string(), told, "{n}");
            let settled = ledger.settle_turns(&[]).await;
            assert!(settled.is_err(), "{n}: no other write is acknowledged");
            // What is open can still be read: serving goes on.
            assert_eq!(ledger.heads().await.unwrap().len(), 0, "{n}");
        }
    }

    #[tokio::test]
    async fn a_lost_ledger_is_not_begun_anew() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("data");
        let config = SqliteConfig::in_folder(&folder);
        let open = async || SqliteStore::open(&config).await;
        open().await.unwrap().close().await;
        let file = folder.join("ledger.db");
        let (log, blobs) = (folder.join("ledger.db-wal"), folder.join("blobs"));
        let mark = folder.join(mark::FILE);
        let marked = fs::read(&mark).unwrap();
        fs::remove_file(&mark).unwrap();
        // What the store makes by itself is not what was learned.
        fs::create_dir_all(blobs.join(".limbo")).unwrap();
        for is_empty in [true, false] {
            for (left, is_folder) in [
                (&log, false),
                (&mark, false),
                (&blobs.join("adapters"), true),
            ] {
                match is_folder {
                    true => fs::create_dir(left).unwrap(),
                    false => fs::write(left, &marked).unwrap(),
                }
                match is_empty {
                    true => fs::write(&file, b"").unwrap(),
                    false => fs::remove_file(&file).unwrap(),
                }
                let refused = open().await.err().unwrap().to_string();
                let state = if is_empty { "is empty" } else { "is not there" };
                for says in [state, "is left of one", "hone restore", "move"] {
                    assert!(refused.contains(says), "{refused}");
                }
                assert_eq!(file.exists(), is_empty, "nothing was made");
                match is_folder {
                    true => fs::remove_dir(left).unwrap(),
                    false => fs::remove_file(left).unwrap(),
                }
                // As after a crash between the two first steps of a start.
                open().await.unwrap().close().await;
                fs::remove_file(&mark).unwrap();
            }
        }
    }
}
