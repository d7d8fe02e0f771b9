//! The replies of chat and text completions.

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use hone_domain::{Called, Part, Token, TurnId};

use crate::error::ApiError;
use crate::sse;
use crate::{
    Begun, Dialect, Events, Frame, Gathered, Merged, Sampled, StreamEncoder, gather, note_of,
};
use hone_api_types::capture::Captured;
use hone_api_types::foreign::input_of;
use hone_api_types::replies::{
    CallDelta, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatLogprobs,
    HoneNote, Logprob, ReplyCall, ReplyCustom, ReplyFunction, ReplyMessage, TextChoice,
    TextCompletion, TextLogprobs, finish_reason,
};
use hone_inference::{Ended, Piece, call_id};

/// Longest piece of a call's arguments in one event, in bytes.
const ARGUMENTS_PIECE: usize = 256;

/// Gathers every choice to its end and answers with one JSON body.
pub async fn whole(frame: Frame, mut merged: Merged) -> Result<Response, ApiError> {
    let mut begun = merged.begin().await?;
    let all = gather(&frame, &mut merged).await?;
    for (at, gathered) in all.iter().enumerate() {
        begun.add(&frame, at, gathered.cached_tokens);
    }
    let (hone, sampled) = note_of(&all)?;
    let usage = frame.usage(begun, sampled);
    let indexes: Vec<u32> = merged.choices().map(|choice| choice.index).collect();
    let choices = indexes.into_iter().zip(all).enumerate();
    Ok(match frame.dialect {
        Dialect::Chat => Json(ChatCompletion {
            object: "chat.completion",
            created: frame.created,
            choices: choices
                .map(|(at, one)| chat_choice(&frame, at, one))
                .collect(),
            usage,
            system_fingerprint: frame.fingerprint(begun.version),
            prompt_token_ids: frame.capture.token_ids.then(|| frame.prompt_of(0).to_vec()),
            prompt_logprobs: frame.prompt_logprobs.into_iter().next(),
            id: frame.id,
            model: frame.model,
            hone,
        })
        .into_response(),
        _ => Json(TextCompletion {
            object: "text_completion",
            created: frame.created,
            choices: choices
                .map(|(at, one)| text_choice(&frame, at, one))
                .collect(),
            usage: Some(Some(usage)),
            system_fingerprint: frame.fingerprint(begun.version),
            id: frame.id,
            model: frame.model,
            hone: Some(hone),
        })
        .into_response(),
    })
}

/// Why a choice ended, and what a trainer asked for of it.
fn end_of(frame: &Frame, at: usize, ended: Option<&Ended>) -> (&'static str, Captured) {
    let reason = ended.map_or("stop", |ended| finish_reason(ended.stop));
    let captured = ended.map(|ended| frame.captured(at, 0, ended));
    (reason, captured.unwrap_or_default())
}

fn chat_choice(frame: &Frame, at: usize, (index, gathered): (u32, Gathered)) -> ChatChoice {
    let turn = gathered.ended.as_ref().map(|ended| ended.turn);
    let (finish_reason, captured) = end_of(frame, at, gathered.ended.as_ref());
    let kept = gathered.logprobs.into_iter().map(|entry| entry.logprob);
    let logprobs = frame.logprobs.map(|_| ChatLogprobs {
        content: frame.told(kept.collect()),
        refusal: None,
    });
    let parsed = gathered.parsed;
    let calls = parsed.calls.into_iter().enumerate();
    let tool_calls: Vec<ReplyCall> = turn
        .map(|turn| {
            calls
                .map(|(n, call)| reply_call(frame, turn, n, call))
                .collect()
        })
        .unwrap_or_default();
    let only_calls = parsed.content.is_empty() && !tool_calls.is_empty();
    ChatChoice {
        index,
        message: ReplyMessage {
            role: "assistant",
            content: (!only_calls).then_some(parsed.content),
            refusal: None,
            reasoning_content: Some(parsed.reasoning).filter(|text| !text.is_empty()),
            tool_calls,
        },
        logprobs,
        finish_reason,
        captured,
    }
}

fn reply_call(frame: &Frame, turn: TurnId, number: usize, call: Called) -> ReplyCall {
    let id = call_id(turn, number);
    match is_custom(frame, &call.name) {
        true => ReplyCall {
            id,
            kind: "custom",
            function: None,
            custom: Some(ReplyCustom {
                input: input_of(&call.arguments),
                name: call.name,
            }),
        },
        false => ReplyCall {
            id,
            kind: "function",
            function: Some(ReplyFunction {
                name: call.name,
                arguments: call.arguments,
            }),
            custom: None,
        },
    }
}

/// Whether a function is a tool that takes a text at its client.
fn is_custom(frame: &Frame, name: &str) -> bool {
    frame.aliases.get(name).is_some_and(|alias| alias.is_custom)
}

fn text_choice(frame: &Frame, at: usize, (index, gathered): (u32, Gathered)) -> TextChoice {
    let (finish_reason, captured) = end_of(frame, at, gathered.ended.as_ref());
    let logprobs = frame.logprobs.map(|_| {
        let mut all = TextLogprobs::default();
        for entry in gathered.logprobs {
            all.push(&entry.logprob, (entry.offset, &frame.names()));
        }
        all
    });
    TextChoice {
        index,
        text: gathered.parsed.content,
        logprobs,
        finish_reason: Some(finish_reason),
        captured,
    }
}

/// Answers with server-sent events.
pub fn streamed(frame: Frame, merged: Merged) -> Response {
    let choices = merged.choices().map(|choice| ChoiceEncoder {
        index: choice.index,
        turn: choice.turn,
        chars: 0,
        calls: 0,
        tokens: 0,
        custom: None,
    });
    let teller = Chunks {
        fingerprint: String::new(),
        choices: choices.collect(),
        frame,
        begun: Begun::default(),
        sampled: Sampled::default(),
    };
    crate::stream(teller, merged)
}

/// How far a choice is.
struct ChoiceEncoder {
    index: u32,
    turn: TurnId,
    chars: usize,
    calls: usize,
    /// Tokens so far.
    tokens: usize,
    /// Arguments so far of the call of a tool that takes a text, which is told once it is whole.
    custom: Option<String>,
}

/// What the next chunk tells of the token that it comes with.
#[derive(Default)]
struct Aside {
    logprob: Option<Logprob>,
    /// Its id, where ids are reported.
    token: Option<Token>,
    /// The prompt, with the first token of a text completion.
    prompt: Option<Vec<Token>>,
}

impl Aside {
    fn is_empty(&self) -> bool {
        self.logprob.is_none() && self.token.is_none()
    }

    fn captured(&self) -> Captured {
        Captured {
            token_ids: self.token.map(|token| vec![token]),
            prompt_token_ids: self.prompt.clone(),
            ..Captured::default()
        }
    }
}

struct Chunks {
    fingerprint: String,
    frame: Frame,
    begun: Begun,
    choices: Vec<ChoiceEncoder>,
    sampled: Sampled,
}

impl StreamEncoder for Chunks {
    fn begin(&mut self, begun: Begun, out: &mut Events) {
        self.fingerprint = self.frame.fingerprint(begun.version);
        self.begun = begun;
        if self.frame.dialect == Dialect::Chat {
            for at in 0..self.choices.len() {
                let delta = ChatDelta {
                    role: Some("assistant"),
                    content: Some(String::new()),
                    ..ChatDelta::default()
                };
                let mut chunk =
                    self.chat_chunk(vec![self.chat_choice(at, delta, Aside::default())]);
                let is_first = at == 0 && self.frame.capture.token_ids;
                chunk.prompt_token_ids = is_first.then(|| self.frame.prompt_of(0));
                chunk.prompt_logprobs = self.frame.scored_of(0).filter(|_| at == 0);
                out.push_back(sse::event(&chunk));
            }
        }
    }

    fn piece(&mut self, at: usize, piece: Piece, out: &mut Events) {
        match piece {
            Piece::Started { cached_tokens, .. } => self.begun.add(&self.frame, at, cached_tokens),
            Piece::Failed(_) => {}
            Piece::Token(delta, _, parts) => {
                self.choices[at].tokens += 1;
                let mut aside = Aside {
                    token: self.frame.capture.token_ids.then_some(delta.token),
                    logprob: self.frame.logprob(delta),
                    prompt: self.first_prompt(at),
                };
                for part in parts {
                    self.part(at, part, std::mem::take(&mut aside), out);
                }
                if !aside.is_empty() {
                    self.text(at, String::new(), aside, out);
                }
            }
            Piece::Rest(parts) => {
                for part in parts {
                    self.part(at, part, Aside::default(), out);
                }
            }
            Piece::Ended(ended) => {
                self.end_custom(at, out);
                self.end(at, &ended, out);
            }
        }
    }

    fn close(&mut self, out: &mut Events) {
        if self.frame.include_usage {
            let usage = self.frame.usage(self.begun, self.sampled);
            out.push_back(match self.frame.dialect {
                Dialect::Chat => sse::event(&ChatChunk {
                    usage: Some(Some(usage)),
                    ..self.chat_chunk(Vec::new())
                }),
                _ => sse::event(&TextCompletion {
                    usage: Some(Some(usage)),
                    ..self.text_chunk(Vec::new())
                }),
            });
        }
        out.push_back(Bytes::from_static(sse::DONE));
    }

    fn fail(&mut self, error: ApiError, out: &mut Events) {
        out.push_back(sse::event(&error.body()));
        out.push_back(Bytes::from_static(sse::DONE));
    }
}

impl Chunks {
    fn part(&mut self, at: usize, part: Part, aside: Aside, out: &mut Events) {
        match part {
            Part::Content(text) => self.text(at, text, aside, out),
            Part::Reasoning(text) => {
                let delta = ChatDelta {
                    reasoning_content: Some(text),
                    ..ChatDelta::default()
                };
                self.chat(at, delta, aside, out);
            }
            Part::CallBegun(name) => self.begin_call(at, name, aside, out),
            Part::Arguments(text) => self.arguments(at, &text, aside, out),
        }
    }

    /// Tells the text of the call that was open.
    fn end_custom(&mut self, at: usize, out: &mut Events) {
        let choice = &mut self.choices[at];
        let Some(arguments) = choice.custom.take() else {
            return;
        };
        let index = choice.calls.saturating_sub(1);
        let delta = CallDelta::custom_input(index, input_of(&arguments));
        self.call_delta(at, delta, Aside::default(), out);
    }

    fn begin_call(&mut self, at: usize, name: String, aside: Aside, out: &mut Events) {
        self.end_custom(at, out);
        let is_custom = is_custom(&self.frame, &name);
        let choice = &mut self.choices[at];
        let (index, turn) = (choice.calls, choice.turn);
        choice.calls += 1;
        choice.custom = is_custom.then(String::new);
        let id = call_id(turn, index);
        let delta = match is_custom {
            true => CallDelta::begin_custom(index, id, name),
            false => CallDelta::begin(index, id, name),
        };
        self.call_delta(at, delta, aside, out);
    }

    /// More of the arguments of the last call.
    fn arguments(&mut self, at: usize, text: &str, mut aside: Aside, out: &mut Events) {
        if let Some(custom) = &mut self.choices[at].custom {
            custom.push_str(text);
            if !aside.is_empty() {
                self.text(at, String::new(), aside, out);
            }
            return;
        }
        let index = self.choices[at].calls.saturating_sub(1);
        for piece in pieces(text) {
            let delta = CallDelta::more(index, piece.to_owned());
            self.call_delta(at, delta, std::mem::take(&mut aside), out);
        }
    }

    fn call_delta(&self, at: usize, delta: CallDelta, aside: Aside, out: &mut Events) {
        let delta = ChatDelta {
            tool_calls: Some([delta]),
            ..ChatDelta::default()
        };
        self.chat(at, delta, aside, out);
    }

    fn text(&mut self, at: usize, text: String, aside: Aside, out: &mut Events) {
        if self.frame.dialect == Dialect::Chat {
            let delta = ChatDelta {
                content: Some(text),
                ..ChatDelta::default()
            };
            return self.chat(at, delta, aside, out);
        }
        let choice = &mut self.choices[at];
        let offset = choice.chars;
        choice.chars += text.chars().count();
        let index = choice.index;
        let choice = TextChoice {
            index,
            text,
            captured: aside.captured(),
            logprobs: aside.logprob.map(|one| self.text_logprobs(&[one], offset)),
            finish_reason: None,
        };
        out.push_back(sse::event(&self.text_chunk(vec![choice])));
    }

    /// The prompt of a text completion of which the first token is told.
    fn first_prompt(&self, at: usize) -> Option<Vec<Token>> {
        let is_text = self.frame.dialect == Dialect::Text && self.frame.capture.token_ids;
        let is_first = is_text && self.choices[at].tokens == 1;
        is_first.then(|| self.frame.prompt_of(at).to_vec())
    }

    fn text_logprobs(&self, tokens: &[Logprob], offset: usize) -> TextLogprobs {
        let (mut all, names) = (TextLogprobs::default(), self.frame.names());
        for one in tokens {
            all.push(one, (offset, &names));
        }
        all
    }

    fn chat_logprobs(&self, tokens: Vec<Logprob>) -> ChatLogprobs {
        ChatLogprobs {
            content: self.frame.told(tokens),
            refusal: None,
        }
    }

    fn chat_choice(&self, at: usize, delta: ChatDelta, aside: Aside) -> ChatChunkChoice {
        ChatChunkChoice {
            index: self.choices[at].index,
            delta,
            captured: aside.captured(),
            logprobs: aside.logprob.map(|one| self.chat_logprobs(vec![one])),
            finish_reason: None,
        }
    }

    fn chat(&self, at: usize, delta: ChatDelta, aside: Aside, out: &mut Events) {
        let choice = self.chat_choice(at, delta, aside);
        out.push_back(sse::event(&self.chat_chunk(vec![choice])));
    }

    fn end(&mut self, at: usize, ended: &Ended, out: &mut Events) {
        self.sampled.add(ended);
        let ChoiceEncoder {
            index,
            tokens,
            chars,
            ..
        } = self.choices[at];
        let captured = self.frame.captured(at, tokens, ended);
        let rest = self.frame.logprobs_behind(ended, tokens);
        let finish_reason = Some(finish_reason(ended.stop));
        let hone = Some(HoneNote::of(ended));
        out.push_back(match self.frame.dialect {
            Dialect::Chat => sse::event(&ChatChunk {
                hone,
                ..self.chat_chunk(vec![ChatChunkChoice {
                    index,
                    delta: ChatDelta::default(),
                    logprobs: (!rest.is_empty()).then(|| self.chat_logprobs(rest)),
                    finish_reason,
                    captured,
                }])
            }),
            _ => sse::event(&TextCompletion {
                hone,
                ..self.text_chunk(vec![TextChoice {
                    index,
                    text: String::new(),
                    logprobs: (!rest.is_empty()).then(|| self.text_logprobs(&rest, chars)),
                    finish_reason,
                    captured,
                }])
            }),
        });
    }

    fn chat_chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatChunk<'_> {
        ChatChunk {
            id: &self.frame.id,
            object: "chat.completion.chunk",
            created: self.frame.created,
            model: &self.frame.model,
            system_fingerprint: &self.fingerprint,
            choices,
            prompt_token_ids: None,
            prompt_logprobs: None,
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

/// A text in pieces of whole characters.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let piece;
        (piece, rest) = rest.split_at(rest.ceil_char_boundary(ARGUMENTS_PIECE));
        Some(piece)
    })
}
