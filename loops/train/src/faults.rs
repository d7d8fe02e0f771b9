//! A ledger and a blob store that fail, or at which the process dies, at a chosen call.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use hone_domain::*;
use hone_ledger::*;
use tokio::sync::Notify;

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies before the call does anything.
    DiesBefore,
    /// The process dies when the call is done.
    DiesAfter,
    /// The call does nothing and fails.
    FailsBefore,
    /// The call is done, and yet fails.
    FailsAfter,
}

/// Which call, and what then.
pub(crate) struct Plan {
    fault: Option<(usize, Fault)>,
    calls: AtomicUsize,
    hit: AtomicBool,
    pub(crate) died: Notify,
    gone: AtomicBool,
}

impl Plan {
    pub(crate) fn new(fault: Option<(usize, Fault)>) -> Arc<Self> {
        Arc::new(Self {
            fault,
            calls: AtomicUsize::new(0),
            hit: AtomicBool::new(false),
            died: Notify::new(),
            gone: AtomicBool::new(false),
        })
    }

    /// Whether the chosen call was reached.
    pub(crate) fn was_hit(&self) -> bool {
        self.hit.load(Ordering::SeqCst)
    }

    /// Lets calls that hang in a dead process go.
    pub(crate) fn bury(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    fn next(&self) -> Option<Fault> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let (at, fault) = self.fault?;
        if at != call {
            return None;
        }
        self.hit.store(true, Ordering::SeqCst);
        Some(fault)
    }

    async fn die(&self) -> ! {
        self.died.notify_one();
        std::future::pending().await
    }

    fn die_blocking(&self) {
        self.died.notify_one();
        while !self.gone.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// The same for calls that block; `failed` is what a failure looks like.
    pub(crate) fn blocking<T, E>(
        &self,
        failed: impl Fn() -> E,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        match self.next() {
            None => call(),
            Some(Fault::FailsBefore) => Err(failed()),
            Some(Fault::FailsAfter) => call().and_then(|_| Err(failed())),
            Some(Fault::DiesBefore) => {
                self.die_blocking();
                Err(failed())
            }
            Some(Fault::DiesAfter) => {
                let _done = call();
                self.die_blocking();
                Err(failed())
            }
        }
    }

    async fn calling<T: Send>(
        &self,
        call: impl Future<Output = Result<T, LedgerError>> + Send,
    ) -> Result<T, LedgerError> {
        let failed = || LedgerError::Failed("injected".into());
        match self.next() {
            None => call.await,
            Some(Fault::FailsBefore) => Err(failed()),
            Some(Fault::FailsAfter) => {
                call.await?;
                Err(failed())
            }
            Some(Fault::DiesBefore) => self.die().await,
            Some(Fault::DiesAfter) => {
                let _done = call.await;
                self.die().await
            }
        }
    }
}

pub(crate) struct FaultyBlobs(pub(crate) Arc<dyn Blobs>, pub(crate) Arc<Plan>);

impl Blobs for FaultyBlobs {
    fn put(&self, key: &BlobKey, files: &[(String, Vec<u8>)]) -> Result<(), BlobError> {
        let failed = || BlobError::Io {
            key: key.as_str().to_owned(),
            message: "injected".into(),
        };
        self.1.blocking(failed, || self.0.put(key, files))
    }

    fn get(&self, key: &BlobKey, file: &str) -> Result<Vec<u8>, BlobError> {
        self.0.get(key, file)
    }

    fn list(&self, kind: &str) -> Result<Vec<(BlobKey, u64)>, BlobError> {
        self.0.list(kind)
    }

    fn remove(&self, key: &BlobKey) -> Result<(), BlobError> {
        self.0.remove(key)
    }

    fn set_aside(&self, key: &BlobKey) -> Result<(), BlobError> {
        self.0.set_aside(key)
    }

    fn has(&self, key: &BlobKey) -> Result<bool, BlobError> {
        self.0.has(key)
    }

    fn files(&self, key: &BlobKey) -> Result<Vec<String>, BlobError> {
        self.0.files(key)
    }

    fn sizes(&self) -> Result<Vec<BlobsSize>, BlobError> {
        self.0.sizes()
    }
}

pub(crate) struct FaultyLedger(pub(crate) Arc<dyn Ledger>, pub(crate) Arc<Plan>);

macro_rules! passes {
    (plain { $($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)* }
     faulty { $($fname:ident($($farg:ident: $ftype:ty),*) -> $fout:ty;)* }) => {
        #[async_trait]
        impl Ledger for FaultyLedger {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$out, LedgerError> {
                self.0.$name($($arg),*).await
            })*
            $(async fn $fname(&self, $($farg: $ftype),*) -> Result<$fout, LedgerError> {
                self.1.calling(self.0.$fname($($farg),*)).await
            })*
            async fn close(&self) {
                self.0.close().await;
            }
        }
    };
}

passes! {
    plain {
    record_turns(turns: &[Turn]) -> Vec<TurnId>;
    record_transitions(transitions: &[Transition]) -> Vec<TransitionId>;
    settle_turns(turns: &[(TurnId, Reason)]) -> ();
    open_turns(limit: usize) -> Vec<OpenTurn>;
    open_page(newest: usize, from: Option<i64>, limit: usize) -> OpenPage;
    record_feedback(feedback: &Feedback) -> FeedbackOutcome;
    record_reward(reward: &SessionReward, credit: SessionCredit) -> Option<Rewarded>;
    claim_transitions(limit: usize, lease_ms: Millis, now_ms: Millis) -> Vec<Claimed>;
    record_verdict(claim: Claim, verdict: &Verdict) -> ();
    give_up(claim: Claim) -> ();
    ready(now_ms: Millis) -> Vec<Ready>;
    rollback(scope: &Scope, to: PolicyVersion, now_ms: Millis) -> Policy;
    turn(id: TurnId) -> Option<TurnView>;
    audits() -> Vec<AuditCount>;
    counts() -> LedgerCounts;
    scores_by_version(scope: &Scope) -> Vec<(PolicyVersion, f64, u64)>;
    check_laws() -> Vec<String>;
    }
    faulty {
    heads() -> Vec<Policy>;
    claim_samples(claim: &SampleClaim) -> ClaimedSamples;
    replay(query: &ReplayQuery) -> Vec<Replayed>;
    settle_claims(claims: &[Claim], reason: Reason) -> u64;
    versions(scope: Option<&Scope>, limit: usize) -> Vec<PolicyRecord>;
    turns(scope: Option<&Scope>, limit: usize) -> Vec<TurnRow>;
    renew(claims: &[Claim], until_ms: Millis) -> u64;
    publish(publish: &Publish) -> Policy;
    refuse(refusal: &Refusal) -> ();
    release(claim: Claim, retry_at_ms: Millis) -> ();
    }
}

macro_rules! reads {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        #[async_trait]
        impl Reading for FaultyLedger {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$out, LedgerError> {
                self.0.$name($($arg),*).await
            })*
        }
    };
}

reads! {
    turn_page(filter: &TurnFilter, before: Option<u64>, limit: usize) -> Page<TurnLine, u64>;
    session_page(which: (&Scope, Option<&str>), before: Option<SessionCursor>, limit: usize)
        -> Page<SessionLine, SessionCursor>;
    session(id: SessionId, before: Option<u64>, limit: usize) -> Option<SessionView>;
    turn_entries(id: TurnId) -> Vec<TurnEntry>;
    sample_ages(scope: &Scope, version: PolicyVersion) -> Vec<SampleAge>;
    oldest_pending() -> OldestPending;
}
