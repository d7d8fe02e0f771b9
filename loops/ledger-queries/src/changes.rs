//! Changes of what processes remember, which triggers note.

use async_trait::async_trait;
use hone_ledger::{Change, Changes, IsKnown, LedgerError, OpenPage, Topic};

use super::texts::limit;
use super::{Held as _, SqlLedger, Store, rows, views};
use crate::db::{self, Connection, Fault};

#[async_trait]
impl<S: Store> Changes for SqlLedger<S> {
    async fn newest_change(&self) -> Result<u64, LedgerError> {
        look!(self, connection => newest(connection))
    }

    async fn changes_after(&self, number: u64, limit: usize) -> Result<Vec<Change>, LedgerError> {
        look!(self, connection => after(connection, number, limit))
    }

    async fn newest_turn(&self) -> Result<i64, LedgerError> {
        look!(self, connection => newest_turn(connection))
    }

    async fn unknown_page(
        &self,
        from: i64,
        limit: usize,
        is_known: IsKnown<'_>,
    ) -> Result<OpenPage, LedgerError> {
        look!(self, connection => views::unknown_page(connection, from, limit, is_known))
    }

    fn role_lost(&self) -> Option<String> {
        self.store.role_lost()
    }

    fn is_shared(&self) -> bool {
        S::SHARED
    }

    async fn changed(&self) {
        self.store.changed().await;
    }
}

async fn newest(connection: &mut Connection<'_>) -> Result<u64, Fault> {
    let number: i64 = db::query_scalar("select coalesce(max(number), 0) from changes")
        .fetch_one(connection)
        .await?;
    Ok(u64::try_from(number).unwrap_or(0))
}

async fn newest_turn(connection: &mut Connection<'_>) -> Result<i64, Fault> {
    let number = db::query_scalar("select coalesce(max(number), 0) from turns");
    Ok(number.fetch_one(connection).await?)
}

async fn after(
    connection: &mut Connection<'_>,
    number: u64,
    most: usize,
) -> Result<Vec<Change>, Fault> {
    let found = db::query(
        "select changes.number, topic, scopes.name as scope from changes
         join scopes on scopes.number = changes.scope_number
         where changes.number > $1 order by changes.number limit $2",
    )
    .bind(i64::try_from(number).unwrap_or(i64::MAX))
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    let mut changes = Vec::with_capacity(found.len());
    for row in &found {
        let number: i64 = row.try_get("number")?;
        let topic: String = row.try_get("topic")?;
        changes.push(Change {
            number: u64::try_from(number).unwrap_or(0),
            topic: match &*topic {
                "policy" => Topic::Policy,
                "consent" => Topic::Consent,
                "files" => Topic::Files,
                _ => Topic::Memory,
            },
            scope: rows::scope(row.try_get("scope")?)?,
        });
    }
    Ok(changes)
}
