//! Claiming: a batch of one scope, with the head it continues, what the scope remembers, and
//! prompts to probe with.

use std::sync::Arc;

use hone_domain::{BatchId, Millis, Origin, Reason, Scope, Token, TurnId};
use hone_ledger::{
    Claim, Extent, HeldOut, Ledger, LedgerError, PolicyRecord, RefusalRecord, ReplayQuery,
    Replayed, SampleClaim, SampleMaterial, Versions, Window,
};
use hone_runtime::{Clock, Ids};
use serde_json::Value;

use crate::config::Config;
use crate::event::{Claimed, ClaimedBatch, Memory};
use crate::filter::{Accepts, Filtered, filter};
use crate::gate::is_held_out;
use crate::judged::Judged;
use crate::retold::FirstTry;

/// Complaints in a row that are followed back to the first try.
const TRIES_MAX: usize = 4;
/// How many versions and refusals back a scope's memory is looked for: a rollback has none of its
/// own.
const MEMORY_REPORTS: usize = 8;

/// Claims for the train loop.
#[derive(Clone)]
pub(crate) struct Claimer {
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) versions: Arc<dyn Versions>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Arc<Config>,
    pub(crate) fingerprint: String,
    pub(crate) base: hone_domain::Digest,
    pub(crate) golden: Arc<Vec<Vec<Token>>>,
}

impl Claimer {
    /// A batch of `scope`, where there is one. Where it fails half-way the claims are given back.
    pub(crate) async fn claim(&self, scope: Scope) -> Result<Claimed, LedgerError> {
        let batch = BatchId(self.ids.next());
        let order = self.order(&scope, batch);
        let claimed = self.ledger.claim_samples(&order).await?;
        match (claimed.materials.is_empty(), claimed.settled) {
            (false, _) => {}
            (true, 0) => return Ok(Claimed::Nothing),
            (true, _) => return Ok(Claimed::Settled),
        }
        let claims: Vec<Claim> = claimed.materials.iter().map(|m| m.claim).collect();
        let made = self.make(scope, batch, claimed.materials).await;
        if made.is_err()
            && let Err(error) = self.release(&claims, self.clock.now_ms()).await
        {
            tracing::debug!(%error, "claims could not be given back");
        }
        made.map(|batch| Claimed::Batch(Box::new(batch)))
    }

    /// Gives claims back; what somebody else took over is theirs. What fails runs out by itself.
    pub(crate) async fn release(
        &self,
        claims: &[Claim],
        retry_at: Millis,
    ) -> Result<(), LedgerError> {
        let mut done = Ok(());
        for claim in claims {
            match self.ledger.release(*claim, retry_at).await {
                Ok(()) | Err(LedgerError::Fenced(_)) => {}
                Err(error) => done = Err(error),
            }
        }
        done
    }

    /// The batch of what was claimed.
    async fn make(
        &self,
        scope: Scope,
        batch: BatchId,
        materials: Vec<SampleMaterial>,
    ) -> Result<ClaimedBatch, LedgerError> {
        let versions = self.ledger.versions(Some(&scope), MEMORY_REPORTS).await?;
        let newest = Window {
            limit: MEMORY_REPORTS,
            before: None,
        };
        let refusals = self.versions.refusals(Some(&scope), newest).await?;
        let parent = versions.first().map(|record| record.policy.clone());
        let accepts = Accepts {
            staleness_max_versions: self.config.staleness_max_versions,
            row_tokens_max: self.config.row_tokens_max,
            method: self.config.method,
        };
        let mut filtered = filter(materials, accepts);
        self.hold_out(&mut filtered, parent.is_none()).await?;
        let left_out = filtered.left_out.len();
        self.settle(&filtered.left_out).await?;
        let held = self
            .versions
            .held_out(&scope, self.base, self.config.gate.held_out_max)
            .await?;
        let (probes, golden) = self.probes(&scope, &filtered.good, &held).await?;
        let replayed = self.replayed(&scope).await?;
        let first_tries = self.first_tries(&filtered.good).await?;
        Ok(ClaimedBatch {
            batch,
            replayed,
            first_tries,
            parent,
            memory: memory_in(&versions, &refusals),
            materials: filtered.good,
            left_out,
            probes,
            golden,
            held_out: held.iter().filter_map(|held| self.judged(held)).collect(),
        })
    }

    /// What was trained before and the method can learn from again.
    async fn replayed(&self, scope: &Scope) -> Result<Vec<Replayed>, LedgerError> {
        let uses = self.config.method.uses(true, false).hint
            || self.config.method.uses(true, true).correction;
        if self.config.replay_turns == 0 || !uses {
            return Ok(Vec::new());
        }
        let query = ReplayQuery {
            scope: scope.clone(),
            limit: self.config.replay_turns,
            fingerprint: self.fingerprint.clone(),
            base: self.base,
        };
        self.ledger.replay(&query).await
    }

    /// What the batch's second tries tried again.
    async fn first_tries(&self, batch: &[SampleMaterial]) -> Result<Vec<FirstTry>, LedgerError> {
        let mut found = Vec::new();
        if !self.config.method.retells() {
            return Ok(found);
        }
        for material in batch {
            found.extend(self.first_try(material).await?);
        }
        Ok(found)
    }

    /// Back along the conversation while what was said met a complaint. Held-out turns stay out of
    /// training with their prompts too, and so do those of another base model, whose tokens are
    /// other words.
    async fn first_try(&self, second: &SampleMaterial) -> Result<Option<FirstTry>, LedgerError> {
        let mut first = None;
        let mut before = second.turn.parent;
        for _ in 0..TRIES_MAX {
            let Some(id) = before else { break };
            let view = self.ledger.turn_if_readable(id).await?;
            let Some(view) = view.filter(|view| view.extent != Extent::Row) else {
                break;
            };
            let score = view.verdict.and_then(|verdict| verdict.score);
            let Some(score) = score.filter(|score| *score < 0.0) else {
                break;
            };
            before = view.turn.parent;
            first = Some((view.turn, score));
        }
        let share = self.config.gate.held_out_share;
        let own = |turn: &hone_domain::Turn| {
            turn.scope == second.turn.scope
                && turn.base == self.base
                && !is_held_out(turn.id, share)
        };
        Ok(first
            .filter(|(turn, _)| own(turn))
            .map(|(turn, score)| FirstTry {
                second: second.claim.transition,
                turn: turn.id,
                prompt_tokens: turn.prompt_tokens,
                score,
            }))
    }

    /// Takes a fixed share of the turns out, to compare candidates on. A turn that its user
    /// corrected or said something about is not among them: a person's words always teach. Nor is what came from
    /// outside, nor an episode of a rollout, which has held-out tasks for that, nor a branch, which shares its prompt
    /// with another turn, nor all of a scope's first batch, so that the first thumb of somebody new is not in vain.
    async fn hold_out(&self, filtered: &mut Filtered, is_first: bool) -> Result<(), LedgerError> {
        let share = self.config.gate.held_out_share;
        let (mut kept, mut held) = (Vec::with_capacity(filtered.good.len()), Vec::new());
        for material in std::mem::take(&mut filtered.good) {
            let id = material.turn.id;
            let keeps = !is_held_out(id, share)
                || !material.turn.completion.has_logprobs()
                || material.turn.origin == Origin::Rollout
                || material.hint.is_some()
                || self.is_corrected(id).await?;
            if keeps { &mut kept } else { &mut held }.push(material);
        }
        if kept.is_empty() && is_first {
            std::mem::swap(&mut kept, &mut held);
        }
        let held = held.into_iter().map(|m| (m.claim, Reason::HeldOut));
        filtered.left_out.extend(held);
        filtered.good = kept;
        Ok(())
    }

    async fn is_corrected(&self, turn: TurnId) -> Result<bool, LedgerError> {
        let view = self.ledger.turn_if_readable(turn).await?;
        let feedback = view.map(|view| view.feedback).unwrap_or_default();
        Ok(feedback.iter().any(|said| said.correction.is_some()))
    }

    /// A held-out turn as the gate compares on it; none where it is too long.
    fn judged(&self, held: &HeldOut) -> Option<Judged> {
        let (prompt, completion) = (&held.turn.prompt_tokens, held.turn.completion.tokens());
        let fits = prompt.len() + completion.len() <= self.config.row_tokens_max;
        (fits && !prompt.is_empty() && !completion.is_empty()).then(|| Judged {
            tokens: [prompt, completion].concat(),
            start: prompt.len(),
            score: held.score.clamp(-1.0, 1.0),
        })
    }

    fn order(&self, scope: &Scope, batch: BatchId) -> SampleClaim {
        SampleClaim {
            scope: scope.clone(),
            limit: self.config.batch_turns,
            queue_cap: self.config.queue_turns_max,
            staleness_max_versions: self.config.staleness_max_versions,
            source_share_max: self.config.source_share_max,
            fingerprint: self.fingerprint.clone(),
            base: self.base,
            attempts_max: self.config.attempts_max,
            batch,
            lease_ms: self.config.lease_ms,
            now_ms: self.clock.now_ms(),
        }
    }

    /// Settles what may not train.
    async fn settle(&self, left_out: &[(Claim, Reason)]) -> Result<(), LedgerError> {
        let mut reasons: Vec<Reason> = left_out.iter().map(|(_, reason)| *reason).collect();
        reasons.sort_unstable();
        reasons.dedup();
        for reason in reasons {
            let claims = left_out.iter().filter(|(_, r)| *r == reason);
            let claims: Vec<Claim> = claims.map(|(claim, _)| *claim).collect();
            self.ledger.settle_claims(&claims, reason).await?;
        }
        Ok(())
    }

    /// Fixed prompts and how many they are, then prompts of the scope that are not in the batch:
    /// held-out ones first, and of these such as begin a conversation, which cannot state what the
    /// user taught in it; then the newest others. A scope that has no others is probed with the
    /// batch's own.
    async fn probes(
        &self,
        scope: &Scope,
        batch: &[SampleMaterial],
        held: &[HeldOut],
    ) -> Result<(Vec<Vec<Token>>, usize), LedgerError> {
        let gate = &self.config.gate;
        let fits =
            |prompt: &[Token]| !prompt.is_empty() && prompt.len() <= gate.probe_prompt_tokens_max;
        let golden = self
            .golden
            .iter()
            .filter(|p| fits(p))
            .take(gate.probe_golden);
        let mut probes: Vec<Vec<Token>> = golden.cloned().collect();
        let golden = probes.len();
        let most = golden + gate.probe_recent;
        let (first, later): (Vec<&HeldOut>, Vec<&HeldOut>) =
            held.iter().partition(|held| held.turn.parent.is_none());
        for held in first.into_iter().chain(later) {
            let prompt = &held.turn.prompt_tokens;
            if probes.len() < most && fits(prompt) && !probes.contains(prompt) {
                probes.push(prompt.clone());
            }
        }
        let inside: Vec<TurnId> = batch.iter().map(|m| m.turn.id).collect();
        let recent = self
            .ledger
            .turns(Some(scope), batch.len() + 2 * gate.probe_recent)
            .await?;
        for row in recent.iter().filter(|row| !inside.contains(&row.id)) {
            if probes.len() >= most {
                break;
            }
            let turn = self
                .ledger
                .turn_if_readable(row.id)
                .await?
                .map(|view| view.turn);
            let turn = turn.filter(|turn| turn.base == self.base);
            let prompt = turn.map(|turn| turn.prompt_tokens).unwrap_or_default();
            if fits(&prompt) && !probes.contains(&prompt) {
                probes.push(prompt);
            }
        }
        let own = batch
            .iter()
            .map(|m| &m.turn.prompt_tokens)
            .filter(|p| fits(p));
        for prompt in own {
            if probes.len() >= most {
                break;
            }
            if !probes.contains(prompt) {
                probes.push(prompt.clone());
            }
        }
        Ok((probes, golden))
    }
}

/// What the newest report with a memory says. A scope has one job at a time, so a candidate that
/// was trained from a version, or from a later one, was refused after that was published.
fn memory_in(versions: &[PolicyRecord], refusals: &[RefusalRecord]) -> Option<Memory> {
    let read = |report: &Value| serde_json::from_value(report.get("memory")?.clone()).ok();
    let published = versions
        .iter()
        .find_map(|record| Some((record.policy.version, read(&record.report)?)));
    let refused = refusals
        .iter()
        .find_map(|record| Some((record.parent, read(&record.report)?)));
    match (published, refused) {
        (Some((version, memory)), Some((parent, _))) if parent < version => Some(memory),
        (_, Some((_, memory))) | (Some((_, memory)), None) => Some(memory),
        (None, None) => None,
    }
}
