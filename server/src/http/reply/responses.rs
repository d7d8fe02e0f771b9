//! The replies of `/v1/responses`: one response object, whole or grown by events.

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use hone_domain::{Called, Part, StopReason, TurnId};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::openai::pieces;
use super::{Begun, Events, Frame, Merged, Sampled, Teller, gather, note_of};
use crate::door::{Ended, Piece, call_id};
use crate::http::error::ApiError;
use crate::http::sse;
use crate::http::wire::replies::{HoneNote, TokenLogprob};

/// A response under way: what the request said about it, and what it says so far.
pub struct Told {
    frame: Frame,
    begun: Begun,
    /// Fields that repeat the request.
    echo: Map<String, Value>,
    turn: TurnId,
    /// Whole items of the output.
    output: Vec<Value>,
    logprobs: Vec<TokenLogprob>,
    calls: usize,
}

/// How a response stands.
enum Status<'a> {
    InProgress,
    Ended(&'a Ended),
    Failed(&'a ApiError),
}

impl Told {
    fn new(frame: Frame, merged: &Merged, (begun, echo): (Begun, Map<String, Value>)) -> Self {
        let turn = merged.choices().next().map(|choice| choice.turn);
        Self {
            turn: turn.unwrap_or(TurnId(uuid::Uuid::nil())),
            frame,
            begun,
            echo,
            output: Vec::new(),
            logprobs: Vec::new(),
            calls: 0,
        }
    }

    /// The response object.
    fn object(&self, status: &Status<'_>) -> Value {
        let (word, incomplete) = match status {
            Status::InProgress => ("in_progress", Value::Null),
            Status::Ended(ended) if ended.stop == StopReason::Length => {
                ("incomplete", json!({"reason": "max_output_tokens"}))
            }
            Status::Ended(_) => ("completed", Value::Null),
            Status::Failed(_) => ("failed", Value::Null),
        };
        let mut object = json!({
            "id": self.frame.id,
            "object": "response",
            "created_at": self.frame.created,
            "status": word,
            "model": self.frame.model,
            "output": self.output,
            "error": Value::Null,
            "incomplete_details": incomplete,
            "usage": Value::Null,
            "system_fingerprint": self.frame.fingerprint(self.begun.version),
        });
        match status {
            Status::InProgress => {}
            Status::Ended(ended) => {
                object["usage"] = self.usage(ended);
                object["completed_at"] = json!(self.frame.created);
                object["hone"] = json!(HoneNote::of(ended));
            }
            Status::Failed(error) => {
                let body = error.body().error;
                object["error"] = json!({"code": body.code, "message": body.message});
            }
        }
        if let Value::Object(fields) = &mut object {
            fields.extend(self.echo.clone());
        }
        object
    }

    fn usage(&self, ended: &Ended) -> Value {
        let mut sampled = Sampled::default();
        sampled.add(ended);
        let usage = self.frame.usage(self.begun, sampled);
        json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        })
    }

    fn item_id(&self, prefix: &str) -> String {
        format!("{prefix}_{}{}", self.turn.0.simple(), self.output.len())
    }

    fn text_part(&mut self, text: &str) -> Value {
        let logprobs = std::mem::take(&mut self.logprobs);
        json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
    }

    /// A call; it is whole where its arguments are.
    fn call_item(&self, call: &Called) -> Value {
        let is_whole = serde_json::from_str::<IgnoredAny>(&call.arguments).is_ok();
        let status = if is_whole { "completed" } else { "incomplete" };
        let id = self.item_id("fc");
        json!({
            "type": "function_call", "id": id, "status": status,
            "call_id": call_id(self.turn, self.calls), "name": call.name, "arguments": call.arguments,
        })
    }
}

fn message_item(id: &str, status: &str, content: &[Value]) -> Value {
    json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
}

fn reasoning_item(id: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> = text
        .map(|text| json!({"type": "reasoning_text", "text": text}))
        .into_iter()
        .collect();
    json!({"type": "reasoning", "id": id, "summary": [], "content": content})
}

/// Gathers the response to its end.
pub async fn whole(
    frame: Frame,
    mut merged: Merged,
    begun: (Begun, Map<String, Value>),
) -> Result<Response, ApiError> {
    let mut told = Told::new(frame, &merged, begun);
    let mut all = gather(&told.frame, &mut merged).await?;
    note_of(&all)?;
    let one = all.swap_remove(0);
    let Some(ended) = one.ended else {
        return Err(ApiError::Internal("the response came to no end".to_owned()));
    };
    let heard = one.heard;
    // Those of the answer only.
    let said = one.logprobs.into_iter().filter(|entry| !entry.is_thought);
    told.logprobs = said.map(|entry| entry.logprob).collect();
    if !heard.reasoning.is_empty() {
        let item = reasoning_item(&told.item_id("rs"), Some(&heard.reasoning));
        told.output.push(item);
    }
    if !heard.content.is_empty() || heard.calls.is_empty() {
        let id = told.item_id("msg");
        let part = told.text_part(&heard.content);
        told.output
            .push(message_item(&id, word_of(&ended), &[part]));
    }
    for call in &heard.calls {
        let item = told.call_item(call);
        told.output.push(item);
        told.calls += 1;
    }
    Ok(Json(told.object(&Status::Ended(&ended))).into_response())
}

fn word_of(ended: &Ended) -> &'static str {
    match ended.stop {
        StopReason::Length => "incomplete",
        _ => "completed",
    }
}

/// Answers with events.
pub fn streamed(frame: Frame, merged: Merged, begun: (Begun, Map<String, Value>)) -> Response {
    let mut told = Telling {
        told: Told::new(frame, &merged, begun),
        open: None,
        number: 0,
    };
    let mut out = Events::new();
    for kind in ["response.created", "response.in_progress"] {
        let object = told.told.object(&Status::InProgress);
        told.emit(kind, json!({"response": object}), &mut out);
    }
    super::stream(told, merged, out)
}

/// An item that still grows.
enum Open {
    Text {
        id: String,
        reasoning: bool,
        text: String,
    },
    Call(Called),
}

struct Telling {
    told: Told,
    open: Option<Open>,
    number: u64,
}

impl Teller for Telling {
    fn piece(&mut self, _at: usize, piece: Piece, out: &mut Events) {
        match piece {
            Piece::Started { .. } | Piece::Failed(_) => {}
            Piece::Token(delta, is_thought, parts) => {
                let entry = self.told.frame.logprob(&delta).filter(|_| !is_thought);
                self.told.logprobs.extend(entry);
                parts.into_iter().for_each(|part| self.part(part, out));
            }
            Piece::Rest(parts) => parts.into_iter().for_each(|part| self.part(part, out)),
            Piece::Ended(ended) => {
                if self.told.output.is_empty() && self.open.is_none() {
                    self.open(false, out);
                }
                self.shut(word_of(&ended), out);
                let object = self.told.object(&Status::Ended(&ended));
                let kind = match ended.stop {
                    StopReason::Length => "response.incomplete",
                    _ => "response.completed",
                };
                self.emit(kind, json!({"response": object}), out);
            }
        }
    }

    fn close(&mut self, out: &mut Events) {
        out.push_back(Bytes::from_static(sse::DONE));
    }

    fn fail(&mut self, error: ApiError, out: &mut Events) {
        let object = self.told.object(&Status::Failed(&error));
        self.emit("response.failed", json!({"response": object}), out);
        out.push_back(Bytes::from_static(sse::DONE));
    }
}

impl Telling {
    fn emit(&mut self, kind: &str, mut data: Value, out: &mut Events) {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(self.number);
        self.number += 1;
        out.push_back(sse::named_event(Some(kind), &data));
    }

    fn part(&mut self, part: Part, out: &mut Events) {
        match part {
            Part::Reasoning(text) => self.text(true, &text, out),
            Part::Content(text) => self.text(false, &text, out),
            Part::CallBegun(name) => self.begin_call(name, out),
            Part::Arguments(text) => pieces(&text).for_each(|piece| self.arguments(piece, out)),
        }
    }

    fn text(&mut self, reasoning: bool, text: &str, out: &mut Events) {
        let fits =
            |open: &Open| matches!(open, Open::Text { reasoning: of, .. } if *of == reasoning);
        if !self.open.as_ref().is_some_and(fits) {
            self.shut("completed", out);
            self.open(reasoning, out);
        }
        let Some(Open::Text { id, text: all, .. }) = &mut self.open else {
            return;
        };
        all.push_str(text);
        let id = id.clone();
        let index = self.told.output.len();
        let mut data =
            json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
        if reasoning {
            return self.emit("response.reasoning_text.delta", data, out);
        }
        data["logprobs"] = json!([]);
        self.emit("response.output_text.delta", data, out);
    }

    fn open(&mut self, reasoning: bool, out: &mut Events) {
        let id = self.told.item_id(if reasoning { "rs" } else { "msg" });
        let index = self.told.output.len();
        let (item, part) = match reasoning {
            true => (
                reasoning_item(&id, None),
                json!({"type": "reasoning_text", "text": ""}),
            ),
            false => (
                message_item(&id, "in_progress", &[]),
                json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
            ),
        };
        self.emit(
            "response.output_item.added",
            json!({"output_index": index, "item": item}),
            out,
        );
        let added = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
        self.emit("response.content_part.added", added, out);
        self.open = Some(Open::Text {
            id,
            reasoning,
            text: String::new(),
        });
    }

    /// Ends the item that grows.
    fn shut(&mut self, status: &str, out: &mut Events) {
        let (id, reasoning, text) = match self.open.take() {
            Some(Open::Text {
                id,
                reasoning,
                text,
            }) => (id, reasoning, text),
            Some(Open::Call(call)) => return self.end_call(&call, out),
            None => return,
        };
        let index = self.told.output.len();
        let at = json!({"item_id": id, "output_index": index, "content_index": 0});
        let with = |name: &str, value: Value| {
            let mut data = at.clone();
            data[name] = value;
            data
        };
        let (item, part) = match reasoning {
            true => {
                let data = with("text", json!(text));
                self.emit("response.reasoning_text.done", data, out);
                let part = json!({"type": "reasoning_text", "text": text});
                (reasoning_item(&id, Some(&text)), part)
            }
            false => {
                let part = self.told.text_part(&text);
                let mut data = with("text", json!(text));
                data["logprobs"] = part["logprobs"].clone();
                self.emit("response.output_text.done", data, out);
                (message_item(&id, status, std::slice::from_ref(&part)), part)
            }
        };
        self.emit("response.content_part.done", with("part", part), out);
        let done = json!({"output_index": index, "item": item});
        self.emit("response.output_item.done", done, out);
        self.told.output.push(item);
    }

    fn begin_call(&mut self, name: String, out: &mut Events) {
        self.shut("completed", out);
        let call = Called {
            name,
            arguments: String::new(),
        };
        let mut item = self.told.call_item(&call);
        item["status"] = json!("in_progress");
        let index = self.told.output.len();
        self.emit(
            "response.output_item.added",
            json!({"output_index": index, "item": item}),
            out,
        );
        self.open = Some(Open::Call(call));
    }

    /// More of the arguments of the call that grows.
    fn arguments(&mut self, text: &str, out: &mut Events) {
        if let Some(Open::Call(call)) = &mut self.open {
            call.arguments.push_str(text);
        }
        let (id, index) = (self.told.item_id("fc"), self.told.output.len());
        let data = json!({"item_id": id, "output_index": index, "delta": text});
        self.emit("response.function_call_arguments.delta", data, out);
    }

    fn end_call(&mut self, call: &Called, out: &mut Events) {
        let item = self.told.call_item(call);
        let index = self.told.output.len();
        let done = json!({
            "item_id": item["id"], "output_index": index, "name": call.name,
            "arguments": call.arguments,
        });
        self.emit("response.function_call_arguments.done", done, out);
        self.emit(
            "response.output_item.done",
            json!({"output_index": index, "item": item}),
            out,
        );
        self.told.output.push(item);
        self.told.calls += 1;
    }
}
