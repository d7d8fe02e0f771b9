//! The audit log: rows in a chain of hashes.

use hone_domain::Digest;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::fault::Fault;
use super::rows::digest;
use super::texts::{limit, signed, text, unsigned};
use hone_ledger::{AUDIT_ORIGIN, AuditCheck, AuditEntry, AuditQuery, AuditRecord, chained};

/// Entries that one look of the check reads.
const PAGE: i64 = 1_000;

/// Appends an entry.
pub(super) async fn record(
    connection: &mut SqliteConnection,
    entry: &AuditEntry,
) -> Result<AuditRecord, Fault> {
    let last: Option<(i64, Vec<u8>)> =
        sqlx::query_as("select number, hash from audit order by number desc limit 1")
            .fetch_optional(&mut *connection)
            .await?;
    let (number, before) = match last {
        Some((number, hash)) => (number + 1, digest(&hash)?),
        None => (1, AUDIT_ORIGIN),
    };
    let detail = entry.detail.to_string();
    let hash = chained(before, unsigned(number)?, entry, &detail);
    sqlx::query(
        "insert into audit (number, at_ms, actor, act, object, detail, hash)
         values (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(number)
    .bind(entry.at_ms)
    .bind(&entry.actor)
    .bind(&entry.act)
    .bind(entry.object.as_bytes())
    .bind(detail.as_bytes())
    .bind(&hash.0[..])
    .execute(connection)
    .await?;
    Ok(AuditRecord {
        number: unsigned(number)?,
        entry: entry.clone(),
        hash,
    })
}

/// An entry with the detail's text as it is stored.
fn stored(row: &SqliteRow) -> Result<(AuditRecord, String), Fault> {
    let detail = text(row.try_get("detail")?)?;
    let entry = AuditEntry {
        at_ms: row.try_get("at_ms")?,
        actor: row.try_get("actor")?,
        act: row.try_get("act")?,
        object: text(row.try_get("object")?)?,
        detail: serde_json::from_str(&detail)?,
    };
    let record = AuditRecord {
        number: unsigned(row.try_get("number")?)?,
        entry,
        hash: digest(row.try_get("hash")?)?,
    };
    Ok((record, detail))
}

pub(super) async fn list(
    connection: &mut SqliteConnection,
    query: &AuditQuery,
) -> Result<Vec<AuditRecord>, Fault> {
    let before = query.before.map(signed).transpose()?.unwrap_or(i64::MAX);
    let rows = match &query.act {
        None => {
            sqlx::query(
                "select number, at_ms, actor, act, object, detail, hash from audit
                 where number < ? order by number desc limit ?",
            )
            .bind(before)
            .bind(limit(query.limit))
            .fetch_all(connection)
            .await?
        }
        Some(act) => {
            sqlx::query(
                "select number, at_ms, actor, act, object, detail, hash from audit
                 where act = ? and number < ? order by number desc limit ?",
            )
            .bind(act)
            .bind(before)
            .bind(limit(query.limit))
            .fetch_all(connection)
            .await?
        }
    };
    rows.iter().map(|row| Ok(stored(row)?.0)).collect()
}

/// Follows the chain from its origin to the first row that does not fit.
pub(super) async fn verify(connection: &mut SqliteConnection) -> Result<AuditCheck, Fault> {
    let mut check = AuditCheck {
        entries: 0,
        first_broken: None,
        head: AUDIT_ORIGIN,
    };
    let mut after = i64::MIN;
    loop {
        let rows = sqlx::query(
            "select number, at_ms, actor, act, object, detail, hash from audit
             where number > ? order by number limit ?",
        )
        .bind(after)
        .bind(PAGE)
        .fetch_all(&mut *connection)
        .await?;
        let Some(last) = rows.last() else {
            return Ok(check);
        };
        after = last.try_get("number")?;
        for row in &rows {
            check.entries += 1;
            match fitting(row, check.entries, check.head) {
                _ if check.first_broken.is_some() => {}
                Some(hash) => check.head = hash,
                None => check.first_broken = Some(check.entries),
            }
        }
    }
}

/// The hash of a row that is the `number`th and follows `before`; none where anything is wrong,
/// a text that cannot be read included.
fn fitting(row: &SqliteRow, number: u64, before: Digest) -> Option<Digest> {
    let (record, detail) = stored(row).ok()?;
    let hash = chained(before, number, &record.entry, &detail);
    (record.number == number && record.hash == hash).then_some(hash)
}
