//! Who judges and who trains. A role belongs to one process at a time: to the one whose connection holds its lock.
//! The lock ends with the connection, so a process that died holds nobody up.

use hone_ledger::{Consumer, LedgerError};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::Mutex;

use crate::db::Fault;
use crate::queries::leases;

/// The roles of this process.
pub(super) struct Roles(Mutex<Option<PgConnection>>);

/// The number of a lock from its name.
pub(super) const LOCK: &str = "hashtextextended($1, 0)";

/// The name of a lock in a ledger.
pub(super) fn lock_name(schema: &str, what: &str) -> String {
    format!("hone {schema} {what}")
}

impl Roles {
    /// Takes the roles over a connection that they keep.
    ///
    /// # Errors
    /// `Unusable`, naming who has one, and what to do.
    pub(super) async fn take(
        mut connection: PgConnection,
        roles: &[Consumer],
        schema: &str,
        shown: &str,
    ) -> Result<Self, Fault> {
        for role in roles {
            let role = leases::name(*role);
            let sql = sqlx::AssertSqlSafe(format!("select pg_try_advisory_lock({LOCK})"));
            let taken: bool = sqlx::query_scalar(sql)
                .bind(lock_name(schema, role))
                .fetch_one(&mut connection)
                .await?;
            if !taken {
                let holder = holder(&mut connection, lock_name(schema, role)).await?;
                return Err(Fault::Ledger(refusal(role, holder, shown)));
            }
        }
        if roles.is_empty() {
            connection.close().await?;
            return Ok(Self(Mutex::new(None)));
        }
        Ok(Self(Mutex::new(Some(connection))))
    }

    pub(super) async fn give_up(&self) {
        if let Some(connection) = self.0.lock().await.take()
            && let Err(error) = connection.close().await
        {
            tracing::debug!(%error, "the connection that holds the roles did not close well");
        }
    }
}

/// The name of another process and where it is.
async fn holder(
    connection: &mut PgConnection,
    lock: String,
) -> Result<Option<(String, String)>, sqlx::Error> {
    let sql = sqlx::AssertSqlSafe(format!(
        "select application_name, coalesce(host(client_addr), 'the database server itself')
         from pg_locks join pg_stat_activity using (pid)
         where locktype = 'advisory' and granted and objsubid = 1
           and (classid::bigint << 32) | objid::bigint = {LOCK} limit 1"
    ));
    sqlx::query_as(sql)
        .bind(lock)
        .fetch_optional(connection)
        .await
}

fn refusal(role: &str, holder: Option<(String, String)>, shown: &str) -> LedgerError {
    let verb = match role {
        "train" => "trains",
        _ => "judges",
    };
    let who = holder.map_or_else(
        || "another process".to_owned(),
        |(name, place)| format!("{name} on {place}"),
    );
    LedgerError::Unusable(format!(
        "{who} {verb} already with the ledger {shown}, and only one process may; stop that one, or start this one \
         without that loop (hone serve --loops)"
    ))
}
