//! Consent: decisions, and what they keep out of training.

use std::collections::{HashMap, HashSet};

use hone_domain::{
    Completion, Consent, Learning, Millis, Reason, Scope, SessionId, Turn, TurnId, VersionSpan,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::fault::{Fault, corrupt};
use super::texts::{limit, unsigned};
use super::{many, policies, rows};
use crate::personal::ConsentRow;
use crate::versions::Window;

pub(super) async fn consents(
    connection: &mut SqliteConnection,
) -> Result<Vec<(Scope, Consent)>, Fault> {
    let rows = sqlx::query(
        "select scopes.name as scope, learning, despite_store_false, holdback
         from consents join scopes on scopes.number = consents.scope_number",
    )
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| Ok((rows::scope(row.try_get("scope")?)?, decided(row)?)))
        .collect()
}

fn decided(row: &SqliteRow) -> Result<Consent, Fault> {
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
pub(super) async fn list(
    connection: &mut SqliteConnection,
    page: Window,
) -> Result<Vec<ConsentRow>, Fault> {
    let found = sqlx::query(
        "select scope_number, scopes.name as scope, learning, despite_store_false, holdback,
                decided_ms, (select count(*) from turns
                             where turns.scope_number = consents.scope_number) as turns
         from consents join scopes on scopes.number = consents.scope_number
         where scope_number < ? order by scope_number desc limit ?",
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

pub(super) async fn set_consent(
    connection: &mut SqliteConnection,
    (scope, consent): (&Scope, Consent),
    now_ms: Millis,
) -> Result<u64, Fault> {
    let scope = policies::make_scope(connection, scope).await?;
    sqlx::query(
        "insert into consents (scope_number, learning, despite_store_false, holdback, decided_ms)
         values (?, ?, ?, ?, ?)
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
    let settled = sqlx::query(
        "update turns set stage = null, reason = ?
         where scope_number = ? and stage is not null",
    )
    .bind(Reason::Withdrawn.as_str())
    .bind(scope)
    .execute(connection)
    .await?;
    Ok(settled.rows_affected())
}

/// Whether the scope said that nothing new may be learned from it. One that never decided was
/// asked about every turn when it was admitted.
pub(super) async fn is_barred(
    connection: &mut SqliteConnection,
    scope: i64,
) -> Result<bool, Fault> {
    let barred: Option<bool> =
        sqlx::query_scalar("select learning <> 'full' from consents where scope_number = ?")
            .bind(scope)
            .fetch_optional(connection)
            .await?;
    Ok(barred.unwrap_or(false))
}

/// What must not come in, or not be learned from, although its request was admitted.
#[derive(Default)]
pub(super) struct Bars {
    barred: HashSet<Scope>,
    /// Everything of a scope that began up to then was erased.
    forgotten: HashMap<Scope, Millis>,
    sessions: HashSet<[u8; 16]>,
    parents: HashSet<TurnId>,
}

impl Bars {
    /// Looks up the scopes, sessions and parents of a batch.
    pub(super) async fn look<'a>(
        connection: &mut SqliteConnection,
        turns: impl Iterator<Item = &'a Turn>,
    ) -> Result<Self, Fault> {
        let (mut scopes, mut sessions, mut parents) =
            (HashSet::new(), HashSet::new(), HashSet::new());
        for turn in turns {
            scopes.insert(&turn.scope);
            sessions.insert(turn.session);
            parents.extend(turn.parent);
        }
        let mut bars = Self::default();
        let scopes: Vec<&Scope> = scopes.into_iter().collect();
        bars.look_at_scopes(connection, &scopes).await?;
        let sessions: Vec<SessionId> = sessions.into_iter().collect();
        let gone = many::each(
            connection,
            "select id from forgotten_sessions where id = ?",
            &sessions,
            |asked, session| asked.bind(&session.0.as_bytes()[..]),
        );
        for row in gone.await? {
            let session = rows::session_id(row.try_get("id")?)?;
            bars.sessions.insert(session.0.into_bytes());
        }
        let parents: Vec<TurnId> = parents.into_iter().collect();
        let gone = many::each(
            connection,
            "select id from forgotten_turns where id = ?",
            &parents,
            |asked, parent| asked.bind(&parent.0.as_bytes()[..]),
        );
        for row in gone.await? {
            bars.parents.insert(rows::turn_id(row.try_get("id")?)?);
        }
        Ok(bars)
    }

    async fn look_at_scopes(
        &mut self,
        connection: &mut SqliteConnection,
        scopes: &[&Scope],
    ) -> Result<(), Fault> {
        let found = many::each(
            connection,
            "select scopes.name as scope, consents.learning <> 'full' as barred,
                    (select max(at_ms) from forgets
                     where forgets.scope_number = scopes.number and whole = 1) as until
             from scopes left join consents on consents.scope_number = scopes.number
             where scopes.name = ?",
            scopes,
            |asked, scope| asked.bind(scope.as_str().as_bytes()),
        );
        for row in found.await? {
            let scope = rows::scope(row.try_get("scope")?)?;
            let until: Option<Millis> = row.try_get("until")?;
            self.forgotten
                .extend(until.map(|at_ms| (scope.clone(), at_ms)));
            if row.try_get::<Option<bool>, _>("barred")? == Some(true) {
                self.barred.insert(scope);
            }
        }
        Ok(())
    }

    /// Why a turn that could train must not.
    pub(super) fn objection(&self, turn: &Turn) -> Option<Reason> {
        self.barred
            .contains(&turn.scope)
            .then_some(Reason::LearningOff)
    }

    /// Whether its session, the turn it continues or its whole scope was erased while it was being
    /// answered.
    pub(super) fn is_forgotten(&self, turn: &Turn) -> bool {
        let until = self.forgotten.get(&turn.scope);
        until.is_some_and(|at_ms| turn.started_ms <= *at_ms)
            || self.sessions.contains(&turn.session.0.into_bytes())
            || turn
                .parent
                .is_some_and(|parent| self.parents.contains(&parent))
    }
}

/// Whether a turn was erased.
pub(super) async fn was_forgotten(
    connection: &mut SqliteConnection,
    turn: TurnId,
) -> Result<bool, Fault> {
    let gone: Option<i64> = sqlx::query_scalar("select 1 from forgotten_turns where id = ?")
        .bind(&turn.0.as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    Ok(gone.is_some())
}

/// The turn without a word of what was said: its receipt stays true, and nothing comes back that
/// was erased.
pub(super) fn wordless(turn: &Turn) -> Result<Turn, Fault> {
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
        ..turn.clone()
    })
}
