//! Removing what is older than it is kept, piece by piece. What goes is chosen by a reader, so that who writes waits only
//! for the removing; there every turn is looked at once more, because feedback may have sent it back meanwhile.

use std::collections::HashMap;

use hone_domain::{Millis, NextState, Sampling};
use hone_ledger::{EndedBefore, Extent, PrunePlace, Pruned, Retention};
use sqlx::AssertSqlSafe;

use super::erase;
use super::retention::{
    LISTED, PLAIN_VOTES, leaves, listed, logprobs_of, push_old, rows_of, tally, votes_of, words_of,
};
use super::texts::limit;
use crate::codec::sampling_to_bytes;
use crate::db::{self, Builder, Connection, Fault};

/// Verdicts that one piece looks through for votes.
const VERDICTS_SEEN: usize = 1_024;

/// What a piece is about to do, and where the next one begins.
#[derive(Default)]
pub(crate) struct Chosen {
    /// Turns that lose their words.
    words: Vec<i64>,
    /// Turns of which nothing stays, and that have words.
    whole: Vec<i64>,
    /// Turns of which nothing stays, and that lost their words before.
    bare: Vec<i64>,
    /// Turns that lose what only training reads, verdicts that lose votes, refusals that lose reports.
    rows: Vec<i64>,
    /// None where the stage is over.
    pub(crate) next: Option<PrunePlace>,
}

impl Chosen {
    fn len(&self) -> usize {
        self.words.len() + self.whole.len() + self.bare.len() + self.rows.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The turns of one extent that ended before a time, from a place on.
async fn ended(
    connection: &mut Connection<'_>,
    retention: &Retention,
    before: &EndedBefore,
    place: PrunePlace,
    extent: Extent,
    most: usize,
) -> Result<Vec<(i64, i64, Millis)>, Fault> {
    let Some(latest_ms) = before.latest_ms() else {
        return Ok(Vec::new());
    };
    let mut query = Builder::new(
        "select turns.number, turns.session_number, turns.finished_ms
         from turns indexed by turns_by_age where turns.extent = ",
    );
    query.push_bind(extent.number());
    query.push(" and turns.finished_ms < ").push_bind(latest_ms);
    query.push(" and (turns.finished_ms, turns.number) > (");
    query.push_bind(place.after.0);
    query.push(", ").push_bind(place.after.1).push(") and ");
    push_old(&mut query, before, retention.held_out_kept);
    query.push(" order by turns.finished_ms, turns.number limit ");
    query.push_bind(limit(most));
    let rows = query.build().fetch_all(connection).await?;
    let row = |row: &db::Row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
    rows.iter().map(row).collect()
}

/// Turns whose words go, from a place on.
pub(crate) async fn choose_turns(
    connection: &mut Connection<'_>,
    retention: &Retention,
    mut place: PrunePlace,
    extent: Extent,
    most: usize,
) -> Result<Chosen, Fault> {
    let found = ended(connection, retention, &retention.turns, place, extent, most).await?;
    let is_last = found.len() < most;
    let mut chosen = Chosen::default();
    let mut sessions: HashMap<i64, bool> = HashMap::new();
    for (turn, session, ended_ms) in found {
        if chosen.len() >= most {
            chosen.next = Some(place);
            return Ok(chosen);
        }
        let goes = match sessions.get(&session) {
            Some(goes) => *goes,
            None => {
                let leaves = leaves(retention, session).fetch_one(&mut *connection);
                let goes: bool = leaves.await?.try_get(0)?;
                sessions.insert(session, goes);
                if goes {
                    let room = most - chosen.len();
                    chosen.bare.extend(bare(connection, session, room).await?);
                }
                goes
            }
        };
        if chosen.len() >= most {
            chosen.next = Some(place);
            return Ok(chosen);
        }
        if goes {
            &mut chosen.whole
        } else {
            &mut chosen.words
        }
        .push(turn);
        place.after = (ended_ms, turn);
    }
    chosen.next = (!is_last).then_some(place);
    Ok(chosen)
}

/// Turns of a session that lost their words before.
async fn bare(
    connection: &mut Connection<'_>,
    session: i64,
    most: usize,
) -> Result<Vec<i64>, Fault> {
    let bare = db::query_scalar(
        "select number from turns where session_number = $1 and extent = 0 order by number limit $2",
    )
    .bind(session)
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    Ok(bare)
}

/// Those of the turns that may still go.
async fn still_old(
    connection: &mut Connection<'_>,
    retention: &Retention,
    before: &EndedBefore,
    turns: &[i64],
) -> Result<Vec<i64>, Fault> {
    if turns.is_empty() {
        return Ok(Vec::new());
    }
    let mut query = Builder::new(
        "select turns.number from turns
         where turns.number in (select cast(value as bigint) from json_each(",
    );
    query.push_bind(serde_json::to_string(turns)?);
    query.push(")) and ");
    push_old(&mut query, before, retention.held_out_kept);
    let rows = query.build().fetch_all(connection).await?;
    let number = |row: &db::Row| Ok(row.try_get(0)?);
    rows.iter().map(number).collect()
}

/// Takes the words of what was chosen, and removes what goes as a whole.
pub(crate) async fn turns(
    connection: &mut Connection<'_>,
    retention: &Retention,
    chosen: &Chosen,
) -> Result<Pruned, Fault> {
    let before = &retention.turns;
    let words = still_old(connection, retention, before, &chosen.words).await?;
    let whole = still_old(connection, retention, before, &chosen.whole).await?;
    let both = [&words[..], &whole].concat();
    let leaving = [&whole[..], &chosen.bare].concat();
    let verdicts = erase::verdicts_of();
    let pruned = Pruned {
        logprobs: tally(connection, listed(logprobs_of(LISTED), &both)?).await?,
        words: tally(connection, listed(words_of(LISTED), &both)?).await?,
        turns: tally(connection, listed(rows_of(LISTED), &leaving)?).await?,
        votes: tally(connection, listed(votes_of(&verdicts), &both)?).await?,
        ..Pruned::default()
    };
    clear_titles(connection, &both).await?;
    take_words(connection, &words).await?;
    erase::remove_turns(connection, &leaving).await?;
    Ok(pruned)
}

/// Takes away the titles of sessions, which are words of some turn of theirs, and the names of the parts of their rewards.
async fn clear_titles(connection: &mut Connection<'_>, turns: &[i64]) -> Result<(), Fault> {
    let parts = format!(
        "update session_rewards set parts = $2 where session_number in (
             select session_number from turns where number in ({LISTED}) and kind = 'main'
         )"
    );
    listed(parts, turns)?
        .bind(&b"{}"[..])
        .execute(&mut *connection)
        .await?;
    let sql = format!(
        "update sessions set title = null, title_folded = null
         where title is not null and number in (
             select session_number from turns where number in ({LISTED}) and kind = 'main'
         )"
    );
    listed(sql, turns)?.execute(connection).await?;
    Ok(())
}

/// Leaves of turns their rows, scores and what became of them.
async fn take_words(connection: &mut Connection<'_>, turns: &[i64]) -> Result<(), Fault> {
    let verdicts = erase::verdicts_of();
    let statements = [
        erase::loosened("histories", "history_number"),
        erase::loosened("blocks", "block_number"),
        format!("delete from votes where {PLAIN_VOTES} and verdict_number in ({verdicts})"),
        format!(
            "update verdicts set hint = null, wish = null, hint_choice = null
             where number in ({verdicts})"
        ),
        // A correction alone counts as a -1, also without its words.
        format!(
            "update feedback set comment = null, correction = null,
                 score = case when score is null and correction is not null then -1.0 else score end
             where turn_id in (select id from turns where number in ({LISTED}))"
        ),
        format!("update turns set extent = 0, metadata = null where number in ({LISTED})"),
    ];
    for sql in statements {
        listed(sql, turns)?.execute(&mut *connection).await?;
    }
    let none: &[u8] = &[];
    let emptied =
        format!("update votes set reason = $2, prompt = null where verdict_number in ({verdicts})");
    listed(emptied, turns)?
        .bind(none)
        .execute(&mut *connection)
        .await?;
    let unanswered =
        format!("update transitions set next_state = $2 where turn_number in ({LISTED})");
    listed(unanswered, turns)?
        .bind(&serde_json::to_vec(&NextState::default())?[..])
        .execute(&mut *connection)
        .await?;
    let wordless = format!(
        "update turn_payloads set history_number = null, block_number = null, prompt_tail = $2,
             completion_tokens = $2, behavior_logprobs = $2, raw_logprobs = $2, kept = null,
             experts = null, completion_text = $2, sampling = $3, spans = $2, checks = null
         where turn_number in ({LISTED})"
    );
    listed(wordless, turns)?
        .bind(none)
        .bind(sampling_to_bytes(&Sampling::default()))
        .execute(connection)
        .await?;
    Ok(())
}

/// Turns that lose what only training reads, from a place on.
pub(crate) async fn choose_logprobs(
    connection: &mut Connection<'_>,
    retention: &Retention,
    mut place: PrunePlace,
    most: usize,
) -> Result<Chosen, Fault> {
    let before = retention.logprobs();
    let found = ended(connection, retention, &before, place, Extent::Whole, most).await?;
    let mut chosen = Chosen::default();
    for (turn, _, ended_ms) in &found {
        chosen.rows.push(*turn);
        place.after = (*ended_ms, *turn);
    }
    chosen.next = (found.len() >= most).then_some(place);
    Ok(chosen)
}

/// Takes what only training reads.
pub(crate) async fn logprobs(
    connection: &mut Connection<'_>,
    retention: &Retention,
    chosen: &Chosen,
) -> Result<Pruned, Fault> {
    let turns = still_old(connection, retention, &retention.logprobs(), &chosen.rows).await?;
    let logprobs = tally(connection, listed(logprobs_of(LISTED), &turns)?).await?;
    let none: &[u8] = &[];
    let payloads = format!(
        "update turn_payloads set behavior_logprobs = $2, raw_logprobs = $2, kept = null,
             experts = null
         where turn_number in ({LISTED})"
    );
    listed(payloads, &turns)?
        .bind(none)
        .execute(&mut *connection)
        .await?;
    let turned = format!("update turns set extent = 1 where number in ({LISTED}) and extent = 2");
    listed(turned, &turns)?.execute(connection).await?;
    Ok(Pruned {
        logprobs,
        ..Pruned::default()
    })
}

/// Verdicts that lose their votes, from a place on.
pub(crate) async fn choose_votes(
    connection: &mut Connection<'_>,
    retention: &Retention,
    mut place: PrunePlace,
    most: usize,
) -> Result<Chosen, Fault> {
    let mut chosen = Chosen::default();
    let Some(before_ms) = retention.votes_before_ms else {
        return Ok(chosen);
    };
    let seen = "select number, transition_number, judged_ms from verdicts
         where number > $1 order by number limit $2";
    let last: Option<i64> = db::query_scalar(AssertSqlSafe(format!(
        "select max(number) from ({seen}) as seen"
    )))
    .bind(place.after.1)
    .bind(limit(VERDICTS_SEEN))
    .fetch_one(&mut *connection)
    .await?;
    let Some(last) = last else {
        return Ok(chosen);
    };
    chosen.rows = db::query_scalar(AssertSqlSafe(format!(
        "select seen.number from ({seen}) as seen
         join transitions on transitions.number = seen.transition_number
         join turns on turns.number = transitions.turn_number
         where seen.judged_ms < $3 and turns.stage is null and exists (
             select 1 from votes where votes.verdict_number = seen.number and {PLAIN_VOTES}
         )
         order by seen.number limit $4"
    )))
    .bind(place.after.1)
    .bind(limit(VERDICTS_SEEN))
    .bind(before_ms)
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    place.after.1 = match chosen.rows.last() {
        Some(verdict) if chosen.rows.len() >= most => *verdict,
        _ => last,
    };
    chosen.next = Some(place);
    Ok(chosen)
}

/// Removes votes.
pub(crate) async fn votes(
    connection: &mut Connection<'_>,
    chosen: &Chosen,
) -> Result<Pruned, Fault> {
    let votes = tally(connection, listed(votes_of(LISTED), &chosen.rows)?).await?;
    let sql = format!("delete from votes where {PLAIN_VOTES} and verdict_number in ({LISTED})");
    listed(sql, &chosen.rows)?.execute(connection).await?;
    Ok(Pruned {
        votes,
        ..Pruned::default()
    })
}

/// Refusals that lose their reports, from a place on.
pub(crate) async fn choose_reports(
    connection: &mut Connection<'_>,
    retention: &Retention,
    mut place: PrunePlace,
    most: usize,
) -> Result<Chosen, Fault> {
    let mut chosen = Chosen::default();
    let Some(before_ms) = retention.reports_before_ms else {
        return Ok(chosen);
    };
    chosen.rows = db::query_scalar(
        "select number from refusals where number > $1 and refused_ms < $2 and report <> '{}'
         order by number limit $3",
    )
    .bind(place.after.1)
    .bind(before_ms)
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    if let Some(last) = chosen.rows.last() {
        place.after.1 = *last;
        chosen.next = Some(place);
    }
    Ok(chosen)
}

/// Empties reports.
pub(crate) async fn reports(
    connection: &mut Connection<'_>,
    chosen: &Chosen,
) -> Result<Pruned, Fault> {
    let sql = format!(
        "select count(*), coalesce(sum(octet_length(report)), 0) from refusals
         where number in ({LISTED})"
    );
    let reports = tally(connection, listed(sql, &chosen.rows)?).await?;
    let sql = format!("update refusals set report = '{{}}' where number in ({LISTED})");
    listed(sql, &chosen.rows)?.execute(connection).await?;
    Ok(Pruned {
        reports,
        ..Pruned::default()
    })
}

/// Whether anything that was shared may be without a user.
pub(crate) async fn has_loose(connection: &mut Connection<'_>) -> Result<bool, Fault> {
    let has = db::query_scalar(
        "select exists (select 1 from loose_histories) or exists (select 1 from loose_blocks)
             or exists (select 1 from loose_sessions)",
    )
    .fetch_one(connection)
    .await?;
    Ok(has)
}

/// Removes what was shared and nobody uses any more.
pub(crate) async fn shared(connection: &mut Connection<'_>, most: usize) -> Result<Pruned, Fault> {
    let swept = erase::sweep(connection, most).await?;
    Ok(Pruned {
        messages: swept.messages,
        token_blocks: swept.blocks,
        ..Pruned::default()
    })
}
