//! Erasure, first half: what a wish means, decided and made true in one transaction.

use hone_domain::{Millis, NextState, PolicyVersion, SessionId, TurnId};
use sqlx::SqliteConnection;

use super::fault::{Fault, corrupt};
use super::policies;
use super::rows;
use super::texts::{signed, unsigned};
use super::{audit, trials, wishes};
use crate::LedgerError;
use crate::personal::{ForgetBegun, ForgetWhat, ForgetWish};

/// Does everything that decides. A plan is the same, undone by its caller.
pub(super) async fn begin(
    connection: &mut SqliteConnection,
    wish: &ForgetWish,
) -> Result<ForgetBegun, Fault> {
    if let Some(report) = wishes::report(connection, wish.id).await? {
        return Ok(ForgetBegun {
            report,
            restored: None,
            trial_ended: false,
            turns: Vec::new(),
            sessions: Vec::new(),
        });
    }
    let scope = policies::make_scope(connection, &wish.scope).await?;
    let forget = open(connection, wish, scope).await?;
    choose(connection, wish, (forget, scope)).await?;
    let sessions = sessions_touched(connection, wish, forget).await?;
    let transitions = gather(connection, forget).await?;
    let tainted = taint(connection, scope, wish.now_ms).await?;
    let samples = drop_samples(connection, scope).await?;
    let clean = clean_ancestor(connection, scope).await?;
    let (restored, freed) = match clean {
        None => (None, 0),
        Some(to) => {
            let freed = free_samples(connection, scope, to).await?;
            let to = PolicyVersion(unsigned(to)?);
            let policy = policies::rollback(connection, &wish.scope, to, wish.now_ms).await?;
            (Some(policy), freed)
        }
    };
    // A rollback has ended a trial; without one it may still measure against what is tainted now.
    let trial_ended = trials::end_tainted(connection, scope).await?;
    let turns = mark(connection, forget).await?;
    let numbers = Numbers {
        turns: turns.len() as u64,
        transitions,
        samples,
        freed,
        tainted,
        rolls_back_to: clean,
    };
    close(connection, (wish, forget), numbers).await?;
    audit::record(connection, &wish.entry).await?;
    let report = wishes::report(connection, wish.id)
        .await?
        .ok_or_else(|| corrupt("a wish that was just stored"))?;
    Ok(ForgetBegun {
        report,
        restored,
        trial_ended,
        turns,
        sessions,
    })
}

async fn open(
    connection: &mut SqliteConnection,
    wish: &ForgetWish,
    scope: i64,
) -> Result<i64, Fault> {
    let number = sqlx::query_scalar(
        "insert into forgets (
             id, scope_number, whole, at_ms, done, turns, transitions, samples, samples_freed,
             versions_tainted
         ) values (?, ?, ?, ?, 0, 0, 0, 0, 0, '[]') returning number",
    )
    .bind(&wish.id.0.as_bytes()[..])
    .bind(scope)
    .bind(wish.what == ForgetWhat::All)
    .bind(wish.now_ms)
    .fetch_one(connection)
    .await?;
    Ok(number)
}

fn not_yours(what: &str) -> Fault {
    Fault::Ledger(LedgerError::Conflict(format!(
        "no {what} of yours is known"
    )))
}

/// Puts every turn that goes into `forget_turns`.
async fn choose(
    connection: &mut SqliteConnection,
    wish: &ForgetWish,
    (forget, scope): (i64, i64),
) -> Result<(), Fault> {
    match &wish.what {
        ForgetWhat::All => {
            sqlx::query(
                "insert or ignore into forget_turns (turn_number, forget_number)
                 select number, ? from turns where scope_number = ?",
            )
            .bind(forget)
            .bind(scope)
            .execute(&mut *connection)
            .await?;
            // Words about turns that never came, or are somebody else's, go with no turn.
            sqlx::query(
                "delete from feedback where owner = ? and not exists (
                     select 1 from turns
                     where turns.id = feedback.turn_id and turns.owner = feedback.owner
                 )",
            )
            .bind(&wish.owner)
            .execute(connection)
            .await?;
            return Ok(());
        }
        ForgetWhat::Session(session) => {
            let found = sqlx::query(
                "insert or ignore into forget_turns (turn_number, forget_number)
                 select turns.number, ? from turns
                 join sessions on sessions.number = turns.session_number
                 where sessions.id = ? and turns.scope_number = ?",
            )
            .bind(forget)
            .bind(&session.0.as_bytes()[..])
            .bind(scope)
            .execute(&mut *connection)
            .await?;
            if found.rows_affected() == 0 {
                return Err(not_yours(&format!("session sess_{session}")));
            }
        }
        ForgetWhat::Turns(turns) => {
            for turn in turns {
                let found = sqlx::query(
                    "insert into forget_turns (turn_number, forget_number)
                     select number, ? from turns where id = ? and scope_number = ?
                     on conflict (turn_number) do update set forget_number = excluded.forget_number",
                )
                .bind(forget)
                .bind(&turn.0.as_bytes()[..])
                .bind(scope)
                .execute(&mut *connection)
                .await?;
                if found.rows_affected() == 0 {
                    return Err(not_yours(&format!("turn turn_{turn}")));
                }
            }
        }
    }
    spread(connection, (forget, scope)).await
}

/// Adds what repeats the words of a turn that goes: the other choices of its request, the turns
/// that continue it, and turns of its session whose history goes through its last message.
async fn spread(
    connection: &mut SqliteConnection,
    (forget, scope): (i64, i64),
) -> Result<(), Fault> {
    let rules = [
        "insert or ignore into forget_turns (turn_number, forget_number)
         select other.number, ?1 from forget_turns
         join turns as gone on gone.number = forget_turns.turn_number
         join turns as other on other.session_number = gone.session_number
             and other.request_id = gone.request_id
         where forget_turns.forget_number = ?1 and other.scope_number = ?2",
        "insert or ignore into forget_turns (turn_number, forget_number)
         select later.number, ?1 from forget_turns
         join turns as gone on gone.number = forget_turns.turn_number
         join turns as later on later.parent_id = gone.id
         where forget_turns.forget_number = ?1 and later.scope_number = ?2",
        "insert or ignore into forget_turns (turn_number, forget_number)
         with recursive
             gone (session_number, history_number) as (
                 select distinct turns.session_number, turn_payloads.history_number
                 from forget_turns
                 join turns on turns.number = forget_turns.turn_number
                 join turn_payloads on turn_payloads.turn_number = turns.number
                 where forget_turns.forget_number = ?1
                   and turn_payloads.history_number is not null
             ),
             path (turn_number, session_number, node) as (
                 select turns.number, turns.session_number, turn_payloads.history_number
                 from (select distinct session_number from gone) as touched
                 join turns on turns.session_number = touched.session_number
                 join turn_payloads on turn_payloads.turn_number = turns.number
                 where turns.scope_number = ?2
                 union
                 select path.turn_number, path.session_number, histories.parent_number
                 from path join histories on histories.number = path.node
                 where histories.parent_number is not null
             )
         select distinct path.turn_number, ?1 from path
         join gone on gone.session_number = path.session_number
             and gone.history_number = path.node",
    ];
    loop {
        let mut added = 0;
        for rule in rules {
            let done = sqlx::query(rule)
                .bind(forget)
                .bind(scope)
                .execute(&mut *connection)
                .await?;
            added += done.rows_affected();
        }
        if added == 0 {
            return Ok(());
        }
    }
}

/// The sessions of what goes. Where they go as a whole, a turn of theirs that comes late stays out.
async fn sessions_touched(
    connection: &mut SqliteConnection,
    wish: &ForgetWish,
    forget: i64,
) -> Result<Vec<SessionId>, Fault> {
    let ids: Vec<Vec<u8>> = sqlx::query_scalar(
        "select distinct sessions.id from forget_turns
         join turns on turns.number = forget_turns.turn_number
         join sessions on sessions.number = turns.session_number
         where forget_turns.forget_number = ?",
    )
    .bind(forget)
    .fetch_all(&mut *connection)
    .await?;
    let stays = matches!(wish.what, ForgetWhat::Turns(_));
    for id in ids.iter().filter(|_| !stays) {
        sqlx::query("insert or ignore into forgotten_sessions (id) values (?)")
            .bind(&id[..])
            .execute(&mut *connection)
            .await?;
    }
    ids.iter().map(|id| rows::session_id(id)).collect()
}

/// Lists the transitions that go: those of the turns that go, and those of turns that stay whose
/// answer is in a turn that goes. A request that failed at first is answered by its retry: then the
/// answer before it names no turn, or one that never came, and its words are those of the turn that
/// goes. Feedback and silence have no words of anybody's. Returns how many.
async fn gather(connection: &mut SqliteConnection, forget: i64) -> Result<u64, Fault> {
    let rules = [
        "insert into gone_transitions (transition_number, turn_stays)
         select transitions.number, 0 from forget_turns
         join transitions on transitions.turn_number = forget_turns.turn_number
         where forget_turns.forget_number = ?1",
        "insert or ignore into gone_transitions (transition_number, turn_stays)
         select transitions.number, 1 from forget_turns
         join turns as gone on gone.number = forget_turns.turn_number
         join turns as parents on parents.id = gone.parent_id
         join transitions on transitions.turn_number = parents.number
             and (transitions.next_turn_id = gone.id
                 or not exists (select 1 from turns where turns.id = transitions.next_turn_id)
                     and transitions.next_state not in (?2, ?3))
         where forget_turns.forget_number = ?1",
    ];
    let feedback = serde_json::to_vec(&NextState::feedback())?;
    let silence = serde_json::to_vec(&NextState::default())?;
    let mut transitions = 0;
    for rule in rules {
        let done = sqlx::query(rule)
            .bind(forget)
            .bind(&feedback[..])
            .bind(&silence[..])
            .execute(&mut *connection)
            .await?;
        transitions += done.rows_affected();
    }
    Ok(transitions)
}

/// Marks every version that learned from what goes, or from such a version. Returns those of this
/// wish, ascending.
async fn taint(
    connection: &mut SqliteConnection,
    scope: i64,
    now_ms: Millis,
) -> Result<Vec<i64>, Fault> {
    let tainted: Vec<i64> = sqlx::query_scalar(
        "with recursive tainted (version) as (
             select version_samples.version from gone_transitions
             join version_samples
                 on version_samples.transition_number = gone_transitions.transition_number
             where version_samples.scope_number = ?1
             union
             select versions.version from versions
             join tainted on versions.parent = tainted.version
             where versions.scope_number = ?1
         )
         select version from tainted order by version",
    )
    .bind(scope)
    .fetch_all(&mut *connection)
    .await?;
    for version in &tainted {
        sqlx::query(
            "update versions set tainted_ms = coalesce(tainted_ms, ?)
             where scope_number = ? and version = ?",
        )
        .bind(now_ms)
        .bind(scope)
        .bind(version)
        .execute(&mut *connection)
        .await?;
    }
    sqlx::query(
        "insert or ignore into loose_blobs (blob, scope_number, digest)
         select blob, scope_number, digest from versions
         where scope_number = ?1 and tainted_ms is not null and not exists (
             select 1 from versions as clean
             where clean.blob = versions.blob and clean.tainted_ms is null
         )",
    )
    .bind(scope)
    .execute(connection)
    .await?;
    Ok(tainted)
}

/// Takes the samples that go out of their versions' lists. Turns that stay lose their transition
/// and verdict, and are settled as `withdrawn`.
async fn drop_samples(connection: &mut SqliteConnection, scope: i64) -> Result<u64, Fault> {
    sqlx::query(
        "update versions set samples_gone = samples_gone + (
             select count(*) from gone_transitions
             join version_samples
                 on version_samples.transition_number = gone_transitions.transition_number
             where version_samples.scope_number = versions.scope_number
               and version_samples.version = versions.version
         )
         where scope_number = ? and tainted_ms is not null",
    )
    .bind(scope)
    .execute(&mut *connection)
    .await?;
    let gone = sqlx::query(
        "delete from version_samples
         where transition_number in (select transition_number from gone_transitions)",
    )
    .execute(&mut *connection)
    .await?;
    let statements = [
        "update turns set stage = null, reason = 'withdrawn', trained_version = null, score = null
         where number in (
             select turn_number from transitions
             join gone_transitions on gone_transitions.transition_number = transitions.number
             where turn_stays = 1
         )",
        "delete from gone_transitions where turn_stays = 0",
        "delete from votes where verdict_number in (
             select number from verdicts
             where transition_number in (select transition_number from gone_transitions)
         )",
        "delete from verdicts
         where transition_number in (select transition_number from gone_transitions)",
        "delete from leases
         where transition_number in (select transition_number from gone_transitions)",
        "delete from transitions where number in (select transition_number from gone_transitions)",
        "delete from gone_transitions",
    ];
    for statement in statements {
        sqlx::query(statement).execute(&mut *connection).await?;
    }
    Ok(gone.rows_affected())
}

/// The nearest ancestor of the newest version that learned from nothing that was erased; none
/// where the newest is clean itself. One whose files were removed for space, or that was retired,
/// cannot be restored.
async fn clean_ancestor(
    connection: &mut SqliteConnection,
    scope: i64,
) -> Result<Option<i64>, Fault> {
    let head = policies::head(connection, scope).await?;
    let clean: i64 = sqlx::query_scalar(
        "with recursive lineage (version, gone_ms, parent) as (
             select version, coalesce(tainted_ms, pruned_ms, retired_ms), parent from versions
             where scope_number = ?1 and version = ?2
             union all
             select versions.version, coalesce(tainted_ms, pruned_ms, retired_ms),
                    versions.parent
             from lineage join versions on versions.version = lineage.parent
             where versions.scope_number = ?1 and lineage.gone_ms is not null
         )
         select coalesce(max(version), 0) from lineage where gone_ms is null",
    )
    .bind(scope)
    .bind(head)
    .fetch_one(connection)
    .await?;
    Ok((clean != head).then_some(clean))
}

/// Lets samples of the tainted versions between the newest and the restored one train again, where
/// a version that stays on the chain sampled them. What a tainted version sampled may repeat what
/// was erased, so it stays spent.
async fn free_samples(
    connection: &mut SqliteConnection,
    scope: i64,
    restored: i64,
) -> Result<u64, Fault> {
    let head = policies::head(connection, scope).await?;
    let freed: Vec<(i64, i64)> = sqlx::query_as(
        "with recursive
             left_behind (version) as (
                 select ?2
                 union
                 select versions.parent from left_behind
                 join versions on versions.version = left_behind.version
                 where versions.scope_number = ?1 and versions.parent <> ?3
             ),
             kept (version) as (
                 select ?3
                 union
                 select versions.parent from kept
                 join versions on versions.version = kept.version
                 where versions.scope_number = ?1
             )
         select version_samples.transition_number, version_samples.version from version_samples
         join transitions on transitions.number = version_samples.transition_number
         join turns on turns.number = transitions.turn_number
         where version_samples.scope_number = ?1
           and version_samples.version in (select version from left_behind)
           and turns.version in (select version from kept) and turns.score is not null",
    )
    .bind(scope)
    .bind(head)
    .bind(restored)
    .fetch_all(&mut *connection)
    .await?;
    for (transition, version) in &freed {
        sqlx::query("delete from version_samples where transition_number = ? and scope_number = ?")
            .bind(transition)
            .bind(scope)
            .execute(&mut *connection)
            .await?;
        sqlx::query(
            "update versions set samples_gone = samples_gone + 1
             where scope_number = ? and version = ?",
        )
        .bind(scope)
        .bind(version)
        .execute(&mut *connection)
        .await?;
        sqlx::query(
            "update turns set stage = 'awaiting_training', trained_version = null
             where number = (select turn_number from transitions where number = ?)",
        )
        .bind(transition)
        .execute(&mut *connection)
        .await?;
    }
    Ok(freed.len() as u64)
}

/// Takes what goes out of the ring, whatever became of it before, and remembers the names. A trained
/// turn loses its version here, because its sample is gone already.
async fn mark(connection: &mut SqliteConnection, forget: i64) -> Result<Vec<TurnId>, Fault> {
    sqlx::query(
        "update turns set stage = null, reason = 'withdrawn', trained_version = null
         where number in (select turn_number from forget_turns where forget_number = ?)",
    )
    .bind(forget)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "insert or ignore into forgotten_turns (id)
         select turns.id from forget_turns join turns on turns.number = forget_turns.turn_number
         where forget_turns.forget_number = ?",
    )
    .bind(forget)
    .execute(&mut *connection)
    .await?;
    let ids: Vec<Vec<u8>> = sqlx::query_scalar(
        "select turns.id from forget_turns join turns on turns.number = forget_turns.turn_number
         where forget_turns.forget_number = ?",
    )
    .bind(forget)
    .fetch_all(connection)
    .await?;
    ids.iter().map(|id| rows::turn_id(id)).collect()
}

struct Numbers {
    turns: u64,
    transitions: u64,
    samples: u64,
    freed: u64,
    tainted: Vec<i64>,
    rolls_back_to: Option<i64>,
}

async fn close(
    connection: &mut SqliteConnection,
    (wish, forget): (&ForgetWish, i64),
    numbers: Numbers,
) -> Result<(), Fault> {
    sqlx::query(
        "update forgets set turns = ?, transitions = ?, samples = ?, samples_freed = ?,
             versions_tainted = ?, rolls_back_to = ?, at_ms = ?
         where number = ?",
    )
    .bind(signed(numbers.turns)?)
    .bind(signed(numbers.transitions)?)
    .bind(signed(numbers.samples)?)
    .bind(signed(numbers.freed)?)
    .bind(serde_json::to_string(&numbers.tainted)?)
    .bind(numbers.rolls_back_to)
    .bind(wish.now_ms)
    .bind(forget)
    .execute(connection)
    .await?;
    Ok(())
}
