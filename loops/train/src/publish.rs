//! Publishing: one transaction that makes a version visible, then the news to serve.

use hone_domain::{OnTrial, Policies, Policy, PolicyVersion};
use hone_ledger::{Ledger, LedgerError, Publish};
use hone_runtime::Latest;

use crate::event::PublishOutcome;

/// Publishes and tells serve. Where the ledger reports a failure, the head decides whether the
/// transaction had gone through after all.
pub(crate) async fn publish(
    ledger: &dyn Ledger,
    policies: &Latest<Policies>,
    order: &Publish,
) -> PublishOutcome {
    let error = match ledger.publish(order).await {
        Ok(policy) => return visible(policies, order, policy),
        Err(error) => error,
    };
    match head_is_ours(ledger, order).await {
        Ok(Some(policy)) => visible(policies, order, policy),
        Ok(None) => match error {
            LedgerError::Fenced(_) | LedgerError::Conflict(_) => {
                PublishOutcome::Lost(error.to_string())
            }
            _ => PublishOutcome::Failed(error.to_string()),
        },
        Err(unknown) => PublishOutcome::Failed(format!("{error}; then {unknown}")),
    }
}

fn visible(policies: &Latest<Policies>, order: &Publish, policy: Policy) -> PublishOutcome {
    policies.update(|heads| match order.trial_share {
        None => heads.with(policy.clone()),
        Some(share) => heads.on_trial(OnTrial {
            proven: parent_of(heads, order),
            policy: policy.clone(),
            share,
        }),
    });
    PublishOutcome::Published(policy)
}

/// What was served before; the base model where that was nothing.
fn parent_of(heads: &Policies, order: &Publish) -> Policy {
    let parent = heads.newest(&order.scope);
    let parent = parent.filter(|policy| policy.version == order.parent);
    let base = || Policy::base(order.scope.clone(), PolicyVersion::BASE);
    parent.cloned().unwrap_or_else(base)
}

/// The head, if it is the version this order publishes.
async fn head_is_ours(ledger: &dyn Ledger, order: &Publish) -> Result<Option<Policy>, LedgerError> {
    let newest = ledger.versions(Some(&order.scope), 1).await?;
    let head = newest.into_iter().next().map(|record| record.policy);
    Ok(head.filter(|p| p.version == order.parent.next() && p.digest == order.digest))
}
