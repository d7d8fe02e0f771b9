//! Rows that cannot be read back: said by name, never by their words, and left out, so that one of
//! them does not hold up all others.

use hone_domain::Reason;
use uuid::Uuid;

use super::leases;
use crate::db::{self, Connection, Fault};

/// What was read; none where the stored row is at fault, so that reading it again would not help.
pub(crate) fn readable<T>(read: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(fault) if fault.is_unreadable() => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Says that a turn is left out.
pub(crate) async fn skip(connection: &mut Connection<'_>, turn: i64) -> Result<(), Fault> {
    let (turn, transition) = names(connection, turn).await?;
    tracing::error!(
        turn,
        transition,
        "a turn cannot be read and is left out; see what `hone doctor` says, then restore a backup \
         or forget the turn"
    );
    Ok(())
}

/// Says that a turn is given up, and settles it.
pub(crate) async fn settle(
    connection: &mut Connection<'_>,
    turn: i64,
    reason: Reason,
) -> Result<(), Fault> {
    let (name, transition) = names(connection, turn).await?;
    tracing::error!(
        turn = name,
        transition,
        reason = reason.as_str(),
        "a turn cannot be read and is settled; see what `hone doctor` says, then restore a backup or \
         forget the turn"
    );
    leases::settle_turn(connection, turn, reason).await
}

/// The names of a turn and of its transition, as far as they can be read.
async fn names(
    connection: &mut Connection<'_>,
    number: i64,
) -> Result<(String, Option<String>), Fault> {
    let (turn, transition): (Vec<u8>, Option<Vec<u8>>) = db::query_as(
        "select turns.id, transitions.id from turns
         left join transitions on transitions.turn_number = turns.number
         where turns.number = $1",
    )
    .bind(number)
    .fetch_one(connection)
    .await?;
    let name = |id: Vec<u8>| Uuid::from_slice(&id).map(|id| id.to_string());
    Ok((
        name(turn).unwrap_or_else(|_| format!("number {number}")),
        transition.and_then(|id| name(id).ok()),
    ))
}
