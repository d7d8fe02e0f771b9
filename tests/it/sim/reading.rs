//! What people read passes the simulated ledger like everything else.

use async_trait::async_trait;
use hone_domain::{PolicyVersion, Scope, SessionId, TurnId};
use hone_ledger::{
    LedgerError, OldestPending, Page, Reading, SampleAge, SessionCursor, SessionLine, SessionView,
    TurnEntry, TurnFilter, TurnLine,
};

use super::ledger::SimLedger;

#[async_trait]
impl Reading for SimLedger {
    async fn turn_page(
        &self,
        filter: &TurnFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Page<TurnLine, u64>, LedgerError> {
        self.call(self.inner.turn_page(filter, before, limit)).await
    }

    async fn session_page(
        &self,
        which: (&Scope, Option<&str>),
        before: Option<SessionCursor>,
        limit: usize,
    ) -> Result<Page<SessionLine, SessionCursor>, LedgerError> {
        self.call(self.inner.session_page(which, before, limit))
            .await
    }

    async fn session(
        &self,
        id: SessionId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Option<SessionView>, LedgerError> {
        self.call(self.inner.session(id, before, limit)).await
    }

    async fn turn_entries(&self, id: TurnId) -> Result<Vec<TurnEntry>, LedgerError> {
        self.call(self.inner.turn_entries(id)).await
    }

    async fn sample_ages(
        &self,
        scope: &Scope,
        version: PolicyVersion,
    ) -> Result<Vec<SampleAge>, LedgerError> {
        self.call(self.inner.sample_ages(scope, version)).await
    }

    async fn oldest_pending(&self) -> Result<OldestPending, LedgerError> {
        self.call(self.inner.oldest_pending()).await
    }
}
