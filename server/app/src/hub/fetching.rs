//! Downloads from a hub, by the one outbound client: every file of one commit, resumed where it was
//! broken off, checked by size and SHA-256, and put in its place when it is whole.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName,
    HeaderValue, RANGE,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::id::{HubAccess, HubId};
use crate::progress::{Progress, Unit};
use hone_net::outbound::follow::{Opened, Wanted};
use hone_net::outbound::{Outbound, OutboundError};

/// Tries of one file before a download has failed; a try that brought something does not count.
const TRIES: u32 = 4;
/// Pause before a second try; doubled before each further one.
const PAUSE: Duration = Duration::from_millis(250);
/// Longest silence of the hub.
const STALL: Duration = Duration::from_secs(60);
/// Most files that a model folder may have.
const FILES_MAX: usize = 1_024;
/// Most bytes of one file.
const FILE_BYTES_MAX: u64 = 128 << 30;
/// Most bytes of the list of files.
const LIST_BYTES_MAX: u64 = 16 << 20;
/// Files from this size on show how far they have come.
const PROGRESS_FROM_BYTES: u64 = 8 << 20;
/// Size and SHA-256 of a file that lies elsewhere, on the hub's own answer.
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");

/// The folder of a fetched model; fetches what is missing.
pub(super) fn fetch(id: &HubId, access: &HubAccess) -> Result<PathBuf, String> {
    let note = note_of(id, access);
    if let Some(folder) = noted(&note) {
        return Ok(folder);
    }
    let outbound = Outbound::new(&access.outbound)?;
    outbound.url("HF_ENDPOINT", &access.endpoint)?;
    let hub = Hub {
        outbound,
        id,
        access,
    };
    // Whoever starts the server is inside of an async runtime already.
    let fetched = std::thread::scope(|scope| {
        let fetching = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| format!("the download could not be started: {error}"))?;
            runtime.block_on(hub.download())
        });
        fetching.join()
    });
    let folder = fetched.map_err(|_| format!("the download of {id} broke"))??;
    fs::write(&note, folder.display().to_string()).map_err(|error| unwritable(&note, &error))?;
    Ok(folder)
}

/// One model on one hub.
struct Hub<'a> {
    outbound: Outbound,
    id: &'a HubId,
    access: &'a HubAccess,
}

/// Why a try brought no whole file.
enum Failure {
    /// Trying again helps nothing.
    Final(String),
    /// The connection broke, or the hub was busy.
    Passing(String),
}

impl Hub<'_> {
    /// Fetches every file that a model folder has, all of one commit.
    async fn download(&self) -> Result<PathBuf, String> {
        let (commit, names) = self.list().await?;
        let repo = self.id.repo.replace('/', "--");
        let folder = self.access.cache.join(repo).join(commit.as_str());
        // It may be the first thing in the data folder, which is nobody else's to read.
        hone_ledger_sql::make_private(&folder).map_err(|error| unwritable(&folder, &error))?;
        for name in &names {
            let place = folder.join(name);
            if !place.exists() {
                let parent = place.parent().unwrap_or(&folder);
                hone_ledger_sql::make_private(parent)
                    .map_err(|error| unwritable(parent, &error))?;
                self.file(commit.as_str(), name, &place).await?;
            }
        }
        Ok(folder)
    }

    /// The commit that the revision means, and the names of its files that belong to a model.
    async fn list(&self) -> Result<(String, Vec<String>), String> {
        let id = self.id;
        let path = format!("/api/models/{}/revision/{}", id.repo, id.revision);
        let mut tried = 0;
        let info = loop {
            let broken = match self.listed(&path).await {
                Ok(info) => break info,
                Err(Failure::Final(why)) => return Err(why),
                Err(Failure::Passing(why)) => why,
            };
            tried += 1;
            self.pause(tried, broken).await?;
        };
        let commit = info["sha"].as_str().unwrap_or_default().to_owned();
        let is_commit = |text: &str| {
            (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
        };
        if !is_commit(&commit) {
            let endpoint = &self.access.endpoint;
            return Err(format!(
                "{endpoint} does not say which commit {id} is; it is no hub"
            ));
        }
        let files = info["siblings"].as_array().into_iter().flatten();
        let names = files.filter_map(|file| file["rfilename"].as_str());
        let names: Vec<String> = names.filter(|n| belongs(n)).map(str::to_owned).collect();
        if !names.iter().any(|name| name == "config.json") {
            return Err(format!(
                "{id} has no config.json, so it is no model that can be served; give the id of a \
                 model with safetensors files"
            ));
        }
        if names.len() > FILES_MAX {
            return Err(format!(
                "{id} has more than {FILES_MAX} files; download what is needed and give its path"
            ));
        }
        Ok((commit, names))
    }

    async fn listed(&self, path: &str) -> Result<Value, Failure> {
        let mut opened = self.open(path, None).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = opened.piece().await.map_err(|e| self.passing(&e))? {
            bytes.extend_from_slice(&piece);
            if bytes.len() as u64 > LIST_BYTES_MAX {
                return Err(Failure::Final(format!(
                    "the list of files of {} is longer than {LIST_BYTES_MAX} bytes",
                    self.id
                )));
            }
        }
        let endpoint = &self.access.endpoint;
        serde_json::from_slice(&bytes).map_err(|error| {
            let why = format!("{endpoint} does not answer with JSON ({error}); it is no hub");
            Failure::Final(why)
        })
    }

    /// Fetches one file beside its place and moves it there when it is whole.
    async fn file(&self, commit: &str, name: &str, place: &Path) -> Result<(), String> {
        let path = format!("/{}/resolve/{commit}/{name}", self.id.repo);
        let part = place.with_file_name(format!("{name}.part"));
        let mut tried = 0;
        loop {
            let before = size(&part);
            let broken = match self.piece_by_piece(&path, name, &part).await {
                Ok(()) => break,
                Err(Failure::Final(why)) => return Err(why),
                Err(Failure::Passing(why)) => why,
            };
            tried = if size(&part) > before { 1 } else { tried + 1 };
            self.pause(tried, broken).await?;
        }
        fs::rename(&part, place).map_err(|error| unwritable(place, &error))
    }

    /// Waits before the next try, or gives up.
    async fn pause(&self, tried: u32, broken: String) -> Result<(), String> {
        if tried >= TRIES {
            return Err(broken);
        }
        tracing::warn!(model = %self.id, tried, "fetching from the hub failed and is tried again");
        tokio::time::sleep(PAUSE * (1 << tried.min(8))).await;
        Ok(())
    }

    /// One try: what is missing of a file, and whether all of it is what the hub has.
    async fn piece_by_piece(&self, path: &str, name: &str, part: &Path) -> Result<(), Failure> {
        let writable = |error: std::io::Error| Failure::Final(unwritable(part, &error));
        let have = size(part);
        let mut opened = self.open(path, Some(have)).await?;
        if opened.status == 416 {
            fs::remove_file(part).map_err(writable)?;
            return Err(self.wrong(name, "was broken off at its very end"));
        }
        let goes_on = opened.status == 206 && range_begin(&opened.headers) == Some(have);
        let have = if goes_on { have } else { 0 };
        let total = total_bytes(&opened, have);
        if total.is_some_and(|total| total > FILE_BYTES_MAX) {
            return Err(Failure::Final(format!(
                "{name} of {} is larger than {FILE_BYTES_MAX} bytes; download the model elsewhere \
                 and give its path",
                self.id
            )));
        }
        let mut file = OpenOptions::new();
        let file = file.create(true).truncate(!goes_on).append(goes_on);
        let mut file = file.write(true).open(part).map_err(writable)?;
        let what = format!("fetching {name} of {}", self.id);
        let mut progress = Progress::new(what, (Unit::Bytes, PROGRESS_FROM_BYTES));
        let mut done = have;
        while let Some(piece) = opened.piece().await.map_err(|e| self.passing(&e))? {
            done += piece.len() as u64;
            if done > total.unwrap_or(FILE_BYTES_MAX) {
                let _gone = fs::remove_file(part).is_ok();
                return Err(self.wrong(name, "is longer than announced"));
            }
            file.write_all(&piece).map_err(writable)?;
            progress.at(done, total.unwrap_or_default());
        }
        drop(progress);
        file.sync_all().map_err(writable)?;
        if total.is_some_and(|total| done < total) {
            return Err(self.wrong(name, "came only in part"));
        }
        if let Some(wanted) = sha256_of(&opened)
            && digest(part).map_err(writable)? != wanted
        {
            let _gone = fs::remove_file(part).is_ok();
            return Err(self.wrong(name, "is not what the hub has (its SHA-256 differs)"));
        }
        Ok(())
    }

    fn wrong(&self, name: &str, what: &str) -> Failure {
        Failure::Passing(format!(
            "{name} of {} {what}; try again, or download the folder elsewhere and give its path",
            self.id
        ))
    }

    fn passing(&self, error: &OutboundError) -> Failure {
        let text = self.unreachable(&error.to_string());
        match error {
            OutboundError::Refused(_) => Failure::Final(text),
            _ => Failure::Passing(text),
        }
    }

    fn unreachable(&self, why: &str) -> String {
        format!(
            "{} could not be fetched from {} ({why}); connect to the network, set HF_ENDPOINT to a \
             mirror, or download the folder elsewhere and give its path",
            self.id, self.access.endpoint
        )
    }

    /// Opens a path of the hub, from a byte on.
    async fn open(&self, path: &str, from: Option<u64>) -> Result<Opened, Failure> {
        let url = format!("{}{path}", self.access.endpoint);
        let url = self.outbound.url("HF_ENDPOINT", &url);
        let mut headers = HeaderMap::new();
        // Sizes and ranges are of the bytes themselves.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(token) = &self.access.token {
            let bearer = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut bearer = bearer.map_err(|_| {
                Failure::Final("HF_TOKEN has characters that no token has".to_owned())
            })?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        if let Some(from) = from {
            let range = HeaderValue::from_str(&format!("bytes={from}-"));
            headers.extend(range.ok().map(|range| (RANGE, range)));
        }
        let wanted = Wanted {
            url: url.map_err(Failure::Final)?,
            headers,
            stall: STALL,
        };
        let opened = self.outbound.open(wanted).await;
        let opened = opened.map_err(|error| self.passing(&error))?;
        match opened.status {
            200 | 206 => Ok(opened),
            // Nothing lies behind the last byte.
            416 if from > Some(0) => Ok(opened),
            status => Err(self.explain(status)),
        }
    }

    /// One sentence for a person: what is wrong, and what to do.
    fn explain(&self, status: u16) -> Failure {
        let (endpoint, id) = (&self.access.endpoint, self.id);
        match status {
            401 | 403 => Failure::Final(format!(
                "{endpoint} does not let this caller read {id}; set HF_TOKEN to a token that may, \
                 or check the id"
            )),
            404 => Failure::Final(format!(
                "{endpoint} has no model {id}; check the id and the revision, or give the path of \
                 a folder"
            )),
            _ => Failure::Passing(format!(
                "{endpoint} answered {status} for {id}; try again later, or download the folder \
                 elsewhere and give its path"
            )),
        }
    }
}

/// Files of a model folder: weights, configurations, tokenizer and template.
fn belongs(name: &str) -> bool {
    const EXACT: [&str; 8] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "chat_template.json",
        "additional_chat_templates/tool_use.jinja",
        "model.safetensors.index.json",
    ];
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let weights = name.starts_with("model") && name.ends_with(".safetensors");
    EXACT.contains(&name) || (weights && name.bytes().all(plain))
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

fn unwritable(path: &Path, error: &std::io::Error) -> String {
    let shown = path.display();
    format!("{shown} cannot be written ({error}); make the data folder writable")
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |data| data.len())
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// The first byte of a part, as `content-range: bytes 5-9/10` says.
fn range_begin(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (begin, _) = range.strip_prefix("bytes ")?.split_once('-')?;
    begin.parse().ok()
}

/// Bytes of the whole file, as far as the hub says.
fn total_bytes(opened: &Opened, have: u64) -> Option<u64> {
    let linked = number(&opened.first, &LINKED_SIZE);
    let rest = number(&opened.headers, &CONTENT_LENGTH);
    linked.or_else(|| rest.map(|rest| have.saturating_add(rest)))
}

/// The SHA-256 that the hub gives for a file, where it does; small files have another kind of ETag.
fn sha256_of(opened: &Opened) -> Option<String> {
    let etag = opened
        .header(&LINKED_ETAG)
        .or_else(|| opened.header(&ETAG))?;
    let etag = etag.trim_start_matches("W/").trim_matches('"');
    let is_sha256 = etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit());
    is_sha256.then(|| etag.to_ascii_lowercase())
}

fn digest(path: &Path) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    std::io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hone_domain::Digest(hash.finalize().into()).to_hex())
}
