//! What stands between a scope and its next version: rollback, pin, trip, trial.

use hone_domain::{Millis, Policy, PolicyVersion, Scope};
use serde_json::Value;
use sqlx::AssertSqlSafe;

use super::policies::NewVersion;
use super::texts::{limit, signed, some_text};
use super::{policies, rows};
use crate::db::{self, Connection, Fault, Row, corrupt};
use hone_ledger::{LedgerError, PolicyStatus, Restore, RestoreWhy, Standing, Trial, Tripped};

/// Which rows of `standings` hold their scope.
pub(crate) const HOLDS: &str = "(standings.pinned_ms is not null
    or standings.tripped_ms is not null or standings.trial_ms is not null)";

/// What a row with the columns of `standings` says; nulls where there is none.
pub(crate) fn of_row(row: &Row) -> Result<Standing, Fault> {
    let version = |name: &str| -> Result<Option<PolicyVersion>, Fault> {
        let number: Option<i64> = row.try_get(name)?;
        number.map(rows::version).transpose()
    };
    let tripped = match some_text(row.try_get("tripped_note")?)? {
        None => None,
        Some(note) => Some(Tripped {
            note,
            version: version("tripped_version")?.ok_or_else(|| corrupt("a trip of no version"))?,
            at_ms: row.try_get("tripped_ms")?,
        }),
    };
    let trial = match version("trial_version")? {
        None => None,
        Some(tried) => Some(Trial {
            version: tried,
            proven: version("trial_proven")?.ok_or_else(|| corrupt("a trial without measure"))?,
            share: row
                .try_get::<Option<f64>, _>("trial_share")?
                .ok_or_else(|| corrupt("a trial without share"))?,
            since_ms: row.try_get("trial_ms")?,
        }),
    };
    Ok(Standing {
        pinned: row.try_get::<Option<Millis>, _>("pinned_ms")?.is_some(),
        tripped,
        trial,
    })
}

pub(crate) async fn standing(
    connection: &mut Connection<'_>,
    scope: &Scope,
) -> Result<Standing, Fault> {
    let row = db::query(
        "select standings.* from standings
         join scopes on scopes.number = standings.scope_number where scopes.name = $1",
    )
    .bind(scope.as_str().as_bytes())
    .fetch_optional(connection)
    .await?;
    row.as_ref().map_or(Ok(Standing::default()), of_row)
}

pub(crate) async fn standings(
    connection: &mut Connection<'_>,
    most: usize,
) -> Result<Vec<(Scope, Standing)>, Fault> {
    let found = db::query(AssertSqlSafe(format!(
        "select scopes.name as scope, standings.* from standings
         join scopes on scopes.number = standings.scope_number
         where {HOLDS} order by scopes.number desc limit $1"
    )))
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    found
        .iter()
        .map(|row| Ok((rows::scope(row.try_get("scope")?)?, of_row(row)?)))
        .collect()
}

/// Whether something holds the scope, as a sentence.
pub(crate) async fn held(
    connection: &mut Connection<'_>,
    scope: i64,
) -> Result<Option<&'static str>, Fault> {
    let row = db::query("select * from standings where scope_number = $1")
        .bind(scope)
        .fetch_optional(connection)
        .await?;
    let standing = row.as_ref().map_or(Ok(Standing::default()), of_row)?;
    Ok(if standing.pinned {
        Some("its version is pinned")
    } else if standing.tripped.is_some() {
        Some("learning was stopped after a rollback and waits to be resumed")
    } else if standing.trial.is_some() {
        Some("a version is on trial")
    } else {
        None
    })
}

pub(crate) fn conflict(scope: &Scope, what: &str) -> Fault {
    let scope = scope.as_str();
    Fault::Ledger(LedgerError::Conflict(format!("{what} in scope {scope:?}")))
}

/// Publishes the adapter of `to` again; 0 is the base model.
pub(crate) async fn rollback(
    connection: &mut Connection<'_>,
    scope: &Scope,
    to: PolicyVersion,
    now_ms: Millis,
) -> Result<Policy, Fault> {
    let order = Restore {
        scope: scope.clone(),
        to,
        from: None,
        why: RestoreWhy::Asked,
        note: None,
        now_ms,
    };
    restore(connection, &order).await
}

/// Publishes an older version again. A pin stays with the scope; a trial ends.
pub(crate) async fn restore(
    connection: &mut Connection<'_>,
    order: &Restore,
) -> Result<Policy, Fault> {
    let conflict = |what: &str| conflict(&order.scope, what);
    let number = policies::find_scope(connection, &order.scope)
        .await?
        .ok_or_else(|| conflict("nothing was published"))?;
    let head = policies::head(connection, number).await?;
    let next = PolicyVersion(super::texts::unsigned(head)?).next();
    if order.from.is_some_and(|from| from.next() != next) {
        return Err(conflict("another version has become the newest"));
    }
    if head == signed(order.to.0)? {
        return Err(conflict(&format!(
            "version {} is the newest already",
            order.to
        )));
    }
    let restored = restorable(connection, number, order).await?;
    let policy = Policy {
        version: next,
        ..restored
    };
    let new = NewVersion {
        scope: number,
        policy: &policy,
        parent: order.to,
        status: PolicyStatus::Rollback,
        batch: None,
        samples: 0,
        report: &Value::Null,
        gate: &Value::Null,
        note: order.note.as_ref(),
        published_ms: order.now_ms,
    };
    policies::store(connection, &new).await?;
    leave(connection, number, head, order).await?;
    Ok(policy)
}

/// The policy to be published again.
async fn restorable(
    connection: &mut Connection<'_>,
    scope: i64,
    order: &Restore,
) -> Result<Policy, Fault> {
    if order.to == PolicyVersion::BASE {
        return Ok(Policy::base(order.scope.clone(), order.to));
    }
    let conflict = |what: String| conflict(&order.scope, &what);
    let record = policies::record(connection, scope, signed(order.to.0)?)
        .await?
        .ok_or_else(|| conflict(format!("there is no published version {}", order.to)))?;
    if record.is_tainted {
        return Err(conflict(format!(
            "version {} learned from something that was erased",
            order.to
        )));
    }
    if record.is_retired {
        return Err(conflict(format!("version {} is retired", order.to)));
    }
    if record.is_damaged {
        return Err(conflict(format!(
            "the files of version {} are damaged",
            order.to
        )));
    }
    if record.is_pruned {
        return Err(conflict(format!(
            "the files of version {} are gone",
            order.to
        )));
    }
    Ok(record.policy)
}

/// What becomes of the version that is left, and of its scope.
async fn leave(
    connection: &mut Connection<'_>,
    scope: i64,
    head: i64,
    order: &Restore,
) -> Result<(), Fault> {
    end_trial(connection, scope).await?;
    if order.why == RestoreWhy::Asked {
        return Ok(());
    }
    db::query("update versions set tripped_ms = $1 where scope_number = $2 and version = $3")
        .bind(order.now_ms)
        .bind(scope)
        .bind(head)
        .execute(&mut *connection)
        .await?;
    if order.why == RestoreWhy::TrialFailed {
        return Ok(());
    }
    let note = order.note.clone().unwrap_or_default();
    db::query(
        "insert into standings (scope_number, tripped_note, tripped_version, tripped_ms)
         values ($1, $2, $3, $4)
         on conflict (scope_number) do update
         set tripped_note = $2, tripped_version = $3, tripped_ms = $4",
    )
    .bind(scope)
    .bind(note.as_bytes())
    .bind(head)
    .bind(order.now_ms)
    .execute(connection)
    .await?;
    Ok(())
}

/// Ends whatever trial the scope has.
pub(crate) async fn end_trial(connection: &mut Connection<'_>, scope: i64) -> Result<(), Fault> {
    db::query(
        "update standings
         set trial_version = null, trial_proven = null, trial_share = null, trial_ms = null
         where scope_number = $1",
    )
    .bind(scope)
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn pin(
    connection: &mut Connection<'_>,
    scope: &Scope,
    version: PolicyVersion,
    now_ms: Millis,
) -> Result<Policy, Fault> {
    let number = policies::make_scope(connection, scope).await?;
    let head = policies::head(connection, number).await?;
    let policy = if signed(version.0)? != head {
        let order = Restore {
            scope: scope.clone(),
            to: version,
            from: None,
            why: RestoreWhy::Asked,
            note: Some(format!("restored to be pinned: version {version}")),
            now_ms,
        };
        restore(connection, &order).await?
    } else if head == 0 {
        Policy::base(scope.clone(), version)
    } else {
        let record = policies::record(connection, number, head).await?;
        record
            .ok_or_else(|| corrupt("a head without a row"))?
            .policy
    };
    // Whoever keeps a version means it for every session.
    end_trial(connection, number).await?;
    db::query(
        "insert into standings (scope_number, pinned_ms) values ($1, $2)
         on conflict (scope_number) do update set pinned_ms = $2",
    )
    .bind(number)
    .bind(now_ms)
    .execute(connection)
    .await?;
    Ok(policy)
}

/// Ends one kind of hold; false where there was none.
pub(crate) async fn release(
    connection: &mut Connection<'_>,
    scope: &Scope,
    hold: Hold,
) -> Result<bool, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(false);
    };
    let sql = match hold {
        Hold::Pin => {
            "update standings set pinned_ms = null
             where scope_number = $1 and pinned_ms is not null"
        }
        Hold::Trip => {
            "update standings
             set tripped_note = null, tripped_version = null, tripped_ms = null
             where scope_number = $1 and tripped_ms is not null"
        }
    };
    let done = db::query(sql).bind(number).execute(connection).await?;
    Ok(done.rows_affected() > 0)
}

/// What holds a scope.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    Pin,
    Trip,
}
