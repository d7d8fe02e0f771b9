//! Replies in tokens, as vLLM and SGLang write them.

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use hone_domain::{ParsedOutput, Token};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::sse;
use crate::{Begun, Events, Frame, Gathered, Merged, Sampled, StreamEncoder, add, gather, note_of};
use hone_api_types::capture::told;
use hone_api_types::generate::Form;
use hone_api_types::replies::{HoneNote, Logprob, finish_reason};
use hone_inference::{Ended, Piece};

/// Log-probs of tokens in vLLM's form.
fn content(tokens: &[Logprob]) -> Value {
    let entry = |(token, logprob): (Token, f32), rank: Option<usize>| {
        json!({
            "token": format!("token_id:{token}"),
            "token_id": token,
            "logprob": told(logprob),
            "rank": rank.map(|at| at + 1),
        })
    };
    let of = |one: &Logprob| {
        let rank = one.top.iter().position(|(token, _)| *token == one.token);
        let mut entry_of = entry((one.token, one.logprob), rank);
        let top = one.top.iter().copied().enumerate();
        entry_of["top_logprobs"] = top.map(|(at, top)| entry(top, Some(at))).collect();
        entry_of
    };
    json!({"content": tokens.iter().map(of).collect::<Vec<_>>()})
}

/// The log-probs of a choice, where they are reported.
fn content_of(frame: &Frame, tokens: &[Logprob]) -> Value {
    match frame.logprobs {
        Some(_) => content(tokens),
        None => Value::Null,
    }
}

fn ended_of(gathered: &Gathered) -> Result<&Ended, ApiError> {
    let ended = gathered.ended.as_ref();
    ended.ok_or_else(|| ApiError::Internal("a completion came to no end".to_owned()))
}

/// Gathers the completion to its end, and tells it in vLLM's form.
pub async fn whole(frame: Frame, mut merged: Merged, form: &Form) -> Result<Response, ApiError> {
    let begun = merged.begin().await?;
    let all = gather(&frame, &mut merged).await?;
    let (hone, sampled) = note_of(&all)?;
    let mut choices = Vec::with_capacity(all.len());
    for (at, gathered) in all.iter().enumerate() {
        let ended = ended_of(gathered)?;
        let tokens: Vec<Logprob> = gathered
            .logprobs
            .iter()
            .map(|e| e.logprob.clone())
            .collect();
        let mut choice = json!({
            "index": at,
            "finish_reason": finish_reason(ended.stop),
            "logprobs": content_of(&frame, &tokens),
        });
        if form.text {
            choice["text"] = json!(gathered.parsed.content);
        }
        add(&mut choice, &frame.captured(at, 0, ended));
        choices.push(choice);
    }
    let usage = frame.usage(begun, sampled);
    let reply = json!({
        "request_id": form.request_id.clone().unwrap_or_else(|| json!(frame.id)),
        "model": frame.model,
        "choices": choices,
        "prompt_logprobs": frame.scored_of(0),
        "usage": usage,
        "hone": hone,
    });
    Ok(Json(reply).into_response())
}

/// Tells tokens as events in vLLM's form.
pub fn streamed(frame: Frame, merged: Merged, form: Form) -> Response {
    let encoder = GenerateEncoder {
        frame,
        form,
        begun: Begun::default(),
        sampled: Sampled::default(),
        tokens_sent: 0,
    };
    crate::stream(encoder, merged)
}

struct GenerateEncoder {
    frame: Frame,
    form: Form,
    begun: Begun,
    sampled: Sampled,
    /// Tokens so far.
    tokens_sent: usize,
}

impl GenerateEncoder {
    fn event(&self, mut choice: Value, hone: Option<&HoneNote>) -> Bytes {
        choice["index"] = json!(0);
        let id = self.form.request_id.clone();
        let mut event = json!({
            "request_id": id.unwrap_or_else(|| json!(self.frame.id)),
            "choices": [choice],
        });
        if let Some(hone) = hone {
            event["hone"] = json!(hone);
            event["usage"] = json!(self.frame.usage(self.begun, self.sampled));
            if let Some(scored) = self.frame.scored_of(0) {
                event["prompt_logprobs"] = json!(scored);
            }
        }
        sse::event(&event)
    }
}

impl StreamEncoder for GenerateEncoder {
    fn begin(&mut self, begun: Begun, _out: &mut Events) {
        self.begun = begun;
    }

    fn piece(&mut self, _at: usize, piece: Piece, out: &mut Events) {
        match piece {
            Piece::Started { .. } | Piece::Failed(_) => {}
            Piece::Rest(parts) => {
                let mut rest = ParsedOutput::default();
                rest.add(parts);
                if self.form.text {
                    let choice = json!({"token_ids": [], "text": rest.content, "finish_reason": Value::Null});
                    out.push_back(self.event(choice, None));
                }
            }
            Piece::Token(delta, _, _) => {
                self.tokens_sent += 1;
                let mut choice = json!({"token_ids": [delta.token], "finish_reason": Value::Null});
                if self.form.text {
                    choice["text"] = json!(delta.text);
                }
                let logprob: Vec<Logprob> = self.frame.logprob(delta).into_iter().collect();
                choice["logprobs"] = content_of(&self.frame, &logprob);
                out.push_back(self.event(choice, None));
            }
            Piece::Ended(ended) => {
                self.sampled.add(&ended);
                let rest = self.frame.logprobs_behind(&ended, self.tokens_sent);
                let mut choice = json!({
                    "finish_reason": finish_reason(ended.stop),
                    "logprobs": content_of(&self.frame, &rest),
                });
                add(
                    &mut choice,
                    &self.frame.captured(0, self.tokens_sent, &ended),
                );
                out.push_back(self.event(choice, Some(&HoneNote::of(&ended))));
            }
        }
    }

    fn close(&mut self, out: &mut Events) {
        out.push_back(Bytes::from_static(sse::DONE));
    }

    fn fail(&mut self, error: ApiError, out: &mut Events) {
        out.push_back(sse::event(&error.body()));
        out.push_back(Bytes::from_static(sse::DONE));
    }
}

/// Gathers every completion to its end, and tells them in SGLang's form.
pub async fn sglang(frame: Frame, mut merged: Merged, form: &Form) -> Result<Response, ApiError> {
    let first = merged.begin().await?;
    let all = gather(&frame, &mut merged).await?;
    note_of(&all)?;
    let mut replies = Vec::with_capacity(all.len());
    for (at, gathered) in all.iter().enumerate() {
        let ended = ended_of(gathered)?;
        let cached = match at {
            0 => first.cached_tokens,
            _ => gathered.cached_tokens,
        };
        let mut meta = frame.meta_info(at, ended);
        meta["cached_tokens"] = json!(cached);
        if let Some(id) = &form.request_id {
            meta["id"] = match id {
                Value::Array(ids) => ids.get(at).cloned().unwrap_or(Value::Null),
                id => id.clone(),
            };
        }
        if frame.logprobs.is_some() {
            sampled_logprobs(&mut meta, gathered);
            input_logprobs(&mut meta, &frame, at, form.input_from);
        }
        let captured = frame.captured(at, 0, ended);
        for (name, value) in [
            ("sampling_mask", json!(captured.sampling_mask)),
            ("routed_experts", json!(captured.routed_experts)),
        ] {
            if !value.is_null() {
                meta[name] = value;
            }
        }
        replies.push(json!({
            "text": gathered.parsed.content,
            "output_ids": ended.completion.tokens(),
            "meta_info": meta,
            "hone": HoneNote::of(ended),
        }));
    }
    let reply = match form.many {
        true => Value::Array(replies),
        false => replies.swap_remove(0),
    };
    Ok(Json(reply).into_response())
}

/// An entry of SGLang's lists: log-prob, token id, and no text.
fn triple(logprob: Option<f64>, token: Token) -> Value {
    json!([logprob, token, Value::Null])
}

fn sampled_logprobs(meta: &mut Value, gathered: &Gathered) {
    let tokens = || gathered.logprobs.iter().map(|entry| &entry.logprob);
    let own = tokens().map(|one| triple(Some(told(one.logprob)), one.token));
    meta["output_token_logprobs"] = own.collect();
    if tokens().any(|one| !one.top.is_empty()) {
        let top = |one: &Logprob| -> Value {
            let top = one
                .top
                .iter()
                .map(|(token, p)| triple(Some(told(*p)), *token));
            top.collect()
        };
        meta["output_top_logprobs"] = tokens().map(top).collect();
    }
}

/// Log-probs of a prompt from a place on, where they are reported; the first token has none.
fn input_logprobs(meta: &mut Value, frame: &Frame, at: usize, from: usize) {
    let prompt = frame.prompt_of(at);
    let Some(scored) = frame.scored_of(at) else {
        return;
    };
    let entries = prompt.iter().zip(scored).skip(from);
    let own = entries.map(|(token, all)| {
        let own = all.as_ref().and_then(|all| all.get(token));
        triple(own.map(|own| own.logprob), *token)
    });
    meta["input_token_logprobs"] = own.collect();
}
