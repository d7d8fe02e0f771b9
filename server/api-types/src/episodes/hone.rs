//! Hone's own format: every turn as it was recorded.

use hone_ledger::TurnView;
use serde_json::{Value, json};

use super::recorded::{RecordedEpisode, about_turn, behavior, chat};

pub(super) fn written(episode: &RecordedEpisode) -> Value {
    let turns: Vec<Value> = episode.turns.iter().map(turn).collect();
    json!({
        "object": "recorded_episode",
        "about": episode.about(),
        "turns": turns,
    })
}

fn turn(view: &TurnView) -> Value {
    let turn = &view.turn;
    let completion = &turn.completion;
    let messages: Vec<Value> = turn.messages.iter().map(chat).collect();
    let raw = behavior(view).map(|_| completion.raw_logprobs());
    json!({
        "about": about_turn(view),
        "messages": messages,
        "completion": turn.completion_text,
        "prompt_ids": turn.prompt_tokens,
        "completion_ids": completion.tokens(),
        "logprobs": behavior(view),
        "raw_logprobs": raw,
        "sampling": turn.sampling,
        "stop": completion.stop(),
        "fate": view.fate,
        "started_ms": turn.started_ms,
        "finished_ms": turn.finished_ms,
    })
}
