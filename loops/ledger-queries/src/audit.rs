//! The audit log: rows in a chain of hashes.

use hone_domain::Digest;

use super::rows::digest;
use super::texts::{limit, signed, text, unsigned};
use crate::db::{self, Connection, Fault, Row};
use hone_ledger::{AUDIT_ORIGIN, AuditCheck, AuditEntry, AuditQuery, AuditRecord, chained};

/// Entries that one look of the check reads.
const PAGE: i64 = 1_000;

/// Appends an entry.
pub async fn record(
    connection: &mut Connection<'_>,
    entry: &AuditEntry,
) -> Result<AuditRecord, Fault> {
    let last: Option<(i64, Vec<u8>)> =
        db::query_as("select number, hash from audit order by number desc limit 1")
            .fetch_optional(&mut *connection)
            .await?;
    let (number, before) = match last {
        Some((number, hash)) => (number + 1, digest(&hash)?),
        None => (1, AUDIT_ORIGIN),
    };
    let detail = entry.detail.to_string();
    let hash = chained(before, unsigned(number)?, entry, &detail);
    db::query(
        "insert into audit (number, at_ms, actor, act, object, detail, hash)
         values ($1, $2, $3, $4, $5, $6, $7)",
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
fn stored(row: &Row) -> Result<(AuditRecord, String), Fault> {
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

pub(crate) async fn list(
    connection: &mut Connection<'_>,
    query: &AuditQuery,
) -> Result<Vec<AuditRecord>, Fault> {
    let before = query.before.map(signed).transpose()?.unwrap_or(i64::MAX);
    let rows = match &query.act {
        None => {
            db::query(
                "select number, at_ms, actor, act, object, detail, hash from audit
                 where number < $1 order by number desc limit $2",
            )
            .bind(before)
            .bind(limit(query.limit))
            .fetch_all(connection)
            .await?
        }
        Some(act) => {
            db::query(
                "select number, at_ms, actor, act, object, detail, hash from audit
                 where act = $1 and number < $2 order by number desc limit $3",
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
pub(crate) async fn verify(connection: &mut Connection<'_>) -> Result<AuditCheck, Fault> {
    let mut check = AuditCheck {
        entries: 0,
        first_broken: None,
        head: AUDIT_ORIGIN,
    };
    let mut after = i64::MIN;
    loop {
        let rows = db::query(
            "select number, at_ms, actor, act, object, detail, hash from audit
             where number > $1 order by number limit $2",
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
fn fitting(row: &Row, number: u64, before: Digest) -> Option<Digest> {
    let (record, detail) = stored(row).ok()?;
    let hash = chained(before, number, &record.entry, &detail);
    (record.number == number && record.hash == hash).then_some(hash)
}
