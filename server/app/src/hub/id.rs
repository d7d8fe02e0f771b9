//! A model's id on a hub, and how a hub is asked.

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
