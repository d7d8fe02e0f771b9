//! Branches: further answers from an exact place in one that was given. Their prompt is the tokens of the first one's
//! prompt and those of its completion up to that place; nothing is tokenised anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use hone_domain::{
    Ask, BranchOf, Collect, MemoryMode, Origin, Part, PolicyChoice, PolicyVersion, RequestId,
    Sampling, ServeError, SessionId, Token, Turn, Wanted,
};
use hone_monitor::telemetry::Parent;
use tokio::time::timeout;

use super::conduct::{Choice, Ended, Piece};
use super::request::{PromptSource, Request};
use super::{FairPermit, InferenceService, OpenError};

/// How an answer is tried again.
#[derive(Clone, Debug)]
pub struct Branching {
    /// The HTTP request.
    pub id: RequestId,
    /// The keeper of an owner who is an agent.
    pub keeper: Option<String>,
    /// The span of the client that it belongs to.
    pub parent: Option<Parent>,
    /// Which version goes on.
    pub policy: PolicyChoice,
    /// How many tokens of the answer stay; no more than it has.
    pub position: u32,
    /// How many continuations.
    pub n: u32,
    /// How to sample.
    pub sampling: Sampling,
    /// Most tokens of each.
    pub max_tokens: u32,
}

/// Continuations on their way.
#[derive(Debug)]
pub struct Branches {
    /// Their session.
    pub session: SessionId,
    /// One each.
    pub choices: Vec<Choice>,
    /// What scores the tokens that stay; none where none do.
    pub scoring: Option<Ask>,
    /// Held while they are computed.
    pub place: FairPermit,
}

/// A continuation.
#[derive(Debug)]
pub struct Branched {
    /// Which of them.
    pub index: u32,
    /// What was sampled, without what ends it.
    pub text: String,
    /// Its end, and what became of its record.
    pub ended: Ended,
}

impl InferenceService {
    /// What may be kept of continuations of a turn's answer.
    pub fn collects_branches(&self, turn: &Turn) -> Collect {
        let wanted = Wanted {
            policy: PolicyChoice::Newest,
            store: true,
            despite_store_false: false,
            kind: turn.kind,
            session: turn.session,
        };
        self.rules.collect(&turn.owner, &turn.scope, &wanted)
    }

    /// The last tokens of a completion that end it; none of them can stay in a branch.
    pub fn end_of(&self, turn: &Turn) -> usize {
        self.ends_of(turn.completion.tokens())
    }

    /// How many of these tokens, the last ones, end an answer.
    pub(super) fn ends_of(&self, tokens: &[Token]) -> usize {
        let ends = &self.backend.capabilities().end_tokens;
        usize::from(tokens.last().is_some_and(|token| ends.contains(token)))
    }

    /// Asks for continuations, once there is a place for them.
    ///
    /// # Errors
    /// They could not be asked for.
    pub async fn branch(
        self: &Arc<Self>,
        turn: &Turn,
        how: Branching,
    ) -> Result<Branches, OpenError> {
        let counts_as = how.keeper.as_deref().unwrap_or(&turn.owner);
        let entering = self.branching.enter(counts_as, how.n as usize);
        let place = timeout(self.limits.completion_timeout, entering).await;
        let place = place.map_err(|_| ServeError::Late)?;
        let place = place.map_err(OpenError::broken)?;
        let kept = how.position as usize;
        let opened = self.open(self.continuing(turn, how)).await?;
        let scoring = opened.scoring.map(|mut ask| {
            // Of the prompt's tokens only those of this answer.
            let mut tokens = std::mem::take(&mut ask.prompt_tokens);
            tokens.append(&mut ask.given);
            ask.given = tokens.split_off(tokens.len() - kept);
            ask.prompt_tokens = tokens;
            ask
        });
        Ok(Branches {
            session: opened.session,
            choices: opened.choices,
            scoring,
            place,
        })
    }

    fn continuing(&self, turn: &Turn, how: Branching) -> Request {
        let kept: &[Token] = &turn.completion.tokens()[..how.position as usize];
        let (_, earlier) = turn.asked_and_prefix();
        let prefix_tokens = earlier.len() + kept.len();
        Request {
            id: how.id,
            owner: turn.owner.clone(),
            keeper: how.keeper,
            scope: turn.scope.clone(),
            source: turn.admission.source.clone(),
            policy: how.policy,
            // A key that nobody used yet begins a session, whatever the messages resemble.
            session_key: Some(format!("branch_{}", self.ids.next())),
            origin: Origin::Rollout,
            kind: Some(turn.kind),
            continues: None,
            done: false,
            store: true,
            despite_store_false: false,
            memory: Some(MemoryMode::Off),
            messages: turn.messages.clone(),
            prompt: PromptSource::Tokens([&turn.prompt_tokens[..], kept].concat()),
            n: how.n,
            first_index: 0,
            sampling: how.sampling,
            max_tokens: Some(how.max_tokens),
            stops: Vec::new(),
            ignore_end: false,
            prediction: None,
            prompt_logprobs: (!kept.is_empty()).then_some(0),
            single_call: false,
            shape: None,
            form_members: None,
            metadata: BTreeMap::new(),
            parent: how.parent,
            checks: Vec::new(),
            episode: None,
            branch: Some(BranchOf {
                turn: turn.id,
                position: how.position,
                prefix_tokens: u32::try_from(prefix_tokens).unwrap_or(u32::MAX),
            }),
        }
    }

    /// Log-probs of the tokens that stay, at temperature 1 with nothing cut, by the version that goes on.
    ///
    /// # Errors
    /// They could not be computed.
    pub async fn branch_logprobs(
        &self,
        scoring: Option<Ask>,
        by: PolicyVersion,
    ) -> Result<Vec<f32>, ServeError> {
        let Some(ask) = scoring else {
            return Ok(Vec::new());
        };
        let scored = self.score(ask, by).await?;
        let scored = scored.ok_or_else(|| {
            ServeError::Internal("another version scored what a branch goes on from".to_owned())
        })?;
        Ok(scored.into_iter().map(|token| token.logprob).collect())
    }
}

impl Branched {
    /// Follows a continuation to its end.
    ///
    /// # Errors
    /// It failed.
    pub async fn of(mut choice: Choice) -> Result<Self, ServeError> {
        let mut text = String::new();
        while let Some(piece) = choice.pieces.recv().await {
            match piece {
                Piece::Started { .. } => {}
                Piece::Token(_, _, parts) | Piece::Rest(parts) => {
                    text.extend(parts.into_iter().map(written));
                }
                Piece::Failed(error) => return Err(error),
                Piece::Ended(ended) => {
                    return Ok(Self {
                        index: choice.index,
                        text,
                        ended,
                    });
                }
            }
        }
        Err(ServeError::Internal("the engine broke off".to_owned()))
    }
}

/// A part's text: a branch's completion is not taken apart, so all of it is content.
fn written(part: Part) -> String {
    match part {
        Part::Reasoning(text) | Part::Content(text) | Part::CallBegun(text) => text,
        Part::Arguments(text) => text,
    }
}
