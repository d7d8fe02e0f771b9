//! Keeps what this process remembers as the ledger has it, where other processes write there as well: versions, consents,
//! memories, and the conversations of other gateways.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::Duration;

use hone_domain::{Loop, Scope};
use hone_ledger::{Change, LedgerError, Topic};
use hone_runtime::Shutdown;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::loops::beside;
use super::people;
use super::resources::{Resources, published};

/// How long changes are not looked for where nobody tells of them.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most changes read at once.
const CHANGES: usize = 500;
/// Most turns of other gateways read at once.
const TURNS: usize = 200;

/// Begins to follow: people, whom other programs change as well, and all else where the ledger is shared.
pub(super) fn follow(resources: &Resources, tasks: &mut JoinSet<()>) {
    people::watch(resources, tasks);
    if !resources.changes.is_shared() {
        return;
    }
    let name = ("changes", resources.registry.clone());
    let stop = resources.stops[1].signal();
    let resources = resources.clone();
    beside(name, stop, tasks, move |stop| look(resources.clone(), stop));
}

async fn look(resources: Resources, stop: Shutdown) {
    let mut seen = resources.changes_seen;
    let mut turns = resources.turns_seen;
    loop {
        let taken = async {
            seen = take(&resources, seen).await?;
            if resources.config.runs(Loop::Serve) {
                turns = conversations(&resources, turns).await?;
            }
            Ok::<_, LedgerError>(())
        };
        match taken.await {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "changes that other processes made could not be read");
                tokio::select! {
                    () = sleep(LOOK_EVERY) => {}
                    () = stop.wait() => return,
                }
            }
        }
        tokio::select! {
            _rung_or_late = timeout(LOOK_EVERY, resources.changes.rung()) => {}
            () = stop.wait() => return,
        }
    }
}

/// Takes over what changed behind a number: the number of the newest change that is taken over.
async fn take(resources: &Resources, seen: u64) -> Result<u64, LedgerError> {
    let changes = resources.changes.changes_after(seen, CHANGES).await?;
    let Some(newest) = changes.last().map(|change| change.number) else {
        return Ok(seen);
    };
    let of = |topic| {
        let of = changes.iter().filter(move |change| change.topic == topic);
        of.map(|change: &Change| &change.scope)
    };
    if of(Topic::Policy).next().is_some() {
        policies(resources).await?;
    }
    let consents: HashSet<&Scope> = of(Topic::Consent).collect();
    if !consents.is_empty() {
        // Who decides here meanwhile waits, and is read.
        let _deciding = resources.rules.deciding().await;
        let decided = resources.personal.consents().await?;
        for (scope, consent) in decided.iter().filter(|row| consents.contains(&row.0)) {
            resources.rules.decided(scope, *consent);
        }
    }
    for scope in of(Topic::Memory) {
        resources.remembered.refresh(scope).await;
    }
    Ok(newest)
}

/// Takes up turns of other gateways that wait for an answer, so that a conversation can go on here: the number up to which
/// that is done.
async fn conversations(resources: &Resources, seen: i64) -> Result<i64, LedgerError> {
    let newest = resources.changes.newest_turn().await?;
    let mut from = (newest > seen).then_some(seen + 1);
    while let Some(number) = from {
        let page = resources.ledger.open_page(usize::MAX, Some(number), TURNS);
        let page = page.await?;
        from = page.next;
        let index = resources.index.lock();
        // The index is a memory aid; whatever panicked while it was held, it can be used.
        let mut index = index.unwrap_or_else(PoisonError::into_inner);
        for waiting in &page.turns {
            let turn = &waiting.turn;
            if !index.has_turn(turn.session, turn.turn) {
                index.record(turn, None);
            }
        }
    }
    Ok(newest)
}

async fn policies(resources: &Resources) -> Result<(), LedgerError> {
    let read = published(&*resources.ledger, &*resources.versions).await?;
    resources.policies.update(|known| known.merged(&read));
    let blobs = resources.blobs.clone();
    // Copies of what was erased elsewhere.
    let tidied = tokio::task::spawn_blocking(move || blobs.tidy()).await;
    if let Ok(Err(error)) = tidied {
        tracing::debug!(%error, "copies of adapters could not be looked through");
    }
    Ok(())
}
