//! Rewards of whole sessions: what is kept of them, and the feedback that they are to their turns.

use std::collections::{BTreeMap, HashSet};

use hone_domain::{
    FeedbackId, Millis, Reason, SessionCredit, SessionReward, Stage, Step, TurnId, uuid_of,
};
use sha2::{Digest as _, Sha256};

use super::collect::{keep_newest, send_back};
use super::rows;
use super::texts::{limit, some_text, text_bytes};
use crate::db::{self, Connection, Fault, Row, corrupt};
use hone_ledger::{Missed, REWARDED_TURNS_MAX, REWARDS_KEPT, Rewarded, RewardedTurn};

/// A main turn of the session.
struct Candidate {
    number: i64,
    id: TurnId,
    parent: Option<TurnId>,
    /// Its request has several choices.
    is_choice: bool,
    is_forgotten: bool,
    is_trained: bool,
    /// All of it is stored.
    is_whole: bool,
    is_scored: bool,
    /// A batch holds it.
    is_held: bool,
    stage: Option<Stage>,
    reason: Option<Reason>,
    /// What its owner said of this turn alone.
    own: Option<f32>,
}

pub(crate) async fn record_reward(
    connection: &mut Connection<'_>,
    reward: &SessionReward,
    credit: SessionCredit,
    lease_now_ms: Millis,
) -> Result<Option<Rewarded>, Fault> {
    let row = db::query(
        "select sessions.number, scopes.name as scope from sessions
         join scopes on scopes.number = sessions.scope_number
         where sessions.id = $1 and sessions.owner = $2",
    )
    .bind(&reward.session.0.as_bytes()[..])
    .bind(&reward.owner)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let session: i64 = row.try_get("number")?;
    let mut rewarded = Rewarded {
        is_replaced: store(connection, session, reward).await?,
        scope: rows::scope(row.try_get("scope")?)?,
        reached: Vec::new(),
        missed: BTreeMap::new(),
    };
    let candidates = candidates(connection, session, reward, lease_now_ms).await?;
    let steps = trajectory(candidates, &mut rewarded.missed);
    let plain = steps.iter().map(|step| Step {
        own: step.own,
        can_learn: step.obstacle().is_none(),
    });
    let returns = credit.returns(reward.score, &plain.collect::<Vec<_>>());
    for (step, score) in steps.iter().zip(returns) {
        if let Some(score) = score {
            give(connection, step, reward, score).await?;
        }
        match (score, step.obstacle()) {
            (_, Some(why)) => *rewarded.missed.entry(why).or_default() += 1,
            (None, None) => *rewarded.missed.entry(step.unreached()).or_default() += 1,
            (Some(score), None) => {
                send_back(connection, step.number, lease_now_ms).await?;
                rewarded.reached.push(RewardedTurn {
                    turn: step.id,
                    score,
                    is_open: step.stage == Some(Stage::AwaitingNextState),
                });
            }
        }
    }
    Ok(Some(rewarded))
}

/// Stores the reward as it was given; whether it replaces an earlier one.
async fn store(
    connection: &mut Connection<'_>,
    session: i64,
    reward: &SessionReward,
) -> Result<bool, Fault> {
    let replaced = db::query(
        "delete from session_rewards where session_number = $1 and owner = $2 and client_id = $3",
    )
    .bind(session)
    .bind(&reward.owner)
    .bind(text_bytes(reward.client_id.as_ref()))
    .execute(&mut *connection)
    .await?;
    let peers = match reward.peers.is_empty() {
        true => None,
        false => Some(serde_json::to_vec(&reward.peers)?),
    };
    db::query(
        "insert into session_rewards (
             id, session_number, owner, client_id, score, parts, received_ms, peers
         ) values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (id) do nothing",
    )
    .bind(&reward.id.0.as_bytes()[..])
    .bind(session)
    .bind(&reward.owner)
    .bind(text_bytes(reward.client_id.as_ref()))
    .bind(f64::from(reward.score))
    .bind(&serde_json::to_vec(&reward.parts)?[..])
    .bind(reward.received_ms)
    .bind(peers)
    .execute(&mut *connection)
    .await?;
    db::query(
        "delete from session_rewards where number in (
             select number from session_rewards where session_number = $1
             order by number desc limit $3 offset $2
         )",
    )
    .bind(session)
    .bind(limit(REWARDS_KEPT))
    .bind(i64::MAX)
    .execute(connection)
    .await?;
    Ok(replaced.rows_affected() > 0)
}

/// The newest main turns of the session, newest first; one more than a reward reaches.
async fn candidates(
    connection: &mut Connection<'_>,
    session: i64,
    reward: &SessionReward,
    lease_now_ms: Millis,
) -> Result<Vec<Candidate>, Fault> {
    let found = db::query(
        "select turns.number, turns.id, turns.parent_id, turns.stage, turns.reason,
                turns.group_id is not null as is_choice, turns.extent = 2 as is_whole,
                turns.trained_version is not null as is_trained,
                turns.score is not null as is_scored,
                exists (select 1 from forgotten_turns where forgotten_turns.id = turns.id)
                    as is_forgotten,
                exists (
                    select 1 from transitions
                    join leases on leases.transition_number = transitions.number
                    where transitions.turn_number = turns.number and leases.consumer = 'train'
                      and leases.held = 1 and leases.free_from_ms > $3
                ) as is_held,
                (select max(-1.0, min(1.0, coalesce(feedback.score, -1.0))) from feedback
                 where feedback.turn_id = turns.id and feedback.owner = turns.owner
                   and feedback.of_session = 0
                   and (feedback.score is not null or feedback.correction is not null)
                 order by feedback.received_ms desc, feedback.number desc limit 1) as own
         from turns indexed by turns_by_session
         where session_number = $1 and turns.kind = 'main' and turns.owner = $2
         order by turns.number desc limit $4",
    )
    .bind(session)
    .bind(&reward.owner)
    .bind(lease_now_ms)
    .bind(limit(REWARDED_TURNS_MAX + 1))
    .fetch_all(connection)
    .await?;
    found.iter().map(candidate).collect()
}

fn candidate(row: &Row) -> Result<Candidate, Fault> {
    let optional = |name| row.try_get::<Option<&str>, _>(name);
    let stage = optional("stage")?.map(|stage| {
        Stage::from_stored(stage).ok_or_else(|| corrupt(format!("the stage {stage:?}")))
    });
    let parent: Option<&[u8]> = row.try_get("parent_id")?;
    Ok(Candidate {
        number: row.try_get("number")?,
        id: rows::turn_id(row.try_get("id")?)?,
        parent: parent.map(rows::turn_id).transpose()?,
        is_choice: row.try_get("is_choice")?,
        is_forgotten: row.try_get("is_forgotten")?,
        is_trained: row.try_get("is_trained")?,
        is_whole: row.try_get("is_whole")?,
        is_scored: row.try_get("is_scored")?,
        is_held: row.try_get("is_held")?,
        stage: stage.transpose()?,
        reason: optional("reason")?.map(rows::reason).transpose()?,
        own: rows::score(row.try_get("own")?),
    })
}

/// The steps of the session, oldest first, without what led nowhere.
fn trajectory(
    mut newest_first: Vec<Candidate>,
    missed: &mut BTreeMap<Missed, u64>,
) -> Vec<Candidate> {
    if newest_first.len() > REWARDED_TURNS_MAX {
        newest_first.truncate(REWARDED_TURNS_MAX);
        missed.insert(Missed::TooEarly, 1);
    }
    let continued: HashSet<TurnId> = newest_first.iter().filter_map(|turn| turn.parent).collect();
    let mut steps = Vec::with_capacity(newest_first.len());
    for turn in newest_first.into_iter().rev() {
        let why = match turn.reason {
            _ if turn.is_forgotten => Missed::Settled(Reason::Withdrawn),
            Some(Reason::NotChosen) => Missed::NotChosen,
            Some(reason @ (Reason::Cancelled | Reason::EmptyCompletion)) => Missed::Settled(reason),
            _ if turn.is_choice && !continued.contains(&turn.id) => Missed::NotChosen,
            _ => {
                steps.push(turn);
                continue;
            }
        };
        *missed.entry(why).or_default() += 1;
    }
    steps
}

impl Candidate {
    /// Why no reward is learned from; the conditions are those of [`send_back`].
    fn obstacle(&self) -> Option<Missed> {
        if self.is_trained {
            return Some(Missed::AlreadyLearned);
        }
        match (self.stage, self.reason) {
            (Some(Stage::AwaitingTraining), _) if self.is_held => Some(Missed::InTraining),
            (Some(_), _) | (None, None) => None,
            (None, Some(reason)) => {
                let goes_back = self.is_whole
                    && match reason {
                        Reason::Abstained | Reason::JudgeFailed => true,
                        Reason::Holdback | Reason::HeldOut | Reason::NoLesson => self.is_scored,
                        _ => false,
                    };
                (!goes_back).then_some(Missed::Settled(reason))
            }
        }
    }

    /// Why the credit rule left it out.
    fn unreached(&self) -> Missed {
        match self.own {
            Some(_) => Missed::OwnFeedback,
            None => Missed::Earlier,
        }
    }
}

/// Gives a turn its return, in place of that of an earlier reward.
async fn give(
    connection: &mut Connection<'_>,
    step: &Candidate,
    reward: &SessionReward,
    score: f32,
) -> Result<(), Fault> {
    db::query("delete from feedback where turn_id = $1 and owner = $2 and of_session = 1")
        .bind(&step.id.0.as_bytes()[..])
        .bind(&reward.owner)
        .execute(&mut *connection)
        .await?;
    db::query(
        "insert into feedback (id, turn_id, owner, score, of_session, received_ms)
         values ($1, $2, $3, $4, 1, $5)",
    )
    .bind(&feedback_id(reward.id, step.id).0.as_bytes()[..])
    .bind(&step.id.0.as_bytes()[..])
    .bind(&reward.owner)
    .bind(f64::from(score))
    .bind(reward.received_ms)
    .execute(&mut *connection)
    .await?;
    keep_newest(connection, step.id, &reward.owner).await
}

/// The id of what a reward says of one turn: the same each time.
fn feedback_id(reward: FeedbackId, turn: TurnId) -> FeedbackId {
    let mut hash = Sha256::new();
    hash.update(reward.0.as_bytes());
    hash.update(turn.0.as_bytes());
    FeedbackId(uuid_of(&hash.finalize().into()))
}

/// The rewards of the group; empty where it belongs to none.
fn peers(row: &Row) -> Result<Vec<f32>, Fault> {
    let stored: Option<&[u8]> = row.try_get("peers")?;
    Ok(stored
        .map(serde_json::from_slice)
        .transpose()?
        .unwrap_or_default())
}

/// The rewards of the group that the session of a turn was compared with.
pub(crate) async fn peers_of(
    connection: &mut Connection<'_>,
    turn_number: i64,
) -> Result<Vec<f32>, Fault> {
    let row = db::query(
        "select peers from session_rewards
         where session_number = (select session_number from turns where number = $1)
         order by number desc limit 1",
    )
    .bind(turn_number)
    .fetch_optional(connection)
    .await?;
    row.as_ref().map_or(Ok(Vec::new()), peers)
}

/// The rewards of a session, oldest first.
pub(crate) async fn rewards_of(
    connection: &mut Connection<'_>,
    session: i64,
) -> Result<Vec<SessionReward>, Fault> {
    let found = db::query(
        "select session_rewards.id, sessions.id as session_id, session_rewards.owner, client_id,
                score, parts, received_ms, peers
         from session_rewards join sessions on sessions.number = session_rewards.session_number
         where session_number = $1 order by session_rewards.number",
    )
    .bind(session)
    .fetch_all(connection)
    .await?;
    let reward = |row: &Row| {
        let score: f64 = row.try_get("score")?;
        Ok(SessionReward {
            id: rows::feedback_id(row.try_get("id")?)?,
            session: rows::session_id(row.try_get("session_id")?)?,
            owner: row.try_get("owner")?,
            client_id: some_text(row.try_get("client_id")?)?,
            score: score as f32,
            parts: serde_json::from_slice(row.try_get("parts")?)?,
            peers: peers(row)?,
            received_ms: row.try_get("received_ms")?,
        })
    };
    found.iter().map(reward).collect()
}
