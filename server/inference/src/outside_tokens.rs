//! Trajectories from outside in token ids. Where a version served here drew the tokens elsewhere, their log-probs are held
//! against what it gives them here, so that a policy gradient does not learn from what another model, or another way of
//! sampling, said.

use std::sync::Arc;

use hone_domain::{
    Ask, AskContext, Collect, Completion, Digest, Message, Origin, Policy, PolicyChoice,
    PolicyVersion, Reason, RequestId, Role, Sampling, ServeError, SessionId, StopReason, StopRules,
    Token, TurnId, TurnKind,
};

use super::outside::{Names, Outside, Said};
use super::{InferenceService, OpenError, Request};

/// Nats by which log-probs from elsewhere may differ from those computed here, on average over a completion. Weights of
/// eight bits differ from f32 by 0.07 (docs/LOG.md), another model's by more than 1.
const DIFFERENCE_MAX: f32 = 0.3;

/// A call of the model in token ids.
#[derive(Clone, Debug)]
pub struct TokenTurn {
    /// Its prompt.
    pub prompt: Vec<Token>,
    /// What was sampled.
    pub completion: Vec<Token>,
    /// How, where that is known.
    pub drawn: Option<Drawn>,
}

/// How tokens were drawn, with nothing cut.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// By which version; none is the base model.
    pub by: Option<Policy>,
    /// At which temperature.
    pub temperature: f32,
    /// The log-prob of each token.
    pub logprobs: Vec<f32>,
}

/// Something is wrong with a field of a turn.
fn wrong(at: usize, field: &str, message: String) -> OpenError {
    OpenError::Shape {
        param: format!("turns[{at}].{field}"),
        message,
    }
}

/// With nothing cut.
fn sampling_at(temperature: f32) -> Sampling {
    Sampling {
        temperature,
        ..Sampling::default()
    }
}

impl InferenceService {
    /// The turns of a trajectory in token ids; nothing is recorded or remembered. A `name` makes their ids.
    ///
    /// # Errors
    /// A token or a log-prob is not one of this model, or they could not be checked.
    pub async fn outside_tokens(
        self: &Arc<Self>,
        request: Request,
        name: Option<Digest>,
        turns: Vec<TokenTurn>,
    ) -> Result<Outside, OpenError> {
        for (at, turn) in turns.iter().enumerate() {
            self.check_tokens(at, turn)?;
        }
        let names = Names::of(self, name);
        let mut taken = self.taking(&request, &names);
        for ((at, turn), number) in turns.into_iter().enumerate().zip(1..) {
            let newest = || self.policies.get().newest(&request.scope).cloned();
            let by = turn
                .drawn
                .as_ref()
                .map_or_else(newest, |drawn| drawn.by.clone());
            let completion = match (&turn.drawn, taken.outside.collect) {
                (Some(drawn), Collect::Yes) => self.checked(at, &request, &turn, drawn).await?,
                _ => Completion::given(turn.completion.clone(), self.stop_of(&turn)),
            };
            let text = self.language.decode(&turn.prompt);
            let words = turn.completion.len() - self.ends_of(&turn.completion);
            let temperature = turn.drawn.as_ref().map_or(1.0, |drawn| drawn.temperature);
            let said = Said {
                sampling: sampling_at(temperature),
                messages: vec![Message::text(Role::User, text)],
                text: self.language.decode(&turn.completion[..words]),
                prompt: turn.prompt,
                completion,
            };
            taken.push(number, said, by.as_ref());
        }
        Ok(taken.outside)
    }

    fn check_tokens(&self, at: usize, turn: &TokenTurn) -> Result<(), OpenError> {
        let able = self.backend.capabilities();
        for (field, tokens) in [
            ("prompt_ids", &turn.prompt),
            ("completion_ids", &turn.completion),
        ] {
            if let Some(token) = tokens.iter().find(|token| **token as usize >= able.vocab) {
                let why = format!(
                    "{token} is no token of this model, which has {}",
                    able.vocab
                );
                return Err(wrong(at, field, why));
            }
        }
        let tokens = turn.prompt.len() + turn.completion.len();
        if tokens > able.max_positions {
            let why = format!(
                "{tokens} tokens with the prompt are more than the model's context of {}",
                able.max_positions
            );
            return Err(wrong(at, "completion_ids", why));
        }
        Ok(())
    }

    fn stop_of(&self, turn: &TokenTurn) -> StopReason {
        match self.ends_of(&turn.completion) {
            0 => StopReason::Length,
            _ => StopReason::EndToken,
        }
    }

    /// The completion with its log-probs, once they were held against those computed here.
    async fn checked(
        &self,
        at: usize,
        request: &Request,
        turn: &TokenTurn,
        drawn: &Drawn,
    ) -> Result<Completion, OpenError> {
        let by = drawn.by.as_ref();
        let by = by.map_or(PolicyVersion::BASE, |policy| policy.version);
        let scored = self.scored(self.ask_of(request, turn, drawn), by).await?;
        let (_, end) = scored.ok_or_else(|| {
            ServeError::Internal("another version scored what was drawn elsewhere".to_owned())
        })?;
        let here = end.completion;
        let pairs = drawn.logprobs.iter().zip(here.behavior_logprobs());
        let sum: f32 = pairs.map(|(there, here)| (there - here).abs()).sum();
        let difference = sum / here.len().max(1) as f32;
        if difference.is_nan() || difference > DIFFERENCE_MAX {
            let why = format!(
                "these log-probs are {difference:.2} nats per token from what this version gives the tokens here, at most \
                 {DIFFERENCE_MAX} is taken: were they drawn by another version or model, at another temperature, or with \
                 top_p or top_k? Leave logprobs out to have the turn imitated"
            );
            return Err(wrong(at, "logprobs", why));
        }
        let completion = Completion::new(
            turn.completion.clone(),
            drawn.logprobs.clone(),
            here.raw_logprobs().to_vec(),
            vec![None; turn.completion.len()],
            self.stop_of(turn),
        );
        let completion = completion.and_then(|whole| whole.with_experts(here.experts().to_vec()));
        completion.map_err(|error| wrong(at, "logprobs", error.to_string()))
    }

    fn ask_of(&self, request: &Request, turn: &TokenTurn, drawn: &Drawn) -> Ask {
        Ask {
            turn: TurnId(self.ids.next()),
            request: RequestId(self.ids.next()),
            choice_index: 0,
            group: None,
            scope: request.scope.clone(),
            policy: drawn
                .by
                .as_ref()
                .map_or(PolicyChoice::Base, PolicyChoice::of),
            origin: Origin::Outside,
            kind: TurnKind::Side,
            prompt_tokens: turn.prompt.clone(),
            form: None,
            given: turn.completion.clone(),
            predicted: Arc::default(),
            sampling: sampling_at(drawn.temperature),
            stop: StopRules {
                max_tokens: 1,
                ..StopRules::default()
            },
            collect: Collect::No(Reason::SideTurn),
            context: AskContext {
                session: SessionId(self.ids.next()),
                session_key: None,
                parent: None,
                owner: request.owner.clone(),
                keeper: request.keeper.clone(),
                messages: Arc::default(),
                admission: Default::default(),
                untrainable: None,
                admitted_ms: self.clock.now_ms(),
            },
        }
    }
}
