//! Keeps what this process remembers as the ledger has it, where other processes write there as well: versions, consents,
//! memories, and the conversations of other gateways.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use hone_domain::{Loop, Scope};
use hone_ledger::{Change, LedgerError, Topic};
use hone_runtime::Shutdown;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::loops::beside;
use super::people;
use super::resources::{Resources, published};

/// How long changes are not looked for where nobody tells of them.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long copies of erased adapters are left alone after the store could not be asked about them.
const TIDY_AGAIN: Duration = Duration::from_secs(60);
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
    let mut tidying = Tidying::new();
    loop {
        let taken = async {
            let (newest, is_erased) = take(&resources, seen).await?;
            seen = newest;
            tidying.is_wanted |= is_erased;
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
        tidying.step(&resources).await;
        tokio::select! {
            _changed_or_late = timeout(LOOK_EVERY, resources.changes.changed()) => {}
            () = stop.wait() => return,
        }
    }
}

/// Takes over what changed behind a number: the number of the newest change that is taken over, and whether files of
/// adapters were erased.
async fn take(resources: &Resources, seen: u64) -> Result<(u64, bool), LedgerError> {
    let changes = resources.changes.changes_after(seen, CHANGES).await?;
    let Some(newest) = changes.last().map(|change| change.number) else {
        return Ok((seen, false));
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
    let is_erased = of(Topic::Files).next().is_some();
    Ok((newest, is_erased))
}

/// Takes up turns of other gateways that wait for an answer, so that a conversation can go on here: the number up to which
/// that is done.
async fn conversations(resources: &Resources, seen: i64) -> Result<i64, LedgerError> {
    let newest = resources.changes.newest_turn().await?;
    let mut from = (newest > seen).then_some(seen + 1);
    // Those of this gateway are not read again.
    let is_known = |session, turn| {
        let index = resources.index.lock();
        let index = index.unwrap_or_else(PoisonError::into_inner);
        index.has_turn(session, turn)
    };
    while let Some(number) = from {
        let page = resources.changes.unknown_page(number, TURNS, &is_known);
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
    Ok(())
}

/// Removes copies of what was erased elsewhere, beside all else: the store may be slow, or away.
struct Tidying {
    /// Something may have been erased since the copies were last looked through.
    is_wanted: bool,
    not_before: Instant,
    running: Option<JoinHandle<bool>>,
}

impl Tidying {
    /// Nobody knows what was erased while this process was not there.
    fn new() -> Self {
        Self {
            is_wanted: true,
            not_before: Instant::now(),
            running: None,
        }
    }

    async fn step(&mut self, resources: &Resources) {
        if let Some(ended) = self.running.take_if(|running| running.is_finished()) {
            let is_done = ended.await.unwrap_or(false);
            self.is_wanted |= !is_done;
            if !is_done {
                self.not_before = Instant::now() + TIDY_AGAIN;
            }
        }
        if self.is_wanted && self.running.is_none() && Instant::now() >= self.not_before {
            self.is_wanted = false;
            let blobs = resources.blobs.clone();
            self.running = Some(tokio::task::spawn_blocking(move || {
                let tidied = blobs.tidy();
                if let Err(error) = &tidied {
                    tracing::debug!(%error, "copies of adapters could not be looked through");
                }
                tidied.is_ok()
            }));
        }
    }
}
