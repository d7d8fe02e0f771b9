//! Pruning: files of versions that nobody needs any more, and of candidates that never became one.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hone_domain::{BlobKey, Blobs};
use hone_ledger::{LedgerError, Publish, Versions};
use hone_runtime::Clock;

use crate::config::Config;
use hone_domain::{ADAPTERS, LEARNERS, checkpoint_key};

/// Most versions pruned, and orphans removed, at a time.
const AT_A_TIME: usize = 256;

/// Removes all that nobody needs, where nothing trains meanwhile; how many folders went.
///
/// # Errors
/// What the ledger or the disk said.
pub async fn sweep_blobs(
    versions: Arc<dyn Versions>,
    blobs: Arc<dyn Blobs>,
    clock: Arc<dyn Clock>,
    config: Config,
) -> Result<usize, String> {
    let pruner = Pruner {
        versions,
        blobs,
        clock,
        config: Arc::new(config),
        shipping: Arc::default(),
    };
    let mut swept = 0;
    loop {
        match pruner.prune().await? {
            0 => return Ok(swept),
            more => swept += more,
        }
    }
}

/// Removes what nobody needs.
#[derive(Clone)]
pub(crate) struct Pruner {
    pub(crate) versions: Arc<dyn Versions>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Arc<Config>,
    /// The candidate that was written last, unless it was given up. No version may name its folders
    /// yet, and they may be old ones of an equal candidate. Held while folders are chosen and removed.
    pub(crate) shipping: Arc<Mutex<Option<BlobKey>>>,
}

impl Pruner {
    /// One round; how many folders went. The ledger says first that files are gone, so that a crash
    /// in between leaves a folder that nobody names, which the next round removes.
    pub(crate) async fn prune(&self) -> Result<usize, String> {
        let mut gone = match self.config.prune.keep_versions {
            0 => Vec::new(),
            keep => self.older_versions(keep).await?,
        };
        let before = self.shipping().clone();
        let named = self.versions.named_blobs().await;
        let named = named.map_err(|error| error.to_string())?;
        let (pruner, age_ms) = (self.clone(), self.config.prune.orphan_age_ms);
        let work = move || {
            let shipping = pruner.shipping();
            // Of what came since the names were read nobody knows here whether it has one.
            if *shipping == before {
                let kept: Vec<&BlobKey> = named.iter().chain(&*shipping).collect();
                gone.extend(orphans(&*pruner.blobs, &kept, age_ms)?);
            }
            // An older version may have been the same candidate.
            gone.retain(|key| {
                shipping
                    .as_ref()
                    .is_none_or(|ships| place(ships) != place(key))
            });
            remove(&*pruner.blobs, gone)
        };
        let removed = tokio::task::spawn_blocking(work).await;
        removed.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn shipping(&self) -> MutexGuard<'_, Option<BlobKey>> {
        // A key is there or not, whatever panicked.
        self.shipping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the folders of this candidate stay; none lets go of the last one.
    pub(crate) async fn ship(&self, candidate: Option<BlobKey>) {
        let pruner = self.clone();
        // A round that removes just now may take a while.
        let noting = tokio::task::spawn_blocking(move || *pruner.shipping() = candidate);
        // It cannot panic, and a runtime that ends needs no note.
        let _ended = noting.await;
    }

    /// Folders of versions that are not among the newest `keep`, after the ledger was told that
    /// they are gone.
    async fn older_versions(&self, keep: usize) -> Result<Vec<BlobKey>, String> {
        let now_ms = self.clock.now_ms();
        let found = self.versions.prunable(keep, AT_A_TIME).await;
        let mut gone = Vec::new();
        for prunable in found.map_err(|error| error.to_string())? {
            match self.versions.prune(&prunable, keep, now_ms).await {
                Ok(()) => {
                    gone.push(checkpoint_key(&prunable.scope, prunable.digest));
                    gone.push(prunable.blob);
                }
                // A rollback needs it again.
                Err(LedgerError::Conflict(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(gone)
    }

    /// Removes the folders of a candidate that could not be published, where it learned from what
    /// was erased since. A lost one that did not may be made again, and goes with its age.
    pub(crate) async fn remove_erased(&self, order: &Publish) -> Result<usize, String> {
        let erased = self.versions.learned_from_erased(order).await;
        if !erased.map_err(|error| error.to_string())? {
            return Ok(0);
        }
        let named = self.versions.named_blobs().await;
        let named = named.map_err(|error| error.to_string())?;
        // A step that changed nothing has the weights of a version.
        if named.contains(&order.blob) {
            return Ok(0);
        }
        let checkpoint = checkpoint_key(&order.scope, order.digest);
        let (blobs, gone) = (self.blobs.clone(), vec![checkpoint, order.blob.clone()]);
        let removed = tokio::task::spawn_blocking(move || remove(&*blobs, gone)).await;
        removed.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Old folders that nothing names.
fn orphans(blobs: &dyn Blobs, named: &[&BlobKey], age_ms: u64) -> Result<Vec<BlobKey>, String> {
    let kept: HashSet<&str> = named.iter().filter_map(|key| place(key)).collect();
    let mut found = Vec::new();
    for kind in [ADAPTERS, LEARNERS] {
        let stored = blobs.list(kind).map_err(|error| error.to_string())?;
        let orphans = stored.into_iter().filter(|(key, stored_ms)| {
            *stored_ms >= age_ms && place(key).is_none_or(|place| !kept.contains(place))
        });
        found.extend(orphans.take(AT_A_TIME).map(|(key, _)| key));
    }
    Ok(found)
}

/// Removes folders by name; how many.
fn remove(blobs: &dyn Blobs, mut gone: Vec<BlobKey>) -> Result<usize, String> {
    gone.sort_unstable();
    gone.dedup();
    for key in &gone {
        blobs.remove(key).map_err(|error| error.to_string())?;
    }
    Ok(gone.len())
}

/// A key without its kind: scope and digest, which an adapter shares with its learner.
fn place(key: &BlobKey) -> Option<&str> {
    Some(key.as_str().split_once('/')?.1)
}
