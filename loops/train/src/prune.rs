//! Pruning: files of versions that nobody needs any more, and of candidates that never became one.

use std::collections::HashSet;
use std::sync::Arc;

use hone_domain::{BlobKey, Blobs};
use hone_runtime::Clock;
use hone_store::{LedgerError, Versions};

use crate::config::Config;
use crate::save::{ADAPTERS, LEARNERS, checkpoint_key};

/// Most versions pruned, and orphans removed, at a time.
const AT_A_TIME: usize = 256;

/// Removes what nobody needs.
#[derive(Clone)]
pub(crate) struct Pruner {
    pub(crate) versions: Arc<dyn Versions>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Arc<Config>,
}

impl Pruner {
    /// One round; how many folders went. The ledger says first that files are gone, so that a crash
    /// in between leaves a folder that nobody names, which the next round removes.
    pub(crate) async fn prune(&self) -> Result<usize, String> {
        let keep = self.config.prune.keep_versions;
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
        let named = self.versions.named_blobs().await;
        let named = named.map_err(|error| error.to_string())?;
        let (blobs, age_ms) = (self.blobs.clone(), self.config.prune.orphan_age_ms);
        let work = move || remove(&*blobs, gone, (&named, age_ms));
        let removed = tokio::task::spawn_blocking(work).await;
        removed.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Removes folders by name, and old ones that nothing names. A candidate that is being published
/// is younger than any orphan.
fn remove(
    blobs: &dyn Blobs,
    mut gone: Vec<BlobKey>,
    (named, age_ms): (&[BlobKey], u64),
) -> Result<usize, String> {
    let kept: HashSet<&str> = named.iter().filter_map(|key| place(key)).collect();
    for kind in [ADAPTERS, LEARNERS] {
        let stored = blobs.list(kind).map_err(|error| error.to_string())?;
        let orphans = stored.into_iter().filter(|(key, stored_ms)| {
            *stored_ms >= age_ms && place(key).is_none_or(|place| !kept.contains(place))
        });
        gone.extend(orphans.take(AT_A_TIME).map(|(key, _)| key));
    }
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
