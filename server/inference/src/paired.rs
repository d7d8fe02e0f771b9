//! Paired replays: recent prompts answered once more by the base model and by the newest version,
//! with the same random numbers, beside everything else, and scored by the checks that came with
//! them. Sessions differ and their users do; here both sides have the very same prompts, none of which
//! a version has learned from, so that far fewer are needed to see a difference. Turns without a check of their own cannot be scored alone.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hone_domain::lift::{self, PairedLift};
use hone_domain::{
    Ask, AskContext, Collect, Delta, Fate, Millis, Origin, Policies, Policy, PolicyChoice,
    PolicyVersion, Reason, RequestId, Scope, SessionId, StopRules, Token, Turn, TurnId, TurnKind,
};
use hone_ledger::{Ledger, TurnRow};
use hone_runtime::{Clock, Ids, Latest, Shutdown};
use hone_serve::Backend;

use crate::LearningConfig;

/// Newest turns of a scope that are looked through for prompts.
const TURNS_LOOKED_AT: usize = 512;
/// Scopes whose result is kept; the one measured longest ago goes first.
const SCOPES_MAX: usize = 1_000;
/// Longest answer, in tokens, and longest wait for one.
const TOKENS_MAX: u32 = 512;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// What was measured of a scope.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The version that was compared with the base model.
    pub version: PolicyVersion,
    /// The difference.
    pub lift: PairedLift,
    /// When.
    pub at_ms: Millis,
}

/// What it works with.
pub struct PairedParts {
    /// Answers.
    pub backend: Arc<dyn Backend>,
    /// Where prompts come from.
    pub ledger: Arc<dyn Ledger>,
    /// What is newest.
    pub policies: Latest<Policies>,
    /// Identifiers.
    pub ids: Arc<dyn Ids>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// How many prompts, and how often.
    pub config: LearningConfig,
}

/// Results by scope.
#[derive(Debug, Default)]
pub struct Paired(Mutex<HashMap<Scope, Measured>>);

impl Paired {
    fn results(&self) -> MutexGuard<'_, HashMap<Scope, Measured>> {
        // Results are put in whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was measured of a scope last.
    pub fn of(&self, scope: &Scope) -> Option<Measured> {
        self.results().get(scope).cloned()
    }

    /// Forgets a scope.
    pub fn forget(&self, scope: &Scope) {
        self.results().remove(scope);
    }

    fn keep(&self, scope: Scope, measured: Measured) {
        let mut results = self.results();
        if results.len() >= SCOPES_MAX
            && let Some(oldest) = results
                .iter()
                .min_by_key(|(_, m)| m.at_ms)
                .map(|(s, _)| s.clone())
        {
            results.remove(&oldest);
        }
        results.insert(scope, measured);
    }

    /// Looks for new versions until shutdown.
    pub async fn run(self: Arc<Self>, parts: Arc<PairedParts>, shutdown: Shutdown) {
        let pause = Duration::from_millis(parts.config.paired_interval_ms);
        // What had too few prompts: nothing comes of looking again before there is a new turn.
        let mut tried = HashMap::new();
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let heads: Vec<Policy> = parts.policies.get().iter().cloned().collect();
            for policy in heads {
                let known = self.of(&policy.scope).map(|measured| measured.version);
                if policy.is_base() || known == Some(policy.version) {
                    continue;
                }
                let newest = parts.newest(&policy.scope).await;
                let seen = (policy.version, newest);
                if tried.get(&policy.scope) == Some(&seen) {
                    continue;
                }
                let measured = tokio::select! {
                    () = shutdown.wait() => return,
                    measured = parts.measure(&policy) => measured,
                };
                match measured {
                    Ok(Some(measured)) => {
                        tried.remove(&policy.scope);
                        self.keep(policy.scope, measured);
                    }
                    Ok(None) => {
                        if tried.len() >= SCOPES_MAX {
                            tried.clear();
                        }
                        tried.insert(policy.scope, seen);
                    }
                    Err(error) => tracing::warn!(error, "a paired replay failed"),
                }
            }
        }
    }
}

impl PairedParts {
    /// Answers the newest prompts that have checks with both; none where there are too few.
    async fn measure(&self, policy: &Policy) -> Result<Option<Measured>, String> {
        let mut differences = Vec::new();
        let prompts = self.prompts(&policy.scope).await?;
        if prompts.len() < lift::SESSIONS_MIN {
            return Ok(None);
        }
        for turn in prompts {
            let newest = self
                .score(&turn, PolicyChoice::Exact(policy.clone()))
                .await?;
            let base = self.score(&turn, PolicyChoice::Base).await?;
            if let (Some(newest), Some(base)) = (newest, base) {
                differences.push(f64::from(newest - base));
            }
        }
        Ok(lift::paired(&differences).map(|lift| Measured {
            version: policy.version,
            lift,
            at_ms: self.clock.now_ms(),
        }))
    }

    /// The newest turn of a scope, where one is known.
    async fn newest(&self, scope: &Scope) -> Option<TurnId> {
        let rows = self.ledger.turns(Some(scope), 1).await;
        Some(rows.ok()?.first()?.id)
    }

    /// Turns of the served model whose answers are checked by themselves, each prompt once, the
    /// newest first. What a version learned from shows only what it remembers, so no prompt of a
    /// trained turn is among them; a turn that is held out, held back or still on its way is.
    async fn prompts(&self, scope: &Scope) -> Result<Vec<Turn>, String> {
        let text = |error: hone_ledger::LedgerError| error.to_string();
        let rows = self
            .ledger
            .turns(Some(scope), TURNS_LOOKED_AT)
            .await
            .map_err(text)?;
        let (trained, untrained): (Vec<TurnRow>, Vec<TurnRow>) = rows
            .into_iter()
            .partition(|row| matches!(row.fate, Fate::Trained { .. }));
        let checked = untrained.into_iter().filter(|row| row.has_checks);
        let checked: Vec<TurnRow> = checked.collect();
        if checked.len() < lift::SESSIONS_MIN {
            return Ok(Vec::new());
        }
        // The same prompt may have been asked again, or answered more than once.
        let mut known = HashSet::new();
        for row in trained {
            let view = self.ledger.turn(row.id).await.map_err(text)?;
            known.extend(view.map(|view| view.turn.prompt_tokens));
        }
        let base = self.backend.capabilities().base;
        let mut prompts: Vec<Turn> = Vec::new();
        for row in checked {
            if prompts.len() >= self.config.paired_prompts {
                break;
            }
            let Some(view) = self.ledger.turn(row.id).await.map_err(text)? else {
                continue;
            };
            let turn = view.turn;
            let is_asked = turn.kind == TurnKind::Main && turn.base == base;
            if is_asked && turn.is_checked_at_once() && known.insert(turn.prompt_tokens.clone()) {
                prompts.push(turn);
            }
        }
        Ok(prompts)
    }

    /// What the turn's checks say of an answer to its prompt; none where they abstain.
    async fn score(&self, turn: &Turn, policy: PolicyChoice) -> Result<Option<f32>, String> {
        let answer = self.backend.ask(self.ask(turn, policy));
        let mut answer = answer.map_err(|error| error.to_string())?;
        let read = async {
            let mut text = String::new();
            while let Some(delta) = answer.deltas.recv().await {
                match delta {
                    Delta::Started { .. } => {}
                    Delta::Token(token) => text.push_str(&token.text),
                    Delta::Failed(error) => return Err(error.to_string()),
                    Delta::End(end) => return Ok(text + &end.text),
                }
            }
            Err("the engine broke off".to_owned())
        };
        let text = tokio::time::timeout(ANSWER_TIMEOUT, read).await;
        let text = text.map_err(|_| "an answer took too long".to_owned())??;
        Ok(hone_judge::check_answer(turn, text))
    }

    fn ask(&self, turn: &Turn, policy: PolicyChoice) -> Ask {
        let prompt_tokens: Vec<Token> = turn.prompt_tokens.clone();
        Ask {
            turn: TurnId(self.ids.next()),
            request: RequestId(self.ids.next()),
            choice_index: 0,
            group: None,
            scope: turn.scope.clone(),
            policy,
            origin: Origin::Gate,
            kind: TurnKind::Side,
            prompt_tokens,
            form: None,
            given: Vec::new(),
            // Much of what was said before is said again.
            predicted: turn.completion.tokens().into(),
            sampling: turn.sampling.clone(),
            stop: StopRules {
                max_tokens: TOKENS_MAX,
                ..StopRules::default()
            },
            collect: Collect::No(Reason::SideTurn),
            context: AskContext {
                session: SessionId(self.ids.next()),
                session_key: None,
                parent: None,
                owner: turn.owner.clone(),
                keeper: None,
                messages: Default::default(),
                admission: Default::default(),
                untrainable: None,
                admitted_ms: self.clock.now_ms(),
            },
        }
    }
}
