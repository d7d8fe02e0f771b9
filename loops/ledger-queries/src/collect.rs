//! What collect writes: turns, transitions, reasons, feedback.

use std::collections::{HashMap, HashSet};

use hone_domain::{
    Feedback, MemoryMode, Millis, Reason, Role, Scope, SessionId, Stage, Transition, TransitionId,
    Turn, TurnId, TurnKind,
};

use super::chains::{self, Link as _};
use super::consent;
use super::early;
use super::encoded::{Encoded, encode};
use super::erase;
use super::known::Known;
use super::memory_uses::STORE_USE;
use super::rows;
use super::texts::{limit, text_bytes};
use super::unread::NOTE_TURN;
use crate::codec::{
    experts_to_bytes, floats_to_bytes, kept_to_bytes, sampling_to_bytes, spans_to_bytes,
    tokens_to_bytes,
};
use crate::db::{self, Connection, Fault, Row, Script, Values, many};
use hone_ledger::{
    FEEDBACK_KEPT, FeedbackOutcome, MEMORY_CONSUMER, TITLE_CHARS_MAX, reason_at_record,
};

/// Most turns, and most new messages and blocks, of a batch that is written in one call.
const SMALL_TURNS: usize = 4;
const SMALL_LINKS: usize = 8;

/// The names of a turn that comes without its words, so that what continues it comes without them too.
const TURN_GONE: &str = "insert into forgotten_turns (id) values ($1) on conflict do nothing";
const REQUEST_GONE: &str =
    "insert into forgotten_requests (id, session_id) values ($1, $2) on conflict do nothing";

/// Begins a transaction and, where nothing fails, ends it: both go along with what is said in between.
/// Wishes to be forgotten up to the number `older` are older than the process that answered. Returns the turns that
/// came without their words, because they were forgotten before they came.
pub(crate) async fn record_turns(
    connection: &mut Connection<'_>,
    turns: &[Encoded<'_>],
    older: i64,
    changes: i64,
) -> Result<(Vec<TurnId>, Vec<Row>), Fault> {
    let mut known = Known::look(connection, turns, older).await?;
    let (forgotten, kept): (Vec<_>, Vec<_>) = turns
        .iter()
        .partition(|encoded| known.forgets(encoded.turn));
    // Nothing of a forgotten turn's words comes in, the session's title included.
    let bare = forgotten
        .iter()
        .map(|encoded| consent::wordless(encoded.turn));
    let bare = bare.collect::<Result<Vec<Turn>, Fault>>()?;
    let bare = encode(&bare)?;
    let turns: Vec<&Encoded<'_>> = kept.into_iter().chain(&bare).collect();
    let new = new_turns(connection, &turns, &known).await?;
    let links = new.iter().map(|(e, _)| {
        chains::missing_count(&e.messages, &known.histories)
            + chains::missing_count(&e.blocks, &known.blocks)
    });
    let is_small = turns.len() <= SMALL_TURNS && links.sum::<usize>() <= SMALL_LINKS;
    let mut script = Script::new(is_small);
    let turn =
        |values: Values, encoded: &Encoded<'_>| values.bind(&encoded.turn.id.0.as_bytes()[..]);
    script.apart(connection, TURN_GONE, &bare, turn).await?;
    let request = |values: Values, encoded: &Encoded<'_>| {
        let turn = encoded.turn;
        values
            .bind(&turn.request.0.as_bytes()[..])
            .bind(&turn.session.0.as_bytes()[..])
    };
    script
        .apart(connection, REQUEST_GONE, &bare, request)
        .await?;
    store_surroundings(connection, &mut script, &turns, &known).await?;
    let lists: Vec<_> = new.iter().map(|(e, _)| &e.messages[..]).collect();
    chains::store_messages(connection, &mut script, &lists, &known.histories).await?;
    let prompts: Vec<_> = new.iter().map(|(e, _)| &e.blocks[..]).collect();
    chains::store_blocks(connection, &mut script, &prompts, &known.blocks).await?;
    store_turns(connection, &mut script, &new, &known.followers).await?;
    let rows = script.commit(connection, changes).await?;
    let bare = bare.iter().map(|encoded| encoded.turn.id).collect();
    Ok((bare, rows))
}

/// The turns to store, each with why it is not learned from. One that is known already is left out,
/// but for one whose answer never arrived the first time, so that the client asked again under the
/// same id: it takes the cut one's place.
async fn new_turns<'a, 'e>(
    connection: &mut Connection<'_>,
    turns: &[&'a Encoded<'e>],
    known: &Known,
) -> Result<Vec<(&'a Encoded<'e>, Option<Reason>)>, Fault> {
    let mut new: Vec<(&Encoded<'_>, Option<Reason>)> = Vec::with_capacity(turns.len());
    let mut places = HashMap::new();
    for &encoded in turns {
        let turn = encoded.turn;
        let reason = reason_at_record(turn).or_else(|| known.objection(turn));
        let is_cut = reason == Some(Reason::Cancelled);
        if let Some(&place) = places.get(&turn.id) {
            let earlier: &mut (&Encoded<'_>, Option<Reason>) = &mut new[place];
            if earlier.1 == Some(Reason::Cancelled) && !is_cut {
                *earlier = (encoded, reason);
            }
            continue;
        }
        match known.turns.get(&turn.id) {
            Some(stored) if !stored.is_cut || is_cut => continue,
            Some(stored) => erase::remove_turn(connection, stored.number).await?,
            None => {}
        }
        places.insert(turn.id, new.len());
        new.push((encoded, reason));
    }
    Ok(new)
}

/// Scopes, sessions and arithmetics of the batch, each once.
async fn store_surroundings(
    connection: &mut Connection<'_>,
    script: &mut Script,
    turns: &[&Encoded<'_>],
    known: &Known,
) -> Result<(), Fault> {
    let scopes: HashSet<&Scope> = turns.iter().map(|e| &e.turn.scope).collect();
    let scopes: Vec<&Scope> = scopes
        .difference(&known.scopes.iter().collect())
        .copied()
        .collect();
    script
        .apart(
            connection,
            "insert into scopes (name) values ($1) on conflict (name) do nothing",
            &scopes,
            |values, scope| values.bind(scope.as_str().as_bytes()),
        )
        .await?;
    let stored = known.arithmetics.iter();
    let stored: HashSet<_> = stored.map(|(name, base)| (name.as_str(), *base)).collect();
    let arithmetics = turns
        .iter()
        .map(|e| (e.turn.fingerprint.as_str(), e.turn.base.0));
    let arithmetics: HashSet<_> = arithmetics.collect();
    let arithmetics: Vec<_> = arithmetics.difference(&stored).copied().collect();
    script
        .apart(
            connection,
            "insert into arithmetics (fingerprint, base) values ($1, $2)
             on conflict (fingerprint, base) do nothing",
            &arithmetics,
            |values, (fingerprint, base)| values.bind(*fingerprint).bind(&base[..]),
        )
        .await?;
    store_sessions(connection, script, turns).await
}

async fn store_sessions(
    connection: &mut Connection<'_>,
    script: &mut Script,
    turns: &[&Encoded<'_>],
) -> Result<(), Fault> {
    let titles = titles(turns);
    let mut met = HashSet::new();
    // From the last turn, so that a session of several turns ends with its newest time.
    let newest = turns.iter().rev().map(|encoded| encoded.turn);
    let sessions: Vec<_> = newest
        .filter(|turn| met.insert(turn.session))
        .map(|turn| (turn, titles.get(&turn.session)))
        .collect();
    script
        .apart(
            connection,
            "insert into sessions (
                 id, owner, scope_number, first_ms, last_ms, title, title_folded
             )
             values ($1, $2, (select number from scopes where name = $3), $4, $5, $6, $7)
             on conflict (id) do update set
                 last_ms = max(sessions.last_ms, excluded.last_ms),
                 title = coalesce(sessions.title, excluded.title),
                 title_folded = coalesce(sessions.title_folded, excluded.title_folded)",
            &sessions,
            |values, (turn, title)| {
                values
                    .bind(&turn.session.0.as_bytes()[..])
                    .bind(&turn.owner)
                    .bind(turn.scope.as_str().as_bytes())
                    .bind(turn.started_ms)
                    .bind(turn.finished_ms)
                    .bind(title.map(String::as_bytes))
                    .bind(title.map(|title| title.to_lowercase().into_bytes()))
            },
        )
        .await
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

/// A turn of a batch with why it is not learned from, and what of it is kept as JSON.
struct NewTurn<'a> {
    encoded: &'a Encoded<'a>,
    reason: Option<Reason>,
    metadata: Option<Vec<u8>>,
    checks: Option<Vec<u8>>,
    shown: Vec<u8>,
    skills: Option<Vec<u8>>,
}

impl<'a> NewTurn<'a> {
    fn of(&(encoded, reason): &(&'a Encoded<'a>, Option<Reason>)) -> Result<Self, Fault> {
        let admission = &encoded.turn.admission;
        let (metadata, checks) = (&admission.metadata, &admission.checks);
        let metadata = (!metadata.is_empty()).then(|| serde_json::to_vec(metadata));
        let checks = (!checks.is_empty()).then(|| serde_json::to_vec(checks));
        let skills = &admission.memory.skills;
        let skills = (!skills.is_empty()).then(|| serde_json::to_vec(skills));
        Ok(Self {
            encoded,
            reason,
            metadata: metadata.transpose()?,
            checks: checks.transpose()?,
            shown: serde_json::to_vec(&admission.memory.shown)?,
            skills: skills.transpose()?,
        })
    }
}

const STORE_TURN: &str = "
    insert into turns (
        id, request_id, choice_index, group_id, session_number, parent_id, owner,
        scope_number, arithmetic_number, origin, kind, version, stage, reason,
        started_ms, finished_ms, holdback, source, trace, metadata,
        branch_of, branch_position, branch_prefix
    ) values (
        $1, $2, $3, $4, (select number from sessions where id = $5), $6, $7,
        (select number from scopes where name = $8),
        (select number from arithmetics where fingerprint = $9 and base = $10),
        $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24
    )";

const STORE_PAYLOAD: &str = "
    insert into turn_payloads (
        turn_number, session_key, history_number, block_number, prompt_tail,
        completion_tokens, behavior_logprobs, raw_logprobs, kept, experts, stop,
        completion_text, sampling, spans, digest, untrainable, checks
    ) values (
        (select number from turns where id = $1), $2,
        (select number from histories where hash = $3),
        (select number from token_blocks where hash = $4),
        $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17
    )";

async fn store_turns(
    connection: &mut Connection<'_>,
    script: &mut Script,
    turns: &[(&Encoded<'_>, Option<Reason>)],
    followers: &[String],
) -> Result<(), Fault> {
    let rows = turns
        .iter()
        .map(NewTurn::of)
        .collect::<Result<Vec<_>, _>>()?;
    script
        .apart(connection, STORE_TURN, &rows, bind_turn)
        .await?;
    script
        .apart(connection, STORE_PAYLOAD, &rows, bind_payload)
        .await?;
    let mode = |row: &NewTurn<'_>| row.encoded.turn.admission.memory.mode;
    let with_memories: Vec<_> = rows
        .iter()
        .filter(|row| mode(row) != MemoryMode::Off)
        .collect();
    script
        .apart(connection, STORE_USE, &with_memories, |values, row| {
            values
                .bind(&row.encoded.turn.id.0.as_bytes()[..])
                .bind(mode(row).as_str())
                .bind(&row.shown)
                .bind(row.skills.as_deref())
        })
        .await?;
    let memory = with_memories
        .iter()
        .map(|row| (MEMORY_CONSUMER, row.encoded.turn));
    let main = || turns.iter().map(|(encoded, _)| encoded.turn);
    let followed = followers.iter().flat_map(|name| {
        let turns = main().filter(|turn| turn.kind == TurnKind::Main);
        turns.map(move |turn| (name.as_str(), turn))
    });
    let unread: Vec<_> = memory.chain(followed).collect();
    script
        .apart(connection, NOTE_TURN, &unread, |values, (name, turn)| {
            values.bind(*name).bind(&turn.id.0.as_bytes()[..])
        })
        .await
}

fn bind_turn(values: Values, row: &NewTurn<'_>) -> Values {
    let (encoded, turn) = (row.encoded, row.encoded.turn);
    let stage = row.reason.is_none();
    let branch = turn.admission.branch;
    values
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
        .bind(stage.then(|| Stage::AwaitingNextState.as_str()))
        .bind(row.reason.map(Reason::as_str))
        .bind(turn.started_ms)
        .bind(turn.finished_ms)
        .bind(turn.admission.holdback)
        .bind(text_bytes(turn.admission.source.as_ref()))
        .bind(turn.admission.trace.as_ref().map(|t| &t.as_bytes()[..]))
        .bind(row.metadata.as_deref())
        .bind(branch.as_ref().map(|branch| &branch.turn.0.as_bytes()[..]))
        .bind(branch.map(|branch| branch.position))
        .bind(branch.map(|branch| branch.prefix_tokens))
}

fn bind_payload(values: Values, row: &NewTurn<'_>) -> Values {
    let (encoded, turn) = (row.encoded, row.encoded.turn);
    let completion = &turn.completion;
    values
        .bind(&turn.id.0.as_bytes()[..])
        .bind(text_bytes(turn.session_key.as_ref()))
        .bind(encoded.messages.last().map(|link| &link.chain()[..]))
        .bind(encoded.blocks.last().map(|link| &link.chain()[..]))
        .bind(&encoded.tail[..])
        .bind(tokens_to_bytes(completion.tokens()))
        .bind(floats_to_bytes(completion.behavior_logprobs()))
        .bind(floats_to_bytes(completion.raw_logprobs()))
        .bind(kept_to_bytes(completion.kept()))
        .bind(experts_to_bytes(completion.experts()))
        .bind(completion.stop().as_str())
        .bind(turn.completion_text.as_bytes())
        .bind(sampling_to_bytes(&turn.sampling))
        .bind(spans_to_bytes(&turn.spans))
        .bind(turn.digest.as_ref().map(|d| &d.0[..]))
        .bind(turn.untrainable.map(Reason::as_str))
        .bind(row.checks.as_deref())
}

pub(crate) async fn record_transitions(
    connection: &mut Connection<'_>,
    transitions: &[Transition],
) -> Result<Vec<TransitionId>, Fault> {
    let moved = many::each(
        connection,
        "update turns set stage = 'awaiting_verdict'
         where id = $1 and stage = 'awaiting_next_state' returning id, number",
        transitions,
        |values, transition| values.bind(&transition.turn.0.as_bytes()[..]),
    )
    .await?;
    let mut numbers = HashMap::new();
    for row in &moved {
        let number: i64 = row.try_get("number")?;
        numbers.insert(rows::turn_id(row.try_get("id")?)?, number);
    }
    let mut new = Vec::with_capacity(moved.len());
    for transition in transitions {
        if let Some(turn) = numbers.remove(&transition.turn) {
            new.push((
                transition,
                turn,
                serde_json::to_vec(&transition.next_state)?,
            ));
        }
    }
    many::each(
        connection,
        "insert into transitions (id, turn_number, next_state, next_turn_id, settled_ms)
         values ($1, $2, $3, $4, $5)",
        &new,
        |values, (transition, turn, next_state)| {
            values
                .bind(&transition.id.0.as_bytes()[..])
                .bind(turn)
                .bind(&next_state[..])
                .bind(transition.next_turn.as_ref().map(|t| &t.0.as_bytes()[..]))
                .bind(transition.settled_ms)
        },
    )
    .await?;
    Ok(new.iter().map(|(transition, ..)| transition.id).collect())
}

pub(crate) async fn settle_turns(
    connection: &mut Connection<'_>,
    turns: &[(TurnId, Reason)],
) -> Result<(), Fault> {
    many::each(
        connection,
        "update turns set stage = null, reason = $1 where id = $2 and stage = 'awaiting_next_state'",
        turns,
        |values, (id, reason)| values.bind(reason.as_str()).bind(&id.0.as_bytes()[..]),
    )
    .await?;
    Ok(())
}

pub(crate) async fn record_feedback(
    connection: &mut Connection<'_>,
    feedback: &Feedback,
    lease_now_ms: Millis,
) -> Result<FeedbackOutcome, Fault> {
    let turn: Option<(i64, String, bool)> =
        db::query_as("select number, owner, trained_version is not null from turns where id = $1")
            .bind(&feedback.turn.0.as_bytes()[..])
            .fetch_optional(&mut *connection)
            .await?;
    let is_foreign = turn
        .as_ref()
        .is_some_and(|(_, owner, _)| *owner != feedback.owner);
    // Also while the turn is still there to be removed: no judge reads it any more.
    if is_foreign || consent::was_forgotten(connection, feedback.turn).await? {
        store_and_undo(connection, feedback).await?;
        return Ok(FeedbackOutcome::NotYours);
    }
    let replaced = replace(connection, feedback).await?;
    let stored = store_feedback(connection, feedback).await?;
    let Some((turn, _, is_trained)) = turn else {
        if stored {
            early::note(connection, feedback).await?;
        }
        return Ok(FeedbackOutcome::TurnUnknown);
    };
    if is_trained {
        return Ok(FeedbackOutcome::AlreadyLearned);
    }
    if stored {
        send_back(connection, turn, lease_now_ms).await?;
    }
    Ok(if replaced {
        FeedbackOutcome::Replaced
    } else {
        FeedbackOutcome::Stored
    })
}

/// What is said of another's turn is not kept, and takes as long as if it were: the time of a reply, or a full
/// disk, would tell such a turn from one that does not exist.
async fn store_and_undo(connection: &mut Connection<'_>, feedback: &Feedback) -> Result<(), Fault> {
    db::query("savepoint foreign_feedback")
        .execute(&mut *connection)
        .await?;
    replace(connection, feedback).await?;
    if store_feedback(connection, feedback).await? {
        early::note(connection, feedback).await?;
    }
    // Pages that were free before are not restored: words in them would get into the log.
    for emptied in [
        "delete from early_feedback
         where feedback_number = (select number from feedback where id = $1)",
        "delete from feedback where id = $1",
    ] {
        db::query(emptied)
            .bind(&feedback.id.0.as_bytes()[..])
            .execute(&mut *connection)
            .await?;
    }
    for statement in ["rollback to foreign_feedback", "release foreign_feedback"] {
        db::query(statement).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Removes what the same client said of the turn under the same id; whether there was any.
async fn replace(connection: &mut Connection<'_>, feedback: &Feedback) -> Result<bool, Fault> {
    Ok(match &feedback.client_id {
        None => false,
        Some(client_id) => {
            let done = db::query(
                "delete from feedback where turn_id = $1 and owner = $2 and client_id = $3",
            )
            .bind(&feedback.turn.0.as_bytes()[..])
            .bind(&feedback.owner)
            .bind(client_id.as_bytes())
            .execute(&mut *connection)
            .await?;
            done.rows_affected() > 0
        }
    })
}

/// Whether it was new; the same id twice is a client that tries again.
async fn store_feedback(
    connection: &mut Connection<'_>,
    feedback: &Feedback,
) -> Result<bool, Fault> {
    let done = db::query(
        "insert into feedback (
             id, turn_id, owner, client_id, score, comment, correction, received_ms
         ) values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (id) do nothing",
    )
    .bind(&feedback.id.0.as_bytes()[..])
    .bind(&feedback.turn.0.as_bytes()[..])
    .bind(&feedback.owner)
    .bind(text_bytes(feedback.client_id.as_ref()))
    .bind(feedback.score.map(f64::from))
    .bind(text_bytes(feedback.comment.as_ref()))
    .bind(text_bytes(feedback.correction.as_ref()))
    .bind(feedback.received_ms)
    .execute(&mut *connection)
    .await?;
    keep_newest(connection, feedback.turn, &feedback.owner).await?;
    Ok(done.rows_affected() > 0)
}

/// Removes what an owner said of a turn beyond the newest that are kept.
pub(super) async fn keep_newest(
    connection: &mut Connection<'_>,
    turn: TurnId,
    owner: &str,
) -> Result<(), Fault> {
    db::query(
        "delete from feedback where number in (
             select number from feedback where turn_id = $1 and owner = $2
             order by number desc limit $4 offset $3
         )",
    )
    .bind(&turn.0.as_bytes()[..])
    .bind(owner)
    .bind(limit(FEEDBACK_KEPT))
    .bind(i64::MAX)
    .execute(connection)
    .await?;
    Ok(())
}

/// Sends a turn that was judged but not trained to the judge again, and takes it from a judge that
/// read it before the feedback came. A batch that holds it keeps it: somebody who keeps sending
/// feedback must not be able to stop training. One that lost something with age has nothing to teach.
pub(super) async fn send_back(
    connection: &mut Connection<'_>,
    turn: i64,
    now_ms: i64,
) -> Result<(), Fault> {
    let again = db::query(
        "update turns set stage = 'awaiting_verdict', reason = null
         where number = $1 and extent = 2
           and (
               stage in ('awaiting_verdict', 'awaiting_training')
               or reason in ('abstained', 'judge_failed')
               or (reason in ('holdback', 'held_out', 'no_lesson') and score is not null)
           )
           and not exists (
               select 1 from transitions
               join leases on leases.transition_number = transitions.number
               where transitions.turn_number = $1
                 and turns.stage = 'awaiting_training'
                 and leases.consumer = 'train' and leases.held = 1 and leases.free_from_ms > $2
           )",
    )
    .bind(turn)
    .bind(now_ms)
    .execute(&mut *connection)
    .await?;
    if again.rows_affected() > 0 {
        db::query(
            "update leases set held = 0, free_from_ms = 0, attempts = 0
             where transition_number = (select number from transitions where turn_number = $1)",
        )
        .bind(turn)
        .execute(connection)
        .await?;
    }
    Ok(())
}
