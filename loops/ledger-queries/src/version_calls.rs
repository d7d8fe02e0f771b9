//! [`Versions`]: one transaction per call.

use async_trait::async_trait;
use hone_domain::{BlobKey, Digest, Millis, OnTrial, Policy, PolicyVersion, Scope};

use super::standings::Hold;
use super::{
    Held as _, SqlLedger, Store, Tries, imports, policies, standings, trials, versions, watch,
};
use hone_ledger::{
    Arm, AuditEntry, HeldOut, Import, LedgerError, PolicyRecord, Prunable, Publish, RefusalRecord,
    Restore, ScopeRow, Standing, Trial, TryOut, VersionView, Versions, WatchNews, WatchPlace,
    Window,
};

impl<S: Store> SqlLedger<S> {
    async fn release_hold(&self, scope: &Scope, hold: Hold) -> Result<bool, LedgerError> {
        transact!(self, connection => standings::release(connection, scope, hold))
    }
}

#[async_trait]
impl<S: Store> Versions for SqlLedger<S> {
    async fn version(
        &self,
        scope: &Scope,
        version: PolicyVersion,
        samples_max: usize,
    ) -> Result<Option<VersionView>, LedgerError> {
        look!(self, connection => versions::version(connection, scope, version, samples_max))
    }

    async fn version_page(
        &self,
        scope: &Scope,
        page: Window,
    ) -> Result<Vec<PolicyRecord>, LedgerError> {
        look!(self, connection => policies::page(connection, scope, page))
    }

    async fn refusals(
        &self,
        scope: Option<&Scope>,
        page: Window,
    ) -> Result<Vec<RefusalRecord>, LedgerError> {
        look!(self, connection => versions::refusals(connection, scope, page))
    }

    async fn scopes(&self, page: Window) -> Result<Vec<ScopeRow>, LedgerError> {
        look!(self, connection => versions::scopes(connection, page))
    }

    async fn standing(&self, scope: &Scope) -> Result<Standing, LedgerError> {
        look!(self, connection => standings::standing(connection, scope))
    }

    async fn standings(&self, limit: usize) -> Result<Vec<(Scope, Standing)>, LedgerError> {
        look!(self, connection => standings::standings(connection, limit))
    }

    async fn restore(&self, restore: &Restore) -> Result<Policy, LedgerError> {
        transact!(self, connection => standings::restore(connection, restore))
    }

    async fn import(&self, import: &Import) -> Result<Policy, LedgerError> {
        transact!(self, connection => imports::import(connection, import))
    }

    async fn pin(
        &self,
        scope: &Scope,
        version: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Policy, LedgerError> {
        transact!(self, connection => standings::pin(connection, scope, version, now_ms))
    }

    async fn unpin(&self, scope: &Scope) -> Result<bool, LedgerError> {
        self.release_hold(scope, Hold::Pin).await
    }

    async fn resume(&self, scope: &Scope) -> Result<bool, LedgerError> {
        self.release_hold(scope, Hold::Trip).await
    }

    async fn try_out(&self, order: &TryOut) -> Result<OnTrial, LedgerError> {
        transact!(self, connection => trials::try_out(connection, order))
    }

    async fn trials(&self) -> Result<Vec<OnTrial>, LedgerError> {
        look!(self, connection => trials::trials(connection))
    }

    async fn arms(&self, scope: &Scope, trial: &Trial) -> Result<[Arm; 2], LedgerError> {
        look!(self, connection => trials::arms(connection, scope, trial))
    }

    async fn end_trial(&self, scope: &Scope, version: PolicyVersion) -> Result<bool, LedgerError> {
        transact!(self, connection => trials::prove(connection, scope, version))
    }

    async fn retire(
        &self,
        scope: &Scope,
        version: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Option<Policy>, LedgerError> {
        transact!(self, connection => trials::retire(connection, scope, version, now_ms))
    }

    async fn unretire(&self, scope: &Scope, version: PolicyVersion) -> Result<bool, LedgerError> {
        transact!(self, connection => trials::unretire(connection, scope, version))
    }

    async fn held_out(
        &self,
        scope: &Scope,
        base: Digest,
        limit: usize,
    ) -> Result<Vec<HeldOut>, LedgerError> {
        look!(self, connection => versions::held_out(connection, scope, base, limit))
    }

    async fn watch_place(&self) -> Result<WatchPlace, LedgerError> {
        look!(self, connection => watch::place(connection))
    }

    async fn watch_memory(&self, scope: &Scope) -> Result<Option<String>, LedgerError> {
        look!(self, connection => watch::memory(connection, scope))
    }

    async fn watch_news(&self, place: WatchPlace, limit: usize) -> Result<WatchNews, LedgerError> {
        look!(self, connection => watch::news(connection, place, limit))
    }

    async fn keep_watch(
        &self,
        place: WatchPlace,
        memories: &[(Scope, String)],
    ) -> Result<(), LedgerError> {
        transact!(self, connection => watch::keep(connection, place, memories))
    }

    async fn prunable(&self, keep: usize, limit: usize) -> Result<Vec<Prunable>, LedgerError> {
        look!(self, connection => versions::prunable(connection, keep, limit))
    }

    async fn prune(
        &self,
        prunable: &Prunable,
        keep: usize,
        now_ms: Millis,
    ) -> Result<(), LedgerError> {
        transact!(self, connection => versions::prune(connection, prunable, keep, now_ms))
    }

    async fn note_damage(
        &self,
        blob: &BlobKey,
        entry: &AuditEntry,
    ) -> Result<Vec<Scope>, LedgerError> {
        transact!(self, connection => versions::note_damage(connection, blob, entry))
    }

    async fn damaged(&self, limit: usize) -> Result<Vec<Policy>, LedgerError> {
        look!(self, connection => versions::damaged(connection, limit))
    }

    async fn named_blobs(&self) -> Result<Vec<BlobKey>, LedgerError> {
        look!(self, connection => versions::named_blobs(connection))
    }

    async fn learned_from_erased(&self, order: &Publish) -> Result<bool, LedgerError> {
        look!(self, connection => versions::learned_from_erased(connection, order))
    }
}
