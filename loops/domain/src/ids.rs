//! Identifiers: UUIDv7 newtypes, so that rows sort by time and kinds cannot be mixed up.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Parses the plain or the prefixed form.
            pub fn parse(text: &str) -> Option<Self> {
                let bare = text.strip_prefix($prefix).unwrap_or(text);
                Uuid::try_parse(bare).ok().map(Self)
            }

            /// The prefixed form, as clients see it.
            pub fn prefixed(self) -> String {
                format!(concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::try_parse(text.strip_prefix($prefix).unwrap_or(text)).map(Self)
            }
        }
    };
}

/// The UUID that a hash is: the same wherever it is made.
pub fn uuid_of(hash: &[u8; 32]) -> Uuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

id!(
    /// One conversation of one user with one agent.
    SessionId,
    "sess_"
);
id!(
    /// One model call.
    TurnId,
    "turn_"
);
id!(
    /// One HTTP request; with `n > 1` it has several turns.
    RequestId,
    "req_"
);
id!(
    /// Several completions of one prompt, compared with each other.
    GroupId,
    "grp_"
);
id!(
    /// A turn with its next state.
    TransitionId,
    "trn_"
);
id!(
    /// One revision of a verdict.
    VerdictId,
    "vrd_"
);
id!(
    /// One optimizer step's worth of samples.
    BatchId,
    "bat_"
);
id!(
    /// One piece of explicit feedback.
    FeedbackId,
    "fb_"
);
id!(
    /// One wish to be forgotten.
    ForgetId,
    "fgt_"
);
id!(
    /// One thing a person said, kept for later conversations.
    MemoryId,
    "mem_"
);
id!(
    /// One folder with a SKILL.md.
    SkillId,
    "skill_"
);
id!(
    /// One piece of durable work; of kind `episode` it is an episode.
    JobId,
    "job_"
);
id!(
    /// One task of a task set.
    TaskId,
    "task_"
);
id!(
    /// Tasks that were added together.
    TaskSetId,
    "set_"
);
id!(
    /// One order to try tasks.
    RolloutId,
    "rol_"
);
