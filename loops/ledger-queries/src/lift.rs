//! What shows whether learning helps a scope.

use hone_domain::Scope;
use hone_domain::lift::ScoredTurn;

use super::texts::{limit, some_text, unsigned};
use super::{policies, rows};
use crate::db::{self, Connection, Fault};
use hone_ledger::{Learned, LearnedVersion};

/// The newest scored turns of a scope, those left out that show nothing. Reads no more of them than it is
/// asked for, however many there are.
pub const SCORED: &str = "with newest (number) as (
         select number from turns indexed by turns_scored_newest
         where scope_number = $1 and score is not null order by number desc limit $2
     )
     select turns.id, sessions.id as session_id, turns.version, turns.holdback,
            coalesce(
                (select max(-1.0, min(1.0, coalesce(feedback.score, -1.0))) from feedback
                 where feedback.turn_id = turns.id and feedback.owner = turns.owner
                   and (feedback.score is not null or feedback.correction is not null)
                 order by feedback.received_ms desc, feedback.number desc limit 1),
                turns.score
            ) as score,
            turns.finished_ms, verdicts.hint,
            (select coalesce(feedback.correction, feedback.comment) from feedback
             where feedback.turn_id = turns.id and feedback.owner = turns.owner
               and feedback.of_session = 0
             order by feedback.number desc limit 1) as said
     from newest
     join turns on turns.number = newest.number
     join sessions on sessions.number = turns.session_number
     left join transitions on transitions.turn_number = turns.number
     left join verdicts on verdicts.transition_number = transitions.number
         and verdicts.current = 1
     where turns.origin not in ('outside', 'rollout') and turns.started_ms >= (
             select coalesce(min(published_ms), 9223372036854775807) from versions
             where scope_number = $1
         )
       and (turns.holdback = 1 or not exists (
             select 1 from versions where versions.scope_number = $1
             and versions.version = turns.version and versions.digest = zeroblob(32)
         ))
     order by newest.number desc";

/// What a scope's versions show, newest first. The means come from running sums.
pub const VERSIONS: &str = "select version, status, tainted_ms is not null as is_tainted,
            published_ms, samples,
            (select avg(turns.score) from version_samples
             join transitions on transitions.number = version_samples.transition_number
             join turns on turns.number = transitions.turn_number
             where version_samples.scope_number = versions.scope_number
               and version_samples.version = versions.version) as learned_score,
            (select cast(total as double precision) / 1073741824.0 / judged from version_scores
             where version_scores.scope_number = versions.scope_number
               and version_scores.version = versions.parent and judged > 0) as before,
            (select cast(total as double precision) / 1073741824.0 / judged from version_scores
             where version_scores.scope_number = versions.scope_number
               and version_scores.version = versions.version and judged > 0) as after
     from versions where scope_number = $1 order by version desc limit $2";

pub(crate) async fn scored_turns(
    connection: &mut Connection<'_>,
    scope: &Scope,
    most: usize,
) -> Result<Vec<ScoredTurn>, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(Vec::new());
    };
    // No judge reads what is said of a turn that was trained, and every held-back turn is judged
    // again: what the person said last counts by itself, or it would count on one side only. A
    // complaint is what the person wrote, or what the judge understood should have been done, where
    // the turn was bad. A rollback to the base model has a number, but has learned nothing.
    let rows = db::query(SCORED)
        .bind(number)
        .bind(limit(most))
        .fetch_all(connection)
        .await?;
    rows.into_iter()
        .rev()
        .map(|row| {
            let score: f64 = row.try_get("score")?;
            let said = some_text(row.try_get("said")?)?;
            let hint = some_text(row.try_get("hint")?)?;
            Ok(ScoredTurn {
                session: rows::session_id(row.try_get("session_id")?)?,
                version: rows::version(row.try_get("version")?)?,
                holdback: row.try_get("holdback")?,
                score: score as f32,
                at_ms: row.try_get("finished_ms")?,
                complaint: said.or(hint).filter(|text| score < 0.0 && !text.is_empty()),
            })
        })
        .collect()
}

pub(crate) async fn learned(
    connection: &mut Connection<'_>,
    scope: &Scope,
    versions_max: usize,
) -> Result<Learned, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(Learned::default());
    };
    let fates: Vec<(String, i64, i64)> = db::query_as(
        "select fate, turns, judged from scope_counts
         where scope_number = $1 and turns > 0 order by turns desc",
    )
    .bind(number)
    .fetch_all(&mut *connection)
    .await?;
    let (taught, newest): (i64, Option<i64>) = db::query_as(
        "select count(*), max(version) from versions
         where scope_number = $1 and status = 'published'",
    )
    .bind(number)
    .fetch_one(&mut *connection)
    .await?;
    let mut learned = Learned {
        versions: versions(connection, number, versions_max).await?,
        versions_taught: unsigned(taught)?,
        newest_taught: newest.map(rows::version).transpose()?,
        ..Learned::default()
    };
    for (fate, turns, judged) in fates {
        let turns = unsigned(turns)?;
        learned.turns += turns;
        learned.judged += unsigned(judged)?;
        if fate == "trained" {
            learned.trained = turns;
        } else {
            learned.waiting.push((fate, turns));
        }
    }
    Ok(learned)
}

async fn versions(
    connection: &mut Connection<'_>,
    scope: i64,
    most: usize,
) -> Result<Vec<LearnedVersion>, Fault> {
    let rows = db::query(VERSIONS)
        .bind(scope)
        .bind(limit(most))
        .fetch_all(connection)
        .await?;
    rows.into_iter()
        .map(|row| {
            Ok(LearnedVersion {
                version: rows::version(row.try_get("version")?)?,
                status: rows::status(row.try_get("status")?)?,
                is_tainted: row.try_get("is_tainted")?,
                published_ms: row.try_get("published_ms")?,
                samples: unsigned(row.try_get("samples")?)?,
                learned_score: row.try_get("learned_score")?,
                score_before: row.try_get("before")?,
                score_after: row.try_get("after")?,
            })
        })
        .collect()
}
