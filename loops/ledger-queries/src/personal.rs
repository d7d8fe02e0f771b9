//! [`Personal`]: one transaction per call.

use async_trait::async_trait;
use hone_domain::lift::ScoredTurn;
use hone_domain::{Consent, ForgetId, Millis, Scope};

use super::{Held as _, SqlLedger, Store, Tries, consent, erase, forget, lift, wishes};
use hone_ledger::{
    ConsentRow, ForgetBegun, ForgetReport, ForgetRow, ForgetStep, ForgetWish, Learned, LedgerError,
    LooseBlob, Personal, Window,
};

#[async_trait]
impl<S: Store> Personal for SqlLedger<S> {
    async fn consents(&self) -> Result<Vec<(Scope, Consent)>, LedgerError> {
        look!(self, connection => consent::consents(connection))
    }

    async fn consent_rows(&self, page: Window) -> Result<Vec<ConsentRow>, LedgerError> {
        look!(self, connection => consent::list(connection, page))
    }

    async fn forgets(&self, page: Window) -> Result<Vec<ForgetRow>, LedgerError> {
        look!(self, connection => wishes::list(connection, page))
    }

    async fn set_consent(
        &self,
        scope: &Scope,
        consent: Consent,
        now_ms: Millis,
    ) -> Result<u64, LedgerError> {
        transact!(self, connection => consent::set_consent(connection, scope, consent, now_ms))
    }

    async fn plan_forget(&self, wish: &ForgetWish) -> Result<ForgetReport, LedgerError> {
        self.store.plan(wish).await
    }

    async fn begin_forget(&self, wish: &ForgetWish) -> Result<ForgetBegun, LedgerError> {
        transact!(self, connection => forget::begin(connection, wish))
    }

    async fn forget_piece(&self, id: ForgetId, limit: usize) -> Result<ForgetStep, LedgerError> {
        let piece = transact!(self, connection => erase::piece(connection, id, limit.max(1)));
        match piece? {
            erase::Piece::More => return Ok(ForgetStep::More),
            erase::Piece::Blobs(blobs) => return Ok(ForgetStep::RemoveBlobs(blobs)),
            erase::Piece::Emptied => {}
        }
        if !self.store.empty_log().await? {
            return Ok(ForgetStep::LogBusy);
        }
        transact!(self, connection => erase::finish(connection, id))?;
        Ok(ForgetStep::Done)
    }

    async fn sweep(&self, limit: usize) -> Result<ForgetStep, LedgerError> {
        let swept = transact!(self, connection => erase::sweep(connection, limit.max(1)));
        if swept?.looked_at > 0 {
            return Ok(ForgetStep::More);
        }
        match self.store.empty_log().await? {
            true => Ok(ForgetStep::Done),
            false => Ok(ForgetStep::LogBusy),
        }
    }

    async fn blobs_removed(&self, blobs: &[LooseBlob]) -> Result<(), LedgerError> {
        transact!(self, connection => erase::blobs_removed(connection, blobs))
    }

    async fn forget(&self, id: ForgetId) -> Result<Option<ForgetReport>, LedgerError> {
        look!(self, connection => wishes::report(connection, id))
    }

    async fn forgets_under_way(&self) -> Result<Vec<ForgetId>, LedgerError> {
        look!(self, connection => wishes::under_way(connection))
    }

    async fn scored_turns(
        &self,
        scope: &Scope,
        limit: usize,
    ) -> Result<Vec<ScoredTurn>, LedgerError> {
        look!(self, connection => lift::scored_turns(connection, scope, limit))
    }

    async fn learned(&self, scope: &Scope, versions_max: usize) -> Result<Learned, LedgerError> {
        look!(self, connection => lift::learned(connection, scope, versions_max))
    }
}
