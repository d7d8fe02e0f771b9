//! The real loop on a ledger of its own: committed next states in, verdicts out.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_domain::{
    Completion, Digest, Fate, Message, NextItem, NextKind, NextState, Origin, PolicyVersion,
    RequestId, Role, Sampling, Scope, SessionId, StopReason, Transition, TransitionId, Turn,
    TurnId, TurnKind, Verdict, VersionSpan,
};
use hone_judge::{Completer, Ctx, ModelConfig};
use hone_ledger::Ledger as _;
use hone_ledger_sql::{SqliteConfig, SqliteStore};
use hone_runtime::{
    Notification, Overflow, ShutdownTrigger, StatusRegistry, SystemClock, SystemIds, queue,
};
use uuid::Uuid;

/// Longest time for all of them.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is judged.
pub(super) struct Said {
    pub(super) kind: NextKind,
    pub(super) asked: String,
    pub(super) completion: String,
    pub(super) text: String,
}

/// A model that votes, and how it is asked.
pub(super) type Voter = (ModelConfig, Arc<dyn Completer>);

/// What came of it.
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    /// It ended or waits in one named place, by a verdict that names its signal and every vote's reason.
    pub(super) is_explained: bool,
}

/// A turn and its next state; `n` makes their ids.
pub(super) fn pair(said: &Said, n: u128) -> (Turn, Transition) {
    let scope = Scope::of("bench", None);
    let session = SessionId(Uuid::from_u128(1 << 100 | n));
    let arrays = (vec![0], vec![-0.5]);
    let completion = Completion::new(
        arrays.0,
        arrays.1.clone(),
        arrays.1,
        vec![None],
        StopReason::EndToken,
    );
    let turn = Turn {
        id: TurnId(Uuid::from_u128(n)),
        request: RequestId(Uuid::from_u128(n)),
        choice_index: 0,
        group: None,
        session,
        session_key: None,
        parent: None,
        owner: "bench".to_owned(),
        scope: scope.clone(),
        origin: Origin::User,
        kind: TurnKind::Main,
        messages: vec![Message::text(Role::User, said.asked.clone())],
        prompt_tokens: vec![1],
        completion: completion.expect("one of each"),
        completion_text: said.completion.clone(),
        sampling: Sampling::default(),
        spans: vec![VersionSpan {
            version: PolicyVersion::BASE,
            start: 0,
            end: 1,
        }],
        digest: None,
        base: Digest([0; 32]),
        fingerprint: "bench".to_owned(),
        admission: Default::default(),
        untrainable: None,
        started_ms: 0,
        finished_ms: 1,
    };
    let transition = Transition {
        id: TransitionId(Uuid::from_u128(n)),
        turn: turn.id,
        session,
        scope,
        next_state: next_state(said),
        next_turn: None,
        settled_ms: 2,
    };
    (turn, transition)
}

/// The next state alone.
pub(super) fn next_state(said: &Said) -> NextState {
    NextState {
        items: vec![NextItem {
            kind: said.kind,
            text: said.text.clone(),
            failed: None,
        }],
    }
}

/// Runs the loop on a ledger in `folder` until everything has a verdict; verdicts in the order of `all`.
pub(super) async fn judge_in(
    folder: &Path,
    config: &hone_judge::Config,
    (all, voter): (&[Said], Option<Voter>),
) -> Result<Vec<Judged>, String> {
    let text = |error: hone_ledger::LedgerError| error.to_string();
    let sqlite = SqliteConfig::in_folder(folder);
    let ledger = SqliteStore::open(&sqlite).await;
    let ledger = Arc::new(ledger.map_err(|error| error.to_string())?);
    let (turns, transitions): (Vec<Turn>, Vec<Transition>) = all
        .iter()
        .zip(1u128..)
        .map(|(said, n)| pair(said, n))
        .unzip();
    ledger.record_turns(&turns).await.map_err(text)?;
    ledger
        .record_transitions(&transitions)
        .await
        .map_err(text)?;
    let mut config = config.clone();
    config.tick_ms = 20;
    config.verifiers = Vec::new();
    let (model, completer) = voter.unzip();
    config.model = model;
    let ctx = Ctx {
        ledger: ledger.clone(),
        completer,
        weigher: None,
        reader: None,
        caller: None,
        ids: Arc::new(SystemIds),
        clock: Arc::new(SystemClock::default()),
        config,
        registry: StatusRegistry::new(),
    };
    let (notify, inbox) = queue(1, Overflow::DropOldest);
    let (to_train, _notified) = queue(1, Overflow::DropOldest);
    let stop = ShutdownTrigger::new();
    let running = tokio::spawn(hone_judge::run(ctx, inbox, to_train, stop.signal()));
    let _notified = notify.send(Notification).is_ok();
    let began = Instant::now();
    let mut judged = Vec::with_capacity(turns.len());
    for turn in &turns {
        judged.push(loop {
            let view = ledger.turn(turn.id).await.map_err(text)?;
            let found = view.and_then(|view| Some((view.fate, view.verdict?)));
            if let Some((fate, verdict)) = found {
                let is_explained = explained(&fate, &verdict);
                break Judged {
                    verdict,
                    is_explained,
                };
            }
            if began.elapsed() > PATIENCE || running.is_finished() {
                return Err("the judge did not come to an end".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        });
    }
    stop.pull();
    let ended = running.await.map_err(|error| error.to_string())?;
    ended.map_err(|error| error.to_string())?;
    ledger.close().await;
    Ok(judged)
}

fn explained(fate: &Fate, verdict: &Verdict) -> bool {
    let placed = match fate {
        Fate::Pending { .. } | Fate::Trained { .. } => verdict.score.is_some(),
        Fate::Settled { .. } => true,
    };
    let signalled = verdict.score.is_none() || verdict.decided_by.is_some();
    let voted = !verdict.votes.is_empty();
    placed && signalled && voted && verdict.votes.iter().all(|vote| !vote.reason.is_empty())
}
