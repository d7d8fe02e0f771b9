//! Bodies of skills: folders with a SKILL.md.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hone_domain::{
    Finding, FindingKind, MemoryMode, SKILL_FILES_MAX, ShownSkill, Skill, SkillFile, SkillFolder,
    SkillHeader, SkillOrigin, SkillState, SkillVersion, TurnId, body_of, scan,
};
use hone_ledger::SkillChange;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::tasks::FileContent;
use crate::{List, RequestError, skill_tar};

/// The file that every skill has.
const MAIN: &str = "SKILL.md";

/// Whose, and which page.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SkillPage {
    /// The `user` field of the requests in question.
    pub user: Option<String>,
    /// Most entries, 1 to 200; 50 if absent.
    pub limit: Option<usize>,
    /// Only entries older than this one, which is the last answer's `next`.
    pub before: Option<String>,
    /// Only active ones that fit this text, the best match (BM25) first; without `before`.
    pub q: Option<String>,
}

/// Which version, and whose.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct VersionQuery {
    /// The `user` field of the requests in question.
    pub user: Option<String>,
    /// A version; the current one if absent.
    pub version: Option<u32>,
}

/// Which version, whose, and how it is sent.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ExportQuery {
    /// The `user` field of the requests in question.
    pub user: Option<String>,
    /// A version; the current one if absent.
    pub version: Option<u32>,
    /// `tar` (if absent) or `json`, whose `files` is what `POST /v1/skills` takes.
    #[param(value_type = Option<String>)]
    pub format: Option<ExportFormat>,
}

/// How a folder is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportFormat {
    /// A tar archive.
    Tar,
    /// An object of files by path.
    Json,
}

/// Something that a person has to look at before a model reads the skill.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FindingReply {
    /// `executable`, `binary`, `instruction`, `secret_asked`, `hidden_text`, `fetch_and_run`, `secret` or `encoded_text`.
    #[schema(value_type = String)]
    pub kind: FindingKind,
    /// What that is.
    pub explanation: &'static str,
    /// The file.
    pub path: String,
    /// The line, from 1; null where it is the whole file.
    pub line: Option<usize>,
    /// The line's text; what is not seen is shown as U+FFFD.
    pub excerpt: String,
}

impl From<Finding> for FindingReply {
    fn from(finding: Finding) -> Self {
        Self {
            kind: finding.kind,
            explanation: finding.kind.explain(),
            path: finding.path,
            line: finding.line,
            excerpt: finding.excerpt,
        }
    }
}

/// A version of a skill.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SkillVersionReply {
    /// Its number, from 1.
    pub version: u32,
    /// What the skill does and when it is used.
    pub description: String,
    /// `imported`, `written` or `corrections`.
    #[schema(value_type = String)]
    pub origin: SkillOrigin,
    /// When it was written, in milliseconds since the Unix epoch.
    pub created_ms: i64,
    /// What the scan found; until a person releases the version, no answer is shown it.
    pub findings: Vec<FindingReply>,
    /// Whether a person did.
    pub released: bool,
    /// The turns that it was made from.
    pub turn_ids: Vec<String>,
    /// How many files it has.
    pub files: u32,
    /// How many bytes they have.
    pub bytes: u64,
    /// A SHA-256 over their paths and contents.
    pub digest: String,
}

impl From<SkillVersion> for SkillVersionReply {
    fn from(version: SkillVersion) -> Self {
        let turns = version.turns.into_iter();
        Self {
            version: version.version,
            description: version.description,
            origin: version.origin,
            created_ms: version.created_ms,
            findings: version.findings.into_iter().map(Into::into).collect(),
            released: version.released,
            turn_ids: turns.map(TurnId::prefixed).collect(),
            files: version.files,
            bytes: version.bytes,
            digest: version.digest.to_hex(),
        }
    }
}

/// A skill, as its current version has it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SkillReply {
    /// Always `skill`.
    pub object: &'static str,
    /// Its id.
    pub id: String,
    /// Its name, which is the name of its folder.
    pub name: String,
    /// `active` (answers are shown it), `paused` or `quarantined`.
    #[schema(value_type = String)]
    pub state: SkillState,
    /// When it was first written, in milliseconds since the Unix epoch.
    pub since_ms: i64,
    /// When its current version was chosen.
    pub changed_ms: i64,
    /// How many turns were shown its name and description.
    pub listed: u64,
    /// How often its body was given to a model.
    pub uses: u64,
    /// The current version.
    #[serde(flatten)]
    pub current: SkillVersionReply,
}

impl From<Skill> for SkillReply {
    fn from(skill: Skill) -> Self {
        Self {
            object: "skill",
            id: skill.id.prefixed(),
            state: skill.state(),
            name: skill.name,
            since_ms: skill.created_ms,
            changed_ms: skill.changed_ms,
            listed: skill.listed,
            uses: skill.uses,
            current: skill.current.into(),
        }
    }
}

/// A page of skills, and what the caller's requests do with memories and skills.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SkillsReply {
    /// The page.
    #[serde(flatten)]
    pub page: List<SkillReply>,
    /// What a request does where it does not say; skills are shown with `read` and `full`.
    #[schema(value_type = String)]
    pub mode: MemoryMode,
    /// The most that a request may do, by the consent.
    #[schema(value_type = String)]
    pub mode_max: MemoryMode,
}

/// A file of a skill.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SkillFileReply {
    /// Its path in the folder.
    pub path: String,
    /// How many bytes it has.
    pub bytes: usize,
}

/// A skill with the text of its SKILL.md.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SkillDetailReply {
    /// The skill.
    #[serde(flatten)]
    pub skill: SkillReply,
    /// The version that `text` and `file_list` are of.
    pub shown_version: u32,
    /// The text of SKILL.md.
    pub text: String,
    /// Every file.
    pub file_list: Vec<SkillFileReply>,
    /// Under which license, or in which file that stands.
    pub license: Option<String>,
    /// What it needs around it.
    pub compatibility: Option<String>,
    /// What else its author says.
    pub metadata: BTreeMap<String, String>,
    /// The tools that it may use; nothing is allowed by that.
    pub allowed_tools: Option<String>,
}

impl SkillDetailReply {
    /// Of a skill and the folder of a version.
    pub fn new(skill: Skill, shown_version: u32, folder: &SkillFolder) -> Self {
        let header: SkillHeader = folder.header().clone();
        let file = |file: &SkillFile| SkillFileReply {
            path: file.path.clone(),
            bytes: file.content.len(),
        };
        Self {
            skill: skill.into(),
            shown_version,
            text: folder.main().to_owned(),
            file_list: folder.files().iter().map(file).collect(),
            license: header.license,
            compatibility: header.compatibility,
            metadata: header.metadata,
            allowed_tools: header.allowed_tools,
        }
    }
}

/// The files of a skill.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SkillFilesReply {
    /// Always `skill.files`.
    pub object: &'static str,
    /// The name of the folder.
    pub folder: String,
    /// The version.
    pub version: u32,
    /// The files by path: a text, or bytes in base64.
    pub files: BTreeMap<String, FileContent>,
}

impl SkillFilesReply {
    /// Of a version.
    pub fn new(folder: String, version: u32, files: Vec<SkillFile>) -> Self {
        let files = files.into_iter();
        Self {
            object: "skill.files",
            folder,
            version,
            files: files
                .map(|file| (file.path, FileContent::of(file.content)))
                .collect(),
        }
    }
}

/// The versions of a skill.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SkillVersionsReply {
    /// The versions that are kept, newest first.
    #[serde(flatten)]
    pub page: List<SkillVersionReply>,
    /// The current one.
    pub current: u32,
}

/// A folder with what was found in it.
#[derive(Clone, Debug)]
pub struct ScannedSkill {
    /// The folder.
    pub folder: SkillFolder,
    /// What a person has to look at.
    pub findings: Vec<Finding>,
}

/// The body that adds a skill, or a version to the skill of its name.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct SkillRequest {
    /// The files by path: a text, or bytes in base64. One is SKILL.md.
    pub files: Option<BTreeMap<String, FileContent>>,
    /// Instead, a tar archive of the folder in base64.
    pub tar: Option<String>,
    /// The name of the folder, where the files come without it; it has to be the skill's name.
    pub folder: Option<String>,
    /// The `user` field of the requests in question.
    pub user: Option<String>,
}

impl SkillRequest {
    /// The folder and what the scan found in it.
    ///
    /// # Errors
    /// It is not as the specification has it, is too large, or holds a secret.
    pub fn scanned(self) -> Result<ScannedSkill, RequestError> {
        let (param, folder, files) = match (self.files, self.tar) {
            (Some(files), None) => ("files", self.folder, contents(files)?),
            (None, Some(tar)) => {
                let wrong = |why| RequestError::invalid("tar", why);
                let tar = STANDARD.decode(tar);
                let tar = tar.map_err(|error| wrong(format!("tar is not base64: {error}")))?;
                let (folder, files) = skill_tar::read(&tar).map_err(wrong)?;
                ("tar", self.folder.or(folder), files)
            }
            _ => {
                let why = "give files (by path), or tar (in base64), and not both";
                return Err(RequestError::invalid("files", why));
            }
        };
        let refused =
            |why: hone_domain::SkillRefusal| RequestError::invalid(param, why.to_string());
        let folder = SkillFolder::new(folder.as_deref(), files).map_err(refused)?;
        let findings = scan(&folder).map_err(refused)?;
        Ok(ScannedSkill { folder, findings })
    }
}

fn contents(files: BTreeMap<String, FileContent>) -> Result<Vec<SkillFile>, RequestError> {
    if files.len() > SKILL_FILES_MAX {
        let why = hone_domain::SkillRefusal::Files.to_string();
        return Err(RequestError::invalid("files", why));
    }
    let file = |(path, content): (String, FileContent)| {
        let content = content.bytes().map_err(|why| {
            let path: String = path.chars().take(200).collect();
            RequestError::invalid("files", format!("{path} is not base64: {why}"))
        })?;
        Ok(SkillFile { path, content })
    };
    files.into_iter().map(file).collect()
}

/// The body that changes a skill; what is absent stays.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct SkillPatch {
    /// The text of SKILL.md, which makes a new version with the other files as they are. The name stays.
    pub text: Option<String>,
    /// Whether it is set aside.
    pub paused: Option<bool>,
    /// `true`: you read what the scan found in the current version, and answers may be shown it.
    pub released: Option<bool>,
    /// The `user` field of the requests in question.
    pub user: Option<String>,
}

impl SkillPatch {
    /// What changes beside the text.
    ///
    /// # Errors
    /// Nothing is said to change, or a release comes with a text that nobody looked at.
    pub fn change(&self) -> Result<SkillChange, RequestError> {
        if self.text.is_none() && self.paused.is_none() && self.released.is_none() {
            return Err(RequestError::invalid(
                "text",
                "give text, paused or released",
            ));
        }
        if self.released == Some(false) {
            let why = "released can only be true; to set a skill aside give paused, or delete it";
            return Err(RequestError::invalid("released", why));
        }
        if self.released == Some(true) && self.text.is_some() {
            let why = "look at what is found in the new text first, then release it";
            return Err(RequestError::invalid("released", why));
        }
        Ok(SkillChange {
            paused: self.paused,
            released: self.released.unwrap_or(false),
            version: None,
        })
    }

    /// Files with this text as their SKILL.md, and what the scan found in them.
    ///
    /// # Errors
    /// As for [`SkillRequest::scanned`], or the name is another one.
    pub fn scanned(
        name: &str,
        text: String,
        mut files: Vec<SkillFile>,
    ) -> Result<ScannedSkill, RequestError> {
        let refused =
            |why: hone_domain::SkillRefusal| RequestError::invalid("text", why.to_string());
        files.retain(|file| file.path != MAIN);
        files.push(SkillFile {
            path: MAIN.to_owned(),
            content: text.into_bytes(),
        });
        let folder = SkillFolder::new(Some(name), files).map_err(refused)?;
        let findings = scan(&folder).map_err(refused)?;
        Ok(ScannedSkill { folder, findings })
    }
}

/// The body that makes an older version the current one.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct SkillRestore {
    /// The version.
    pub version: u32,
    /// The `user` field of the requests in question.
    pub user: Option<String>,
}

/// How many skills were removed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SkillsForgotten {
    /// Always `skills.forgotten`.
    pub object: &'static str,
    /// How many.
    pub forgotten: u64,
}

impl SkillsForgotten {
    /// So many.
    pub fn new(forgotten: u64) -> Self {
        Self {
            object: "skills.forgotten",
            forgotten,
        }
    }
}

/// A skill that a prompt showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ShownSkillReply {
    /// The skill.
    pub id: String,
    /// Which version.
    pub version: u32,
    /// `description` (with its name), or `body` (with both).
    pub form: &'static str,
}

/// Skills as clients know them, each once.
pub fn shown_skills(shown: &[ShownSkill]) -> Vec<ShownSkillReply> {
    let mut skills: Vec<ShownSkillReply> = Vec::new();
    for one in shown {
        let (id, form) = (
            one.id.prefixed(),
            if one.is_whole { "body" } else { "description" },
        );
        match skills.iter_mut().find(|known| known.id == id) {
            Some(known) if one.is_whole => known.form = form,
            Some(_) => {}
            None => skills.push(ShownSkillReply {
                id,
                version: one.version,
                form,
            }),
        }
    }
    skills
}

/// A skill that a program may load.
#[derive(Clone, Debug, Serialize)]
pub struct OfferedReply {
    /// Its name.
    pub name: String,
    /// What it does and when it is used.
    pub description: String,
    /// Its id.
    pub id: String,
    /// The current version.
    pub version: u32,
}

impl From<SkillReply> for OfferedReply {
    fn from(skill: SkillReply) -> Self {
        Self {
            name: skill.name,
            description: skill.current.description,
            id: skill.id,
            version: skill.current.version,
        }
    }
}

/// What a program loaded of a skill.
#[derive(Clone, Debug, Serialize)]
pub struct LoadedReply {
    /// The skill's name.
    pub name: String,
    /// The version.
    pub version: u32,
    /// The path of the file that `content` is of.
    pub path: String,
    /// The text of SKILL.md behind its header, or the file: a text, or bytes in base64.
    pub content: FileContent,
    /// With the text, the paths of the other files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

impl LoadedReply {
    /// The text of a skill.
    pub fn text(name: String, version: u32, files: &[SkillFile]) -> Self {
        let main = files.iter().find(|file| file.path == MAIN);
        let main = main.map(|file| String::from_utf8_lossy(&file.content));
        let others = files.iter().filter(|file| file.path != MAIN);
        Self {
            name,
            version,
            path: MAIN.to_owned(),
            content: FileContent::Text(body_of(&main.unwrap_or_default()).trim().to_owned()),
            files: others.map(|file| file.path.clone()).collect(),
        }
    }

    /// One of its files.
    pub fn file(name: String, version: u32, file: SkillFile) -> Self {
        Self {
            name,
            version,
            path: file.path,
            content: FileContent::of(file.content),
            files: Vec::new(),
        }
    }
}
