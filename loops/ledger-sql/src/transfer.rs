//! Moves a ledger from one database to the other, table by table in the order of keys, and compares both by digest at
//! the end. What an interrupted move has copied is not copied again.

use std::path::{Path, PathBuf};

use hone_ledger::{Ledger as _, LedgerError};
use sha2::{Digest as _, Sha256};
use sqlx::AssertSqlSafe;

use crate::postgres::Marking;
use crate::sqlite::{MARK_FILE, MOVING};
use crate::{
    LedgerPlace, PostgresConfig, PostgresStore, Role, SqliteConfig, SqliteStore, check_not_lost,
};
use hone_ledger_queries::db::{self, Connection, Fault, Query, Row, Value};
use hone_ledger_queries::{Held as _, SqlLedger, Store, Unfinished};

/// Rows that one transaction copies.
const PAGE: usize = 500;

/// A table with its columns, each after its kind; the first ones are the key.
struct Table {
    name: &'static str,
    keys: usize,
    columns: &'static [(Kind, &'static str)],
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Integer,
    Real,
    Text,
    Blob,
}

macro_rules! tables {
    ($($name:ident($keys:literal: $($kind:ident $column:ident),*);)*) => {
        /// Every table in an order in which rows name only rows of tables before, or earlier ones of their own. Counts
        /// are kept by triggers and so are not among them.
        const TABLES: &[Table] = &[$(Table {
            name: stringify!($name),
            keys: $keys,
            columns: &[$((Kind::$kind, stringify!($column))),*],
        }),*];
    };
}
tables! {
    scopes(1: Integer number, Blob name);
    sessions(1: Integer number, Blob id, Text owner, Integer scope_number, Integer first_ms, Integer last_ms, Blob title,
        Blob title_folded);
    arithmetics(1: Integer number, Text fingerprint, Blob base);
    memories(1: Integer number, Blob id, Integer scope_number, Text kind, Blob text, Blob folded, Blob topic,
        Blob turn_id, Integer created_ms, Integer valid_until_ms, Blob superseded_by, Integer paused, Integer uses,
        Text origin);
    skills(1: Integer number, Blob id, Integer scope_number, Text name, Integer version, Integer paused, Blob wish,
        Integer created_ms, Integer changed_ms, Integer listed, Integer uses);
    skill_versions(1: Integer number, Integer skill_number, Integer version, Text origin, Blob description, Blob findings,
        Integer released, Integer created_ms, Integer files, Integer bytes, Blob digest);
    skill_files(1: Integer number, Integer version_number, Blob path, Blob content);
    skill_turns(1: Integer number, Integer version_number, Blob turn_id);
    corrections(1: Integer number, Integer scope_number, Blob wish, Blob words, Blob turn_id, Blob session_id,
        Integer created_ms);
    task_sets(1: Integer number, Blob id, Text owner, Blob name, Integer created_ms);
    task_contents(1: Integer number, Integer set_number, Blob digest, Blob content);
    tasks(1: Integer number, Blob id, Integer set_number, Blob name, Integer held_out, Blob spec, Blob files,
        Integer has_solution, Text state, Blob note);
    rollouts(1: Integer number, Blob id, Text owner, Integer scope_number, Integer set_number, Blob spec,
        Integer group_count, Integer groups_made, Integer created_ms, Integer cancelled_ms);
    jobs(1: Integer number, Blob id, Text kind, Text owner, Integer scope_number, Integer rollout_number,
        Blob group_id, Integer member, Integer task_number, Integer attempt, Text state, Text reason, Real priority,
        Integer not_before_ms, Integer created_ms, Integer started_ms, Integer ended_ms, Integer free_from_ms,
        Integer fence, Real reward, Integer version, Blob session_id, Blob result);
    messages(1: Integer number, Blob hash, Blob body);
    histories(1: Integer number, Blob hash, Integer parent_number, Integer message_number);
    token_blocks(1: Integer number, Blob hash, Integer parent_number, Blob tokens);
    turns(1: Integer number, Blob id, Blob request_id, Integer choice_index, Blob group_id, Integer session_number,
        Blob parent_id, Text owner, Integer scope_number, Integer arithmetic_number, Text origin, Text kind,
        Integer version, Text stage, Text reason, Integer trained_version, Real score, Integer started_ms,
        Integer finished_ms, Integer holdback, Blob source, Blob trace, Blob metadata, Integer extent,
        Blob branch_of, Integer branch_position, Integer branch_prefix);
    turn_payloads(1: Integer turn_number, Blob session_key, Integer history_number, Integer block_number,
        Blob prompt_tail, Blob completion_tokens, Blob behavior_logprobs, Blob raw_logprobs, Blob kept, Text stop,
        Blob completion_text, Blob sampling, Blob spans, Blob digest, Text untrainable, Blob checks, Blob experts);
    turn_memories(1: Integer turn_number, Text mode, Blob shown, Blob skills);
    followers(1: Integer number, Text name, Blob spec, Integer created_ms, Integer read_ms, Integer read_count,
        Integer filled_from);
    unread(2: Text consumer, Integer turn_number, Integer is_new, Integer revision);
    transitions(1: Integer number, Blob id, Integer turn_number, Blob next_state, Blob next_turn_id,
        Integer settled_ms);
    verdicts(1: Integer number, Blob id, Integer transition_number, Integer revision, Integer current, Real score,
        Text decided_by, Blob hint, Integer judged_ms, Blob hint_choice, Blob wish);
    votes(2: Integer verdict_number, Integer position, Text signal, Text outcome, Blob reason, Text model,
        Integer latency_ms, Integer prompt_tokens, Integer completion_tokens, Real cost, Text prompt);
    feedback(1: Integer number, Blob id, Blob turn_id, Text owner, Blob client_id, Real score, Blob comment,
        Blob correction, Integer received_ms, Integer of_session);
    session_rewards(1: Integer number, Blob id, Integer session_number, Text owner, Blob client_id, Real score, Blob parts,
        Integer received_ms, Blob peers);
    early_feedback(1: Integer feedback_number, Text owner, Integer received_ms);
    leases(2: Integer transition_number, Text consumer, Integer fence, Integer held, Integer free_from_ms,
        Integer attempts, Blob batch_id);
    versions(1: Integer number, Integer scope_number, Integer version, Integer parent, Blob digest, Text blob,
        Text status, Blob batch_id, Integer samples, Text report, Text gate, Integer published_ms, Integer tainted_ms,
        Integer samples_gone, Blob note, Integer tripped_ms, Integer pruned_ms, Integer retired_ms,
        Integer damaged_ms);
    version_samples(2: Integer transition_number, Integer scope_number, Integer version);
    refusals(1: Integer number, Integer scope_number, Integer parent, Blob digest, Blob batch_id, Text reason,
        Integer samples, Text report, Integer refused_ms);
    standings(1: Integer scope_number, Integer pinned_ms, Blob tripped_note, Integer tripped_version,
        Integer tripped_ms, Integer trial_version, Integer trial_proven, Integer trial_ms, Text watch,
        Real trial_share);
    consents(1: Integer scope_number, Text learning, Integer despite_store_false, Integer holdback,
        Integer decided_ms);
    forgets(1: Integer number, Blob id, Integer scope_number, Integer whole, Integer at_ms, Integer done,
        Integer turns, Integer transitions, Integer samples, Integer samples_freed, Text versions_tainted,
        Integer rolls_back_to);
    forget_turns(1: Integer turn_number, Integer forget_number);
    gone_transitions(1: Integer transition_number, Integer turn_stays);
    loose_histories(1: Integer number);
    loose_blocks(1: Integer number);
    loose_sessions(1: Integer number);
    loose_blobs(1: Text blob, Integer scope_number, Blob digest);
    forgotten_turns(1: Blob id);
    forgotten_sessions(1: Blob id);
    forgotten_requests(2: Blob id, Blob session_id);
    answers(1: Integer number, Blob name, Text owner, Blob body, Blob request_id, Integer after_turn,
        Integer began_ms, Integer status, Blob headers, Blob answer, Integer bytes);
    teams(1: Integer number, Text name, Integer disabled, Text limits, Integer created_ms);
    team_members(1: Integer number, Integer team_number, Text member, Integer lead, Integer joined_ms);
    users(1: Integer number, Text name, Text role, Text password, Integer disabled, Text limits, Integer created_ms,
        Integer signed_in_ms, Text keeper, Integer keeper_team);
    api_keys(1: Integer number, Text id, Text owner, Blob label, Text role, Text limits, Integer created_ms,
        Integer expires_ms, Integer revoked_ms, Integer used_ms, Integer despite_store_false, Integer raw_logprobs,
        Blob sha256, Text memory);
    sign_ins(1: Integer number, Blob token, Text user_name, Integer created_ms, Integer used_ms);
    invites(1: Integer number, Blob token, Text role, Text user_name, Text created_by, Integer created_ms,
        Integer expires_ms, Integer taken_ms);
    audit(1: Integer number, Integer at_ms, Text actor, Text act, Blob object, Blob detail, Blob hash);
}

/// What was moved of a table.
#[derive(Clone, Debug)]
pub struct MovedTable {
    /// Its name.
    pub name: &'static str,
    /// How many rows it has.
    pub rows: u64,
    /// The first digits of the digest of all of them, equal in both ledgers.
    pub digest: String,
}

/// Moves a ledger that no server uses. The one it comes from stays as it is.
///
/// # Errors
/// A sentence with a remedy: one of them is in use or cannot be opened, the target holds another ledger, or the source
/// changed since an interrupted move.
pub async fn move_ledger(
    from: &LedgerPlace,
    to: &LedgerPlace,
) -> Result<Vec<MovedTable>, LedgerError> {
    match (from, to) {
        (LedgerPlace::Sqlite(from), LedgerPlace::Postgres(to)) => {
            if !from.file.exists() {
                let file = from.file.display();
                return Err(unusable(format!("there is no ledger {file}")));
            }
            let source = SqliteStore::open(from).await?;
            into_postgres(&source, to).await
        }
        (LedgerPlace::Postgres(from), LedgerPlace::Postgres(to)) => {
            let source = PostgresStore::open(&alone(from)).await?;
            into_postgres(&source, to).await
        }
        (LedgerPlace::Postgres(from), LedgerPlace::Sqlite(to)) => {
            let source = PostgresStore::open(&alone(from)).await?;
            into_file(&source, to).await
        }
        (LedgerPlace::Sqlite(_), LedgerPlace::Sqlite(_)) => Err(unusable(
            "both are files; copy a data folder with `hone backup` and `hone restore`".to_owned(),
        )),
    }
}

fn unusable(text: String) -> LedgerError {
    LedgerError::Unusable(text)
}

/// The same place, with every role, so that no server has it meanwhile.
fn alone(config: &PostgresConfig) -> PostgresConfig {
    PostgresConfig {
        roles: vec![Role::Judge, Role::Train, Role::Memory],
        folder: None,
        ..config.clone()
    }
}

async fn into_postgres<A: Store>(
    source: &SqlLedger<A>,
    to: &PostgresConfig,
) -> Result<Vec<MovedTable>, LedgerError> {
    let target = PostgresStore::open_for_move(&alone(to)).await?;
    if target.store.marking().await? == Marking::Moving {
        tracing::info!("an interrupted move goes on");
    } else {
        refuse_unless_empty(&target).await?;
        target.store.mark(Marking::Moving).await?;
    }
    let moved = transfer(source, &target).await?;
    target
        .store
        .count_on(TABLES.iter().filter_map(numbered))
        .await?;
    target.store.mark(Marking::Whole).await?;
    target.close().await;
    source.close().await;
    Ok(moved)
}

/// The tables whose first column is a number that the database gives.
fn numbered(table: &Table) -> Option<&'static str> {
    let is_given =
        table.columns[0].1 == "number" && table.columns.len() > 1 && table.name != "audit";
    is_given.then_some(table.name)
}

/// Gathers a file in a folder of its own, and puts it in its place when it is whole.
async fn into_file<A: Store>(
    source: &SqlLedger<A>,
    to: &SqliteConfig,
) -> Result<Vec<MovedTable>, LedgerError> {
    let folder = to.file.parent().unwrap_or(Path::new("."));
    if to.file.exists() {
        let file = to.file.display();
        return Err(unusable(format!(
            "there is a ledger {file} already; move it away, or choose another data folder"
        )));
    }
    let gathering: PathBuf = folder.join(MOVING);
    let config = SqliteConfig::in_folder(&gathering);
    if !config.file.exists() {
        check_not_lost(&config.file)?;
    }
    let target = SqliteStore::open(&config).await?;
    let moved = transfer(source, &target).await?;
    target.close().await;
    source.close().await;
    put(&gathering, folder).map_err(|error| {
        let folder = folder.display();
        unusable(format!(
            "the moved ledger could not be put into {folder} ({error})"
        ))
    })?;
    Ok(moved)
}

/// The file with its mark, from the folder it was gathered in.
fn put(gathering: &Path, folder: &Path) -> std::io::Result<()> {
    for name in [MARK_FILE, "ledger.db"] {
        std::fs::rename(gathering.join(name), folder.join(name))?;
    }
    std::fs::File::open(folder)?.sync_all()?;
    std::fs::remove_dir_all(gathering)
}

async fn refuse_unless_empty<B: Store>(target: &SqlLedger<B>) -> Result<(), LedgerError> {
    let mut moment = target.store.look().await?;
    for table in TABLES {
        let rows = page(&mut moment.connection(), table, None, 1).await;
        if !target.store.explain(rows)?.is_empty() {
            return Err(unusable(
                "the target holds another ledger already; name an empty database, or remove that ledger".to_owned(),
            ));
        }
    }
    Ok(())
}

async fn transfer<A: Store, B: Store>(
    source: &SqlLedger<A>,
    target: &SqlLedger<B>,
) -> Result<Vec<MovedTable>, LedgerError> {
    for table in TABLES {
        copy(source, target, table).await?;
    }
    copy_places(source, target).await?;
    let mut moved = Vec::with_capacity(TABLES.len());
    for table in TABLES {
        let (rows, digest) = digest_of(source, table).await?;
        if (rows, digest.clone()) != digest_of(target, table).await? {
            return Err(unusable(format!(
                "the table {} differs in both ledgers: the source was written to since an interrupted move, or something \
                 else writes to the target; remove the target and move again",
                table.name
            )));
        }
        moved.push(MovedTable {
            name: table.name,
            rows,
            digest,
        });
    }
    let broken = target.check_laws().await?;
    match broken.is_empty() {
        true => Ok(moved),
        false => Err(unusable(format!(
            "the moved ledger breaks laws: {}; see what `hone doctor` says of the source",
            broken.join("; ")
        ))),
    }
}

/// Copies what the target lacks of a table.
async fn copy<A: Store, B: Store>(
    source: &SqlLedger<A>,
    target: &SqlLedger<B>,
    table: &Table,
) -> Result<(), LedgerError> {
    let mut moment = target.store.look().await?;
    let last = last_key(&mut moment.connection(), table).await;
    let mut after = target.store.explain(last)?;
    drop(moment);
    let columns = names(table.columns);
    let insert = format!(
        "insert into {} ({columns}) values ({})",
        table.name,
        parameters(table.columns.len())
    );
    loop {
        let mut moment = source.store.look().await?;
        let rows = page(&mut moment.connection(), table, after.as_deref(), PAGE).await;
        let rows = source.store.explain(rows)?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = Some(last[..table.keys].to_vec());
        let mut writing = target.store.begin().await?;
        let done = store(&mut writing.connection(), &insert, rows).await;
        finish(target, writing, done).await?;
    }
}

async fn finish<B: Store>(
    target: &SqlLedger<B>,
    writing: B::Writing,
    done: Result<(), Fault>,
) -> Result<(), LedgerError> {
    let finished = target.store.finish(writing, done).await;
    finished.map_err(|(Unfinished::Again(error) | Unfinished::Failed(error))| error)
}

async fn store(
    connection: &mut Connection<'_>,
    insert: &str,
    rows: Vec<Vec<Value>>,
) -> Result<(), Fault> {
    for row in rows {
        let one = Query::with(AssertSqlSafe(insert.to_owned()), row);
        one.execute(connection).await?;
    }
    Ok(())
}

/// What is one row for ever: how far the watch has read, and the revision of people.
async fn copy_places<A: Store, B: Store>(
    source: &SqlLedger<A>,
    target: &SqlLedger<B>,
) -> Result<(), LedgerError> {
    let mut moment = source.store.look().await?;
    let places: Result<(i64, i64, i64), _> = db::query_as(
        "select turn_number, verdict_number, (select max(revision) from people_revision) from watch_places",
    )
    .fetch_one(&mut moment.connection())
    .await;
    let (turn, verdict, revision) = source.store.explain(places.map_err(Fault::Sql))?;
    let mut writing = target.store.begin().await?;
    let done = put_places(&mut writing.connection(), turn, verdict, revision).await;
    finish(target, writing, done).await
}

async fn put_places(
    connection: &mut Connection<'_>,
    turn: i64,
    verdict: i64,
    revision: i64,
) -> Result<(), Fault> {
    db::query("update watch_places set turn_number = $1, verdict_number = $2")
        .bind(turn)
        .bind(verdict)
        .execute(connection)
        .await?;
    db::query("update people_revision set revision = max(revision, $1)")
        .bind(revision)
        .execute(connection)
        .await?;
    Ok(())
}

fn names(columns: &[(Kind, &'static str)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(_, name)| *name).collect();
    names.join(", ")
}

/// The first so many parameters of a statement.
fn parameters(count: usize) -> String {
    let all: Vec<String> = (1..=count).map(|n| format!("${n}")).collect();
    all.join(", ")
}

/// Rows after a key, in the order of keys.
async fn page(
    connection: &mut Connection<'_>,
    table: &Table,
    after: Option<&[Value]>,
    most: usize,
) -> Result<Vec<Vec<Value>>, Fault> {
    let keys = names(&table.columns[..table.keys]);
    let mut values = after.unwrap_or_default().to_vec();
    let after = match values.is_empty() {
        true => String::new(),
        false => format!("where ({keys}) > ({})", parameters(values.len())),
    };
    values.push(Value::Integer(i64::try_from(most).ok()));
    let sql = format!(
        "select {} from {} {after} order by {keys} limit ${}",
        names(table.columns),
        table.name,
        values.len()
    );
    let rows = Query::with(AssertSqlSafe(sql), values);
    let rows = rows.fetch_all(connection).await?;
    rows.iter().map(|row| read(row, table.columns)).collect()
}

/// The greatest key of a table.
async fn last_key(
    connection: &mut Connection<'_>,
    table: &Table,
) -> Result<Option<Vec<Value>>, Fault> {
    let keys = &table.columns[..table.keys];
    let order: Vec<String> = keys
        .iter()
        .map(|(_, name)| format!("{name} desc"))
        .collect();
    let sql = format!(
        "select {} from {} order by {} limit 1",
        names(keys),
        table.name,
        order.join(", ")
    );
    let last = db::query(AssertSqlSafe(sql))
        .fetch_optional(connection)
        .await?;
    last.map(|row| read(&row, keys)).transpose()
}

fn read(row: &Row, columns: &[(Kind, &'static str)]) -> Result<Vec<Value>, Fault> {
    let values = columns.iter().enumerate().map(|(place, (kind, _))| {
        Ok(match kind {
            Kind::Integer => Value::Integer(row.try_get(place)?),
            Kind::Real => Value::Real(row.try_get(place)?),
            Kind::Text => Value::Text(row.try_get(place)?),
            Kind::Blob => Value::Blob(row.try_get(place)?),
        })
    });
    values.collect()
}

/// How many rows a table has, and the first digits of a digest over all of them.
async fn digest_of<S: Store>(
    ledger: &SqlLedger<S>,
    table: &Table,
) -> Result<(u64, String), LedgerError> {
    let (mut hash, mut count) = (Sha256::new(), 0);
    let mut after: Option<Vec<Value>> = None;
    let mut moment = ledger.store.look().await?;
    loop {
        let rows = page(&mut moment.connection(), table, after.as_deref(), PAGE).await;
        let rows = ledger.store.explain(rows)?;
        let Some(last) = rows.last() else {
            break;
        };
        after = Some(last[..table.keys].to_vec());
        count += rows.len() as u64;
        for value in rows.iter().flatten() {
            update(&mut hash, value);
        }
    }
    let digest: [u8; 32] = hash.finalize().into();
    let digits = digest[..8].iter().map(|byte| format!("{byte:02x}"));
    Ok((count, digits.collect()))
}

/// A value with its kind and its length, so that no two lists of values have the same bytes.
fn update(hash: &mut Sha256, value: &Value) {
    let mut add = |kind: u8, bytes: Option<&[u8]>| {
        hash.update([kind, u8::from(bytes.is_some())]);
        let bytes = bytes.unwrap_or_default();
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    match value {
        Value::Integer(n) => add(1, n.map(i64::to_le_bytes).as_ref().map(|b| &b[..])),
        Value::Real(x) => add(2, x.map(f64::to_le_bytes).as_ref().map(|b| &b[..])),
        Value::Text(text) => add(3, text.as_ref().map(String::as_bytes)),
        Value::Blob(bytes) => add(4, bytes.as_deref()),
    }
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
