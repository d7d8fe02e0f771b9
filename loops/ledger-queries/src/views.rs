//! What people look at.

use std::collections::HashMap;

use hone_domain::{Message, PendingTurn, PolicyVersion, Reason, Role, Scope, Stage, TurnId};
use sqlx::AssertSqlSafe;

use super::retention::{LISTED, listed};
use super::texts::{limit, named, some_text, text, unsigned};
use super::unreadable::readable;
use super::{chains, policies, rows, unreadable};
use crate::db::{self, Connection, Fault, Row, corrupt};
use hone_ledger::{IsKnown, LedgerCounts, OpenPage, OpenTurn, TurnRow, TurnView, WaitingTurn};

pub(crate) async fn open_turns(
    connection: &mut Connection<'_>,
    most: usize,
) -> Result<Vec<OpenTurn>, Fault> {
    let mut open = Vec::new();
    let mut before = i64::MAX;
    // In the place of one that is left out comes an older one: fewer than asked for means all.
    while open.len() < most {
        let rows: Vec<(i64, bool)> = db::query_as(
            "select number, exists (
                 select 1 from feedback
                 where feedback.turn_id = turns.id and feedback.owner = turns.owner
             )
             from turns indexed by turns_open
             where stage = 'awaiting_next_state' and number < $1 order by number desc limit $2",
        )
        .bind(before)
        .bind(limit(most - open.len()))
        .fetch_all(&mut *connection)
        .await?;
        let Some((oldest, _)) = rows.last() else {
            break;
        };
        before = *oldest;
        for (number, has_feedback) in rows {
            match readable(rows::load_turn(connection, number).await)? {
                Some((turn, _)) => open.push(OpenTurn { turn, has_feedback }),
                None => unreadable::skip(connection, number).await?,
            }
        }
    }
    Ok(open)
}

/// Waiting turns without their tokens, which are most of what is stored of a turn.
const WAITING: &str = "select turns.number, turns.id, group_id, sessions.id as session_id, session_key, parent_id,
            turns.owner, scopes.name as scope, kind, history_number, completion_text,
            checks is not null as is_checked, finished_ms, turn_payloads.turn_number as payload, shown, skills, exists (
                select 1 from feedback
                where feedback.turn_id = turns.id and feedback.owner = turns.owner
            ) as has_feedback
     from turns indexed by turns_open
     left join turn_payloads on turn_payloads.turn_number = turns.number
     left join turn_memories on turn_memories.turn_number = turns.number
     left join sessions on sessions.number = turns.session_number
     left join scopes on scopes.number = turns.scope_number
     where stage = 'awaiting_next_state' and ";

/// A page of them.
const FROM: &str = "turns.number >= coalesce($1, (
         select min(number) from (
             select number from turns indexed by turns_open
             where stage = 'awaiting_next_state' order by number desc limit $2
         ) as waiting
     ))
     order by turns.number limit $3";

pub(crate) async fn open_page(
    connection: &mut Connection<'_>,
    newest: usize,
    from: Option<i64>,
    most: usize,
) -> Result<OpenPage, Fault> {
    let rows = db::query(AssertSqlSafe(format!("{WAITING}{FROM}")))
        .bind(from)
        .bind(limit(newest))
        .bind(limit(most))
        .fetch_all(&mut *connection)
        .await?;
    let mut page = waiting_turns(connection, &rows).await?;
    if rows.len() >= most
        && let Some(last) = rows.last()
    {
        page.next = Some(last.try_get::<i64, _>("number")? + 1);
    }
    Ok(page)
}

/// A page of waiting turns but for those that are known; their names alone are read of these.
pub(crate) async fn unknown_page(
    connection: &mut Connection<'_>,
    from: i64,
    most: usize,
    is_known: IsKnown<'_>,
) -> Result<OpenPage, Fault> {
    let names: Vec<(i64, Vec<u8>, Vec<u8>)> = db::query_as(
        "select turns.number, turns.id, sessions.id from turns indexed by turns_open
         join sessions on sessions.number = turns.session_number
         where stage = 'awaiting_next_state' and turns.number >= $1
         order by turns.number limit $2",
    )
    .bind(from)
    .bind(limit(most))
    .fetch_all(&mut *connection)
    .await?;
    let last = names.last().filter(|_| names.len() >= most);
    let next = last.map(|(number, ..)| number + 1);
    let mut unknown = Vec::new();
    for (number, turn, session) in &names {
        if !is_known(rows::session_id(session)?, rows::turn_id(turn)?) {
            unknown.push(*number);
        }
    }
    let mut page = OpenPage::default();
    if !unknown.is_empty() {
        let sql = format!("{WAITING}turns.number in ({LISTED}) order by turns.number");
        let rows = listed(sql, &unknown)?.fetch_all(&mut *connection).await?;
        page = waiting_turns(connection, &rows).await?;
    }
    page.next = next;
    Ok(page)
}

/// The turns of rows of [`WAITING`].
async fn waiting_turns(connection: &mut Connection<'_>, rows: &[Row]) -> Result<OpenPage, Fault> {
    let mut nodes = Vec::with_capacity(rows.len());
    for row in rows {
        nodes.extend(
            row.try_get::<Option<i64>, _>("history_number")
                .unwrap_or_default(),
        );
    }
    let messages = chains::load_many_messages(connection, nodes).await?;
    let mut page = OpenPage {
        turns: Vec::with_capacity(rows.len()),
        seen: rows.len(),
        next: None,
    };
    for row in rows {
        match readable(waiting_turn(row, &messages))? {
            Some(turn) => page.turns.push(turn),
            None => unreadable::skip(connection, row.try_get("number")?).await?,
        }
    }
    Ok(page)
}

fn waiting_turn(
    row: &Row,
    messages: &HashMap<i64, Option<Vec<Message>>>,
) -> Result<WaitingTurn, Fault> {
    let optional = |name| row.try_get::<Option<&[u8]>, _>(name);
    let payload: Option<i64> = row.try_get("payload")?;
    payload.ok_or_else(|| corrupt("no payload of a waiting turn"))?;
    let messages = match row.try_get::<Option<i64>, _>("history_number")? {
        Some(node) => {
            let known = messages.get(&node).cloned().flatten();
            known.ok_or_else(|| corrupt("a message of a waiting turn"))?
        }
        None => Vec::new(),
    };
    let turn = PendingTurn {
        turn: rows::turn_id(row.try_get("id")?)?,
        session: rows::session_id(row.try_get("session_id")?)?,
        session_key: some_text(row.try_get("session_key")?)?,
        owner: row.try_get("owner")?,
        scope: rows::scope(row.try_get("scope")?)?,
        messages,
        completion: Message::text(Role::Assistant, text(row.try_get("completion_text")?)?),
        parent: optional("parent_id")?.map(rows::turn_id).transpose()?,
        memories: rows::memories(row)?,
        skills: rows::skills(row)?,
        kind: named(row.try_get("kind")?)?,
        // What was cut off does not wait, and whatever follows ends the waiting.
        delivered: true,
        continued: false,
        ended_ms: row.try_get("finished_ms")?,
    };
    Ok(WaitingTurn {
        turn,
        group: optional("group_id")?.map(rows::group_id).transpose()?,
        is_checked: row.try_get("is_checked")?,
        has_feedback: row.try_get("has_feedback")?,
    })
}

pub(crate) async fn turn(
    connection: &mut Connection<'_>,
    id: TurnId,
) -> Result<Option<TurnView>, Fault> {
    let found = db::query("select number, extent from turns where id = $1")
        .bind(&id.0.as_bytes()[..])
        .fetch_optional(&mut *connection)
        .await?;
    let Some(found) = found else {
        return Ok(None);
    };
    let (number, extent) = (found.try_get("number")?, rows::extent(&found)?);
    let (turn, fate) = rows::load_turn(connection, number).await?;
    let found = rows::load_transition(connection, number, &turn).await?;
    let verdict = match &found {
        None => None,
        Some((number, transition)) => {
            rows::load_verdict(connection, *number, transition.id).await?
        }
    };
    let feedback = rows::load_feedback(connection, &turn).await?;
    Ok(Some(TurnView {
        turn,
        extent,
        fate,
        transition: found.map(|(_, transition)| transition),
        verdict,
        feedback,
    }))
}

pub(crate) async fn turns(
    connection: &mut Connection<'_>,
    scope: Option<&Scope>,
    most: usize,
) -> Result<Vec<TurnRow>, Fault> {
    let number = match scope {
        None => None,
        Some(scope) => match policies::find_scope(connection, scope).await? {
            None => return Ok(Vec::new()),
            found => found,
        },
    };
    let of = match number {
        Some(_) => "where turns.scope_number = $2",
        None => "",
    };
    let sql = format!(
        "select turns.id, sessions.id as session_id, scopes.name as scope, version, stage,
                reason, trained_version, score, finished_ms, exists (
                    select 1 from turn_payloads
                    where turn_number = turns.number and checks is not null
                ) as has_checks
         from turns
         join sessions on sessions.number = turns.session_number
         join scopes on scopes.number = turns.scope_number
         {of} order by turns.number desc limit $1"
    );
    let mut query = db::query(AssertSqlSafe(sql)).bind(limit(most));
    if let Some(number) = number {
        query = query.bind(number);
    }
    let rows = query.fetch_all(connection).await?;
    rows.iter().map(turn_row).collect()
}

fn turn_row(row: &Row) -> Result<TurnRow, Fault> {
    Ok(TurnRow {
        id: rows::turn_id(row.try_get("id")?)?,
        session: rows::session_id(row.try_get("session_id")?)?,
        scope: rows::scope(row.try_get("scope")?)?,
        version: rows::version(row.try_get("version")?)?,
        fate: rows::fate(row)?,
        score: rows::score(row.try_get("score")?),
        finished_ms: row.try_get("finished_ms")?,
        has_checks: row.try_get("has_checks")?,
    })
}

pub(crate) async fn counts(connection: &mut Connection<'_>) -> Result<LedgerCounts, Fault> {
    let fates: Vec<(String, i64)> =
        db::query_as("select fate, turns from fate_counts where turns > 0 order by fate")
            .fetch_all(&mut *connection)
            .await?;
    let (versions, refused): (i64, i64) =
        db::query_as("select (select count(*) from versions), (select count(*) from refusals)")
            .fetch_one(connection)
            .await?;
    let mut counts = LedgerCounts {
        versions: unsigned(versions)?,
        refused: unsigned(refused)?,
        ..LedgerCounts::default()
    };
    for (fate, turns) in fates {
        let turns = unsigned(turns)?;
        counts.turns += turns;
        if fate == "trained" {
            counts.trained = turns;
        } else if let Some(stage) = Stage::from_stored(&fate) {
            counts.pending.push((stage, turns));
        } else if let Some(reason) = Reason::from_stored(&fate) {
            counts.settled.push((reason, turns));
        } else {
            return Err(corrupt(format!("the fate {fate:?}")));
        }
    }
    Ok(counts)
}

pub(crate) async fn scores_by_version(
    connection: &mut Connection<'_>,
    scope: &Scope,
) -> Result<Vec<(PolicyVersion, f64, u64)>, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(Vec::new());
    };
    let rows: Vec<(i64, f64, i64)> = db::query_as(
        "select version, cast(total as double precision) / 1073741824.0 / judged, judged from version_scores
         where scope_number = $1 and judged > 0 order by version",
    )
    .bind(number)
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|(version, mean, n)| Ok((rows::version(version)?, mean, unsigned(n)?)))
        .collect()
}
