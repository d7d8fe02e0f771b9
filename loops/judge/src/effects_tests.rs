#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use hone_domain::{
    Fate, Feedback, Message, Outcome, Reason, Signal, Stage, TransitionId, Turn, TurnId,
};
use hone_ledger::TurnView;
use hone_ledger_sql::{SqliteConfig, SqliteStore};
use hone_runtime::{
    Inbox, Overflow, SeededIds, ShutdownTrigger, StatusRegistry, SystemClock, SystemIds, queue,
};
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::testing::{feedback, transition, turn};
use crate::{CompleteOptions, Completed, Completer, Config, ModelConfig};

/// Answers "bad" to all, but every `hangs_every`-th call never ends.
struct Scripted {
    calls: AtomicU64,
    hangs_every: u64,
}

#[async_trait]
impl Completer for Scripted {
    async fn complete(
        &self,
        _: &[Message],
        _: CompleteOptions,
    ) -> Result<Completed, CompleterError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call % self.hangs_every == self.hangs_every - 1 {
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
        Ok(Completed {
            tokens: Some((400, 10)),
            ..r"\boxed{-1}".into()
        })
    }
}

struct Rig {
    ctx: Ctx,
    notify: Outbox<Notification>,
    inbox: Inbox<Notification>,
    _folder: TempDir,
}

async fn rig(model: bool) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = SqliteConfig::in_folder(folder.path());
    let ledger = Arc::new(SqliteStore::open(&sqlite).await.unwrap());
    let scripted = || -> Arc<dyn Completer> {
        Arc::new(Scripted {
            calls: AtomicU64::new(0),
            hangs_every: 20,
        })
    };
    let config = Config {
        model: model.then(|| ModelConfig {
            vote_deadline_ms: 300,
            price_prompt: 0.5,
            price_completion: 2.0,
            ..ModelConfig::for_tests()
        }),
        ..Config::for_tests()
    };
    let ctx = Ctx {
        ledger,
        completer: model.then(scripted),
        weigher: None,
        reader: None,
        caller: None,
        ids: Arc::new(SystemIds),
        clock: Arc::new(SystemClock::default()),
        config,
        registry: StatusRegistry::new(),
    };
    let (notify, inbox) = queue(4, Overflow::DropNewest);
    Rig {
        ctx,
        notify,
        inbox,
        _folder: folder,
    }
}

async fn add(ctx: &Ctx, n: u128, reply: &str) {
    let turn = turn(n);
    ctx.ledger.record_turns(&[turn]).await.unwrap();
    let transition = transition(n, reply);
    ctx.ledger.record_transitions(&[transition]).await.unwrap();
}

async fn view(ctx: &Ctx, n: u128) -> TurnView {
    ctx.ledger
        .turn(TurnId(Uuid::from_u128(n)))
        .await
        .unwrap()
        .unwrap()
}

/// Runs the loop until every one of `turns` has a verdict.
async fn judge_all(rig: &Rig, turns: u128) {
    let (outbox, _wakes) = queue(4, Overflow::DropNewest);
    let trigger = ShutdownTrigger::new();
    let running = crate::run(rig.ctx.clone(), rig.inbox.clone(), outbox, trigger.signal());
    let running = tokio::spawn(running);
    rig.notify.send(Notification).unwrap();
    for n in 1..=turns {
        while view(&rig.ctx, n).await.verdict.is_none() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    trigger.pull();
    running.await.unwrap().unwrap();
    assert_eq!(
        rig.ctx.ledger.check_laws().await.unwrap(),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn rules_and_feedback_judge_what_was_woken_for() {
    let rig = rig(false).await;
    add(&rig.ctx, 1, "Thanks, perfect!").await;
    add(&rig.ctx, 2, "What about Mars?").await;
    add(&rig.ctx, 3, "Thanks!").await;
    let thumb = Feedback {
        correction: Some("In kilometres, please.".to_owned()),
        ..feedback(3, Some(-1.0))
    };
    rig.ctx.ledger.record_feedback(&thumb).await.unwrap();
    judge_all(&rig, 3).await;
    let trains = Fate::Pending {
        stage: Stage::AwaitingTraining,
    };
    let abstained = Fate::Settled {
        reason: Reason::Abstained,
    };
    for (n, fate, score, by) in [
        (1, trains, Some(1.0), Some(Signal::Rules)),
        (2, abstained, None, None),
        (3, trains, Some(-1.0), Some(Signal::Feedback)),
    ] {
        let view = view(&rig.ctx, n).await;
        let verdict = view.verdict.unwrap();
        assert_eq!(
            (view.fate, verdict.score, verdict.decided_by),
            (fate, score, by)
        );
        assert!(!verdict.votes.is_empty());
    }
    let hint = view(&rig.ctx, 3).await.verdict.unwrap().hint;
    assert_eq!(hint.as_deref(), Some("In kilometres, please."));
}

#[tokio::test]
async fn calls_that_hang_strand_nothing() {
    let rig = rig(true).await;
    for n in 1..=40 {
        add(&rig.ctx, n, "What about Mars?").await;
    }
    judge_all(&rig, 40).await;
    for n in 1..=40 {
        let verdict = view(&rig.ctx, n).await.verdict.unwrap();
        assert_eq!(verdict.decided_by, Some(Signal::Model), "{verdict:?}");
        assert!(
            verdict
                .votes
                .iter()
                .filter(|v| v.signal == Signal::Model)
                .count()
                == 3
        );
        for vote in verdict.votes.iter().filter(|v| v.outcome == Outcome::Bad) {
            if vote.signal == Signal::Model {
                let usage = vote.usage.unwrap();
                assert_eq!((usage.prompt_tokens, usage.completion_tokens), (400, 10));
                assert!((usage.cost - 220e-6).abs() < 1e-12, "{usage:?}");
            }
        }
    }
    let numbers = rig.ctx.registry.snapshot()["judge"].numbers.clone();
    let counted = numbers["cost_total"];
    let answers = numbers["prompt_tokens_total"] / 400.0;
    assert!((counted - answers * 220e-6).abs() < 1e-9, "{counted}");
    assert!(counted >= 80.0 * 220e-6, "{counted}");
}

#[tokio::test]
async fn an_old_lease_is_fenced_and_a_given_up_transition_is_settled() {
    let rig = rig(false).await;
    add(&rig.ctx, 1, "wrong").await;
    let (outbox, _wakes) = queue(4, Overflow::DropNewest);
    let effects = JudgeEffects::new(rig.ctx.clone(), outbox);
    let ledger = &rig.ctx.ledger;
    let old = ledger.claim_transitions(1, 10, 0).await.unwrap().remove(0);
    let new = ledger
        .claim_transitions(1, 10, 1_000)
        .await
        .unwrap()
        .remove(0);
    assert_eq!((old.attempts, new.attempts), (0, 1));
    let mut state = State::new(Config::for_tests(), Arc::new(SeededIds::new(1)), false);
    let verdict = Box::new(hone_domain::Verdict {
        id: hone_domain::VerdictId(Uuid::from_u128(1)),
        transition: TransitionId(Uuid::from_u128(1)),
        score: Some(1.0),
        decided_by: Some(Signal::Rules),
        hint: None,
        wish: None,
        hint_choice: None,
        votes: Vec::new(),
        judged_ms: 5,
    });
    let report = effects.record(old.claim, verdict, 0).await;
    assert!(matches!(
        report,
        Report::Recorded {
            result: Err(RecordError::Fenced),
            ..
        }
    ));
    let often = hone_ledger::Claimed { attempts: 3, ..new };
    let claimed = hone_runtime::Event::Reported(Report::Claimed(Ok(vec![often])));
    for effect in hone_runtime::LoopState::step(&mut state, 1_001, claimed) {
        assert!(matches!(
            effects.perform(effect).await,
            Report::GaveUp(Ok(()))
        ));
    }
    let failed = Fate::Settled {
        reason: Reason::JudgeFailed,
    };
    assert_eq!(view(&rig.ctx, 1).await.fate, failed);
    let _: Turn = view(&rig.ctx, 1).await.turn;
}

/// Agrees most with the last hint; hangs where it is told to.
struct Weighs {
    hangs: bool,
}

#[async_trait]
impl crate::Weigher for Weighs {
    async fn weigh(
        &self,
        _: &Turn,
        hints: &[String],
        _: crate::Compared,
    ) -> Result<Vec<f32>, String> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok((1..=hints.len()).map(|n| n as f32 / 10.0).collect())
    }
}

/// Each vote has a hint of its own.
struct Hints(AtomicU64);

#[async_trait]
impl Completer for Hints {
    async fn complete(
        &self,
        _: &[Message],
        _: CompleteOptions,
    ) -> Result<Completed, CompleterError> {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        let words = format!("HINT_START Say it in {n} words or so. HINT_END \\boxed{{-1}}");
        Ok(Completed::from(words.as_str()))
    }
}

#[tokio::test]
async fn a_weigher_that_hangs_costs_its_deadline_and_no_verdict() {
    for hangs in [false, true] {
        let mut rig = rig(true).await;
        rig.ctx.completer = Some(Arc::new(Hints(AtomicU64::new(0))));
        rig.ctx.weigher = Some(Arc::new(Weighs { hangs }));
        add(&rig.ctx, 1, "What about Mars?").await;
        judge_all(&rig, 1).await;
        let verdict = view(&rig.ctx, 1).await.verdict.unwrap();
        let choice = verdict.hint_choice.unwrap();
        assert_eq!(choice.chosen, usize::from(!hangs), "{choice:?}");
        let late = choice.reason == "no answer within 300 ms";
        assert_eq!(late, hangs, "{}", choice.reason);
        let chosen = &choice.candidates[choice.chosen].hint;
        assert_eq!(verdict.hint.as_ref(), Some(chosen));
    }
}
