//! Settings as admins see them.

use serde::Serialize;
use serde_json::Value as Json;
use utoipa::ToSchema;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The program's own defaults.
    Default,
    /// The configuration file.
    File,
    /// An environment variable.
    Environment,
    /// A flag of the command line.
    Flag,
}

/// A setting.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Setting {
    /// Its key, such as `http.bind`.
    pub key: String,
    /// Its value; secrets are shown as `(set)`.
    pub value: Json,
    /// Where the value comes from.
    pub origin: Origin,
    /// The file's or variable's name.
    pub source: Option<String>,
    /// What it is for.
    pub doc: String,
}
