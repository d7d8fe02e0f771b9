//! Publishing: one transaction that makes a version visible, then the news to serve.

use hone_domain::{Policies, Policy};
use hone_runtime::Latest;
use hone_store::{Ledger, LedgerError, Publish};

use crate::event::PublishOutcome;

/// Publishes and tells serve. Where the ledger reports a failure, the head decides whether the
/// transaction had gone through after all.
pub(crate) async fn publish(
    ledger: &dyn Ledger,
    policies: &Latest<Policies>,
    order: &Publish,
) -> PublishOutcome {
    let error = match ledger.publish(order).await {
        Ok(policy) => return visible(policies, policy),
        Err(error) => error,
    };
    match head_is_ours(ledger, order).await {
        Ok(Some(policy)) => visible(policies, policy),
        Ok(None) => match error {
            LedgerError::Fenced(_) | LedgerError::Conflict(_) => {
                PublishOutcome::Lost(error.to_string())
            }
            _ => PublishOutcome::Failed(error.to_string()),
        },
        Err(unknown) => PublishOutcome::Failed(format!("{error}; then {unknown}")),
    }
}

fn visible(policies: &Latest<Policies>, policy: Policy) -> PublishOutcome {
    policies.update(|heads| heads.with(policy.clone()));
    PublishOutcome::Published(policy)
}

/// The head, if it is the version this order publishes.
async fn head_is_ours(ledger: &dyn Ledger, order: &Publish) -> Result<Option<Policy>, LedgerError> {
    let newest = ledger.versions(Some(&order.scope), 1).await?;
    let head = newest.into_iter().next().map(|record| record.policy);
    Ok(head.filter(|p| p.version == order.parent.next() && p.digest == order.digest))
}
