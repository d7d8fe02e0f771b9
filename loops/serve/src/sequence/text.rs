//! A request's side towards its reader: sampling, text, and the turn at the end.

use std::time::Duration;

use hone_domain::{
    Ask, Collect, Completion, Delta, Digest, End, Millis, PolicyVersion, Reason, Sampling,
    SamplingMask, ServeError, StopReason, Token, TokenDelta, Turn, VersionSpan,
};
use hone_kernels::token_logprob;
use hone_nn::LogitsWanted;
use hone_nn::sample::{DrawFrom, GREEDY_BELOW, PlainDraw, Sampled};

use crate::masks::Masked;
use crate::sequence::given::not_finite;
use crate::sequence::{Sequence, Setup};
use crate::stop::Went;

/// So many sets before it are compared with a new one.
const SETS_COMPARED: usize = 64;
/// Most ids of experts recorded of one completion (16 MiB).
const EXPERT_IDS_MAX: usize = 1 << 23;
/// How long a step waits in all for masks that are not ready when the logits are; most are ready
/// long before.
pub(crate) const MASK_WAIT: Duration = Duration::from_micros(200);

impl Sequence {
    /// Notes the experts that were used where the next token is predicted.
    pub(crate) fn used_experts(&mut self, ids: &[u16]) {
        self.next_experts.clear();
        self.next_experts.extend_from_slice(ids);
    }

    /// Whether the next token can be drawn from `row` now. Where its mask takes longer than
    /// `wait`, the row is put aside and drawn from later, so that no other completion waits.
    pub(crate) fn is_ready(&mut self, row: &[f32], wait: Duration) -> bool {
        let ready = self.await_mask(wait);
        if !ready {
            self.late = Some(row.to_vec());
        }
        ready
    }

    /// Whether its logits wait for a mask.
    pub(crate) fn is_late(&self) -> bool {
        self.late.is_some()
    }

    /// Waits for the mask of the row that was put aside, at most this long; whether it is there.
    pub(crate) fn await_mask(&mut self, wait: Duration) -> bool {
        self.masked.as_mut().is_none_or(|m| m.is_ready(wait))
    }

    /// The row that was put aside, once its mask is there.
    pub(crate) fn late_row(&mut self) -> Option<Vec<f32>> {
        self.late.as_ref()?;
        let ready = self.await_mask(Duration::ZERO);
        if ready { self.late.take() } else { None }
    }

    pub(super) fn drop_late(&mut self) {
        self.late = None;
    }

    /// Takes the mask of the next token, where something rules it.
    pub(crate) fn take_mask(&mut self) -> Result<(), ServeError> {
        if let Some(masked) = &mut self.masked {
            self.params.allowed = masked.mask()?;
        }
        Ok(())
    }

    /// The draw of the next token from its logits.
    pub(crate) fn draw_from<'a>(&'a self, row: &'a [f32]) -> DrawFrom<'a> {
        DrawFrom {
            row,
            params: &self.params,
            history: &self.counts,
            position: self.completion_tokens() as u64,
        }
    }

    /// Takes what was drawn from its logits; says why the completion ended, if it did.
    pub(crate) fn accept_from(&mut self, row: &[f32], drawn: Sampled, setup: &Setup) -> Went {
        if drawn.nonfinite {
            return Err(not_finite());
        }
        let (drawn, all_but_ends) = self.without_banned(row, drawn, setup);
        // What comes next has its own, or none.
        self.params.allowed = None;
        self.take_drawn(drawn, all_but_ends, &setup.end_tokens)
    }

    /// What it wants of the logits after its next tokens: the draws where they are all, or the row.
    pub(crate) fn wanted(&self) -> LogitsWanted {
        let position = self.completion_tokens() as u64;
        match PlainDraw::of(&self.params, position) {
            Some(draw) if self.masked.as_ref().is_none_or(Masked::is_free) => {
                LogitsWanted::Draws(draw, 1 + self.drafted())
            }
            _ => LogitsWanted::Last,
        }
    }

    /// Takes a token that a device drew; says why the completion ended, if it did.
    pub(crate) fn accept(
        &mut self,
        drawn: Sampled,
        setup: &Setup,
    ) -> Result<Option<StopReason>, ServeError> {
        self.take_drawn(drawn, None, &setup.end_tokens)
    }

    /// Takes a drawn token, and what it was drawn from where that is the same for all.
    fn take_drawn(
        &mut self,
        drawn: Sampled,
        drawn_from: Option<SamplingMask>,
        end_tokens: &[Token],
    ) -> Result<Option<StopReason>, ServeError> {
        let Sampled {
            token,
            raw_logprob,
            behavior_logprob,
            kept,
            mut top,
            ..
        } = drawn;
        if self.params.top_behavior {
            // A ban on tokens may have changed its last bit.
            let own = top.iter_mut().filter(|(id, _)| *id == token);
            own.for_each(|(_, logprob)| *logprob = behavior_logprob);
        }
        self.tokens.push(token);
        self.drafts.said(token);
        self.raw.push(raw_logprob);
        self.behavior.push(behavior_logprob);
        let kept = drawn_from.or_else(|| kept.and_then(|ids| self.shared(ids)));
        self.keep(kept);
        // Past the bound nothing is added, which the end notices.
        if self.experts.len() < EXPERT_IDS_MAX {
            self.experts.extend_from_slice(&self.next_experts);
        }
        if self.penalizes {
            self.counts.push(token);
        }
        if self.completion_tokens() >= self.ask.sampling.min_tokens as usize {
            self.params.banned.clear();
        }
        if !self.ask.stop.ignore_end && end_tokens.contains(&token) {
            return Ok(Some(StopReason::EndToken));
        }
        if let Some(masked) = &mut self.masked {
            masked.drew(token);
        }
        let (text, ended) = self.ending.push(self.detok.push(token));
        self.text.push_str(&text);
        self.send(Delta::Token(TokenDelta {
            text,
            token,
            logprob: raw_logprob,
            behavior_logprob,
            top,
        }));
        if ended.is_some() {
            return Ok(ended);
        }
        Ok((self.completion_tokens() >= self.max_tokens).then_some(StopReason::Length))
    }

    /// Records a kept set, where they are not given up.
    fn keep(&mut self, kept: Option<SamplingMask>) {
        let given_up = self.kept_ids.given_up();
        self.kept.push(kept.filter(|_| !given_up));
    }

    /// These ids, or the same ones of an earlier position: within a text a grammar allows much the same
    /// everywhere. Past what [`KeptIds`] allows all sets of the completion are given up: it is answered
    /// as any other, and its turn does not train.
    fn shared(&mut self, ids: Vec<Token>) -> Option<SamplingMask> {
        if self.kept_ids.given_up() {
            return None;
        }
        let before = self.sets.iter().rev().take(SETS_COMPARED);
        if let Some(same) = before.into_iter().find(|set| ***set == *ids) {
            return Some(SamplingMask::clone(same));
        }
        if !self.kept_ids.add(ids.len()) {
            self.sets.clear();
            self.kept.fill(None);
            return None;
        }
        let set = SamplingMask::from(ids);
        self.sets.push(SamplingMask::clone(&set));
        Some(set)
    }

    /// A ban on tokens is recorded as a kept set, so that the log-prob can be recomputed from
    /// logits, temperature and kept set alone. Where a grammar allows nothing else the ban was
    /// lifted, and what was drawn from is the kept set already. What leaves out nothing but the ends
    /// comes beside the draw: it is one set for all.
    fn without_banned(
        &self,
        row: &[f32],
        mut drawn: Sampled,
        setup: &Setup,
    ) -> (Sampled, Option<SamplingMask>) {
        let params = &self.params;
        let plain = !self.penalizes && params.logit_bias.is_empty();
        if params.banned.is_empty() || params.temperature < GREEDY_BELOW || !plain {
            return (drawn, None);
        }
        let is_banned = |token: &Token| params.banned.contains(token);
        if drawn
            .kept
            .as_ref()
            .is_some_and(|kept| kept.iter().all(is_banned))
        {
            return (drawn, None);
        }
        let logprob =
            |token, kept: &[Token]| token_logprob(row, token, params.temperature, Some(kept));
        let Some(mut kept) = drawn.kept.take() else {
            let kept = setup.all_but_ends(row.len());
            drawn.behavior_logprob = logprob(drawn.token, &kept);
            return (drawn, Some(kept));
        };
        kept.retain(|token| !is_banned(token) || *token == drawn.token);
        drawn.behavior_logprob = logprob(drawn.token, &kept);
        drawn.kept = Some(kept);
        (drawn, None)
    }

    /// Text that was held back and is certain now that the completion is over.
    fn last_text(&mut self, stop: StopReason) -> String {
        if matches!(stop, StopReason::StopString | StopReason::ToolCall) {
            return String::new();
        }
        let text = self.ending.finish(self.detok.flush());
        self.text.push_str(&text);
        text
    }

    /// Sends the end. Its blocks were given back before.
    pub(crate) fn end(mut self: Box<Self>, stop: StopReason, facts: &TurnFacts) {
        let text = self.last_text(stop);
        let completion_tokens = self.take_completion();
        let logprobs = (
            std::mem::take(&mut self.behavior),
            std::mem::take(&mut self.raw),
        );
        let kept = std::mem::take(&mut self.kept);
        let mut experts = std::mem::take(&mut self.experts);
        let too_many = experts.len() >= EXPERT_IDS_MAX;
        if too_many {
            experts.clear();
        }
        let completion = Completion::new(completion_tokens, logprobs.0, logprobs.1, kept, stop)
            .and_then(|completion| completion.with_experts(experts));
        let completion = match completion {
            Ok(completion) => completion,
            Err(error) => {
                return self.send(Delta::Failed(ServeError::Internal(error.to_string())));
            }
        };
        let Self {
            ask,
            tokens,
            text: shown,
            out,
            kept_ids,
            drafts,
            ..
        } = *self;
        let collected = ask.collect == Collect::Yes && !completion.is_empty();
        let given_up = (too_many || kept_ids.given_up()).then_some(Reason::NotReplayable);
        let facts = &TurnFacts {
            untrainable: facts.untrainable.or(given_up),
            ..*facts
        };
        let version = facts.version;
        let turn =
            collected.then(|| Box::new(turn_of(ask, tokens, (completion.clone(), shown), facts)));
        // A reader that is gone wants no end.
        let _ = out.try_send(Delta::End(Box::new(End {
            stop,
            text,
            completion,
            version,
            predicted: drafts.became(),
            turn,
        })));
    }
}

/// What a backend adds to an ask to make a turn of it.
pub(crate) struct TurnFacts<'a> {
    pub(crate) base: Digest,
    pub(crate) fingerprint: &'a str,
    pub(crate) version: PolicyVersion,
    pub(crate) digest: Option<Digest>,
    pub(crate) untrainable: Option<Reason>,
    pub(crate) finished_ms: Millis,
}

/// The turn of an answered ask; `said` is the completion and its text.
pub(crate) fn turn_of(
    ask: Ask,
    prompt_tokens: Vec<Token>,
    said: (Completion, String),
    facts: &TurnFacts,
) -> Turn {
    let (completion, completion_text) = said;
    let end = u32::try_from(completion.len()).unwrap_or(u32::MAX);
    Turn {
        id: ask.turn,
        request: ask.request,
        choice_index: ask.choice_index,
        group: ask.group,
        session: ask.context.session,
        session_key: ask.context.session_key,
        parent: ask.context.parent,
        owner: ask.context.owner,
        scope: ask.scope,
        origin: ask.origin,
        kind: ask.kind,
        messages: ask.context.messages.to_vec(),
        prompt_tokens,
        completion,
        completion_text,
        sampling: Sampling {
            top_behavior: false,
            ..ask.sampling
        },
        spans: vec![VersionSpan {
            version: facts.version,
            start: 0,
            end,
        }],
        digest: facts.digest,
        base: facts.base,
        fingerprint: facts.fingerprint.to_owned(),
        admission: ask.context.admission,
        untrainable: ask.context.untrainable.or(facts.untrainable),
        started_ms: ask.context.admitted_ms,
        finished_ms: facts.finished_ms,
    }
}
