//! The laws, checked over everything stored.

use hone_domain::{
    Digest, Origin, PolicyVersion, RequestId, Sampling, Scope, SessionId, Turn, TurnKind,
    invariants,
};

use super::rows;
use super::texts::{named, unsigned};
use crate::codec::spans_from_bytes;
use crate::db::{self, Connection, Fault, Row};

/// Turns whose payload is read at a time.
const TURNS_AT_A_TIME: i64 = 256;

pub(crate) async fn check(connection: &mut Connection<'_>) -> Result<Vec<String>, Fault> {
    let mut broken = Vec::new();
    versions_grow(connection, &mut broken).await?;
    transitions_are_single(connection, &mut broken).await?;
    verdicts_are_single(connection, &mut broken).await?;
    samples_train_once(connection, &mut broken).await?;
    what_is_served_is_clean(connection, &mut broken).await?;
    trials_can_be_served(connection, &mut broken).await?;
    spans_cover(connection, &mut broken).await?;
    fates_fit(connection, &mut broken).await?;
    counts_fit(connection, &mut broken).await?;
    what_is_kept_is_used(connection, &mut broken).await?;
    what_is_unread_is_there(connection, &mut broken).await?;
    super::jobs::laws(connection, &mut broken).await?;
    Ok(broken)
}

fn note(broken: &mut Vec<String>, about: &str, law: Result<(), invariants::Broken>) {
    if let Err(law) = law {
        broken.push(format!("{law} ({about})"));
    }
}

/// P1, and that every version continues (or restores) one that exists.
async fn versions_grow(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let versions: Vec<(i64, i64, i64, String, bool)> = db::query_as(
        "select scope_number, version, parent, status,
                parent = 0 or exists (
                    select 1 from versions as older
                    where older.scope_number = versions.scope_number
                      and older.version = versions.parent
                )
         from versions order by scope_number, version",
    )
    .fetch_all(connection)
    .await?;
    let mut before = (0, 0);
    for (scope, version, parent, status, parent_exists) in versions {
        let head = if before.0 == scope { before.1 } else { 0 };
        before = (scope, version);
        let about = format!("scope number {scope}");
        let head = PolicyVersion(unsigned(head)?);
        let next = PolicyVersion(unsigned(version)?);
        note(broken, &about, invariants::versions_grow_by_one(head, next));
        if !parent_exists {
            broken.push(format!(
                "version {version} names the parent {parent}, which does not exist ({about})"
            ));
        }
        if status == "published" && unsigned(parent)? != head.0 {
            broken.push(format!(
                "version {version} was trained from {parent} while {head} was the newest ({about})"
            ));
        }
        if status == "imported" && parent != 0 {
            broken.push(format!(
                "version {version} was imported and names the parent {parent} ({about})"
            ));
        }
    }
    Ok(())
}

/// C1.
async fn transitions_are_single(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let suspects: Vec<(Vec<u8>, String, i64)> = db::query_as(
        "select turns.id, turns.kind, count(*) from transitions
         join turns on turns.number = transitions.turn_number
         group by turns.number having count(*) > 1 or turns.kind <> 'main'",
    )
    .fetch_all(connection)
    .await?;
    for (id, kind, count) in suspects {
        let about = format!("turn {}", rows::turn_id(&id)?);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        note(
            broken,
            &about,
            invariants::transitions_of(named(kind)?, count),
        );
    }
    Ok(())
}

/// J1.
async fn verdicts_are_single(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let suspects: Vec<(Vec<u8>, i64)> = db::query_as(
        "select transitions.id, count(*) from verdicts
         join transitions on transitions.number = verdicts.transition_number
         where verdicts.current = 1 group by transitions.number having count(*) > 1",
    )
    .fetch_all(connection)
    .await?;
    for (id, count) in suspects {
        let about = format!("transition {}", rows::transition_id(&id)?);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        note(broken, &about, invariants::verdicts_of(count));
    }
    Ok(())
}

/// L2, and that turns and versions tell the same story about who was trained.
async fn samples_train_once(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let often: Vec<(Vec<u8>, i64)> = db::query_as(
        "select transitions.id, count(*) from version_samples
         join transitions on transitions.number = version_samples.transition_number
         group by version_samples.scope_number, transitions.number having count(*) > 1",
    )
    .fetch_all(&mut *connection)
    .await?;
    for (id, count) in often {
        let about = format!("transition {}", rows::transition_id(&id)?);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        note(broken, &about, invariants::trained_once(count));
    }
    let strays: Vec<Vec<u8>> = db::query_scalar(
        "select turns.id from version_samples
         join transitions on transitions.number = version_samples.transition_number
         join turns on turns.number = transitions.turn_number
         where turns.trained_version is distinct from version_samples.version
            or turns.scope_number <> version_samples.scope_number
         union
         select turns.id from turns
         where turns.trained_version is not null and not exists (
             select 1 from transitions
             join version_samples on version_samples.transition_number = transitions.number
             where transitions.turn_number = turns.number
         )",
    )
    .fetch_all(&mut *connection)
    .await?;
    for id in strays {
        let turn = rows::turn_id(&id)?;
        broken.push(format!(
            "turn {turn} and the versions disagree about whether it was trained"
        ));
    }
    let miscounted: Vec<(i64, i64)> = db::query_as(
        "select scope_number, version from versions where samples - samples_gone <> (
             select count(*) from version_samples
             where version_samples.scope_number = versions.scope_number
               and version_samples.version = versions.version
         )",
    )
    .fetch_all(connection)
    .await?;
    for (scope, version) in miscounted {
        broken.push(format!(
            "version {version} does not have as many samples as it says (scope number {scope})"
        ));
    }
    Ok(())
}

/// What was erased is served by nobody: the newest version is clean, and who learned from a
/// tainted version is tainted.
async fn what_is_served_is_clean(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let wrong: Vec<(i64, i64)> = db::query_as(
        "select scope_number, version from versions
         where tainted_ms is not null and version = (
             select max(newest.version) from versions as newest
             where newest.scope_number = versions.scope_number
         )
         union
         select versions.scope_number, versions.version from versions
         join versions as parents on parents.scope_number = versions.scope_number
             and parents.version = versions.parent
         where versions.tainted_ms is null and parents.tainted_ms is not null",
    )
    .fetch_all(connection)
    .await?;
    for (scope, version) in wrong {
        broken.push(format!(
            "version {version} still holds what was erased (scope number {scope})"
        ));
    }
    Ok(())
}

/// What is on trial is the newest version, and what it is compared with can be served.
async fn trials_can_be_served(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let wrong: Vec<(i64, i64)> = db::query_as(
        "select standings.scope_number, trial_version from standings
         where trial_version <> (
             select max(version) from versions
             where versions.scope_number = standings.scope_number
         )
         union
         select standings.scope_number, trial_version from standings
         join versions on versions.scope_number = standings.scope_number
             and versions.version in (trial_version, trial_proven)
         where coalesce(tainted_ms, pruned_ms, retired_ms) is not null",
    )
    .fetch_all(connection)
    .await?;
    for (scope, version) in wrong {
        broken.push(format!(
            "the trial of version {version} cannot be served (scope number {scope})"
        ));
    }
    Ok(())
}

/// T1, and that every completion can be read back.
async fn spans_cover(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let mut after = 0i64;
    loop {
        let payloads = db::query(
            "select turns.number, turns.id, completion_tokens, behavior_logprobs, raw_logprobs,
                    kept, experts, stop, spans, extent
             from turns join turn_payloads on turn_payloads.turn_number = turns.number
             where turns.number > $1 order by turns.number limit $2",
        )
        .bind(after)
        .bind(TURNS_AT_A_TIME)
        .fetch_all(&mut *connection)
        .await?;
        let Some(last) = payloads.last() else {
            return Ok(());
        };
        after = last.try_get("number")?;
        for row in &payloads {
            let id = rows::turn_id(row.try_get("id")?)?;
            match bare_turn(row) {
                Ok(turn) => note(
                    broken,
                    &format!("turn {id}"),
                    invariants::spans_cover(&turn),
                ),
                Err(Fault::Ledger(error)) => broken.push(format!("turn {id}: {error}")),
                Err(other) => return Err(other),
            }
        }
    }
}

/// A turn with only what T1 reads.
fn bare_turn(row: &Row) -> Result<Turn, Fault> {
    let none = uuid::Uuid::nil();
    Ok(Turn {
        id: rows::turn_id(row.try_get("id")?)?,
        request: RequestId(none),
        choice_index: 0,
        group: None,
        session: SessionId(none),
        session_key: None,
        parent: None,
        owner: String::new(),
        scope: Scope::from_stored(""),
        origin: Origin::User,
        kind: TurnKind::Main,
        messages: Vec::new(),
        prompt_tokens: Vec::new(),
        completion: rows::completion(row)?,
        completion_text: String::new(),
        sampling: Sampling::default(),
        spans: spans_from_bytes(row.try_get("spans")?)?,
        digest: None,
        base: Digest([0; 32]),
        fingerprint: String::new(),
        admission: Default::default(),
        untrainable: None,
        started_ms: 0,
        finished_ms: 0,
    })
}

/// Where a turn is must fit what is stored about it.
async fn fates_fit(connection: &mut Connection<'_>, broken: &mut Vec<String>) -> Result<(), Fault> {
    let unfit: Vec<Vec<u8>> = db::query_scalar(
        "select turns.id from turns
         left join transitions on transitions.turn_number = turns.number
         left join verdicts on verdicts.transition_number = transitions.number
             and verdicts.current = 1
         where (stage = 'awaiting_next_state' and transitions.number is not null)
            or (stage in ('awaiting_verdict', 'awaiting_training') and transitions.number is null)
            or (stage = 'awaiting_training' and verdicts.score is null)
            or turns.score is distinct from verdicts.score",
    )
    .fetch_all(&mut *connection)
    .await?;
    for id in unfit {
        let turn = rows::turn_id(&id)?;
        broken.push(format!(
            "turn {turn} has a fate that its transition and verdict do not explain"
        ));
    }
    let halves: Vec<Vec<u8>> = db::query_scalar(
        "select id from turns where number not in (select turn_number from turn_payloads)",
    )
    .fetch_all(connection)
    .await?;
    for id in halves {
        broken.push(format!("turn {} has no payload", rows::turn_id(&id)?));
    }
    Ok(())
}

/// The running counts equal a recount.
async fn counts_fit(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let wrong: Vec<(String, i64, i64)> = db::query_as(
        "with recounted (fate, turns) as (
             select coalesce(stage, reason, 'trained'), count(*) from turns group by 1
         )
         select coalesce(fate_counts.fate, recounted.fate), coalesce(fate_counts.turns, 0),
                coalesce(recounted.turns, 0)
         from fate_counts full join recounted on recounted.fate = fate_counts.fate
         where coalesce(fate_counts.turns, 0) <> coalesce(recounted.turns, 0)",
    )
    .fetch_all(&mut *connection)
    .await?;
    for (fate, counted, real) in wrong {
        broken.push(format!(
            "{counted} turns are counted as {fate}, there are {real}"
        ));
    }
    scope_counts_fit(connection, broken).await
}

/// The running counts of every scope likewise.
async fn scope_counts_fit(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let wrong: Vec<(i64, String)> = db::query_as(
        "with recounted (scope_number, fate, turns, judged) as (
             select scope_number, coalesce(stage, reason, 'trained'), count(*), count(score)
             from turns group by 1, 2
         )
         select coalesce(scope_counts.scope_number, recounted.scope_number),
                coalesce(scope_counts.fate, recounted.fate)
         from scope_counts full join recounted
             on recounted.scope_number = scope_counts.scope_number
             and recounted.fate = scope_counts.fate
         where coalesce(scope_counts.turns, 0) <> coalesce(recounted.turns, 0)
            or coalesce(scope_counts.judged, 0) <> coalesce(recounted.judged, 0)",
    )
    .fetch_all(&mut *connection)
    .await?;
    for (scope, fate) in wrong {
        broken.push(format!(
            "turns or scores of scope number {scope} are not as many as counted as {fate}"
        ));
    }
    version_scores_fit(connection, broken).await
}

/// The running sums of every version's scores likewise.
async fn version_scores_fit(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let wrong: Vec<(i64, i64)> = db::query_as(
        "with recounted (scope_number, version, judged, total) as (
             select scope_number, version, count(*),
                    sum(cast(round(score * 1073741824.0) as integer))
             from turns where score is not null and origin not in ('outside', 'rollout') group by 1, 2
         )
         select coalesce(version_scores.scope_number, recounted.scope_number),
                coalesce(version_scores.version, recounted.version)
         from version_scores full join recounted
             on recounted.scope_number = version_scores.scope_number
             and recounted.version = version_scores.version
         where coalesce(version_scores.judged, 0) <> coalesce(recounted.judged, 0)
            or coalesce(version_scores.total, 0) <> coalesce(recounted.total, 0)",
    )
    .fetch_all(connection)
    .await?;
    for (scope, version) in wrong {
        broken.push(format!(
            "the scores of version {version} of scope number {scope} are not those that were added up"
        ));
    }
    Ok(())
}

/// E1: text and token ids are kept for a turn, or are about to be removed.
async fn what_is_kept_is_used(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let counts = [
        (
            "messages in a conversation",
            "select count(*) from histories
             where not exists (
                 select 1 from histories as child where child.parent_number = histories.number
             )
               and not exists (
                 select 1 from turn_payloads where history_number = histories.number
             )
               and number not in (select number from loose_histories)",
        ),
        (
            "messages",
            "select count(*) from messages
             where not exists (select 1 from histories where message_number = messages.number)",
        ),
        (
            "blocks of prompt tokens",
            "select count(*) from token_blocks
             where not exists (
                 select 1 from token_blocks as child where child.parent_number = token_blocks.number
             )
               and not exists (
                 select 1 from turn_payloads where block_number = token_blocks.number
             )
               and number not in (select number from loose_blocks)",
        ),
        (
            "sessions",
            "select count(*) from sessions
             where not exists (select 1 from turns where session_number = sessions.number)
               and number not in (select number from loose_sessions)",
        ),
    ];
    for (what, sql) in counts {
        let unused: i64 = db::query_scalar(sql).fetch_one(&mut *connection).await?;
        let unused = unsigned(unused)?;
        note(broken, what, invariants::kept_is_used(unused));
    }
    Ok(())
}

/// What a consumer has yet to read exists, and so does the consumer.
async fn what_is_unread_is_there(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    let wrong: Vec<(String, i64)> = db::query_as(
        "select consumer, count(*) from unread
         left join transitions on transitions.turn_number = unread.turn_number
         left join verdicts on verdicts.transition_number = transitions.number
             and verdicts.current = 1
         where (unread.revision is not null and unread.revision is distinct from verdicts.revision)
            or (consumer <> 'memory' and consumer not in (select name from followers))
            or (consumer = 'memory' and not exists (
                select 1 from turn_memories
                where turn_memories.turn_number = unread.turn_number
            ))
         group by consumer",
    )
    .fetch_all(connection)
    .await?;
    for (consumer, count) in wrong {
        broken.push(format!(
            "{consumer} has {count} turns to read that are not there as noted"
        ));
    }
    Ok(())
}
