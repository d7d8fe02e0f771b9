//! Transitions: a turn with what the world answered.

use serde::{Deserialize, Serialize};

use crate::{Message, Millis, Role, Scope, SessionId, TransitionId, TurnId};

/// What kind of answer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NextKind {
    /// The person's reply.
    UserReply,
    /// A tool's result.
    ToolResult,
    /// Output of an environment.
    Environment,
    /// Only explicit feedback, no message.
    Feedback,
}

/// One item of a next state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextItem {
    /// Its kind.
    pub kind: NextKind,
    /// Its text.
    pub text: String,
    /// Of a tool's result: whether the call failed, where the client says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<bool>,
}

/// What the world answered after a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextState {
    /// In the order received.
    pub items: Vec<NextItem>,
}

impl NextState {
    /// From the messages that follow a completion. Assistant and system messages are not answers.
    pub fn from_messages(messages: &[Message]) -> Self {
        let items = messages
            .iter()
            .filter_map(|m| {
                let kind = match m.role {
                    Role::User => NextKind::UserReply,
                    Role::Tool => NextKind::ToolResult,
                    Role::System | Role::Developer | Role::Assistant => return None,
                };
                Some(NextItem {
                    kind,
                    text: m.content.clone(),
                    failed: m.failed,
                })
            })
            .collect();
        Self { items }
    }

    /// A next state that is explicit feedback only.
    pub fn feedback() -> Self {
        Self {
            items: vec![NextItem {
                kind: NextKind::Feedback,
                text: String::new(),
                failed: None,
            }],
        }
    }

    /// Whether nothing was answered.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// A turn with its next state; the unit that is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Its id.
    pub id: TransitionId,
    /// The turn.
    pub turn: TurnId,
    /// Its session.
    pub session: SessionId,
    /// Whose policy it may train.
    pub scope: Scope,
    /// What was answered.
    pub next_state: NextState,
    /// The turn that brought the answer, where one did.
    pub next_turn: Option<TurnId>,
    /// When it was settled.
    pub settled_ms: Millis,
}
