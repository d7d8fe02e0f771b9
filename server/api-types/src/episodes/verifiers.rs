//! verifiers: an episode record with one trace (`verifiers.v1`, 0.4, trace version 1).

use std::collections::BTreeMap;

use hone_domain::{JobState, Message, Role, Token};
use hone_ledger::TurnView;
use serde_json::{Value, json};

use super::recorded::{RecordedEpisode, about_turn, answer, behavior, seconds};
use crate::replies::finish_reason;

pub(super) fn written(episode: &RecordedEpisode) -> Value {
    let job = episode.job.as_ref();
    let is_ok = job.is_none_or(|job| job.state == JobState::Done);
    let task = json!({
        "type": "HoneTask",
        "data": {"id": job.map(|job| job.task.prefixed())},
    });
    let id = match job {
        Some(job) => job.id.prefixed(),
        None => episode.session.prefixed(),
    };
    let mut written = json!({
        "id": id,
        "env": {"id": "hone"},
        "task": task,
        "ok": is_ok,
        "traces": [trace(episode, (&task, is_ok))],
    });
    if let Some(job) = job {
        written["group"] = json!({"id": job.group.prefixed()});
    }
    written
}

fn trace(episode: &RecordedEpisode, (task, is_ok): (&Value, bool)) -> Value {
    let mut graph = Graph::default();
    for view in &episode.turns {
        graph.add(episode, view);
    }
    let rewards: BTreeMap<&str, Value> = episode
        .worth()
        .map(|score| ("reward", json!({"score": score, "weight": 1.0})))
        .into_iter()
        .collect();
    let reason = episode.job.as_ref().and_then(|job| job.reason);
    let started = episode.turns.first().map(|view| view.turn.started_ms);
    let trainable = episode.turns.iter().any(|view| behavior(view).is_some());
    let mut info = episode.about();
    info["turns"] = episode.turns.iter().map(about_turn).collect();
    json!({
        "version": 1,
        "id": episode.session.prefixed(),
        "task": task,
        "agent": {"config": {}, "name": "agent", "trainable": trainable},
        "nodes": graph.nodes,
        "calls": graph.calls,
        "rewards": rewards,
        "metrics": episode.parts(),
        "info": info,
        "is_completed": true,
        "ok": is_ok,
        "stop_condition": reason.map(hone_domain::JobReason::as_str),
        "timing": {"start": seconds(started.unwrap_or_default())},
    })
}

/// The message graph: nodes whose tokens, from a root to a leaf, are the very tokens that the model saw.
#[derive(Default)]
struct Graph {
    nodes: Vec<Value>,
    calls: Vec<Value>,
    /// Tokens of the path to the newest node.
    path: Vec<Token>,
    /// How many messages of the conversation that path has.
    messages: usize,
}

impl Graph {
    /// Adds what a turn was asked and what it answered. A prompt that does not go on from the tokens before it begins a
    /// path of its own.
    fn add(&mut self, episode: &RecordedEpisode, view: &TurnView) {
        let turn = &view.turn;
        let goes_on = !self.path.is_empty()
            && turn.messages.len() > self.messages
            && turn.prompt_tokens.starts_with(&self.path);
        if !goes_on {
            (self.path, self.messages) = (Vec::new(), 0);
        }
        let mut parent = goes_on.then(|| self.nodes.len() - 1);
        let new = &turn.messages[self.messages..];
        for (at, message) in new.iter().enumerate() {
            // Which of a prompt's tokens belong to which message is not recorded, so the last one has them all.
            let is_last = at + 1 == new.len();
            let tokens = match is_last {
                true => &turn.prompt_tokens[self.path.len()..],
                false => &[],
            };
            self.nodes.push(json!({
                "parent": parent,
                "message": written_message(message, ""),
                "sampled": false,
                "timestamp": seconds(turn.started_ms),
                "token_ids": tokens,
                "mask": vec![false; tokens.len()],
            }));
            parent = Some(self.nodes.len() - 1);
        }
        self.answer(episode, view, parent);
    }

    fn answer(&mut self, episode: &RecordedEpisode, view: &TurnView, parent: Option<usize>) {
        let turn = &view.turn;
        let logprobs = behavior(view);
        let completion = turn.completion.tokens();
        let reasoning = hone_domain::ParsedOutput::whole(&turn.completion_text).reasoning;
        // Without log-probs nothing of it is a sample to train on.
        self.nodes.push(json!({
            "parent": parent,
            "message": written_message(&answer(turn), &reasoning),
            "sampled": true,
            "timestamp": seconds(turn.finished_ms),
            "token_ids": completion,
            "mask": vec![logprobs.is_some(); completion.len()],
            "logprobs": logprobs.unwrap_or_default(),
        }));
        let (prompt_tokens, completion_tokens) = (turn.prompt_tokens.len(), completion.len());
        self.calls.push(json!({
            "node": self.nodes.len() - 1,
            "model": episode.model_of(turn),
            "sampling": {"temperature": turn.sampling.temperature, "top_p": turn.sampling.top_p},
            "finish_reason": finish_reason(turn.completion.stop()),
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens},
            "time": {"start": seconds(turn.started_ms), "end": seconds(turn.finished_ms)},
        }));
        self.path = [&turn.prompt_tokens[..], completion].concat();
        self.messages = turn.messages.len() + 1;
    }
}

/// A message as verifiers writes it.
fn written_message(message: &Message, reasoning: &str) -> Value {
    let calls = message.tool_calls.iter();
    let calls: Vec<Value> = calls
        .map(|call| json!({"id": call.id, "name": call.name, "arguments": call.arguments}))
        .collect();
    match message.role {
        Role::System | Role::Developer => json!({"role": "system", "content": message.content}),
        Role::Tool => json!({
            "role": "tool",
            "tool_call_id": message.tool_call_id.as_deref().unwrap_or_default(),
            "content": message.content,
        }),
        Role::Assistant => {
            let mut written = json!({"role": "assistant", "content": message.content});
            if !calls.is_empty() {
                written["tool_calls"] = json!(calls);
            }
            if !reasoning.is_empty() {
                written["reasoning_content"] = json!(reasoning);
            }
            written
        }
        _ => json!({"role": "user", "content": message.content}),
    }
}
