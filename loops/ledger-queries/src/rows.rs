//! Rows back into the domain's nouns.

use hone_domain::{
    Admission, BatchId, BlobKey, BranchOf, Completion, Digest, Fate, Feedback, FeedbackId,
    ForgetId, GroupId, JobId, MemoryId, MemoryUse, Message, Millis, Policy, PolicyVersion, Reason,
    RequestId, RolloutId, Scope, SessionId, ShownMemory, ShownSkill, SkillId, Stage, TaskId,
    TaskSetId, Transition, TransitionId, Turn, TurnId, Usage, Verdict, VerdictId, VersionSpan,
    Vote,
};

use super::chains;
use super::texts::{named, some_text, text, unsigned};
use crate::codec::{
    experts_from_bytes, floats_from_bytes, kept_from_bytes, sampling_from_bytes, spans_from_bytes,
    tokens_from_bytes,
};
use crate::db::{self, Connection, Fault, Row, corrupt};
use hone_ledger::{Extent, PolicyRecord, PolicyStatus};

macro_rules! id_from {
    ($($function:ident -> $id:ident;)*) => {$(
        pub(crate) fn $function(bytes: &[u8]) -> Result<$id, Fault> {
            let bytes = <[u8; 16]>::try_from(bytes)
                .map_err(|_| corrupt(concat!("a ", stringify!($id), " of broken length")))?;
            Ok($id(uuid::Uuid::from_bytes(bytes)))
        }
    )*};
}
id_from! {
    turn_id -> TurnId;
    request_id -> RequestId;
    group_id -> GroupId;
    session_id -> SessionId;
    transition_id -> TransitionId;
    verdict_id -> VerdictId;
    feedback_id -> FeedbackId;
    batch_id -> BatchId;
    forget_id -> ForgetId;
    memory_id -> MemoryId;
    skill_id -> SkillId;
    job_id -> JobId;
    task_id -> TaskId;
    task_set_id -> TaskSetId;
    rollout_id -> RolloutId;
}

pub(crate) fn digest(bytes: &[u8]) -> Result<Digest, Fault> {
    let bytes = <[u8; 32]>::try_from(bytes).map_err(|_| corrupt("a digest of broken length"))?;
    Ok(Digest(bytes))
}

pub(crate) fn scope(name: Vec<u8>) -> Result<Scope, Fault> {
    Ok(Scope::from_stored(text(name)?))
}

pub(crate) fn version(value: i64) -> Result<PolicyVersion, Fault> {
    Ok(PolicyVersion(unsigned(value)?))
}

pub(crate) fn reason(name: &str) -> Result<Reason, Fault> {
    Reason::from_stored(name).ok_or_else(|| corrupt(format!("the reason {name:?}")))
}

pub(crate) fn fate(row: &Row) -> Result<Fate, Fault> {
    if let Some(stage) = row.try_get::<Option<&str>, _>("stage")? {
        let stage =
            Stage::from_stored(stage).ok_or_else(|| corrupt(format!("the stage {stage:?}")))?;
        return Ok(Fate::Pending { stage });
    }
    if let Some(name) = row.try_get::<Option<&str>, _>("reason")? {
        return Ok(Fate::Settled {
            reason: reason(name)?,
        });
    }
    Ok(Fate::Trained {
        version: version(row.try_get("trained_version")?)?,
    })
}

fn uuid(bytes: &[u8]) -> Result<uuid::Uuid, Fault> {
    uuid::Uuid::from_slice(bytes).map_err(|error| corrupt(error.to_string()))
}

/// A turn without its messages and the blocks of its prompt.
const TURN: &str =
    "select turns.number, turns.id, request_id, choice_index, group_id, sessions.id as session_id,
            session_key, parent_id, turns.owner, scopes.name as scope, origin, kind,
            history_number, block_number, prompt_tail, completion_tokens, behavior_logprobs,
            raw_logprobs, kept, experts, stop, completion_text, sampling, spans, digest,
            arithmetics.base, arithmetics.fingerprint, untrainable, started_ms, finished_ms,
            stage, reason, trained_version, holdback, source, trace,
            metadata, checks, mode, shown, skills, extent, version, branch_of, branch_position, branch_prefix
     from turns
     join turn_payloads on turn_payloads.turn_number = turns.number
     join sessions on sessions.number = turns.session_number
     join scopes on scopes.number = turns.scope_number
     join arithmetics on arithmetics.number = turns.arithmetic_number
     left join turn_memories on turn_memories.turn_number = turns.number
     where turns.number = $1";

/// A turn with its fate.
pub(crate) async fn load_turn(
    connection: &mut Connection<'_>,
    number: i64,
) -> Result<(Turn, Fate), Fault> {
    let row = db::query(TURN)
        .bind(number)
        .fetch_optional(&mut *connection)
        .await?
        .ok_or_else(|| corrupt(format!("no payload of turn number {number}")))?;
    let messages = chains::load_messages(connection, row.try_get("history_number")?).await?;
    with_prompt(connection, &row, messages).await
}

/// The turn of a row and its messages; reads the blocks of its prompt.
async fn with_prompt(
    connection: &mut Connection<'_>,
    row: &Row,
    messages: Vec<Message>,
) -> Result<(Turn, Fate), Fault> {
    let tail: &[u8] = row.try_get("prompt_tail")?;
    let prompt_tokens = chains::load_tokens(connection, row.try_get("block_number")?, tail).await?;
    let optional = |name| row.try_get::<Option<&[u8]>, _>(name);
    let turn = Turn {
        id: turn_id(row.try_get("id")?)?,
        request: request_id(row.try_get("request_id")?)?,
        choice_index: row.try_get("choice_index")?,
        group: optional("group_id")?.map(group_id).transpose()?,
        session: session_id(row.try_get("session_id")?)?,
        session_key: some_text(row.try_get("session_key")?)?,
        parent: optional("parent_id")?.map(turn_id).transpose()?,
        owner: row.try_get("owner")?,
        scope: scope(row.try_get("scope")?)?,
        origin: named(row.try_get("origin")?)?,
        kind: named(row.try_get("kind")?)?,
        messages,
        prompt_tokens,
        completion: completion(row)?,
        completion_text: text(row.try_get("completion_text")?)?,
        sampling: sampling_from_bytes(row.try_get("sampling")?)?,
        spans: spans(row)?,
        digest: optional("digest")?.map(digest).transpose()?,
        base: digest(row.try_get("base")?)?,
        fingerprint: row.try_get("fingerprint")?,
        admission: Admission {
            holdback: row.try_get("holdback")?,
            source: some_text(row.try_get("source")?)?,
            trace: match optional("trace")? {
                Some(bytes) => Some(uuid(bytes)?),
                None => None,
            },
            metadata: match optional("metadata")? {
                Some(bytes) => serde_json::from_slice(bytes)?,
                None => Default::default(),
            },
            checks: match optional("checks")? {
                Some(json) => serde_json::from_slice(json)?,
                None => Vec::new(),
            },
            memory: memory_use(row)?,
            branch: branch_of(row)?,
        },
        untrainable: row
            .try_get::<Option<&str>, _>("untrainable")?
            .map(reason)
            .transpose()?,
        started_ms: row.try_get("started_ms")?,
        finished_ms: row.try_get("finished_ms")?,
    };
    Ok((turn, fate(row)?))
}

/// Which versions sampled what; one that lost its words has none of them, and still the version that sampled it.
fn spans(row: &Row) -> Result<Vec<VersionSpan>, Fault> {
    let spans = spans_from_bytes(row.try_get("spans")?)?;
    if !spans.is_empty() {
        return Ok(spans);
    }
    Ok(vec![VersionSpan {
        version: version(row.try_get("version")?)?,
        start: 0,
        end: 0,
    }])
}

/// How much of a turn is stored.
pub(crate) fn extent(row: &Row) -> Result<Extent, Fault> {
    let number: i64 = row.try_get("extent")?;
    Extent::from_number(number).ok_or_else(|| corrupt(format!("the extent {number}")))
}

/// The answer that a branch goes on from.
fn branch_of(row: &Row) -> Result<Option<BranchOf>, Fault> {
    let Some(turn) = row.try_get::<Option<&[u8]>, _>("branch_of")? else {
        return Ok(None);
    };
    Ok(Some(BranchOf {
        turn: turn_id(turn)?,
        position: row.try_get("branch_position")?,
        prefix_tokens: row.try_get("branch_prefix")?,
    }))
}

/// What a turn did with memories.
fn memory_use(row: &Row) -> Result<MemoryUse, Fault> {
    let Some(mode) = row.try_get::<Option<String>, _>("mode")? else {
        return Ok(MemoryUse::default());
    };
    Ok(MemoryUse {
        mode: named(mode)?,
        shown: memories(row)?,
        skills: skills(row)?,
    })
}

/// The skills that a turn was shown.
pub(crate) fn skills(row: &Row) -> Result<Vec<ShownSkill>, Fault> {
    match row.try_get::<Option<&[u8]>, _>("skills")? {
        Some(shown) => Ok(serde_json::from_slice(shown)?),
        None => Ok(Vec::new()),
    }
}

/// The memories that a turn was shown.
pub(crate) fn memories(row: &Row) -> Result<Vec<ShownMemory>, Fault> {
    match row.try_get::<Option<&[u8]>, _>("shown")? {
        Some(shown) => Ok(serde_json::from_slice(shown)?),
        None => Ok(Vec::new()),
    }
}

pub(crate) fn completion(row: &Row) -> Result<Completion, Fault> {
    let tokens = tokens_from_bytes(row.try_get("completion_tokens")?)?;
    let kept = kept_from_bytes(row.try_get("kept")?, tokens.len())?;
    let is_whole = extent(row)? == Extent::Whole;
    let logprobs = |column: &str| -> Result<Vec<f32>, Fault> {
        match is_whole {
            true => Ok(floats_from_bytes(row.try_get(column)?)?),
            // Its log-probs are not kept any more; nothing trains on it.
            false => Ok(vec![0.0; tokens.len()]),
        }
    };
    let (behavior, raw) = (logprobs("behavior_logprobs")?, logprobs("raw_logprobs")?);
    if behavior.is_empty() && !tokens.is_empty() {
        return Ok(Completion::given(tokens, named(row.try_get("stop")?)?));
    }
    Ok(
        Completion::new(tokens, behavior, raw, kept, named(row.try_get("stop")?)?)?
            .with_experts(experts_from_bytes(row.try_get("experts")?)?)?,
    )
}

/// The transition of `turn`, with its row's number.
pub(crate) async fn load_transition(
    connection: &mut Connection<'_>,
    turn_number: i64,
    turn: &Turn,
) -> Result<Option<(i64, Transition)>, Fault> {
    let row = db::query(
        "select number, id, next_state, next_turn_id, settled_ms from transitions
         where turn_number = $1",
    )
    .bind(turn_number)
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let next_turn: Option<&[u8]> = row.try_get("next_turn_id")?;
    let transition = Transition {
        id: transition_id(row.try_get("id")?)?,
        turn: turn.id,
        session: turn.session,
        scope: turn.scope.clone(),
        next_state: serde_json::from_slice(row.try_get("next_state")?)?,
        next_turn: next_turn.map(turn_id).transpose()?,
        settled_ms: row.try_get("settled_ms")?,
    };
    Ok(Some((row.try_get("number")?, transition)))
}

/// The current verdict of a transition.
pub(crate) async fn load_verdict(
    connection: &mut Connection<'_>,
    transition_number: i64,
    transition: TransitionId,
) -> Result<Option<Verdict>, Fault> {
    let row = db::query(
        "select number, id, score, decided_by, hint, hint_choice, wish, judged_ms from verdicts
         where transition_number = $1 and current = 1",
    )
    .bind(transition_number)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let rows = db::query(
        "select signal, outcome, reason, model, latency_ms,
                prompt_tokens, completion_tokens, cost, prompt from votes
         where verdict_number = $1 order by position",
    )
    .bind(row.try_get::<i64, _>("number")?)
    .fetch_all(connection)
    .await?;
    let votes = rows.into_iter().map(|vote| {
        Ok(Vote {
            signal: named(vote.try_get("signal")?)?,
            outcome: named(vote.try_get("outcome")?)?,
            reason: text(vote.try_get("reason")?)?,
            model: vote.try_get("model")?,
            latency_ms: unsigned(vote.try_get("latency_ms")?)?,
            usage: usage(&vote)?,
            prompt: vote.try_get("prompt")?,
        })
    });
    Ok(Some(Verdict {
        id: verdict_id(row.try_get("id")?)?,
        transition,
        score: score(row.try_get("score")?),
        decided_by: row
            .try_get::<Option<String>, _>("decided_by")?
            .map(named)
            .transpose()?,
        hint: some_text(row.try_get("hint")?)?,
        wish: some_text(row.try_get("wish")?)?,
        hint_choice: row
            .try_get::<Option<&[u8]>, _>("hint_choice")?
            .map(serde_json::from_slice)
            .transpose()?,
        votes: votes.collect::<Result<_, Fault>>()?,
        judged_ms: row.try_get("judged_ms")?,
    }))
}

fn usage(vote: &Row) -> Result<Option<Usage>, Fault> {
    let number = |name: &str| -> Result<Option<u64>, Fault> {
        let stored: Option<i64> = vote.try_get(name)?;
        stored.map(unsigned).transpose()
    };
    let read = number("prompt_tokens")?;
    let (Some(prompt_tokens), Some(completion_tokens)) = (read, number("completion_tokens")?)
    else {
        return Ok(None);
    };
    let cost: Option<f64> = vote.try_get("cost")?;
    Ok(Some(Usage {
        prompt_tokens,
        completion_tokens,
        cost: cost.unwrap_or_default(),
    }))
}

/// Scores are f32 widened to the column's f64, so narrowing gives back the same bits.
pub(crate) fn score(stored: Option<f64>) -> Option<f32> {
    stored.map(|score| score as f32)
}

/// Feedback of the turn's own owner, oldest first. What others said before the turn was known
/// to be somebody else's does not count.
pub(crate) async fn load_feedback(
    connection: &mut Connection<'_>,
    turn: &Turn,
) -> Result<Vec<Feedback>, Fault> {
    load_feedback_of(connection, turn.id, &turn.owner).await
}

/// The same by the turn's id and owner.
pub(crate) async fn load_feedback_of(
    connection: &mut Connection<'_>,
    turn: TurnId,
    owner: &str,
) -> Result<Vec<Feedback>, Fault> {
    let rows = db::query(
        "select id, client_id, score, comment, correction, of_session, received_ms from feedback
         where turn_id = $1 and owner = $2 order by received_ms, number",
    )
    .bind(&turn.0.as_bytes()[..])
    .bind(owner)
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Feedback {
                id: feedback_id(row.try_get("id")?)?,
                turn,
                owner: owner.to_owned(),
                client_id: some_text(row.try_get("client_id")?)?,
                score: score(row.try_get("score")?),
                comment: some_text(row.try_get("comment")?)?,
                correction: some_text(row.try_get("correction")?)?,
                of_session: row.try_get("of_session")?,
                received_ms: row.try_get("received_ms")?,
            })
        })
        .collect()
}

/// What the owner said last that the completion should have been.
pub(crate) fn newest_correction(feedback: Vec<Feedback>) -> Option<String> {
    let said = feedback.into_iter().rev().filter_map(|f| f.correction);
    said.into_iter().find(|text| !text.trim().is_empty())
}

/// A policy from a row with `scope`, `version`, `digest` and `blob`.
pub(crate) fn policy(row: &Row) -> Result<Policy, Fault> {
    Ok(Policy {
        scope: scope(row.try_get("scope")?)?,
        version: version(row.try_get("version")?)?,
        digest: digest(row.try_get("digest")?)?,
        blob: BlobKey::new(row.try_get::<String, _>("blob")?)?,
    })
}

/// How a version came about.
pub(crate) fn status(text: &str) -> Result<PolicyStatus, Fault> {
    Ok(match text {
        "published" => PolicyStatus::Published,
        "rollback" => PolicyStatus::Rollback,
        "imported" => PolicyStatus::Imported,
        other => return Err(corrupt(format!("the version status {other:?}"))),
    })
}

/// A version with its lineage.
pub(crate) fn policy_record(row: &Row) -> Result<PolicyRecord, Fault> {
    Ok(PolicyRecord {
        policy: policy(row)?,
        parent: version(row.try_get("parent")?)?,
        status: status(row.try_get("status")?)?,
        is_tainted: row.try_get("is_tainted")?,
        samples: unsigned(row.try_get("samples")?)?,
        report: serde_json::from_str(row.try_get("report")?)?,
        gate: serde_json::from_str(row.try_get("gate")?)?,
        note: some_text(row.try_get("note")?)?,
        is_tripped: row.try_get::<Option<Millis>, _>("tripped_ms")?.is_some(),
        is_pruned: row.try_get::<Option<Millis>, _>("pruned_ms")?.is_some(),
        is_damaged: row.try_get::<Option<Millis>, _>("damaged_ms")?.is_some(),
        is_retired: row.try_get::<Option<Millis>, _>("retired_ms")?.is_some(),
        published_ms: row.try_get::<Millis, _>("published_ms")?,
    })
}
