//! Records who did what.

use std::sync::Arc;

use hone_domain::Millis;
use hone_ledger::{AuditEntry, People};
use hone_runtime::Clock;
use serde_json::{Value, json};

use crate::Caller;
use crate::Error;

/// The audit log as handlers use it.
pub struct Audit {
    store: Arc<dyn People>,
    clock: Arc<dyn Clock>,
}

impl Audit {
    /// A log in a store.
    pub fn new(store: Arc<dyn People>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Records an act before it is done; without a record there is no act. `detail` is an object
    /// with names and numbers, never with secrets or user text.
    pub async fn record(
        &self,
        caller: &Caller,
        act: &'static str,
        object: &str,
        detail: Value,
    ) -> Result<(), Error> {
        let entry = self.entry(caller, (act, object), detail);
        let recorded = self.store.record(&entry).await;
        Ok(recorded.map(drop)?)
    }

    /// What [`Self::record`] would write, for an act whose transaction writes its own entry.
    pub fn entry(&self, caller: &Caller, act: (&str, &str), detail: Value) -> AuditEntry {
        entry(caller, self.clock.now_ms(), act, detail)
    }
}

/// An entry of what a caller does; notes how the caller was known.
pub fn entry(
    caller: &Caller,
    at_ms: Millis,
    (act, object): (&str, &str),
    mut detail: Value,
) -> AuditEntry {
    if let Some(detail) = detail.as_object_mut() {
        detail.insert("via".to_owned(), json!(caller.via));
        if let Some((key, _)) = &caller.allowance.key {
            detail.insert("key".to_owned(), json!(key));
        }
        if caller.acted_by.is_some() {
            detail.insert("agent".to_owned(), json!(caller.owner));
        }
    }
    AuditEntry {
        at_ms,
        actor: caller.acted_by.as_ref().unwrap_or(&caller.owner).clone(),
        act: act.to_owned(),
        object: object.to_owned(),
        detail,
    }
}
