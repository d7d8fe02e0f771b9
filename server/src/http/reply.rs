//! From pieces to replies: one merge of all choices, two dialects (chat, text), whole or streamed.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use futures::Stream;
use hone_domain::{PolicyVersion, ServeError, Token, TokenDelta};

use crate::door::{Choice, Ended, Language, Piece};
use crate::http::error::ApiError;
use crate::http::sse;
use crate::http::wire::replies::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatLogprobs, HoneNote,
    PromptDetails, ReplyMessage, TextChoice, TextCompletion, TextLogprobs, TokenLogprob,
    TopLogprob, Usage, finish_reason,
};

/// Which of the two APIs is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// What every part of a reply repeats or depends on.
pub struct Frame {
    /// The API.
    pub dialect: Dialect,
    /// The reply's id.
    pub id: String,
    /// Seconds since the Unix epoch.
    pub created: i64,
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
    /// Whether to report token ids.
    pub token_ids: bool,
    /// Length of all prompts.
    pub prompt_tokens: usize,
    /// The prompt, where its ids are reported.
    pub prompt_token_ids: Option<Vec<Token>>,
}

/// How a reply began.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// The version of the first choice.
    pub version: PolicyVersion,
    /// Its prompt tokens that were not computed again.
    pub cached_tokens: u32,
}

/// All choices of a reply as one sequence of pieces.
pub struct Merged {
    choices: Vec<(Choice, bool)>,
    next: usize,
}

impl Merged {
    /// Of these choices.
    pub fn new(choices: Vec<Choice>) -> Self {
        Self {
            choices: choices.into_iter().map(|c| (c, false)).collect(),
            next: 0,
        }
    }

    /// Waits until the first choice is admitted, so that failures before that have a status.
    pub async fn begin(&mut self) -> Result<Begun, ServeError> {
        let (first, _) = &mut self.choices[0];
        match first.pieces.recv().await {
            Some(Piece::Started {
                version,
                cached_tokens,
            }) => Ok(Begun {
                version,
                cached_tokens,
            }),
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

    fn index(&self, at: usize) -> u32 {
        self.choices[at].0.index
    }
}

impl Frame {
    fn fingerprint(&self, version: PolicyVersion) -> String {
        format!("{}@v{version}", self.base)
    }

    fn logprob(&self, delta: &TokenDelta) -> Option<TokenLogprob> {
        self.logprobs?;
        if delta.text.is_empty() && self.end_tokens.contains(&delta.token) {
            return None;
        }
        let entry = |token: Token, logprob: f32| {
            let bytes = self.language.token_bytes(token);
            TopLogprob {
                token: String::from_utf8_lossy(&bytes).into_owned(),
                // JSON has no infinity; -9999 is what peers write for "impossible".
                logprob: logprob.max(-9_999.0),
                bytes,
            }
        };
        Some(TokenLogprob {
            token: entry(delta.token, delta.logprob),
            top_logprobs: delta.top.iter().map(|(t, l)| entry(*t, *l)).collect(),
        })
    }

    fn usage(&self, begun: Begun, completion_tokens: usize) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            total_tokens: self.prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: begun.cached_tokens as usize,
            },
        }
    }
}

#[derive(Default)]
struct Gathered {
    text: String,
    logprobs: Vec<(TokenLogprob, usize)>,
    ended: Option<Ended>,
}

/// Gathers every choice to its end and answers with one JSON body.
pub async fn whole(frame: Frame, mut merged: Merged, begun: Begun) -> Result<Response, ApiError> {
    let mut all: Vec<Gathered> = merged.choices.iter().map(|_| Gathered::default()).collect();
    while let Some((at, piece)) = merged.next().await {
        let gathered = &mut all[at];
        match piece {
            Piece::Started { .. } => {}
            Piece::Token(delta) => {
                if let Some(entry) = frame.logprob(&delta) {
                    gathered
                        .logprobs
                        .push((entry, gathered.text.chars().count()));
                }
                gathered.text.push_str(&delta.text);
            }
            Piece::Text(text) => gathered.text.push_str(&text),
            Piece::Ended(ended) => gathered.ended = Some(ended),
            Piece::Failed(error) => return Err(error.into()),
        }
    }
    let mut notes: VecDeque<HoneNote> = VecDeque::new();
    let mut completion_tokens = 0;
    for ended in all.iter().filter_map(|g| g.ended.as_ref()) {
        notes.push_back(HoneNote::of(ended));
        completion_tokens += ended.tokens.len();
    }
    let Some(mut hone) = notes.pop_front() else {
        return Err(ApiError::Internal("no choice came to an end".to_owned()));
    };
    hone.others = notes.into();
    let usage = frame.usage(begun, completion_tokens);
    let indexes: Vec<u32> = (0..all.len()).map(|at| merged.index(at)).collect();
    let choices = indexes.into_iter().zip(all);
    Ok(match frame.dialect {
        Dialect::Chat => Json(ChatCompletion {
            object: "chat.completion",
            created: frame.created,
            choices: choices.map(|(i, g)| chat_choice(&frame, i, g)).collect(),
            usage,
            system_fingerprint: frame.fingerprint(begun.version),
            id: frame.id,
            model: frame.model,
            prompt_token_ids: frame.prompt_token_ids,
            hone,
        })
        .into_response(),
        Dialect::Text => Json(TextCompletion {
            object: "text_completion",
            created: frame.created,
            choices: choices.map(|(i, g)| text_choice(&frame, i, g)).collect(),
            usage: Some(Some(usage)),
            system_fingerprint: frame.fingerprint(begun.version),
            id: frame.id,
            model: frame.model,
            hone: Some(hone),
        })
        .into_response(),
    })
}

fn end_of(frame: &Frame, ended: Option<Ended>) -> (&'static str, Option<Vec<Token>>) {
    let reason = ended.as_ref().map_or("stop", |e| finish_reason(e.stop));
    (reason, ended.map(|e| e.tokens).filter(|_| frame.token_ids))
}

fn chat_choice(frame: &Frame, index: u32, gathered: Gathered) -> ChatChoice {
    let (finish_reason, token_ids) = end_of(frame, gathered.ended);
    let logprobs = frame.logprobs.map(|_| ChatLogprobs {
        content: gathered.logprobs.into_iter().map(|(e, _)| e).collect(),
    });
    ChatChoice {
        index,
        message: ReplyMessage {
            role: "assistant",
            content: gathered.text,
            refusal: None,
        },
        logprobs,
        finish_reason,
        token_ids,
    }
}

fn text_choice(frame: &Frame, index: u32, gathered: Gathered) -> TextChoice {
    let (finish_reason, token_ids) = end_of(frame, gathered.ended);
    let logprobs = frame.logprobs.map(|_| {
        let mut all = TextLogprobs::default();
        for (entry, offset) in gathered.logprobs {
            all.push(entry, offset);
        }
        all
    });
    TextChoice {
        index,
        text: gathered.text,
        logprobs,
        finish_reason: Some(finish_reason),
        token_ids,
    }
}

/// Answers with server-sent events.
pub fn streamed(frame: Frame, merged: Merged, begun: Begun) -> Response {
    sse::response(Stepper::new(frame, merged, begun).into_stream())
}

struct Stepper {
    fingerprint: String,
    frame: Frame,
    merged: Merged,
    begun: Begun,
    ready: VecDeque<Bytes>,
    offsets: Vec<usize>,
    completion_tokens: usize,
    closed: bool,
}

impl Stepper {
    fn new(frame: Frame, merged: Merged, begun: Begun) -> Self {
        let mut stepper = Self {
            fingerprint: frame.fingerprint(begun.version),
            offsets: vec![0; merged.choices.len()],
            frame,
            merged,
            begun,
            ready: VecDeque::new(),
            completion_tokens: 0,
            closed: false,
        };
        if stepper.frame.dialect == Dialect::Chat {
            for at in 0..stepper.merged.choices.len() {
                let delta = ChatDelta {
                    role: Some("assistant"),
                    content: Some(String::new()),
                };
                stepper.push_chat(at, delta, None);
            }
        }
        stepper
    }

    fn into_stream(self) -> impl Stream<Item = Bytes> + Send {
        futures::stream::unfold(self, |mut stepper| async move {
            loop {
                if let Some(bytes) = stepper.ready.pop_front() {
                    return Some((bytes, stepper));
                }
                if stepper.closed {
                    return None;
                }
                match tokio::time::timeout(sse::HEARTBEAT, stepper.merged.next()).await {
                    Err(_) => stepper.ready.push_back(Bytes::from_static(sse::COMMENT)),
                    Ok(Some((at, piece))) => stepper.step(at, piece),
                    Ok(None) => stepper.close(),
                }
            }
        })
    }

    fn step(&mut self, at: usize, piece: Piece) {
        match piece {
            Piece::Started { .. } => {}
            Piece::Token(delta) => {
                let entry = self.frame.logprob(&delta);
                if entry.is_some() || !delta.text.is_empty() {
                    self.push_text(at, delta.text, entry);
                }
            }
            Piece::Text(text) => self.push_text(at, text, None),
            Piece::Ended(ended) => self.push_end(at, &ended),
            Piece::Failed(error) => {
                let error = ApiError::from(error);
                self.ready.push_back(sse::event(&error.body()));
                self.ready.push_back(Bytes::from_static(sse::DONE));
                // Dropping the merge cancels the other choices.
                self.merged.choices.clear();
                self.closed = true;
            }
        }
    }

    fn close(&mut self) {
        if self.frame.include_usage {
            let usage = self.frame.usage(self.begun, self.completion_tokens);
            let event = match self.frame.dialect {
                Dialect::Chat => sse::event(&ChatChunk {
                    usage: Some(Some(usage)),
                    ..self.chat_chunk(Vec::new())
                }),
                Dialect::Text => sse::event(&TextCompletion {
                    usage: Some(Some(usage)),
                    ..self.text_chunk(Vec::new())
                }),
            };
            self.ready.push_back(event);
        }
        self.ready.push_back(Bytes::from_static(sse::DONE));
        self.closed = true;
    }

    fn push_text(&mut self, at: usize, text: String, entry: Option<TokenLogprob>) {
        if self.frame.dialect == Dialect::Chat {
            let delta = ChatDelta {
                role: None,
                content: Some(text),
            };
            return self.push_chat(at, delta, entry);
        }
        let offset = self.offsets[at];
        self.offsets[at] += text.chars().count();
        let logprobs = entry.map(|entry| {
            let mut one = TextLogprobs::default();
            one.push(entry, offset);
            one
        });
        let choice = TextChoice {
            index: self.merged.index(at),
            text,
            logprobs,
            finish_reason: None,
            token_ids: None,
        };
        let event = sse::event(&self.text_chunk(vec![choice]));
        self.ready.push_back(event);
    }

    fn push_chat(&mut self, at: usize, delta: ChatDelta, entry: Option<TokenLogprob>) {
        let choice = ChatChunkChoice {
            index: self.merged.index(at),
            delta,
            logprobs: entry.map(|entry| ChatLogprobs {
                content: vec![entry],
            }),
            finish_reason: None,
            token_ids: None,
        };
        let event = sse::event(&self.chat_chunk(vec![choice]));
        self.ready.push_back(event);
    }

    fn push_end(&mut self, at: usize, ended: &Ended) {
        self.completion_tokens += ended.tokens.len();
        let index = self.merged.index(at);
        let token_ids = self.frame.token_ids.then(|| ended.tokens.clone());
        let reason = Some(finish_reason(ended.stop));
        let hone = Some(HoneNote::of(ended));
        let event = match self.frame.dialect {
            Dialect::Chat => sse::event(&ChatChunk {
                hone,
                ..self.chat_chunk(vec![ChatChunkChoice {
                    index,
                    delta: ChatDelta::default(),
                    logprobs: None,
                    finish_reason: reason,
                    token_ids,
                }])
            }),
            Dialect::Text => sse::event(&TextCompletion {
                hone,
                ..self.text_chunk(vec![TextChoice {
                    index,
                    text: String::new(),
                    logprobs: None,
                    finish_reason: reason,
                    token_ids,
                }])
            }),
        };
        self.ready.push_back(event);
    }

    fn chat_chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatChunk<'_> {
        ChatChunk {
            id: &self.frame.id,
            object: "chat.completion.chunk",
            created: self.frame.created,
            model: &self.frame.model,
            system_fingerprint: &self.fingerprint,
            choices,
            usage: self.frame.include_usage.then_some(None),
            hone: None,
        }
    }

    fn text_chunk(&self, choices: Vec<TextChoice>) -> TextCompletion {
        TextCompletion {
            id: self.frame.id.clone(),
            object: "text_completion",
            created: self.frame.created,
            model: self.frame.model.clone(),
            choices,
            usage: self.frame.include_usage.then_some(None),
            system_fingerprint: self.fingerprint.clone(),
            hone: None,
        }
    }
}
