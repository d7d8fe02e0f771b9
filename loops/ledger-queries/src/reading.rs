//! Pages of turns and sessions, and what one of them is made of.

use async_trait::async_trait;
use hone_domain::{Message, Millis, PolicyVersion, Scope, SessionId, TurnId};
use serde_json::Value;

use super::texts::{limit, name_of, named, signed, some_text, text, unsigned};
use super::{Held as _, SqlLedger, Store, policies, rewards, rows};
use crate::db::{self, Builder, Connection, Fault, Row};
use hone_ledger::{
    FateState, LedgerError, OldestPending, PREVIEW_CHARS_MAX, Page, Reading, SCAN_MAX, SampleAge,
    SessionCursor, SessionLine, SessionTurn, SessionView, TurnEntry, TurnFilter, TurnLine,
};

#[async_trait]
impl<S: Store> Reading for SqlLedger<S> {
    async fn turn_page(
        &self,
        filter: &TurnFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Page<TurnLine, u64>, LedgerError> {
        look!(self, connection => turn_page(connection, filter, before, limit))
    }

    async fn session_page(
        &self,
        (scope, search): (&Scope, Option<&str>),
        before: Option<SessionCursor>,
        limit: usize,
    ) -> Result<Page<SessionLine, SessionCursor>, LedgerError> {
        look!(self, connection => session_page(connection, scope, search, before, limit))
    }

    async fn session(
        &self,
        id: SessionId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Option<SessionView>, LedgerError> {
        look!(self, connection => session(connection, id, before, limit))
    }

    async fn turn_entries(&self, id: TurnId) -> Result<Vec<TurnEntry>, LedgerError> {
        look!(self, connection => turn_entries(connection, id))
    }

    async fn sample_ages(
        &self,
        scope: &Scope,
        version: PolicyVersion,
    ) -> Result<Vec<SampleAge>, LedgerError> {
        look!(self, connection => sample_ages(connection, scope, version))
    }

    async fn oldest_pending(&self) -> Result<OldestPending, LedgerError> {
        look!(self, connection => oldest_pending(connection))
    }
}

/// The one condition that an index serves; the others are checked row by row.
enum Base {
    Session(i64),
    Scope(i64),
    Reason(&'static str),
    All,
}

impl Base {
    /// None where nothing can pass.
    async fn of(
        connection: &mut Connection<'_>,
        filter: &TurnFilter,
    ) -> Result<Option<Self>, Fault> {
        if let Some(session) = filter.session {
            let number = db::query_scalar("select number from sessions where id = $1")
                .bind(&session.0.as_bytes()[..])
                .fetch_optional(connection)
                .await?;
            return Ok(number.map(Self::Session));
        }
        if let Some(scope) = &filter.scope {
            let number = policies::find_scope(connection, scope).await?;
            return Ok(number.map(Self::Scope));
        }
        let reason = filter.reason.map(|r| Self::Reason(r.as_str()));
        Ok(Some(reason.unwrap_or(Self::All)))
    }

    /// The table with its index, and the condition.
    fn push(&self, query: &mut Builder) {
        match self {
            Self::Session(number) => {
                query.push(" from turns indexed by turns_by_session where session_number = ");
                query.push_bind(*number);
            }
            Self::Scope(number) => {
                query.push(" from turns indexed by turns_by_scope where scope_number = ");
                query.push_bind(*number);
            }
            Self::Reason(reason) => {
                query.push(" from turns indexed by turns_by_reason where reason = ");
                query.push_bind(*reason);
            }
            Self::All => {
                query.push(" from turns where true");
            }
        }
    }
}

async fn turn_page(
    connection: &mut Connection<'_>,
    filter: &TurnFilter,
    before: Option<u64>,
    most: usize,
) -> Result<Page<TurnLine, u64>, Fault> {
    let nothing = Page {
        rows: Vec::new(),
        next: None,
    };
    let Some(base) = Base::of(connection, filter).await? else {
        return Ok(nothing);
    };
    let before = before.map_or(Ok(i64::MAX), signed)?;
    // How far down this page looks.
    let mut window = Builder::new("select min(number), count(*) from (select number");
    base.push(&mut window);
    window.push(" and number < ").push_bind(before);
    window.push(" order by number desc limit ");
    window.push_bind(i64::from(SCAN_MAX)).push(") as seen");
    let window = window.build().fetch_one(&mut *connection).await?;
    let (floor, seen): (Option<i64>, i64) = (window.try_get(0)?, window.try_get(1)?);
    let Some(floor) = floor else {
        return Ok(nothing);
    };
    let mut query = Builder::new(
        "select t.number, t.id, sessions.id as session_id, scopes.name as scope, t.owner, t.kind,
                t.version, t.stage, t.reason, t.trained_version, t.score, t.started_ms,
                t.finished_ms, substr(turn_payloads.completion_text, 1, cast(",
    );
    query.push_bind(limit(4 * PREVIEW_CHARS_MAX));
    query.push(" as int)) as preview from (select *");
    base.push(&mut query);
    query.push(" and number < ").push_bind(before);
    query.push(" and number >= ").push_bind(floor);
    narrow(&mut query, filter)?;
    query.push(" order by number desc limit ");
    query.push_bind(limit(most));
    query.push(
        ") as t
         join sessions on sessions.number = t.session_number
         join scopes on scopes.number = t.scope_number
         join turn_payloads on turn_payloads.turn_number = t.number
         order by t.number desc",
    );
    let found = query.build().fetch_all(connection).await?;
    let next = match found.last() {
        Some(last) if found.len() >= most => Some(last.try_get("number")?),
        _ if seen >= i64::from(SCAN_MAX) => Some(floor),
        _ => None,
    };
    Ok(Page {
        rows: found.iter().map(turn_line).collect::<Result<_, _>>()?,
        next: next.map(unsigned).transpose()?,
    })
}

/// Every condition that is set.
fn narrow(query: &mut Builder, filter: &TurnFilter) -> Result<(), Fault> {
    if let Some(owner) = &filter.owner {
        query.push(" and owner = ").push_bind(owner.clone());
    }
    match filter.state {
        Some(FateState::Pending) => query.push(" and stage is not null"),
        Some(FateState::Trained) => query.push(" and trained_version is not null"),
        Some(FateState::Settled) => query.push(" and reason is not null"),
        None => query,
    };
    if let Some(reason) = filter.reason {
        query.push(" and reason = ").push_bind(reason.as_str());
    }
    if let Some(version) = filter.version {
        query.push(" and version = ").push_bind(signed(version.0)?);
    }
    if let Some(kind) = filter.kind {
        query.push(" and kind = ").push_bind(name_of(&kind)?);
    }
    if let Some(score) = filter.score_min {
        query.push(" and score >= ").push_bind(f64::from(score));
    }
    if let Some(score) = filter.score_max {
        query.push(" and score <= ").push_bind(f64::from(score));
    }
    Ok(())
}

fn turn_line(row: &Row) -> Result<TurnLine, Fault> {
    let preview: &[u8] = row.try_get("preview")?;
    // The cut may have gone through a character.
    let preview = String::from_utf8_lossy(preview);
    Ok(TurnLine {
        id: rows::turn_id(row.try_get("id")?)?,
        session: rows::session_id(row.try_get("session_id")?)?,
        scope: rows::scope(row.try_get("scope")?)?,
        owner: row.try_get("owner")?,
        kind: named(row.try_get("kind")?)?,
        version: rows::version(row.try_get("version")?)?,
        fate: rows::fate(row)?,
        score: rows::score(row.try_get("score")?),
        started_ms: row.try_get("started_ms")?,
        finished_ms: row.try_get("finished_ms")?,
        preview: preview.chars().take(PREVIEW_CHARS_MAX).collect(),
    })
}

async fn session_page(
    connection: &mut Connection<'_>,
    scope: &Scope,
    search: Option<&str>,
    before: Option<SessionCursor>,
    most: usize,
) -> Result<Page<SessionLine, SessionCursor>, Fault> {
    let Some(scope) = policies::find_scope(connection, scope).await? else {
        return Ok(Page {
            rows: Vec::new(),
            next: None,
        });
    };
    let (last_ms, number) = match before {
        Some((last_ms, number)) => (last_ms, signed(number)?),
        None => (Millis::MAX, i64::MAX),
    };
    let floor: Option<(Millis, i64)> = db::query_as(
        "select last_ms, number from sessions indexed by sessions_recent
         where scope_number = $1 and (last_ms, number) < ($2, $3)
         order by last_ms desc, number desc limit 1 offset $4",
    )
    .bind(scope)
    .bind(last_ms)
    .bind(number)
    .bind(i64::from(SCAN_MAX) - 1)
    .fetch_optional(&mut *connection)
    .await?;
    let (floor_ms, floor_number) = floor.unwrap_or((Millis::MIN, 0));
    let found = db::query(
        "select number, id, title, first_ms, last_ms,
                (select session_key from turn_payloads where turn_number = (
                     select max(turns.number) from turns where session_number = sessions.number
                 )) as key,
                (select count(*) from turns where session_number = sessions.number) as turns
         from sessions indexed by sessions_recent
         where scope_number = $1 and (last_ms, number) < ($2, $3)
           and (last_ms, number) >= ($4, $5)
           and ($6 is null or instr(title_folded, $6) > 0)
           and not exists (
               select 1 from turns
               where turns.session_number = sessions.number and turns.origin = 'rollout'
           )
         order by last_ms desc, number desc limit $7",
    )
    .bind(scope)
    .bind(last_ms)
    .bind(number)
    .bind(floor_ms)
    .bind(floor_number)
    .bind(search.map(|s| s.to_lowercase().into_bytes()))
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    let next: Option<(Millis, i64)> = match found.last() {
        Some(last) if found.len() >= most => {
            Some((last.try_get("last_ms")?, last.try_get("number")?))
        }
        _ => floor,
    };
    Ok(Page {
        rows: found.iter().map(session_line).collect::<Result<_, _>>()?,
        next: next
            .map(|(ms, number)| Ok::<_, Fault>((ms, unsigned(number)?)))
            .transpose()?,
    })
}

fn session_line(row: &Row) -> Result<SessionLine, Fault> {
    Ok(SessionLine {
        id: rows::session_id(row.try_get("id")?)?,
        key: some_text(row.try_get("key")?)?,
        title: some_text(row.try_get("title")?)?,
        first_ms: row.try_get("first_ms")?,
        last_ms: row.try_get("last_ms")?,
        turns: unsigned(row.try_get("turns")?)?,
    })
}

async fn session(
    connection: &mut Connection<'_>,
    id: SessionId,
    before: Option<u64>,
    most: usize,
) -> Result<Option<SessionView>, Fault> {
    let row = db::query(
        "select sessions.number, id, title, first_ms, last_ms, owner, scopes.name as scope,
                (select session_key from turn_payloads where turn_number = (
                     select max(turns.number) from turns where session_number = sessions.number
                 )) as key,
                (select count(*) from turns where session_number = sessions.number) as turns
         from sessions join scopes on scopes.number = sessions.scope_number
         where id = $1",
    )
    .bind(&id.0.as_bytes()[..])
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let found = db::query(
        "select turns.number, turns.id, turns.parent_id, choice_index, kind, version, stage,
                reason, trained_version, score, started_ms, owner, history_number,
                completion_text,
                (select earlier.history_number
                 from turns as parents
                 join turn_payloads as earlier on earlier.turn_number = parents.number
                 where parents.id = turns.parent_id
                   and parents.session_number = turns.session_number) as parent_history
         from turns indexed by turns_by_session
         join turn_payloads on turn_payloads.turn_number = turns.number
         where session_number = $1 and turns.number < $2
         order by turns.number desc limit $3",
    )
    .bind(row.try_get::<i64, _>("number")?)
    .bind(before.map_or(Ok(i64::MAX), signed)?)
    .bind(limit(most))
    .fetch_all(&mut *connection)
    .await?;
    let next = match found.last() {
        Some(last) if found.len() >= most => Some(unsigned(last.try_get("number")?)?),
        _ => None,
    };
    let rewards = rewards::rewards_of(connection, row.try_get("number")?).await?;
    let mut turns = Vec::with_capacity(found.len());
    for row in found.iter().rev() {
        turns.push(session_turn(connection, row).await?);
    }
    Ok(Some(SessionView {
        line: session_line(&row)?,
        owner: row.try_get("owner")?,
        scope: rows::scope(row.try_get("scope")?)?,
        rewards,
        turns: Page { rows: turns, next },
    }))
}

async fn session_turn(connection: &mut Connection<'_>, row: &Row) -> Result<SessionTurn, Fault> {
    let (history, parent_history) = (
        row.try_get("history_number")?,
        row.try_get("parent_history")?,
    );
    let id = rows::turn_id(row.try_get("id")?)?;
    let optional = |name| row.try_get::<Option<&[u8]>, _>(name);
    Ok(SessionTurn {
        id,
        parent: optional("parent_id")?.map(rows::turn_id).transpose()?,
        choice_index: row.try_get("choice_index")?,
        kind: named(row.try_get("kind")?)?,
        messages: new_messages(connection, history, parent_history).await?,
        completion: text(row.try_get("completion_text")?)?,
        version: rows::version(row.try_get("version")?)?,
        fate: rows::fate(row)?,
        score: rows::score(row.try_get("score")?),
        feedback: rows::load_feedback_of(connection, id, row.try_get("owner")?).await?,
        started_ms: row.try_get("started_ms")?,
    })
}

/// What a message list says beyond its parent's, and beyond the completion that follows there.
/// Lists are a tree of shared beginnings: the walk from the end stops at the parent's node, and
/// goes to the root where this list does not continue it.
async fn new_messages(
    connection: &mut Connection<'_>,
    node: Option<i64>,
    parent: Option<i64>,
) -> Result<Vec<Message>, Fault> {
    let found: Vec<(Vec<u8>, bool)> = db::query_as(
        "with recursive path (parent_number, message_number, depth) as (
             select parent_number, message_number, 0 from histories
             where number = $1 and number is distinct from $2
             union all
             select histories.parent_number, histories.message_number, path.depth + 1
             from path join histories on histories.number = path.parent_number
             where histories.number is distinct from $2
         )
         select messages.body, path.parent_number is not null and path.parent_number is not distinct from $2
         from path join messages on messages.number = path.message_number
         order by path.depth desc",
    )
    .bind(node)
    .bind(parent)
    .fetch_all(connection)
    .await?;
    let continues = found.first().is_some_and(|(_, continues)| *continues);
    let mut messages = found
        .iter()
        .map(|(body, _)| Ok(serde_json::from_slice::<Message>(body)?))
        .collect::<Result<Vec<_>, Fault>>()?;
    let is_answer = |m: &Message| m.role == hone_domain::Role::Assistant;
    if continues && messages.first().is_some_and(is_answer) {
        messages.remove(0);
    }
    Ok(messages)
}

async fn turn_entries(
    connection: &mut Connection<'_>,
    id: TurnId,
) -> Result<Vec<TurnEntry>, Fault> {
    let found = db::query(
        "select versions.batch_id, versions.version, null as refused, versions.report,
                versions.published_ms as at_ms
         from turns
         join transitions on transitions.turn_number = turns.number
         join version_samples on version_samples.transition_number = transitions.number
         join versions on versions.scope_number = version_samples.scope_number
             and versions.version = version_samples.version
         where turns.id = $1
         union all
         select refusals.batch_id, null, refusals.reason, refusals.report, refusals.refused_ms
         from turns
         join transitions on transitions.turn_number = turns.number
         join leases on leases.transition_number = transitions.number
             and leases.consumer = 'train'
         join refusals on refusals.batch_id = leases.batch_id
         where turns.id = $1
         order by at_ms",
    )
    .bind(&id.0.as_bytes()[..])
    .fetch_all(connection)
    .await?;
    found.iter().map(turn_entry).collect()
}

fn turn_entry(row: &Row) -> Result<TurnEntry, Fault> {
    let batch: Option<&[u8]> = row.try_get("batch_id")?;
    let version: Option<i64> = row.try_get("version")?;
    let refused: Option<&str> = row.try_get("refused")?;
    Ok(TurnEntry {
        batch: batch.map(rows::batch_id).transpose()?,
        version: version.map(rows::version).transpose()?,
        refused: refused.map(rows::reason).transpose()?,
        at_ms: row.try_get("at_ms")?,
        report: serde_json::from_str::<Value>(row.try_get("report")?)?,
    })
}

async fn sample_ages(
    connection: &mut Connection<'_>,
    scope: &Scope,
    version: PolicyVersion,
) -> Result<Vec<SampleAge>, Fault> {
    let found = db::query(
        "select turns.version, turns.finished_ms, verdicts.judged_ms,
                (select max(received_ms) from feedback
                 where feedback.turn_id = turns.id and feedback.owner = turns.owner) as feedback_ms
         from scopes
         join version_samples on version_samples.scope_number = scopes.number
         join transitions on transitions.number = version_samples.transition_number
         join turns on turns.number = transitions.turn_number
         join verdicts on verdicts.transition_number = transitions.number
             and verdicts.current = 1
         where scopes.name = $1 and version_samples.version = $2
         order by turns.number",
    )
    .bind(scope.as_str().as_bytes())
    .bind(signed(version.0)?)
    .fetch_all(connection)
    .await?;
    let age = |row: &Row| {
        Ok(SampleAge {
            version: rows::version(row.try_get("version")?)?,
            finished_ms: row.try_get("finished_ms")?,
            judged_ms: row.try_get("judged_ms")?,
            feedback_ms: row.try_get("feedback_ms")?,
        })
    };
    found.iter().map(age).collect()
}

async fn oldest_pending(connection: &mut Connection<'_>) -> Result<OldestPending, Fault> {
    let (next_state_ms, verdict_ms, training_ms) = db::query_as(
        "select
             (select finished_ms from turns indexed by turns_open
              where stage = 'awaiting_next_state' order by number limit 1),
             (select finished_ms from turns indexed by turns_to_judge
              where stage = 'awaiting_verdict' order by number limit 1),
             (select min(finished_ms) from turns indexed by turns_ready
              where stage = 'awaiting_training')",
    )
    .fetch_one(connection)
    .await?;
    Ok(OldestPending {
        next_state_ms,
        verdict_ms,
        training_ms,
    })
}
