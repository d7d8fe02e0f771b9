//! Feedback on turns that are not on record: how long and how much of it is kept.

use hone_domain::Feedback;

use super::texts::limit;
use crate::db::{self, Connection, Fault};
use hone_ledger::{EARLY_KEPT, EARLY_KEPT_MS};

/// Most that goes at once for one reason: texts are long, and what is removed is overwritten, while
/// everybody who writes waits.
const REMOVED_AT_ONCE: usize = 64;

/// What is too old, what a clock that went back since makes too young, and what an owner has too
/// much of. The order of arrival tells the newest, whatever the clock does.
pub const SURPLUS: &str = "
    select feedback_number from (
        select feedback_number from early_feedback where received_ms < $1 limit $5
    ) as found
    union
    select feedback_number from (
        select feedback_number from early_feedback where received_ms > $2 limit $5
    ) as found
    union
    select feedback_number from (
        select feedback_number from early_feedback where owner = $3
        order by feedback_number desc limit $5 offset $4
    ) as found";

/// A turn that came since keeps what its owner said of it.
pub const REMOVE: &str = "
    delete from feedback where number = $1 and not exists (
        select 1 from turns where turns.id = feedback.turn_id and turns.owner = feedback.owner
    )";

/// Notes feedback that was just stored and whose turn is not on record, and removes what is not
/// kept any longer.
pub(crate) async fn note(
    connection: &mut Connection<'_>,
    feedback: &Feedback,
) -> Result<(), Fault> {
    db::query(
        "insert into early_feedback (feedback_number, owner, received_ms)
         select number, owner, received_ms from feedback where id = $1
         on conflict (feedback_number) do update set
             owner = excluded.owner, received_ms = excluded.received_ms",
    )
    .bind(&feedback.id.0.as_bytes()[..])
    .execute(&mut *connection)
    .await?;
    let surplus: Vec<i64> = db::query_scalar(SURPLUS)
        .bind(feedback.received_ms.saturating_sub(EARLY_KEPT_MS))
        .bind(feedback.received_ms.saturating_add(EARLY_KEPT_MS))
        .bind(&feedback.owner)
        .bind(limit(EARLY_KEPT))
        .bind(limit(REMOVED_AT_ONCE))
        .fetch_all(&mut *connection)
        .await?;
    for number in surplus {
        for statement in [
            REMOVE,
            "delete from early_feedback where feedback_number = $1",
        ] {
            db::query(statement)
                .bind(number)
                .execute(&mut *connection)
                .await?;
        }
    }
    Ok(())
}
