//! Erasure, first half: what a wish means, decided and made true in one transaction.

use hone_domain::{Millis, NextState, PolicyVersion, Scope, SessionId, TurnId};
use serde_json::json;

use super::taint::Touched;
use super::texts::{signed, unsigned};
use super::{audit, jobs, memory_uses, policies, rows, standings, taint, trials, unread, wishes};
use crate::db::{self, Connection, Fault, corrupt};
use hone_ledger::{AuditEntry, ForgetBegun, ForgetReport, ForgetWhat, ForgetWish, LedgerError};

/// The wish of a plan. Those that are stored have greater numbers.
const NO_WISH: i64 = 0;

/// What a wish means.
struct Meaning {
    turns: u64,
    transitions: u64,
    samples: u64,
    touched: Vec<Touched>,
}

impl Meaning {
    /// What it means for the versions of the wish's own scope: those that are tainted, what is served
    /// instead, and how many samples may train again.
    fn own(&self, scope: i64) -> (&[i64], Option<i64>, u64) {
        let own = self.touched.iter().find(|touched| touched.scope == scope);
        let back = own.and_then(|own| own.back.as_ref());
        (
            own.map_or(&[][..], |own| &own.versions[..]),
            back.map(|back| back.to),
            back.map_or(0, |back| back.freed.len() as u64),
        )
    }
}

/// Says what a wish would do, over a connection whose lists of what goes are its own.
pub async fn plan(
    connection: &mut Connection<'_>,
    wish: &ForgetWish,
) -> Result<ForgetReport, Fault> {
    // Nothing is stored of a scope that is not known.
    let scope = policies::find_scope(connection, &wish.scope).await?;
    let scope = scope.unwrap_or(0);
    let meaning = decide(connection, wish, NO_WISH, scope).await?;
    let (tainted, back, samples_freed) = meaning.own(scope);
    let tainted = tainted.iter().map(|version| rows::version(*version));
    Ok(ForgetReport {
        id: wish.id,
        scope: wish.scope.clone(),
        turns: meaning.turns,
        transitions: meaning.transitions,
        samples: meaning.samples,
        samples_freed,
        versions_tainted: tainted.collect::<Result<_, Fault>>()?,
        rolls_back_to: back.map(rows::version).transpose()?,
        turns_left: 0,
        is_done: false,
        at_ms: wish.now_ms,
    })
}

/// Does everything that decides.
pub(crate) async fn begin(
    connection: &mut Connection<'_>,
    wish: &ForgetWish,
) -> Result<ForgetBegun, Fault> {
    if let Some(report) = wishes::report(connection, wish.id).await? {
        return Ok(ForgetBegun {
            scopes: vec![(wish.scope.clone(), report.versions_tainted.clone())],
            report,
            restored: Vec::new(),
            trials_ended: Vec::new(),
            turns: Vec::new(),
            sessions: Vec::new(),
        });
    }
    let scope = policies::make_scope(connection, &wish.scope).await?;
    let forget = open(connection, wish, scope).await?;
    let meaning = decide(connection, wish, forget, scope).await?;
    memory_uses::drop_of_turns(connection, forget).await?;
    unread::drop_of_turns(connection, forget).await?;
    jobs::forget_turns(connection, forget).await?;
    if wish.what == ForgetWhat::All {
        drop_early_words(connection, wish).await?;
        memory_uses::drop_all(connection, scope).await?;
        jobs::forget_scope(connection, scope).await?;
    }
    // Answers that retries would get repeat the words; which turns they came to does not matter.
    db::query("delete from answers where owner = $1")
        .bind(&wish.owner)
        .execute(&mut *connection)
        .await?;
    let sessions = sessions_touched(connection, wish, forget).await?;
    taint::mark(connection, &meaning.touched, scope, wish.now_ms).await?;
    drop_samples(connection, scope).await?;
    let (mut others, mut restored, mut trials_ended) = (Vec::new(), Vec::new(), Vec::new());
    for touched in &meaning.touched {
        let of = policies::scope_at(connection, touched.scope).await?;
        if let Some(back) = &touched.back {
            taint::free(connection, touched.scope, &back.freed).await?;
            let to = PolicyVersion(unsigned(back.to)?);
            restored.push(standings::rollback(connection, &of, to, wish.now_ms).await?);
        }
        // A rollback has ended a trial; without one it may still measure against what is tainted now.
        if trials::end_tainted(connection, touched.scope).await? {
            trials_ended.push(of.clone());
        }
        if touched.scope != scope {
            audit::record(connection, &told_elsewhere(&of, touched, wish.now_ms)).await?;
            let tainted = touched
                .versions
                .iter()
                .map(|version| rows::version(*version));
            others.push((of, tainted.collect::<Result<_, Fault>>()?));
        }
    }
    let turns = mark(connection, forget).await?;
    close(connection, wish, forget, &meaning, scope).await?;
    audit::record(connection, &wish.entry).await?;
    let report = wishes::report(connection, wish.id)
        .await?
        .ok_or_else(|| corrupt("a wish that was just stored"))?;
    let own = (wish.scope.clone(), report.versions_tainted.clone());
    Ok(ForgetBegun {
        scopes: std::iter::once(own).chain(others).collect(),
        report,
        restored,
        trials_ended,
        turns,
        sessions,
    })
}

/// What the audit log says of a scope that holds copies of what somebody else's wish tainted; whose wish
/// it was is nobody's business there.
fn told_elsewhere(scope: &Scope, touched: &Touched, at_ms: Millis) -> AuditEntry {
    let back = touched.back.as_ref().map(|back| back.to);
    AuditEntry {
        at_ms,
        actor: "an erasure".to_owned(),
        act: "version.taint".to_owned(),
        object: scope.as_str().to_owned(),
        detail: json!({"versions": touched.versions, "rolls_back_to": back}),
    }
}

/// Lists what goes, and finds out what that means; changes nothing but the lists.
async fn decide(
    connection: &mut Connection<'_>,
    wish: &ForgetWish,
    forget: i64,
    scope: i64,
) -> Result<Meaning, Fault> {
    choose(connection, wish, forget, scope).await?;
    let turns = db::query_scalar("select count(*) from forget_turns where forget_number = $1")
        .bind(forget)
        .fetch_one(&mut *connection)
        .await?;
    let transitions = gather(connection, forget).await?;
    let samples = db::query_scalar(
        "select count(*) from gone_transitions
         join version_samples
             on version_samples.transition_number = gone_transitions.transition_number",
    )
    .fetch_one(&mut *connection)
    .await?;
    Ok(Meaning {
        turns: unsigned(turns)?,
        transitions,
        samples: unsigned(samples)?,
        touched: taint::find(connection).await?,
    })
}

async fn open(
    connection: &mut Connection<'_>,
    wish: &ForgetWish,
    scope: i64,
) -> Result<i64, Fault> {
    let number = db::query_scalar(
        "insert into forgets (
             id, scope_number, whole, at_ms, done, turns, transitions, samples, samples_freed,
             versions_tainted
         ) values ($1, $2, $3, $4, 0, 0, 0, 0, 0, '[]') returning number",
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
    connection: &mut Connection<'_>,
    wish: &ForgetWish,
    forget: i64,
    scope: i64,
) -> Result<(), Fault> {
    match &wish.what {
        ForgetWhat::All => {
            db::query(
                "insert into forget_turns (turn_number, forget_number)
                 select number, $1 from turns where scope_number = $2
         on conflict do nothing",
            )
            .bind(forget)
            .bind(scope)
            .execute(connection)
            .await?;
            return Ok(());
        }
        ForgetWhat::Session(session) => {
            let found = db::query(
                "insert into forget_turns (turn_number, forget_number)
                 select turns.number, $1 from turns
                 join sessions on sessions.number = turns.session_number
                 where sessions.id = $2 and turns.scope_number = $3
         on conflict do nothing",
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
                let found = db::query(
                    "insert into forget_turns (turn_number, forget_number)
                     select number, $1 from turns where id = $2 and scope_number = $3
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
    spread(connection, forget, scope).await
}

/// Removes words about turns that never came, or are somebody else's: they go with no turn.
async fn drop_early_words(connection: &mut Connection<'_>, wish: &ForgetWish) -> Result<(), Fault> {
    db::query(
        "delete from feedback where owner = $1 and not exists (
             select 1 from turns
             where turns.id = feedback.turn_id and turns.owner = feedback.owner
         )",
    )
    .bind(&wish.owner)
    .execute(connection)
    .await?;
    Ok(())
}

/// Adds what repeats the words of a turn that goes: the other choices of its request, the turns
/// that continue it, those that branch from its answer, and turns of its session whose history goes through its last message. Which those are is not known
/// any more of a turn that lost its words with age: then it is every later one of the session.
async fn spread(connection: &mut Connection<'_>, forget: i64, scope: i64) -> Result<(), Fault> {
    let rules = [
        "insert into forget_turns (turn_number, forget_number)
         select other.number, $1 from forget_turns
         join turns as gone on gone.number = forget_turns.turn_number
         join turns as other on other.session_number = gone.session_number
             and other.request_id = gone.request_id
         where forget_turns.forget_number = $1 and other.scope_number = $2
         on conflict do nothing",
        "insert into forget_turns (turn_number, forget_number)
         select later.number, $1 from forget_turns
         join turns as gone on gone.number = forget_turns.turn_number
         join turns as later on later.parent_id = gone.id
         where forget_turns.forget_number = $1 and later.scope_number = $2
         on conflict do nothing",
        "insert into forget_turns (turn_number, forget_number)
         select branch.number, $1 from forget_turns
         join turns as gone on gone.number = forget_turns.turn_number
         join turns as branch on branch.branch_of = gone.id
         where forget_turns.forget_number = $1 and branch.scope_number = $2
         on conflict do nothing",
        "insert into forget_turns (turn_number, forget_number)
         select later.number, $1 from forget_turns
         join turns as gone on gone.number = forget_turns.turn_number
         join turns as later on later.session_number = gone.session_number
             and later.number > gone.number
         where forget_turns.forget_number = $1 and gone.extent = 0 and later.scope_number = $2
         on conflict do nothing",
        "insert into forget_turns (turn_number, forget_number)
         with recursive
             gone (session_number, history_number) as (
                 select distinct turns.session_number, turn_payloads.history_number
                 from forget_turns
                 join turns on turns.number = forget_turns.turn_number
                 join turn_payloads on turn_payloads.turn_number = turns.number
                 where forget_turns.forget_number = $1
                   and turn_payloads.history_number is not null
             ),
             path (turn_number, session_number, node) as (
                 select turns.number, turns.session_number, turn_payloads.history_number
                 from (select distinct session_number from gone) as touched
                 join turns on turns.session_number = touched.session_number
                 join turn_payloads on turn_payloads.turn_number = turns.number
                 where turns.scope_number = $2
                 union
                 select path.turn_number, path.session_number, histories.parent_number
                 from path join histories on histories.number = path.node
                 where histories.parent_number is not null
             )
         select distinct path.turn_number, $1 from path
         join gone on gone.session_number = path.session_number
             and gone.history_number = path.node
         where true
         on conflict do nothing",
    ];
    loop {
        let mut added = 0;
        for rule in rules {
            let done = db::query(rule)
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
    connection: &mut Connection<'_>,
    wish: &ForgetWish,
    forget: i64,
) -> Result<Vec<SessionId>, Fault> {
    let ids: Vec<Vec<u8>> = db::query_scalar(
        "select distinct sessions.id from forget_turns
         join turns on turns.number = forget_turns.turn_number
         join sessions on sessions.number = turns.session_number
         where forget_turns.forget_number = $1",
    )
    .bind(forget)
    .fetch_all(&mut *connection)
    .await?;
    let stays = matches!(wish.what, ForgetWhat::Turns(_));
    for id in ids.iter().filter(|_| !stays) {
        db::query("insert into forgotten_sessions (id) values ($1) on conflict do nothing")
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
async fn gather(connection: &mut Connection<'_>, forget: i64) -> Result<u64, Fault> {
    let rules = [
        "insert into gone_transitions (transition_number, turn_stays)
         select transitions.number, 0 from forget_turns
         join transitions on transitions.turn_number = forget_turns.turn_number
         where forget_turns.forget_number = $1",
        "insert into gone_transitions (transition_number, turn_stays)
         select transitions.number, 1 from forget_turns
         join turns as gone on gone.number = forget_turns.turn_number
         join turns as parents on parents.id = gone.parent_id
         join transitions on transitions.turn_number = parents.number
             and (transitions.next_turn_id = gone.id
                 or not exists (select 1 from turns where turns.id = transitions.next_turn_id)
                     and transitions.next_state not in ($2, $3))
         where forget_turns.forget_number = $1
         on conflict do nothing",
    ];
    let feedback = serde_json::to_vec(&NextState::feedback())?;
    let silence = serde_json::to_vec(&NextState::default())?;
    let mut transitions = 0;
    for rule in rules {
        let done = db::query(rule)
            .bind(forget)
            .bind(&feedback[..])
            .bind(&silence[..])
            .execute(&mut *connection)
            .await?;
        transitions += done.rows_affected();
    }
    Ok(transitions)
}

/// Takes the samples that go out of their versions' lists. Turns that stay lose their transition
/// and verdict, and are settled as `withdrawn`.
async fn drop_samples(connection: &mut Connection<'_>, scope: i64) -> Result<(), Fault> {
    db::query(
        "update versions set samples_gone = samples_gone + (
             select count(*) from gone_transitions
             join version_samples
                 on version_samples.transition_number = gone_transitions.transition_number
             where version_samples.scope_number = versions.scope_number
               and version_samples.version = versions.version
         )
         where scope_number = $1 and tainted_ms is not null",
    )
    .bind(scope)
    .execute(&mut *connection)
    .await?;
    let statements = [
        unread::DROP_VERDICTS[0],
        unread::DROP_VERDICTS[1],
        "delete from version_samples
         where transition_number in (select transition_number from gone_transitions)",
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
        db::query(statement).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Takes what goes out of the ring, whatever became of it before, and remembers the names. A trained
/// turn loses its version here, because its sample is gone already.
async fn mark(connection: &mut Connection<'_>, forget: i64) -> Result<Vec<TurnId>, Fault> {
    db::query(
        "update turns set stage = null, reason = 'withdrawn', trained_version = null
         where number in (select turn_number from forget_turns where forget_number = $1)",
    )
    .bind(forget)
    .execute(&mut *connection)
    .await?;
    let names = [
        "insert into forgotten_turns (id)
         select turns.id from forget_turns join turns on turns.number = forget_turns.turn_number
         where forget_turns.forget_number = $1
         on conflict do nothing",
        "insert into forgotten_requests (id, session_id)
         select turns.request_id, sessions.id from forget_turns
         join turns on turns.number = forget_turns.turn_number
         join sessions on sessions.number = turns.session_number
         where forget_turns.forget_number = $1
         on conflict do nothing",
    ];
    for sql in names {
        db::query(sql)
            .bind(forget)
            .execute(&mut *connection)
            .await?;
    }
    let ids: Vec<Vec<u8>> = db::query_scalar(
        "select turns.id from forget_turns join turns on turns.number = forget_turns.turn_number
         where forget_turns.forget_number = $1",
    )
    .bind(forget)
    .fetch_all(connection)
    .await?;
    ids.iter().map(|id| rows::turn_id(id)).collect()
}

async fn close(
    connection: &mut Connection<'_>,
    wish: &ForgetWish,
    forget: i64,
    meaning: &Meaning,
    scope: i64,
) -> Result<(), Fault> {
    let (tainted, back, freed) = meaning.own(scope);
    db::query(
        "update forgets set turns = $1, transitions = $2, samples = $3, samples_freed = $4,
             versions_tainted = $5, rolls_back_to = $6, at_ms = $7
         where number = $8",
    )
    .bind(signed(meaning.turns)?)
    .bind(signed(meaning.transitions)?)
    .bind(signed(meaning.samples)?)
    .bind(signed(freed)?)
    .bind(serde_json::to_string(tainted)?)
    .bind(back)
    .bind(wish.now_ms)
    .bind(forget)
    .execute(connection)
    .await?;
    Ok(())
}
