//! Leases: who may write the outcome of a transition. A lease holds until it is given back or
//! taken over; running out only makes it free to be taken.

use hone_domain::{BatchId, Millis, Reason, Stage};

use super::texts::{signed, unsigned};
use crate::db::{self, Connection, Fault};
use hone_ledger::{Claim, Consumer, LedgerError};

/// The stored name.
pub(crate) fn name(consumer: Consumer) -> &'static str {
    match consumer {
        Consumer::Judge => "judge",
        Consumer::Train => "train",
    }
}

/// The stage in which a consumer's claims are worth something.
fn stage(consumer: Consumer) -> &'static str {
    match consumer {
        Consumer::Judge => Stage::AwaitingVerdict.as_str(),
        Consumer::Train => Stage::AwaitingTraining.as_str(),
    }
}

/// A lease to be taken.
pub(crate) struct Taking {
    pub(crate) transition_number: i64,
    pub(crate) consumer: Consumer,
    pub(crate) until_ms: Millis,
    pub(crate) batch: Option<BatchId>,
}

/// Takes a free lease; returns its fence and how often it was taken before (for training: and not
/// given back).
pub(crate) async fn take(
    connection: &mut Connection<'_>,
    taking: &Taking,
) -> Result<(u64, u32), Fault> {
    let (fence, attempts): (i64, u32) = db::query_as(
        "insert into leases (
             transition_number, consumer, fence, held, free_from_ms, attempts, batch_id
         ) values ($1, $2, 1, 1, $3, 1, $4)
         on conflict (transition_number, consumer) do update set
             fence = leases.fence + 1, held = 1, free_from_ms = excluded.free_from_ms,
             attempts = leases.attempts + 1, batch_id = excluded.batch_id
         returning fence, attempts",
    )
    .bind(taking.transition_number)
    .bind(name(taking.consumer))
    .bind(taking.until_ms)
    .bind(taking.batch.as_ref().map(|b| &b.0.as_bytes()[..]))
    .fetch_one(connection)
    .await?;
    Ok((unsigned(fence)?, attempts.saturating_sub(1)))
}

/// What a held lease is on.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) transition_number: i64,
    pub(crate) turn_number: i64,
    pub(crate) scope_number: i64,
}

/// What the claim still holds: its fence is the newest, it was not given back, and the turn is
/// still where this consumer works.
pub(crate) async fn find(
    connection: &mut Connection<'_>,
    claim: Claim,
) -> Result<Option<Held>, Fault> {
    let row: Option<(i64, i64, i64)> = db::query_as(
        "select transitions.number, turns.number, turns.scope_number
         from transitions
         join turns on turns.number = transitions.turn_number
         join leases on leases.transition_number = transitions.number
         where transitions.id = $1 and leases.consumer = $2 and leases.fence = $3
           and leases.held = 1 and turns.stage = $4",
    )
    .bind(&claim.transition.0.as_bytes()[..])
    .bind(name(claim.consumer))
    .bind(signed(claim.fence)?)
    .bind(stage(claim.consumer))
    .fetch_optional(connection)
    .await?;
    Ok(
        row.map(|(transition_number, turn_number, scope_number)| Held {
            transition_number,
            turn_number,
            scope_number,
        }),
    )
}

/// Like [`find`], where a lost lease is an error.
pub(crate) async fn hold(connection: &mut Connection<'_>, claim: Claim) -> Result<Held, Fault> {
    find(connection, claim)
        .await?
        .ok_or_else(|| Fault::Ledger(LedgerError::Fenced(claim.transition.to_string())))
}

/// Ends a lease whose work is done.
pub(crate) async fn finish(
    connection: &mut Connection<'_>,
    transition_number: i64,
    consumer: Consumer,
) -> Result<(), Fault> {
    db::query(
        "update leases set held = 0, free_from_ms = 0, attempts = 0
         where transition_number = $1 and consumer = $2",
    )
    .bind(transition_number)
    .bind(name(consumer))
    .execute(connection)
    .await?;
    Ok(())
}

/// Puts off the end of leases that still hold; returns how many do.
pub(crate) async fn renew(
    connection: &mut Connection<'_>,
    claims: &[Claim],
    until_ms: Millis,
) -> Result<u64, Fault> {
    let mut renewed = 0;
    for claim in claims {
        let Some(held) = find(connection, *claim).await? else {
            continue;
        };
        db::query(
            "update leases set free_from_ms = max(free_from_ms, $1)
             where transition_number = $2 and consumer = $3",
        )
        .bind(until_ms)
        .bind(held.transition_number)
        .bind(name(claim.consumer))
        .execute(&mut *connection)
        .await?;
        renewed += 1;
    }
    Ok(renewed)
}

/// Gives a lease back; a lost one is left to its new holder. For training it counts as if it had
/// never been taken: only a batch that ends its process is tried too often.
pub(crate) async fn release(
    connection: &mut Connection<'_>,
    claim: Claim,
    retry_at_ms: Millis,
) -> Result<(), Fault> {
    db::query(
        "update leases set held = 0, free_from_ms = $1, attempts = attempts - case when consumer = 'train' then 1 else 0 end
         where transition_number = (select number from transitions where id = $2)
           and consumer = $3 and fence = $4 and held = 1",
    )
    .bind(retry_at_ms)
    .bind(&claim.transition.0.as_bytes()[..])
    .bind(name(claim.consumer))
    .bind(signed(claim.fence)?)
    .execute(connection)
    .await?;
    Ok(())
}

/// Frees everything of a consumer when a process begins: those who held leases ended with the process before, and no
/// wait outlasts it, because the clock that it was measured by may have been wrong. What was held stays
/// counted. What the judge had given back counts once less: it gives everything back when it stops.
pub async fn free_all(connection: &mut Connection<'_>, consumer: Consumer) -> Result<(), Fault> {
    db::query(
        "update leases set held = 0, free_from_ms = 0,
             attempts = attempts - case when consumer = 'judge' and held = 0 then 1 else 0 end
         where free_from_ms > 0 and consumer = $1 and transition_number in (
             select transitions.number from turns indexed by turns_to_judge
             join transitions on transitions.turn_number = turns.number
             where turns.stage = 'awaiting_verdict'
             union all
             select transitions.number from turns indexed by turns_ready
             join transitions on transitions.turn_number = turns.number
             where turns.stage = 'awaiting_training'
         )",
    )
    .bind(name(consumer))
    .execute(connection)
    .await?;
    Ok(())
}

/// Settles a turn that could not be judged.
pub(crate) async fn give_up(connection: &mut Connection<'_>, claim: Claim) -> Result<(), Fault> {
    let held = hold(connection, claim).await?;
    settle_turn(connection, held.turn_number, Reason::JudgeFailed).await?;
    finish(connection, held.transition_number, claim.consumer).await
}

/// Gives the turns of claims that still hold a final reason; returns how many did.
pub(crate) async fn settle(
    connection: &mut Connection<'_>,
    claims: &[Claim],
    reason: Reason,
) -> Result<u64, Fault> {
    let mut settled = 0;
    for claim in claims {
        let Some(held) = find(connection, *claim).await? else {
            continue;
        };
        settle_turn(connection, held.turn_number, reason).await?;
        finish(connection, held.transition_number, claim.consumer).await?;
        settled += 1;
    }
    Ok(settled)
}

/// Gives turns a final reason.
pub(crate) async fn settle_turns(
    connection: &mut Connection<'_>,
    turn_numbers: &[i64],
    reason: Reason,
) -> Result<(), Fault> {
    db::query(
        "update turns set stage = null, reason = $1
         where number in (select cast(value as bigint) from json_each($2))",
    )
    .bind(reason.as_str())
    .bind(serde_json::to_string(turn_numbers)?)
    .execute(connection)
    .await?;
    Ok(())
}

/// Gives one turn a final reason.
pub(crate) async fn settle_turn(
    connection: &mut Connection<'_>,
    turn_number: i64,
    reason: Reason,
) -> Result<(), Fault> {
    settle_turns(connection, &[turn_number], reason).await
}
