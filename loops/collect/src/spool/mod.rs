//! The spool: takes turns while the ledger does not answer, on this machine's disk, until they are in the ledger.
//!
//! Records wait in the order in which they came, and leave in that order, so that no next state overtakes its turn
//! and no turn the one it continues. A record that a crash makes leave twice changes nothing the second time: the
//! ledger knows its turns by their ids.

mod log;
mod record;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hone_domain::{Turn, TurnId};
use tokio::sync::Notify;

pub(crate) use log::{AppendError, Room};
use log::{Frame, Log, Place};
pub(crate) use record::Record;

/// The spool of a data folder.
pub struct Spool {
    log: Mutex<Log>,
    bytes_max: u64,
    records: AtomicU64,
    bytes: AtomicU64,
    is_away: AtomicBool,
    /// Turns that this process put into it.
    turns: Mutex<HashMap<TurnId, Place>>,
    /// Turns in it whose clients were told that they are not collected.
    late: Mutex<HashSet<TurnId>>,
    shipped: Notify,
}

/// How full the spool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolStatus {
    /// Records that wait: turns, next states and ends of turns.
    pub records: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Most bytes; 0 where it takes nothing.
    pub bytes_max: u64,
    /// The ledger did not answer when it was last called.
    pub is_away: bool,
}

/// A record that waits.
pub(crate) struct Waiting {
    frame: Frame,
    /// None where it cannot be read.
    pub(crate) record: Option<Record<'static>>,
}

/// The first records that wait.
#[derive(Default)]
pub(crate) struct First {
    pub(crate) waiting: Vec<Waiting>,
    /// Records that did not check any more.
    pub(crate) lost: u64,
}

impl Spool {
    /// Opens the spool in a folder, which is made with the first record. It takes at most `bytes_max` bytes, and nothing
    /// with 0; what waits in it is shipped in either case.
    ///
    /// # Errors
    /// The file system's.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        let (log, found) = Log::open(folder, bytes_max)?;
        if found.cut_bytes > 0 {
            tracing::warn!(
                bytes = found.cut_bytes,
                records = found.frames,
                "the spool had an unfinished or damaged end, which was cut off"
            );
        }
        let spool = Self {
            bytes_max,
            records: AtomicU64::default(),
            bytes: AtomicU64::default(),
            is_away: AtomicBool::default(),
            turns: Mutex::default(),
            late: Mutex::default(),
            shipped: Notify::new(),
            log: Mutex::new(log),
        };
        spool.measure(&spool.log());
        Ok(spool)
    }

    /// One that takes nothing.
    #[cfg(any(test, feature = "test-switches"))]
    pub fn off() -> Arc<Self> {
        let nowhere = Path::new("/nonexistent");
        Arc::new(Self::open(nowhere, 0).expect("there is nothing to open"))
    }

    /// How full it is.
    pub fn status(&self) -> SpoolStatus {
        SpoolStatus {
            records: self.records.load(Ordering::Acquire),
            bytes: self.bytes.load(Ordering::Acquire),
            bytes_max: self.bytes_max,
            is_away: self.is_away.load(Ordering::Acquire),
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.status().records == 0
    }

    /// Waits until nothing is left to be shipped, at most so long. False where something is.
    pub async fn until_empty(&self, at_most: Duration) -> bool {
        let emptied = async {
            loop {
                // Made before the look, so that what is shipped in between wakes it.
                let shipped = self.shipped.notified();
                if self.is_empty() {
                    return;
                }
                shipped.await;
            }
        };
        tokio::time::timeout(at_most, emptied).await.is_ok()
    }

    /// Notes turns whose clients were told that they are not collected: nothing is learned from them.
    pub fn mark_late(&self, turns: impl IntoIterator<Item = TurnId>) {
        self.late().extend(turns);
    }

    /// Whether it takes anything.
    pub(crate) fn takes(&self) -> bool {
        self.bytes_max > 0
    }

    pub(crate) fn is_late(&self, turn: TurnId) -> bool {
        self.late().contains(&turn)
    }

    /// Notes whether the ledger answers.
    pub(crate) fn note_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Release);
    }

    /// Appends records, all or none; they are durable on return.
    pub(crate) async fn append(
        self: &Arc<Self>,
        records: &[Record<'_>],
        room: Room,
    ) -> Result<(), AppendError> {
        if records.is_empty() {
            return Ok(());
        }
        let bytes: Result<Vec<_>, _> = records.iter().map(Record::to_bytes).collect();
        let bytes = bytes.map_err(io::Error::from)?;
        let places = self.apart(move |log| log.append(&bytes, room)).await??;
        let turns = records
            .iter()
            .zip(places)
            .filter_map(|(record, place)| match record {
                Record::Turn { turn, .. } => Some((turn.id, place)),
                Record::Next(_) | Record::Settle(..) => None,
            });
        self.turns().extend(turns);
        Ok(())
    }

    /// A turn that this process put into it and that is not in the ledger yet.
    pub async fn turn(self: &Arc<Self>, id: TurnId) -> Option<Turn> {
        let place = self.turns().get(&id).copied()?;
        let payload = self.apart(move |log| log.payload_at(place)).await;
        match read(&payload.ok()?.ok()??)? {
            Record::Turn { turn, .. } => Some((*turn).into_owned()),
            Record::Next(_) | Record::Settle(..) => None,
        }
    }

    /// The first records that wait: at most `most`, and about `bytes_max` bytes, at least one.
    pub(crate) async fn first(self: &Arc<Self>, most: usize, bytes_max: u64) -> io::Result<First> {
        let (frames, lost) = self.apart(move |log| log.read(most, bytes_max)).await??;
        let waiting = frames.into_iter().map(|frame| Waiting {
            record: read(&frame.payload),
            frame,
        });
        Ok(First {
            waiting: waiting.collect(),
            lost,
        })
    }

    /// The first records are in the ledger.
    pub(crate) async fn release(self: &Arc<Self>, first: Vec<Waiting>) -> io::Result<()> {
        for waiting in &first {
            if let Some(Record::Turn { turn, .. }) = &waiting.record {
                self.turns().remove(&turn.id);
            }
        }
        let frames: Vec<Frame> = first.into_iter().map(|waiting| waiting.frame).collect();
        self.apart(move |log| log.release(&frames)).await??;
        if self.is_empty() {
            // What is noted of turns that come later stays in the file of late turns.
            self.late().clear();
        }
        self.shipped.notify_waiters();
        Ok(())
    }

    /// Works on the files off the async threads.
    async fn apart<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Log) -> T + Send + 'static,
    ) -> io::Result<T> {
        let spool = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut log = spool.log();
            let done = work(&mut log);
            spool.measure(&log);
            done
        });
        done.await.map_err(io::Error::other)
    }

    fn measure(&self, log: &Log) {
        self.records.store(log.frames(), Ordering::Release);
        self.bytes.store(log.bytes(), Ordering::Release);
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // Its files are what counts: a change that a panic cut short is found there as it was.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turns(&self) -> MutexGuard<'_, HashMap<TurnId, Place>> {
        // A map stays a map whatever panicked while it was held.
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn late(&self) -> MutexGuard<'_, HashSet<TurnId>> {
        // A set stays a set whatever panicked while it was held.
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(bytes: &[u8]) -> Option<Record<'static>> {
    match Record::from_bytes(bytes) {
        Ok(record) => Some(record),
        Err(error) => {
            tracing::error!(%error, "a record of the spool cannot be read and is left out");
            None
        }
    }
}
