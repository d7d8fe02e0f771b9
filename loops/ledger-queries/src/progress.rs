//! [`Progress`]: what consumers have yet to read, noted in the transaction that writes it.

use async_trait::async_trait;
use hone_domain::{Millis, TurnId};
use hone_ledger::{
    FOLLOWER_NAME_MAX, FOLLOWERS_MAX, Follower, LedgerError, MEMORY_CONSUMER, Progress, Read,
    Unread,
};

use super::retention::listed;
use super::texts::{limit, signed, text, unsigned};
use super::unread::acknowledge_turn;
use super::{Held as _, SqlLedger, Store, Tries, rows};
use crate::db::{self, Connection, Fault};

#[async_trait]
impl<S: Store> Progress for SqlLedger<S> {
    async fn enrol(&self, name: &str, spec: &str, now_ms: Millis) -> Result<(), LedgerError> {
        transact!(self, connection => enrol(connection, name, spec, now_ms))
    }

    async fn fill(&self, name: &str, limit: usize) -> Result<bool, LedgerError> {
        transact!(self, connection => fill(connection, name, limit))
    }

    async fn unread_of(
        &self,
        name: &str,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Unread>, LedgerError> {
        look!(self, connection => unread_of(connection, name, after, limit))
    }

    async fn acknowledge(
        &self,
        name: &str,
        read: &[Read],
        now_ms: Millis,
    ) -> Result<(), LedgerError> {
        transact!(self, connection => acknowledge(connection, name, read, now_ms))
    }

    async fn followers(&self) -> Result<Vec<Follower>, LedgerError> {
        look!(self, connection => followers(connection))
    }

    async fn remove_follower(&self, name: &str, limit: usize) -> Result<bool, LedgerError> {
        transact!(self, connection => remove(connection, name, limit))
    }
}

async fn enrol(
    connection: &mut Connection<'_>,
    name: &str,
    spec: &str,
    now_ms: Millis,
) -> Result<(), Fault> {
    let conflict = |why: String| Fault::Ledger(LedgerError::Conflict(why));
    if name.is_empty() || name.len() > FOLLOWER_NAME_MAX || name == MEMORY_CONSUMER {
        let why = format!("a consumer cannot be called {name:?}; choose another name");
        return Err(conflict(why));
    }
    let enrolled: Option<Vec<u8>> = db::query_scalar("select spec from followers where name = $1")
        .bind(name)
        .fetch_optional(&mut *connection)
        .await?;
    if let Some(before) = enrolled {
        return match before == spec.as_bytes() {
            true => Ok(()),
            false => Err(conflict(
                "the name was enrolled for something else".to_owned(),
            )),
        };
    }
    let count: i64 = db::query_scalar("select count(*) from followers")
        .fetch_one(&mut *connection)
        .await?;
    if count >= limit(FOLLOWERS_MAX) {
        return Err(conflict(format!(
            "{FOLLOWERS_MAX} consumers are enrolled, and there is no place for another; remove one"
        )));
    }
    db::query(
        "insert into followers (name, spec, created_ms, filled_from)
         values ($1, $2, $3, (select coalesce(max(number), 0) + 1 from turns))",
    )
    .bind(name)
    .bind(spec.as_bytes())
    .bind(now_ms)
    .execute(connection)
    .await?;
    Ok(())
}

async fn fill(connection: &mut Connection<'_>, name: &str, most: usize) -> Result<bool, Fault> {
    let from: Option<i64> = db::query_scalar("select filled_from from followers where name = $1")
        .bind(name)
        .fetch_optional(&mut *connection)
        .await?;
    let Some(from) = from else { return Ok(false) };
    let turns: Vec<i64> = db::query_scalar(
        "select number from turns where number < $1 order by number desc limit $2",
    )
    .bind(from)
    .bind(limit(most))
    .fetch_all(&mut *connection)
    .await?;
    // Turns that are being erased are passed over. A verdict on one may have been noted since the consumer was enrolled.
    let note = "insert into unread (consumer, turn_number, is_new, revision)
         select $2, turns.number, 1, (
             select revision from transitions
             join verdicts on verdicts.transition_number = transitions.number
             where transitions.turn_number = turns.number and verdicts.current = 1
         )
         from turns
         where turns.number in (select cast(value as bigint) from json_each($1))
           and turns.kind = 'main'
           and turns.number not in (select turn_number from forget_turns)
         on conflict (consumer, turn_number) do update set is_new = 1";
    listed(note.to_owned(), &turns)?
        .bind(name)
        .execute(&mut *connection)
        .await?;
    db::query("update followers set filled_from = $1 where name = $2")
        .bind(turns.last().copied().unwrap_or(i64::MIN))
        .bind(name)
        .execute(connection)
        .await?;
    Ok(turns.len() >= most.max(1))
}

async fn unread_of(
    connection: &mut Connection<'_>,
    name: &str,
    after: i64,
    most: usize,
) -> Result<Vec<Unread>, Fault> {
    let found = db::query(
        "select unread.turn_number, turns.id, is_new, revision from unread
         join turns on turns.number = unread.turn_number
         where consumer = $1 and unread.turn_number > $2
         order by unread.turn_number limit $3",
    )
    .bind(name)
    .bind(after)
    .bind(limit(most))
    .fetch_all(&mut *connection)
    .await?;
    let mut unread = Vec::with_capacity(found.len());
    for row in &found {
        let turn = rows::turn_id(row.try_get("id")?)?;
        let revision: Option<i64> = row.try_get("revision")?;
        unread.push(Unread {
            number: row.try_get("turn_number")?,
            turn,
            is_new: row.try_get("is_new")?,
            revision: revision.map(unsigned).transpose()?,
            continued_by: continuations(connection, turn).await?,
        });
    }
    Ok(unread)
}

/// Main turns that continue a turn of their session.
async fn continuations(
    connection: &mut Connection<'_>,
    turn: TurnId,
) -> Result<Vec<TurnId>, Fault> {
    let ids: Vec<Vec<u8>> = db::query_scalar(
        "select id from turns indexed by turns_by_parent
         where parent_id = $1 and kind = 'main' order by number",
    )
    .bind(&turn.0.as_bytes()[..])
    .fetch_all(connection)
    .await?;
    ids.iter().map(|id| rows::turn_id(id)).collect()
}

async fn acknowledge(
    connection: &mut Connection<'_>,
    name: &str,
    read: &[Read],
    now_ms: Millis,
) -> Result<(), Fault> {
    let mut count = 0;
    for one in read {
        let turn: Option<i64> = db::query_scalar("select number from turns where id = $1")
            .bind(&one.turn.0.as_bytes()[..])
            .fetch_optional(&mut *connection)
            .await?;
        let Some(turn) = turn else { continue };
        let done = acknowledge_turn(connection, name, turn, one).await?;
        count += u64::from(done.is_new || done.verdict);
    }
    if count == 0 {
        return Ok(());
    }
    db::query("update followers set read_ms = $1, read_count = read_count + $2 where name = $3")
        .bind(now_ms)
        .bind(signed(count)?)
        .bind(name)
        .execute(connection)
        .await?;
    Ok(())
}

async fn followers(connection: &mut Connection<'_>) -> Result<Vec<Follower>, Fault> {
    let found = db::query(
        "select name, spec, created_ms, read_ms, read_count, (
             select count(*) from unread where unread.consumer = followers.name
         ) as unread
         from followers order by name",
    )
    .fetch_all(connection)
    .await?;
    let follower = |row: &db::Row| {
        Ok(Follower {
            name: row.try_get("name")?,
            spec: text(row.try_get("spec")?)?,
            created_ms: row.try_get("created_ms")?,
            read_ms: row.try_get("read_ms")?,
            read_count: unsigned(row.try_get("read_count")?)?,
            unread: unsigned(row.try_get("unread")?)?,
        })
    };
    found.iter().map(follower).collect()
}

async fn remove(connection: &mut Connection<'_>, name: &str, most: usize) -> Result<bool, Fault> {
    let is_enrolled: bool = db::query_scalar("select count(*) > 0 from followers where name = $1")
        .bind(name)
        .fetch_one(&mut *connection)
        .await?;
    if !is_enrolled {
        return Ok(false);
    }
    let gone = db::query(
        "delete from unread where consumer = $1 and turn_number in (
             select turn_number from unread where consumer = $1 order by turn_number limit $2
         )",
    )
    .bind(name)
    .bind(limit(most.max(1)))
    .execute(&mut *connection)
    .await?;
    if gone.rows_affected() >= most.max(1) as u64 {
        return Ok(true);
    }
    db::query("delete from followers where name = $1")
        .bind(name)
        .execute(connection)
        .await?;
    Ok(false)
}
