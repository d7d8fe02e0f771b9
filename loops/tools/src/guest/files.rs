//! Files in and out of the jail.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use crate::archive::{self, Bounds, ENTRIES_MAX};
use crate::wire::{self, Form, PIECE_BYTES, Reply, Request};
use crate::{ToolsError, wire::Folder};

/// What a file was like when it was marked. Nobody in the jail can set the time of its last change.
type Mark = (u64, i64, u64, u32, i64);

fn mark(stat: &Stat) -> Mark {
    #[allow(clippy::unnecessary_cast, reason = "the types differ between machines")]
    let changed = (stat.st_ctime as i64, stat.st_ctime_nsec as u64);
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        // A folder changes with what it holds.
        return (stat.st_ino, 0, 0, stat.st_mode, 0);
    }
    (
        stat.st_ino,
        changed.0,
        changed.1,
        stat.st_mode,
        stat.st_size,
    )
}

/// The folders that callers may write.
pub(super) struct Folders {
    open: Vec<(Folder, OwnedFd)>,
    marks: BTreeMap<PathBuf, Mark>,
}

impl Folders {
    pub(super) fn open(folders: Vec<Folder>) -> Result<Self, ToolsError> {
        let open = folders.into_iter().map(|folder| {
            let fd = archive::open_folder(Path::new(&folder.path))?;
            Ok((folder, fd))
        });
        Ok(Self {
            open: open.collect::<Result<_, ToolsError>>()?,
            marks: BTreeMap::new(),
        })
    }

    fn work(&self) -> Result<&(Folder, OwnedFd), ToolsError> {
        let first = self.open.first();
        first.ok_or_else(|| ToolsError::Files("there is no work folder".into()))
    }

    /// The folder that holds a path, and the path in it. A path that is not absolute is of the work folder.
    fn find(&self, path: &str) -> Result<(&Folder, &OwnedFd, PathBuf), ToolsError> {
        if !path.starts_with('/') {
            let (folder, fd) = self.work()?;
            return Ok((folder, fd, PathBuf::from(path)));
        }
        for (folder, fd) in &self.open {
            if let Ok(rest) = Path::new(path).strip_prefix(&folder.name) {
                return Ok((folder, fd, rest.to_path_buf()));
            }
        }
        Err(ToolsError::Refused(format!(
            "{path}: not in a folder that may be written"
        )))
    }

    /// Takes the pieces that follow. They are read to their end even when they are refused, or the next request
    /// could not be found.
    pub(super) fn put(
        &self,
        path: &str,
        form: Form,
        control: &mut UnixStream,
    ) -> io::Result<Result<(), ToolsError>> {
        let mut pieces = Pieces::of(control);
        let put = self.find(path).and_then(|(folder, fd, rest)| match form {
            Form::File => archive::write_file(fd, &rest, &mut pieces, folder.bytes_max),
            Form::Tar | Form::Snapshot => {
                let bounds = Bounds {
                    links_anywhere: form == Form::Snapshot,
                    ..Bounds::of(folder.bytes_max)
                };
                archive::unpack(&mut pieces, &archive::make_below(fd, &rest)?, &bounds)
            }
        });
        pieces.drain()?;
        Ok(put)
    }

    pub(super) fn get(
        &self,
        path: &str,
        form: Form,
        bytes_max: u64,
        mut to: Answer<'_>,
    ) -> Result<(), ToolsError> {
        let (_, fd, rest) = self.find(path)?;
        let lost = |e: io::Error| ToolsError::Files(format!("{path}: {e}"));
        if form == Form::File {
            let file = archive::open_file(fd, &rest, bytes_max)?;
            io::copy(&mut file.take(bytes_max), &mut to).map_err(lost)?;
        } else {
            let below = archive::open_below(fd, &rest)?;
            to = archive::pack(&below, &Bounds::of(bytes_max), |_, _| true, to)?;
        }
        to.flush().map_err(lost)
    }

    /// Remembers what the work folder is like.
    pub(super) fn mark(&mut self) -> Result<(), ToolsError> {
        let mut marks = BTreeMap::new();
        archive::walk(&self.work()?.1, ENTRIES_MAX, |path, stat| {
            marks.insert(path.to_path_buf(), mark(stat));
            Ok(())
        })?;
        if !marks.is_empty() {
            wait_for_the_next_tick();
        }
        self.marks = marks;
        Ok(())
    }

    /// Packs what is new or changed since the mark; returns what is gone.
    pub(super) fn changes(&self, mut to: Answer<'_>) -> Result<Vec<String>, ToolsError> {
        let mut gone = self.marks.clone();
        let (folder, fd) = self.work()?;
        let bounds = Bounds {
            links_anywhere: true,
            ..Bounds::of(folder.bytes_max)
        };
        let changed = |path: &Path, stat: &Stat| {
            let before = gone.remove(path);
            before != Some(mark(stat))
        };
        to = archive::pack(fd, &bounds, changed, to)?;
        to.flush()
            .map_err(|e| ToolsError::Files(format!("the snapshot: {e}")))?;
        let text = |path: PathBuf| {
            path.into_os_string().into_string().map_err(|path| {
                ToolsError::Refused(format!("{}: not a name in UTF-8", path.display()))
            })
        };
        gone.into_keys().map(text).collect()
    }

    pub(super) fn clear(&self) -> Result<(), ToolsError> {
        archive::clear(&self.work()?.1)
    }

    /// Removes what a snapshot says is gone, the deepest first.
    pub(super) fn remove(&self, paths: &[String]) -> Result<(), ToolsError> {
        let fd = &self.work()?.1;
        let mut paths = paths.to_vec();
        paths.sort();
        let removed = paths.iter().rev();
        removed
            .into_iter()
            .try_for_each(|p| archive::remove(fd, Path::new(p)))
    }
}

/// A change within the same tick as the mark would have the same time. A tick is a few milliseconds.
fn wait_for_the_next_tick() {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let first = now();
    for _ in 0..100 {
        if now() != first {
            return;
        }
        std::thread::sleep(std::time::Duration::from_micros(500));
    }
}

/// The pieces of a `Put`, as one stream.
struct Pieces<'a> {
    control: &'a mut UnixStream,
    piece: Vec<u8>,
    at: usize,
    ended: bool,
}

impl<'a> Pieces<'a> {
    fn of(control: &'a mut UnixStream) -> Self {
        Self {
            control,
            piece: Vec::new(),
            at: 0,
            ended: false,
        }
    }

    fn next(&mut self) -> io::Result<()> {
        match wire::read(self.control)? {
            Some((_, Request::Piece, bytes)) => {
                self.ended = bytes.is_empty();
                (self.piece, self.at) = (bytes, 0);
                Ok(())
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn drain(&mut self) -> io::Result<()> {
        while !self.ended {
            self.next()?;
        }
        Ok(())
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() && !self.ended {
            self.next()?;
        }
        let rest = &self.piece[self.at..];
        let n = rest.len().min(into.len());
        into[..n].copy_from_slice(&rest[..n]);
        self.at += n;
        Ok(n)
    }
}

/// Bytes on their way to the host, in pieces.
pub(super) struct Answer<'a> {
    control: &'a mut UnixStream,
    id: u32,
    piece: Vec<u8>,
}

impl<'a> Answer<'a> {
    pub(super) fn to(control: &'a mut UnixStream, id: u32) -> Self {
        Self {
            control,
            id,
            piece: Vec::new(),
        }
    }
}

impl Write for Answer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        for piece in self.piece.chunks(PIECE_BYTES) {
            wire::write(self.control, self.id, &Reply::Piece, &[piece])?;
        }
        self.piece.clear();
        Ok(())
    }
}
