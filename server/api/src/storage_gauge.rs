//! Measures what the ledger and the adapters take of the disk, once at a time.

use std::io;
use std::sync::Arc;

use hone_domain::BlobsSize;
use hone_ledger::{LedgerError, LedgerSize, Storage};
use tokio::sync::Semaphore;

/// Measures the blobs. Blocks.
pub type MeasureBlobs = dyn Fn() -> io::Result<Vec<BlobsSize>> + Send + Sync;

/// What is measured, and the one place for who measures.
pub struct StorageGauge {
    ledger: Arc<dyn Storage>,
    blobs: Arc<MeasureBlobs>,
    place: Semaphore,
}

/// Why nothing was measured.
pub enum Unmeasured {
    /// It is being measured already.
    Busy,
    /// The ledger's.
    Ledger(LedgerError),
    /// The blobs'.
    Blobs(io::Error),
}

impl StorageGauge {
    /// Of a ledger and of what measures the blobs.
    pub fn new(ledger: Arc<dyn Storage>, blobs: Arc<MeasureBlobs>) -> Self {
        Self {
            ledger,
            blobs,
            place: Semaphore::new(1),
        }
    }

    /// Measures both.
    ///
    /// # Errors
    /// See [`Unmeasured`].
    pub async fn measure(&self) -> Result<(LedgerSize, Vec<BlobsSize>), Unmeasured> {
        let _place = self.place.try_acquire().map_err(|_| Unmeasured::Busy)?;
        let measure = self.blobs.clone();
        let blobs = tokio::task::spawn_blocking(move || measure());
        let ledger = self.ledger.size().await.map_err(Unmeasured::Ledger)?;
        let blobs = blobs
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        Ok((ledger, blobs.map_err(Unmeasured::Blobs)?))
    }
}
