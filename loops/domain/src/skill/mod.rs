//! Skills: folders with a SKILL.md as the Agent Skills specification has them (agentskills.io/specification). A model is
//! shown name and description first, the body where it is needed, other files last.

mod draft;
mod folder;
mod frontmatter;
mod kinds;
mod limits;
mod scan;
mod shown;

use serde::{Deserialize, Serialize};

pub use draft::{Correction, drafted, wish_key};
pub use folder::{SkillFile, SkillFolder, SkillRefusal};
pub use frontmatter::{SkillHeader, body_of};
pub use kinds::{SkillOrigin, SkillState};
pub use limits::{
    CORRECTIONS_KEPT, CORRECTIONS_MAX, CORRECTIONS_MIN, SKILL_BYTES_MAX, SKILL_FILE_BYTES_MAX,
    SKILL_FILES_MAX, SKILL_VERSIONS_MAX, SKILLS_BYTES_MAX, SKILLS_MAX,
};
pub use scan::{Finding, FindingKind, scan};
pub use shown::{ShownSkill, skill_text};

use crate::{Digest, Millis, Scope, SkillId, TurnId};

/// A skill, as its current version has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skill {
    /// Its id.
    pub id: SkillId,
    /// Whose.
    pub scope: Scope,
    /// Its name, which is the name of its folder.
    pub name: String,
    /// When the skill was first written.
    pub created_ms: Millis,
    /// When its current version was chosen.
    pub changed_ms: Millis,
    /// The person set it aside.
    pub paused: bool,
    /// How many turns were shown its name and description.
    pub listed: u64,
    /// How often its body was given to a model.
    pub uses: u64,
    /// The current version.
    pub current: SkillVersion,
}

impl Skill {
    /// Whether answers are shown it.
    pub fn state(&self) -> SkillState {
        match (self.current.is_quarantined(), self.paused) {
            (true, _) => SkillState::Quarantined,
            (false, true) => SkillState::Paused,
            (false, false) => SkillState::Active,
        }
    }
}

/// What a skill was at a time. It never changes but for its release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillVersion {
    /// Its number, from 1.
    pub version: u32,
    /// What the skill does and when it is used.
    pub description: String,
    /// How it came about.
    pub origin: SkillOrigin,
    /// When it was written.
    pub created_ms: Millis,
    /// What the scan found.
    pub findings: Vec<Finding>,
    /// A person read the findings and let it be shown.
    pub released: bool,
    /// The turns that it was made from.
    pub turns: Vec<TurnId>,
    /// How many files it has.
    pub files: u32,
    /// How many bytes they have.
    pub bytes: u64,
    /// A hash of their paths and contents.
    pub digest: Digest,
}

impl SkillVersion {
    /// Whether nothing is shown it until a person releases it.
    pub fn is_quarantined(&self) -> bool {
        !self.findings.is_empty() && !self.released
    }
}
