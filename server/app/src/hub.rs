//! Models by their id on a hub (`org/name` or `org/name@revision`), fetched once and then used
//! from the data folder.
//!
//! What was fetched for an id is kept for it: a restart serves the same weights, whatever the
//! revision means on the hub by then, and needs no network.

mod fetching;

use std::path::{Path, PathBuf};

use hone_net::OutboundConfig;

/// Where a hub is, and what to show it.
#[derive(Clone, Debug)]
pub struct HubAccess {
    /// Its address, such as `https://huggingface.co`.
    pub endpoint: String,
    /// For models that are not open to everybody.
    pub token: Option<String>,
    /// Where fetched files live.
    pub cache: PathBuf,
    /// Which addresses may be called.
    pub outbound: OutboundConfig,
}

impl HubAccess {
    /// As the environment says (`HF_ENDPOINT`, `HF_TOKEN`), with fetched files in the data folder.
    pub fn from_env(data: &Path, outbound: &OutboundConfig) -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: set("HF_TOKEN"),
            cache: data.join("hub"),
            outbound: outbound.clone(),
        }
    }
}

/// A model's id on a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubId {
    /// `org/name`.
    pub repo: String,
    /// A branch, tag or commit; `main` if the id names none.
    pub revision: String,
}

impl std::fmt::Display for HubId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.repo, self.revision)
    }
}

impl HubId {
    /// Reads `org/name` or `org/name@revision`; none where the text is not of that form.
    pub fn parse(text: &str) -> Option<Self> {
        let (repo, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (org, name) = repo.split_once('/')?;
        let plain = |part: &str| {
            let good = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            !part.is_empty() && !part.starts_with('.') && part.bytes().all(good)
        };
        let revision_parts = revision.split('/').all(plain);
        (plain(org) && plain(name) && revision_parts).then(|| Self {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
        })
    }
}

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
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_from_paths() {
        let rows = [
            ("org/name", Some(("org/name", "main"))),
            ("org/name@v1.0", Some(("org/name", "v1.0"))),
            (
                "Qwen/Qwen3-0.6B@refs/pr/3",
                Some(("Qwen/Qwen3-0.6B", "refs/pr/3")),
            ),
            ("name", None),
            ("/srv/models/name", None),
            ("./models/name", None),
            ("a/b/c", None),
            ("org/name@", None),
            ("../name", None),
            ("org/na me", None),
        ];
        for (text, wanted) in rows {
            let found = HubId::parse(text);
            let found = found
                .as_ref()
                .map(|id| (id.repo.as_str(), id.revision.as_str()));
            assert_eq!(found, wanted, "{text}");
        }
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod fetch_tests;
