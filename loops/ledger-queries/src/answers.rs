//! [`Answers`]: one transaction per call.

use async_trait::async_trait;
use hone_domain::Millis;

use super::texts::limit;
use super::{Held as _, SqlLedger, Store, Tries, rows};
use crate::db::{self, Connection, Fault, corrupt};
use hone_ledger::{Answer, AnswerLimits, AnswerName, Answered, Answers, LedgerError};

/// Turns before the last one of its time that are looked through as well: erasure gives numbers again.
const TURNS_BEFORE: i64 = 10_000;

#[async_trait]
impl<S: Store> Answers for SqlLedger<S> {
    async fn begin_answer(
        &self,
        name: &AnswerName,
        limits: AnswerLimits,
        now_ms: Millis,
    ) -> Result<(), LedgerError> {
        transact!(self, connection => begin(connection, name, limits, now_ms))
    }

    async fn keep_answer(
        &self,
        name: &AnswerName,
        answer: &Answer,
        limits: AnswerLimits,
    ) -> Result<bool, LedgerError> {
        transact!(self, connection => keep(connection, name, answer, limits))
    }

    async fn drop_answer(&self, name: &AnswerName) -> Result<(), LedgerError> {
        transact!(self, connection => drop_answer(connection, name))
    }

    async fn answered(&self, name: &AnswerName, since_ms: Millis) -> Result<Answered, LedgerError> {
        look!(self, connection => answered(connection, name, since_ms))
    }
}

async fn begin(
    connection: &mut Connection<'_>,
    name: &AnswerName,
    limits: AnswerLimits,
    now_ms: Millis,
) -> Result<(), Fault> {
    db::query("delete from answers where began_ms < $1")
        .bind(now_ms.saturating_sub(limits.keep_ms))
        .execute(&mut *connection)
        .await?;
    db::query(
        "insert into answers (name, owner, body, request_id, after_turn, began_ms)
         values ($1, $2, $3, $4, (select coalesce(max(number), 0) from turns), $5)
         on conflict (name) do update set
             body = excluded.body, request_id = excluded.request_id,
             after_turn = excluded.after_turn, began_ms = excluded.began_ms,
             status = null, headers = null, answer = null, bytes = 0",
    )
    .bind(&name.name.0[..])
    .bind(&name.owner)
    .bind(&name.body.0[..])
    .bind(&name.request.0.as_bytes()[..])
    .bind(now_ms)
    .execute(&mut *connection)
    .await?;
    make_room(connection, limits).await
}

async fn drop_answer(connection: &mut Connection<'_>, name: &AnswerName) -> Result<(), Fault> {
    db::query("delete from answers where name = $1 and request_id = $2")
        .bind(&name.name.0[..])
        .bind(&name.request.0.as_bytes()[..])
        .execute(connection)
        .await?;
    Ok(())
}

/// Removes the oldest beyond the limits.
async fn make_room(connection: &mut Connection<'_>, limits: AnswerLimits) -> Result<(), Fault> {
    db::query(
        "delete from answers where number in (
             select number from (
                 select number, row_number() over newest as place, sum(bytes) over newest as bytes
                 from answers
                 window newest as (order by began_ms desc, number desc)
             ) as places where place > $1 or bytes > $2
         )",
    )
    .bind(limit(limits.answers_max))
    .bind(limit(limits.bytes_max))
    .execute(connection)
    .await?;
    Ok(())
}

async fn keep(
    connection: &mut Connection<'_>,
    name: &AnswerName,
    answer: &Answer,
    limits: AnswerLimits,
) -> Result<bool, Fault> {
    let kept = db::query(
        "update answers set status = $1, headers = $2, answer = $3, bytes = $4
         where name = $5 and request_id = $6",
    )
    .bind(i64::from(answer.status))
    .bind(&answer.headers)
    .bind(&answer.body)
    .bind(limit(answer.body.len()))
    .bind(&name.name.0[..])
    .bind(&name.request.0.as_bytes()[..])
    .execute(&mut *connection)
    .await?;
    make_room(connection, limits).await?;
    Ok(kept.rows_affected() > 0)
}

async fn answered(
    connection: &mut Connection<'_>,
    name: &AnswerName,
    since_ms: Millis,
) -> Result<Answered, Fault> {
    let row = db::query("select * from answers where name = $1 and began_ms >= $2")
        .bind(&name.name.0[..])
        .bind(since_ms)
        .fetch_optional(&mut *connection)
        .await?;
    let Some(row) = row else {
        return Ok(Answered::Unknown);
    };
    let is_other = row.try_get::<Vec<u8>, _>("body")? != name.body.0;
    let status: Option<i64> = row.try_get("status")?;
    if is_other && status.is_some() {
        return Ok(Answered::Other);
    }
    if let Some(status) = status {
        let status = u16::try_from(status).map_err(|_| corrupt("a status beyond HTTP's"))?;
        return Ok(Answered::Whole(Answer {
            status,
            headers: row.try_get("headers")?,
            body: row.try_get("answer")?,
        }));
    }
    let turn: Option<Vec<u8>> = db::query_scalar(
        "select id from turns where number > $1 and request_id = $2 order by choice_index limit 1",
    )
    .bind(
        row.try_get::<i64, _>("after_turn")?
            .saturating_sub(TURNS_BEFORE),
    )
    .bind(row.try_get::<Vec<u8>, _>("request_id")?)
    .fetch_optional(connection)
    .await?;
    // What came to nothing keeps its name for nobody.
    match turn {
        None => Ok(Answered::Unknown),
        Some(_) if is_other => Ok(Answered::Other),
        Some(id) => Ok(Answered::Lost(rows::turn_id(&id)?)),
    }
}
