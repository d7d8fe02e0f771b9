//! Trajectories from outside: the assistant messages of a conversation that was had elsewhere, as turns with the
//! tokens that the served model would have said them in, and without log-probs, which nothing here knows.

use std::sync::Arc;

use hone_domain::{
    Admission, Collect, Completion, Digest, Message, Origin, Policy, PolicyVersion, Reason,
    RequestId, Role, Sampling, SessionId, StopReason, Token, Turn, TurnId, VersionSpan, uuid_of,
};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{InferenceService, OpenError, PromptSource, Request};

/// A trajectory as turns of a session of its own.
#[derive(Debug)]
pub struct Outside {
    /// The session.
    pub session: SessionId,
    /// A turn for each assistant message that can be one; each continues the one before.
    pub turns: Vec<Turn>,
    /// Assistant messages that cannot: where they stand, and why.
    pub unusable: Vec<(usize, Unusable)>,
    /// Whether turns are recorded.
    pub collect: Collect,
}

/// Why an assistant message cannot be a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Nothing stands before it.
    NoPrompt,
    /// The model's template writes what stands before it differently once it is there, or writes no end behind it.
    Template,
    /// Prompt and message are longer than the model's context.
    TooLong,
}

impl Unusable {
    /// The name that clients see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoPrompt => "no_prompt",
            Self::Template => "template",
            Self::TooLong => "too_long",
        }
    }
}

/// What numbers of requests begin with: each turn has one of its own.
const REQUESTS: u64 = 1 << 32;

/// Ids of a trajectory: drawn, or made of its name, so that the same one comes under the same ids.
pub(super) enum Names<'a> {
    Drawn(&'a InferenceService),
    Made(Digest),
}

impl<'a> Names<'a> {
    /// Made of a name, where there is one.
    pub(super) fn of(inference: &'a InferenceService, name: Option<Digest>) -> Self {
        name.map_or(Self::Drawn(inference), Self::Made)
    }

    fn id(&self, number: u64) -> Uuid {
        match self {
            Self::Drawn(inference) => inference.ids.next(),
            Self::Made(name) => {
                let mut hash = Sha256::new();
                hash.update(name.0);
                hash.update(number.to_le_bytes());
                uuid_of(&hash.finalize().into())
            }
        }
    }
}

impl InferenceService {
    /// The turns of a conversation that was had elsewhere; nothing is asked, recorded or remembered. A `name` makes
    /// their ids.
    ///
    /// # Errors
    /// There is no place for the work.
    pub async fn outside(
        self: &Arc<Self>,
        request: Request,
        name: Option<Digest>,
    ) -> Result<Outside, OpenError> {
        let owner = request.counts_as().to_owned();
        self.apart(&owner, usize::MAX, move |inference: &Self| {
            let names = Names::of(inference, name);
            inference.turns_of(&request, &names)
        })
        .await
    }

    fn turns_of(&self, request: &Request, names: &Names<'_>) -> Outside {
        let mut taken = self.taking(request, names);
        let served = self.policies.get().newest(&request.scope).cloned();
        let answers = request.messages.iter().enumerate();
        let answers = answers.filter(|(_, message)| message.role == Role::Assistant);
        for ((at, _), number) in answers.zip(1..) {
            match self.said(request, at) {
                Ok(said) => taken.push(number, said, served.as_ref()),
                Err(why) => taken.outside.unusable.push((at, why)),
            }
        }
        taken.outside
    }

    /// A trajectory without turns as yet.
    pub(super) fn taking<'a>(&'a self, request: &'a Request, names: &'a Names<'a>) -> Taking<'a> {
        let session = SessionId(names.id(0));
        let admitted = self
            .rules
            .admit(&request.owner, &request.scope, request.wanted(session));
        Taking {
            inference: self,
            request,
            names,
            untrainable: admitted.untrainable,
            outside: Outside {
                session,
                turns: Vec::new(),
                unusable: Vec::new(),
                collect: admitted.collect,
            },
        }
    }

    /// The assistant message at `at` as the model would have said it: what the template adds to the prompt before
    /// it, up to the token that ends a completion.
    fn said(&self, request: &Request, at: usize) -> Result<Said, Unusable> {
        let messages = &request.messages;
        if at == 0 {
            return Err(Unusable::NoPrompt);
        }
        let before = self.template(request, &messages[..at])?;
        let with = self.template(request, &messages[..=at])?;
        let rest = with.strip_prefix(&*before).ok_or(Unusable::Template)?;
        let mut tokens = self.language.encode(rest, false);
        let able = self.backend.capabilities();
        let end = tokens
            .iter()
            .position(|token| able.end_tokens.contains(token));
        let end = end.filter(|end| *end > 0).ok_or(Unusable::Template)?;
        tokens.truncate(end + 1);
        let prompt = self.language.encode(&before, false);
        if prompt.is_empty() {
            return Err(Unusable::NoPrompt);
        }
        if prompt.len() + tokens.len() > able.max_positions {
            return Err(Unusable::TooLong);
        }
        Ok(Said {
            messages: messages[..at].to_vec(),
            text: self.language.decode(&tokens[..end]),
            prompt,
            completion: Completion::given(tokens, StopReason::EndToken),
            sampling: Sampling::default(),
        })
    }

    fn template(&self, request: &Request, messages: &[Message]) -> Result<String, Unusable> {
        let plain = (None, &Map::new());
        let (tools, extra): (Option<&[Value]>, &Map<String, Value>) = match &request.prompt {
            PromptSource::Chat { tools, extra } => (tools.as_deref(), extra),
            PromptSource::Text(_) | PromptSource::Tokens(_) => plain,
        };
        let text = self.rendered(messages, &[], tools, extra);
        text.map_err(|_| Unusable::Template)
    }
}

/// A trajectory whose turns are being made.
pub(super) struct Taking<'a> {
    inference: &'a InferenceService,
    request: &'a Request,
    names: &'a Names<'a>,
    untrainable: Option<Reason>,
    pub(super) outside: Outside,
}

/// A call of a model in tokens.
pub(super) struct Said {
    pub(super) messages: Vec<Message>,
    pub(super) prompt: Vec<Token>,
    pub(super) completion: Completion,
    pub(super) text: String,
    pub(super) sampling: Sampling,
}

impl Taking<'_> {
    /// Adds a turn that continues the one before. `by` is the version that sampled it, or in whose time it came; none is
    /// the base model.
    pub(super) fn push(&mut self, number: u64, said: Said, by: Option<&Policy>) {
        let (request, capabilities) = (self.request, self.inference.backend.capabilities());
        let now_ms = self.inference.clock.now_ms();
        let turns = &mut self.outside.turns;
        let end = u32::try_from(said.completion.len()).unwrap_or(u32::MAX);
        turns.push(Turn {
            id: TurnId(self.names.id(number)),
            request: RequestId(self.names.id(number | REQUESTS)),
            choice_index: 0,
            group: None,
            session: self.outside.session,
            session_key: request.session_key.clone(),
            parent: turns.last().map(|turn: &Turn| turn.id),
            owner: request.owner.clone(),
            scope: request.scope.clone(),
            origin: Origin::Outside,
            kind: request.kind(),
            messages: said.messages,
            prompt_tokens: said.prompt,
            completion: said.completion,
            completion_text: said.text,
            sampling: said.sampling,
            spans: vec![VersionSpan {
                version: by.map_or(PolicyVersion::BASE, |policy| policy.version),
                start: 0,
                end,
            }],
            digest: by
                .filter(|policy| !policy.is_base())
                .map(|policy| policy.digest),
            base: capabilities.base,
            fingerprint: capabilities.fingerprint.clone(),
            admission: Admission {
                source: request.source.clone(),
                metadata: request.metadata.clone(),
                ..Admission::default()
            },
            untrainable: self.untrainable,
            started_ms: now_ms,
            finished_ms: now_ms,
        });
    }
}
