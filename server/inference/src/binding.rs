//! How requests are told which conversation they belong to.

use hone_domain::{Habits, Millis};
use serde::{Deserialize, Serialize};

/// Body fields that may carry a session key, besides `metadata.NAME`.
pub const SESSION_FIELDS: &[&str] = &["session_id", "prompt_cache_key"];

/// Where session keys are looked for, and habits of clients.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BindingConfig {
    /// Body fields with a session key, tried before the headers, in order.
    pub fields_first: Vec<String>,
    /// Headers with a session key, in order.
    pub headers: Vec<String>,
    /// Headers with the key of the session that a request's own session comes from, in order.
    pub parents: Vec<String>,
    /// Headers that carry a session key only in the form `UUID:NUMBER`.
    pub headers_counted: Vec<String>,
    /// Body fields with a session key, tried after the headers, in order.
    pub fields_last: Vec<String>,
    /// Beginnings of user messages that are in one request only.
    pub passing: Vec<String>,
    /// Names of tags around what clients add to a person's words.
    pub injected: Vec<String>,
    /// Beginnings of what clients add behind a person's words, to their end.
    pub appended: Vec<String>,
    /// Answers that clients themselves put behind what is in passing.
    pub echoes: Vec<String>,
    /// Beginnings of system blocks that are for a provider's accounts, and no instruction.
    pub unshown: Vec<String>,
    /// Words by which housekeeping is recognised: `system: words` or `user: words`.
    pub side: Vec<String>,
    /// How long after an answer that never arrived the same request again is its retry.
    pub retry_ms: Millis,
}

impl BindingConfig {
    /// The patterns.
    ///
    /// # Errors
    /// The one that is none.
    pub fn habits(&self) -> Result<Habits, String> {
        let habits = Habits::new(&self.passing, &self.side);
        let habits = habits.and_then(|habits| habits.with_injected(&self.injected));
        let habits = habits.and_then(|habits| habits.with_added(&self.appended, &self.echoes));
        habits.map_err(|what| format!("binding: {what}"))
    }

    /// Whether the values fit together.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
        for field in self.fields_first.iter().chain(&self.fields_last) {
            let in_metadata = field
                .strip_prefix("metadata.")
                .is_some_and(|f| !f.is_empty());
            if !in_metadata && !SESSION_FIELDS.contains(&field.as_str()) {
                return Err(format!(
                    "binding: {field:?} is no field that can carry a session key; use session_id, \
                     prompt_cache_key or metadata.NAME"
                ));
            }
        }
        if self.unshown.iter().any(|begin| begin.trim().is_empty()) {
            return Err("binding.unshown: an empty beginning would match every block".to_owned());
        }
        if self.retry_ms < 0 {
            return Err("binding.retry_ms must not be negative".to_owned());
        }
        self.habits().map(|_| ())
    }
}
