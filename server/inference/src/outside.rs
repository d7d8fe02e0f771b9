//! Trajectories from outside: the assistant messages of a conversation that was had elsewhere, as turns with the
//! tokens that the served model would have said them in, and without log-probs, which nothing here knows.

use std::sync::Arc;

use hone_domain::{
    Admission, Collect, Completion, Digest, Message, Origin, PolicyVersion, RequestId, Role,
    Sampling, SessionId, StopReason, Token, Turn, TurnId, VersionSpan, uuid_of,
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
enum Names<'a> {
    Drawn(&'a InferenceService),
    Made(Digest),
}

impl Names<'_> {
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
            let names = name.map_or(Names::Drawn(inference), Names::Made);
            inference.turns_of(&request, &names)
        })
        .await
    }

    fn turns_of(&self, request: &Request, names: &Names<'_>) -> Outside {
        let session = SessionId(names.id(0));
        let admitted = self
            .rules
            .admit(&request.owner, &request.scope, request.wanted(session));
        let newest = self.policies.get().newest(&request.scope).cloned();
        let mut outside = Outside {
            session,
            turns: Vec::new(),
            unusable: Vec::new(),
            collect: admitted.collect,
        };
        let sampled_by = newest.filter(|policy| !policy.is_base());
        let now_ms = self.clock.now_ms();
        let answers = request.messages.iter().enumerate();
        let answers = answers.filter(|(_, message)| message.role == Role::Assistant);
        for ((at, _), number) in answers.zip(1..) {
            let said = match self.said(request, at) {
                Ok(said) => said,
                Err(why) => {
                    outside.unusable.push((at, why));
                    continue;
                }
            };
            let version = sampled_by
                .as_ref()
                .map_or(PolicyVersion::BASE, |p| p.version);
            let end = u32::try_from(said.completion.len()).unwrap_or(u32::MAX);
            outside.turns.push(Turn {
                id: TurnId(names.id(number)),
                request: RequestId(names.id(number | REQUESTS)),
                choice_index: 0,
                group: None,
                session,
                session_key: request.session_key.clone(),
                parent: outside.turns.last().map(|turn: &Turn| turn.id),
                owner: request.owner.clone(),
                scope: request.scope.clone(),
                origin: Origin::Outside,
                kind: request.kind(),
                messages: request.messages[..at].to_vec(),
                prompt_tokens: said.prompt,
                completion: said.completion,
                completion_text: said.text,
                sampling: Sampling::default(),
                spans: vec![VersionSpan {
                    version,
                    start: 0,
                    end,
                }],
                digest: sampled_by.as_ref().map(|policy| policy.digest),
                base: self.backend.capabilities().base,
                fingerprint: self.backend.capabilities().fingerprint.clone(),
                admission: Admission {
                    source: request.source.clone(),
                    metadata: request.metadata.clone(),
                    ..Admission::default()
                },
                untrainable: admitted.untrainable,
                started_ms: now_ms,
                finished_ms: now_ms,
            });
        }
        outside
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
            text: self.language.decode(&tokens[..end]),
            prompt,
            completion: Completion::given(tokens, StopReason::EndToken),
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

/// A message in tokens.
struct Said {
    prompt: Vec<Token>,
    completion: Completion,
    text: String,
}
