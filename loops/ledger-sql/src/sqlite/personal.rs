//! [`Personal`] on SQLite.

use async_trait::async_trait;
use hone_domain::lift::ScoredTurn;
use hone_domain::{Consent, ForgetId, Millis, Scope};
use sqlx::{ConnectOptions as _, Connection as _};

use super::fault::Fault;
use super::{SqliteLedger, consent, erase, forget, lift, open, wishes};
use hone_ledger::{
    ConsentRow, ForgetBegun, ForgetReport, ForgetRow, ForgetStep, ForgetWish, Learned, LedgerError,
    LooseBlob, Personal, Window,
};

#[async_trait]
impl Personal for SqliteLedger {
    async fn consents(&self) -> Result<Vec<(Scope, Consent)>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(consent::consents(&mut moment).await)
    }

    async fn consent_rows(&self, page: Window) -> Result<Vec<ConsentRow>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(consent::list(&mut moment, page).await)
    }

    async fn forgets(&self, page: Window) -> Result<Vec<ForgetRow>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(wishes::list(&mut moment, page).await)
    }

    async fn set_consent(
        &self,
        scope: &Scope,
        consent: Consent,
        now_ms: Millis,
    ) -> Result<u64, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = consent::set_consent(&mut transaction, scope, consent, now_ms).await;
        self.finish(transaction, done).await
    }

    async fn plan_forget(&self, wish: &ForgetWish) -> Result<ForgetReport, LedgerError> {
        let _place = self.planning.lock().await;
        let planned = async {
            // Its own connection, which cannot write the ledger: nobody waits for it, and its lists go
            // with it.
            let options = open::options(&self.config).create_if_missing(false);
            let mut connection = options.read_only(true).connect().await?;
            let mut moment = connection.begin().await?;
            let report = forget::plan(&mut moment, wish).await?;
            moment.rollback().await?;
            connection.close().await?;
            Ok::<_, Fault>(report)
        };
        self.explain(planned.await)
    }

    async fn begin_forget(&self, wish: &ForgetWish) -> Result<ForgetBegun, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = forget::begin(&mut transaction, wish).await;
        self.finish(transaction, done).await
    }

    async fn forget_piece(&self, id: ForgetId, limit: usize) -> Result<ForgetStep, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = erase::piece(&mut transaction, id, limit.max(1)).await;
        match self.finish(transaction, done).await? {
            erase::Piece::More => return Ok(ForgetStep::More),
            erase::Piece::Blobs(blobs) => return Ok(ForgetStep::RemoveBlobs(blobs)),
            erase::Piece::Emptied => {}
        }
        let emptied = self.mover.empty(&self.writer).await;
        if !self.explain(emptied.map_err(Fault::Sql))? {
            return Ok(ForgetStep::LogBusy);
        }
        let mut transaction = self.begin().await?;
        let done = erase::finish(&mut transaction, id).await;
        self.finish(transaction, done).await?;
        Ok(ForgetStep::Done)
    }

    async fn sweep(&self, limit: usize) -> Result<ForgetStep, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = erase::sweep(&mut transaction, limit.max(1)).await;
        if self.finish(transaction, done).await? > 0 {
            return Ok(ForgetStep::More);
        }
        let emptied = self.mover.empty(&self.writer).await;
        match self.explain(emptied.map_err(Fault::Sql))? {
            true => Ok(ForgetStep::Done),
            false => Ok(ForgetStep::LogBusy),
        }
    }

    async fn blobs_removed(&self, blobs: &[LooseBlob]) -> Result<(), LedgerError> {
        let mut transaction = self.begin().await?;
        let done = erase::blobs_removed(&mut transaction, blobs).await;
        self.finish(transaction, done).await
    }

    async fn forget(&self, id: ForgetId) -> Result<Option<ForgetReport>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(wishes::report(&mut moment, id).await)
    }

    async fn forgets_under_way(&self) -> Result<Vec<ForgetId>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(wishes::under_way(&mut moment).await)
    }

    async fn scored_turns(
        &self,
        scope: &Scope,
        limit: usize,
    ) -> Result<Vec<ScoredTurn>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(lift::scored_turns(&mut moment, scope, limit).await)
    }

    async fn learned(&self, scope: &Scope, versions_max: usize) -> Result<Learned, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(lift::learned(&mut moment, scope, versions_max).await)
    }
}
