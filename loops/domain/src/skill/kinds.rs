//! Where skills come from, and whether they are shown.

use serde::{Deserialize, Serialize};

/// How a version of a skill came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SkillOrigin {
    /// It was brought as a folder.
    Imported,
    /// The person wrote it here.
    Written,
    /// It was made from corrections that repeat.
    Corrections,
}

/// Whether answers are shown a skill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SkillState {
    /// They are.
    Active,
    /// The person set it aside.
    Paused,
    /// The scan found something, and nobody has released it.
    Quarantined,
}

impl SkillOrigin {
    /// The stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Imported => "imported",
            Self::Written => "written",
            Self::Corrections => "corrections",
        }
    }
}

impl SkillState {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Quarantined => "quarantined",
        }
    }
}
