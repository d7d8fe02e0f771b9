//! Turns whose clients were told that they are not collected, although they may still be: the word to
//! the client is kept through the end of the process. Whoever ends an answer so notes the turn here
//! first; whoever opens the ledger next settles what is noted before anything learns from it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hone_domain::{Reason, TurnId};
use uuid::Uuid;

use crate::{Ledger, LedgerError};

/// Turns that are kept; a further one takes the place of the oldest, which was settled long ago.
const KEPT_MAX: u64 = 65_536;
/// Bytes of a turn's id.
const ID_BYTES: u64 = 16;
/// The file in the data folder.
const FILE: &str = "late-turns";

/// The notes, in a file of their own. A note survives the end of the process as soon as it is made;
/// nothing waits for the disk, so one of the last seconds may be lost with the machine's power.
pub struct LateTurns(Mutex<Notes>);

struct Notes {
    file: File,
    next: u64,
}

impl LateTurns {
    /// Opens the notes of a data folder.
    ///
    /// # Errors
    /// What the file system says.
    pub fn open(folder: &Path) -> Result<Self, std::io::Error> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(folder.join(FILE))?;
        let next = file.metadata()?.len() / ID_BYTES % KEPT_MAX;
        Ok(Self(Mutex::new(Notes { file, next })))
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        // A note is one write, so there is no half of one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a turn. Blocks for one small write.
    ///
    /// # Errors
    /// What the file system says; the turn is then not noted.
    pub fn note(&self, turn: TurnId) -> Result<(), std::io::Error> {
        let mut notes = self.notes();
        let place = SeekFrom::Start(notes.next * ID_BYTES);
        notes.file.seek(place)?;
        notes.file.write_all(turn.0.as_bytes())?;
        notes.next = (notes.next + 1) % KEPT_MAX;
        Ok(())
    }

    /// Every noted turn.
    ///
    /// # Errors
    /// What the file system says.
    pub fn all(&self) -> Result<Vec<TurnId>, std::io::Error> {
        let mut notes = self.notes();
        let mut bytes = Vec::new();
        notes.file.seek(SeekFrom::Start(0))?;
        notes.file.read_to_end(&mut bytes)?;
        let ids = bytes.chunks_exact(ID_BYTES as usize);
        Ok(ids
            .filter_map(|id| Some(TurnId(Uuid::from_slice(id).ok()?)))
            .collect())
    }

    /// Settles every noted turn that still waits, and forgets the notes. To be called before anything
    /// else works on the ledger; how many were noted.
    ///
    /// # Errors
    /// The ledger's, or the file system's as a failure; the notes are then kept.
    pub async fn settle(&self, ledger: &dyn Ledger) -> Result<usize, LedgerError> {
        let noted = self.settle_and_keep(ledger).await?;
        let mut notes = self.notes();
        notes.file.set_len(0).map_err(|error| failed(&error))?;
        notes.next = 0;
        Ok(noted.len())
    }

    /// As [`Self::settle`], and keeps the notes: noted turns may still lie in a spool.
    ///
    /// # Errors
    /// As there.
    pub async fn settle_and_keep(&self, ledger: &dyn Ledger) -> Result<Vec<TurnId>, LedgerError> {
        let noted = self.all().map_err(|error| failed(&error))?;
        for turns in noted.chunks(256) {
            let turns: Vec<(TurnId, Reason)> = turns
                .iter()
                .map(|turn| (*turn, Reason::LateReceipt))
                .collect();
            ledger.settle_turns(&turns).await?;
        }
        Ok(noted)
    }
}

fn failed(error: &std::io::Error) -> LedgerError {
    LedgerError::Failed(format!("{FILE}: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn turn(n: u64) -> TurnId {
        TurnId(Uuid::from_u128(u128::from(n) + 1))
    }

    #[test]
    fn notes_survive_and_the_oldest_give_way() {
        let folder = tempfile::tempdir().unwrap();
        let notes = LateTurns::open(folder.path()).unwrap();
        notes.note(turn(0)).unwrap();
        notes.note(turn(1)).unwrap();
        std::mem::forget(notes);
        let again = LateTurns::open(folder.path()).unwrap();
        again.note(turn(2)).unwrap();
        assert_eq!(again.all().unwrap(), [turn(0), turn(1), turn(2)]);
        for n in 3..KEPT_MAX + 2 {
            again.note(turn(n)).unwrap();
        }
        let all = again.all().unwrap();
        assert_eq!(all.len() as u64, KEPT_MAX);
        assert_eq!(all[..3], [turn(KEPT_MAX), turn(KEPT_MAX + 1), turn(2)]);
    }
}
