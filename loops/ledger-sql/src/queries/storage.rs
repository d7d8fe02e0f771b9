//! [`Storage`]: what is measured is asked of the database itself.

use async_trait::async_trait;

use super::{SqlLedger, Store};
use hone_ledger::{LedgerError, LedgerSize, Storage};

#[async_trait]
impl<S: Store> Storage for SqlLedger<S> {
    async fn size(&self) -> Result<LedgerSize, LedgerError> {
        self.store.size().await
    }
}
