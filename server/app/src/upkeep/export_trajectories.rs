//! `hone export trajectories`: conversations with their rewards, as lines that fine-tuning programs read.

use std::collections::HashSet;

use clap::ValueEnum;
use hone_api::recorded::episode_of;
use hone_api_types::episodes::{EpisodeFormat, answer, chat};
use hone_domain::{Learning, Reason, Scope, SessionReward, TurnId, TurnKind};
use hone_ledger::{Extent, Jobs, Ledger, TurnFilter, TurnView};
use hone_ledger_sql::StoredLedger;
use serde_json::{Value, json};

/// Turns listed at a time.
const PAGE: usize = 256;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A conversation: the messages of a chat in OpenAI's format for fine-tuning, with `reward` and `metadata`.
    Messages,
    /// A turn: prompt and completion as token ids, log-probs, version and reward, in the order newest first.
    Tokens,
    /// A conversation: its turns with tokens, log-probs, versions and verdicts, as `GET /v1/episodes/{id}?format=hone`.
    Hone,
    /// A conversation as a trajectory of ATIF 1.8, the format of Harbor.
    Atif,
    /// A conversation as a list of OpenEnv's trace entries.
    #[value(name = "openenv")]
    OpenEnv,
    /// A conversation as an episode record of verifiers.
    Verifiers,
}

impl Format {
    /// Its name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Tokens => "tokens",
            Self::Hone => "hone",
            Self::Atif => "atif",
            Self::OpenEnv => "openenv",
            Self::Verifiers => "verifiers",
        }
    }

    /// The format of the episode that a line is, where it is one.
    fn of_episodes(self) -> Option<EpisodeFormat> {
        match self {
            Self::Messages | Self::Tokens => None,
            Self::Hone => Some(EpisodeFormat::Hone),
            Self::Atif => Some(EpisodeFormat::Atif),
            Self::OpenEnv => Some(EpisodeFormat::OpenEnv),
            Self::Verifiers => Some(EpisodeFormat::Verifiers),
        }
    }
}

/// What makes lines of turns.
pub(super) struct Trajectories<'a> {
    ledger: &'a dyn StoredLedger,
    /// Scopes whose people allow no learning now.
    closed: HashSet<Scope>,
}

impl<'a> Trajectories<'a> {
    pub(super) async fn of(ledger: &'a dyn StoredLedger) -> Result<Self, String> {
        let closed = closed_scopes(ledger).await?;
        Ok(Self { ledger, closed })
    }

    /// Whether a turn may be learned from elsewhere.
    pub(super) fn has(&self, view: &TurnView) -> bool {
        !self.closed.contains(&view.turn.scope) && is_free(view)
    }

    /// The line of a turn; none where it lost what the format needs.
    pub(super) async fn line(
        &self,
        view: &TurnView,
        format: Format,
    ) -> Result<Option<Value>, String> {
        if let Some(format) = format.of_episodes() {
            return self.episode(view, format).await;
        }
        let is_whole = match format {
            Format::Tokens => view.extent == Extent::Whole,
            _ => view.extent != Extent::Row,
        };
        if !is_whole {
            return Ok(None);
        }
        let session = self.ledger.session(view.turn.session, None, 1).await;
        let rewards = session.map_err(|error| error.to_string())?;
        let reward = rewards.and_then(|mut session| session.rewards.pop());
        Ok(Some(match format {
            Format::Tokens => step(view, reward.as_ref()),
            _ => conversation(view, reward.as_ref()),
        }))
    }

    /// The episode that ends with a turn, as far as its turns may be learned from. Which model is served here is not known.
    async fn episode(
        &self,
        view: &TurnView,
        format: EpisodeFormat,
    ) -> Result<Option<Value>, String> {
        let ledgers = (self.ledger as &dyn Ledger, self.ledger as &dyn Jobs);
        let episode = episode_of(ledgers, view.clone(), None).await;
        let episode = episode.map_err(|error| error.to_string())?;
        Ok(episode.map(|mut episode| {
            let barred = episode.turns.iter().rposition(|view| !self.has(view));
            episode.turns.drain(..barred.map_or(0, |at| at + 1));
            episode.written(format)
        }))
    }
}

/// Hands a line per conversation, or per turn of one, to `each`, the newest first; returns how many there were.
pub(super) async fn trajectories(
    ledger: &dyn StoredLedger,
    filter: &TurnFilter,
    format: Format,
    each: &mut dyn FnMut(&Value) -> Result<(), String>,
) -> Result<u64, String> {
    let failed = |error: hone_ledger::LedgerError| error.to_string();
    let exported = Trajectories::of(ledger).await?;
    let main = TurnFilter {
        kind: Some(TurnKind::Main),
        ..filter.clone()
    };
    // Turns that a newer one continues and that did not come yet.
    let mut continued: HashSet<TurnId> = HashSet::new();
    let (mut before, mut count) = (None, 0);
    loop {
        let page = ledger
            .turn_page(&main, before, PAGE)
            .await
            .map_err(failed)?;
        for row in page.rows {
            let Some(view) = ledger.turn(row.id).await.map_err(failed)? else {
                continue;
            };
            let is_continued = continued.remove(&row.id);
            if !exported.has(&view) {
                continue;
            }
            let is_conversation = format != Format::Tokens;
            if is_conversation {
                continued.extend(view.turn.parent);
            }
            if is_conversation && is_continued {
                continue;
            }
            if let Some(line) = exported.line(&view, format).await? {
                each(&line)?;
                count += 1;
            }
        }
        before = page.next;
        if before.is_none() {
            return Ok(count);
        }
    }
}

/// Scopes whose people allow no learning now.
async fn closed_scopes(ledger: &dyn StoredLedger) -> Result<HashSet<Scope>, String> {
    let decided = ledger.consents().await.map_err(|error| error.to_string())?;
    let closed = decided
        .into_iter()
        .filter(|(_, consent)| consent.learning != Learning::Full);
    Ok(closed.map(|(scope, _)| scope).collect())
}

/// Whether it may be learned from elsewhere: its people allowed it, did not have it forgotten, and it has an end.
pub(super) fn is_free(view: &TurnView) -> bool {
    let settled = match view.fate {
        hone_domain::Fate::Settled { reason } => Some(reason),
        _ => None,
    };
    let is_barred = |reason: Reason| {
        matches!(
            reason,
            Reason::LearningOff
                | Reason::Withdrawn
                | Reason::LateReceipt
                | Reason::Cancelled
                | Reason::EmptyCompletion
        )
    };
    !settled
        .into_iter()
        .chain(view.turn.untrainable)
        .any(is_barred)
}

/// A conversation up to the end of its last answer.
fn conversation(view: &TurnView, reward: Option<&SessionReward>) -> Value {
    let turn = &view.turn;
    let mut messages: Vec<Value> = turn.messages.iter().map(chat).collect();
    messages.push(chat(&answer(turn)));
    json!({
        "messages": messages,
        "reward": worth(view, reward),
        "metadata": about(view, reward),
    })
}

/// One step of a trajectory, as it was sampled.
fn step(view: &TurnView, reward: Option<&SessionReward>) -> Value {
    let turn = &view.turn;
    json!({
        "prompt_ids": turn.prompt_tokens,
        "completion_ids": turn.completion.tokens(),
        "logprobs": turn.completion.behavior_logprobs(),
        "version": turn.version(),
        "temperature": turn.sampling.temperature,
        "reward": worth(view, reward),
        "metadata": about(view, reward),
    })
}

/// The verdict's score, in which feedback and the session's reward are; without a verdict the session's reward.
fn worth(view: &TurnView, reward: Option<&SessionReward>) -> Option<f32> {
    view.score().or(reward.map(|reward| reward.score))
}

fn about(view: &TurnView, reward: Option<&SessionReward>) -> Value {
    let turn = &view.turn;
    json!({
        "session_id": turn.session.prefixed(),
        "turn_id": turn.id.prefixed(),
        "parent_id": turn.parent.map(TurnId::prefixed),
        "scope": turn.scope,
        "policy_version": turn.version(),
        "base_digest": turn.base,
        "fate": view.fate,
        "decided_by": view.verdict.as_ref().and_then(|verdict| verdict.decided_by),
        "session_reward": reward.map(|reward| json!({
            "score": reward.score, "rewards": reward.parts,
        })),
        "finished_ms": turn.finished_ms,
    })
}
