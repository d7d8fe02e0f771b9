//! What other writes leave for memories: which turns were shown some, and what goes with a turn or a person.

use super::skill_writes;
use crate::db::{self, Connection, Fault};

/// Writes down what a turn did with memories.
pub(super) const STORE_USE: &str = "
    insert into turn_memories (turn_number, mode, shown, skills)
    values ((select number from turns where id = $1), $2, $3, $4)";

/// Removes everything of a scope, and what could still become a memory.
pub(super) async fn drop_all(connection: &mut Connection<'_>, scope: i64) -> Result<(), Fault> {
    for statement in [
        "delete from memories where scope_number = $1",
        "delete from unread where consumer = 'memory'
           and turn_number in (select number from turns where scope_number = $1)",
    ] {
        db::query(statement)
            .bind(scope)
            .execute(&mut *connection)
            .await?;
    }
    skill_writes::drop_all(connection, scope).await
}

/// Removes what was made of the turns that a wish names.
pub(super) async fn drop_of_turns(
    connection: &mut Connection<'_>,
    forget: i64,
) -> Result<(), Fault> {
    for statement in [
        "delete from memories where turn_id in (
             select turns.id from forget_turns
             join turns on turns.number = forget_turns.turn_number
             where forget_turns.forget_number = $1
         )",
        "delete from turn_memories where turn_number in (
             select turn_number from forget_turns where forget_number = $1
         )",
    ] {
        db::query(statement)
            .bind(forget)
            .execute(&mut *connection)
            .await?;
    }
    skill_writes::drop_of_turns(connection, forget).await
}
