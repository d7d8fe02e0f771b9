//! How far the ledger was acknowledged, in a small file beside it. A log that was damaged or removed after a
//! crash takes the last transactions with it, and SQLite opens what is left without a word; so does an older
//! copy that was put in the ledger's place. The mark is written after the disk has the transaction, so it is
//! never ahead of a whole ledger. It survives the end of the process; after a power cut it may be older.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use super::paths::folder_of;
use hone_ledger::LedgerError;

/// The file in the data folder.
pub(crate) const FILE: &str = "ledger.mark";
/// Bytes of a mark: the number, and its complement, by which a damaged one is known.
const BYTES: usize = 16;

/// The file of an open ledger.
pub(super) struct Mark(File);

impl Mark {
    /// Opens the mark of a ledger and makes it where there is none.
    pub(super) fn open(ledger: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        Ok(Self(options.open(path(ledger))?))
    }

    /// Notes that so many transactions are on disk. Blocks for one small write.
    pub(super) fn note(&self, number: i64) {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..].copy_from_slice(&(!number).to_le_bytes());
        let mut file = &self.0;
        let noted = file
            .seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&bytes));
        if let Err(error) = noted {
            // What is lost later may then go unnoticed; what is on disk is safe.
            tracing::debug!(%error, "how far the ledger was acknowledged could not be noted");
        }
    }
}

fn path(ledger: &Path) -> PathBuf {
    folder_of(ledger).join(FILE)
}

/// The number in the mark of a ledger; none where there is none, or where it is damaged.
pub(super) fn read(ledger: &Path) -> Option<i64> {
    let path = path(ledger);
    let mut bytes = Vec::new();
    let opened = File::open(&path);
    let read = opened.and_then(|file| file.take(BYTES as u64 + 1).read_to_end(&mut bytes));
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Ok(0) => return None,
        _ => {}
    }
    let number = |part: &[u8]| Some(i64::from_le_bytes(part.try_into().ok()?));
    let both =
        number(bytes.get(..8).unwrap_or_default()).zip(number(bytes.get(8..).unwrap_or_default()));
    match both {
        Some((number, complement)) if number == !complement => Some(number),
        _ => {
            tracing::warn!(
                path = %path.display(),
                "this file is damaged, so it is not known whether the ledger has all that was acknowledged"
            );
            None
        }
    }
}

/// Refuses a ledger that lacks transactions that were acknowledged, before anything in it changes. What cannot
/// be read at all is for whoever opens it next to say.
///
/// # Errors
/// `Unusable`, naming how many there are, and the remedies.
pub(super) async fn check_reached(ledger: &Path) -> Result<(), LedgerError> {
    let Some(marked) = read(ledger) else {
        return Ok(());
    };
    let Some(found) = reached(ledger).await else {
        return Ok(());
    };
    if found >= marked {
        return Ok(());
    }
    Err(LedgerError::Unusable(format!(
        "the ledger {} lacks the last {} of {marked} changes that were acknowledged: its log (-wal) was damaged or \
         removed, or an older copy was put in its place; put the file and its log back, restore a backup (`hone \
         restore`), or remove {} to go on without them (what was erased in them is there again)",
        ledger.display(),
        marked - found,
        path(ledger).display()
    )))
}

/// How many transactions a ledger holds; none where it cannot be read. A connection that only reads leaves the
/// log as it is.
async fn reached(ledger: &Path) -> Option<i64> {
    let options = SqliteConnectOptions::new()
        .filename(ledger)
        .read_only(true)
        .disable_statement_logging();
    let mut connection = options.connect().await.ok()?;
    let tables: Option<i64> =
        sqlx::query_scalar("select count(*) from sqlite_schema where name = 'commits'")
            .fetch_one(&mut connection)
            .await
            .ok();
    let number = match tables {
        // Older than the mark.
        Some(0) => Some(0),
        Some(_) => sqlx::query_scalar("select number from commits")
            .fetch_optional(&mut connection)
            .await
            .ok()
            .map(Option::unwrap_or_default),
        None => None,
    };
    if let Err(error) = connection.close().await {
        tracing::debug!(%error, "a connection that looked at the ledger did not close well");
    }
    number
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::{SqliteConfig, SqliteLedger, SqliteStore};
    use hone_ledger::{Ledger as _, suite};

    /// What a killed server leaves: the ledger's files as they are while it runs.
    async fn killed(from: &Path, to: &Path) -> Arc<SqliteLedger> {
        let ledger = SqliteStore::open(&SqliteConfig::in_folder(from)).await;
        let ledger = Arc::new(ledger.unwrap());
        let world = suite::World::new(ledger.clone());
        for _ in 0..3 {
            world.answered(&world.turn()).await;
        }
        fs::create_dir_all(to).unwrap();
        for part in ["ledger.db", "ledger.db-wal", FILE] {
            fs::copy(from.join(part), to.join(part)).unwrap();
        }
        ledger
    }

    type Harm = fn(&Path);

    /// What is done to what was left, and whether it takes something away.
    const HARMS: &[(&str, Harm, bool)] = &[
        ("nothing", |_| {}, false),
        (
            "the log goes",
            |folder| fs::remove_file(folder.join("ledger.db-wal")).unwrap(),
            true,
        ),
        (
            "the log is cut",
            |folder| {
                let log = OpenOptions::new()
                    .write(true)
                    .open(folder.join("ledger.db-wal"));
                let log = log.unwrap();
                log.set_len(log.metadata().unwrap().len() - 100).unwrap();
            },
            true,
        ),
        (
            "a bit of the log flips",
            |folder| {
                let mut bytes = fs::read(folder.join("ledger.db-wal")).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(folder.join("ledger.db-wal"), bytes).unwrap();
            },
            true,
        ),
        (
            "the mark goes",
            |folder| fs::remove_file(folder.join(FILE)).unwrap(),
            false,
        ),
        (
            "the mark is damaged",
            |folder| fs::write(folder.join(FILE), [7; BYTES]).unwrap(),
            false,
        ),
    ];

    #[tokio::test]
    async fn a_ledger_that_lacks_what_was_acknowledged_is_refused_and_left_as_it_is() {
        let above = tempfile::tempdir().unwrap();
        for (n, (what, harm, lacks)) in HARMS.iter().enumerate() {
            let (from, to) = (
                above.path().join(format!("a{n}")),
                above.path().join(format!("b{n}")),
            );
            let running = killed(&from, &to).await;
            harm(&to);
            // Where there is no log, an empty one says the same.
            let log = || fs::read(to.join("ledger.db-wal")).unwrap_or_default();
            let before = log();
            let opened = SqliteStore::open(&SqliteConfig::in_folder(&to)).await;
            let Ok(ledger) = opened else {
                let refused = opened.err().unwrap().to_string();
                assert!(lacks, "{what}: {refused}");
                for says in ["that were acknowledged", "hone restore", FILE] {
                    assert!(refused.contains(says), "{what}: {refused}");
                }
                // Whoever can repair the log still may.
                assert_eq!(log(), before, "{what}");
                // Whoever says so goes on without.
                fs::remove_file(to.join(FILE)).unwrap();
                let ledger = SqliteStore::open(&SqliteConfig::in_folder(&to))
                    .await
                    .unwrap();
                let broken = ledger.check_laws().await.unwrap();
                assert_eq!(broken, Vec::<String>::new(), "{what}");
                continue;
            };
            assert!(!lacks, "{what}");
            assert_eq!(ledger.counts().await.unwrap().turns, 3, "{what}");
            ledger.close().await;
            // From then on it counts again.
            assert!(read(&to.join("ledger.db")).is_some(), "{what}");
            running.close().await;
        }
    }

    #[tokio::test]
    async fn what_changes_nothing_is_not_counted_and_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = SqliteStore::open(&SqliteConfig::in_folder(folder.path())).await;
        let ledger = Arc::new(ledger.unwrap());
        let world = suite::World::new(ledger.clone());
        let file = folder.path().join("ledger.db");
        let log = || {
            fs::metadata(folder.path().join("ledger.db-wal"))
                .unwrap()
                .len()
        };
        world.record(&world.turn()).await;
        let before = (read(&file), log());
        for _ in 0..5 {
            let claimed = ledger.claim_transitions(4, 1_000, 0).await.unwrap();
            assert_eq!(claimed.len(), 0);
        }
        assert_eq!((read(&file), log()), before);
        world.record(&world.turn()).await;
        let (marked, bytes) = (read(&file), log());
        assert_eq!(marked, before.0.map(|marked| marked + 1));
        assert!(bytes > before.1);
    }
}
