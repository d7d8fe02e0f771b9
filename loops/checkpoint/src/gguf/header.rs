//! The header of a GGUF file: metadata and where the tensors are. Nothing in it is trusted.

use std::collections::BTreeMap;
use std::ops::Range;

use half::{bf16, f16};

use crate::error::LoadError;
use hone_kernels::format::{BlockKind, Blocks, TensorData};

const MAGIC: &[u8; 4] = b"GGUF";
/// Versions that are read; 1 had other sizes and is not written any more.
const VERSIONS: Range<u32> = 2..4;
const ALIGNMENT: u64 = 32;
const ALIGNMENT_MAX: u64 = 1 << 20;
const DIMENSIONS_MAX: u32 = 4;
/// Largest dimension taken.
const DIMENSION_MAX: u64 = 1 << 32;
/// Least bytes of a metadata entry and of a tensor's entry; bounds their claimed numbers.
const ENTRY_BYTES: u64 = 8 + 4 + 1;
const TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// Metadata by key.
pub(super) type Meta = BTreeMap<String, Value>;

/// A metadata value. Lists stay where they are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Whole(i128),
    Real(f64),
    Flag(bool),
    Text(String),
    List(List),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct List {
    kind: u32,
    len: usize,
    range: Range<usize>,
}

impl List {
    /// Its texts; none where it holds something else.
    pub(super) fn texts<'a>(&self, bytes: &'a [u8]) -> Option<Vec<&'a str>> {
        let mut cursor = Cursor {
            bytes: bytes.get(self.range.clone())?,
            at: 0,
        };
        let text = |_| std::str::from_utf8(cursor.run().ok()?).ok();
        (self.kind == TEXT).then(|| (0..self.len).map(text).collect())?
    }

    /// Its `len` whole numbers; none where it holds something else or another number of them.
    pub(super) fn wholes(&self, bytes: &[u8], len: usize) -> Option<Vec<i128>> {
        self.numbers(bytes, len, |value| match value {
            Value::Whole(n) => Some(n),
            _ => None,
        })
    }

    /// As [`Self::wholes`], of real numbers.
    pub(super) fn reals(&self, bytes: &[u8], len: usize) -> Option<Vec<f64>> {
        self.numbers(bytes, len, |value| match value {
            Value::Real(x) => Some(x),
            _ => None,
        })
    }

    fn numbers<T>(
        &self,
        bytes: &[u8],
        len: usize,
        number: impl Fn(Value) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut cursor = Cursor {
            bytes: bytes.get(self.range.clone())?,
            at: 0,
        };
        let one = |_| number(cursor.value(self.kind).ok()?);
        (self.len == len).then(|| (0..len).map(one).collect())?
    }
}

/// How a tensor is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    F32,
    F16,
    Bf16,
    Blocks(BlockKind),
}

impl Stored {
    fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Blocks(BlockKind::Q4_0),
            3 => Self::Blocks(BlockKind::Q4_1),
            6 => Self::Blocks(BlockKind::Q5_0),
            7 => Self::Blocks(BlockKind::Q5_1),
            8 => Self::Blocks(BlockKind::Q8_0),
            12 => Self::Blocks(BlockKind::Q4K),
            13 => Self::Blocks(BlockKind::Q5K),
            14 => Self::Blocks(BlockKind::Q6K),
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// (values, bytes) of the smallest piece.
    fn piece(self) -> (u64, u64) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Blocks(kind) => (kind.values() as u64, kind.bytes() as u64),
        }
    }

    /// The values; the index of the first that is not finite where there is one.
    pub(super) fn decode(self, raw: Vec<u8>) -> Result<TensorData, usize> {
        let halves = || {
            raw.chunks_exact(2)
                .map(|b| u16::from_le_bytes([b[0], b[1]]))
        };
        let real = |values: Vec<f32>| match values.iter().position(|v| !v.is_finite()) {
            Some(index) => Err(index),
            None => Ok(TensorData::F32(values)),
        };
        match self {
            Self::F32 => {
                let four = raw.chunks_exact(4);
                real(
                    four.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                        .collect(),
                )
            }
            Self::F16 => real(halves().map(|bits| f16::from_bits(bits).to_f32()).collect()),
            Self::Bf16 => {
                let values: Vec<u16> = halves().collect();
                let bad = values.iter().position(|v| !bf16::from_bits(*v).is_finite());
                bad.map_or(Ok(TensorData::Bf16(values)), Err)
            }
            Self::Blocks(kind) => Blocks::new(kind, raw).map(TensorData::Blocks),
        }
    }
}

/// What the types that are not read are called.
fn type_name(number: u32) -> String {
    let name = match number {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16..=23 | 29 => "an IQ type",
        _ => return format!("type number {number}"),
    };
    name.to_owned()
}

/// Where a tensor is and what it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Info {
    /// Outermost dimension first, as in a folder.
    pub shape: Vec<usize>,
    pub stored: Stored,
    pub range: Range<usize>,
}

const TEXT: u32 = 8;
const LIST: u32 = 9;

/// Reads little-endian numbers and never past the end. Errors say what is wrong, without the file.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        if count > self.left() {
            return Err(format!(
                "at byte {} it promises {count} bytes more, but {} are left",
                self.at,
                self.left()
            ));
        }
        let from = self.at;
        self.at += count as usize;
        Ok(&self.bytes[from..self.at])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64)?);
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes after their length.
    fn run(&mut self) -> Result<&'a [u8], String> {
        let length = self.u64()?;
        self.take(length)
    }

    fn text(&mut self, what: &str) -> Result<&'a str, String> {
        let at = self.at;
        let bytes = self.run()?;
        std::str::from_utf8(bytes).map_err(|_| format!("{what} at byte {at} is not UTF-8"))
    }

    fn value(&mut self, kind: u32) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::Whole(i128::from(u8::from_le_bytes(self.array()?))),
            1 => Value::Whole(i128::from(i8::from_le_bytes(self.array()?))),
            2 => Value::Whole(i128::from(u16::from_le_bytes(self.array()?))),
            3 => Value::Whole(i128::from(i16::from_le_bytes(self.array()?))),
            4 => Value::Whole(i128::from(self.u32()?)),
            5 => Value::Whole(i128::from(i32::from_le_bytes(self.array()?))),
            6 => Value::Real(f64::from(f32::from_le_bytes(self.array()?))),
            7 => Value::Flag(self.array::<1>()? != [0]),
            TEXT => Value::Text(self.text("a text")?.to_owned()),
            LIST => Value::List(self.list()?),
            10 => Value::Whole(i128::from(self.u64()?)),
            11 => Value::Whole(i128::from(i64::from_le_bytes(self.array()?))),
            12 => Value::Real(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("a value has the unknown type {other}")),
        })
    }

    fn list(&mut self) -> Result<List, String> {
        let (kind, len) = (self.u32()?, self.u64()?);
        let from = self.at;
        match kind {
            TEXT => {
                if len > self.left() / 8 {
                    return Err(format!("a list claims {len} texts, more than fit"));
                }
                for _ in 0..len {
                    self.run()?;
                }
            }
            LIST => return Err("a list of lists is nothing a model needs".to_owned()),
            _ => {
                let each = match kind {
                    0 | 1 | 7 => 1,
                    2 | 3 => 2,
                    4..=6 => 4,
                    10..=12 => 8,
                    other => return Err(format!("a list has the unknown type {other}")),
                };
                self.take(len.saturating_mul(each))?;
            }
        }
        Ok(List {
            kind,
            len: len as usize,
            range: from..self.at,
        })
    }

    fn count(&mut self, what: &str, least: u64) -> Result<u64, String> {
        let count = self.u64()?;
        if count > self.left() / least {
            return Err(format!(
                "it claims {count} {what}, but {} bytes are left",
                self.left()
            ));
        }
        Ok(count)
    }
}

/// Reads the header: metadata, and the tensors by their name in the file.
pub(super) fn read(bytes: &[u8], file: &str) -> Result<(Meta, BTreeMap<String, Info>), LoadError> {
    let bad = |why: String| LoadError::BadGguf {
        file: file.to_owned(),
        why,
    };
    let mut cursor = Cursor { bytes, at: 0 };
    if cursor.take(4).map_err(bad)? != MAGIC {
        return Err(LoadError::UnfitGguf {
            file: file.to_owned(),
            why: "it is no GGUF file; of a model in safetensors give the folder with its \
                  config.json, not one file of it"
                .to_owned(),
        });
    }
    let version = cursor.u32().map_err(bad)?;
    if !VERSIONS.contains(&version) {
        return Err(LoadError::UnfitGguf {
            file: file.to_owned(),
            why: format!("it is of version {version}; versions 2 and 3, little-endian, are read"),
        });
    }
    let tensors = cursor.count("tensors", TENSOR_BYTES).map_err(bad)?;
    let entries = cursor.count("metadata entries", ENTRY_BYTES).map_err(bad)?;
    let mut meta = Meta::new();
    for _ in 0..entries {
        let (key, value) = entry(&mut cursor).map_err(bad)?;
        meta.insert(key, value);
    }
    let mut raw = Vec::new();
    for _ in 0..tensors {
        raw.push(tensor(&mut cursor).map_err(bad)?);
    }
    let alignment = match meta.get("general.alignment") {
        None => ALIGNMENT,
        Some(Value::Whole(n)) if (1..=i128::from(ALIGNMENT_MAX)).contains(n) => *n as u64,
        Some(other) => return Err(bad(format!("its alignment is {other:?}"))),
    };
    let start = (cursor.at as u64).next_multiple_of(alignment);
    let mut placed = BTreeMap::new();
    for tensor in raw {
        let name = tensor.name.clone();
        let info = place(tensor, start, bytes.len() as u64, file)?;
        if placed.insert(name.clone(), info).is_some() {
            return Err(bad(format!("it has two tensors {name}")));
        }
    }
    Ok((meta, placed))
}

fn entry(cursor: &mut Cursor) -> Result<(String, Value), String> {
    let key = cursor.text("a key")?.to_owned();
    let kind = cursor.u32()?;
    let value = cursor
        .value(kind)
        .map_err(|why| format!("key {key}: {why}"))?;
    Ok((key, value))
}

struct RawTensor {
    name: String,
    dimensions: Vec<u64>,
    kind: u32,
    offset: u64,
}

fn tensor(cursor: &mut Cursor) -> Result<RawTensor, String> {
    let name = cursor.text("a tensor's name")?.to_owned();
    let count = cursor.u32()?;
    if count == 0 || count > DIMENSIONS_MAX {
        return Err(format!("tensor {name} has {count} dimensions"));
    }
    let dimensions = (0..count).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
    Ok(RawTensor {
        name,
        dimensions,
        kind: cursor.u32()?,
        offset: cursor.u64()?,
    })
}

/// Checks a tensor's size against the file.
fn place(tensor: RawTensor, start: u64, held: u64, file: &str) -> Result<Info, LoadError> {
    let RawTensor {
        name,
        dimensions,
        kind,
        offset,
    } = tensor;
    let bad = |why: String| LoadError::BadGguf {
        file: file.to_owned(),
        why: format!("tensor {name} {why}"),
    };
    let stored = Stored::of(kind).ok_or_else(|| LoadError::UnfitGguf {
        file: file.to_owned(),
        why: format!(
            "tensor {name} is stored as {}; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, \
             Q5_K and Q6_K are read; most models have a file of Q8_0 or Q4_K_M, too",
            type_name(kind)
        ),
    })?;
    let (values, bytes) = stored.piece();
    if let Some(n) = dimensions.iter().find(|n| !(1..=DIMENSION_MAX).contains(n)) {
        return Err(bad(format!("has a dimension of {n}")));
    }
    if dimensions[0] % values != 0 {
        return Err(bad(format!(
            "has rows of {} values, which are no whole blocks of {values}",
            dimensions[0]
        )));
    }
    let pieces = dimensions
        .iter()
        .try_fold(1, |all: u64, n| all.checked_mul(*n))
        .map(|all| all / values);
    let end = pieces
        .and_then(|pieces| pieces.checked_mul(bytes))
        .and_then(|size| Some((size, start.checked_add(offset)?.checked_add(size)?)));
    let Some((size, end)) = end else {
        return Err(bad(format!("has the impossible shape {dimensions:?}")));
    };
    if end > held {
        return Err(bad(format!("ends at byte {end}, but the file has {held}")));
    }
    Ok(Info {
        shape: dimensions.iter().rev().map(|n| *n as usize).collect(),
        stored,
        range: (end - size) as usize..end as usize,
    })
}
