//! Skills, their versions, and the corrections that skills are made from.

use async_trait::async_trait;
use hone_domain::{
    Correction, Finding, Millis, SKILLS_BYTES_MAX, SKILLS_MAX, Scope, Skill, SkillFile,
    SkillFolder, SkillId, SkillOrigin, SkillVersion, TurnId,
};

use crate::LedgerError;
use crate::versions::Window;

/// A version of a skill that is to be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSkill {
    /// The skill's id, where there is none of its name yet.
    pub id: SkillId,
    /// Its files.
    pub folder: SkillFolder,
    /// What the scan found in them.
    pub findings: Vec<Finding>,
    /// How it came about.
    pub origin: SkillOrigin,
    /// What the corrections have in common that it is made from.
    pub wish: Option<String>,
    /// The turns that it is made from.
    pub turns: Vec<TurnId>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq)]
pub enum PutSkill {
    /// A skill that is new.
    New(Skill),
    /// A skill of that name has a new version.
    Changed(Skill),
    /// The skill's current version is the same.
    Same(Skill),
    /// There is no place left.
    Full(SkillsFull),
}

/// Why there is no place left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkillsFull {
    /// The scope has as many as it may.
    #[error("there are {SKILLS_MAX} skills already; remove some first")]
    Count,
    /// All versions of all of them have as many bytes as they may.
    #[error(
        "all versions of all skills have {SKILLS_BYTES_MAX} bytes together at most; remove a skill first"
    )]
    Bytes,
}

/// A skill as somebody names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkillKey {
    /// By its id.
    Id(SkillId),
    /// By its name.
    Name(String),
}

impl SkillKey {
    /// An id where it is one, else a name.
    pub fn of(text: &str) -> Self {
        match SkillId::parse(text) {
            Some(id) => Self::Id(id),
            None => Self::Name(text.to_owned()),
        }
    }
}

/// A skill in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct SkillRow {
    /// Its place in the list.
    pub number: i64,
    /// The skill.
    pub skill: Skill,
}

/// What changes of a skill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkillChange {
    /// Whether it is set aside.
    pub paused: Option<bool>,
    /// A person read what the scan found in the current version, and lets it be shown.
    pub released: bool,
    /// The version that becomes the current one.
    pub version: Option<u32>,
}

/// A skill that may be shown.
#[derive(Clone, Debug, PartialEq)]
pub struct ActiveSkill {
    /// The skill.
    pub skill: Skill,
    /// The text of its SKILL.md.
    pub main: String,
}

/// What is known of a wish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WishState {
    /// Corrections that state it, the newest ones, oldest first.
    pub corrections: Vec<Correction>,
    /// A skill was made of it.
    pub has_skill: bool,
    /// Names of the skills of its scope.
    pub names: Vec<String>,
}

/// The durable record of skills. Every method is one transaction, durable on return.
/// Implementations pass `crate::suite::skills`. Skills also go with consent, with an erasure, and with a turn that they were
/// made from.
#[async_trait]
pub trait Skills: Send + Sync {
    /// Keeps a version of the skill of its name, which becomes the current one. Of too many versions the oldest goes.
    async fn put_skill(
        &self,
        scope: &Scope,
        new: &NewSkill,
        now_ms: Millis,
    ) -> Result<PutSkill, LedgerError>;

    /// Skills of a scope, newest first.
    async fn skills(&self, scope: &Scope, page: Window) -> Result<Vec<SkillRow>, LedgerError>;

    /// A skill of a scope.
    async fn skill(&self, scope: &Scope, key: &SkillKey) -> Result<Option<Skill>, LedgerError>;

    /// The versions of a skill of a scope, newest first; none where it has no such skill.
    async fn skill_versions(
        &self,
        scope: &Scope,
        key: &SkillKey,
    ) -> Result<Vec<SkillVersion>, LedgerError>;

    /// A version of a skill of a scope, the current one where none is named, and its files by path.
    async fn skill_files(
        &self,
        scope: &Scope,
        key: &SkillKey,
        version: Option<u32>,
    ) -> Result<Option<(SkillVersion, Vec<SkillFile>)>, LedgerError>;

    /// Changes a skill of a scope; none where it has no such skill. `Conflict` where it has no such version.
    async fn change_skill(
        &self,
        scope: &Scope,
        key: &SkillKey,
        change: SkillChange,
        now_ms: Millis,
    ) -> Result<Option<Skill>, LedgerError>;

    /// Counts that the body of a skill was given to a model.
    async fn skill_used(&self, scope: &Scope, id: SkillId) -> Result<(), LedgerError>;

    /// Removes one skill of a scope with all its versions, or all of them; returns how many. Corrections that it was made
    /// from go with it.
    async fn forget_skills(
        &self,
        scope: &Scope,
        key: Option<&SkillKey>,
    ) -> Result<u64, LedgerError>;

    /// The skills of a scope, or of each, that may be shown, newest first.
    async fn active_skills(&self, scope: Option<&Scope>) -> Result<Vec<ActiveSkill>, LedgerError>;

    /// What is known of a wish.
    async fn wish_state(&self, scope: &Scope, wish: &str) -> Result<WishState, LedgerError>;
}
