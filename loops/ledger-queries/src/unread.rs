//! What consumers have yet to read, noted in the transaction that writes it or that reads it.

use hone_ledger::Read;

use super::texts::unsigned;
use crate::db::{self, Connection, Fault};

/// Notes a new turn as unread by a consumer.
pub(super) const NOTE_TURN: &str = "
    insert into unread (consumer, turn_number, is_new)
    values ($1, (select number from turns where id = $2), 1)";

/// Notes a revision of the verdict on a turn. The memory loop reads those with a hint, and the newest in place of an
/// older one that it has not read yet.
pub(super) async fn note_verdict(
    connection: &mut Connection<'_>,
    turn: i64,
    revision: i64,
    has_hint: bool,
) -> Result<(), Fault> {
    db::query(
        "insert into unread (consumer, turn_number, is_new, revision)
         select name, cast($1 as bigint), 0, cast($2 as bigint) from followers
         union all
         select 'memory', turn_number, 0, cast($2 as bigint) from turn_memories
         where turn_number = $1 and mode = 'full' and ($3 = 1 or exists (
             select 1 from unread
             where consumer = 'memory' and turn_number = $1 and revision is not null
         ))
         on conflict (consumer, turn_number) do update set revision = excluded.revision",
    )
    .bind(turn)
    .bind(revision)
    .bind(i64::from(has_hint))
    .execute(connection)
    .await?;
    Ok(())
}

/// What a consumer had not read before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// The turn.
    pub(super) is_new: bool,
    /// The newest revision of its verdict.
    pub(super) verdict: bool,
}

/// Notes what a consumer has read of a turn, in the transaction of whatever it made of that.
pub(super) async fn acknowledge_turn(
    connection: &mut Connection<'_>,
    consumer: &str,
    turn: i64,
    read: &Read,
) -> Result<Acknowledged, Fault> {
    let unread: Option<(bool, Option<i64>)> = db::query_as(
        "select is_new, revision from unread where consumer = $1 and turn_number = $2",
    )
    .bind(consumer)
    .bind(turn)
    .fetch_optional(&mut *connection)
    .await?;
    let Some((is_new, revision)) = unread else {
        return Ok(Acknowledged::default());
    };
    let newest = revision.map(unsigned).transpose()?;
    let acknowledged = Acknowledged {
        is_new: is_new && read.is_new,
        verdict: newest.is_some() && newest <= read.revision,
    };
    let stays_new = is_new && !acknowledged.is_new;
    let revision = revision.filter(|_| !acknowledged.verdict);
    let sql = match stays_new || revision.is_some() {
        true => {
            "update unread set is_new = $3, revision = $4 where consumer = $1 and turn_number = $2"
        }
        false => "delete from unread where consumer = $1 and turn_number = $2",
    };
    let mut query = db::query(sql).bind(consumer).bind(turn);
    if stays_new || revision.is_some() {
        query = query.bind(stays_new).bind(revision);
    }
    query.execute(connection).await?;
    Ok(acknowledged)
}

/// Nothing of these turns is read any more.
pub(super) async fn drop_of_turns(
    connection: &mut Connection<'_>,
    forget: i64,
) -> Result<(), Fault> {
    db::query(
        "delete from unread where turn_number in (
             select turn_number from forget_turns where forget_number = $1
         )",
    )
    .bind(forget)
    .execute(connection)
    .await?;
    Ok(())
}

/// The verdicts on turns that stay are about to go: `gone_transitions` names them.
pub(super) const DROP_VERDICTS: [&str; 2] = [
    "delete from unread where is_new = 0 and turn_number in (
         select turn_number from transitions
         join gone_transitions on gone_transitions.transition_number = transitions.number
     )",
    "update unread set revision = null where turn_number in (
         select turn_number from transitions
         join gone_transitions on gone_transitions.transition_number = transitions.number
     )",
];
