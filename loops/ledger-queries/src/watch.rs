//! What the watch over served versions reads and remembers.

use hone_domain::Scope;

use super::texts::{limit, named};
use super::unreadable::readable;
use super::{policies, rows, unreadable};
use crate::codec::tokens_from_bytes;
use crate::db::{self, Connection, Fault, Row};
use hone_ledger::{WatchNews, WatchPlace, WatchedTurn, WatchedVerdict};

pub(crate) async fn place(connection: &mut Connection<'_>) -> Result<WatchPlace, Fault> {
    let (turn, verdict) =
        db::query_as("select turn_number, verdict_number from watch_places where number = 1")
            .fetch_one(connection)
            .await?;
    Ok(WatchPlace { turn, verdict })
}

pub(crate) async fn memory(
    connection: &mut Connection<'_>,
    scope: &Scope,
) -> Result<Option<String>, Fault> {
    let memory: Option<Option<String>> = db::query_scalar(
        "select watch from standings
         join scopes on scopes.number = standings.scope_number where scopes.name = $1",
    )
    .bind(scope.as_str().as_bytes())
    .fetch_optional(connection)
    .await?;
    Ok(memory.flatten())
}

pub(crate) async fn news(
    connection: &mut Connection<'_>,
    place: WatchPlace,
    most: usize,
) -> Result<WatchNews, Fault> {
    let mut news = WatchNews {
        place,
        ..WatchNews::default()
    };
    let turns = db::query(
        "select turns.number, scopes.name as scope, turns.version, completion_tokens, stop
         from turns
         join turn_payloads on turn_payloads.turn_number = turns.number
         join scopes on scopes.number = turns.scope_number
         where turns.number > $1 and kind = 'main' and origin = 'user' and stop <> 'cancelled'
         order by turns.number limit $2",
    )
    .bind(place.turn)
    .bind(limit(most))
    .fetch_all(&mut *connection)
    .await?;
    for row in &turns {
        news.place.turn = row.try_get("number")?;
        match readable(watched(row))? {
            Some(turn) => news.turns.push(turn),
            None => unreadable::skip(connection, news.place.turn).await?,
        }
    }
    // A turn counts once as a good one and once as a bad one, however often what is said of it has it
    // judged again: a complaint that comes late is one.
    let verdicts = db::query(
        "select verdicts.number, scopes.name as scope, turns.version, verdicts.score
         from verdicts
         join transitions on transitions.number = verdicts.transition_number
         join turns on turns.number = transitions.turn_number
         join scopes on scopes.number = turns.scope_number
         where verdicts.number > $1 and verdicts.score is not null
           and kind = 'main' and origin = 'user'
           and not exists (
               select 1 from verdicts as earlier
               where earlier.transition_number = verdicts.transition_number
                 and earlier.revision < verdicts.revision and earlier.score is not null
                 and (earlier.score < 0) = (verdicts.score < 0)
           )
         order by verdicts.number limit $2",
    )
    .bind(place.verdict)
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    for row in &verdicts {
        news.place.verdict = row.try_get("number")?;
        news.verdicts.push(WatchedVerdict {
            scope: rows::scope(row.try_get("scope")?)?,
            version: rows::version(row.try_get("version")?)?,
            score: row.try_get::<f64, _>("score")? as f32,
        });
    }
    Ok(news)
}

fn watched(row: &Row) -> Result<WatchedTurn, Fault> {
    Ok(WatchedTurn {
        scope: rows::scope(row.try_get("scope")?)?,
        version: rows::version(row.try_get("version")?)?,
        tokens: tokens_from_bytes(row.try_get("completion_tokens")?)?,
        stop: named(row.try_get("stop")?)?,
    })
}

pub(crate) async fn keep(
    connection: &mut Connection<'_>,
    place: WatchPlace,
    memories: &[(Scope, String)],
) -> Result<(), Fault> {
    // What was read may have been erased since, and its numbers are given again.
    db::query(
        "update watch_places set
             turn_number = min($1, (select coalesce(max(number), 0) from turns)),
             verdict_number = min($2, (select coalesce(max(number), 0) from verdicts))
         where number = 1",
    )
    .bind(place.turn)
    .bind(place.verdict)
    .execute(&mut *connection)
    .await?;
    for (scope, memory) in memories {
        let number = policies::make_scope(connection, scope).await?;
        db::query(
            "insert into standings (scope_number, watch) values ($1, $2)
             on conflict (scope_number) do update set watch = $2",
        )
        .bind(number)
        .bind(memory)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
