//! What the judge claims and writes.

use hone_domain::{Feedback, Millis, Reason, Stage, Transition, Turn, Verdict};

use super::leases::{Held, Taking};
use super::texts::{limit, name_of, signed, text_bytes, unsigned};
use super::unreadable::readable;
use super::{leases, rows, unread, unreadable};
use crate::db::{self, Connection, Fault, corrupt};
use hone_ledger::{AuditCount, Claim, Claimed, Consumer, LedgerError};

pub(crate) async fn claim_transitions(
    connection: &mut Connection<'_>,
    most: usize,
    lease_ms: Millis,
    now_ms: Millis,
) -> Result<Vec<Claimed>, Fault> {
    // The index is named because the order of the walk is the order of age: no sort.
    let free: Vec<(i64, i64)> = db::query_as(
        "select transitions.number, turns.number
         from turns indexed by turns_to_judge
         join transitions on transitions.turn_number = turns.number
         left join leases on leases.transition_number = transitions.number
             and leases.consumer = 'judge'
         where turns.stage = 'awaiting_verdict' and coalesce(leases.free_from_ms, $1) <= $1
         order by turns.number limit $2",
    )
    .bind(now_ms)
    .bind(limit(most))
    .fetch_all(&mut *connection)
    .await?;
    let mut claimed = Vec::with_capacity(free.len());
    for (transition_number, turn_number) in free {
        let Some(read) = readable(read(connection, turn_number).await)? else {
            unreadable::settle(connection, turn_number, Reason::JudgeFailed).await?;
            continue;
        };
        let (turn, transition, feedback) = read;
        let taking = Taking {
            transition_number,
            consumer: Consumer::Judge,
            until_ms: now_ms.saturating_add(lease_ms),
            batch: None,
        };
        let (fence, attempts) = leases::take(connection, &taking).await?;
        claimed.push(Claimed {
            claim: Claim {
                transition: transition.id,
                consumer: Consumer::Judge,
                fence,
            },
            transition,
            turn,
            feedback,
            attempts,
        });
    }
    Ok(claimed)
}

async fn read(
    connection: &mut Connection<'_>,
    turn_number: i64,
) -> Result<(Turn, Transition, Vec<Feedback>), Fault> {
    let (turn, _) = rows::load_turn(connection, turn_number).await?;
    let (_, transition) = rows::load_transition(connection, turn_number, &turn)
        .await?
        .ok_or_else(|| corrupt(format!("no transition of turn {}", turn.id)))?;
    let feedback = rows::load_feedback(connection, &turn).await?;
    Ok((turn, transition, feedback))
}

pub(crate) async fn record_verdict(
    connection: &mut Connection<'_>,
    claim: Claim,
    verdict: &Verdict,
) -> Result<(), Fault> {
    let again: Option<i64> = db::query_scalar("select number from verdicts where id = $1")
        .bind(&verdict.id.0.as_bytes()[..])
        .fetch_optional(&mut *connection)
        .await?;
    if again.is_some() {
        return Ok(());
    }
    check(claim, verdict)?;
    let held = leases::hold(connection, claim).await?;
    let (number, revision) = store_verdict(connection, held, verdict).await?;
    store_votes(connection, number, verdict).await?;
    let is_held_back: bool = db::query_scalar("select holdback from turns where number = $1")
        .bind(held.turn_number)
        .fetch_one(&mut *connection)
        .await?;
    let (stage, reason) = match verdict.score {
        Some(_) if is_held_back => (None, Some(Reason::Holdback)),
        Some(_) => (Some(Stage::AwaitingTraining), None),
        None => (None, Some(Reason::Abstained)),
    };
    db::query("update turns set stage = $1, reason = $2, score = $3 where number = $4")
        .bind(stage.map(Stage::as_str))
        .bind(reason.map(Reason::as_str))
        .bind(verdict.score.map(f64::from))
        .bind(held.turn_number)
        .execute(&mut *connection)
        .await?;
    let has_hint = verdict.hint.is_some();
    unread::note_verdict(connection, held.turn_number, revision, has_hint).await?;
    leases::finish(connection, held.transition_number, Consumer::Judge).await
}

/// A verdict that is not about its claim, or whose score is none, is a mistake of the caller.
fn check(claim: Claim, verdict: &Verdict) -> Result<(), LedgerError> {
    if claim.consumer != Consumer::Judge || claim.transition != verdict.transition {
        return Err(LedgerError::Conflict(format!(
            "the verdict is about transition {} and the claim about {} for {:?}",
            verdict.transition, claim.transition, claim.consumer
        )));
    }
    match verdict.score {
        Some(score) if !(-1.0..=1.0).contains(&score) => Err(LedgerError::Conflict(format!(
            "a verdict's score lies in [-1, 1], and {score} does not"
        ))),
        _ => Ok(()),
    }
}

/// The number and the revision of the verdict.
async fn store_verdict(
    connection: &mut Connection<'_>,
    held: Held,
    verdict: &Verdict,
) -> Result<(i64, i64), Fault> {
    db::query("update verdicts set current = 0 where transition_number = $1 and current = 1")
        .bind(held.transition_number)
        .execute(&mut *connection)
        .await?;
    let stored = db::query_as(
        "insert into verdicts (
             id, transition_number, revision, current, score, decided_by, hint, judged_ms,
             hint_choice, wish
         ) values (
             $1, $2,
             (select coalesce(max(revision), 0) + 1 from verdicts where transition_number = $2),
             1, $3, $4, $5, $6, $7, $8
         ) returning number, revision",
    )
    .bind(&verdict.id.0.as_bytes()[..])
    .bind(held.transition_number)
    .bind(verdict.score.map(f64::from))
    .bind(verdict.decided_by.as_ref().map(name_of).transpose()?)
    .bind(text_bytes(verdict.hint.as_ref()))
    .bind(verdict.judged_ms)
    .bind(
        verdict
            .hint_choice
            .as_ref()
            .map(serde_json::to_vec)
            .transpose()?,
    )
    .bind(text_bytes(verdict.wish.as_ref()))
    .fetch_one(connection)
    .await?;
    Ok(stored)
}

pub(crate) async fn audits(connection: &mut Connection<'_>) -> Result<Vec<AuditCount>, Fault> {
    // The condition is the index's own, word for word.
    let rows: Vec<(String, i64, i64)> = db::query_as(
        "select substr(model, 7), count(case when outcome = 'good' then 1 end), count(*)
         from votes where model glob 'audit:*' group by model",
    )
    .fetch_all(connection)
    .await?;
    let count = |(bucket, agreed, executed)| {
        Ok(AuditCount {
            bucket,
            agreed: unsigned(agreed)?,
            executed: unsigned(executed)?,
        })
    };
    rows.into_iter().map(count).collect()
}

async fn store_votes(
    connection: &mut Connection<'_>,
    verdict_number: i64,
    verdict: &Verdict,
) -> Result<(), Fault> {
    for (position, vote) in (0i64..).zip(&verdict.votes) {
        db::query(
            "insert into votes (
                 verdict_number, position, signal, outcome, reason, model, latency_ms,
                 prompt_tokens, completion_tokens, cost, prompt
             ) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(verdict_number)
        .bind(position)
        .bind(vote.signal.as_str())
        .bind(vote.outcome.as_str())
        .bind(vote.reason.as_bytes())
        .bind(vote.model.as_deref())
        .bind(signed(vote.latency_ms)?)
        .bind(vote.usage.map(|u| signed(u.prompt_tokens)).transpose()?)
        .bind(
            vote.usage
                .map(|u| signed(u.completion_tokens))
                .transpose()?,
        )
        .bind(vote.usage.map(|u| u.cost))
        .bind(vote.prompt.as_deref())
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
