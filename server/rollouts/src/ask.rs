//! One step of an agent: an ask like everybody's, behind users.

use std::collections::BTreeMap;
use std::sync::Arc;

use hone_api_types::tools::Offer;
use hone_domain::{
    JobReason, Message, Origin, ParsedOutput, Policy, PolicyChoice, PolicyVersion, RequestId,
    Sampling, ServeError, ToolCall, TurnKind,
};
use hone_inference::{
    EpisodeAccess, EpisodeTerms, OpenError, Piece, PromptSource, Request, Shape, call_id,
};
use hone_ledger::PolicyRecord;
use hone_rollout::{Episode, Played};
use serde_json::{Map, Value, json};

use crate::Players;

/// What a model answered.
pub(crate) struct Answered {
    pub(crate) said: ParsedOutput,
    /// The message as the conversation goes on with it.
    pub(crate) message: Message,
}

/// Why it did not.
pub(crate) enum Unanswered {
    /// The conversation is as long as the model can read.
    Full,
    /// Something failed that is no fault of the agent.
    Broken(String),
}

impl Unanswered {
    fn of(error: &OpenError) -> Self {
        match error {
            OpenError::Serve(error) => Self::of_serve(error),
            other => Self::Broken(other.to_string()),
        }
    }

    fn of_serve(error: &ServeError) -> Self {
        match error {
            ServeError::TooLong { .. } => Self::Full,
            other => Self::Broken(other.to_string()),
        }
    }
}

/// What stays the same over the steps of an episode.
pub(crate) struct Asking<'a> {
    players: &'a Players,
    episode: &'a Arc<EpisodeAccess>,
    tools: Option<Vec<Value>>,
    shape: Option<Shape>,
}

impl<'a> Asking<'a> {
    /// What an episode is asked with; `tools` are demanded.
    pub(crate) fn new(
        players: &'a Players,
        episode: &'a Arc<EpisodeAccess>,
        tools: Option<Vec<Value>>,
    ) -> Result<Self, Played> {
        let shape = match &tools {
            None => None,
            Some(tools) => {
                let choice = json!("required");
                let offer = Offer::of(tools, Some(&choice), Some(false));
                let style = players.inference.language.manner().calls;
                let shape = offer.and_then(|offer| match offer {
                    Some(offer) => offer.shape(style, None),
                    None => Ok(None),
                });
                shape.map_err(|error| no_model(error.to_string()))?
            }
        };
        Ok(Self {
            players,
            episode,
            tools,
            shape,
        })
    }

    fn request(&self, messages: Vec<Message>) -> Request {
        let id = self.players.inference.ids.next();
        Request {
            id: RequestId(id),
            owner: self.episode.terms.owner.clone(),
            keeper: None,
            scope: self.episode.terms.scope.clone(),
            source: None,
            policy: self.episode.terms.policy.clone(),
            session_key: None,
            origin: Origin::Rollout,
            kind: Some(TurnKind::Main),
            continues: None,
            done: false,
            store: true,
            despite_store_false: false,
            memory: None,
            messages,
            prompt: PromptSource::Chat {
                tools: self.tools.clone(),
                extra: Map::new(),
            },
            n: 1,
            first_index: 0,
            sampling: Sampling::default(),
            max_tokens: None,
            stops: Vec::new(),
            ignore_end: false,
            prediction: None,
            prompt_logprobs: None,
            single_call: self.tools.is_some(),
            shape: self.shape.clone(),
            form_members: None,
            metadata: BTreeMap::new(),
            parent: None,
            checks: Vec::new(),
            branch: None,
            episode: None,
        }
    }

    /// Asks for the next step.
    pub(crate) async fn ask(&self, messages: Vec<Message>) -> Result<Answered, Unanswered> {
        let inference = &self.players.inference;
        let mut request = self.request(messages);
        let bound = request.bind(self.episode);
        bound.map_err(|used_up| Unanswered::Broken(used_up.to_string()))?;
        let opened = inference.open(request).await;
        let mut opened = opened.map_err(|error| Unanswered::of(&error))?;
        let Some(mut choice) = opened.choices.pop() else {
            return Err(Unanswered::Broken("nobody was asked".to_owned()));
        };
        let mut said = ParsedOutput::default();
        while let Some(piece) = choice.pieces.recv().await {
            match piece {
                Piece::Started { .. } => {}
                Piece::Token(_, _, parts) | Piece::Rest(parts) => said.add(parts),
                Piece::Failed(error) => return Err(Unanswered::of_serve(&error)),
                Piece::Ended(ended) => {
                    let calls = said.calls.iter().enumerate().map(|(at, call)| ToolCall {
                        id: call_id(ended.turn, at),
                        name: call.name.clone(),
                        arguments: call.arguments.clone(),
                    });
                    let mut message = Message::text(hone_domain::Role::Assistant, &*said.content);
                    message.tool_calls = calls.collect();
                    return Ok(Answered { message, said });
                }
            }
        }
        Err(Unanswered::Broken("the answer broke off".to_owned()))
    }
}

/// The model cannot be asked.
pub(crate) fn no_model(what: String) -> Played {
    Played::Broken {
        reason: JobReason::Model,
        what,
    }
}

impl Players {
    /// What an episode's agent asks with.
    pub(crate) async fn access(&self, episode: &Episode) -> Result<Arc<EpisodeAccess>, Played> {
        let policy = self.policy(episode).await.map_err(no_model)?;
        let (high, low) = self.inference.ids.next().as_u64_pair();
        let metadata = [
            ("episode_id", episode.job.id.prefixed()),
            ("rollout_id", episode.rollout.prefixed()),
        ];
        Ok(Arc::new(EpisodeAccess::new(EpisodeTerms {
            owner: episode.owner.clone(),
            scope: episode.scope.clone(),
            policy,
            session_key: format!("episode-{}-{}", episode.job.id, episode.job.fence),
            temperature: episode.how.temperature,
            tokens_max: episode.how.tokens_max,
            steps_max: episode.how.steps_max,
            seed: high.rotate_left(32) ^ low,
            metadata: metadata.map(|(name, id)| (name.to_owned(), id)).into(),
        })))
    }

    /// Which version answers.
    async fn policy(&self, episode: &Episode) -> Result<PolicyChoice, String> {
        let Some(version) = episode.how.version else {
            return Ok(PolicyChoice::Newest);
        };
        if PolicyVersion(version) == PolicyVersion::BASE {
            return Ok(PolicyChoice::Base);
        }
        let found = self
            .versions
            .version(&episode.scope, PolicyVersion(version), 0);
        let found = found.await.map_err(|error| error.to_string())?;
        let record = found.map(|view| view.record);
        let policy: Option<Policy> = record
            .filter(PolicyRecord::can_answer)
            .map(|record| record.policy);
        let policy = policy.ok_or_else(|| format!("there is no version {version} to answer"))?;
        Ok(PolicyChoice::of(&policy))
    }
}
