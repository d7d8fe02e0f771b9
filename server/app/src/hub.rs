//! Models by their id on a hub (`org/name` or `org/name@revision`), fetched once and then used
//! from the data folder.
//!
//! What was fetched for an id is kept for it: a restart serves the same weights, whatever the
//! revision means on the hub by then, and needs no network.

mod fetching;
mod id;

use std::path::{Path, PathBuf};

pub use id::{HubAccess, HubId};

/// The folder of a model: `text` itself where it is a folder or a GGUF file, else what a hub has under that id.
/// The error is one sentence that says what to do.
pub fn folder(text: &str, access: &HubAccess) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let is_file = path
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    match HubId::parse(text) {
        Some(id) if !is_file && !path.exists() => fetching::fetch(&id, access),
        _ => Ok(path.to_owned()),
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod fetch_tests;
