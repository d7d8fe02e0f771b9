//! Log-probs of a prompt: the engine scores its tokens as it scores any completion that is given.

use std::sync::Arc;

use hone_domain::{
    Admitted, Ask, Collect, Delta, End, Millis, PolicyVersion, Reason, Sampling, ServeError,
    StopRules, Token, TokenDelta, TurnId,
};
use tokio::time::timeout;

use super::prepare::Prepared;
use super::request::{PromptSource, Request};
use super::{InferenceService, OpenError};

/// Most log-probs of a prompt: every token has its own and its alternatives'.
const LOGPROBS_MAX: usize = 1 << 20;

impl InferenceService {
    /// An ask that scores a request's prompt: all of its tokens but the first, which nothing predicts. It is
    /// paid like another prompt.
    pub(super) fn scoring(
        &self,
        request: &Request,
        prepared: &Prepared,
        admitted: &Admitted,
        admitted_ms: Millis,
        top: u8,
    ) -> Result<Ask, OpenError> {
        let most = LOGPROBS_MAX / (usize::from(top) + 1);
        if prepared.tokens.len() > most {
            return Err(OpenError::Shape {
                param: "prompt_logprobs".to_owned(),
                message: format!(
                    "with {top} alternatives a prompt has at most {most} tokens, not {}; lower prompt_logprobs",
                    prepared.tokens.len()
                ),
            });
        }
        let how = (TurnId(self.ids.next()), admitted, admitted_ms);
        let mut ask = self.first_ask(request, prepared, how, None)?;
        ask.given = ask.prompt_tokens.split_off(1);
        ask.group = None;
        ask.form = None;
        ask.predicted = Arc::default();
        ask.collect = Collect::No(Reason::SideTurn);
        ask.stop = StopRules {
            max_tokens: 1,
            ..StopRules::default()
        };
        ask.sampling = Sampling {
            top_logprobs: top,
            ..Sampling::default()
        };
        if let Some(usage) = self.rate_limiter.usage_recorder(request.id) {
            usage.record(prepared.tokens.len());
        }
        Ok(ask)
    }

    /// Has a prompt scored by a version: one entry for each of its tokens but the first. None where another
    /// version would.
    pub async fn score(
        &self,
        ask: Ask,
        by: PolicyVersion,
    ) -> Result<Option<Vec<TokenDelta>>, ServeError> {
        let scored = self.scored(ask, by).await?;
        Ok(scored.map(|(tokens, _)| tokens))
    }

    /// As [`Self::score`], with the end of what is scored.
    pub(super) async fn scored(
        &self,
        ask: Ask,
        by: PolicyVersion,
    ) -> Result<Option<(Vec<TokenDelta>, End)>, ServeError> {
        let mut answer = self.backend.ask(ask)?;
        let scoring = async {
            let mut scored = Vec::new();
            while let Some(delta) = answer.deltas.recv().await {
                match delta {
                    Delta::Started { version, .. } if version != by => return Ok(None),
                    Delta::Started { .. } => {}
                    Delta::Token(token) => scored.push(token),
                    Delta::End(end) => return Ok(Some((scored, *end))),
                    Delta::Failed(error) => return Err(error),
                }
            }
            Err(ServeError::Internal(
                "a prompt was not scored to its end".to_owned(),
            ))
        };
        let scored = timeout(self.limits.completion_timeout, scoring).await;
        scored.unwrap_or(Err(ServeError::Late))
    }
}
impl InferenceService {
    /// The tokens of a request's prompt, asking and remembering nothing.
    pub async fn tokens_of(self: &Arc<Self>, request: Request) -> Result<Vec<Token>, OpenError> {
        let owner = request.counts_as().to_owned();
        let work = move |inference: &Self| {
            Ok(
                match (&request.prompt, inference.text_of(&request, &[], &[])?) {
                    (PromptSource::Tokens(tokens), _) => tokens.clone(),
                    (PromptSource::Text(_), Some(text)) => inference.language.encode(&text, true),
                    (_, text) => inference.language.encode(&text.unwrap_or_default(), false),
                },
            )
        };
        self.apart(&owner, usize::MAX, work).await?
    }
}
