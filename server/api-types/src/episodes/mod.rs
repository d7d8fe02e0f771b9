//! Episodes in the formats of the field: what a session recorded, as ATIF, OpenEnv and verifiers write trajectories. What
//! was not recorded is left out; nothing is made up.

mod atif;
mod hone;
mod openenv;
mod recorded;
mod verifiers;

use serde_json::Value;

pub use recorded::{RecordedEpisode, answer, chat};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpisodeFormat {
    /// Hone's own: every turn with its tokens, log-probs, version, verdict and fate.
    Hone,
    /// The Agent Trajectory Interchange Format, version 1.8, of Harbor.
    Atif,
    /// The trace entries of OpenEnv.
    OpenEnv,
    /// An episode record of verifiers.
    Verifiers,
}

impl EpisodeFormat {
    /// All of them, by name.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("hone", Self::Hone),
        ("atif", Self::Atif),
        ("openenv", Self::OpenEnv),
        ("verifiers", Self::Verifiers),
    ];

    /// The format of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, format)| *format)
    }
}

impl RecordedEpisode {
    /// The episode in a format.
    pub fn written(&self, format: EpisodeFormat) -> Value {
        match format {
            EpisodeFormat::Hone => hone::written(self),
            EpisodeFormat::Atif => atif::written(self),
            EpisodeFormat::OpenEnv => openenv::written(self),
            EpisodeFormat::Verifiers => verifiers::written(self),
        }
    }
}

#[cfg(test)]
mod tests;
