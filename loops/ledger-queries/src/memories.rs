//! [`Memories`]: what people said once, and which turns were shown it.

use async_trait::async_trait;
use hone_domain::{
    MEMORIES_MAX, Memory, MemoryId, MemoryKind, MemoryMode, MemoryOrigin, Millis, Scope,
    ShownMemory, ShownSkill, TurnId, folded,
};
use hone_ledger::{
    Added, Extraction, LedgerError, MEMORY_CONSUMER, Memories, MemoryChange, MemoryCounts,
    MemoryRow, NewMemory, UnreadTurn, UnreadVerdict, Window,
};
use sqlx::AssertSqlSafe;

use super::texts::{limit, named, some_text, text, text_bytes, unsigned};
use super::unreadable::readable;
use super::{
    Held as _, SqlLedger, Store, Tries, chains, consent, policies, rows, skill_writes, unread,
};
use crate::db::{self, Connection, Fault, Row, corrupt};

/// The columns of [`memory_row`].
const MEMORY: &str = "select memories.number, memories.id, scopes.name as scope, kind, text, topic,
        turn_id, created_ms, valid_until_ms, superseded_by, paused, uses, origin
    from memories join scopes on scopes.number = memories.scope_number";

#[async_trait]
impl<S: Store> Memories for SqlLedger<S> {
    async fn unread(&self, limit: usize) -> Result<Vec<UnreadTurn>, LedgerError> {
        transact!(self, connection => unread(connection, limit))
    }

    async fn store_extraction(
        &self,
        extraction: &Extraction,
        now_ms: Millis,
    ) -> Result<MemoryCounts, LedgerError> {
        transact!(self, connection => store_extraction(connection, extraction, now_ms))
    }

    async fn add_memory(
        &self,
        scope: &Scope,
        new: &NewMemory,
        now_ms: Millis,
    ) -> Result<Added, LedgerError> {
        transact!(self, connection => add(connection, scope, new, now_ms))
    }

    async fn add_memories(
        &self,
        scope: &Scope,
        new: &[NewMemory],
        now_ms: Millis,
    ) -> Result<Vec<Added>, LedgerError> {
        transact!(self, connection => add_all(connection, scope, new, now_ms))
    }

    async fn memories(&self, scope: &Scope, page: Window) -> Result<Vec<MemoryRow>, LedgerError> {
        look!(self, connection => list(connection, scope, page))
    }

    async fn memory(&self, scope: &Scope, id: MemoryId) -> Result<Option<Memory>, LedgerError> {
        look!(self, connection => one(connection, scope, id))
    }

    async fn change_memory(
        &self,
        scope: &Scope,
        id: MemoryId,
        change: &MemoryChange,
    ) -> Result<Option<Memory>, LedgerError> {
        transact!(self, connection => change_one(connection, scope, id, change))
    }

    async fn forget_memories(
        &self,
        scope: &Scope,
        id: Option<MemoryId>,
    ) -> Result<u64, LedgerError> {
        let gone = transact!(self, connection => forget(connection, scope, id))?;
        if gone > 0 {
            // Where a reader keeps the log, it is emptied when that reader has gone.
            let _is_empty = self.store.empty_log().await?;
        }
        Ok(gone)
    }

    async fn newest_memories(
        &self,
        scope: Option<&Scope>,
        per_scope: usize,
    ) -> Result<Vec<Memory>, LedgerError> {
        look!(self, connection => newest(connection, scope, per_scope))
    }
}

fn memory_row(row: &Row) -> Result<MemoryRow, Fault> {
    let optional = |name| row.try_get::<Option<&[u8]>, _>(name);
    let memory = Memory {
        id: rows::memory_id(row.try_get("id")?)?,
        scope: rows::scope(row.try_get("scope")?)?,
        kind: named::<MemoryKind>(row.try_get("kind")?)?,
        text: text(row.try_get("text")?)?,
        topic: some_text(row.try_get("topic")?)?,
        turn: optional("turn_id")?.map(rows::turn_id).transpose()?,
        created_ms: row.try_get("created_ms")?,
        valid_until_ms: row.try_get("valid_until_ms")?,
        superseded_by: optional("superseded_by")?
            .map(rows::memory_id)
            .transpose()?,
        paused: row.try_get("paused")?,
        uses: unsigned(row.try_get("uses")?)?,
        origin: named::<MemoryOrigin>(row.try_get("origin")?)?,
    };
    Ok(MemoryRow {
        number: row.try_get("number")?,
        memory,
    })
}

const UNREAD: &str = "select unread.turn_number, turns.id, sessions.id as session_id,
        scopes.name as scope, mode, is_new, revision, history_number
    from unread
    join turn_memories on turn_memories.turn_number = unread.turn_number
    join turns on turns.number = unread.turn_number
    join scopes on scopes.number = turns.scope_number
    join sessions on sessions.number = turns.session_number
    left join turn_payloads on turn_payloads.turn_number = turns.number
    where unread.consumer = 'memory'
    order by unread.turn_number limit $1";

async fn unread(connection: &mut Connection<'_>, most: usize) -> Result<Vec<UnreadTurn>, Fault> {
    let found = db::query(UNREAD)
        .bind(limit(most))
        .fetch_all(&mut *connection)
        .await?;
    let mut turns = Vec::with_capacity(found.len());
    for row in &found {
        match readable(unread_turn(connection, row).await)? {
            Some(turn) => turns.push(turn),
            None => {
                let number: i64 = row.try_get("turn_number")?;
                let read = "delete from unread where consumer = 'memory' and turn_number = $1";
                db::query(read)
                    .bind(number)
                    .execute(&mut *connection)
                    .await?;
            }
        }
    }
    Ok(turns)
}

async fn unread_turn(connection: &mut Connection<'_>, row: &Row) -> Result<UnreadTurn, Fault> {
    let mode: MemoryMode = named(row.try_get("mode")?)?;
    let said = match row.try_get::<bool, _>("is_new")? {
        true if mode == MemoryMode::Full => {
            let history = row.try_get("history_number")?;
            Some(chains::load_messages(connection, history).await?)
        }
        true => Some(Vec::new()),
        false => None,
    };
    let judged = match row.try_get::<Option<i64>, _>("revision")? {
        Some(_) => verdict(connection, row.try_get("turn_number")?).await?,
        None => None,
    };
    Ok(UnreadTurn {
        turn: rows::turn_id(row.try_get("id")?)?,
        session: rows::session_id(row.try_get("session_id")?)?,
        scope: rows::scope(row.try_get("scope")?)?,
        mode,
        said,
        judged,
    })
}

async fn verdict(
    connection: &mut Connection<'_>,
    turn: i64,
) -> Result<Option<UnreadVerdict>, Fault> {
    let row = db::query(
        "select revision, decided_by, hint, wish, exists (
                    select 1 from feedback join turns on turns.id = feedback.turn_id
                    where turns.number = $1 and feedback.owner = turns.owner
                      and feedback.comment = verdicts.hint
                ) as is_comment
         from transitions join verdicts on verdicts.transition_number = transitions.number
         where transitions.turn_number = $1 and verdicts.current = 1",
    )
    .bind(turn)
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let by: Option<String> = row.try_get("decided_by")?;
    Ok(Some(UnreadVerdict {
        revision: unsigned(row.try_get("revision")?)?,
        by: by.map(named).transpose()?,
        hint: some_text(row.try_get("hint")?)?.unwrap_or_default(),
        wish: some_text(row.try_get("wish")?)?,
        is_comment: row.try_get("is_comment")?,
    }))
}

async fn store_extraction(
    connection: &mut Connection<'_>,
    extraction: &Extraction,
    now_ms: Millis,
) -> Result<MemoryCounts, Fault> {
    let mut counts = MemoryCounts::default();
    let turn: Option<(i64, i64)> =
        db::query_as("select number, scope_number from turns where id = $1")
            .bind(&extraction.read.turn.0.as_bytes()[..])
            .fetch_optional(&mut *connection)
            .await?;
    let Some((turn, scope)) = turn else {
        return Ok(counts);
    };
    let read = unread::acknowledge_turn(connection, MEMORY_CONSUMER, turn, &extraction.read);
    let read = read.await?;
    if read.is_new {
        count_uses(connection, turn).await?;
    }
    let is_free = !consent::is_barred(connection, scope).await?
        && !consent::was_forgotten(connection, extraction.read.turn).await?;
    if !is_free || !(read.is_new || read.verdict) {
        return Ok(counts);
    }
    let whose = policies::scope_at(connection, scope).await?;
    for new in &extraction.memories {
        match add(connection, &whose, new, now_ms).await? {
            Added::New(_) => counts.new += 1,
            Added::Same(_) => counts.same += 1,
            Added::Full => counts.full += 1,
        }
    }
    if let Some(correction) = extraction.correction.as_ref().filter(|_| read.verdict) {
        skill_writes::note(connection, scope, correction).await?;
        if let Some(skill) = &extraction.skill
            && skill_writes::draft(connection, &whose, skill, now_ms).await?
        {
            counts.skills += 1;
        }
    }
    Ok(counts)
}

/// Counts that a turn was shown what it was shown.
async fn count_uses(connection: &mut Connection<'_>, turn: i64) -> Result<(), Fault> {
    let shown: Option<(Vec<u8>, Option<Vec<u8>>)> =
        db::query_as("select shown, skills from turn_memories where turn_number = $1")
            .bind(turn)
            .fetch_optional(&mut *connection)
            .await?;
    let Some((shown, skills)) = shown else {
        return Ok(());
    };
    let shown: Vec<ShownMemory> = serde_json::from_slice(&shown)?;
    for ShownMemory { id, .. } in shown {
        db::query("update memories set uses = uses + 1 where id = $1")
            .bind(&id.0.as_bytes()[..])
            .execute(&mut *connection)
            .await?;
    }
    if let Some(skills) = skills {
        skill_writes::count(
            connection,
            &serde_json::from_slice::<Vec<ShownSkill>>(&skills)?,
        )
        .await?;
    }
    Ok(())
}

async fn add_all(
    connection: &mut Connection<'_>,
    scope: &Scope,
    new: &[NewMemory],
    now_ms: Millis,
) -> Result<Vec<Added>, Fault> {
    let mut added = Vec::with_capacity(new.len());
    for new in new {
        added.push(add(connection, scope, new, now_ms).await?);
    }
    Ok(added)
}

async fn add(
    connection: &mut Connection<'_>,
    scope: &Scope,
    new: &NewMemory,
    now_ms: Millis,
) -> Result<Added, Fault> {
    let number = policies::make_scope(connection, scope).await?;
    if let Some(same) = current(connection, number, &new.text).await? {
        return Ok(Added::Same(same.memory));
    }
    if let Some(topic) = &new.topic {
        db::query(
            "update memories set valid_until_ms = $1, superseded_by = $2
             where scope_number = $3 and topic = $4 and valid_until_ms is null",
        )
        .bind(now_ms)
        .bind(&new.id.0.as_bytes()[..])
        .bind(number)
        .bind(topic.as_bytes())
        .execute(&mut *connection)
        .await?;
    }
    if let Some(replaces) = new.replaces {
        db::query(
            "update memories set valid_until_ms = $1, superseded_by = $2
             where scope_number = $3 and id = $4 and valid_until_ms is null",
        )
        .bind(now_ms)
        .bind(&new.id.0.as_bytes()[..])
        .bind(number)
        .bind(&replaces.0.as_bytes()[..])
        .execute(&mut *connection)
        .await?;
    }
    if !has_place(connection, number).await? {
        return Ok(Added::Full);
    }
    db::query(
        "insert into memories (
             id, scope_number, kind, text, folded, topic, turn_id, created_ms, origin
         ) values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(&new.id.0.as_bytes()[..])
    .bind(number)
    .bind(new.kind.as_str())
    .bind(new.text.as_bytes())
    .bind(folded(&new.text).into_bytes())
    .bind(text_bytes(new.topic.as_ref()))
    .bind(
        new.turn
            .as_ref()
            .map(|turn: &TurnId| &turn.0.as_bytes()[..]),
    )
    .bind(now_ms)
    .bind(new.origin.as_str())
    .execute(&mut *connection)
    .await?;
    let added = one(connection, scope, new.id).await?;
    added
        .map(Added::New)
        .ok_or_else(|| corrupt("a memory that was just stored"))
}

/// The memory of a scope that holds and says the same.
async fn current(
    connection: &mut Connection<'_>,
    scope: i64,
    says: &str,
) -> Result<Option<MemoryRow>, Fault> {
    let sql = format!(
        "{MEMORY} where memories.scope_number = $1 and folded = $2 and valid_until_ms is null"
    );
    let row = db::query(AssertSqlSafe(sql))
        .bind(scope)
        .bind(folded(says).into_bytes())
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(memory_row).transpose()
}

/// Whether a scope has place for one more; the oldest that was replaced makes it.
async fn has_place(connection: &mut Connection<'_>, scope: i64) -> Result<bool, Fault> {
    let count: i64 = db::query_scalar("select count(*) from memories where scope_number = $1")
        .bind(scope)
        .fetch_one(&mut *connection)
        .await?;
    if count < limit(MEMORIES_MAX) {
        return Ok(true);
    }
    let gone = db::query(
        "delete from memories where number = (
             select min(number) from memories
             where scope_number = $1 and valid_until_ms is not null
         )",
    )
    .bind(scope)
    .execute(connection)
    .await?;
    Ok(gone.rows_affected() == 1)
}

async fn list(
    connection: &mut Connection<'_>,
    scope: &Scope,
    page: Window,
) -> Result<Vec<MemoryRow>, Fault> {
    let sql = format!(
        "{MEMORY} where scopes.name = $1 and memories.number < $2
         order by memories.number desc limit $3"
    );
    let found = db::query(AssertSqlSafe(sql))
        .bind(scope.as_str().as_bytes())
        .bind(page.before.unwrap_or(i64::MAX))
        .bind(limit(page.limit))
        .fetch_all(connection)
        .await?;
    found.iter().map(memory_row).collect()
}

async fn one(
    connection: &mut Connection<'_>,
    scope: &Scope,
    id: MemoryId,
) -> Result<Option<Memory>, Fault> {
    let sql = format!("{MEMORY} where scopes.name = $1 and memories.id = $2");
    let row = db::query(AssertSqlSafe(sql))
        .bind(scope.as_str().as_bytes())
        .bind(&id.0.as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    let row = row.as_ref().map(memory_row).transpose()?;
    Ok(row.map(|row| row.memory))
}

async fn change_one(
    connection: &mut Connection<'_>,
    scope: &Scope,
    id: MemoryId,
    change: &MemoryChange,
) -> Result<Option<Memory>, Fault> {
    let Some(before) = one(connection, scope, id).await? else {
        return Ok(None);
    };
    let says = change.text.as_ref().unwrap_or(&before.text);
    if before.valid_until_ms.is_none() || change.holds {
        let number = policies::make_scope(connection, scope).await?;
        let same = current(connection, number, says).await?;
        if let Some(same) = same.filter(|same| same.memory.id != id) {
            let other = same.memory.id;
            let why = format!("memory mem_{other} says the same");
            return Err(Fault::Ledger(LedgerError::Conflict(why)));
        }
    }
    // The words of a topic are no longer what made it one.
    let is_same = *says == before.text && !change.holds;
    let topic = before.topic.as_ref().filter(|_| is_same);
    db::query(
        "update memories set text = $1, folded = $2, topic = $3, kind = $4, paused = $5,
             valid_until_ms = case when $6 = 1 then null else valid_until_ms end,
             superseded_by = case when $6 = 1 then null else superseded_by end
         where id = $7",
    )
    .bind(says.as_bytes())
    .bind(folded(says).into_bytes())
    .bind(text_bytes(topic))
    .bind(change.kind.unwrap_or(before.kind).as_str())
    .bind(change.paused.unwrap_or(before.paused))
    .bind(i64::from(change.holds))
    .bind(&id.0.as_bytes()[..])
    .execute(&mut *connection)
    .await?;
    one(connection, scope, id).await
}

async fn forget(
    connection: &mut Connection<'_>,
    scope: &Scope,
    id: Option<MemoryId>,
) -> Result<u64, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(0);
    };
    if let Some(id) = id {
        db::query(
            "update memories set superseded_by = null
             where scope_number = $1 and superseded_by = $2",
        )
        .bind(number)
        .bind(&id.0.as_bytes()[..])
        .execute(&mut *connection)
        .await?;
    }
    let which = match id {
        Some(_) => " and id = $2",
        None => "",
    };
    let sql = format!("delete from memories where scope_number = $1{which}");
    let mut query = db::query(AssertSqlSafe(sql)).bind(number);
    if let Some(id) = id {
        query = query.bind(&id.0.as_bytes()[..]);
    }
    Ok(query.execute(connection).await?.rows_affected())
}

async fn newest(
    connection: &mut Connection<'_>,
    scope: Option<&Scope>,
    per_scope: usize,
) -> Result<Vec<Memory>, Fault> {
    let number = match scope {
        Some(scope) => match policies::find_scope(connection, scope).await? {
            Some(number) => Some(number),
            None => return Ok(Vec::new()),
        },
        None => None,
    };
    let of = match number {
        Some(_) => "and scope_number = $2",
        None => "",
    };
    let sql = format!(
        "{MEMORY} where memories.number in (
             select number from (
                 select number, row_number() over (
                     partition by scope_number order by number desc
                 ) as place
                 from memories where paused = 0 {of}
             ) as ranked where place <= $1
         ) order by memories.number desc"
    );
    let mut query = db::query(AssertSqlSafe(sql)).bind(limit(per_scope));
    if let Some(number) = number {
        query = query.bind(number);
    }
    let found = query.fetch_all(connection).await?;
    let memories = found.iter().map(|row| Ok(memory_row(row)?.memory));
    memories.collect()
}
