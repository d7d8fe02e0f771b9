//! Replies: what the engine says, and what went wrong, as each API tells it, whole or as a stream of events. One merge
//! of all choices serves every API.
//!
//! Never: paths and rights, what is stored.

pub mod anthropic;
pub mod error;
pub mod generate;
pub mod messages_errors;
pub mod openai;
pub mod responses;
pub mod sse;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use futures::Stream;
use hone_domain::{ParsedOutput, Part, PolicyVersion, Predicted, ServeError, Token, TokenDelta};
use hone_runtime::Clock;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use hone_api_types::capture::{Capture, Captured, PromptLogprobs, experts, masks, spans, told};
use hone_api_types::foreign::Aliases;
use hone_api_types::replies::{
    CompletionDetails, HoneNote, Logprob, Logprobs, PromptDetails, TokenNames, Usage, finish_reason,
};
use hone_inference::{Choice, Ended, Language, Piece};

use error::ApiError;

/// Which of the APIs is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// `/inference/v1/generate` and `/generate`.
    Tokens,
}

impl Dialect {
    /// What stands before the turn in a reply's id.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Text => "cmpl-",
            Self::Responses => "resp_",
            Self::Messages => "msg_",
            Self::Tokens => "gen-",
        }
    }
}

/// What every part of a reply repeats or depends on.
pub struct Frame {
    /// The API.
    pub dialect: Dialect,
    /// How the client knows the functions that the model is shown.
    pub aliases: Aliases,
    /// The request's id as its client sees it.
    pub request: String,
    /// The reply's id.
    pub id: String,
    /// Seconds since the Unix epoch.
    pub created: i64,
    /// For the moment of the end.
    pub clock: Arc<dyn Clock>,
    /// The name the client asked for.
    pub model: String,
    /// First half of the system fingerprint.
    pub base: String,
    /// Token texts.
    pub language: Arc<dyn Language>,
    /// Tokens that end a turn; they are not reported.
    pub end_tokens: Vec<Token>,
    /// How many alternatives to report; none leaves log-probs out.
    pub logprobs: Option<u8>,
    /// Whether a stream ends with a usage chunk.
    pub include_usage: bool,
    /// What a trainer asked for.
    pub capture: Capture,
    /// Experts that a token uses in a layer of them.
    pub experts_chosen: usize,
    /// Length of all prompts.
    pub prompt_tokens: usize,
    /// Choices of each prompt; they stand side by side.
    pub choices_each: usize,
    /// The prompts.
    pub prompts: Vec<Arc<[Token]>>,
    /// Log-probs of the prompts, where they are reported.
    pub prompt_logprobs: Vec<PromptLogprobs>,
}

/// How a reply began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begun {
    /// The version of the first choice.
    pub version: PolicyVersion,
    /// Prompt tokens that were not computed again, of the prompts whose first choice has begun.
    pub cached_tokens: u32,
}

impl Begun {
    /// Another choice has begun. A prompt counts once, by its first choice: the others find what that
    /// one computed.
    fn add(&mut self, frame: &Frame, at: usize, cached_tokens: u32) {
        if at.is_multiple_of(frame.choices_each) {
            self.cached_tokens += cached_tokens;
        }
    }
}

/// How many tokens were sampled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled {
    /// All.
    pub tokens: usize,
    /// Those of reasoning.
    pub reasoning: usize,
    /// What became of what was predicted, where something was.
    pub predicted: Option<Predicted>,
}

impl Sampled {
    /// Adds a choice.
    fn add(&mut self, ended: &Ended) {
        self.tokens += ended.completion.len();
        self.reasoning += ended.reasoning_tokens;
        if let Some(predicted) = ended.predicted {
            self.predicted.get_or_insert_default().add(predicted);
        }
    }
}

impl Frame {
    /// Base model and version.
    pub fn fingerprint(&self, version: PolicyVersion) -> String {
        format!("{}@v{version}", self.base)
    }

    /// The log-probs of a token, where they are reported.
    fn logprob(&self, delta: TokenDelta) -> Option<Logprob> {
        self.logprobs?;
        // Beside token ids there is one for each of them.
        let unsaid = delta.text.is_empty() && self.end_tokens.contains(&delta.token);
        if unsaid && !self.capture.token_ids {
            return None;
        }
        Some(Logprob {
            token: delta.token,
            logprob: match self.capture.raw {
                true => delta.logprob,
                false => delta.behavior_logprob,
            },
            top: delta.top,
        })
    }

    /// Log-probs of the tokens of an ended choice.
    fn logprobs_of<'a>(&self, ended: &'a Ended) -> &'a [f32] {
        match self.capture.raw {
            true => ended.completion.raw_logprobs(),
            false => ended.completion.behavior_logprobs(),
        }
    }

    /// Log-probs of the tokens of an ended choice behind the first `told`, such as the end token, which says
    /// nothing. Beside token ids there is one for each of them.
    fn logprobs_behind(&self, ended: &Ended, told: usize) -> Vec<Logprob> {
        if self.logprobs.is_none() || !self.capture.token_ids {
            return Vec::new();
        }
        let tokens = ended.completion.tokens().iter().copied();
        let rest = tokens.zip(self.logprobs_of(ended)).skip(told);
        let rest = rest.map(|(token, logprob)| Logprob {
            token,
            logprob: *logprob,
            top: Vec::new(),
        });
        rest.collect()
    }

    /// The prompt of the choice at this place.
    fn prompt_of(&self, at: usize) -> &[Token] {
        let prompt = self.prompts.get(at / self.choices_each.max(1));
        prompt.map_or(&[], |prompt| prompt)
    }

    /// Log-probs of that prompt, where they were asked for.
    fn scored_of(&self, at: usize) -> Option<&PromptLogprobs> {
        self.prompt_logprobs.get(at / self.choices_each.max(1))
    }

    /// What a trainer asked for, of an ended choice of which `told` tokens were told before.
    fn captured(&self, at: usize, told: usize, ended: &Ended) -> Captured {
        let (wants, completion) = (&self.capture, &ended.completion);
        let ids = || completion.tokens().get(told..).unwrap_or_default().to_vec();
        let is_first = wants.token_ids && self.dialect == Dialect::Text && told == 0;
        let in_choice = wants.prompt_in_choice || is_first;
        Captured {
            prompt_token_ids: in_choice.then(|| self.prompt_of(at).to_vec()),
            token_ids: wants.token_ids.then(ids),
            response_token_ids: wants.prompt_in_choice.then(|| completion.tokens().to_vec()),
            token_logprobs: None,
            weight_versions: wants.versions.then(|| spans(ended.version, completion)),
            sampling_mask: wants.masks.then(|| masks(completion)),
            routed_experts: wants
                .experts
                .then(|| experts(completion, self.experts_chosen)),
            meta_info: wants.meta_info.then(|| self.meta_info(at, ended)),
            prompt_logprobs: match self.dialect {
                Dialect::Text => self.scored_of(at).cloned(),
                _ => None,
            },
        }
    }

    /// What a trainer asked for, of the only choice of a response or a message.
    fn captured_alone(&self, ended: &Ended) -> Captured {
        let token_ids = self.capture.token_ids;
        Captured {
            prompt_token_ids: token_ids.then(|| self.prompt_of(0).to_vec()),
            token_logprobs: token_ids
                .then(|| self.logprobs_of(ended).iter().copied().map(told).collect()),
            prompt_logprobs: self.scored_of(0).cloned(),
            ..self.captured(0, 0, ended)
        }
    }

    /// SGLang's summary of a choice.
    fn meta_info(&self, at: usize, ended: &Ended) -> Value {
        let reason = match finish_reason(ended.stop) {
            "length" => json!({"type": "length", "length": ended.completion.len()}),
            reason => json!({"type": reason}),
        };
        json!({
            "id": ended.turn.prefixed(),
            "finish_reason": reason,
            "prompt_tokens": self.prompt_of(at).len(),
            "completion_tokens": ended.completion.len(),
            "weight_version": ended.version.to_string(),
            "weight_versions": spans(ended.version, &ended.completion),
        })
    }

    /// How log-probs name tokens.
    fn names(&self) -> TokenNames {
        TokenNames {
            language: self.language.clone(),
            as_ids: self.capture.as_ids,
        }
    }

    /// Log-probs as they are written.
    fn told(&self, tokens: Vec<Logprob>) -> Logprobs {
        Logprobs::new(self.names(), tokens)
    }

    /// Token counts.
    pub fn usage(&self, begun: Begun, sampled: Sampled) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: sampled.tokens,
            total_tokens: self.prompt_tokens + sampled.tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: begun.cached_tokens as usize,
            },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: sampled.reasoning,
                accepted_prediction_tokens: sampled.predicted.map(|predicted| predicted.accepted),
                rejected_prediction_tokens: sampled.predicted.map(|predicted| predicted.rejected),
            },
        }
    }
}

/// All choices of a reply as one sequence of pieces.
pub struct Merged {
    choices: Vec<(Choice, bool)>,
    next: usize,
    begun: Option<Begun>,
}

impl Merged {
    /// Of these choices.
    pub fn new(choices: Vec<Choice>) -> Self {
        Self {
            choices: choices.into_iter().map(|c| (c, false)).collect(),
            next: 0,
            begun: None,
        }
    }

    /// Waits until the first choice is admitted. Who gave up waiting may wait again.
    pub async fn begin(&mut self) -> Result<Begun, ServeError> {
        if let Some(begun) = self.begun {
            return Ok(begun);
        }
        let (first, _) = &mut self.choices[0];
        match first.pieces.recv().await {
            Some(Piece::Started {
                version,
                cached_tokens,
            }) => {
                let begun = Begun {
                    version,
                    cached_tokens,
                };
                Ok(*self.begun.insert(begun))
            }
            Some(Piece::Failed(error)) => Err(error),
            Some(_) | None => Err(ServeError::Internal("it ended before it began".to_owned())),
        }
    }

    /// The next piece with its choice's place; none when every choice has ended.
    pub async fn next(&mut self) -> Option<(usize, Piece)> {
        poll_fn(|cx| {
            let count = self.choices.len();
            let mut open = false;
            for step in 0..count {
                let at = (self.next + step) % count;
                let (choice, ended) = &mut self.choices[at];
                if *ended {
                    continue;
                }
                open = true;
                let Poll::Ready(piece) = choice.pieces.poll_recv(cx) else {
                    continue;
                };
                let piece = piece.unwrap_or_else(|| {
                    Piece::Failed(ServeError::Internal("it ended without an end".to_owned()))
                });
                *ended = matches!(piece, Piece::Ended(_) | Piece::Failed(_));
                self.next = at + 1;
                return Poll::Ready(Some((at, piece)));
            }
            if open {
                Poll::Pending
            } else {
                Poll::Ready(None)
            }
        })
        .await
    }

    /// The choices, by place.
    fn choices(&self) -> impl Iterator<Item = &Choice> {
        self.choices.iter().map(|(choice, _)| choice)
    }
}

/// One choice, from its beginning to its end.
#[derive(Default)]
pub struct Gathered {
    /// What was said.
    pub parsed: ParsedOutput,
    /// Length of the content in characters.
    chars: usize,
    logprobs: Vec<Entry>,
    /// Tokens that came one by one.
    told: usize,
    /// Its prompt tokens that were not computed again; of the first choice, [`Begun`] has them.
    cached_tokens: u32,
    /// Its end.
    pub ended: Option<Ended>,
}

/// The log-probs of a token.
struct Entry {
    logprob: Logprob,
    /// Where its text begins in the content, in characters.
    offset: usize,
    /// Whether it belongs to the reasoning.
    is_thought: bool,
}

impl Gathered {
    fn add(&mut self, parts: Vec<Part>) {
        let said = parts.iter().map(|part| match part {
            Part::Content(text) => text.chars().count(),
            Part::Reasoning(_) | Part::CallBegun(_) | Part::Arguments(_) => 0,
        });
        self.chars += said.sum::<usize>();
        self.parsed.add(parts);
    }
}

/// Gathers every choice to its end.
pub async fn gather(frame: &Frame, merged: &mut Merged) -> Result<Vec<Gathered>, ApiError> {
    let mut all: Vec<Gathered> = merged.choices().map(|_| Gathered::default()).collect();
    while let Some((at, piece)) = merged.next().await {
        let gathered = &mut all[at];
        match piece {
            Piece::Started { cached_tokens, .. } => gathered.cached_tokens = cached_tokens,
            Piece::Token(delta, is_thought, parts) => {
                gathered.told += 1;
                if let Some(logprob) = frame.logprob(delta) {
                    gathered.logprobs.push(Entry {
                        logprob,
                        offset: gathered.chars,
                        is_thought,
                    });
                }
                gathered.add(parts);
            }
            Piece::Rest(parts) => gathered.add(parts),
            Piece::Ended(ended) => {
                let rest = frame.logprobs_behind(&ended, gathered.told);
                let offset = gathered.chars;
                gathered
                    .logprobs
                    .extend(rest.into_iter().map(|logprob| Entry {
                        logprob,
                        offset,
                        is_thought: false,
                    }));
                gathered.ended = Some(ended);
            }
            Piece::Failed(error) => return Err(error.into()),
        }
    }
    Ok(all)
}

/// The note about all choices, and how many tokens they have.
pub fn note_of(all: &[Gathered]) -> Result<(HoneNote, Sampled), ApiError> {
    let mut notes: VecDeque<HoneNote> = VecDeque::new();
    let mut sampled = Sampled::default();
    for ended in all.iter().filter_map(|g| g.ended.as_ref()) {
        notes.push_back(HoneNote::of(ended));
        sampled.add(ended);
    }
    let Some(mut hone) = notes.pop_front() else {
        return Err(ApiError::Internal("no choice came to an end".to_owned()));
    };
    hone.others = notes.into();
    Ok((hone, sampled))
}

/// Adds the fields of what a trainer asked for to an object.
fn add(object: &mut Value, captured: &Captured) {
    if let (Value::Object(object), Ok(Value::Object(fields))) =
        (object, serde_json::to_value(captured))
    {
        object.extend(fields);
    }
}

/// Encodes pieces as the events of one API.
pub trait StreamEncoder: Send + 'static {
    /// The first choice was admitted; this comes before all pieces.
    fn begin(&mut self, begun: Begun, out: &mut Events);

    /// Takes a piece of the choice at this place. A failure never comes here.
    fn piece(&mut self, at: usize, piece: Piece, out: &mut Events);

    /// Every choice has ended.
    fn close(&mut self, out: &mut Events);

    /// A choice failed, perhaps before the beginning; nothing follows.
    fn fail(&mut self, error: ApiError, out: &mut Events);

    /// Keeps the connection open while nothing happens.
    fn idle(&self) -> Bytes {
        Bytes::from_static(sse::COMMENT)
    }
}

/// Events that are ready to go out.
pub type Events = VecDeque<Bytes>;

/// Answers with server-sent events.
pub fn stream(encoder: impl StreamEncoder, merged: Merged) -> Response {
    let patience = match merged.begun {
        Some(_) => sse::HEARTBEAT,
        // Its client has waited already.
        None => Duration::ZERO,
    };
    let state = EventStream {
        encoder,
        merged,
        ready: Events::new(),
        begun: false,
        closed: false,
        silent_until: Instant::now() + patience,
    };
    sse::response(state.into_stream())
}

struct EventStream<T> {
    encoder: T,
    merged: Merged,
    ready: Events,
    begun: bool,
    closed: bool,
    /// When something has to go out, whatever happens inside.
    silent_until: Instant,
}

impl<T: StreamEncoder> EventStream<T> {
    fn into_stream(self) -> impl Stream<Item = Bytes> + Send {
        futures::stream::unfold(self, |mut events| async move {
            loop {
                if let Some(bytes) = events.ready.pop_front() {
                    events.silent_until = Instant::now() + sse::HEARTBEAT;
                    return Some((bytes, events));
                }
                if events.closed {
                    return None;
                }
                let until = events.silent_until;
                if timeout_at(until, events.step()).await.is_err() {
                    let idle = events.encoder.idle();
                    events.ready.push_back(idle);
                }
            }
        })
    }

    /// Encodes what comes next.
    async fn step(&mut self) {
        if !self.begun {
            match self.merged.begin().await {
                Ok(begun) => self.encoder.begin(begun, &mut self.ready),
                Err(error) => self.fail(error),
            }
            self.begun = true;
            return;
        }
        match self.merged.next().await {
            Some((_, Piece::Failed(error))) => self.fail(error),
            Some((at, piece)) => self.encoder.piece(at, piece, &mut self.ready),
            None => {
                self.encoder.close(&mut self.ready);
                self.closed = true;
            }
        }
    }

    fn fail(&mut self, error: ServeError) {
        self.encoder.fail(error.into(), &mut self.ready);
        // Dropping the merge cancels the other choices.
        self.merged.choices.clear();
        self.closed = true;
    }
}

#[cfg(test)]
mod tests;
