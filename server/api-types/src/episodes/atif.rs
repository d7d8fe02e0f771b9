//! ATIF, the Agent Trajectory Interchange Format of Harbor (RFC 0001), version 1.8.

use hone_domain::{Message, Millis, Role, ToolCall, civil};
use hone_ledger::TurnView;
use serde_json::{Map, Value, json};

use super::recorded::{RecordedEpisode, Said, about_turn, behavior};

pub(super) fn written(episode: &RecordedEpisode) -> Value {
    let mut steps: Vec<Value> = Vec::new();
    for said in episode.conversation() {
        match said.message.role {
            Role::Tool => observe(&mut steps, &said.message),
            _ => {
                let id = steps.len() + 1;
                steps.push(step(episode, &said, id));
            }
        }
    }
    let last = episode.turns.last().map(|view| &view.turn);
    let mut agent = json!({"name": "hone", "version": env!("CARGO_PKG_VERSION")});
    if let Some(model) = last.and_then(|turn| episode.model_of(turn)) {
        agent["model_name"] = json!(model);
    }
    let id = match &episode.job {
        Some(job) => job.id.prefixed(),
        None => episode.session.prefixed(),
    };
    json!({
        "schema_version": "ATIF-v1.8",
        "session_id": episode.session.prefixed(),
        "trajectory_id": id,
        "agent": agent,
        "notes": "Recorded by Hone beside the model; which program asked is not known. Steps of the agent without metrics \
                  were in the prompt and are no recorded answers.",
        "final_metrics": totals(episode, steps.len()),
        "steps": steps,
        "extra": episode.about(),
    })
}

fn step(episode: &RecordedEpisode, said: &Said<'_>, id: usize) -> Value {
    let message = &said.message;
    let source = match message.role {
        Role::System | Role::Developer => "system",
        Role::Assistant => "agent",
        _ => "user",
    };
    let mut step = json!({"step_id": id, "source": source, "message": message.content});
    if let Some(name) = &message.name {
        step["extra"] = json!({ "name": name });
    }
    if message.role != Role::Assistant {
        return step;
    }
    if !message.tool_calls.is_empty() {
        step["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    let Some(view) = said.by else {
        // It was in the prompt: an example, or said before anything was recorded.
        step["is_copied_context"] = json!(true);
        return step;
    };
    if !said.reasoning.is_empty() {
        step["reasoning_content"] = json!(said.reasoning);
    }
    if let Some(model) = episode.model_of(&view.turn) {
        step["model_name"] = json!(model);
    }
    step["timestamp"] = json!(iso(view.turn.finished_ms));
    step["llm_call_count"] = json!(1);
    step["metrics"] = metrics(view);
    step["extra"] = about_turn(view);
    step
}

fn metrics(view: &TurnView) -> Value {
    let turn = &view.turn;
    let mut metrics = json!({
        "prompt_tokens": turn.prompt_tokens.len(),
        "completion_tokens": turn.completion.len(),
        "prompt_token_ids": turn.prompt_tokens,
        "completion_token_ids": turn.completion.tokens(),
    });
    if let Some(logprobs) = behavior(view) {
        metrics["logprobs"] = json!(logprobs);
    }
    metrics
}

/// A call; arguments that are no JSON object are told as they were sampled.
fn call(call: &ToolCall) -> Value {
    let parsed = serde_json::from_str::<Map<String, Value>>(&call.arguments);
    let mut written = json!({"tool_call_id": call.id, "function_name": call.name});
    match parsed {
        Ok(arguments) => written["arguments"] = Value::Object(arguments),
        Err(_) => {
            written["arguments"] = json!({});
            written["extra"] = json!({"arguments_text": call.arguments});
        }
    }
    written
}

/// A tool's result belongs to the step that called it, or to the one before where no step did.
fn observe(steps: &mut Vec<Value>, message: &Message) {
    let id = message.tool_call_id.as_deref().unwrap_or_default();
    let calls = |step: &Value| {
        let calls = step["tool_calls"].as_array();
        calls.is_some_and(|calls| calls.iter().any(|call| call["tool_call_id"] == id))
    };
    let mut result = json!({"content": message.content});
    let mut extra = Map::new();
    if let Some(failed) = message.failed {
        extra.insert("failed".to_owned(), json!(failed));
    }
    let at = steps.iter().rposition(calls);
    match at {
        Some(_) => result["source_call_id"] = json!(id),
        None if !id.is_empty() => {
            extra.insert("tool_call_id".to_owned(), json!(id));
        }
        None => {}
    }
    if !extra.is_empty() {
        result["extra"] = Value::Object(extra);
    }
    if steps.is_empty() {
        steps.push(json!({"step_id": 1, "source": "system", "message": ""}));
    }
    let at = at.unwrap_or(steps.len() - 1);
    let observation = &mut steps[at]["observation"];
    match observation["results"].as_array_mut() {
        Some(results) => results.push(result),
        None => *observation = json!({ "results": [result] }),
    }
}

/// Sums over the recorded steps. What was computed again and what was in a cache is not recorded.
fn totals(episode: &RecordedEpisode, steps: usize) -> Value {
    let turns = || episode.turns.iter().map(|view| &view.turn);
    let prompts: usize = turns().map(|turn| turn.prompt_tokens.len()).sum();
    let completions: usize = turns().map(|turn| turn.completion.len()).sum();
    json!({
        "total_prompt_tokens": prompts,
        "total_completion_tokens": completions,
        "total_steps": steps,
    })
}

/// A time in ISO 8601.
fn iso(ms: Millis) -> String {
    const DAY: i64 = 86_400_000;
    let (days, within) = (ms.div_euclid(DAY), ms.rem_euclid(DAY));
    let (year, month, day) = civil(u64::try_from(days).unwrap_or(0));
    let (hour, minute) = (within / 3_600_000, within / 60_000 % 60);
    let (second, rest) = (within / 1_000 % 60, within % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{rest:03}Z")
}
