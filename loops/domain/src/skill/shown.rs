//! A skill in a prompt.

use serde::{Deserialize, Serialize};

use crate::SkillId;

/// A skill in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownSkill {
    /// Its id.
    pub id: SkillId,
    /// Which version.
    pub version: u32,
    /// The message of the request before whose words it stands, counted from 0.
    pub at: usize,
    /// With its body, and not only by name and description.
    pub is_whole: bool,
}

/// How a prompt shows a skill.
pub fn skill_text(name: &str, description: &str, body: Option<&str>) -> String {
    let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
    match body {
        Some(body) => format!("Skill {name}: {description}\n{}", body.trim()),
        None => format!("Skill {name}: {description}"),
    }
}
