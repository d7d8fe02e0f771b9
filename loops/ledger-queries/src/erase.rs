//! Erasure, second half: removing what was marked, piece by piece, until no byte is left in the
//! ledger's files. Every piece is a transaction of its own and can be repeated.

use hone_domain::{BlobKey, Digest, ForgetId, Scope};

use super::retention::{LISTED, listed};
use super::rows;
use super::texts::{limit, unsigned};
use crate::db::{self, Connection, Fault};
use hone_ledger::{LooseBlob, Tally};

/// Where a wish stands after a piece.
pub(crate) enum Piece {
    /// There is more to remove.
    More,
    /// Rows are gone, these files are not.
    Blobs(Vec<LooseBlob>),
    /// Rows and files are gone.
    Emptied,
}

pub(crate) async fn piece(
    connection: &mut Connection<'_>,
    id: ForgetId,
    most: usize,
) -> Result<Piece, Fault> {
    // Those of every wish of the scope, one wish after the other: a turn that two of them name stands
    // under one, and neither is done while it is there.
    let turns: Vec<i64> = db::query_scalar(
        "select turn_number from forget_turns
         where forget_number = (
             select wish.number from forgets wish
             where wish.done = 0
               and wish.scope_number = (select scope_number from forgets where id = $1)
               and exists (select 1 from forget_turns marked where marked.forget_number = wish.number)
             order by wish.number limit 1
         )
         order by turn_number desc limit $2",
    )
    .bind(&id.0.as_bytes()[..])
    .bind(limit(most))
    .fetch_all(&mut *connection)
    .await?;
    if !turns.is_empty() {
        for turn in turns {
            clear_title(connection, turn).await?;
            remove_turn(connection, turn).await?;
        }
        return Ok(Piece::More);
    }
    if sweep(connection, most).await?.looked_at > 0 {
        return Ok(Piece::More);
    }
    let blobs = loose_blobs(connection, id, most).await?;
    if blobs.is_empty() {
        Ok(Piece::Emptied)
    } else {
        Ok(Piece::Blobs(blobs))
    }
}

/// What a sweep did.
#[derive(Default)]
pub(crate) struct Swept {
    /// Rows that were looked at.
    pub(crate) looked_at: usize,
    /// What nobody used.
    pub(crate) messages: Tally,
    pub(crate) blocks: Tally,
}

/// Removes what was shared and nobody uses any more, at most so many rows of each kind.
pub(crate) async fn sweep(connection: &mut Connection<'_>, most: usize) -> Result<Swept, Fault> {
    let mut swept = Swept::default();
    sweep_histories(connection, most, &mut swept).await?;
    sweep_blocks(connection, most, &mut swept).await?;
    swept.looked_at += sweep_sessions(connection, most).await?;
    Ok(swept)
}

/// Takes away the title of the turn's session: it is some question of it, not always the first
/// turn's. The next turn that comes brings another, out of words that stay.
async fn clear_title(connection: &mut Connection<'_>, turn: i64) -> Result<(), Fault> {
    db::query(
        "update sessions set title = null, title_folded = null
         where number = (select session_number from turns where number = $1 and kind = 'main')",
    )
    .bind(turn)
    .execute(connection)
    .await?;
    Ok(())
}

/// The verdicts on listed turns.
pub(super) fn verdicts_of() -> String {
    format!(
        "select verdicts.number from verdicts
         join transitions on transitions.number = verdicts.transition_number
         where transitions.turn_number in ({LISTED})"
    )
}

/// Notes what listed turns share with others, and what goes once no turn has it: `histories` or `blocks`.
pub(super) fn loosened(shared: &str, column: &str) -> String {
    format!(
        "insert into loose_{shared} (number)
         select distinct {column} from turn_payloads
         where turn_number in ({LISTED}) and {column} is not null
         on conflict do nothing"
    )
}

/// Removes a turn with everything about it; what it shared is looked at later.
pub(crate) async fn remove_turn(connection: &mut Connection<'_>, turn: i64) -> Result<(), Fault> {
    remove_turns(connection, &[turn]).await
}

/// The same of several.
pub(crate) async fn remove_turns(
    connection: &mut Connection<'_>,
    turns: &[i64],
) -> Result<(), Fault> {
    let verdicts = verdicts_of();
    let transitions = format!("select number from transitions where turn_number in ({LISTED})");
    let statements = [
        loosened("histories", "history_number"),
        loosened("blocks", "block_number"),
        format!(
            "insert into loose_sessions (number)
             select distinct session_number from turns where number in ({LISTED})
             on conflict do nothing"
        ),
        format!("delete from votes where verdict_number in ({verdicts})"),
        format!("delete from verdicts where transition_number in ({transitions})"),
        format!("delete from leases where transition_number in ({transitions})"),
        format!("delete from transitions where turn_number in ({LISTED})"),
        format!(
            "delete from feedback where turn_id in (select id from turns where number in ({LISTED}))"
        ),
        format!("delete from unread where turn_number in ({LISTED})"),
        format!("delete from turn_memories where turn_number in ({LISTED})"),
        format!("delete from turn_payloads where turn_number in ({LISTED})"),
        format!("delete from turns where number in ({LISTED})"),
        format!("delete from forget_turns where turn_number in ({LISTED})"),
    ];
    for statement in statements {
        listed(statement, turns)?.execute(&mut *connection).await?;
    }
    Ok(())
}

/// Removes messages nobody else has, from the last one up. Each row is asked for by itself: a row of
/// the same batch may have been its last user.
async fn sweep_histories(
    connection: &mut Connection<'_>,
    most: usize,
    swept: &mut Swept,
) -> Result<(), Fault> {
    let loose: Vec<i64> =
        db::query_scalar("select number from loose_histories order by number desc limit $1")
            .bind(limit(most))
            .fetch_all(&mut *connection)
            .await?;
    for node in &loose {
        swept.messages.add(remove_history(connection, *node).await?);
        db::query("delete from loose_histories where number = $1")
            .bind(node)
            .execute(&mut *connection)
            .await?;
    }
    swept.looked_at += loose.len();
    Ok(())
}

/// Removes a node nobody uses, and its message; what that was.
async fn remove_history(connection: &mut Connection<'_>, node: i64) -> Result<Tally, Fault> {
    let gone: Option<(Option<i64>, i64)> = db::query_as(
        "delete from histories where number = $1
         and not exists (select 1 from histories as child where child.parent_number = $1)
         and not exists (select 1 from turn_payloads where history_number = $1)
         returning parent_number, message_number",
    )
    .bind(node)
    .fetch_optional(&mut *connection)
    .await?;
    let Some((parent, message)) = gone else {
        return Ok(Tally::default());
    };
    let bytes: Option<i64> = db::query_scalar(
        "delete from messages where number = $1
         and not exists (select 1 from histories where message_number = $1)
         returning cast(length(body) as bigint)",
    )
    .bind(message)
    .fetch_optional(&mut *connection)
    .await?;
    if let Some(parent) = parent {
        db::query("insert into loose_histories (number) values ($1) on conflict do nothing")
            .bind(parent)
            .execute(connection)
            .await?;
    }
    gone_row(bytes)
}

/// One row of so many bytes, where there was one.
fn gone_row(bytes: Option<i64>) -> Result<Tally, Fault> {
    let Some(bytes) = bytes else {
        return Ok(Tally::default());
    };
    let bytes = unsigned(bytes)?;
    Ok(Tally { rows: 1, bytes })
}

/// Removes prompt tokens nobody else has, likewise.
async fn sweep_blocks(
    connection: &mut Connection<'_>,
    most: usize,
    swept: &mut Swept,
) -> Result<(), Fault> {
    let loose: Vec<i64> =
        db::query_scalar("select number from loose_blocks order by number desc limit $1")
            .bind(limit(most))
            .fetch_all(&mut *connection)
            .await?;
    for node in &loose {
        let gone: Option<(Option<i64>, i64)> = db::query_as(
            "delete from token_blocks where number = $1
             and not exists (select 1 from token_blocks as child where child.parent_number = $1)
             and not exists (select 1 from turn_payloads where block_number = $1)
             returning parent_number, cast(length(tokens) as bigint)",
        )
        .bind(node)
        .fetch_optional(&mut *connection)
        .await?;
        swept.blocks.add(gone_row(gone.map(|(_, bytes)| bytes))?);
        if let Some(parent) = gone.and_then(|(parent, _)| parent) {
            db::query("insert into loose_blocks (number) values ($1) on conflict do nothing")
                .bind(parent)
                .execute(&mut *connection)
                .await?;
        }
        db::query("delete from loose_blocks where number = $1")
            .bind(node)
            .execute(&mut *connection)
            .await?;
    }
    swept.looked_at += loose.len();
    Ok(())
}

async fn sweep_sessions(connection: &mut Connection<'_>, most: usize) -> Result<usize, Fault> {
    let loose: Vec<i64> = db::query_scalar("select number from loose_sessions limit $1")
        .bind(limit(most))
        .fetch_all(&mut *connection)
        .await?;
    for session in &loose {
        for statement in [
            "delete from session_rewards where session_number = $1
             and not exists (select 1 from turns where turns.session_number = $1)",
            "delete from sessions where number = $1
             and not exists (select 1 from turns where session_number = $1)",
            "delete from loose_sessions where number = $1",
        ] {
            db::query(statement)
                .bind(session)
                .execute(&mut *connection)
                .await?;
        }
    }
    Ok(loose.len())
}

/// Those in the wish's scope, and copies elsewhere of what a wish of its scope tainted: others that
/// cannot be removed keep only theirs waiting.
async fn loose_blobs(
    connection: &mut Connection<'_>,
    id: ForgetId,
    most: usize,
) -> Result<Vec<LooseBlob>, Fault> {
    // A clean version may have come to the very same weights since.
    db::query(
        "delete from loose_blobs where exists (
             select 1 from versions
             where versions.blob = loose_blobs.blob and versions.tainted_ms is null
         )",
    )
    .execute(&mut *connection)
    .await?;
    let rows = db::query(
        "select distinct loose_blobs.blob, scopes.name as scope, loose_blobs.digest
         from loose_blobs
         join versions on versions.blob = loose_blobs.blob
         join scopes on scopes.number = versions.scope_number
         join forgets on forgets.scope_number in (scopes.number, loose_blobs.scope_number)
         where forgets.id = $1 limit $2",
    )
    .bind(&id.0.as_bytes()[..])
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|row| {
            let scope: Scope = rows::scope(row.try_get("scope")?)?;
            let digest: Digest = rows::digest(row.try_get("digest")?)?;
            Ok(LooseBlob {
                blob: BlobKey::new(row.try_get::<String, _>("blob")?)?,
                scope,
                digest,
            })
        })
        .collect()
}

pub(crate) async fn blobs_removed(
    connection: &mut Connection<'_>,
    blobs: &[LooseBlob],
) -> Result<(), Fault> {
    for blob in blobs {
        db::query("delete from loose_blobs where blob = $1")
            .bind(blob.blob.as_str())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

pub(crate) async fn finish(connection: &mut Connection<'_>, id: ForgetId) -> Result<(), Fault> {
    db::query("update forgets set done = 1 where id = $1")
        .bind(&id.0.as_bytes()[..])
        .execute(connection)
        .await?;
    Ok(())
}
