//! [`Answers`]: one transaction per call.

use async_trait::async_trait;
use hone_domain::Millis;

use super::texts::limit;
use super::{Held as _, SqlLedger, Store, rows};
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use hone_domain::{Digest, RequestId};
    use uuid::Uuid;

    use super::*;
    use crate::{SqliteConfig, SqliteLedger};
    use hone_ledger::AuditEntry;
    use hone_ledger::{ForgetWhat, ForgetWish, Ledger as _, Personal as _, suite};

    const LIMITS: AnswerLimits = AnswerLimits {
        answers_max: 3,
        bytes_max: 100,
        keep_ms: 1_000,
    };

    fn name(n: u8) -> AnswerName {
        AnswerName {
            name: Digest([n; 32]),
            owner: "owner".to_owned(),
            body: Digest([7; 32]),
            request: RequestId(Uuid::from_u128(u128::from(n) + 1)),
        }
    }

    fn answer(text: &str) -> Answer {
        Answer {
            status: 200,
            headers: b"[]".to_vec(),
            body: text.as_bytes().to_vec(),
        }
    }

    async fn open(folder: &std::path::Path) -> Arc<SqliteLedger> {
        let config = SqliteConfig::in_folder(folder);
        Arc::new(SqliteLedger::open(&config).await.unwrap())
    }

    #[tokio::test]
    async fn an_answer_outlives_the_process_and_one_that_was_cut_names_its_turn() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path()).await;
        let world = suite::World::new(ledger.clone());
        let whole = name(1);
        ledger.begin_answer(&whole, LIMITS, 5).await.unwrap();
        assert!(
            ledger
                .keep_answer(&whole, &answer("hi"), LIMITS)
                .await
                .unwrap()
        );
        // Of one the turn is recorded, of the other nothing, when the process ends.
        let mut turn = world.turn();
        let cut = AnswerName {
            request: turn.request,
            ..name(2)
        };
        let nothing = name(3);
        for name in [&cut, &nothing] {
            ledger.begin_answer(name, LIMITS, 6).await.unwrap();
        }
        turn.choice_index = 0;
        world.record(&turn).await;
        drop((world, ledger));

        let ledger = open(folder.path()).await;
        let told = async |name: &AnswerName| ledger.answered(name, 0).await.unwrap();
        assert_eq!(told(&whole).await, Answered::Whole(answer("hi")));
        let other = AnswerName {
            body: Digest([8; 32]),
            ..whole.clone()
        };
        assert_eq!(told(&other).await, Answered::Other);
        assert_eq!(told(&cut).await, Answered::Lost(turn.id));
        assert_eq!(told(&nothing).await, Answered::Unknown);
        assert_eq!(ledger.answered(&whole, 6).await.unwrap(), Answered::Unknown);
        ledger.drop_answer(&whole).await.unwrap();
        assert_eq!(told(&whole).await, Answered::Unknown);
    }

    #[tokio::test]
    async fn what_is_beyond_the_limits_goes() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path()).await;
        let kept = async |n: u8| ledger.answered(&name(n), 0).await.unwrap() != Answered::Unknown;
        for n in 0..5 {
            ledger
                .begin_answer(&name(n), LIMITS, i64::from(n))
                .await
                .unwrap();
            let text = answer(&"x".repeat(10));
            ledger.keep_answer(&name(n), &text, LIMITS).await.unwrap();
        }
        assert!(!kept(0).await && !kept(1).await && kept(2).await && kept(4).await);
        let large = answer(&"x".repeat(85));
        ledger.keep_answer(&name(4), &large, LIMITS).await.unwrap();
        assert!(
            !kept(2).await && kept(3).await && kept(4).await,
            "too many bytes"
        );
        ledger.begin_answer(&name(9), LIMITS, 2_000).await.unwrap();
        assert!(!kept(3).await && !kept(4).await, "too old");
    }

    #[tokio::test]
    async fn an_owner_who_forgets_leaves_no_answer_behind() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path()).await;
        let world = suite::World::new(ledger.clone());
        world.record(&world.turn()).await;
        for n in [1, 2] {
            ledger.begin_answer(&name(n), LIMITS, 1).await.unwrap();
        }
        let secret = answer("quixomarvel");
        ledger.keep_answer(&name(1), &secret, LIMITS).await.unwrap();
        let wish = ForgetWish {
            id: hone_domain::ForgetId(Uuid::from_u128(1)),
            scope: world.scope(),
            owner: "owner".to_owned(),
            what: ForgetWhat::All,
            now_ms: i64::MAX / 2,
            entry: AuditEntry {
                at_ms: 1,
                actor: "owner".to_owned(),
                act: "forget".to_owned(),
                object: String::new(),
                detail: serde_json::Value::Null,
            },
        };
        ledger.begin_forget(&wish).await.unwrap();
        // The second one's answer comes after the wish.
        assert!(!ledger.keep_answer(&name(2), &secret, LIMITS).await.unwrap());
        while ledger.forget_piece(wish.id, 9).await.unwrap() != hone_ledger::ForgetStep::Done {}
        ledger.close().await;
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            assert!(!bytes.windows(11).any(|window| window == b"quixomarvel"));
        }
    }
}
