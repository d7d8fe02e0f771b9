//! The replies of `/v1/messages`: one message, whole or grown by events.

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use hone_domain::{CALL_CLOSE, Called, Part, StopReason, TurnId};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::messages_errors::MessagesErrorBody;
use crate::openai::pieces;
use crate::sse;
use crate::{Begun, Events, Frame, Merged, StreamEncoder, add, gather};
use hone_api_types::replies::HoneNote;
use hone_inference::{Ended, Piece, call_id};

struct MessageState {
    frame: Frame,
    begun: Begun,
    /// The request's stop strings.
    stops: Vec<String>,
    turn: TurnId,
}

impl MessageState {
    fn new(frame: Frame, merged: &Merged, (begun, stops): (Begun, Vec<String>)) -> Self {
        let turn = merged.choices().next().map(|choice| choice.turn);
        Self {
            turn: turn.unwrap_or(TurnId(uuid::Uuid::nil())),
            frame,
            begun,
            stops,
        }
    }

    fn usage(&self, output_tokens: usize) -> Value {
        let cached = self.begun.cached_tokens as usize;
        json!({
            "input_tokens": self.frame.prompt_tokens.saturating_sub(cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": output_tokens,
        })
    }

    /// Why it ended, and by which stop string.
    fn stop(&self, ended: &Ended) -> (&'static str, Option<String>) {
        match ended.stop {
            StopReason::ToolCall => ("tool_use", None),
            StopReason::Length => ("max_tokens", None),
            StopReason::StopString => {
                let text = self.frame.language.decode(ended.completion.tokens());
                let first_of = |text: &str| {
                    let ends = self.stops.iter().filter_map(|stop| {
                        let at = text.find(stop.as_str())?;
                        Some((at + stop.len(), stop))
                    });
                    ends.min_by_key(|(end, _)| *end)
                };
                // Within a call it ended nothing.
                let behind = text.rfind(CALL_CLOSE);
                let first = behind.and_then(|at| first_of(&text[at + CALL_CLOSE.len()..]));
                let first = first.or_else(|| first_of(&text));
                ("stop_sequence", first.map(|(_, stop)| stop.clone()))
            }
            StopReason::EndToken | StopReason::Cancelled => ("end_turn", None),
        }
    }

    fn message(&self, content: &[Value], ended: Option<&Ended>) -> Value {
        let called = content.iter().any(|block| block["type"] == "tool_use");
        let stop = ended.map(|ended| match self.stop(ended) {
            // Its arguments were no JSON.
            ("tool_use", none) if !called => ("end_turn", none),
            stop => stop,
        });
        let mut message = json!({
            "id": self.frame.id,
            "type": "message",
            "role": "assistant",
            "model": self.frame.model,
            "content": content,
            "stop_reason": stop.as_ref().map(|(reason, _)| reason),
            "stop_sequence": stop.as_ref().and_then(|(_, text)| text.as_ref()),
            "usage": self.usage(ended.map_or(0, |ended| ended.completion.len())),
        });
        if let Some(ended) = ended {
            message["hone"] = json!(HoneNote::of(ended));
            add(&mut message, &self.frame.captured_alone(ended));
        }
        message
    }

    fn tool_use(&self, number: usize, name: &str, input: &Value) -> Value {
        let id = call_id(self.turn, number);
        json!({"type": "tool_use", "id": id, "name": name, "input": input})
    }

    /// A call as a block; one whose arguments are no JSON, as where it was cut short, is text: it has no input.
    fn call(&self, number: usize, call: &Called) -> Value {
        match serde_json::from_str(&call.arguments) {
            Ok(input) => self.tool_use(number, &call.name, &input),
            Err(_) => {
                let name = json!(call.name);
                let text = format!("{{\"name\": {name}, \"arguments\": {}", call.arguments);
                json!({"type": "text", "text": text})
            }
        }
    }
}

/// Gathers the message to its end.
pub async fn whole(
    frame: Frame,
    mut merged: Merged,
    stops: Vec<String>,
) -> Result<Response, ApiError> {
    let begun = merged.begin().await?;
    let state = MessageState::new(frame, &merged, (begun, stops));
    let one = gather(&state.frame, &mut merged).await?.swap_remove(0);
    let Some(ended) = one.ended else {
        return Err(ApiError::Internal("the message came to no end".to_owned()));
    };
    let parsed = one.parsed;
    let mut content = Vec::new();
    if !parsed.reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": parsed.reasoning, "signature": ""}));
    }
    if !parsed.content.is_empty() {
        content.push(json!({"type": "text", "text": parsed.content}));
    }
    let calls = parsed.calls.iter().enumerate();
    content.extend(calls.map(|(number, call)| state.call(number, call)));
    Ok(Json(state.message(&content, Some(&ended))).into_response())
}

/// Answers with events.
pub fn streamed(frame: Frame, merged: Merged, stops: Vec<String>) -> Response {
    let encoder = MessageEncoder {
        state: MessageState::new(frame, &merged, (Begun::default(), stops)),
        open: None,
        blocks: 0,
        calls: 0,
    };
    crate::stream(encoder, merged)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Call,
}

struct MessageEncoder {
    state: MessageState,
    open: Option<Block>,
    blocks: usize,
    calls: usize,
}

fn emit(kind: &str, mut data: Value, out: &mut Events) {
    data["type"] = json!(kind);
    out.push_back(sse::named_event(Some(kind), &data));
}

impl StreamEncoder for MessageEncoder {
    fn begin(&mut self, begun: Begun, out: &mut Events) {
        self.state.begun = begun;
        let message = self.state.message(&[], None);
        emit("message_start", json!({"message": message}), out);
    }

    fn piece(&mut self, _at: usize, piece: Piece, out: &mut Events) {
        match piece {
            Piece::Started { .. } | Piece::Failed(_) => {}
            Piece::Token(_, _, parts) | Piece::Rest(parts) => {
                parts.into_iter().for_each(|part| self.part(part, out));
            }
            Piece::Ended(ended) => {
                self.shut(out);
                let (reason, text) = self.state.stop(&ended);
                let mut data = json!({
                    "delta": {"stop_reason": reason, "stop_sequence": text},
                    "usage": self.state.usage(ended.completion.len()),
                    "hone": HoneNote::of(&ended),
                });
                add(&mut data, &self.state.frame.captured_alone(&ended));
                emit("message_delta", data, out);
                emit("message_stop", json!({}), out);
            }
        }
    }

    fn close(&mut self, _out: &mut Events) {}

    fn fail(&mut self, error: ApiError, out: &mut Events) {
        let body = MessagesErrorBody::of(&error, &self.state.frame.request);
        emit("error", json!(body), out);
    }

    fn idle(&self) -> Bytes {
        sse::named_event(Some("ping"), &json!({"type": "ping"}))
    }
}

impl MessageEncoder {
    fn part(&mut self, part: Part, out: &mut Events) {
        match part {
            Part::Reasoning(text) => {
                self.text(
                    Block::Thinking,
                    &json!({"type": "thinking_delta", "thinking": text}),
                    out,
                );
            }
            Part::Content(text) => {
                self.text(
                    Block::Text,
                    &json!({"type": "text_delta", "text": text}),
                    out,
                );
            }
            Part::CallBegun(name) => self.begin_call(&name, out),
            Part::Arguments(text) => pieces(&text).for_each(|piece| self.arguments(piece, out)),
        }
    }

    fn begin(&mut self, block: &Value, out: &mut Events) {
        let data = json!({"index": self.blocks, "content_block": block});
        emit("content_block_start", data, out);
    }

    fn delta(&self, delta: &Value, out: &mut Events) {
        let data = json!({"index": self.blocks, "delta": delta});
        emit("content_block_delta", data, out);
    }

    fn end(&mut self, out: &mut Events) {
        emit("content_block_stop", json!({"index": self.blocks}), out);
        self.blocks += 1;
    }

    fn text(&mut self, block: Block, delta: &Value, out: &mut Events) {
        if self.open != Some(block) {
            self.shut(out);
            let empty = match block {
                Block::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
                _ => json!({"type": "text", "text": ""}),
            };
            self.begin(&empty, out);
            self.open = Some(block);
        }
        self.delta(delta, out);
    }

    fn shut(&mut self, out: &mut Events) {
        if self.open.take().is_some() {
            self.end(out);
        }
    }

    /// A block for a call, which ends with the next part.
    fn begin_call(&mut self, name: &str, out: &mut Events) {
        self.shut(out);
        let block = self.state.tool_use(self.calls, name, &json!({}));
        self.begin(&block, out);
        self.open = Some(Block::Call);
        self.calls += 1;
    }

    fn arguments(&self, text: &str, out: &mut Events) {
        self.delta(
            &json!({"type": "input_json_delta", "partial_json": text}),
            out,
        );
    }
}
