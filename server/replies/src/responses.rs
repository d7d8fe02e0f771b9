//! The replies of `/v1/responses`: one response object, whole or grown by events.

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use hone_domain::{Called, Part, StopReason, TurnId};
use serde::de::IgnoredAny;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::openai::pieces;
use crate::sse;
use crate::{Begun, Events, Frame, Merged, Sampled, StreamEncoder, add, gather, note_of};
use hone_api_types::foreign::{Alias, input_of};
use hone_api_types::replies::{HoneNote, Logprob, Logprobs};
use hone_inference::{Ended, Piece, call_id};

/// A response under way: what the request said about it, and what it says so far.
pub struct ResponseState {
    frame: Frame,
    begun: Begun,
    /// Fields that repeat the request.
    echo: Map<String, Value>,
    turn: TurnId,
    /// Whole items of the output.
    output: Vec<Item>,
    logprobs: Vec<Logprob>,
    calls: usize,
}

/// An item of the output.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Item {
    Message(MessageItem),
    Other(Value),
}

/// What is said to the user.
#[derive(serde::Serialize)]
struct MessageItem {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    status: &'static str,
    role: &'static str,
    content: Vec<TextPart>,
}

#[derive(serde::Serialize)]
struct TextPart {
    #[serde(rename = "type")]
    kind: &'static str,
    text: String,
    annotations: [(); 0],
    logprobs: Logprobs,
}

/// Fields, and one that becomes JSON only where it is written: log-probs are many.
struct With<'a, T> {
    fields: Value,
    name: &'static str,
    value: &'a T,
}

impl<T: Serialize> Serialize for With<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.fields.as_object().into_iter().flatten() {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry(self.name, self.value)?;
        map.end()
    }
}

/// How a response stands.
enum Status<'a> {
    InProgress,
    Ended(&'a Ended),
    Failed(&'a ApiError),
}

impl ResponseState {
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
    fn object(&self, status: &Status<'_>) -> With<'_, Vec<Item>> {
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
            "error": Value::Null,
            "incomplete_details": incomplete,
            "usage": Value::Null,
            "system_fingerprint": self.frame.fingerprint(self.begun.version),
        });
        match status {
            Status::InProgress => {}
            Status::Ended(ended) => {
                object["usage"] = self.usage(ended);
                object["completed_at"] = json!(self.frame.clock.now_ms() / 1_000);
                object["hone"] = json!(HoneNote::of(ended));
                add(&mut object, &self.frame.captured_alone(ended));
            }
            Status::Failed(error) => {
                let body = error.body().error;
                object["error"] = json!({"code": body.code, "message": body.message});
            }
        }
        if let Value::Object(fields) = &mut object {
            fields.extend(self.echo.clone());
        }
        With {
            fields: object,
            name: "output",
            value: &self.output,
        }
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

    fn text_part(&mut self, text: String) -> TextPart {
        let logprobs = std::mem::take(&mut self.logprobs);
        TextPart {
            kind: "output_text",
            text,
            annotations: [],
            logprobs: self.frame.told(logprobs),
        }
    }

    /// How the client knows a call's function.
    fn alias(&self, call: &Called) -> Option<&Alias> {
        self.frame.aliases.get(&call.name)
    }

    /// A call; it is whole where its arguments are.
    fn call_item(&self, call: &Called) -> Value {
        let is_whole = serde_json::from_str::<IgnoredAny>(&call.arguments).is_ok();
        let status = if is_whole { "completed" } else { "incomplete" };
        let alias = self.alias(call);
        let mut item = match alias.filter(|alias| alias.is_custom) {
            Some(alias) => json!({
                "type": "custom_tool_call", "id": self.item_id("ctc"), "status": status,
                "call_id": call_id(self.turn, self.calls), "name": alias.name,
                "input": input_of(&call.arguments),
            }),
            None => json!({
                "type": "function_call", "id": self.item_id("fc"), "status": status,
                "call_id": call_id(self.turn, self.calls),
                "name": alias.map_or(&call.name, |alias| &alias.name),
                "arguments": call.arguments,
            }),
        };
        if let Some(namespace) = alias.and_then(|alias| alias.namespace.as_ref()) {
            item["namespace"] = json!(namespace);
        }
        item
    }
}

fn message_item(id: String, status: &'static str, content: Vec<TextPart>) -> MessageItem {
    MessageItem {
        kind: "message",
        id,
        status,
        role: "assistant",
        content,
    }
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
    echo: Map<String, Value>,
) -> Result<Response, ApiError> {
    let begun = merged.begin().await?;
    let mut state = ResponseState::new(frame, &merged, (begun, echo));
    let mut all = gather(&state.frame, &mut merged).await?;
    note_of(&all)?;
    let one = all.swap_remove(0);
    let Some(ended) = one.ended else {
        return Err(ApiError::Internal("the response came to no end".to_owned()));
    };
    let parsed = one.parsed;
    // Those of the answer only.
    let said = one.logprobs.into_iter().filter(|entry| !entry.is_thought);
    state.logprobs = said.map(|entry| entry.logprob).collect();
    if !parsed.reasoning.is_empty() {
        let item = reasoning_item(&state.item_id("rs"), Some(&parsed.reasoning));
        state.output.push(Item::Other(item));
    }
    if !parsed.content.is_empty() || parsed.calls.is_empty() {
        let id = state.item_id("msg");
        let part = state.text_part(parsed.content);
        let item = message_item(id, word_of(&ended), vec![part]);
        state.output.push(Item::Message(item));
    }
    for call in &parsed.calls {
        let item = state.call_item(call);
        state.output.push(Item::Other(item));
        state.calls += 1;
    }
    Ok(Json(state.object(&Status::Ended(&ended))).into_response())
}

fn word_of(ended: &Ended) -> &'static str {
    match ended.stop {
        StopReason::Length => "incomplete",
        _ => "completed",
    }
}

/// Answers with events.
pub fn streamed(frame: Frame, merged: Merged, echo: Map<String, Value>) -> Response {
    let encoder = ResponseEncoder {
        state: ResponseState::new(frame, &merged, (Begun::default(), echo)),
        open: None,
        number: 0,
    };
    crate::stream(encoder, merged)
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

struct ResponseEncoder {
    state: ResponseState,
    open: Option<Open>,
    number: u64,
}

impl StreamEncoder for ResponseEncoder {
    fn begin(&mut self, begun: Begun, out: &mut Events) {
        self.state.begun = begun;
        for kind in ["response.created", "response.in_progress"] {
            self.emit_response(kind, &Status::InProgress, out);
        }
    }

    fn piece(&mut self, _at: usize, piece: Piece, out: &mut Events) {
        match piece {
            Piece::Started { .. } | Piece::Failed(_) => {}
            Piece::Token(delta, is_thought, parts) => {
                let entry = self.state.frame.logprob(delta).filter(|_| !is_thought);
                self.state.logprobs.extend(entry);
                parts.into_iter().for_each(|part| self.part(part, out));
            }
            Piece::Rest(parts) => parts.into_iter().for_each(|part| self.part(part, out)),
            Piece::Ended(ended) => {
                if self.state.output.is_empty() && self.open.is_none() {
                    self.open(false, out);
                }
                self.shut(word_of(&ended), out);
                let kind = match ended.stop {
                    StopReason::Length => "response.incomplete",
                    _ => "response.completed",
                };
                self.emit_response(kind, &Status::Ended(&ended), out);
            }
        }
    }

    fn close(&mut self, out: &mut Events) {
        out.push_back(Bytes::from_static(sse::DONE));
    }

    fn fail(&mut self, error: ApiError, out: &mut Events) {
        if self.number > 0 {
            self.emit_response("response.failed", &Status::Failed(&error), out);
        } else {
            // There is no response yet.
            let error = error.body().error;
            let data = json!({"code": error.code, "message": error.message, "param": error.param});
            self.emit("error", data, out);
        }
        out.push_back(Bytes::from_static(sse::DONE));
    }
}

impl ResponseEncoder {
    fn emit(&mut self, kind: &str, data: Value, out: &mut Events) {
        let data = self.numbered(kind, data);
        out.push_back(sse::named_event(Some(kind), &data));
    }

    fn numbered(&mut self, kind: &str, mut data: Value) -> Value {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(self.number);
        self.number += 1;
        data
    }

    /// An event with a value that becomes JSON only now.
    fn emit_with<T: Serialize>(
        &mut self,
        kind: &str,
        data: Value,
        (name, value): (&'static str, &T),
        out: &mut Events,
    ) {
        let fields = self.numbered(kind, data);
        let event = With {
            fields,
            name,
            value,
        };
        out.push_back(sse::named_event(Some(kind), &event));
    }

    /// An event with the response as it stands.
    fn emit_response(&mut self, kind: &str, status: &Status<'_>, out: &mut Events) {
        let event = With {
            fields: self.numbered(kind, json!({})),
            name: "response",
            value: &self.state.object(status),
        };
        out.push_back(sse::named_event(Some(kind), &event));
    }

    /// The item that grew is whole.
    fn item_done(&mut self, item: Item, out: &mut Events) {
        let at = json!({"output_index": self.state.output.len()});
        self.emit_with("response.output_item.done", at, ("item", &item), out);
        self.state.output.push(item);
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
        let index = self.state.output.len();
        let mut data =
            json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
        if reasoning {
            return self.emit("response.reasoning_text.delta", data, out);
        }
        data["logprobs"] = json!([]);
        self.emit("response.output_text.delta", data, out);
    }

    fn open(&mut self, reasoning: bool, out: &mut Events) {
        let id = self.state.item_id(if reasoning { "rs" } else { "msg" });
        let index = self.state.output.len();
        let (item, part) = match reasoning {
            true => (
                reasoning_item(&id, None),
                json!({"type": "reasoning_text", "text": ""}),
            ),
            false => (
                json!(message_item(id.clone(), "in_progress", Vec::new())),
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
    fn shut(&mut self, status: &'static str, out: &mut Events) {
        let (id, reasoning, text) = match self.open.take() {
            Some(Open::Text {
                id,
                reasoning,
                text,
            }) => (id, reasoning, text),
            Some(Open::Call(call)) => return self.end_call(&call, out),
            None => return,
        };
        let index = self.state.output.len();
        let at = json!({"item_id": id, "output_index": index, "content_index": 0});
        let mut said = at.clone();
        said["text"] = json!(text);
        let item = if reasoning {
            self.emit("response.reasoning_text.done", said, out);
            let part = json!({"type": "reasoning_text", "text": text});
            self.emit_with("response.content_part.done", at, ("part", &part), out);
            Item::Other(reasoning_item(&id, Some(&text)))
        } else {
            let part = self.state.text_part(text);
            let logprobs = ("logprobs", &part.logprobs);
            self.emit_with("response.output_text.done", said, logprobs, out);
            self.emit_with("response.content_part.done", at, ("part", &part), out);
            Item::Message(message_item(id, status, vec![part]))
        };
        self.item_done(item, out);
    }

    fn begin_call(&mut self, name: String, out: &mut Events) {
        self.shut("completed", out);
        let call = Called {
            name,
            arguments: String::new(),
        };
        let mut item = self.state.call_item(&call);
        item["status"] = json!("in_progress");
        if let Some(input) = item.get_mut("input") {
            *input = json!("");
        }
        let index = self.state.output.len();
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
            // A text is told when it is whole: its pieces are no pieces of the JSON around it.
            let alias = self.state.frame.aliases.get(&call.name);
            if alias.is_some_and(|alias| alias.is_custom) {
                return;
            }
        }
        let (id, index) = (self.state.item_id("fc"), self.state.output.len());
        let data = json!({"item_id": id, "output_index": index, "delta": text});
        self.emit("response.function_call_arguments.delta", data, out);
    }

    fn end_call(&mut self, call: &Called, out: &mut Events) {
        let item = self.state.call_item(call);
        let index = self.state.output.len();
        let at = json!({"item_id": item["id"], "output_index": index});
        if let Some(input) = item.get("input") {
            let (mut delta, mut done) = (at.clone(), at);
            delta["delta"] = input.clone();
            done["input"] = input.clone();
            self.emit("response.custom_tool_call_input.delta", delta, out);
            self.emit("response.custom_tool_call_input.done", done, out);
        } else {
            let mut done = at;
            done["name"] = item["name"].clone();
            done["arguments"] = json!(call.arguments);
            self.emit("response.function_call_arguments.done", done, out);
        }
        self.item_done(Item::Other(item), out);
        self.state.calls += 1;
    }
}
