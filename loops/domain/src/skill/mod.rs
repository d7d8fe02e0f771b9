//! Skills: folders with a SKILL.md as the Agent Skills specification has them (agentskills.io/specification). A model is
//! shown name and description first, the body where it is needed, other files last.

mod draft;
mod folder;
mod frontmatter;
mod kinds;
mod scan;
mod shown;

use serde::{Deserialize, Serialize};

pub use draft::{Correction, drafted, wish_key};
pub use folder::{SkillFile, SkillFolder, SkillRefusal};
pub use frontmatter::{SkillHeader, body_of};
pub use kinds::{SkillOrigin, SkillState};
pub use scan::{Finding, FindingKind, scan};
pub use shown::{ShownSkill, skill_text};

use crate::{Digest, Millis, Scope, SkillId, TurnId};

/// Most skills of one scope.
pub const SKILLS_MAX: usize = 200;
/// Most versions that are kept of one skill; the oldest that is not the current one makes place.
pub const SKILL_VERSIONS_MAX: usize = 20;
/// Most bytes of all versions of all skills of one scope.
pub const SKILLS_BYTES_MAX: u64 = 32 << 20;
/// Most files of a skill.
pub const SKILL_FILES_MAX: usize = 64;
/// Most bytes of a file.
pub const SKILL_FILE_BYTES_MAX: usize = 256 << 10;
/// Most bytes of all files of a skill.
pub const SKILL_BYTES_MAX: usize = 1 << 20;
/// Sessions in which a wish was stated that make it a skill.
pub const CORRECTIONS_MIN: usize = 3;
/// Most corrections of one wish that are kept; the newest are.
pub const CORRECTIONS_KEPT: usize = 8;
/// Most corrections of one scope that are kept.
pub const CORRECTIONS_MAX: usize = 500;

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
