//! Blobs: as folders of files on the local disk ([`FsBlobs`]), or in an object store ([`ObjectBlobs`]).
//!
//! On the local disk a blob is written beside the others, made durable, and then renamed into place, so that it is
//! either whole or absent, also after a power cut. The root belongs to one process at a time (the
//! ledger's lock file sees to that).

mod cache;
mod manifest;
mod objects;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use hone_domain::{BlobError, BlobKey, Blobs, BlobsSize};

pub use objects::ObjectBlobs;

/// Unfinished and removed folders; keys cannot begin with a dot.
const LIMBO: &str = ".limbo";

/// Most files in one blob.
const FILES_MAX: usize = 64;

/// Immutable folders under one root.
pub struct FsBlobs {
    root: PathBuf,
    file_bytes_max: u64,
    next: AtomicU64,
}

impl FsBlobs {
    /// Opens a root, creates it where it is missing, and clears what an earlier process left
    /// unfinished. No file may be larger than `file_bytes_max`.
    ///
    /// # Errors
    /// `Unusable` where the folder cannot be made or written.
    pub fn open(root: &Path, file_bytes_max: u64) -> Result<Self, BlobError> {
        let prepare = || {
            fs::create_dir_all(root)?;
            // The root itself may be a link of the operator's; nothing below it may be one.
            let root = root.canonicalize()?;
            let limbo = root.join(LIMBO);
            match fs::remove_dir_all(&limbo) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => fs::create_dir(&limbo)?,
            }
            sync_folder(&root)?;
            Ok(root)
        };
        let root = prepare().map_err(|e: std::io::Error| {
            BlobError::Unusable(format!(
                "the folder {} cannot be used ({e}); make it writable for this user, or choose \
                 another data folder",
                root.display()
            ))
        })?;
        Ok(Self {
            root,
            file_bytes_max,
            next: AtomicU64::new(0),
        })
    }

    /// A fresh name among the unfinished.
    fn limbo(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.root.join(LIMBO).join(number.to_string())
    }

    /// Where a key's folder is removed; no key has the `~`, and no unfinished folder the name.
    fn removed(&self, key: &BlobKey) -> PathBuf {
        let name = format!("~{}", key.as_str().replace('/', "~"));
        self.root.join(LIMBO).join(name)
    }

    /// The folder of a key, with every part above it and itself either absent or a real folder.
    fn place(&self, key: &BlobKey) -> Result<PathBuf, BlobError> {
        let mut path = self.root.clone();
        for part in key.as_str().split('/') {
            path.push(part);
            match fs::symlink_metadata(&path) {
                Ok(meta) if meta.is_dir() => {}
                Ok(_) => return Err(failed(key, &path, "is not a folder; move it away")),
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(failed(key, &path, &hint(&e))),
            }
        }
        Ok(path)
    }

    /// Makes the folders above a blob, each durable in its parent. None may be a blob itself.
    fn make_parents(&self, key: &BlobKey) -> Result<(), BlobError> {
        let mut path = self.root.clone();
        let parts: Vec<&str> = key.as_str().split('/').collect();
        for part in &parts[..parts.len() - 1] {
            let above = path.clone();
            path.push(part);
            let io = |e: std::io::Error| failed(key, &path, &hint(&e));
            match fs::create_dir(&path) {
                Ok(()) => sync_folder(&above).map_err(io)?,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(io(e)),
            }
            // A blob holds files, a folder above blobs holds folders.
            let first = fs::read_dir(&path)
                .map_err(io)?
                .next()
                .transpose()
                .map_err(io)?;
            if first.is_some_and(|entry| !entry.file_type().is_ok_and(|t| t.is_dir())) {
                return Err(failed(key, &path, "is a blob itself; choose another key"));
            }
        }
        Ok(())
    }

    /// Whether the stored folder holds exactly `files`.
    fn holds(
        &self,
        key: &BlobKey,
        place: &Path,
        files: &[(String, Vec<u8>)],
    ) -> Result<bool, BlobError> {
        let entries = fs::read_dir(place).map_err(|e| failed(key, place, &hint(&e)))?;
        if entries.count() != files.len() {
            return Ok(false);
        }
        for (name, bytes) in files {
            match self.get(key, name) {
                Ok(stored) if stored == *bytes => {}
                Ok(_) | Err(BlobError::Missing { .. }) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

impl Blobs for FsBlobs {
    fn put(&self, key: &BlobKey, files: &[(String, Vec<u8>)]) -> Result<(), BlobError> {
        check_files(key, files, self.file_bytes_max)?;
        let place = self.place(key)?;
        let above = place.parent().unwrap_or(&self.root).to_owned();
        let io = |e: std::io::Error| failed(key, &place, &hint(&e));
        if !place.exists() {
            self.make_parents(key)?;
            let unfinished = self.limbo();
            let moved =
                write_folder(&unfinished, files).and_then(|()| fs::rename(&unfinished, &place));
            if let Err(error) = moved {
                // A half-written folder only takes space; the next start clears it as well.
                let _ = fs::remove_dir_all(&unfinished);
                // Somebody else's put of the same key may have come first; then it decides.
                if !place.exists() {
                    return Err(io(error));
                }
            }
        }
        if !self.holds(key, &place, files)? {
            return Err(failed(
                key,
                &place,
                "exists with other content, and blobs never change; use a new key",
            ));
        }
        // Also for a blob that was there already: an earlier put may not have come this far.
        sync_folder(&above).map_err(io)
    }

    fn get(&self, key: &BlobKey, file: &str) -> Result<Vec<u8>, BlobError> {
        check_name(key, file)?;
        let path = self.place(key)?.join(file);
        let opened = match open_no_link(&path) {
            Ok(opened) => opened,
            Err(e) if e.kind() == ErrorKind::NotFound && self.root.is_dir() => {
                return Err(BlobError::Missing {
                    key: key.as_str().to_owned(),
                    file: file.to_owned(),
                });
            }
            Err(e) => return Err(failed(key, &path, &hint(&e))),
        };
        let io = |e: std::io::Error| failed(key, &path, &hint(&e));
        let meta = opened.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(failed(key, &path, "is not a plain file"));
        }
        if meta.len() > self.file_bytes_max {
            let (has, most) = (meta.len(), self.file_bytes_max);
            let what = format!("has {has} bytes and at most {most} are allowed; raise the limit");
            return Err(failed(key, &path, &what));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
        opened
            .take(self.file_bytes_max)
            .read_to_end(&mut bytes)
            .map_err(io)?;
        Ok(bytes)
    }

    fn list(&self, kind: &str) -> Result<Vec<(BlobKey, u64)>, BlobError> {
        let key = BlobKey::new(kind)?;
        let above = self.place(&key)?;
        let io = |e: std::io::Error| failed(&key, &above, &hint(&e));
        let mut found = Vec::new();
        for group in folders(&above).map_err(io)? {
            for folder in folders(&above.join(&group)).map_err(io)? {
                let age = age_ms(&above.join(&group).join(&folder));
                // What has another name was not stored here.
                if let Ok(key) = BlobKey::new(format!("{kind}/{group}/{folder}")) {
                    found.push((key, age));
                }
            }
        }
        Ok(found)
    }

    fn remove(&self, key: &BlobKey) -> Result<(), BlobError> {
        let place = self.place(key)?;
        let io = |e: std::io::Error| failed(key, &place, &hint(&e));
        let away = self.removed(key);
        // An earlier try may have moved it away and come no further.
        remove_folder(&away).map_err(io)?;
        match fs::rename(&place, &away) {
            Ok(()) => sync_folder(place.parent().unwrap_or(&self.root)).map_err(io)?,
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(io(e)),
        }
        remove_folder(&away).map_err(io)
    }

    fn has(&self, key: &BlobKey) -> Result<bool, BlobError> {
        Ok(self.place(key)?.is_dir())
    }

    fn files(&self, key: &BlobKey) -> Result<Vec<String>, BlobError> {
        let place = self.place(key)?;
        let io = |e: std::io::Error| failed(key, &place, &hint(&e));
        let entries = match fs::read_dir(&place) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(io(e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry.map_err(io)?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sizes(&self) -> Result<Vec<BlobsSize>, BlobError> {
        sizes(&self.root).map_err(|error| BlobError::Unusable(error.to_string()))
    }

    fn set_aside(&self, key: &BlobKey) -> Result<(), BlobError> {
        let place = self.place(key)?;
        let io = |e: std::io::Error| failed(key, &place, &hint(&e));
        if !place.exists() {
            return Ok(());
        }
        let aside = key.aside();
        self.remove(&aside)?;
        self.make_parents(&aside)?;
        let to = self.place(&aside)?;
        fs::rename(&place, &to).map_err(io)?;
        for moved in [&place, &to] {
            sync_folder(moved.parent().unwrap_or(&self.root)).map_err(io)?;
        }
        Ok(())
    }
}

/// What every kind takes under a root, by name; nothing where the root is missing. Only looks, so that it may be asked
/// beside the process that has the root.
///
/// # Errors
/// As the system has it.
pub fn sizes(root: &Path) -> std::io::Result<Vec<BlobsSize>> {
    let mut sizes = Vec::new();
    for kind in folders(root)? {
        let (mut files, mut bytes) = (0, 0);
        let mut left = vec![root.join(&kind)];
        while let Some(folder) = left.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                // Removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for entry in entries.flatten() {
                match entry.metadata() {
                    Ok(meta) if meta.is_dir() => left.push(entry.path()),
                    Ok(meta) => {
                        files += 1;
                        bytes += meta.len();
                    }
                    Err(_) => {}
                }
            }
        }
        sizes.push(BlobsSize { kind, files, bytes });
    }
    sizes.sort_unstable_by(|one, other| one.kind.cmp(&other.kind));
    Ok(sizes)
}

/// Removes a folder with what is in it, where it is there.
fn remove_folder(folder: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Names of the folders in a folder; none where it is missing.
fn folders(above: &Path) -> std::io::Result<Vec<String>> {
    let entries = match fs::read_dir(above) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// How long ago a folder was written; 0 where its time cannot be read or lies in the future.
fn age_ms(folder: &Path) -> u64 {
    let modified = fs::metadata(folder).and_then(|meta| meta.modified());
    let age = modified.ok().and_then(|time| time.elapsed().ok());
    age.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}

/// Refuses what no blob is made of.
fn check_files(
    key: &BlobKey,
    files: &[(String, Vec<u8>)],
    file_bytes_max: u64,
) -> Result<(), BlobError> {
    let refuse = |message: String| BlobError::Io {
        key: key.as_str().to_owned(),
        message,
    };
    if files.is_empty() || files.len() > FILES_MAX {
        return Err(refuse(format!(
            "a blob has 1 to {FILES_MAX} files, not {}",
            files.len()
        )));
    }
    for (index, (name, bytes)) in files.iter().enumerate() {
        check_name(key, name)?;
        if files[..index].iter().any(|(other, _)| other == name) {
            return Err(refuse(format!("the file {name} occurs twice")));
        }
        if bytes.len() as u64 > file_bytes_max {
            return Err(refuse(format!(
                "{name} has {} bytes and at most {file_bytes_max} are allowed; raise the limit",
                bytes.len(),
            )));
        }
    }
    Ok(())
}

/// Writes a folder and makes files and names durable.
fn write_folder(folder: &Path, files: &[(String, Vec<u8>)]) -> std::io::Result<()> {
    fs::create_dir(folder)?;
    for (name, bytes) in files {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(folder.join(name))?;
        file.write_all(bytes)?;
        file.sync_all()?;
    }
    sync_folder(folder)
}

fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Opens a file for reading, and fails where it is a symbolic link.
fn open_no_link(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    }
    options.open(path)
}

/// File names are plain: one part, not hidden.
fn check_name(key: &BlobKey, name: &str) -> Result<(), BlobError> {
    let good = !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if good {
        return Ok(());
    }
    Err(BlobError::Io {
        key: key.as_str().to_owned(),
        message: format!("the file name {name:?} is not allowed: use letters, digits, - _ and ."),
    })
}

fn failed(key: &BlobKey, path: &Path, what: &str) -> BlobError {
    BlobError::Io {
        key: key.as_str().to_owned(),
        message: format!("{} {what}", path.display()),
    }
}

/// What to do about the usual failures.
fn hint(error: &std::io::Error) -> String {
    #[cfg(unix)]
    if error.raw_os_error() == Some(libc::ELOOP) {
        return "is a symbolic link, which is not followed; move it away".into();
    }
    let remedy = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space on its disk",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "make it writable for this user, or choose another data folder"
        }
        _ => "check the disk",
    };
    format!("failed: {error}; {remedy}")
}

#[cfg(test)]
mod tests;
