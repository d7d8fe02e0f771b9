//! What the ledger asks a database, written once, whichever database answers: [`SqlLedger`] over a [`Store`].
//!
//! Every method that writes is one transaction: when it returns, the database has it durably. Readers see one
//! moment and never wait for the writer.
//!
//! Never: how a database is opened, kept, moved or backed up; who asks, or why.

/// One writing transaction: runs the work on its connection, and makes it durable or undoes it. Work that the database
/// undid for another's sake is done again.
macro_rules! transact {
    ($ledger:expr, $connection:ident => $work:expr) => {{
        let mut tries = Tries::default();
        loop {
            let mut writing = $ledger.store.begin().await?;
            let done = {
                let $connection = &mut writing.connection();
                $work.await
            };
            match $ledger.store.finish(writing, done).await {
                Ok(value) => break Ok(value),
                Err(unfinished) => tries.again(unfinished).await?,
            }
        }
    }};
}

/// One view of one moment.
macro_rules! look {
    ($ledger:expr, $connection:ident => $work:expr) => {{
        let mut moment = $ledger.store.look().await?;
        let found = {
            let $connection = &mut moment.connection();
            $work.await
        };
        $ledger.store.explain(found)
    }};
}

mod answers;
pub mod audit;
mod chains;
mod changes;
pub mod codec;
mod collect;
mod consent;
pub mod db;
pub mod early;
mod encoded;
mod erase;
pub mod forget;
mod imports;
mod jobs;
mod judge;
mod known;
mod laws;
pub mod leases;
pub mod lift;
mod memories;
mod memory_uses;
mod people;
mod personal;
mod policies;
mod progress;
mod pruning;
mod reading;
pub mod replay;
pub mod retention;
mod rewards;
pub mod rows;
mod skill_rows;
mod skill_writes;
mod skills;
mod standings;
mod storage;
pub mod taint;
mod task_sets;
mod tasks;
mod teams;
mod texts;
pub mod train;
mod trials;
mod unread;
mod unreadable;
mod version_calls;
pub mod versions;
mod views;
mod watch;
pub mod wishes;

use std::time::Duration;

use async_trait::async_trait;
use hone_domain::{
    Digest, Feedback, Millis, Policy, PolicyVersion, Reason, Scope, SessionCredit, SessionReward,
    Transition, TransitionId, Turn, TurnId, Verdict,
};
use hone_ledger::{
    ApiKey, AuditCheck, AuditCount, AuditEntry, AuditQuery, AuditRecord, Changed, Claim, Claimed,
    ClaimedSamples, FeedbackOutcome, ForgetReport, ForgetWish, Invite, Ledger, LedgerCounts,
    LedgerError, LedgerSize, OpenPage, OpenTurn, People, PeopleChange, PolicyRecord, Publish,
    Ready, Refusal, ReplayQuery, Replayed, Rewarded, SampleClaim, SignIn, Team, TurnRow, TurnView,
    User, Uses,
};

use sqlx::{Postgres, Sqlite, Transaction};

use crate::db::{Connection, Fault, Row};

/// Why a transaction came to nothing.
#[derive(Debug)]
pub enum Unfinished {
    /// The same work may succeed: the database undid it for another's sake, or its connection ended before.
    Again(LedgerError),
    /// It would fail again.
    Failed(LedgerError),
}

/// Most tries of one transaction, and the first pause between two; each later one is twice as long.
const TRIES_MAX: u32 = 6;
const PAUSE: Duration = Duration::from_millis(5);

/// How often a transaction was tried.
#[derive(Default)]
struct Tries(u32);

impl Tries {
    /// Waits for the next try.
    ///
    /// # Errors
    /// There is none.
    async fn again(&mut self, unfinished: Unfinished) -> Result<(), LedgerError> {
        self.0 += 1;
        match unfinished {
            Unfinished::Again(error) if self.0 < TRIES_MAX => {
                tracing::debug!(%error, tries = self.0, "a transaction is done again");
                tokio::time::sleep(PAUSE * (1 << self.0)).await;
                Ok(())
            }
            Unfinished::Again(error) | Unfinished::Failed(error) => Err(error),
        }
    }
}

/// A connection that is held for one transaction.
pub trait Held: Send {
    fn connection(&mut self) -> Connection<'_>;
}

impl Held for Transaction<'static, Postgres> {
    fn connection(&mut self) -> Connection<'_> {
        Connection::Postgres(&mut *self)
    }
}

impl Held for Transaction<'static, Sqlite> {
    fn connection(&mut self) -> Connection<'_> {
        Connection::Sqlite(&mut *self)
    }
}

/// A database with its connections.
pub trait Store: Send + Sync + 'static {
    /// A writing transaction; only one at a time.
    type Writing: Held;
    /// A view of one moment.
    type Moment: Held;
    /// Whether several processes may have it at once.
    const SHARED: bool;

    /// As [`hone_ledger::Changes::changed`].
    fn changed(&self) -> impl Future<Output = ()> + Send;

    /// Begins a writing transaction.
    fn begin(&self) -> impl Future<Output = Result<Self::Writing, LedgerError>> + Send;

    /// The connection for a transaction that [`crate::db::many::open`] may begin and [`crate::db::Script::commit`] may end.
    fn take_open(&self) -> impl Future<Output = Result<Self::Writing, LedgerError>> + Send;

    /// What [`crate::db::Script::commit`] is told.
    fn changes(writing: &Self::Writing) -> i64;

    /// Makes the work durable, or undoes all of it.
    fn finish<T: Send>(
        &self,
        writing: Self::Writing,
        done: Result<T, Fault>,
    ) -> impl Future<Output = Result<T, Unfinished>> + Send;

    /// The script ran; `rows` is what it returned. Makes it durable where the script did not.
    fn committed(
        &self,
        writing: Self::Writing,
        rows: &[Row],
    ) -> impl Future<Output = Result<(), Unfinished>> + Send;

    /// A time of the caller's, by the clock that leases are measured by.
    fn lease_time(&self, at_ms: Millis) -> Millis;

    /// Begins a view of one moment.
    fn look(&self) -> impl Future<Output = Result<Self::Moment, LedgerError>> + Send;

    /// A failure as the caller sees it.
    fn explain<T>(&self, done: Result<T, Fault>) -> Result<T, LedgerError>;

    /// Wishes to be forgotten up to this number are older than this process.
    fn older_forgets(&self) -> i64;

    /// Says what a wish would do, and changes nothing.
    fn plan(
        &self,
        wish: &ForgetWish,
    ) -> impl Future<Output = Result<ForgetReport, LedgerError>> + Send;

    /// Empties the log of what was removed; false while a reader is in the way.
    fn empty_log(&self) -> impl Future<Output = Result<bool, LedgerError>> + Send;

    /// As [`Ledger::in_place`].
    fn in_place(&self) -> Result<(), LedgerError>;

    /// As [`hone_ledger::Changes::role_lost`].
    fn role_lost(&self) -> Option<String> {
        None
    }

    /// As [`Ledger::missing_parts`].
    fn missing_parts(&self) -> impl Future<Output = Result<Vec<String>, LedgerError>> + Send;

    /// As [`hone_ledger::Storage::size`].
    fn size(&self) -> impl Future<Output = Result<LedgerSize, LedgerError>> + Send;

    /// Looks at everything that is stored; each finding is a line.
    fn check(&self) -> impl Future<Output = Result<Vec<String>, LedgerError>> + Send;

    /// Waits for who uses it, and closes it for good.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// The ledger in a database.
pub struct SqlLedger<S> {
    pub store: S,
}

#[async_trait]
impl<S: Store> People for SqlLedger<S> {
    async fn change(
        &self,
        change: &PeopleChange,
        entry: &AuditEntry,
    ) -> Result<Changed, LedgerError> {
        transact!(self, connection => people::change(connection, change, entry))
    }

    async fn user(&self, name: &str) -> Result<Option<User>, LedgerError> {
        look!(self, connection => people::user(connection, name))
    }

    async fn users(&self) -> Result<Vec<User>, LedgerError> {
        look!(self, connection => people::users(connection))
    }

    async fn teams(&self) -> Result<Vec<Team>, LedgerError> {
        look!(self, connection => teams::teams(connection))
    }

    async fn key(&self, id: &str) -> Result<Option<ApiKey>, LedgerError> {
        look!(self, connection => people::key(connection, id))
    }

    async fn keys(&self, owner: Option<&str>) -> Result<Vec<ApiKey>, LedgerError> {
        look!(self, connection => people::keys(connection, owner))
    }

    async fn sign_in(&self, token: Digest) -> Result<Option<SignIn>, LedgerError> {
        look!(self, connection => people::sign_in(connection, token))
    }

    async fn invite(&self, token: Digest) -> Result<Option<Invite>, LedgerError> {
        look!(self, connection => people::invite(connection, token))
    }

    async fn note_uses(&self, uses: &Uses, idle_ms: Millis) -> Result<(), LedgerError> {
        transact!(self, connection => people::note_uses(connection, uses, idle_ms))
    }

    async fn revision(&self) -> Result<u64, LedgerError> {
        look!(self, connection => people::revision(connection))
    }

    async fn record(&self, entry: &AuditEntry) -> Result<AuditRecord, LedgerError> {
        transact!(self, connection => audit::record(connection, entry))
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditRecord>, LedgerError> {
        look!(self, connection => audit::list(connection, query))
    }

    async fn verify_audit(&self) -> Result<AuditCheck, LedgerError> {
        look!(self, connection => audit::verify(connection))
    }
}

#[async_trait]
impl<S: Store> Ledger for SqlLedger<S> {
    async fn record_turns(&self, turns: &[Turn]) -> Result<Vec<TurnId>, LedgerError> {
        self.record_spooled(turns, self.store.older_forgets()).await
    }

    async fn record_spooled(&self, turns: &[Turn], mark: i64) -> Result<Vec<TurnId>, LedgerError> {
        let encoded = self.store.explain(encoded::encode(turns))?;
        let mut tries = Tries::default();
        loop {
            let mut writing = self.store.take_open().await?;
            let changes = S::changes(&writing);
            let recorded = {
                let connection = &mut writing.connection();
                collect::record_turns(connection, &encoded, mark, changes).await
            };
            let ended = match recorded {
                Ok((forgotten, rows)) => {
                    let committed = self.store.committed(writing, &rows).await;
                    committed.map(|()| forgotten)
                }
                Err(fault) => self.store.finish(writing, Err(fault)).await,
            };
            match ended {
                Ok(forgotten) => return Ok(forgotten),
                Err(unfinished) => tries.again(unfinished).await?,
            }
        }
    }

    fn forget_mark(&self) -> i64 {
        self.store.older_forgets()
    }

    async fn record_transitions(
        &self,
        transitions: &[Transition],
    ) -> Result<Vec<TransitionId>, LedgerError> {
        transact!(self, connection => collect::record_transitions(connection, transitions))
    }

    async fn settle_turns(&self, turns: &[(TurnId, Reason)]) -> Result<(), LedgerError> {
        transact!(self, connection => collect::settle_turns(connection, turns))
    }

    async fn open_turns(&self, limit: usize) -> Result<Vec<OpenTurn>, LedgerError> {
        look!(self, connection => views::open_turns(connection, limit))
    }

    async fn open_page(
        &self,
        newest: usize,
        from: Option<i64>,
        limit: usize,
    ) -> Result<OpenPage, LedgerError> {
        look!(self, connection => views::open_page(connection, newest, from, limit))
    }

    async fn record_feedback(&self, feedback: &Feedback) -> Result<FeedbackOutcome, LedgerError> {
        let lease_now_ms = self.store.lease_time(feedback.received_ms);
        transact!(self, connection => collect::record_feedback(connection, feedback, lease_now_ms))
    }

    async fn record_reward(
        &self,
        reward: &SessionReward,
        credit: SessionCredit,
    ) -> Result<Option<Rewarded>, LedgerError> {
        let now_ms = self.store.lease_time(reward.received_ms);
        transact!(self, connection => rewards::record_reward(connection, reward, credit, now_ms))
    }

    async fn claim_transitions(
        &self,
        limit: usize,
        lease_ms: Millis,
        now_ms: Millis,
    ) -> Result<Vec<Claimed>, LedgerError> {
        let now_ms = self.store.lease_time(now_ms);
        transact!(self, connection => judge::claim_transitions(connection, limit, lease_ms, now_ms))
    }

    async fn record_verdict(&self, claim: Claim, verdict: &Verdict) -> Result<(), LedgerError> {
        transact!(self, connection => judge::record_verdict(connection, claim, verdict))
    }

    async fn release(&self, claim: Claim, retry_at_ms: Millis) -> Result<(), LedgerError> {
        let retry_at_ms = self.store.lease_time(retry_at_ms);
        transact!(self, connection => leases::release(connection, claim, retry_at_ms))
    }

    async fn give_up(&self, claim: Claim) -> Result<(), LedgerError> {
        transact!(self, connection => leases::give_up(connection, claim))
    }

    async fn settle_claims(&self, claims: &[Claim], reason: Reason) -> Result<u64, LedgerError> {
        transact!(self, connection => leases::settle(connection, claims, reason))
    }

    async fn renew(&self, claims: &[Claim], until_ms: Millis) -> Result<u64, LedgerError> {
        let until_ms = self.store.lease_time(until_ms);
        transact!(self, connection => leases::renew(connection, claims, until_ms))
    }

    async fn ready(&self, now_ms: Millis) -> Result<Vec<Ready>, LedgerError> {
        let now_ms = self.store.lease_time(now_ms);
        look!(self, connection => train::ready(connection, now_ms))
    }

    async fn claim_samples(&self, claim: &SampleClaim) -> Result<ClaimedSamples, LedgerError> {
        let claim = &SampleClaim {
            now_ms: self.store.lease_time(claim.now_ms),
            ..claim.clone()
        };
        transact!(self, connection => train::claim_samples(connection, claim))
    }

    async fn replay(&self, query: &ReplayQuery) -> Result<Vec<Replayed>, LedgerError> {
        look!(self, connection => replay::replay(connection, query))
    }

    async fn publish(&self, publish: &Publish) -> Result<Policy, LedgerError> {
        transact!(self, connection => train::publish(connection, publish))
    }

    async fn refuse(&self, refusal: &Refusal) -> Result<(), LedgerError> {
        transact!(self, connection => train::refuse(connection, refusal))
    }

    async fn heads(&self) -> Result<Vec<Policy>, LedgerError> {
        look!(self, connection => policies::heads(connection))
    }

    async fn versions(
        &self,
        scope: Option<&Scope>,
        limit: usize,
    ) -> Result<Vec<PolicyRecord>, LedgerError> {
        look!(self, connection => policies::versions(connection, scope, limit))
    }

    async fn rollback(
        &self,
        scope: &Scope,
        to: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Policy, LedgerError> {
        transact!(self, connection => standings::rollback(connection, scope, to, now_ms))
    }

    async fn turn(&self, id: TurnId) -> Result<Option<TurnView>, LedgerError> {
        look!(self, connection => views::turn(connection, id))
    }

    async fn turns(
        &self,
        scope: Option<&Scope>,
        limit: usize,
    ) -> Result<Vec<TurnRow>, LedgerError> {
        look!(self, connection => views::turns(connection, scope, limit))
    }

    async fn audits(&self) -> Result<Vec<AuditCount>, LedgerError> {
        look!(self, connection => judge::audits(connection))
    }

    async fn counts(&self) -> Result<LedgerCounts, LedgerError> {
        look!(self, connection => views::counts(connection))
    }

    async fn scores_by_version(
        &self,
        scope: &Scope,
    ) -> Result<Vec<(PolicyVersion, f64, u64)>, LedgerError> {
        look!(self, connection => views::scores_by_version(connection, scope))
    }

    async fn check_laws(&self) -> Result<Vec<String>, LedgerError> {
        look!(self, connection => laws::check(connection))
    }

    fn in_place(&self) -> Result<(), LedgerError> {
        self.store.in_place()
    }

    async fn missing_parts(&self) -> Result<Vec<String>, LedgerError> {
        self.store.missing_parts().await
    }

    async fn damage(&self) -> Result<Vec<String>, LedgerError> {
        match self.store.check().await {
            // It is damaged so that not even the check comes to its end.
            Err(error @ LedgerError::Unusable(_)) => Ok(vec![error.to_string()]),
            found => found,
        }
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
