//! The embedded ledger: one SQLite file, one writing connection, a few that read.
//!
//! Every method that writes is one `begin immediate` transaction with `synchronous = full`: when it
//! returns, the disk has it. Readers see the last commit and never wait for the writer (WAL).

mod answers;
mod audit;
mod chains;
mod collect;
mod consent;
mod copy;
mod early;
mod encoded;
mod erase;
mod fault;
mod forget;
mod imports;
mod judge;
mod known;
mod laws;
mod leases;
mod lift;
mod many;
mod mark;
mod mover;
mod open;
mod paths;
mod people;
mod personal;
mod place;
mod policies;
mod reading;
mod replay;
mod rows;
mod schema;
mod standings;
mod taint;
mod teams;
mod texts;
mod train;
mod trials;
mod unreadable;
mod version_calls;
mod versions;
mod views;
mod watch;
mod whole;
mod wishes;
mod writer;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod early_tests;
#[cfg(test)]
mod erasure_tests;
#[cfg(test)]
mod law_tests;
#[cfg(test)]
mod open_tests;
#[cfg(test)]
mod page_tests;
#[cfg(test)]
mod people_tests;
#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod restart_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unreadable_tests;

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use hone_domain::{
    Digest, Feedback, Millis, Policy, PolicyVersion, Reason, Scope, Transition, TransitionId, Turn,
    TurnId, Verdict,
};
use sqlx::sqlite::SqlitePool;
use sqlx::{Sqlite, Transaction};

pub(crate) use copy::kept_blobs_of;
use fault::Fault;
use hone_ledger::{
    ApiKey, AuditCheck, AuditCount, AuditEntry, AuditQuery, AuditRecord, Changed, Claim, Claimed,
    ClaimedSamples, FeedbackOutcome, Invite, Ledger, LedgerCounts, LedgerError, OpenPage, OpenTurn,
    People, PeopleChange, PolicyRecord, Publish, Ready, Refusal, ReplayQuery, Replayed,
    SampleClaim, SignIn, Team, TurnRow, TurnView, User, Uses,
};
pub(crate) use mark::FILE as MARK_FILE;
use mover::Mover;
pub(crate) use open::take_folder;
pub use open::{SqliteConfig, make_private};
pub(crate) use paths::{RESTORING, folder_of};
use place::Place;
pub use place::check_not_lost;
use writer::{Writer, Writing};

/// The ledger in one SQLite file.
pub struct SqliteLedger {
    file: PathBuf,
    config: SqliteConfig,
    writer: Arc<Writer>,
    readers: SqlitePool,
    mover: Arc<Mover>,
    /// Where its files are.
    place: Place,
    /// Whether somebody changed the schema.
    schema: whole::Looked,
    /// Wishes to be forgotten up to this number are older than this process.
    older_forgets: i64,
    /// The place of who plans what a wish would do, one at a time: a plan has a connection and lists of
    /// its own.
    planning: tokio::sync::Mutex<()>,
    /// Ownership of the data folder, until the ledger is closed or dropped.
    owner: Mutex<Option<File>>,
}

impl SqliteLedger {
    /// Opens the file, creates it where it is missing, and brings its schema up to date.
    ///
    /// # Errors
    /// `Unusable`, naming the file or folder and a remedy: the folder cannot be written or belongs
    /// to another process, the file is locked, damaged, no ledger, or of a newer program.
    pub async fn open(config: &SqliteConfig) -> Result<Self, LedgerError> {
        Ok(Self::of(config, open::open(config).await?))
    }

    /// Opens the file also while another process owns its folder, for short work beside it:
    /// SQLite's own lock orders the writes. Creates and updates the schema only where it is owner.
    ///
    /// # Errors
    /// As [`Self::open`], but for a folder in use; also where the running process has another schema.
    pub async fn open_beside(config: &SqliteConfig) -> Result<Self, LedgerError> {
        Ok(Self::of(config, open::open_beside(config).await?))
    }

    fn of(config: &SqliteConfig, opened: open::Opened) -> Self {
        Self {
            file: config.file.clone(),
            config: config.clone(),
            writer: opened.writer,
            readers: opened.readers,
            mover: Mover::new(opened.mover),
            place: opened.place,
            schema: whole::Looked::default(),
            older_forgets: opened.older_forgets,
            planning: tokio::sync::Mutex::default(),
            owner: Mutex::new(opened.lock),
        }
    }

    /// Begins a writing transaction.
    async fn begin(&self) -> Result<Writing, LedgerError> {
        let begun = self.writer.begin().await;
        let begun = begun.map_err(|e| Fault::Sql(e).explain(&self.file))?;
        self.place.check()?;
        Ok(begun)
    }

    /// Makes the work durable, or undoes all of it. What was committed to a file that is gone by now is
    /// not durable, and nobody is told that it is.
    async fn finish<T>(
        &self,
        transaction: Writing,
        done: Result<T, Fault>,
    ) -> Result<T, LedgerError> {
        let ended = match done {
            Ok(value) => {
                let committed = transaction.commit().await;
                self.mover.note_commit();
                let committed = committed.map_err(Fault::Sql);
                committed.and_then(|()| Ok(self.place.check().map(|()| value)?))
            }
            Err(fault) => {
                // The first failure is the one to tell; whoever writes next undoes what this did not.
                if let Err(error) = transaction.undo().await {
                    tracing::debug!(%error, "the ledger could not undo a transaction");
                }
                Err(fault)
            }
        };
        ended.map_err(|fault| fault.explain(&self.file))
    }

    /// Begins a view of one moment.
    async fn look(&self) -> Result<Transaction<'static, Sqlite>, LedgerError> {
        let begun = self.readers.begin().await;
        begun.map_err(|e| Fault::Sql(e).explain(&self.file))
    }

    fn explain<T>(&self, done: Result<T, Fault>) -> Result<T, LedgerError> {
        done.map_err(|fault| fault.explain(&self.file))
    }
}

#[async_trait]
impl People for SqliteLedger {
    async fn change(
        &self,
        change: &PeopleChange,
        entry: &AuditEntry,
    ) -> Result<Changed, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = people::change(&mut transaction, change, entry).await;
        self.finish(transaction, done).await
    }

    async fn user(&self, name: &str) -> Result<Option<User>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(people::user(&mut moment, name).await)
    }

    async fn users(&self) -> Result<Vec<User>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(people::users(&mut moment).await)
    }

    async fn teams(&self) -> Result<Vec<Team>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(teams::teams(&mut moment).await)
    }

    async fn key(&self, id: &str) -> Result<Option<ApiKey>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(people::key(&mut moment, id).await)
    }

    async fn keys(&self, owner: Option<&str>) -> Result<Vec<ApiKey>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(people::keys(&mut moment, owner).await)
    }

    async fn sign_in(&self, token: Digest) -> Result<Option<SignIn>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(people::sign_in(&mut moment, token).await)
    }

    async fn invite(&self, token: Digest) -> Result<Option<Invite>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(people::invite(&mut moment, token).await)
    }

    async fn note_uses(&self, uses: &Uses, idle_ms: Millis) -> Result<(), LedgerError> {
        let mut transaction = self.begin().await?;
        let done = people::note_uses(&mut transaction, uses, idle_ms).await;
        self.finish(transaction, done).await
    }

    async fn revision(&self) -> Result<u64, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(people::revision(&mut moment).await)
    }

    async fn record(&self, entry: &AuditEntry) -> Result<AuditRecord, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = audit::record(&mut transaction, entry).await;
        self.finish(transaction, done).await
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditRecord>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(audit::list(&mut moment, query).await)
    }

    async fn verify_audit(&self) -> Result<AuditCheck, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(audit::verify(&mut moment).await)
    }
}

#[async_trait]
impl Ledger for SqliteLedger {
    async fn record_turns(&self, turns: &[Turn]) -> Result<Vec<TurnId>, LedgerError> {
        let encoded = self.explain(encoded::encode(turns))?;
        let taken = self.writer.take_open().await.map_err(Fault::Sql);
        let mut transaction = self.explain(taken)?;
        self.place.check()?;
        let (older, changes) = (self.older_forgets, transaction.changes());
        match collect::record_turns(&mut transaction, &encoded, older, changes).await {
            Ok((forgotten, rows)) => {
                let counted = transaction.committed(&rows).map_err(Fault::Sql);
                self.mover.note_commit();
                self.explain(counted)?;
                self.place.check().map(|()| forgotten)
            }
            Err(fault) => self.finish(transaction, Err(fault)).await,
        }
    }

    async fn record_transitions(
        &self,
        transitions: &[Transition],
    ) -> Result<Vec<TransitionId>, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = collect::record_transitions(&mut transaction, transitions).await;
        self.finish(transaction, done).await
    }

    async fn settle_turns(&self, turns: &[(TurnId, Reason)]) -> Result<(), LedgerError> {
        let mut transaction = self.begin().await?;
        let done = collect::settle_turns(&mut transaction, turns).await;
        self.finish(transaction, done).await
    }

    async fn open_turns(&self, limit: usize) -> Result<Vec<OpenTurn>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(views::open_turns(&mut moment, limit).await)
    }

    async fn open_page(
        &self,
        newest: usize,
        from: Option<i64>,
        limit: usize,
    ) -> Result<OpenPage, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(views::open_page(&mut moment, newest, from, limit).await)
    }

    async fn record_feedback(&self, feedback: &Feedback) -> Result<FeedbackOutcome, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = collect::record_feedback(&mut transaction, feedback).await;
        self.finish(transaction, done).await
    }

    async fn claim_transitions(
        &self,
        limit: usize,
        lease_ms: Millis,
        now_ms: Millis,
    ) -> Result<Vec<Claimed>, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = judge::claim_transitions(&mut transaction, limit, lease_ms, now_ms).await;
        self.finish(transaction, done).await
    }

    async fn record_verdict(&self, claim: Claim, verdict: &Verdict) -> Result<(), LedgerError> {
        let mut transaction = self.begin().await?;
        let done = judge::record_verdict(&mut transaction, claim, verdict).await;
        self.finish(transaction, done).await
    }

    async fn release(&self, claim: Claim, retry_at_ms: Millis) -> Result<(), LedgerError> {
        let mut transaction = self.begin().await?;
        let done = leases::release(&mut transaction, claim, retry_at_ms).await;
        self.finish(transaction, done).await
    }

    async fn give_up(&self, claim: Claim) -> Result<(), LedgerError> {
        let mut transaction = self.begin().await?;
        let done = leases::give_up(&mut transaction, claim).await;
        self.finish(transaction, done).await
    }

    async fn settle_claims(&self, claims: &[Claim], reason: Reason) -> Result<u64, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = leases::settle(&mut transaction, claims, reason).await;
        self.finish(transaction, done).await
    }

    async fn renew(&self, claims: &[Claim], until_ms: Millis) -> Result<u64, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = leases::renew(&mut transaction, claims, until_ms).await;
        self.finish(transaction, done).await
    }

    async fn ready(&self, now_ms: Millis) -> Result<Vec<Ready>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(train::ready(&mut moment, now_ms).await)
    }

    async fn claim_samples(&self, claim: &SampleClaim) -> Result<ClaimedSamples, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = train::claim_samples(&mut transaction, claim).await;
        self.finish(transaction, done).await
    }

    async fn replay(&self, query: &ReplayQuery) -> Result<Vec<Replayed>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(replay::replay(&mut moment, query).await)
    }

    async fn publish(&self, publish: &Publish) -> Result<Policy, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = train::publish(&mut transaction, publish).await;
        self.finish(transaction, done).await
    }

    async fn refuse(&self, refusal: &Refusal) -> Result<(), LedgerError> {
        let mut transaction = self.begin().await?;
        let done = train::refuse(&mut transaction, refusal).await;
        self.finish(transaction, done).await
    }

    async fn heads(&self) -> Result<Vec<Policy>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(policies::heads(&mut moment).await)
    }

    async fn versions(
        &self,
        scope: Option<&Scope>,
        limit: usize,
    ) -> Result<Vec<PolicyRecord>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(policies::versions(&mut moment, scope, limit).await)
    }

    async fn rollback(
        &self,
        scope: &Scope,
        to: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Policy, LedgerError> {
        let mut transaction = self.begin().await?;
        let done = standings::rollback(&mut transaction, scope, to, now_ms).await;
        self.finish(transaction, done).await
    }

    async fn turn(&self, id: TurnId) -> Result<Option<TurnView>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(views::turn(&mut moment, id).await)
    }

    async fn turns(
        &self,
        scope: Option<&Scope>,
        limit: usize,
    ) -> Result<Vec<TurnRow>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(views::turns(&mut moment, scope, limit).await)
    }

    async fn audits(&self) -> Result<Vec<AuditCount>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(judge::audits(&mut moment).await)
    }

    async fn counts(&self) -> Result<LedgerCounts, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(views::counts(&mut moment).await)
    }

    async fn scores_by_version(
        &self,
        scope: &Scope,
    ) -> Result<Vec<(PolicyVersion, f64, u64)>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(views::scores_by_version(&mut moment, scope).await)
    }

    async fn check_laws(&self) -> Result<Vec<String>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(laws::check(&mut moment).await)
    }

    fn in_place(&self) -> Result<(), LedgerError> {
        self.place.check()
    }

    async fn missing_parts(&self) -> Result<Vec<String>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(self.schema.missing(&mut moment).await)
    }

    async fn damage(&self) -> Result<Vec<String>, LedgerError> {
        match self.check_file().await {
            // It is damaged so that not even the check comes to its end.
            Err(error @ LedgerError::Unusable(_)) => Ok(vec![error.to_string()]),
            found => found,
        }
    }

    async fn close(&self) {
        // Readers first: the last connection moves the write-ahead log into the main file.
        self.readers.close().await;
        self.mover.close().await;
        self.writer.close().await;
        let owner = self.owner.lock();
        if let Some(lock) = owner.unwrap_or_else(PoisonError::into_inner).take() {
            // Said, and not left to the drop: a child that was just forked holds the file until it
            // runs its own program, and with it the lock.
            let _ends_with_the_file = lock.unlock();
        }
    }
}
