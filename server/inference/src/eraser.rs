//! Carries out wishes to be forgotten: what decides at once, the removing piece by piece beside
//! everything else. A wish that was under way when the process ended goes on at the next start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use hone_collect::{SharedIndex, Spool};
use hone_domain::{BlobError, Blobs, ForgetId, OnTrial, Policies, Scope};
use hone_ledger::{
    ForgetReport, ForgetStep, ForgetWhat, ForgetWish, LedgerError, LooseBlob, Personal, Versions,
    Window,
};
use hone_memory::SharedMemories;
use hone_runtime::{Latest, Shutdown};
use hone_serve::Backend;
use tokio::sync::Notify;

/// Pause between two pieces, so that the recorder gets the ledger in between.
const BREATH: Duration = Duration::from_millis(2);
/// Longest wait for the spool before a wish.
const CATCH_UP: Duration = Duration::from_secs(10);
/// First and longest pause after a failure, or while a reader keeps the log from being emptied.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));

/// What the eraser works with.
pub struct Eraser {
    /// The ledger.
    pub personal: Arc<dyn Personal>,
    /// What is published; the same ledger.
    pub versions: Arc<dyn Versions>,
    /// Where adapters and checkpoints lie.
    pub blobs: Arc<dyn Blobs>,
    /// Tells serve what is served now.
    pub policies: Latest<Policies>,
    /// Has adapters in memory; none where nothing is served.
    pub backend: Option<Arc<dyn Backend>>,
    /// What the gateway remembers of sessions.
    pub index: SharedIndex,
    /// Where turns wait that no wish finds yet.
    pub spool: Arc<Spool>,
    /// What it shows of memories.
    pub memories: Arc<SharedMemories>,
    /// Turns that one transaction removes.
    pub piece_turns: usize,
    wake: Notify,
    ended: Latest<u64>,
    stopped: AtomicBool,
}

/// The same with a trial of a version that was never told. One of a version that was told is left as
/// it is: it may have ended since the ledger was read.
fn missed_trial(heads: &Policies, trial: OnTrial) -> Policies {
    if heads.version(&trial.policy.scope) >= trial.policy.version {
        return heads.clone();
    }
    heads.on_trial(trial)
}

impl Eraser {
    /// An eraser that waits for [`Self::run`].
    pub fn new(
        (personal, versions): (Arc<dyn Personal>, Arc<dyn Versions>),
        (blobs, backend): (Arc<dyn Blobs>, Option<Arc<dyn Backend>>),
        (policies, index): (Latest<Policies>, SharedIndex),
        spool: Arc<Spool>,
        memories: Arc<SharedMemories>,
        piece_turns: usize,
    ) -> Self {
        Self {
            personal,
            versions,
            blobs,
            policies,
            backend,
            index,
            spool,
            memories,
            piece_turns,
            wake: Notify::new(),
            ended: Latest::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Waits until every turn that was acknowledged is where a wish finds it. False where that takes too long, or the
    /// ledger does not answer.
    pub async fn caught_up(&self) -> bool {
        let is_away = self.spool.status().is_away;
        self.spool.is_empty() || (!is_away && self.spool.until_empty(CATCH_UP).await)
    }

    /// Takes a wish: from its return on nothing that goes is trained on, served or remembered.
    ///
    /// # Errors
    /// The ledger's; nothing has changed then.
    pub async fn begin(&self, wish: &ForgetWish) -> Result<ForgetReport, LedgerError> {
        let begun = self.personal.begin_forget(wish).await?;
        self.memories.refresh(&wish.scope).await;
        for policy in begun.restored {
            self.policies.update(|heads| heads.with(policy.clone()));
        }
        for scope in &begun.trials_ended {
            self.policies
                .update(|heads| heads.proven(scope, heads.version(scope)));
        }
        {
            // Whatever panicked while it was held, every change leaves the index whole.
            let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
            for session in &begun.sessions {
                match wish.what {
                    ForgetWhat::Turns(_) => index.forget_turns(*session, &begun.turns),
                    ForgetWhat::All | ForgetWhat::Session(_) => index.forget_session(*session),
                }
            }
        }
        let report = &begun.report;
        tracing::info!(
            forget = %report.id,
            turns = report.turns,
            versions_tainted = report.versions_tainted.len(),
            rolls_back_to = report.rolls_back_to.map(|version| version.0),
            "a wish to be forgotten begins"
        );
        self.wake.notify_one();
        for (scope, tainted) in &begun.scopes {
            if let Err(error) = self.tell(scope).await {
                // The wish stands all the same; the next one, or a start, reads it again.
                tracing::warn!(%error, "what a scope is served could not be read again");
            }
            // After it was told what takes their place: who asks from now on gets that.
            if let Some(backend) = &self.backend {
                backend.withdraw(scope, tainted);
            }
        }
        Ok(begun.report)
    }

    /// Tells serve what the ledger says of a scope, also where an older wish was carried out there
    /// and never told.
    async fn tell(&self, scope: &Scope) -> Result<(), LedgerError> {
        // What is known goes first: a trial that it has and the ledger has not any more is over.
        let known = self.policies.get().trial(scope).cloned();
        let newest = Window {
            limit: 1,
            before: None,
        };
        // The newest goes before the trial, so that no trial of it is missed.
        let newest = self.versions.version_page(scope, newest).await?;
        if self.versions.standing(scope).await?.trial.is_some() {
            let mut trials = self.versions.trials().await?.into_iter();
            if let Some(trial) = trials.find(|trial| trial.policy.scope == *scope) {
                self.policies.update(|heads| missed_trial(heads, trial));
            }
            return Ok(());
        }
        let newest = newest.into_iter().next().map(|record| record.policy);
        self.policies.update(|heads| {
            let heads = newest.map_or_else(|| heads.clone(), |newest| heads.with(newest));
            match known {
                Some(over) if heads.trial(scope) == Some(&over) => {
                    heads.proven(scope, over.policy.version)
                }
                _ => heads,
            }
        });
        Ok(())
    }

    /// Waits until a wish is done, or nothing is removed any more, at most so long; then how far it has
    /// come.
    ///
    /// # Errors
    /// The ledger's.
    pub async fn wait(
        &self,
        id: ForgetId,
        at_most: Duration,
    ) -> Result<Option<ForgetReport>, LedgerError> {
        let mut ended = self.ended.reader();
        let done = async {
            loop {
                let report = self.personal.forget(id).await?;
                let is_done = report.as_ref().is_none_or(|report| report.is_done);
                if is_done || self.stopped.load(Ordering::Acquire) {
                    return Ok(report);
                }
                if ended.changed().await.is_none() {
                    return Ok(report);
                }
            }
        };
        match tokio::time::timeout(at_most, done).await {
            Ok(report) => report,
            Err(_) => self.personal.forget(id).await,
        }
    }

    /// Removes what is to be removed until the shutdown.
    pub async fn run(self: Arc<Self>, shutdown: Shutdown) {
        self.erase_until(shutdown).await;
        self.stopped.store(true, Ordering::Release);
        // Who waits for a wish looks once more.
        self.ended.update(|n| n + 1);
    }

    async fn erase_until(&self, shutdown: Shutdown) {
        let stopped = shutdown.wait();
        tokio::pin!(stopped);
        let mut pause = RETRY.0;
        let mut is_swept = false;
        loop {
            let work = async {
                // Once per start: what an older program left behind.
                if !is_swept {
                    self.sweep().await?;
                    is_swept = true;
                }
                self.work().await
            };
            let done = tokio::select! {
                biased;
                () = &mut stopped => return,
                done = work => done,
            };
            let waiting = async {
                match &done {
                    Ok(()) => self.wake.notified().await,
                    Err(error) => {
                        tracing::warn!(error, "erasing goes on in a moment");
                        // A new wish need not wait for what an older one waits for.
                        tokio::select! {
                            () = tokio::time::sleep(pause) => {}
                            () = self.wake.notified() => {}
                        }
                    }
                }
            };
            tokio::select! {
                () = waiting => {}
                () = &mut stopped => return,
            }
            pause = match done {
                Ok(()) => RETRY.0,
                Err(_) => (pause * 2).min(RETRY.1),
            };
        }
    }

    /// Finishes every wish that is under way. One that cannot be finished keeps no other waiting; the
    /// first failure is told.
    async fn work(&self) -> Result<(), String> {
        let sentence = |error: LedgerError| error.to_string();
        let mut all = Ok(());
        for id in self.personal.forgets_under_way().await.map_err(sentence)? {
            let done = self.finish(id).await;
            if done.is_ok() {
                tracing::info!(forget = %id, "a wish to be forgotten is done");
                self.ended.update(|n| n + 1);
            }
            all = all.and(done);
        }
        all
    }

    /// Removes what no turn uses and no wish waits for.
    async fn sweep(&self) -> Result<(), String> {
        let sentence = |error: LedgerError| error.to_string();
        let mut pieces = 0u64;
        while self
            .personal
            .sweep(self.piece_turns)
            .await
            .map_err(sentence)?
            == ForgetStep::More
        {
            pieces += 1;
            tokio::time::sleep(BREATH).await;
        }
        if pieces > 0 {
            tracing::info!(pieces, "text and tokens that no turn uses were removed");
        }
        Ok(())
    }

    async fn finish(&self, id: ForgetId) -> Result<(), String> {
        let sentence = |error: LedgerError| error.to_string();
        loop {
            let step = self.personal.forget_piece(id, self.piece_turns).await;
            match step.map_err(sentence)? {
                ForgetStep::Done => return Ok(()),
                ForgetStep::More => tokio::time::sleep(BREATH).await,
                ForgetStep::LogBusy => {
                    return Err("a long look at the ledger keeps its log in place".to_owned());
                }
                ForgetStep::RemoveBlobs(files) => {
                    self.remove(files.clone()).await?;
                    let noted = self.personal.blobs_removed(&files).await;
                    noted.map_err(sentence)?;
                }
            }
        }
    }

    /// Removes adapters and the learners' checkpoints beside them.
    async fn remove(&self, files: Vec<LooseBlob>) -> Result<(), String> {
        let blobs = self.blobs.clone();
        let removing = tokio::task::spawn_blocking(move || {
            files.iter().try_for_each(|file| {
                blobs.remove(&file.blob)?;
                blobs.remove(&file.blob.aside())?;
                blobs.remove(&hone_domain::checkpoint_key(&file.scope, file.digest))
            })
        });
        let removed = removing.await.map_err(|error| error.to_string())?;
        removed.map_err(|error: BlobError| error.to_string())
    }
}
