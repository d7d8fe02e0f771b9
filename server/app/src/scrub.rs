//! Reads again what is served, and compares it with what was published. A version that is damaged is set
//! aside, and its nearest sound ancestor is published in its place.
//!
//! In: the newest versions, their files · Out: versions published again, troubles · Never: changes or
//! removes a file.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_domain::{BlobError, BlobKey, Blobs, Digest, Policies, Policy, PolicyVersion, Scope};
use hone_ledger::{AuditEntry, Ledger, LedgerError, Restore, RestoreWhy, Versions, Window};
use hone_nn::{PROBE_FILE, check_probe, peft};
use hone_runtime::{Clock, Latest, Shutdown};
use hone_serve::Backend;
use serde_json::json;

use hone_monitor::troubles::{Trouble, Troubles};
use hone_monitor::watch::why::Severity;

/// The trouble that is told where versions are damaged.
pub const DAMAGED: &str = "adapter_damaged";
/// The trouble that is told where files cannot be read at all, so that nothing is known of them.
const UNREADABLE: &str = "adapters_unreadable";
/// The trouble that is told where the ledger's file is damaged.
const LEDGER_DAMAGED: &str = "ledger_damaged";
/// The ledger is read again no sooner than after so many times what reading it took.
const LEDGER_REST: u32 = 100;
/// Longest time until it is read for the first time.
const LEDGER_FIRST: Duration = Duration::from_secs(60);
/// Longest that a start waits for this; the rest is read beside serving.
const START_MAX: Duration = Duration::from_secs(10);
/// Pause after each adapter, as a multiple of the time that reading it took.
const REST: u32 = 8;
/// How often it is asked whether an adapter could not be loaded.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Most damaged versions that are counted.
const DAMAGED_MAX: usize = 1_000;

/// What it works with.
pub struct Scrub {
    /// Whose file is read again as well.
    pub ledger: Arc<dyn Ledger>,
    /// Where what is damaged is noted, and what takes its place is published.
    pub versions: Arc<dyn Versions>,
    /// Where adapters lie.
    pub blobs: Arc<dyn Blobs>,
    /// Tells serve what is served now.
    pub policies: Latest<Policies>,
    /// Where what is wrong is told.
    pub troubles: Troubles,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Time between two passes; none reads at the start only.
    pub every: Option<Duration>,
}

/// What is known of the files of a version.
#[derive(Debug, PartialEq, Eq)]
pub enum Health {
    /// They are what was published.
    Whole,
    /// They are not, and why.
    Damaged(String),
    /// They could not be read, and why: the disk, not the files.
    Unreadable(String),
}

/// Whether the files under a key are the adapter of that content hash. Blocks.
pub fn health(blobs: &dyn Blobs, key: &BlobKey, published: Digest) -> Health {
    let failed = std::cell::RefCell::new(None);
    let read = |file: &str| match blobs.get(key, file) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            failed.borrow_mut().get_or_insert(error);
            None
        }
    };
    let found = peft::digest(&read);
    match (failed.into_inner(), found) {
        (Some(BlobError::Missing { file, .. }), _) => Health::Damaged(format!("{file} is missing")),
        (Some(error), _) => Health::Unreadable(error.to_string()),
        (None, Err(error)) => Health::Damaged(error.to_string()),
        (None, Ok(found)) if Digest(found) != published => {
            Health::Damaged("its weights are other ones than were published".to_owned())
        }
        (None, Ok(_)) => probe_health(blobs, key),
    }
}

/// Whether what an adapter says when it is asked something fixed is what was written: whoever loads it compares.
fn probe_health(blobs: &dyn Blobs, key: &BlobKey) -> Health {
    match blobs.get(key, PROBE_FILE).map(|probe| check_probe(&probe)) {
        // One that was not made here has none.
        Ok(Ok(())) | Err(BlobError::Missing { .. }) => Health::Whole,
        Ok(Err(damaged)) => Health::Damaged(damaged.to_string()),
        Err(error) => Health::Unreadable(error.to_string()),
    }
}

impl Scrub {
    /// Looks at what is served before anybody asks for it, as far as there is time.
    pub async fn at_start(&self) {
        self.pass(Some(Instant::now() + START_MAX), 0).await;
    }

    /// Looks at everything again and again until the shutdown, and at once where an adapter could not be
    /// loaded.
    pub async fn run(self: Arc<Self>, backend: Option<Arc<dyn Backend>>, stop: Shutdown) {
        let failures = || {
            let stats = backend.as_ref().map(|backend| backend.stats());
            stats.map_or(0, |stats| stats.swap_failures_total)
        };
        let (mut failed, mut passed) = (0, Instant::now());
        let mut ledger_at = Instant::now() + self.every.unwrap_or_default().min(LEDGER_FIRST);
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.wait() => return,
                _ = ticks.tick() => {}
            }
            let now_failed = failures();
            let has_failed = std::mem::replace(&mut failed, now_failed) != now_failed;
            if has_failed || self.every.is_some_and(|every| passed.elapsed() >= every) {
                let rest = if has_failed { 0 } else { REST };
                tokio::select! {
                    () = stop.wait() => return,
                    () = self.pass(None, rest) => {}
                }
                passed = Instant::now();
            }
            if let Some(every) = self.every
                && Instant::now() >= ledger_at
            {
                let began = Instant::now();
                tokio::select! {
                    () = stop.wait() => return,
                    () = self.read_ledger() => {}
                }
                ledger_at = Instant::now() + every.max(began.elapsed() * LEDGER_REST);
            }
        }
    }

    /// Reads the whole ledger, and tells what of it is damaged. What cannot be read now is tried again.
    async fn read_ledger(&self) {
        let findings = match self.ledger.damage().await {
            Ok(findings) => findings,
            Err(error) => {
                tracing::warn!(%error, "the ledger could not be read again");
                return;
            }
        };
        let Some(first) = findings.first() else {
            self.troubles.over(LEDGER_DAMAGED);
            return;
        };
        tracing::error!(
            first,
            findings = findings.len(),
            "the ledger's file is damaged"
        );
        let trouble = Trouble {
            id: LEDGER_DAMAGED,
            severity: Severity::Error,
            text: "The ledger's file is damaged.".to_owned(),
            what_to_do: "Run `hone doctor`, check the disk, and restore a backup (`hone restore`) before more is \
                         lost."
                .to_owned(),
            stops_learning: false,
        };
        self.troubles.tell(trouble, self.clock.now_ms());
    }

    /// Looks at what every scope is served, once.
    async fn pass(&self, until: Option<Instant>, rest: u32) {
        let policies = self.policies.get();
        let proven = policies.iter().filter_map(|policy| {
            let trial = policies.trial(&policy.scope)?;
            Some(trial.proven.clone())
        });
        let served: Vec<Policy> = policies.iter().cloned().chain(proven).collect();
        let (mut met, mut unreadable) = (HashSet::new(), None);
        for policy in served {
            if policy.is_base() || !met.insert(policy.blob.clone()) {
                continue;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                tracing::warn!(
                    "not every adapter was read at the start; the rest is read beside serving"
                );
                return;
            }
            let began = Instant::now();
            match self.look(&policy.blob, policy.digest).await {
                Health::Whole => {}
                Health::Unreadable(why) => unreadable = Some(why),
                Health::Damaged(why) => {
                    if let Err(error) = self.set_aside(&policy, &why).await {
                        tracing::error!(%error, "a damaged version could not be set aside");
                    }
                }
            }
            tokio::time::sleep(began.elapsed() * rest).await;
        }
        self.tell(unreadable).await;
    }

    async fn look(&self, key: &BlobKey, published: Digest) -> Health {
        let (blobs, key) = (self.blobs.clone(), key.clone());
        let looked = tokio::task::spawn_blocking(move || health(&*blobs, &key, published)).await;
        looked.unwrap_or_else(|error| Health::Unreadable(error.to_string()))
    }

    /// Notes the damage, moves the files aside, and publishes what is sound in their place.
    async fn set_aside(&self, policy: &Policy, why: &str) -> Result<(), LedgerError> {
        let view = self.versions.version(&policy.scope, policy.version, 0);
        // Erased or pruned meanwhile: that its files are gone is as it should be.
        if view.await?.is_none_or(|view| view.record.is_tainted) {
            return Ok(());
        }
        let entry = AuditEntry {
            at_ms: self.clock.now_ms(),
            actor: "the scrub".to_owned(),
            act: "version.damaged".to_owned(),
            object: policy.scope.as_str().to_owned(),
            detail: json!({"version": policy.version, "why": why}),
        };
        let scopes = self.versions.note_damage(&policy.blob, &entry).await?;
        tracing::error!(
            version = policy.version.0,
            blob = policy.blob.as_str(),
            why,
            "a served version is damaged; it is kept aside, and the nearest sound one before it is served"
        );
        for scope in &scopes {
            self.replace(scope, &policy.blob).await?;
        }
        let (blobs, key) = (self.blobs.clone(), policy.blob.clone());
        let moved = tokio::task::spawn_blocking(move || blobs.set_aside(&key)).await;
        if let Ok(Err(error)) = moved {
            tracing::warn!(%error, "the files of a damaged version stay where they are");
        }
        Ok(())
    }

    /// Publishes the nearest sound ancestor of what a scope is served, or ends the trial that measures
    /// against what is damaged.
    async fn replace(&self, scope: &Scope, damaged: &BlobKey) -> Result<(), LedgerError> {
        let newest = Window {
            limit: 1,
            before: None,
        };
        let head = self.versions.version_page(scope, newest).await?;
        let Some(head) = head.into_iter().next().map(|record| record.policy) else {
            return Ok(());
        };
        if head.blob != *damaged {
            if self.versions.end_trial(scope, head.version).await? {
                self.policies
                    .update(|heads| heads.proven(scope, head.version));
            }
            return Ok(());
        }
        let to = self.sound_before(&head).await?;
        let restore = Restore {
            scope: scope.clone(),
            to,
            from: Some(head.version),
            why: RestoreWhy::Asked,
            note: Some(format!("the files of version {} are damaged", head.version)),
            now_ms: self.clock.now_ms(),
        };
        let policy = self.versions.restore(&restore).await?;
        self.policies.update(|heads| heads.with(policy.clone()));
        Ok(())
    }

    /// The nearest version that this one continues whose files are whole; 0 is the base model.
    async fn sound_before(&self, head: &Policy) -> Result<PolicyVersion, LedgerError> {
        let view = self.versions.version(&head.scope, head.version, 0).await?;
        for version in view.map(|view| view.lineage).unwrap_or_default() {
            if version == PolicyVersion::BASE {
                break;
            }
            let Some(view) = self.versions.version(&head.scope, version, 0).await? else {
                continue;
            };
            let record = view.record;
            if !record.can_answer() {
                continue;
            }
            let policy = &record.policy;
            if policy.is_base() || self.look(&policy.blob, policy.digest).await == Health::Whole {
                return Ok(version);
            }
        }
        Ok(PolicyVersion::BASE)
    }

    /// Tells what is wrong after a pass.
    async fn tell(&self, unreadable: Option<String>) {
        let now_ms = self.clock.now_ms();
        match unreadable {
            None => drop(self.troubles.over(UNREADABLE)),
            Some(why) => {
                tracing::error!(why, "adapters cannot be read");
                let trouble = Trouble {
                    id: UNREADABLE,
                    severity: Severity::Error,
                    text: "Files of served versions cannot be read.".to_owned(),
                    what_to_do:
                        "Look at the disk, the rights of the data folder and the server's log."
                            .to_owned(),
                    stops_learning: false,
                };
                self.troubles.tell(trouble, now_ms);
            }
        }
        let damaged = match self.versions.damaged(DAMAGED_MAX).await {
            Ok(damaged) => damaged,
            Err(error) => {
                tracing::warn!(%error, "the damaged versions could not be counted");
                return;
            }
        };
        let Some(newest) = damaged.first() else {
            self.troubles.over(DAMAGED);
            return;
        };
        let text = format!(
            "{} with damaged files {} kept aside, the last of them version {}; the nearest sound version \
             before is served instead.",
            match damaged.len() {
                1 => "1 version".to_owned(),
                n => format!("{n} versions"),
            },
            if damaged.len() == 1 { "is" } else { "are" },
            newest.version,
        );
        let trouble = Trouble {
            id: DAMAGED,
            severity: Severity::Error,
            text,
            what_to_do:
                "Check the disk; restore a backup to have the version back, or retire it when \
                         nobody needs it. Its files are under blobs/damaged in the data folder."
                    .to_owned(),
            stops_learning: false,
        };
        self.troubles.tell(trouble, now_ms);
    }
}

#[cfg(test)]
#[path = "scrub_tests.rs"]
mod tests;
