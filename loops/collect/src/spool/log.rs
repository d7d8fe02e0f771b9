//! The files of the spool: numbered segments of checksummed frames, written at the end and read from the beginning.
//!
//! A segment begins with [`MAGIC`]. A frame is the length of its payload (4 bytes, little endian), a checksum
//! ([`CHECK_BYTES`] of SHA-256 over segment number, offset and payload), and the payload. What was appended is durable
//! when [`Log::append`] returns. A crash can leave an unfinished frame at the end of the newest segment; opening cuts
//! each segment at its first frame that does not check.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// How a segment begins: the format and its version.
pub(super) const MAGIC: &[u8; 8] = b"HONESPL1";
/// Bytes of a frame's checksum.
const CHECK_BYTES: usize = 16;
/// Bytes of a frame before its payload.
pub(super) const FRAME_BYTES: usize = 4 + CHECK_BYTES;
/// Parts of the bound that one segment may take: what is shipped frees the disk in such parts.
const SEGMENTS: u64 = 16;
/// Largest segment, so that a restart ships little twice.
const SEGMENT_BYTES_MAX: u64 = 16 << 20;
/// The end of a segment's name.
const SUFFIX: &str = ".spool";

/// Why nothing was appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    /// It does not fit the bound.
    #[error("the spool is full ({0} bytes)")]
    Full(u64),
    /// The file system's; nothing was appended.
    #[error("the spool could not be written: {0}")]
    Io(#[from] io::Error),
}

/// How much of the bound an append may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The bound.
    Bound,
    /// An eighth more, so that what settles a turn finds room where turns find none.
    Reserve,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    number: u64,
    /// Bytes up to the end of its last whole frame.
    bytes: u64,
    frames: u64,
}

/// What opening found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Frames that wait.
    pub(crate) frames: u64,
    /// Bytes that were cut off because they did not check.
    pub(crate) cut_bytes: u64,
}

/// A payload that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) payload: Vec<u8>,
}

/// Where a frame is: its segment's number, and its offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64, u64);

/// The segments, open for appending and reading.
#[derive(Debug)]
pub(crate) struct Log {
    folder: PathBuf,
    bytes_max: u64,
    segments: VecDeque<Segment>,
    /// The newest segment, while it takes more.
    tail: Option<File>,
    /// Offset of the first frame that waits in the oldest segment, and frames before it.
    head: (u64, u64),
    /// Number of the next segment.
    next: u64,
}

fn check_of(number: u64, offset: u64, payload: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hash = Sha256::new();
    hash.update(number.to_le_bytes());
    hash.update(offset.to_le_bytes());
    hash.update(payload);
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&hash.finalize()[..CHECK_BYTES]);
    check
}

/// The payload's length and checksum that a frame begins with.
fn header_of(header: &[u8; FRAME_BYTES]) -> (usize, &[u8]) {
    let [a, b, c, d, check @ ..] = header;
    (u32::from_le_bytes([*a, *b, *c, *d]) as usize, check)
}

/// The payload of the frame at `offset` of a segment's bytes; none where it does not check.
fn frame_at(bytes: &[u8], number: u64, offset: usize) -> Option<&[u8]> {
    let (length, check) = header_of(bytes.get(offset..)?.first_chunk()?);
    let begin = offset + FRAME_BYTES;
    let payload = bytes.get(begin..begin.checked_add(length)?)?;
    (check_of(number, offset as u64, payload) == check).then_some(payload)
}

/// The segment as far as its frames check.
fn scan(number: u64, bytes: &[u8]) -> Segment {
    let mut segment = Segment {
        number,
        bytes: 0,
        frames: 0,
    };
    if !bytes.starts_with(MAGIC) {
        return segment;
    }
    let mut offset = MAGIC.len();
    while let Some(payload) = frame_at(bytes, number, offset) {
        offset += FRAME_BYTES + payload.len();
        segment.frames += 1;
    }
    segment.bytes = offset as u64;
    segment
}

fn frame_len(payload: &[u8]) -> u64 {
    (FRAME_BYTES + payload.len()) as u64
}

impl Log {
    /// Opens what waits in a folder, which need not exist. Takes at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn open(folder: &Path, bytes_max: u64) -> io::Result<(Self, Found)> {
        let mut log = Self {
            folder: folder.to_owned(),
            bytes_max,
            segments: VecDeque::new(),
            tail: None,
            head: (MAGIC.len() as u64, 0),
            next: 1,
        };
        let mut found = Found::default();
        for number in log.numbers()? {
            log.next = number + 1;
            found.cut_bytes += log.take_in(number)?;
        }
        found.frames = log.frames();
        Ok((log, found))
    }

    /// Numbers of the segments in the folder, the oldest first.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Takes in a segment of an earlier process. Returns how many bytes did not check.
    fn take_in(&mut self, number: u64) -> io::Result<u64> {
        let path = self.path(number);
        let bytes = fs::read(&path)?;
        let segment = scan(number, &bytes);
        let cut_bytes = bytes.len() as u64 - segment.bytes;
        if segment.frames == 0 {
            fs::remove_file(&path)?;
            return Ok(cut_bytes);
        }
        if cut_bytes > 0 {
            let file = OpenOptions::new().write(true).open(&path)?;
            file.set_len(segment.bytes)?;
            file.sync_all()?;
        }
        self.segments.push_back(segment);
        Ok(cut_bytes)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016}{SUFFIX}"))
    }

    /// Frames that wait.
    pub(crate) fn frames(&self) -> u64 {
        let all: u64 = self.segments.iter().map(|segment| segment.frames).sum();
        all - self.head.1
    }

    /// Bytes on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Appends payloads, all or none; they are durable on return. Returns where they are.
    ///
    /// # Errors
    /// That they do not fit, or the file system's; then none is there.
    pub(crate) fn append(
        &mut self,
        payloads: &[Vec<u8>],
        room: Room,
    ) -> Result<Vec<Place>, AppendError> {
        let more: u64 = payloads.iter().map(|payload| frame_len(payload)).sum();
        let most = match room {
            Room::Bound => self.bytes_max,
            Room::Reserve => self.bytes_max.saturating_add(self.bytes_max / 8),
        };
        if self.bytes().saturating_add(more) > most {
            return Err(AppendError::Full(self.bytes_max));
        }
        let segment_max = (self.bytes_max / SEGMENTS).clamp(1, SEGMENT_BYTES_MAX);
        let is_full = self.segments.back().is_some_and(|s| s.bytes >= segment_max);
        if is_full || self.tail.is_none() {
            self.tail = None;
            self.tail = Some(self.begin_segment()?);
        }
        let written = self.write_frames(payloads);
        if written.is_err() {
            // What is behind the end of the last whole frame is never read; the next append begins a new segment.
            self.leave_tail();
        }
        Ok(written?)
    }

    /// Makes the next segment.
    fn begin_segment(&mut self) -> io::Result<File> {
        if !self.folder.exists() {
            // A data folder that was removed is not made anew.
            fs::DirBuilder::new().mode(0o700).create(&self.folder)?;
            if let Some(parent) = self.folder.parent() {
                File::open(parent)?.sync_all()?;
            }
        }
        let number = self.next;
        self.next += 1;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(self.path(number))?;
        file.write_all_at(MAGIC, 0)?;
        file.sync_all()?;
        File::open(&self.folder)?.sync_all()?;
        self.segments.push_back(Segment {
            number,
            bytes: MAGIC.len() as u64,
            frames: 0,
        });
        Ok(file)
    }

    fn write_frames(&mut self, payloads: &[Vec<u8>]) -> io::Result<Vec<Place>> {
        let (Some(file), Some(segment)) = (&self.tail, self.segments.back_mut()) else {
            return Err(io::Error::other("there is no segment to write to"));
        };
        let (mut bytes, mut places) = (Vec::new(), Vec::with_capacity(payloads.len()));
        for payload in payloads {
            let length = u32::try_from(payload.len());
            let length = length.map_err(|_| io::Error::other("a record is too long"))?;
            let offset = segment.bytes + bytes.len() as u64;
            places.push(Place(segment.number, offset));
            bytes.extend(length.to_le_bytes());
            bytes.extend(check_of(segment.number, offset, payload));
            bytes.extend(payload);
        }
        file.write_all_at(&bytes, segment.bytes)?;
        file.sync_data()?;
        segment.bytes += bytes.len() as u64;
        segment.frames += payloads.len() as u64;
        Ok(places)
    }

    /// The payload at a place; none where it is gone or does not check any more.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn payload_at(&self, Place(number, at): Place) -> io::Result<Option<Vec<u8>>> {
        let segment = self.segments.iter().find(|s| s.number == number);
        let payload = segment.map(|segment| self.read_frame(*segment, at));
        Ok(payload.transpose()?.flatten())
    }

    /// Ends the newest segment behind its last whole frame.
    fn leave_tail(&mut self) {
        let end = self.segments.back().map(|segment| segment.bytes);
        if let (Some(file), Some(end)) = (self.tail.take(), end) {
            // Where this fails too, a restart reads what the frames' checks allow.
            let _cut = file.set_len(end).and_then(|()| file.sync_all()).is_ok();
        }
    }

    /// The first frames that wait, at most `most` of them and about `bytes_max` bytes, at least one. Those that do not
    /// check any more are gone, with what is behind them in their segment; returns how many that were.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn read(&mut self, most: usize, bytes_max: u64) -> io::Result<(Vec<Frame>, u64)> {
        let (mut frames, mut bytes, mut lost) = (Vec::new(), 0, 0);
        let (mut at, mut passed) = self.head;
        let mut place = 0;
        while frames.len() < most && bytes < bytes_max {
            let Some(&segment) = self.segments.get(place) else {
                break;
            };
            if at >= segment.bytes {
                (place, at, passed) = (place + 1, MAGIC.len() as u64, 0);
                continue;
            }
            let Some(payload) = self.read_frame(segment, at)? else {
                lost += segment.frames - passed;
                let segment = &mut self.segments[place];
                (segment.bytes, segment.frames) = (at, passed);
                if place + 1 == self.segments.len() {
                    self.tail = None;
                }
                continue;
            };
            at += frame_len(&payload);
            passed += 1;
            bytes += frame_len(&payload);
            frames.push(Frame { payload });
        }
        if frames.is_empty() {
            self.drop_read()?;
        }
        Ok((frames, lost))
    }

    fn read_frame(&self, segment: Segment, at: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.path(segment.number)) {
            // Somebody removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut header = [0; FRAME_BYTES];
        if read_all_at(&file, &mut header, at)?.is_none() {
            return Ok(None);
        }
        let (length, check) = header_of(&header);
        let begin = at + FRAME_BYTES as u64;
        if begin + length as u64 > segment.bytes {
            return Ok(None);
        }
        let mut payload = vec![0; length];
        let is_there = read_all_at(&file, &mut payload, begin)?.is_some();
        Ok((is_there && check_of(segment.number, at, &payload) == check).then_some(payload))
    }

    /// The first `frames` that [`Self::read`] gave are in the ledger; segments without others go.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn release(&mut self, frames: &[Frame]) -> io::Result<()> {
        for frame in frames {
            self.drop_read()?;
            self.head.0 += frame_len(&frame.payload);
            self.head.1 += 1;
        }
        self.drop_read()
    }

    /// Removes segments that were read to their end. The newest goes as well: the next append begins another.
    fn drop_read(&mut self) -> io::Result<()> {
        while self
            .segments
            .front()
            .is_some_and(|s| self.head.0 >= s.bytes)
        {
            self.drop_oldest()?;
        }
        Ok(())
    }

    fn drop_oldest(&mut self) -> io::Result<()> {
        let Some(segment) = self.segments.front() else {
            return Ok(());
        };
        match fs::remove_file(self.path(segment.number)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.segments.pop_front();
        self.head = (MAGIC.len() as u64, 0);
        if self.segments.is_empty() {
            self.tail = None;
        }
        Ok(())
    }
}

/// Fills the buffer; none where the file ends before.
fn read_all_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<Option<()>> {
    match file.read_exact_at(buffer, at) {
        Ok(()) => Ok(Some(())),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
