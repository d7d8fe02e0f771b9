//! What one process at a time does with a ledger: judging, training, keeping memories. A role belongs to the process whose
//! connection holds its lock. The lock ends with the connection, so a process that died holds nobody up; and a process looks
//! whether its connection still lives, because the database may end it while the process goes on.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use hone_ledger::{Consumer, LedgerError};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use hone_ledger_queries::db::Fault;

/// How often a process looks whether it still has its roles.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A connection that does not answer within this is taken for lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What one process at a time does with a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The loop `judge`.
    Judge,
    /// The loop `train`.
    Train,
    /// The loop `memory`.
    Memory,
}

impl Role {
    /// The stored name.
    fn name(self) -> &'static str {
        match self {
            Self::Judge => "judge",
            Self::Train => "train",
            Self::Memory => "memory",
        }
    }

    /// As it stands behind the name of a process.
    fn verb(self) -> &'static str {
        match self {
            Self::Judge => "judges",
            Self::Train => "trains",
            Self::Memory => "keeps memories",
        }
    }

    /// Whose leases its holder takes.
    pub(super) fn consumer(self) -> Option<Consumer> {
        match self {
            Self::Judge => Some(Consumer::Judge),
            Self::Train => Some(Consumer::Train),
            Self::Memory => None,
        }
    }
}

/// The roles of this process.
#[derive(Default)]
pub(super) struct Roles {
    held: Option<(Arc<Held>, AbortHandle)>,
}

/// Roles that are held as long as their connection lives.
struct Held {
    connection: Mutex<Option<PgConnection>>,
    lost: StdMutex<Option<String>>,
    options: PgConnectOptions,
    roles: Vec<Role>,
    schema: String,
    /// The database as people are told of it.
    shown: String,
}

/// The number of a lock from its name.
pub(super) const LOCK: &str = "hashtextextended($1, 0)";

/// The name of a lock in a ledger.
pub(super) fn lock_name(schema: &str, what: &str) -> String {
    format!("hone {schema} {what}")
}

impl Roles {
    /// Takes the roles over a connection of their own.
    ///
    /// # Errors
    /// `RoleTaken`, naming who has one, and what to do.
    pub(super) async fn take(
        options: &PgConnectOptions,
        roles: &[Role],
        schema: &str,
        shown: &str,
    ) -> Result<Self, Fault> {
        if roles.is_empty() {
            return Ok(Self::default());
        }
        let held = Arc::new(Held {
            connection: Mutex::default(),
            lost: StdMutex::default(),
            options: options.clone(),
            roles: roles.to_vec(),
            schema: schema.to_owned(),
            shown: shown.to_owned(),
        });
        *held.connection.lock().await = Some(held.locked().await?);
        let watched = held.clone();
        let watching = tokio::spawn(async move { watched.watch().await });
        Ok(Self {
            held: Some((held, watching.abort_handle())),
        })
    }

    /// Why this process no longer has its roles; none where it has.
    pub(super) fn lost(&self) -> Option<String> {
        let (held, _) = self.held.as_ref()?;
        held.lost().clone()
    }

    pub(super) async fn give_up(&self) {
        let Some((held, watching)) = &self.held else {
            return;
        };
        watching.abort();
        if let Some(connection) = held.connection.lock().await.take()
            && let Err(error) = connection.close().await
        {
            tracing::debug!(%error, "the connection that holds the roles did not close well");
        }
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        if let Some((_, watching)) = &self.held {
            watching.abort();
        }
    }
}

impl Held {
    fn lost(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that holds the locks of all roles.
    async fn locked(&self) -> Result<PgConnection, Fault> {
        let mut connection = self.options.connect().await?;
        for role in &self.roles {
            let lock = lock_name(&self.schema, role.name());
            let sql = AssertSqlSafe(format!("select pg_try_advisory_lock({LOCK})"));
            let taken: bool = sqlx::query_scalar(sql)
                .bind(&lock)
                .fetch_one(&mut connection)
                .await?;
            if !taken {
                let holder = holder(&mut connection, lock).await?;
                return Err(Fault::Ledger(self.refusal(*role, holder)));
            }
        }
        Ok(connection)
    }

    /// Looks again and again whether the connection lives. One that died is replaced while nobody else has a role, and until
    /// the database is there again.
    async fn watch(&self) {
        loop {
            sleep(LOOK_EVERY).await;
            let mut connection = self.connection.lock().await;
            let is_live = match connection.as_mut() {
                Some(held) => timeout(ANSWER_WITHIN, held.ping())
                    .await
                    .is_ok_and(|pong| pong.is_ok()),
                None => false,
            };
            if is_live {
                continue;
            }
            *connection = None;
            match timeout(ANSWER_WITHIN, self.locked()).await {
                Ok(Ok(again)) => {
                    tracing::warn!(
                        "the connection that holds the roles of this process was cut, and was made again"
                    );
                    *connection = Some(again);
                }
                Ok(Err(Fault::Ledger(LedgerError::RoleTaken(why)))) => {
                    *self.lost() = Some(format!(
                        "this process lost its connection to the database, and {why}"
                    ));
                    return;
                }
                // The database is away, for everybody.
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    fn refusal(&self, role: Role, holder: Option<(String, String)>) -> LedgerError {
        let who = holder.map_or_else(
            || "another process".to_owned(),
            |(name, place)| format!("{name} on {place}"),
        );
        LedgerError::RoleTaken(format!(
            "{who} {} already with the ledger {}, and only one process may; stop that one, or start this one without that \
             loop (hone serve --loops)",
            role.verb(),
            self.shown
        ))
    }
}

/// The name of another process and where it is.
async fn holder(
    connection: &mut PgConnection,
    lock: String,
) -> Result<Option<(String, String)>, sqlx::Error> {
    let sql = AssertSqlSafe(format!(
        "select application_name, coalesce(host(client_addr), 'the database server itself')
         from pg_locks join pg_stat_activity using (pid)
         where locktype = 'advisory' and granted and objsubid = 1
           and database = (select oid from pg_database where datname = current_database())
           and (classid::bigint << 32) | objid::bigint = {LOCK} limit 1"
    ));
    sqlx::query_as(sql)
        .bind(lock)
        .fetch_optional(connection)
        .await
}
