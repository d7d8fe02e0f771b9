//! What was trained before and can teach again by its words.

use super::unreadable::readable;
use super::{policies, rows, unreadable};
use crate::db::{self, Connection, Fault, corrupt};
use hone_ledger::{ReplayQuery, Replayed};

pub(crate) async fn replay(
    connection: &mut Connection<'_>,
    query: &ReplayQuery,
) -> Result<Vec<Replayed>, Fault> {
    let Some(scope) = policies::find_scope(connection, &query.scope).await? else {
        return Ok(Vec::new());
    };
    let mut replayed = Vec::new();
    for (turn, transition) in candidates(connection, scope, query).await? {
        match readable(read(connection, turn, transition).await)? {
            Some(one) => replayed.push(one),
            None => unreadable::skip(connection, turn).await?,
        }
    }
    Ok(replayed)
}

async fn read(
    connection: &mut Connection<'_>,
    turn_number: i64,
    transition_number: i64,
) -> Result<Replayed, Fault> {
    let (turn, _) = rows::load_turn(connection, turn_number).await?;
    let (_, transition) = rows::load_transition(connection, turn_number, &turn)
        .await?
        .ok_or_else(|| corrupt(format!("no transition of turn {}", turn.id)))?;
    let verdict = rows::load_verdict(connection, transition_number, transition.id).await?;
    let (hint, wish) = verdict.map_or((None, None), |verdict| (verdict.hint, verdict.wish));
    let feedback = rows::load_feedback(connection, &turn).await?;
    Ok(Replayed {
        transition: transition.id,
        turn,
        hint,
        wish,
        correction: rows::newest_correction(feedback),
    })
}

/// A vote counts +1, -1 or 0; their variance says how much the votes disagreed. Only what the head and
/// the versions it continues learned: what a rollback left behind was taken back, and what is tainted
/// may repeat what was erased. One that lost something with age has not all that teaching needs.
pub const CANDIDATES: &str = "
    with recursive lineage (version) as (
        select $5
        union
        select versions.parent from lineage
        join versions on versions.version = lineage.version
        where versions.scope_number = $1
    )
    select turns.number, transitions.number
    from version_samples
    join versions on versions.scope_number = version_samples.scope_number
        and versions.version = version_samples.version
    join transitions on transitions.number = version_samples.transition_number
    join turns on turns.number = transitions.turn_number
    join arithmetics on arithmetics.number = turns.arithmetic_number
    join verdicts on verdicts.transition_number = transitions.number and verdicts.current = 1
    where version_samples.scope_number = $1 and turns.trained_version is not null
      and turns.extent = 2
      and versions.tainted_ms is null
      and versions.version in (select version from lineage)
      and arithmetics.fingerprint = $2 and arithmetics.base = $3
      and (verdicts.hint is not null or exists (
          select 1 from feedback where feedback.turn_id = turns.id
              and feedback.owner = turns.owner and feedback.correction is not null
      ))
    order by coalesce((
        select avg(vote * vote) - avg(vote) * avg(vote)
        from (
            select case outcome
                when 'good' then 1.0 when 'bad' then -1.0 when 'neutral' then 0.0
                end as vote
            from votes where votes.verdict_number = verdicts.number
        ) as counted
    ), 0.0) desc, turns.number desc
    limit $4";

/// (turn, transition), in order of priority.
async fn candidates(
    connection: &mut Connection<'_>,
    scope: i64,
    query: &ReplayQuery,
) -> Result<Vec<(i64, i64)>, Fault> {
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let head = policies::head(connection, scope).await?;
    let found = db::query_as(CANDIDATES)
        .bind(scope)
        .bind(&query.fingerprint)
        .bind(&query.base.0[..])
        .bind(limit)
        .bind(head)
        .fetch_all(connection)
        .await?;
    Ok(found)
}
