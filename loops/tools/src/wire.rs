//! What the two sides of a jail say to each other: frames of a length, a JSON head and bytes.
//!
//! `u32 length of the rest · u32 id · u32 length of the head · head · bytes`, little-endian. The id of a reply is the
//! id of its request.

use std::io::{Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{KilledBy, Program};

/// Longest frame.
pub(crate) const FRAME_BYTES_MAX: usize = 32 << 20;
/// Bytes of a file or a tar that one frame carries.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// The first frame: what the guest prepares before any command runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Whether the guest stands in namespaces of its own and is its first process.
    pub walls: bool,
    /// The work folder, then the further folders.
    pub folders: Vec<Folder>,
    pub env: Vec<(String, String)>,
    pub processes: u64,
    pub memory_bytes: u64,
    /// Whether the guest adds up the memory of all processes, because no cgroup does.
    pub watch_memory: bool,
    pub file_bytes: u64,
    pub open_files: u64,
    /// The socket of the model in the jail.
    pub model_socket: Option<String>,
}

/// A folder that callers and commands may write.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Folder {
    /// What callers name it.
    pub name: String,
    /// Where it lies.
    pub path: String,
    /// Most bytes and entries of one tar in it.
    pub bytes_max: u64,
}

/// What the host asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Setup(Setup),
    /// The bytes are its standard input.
    Exec(Exec),
    /// Kills one command; the id is that of its `Exec`.
    Cancel {
        exec: u32,
    },
    KillAll,
    /// `Piece`s follow.
    Put {
        path: String,
        form: Form,
    },
    /// Bytes of a `Put`; none end it.
    Piece,
    Get {
        path: String,
        form: Form,
        bytes_max: u64,
    },
    /// The work folder is what later changes are told from.
    Mark,
    Changes,
    Clear,
    Remove {
        paths: Vec<String>,
    },
}

/// How files travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Form {
    File,
    Tar,
    /// A tar of a snapshot, whose links may point anywhere in the jail.
    Snapshot,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Exec {
    pub program: Program,
    pub cwd: Option<String>,
    pub env: Vec<(String, String)>,
    pub timeout_ms: u64,
    pub output_bytes_max: usize,
    pub output_bytes_killed: u64,
}

/// What the guest answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Ready {
        landlock: bool,
        seccomp: bool,
    },
    /// The bytes are head and tail of the standard output, then of the standard error.
    Ended(Ended),
    /// Bytes of a `Get` or of `Changes`.
    Piece,
    /// After `Changes`: what is no longer there.
    Removed {
        paths: Vec<String>,
    },
    Done,
    Refused(String),
    Failed(String),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub exit: Option<i32>,
    pub signal: Option<i32>,
    pub killed_by: Option<KilledBy>,
    pub wall_ms: u64,
    pub reason: Option<String>,
    /// Lengths of head and tail and the bytes cut between them, of both streams.
    pub streams: [(usize, usize, u64); 2],
}

/// A frame as bytes.
pub(crate) fn frame(id: u32, head: &impl Serialize, bytes: &[&[u8]]) -> std::io::Result<Vec<u8>> {
    let head = serde_json::to_vec(head)?;
    let rest = 8 + head.len() + bytes.iter().map(|b| b.len()).sum::<usize>();
    if rest > FRAME_BYTES_MAX {
        return Err(std::io::Error::other(format!(
            "a message of {rest} bytes; at most {FRAME_BYTES_MAX} fit"
        )));
    }
    let mut frame = Vec::with_capacity(4 + rest);
    for number in [rest, id as usize, head.len()] {
        frame.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    }
    frame.extend_from_slice(&head);
    for part in bytes {
        frame.extend_from_slice(part);
    }
    Ok(frame)
}

/// The length that follows, from the first four bytes of a frame.
pub(crate) fn rest_length(first: [u8; 4]) -> std::io::Result<usize> {
    let rest = u32::from_le_bytes(first) as usize;
    if (8..=FRAME_BYTES_MAX).contains(&rest) {
        Ok(rest)
    } else {
        Err(std::io::Error::other(format!("a frame of {rest} bytes")))
    }
}

/// Id, head and bytes of a frame without its length.
pub(crate) fn parse<T: DeserializeOwned>(mut rest: Vec<u8>) -> std::io::Result<(u32, T, Vec<u8>)> {
    let word = |at: usize| {
        let bytes = rest.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map(u32::from_le_bytes)
    };
    let short = || std::io::Error::other("a frame that is too short");
    let id = word(0).ok_or_else(short)?;
    let head = word(4).ok_or_else(short)? as usize;
    let end = head.checked_add(8).ok_or_else(short)?;
    let value = serde_json::from_slice(rest.get(8..end).ok_or_else(short)?)?;
    rest.drain(..end);
    Ok((id, value, rest))
}

/// Reads a frame. None at the end of the stream.
pub(crate) fn read<T: DeserializeOwned>(
    from: &mut impl Read,
) -> std::io::Result<Option<(u32, T, Vec<u8>)>> {
    let mut first = [0; 4];
    match from.read_exact(&mut first) {
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut rest = vec![0; rest_length(first)?];
    from.read_exact(&mut rest)?;
    parse(rest).map(Some)
}

/// Writes a frame.
pub(crate) fn write(
    to: &mut impl Write,
    id: u32,
    head: &impl Serialize,
    bytes: &[&[u8]],
) -> std::io::Result<()> {
    to.write_all(&frame(id, head, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_as_it_was() {
        let bytes = frame(7, &Request::Clear, &[b"ab", b"c"]).unwrap();
        let (id, head, rest) = read::<Request>(&mut &bytes[..]).unwrap().unwrap();
        assert_eq!((id, &rest[..]), (7, &b"abc"[..]));
        assert!(matches!(head, Request::Clear));
        assert!(read::<Request>(&mut &b""[..]).unwrap().is_none());
    }

    #[test]
    fn frames_that_cannot_be_are_refused() {
        for bad in [
            &[0, 0, 0, 0][..],
            &[255, 255, 255, 255, 1],
            &[8, 0, 0, 0, 1, 0, 0, 0, 200, 0, 0, 0],
            &[9, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, b'{'],
            &[8, 0, 0, 0, 1],
        ] {
            assert!(read::<Request>(&mut &bad[..]).is_err(), "{bad:?}");
        }
        assert!(frame(0, &Request::Piece, &[&vec![0; FRAME_BYTES_MAX]]).is_err());
    }
}
