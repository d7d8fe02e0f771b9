//! What the watch reads and does: the ledger's side of [`crate::watch`].

use std::collections::BTreeSet;
use std::sync::Arc;

use hone_domain::{Policies, PolicyVersion, Scope};
use hone_ledger::{Ledger, LedgerError, Restore, RestoreWhy, Versions};
use hone_runtime::{Clock, Latest};

use crate::config::Config;
use crate::watch::{self, Alarm, Held, WatchDecision, WatchLook, WatchMemory};

/// Most versions of a scope that a way back is looked for among.
const VERSIONS_LOOKED_AT: usize = 256;

/// Most versions of a scope among which those are looked for that were left: what is said comes
/// some versions late, not many.
const LEFT_LOOKED_AT: usize = 32;

/// Reads for the watch and carries out what it decides.
#[derive(Clone)]
pub(crate) struct Watcher {
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) versions: Arc<dyn Versions>,
    pub(crate) policies: Latest<Policies>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Arc<Config>,
}

impl Watcher {
    /// What is new; none where nothing is.
    pub(crate) async fn look(&self) -> Result<Option<Box<WatchLook>>, LedgerError> {
        let place = self.versions.watch_place().await?;
        let limit = self.config.watch.news_max;
        let news = self.versions.watch_news(place, limit).await?;
        if news.place == place {
            return Ok(None);
        }
        let turns = news.turns.iter().map(|turn| &turn.scope);
        let verdicts = news.verdicts.iter().map(|verdict| &verdict.scope);
        let named: BTreeSet<Scope> = turns.chain(verdicts).cloned().collect();
        let mut scopes = Vec::with_capacity(named.len());
        for scope in named {
            let standing = self.versions.standing(&scope).await?;
            let newest = self.ledger.versions(Some(&scope), LEFT_LOOKED_AT).await?;
            let held = Held {
                pinned: standing.pinned,
                tripped: standing.tripped.map(|trip| trip.version),
                trial: standing.trial.map(|trial| trial.version),
                left: watch::left(&newest),
            };
            scopes.push((scope.clone(), self.memory(&scope).await?, held));
        }
        Ok(Some(Box::new(WatchLook { news, scopes })))
    }

    /// What is remembered of a scope; a memory of another form is begun again.
    async fn memory(&self, scope: &Scope) -> Result<WatchMemory, LedgerError> {
        let stored = self.versions.watch_memory(scope).await?;
        let memory = stored.and_then(|text| serde_json::from_str(&text).ok());
        Ok(memory.unwrap_or_default())
    }

    /// Takes back, lets go on, and remembers, in this order: a crash in between reads the same
    /// news again, finds the scope tripped, and counts its turns from there.
    pub(crate) async fn carry_out(&self, decision: &WatchDecision) -> Result<usize, LedgerError> {
        let mut tripped = 0;
        for (scope, alarm, what) in &decision.trips {
            tripped += usize::from(self.take_back(scope, alarm, what).await?);
        }
        for (scope, version, alarm, what) in &decision.failures {
            tripped += usize::from(self.end_badly(scope, *version, alarm, what).await?);
        }
        for (scope, version) in &decision.proofs {
            if self.versions.end_trial(scope, *version).await? {
                tracing::info!(version = version.0, "proved itself on trial");
                self.policies.update(|heads| heads.proven(scope, *version));
            }
        }
        for scope in &decision.resumes {
            self.versions.resume(scope).await?;
        }
        let texts = decision.memories.iter().map(|(scope, memory)| {
            let text = serde_json::to_string(memory);
            text.map(|text| (scope.clone(), text))
        });
        let texts: Result<Vec<_>, _> = texts.collect();
        let texts = texts.map_err(|error| LedgerError::Failed(error.to_string()))?;
        self.versions.keep_watch(decision.place, &texts).await?;
        Ok(tripped)
    }

    /// Publishes again what a version on trial was compared with; false where its trial is over.
    async fn end_badly(
        &self,
        scope: &Scope,
        version: PolicyVersion,
        alarm: &Alarm,
        what: &str,
    ) -> Result<bool, LedgerError> {
        let standing = self.versions.standing(scope).await?;
        let Some(trial) = standing.trial.filter(|trial| trial.version == version) else {
            return Ok(false);
        };
        self.restore(Restore {
            scope: scope.clone(),
            to: trial.proven,
            from: Some(version),
            why: RestoreWhy::TrialFailed,
            note: Some(format!("trial ended, {}", watch::note(alarm, what))),
            now_ms: self.clock.now_ms(),
        })
        .await
    }

    /// Publishes the last good version again; false where there is none, or a person was faster.
    async fn take_back(
        &self,
        scope: &Scope,
        alarm: &Alarm,
        what: &str,
    ) -> Result<bool, LedgerError> {
        let records = self
            .ledger
            .versions(Some(scope), VERSIONS_LOOKED_AT)
            .await?;
        let note = watch::note(alarm, what);
        let head = records.first().map(|record| record.policy.version);
        let (Some(to), Some(from)) = (watch::last_good(&records, alarm.since), head) else {
            tracing::warn!(
                note,
                "there is nothing better to go back to, or it was left already"
            );
            return Ok(false);
        };
        self.restore(Restore {
            scope: scope.clone(),
            to,
            from: Some(from),
            why: RestoreWhy::Tripped,
            note: Some(note),
            now_ms: self.clock.now_ms(),
        })
        .await
    }

    /// Publishes an older version again and tells serve; false where a person was faster.
    async fn restore(&self, order: Restore) -> Result<bool, LedgerError> {
        let note = order.note.as_deref();
        match self.versions.restore(&order).await {
            Ok(policy) => {
                let (left, restores) = (order.from.map(|v| v.0), order.to.0);
                tracing::warn!(note, left, restores, "rolled back by itself");
                self.policies.update(|heads| heads.with(policy.clone()));
                Ok(true)
            }
            Err(LedgerError::Conflict(why)) => {
                tracing::warn!(note, why, "the rollback was not needed any more");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
