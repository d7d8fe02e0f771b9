//! Bodies of memories: what people said once, kept for later conversations.

use hone_domain::{
    Memory, MemoryId, MemoryKind, MemoryMode, MemoryOrigin, MemoryRefusal, TurnId, kept_text,
};
use hone_ledger::MemoryChange;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{List, RequestError};

/// Whose, and which page.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct MemoryPage {
    /// The `user` field of the requests in question.
    pub user: Option<String>,
    /// Most entries, 1 to 200; 50 if absent.
    pub limit: Option<usize>,
    /// Only entries older than this one, which is the last answer's `next`.
    pub before: Option<String>,
    /// Only current ones that share a word with this text, the best match (BM25) first; without `before`.
    pub q: Option<String>,
}

/// A memory.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MemoryReply {
    /// Always `memory`.
    pub object: &'static str,
    /// Its id.
    pub id: String,
    /// `fact` or `preference`.
    #[schema(value_type = String)]
    pub kind: MemoryKind,
    /// The person's own words.
    pub text: String,
    /// The turn it was said in or about; null where it was added here.
    pub turn_id: Option<String>,
    /// When it was written, in milliseconds since the Unix epoch.
    pub created_ms: i64,
    /// Until when it held, where a newer one replaced it.
    pub valid_until_ms: Option<i64>,
    /// The one that replaced it.
    pub superseded_by: Option<String>,
    /// Whether it is set aside: no answer is shown it.
    pub paused: bool,
    /// How many turns were shown it.
    pub uses: u64,
    /// `said`, `judged` or `imported`.
    #[schema(value_type = String)]
    pub origin: MemoryOrigin,
}

impl From<Memory> for MemoryReply {
    fn from(memory: Memory) -> Self {
        Self {
            object: "memory",
            id: memory.id.prefixed(),
            kind: memory.kind,
            text: memory.text,
            turn_id: memory.turn.map(TurnId::prefixed),
            created_ms: memory.created_ms,
            valid_until_ms: memory.valid_until_ms,
            superseded_by: memory.superseded_by.map(MemoryId::prefixed),
            paused: memory.paused,
            uses: memory.uses,
            origin: memory.origin,
        }
    }
}

/// A page of memories, and what the caller's requests do with memories.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MemoriesReply {
    /// The page.
    #[serde(flatten)]
    pub page: List<MemoryReply>,
    /// What a request does where it does not say: `off`, `read` (it is shown them) or `full` (what is said in it
    /// can become one).
    #[schema(value_type = String)]
    pub mode: MemoryMode,
    /// The most that a request may do, by the consent; `off` where several people share this policy.
    #[schema(value_type = String)]
    pub mode_max: MemoryMode,
}

/// The body that adds a memory.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct MemoryRequest {
    /// The words, at most 500 characters.
    pub text: String,
    /// `fact` or `preference`; `fact` if absent.
    #[schema(value_type = Option<String>)]
    pub kind: Option<MemoryKind>,
    /// The `user` field of the requests in question.
    pub user: Option<String>,
}

/// The body that changes a memory; what is absent stays.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct MemoryPatch {
    /// The words, at most 500 characters.
    pub text: Option<String>,
    /// `fact` or `preference`.
    #[schema(value_type = Option<String>)]
    pub kind: Option<MemoryKind>,
    /// Whether it is set aside.
    pub paused: Option<bool>,
    /// `true`: a memory that was replaced holds again, beside the one that replaced it.
    pub holds: Option<bool>,
    /// The `user` field of the requests in question.
    pub user: Option<String>,
}

impl MemoryPatch {
    /// What changes.
    ///
    /// # Errors
    /// The text cannot be kept, or nothing is said to change.
    pub fn change(&self) -> Result<MemoryChange, RequestError> {
        let is_empty = self.text.is_none() && self.kind.is_none() && self.paused.is_none();
        if is_empty && self.holds.is_none() {
            let why = "give text, kind, paused or holds";
            return Err(RequestError::invalid("text", why));
        }
        if self.holds == Some(false) {
            let why = "holds can only be true; to set a memory aside give paused, or delete it";
            return Err(RequestError::invalid("holds", why));
        }
        Ok(MemoryChange {
            text: self.text.as_deref().map(words).transpose()?,
            kind: self.kind,
            paused: self.paused,
            holds: self.holds.unwrap_or(false),
        })
    }
}

/// A text as it is kept.
///
/// # Errors
/// Why it is not.
pub fn words(text: &str) -> Result<String, RequestError> {
    kept_text(text).map_err(|why: MemoryRefusal| RequestError::invalid("text", why.to_string()))
}

/// The body that brings memories from a Markdown file.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct MemoriesImport {
    /// The file. The items of its lists become memories, or its lines where it has no list: preferences below a heading
    /// with the word "preference", facts elsewhere.
    pub markdown: String,
    /// The `user` field of the requests in question.
    pub user: Option<String>,
}

/// What became of a file's entries.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MemoriesImported {
    /// Always `memories.imported`.
    pub object: &'static str,
    /// Entries that are memories now.
    pub added: u64,
    /// Entries equal to a current memory.
    pub same: u64,
    /// Entries that were not kept.
    pub refused: u64,
    /// Reasons for the first 100 refused entries.
    pub reasons: Vec<ImportRefusal>,
}

/// An entry that was not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ImportRefusal {
    /// Its first line in the file, counted from 1.
    pub line: usize,
    /// Why it was not kept.
    pub reason: String,
}

/// How many memories were forgotten.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MemoriesForgotten {
    /// Always `memories.forgotten`.
    pub object: &'static str,
    /// How many.
    pub forgotten: u64,
}

impl MemoriesForgotten {
    /// So many.
    pub fn new(forgotten: u64) -> Self {
        Self {
            object: "memories.forgotten",
            forgotten,
        }
    }
}
