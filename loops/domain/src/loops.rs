//! The loops of the ring by name.

use serde::{Deserialize, Serialize};

/// A loop of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Loop {
    /// Answers.
    Serve,
    /// Records.
    Collect,
    /// Judges.
    Judge,
    /// Trains.
    Train,
    /// Remembers.
    Memory,
    /// Has agents try tasks.
    Rollout,
}

impl Loop {
    /// Every loop.
    pub const ALL: [Self; 6] = [
        Self::Serve,
        Self::Collect,
        Self::Judge,
        Self::Train,
        Self::Memory,
        Self::Rollout,
    ];

    /// The loop of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Its name in the status registry.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Collect => "collect",
            Self::Judge => "judge",
            Self::Train => "train",
            Self::Memory => "memory",
            Self::Rollout => "rollout",
        }
    }
}
