//! A copy of a whole data folder while its server runs, and the way back.
//!
//! A backup is a folder: `ledger.db` as of one moment, the adapters that its versions need, and
//! `backup.json`, which names every file with its SHA-256. It is written under another name and
//! renamed at the end, so that it is either whole or absent.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use hone_domain::{BlobKey, Digest, Millis};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::sqlite::{MARK_FILE, RESTORING, folder_of};
use crate::{SqliteConfig, SqliteStore, StoredLedger as _};
use hone_ledger::{Ledger, LedgerError};

/// The file that names all others.
pub const MANIFEST: &str = "backup.json";
/// Version of the backup's form.
const FORMAT: u32 = 1;
/// What the folder of old files is called, behind its time, until the new ones are in their place.
const UNFINISHED: &str = ".unfinished";
/// What the folder of old files is called, before its time.
const ASIDE: &str = "before-restore-";
/// How often a backup begins again because an adapter was removed while it was copied.
const TRIES: usize = 3;
/// Bytes copied at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Most bytes of a manifest.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// Whether the adapter in a folder is the one of that content hash; a sentence where it is not. This crate
/// cannot read adapters.
pub type CheckAdapter = dyn Fn(&Path, Digest) -> Result<(), String> + Sync;

/// What a backup is made by, when, and what tells whether an adapter is whole.
#[derive(Clone, Copy)]
pub struct Maker<'a> {
    /// Version of the program.
    pub program: &'a str,
    /// Now.
    pub now_ms: Millis,
    /// Looks at every adapter that is copied.
    pub check: &'a CheckAdapter,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupFile {
    /// Its place in the backup, with `/` between parts.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this form.
    pub format: u32,
    /// Version of the program that wrote it.
    pub program: String,
    /// When it was begun.
    pub created_ms: Millis,
    /// Turns in it.
    pub turns: u64,
    /// Published versions in it.
    pub versions: u64,
    /// Every file.
    pub files: Vec<BackupFile>,
}

impl Manifest {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Copies the data folder of `config` to `into`, which must not exist or be empty. The server may
/// run meanwhile, and writes wait for nothing.
///
/// # Errors
/// `Unusable` with a sentence and a remedy; nothing is left at `into` then.
pub async fn back_up(
    config: &SqliteConfig,
    into: &Path,
    maker: Maker<'_>,
) -> Result<Manifest, LedgerError> {
    let data = folder_of(&config.file);
    if !config.file.exists() {
        let shown = config.file.display();
        return Err(unusable(format!(
            "there is no ledger {shown} to back up; --data says where it is"
        )));
    }
    check_vacant(into)?;
    let unfinished = beside(into, ".unfinished");
    let mut tried = 0;
    loop {
        tried += 1;
        remove(&unfinished)?;
        fs::create_dir_all(&unfinished).map_err(|e| io(&unfinished, &e))?;
        private(&unfinished)?;
        match gather(config, data, &unfinished, maker).await {
            // An adapter that the copied ledger names was pruned meanwhile; a new copy names it not.
            Err(Gap::Missing(_)) if tried < TRIES => {}
            Err(Gap::Missing(key)) => {
                remove(&unfinished)?;
                return Err(unusable(format!(
                    "the adapter {key} that a version needs is not in {}; run `hone doctor`",
                    data.display()
                )));
            }
            Err(Gap::Failed(error)) => {
                remove(&unfinished)?;
                return Err(error);
            }
            Ok(manifest) => {
                if into.exists() {
                    fs::remove_dir(into).map_err(|e| io(into, &e))?;
                }
                fs::rename(&unfinished, into).map_err(|e| io(into, &e))?;
                sync(folder_of(into))?;
                return Ok(manifest);
            }
        }
    }
}

/// Why a try at a backup did not succeed.
enum Gap {
    Missing(String),
    Failed(LedgerError),
}

impl From<LedgerError> for Gap {
    fn from(error: LedgerError) -> Self {
        Self::Failed(error)
    }
}

async fn gather(
    config: &SqliteConfig,
    data: &Path,
    into: &Path,
    maker: Maker<'_>,
) -> Result<Manifest, Gap> {
    let ledger = SqliteStore::open_beside(config).await?;
    let copied = ledger.store.copy_to(&into.join("ledger.db")).await;
    ledger.close().await;
    copied?;
    let copy = SqliteStore::open(&SqliteConfig::in_folder(into)).await?;
    let asked = async {
        let counts = copy.counts().await?;
        Ok::<_, LedgerError>((counts, copy.kept_blobs().await?, copy.check_stored().await?))
    };
    let asked = asked.await;
    copy.close().await;
    let (counts, blobs, findings) = asked?;
    if let Some(finding) = findings.first() {
        let text = format!("the copied ledger is damaged ({finding}); run `hone doctor`");
        return Err(Gap::Failed(unusable(text)));
    }
    for left in ["owner.lock", MARK_FILE] {
        remove_file(&into.join(left))?;
    }
    let mut files = vec![note(into, "ledger.db")?];
    for (key, digest) in blobs {
        copy_blobs(data, into, &key, &mut files)?;
        let whole = (maker.check)(&into.join("blobs").join(key.as_str()), digest);
        whole.map_err(|why| Gap::Failed(damaged(data, &key, &why)))?;
    }
    let manifest = Manifest {
        format: FORMAT,
        program: maker.program.to_owned(),
        created_ms: maker.now_ms,
        turns: counts.turns,
        versions: counts.versions,
        files,
    };
    let text = serde_json::to_vec_pretty(&manifest).map_err(|e| unusable(e.to_string()))?;
    write(&into.join(MANIFEST), &text)?;
    sync(into)?;
    Ok(manifest)
}

/// An adapter, and what its learner remembers where that is there.
fn copy_blobs(
    data: &Path,
    into: &Path,
    key: &BlobKey,
    files: &mut Vec<BackupFile>,
) -> Result<(), Gap> {
    if !copy_folder(data, into, key.as_str(), files)? {
        return Err(Gap::Missing(key.as_str().to_owned()));
    }
    if let Some(rest) = key.as_str().strip_prefix("adapters/") {
        copy_folder(data, into, &format!("learner/{rest}"), files)?;
    }
    Ok(())
}

/// False where there is no such folder.
fn copy_folder(
    data: &Path,
    into: &Path,
    key: &str,
    files: &mut Vec<BackupFile>,
) -> Result<bool, LedgerError> {
    let place = format!("blobs/{key}");
    let (from, to) = (data.join(&place), into.join(&place));
    let names = match fs::read_dir(&from) {
        Ok(names) => names,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io(&from, &error)),
    };
    fs::create_dir_all(&to).map_err(|e| io(&to, &e))?;
    for name in names {
        let name = name.map_err(|e| io(&from, &e))?.file_name();
        let Some(name) = name.to_str() else { continue };
        match copy_file(&from.join(name), &to.join(name)) {
            Ok((bytes, sha256)) => files.push(BackupFile {
                path: format!("{place}/{name}"),
                bytes,
                sha256,
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(io(&from.join(name), &error)),
        }
    }
    sync(&to)?;
    Ok(true)
}

/// As [`verify`], and that every adapter is the one that its version was published with: a file may have
/// been damaged before it was backed up.
///
/// # Errors
/// `Unusable`, naming the first that is missing or differs.
pub async fn verify_whole(from: &Path, check: &CheckAdapter) -> Result<Manifest, LedgerError> {
    let manifest = verify(from)?;
    for (key, digest) in super::sqlite::kept_blobs_of(&from.join("ledger.db")).await? {
        let whole = check(&from.join("blobs").join(key.as_str()), digest);
        whole.map_err(|why| {
            let key = key.as_str();
            unusable(format!(
                "the adapter {key} in the backup is damaged ({why}); use another backup"
            ))
        })?;
    }
    Ok(manifest)
}

fn damaged(data: &Path, key: &BlobKey, why: &str) -> LedgerError {
    unusable(format!(
        "the adapter {} in {} is damaged ({why}); put its files back from an earlier backup, or restart the \
         server, which sets it aside and serves the version before it; then back up again",
        key.as_str(),
        data.display()
    ))
}

/// Checks every file of a backup against its manifest.
///
/// # Errors
/// `Unusable`, naming the first file that is missing or differs.
pub fn verify(from: &Path) -> Result<Manifest, LedgerError> {
    let path = from.join(MANIFEST);
    let shown = path.display();
    let opened = File::open(&path);
    let mut text = String::new();
    let read = opened.and_then(|file| file.take(MANIFEST_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| {
        unusable(format!(
            "{shown} cannot be read ({error}); is {} a backup?",
            from.display()
        ))
    })?;
    let manifest: Manifest = serde_json::from_str(&text)
        .map_err(|error| unusable(format!("{shown} is no manifest of a backup ({error})")))?;
    if manifest.format != FORMAT {
        return Err(unusable(format!(
            "the backup has form {}, and this program knows {FORMAT}; use the program that wrote it ({})",
            manifest.format, manifest.program
        )));
    }
    for file in &manifest.files {
        if !is_plain(&file.path) {
            return Err(unusable(format!(
                "{shown} names {:?}, which leads elsewhere",
                file.path
            )));
        }
        let place = from.join(&file.path);
        let (bytes, sha256) = digest(&place).map_err(|e| io(&place, &e))?;
        if bytes != file.bytes || sha256 != file.sha256 {
            return Err(unusable(format!(
                "{} is not what was backed up; use another backup",
                place.display()
            )));
        }
    }
    Ok(manifest)
}

/// How a backup takes the place of a data folder.
#[derive(Clone, Copy)]
pub struct Replacing<'a> {
    /// Whether a ledger that is there is moved aside.
    pub replace: bool,
    /// Now.
    pub now_ms: Millis,
    /// Looks at every adapter of the backup.
    pub check: &'a CheckAdapter,
}

/// Puts a backup in the place of a data folder that no server uses. What was there is moved into a
/// folder inside it, which is returned.
///
/// # Errors
/// `Unusable` with a sentence and a remedy: the backup is not whole, the folder is in use, or it has
/// a ledger and `replace` is not set. The data folder is as it was then.
pub async fn restore(
    from: &Path,
    config: &SqliteConfig,
    how: Replacing<'_>,
) -> Result<(Manifest, Option<PathBuf>), LedgerError> {
    let Replacing {
        replace,
        now_ms,
        check,
    } = how;
    let data = folder_of(&config.file);
    let manifest = verify_whole(from, check).await?;
    if !data.exists() {
        fs::create_dir_all(data).map_err(|e| io(data, &e))?;
        private(data)?;
    }
    let _lock = super::sqlite::take_folder(data)?;
    undo(data)?;
    let (old, staging) = (config.file.exists(), data.join(RESTORING));
    remove(&staging)?;
    if old && !replace {
        return Err(unusable(format!(
            "{} has a ledger already; --replace moves it aside, or choose another data folder",
            data.display()
        )));
    }
    fs::create_dir(&staging).map_err(|e| io(&staging, &e))?;
    private(&staging)?;
    let staged = stage(from, &staging, &manifest).await;
    if let Err(error) = staged {
        remove(&staging)?;
        return Err(error);
    }
    let aside = old.then(|| data.join(format!("{ASIDE}{now_ms}")));
    exchange(data, &staging, aside.as_deref())?;
    Ok((manifest, aside))
}

/// Copies the files and looks whether a server could open them.
async fn stage(from: &Path, staging: &Path, manifest: &Manifest) -> Result<(), LedgerError> {
    for file in &manifest.files {
        let to = staging.join(&file.path);
        let above = folder_of(&to);
        fs::create_dir_all(above).map_err(|e| io(above, &e))?;
        let (_, sha256) = copy_file(&from.join(&file.path), &to).map_err(|e| io(&to, &e))?;
        if sha256 != file.sha256 {
            return Err(unusable(format!(
                "{} changed while it was copied",
                file.path
            )));
        }
        sync(above)?;
    }
    let ledger = SqliteStore::open(&SqliteConfig::in_folder(staging)).await?;
    let findings = ledger.check_stored().await;
    ledger.close().await;
    match findings?.first() {
        None => remove_file(&staging.join("owner.lock")),
        Some(finding) => Err(unusable(format!(
            "the ledger in the backup is damaged ({finding}); use another backup"
        ))),
    }
}

/// Moves the old files aside and the staged ones into their place, the ledger last. While the
/// staging folder is there the data folder is not opened by a server, and what an interruption left
/// is put back by [`undo`].
fn exchange(data: &Path, staging: &Path, aside: Option<&Path>) -> Result<(), LedgerError> {
    let unfinished = aside.map(|aside| beside(aside, UNFINISHED));
    match &unfinished {
        Some(folder) => fs::create_dir(folder).map_err(|e| io(folder, &e))?,
        // Without a ledger nothing names what else may be there.
        None => {
            remove(&data.join("blobs"))?;
            remove_file(&data.join(MARK_FILE))?;
        }
    }
    sync(data)?;
    for (from, to) in moves(data, staging, unfinished.as_deref()) {
        rename(&from, &to)?;
    }
    if let (Some(unfinished), Some(aside)) = (&unfinished, aside) {
        sync(unfinished)?;
        rename(unfinished, aside)?;
    }
    sync(data)?;
    remove(staging)
}

/// What changes its place, in this order: the old files, then the new ones.
fn moves(data: &Path, staging: &Path, aside: Option<&Path>) -> Vec<(PathBuf, PathBuf)> {
    let pair = |from: &Path, to: &Path, part: &str| (from.join(part), to.join(part));
    let old = aside.into_iter().flat_map(|aside| {
        let parts = OLD_PARTS.iter();
        parts.map(move |part| pair(data, aside, part))
    });
    let new = ["blobs", "ledger.db"].map(|part| pair(staging, data, part));
    old.chain(new).collect()
}

/// What a data folder's ledger consists of. Staged ones have no log: they were closed.
const OLD_PARTS: [&str; 5] = [
    "blobs",
    MARK_FILE,
    "ledger.db-wal",
    "ledger.db-shm",
    "ledger.db",
];

/// Puts the old files back where an exchange was interrupted. It may be interrupted itself and done
/// again: what lies aside is always old, and what is in its place is not until it is back.
fn undo(data: &Path) -> Result<(), LedgerError> {
    let entries = fs::read_dir(data).map_err(|e| io(data, &e))?;
    for entry in entries {
        let entry = entry.map_err(|e| io(data, &e))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !(name.starts_with(ASIDE) && name.ends_with(UNFINISHED)) {
            continue;
        }
        let aside = entry.path();
        for part in OLD_PARTS {
            let (old, place) = (aside.join(part), data.join(part));
            if !old.exists() {
                continue;
            }
            if place.is_dir() {
                remove(&place)?;
            }
            rename(&old, &place)?;
        }
        sync(data)?;
        fs::remove_dir(&aside).map_err(|e| io(&aside, &e))?;
    }
    Ok(())
}

/// Renames what is there.
fn rename(from: &Path, to: &Path) -> Result<(), LedgerError> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io(from, &error)),
        _ => Ok(()),
    }
}

fn is_plain(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', '\0', ':'])
    };
    path == "ledger.db" || (path.starts_with("blobs/") && path.split('/').all(plain))
}

fn note(root: &Path, name: &str) -> Result<BackupFile, LedgerError> {
    let path = root.join(name);
    let noted = File::open(&path).and_then(|file| {
        file.sync_all()?;
        digest(&path)
    });
    let (bytes, sha256) = noted.map_err(|e| io(&path, &e))?;
    Ok(BackupFile {
        path: name.to_owned(),
        bytes,
        sha256,
    })
}

/// Copies a file and makes it durable; its length and SHA-256.
fn copy_file(from: &Path, to: &Path) -> std::io::Result<(u64, String)> {
    let mut out = File::create_new(to)?;
    let read = each_piece(from, |piece| out.write_all(piece))?;
    out.sync_all()?;
    Ok(read)
}

fn digest(path: &Path) -> std::io::Result<(u64, String)> {
    each_piece(path, |_| Ok(()))
}

fn each_piece(
    path: &Path,
    mut with: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<(u64, String)> {
    let (mut file, mut hash, mut bytes) = (File::open(path)?, Sha256::new(), 0);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let n = file.read(&mut piece)?;
        if n == 0 {
            break;
        }
        hash.update(&piece[..n]);
        with(&piece[..n])?;
        bytes += n as u64;
    }
    let sha256 = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok((bytes, sha256))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), LedgerError> {
    let written = File::create_new(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|e| io(path, &e))
}

/// Refuses a place of a backup where something lies already.
///
/// # Errors
/// `Unusable` with a sentence and a remedy.
pub fn check_vacant(into: &Path) -> Result<(), LedgerError> {
    match fs::read_dir(into) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io(into, &error)),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(unusable(format!(
                "{} is not empty; choose a folder that does not exist yet",
                into.display()
            ))),
        },
    }
}

/// Only for this user: it holds what people said.
fn private(folder: &Path) -> Result<(), LedgerError> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let only_mine = fs::Permissions::from_mode(0o700);
        fs::set_permissions(folder, only_mine).map_err(|e| io(folder, &e))?;
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<(), LedgerError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io(folder, &error)),
        _ => Ok(()),
    }
}

fn remove_file(path: &Path) -> Result<(), LedgerError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io(path, &error)),
        _ => Ok(()),
    }
}

fn sync(folder: &Path) -> Result<(), LedgerError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| io(folder, &e))
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

fn unusable(text: String) -> LedgerError {
    LedgerError::Unusable(text)
}

fn io(path: &Path, error: &std::io::Error) -> LedgerError {
    let remedy = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space on its disk",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "make it accessible to this user"
        }
        _ => "check the path and the disk",
    };
    unusable(format!("{}: {error}; {remedy}", path.display()))
}

#[cfg(test)]
#[path = "backup_tests.rs"]
mod tests;
