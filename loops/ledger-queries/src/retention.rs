//! What goes with age: which turns are old enough and needed by nobody, and how much that is.

use hone_domain::Millis;
use hone_ledger::{EndedBefore, Pruned, Retention, Tally};

use sqlx::AssertSqlSafe;

use super::texts::{limit, unsigned};
use crate::db::{self, Builder, Connection, Fault, Query};

/// Turns whose names are bound as a JSON list.
pub(crate) const LISTED: &str = "select cast(value as bigint) from json_each($1)";

/// A statement of the program's own about [`LISTED`] rows.
pub(crate) fn listed(sql: String, numbers: &[i64]) -> Result<Query, Fault> {
    Ok(db::query(AssertSqlSafe(sql)).bind(serde_json::to_string(numbers)?))
}

/// Votes that may go: the others say how often what was executed agreed with a certificate.
pub(crate) const PLAIN_VOTES: &str = "(votes.model is null or votes.model not glob 'audit:*')";

/// A time before which nothing is, for none.
fn time(before_ms: Option<Millis>) -> Millis {
    before_ms.unwrap_or(Millis::MIN)
}

/// The condition of rows of `turns` that are at their end, not just a row already, older than what is kept of their
/// owner, read by memory, and not needed for comparisons.
pub(crate) fn push_old(query: &mut Builder, before: &EndedBefore, held_out_kept: usize) {
    query.push(
        "turns.stage is null and turns.extent > 0
         and not exists (
             select 1 from unread
             where unread.turn_number = turns.number and unread.consumer = 'memory'
         )
         and turns.finished_ms < ",
    );
    if before.owners.is_empty() {
        query.push_bind(time(before.all_ms));
    } else {
        query.push("case turns.owner");
        for (owner, before_ms) in &before.owners {
            query.push(" when ").push_bind(owner.clone());
            query.push(" then ").push_bind(time(*before_ms));
        }
        query.push(" else ").push_bind(time(before.all_ms));
        query.push(" end");
    }
    // The newest of a scope and base model are those that the gate compares candidates on.
    query.push(
        " and (turns.reason is distinct from 'held_out' or turns.score is null or (
             select count(*) from (
                 select 1 from turns as newer indexed by turns_held_out
                 join arithmetics as theirs on theirs.number = newer.arithmetic_number
                 join arithmetics as own on own.base = theirs.base
                 where newer.scope_number = turns.scope_number and newer.reason = 'held_out'
                   and newer.score is not null and newer.extent = 2
                   and newer.number > turns.number and own.number = turns.arithmetic_number
                 limit ",
    );
    query.push_bind(limit(held_out_kept));
    query.push(") as kept) >= ").push_bind(limit(held_out_kept));
    query.push(")");
}

/// What keeps the rows of a session, beside a turn of it that stays: a version learned from it, so that an erasure finds
/// the version; a memory or a skill came of it, likewise; or a check of it counts. The session's number goes between the parts.
const NEEDED: [&str; 6] = [
    "exists (
         select 1 from turns
         join transitions on transitions.turn_number = turns.number
         join version_samples on version_samples.transition_number = transitions.number
         where turns.session_number = ",
    ") or exists (
         select 1 from turns join memories on memories.turn_id = turns.id
         where turns.session_number = ",
    ") or exists (
         select 1 from turns join skill_turns on skill_turns.turn_id = turns.id
         where turns.session_number = ",
    ") or exists (
         select 1 from turns join corrections on corrections.turn_id = turns.id
         where turns.session_number = ",
    ") or exists (
         select 1 from turns
         join transitions on transitions.turn_number = turns.number
         join verdicts on verdicts.transition_number = transitions.number
         join votes on votes.verdict_number = verdicts.number
         where votes.model glob 'audit:*' and turns.session_number = ",
    ")",
];

/// Adds the parts of [`NEEDED`] with what `push_session` puts between them.
fn push_needed(query: &mut Builder, push_session: impl Fn(&mut Builder)) {
    for (place, part) in NEEDED.into_iter().enumerate() {
        if place > 0 {
            push_session(query);
        }
        query.push(part);
    }
}

/// Whether a session goes as a whole: all of its turns may go, or lost their words before, and none is needed.
pub(crate) fn leaves(retention: &Retention, session: i64) -> Query {
    let mut query = Builder::new("select not (exists (select 1 from turns where session_number = ");
    query.push_bind(session);
    query.push(" and extent > 0 and not (");
    push_old(&mut query, &retention.turns, retention.held_out_kept);
    query.push(")) or ");
    push_needed(&mut query, |query| {
        query.push_bind(session);
    });
    query.push(")");
    query.build()
}

/// What only training reads of turns.
pub(crate) fn logprobs_of(turns: &str) -> String {
    format!(
        "select count(*), coalesce(sum(length(behavior_logprobs) + length(raw_logprobs)
                + coalesce(length(kept), 0) + coalesce(length(experts), 0)), 0)
         from turn_payloads join turns on turns.number = turn_payloads.turn_number
         where turns.extent = 2 and turn_payloads.turn_number in ({turns})"
    )
}

/// The words of turns that have some.
pub(crate) fn words_of(turns: &str) -> String {
    format!(
        "select (select count(*) from turns where number in ({turns})),
             coalesce((select sum(length(prompt_tail) + length(completion_tokens)
                     + length(completion_text) + length(sampling) + length(spans)
                     + coalesce(length(checks), 0))
                 from turn_payloads where turn_number in ({turns})), 0)
             + coalesce((select sum(coalesce(length(metadata), 0)) from turns
                 where number in ({turns})), 0)
             + coalesce((select sum(length(next_state)) from transitions
                 where turn_number in ({turns})), 0)
             + coalesce((select sum(coalesce(length(hint), 0) + coalesce(length(wish), 0)
                     + coalesce(length(hint_choice), 0))
                 from verdicts join transitions on transitions.number = verdicts.transition_number
                 where transitions.turn_number in ({turns})), 0)
             + coalesce((select sum(coalesce(length(comment), 0) + coalesce(length(correction), 0))
                 from feedback
                 where turn_id in (select id from turns where number in ({turns}))), 0)"
    )
}

/// The rows of turns.
pub(crate) fn rows_of(turns: &str) -> String {
    format!(
        "select count(*), coalesce(sum(length(id) + length(request_id) + octet_length(owner)
                + coalesce(length(group_id), 0) + coalesce(length(parent_id), 0)
                + coalesce(length(source), 0) + coalesce(length(branch_of), 0)), 0)
         from turns where number in ({turns})"
    )
}

/// The plain votes of verdicts.
pub(crate) fn votes_of(verdicts: &str) -> String {
    format!(
        "select count(*), coalesce(sum(length(reason) + coalesce(octet_length(prompt), 0)), 0)
         from votes where {PLAIN_VOTES} and verdict_number in ({verdicts})"
    )
}

/// Reads a count and a sum.
pub(crate) async fn tally(connection: &mut Connection<'_>, query: Query) -> Result<Tally, Fault> {
    let row = query.fetch_one(connection).await?;
    Ok(Tally {
        rows: unsigned(row.try_get(0)?)?,
        bytes: unsigned(row.try_get(1)?)?,
    })
}

/// Turns that lose their words.
const GOING: &str = "select number from going";
/// Turns that lose what only training reads.
const LIGHTER: &str = "select number from lighter union select number from going";
/// Turns of which nothing stays.
const LEAVING: &str =
    "select number from turns where session_number in (select session_number from leaving)";
/// Messages and blocks of tokens that turns which stay do not have. Lists are trees of shared beginnings, so who has one
/// has all above it.
const MESSAGES: &str = "
    , kept (number) as (
        select history_number from turn_payloads
        where history_number is not null and turn_number not in (select number from going)
        union
        select histories.parent_number from kept join histories on histories.number = kept.number
        where histories.parent_number is not null
    )
    select count(*), coalesce(sum(length(body)), 0) from messages
    where number not in (
        select message_number from histories where number in (select number from kept)
    )";
const BLOCKS: &str = "
    , kept (number) as (
        select block_number from turn_payloads
        where block_number is not null and turn_number not in (select number from going)
        union
        select token_blocks.parent_number from kept
        join token_blocks on token_blocks.number = kept.number
        where token_blocks.parent_number is not null
    )
    select count(*), coalesce(sum(length(tokens)), 0) from token_blocks
    where number not in (select number from kept)";

/// A question about what goes: `going`, `lighter` and `leaving` are named before it.
fn asked(retention: &Retention) -> Builder {
    let mut query = Builder::new(
        "with recursive going (number, session_number) as (
             select turns.number, turns.session_number from turns where ",
    );
    push_old(&mut query, &retention.turns, retention.held_out_kept);
    query
        .push("), lighter (number) as (select turns.number from turns where turns.extent = 2 and ");
    push_old(&mut query, &retention.logprobs(), retention.held_out_kept);
    query.push(
        "), leaving (session_number) as (
             select distinct going.session_number from going
             where not (exists (
                 select 1 from turns
                 where turns.session_number = going.session_number and turns.extent > 0
                   and turns.number not in (select number from going)
             ) or ",
    );
    push_needed(&mut query, |query| {
        query.push("going.session_number");
    });
    query.push(")) ");
    query
}

/// Says what would go, and changes nothing. Reads every turn and every message.
pub(crate) async fn plan(
    connection: &mut Connection<'_>,
    retention: &Retention,
) -> Result<Pruned, Fault> {
    let question = |words: &str| {
        let mut query = asked(retention);
        query.push_made(words);
        query
    };
    let mut votes = question(&format!(
        "select count(*), coalesce(sum(length(votes.reason) + coalesce(octet_length(votes.prompt), 0)), 0)
         from votes
         join verdicts on verdicts.number = votes.verdict_number
         join transitions on transitions.number = verdicts.transition_number
         join turns on turns.number = transitions.turn_number
         where {PLAIN_VOTES} and (
             turns.number in (select number from going)
             or turns.stage is null and verdicts.judged_ms < "
    ));
    votes.push_bind(time(retention.votes_before_ms)).push(")");
    let mut reports = Builder::new(
        "select count(*), coalesce(sum(octet_length(report)), 0) from refusals
         where report <> '{}' and refused_ms < ",
    );
    reports.push_bind(time(retention.reports_before_ms));
    Ok(Pruned {
        logprobs: tally(connection, question(&logprobs_of(LIGHTER)).build()).await?,
        words: tally(connection, question(&words_of(GOING)).build()).await?,
        turns: tally(connection, question(&rows_of(LEAVING)).build()).await?,
        messages: tally(connection, question(MESSAGES).build()).await?,
        token_blocks: tally(connection, question(BLOCKS).build()).await?,
        votes: tally(connection, votes.build()).await?,
        reports: tally(connection, reports.build()).await?,
    })
}
