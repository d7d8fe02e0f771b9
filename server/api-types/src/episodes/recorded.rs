//! What a session recorded, and what all formats say of it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use hone_domain::{
    Digest, Job, Message, ParsedOutput, Role, SessionId, SessionReward, ToolCall, Turn, TurnId,
};
use hone_inference::call_id;
use hone_ledger::TurnView;
use serde_json::{Value, json};

/// What a session recorded: the turns that lead to its newest main turn.
#[derive(Clone, Debug)]
pub struct RecordedEpisode {
    /// The session.
    pub session: SessionId,
    /// Its turns, each the one that the next continues; at least one, and none that lost its words.
    pub turns: Vec<TurnView>,
    /// Main turns of the session beside these.
    pub others: usize,
    /// The reward of the whole session.
    pub reward: Option<SessionReward>,
    /// The episode of a rollout that it was.
    pub job: Option<Job>,
    /// The name of the served model, and the digest of its base.
    pub model: Option<(String, Digest)>,
}

/// A message of the conversation.
pub(super) struct Said<'a> {
    pub(super) message: Cow<'a, Message>,
    /// The turn whose answer it is, where that was recorded here.
    pub(super) by: Option<&'a TurnView>,
    /// What was thought before it.
    pub(super) reasoning: String,
}

impl RecordedEpisode {
    /// The whole conversation: what the newest turn was asked, and its answer.
    pub(super) fn conversation(&self) -> Vec<Said<'_>> {
        let Some(last) = self.turns.last() else {
            return Vec::new();
        };
        let asked = last.turn.messages.iter().enumerate();
        let mut said: Vec<Said<'_>> = asked.map(|(at, message)| self.said(at, message)).collect();
        said.push(Said {
            message: Cow::Owned(answer(&last.turn)),
            by: Some(last),
            reasoning: ParsedOutput::whole(&last.turn.completion_text).reasoning,
        });
        said
    }

    pub(super) fn said<'a>(&'a self, at: usize, message: &'a Message) -> Said<'a> {
        let turns = self
            .turns
            .iter()
            .filter(|_| message.role == Role::Assistant);
        let by = turns.rev().find(|view| view.turn.messages.len() == at);
        let Some(by) = by else {
            return Said {
                message: Cow::Borrowed(message),
                by: None,
                reasoning: String::new(),
            };
        };
        let mut sampled = answer(&by.turn);
        if !message.tool_calls.is_empty() {
            // Results name calls by the ids that the client sent back.
            sampled.tool_calls.clone_from(&message.tool_calls);
        }
        Said {
            message: Cow::Owned(sampled),
            by: Some(by),
            reasoning: ParsedOutput::whole(&by.turn.completion_text).reasoning,
        }
    }

    /// What the episode was worth: of a rollout's, what its tests paid (0 to 1); else the reward of the session (-1 to 1).
    pub(super) fn worth(&self) -> Option<f32> {
        let paid = self.job.as_ref().and_then(|job| job.reward);
        paid.or(self.reward.as_ref().map(|reward| reward.score))
    }

    /// What that was made of.
    pub(super) fn parts(&self) -> BTreeMap<String, f64> {
        let parts = self.reward.as_ref().map(|reward| reward.parts.clone());
        parts.unwrap_or_default()
    }

    /// The name of the model that sampled a turn, with the version; none where another base model did than is served.
    pub(super) fn model_of(&self, turn: &Turn) -> Option<String> {
        let (name, base) = self.model.as_ref()?;
        (*base == turn.base).then(|| match turn.version().0 {
            0 => format!("{name}@base"),
            version => format!("{name}@v{version}"),
        })
    }

    /// What all formats say of where it comes from.
    pub(super) fn about(&self) -> Value {
        let job = self.job.as_ref();
        json!({
            "session_id": self.session.prefixed(),
            "episode_id": job.map(|job| job.id.prefixed()),
            "task_id": job.map(|job| job.task.prefixed()),
            "group_id": job.map(|job| job.group.prefixed()),
            "state": job.map(|job| job.state.as_str()),
            "reason": job.and_then(|job| job.reason).map(hone_domain::JobReason::as_str),
            "reward": self.worth(),
            "session_reward": self.reward.as_ref().map(|reward| reward.score),
            "rewards": self.parts(),
            "turns_beside": self.others,
        })
    }
}

/// Log-probs of the tokens as they were sampled; none where they are not kept any more, or never were known.
pub(super) fn behavior(view: &TurnView) -> Option<&[f32]> {
    view.has_logprobs()
        .then(|| view.turn.completion.behavior_logprobs())
}

/// What all formats say of a turn.
pub(super) fn about_turn(view: &TurnView) -> Value {
    let turn = &view.turn;
    let branch = turn.admission.branch;
    json!({
        "turn_id": turn.id.prefixed(),
        "parent_id": turn.parent.map(TurnId::prefixed),
        "policy_version": turn.version().0,
        "base_digest": turn.base.to_hex(),
        "score": view.score(),
        "temperature": turn.sampling.temperature,
        "branch_of": branch.map(|of| json!({
            "turn_id": of.turn.prefixed(), "position": of.position,
        })),
    })
}

/// An answer as a message: what it says and what it calls, without its reasoning.
pub fn answer(turn: &Turn) -> Message {
    let parsed = ParsedOutput::whole(&turn.completion_text);
    let calls = parsed.calls.into_iter().enumerate();
    let calls = calls.map(|(number, called)| ToolCall {
        id: call_id(turn.id, number),
        name: called.name,
        arguments: called.arguments,
    });
    Message {
        tool_calls: calls.collect(),
        ..Message::text(Role::Assistant, parsed.content)
    }
}

/// A message as chat completions write it.
pub fn chat(message: &Message) -> Value {
    let mut written = json!({"role": message.role, "content": message.content});
    if let Some(name) = &message.name {
        written["name"] = json!(name);
    }
    if let Some(id) = &message.tool_call_id {
        written["tool_call_id"] = json!(id);
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter();
        let calls = calls.map(|call| {
            json!({"id": call.id, "type": "function", "function": {
                "name": call.name, "arguments": call.arguments,
            }})
        });
        written["tool_calls"] = calls.collect();
    }
    written
}

/// Seconds since the Unix epoch.
pub(super) fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}
