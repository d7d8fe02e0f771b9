//! The replies of chat and text completions.

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use hone_domain::{Called, Part, Token, TurnId};

use super::{Begun, Dialect, Events, Frame, Gathered, Merged, Sampled, Teller, gather, note_of};
use crate::door::{Ended, Piece, call_id};
use crate::http::error::ApiError;
use crate::http::sse;
use crate::http::wire::foreign::input_of;
use crate::http::wire::replies::{
    CallDelta, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatLogprobs,
    HoneNote, Logprob, ReplyCall, ReplyCustom, ReplyFunction, ReplyMessage, TextChoice,
    TextCompletion, TextLogprobs, finish_reason,
};

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
        Dialect::Text | Dialect::Responses | Dialect::Messages => Json(TextCompletion {
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
    let turn = gathered.ended.as_ref().map(|ended| ended.turn);
    let (finish_reason, token_ids) = end_of(frame, gathered.ended);
    let kept = gathered.logprobs.into_iter().map(|entry| entry.logprob);
    let logprobs = frame.logprobs.map(|_| ChatLogprobs {
        content: frame.told(kept.collect()),
        refusal: None,
    });
    let heard = gathered.heard;
    let calls = heard.calls.into_iter().enumerate();
    let tool_calls: Vec<ReplyCall> = turn
        .map(|turn| {
            calls
                .map(|(n, call)| reply_call(frame, (turn, n), call))
                .collect()
        })
        .unwrap_or_default();
    let only_calls = heard.content.is_empty() && !tool_calls.is_empty();
    ChatChoice {
        index,
        message: ReplyMessage {
            role: "assistant",
            content: (!only_calls).then_some(heard.content),
            refusal: None,
            reasoning_content: Some(heard.reasoning).filter(|text| !text.is_empty()),
            tool_calls,
        },
        logprobs,
        finish_reason,
        token_ids,
    }
}

fn reply_call(frame: &Frame, (turn, number): (TurnId, usize), call: Called) -> ReplyCall {
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

fn text_choice(frame: &Frame, index: u32, gathered: Gathered) -> TextChoice {
    let (finish_reason, token_ids) = end_of(frame, gathered.ended);
    let logprobs = frame.logprobs.map(|_| {
        let mut all = TextLogprobs::default();
        for entry in gathered.logprobs {
            all.push(&entry.logprob, (entry.offset, &*frame.language));
        }
        all
    });
    TextChoice {
        index,
        text: gathered.heard.content,
        logprobs,
        finish_reason: Some(finish_reason),
        token_ids,
    }
}

/// Answers with server-sent events.
pub fn streamed(frame: Frame, merged: Merged) -> Response {
    let choices = merged.choices().map(|choice| Telling {
        index: choice.index,
        turn: choice.turn,
        chars: 0,
        calls: 0,
        custom: None,
    });
    let teller = Chunks {
        fingerprint: String::new(),
        choices: choices.collect(),
        frame,
        begun: Begun::default(),
        sampled: Sampled::default(),
    };
    super::stream(teller, merged)
}

/// How far a choice is.
struct Telling {
    index: u32,
    turn: TurnId,
    chars: usize,
    calls: usize,
    /// Arguments so far of the call of a tool that takes a text, which is told once it is whole.
    custom: Option<String>,
}

struct Chunks {
    fingerprint: String,
    frame: Frame,
    begun: Begun,
    choices: Vec<Telling>,
    sampled: Sampled,
}

impl Teller for Chunks {
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
                self.chat(at, delta, None, out);
            }
        }
    }

    fn piece(&mut self, at: usize, piece: Piece, out: &mut Events) {
        match piece {
            Piece::Started { cached_tokens, .. } => self.begun.add(&self.frame, at, cached_tokens),
            Piece::Failed(_) => {}
            Piece::Token(delta, _, parts) => {
                let mut entry = self.frame.logprob(delta);
                for part in parts {
                    self.part(at, part, entry.take(), out);
                }
                if entry.is_some() {
                    self.text(at, String::new(), entry, out);
                }
            }
            Piece::Rest(parts) => {
                for part in parts {
                    self.part(at, part, None, out);
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
                Dialect::Text | Dialect::Responses | Dialect::Messages => {
                    sse::event(&TextCompletion {
                        usage: Some(Some(usage)),
                        ..self.text_chunk(Vec::new())
                    })
                }
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
    fn part(&mut self, at: usize, part: Part, entry: Option<Logprob>, out: &mut Events) {
        match part {
            Part::Content(text) => self.text(at, text, entry, out),
            Part::Reasoning(text) => {
                let delta = ChatDelta {
                    reasoning_content: Some(text),
                    ..ChatDelta::default()
                };
                self.chat(at, delta, entry, out);
            }
            Part::CallBegun(name) => self.begin_call(at, name, entry, out),
            Part::Arguments(text) => self.arguments(at, &text, entry, out),
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
        self.call_delta(at, delta, None, out);
    }

    fn begin_call(&mut self, at: usize, name: String, entry: Option<Logprob>, out: &mut Events) {
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
        self.call_delta(at, delta, entry, out);
    }

    /// More of the arguments of the last call.
    fn arguments(&mut self, at: usize, text: &str, mut entry: Option<Logprob>, out: &mut Events) {
        if let Some(custom) = &mut self.choices[at].custom {
            return custom.push_str(text);
        }
        let index = self.choices[at].calls.saturating_sub(1);
        for piece in pieces(text) {
            let delta = CallDelta::more(index, piece.to_owned());
            self.call_delta(at, delta, entry.take(), out);
        }
    }

    fn call_delta(&self, at: usize, delta: CallDelta, entry: Option<Logprob>, out: &mut Events) {
        let delta = ChatDelta {
            tool_calls: Some([delta]),
            ..ChatDelta::default()
        };
        self.chat(at, delta, entry, out);
    }

    fn text(&mut self, at: usize, text: String, entry: Option<Logprob>, out: &mut Events) {
        if self.frame.dialect == Dialect::Chat {
            let delta = ChatDelta {
                content: Some(text),
                ..ChatDelta::default()
            };
            return self.chat(at, delta, entry, out);
        }
        let choice = &mut self.choices[at];
        let offset = choice.chars;
        choice.chars += text.chars().count();
        let logprobs = entry.map(|entry| {
            let mut one = TextLogprobs::default();
            one.push(&entry, (offset, &*self.frame.language));
            one
        });
        let choice = TextChoice {
            index: choice.index,
            text,
            logprobs,
            finish_reason: None,
            token_ids: None,
        };
        out.push_back(sse::event(&self.text_chunk(vec![choice])));
    }

    fn chat(&self, at: usize, delta: ChatDelta, entry: Option<Logprob>, out: &mut Events) {
        let choice = ChatChunkChoice {
            index: self.choices[at].index,
            delta,
            logprobs: entry.map(|entry| ChatLogprobs {
                content: self.frame.told(vec![entry]),
                refusal: None,
            }),
            finish_reason: None,
            token_ids: None,
        };
        out.push_back(sse::event(&self.chat_chunk(vec![choice])));
    }

    fn end(&mut self, at: usize, ended: &Ended, out: &mut Events) {
        self.sampled.add(ended);
        let index = self.choices[at].index;
        let token_ids = self.frame.token_ids.then(|| ended.tokens.clone());
        let reason = Some(finish_reason(ended.stop));
        let hone = Some(HoneNote::of(ended));
        out.push_back(match self.frame.dialect {
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
            Dialect::Text | Dialect::Responses | Dialect::Messages => sse::event(&TextCompletion {
                hone,
                ..self.text_chunk(vec![TextChoice {
                    index,
                    text: String::new(),
                    logprobs: None,
                    finish_reason: reason,
                    token_ids,
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
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
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
