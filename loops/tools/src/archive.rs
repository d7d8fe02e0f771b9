//! Files in and out, as tars: nothing leaves the folder, and everything has a limit.
//!
//! Every path is opened below the folder by `openat2`, so that a link that somebody laid there meanwhile leads nowhere.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps,
};
use rustix::io::Errno;

use crate::ToolsError;

/// Most entries of one tar.
pub const ENTRIES_MAX: u64 = 200_000;

/// When files were changed that nobody changed: 2020, which programs that know no time before 1980 take as well.
const TIME: u64 = 1_577_836_800;

/// Longest path of an entry, so that every file can be opened by its path.
const PATH_BYTES_MAX: usize = 3072;

/// What a tar may hold.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of all files.
    pub bytes_max: u64,
    /// Files, folders and links.
    pub entries_max: u64,
    /// Whether symbolic links may point out of the folder. Such a tar is only for the inside of a jail.
    pub links_anywhere: bool,
}

impl Bounds {
    /// Bounds for a tar of at most `bytes_max` whose links stay inside.
    #[must_use]
    pub fn of(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            entries_max: ENTRIES_MAX,
            links_anywhere: false,
        }
    }
}

fn refused(path: &Path, what: &str) -> ToolsError {
    ToolsError::Refused(format!("{}: {what}", path.display()))
}

fn failed(path: &Path, error: impl std::fmt::Display) -> ToolsError {
    ToolsError::Files(format!("{}: {error}", path.display()))
}

/// Opens a folder of this machine.
pub fn open_folder(path: &Path) -> Result<OwnedFd, ToolsError> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|e| failed(path, e))
}

/// A path below a folder: only names, no `..`, not absolute.
pub(crate) fn inside(path: &Path) -> Result<PathBuf, ToolsError> {
    if path.as_os_str().len() > PATH_BYTES_MAX {
        let what = format!("a path of more than {PATH_BYTES_MAX} bytes");
        return Err(ToolsError::Refused(what));
    }
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            _ => return Err(refused(path, "the path leaves the folder")),
        }
    }
    Ok(plain)
}

fn open_at(
    folder: impl AsFd,
    path: &Path,
    flags: OFlags,
    mode: u32,
    links: bool,
) -> Result<OwnedFd, ToolsError> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if !links {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    let flags = flags | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(folder, path, flags, Mode::from_raw_mode(mode), resolve);
    opened.map_err(|e| match e {
        Errno::XDEV | Errno::LOOP => refused(path, "a link leads out of the folder"),
        e => failed(path, e),
    })
}

/// Opens the folder that holds `path`, and makes it when it is missing. No part of it may be a link.
fn open_parent(folder: &OwnedFd, path: &Path) -> Result<OwnedFd, ToolsError> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let flags = OFlags::DIRECTORY | OFlags::PATH;
    if let Ok(found) = open_at(folder, parent, flags, 0, false) {
        return Ok(found);
    }
    let mut at = open_at(folder, Path::new("."), flags, 0, false)?;
    for name in parent {
        match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(failed(path, e)),
        }
        at = open_at(&at, Path::new(name), flags, 0, false)
            .map_err(|_| refused(path, "a part of the path is a link or a file"))?;
    }
    Ok(at)
}

/// Removes what stands where an entry goes, unless both are folders.
fn make_way(parent: &OwnedFd, name: &Path, path: &Path) -> Result<(), ToolsError> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => Err(refused(path, "a folder stands where a file goes")),
        Err(e) => Err(failed(path, e)),
    }
}

fn set_time(file: impl AsFd, seconds: u64) {
    let at = Timespec {
        tv_sec: i64::try_from(seconds).unwrap_or(0),
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: at,
        last_modification: at,
    };
    // A time that the file system cannot hold is no reason to refuse the file.
    let _ = rustix::fs::futimens(file, &times);
}

/// Writes one file below a folder, and the folders above it.
pub(crate) fn write_file(
    folder: &OwnedFd,
    path: &Path,
    from: &mut impl Read,
    bytes_max: u64,
) -> Result<(), ToolsError> {
    let path = inside(path)?;
    let copied = write_new(folder, &path, 0o644, from, bytes_max)?.1;
    if copied > bytes_max {
        return Err(refused(&path, &format!("more than {bytes_max} bytes")));
    }
    Ok(())
}

fn write_new(
    folder: &OwnedFd,
    path: &Path,
    mode: u32,
    from: &mut impl Read,
    bytes_max: u64,
) -> Result<(std::fs::File, u64), ToolsError> {
    let name = Path::new(
        path.file_name()
            .ok_or_else(|| refused(path, "no name of a file"))?,
    );
    let parent = open_parent(folder, path)?;
    make_way(&parent, name, path)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let file = open_at(&parent, name, flags, 0o600, false)?;
    let mut file = std::fs::File::from(file);
    let copied = std::io::copy(&mut from.take(bytes_max.saturating_add(1)), &mut file);
    let copied = copied.map_err(|e| match e.kind() {
        std::io::ErrorKind::StorageFull => refused(path, "no space is left for it"),
        _ => failed(path, e),
    })?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o777)).map_err(|e| failed(path, e))?;
    Ok((file, copied))
}

/// Reads one file below a folder. Links are followed as long as they stay below it.
pub(crate) fn open_file(
    folder: &OwnedFd,
    path: &Path,
    bytes_max: u64,
) -> Result<std::fs::File, ToolsError> {
    let path = inside(path)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open_at(folder, &path, flags, 0, true)?;
    let stat = rustix::fs::fstat(&file).map_err(|e| failed(&path, e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused(&path, "not a file"));
    }
    if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > bytes_max {
        return Err(refused(&path, &format!("more than {bytes_max} bytes")));
    }
    Ok(file.into())
}

/// Opens a folder below a folder.
pub(crate) fn open_below(folder: &OwnedFd, path: &Path) -> Result<OwnedFd, ToolsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    open_at(folder, &inside(path)?, flags, 0, true)
}

/// Opens a folder below a folder, and makes it when it is missing.
pub(crate) fn make_below(folder: &OwnedFd, path: &Path) -> Result<OwnedFd, ToolsError> {
    let path = inside(path)?;
    open_parent(folder, &path.join("x"))?;
    open_below(folder, &path)
}

/// A symbolic link stays inside if its leading `..` do not climb past the folder and no further `..` follows: what
/// lies behind a name may be a link itself, so that `name/..` can be anywhere.
fn link_stays_inside(at: &Path, target: &Path) -> bool {
    let depth = at.components().count().saturating_sub(1);
    let up = target
        .components()
        .take_while(|c| matches!(c, Component::ParentDir | Component::CurDir))
        .filter(|c| matches!(c, Component::ParentDir))
        .count();
    let all = target
        .components()
        .filter(|c| matches!(c, Component::ParentDir))
        .count();
    !target.is_absolute() && up <= depth && up == all
}

/// Unpacks a tar below a folder. What is refused stops it; what was unpacked before stays.
pub fn unpack(tar: impl Read, folder: &OwnedFd, bounds: &Bounds) -> Result<(), ToolsError> {
    let mut archive = tar::Archive::new(tar);
    let mut bytes_left = bounds.bytes_max;
    let broken = |e: std::io::Error| ToolsError::Refused(format!("the tar is broken: {e}"));
    for (count, entry) in (0_u64..).zip(archive.entries().map_err(broken)?) {
        if count >= bounds.entries_max {
            return Err(ToolsError::Refused(format!(
                "the tar has more than {} entries",
                bounds.entries_max
            )));
        }
        let mut entry = entry.map_err(broken)?;
        let path = entry.path().map_err(broken)?.into_owned();
        unpack_entry(&mut entry, &path, folder, bounds, &mut bytes_left)?;
    }
    Ok(())
}

fn unpack_entry(
    entry: &mut tar::Entry<'_, impl Read>,
    path: &Path,
    folder: &OwnedFd,
    bounds: &Bounds,
    bytes_left: &mut u64,
) -> Result<(), ToolsError> {
    use tar::EntryType;
    let kind = entry.header().entry_type();
    if kind == EntryType::XGlobalHeader {
        return Ok(());
    }
    let plain = inside(path)?;
    let mode = entry.header().mode().unwrap_or(0o644);
    let time = entry.header().mtime().unwrap_or(0);
    match kind {
        EntryType::Directory => unpack_folder(folder, &plain, mode),
        EntryType::Regular | EntryType::Continuous => {
            if entry.size() > *bytes_left {
                let what = format!("the tar has more than {} bytes", bounds.bytes_max);
                return Err(refused(path, &what));
            }
            let size = entry.size();
            let (file, copied) = write_new(folder, &plain, mode, entry, size)?;
            if copied != size {
                return Err(refused(path, "the tar ends within the file"));
            }
            *bytes_left -= size;
            set_time(&file, time);
            Ok(())
        }
        EntryType::Symlink | EntryType::Link => {
            let target = entry.link_name().ok().flatten();
            let target = target.ok_or_else(|| refused(path, "a link without a target"))?;
            if kind == EntryType::Link {
                unpack_hard_link(folder, &plain, &inside(&target)?)
            } else if bounds.links_anywhere || link_stays_inside(&plain, &target) {
                let (parent, name) = (open_parent(folder, &plain)?, name_of(&plain)?);
                make_way(&parent, name, path)?;
                rustix::fs::symlinkat(&*target, &parent, name).map_err(|e| failed(path, e))
            } else {
                Err(refused(path, "the link leaves the folder"))
            }
        }
        _ => Err(refused(path, "neither a file, a folder nor a link")),
    }
}

fn name_of(path: &Path) -> Result<&Path, ToolsError> {
    let name = path.file_name();
    name.map(Path::new)
        .ok_or_else(|| refused(path, "no name of a file"))
}

fn unpack_folder(folder: &OwnedFd, path: &Path, mode: u32) -> Result<(), ToolsError> {
    let Ok(name) = name_of(path) else {
        return Ok(());
    };
    let parent = open_parent(folder, path)?;
    match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(failed(path, e)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let made = open_at(&parent, name, flags, 0, false)
        .map_err(|_| refused(path, "a link or a file stands where a folder goes"))?;
    // Its owner can always write and search it, or nothing could be unpacked into it.
    let mode = Mode::from_raw_mode(mode & 0o777 | 0o700);
    rustix::fs::fchmod(&made, mode).map_err(|e| failed(path, e))
}

fn unpack_hard_link(folder: &OwnedFd, path: &Path, target: &Path) -> Result<(), ToolsError> {
    let from = open_parent(folder, target)?;
    let (to, name) = (open_parent(folder, path)?, name_of(path)?);
    make_way(&to, name, path)?;
    rustix::fs::linkat(&from, name_of(target)?, &to, name, AtFlags::empty())
        .map_err(|e| failed(path, e))
}

/// Names in a folder, sorted.
fn names(folder: &OwnedFd, path: &Path) -> Result<Vec<PathBuf>, ToolsError> {
    use std::os::unix::ffi::OsStrExt;
    let mut found = Vec::new();
    for entry in Dir::read_from(folder).map_err(|e| failed(path, e))? {
        let entry = entry.map_err(|e| failed(path, e))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push(PathBuf::from(std::ffi::OsStr::from_bytes(name)));
        }
    }
    found.sort();
    Ok(found)
}

/// Calls `each` with everything below a folder, folders before what they hold, in the order of names. Links are not
/// followed.
pub(crate) fn walk(
    folder: &OwnedFd,
    entries_max: u64,
    mut each: impl FnMut(&Path, &Stat) -> Result<(), ToolsError>,
) -> Result<(), ToolsError> {
    let mut open = vec![PathBuf::new()];
    let mut count = 0;
    while let Some(path) = open.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let here = match open_at(folder, &path, flags, 0, false) {
            Ok(here) => here,
            // It went while the walk was under way.
            Err(_) if matches!(stat(folder, &path), Err(Errno::NOENT)) => continue,
            Err(e) => return Err(e),
        };
        let mut folders = Vec::new();
        for name in names(&here, &path)? {
            let full = path.join(&name);
            let found = match rustix::fs::statat(&here, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                other => other.map_err(|e| failed(&full, e))?,
            };
            count += 1;
            if count > entries_max {
                let what = format!("more than {entries_max} files and folders");
                return Err(ToolsError::Refused(what));
            }
            each(&full, &found)?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                folders.push(full);
            }
        }
        open.extend(folders.into_iter().rev());
    }
    Ok(())
}

fn stat(folder: &OwnedFd, path: &Path) -> Result<Stat, Errno> {
    rustix::fs::statat(folder, path, AtFlags::SYMLINK_NOFOLLOW)
}

/// Packs what is below a folder and passes `keep`. Links stay links; sockets, pipes and devices are left out.
pub fn pack<W: Write>(
    folder: &OwnedFd,
    bounds: &Bounds,
    mut keep: impl FnMut(&Path, &Stat) -> bool,
    to: W,
) -> Result<W, ToolsError> {
    let mut builder = tar::Builder::new(to);
    let mut bytes_left = bounds.bytes_max;
    walk(folder, bounds.entries_max, |path, stat| {
        if !keep(path, stat) {
            return Ok(());
        }
        let mut header = tar::Header::new_gnu();
        header.set_mode(stat.st_mode & 0o777);
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        header.set_size(0);
        let packed = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                builder.append_data(&mut header, path, std::io::empty())
            }
            FileType::Symlink => {
                use std::os::unix::ffi::OsStrExt;
                let target = rustix::fs::readlinkat(folder, path, Vec::new())
                    .map_err(|e| failed(path, e))?;
                header.set_entry_type(tar::EntryType::Symlink);
                let target = std::ffi::OsStr::from_bytes(target.as_bytes());
                builder.append_link(&mut header, path, target)
            }
            FileType::RegularFile => {
                let file = open_at(folder, path, OFlags::RDONLY | OFlags::NONBLOCK, 0, false)?;
                let now = rustix::fs::fstat(&file).map_err(|e| failed(path, e))?;
                let size = u64::try_from(now.st_size).unwrap_or(u64::MAX);
                bytes_left = bytes_left.checked_sub(size).ok_or_else(|| {
                    refused(
                        path,
                        &format!("more than {} bytes in all", bounds.bytes_max),
                    )
                })?;
                header.set_size(size);
                // A file that shrinks meanwhile is filled up, or the tar would be broken.
                let bytes = std::fs::File::from(file).chain(std::io::repeat(0));
                builder.append_data(&mut header, path, bytes.take(size))
            }
            _ => Ok(()),
        };
        packed.map_err(|e| failed(path, e))
    })?;
    builder.into_inner().map_err(|e| failed(Path::new("."), e))
}

/// Packs files by their paths. Those that begin with `#!` can be run. All times are the same, so that equal files make equal
/// tars.
pub fn of_files<'a>(
    files: impl IntoIterator<Item = (&'a String, &'a Vec<u8>)>,
) -> Result<Vec<u8>, ToolsError> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        let is_script = content.starts_with(b"#!");
        header.set_mode(if is_script { 0o755 } else { 0o644 });
        header.set_mtime(TIME);
        header.set_size(content.len() as u64);
        builder
            .append_data(&mut header, path, content.as_slice())
            .map_err(|e| failed(Path::new(path), e))?;
    }
    builder.into_inner().map_err(|e| failed(Path::new("."), e))
}

/// Removes everything below a folder.
pub(crate) fn clear(folder: &OwnedFd) -> Result<(), ToolsError> {
    // Folders too deep for one path are moved up, so that neither paths nor recursion grow.
    const DEPTH_MAX: usize = 32;
    let top = Path::new(".");
    for moved in 0..1_000_000_u32 {
        let Some(name) = names(folder, top)?.pop() else {
            return Ok(());
        };
        clear_entry(
            folder,
            folder,
            &name,
            DEPTH_MAX,
            &format!(".moved-up-{moved}"),
        )?;
    }
    Err(ToolsError::Files("the folder cannot be emptied".into()))
}

fn clear_entry(
    top: &OwnedFd,
    parent: &OwnedFd,
    name: &Path,
    depth_left: usize,
    moved: &str,
) -> Result<(), ToolsError> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(e) => return Err(failed(name, e)),
    }
    // The owner of a folder may have closed it to himself.
    let _ = rustix::fs::chmodat(parent, name, Mode::from_raw_mode(0o700), AtFlags::empty());
    if depth_left == 0 {
        return match rustix::fs::renameat(parent, name, top, moved) {
            // Its name is taken by another deep folder of this pass; the next pass moves it.
            Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(e) => Err(failed(name, e)),
        };
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let here = open_at(parent, name, flags, 0, false)?;
    for child in names(&here, name)? {
        clear_entry(top, &here, &child, depth_left - 1, moved)?;
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
        Err(e) => Err(failed(name, e)),
    }
}

/// Removes one file, link or folder below a folder. What is missing is fine.
pub(crate) fn remove(folder: &OwnedFd, path: &Path) -> Result<(), ToolsError> {
    let path = inside(path)?;
    let parent = path.parent().unwrap_or(Path::new(""));
    let flags = OFlags::DIRECTORY | OFlags::RDONLY;
    let Ok(parent) = open_at(folder, parent, flags, 0, false) else {
        return Ok(());
    };
    let name = name_of(&path)?;
    match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => {
            clear(&open_below(&parent, name)?)?;
            rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR).map_err(|e| failed(&path, e))
        }
        Err(e) => Err(failed(&path, e)),
    }
}
