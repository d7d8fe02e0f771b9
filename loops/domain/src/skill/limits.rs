//! How many skills there may be, and how large.

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
