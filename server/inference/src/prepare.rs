//! From a checked request to asks: render, bind, reuse recorded tokens, ask.

use std::sync::Arc;

use hone_collect::{Input, Observed};
use hone_domain::{
    Admitted, Ask, AskContext, BindRequest, Binding, Collect, Form, Grammar, GroupId, MemoryUse,
    Message, Millis, Origin, OutputFormat, PolicyChoice, Reason, Reasoning, ServeError, SessionId,
    StopRules, Token, TurnId,
};
use hone_serve::HeldGrammar;
use serde_json::{Map, Value};

use super::arguments::Offered;
use super::conduct::{Choice, Job, conduct};
use super::memory::{Block, Shown, with_blocks};
use super::request::{PromptSource, Request};
use super::shape::Calls;
use super::takes::whole_functions;
use super::{InferenceService, LanguageError, OpenError, Takes};

/// Bytes of a token that is long; of a prediction no more is looked at than this per token.
const TOKEN_BYTES: usize = 16;

/// An opened request.
#[derive(Debug)]
pub struct Opened {
    /// The session it was bound to.
    pub session: SessionId,
    /// The prompt.
    pub prompt_tokens: Arc<[Token]>,
    /// One per completion.
    pub choices: Vec<Choice>,
    /// What scores the prompt, where its log-probs are wanted; for [`InferenceService::score`].
    pub scoring: Option<Ask>,
}

pub(super) struct Prepared {
    text: Option<Arc<str>>,
    pub(super) tokens: Vec<Token>,
    predicted: Arc<[Token]>,
    binding: Binding,
    memory: MemoryUse,
    output_format: OutputFormat,
    /// Held until the ask, which is no place to compile it.
    form: Option<(Form, HeldGrammar)>,
}

impl InferenceService {
    /// Renders, binds, asks. Long prompts are worked on off the async threads.
    pub async fn open(self: &Arc<Self>, request: Request) -> Result<Opened, OpenError> {
        let episode = request.episode.clone();
        let opened = self.opened(request).await;
        if let Some(episode) = episode {
            match &opened {
                Ok(opened) => episode.opened(opened.session),
                Err(OpenError::Serve(error)) => episode.failed(error),
                // The agent's own mistake.
                Err(_) => {}
            }
        }
        opened
    }

    async fn opened(self: &Arc<Self>, mut request: Request) -> Result<Opened, OpenError> {
        if request.kind.is_none() {
            let habits = self.index().habits();
            request.kind = Some(habits.kind(&request.look()));
        }
        let admitted_ms = self.clock.now_ms();
        let chars = match request.shape {
            // A large grammar takes a moment to compile as well.
            Some(_) => usize::MAX,
            None => request.chars(),
        };
        let owner = request.counts_as().to_owned();
        let prepare = move |inference: &Self| {
            let prepared = inference.prepare(&request, admitted_ms);
            (request, prepared)
        };
        let (request, prepared) = self.apart(&owner, chars, prepare).await?;
        self.ask_all(&request, prepared?, admitted_ms)
    }

    fn prepare(&self, request: &Request, now_ms: Millis) -> Result<Prepared, OpenError> {
        let text = self.text_of(request, &[], &[])?;
        let mut output_format = self.output_format(request, text.as_deref());
        let form = self.form(request, output_format.reasoning)?;
        let calls = request.shape.as_ref().map(|shape| shape.calls);
        output_format.held = form.is_some() && calls != Some(Calls::Untold);
        let trail = self.trail(&request.scope, &request.messages);
        let new_session = SessionId(self.ids.next());
        let wanted = request.wanted(new_session);
        let collect = self.rules.collect(&request.owner, &request.scope, &wanted);
        let asked = BindRequest {
            owner: request.counts_as(),
            scope: &request.scope,
            session_key: request.session_key.as_deref(),
            kind: request.kind(),
            continues: request.continues,
            keeps: collect == Collect::Yes,
            messages: &request.messages,
            new_session,
            now_ms,
        };
        let binding = self.index().bind_by(&asked, &trail);
        self.counters.bound(binding.how);
        let (shown, text) = self.text_shown(request, &binding, text);
        let text = match self.text_as_sampled(request, &binding, &shown) {
            Some(sampled) => Some(sampled),
            None => text,
        };
        let tokens = match (&request.prompt, &text) {
            (PromptSource::Tokens(tokens), _) => tokens.clone(),
            (PromptSource::Text(_), Some(text)) => self.language.encode(text, true),
            (_, text) => self.encode_reusing(text.as_deref().unwrap_or_default(), &binding),
        };
        if tokens.is_empty() {
            return Err(OpenError::Empty);
        }
        Ok(Prepared {
            output_format,
            form,
            text: text.map(Arc::from),
            tokens,
            predicted: self.predicted(request),
            binding,
            memory: shown.memory,
        })
    }

    /// Tokens of what is predicted, no more than an answer can have.
    fn predicted(&self, request: &Request) -> Arc<[Token]> {
        let Some(text) = &request.prediction else {
            return Arc::default();
        };
        let most = self.backend.capabilities().max_positions;
        let bytes = text.floor_char_boundary(most.saturating_mul(TOKEN_BYTES));
        let mut tokens = self.language.encode(&text[..bytes], false);
        tokens.truncate(most);
        tokens.into()
    }

    /// The prompt's text; none where the request gave tokens, or no message that a block belongs to.
    pub(super) fn text_of(
        &self,
        request: &Request,
        recorded: &[(usize, Arc<str>)],
        blocks: &[Block],
    ) -> Result<Option<String>, OpenError> {
        Ok(match &request.prompt {
            PromptSource::Chat { tools, extra } => {
                let tools = tools.as_deref();
                if blocks.is_empty() {
                    return Ok(Some(self.rendered(
                        &request.messages,
                        recorded,
                        tools,
                        extra,
                    )?));
                }
                let Some(messages) = with_blocks(&request.messages, blocks) else {
                    return Ok(None);
                };
                Some(self.rendered(&messages, recorded, tools, extra)?)
            }
            PromptSource::Text(text) => Some(text.clone()),
            PromptSource::Tokens(_) => None,
        })
    }

    /// A conversation through the model's template. Where the template refuses what it usually takes, the
    /// conversation is told once more in the form that every template takes. So are its functions: one may
    /// come without a description or parameters, of which some templates write a part without looking.
    pub fn rendered(
        &self,
        messages: &[Message],
        recorded: &[(usize, Arc<str>)],
        tools: Option<&[Value]>,
        extra: &Map<String, Value>,
    ) -> Result<String, LanguageError> {
        let rendered = |takes: Takes, tools: Option<&[Value]>| {
            let values = takes.for_template(messages, recorded);
            self.language.render(&values, tools, extra)
        };
        let takes = self.takes();
        let either = |tools: Option<&[Value]>| {
            rendered(takes, tools)
                .or_else(|refused| rendered(Takes::LEAST, tools).map_err(|_| refused))
        };
        // Functions last: they stand first in a prompt, which stays as it was where messages are the trouble.
        either(tools).or_else(|refused| {
            let whole = tools.map(whole_functions);
            either(whole.as_deref()).map_err(|_| refused)
        })
    }

    /// The prompt with the session's completions as they were sampled, where that continues the
    /// recorded transcript: calls come back re-serialised, and their tokens would differ.
    fn text_as_sampled(
        &self,
        request: &Request,
        binding: &Binding,
        shown: &Shown,
    ) -> Option<String> {
        let transcript = binding.transcript.as_ref()?;
        if binding.recorded.is_empty() {
            return None;
        }
        let text = self.text_of(request, &binding.recorded, &shown.blocks);
        let text = text.ok()??;
        text.starts_with(&*transcript.text).then_some(text)
    }

    /// What the completion is held to, which the backend has found to be sound. A backend that holds
    /// nothing leaves calls that are not demanded to the model.
    fn form(
        &self,
        request: &Request,
        reasoning: Reasoning,
    ) -> Result<Option<(Form, HeldGrammar)>, OpenError> {
        let Some(shape) = &request.shape else {
            return Ok(None);
        };
        if matches!(shape.calls, Calls::Alone(_)) && !self.backend.capabilities().forms {
            return Ok(None);
        }
        let how = (reasoning, request.single_call);
        let check = |grammar: &Grammar| self.backend.check_grammar(grammar);
        shape.checked(how, check).map(Some)
    }

    /// What the completion's text may hold besides content.
    fn output_format(&self, request: &Request, prompt: Option<&str>) -> OutputFormat {
        let PromptSource::Chat { tools, .. } = &request.prompt else {
            return OutputFormat::default();
        };
        let manner = self.language.manner();
        OutputFormat {
            calls: manner.calls.filter(|_| tools.is_some()),
            reasoning: Reasoning::of(manner.reasons, prompt.unwrap_or_default()),
            single: request.single_call,
            held: false,
        }
    }

    /// Tokens of a rendered prompt. Where its text begins with the recorded text of the turn it
    /// continues, that turn's own tokens are taken, because re-tokenising a sampled text may give
    /// other tokens than were sampled.
    fn encode_reusing(&self, text: &str, binding: &Binding) -> Vec<Token> {
        let Some(transcript) = &binding.transcript else {
            return self.language.encode(text, false);
        };
        let Some(rest) = text.strip_prefix(&*transcript.text) else {
            self.counters.prompts_mismatched.add(1);
            return self.language.encode(text, false);
        };
        self.counters.prompts_reused.add(1);
        self.counters
            .tokens_reused
            .add(transcript.tokens.len() as u64);
        let mut tokens = transcript.tokens.to_vec();
        tokens.extend(self.language.encode(rest, false));
        tokens
    }

    fn ask_all(
        self: &Arc<Self>,
        request: &Request,
        prepared: Prepared,
        admitted_ms: Millis,
    ) -> Result<Opened, OpenError> {
        let mut turns: Vec<TurnId> = (0..request.n).map(|_| TurnId(self.ids.next())).collect();
        if let ([only], Some(cut)) = (&mut turns[..], prepared.binding.retry_of) {
            *only = cut;
        }
        let admitted = self.admit(request, prepared.binding.session);
        let scoring = request.prompt_logprobs;
        let scoring =
            scoring.map(|top| self.scoring(request, &prepared, &admitted, admitted_ms, top));
        let scoring = scoring.transpose()?;
        let asked = self.ask_each(request, &prepared, &turns, &admitted, admitted_ms);
        // What is not to be kept of a request is not kept as what it answers, either.
        if admitted.collect == Collect::Yes {
            // Binding names a next state once, so it is handed on even if this ask was refused.
            let next_turn = asked.is_ok().then(|| turns[0]);
            self.observe(request, &prepared.binding, next_turn, admitted_ms);
        }
        Ok(Opened {
            session: prepared.binding.session,
            prompt_tokens: prepared.tokens.into(),
            choices: asked?,
            scoring,
        })
    }

    /// Who answers and what may be kept. Where a version is on trial, the session decides whether
    /// it is the one that answers.
    fn admit(&self, request: &Request, session: SessionId) -> Admitted {
        let wanted = request.wanted(session);
        let mut admitted = match request.origin {
            Origin::Rollout => self.rules.admit_all(&request.owner, &request.scope, wanted),
            _ => self.rules.admit(&request.owner, &request.scope, wanted),
        };
        if admitted.policy == PolicyChoice::Newest {
            admitted.policy = self.policies.get().choice(&request.scope, session);
        }
        admitted
    }

    fn ask_each(
        self: &Arc<Self>,
        request: &Request,
        prepared: &Prepared,
        turns: &[TurnId],
        admitted: &Admitted,
        admitted_ms: Millis,
    ) -> Result<Vec<Choice>, ServeError> {
        let offered = request.offered(prepared.output_format.calls);
        let Some(first) = turns.first() else {
            return Ok(Vec::new());
        };
        let how = (*first, admitted, admitted_ms);
        let asked = self.first_ask(request, prepared, how, offered.as_deref())?;
        let mut jobs = Vec::with_capacity(turns.len());
        for (turn, at) in turns.iter().zip(0u32..) {
            let mut ask = asked.clone();
            ask.turn = *turn;
            ask.choice_index += at;
            ask.sampling.seed = ask.sampling.seed.wrapping_add(u64::from(at));
            jobs.push(Job {
                usage: self.rate_limiter.usage_recorder(request.id),
                prompt_text: prepared.text.clone(),
                output_format: prepared.output_format,
                offered: offered.clone(),
                collect: ask.collect,
                done: request.done && at + 1 == request.n,
                parent: request.parent,
                episode: request.episode.clone(),
                ask: ask.clone(),
                answer: self.backend.ask(ask)?,
            });
        }
        // The prompt is paid once, and only where every ask was taken.
        if let Some(usage) = jobs.first().and_then(|job| job.usage.as_ref()) {
            usage.record(prepared.tokens.len());
        }
        Ok(jobs
            .into_iter()
            .map(|job| conduct(self.clone(), job))
            .collect())
    }

    /// The first choice's ask; those of the others differ in their turn, place and seed.
    pub(super) fn first_ask(
        &self,
        request: &Request,
        prepared: &Prepared,
        (turn, admitted, admitted_ms): (TurnId, &Admitted, Millis),
        offered: Option<&Offered>,
    ) -> Result<Ask, ServeError> {
        let max_tokens = self.room_for(request.max_tokens, prepared.tokens.len())?;
        let collect = match admitted.collect {
            Collect::Yes if self.collect.is_none() => Collect::No(Reason::NoCollector),
            collect => collect,
        };
        Ok(Ask {
            turn,
            request: request.id,
            choice_index: request.first_index,
            group: (request.n > 1).then(|| GroupId(self.ids.next())),
            scope: request.scope.clone(),
            policy: admitted.policy.clone(),
            origin: request.origin,
            kind: request.kind(),
            prompt_tokens: prepared.tokens.clone(),
            sampling: request.sampling.clone(),
            stop: StopRules {
                max_tokens,
                strings: request.stops.clone(),
                ignore_end: request.ignore_end,
                output_format: OutputFormat {
                    // A form ends by itself behind its only call.
                    single: request.single_call && prepared.form.is_none(),
                    ..prepared.output_format
                },
                functions: offered.map(Offered::names).unwrap_or_default(),
            },
            form: prepared.form.as_ref().map(|(form, _)| form.clone()),
            given: Vec::new(),
            predicted: prepared.predicted.clone(),
            collect,
            context: AskContext {
                session: prepared.binding.session,
                session_key: request.session_key.clone(),
                parent: prepared.binding.parent,
                owner: request.owner.clone(),
                keeper: request.keeper.clone(),
                messages: request.messages.clone().into(),
                admission: request.admission(admitted.holdback, prepared.memory.clone()),
                untrainable: admitted.untrainable,
                admitted_ms,
            },
        })
    }

    /// The completion's token limit: what was asked for, cut to what the context leaves.
    fn room_for(&self, wanted: Option<u32>, prompt_tokens: usize) -> Result<u32, ServeError> {
        let able = self.backend.capabilities();
        let max_positions = able.max_positions;
        let room = max_positions.saturating_sub(prompt_tokens);
        if room == 0 {
            return Err(ServeError::TooLong {
                prompt_tokens,
                max_positions,
                model_positions: able.model_positions,
            });
        }
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        Ok(wanted.unwrap_or(room).min(room))
    }

    fn observe(
        &self,
        request: &Request,
        binding: &Binding,
        next_turn: Option<TurnId>,
        at_ms: Millis,
    ) {
        let (Some(parent), Some(collect)) = (binding.parent, &self.collect) else {
            return;
        };
        // What tests say of the end tells how good a step of an episode was, not what it was answered.
        if binding.next_state.is_empty() || request.origin == Origin::Rollout {
            return;
        }
        let observed = Observed {
            parent,
            session: binding.session,
            scope: request.scope.clone(),
            next_state: binding.next_state.clone(),
            next_turn,
            at_ms,
        };
        if collect.send(Input::Next(observed)).is_err() {
            self.counters.notes_dropped.add(1);
        }
    }
}
