//! What a session recorded, read from the ledger turn by turn.

use hone_api_types::episodes::RecordedEpisode;
use hone_domain::{Digest, JobId, Origin, SessionId, Turn, TurnKind};
use hone_ledger::{Extent, Jobs, Ledger, LedgerError, TurnView};

/// Most turns of an episode; older ones are left out.
const TURNS_MAX: usize = 1_024;

/// Newest turns of a session among which its newest main turn is looked for.
const TURNS_LOOKED_AT: usize = 200;

/// The mark of a rollout's turns that names their episode.
const EPISODE: &str = "episode_id";

/// The newest main turn of a session; none where there is no such session or turn.
///
/// # Errors
/// The ledger could not be read.
pub(crate) async fn newest_main_turn(
    ledger: &dyn Ledger,
    session: SessionId,
) -> Result<Option<TurnView>, LedgerError> {
    let view = ledger.session(session, None, TURNS_LOOKED_AT).await?;
    let turns = view.map(|view| view.turns.rows).unwrap_or_default();
    match turns.iter().rev().find(|turn| turn.kind == TurnKind::Main) {
        Some(turn) => ledger.turn(turn.id).await,
        None => Ok(None),
    }
}

/// The episode that ends with a turn: that turn and those that it continues, as far as their words are kept. None where
/// the turn's own are not.
///
/// # Errors
/// The ledger could not be read.
pub async fn episode_of(
    (ledger, jobs): (&dyn Ledger, &dyn Jobs),
    last: TurnView,
    model: Option<(String, Digest)>,
) -> Result<Option<RecordedEpisode>, LedgerError> {
    if !last.has_words() {
        return Ok(None);
    }
    let session = last.turn.session;
    let job = match episode_named(&last.turn) {
        Some(id) => jobs.job(&last.turn.owner, id).await?,
        None => None,
    };
    let view = ledger.session(session, None, 1).await?;
    let (reward, all) = view.map_or((None, 0), |mut view| (view.rewards.pop(), view.line.turns));
    let mut turns = vec![last];
    let mut before = turns[0].turn.parent;
    while let Some(id) = before.filter(|_| turns.len() < TURNS_MAX) {
        let view = ledger.turn_if_readable(id).await?;
        let kept = |view: &TurnView| view.extent != Extent::Row && view.turn.session == session;
        let Some(view) = view.filter(kept) else {
            break;
        };
        before = view.turn.parent;
        turns.push(view);
    }
    turns.reverse();
    Ok(Some(RecordedEpisode {
        session,
        others: usize::try_from(all)
            .unwrap_or(usize::MAX)
            .saturating_sub(turns.len()),
        turns,
        reward,
        job,
        model,
    }))
}

fn episode_named(turn: &Turn) -> Option<JobId> {
    (turn.origin == Origin::Rollout)
        .then(|| turn.admission.metadata.get(EPISODE))
        .flatten()
        .and_then(|id| JobId::parse(id))
}
