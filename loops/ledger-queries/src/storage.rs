//! [`Storage`]: what is measured is asked of the database itself; one transaction per piece.

use async_trait::async_trait;

use super::{Held as _, SqlLedger, Store, Tries, pruning, retention};
use hone_ledger::{
    Extent, LedgerError, LedgerSize, PrunePiece, PrunePlace, PruneStage, Pruned, Retention, Storage,
};

#[async_trait]
impl<S: Store> Storage for SqlLedger<S> {
    async fn size(&self) -> Result<LedgerSize, LedgerError> {
        self.store.size().await
    }

    async fn plan_pruning(&self, retention: &Retention) -> Result<Pruned, LedgerError> {
        look!(self, connection => retention::plan(connection, retention))
    }

    async fn prune_piece(
        &self,
        retention: &Retention,
        place: PrunePlace,
        most: usize,
    ) -> Result<PrunePiece, LedgerError> {
        let most = most.max(1);
        if place.stage == PruneStage::Shared {
            return self.prune_shared(place, most).await;
        }
        let chosen = look!(self, connection => async {
            match place.stage {
                PruneStage::WholeTurns => {
                    pruning::choose_turns(connection, retention, place, Extent::Whole, most).await
                }
                PruneStage::WordyTurns => {
                    pruning::choose_turns(connection, retention, place, Extent::Words, most).await
                }
                PruneStage::Logprobs => {
                    pruning::choose_logprobs(connection, retention, place, most).await
                }
                PruneStage::Votes => {
                    pruning::choose_votes(connection, retention, place, most).await
                }
                PruneStage::Shared | PruneStage::Reports => {
                    pruning::choose_reports(connection, retention, place, most).await
                }
            }
        })?;
        let over = || place.stage.next().map(PrunePlace::of);
        let next = chosen.next.or_else(over);
        if chosen.is_empty() {
            let pruned = Pruned::default();
            return Ok(PrunePiece { pruned, next });
        }
        let pruned = transact!(self, connection => async {
            match place.stage {
                PruneStage::WholeTurns | PruneStage::WordyTurns => {
                    pruning::turns(connection, retention, &chosen).await
                }
                PruneStage::Logprobs => pruning::logprobs(connection, retention, &chosen).await,
                PruneStage::Votes => pruning::votes(connection, &chosen).await,
                PruneStage::Shared | PruneStage::Reports => {
                    pruning::reports(connection, &chosen).await
                }
            }
        })?;
        Ok(PrunePiece { pruned, next })
    }
}

impl<S: Store> SqlLedger<S> {
    /// What was shared, until nothing is left that may be without a user.
    async fn prune_shared(
        &self,
        place: PrunePlace,
        most: usize,
    ) -> Result<PrunePiece, LedgerError> {
        let has_loose: bool = look!(self, connection => pruning::has_loose(connection))?;
        if !has_loose {
            return Ok(PrunePiece {
                pruned: Pruned::default(),
                next: place.stage.next().map(PrunePlace::of),
            });
        }
        let pruned = transact!(self, connection => pruning::shared(connection, most))?;
        Ok(PrunePiece {
            pruned,
            next: Some(place),
        })
    }
}
