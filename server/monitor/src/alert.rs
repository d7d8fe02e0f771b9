//! What needs somebody's attention.

use serde::Serialize;
use utoipa::ToSchema;

/// How much somebody should hurry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub enum Severity {
    /// Something works less well than it should.
    #[serde(rename = "warn")]
    Warning,
    /// Something does not work.
    #[serde(rename = "bad")]
    Error,
}

/// What needs somebody's attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Alert {
    /// Its name: one alert of a name at a time.
    pub id: String,
    /// How much somebody should hurry.
    pub severity: Severity,
    /// What is the matter.
    pub text: String,
    /// What to do about it.
    pub what_to_do: String,
}

/// An alert with the time since when it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Since {
    /// Since when, in milliseconds since the Unix epoch.
    pub since_ms: i64,
    /// The alert.
    #[serde(flatten)]
    pub alert: Alert,
}
