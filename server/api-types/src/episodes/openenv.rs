//! OpenEnv: one trace entry per model call (`openenv.core.harness.rollout.TraceEntry`, 0.10).

use hone_ledger::TurnView;
use serde_json::{Value, json};

use super::recorded::{RecordedEpisode, about_turn, answer, behavior, chat};
use crate::replies::finish_reason;

pub(super) fn written(episode: &RecordedEpisode) -> Value {
    let entries = episode.turns.iter().map(|view| entry(episode, view));
    Value::Array(entries.collect())
}

fn entry(episode: &RecordedEpisode, view: &TurnView) -> Value {
    let turn = &view.turn;
    let completion = &turn.completion;
    let logprobs = behavior(view);
    // Without log-probs the tokens are context: nothing can be learned from them by a policy gradient.
    let is_sampled = u8::from(logprobs.is_some());
    let mask = vec![0; turn.prompt_tokens.len()].into_iter();
    let mask: Vec<u8> = mask.chain(vec![is_sampled; completion.len()]).collect();
    let messages: Vec<Value> = turn.messages.iter().map(chat).collect();
    let mut metadata = about_turn(view);
    metadata["session_id"] = json!(episode.session.prefixed());
    metadata["episode"] = episode.about();
    let mut entry = json!({
        "request": {"messages": messages},
        "response": {"choices": [{
            "index": 0,
            "message": chat(&answer(turn)),
            "finish_reason": finish_reason(completion.stop()),
        }]},
        "prompt_token_ids": turn.prompt_tokens,
        "completion_token_ids": completion.tokens(),
        "loss_mask": mask,
        "reward": episode.worth(),
        "metadata": metadata,
    });
    if let Some(logprobs) = logprobs {
        entry["per_token_logps"] = json!(logprobs);
    }
    entry
}
