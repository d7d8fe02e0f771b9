//! The served base model as a judge: through the engine's own line like everybody, behind users, and
//! never with an adapter, so that no policy judges itself.

use std::sync::Arc;

use async_trait::async_trait;
use hone_domain::{
    Ask, AskContext, Collect, Delta, Message, Origin, PolicyChoice, Reason, RequestId, Sampling,
    Scope, ServeError, SessionId, StopRules, Token, TurnId, TurnKind,
};
use hone_judge::{CompleteOptions, Completed, Completer, CompleterError};
use hone_runtime::{Clock, Ids};
use hone_serve::{Answer, Backend};
use serde_json::Map;

use hone_inference::{Language, template_message};

/// Whose asks these are in the engine's line.
const OWNER: &str = "judge";

/// What it asks with.
#[derive(Clone)]
pub struct BaseParts {
    /// What serves.
    pub backend: Arc<dyn Backend>,
    /// Its template and tokens.
    pub language: Arc<dyn Language>,
    /// Identifiers.
    pub ids: Arc<dyn Ids>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// The base model as a judge.
pub struct Base(BaseParts);

impl Base {
    /// A judge that asks `parts.backend`.
    pub fn new(parts: BaseParts) -> Self {
        Self(parts)
    }

    fn ask(&self, messages: &[Message], options: &CompleteOptions) -> Result<Ask, CompleterError> {
        let parts = &self.0;
        let values: Vec<_> = messages.iter().map(template_message).collect();
        let text = parts.language.render(&values, None, &Map::new());
        let text = text.map_err(|error| CompleterError::Failed(error.to_string()))?;
        let tokens = parts.language.encode(&text, false);
        Ok(Ask {
            policy: PolicyChoice::Base,
            sampling: Sampling {
                temperature: options.temperature,
                seed: options.seed,
                ..parts.language.defaults()
            },
            stop: StopRules {
                max_tokens: options.max_tokens,
                ..StopRules::default()
            },
            ..ask(parts, Scope::of(OWNER, None), tokens)
        })
    }
}

/// An ask of the judge's: behind users, in its own part of the line, and leaving no turn.
pub(super) fn ask(parts: &BaseParts, scope: Scope, prompt_tokens: Vec<Token>) -> Ask {
    Ask {
        turn: TurnId(parts.ids.next()),
        request: RequestId(parts.ids.next()),
        choice_index: 0,
        group: None,
        scope,
        policy: PolicyChoice::Newest,
        origin: Origin::Judge,
        kind: TurnKind::Side,
        prompt_tokens,
        sampling: Sampling::default(),
        stop: StopRules::default(),
        form: None,
        given: Vec::new(),
        predicted: Arc::default(),
        collect: Collect::No(Reason::SideTurn),
        context: AskContext {
            session: SessionId(parts.ids.next()),
            session_key: None,
            parent: None,
            owner: OWNER.to_owned(),
            keeper: None,
            messages: Default::default(),
            admission: Default::default(),
            untrainable: None,
            admitted_ms: parts.clock.now_ms(),
        },
    }
}

fn refused(error: &ServeError) -> CompleterError {
    match error {
        ServeError::Overloaded { .. } | ServeError::Memory => {
            CompleterError::Busy(error.to_string())
        }
        _ => CompleterError::Failed(error.to_string()),
    }
}

async fn read(mut answer: Answer, prompt_tokens: u64) -> Result<Completed, CompleterError> {
    let mut words = String::new();
    while let Some(delta) = answer.deltas.recv().await {
        match delta {
            Delta::Started { .. } => {}
            Delta::Token(token) => words.push_str(&token.text),
            Delta::Failed(error) => return Err(refused(&error)),
            Delta::End(end) => {
                words.push_str(&end.text);
                return Ok(Completed {
                    words,
                    tokens: Some((prompt_tokens, end.completion.len() as u64)),
                });
            }
        }
    }
    Err(CompleterError::Failed("the engine broke off".to_owned()))
}

#[async_trait]
impl Completer for Base {
    async fn complete(
        &self,
        messages: &[Message],
        options: CompleteOptions,
    ) -> Result<Completed, CompleterError> {
        let ask = self.ask(messages, &options)?;
        let prompt_tokens = ask.prompt_tokens.len() as u64;
        // Dropping the answer, as the deadline does, withdraws the ask.
        let answer = self.0.backend.ask(ask);
        let answer = answer.map_err(|error| refused(&error))?;
        read(answer, prompt_tokens).await
    }
}
