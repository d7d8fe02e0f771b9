//! Consent: decisions, and what they keep out of training.

use std::collections::BTreeMap;

use hone_domain::{
    Admission, Completion, Consent, Learning, MemoryUse, Millis, Reason, Scope, Turn, TurnId,
    VersionSpan,
};

use super::texts::{limit, unsigned};
use super::{memory_uses, policies, rows};
use crate::db::{self, Connection, Fault, Row, corrupt};
use hone_ledger::{ConsentRow, Window};

pub(crate) async fn consents(
    connection: &mut Connection<'_>,
) -> Result<Vec<(Scope, Consent)>, Fault> {
    let rows = db::query(
        "select scopes.name as scope, learning, despite_store_false, holdback
         from consents join scopes on scopes.number = consents.scope_number",
    )
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| Ok((rows::scope(row.try_get("scope")?)?, decided(row)?)))
        .collect()
}

fn decided(row: &Row) -> Result<Consent, Fault> {
    let name: &str = row.try_get("learning")?;
    let learning =
        Learning::from_stored(name).ok_or_else(|| corrupt(format!("the consent {name:?}")))?;
    Ok(Consent {
        learning,
        despite_store_false: row.try_get("despite_store_false")?,
        holdback: row.try_get("holdback")?,
    })
}

/// Decisions with what is kept, newest scopes first.
pub(crate) async fn list(
    connection: &mut Connection<'_>,
    page: Window,
) -> Result<Vec<ConsentRow>, Fault> {
    let found = db::query(
        "select scope_number, scopes.name as scope, learning, despite_store_false, holdback,
                decided_ms, (select count(*) from turns
                             where turns.scope_number = consents.scope_number) as turns
         from consents join scopes on scopes.number = consents.scope_number
         where scope_number < $1 order by scope_number desc limit $2",
    )
    .bind(page.before.unwrap_or(i64::MAX))
    .bind(limit(page.limit))
    .fetch_all(connection)
    .await?;
    found
        .iter()
        .map(|row| {
            Ok(ConsentRow {
                number: row.try_get("scope_number")?,
                scope: rows::scope(row.try_get("scope")?)?,
                consent: decided(row)?,
                decided_ms: row.try_get("decided_ms")?,
                turns: unsigned(row.try_get("turns")?)?,
            })
        })
        .collect()
}

pub(crate) async fn set_consent(
    connection: &mut Connection<'_>,
    scope: &Scope,
    consent: Consent,
    now_ms: Millis,
) -> Result<u64, Fault> {
    let scope = policies::make_scope(connection, scope).await?;
    db::query(
        "insert into consents (scope_number, learning, despite_store_false, holdback, decided_ms)
         values ($1, $2, $3, $4, $5)
         on conflict (scope_number) do update set
             learning = excluded.learning, despite_store_false = excluded.despite_store_false,
             holdback = excluded.holdback, decided_ms = excluded.decided_ms",
    )
    .bind(scope)
    .bind(consent.learning.as_str())
    .bind(consent.despite_store_false)
    .bind(consent.holdback)
    .bind(now_ms)
    .execute(&mut *connection)
    .await?;
    if consent.learning == Learning::Full {
        return Ok(0);
    }
    if consent.learning == Learning::Off {
        memory_uses::drop_all(connection, scope).await?;
    }
    let settled = db::query(
        "update turns set stage = null, reason = $1
         where scope_number = $2 and stage is not null",
    )
    .bind(Reason::Withdrawn.as_str())
    .bind(scope)
    .execute(connection)
    .await?;
    Ok(settled.rows_affected())
}

/// Whether the scope said that nothing new may be learned from it. One that never decided was
/// asked about every turn when it was admitted.
pub(crate) async fn is_barred(connection: &mut Connection<'_>, scope: i64) -> Result<bool, Fault> {
    let barred: Option<bool> =
        db::query_scalar("select learning <> 'full' from consents where scope_number = $1")
            .bind(scope)
            .fetch_optional(connection)
            .await?;
    Ok(barred.unwrap_or(false))
}

/// Whether a turn was erased.
pub(crate) async fn was_forgotten(
    connection: &mut Connection<'_>,
    turn: TurnId,
) -> Result<bool, Fault> {
    let gone: Option<i64> = db::query_scalar("select 1 from forgotten_turns where id = $1")
        .bind(&turn.0.as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    Ok(gone.is_some())
}

/// The turn without a word of what was said: its receipt stays true, and nothing comes back that
/// was erased.
pub(crate) fn wordless(turn: &Turn) -> Result<Turn, Fault> {
    let none = Completion::new(
        Vec::new(),
        Vec::new(),
        Vec::new(),
        Vec::new(),
        turn.completion.stop(),
    )?;
    Ok(Turn {
        session_key: None,
        messages: Vec::new(),
        prompt_tokens: Vec::new(),
        completion: none,
        completion_text: String::new(),
        spans: vec![VersionSpan {
            version: turn.version(),
            start: 0,
            end: 0,
        }],
        untrainable: Some(Reason::Withdrawn),
        admission: Admission {
            metadata: BTreeMap::new(),
            checks: Vec::new(),
            memory: MemoryUse::default(),
            branch: None,
            ..turn.admission.clone()
        },
        ..turn.clone()
    })
}
