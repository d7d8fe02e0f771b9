//! [`Versions`] on SQLite: one transaction per call.

use async_trait::async_trait;
use hone_domain::{BlobKey, Digest, Millis, OnTrial, Policy, PolicyVersion, Scope};

use super::standings::Hold;
use super::{SqliteLedger, imports, policies, standings, trials, versions, watch};
use hone_ledger::{
    Arm, AuditEntry, HeldOut, Import, LedgerError, PolicyRecord, Prunable, Publish, RefusalRecord,
    Restore, ScopeRow, Standing, Trial, TryOut, VersionView, Versions, WatchNews, WatchPlace,
    Window,
};

impl SqliteLedger {
    async fn release_hold(&self, scope: &Scope, hold: Hold) -> Result<bool, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = standings::release(&mut transaction, scope, hold).await;
        self.finish(transaction, done).await
    }
}

#[async_trait]
impl Versions for SqliteLedger {
    async fn version(
        &self,
        scope: &Scope,
        version: PolicyVersion,
        samples_max: usize,
    ) -> Result<Option<VersionView>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(versions::version(&mut moment, scope, version, samples_max).await)
    }

    async fn version_page(
        &self,
        scope: &Scope,
        page: Window,
    ) -> Result<Vec<PolicyRecord>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(policies::page(&mut moment, scope, page).await)
    }

    async fn refusals(
        &self,
        scope: Option<&Scope>,
        page: Window,
    ) -> Result<Vec<RefusalRecord>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(versions::refusals(&mut moment, scope, page).await)
    }

    async fn scopes(&self, page: Window) -> Result<Vec<ScopeRow>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(versions::scopes(&mut moment, page).await)
    }

    async fn standing(&self, scope: &Scope) -> Result<Standing, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(standings::standing(&mut moment, scope).await)
    }

    async fn standings(&self, limit: usize) -> Result<Vec<(Scope, Standing)>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(standings::standings(&mut moment, limit).await)
    }

    async fn restore(&self, restore: &Restore) -> Result<Policy, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = standings::restore(&mut transaction, restore).await;
        self.finish(transaction, done).await
    }

    async fn import(&self, import: &Import) -> Result<Policy, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = imports::import(&mut transaction, import).await;
        self.finish(transaction, done).await
    }

    async fn pin(
        &self,
        scope: &Scope,
        version: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Policy, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = standings::pin(&mut transaction, scope, version, now_ms).await;
        self.finish(transaction, done).await
    }

    async fn unpin(&self, scope: &Scope) -> Result<bool, LedgerError> {
        self.release_hold(scope, Hold::Pin).await
    }

    async fn resume(&self, scope: &Scope) -> Result<bool, LedgerError> {
        self.release_hold(scope, Hold::Trip).await
    }

    async fn try_out(&self, order: &TryOut) -> Result<OnTrial, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = trials::try_out(&mut transaction, order).await;
        self.finish(transaction, done).await
    }

    async fn trials(&self) -> Result<Vec<OnTrial>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(trials::trials(&mut moment).await)
    }

    async fn arms(&self, scope: &Scope, trial: &Trial) -> Result<[Arm; 2], LedgerError> {
        let mut moment = self.look().await?;
        self.explain(trials::arms(&mut moment, scope, trial).await)
    }

    async fn end_trial(&self, scope: &Scope, version: PolicyVersion) -> Result<bool, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = trials::prove(&mut transaction, scope, version).await;
        self.finish(transaction, done).await
    }

    async fn retire(
        &self,
        scope: &Scope,
        version: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Option<Policy>, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = trials::retire(&mut transaction, scope, version, now_ms).await;
        self.finish(transaction, done).await
    }

    async fn unretire(&self, scope: &Scope, version: PolicyVersion) -> Result<bool, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = trials::unretire(&mut transaction, scope, version).await;
        self.finish(transaction, done).await
    }

    async fn held_out(
        &self,
        scope: &Scope,
        base: Digest,
        limit: usize,
    ) -> Result<Vec<HeldOut>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(versions::held_out(&mut moment, scope, base, limit).await)
    }

    async fn watch_place(&self) -> Result<WatchPlace, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(watch::place(&mut moment).await)
    }

    async fn watch_memory(&self, scope: &Scope) -> Result<Option<String>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(watch::memory(&mut moment, scope).await)
    }

    async fn watch_news(&self, place: WatchPlace, limit: usize) -> Result<WatchNews, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(watch::news(&mut moment, place, limit).await)
    }

    async fn keep_watch(
        &self,
        place: WatchPlace,
        memories: &[(Scope, String)],
    ) -> Result<(), LedgerError> {
        let mut transaction = self.begin().await?;
        let done = watch::keep(&mut transaction, place, memories).await;
        self.finish(transaction, done).await
    }

    async fn prunable(&self, keep: usize, limit: usize) -> Result<Vec<Prunable>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(versions::prunable(&mut moment, keep, limit).await)
    }

    async fn prune(
        &self,
        prunable: &Prunable,
        keep: usize,
        now_ms: Millis,
    ) -> Result<(), LedgerError> {
        let mut transaction = self.begin().await?;
        let done = versions::prune(&mut transaction, prunable, keep, now_ms).await;
        self.finish(transaction, done).await
    }

    async fn note_damage(
        &self,
        blob: &BlobKey,
        entry: &AuditEntry,
    ) -> Result<Vec<Scope>, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = versions::note_damage(&mut transaction, blob, entry).await;
        self.finish(transaction, done).await
    }

    async fn damaged(&self, limit: usize) -> Result<Vec<Policy>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(versions::damaged(&mut moment, limit).await)
    }

    async fn named_blobs(&self) -> Result<Vec<BlobKey>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(versions::named_blobs(&mut moment).await)
    }

    async fn learned_from_erased(&self, order: &Publish) -> Result<bool, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(versions::learned_from_erased(&mut moment, order).await)
    }
}
