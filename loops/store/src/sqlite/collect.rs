//! What collect writes: turns, transitions, reasons, feedback.

use std::collections::{HashMap, HashSet};

use hone_domain::{
    Feedback, Reason, Role, SessionId, Stage, Transition, TransitionId, Turn, TurnId, TurnKind,
};
use sqlx::SqliteConnection;

use super::chains::{self, BlockLink, MessageLink, Seen};
use super::consent::{self, Bars};
use super::erase;
use super::fault::Fault;
use super::texts::{name_of, signed, text_bytes};
use crate::codec::{
    experts_to_bytes, floats_to_bytes, kept_to_bytes, spans_to_bytes, tokens_to_bytes,
};
use crate::ledger::{FeedbackOutcome, reason_at_record};
use crate::reading::TITLE_CHARS_MAX;

/// A turn with everything encoded that does not need the database, so that the writer is held
/// only for writing.
pub(super) struct Encoded<'a> {
    turn: &'a Turn,
    messages: Vec<MessageLink>,
    blocks: Vec<BlockLink>,
    tail: Vec<u8>,
    origin: String,
    kind: String,
    version: i64,
}

pub(super) fn encode(turns: &[Turn]) -> Result<Vec<Encoded<'_>>, Fault> {
    turns
        .iter()
        .map(|turn| {
            let (blocks, tail) = chains::block_links(&turn.prompt_tokens);
            Ok(Encoded {
                turn,
                messages: chains::message_links(&turn.messages)?,
                blocks,
                tail,
                origin: name_of(&turn.origin)?,
                kind: name_of(&turn.kind)?,
                version: signed(turn.version().0)?,
            })
        })
        .collect()
}

pub(super) async fn record_turns(
    connection: &mut SqliteConnection,
    turns: &[Encoded<'_>],
) -> Result<(), Fault> {
    let bars = Bars::look(connection, turns.iter().map(|encoded| encoded.turn)).await?;
    let (forgotten, kept): (Vec<_>, Vec<_>) = turns
        .iter()
        .partition(|encoded| bars.is_forgotten(encoded.turn));
    // Nothing of a forgotten turn's words comes in, the session's title included.
    let bare = forgotten
        .iter()
        .map(|encoded| consent::wordless(encoded.turn));
    let bare = bare.collect::<Result<Vec<Turn>, Fault>>()?;
    let bare = encode(&bare)?;
    let turns: Vec<&Encoded<'_>> = kept.into_iter().chain(&bare).collect();
    store_surroundings(connection, &turns).await?;
    let mut seen = (Seen::default(), Seen::default());
    for encoded in turns {
        store(connection, encoded, (&bars, &mut seen)).await?;
    }
    Ok(())
}

async fn store(
    connection: &mut SqliteConnection,
    encoded: &Encoded<'_>,
    (bars, (histories, blocks)): (&Bars, &mut (Seen, Seen)),
) -> Result<(), Fault> {
    let reason = reason_at_record(encoded.turn).or_else(|| bars.objection(encoded.turn));
    let mut stored = store_turn(connection, encoded, reason).await?;
    if stored.is_none() && reason != Some(Reason::Cancelled) {
        // Its answer never arrived the first time, so the client asked again under the same id.
        let cut: Option<i64> =
            sqlx::query_scalar("select number from turns where id = ? and reason = 'cancelled'")
                .bind(&encoded.turn.id.0.as_bytes()[..])
                .fetch_optional(&mut *connection)
                .await?;
        if let Some(cut) = cut {
            erase::remove_turn(connection, cut).await?;
            stored = store_turn(connection, encoded, reason).await?;
        }
    }
    let Some(number) = stored else {
        return Ok(());
    };
    let history = chains::store_messages(connection, &encoded.messages, histories).await?;
    let block = chains::store_blocks(connection, &encoded.blocks, blocks).await?;
    store_payload(connection, encoded, (number, history, block)).await
}

/// Scopes, sessions and arithmetics of the batch, each once.
async fn store_surroundings(
    connection: &mut SqliteConnection,
    turns: &[&Encoded<'_>],
) -> Result<(), Fault> {
    let (mut scopes, mut arithmetics, mut sessions) =
        (HashSet::new(), HashSet::new(), HashSet::new());
    for Encoded { turn, .. } in turns {
        if scopes.insert(&turn.scope) {
            sqlx::query("insert into scopes (name) values (?) on conflict (name) do nothing")
                .bind(turn.scope.as_str().as_bytes())
                .execute(&mut *connection)
                .await?;
        }
        if arithmetics.insert((&turn.fingerprint, turn.base)) {
            sqlx::query(
                "insert into arithmetics (fingerprint, base) values (?, ?)
                 on conflict (fingerprint, base) do nothing",
            )
            .bind(&turn.fingerprint)
            .bind(&turn.base.0[..])
            .execute(&mut *connection)
            .await?;
        }
    }
    let titles = titles(turns);
    // From the last turn, so that a session of several turns ends with its newest time.
    for Encoded { turn, .. } in turns.iter().rev() {
        if sessions.insert(turn.session) {
            let title = titles.get(&turn.session);
            sqlx::query(
                "insert into sessions (
                     id, owner, scope_number, first_ms, last_ms, title, title_folded
                 )
                 values (?1, ?2, (select number from scopes where name = ?3), ?4, ?5, ?6, ?7)
                 on conflict (id) do update set
                     last_ms = max(last_ms, excluded.last_ms),
                     title = coalesce(title, excluded.title),
                     title_folded = coalesce(title_folded, excluded.title_folded)",
            )
            .bind(&turn.session.0.as_bytes()[..])
            .bind(&turn.owner)
            .bind(turn.scope.as_str().as_bytes())
            .bind(turn.started_ms)
            .bind(turn.finished_ms)
            .bind(title.map(String::as_bytes))
            .bind(title.map(|title| title.to_lowercase().into_bytes()))
            .execute(&mut *connection)
            .await?;
        }
    }
    Ok(())
}

/// What the sessions of a batch are called: how the first user message of their first main turn
/// begins, in one line.
fn titles(turns: &[&Encoded<'_>]) -> HashMap<SessionId, String> {
    let mut titles = HashMap::new();
    for Encoded { turn, .. } in turns.iter().filter(|t| t.turn.kind == TurnKind::Main) {
        let asked = turn.messages.iter().find(|m| m.role == Role::User);
        let Some(asked) = asked.filter(|_| !titles.contains_key(&turn.session)) else {
            continue;
        };
        // Cut first: a message may be very long.
        let begin: String = asked.content.chars().take(2 * TITLE_CHARS_MAX).collect();
        let line = begin.split_whitespace().collect::<Vec<_>>().join(" ");
        let title: String = line.chars().take(TITLE_CHARS_MAX).collect();
        if !title.is_empty() {
            titles.insert(turn.session, title);
        }
    }
    titles
}

/// Returns the new row's number, none where the turn is known already.
async fn store_turn(
    connection: &mut SqliteConnection,
    encoded: &Encoded<'_>,
    reason: Option<Reason>,
) -> Result<Option<i64>, Fault> {
    let turn = encoded.turn;
    let stage = match reason {
        None => Some(Stage::AwaitingNextState.as_str()),
        Some(_) => None,
    };
    let metadata = match turn.admission.metadata.is_empty() {
        true => None,
        false => Some(serde_json::to_vec(&turn.admission.metadata)?),
    };
    let number = sqlx::query_scalar(
        "insert into turns (
             id, request_id, choice_index, group_id, session_number, parent_id, owner,
             scope_number, arithmetic_number, origin, kind, version, stage, reason,
             started_ms, finished_ms, holdback, source, trace, metadata
         ) values (
             ?1, ?2, ?3, ?4, (select number from sessions where id = ?5), ?6, ?7,
             (select number from scopes where name = ?8),
             (select number from arithmetics where fingerprint = ?9 and base = ?10),
             ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21
         ) on conflict (id) do nothing returning number",
    )
    .bind(&turn.id.0.as_bytes()[..])
    .bind(&turn.request.0.as_bytes()[..])
    .bind(turn.choice_index)
    .bind(turn.group.as_ref().map(|g| &g.0.as_bytes()[..]))
    .bind(&turn.session.0.as_bytes()[..])
    .bind(turn.parent.as_ref().map(|p| &p.0.as_bytes()[..]))
    .bind(&turn.owner)
    .bind(turn.scope.as_str().as_bytes())
    .bind(&turn.fingerprint)
    .bind(&turn.base.0[..])
    .bind(&encoded.origin)
    .bind(&encoded.kind)
    .bind(encoded.version)
    .bind(stage)
    .bind(reason.map(Reason::as_str))
    .bind(turn.started_ms)
    .bind(turn.finished_ms)
    .bind(turn.admission.holdback)
    .bind(text_bytes(turn.admission.source.as_ref()))
    .bind(turn.admission.trace.as_ref().map(|t| &t.as_bytes()[..]))
    .bind(metadata)
    .fetch_optional(connection)
    .await?;
    Ok(number)
}

async fn store_payload(
    connection: &mut SqliteConnection,
    encoded: &Encoded<'_>,
    (number, history, block): (i64, Option<i64>, Option<i64>),
) -> Result<(), Fault> {
    let turn = encoded.turn;
    let completion = &turn.completion;
    let checks = &turn.admission.checks;
    let checks = (!checks.is_empty())
        .then(|| serde_json::to_vec(checks))
        .transpose()?;
    sqlx::query(
        "insert into turn_payloads (
             turn_number, session_key, history_number, block_number, prompt_tail,
             completion_tokens, behavior_logprobs, raw_logprobs, kept, experts, stop,
             completion_text, sampling, spans, digest, untrainable, checks
         ) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(number)
    .bind(text_bytes(turn.session_key.as_ref()))
    .bind(history)
    .bind(block)
    .bind(&encoded.tail[..])
    .bind(tokens_to_bytes(completion.tokens()))
    .bind(floats_to_bytes(completion.behavior_logprobs()))
    .bind(floats_to_bytes(completion.raw_logprobs()))
    .bind(kept_to_bytes(completion.kept()))
    .bind(experts_to_bytes(completion.experts()))
    .bind(completion.stop().as_str())
    .bind(turn.completion_text.as_bytes())
    .bind(crate::codec::sampling_to_bytes(&turn.sampling))
    .bind(spans_to_bytes(&turn.spans))
    .bind(turn.digest.as_ref().map(|d| &d.0[..]))
    .bind(turn.untrainable.map(Reason::as_str))
    .bind(checks)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn record_transitions(
    connection: &mut SqliteConnection,
    transitions: &[Transition],
) -> Result<Vec<TransitionId>, Fault> {
    let mut new = Vec::new();
    for transition in transitions {
        let turn: Option<i64> = sqlx::query_scalar(
            "update turns set stage = 'awaiting_verdict'
             where id = ? and stage = 'awaiting_next_state' returning number",
        )
        .bind(&transition.turn.0.as_bytes()[..])
        .fetch_optional(&mut *connection)
        .await?;
        let Some(turn) = turn else { continue };
        sqlx::query(
            "insert into transitions (id, turn_number, next_state, next_turn_id, settled_ms)
             values (?, ?, ?, ?, ?)",
        )
        .bind(&transition.id.0.as_bytes()[..])
        .bind(turn)
        .bind(serde_json::to_vec(&transition.next_state)?)
        .bind(transition.next_turn.as_ref().map(|t| &t.0.as_bytes()[..]))
        .bind(transition.settled_ms)
        .execute(&mut *connection)
        .await?;
        new.push(transition.id);
    }
    Ok(new)
}

pub(super) async fn settle_turns(
    connection: &mut SqliteConnection,
    turns: &[(TurnId, Reason)],
) -> Result<(), Fault> {
    for (id, reason) in turns {
        sqlx::query(
            "update turns set stage = null, reason = ?
             where id = ? and stage = 'awaiting_next_state'",
        )
        .bind(reason.as_str())
        .bind(&id.0.as_bytes()[..])
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

pub(super) async fn record_feedback(
    connection: &mut SqliteConnection,
    feedback: &Feedback,
) -> Result<FeedbackOutcome, Fault> {
    let turn: Option<(i64, String)> =
        sqlx::query_as("select number, owner from turns where id = ?")
            .bind(&feedback.turn.0.as_bytes()[..])
            .fetch_optional(&mut *connection)
            .await?;
    if let Some((_, owner)) = &turn
        && *owner != feedback.owner
    {
        return Ok(FeedbackOutcome::NotYours);
    }
    if turn.is_none() && consent::was_forgotten(connection, feedback.turn).await? {
        return Ok(FeedbackOutcome::NotYours);
    }
    let replaced = match &feedback.client_id {
        None => false,
        Some(client_id) => {
            let done = sqlx::query(
                "delete from feedback where turn_id = ? and owner = ? and client_id = ?",
            )
            .bind(&feedback.turn.0.as_bytes()[..])
            .bind(&feedback.owner)
            .bind(client_id.as_bytes())
            .execute(&mut *connection)
            .await?;
            done.rows_affected() > 0
        }
    };
    let stored = store_feedback(connection, feedback).await?;
    let Some((turn, _)) = turn else {
        return Ok(FeedbackOutcome::TurnUnknown);
    };
    if stored {
        send_back(connection, turn, feedback.received_ms).await?;
    }
    Ok(if replaced {
        FeedbackOutcome::Replaced
    } else {
        FeedbackOutcome::Stored
    })
}

/// Whether it was new; the same id twice is a client that tries again.
async fn store_feedback(
    connection: &mut SqliteConnection,
    feedback: &Feedback,
) -> Result<bool, Fault> {
    let done = sqlx::query(
        "insert into feedback (
             id, turn_id, owner, client_id, score, comment, correction, received_ms
         ) values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (id) do nothing",
    )
    .bind(&feedback.id.0.as_bytes()[..])
    .bind(&feedback.turn.0.as_bytes()[..])
    .bind(&feedback.owner)
    .bind(text_bytes(feedback.client_id.as_ref()))
    .bind(feedback.score.map(f64::from))
    .bind(text_bytes(feedback.comment.as_ref()))
    .bind(text_bytes(feedback.correction.as_ref()))
    .bind(feedback.received_ms)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Sends a turn that was judged but not trained to the judge again, and takes it from a judge that
/// read it before the feedback came. A batch that holds it keeps it: somebody who keeps sending
/// feedback must not be able to stop training.
async fn send_back(connection: &mut SqliteConnection, turn: i64, now_ms: i64) -> Result<(), Fault> {
    let again = sqlx::query(
        "update turns set stage = 'awaiting_verdict', reason = null
         where number = ?1
           and (
               stage in ('awaiting_verdict', 'awaiting_training')
               or reason in ('abstained', 'judge_failed')
               or (reason = 'holdback' and score is not null)
           )
           and not exists (
               select 1 from transitions
               join leases on leases.transition_number = transitions.number
               where transitions.turn_number = ?1
                 and turns.stage = 'awaiting_training'
                 and leases.consumer = 'train' and leases.held = 1 and leases.free_from_ms > ?2
           )",
    )
    .bind(turn)
    .bind(now_ms)
    .execute(&mut *connection)
    .await?;
    if again.rows_affected() > 0 {
        sqlx::query(
            "update leases set held = 0, free_from_ms = 0, attempts = 0
             where transition_number = (select number from transitions where turn_number = ?)",
        )
        .bind(turn)
        .execute(connection)
        .await?;
    }
    Ok(())
}
