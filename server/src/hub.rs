//! Models by their id on a hub (`org/name` or `org/name@revision`), fetched once and then used
//! from the data folder.
//!
//! What was fetched for an id is kept for it: a restart serves the same weights, whatever the
//! revision means on the hub by then, and needs no network.

use std::path::{Path, PathBuf};

/// Where a hub is, and what to show it.
#[derive(Clone, Debug)]
pub struct HubAccess {
    /// Its address, such as `https://huggingface.co`.
    pub endpoint: String,
    /// For models that are not open to everybody.
    pub token: Option<String>,
    /// Where fetched files live.
    pub cache: PathBuf,
}

impl HubAccess {
    /// As the environment says (`HF_ENDPOINT`, `HF_TOKEN`), with fetched files in the data folder.
    pub fn from_env(data: &Path) -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: set("HF_TOKEN"),
            cache: data.join("hub"),
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
        Some(id) if !is_file && !path.exists() => fetch(&id, access),
        _ => Ok(path.to_owned()),
    }
}

#[cfg(not(feature = "hub"))]
fn fetch(id: &HubId, _access: &HubAccess) -> Result<PathBuf, String> {
    Err(format!(
        "{} is no folder here, and this build cannot fetch models from a hub: build it with \
         `cargo build --release -p hone --features hub`, or download the folder and give its path",
        id.repo
    ))
}

#[cfg(feature = "hub")]
use fetching::fetch;

#[cfg(feature = "hub")]
mod fetching {
    use std::fs;
    use std::path::{Path, PathBuf};

    use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
    use hf_hub::{Cache, Repo, RepoType};

    use super::{HubAccess, HubId};

    /// Tries again so often before a download has failed.
    const RETRIES: usize = 3;
    /// Most files that a model folder may have.
    const FILES_MAX: usize = 1_024;

    /// The folder of a fetched model; fetches what is missing.
    pub(super) fn fetch(id: &HubId, access: &HubAccess) -> Result<PathBuf, String> {
        let note = note_of(id, access);
        if let Some(folder) = noted(&note) {
            return Ok(folder);
        }
        let api = ApiBuilder::from_cache(Cache::new(access.cache.clone()))
            .with_endpoint(access.endpoint.clone())
            .with_token(access.token.clone())
            .with_retries(RETRIES)
            .with_progress(true)
            .build();
        let api = api.map_err(|error| explain(&error, id, access))?;
        let folder = download(&api, id).map_err(|failure| match failure {
            Failure::Hub(error) => explain(&error, id, access),
            Failure::Said(text) => text,
        })?;
        fs::write(&note, folder.display().to_string()).map_err(|error| {
            let shown = note.display();
            format!("{shown} cannot be written ({error}); make the data folder writable")
        })?;
        Ok(folder)
    }

    enum Failure {
        Hub(ApiError),
        Said(String),
    }

    /// Fetches every file that a model folder has, all of one commit.
    fn download(api: &Api, id: &HubId) -> Result<PathBuf, Failure> {
        let at = |revision: &str| {
            let (repo, revision) = (id.repo.clone(), revision.to_owned());
            api.repo(Repo::with_revision(repo, RepoType::Model, revision))
        };
        let info = at(&id.revision).info().map_err(Failure::Hub)?;
        let names = info.siblings.iter().map(|file| file.rfilename.as_str());
        let names: Vec<&str> = names.filter(|name| belongs(name)).collect();
        if !names.contains(&"config.json") {
            return Err(Failure::Said(format!(
                "{id} has no config.json, so it is no model that can be served; give the id of a \
                 model with safetensors files"
            )));
        }
        if names.len() > FILES_MAX {
            return Err(Failure::Said(format!(
                "{id} has more than {FILES_MAX} files; download what is needed and give its path"
            )));
        }
        let commit = at(&info.sha);
        let mut folder = PathBuf::new();
        for name in names {
            let file = commit.get(name).map_err(Failure::Hub)?;
            if let Some(parent) = file.parent() {
                folder = parent.to_owned();
            }
        }
        Ok(folder)
    }

    /// Files of a model folder: weights, configurations, tokenizer and template.
    fn belongs(name: &str) -> bool {
        const EXACT: [&str; 6] = [
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            "model.safetensors.index.json",
        ];
        let weights = name.starts_with("model") && name.ends_with(".safetensors");
        EXACT.contains(&name) || (weights && !name.contains('/'))
    }

    /// The file that names the folder of an id; it is written when the folder is whole.
    fn note_of(id: &HubId, access: &HubAccess) -> PathBuf {
        let name = format!("{id}").replace('/', "--");
        access.cache.join(format!("{name}.folder"))
    }

    fn noted(note: &Path) -> Option<PathBuf> {
        let folder = PathBuf::from(fs::read_to_string(note).ok()?.trim());
        folder.join("config.json").exists().then_some(folder)
    }

    /// One sentence for a person: what is wrong, and what to do.
    fn explain(error: &ApiError, id: &HubId, access: &HubAccess) -> String {
        let endpoint = &access.endpoint;
        let status = match error {
            ApiError::RequestError(error) => match &**error {
                ureq::Error::StatusCode(status) => Some(*status),
                _ => None,
            },
            _ => None,
        };
        match status {
            Some(401 | 403) => format!(
                "{endpoint} does not let this caller read {id}; set HF_TOKEN to a token that may, \
                 or check the id"
            ),
            Some(404) => format!(
                "{endpoint} has no model {id}; check the id and the revision, or give the path of \
                 a folder"
            ),
            Some(status) => format!(
                "{endpoint} answered {status} for {id}; try again later, or download the folder \
                 elsewhere and give its path"
            ),
            None => format!(
                "{id} could not be fetched from {endpoint} ({error}); connect to the network, set \
                 HF_ENDPOINT to a mirror, or download the folder elsewhere and give its path"
            ),
        }
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

    #[cfg(not(feature = "hub"))]
    #[test]
    fn without_the_feature_one_sentence_says_how_to_get_it() {
        let access = HubAccess::from_env(Path::new("data"));
        let error = folder("org/name", &access).expect_err("there is no such folder");
        assert!(error.contains("--features hub"), "{error}");
        assert_eq!(folder("/srv/x", &access), Ok(PathBuf::from("/srv/x")));
    }
}

#[cfg(all(test, feature = "hub"))]
#[path = "hub_tests.rs"]
mod fetch_tests;
