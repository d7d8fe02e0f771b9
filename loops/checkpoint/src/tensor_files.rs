//! Tensors in safetensors files: one file or a sharded set, mapped from disk or embedded.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;

use crate::config::StoredDtype;
use crate::error::LoadError;
use crate::files::Files;
use crate::gguf::Gguf;
use crate::mmap::Bytes;
use crate::tensor_source::{NamedTensor, TensorSource};
use hone_kernels::format::TensorData;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
#[derive(Debug)]
struct Shard {
    label: String,
    bytes: Bytes,
    /// Where tensor data starts in `bytes`.
    data_start: usize,
    meta: Metadata,
}

impl Shard {
    fn open(files: &Files, name: &str, why: &str) -> Result<Self, LoadError> {
        let label = files.label(name);
        let bytes = files.shard(name, why)?;
        let (header, meta) = SafeTensors::read_metadata(bytes.all())
            .map_err(|e| header_error(&label, bytes.all(), &e))?;
        Ok(Self {
            label,
            bytes,
            data_start: header + 8,
            meta,
        })
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData, LoadError> {
        let info = self.meta.info(name).ok_or_else(|| self.missing(name))?;
        let (file, tensor) = (self.label.clone(), name.to_owned());
        if info.shape != shape {
            let (stored, wanted) = (info.shape.clone(), shape.to_vec());
            return Err(LoadError::WrongShape {
                file,
                tensor,
                stored,
                wanted,
            });
        }
        let (start, end) = info.data_offsets;
        let raw = &self.bytes.all()[self.data_start + start..self.data_start + end];
        let (data, bad) = match info.dtype {
            Dtype::F32 => {
                let data: Vec<f32> = raw
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect();
                let bad = data.iter().position(|v| !v.is_finite());
                (TensorData::F32(data), bad)
            }
            Dtype::F16 => {
                let data: Vec<f32> = halves(raw)
                    .map(|bits| f16::from_bits(bits).to_f32())
                    .collect();
                let bad = data.iter().position(|v| !v.is_finite());
                (TensorData::F32(data), bad)
            }
            Dtype::BF16 => {
                let data: Vec<u16> = halves(raw).collect();
                let bad = data.iter().position(|bits| bits & 0x7f80 == 0x7f80);
                (TensorData::Bf16(data), bad)
            }
            other => {
                return Err(LoadError::WrongDtype {
                    file,
                    tensor,
                    dtype: format!("{other:?}"),
                });
            }
        };
        match bad {
            Some(index) => Err(LoadError::NonFinite {
                file,
                tensor,
                index,
            }),
            None => Ok(data),
        }
    }

    fn missing(&self, name: &str) -> LoadError {
        LoadError::MissingTensor {
            file: self.label.clone(),
            tensor: name.to_owned(),
        }
    }
}

fn halves(raw: &[u8]) -> impl Iterator<Item = u16> + '_ {
    raw.chunks_exact(2)
        .map(|b| u16::from_le_bytes([b[0], b[1]]))
}

/// Tells a file that was cut short from one that is not safetensors at all.
fn header_error(label: &str, bytes: &[u8], error: &SafeTensorError) -> LoadError {
    let file = label.to_owned();
    let held = bytes.len() as u64;
    let length = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
    match (error, length) {
        (SafeTensorError::HeaderTooSmall, _) | (_, None) => LoadError::Truncated {
            file,
            held,
            promised: 8,
        },
        (SafeTensorError::InvalidHeaderLength, Some(n)) => LoadError::BadFile {
            file,
            why: format!("its header claims {n} bytes, the file has {held}"),
        },
        (SafeTensorError::MetadataIncompleteBuffer, Some(n)) => {
            let promised = promised_bytes(bytes, n);
            if promised > held {
                LoadError::Truncated {
                    file,
                    held,
                    promised,
                }
            } else {
                let why = format!("its header accounts for {promised} of {held} bytes");
                LoadError::BadFile { file, why }
            }
        }
        (other, Some(_)) => LoadError::BadFile {
            file,
            why: other.to_string(),
        },
    }
}

/// Length of the whole file according to its (already accepted) JSON header of `n` bytes.
fn promised_bytes(bytes: &[u8], n: u64) -> u64 {
    let header = bytes.get(8..8 + n as usize).unwrap_or_default();
    let header: Value = serde_json::from_slice(header).unwrap_or_default();
    let ends = header.as_object().into_iter().flat_map(|map| map.values());
    let data = ends
        .filter_map(|t| t["data_offsets"][1].as_u64())
        .max()
        .unwrap_or(0);
    (8 + n).saturating_add(data)
}

/// A safetensors file of `tensors`, in the order and form that the ecosystem's libraries expect.
/// In bf16 every value is rounded to nearest, ties to even.
///
/// # Panics
/// If a tensor's values do not fill its shape.
pub fn to_bytes(tensors: &[NamedTensor], dtype: StoredDtype) -> Vec<u8> {
    let encode = |t: &NamedTensor| -> Vec<u8> {
        match dtype {
            StoredDtype::F32 => t.data.iter().flat_map(|v| v.to_le_bytes()).collect(),
            StoredDtype::Bf16 => t
                .data
                .iter()
                .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
                .collect(),
        }
    };
    let stored = match dtype {
        StoredDtype::F32 => Dtype::F32,
        StoredDtype::Bf16 => Dtype::BF16,
    };
    let data: Vec<Vec<u8>> = tensors.iter().map(encode).collect();
    let views = tensors.iter().zip(&data).map(|(t, bytes)| {
        let view = TensorView::new(stored, t.shape.clone(), bytes);
        (
            &t.name,
            view.expect("the values of a tensor fill its shape"),
        )
    });
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(format)).expect("a file of distinct tensors serializes")
}

/// Every tensor of a model folder or of a GGUF file, by the name that a folder has for it.
#[derive(Debug)]
pub struct TensorFiles {
    shards: Vec<Shard>,
    /// Tensor name to index in `shards`.
    place: BTreeMap<String, usize>,
    index_label: String,
    /// Where one GGUF file holds them all; then there are no shards.
    gguf: Option<Arc<Gguf>>,
}

impl TensorFiles {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
    pub fn open(folder: &Path) -> Result<Self, LoadError> {
        Self::from_files(&Files::Folder(folder.to_owned()))
    }

    pub fn from_files(files: &Files) -> Result<Self, LoadError> {
        if let Files::Gguf(gguf) = files {
            return Ok(Self {
                shards: Vec::new(),
                place: BTreeMap::new(),
                index_label: gguf.label().to_owned(),
                gguf: Some(Arc::clone(gguf)),
            });
        }
        if files.exists(SINGLE) {
            let shard = Shard::open(files, SINGLE, "it holds the weights")?;
            let place = shard
                .meta
                .tensors()
                .into_keys()
                .map(|name| (name, 0))
                .collect();
            return Ok(Self {
                index_label: shard.label.clone(),
                shards: vec![shard],
                place,
                gguf: None,
            });
        }
        if files.exists(INDEX) {
            return Self::sharded(files);
        }
        let why = if files.exists("pytorch_model.bin") {
            "the folder has a pickle (pytorch_model.bin), which is never read because pickles run \
             code; convert it to safetensors"
        } else {
            "a model folder needs its weights in safetensors form"
        };
        Err(files.missing(SINGLE, why))
    }

    fn sharded(files: &Files) -> Result<Self, LoadError> {
        let index = files.read_json(INDEX, "it lists the shards")?;
        let index_label = files.label(INDEX);
        let bad = |why: String| LoadError::BadKey {
            file: index_label.clone(),
            key: "weight_map".to_owned(),
            why,
        };
        let map = index["weight_map"]
            .as_object()
            .filter(|m| !m.is_empty())
            .ok_or_else(|| bad("must map tensor names to shard files".to_owned()))?;
        let mut shards: Vec<Shard> = Vec::new();
        let mut shard_of: BTreeMap<&str, usize> = BTreeMap::new();
        let mut place = BTreeMap::new();
        for (tensor, file) in map {
            let file = file
                .as_str()
                .filter(|f| plain_name(f))
                .ok_or_else(|| bad(format!("gives {file} for {tensor}; expected a file name")))?;
            let at = match shard_of.get(file) {
                Some(at) => *at,
                None => {
                    let why = format!("{INDEX} names it as the shard of tensor {tensor}; fetch it");
                    shards.push(Shard::open(files, file, &why)?);
                    shard_of.insert(file, shards.len() - 1);
                    shards.len() - 1
                }
            };
            if shards[at].meta.info(tensor).is_none() {
                return Err(shards[at].missing(tensor));
            }
            place.insert(tensor.clone(), at);
        }
        Ok(Self {
            shards,
            place,
            index_label,
            gguf: None,
        })
    }

    /// The stored form of the embedding matrix, which decides how weights are kept in memory.
    pub fn dtype(&self) -> StoredDtype {
        if let Some(gguf) = &self.gguf {
            return gguf.dtype();
        }
        let name = "model.embed_tokens.weight";
        let info = self
            .place
            .get(name)
            .and_then(|at| self.shards[*at].meta.info(name));
        match info {
            Some(info) if info.dtype == Dtype::BF16 => StoredDtype::Bf16,
            _ => StoredDtype::F32,
        }
    }

    /// Bytes that tensor `name` takes in its file; 0 if there is none.
    pub fn stored_bytes(&self, name: &str) -> u64 {
        if let Some(gguf) = &self.gguf {
            return gguf.stored_bytes(name);
        }
        let info = self
            .place
            .get(name)
            .and_then(|at| self.shards[*at].meta.info(name));
        info.map_or(0, |i| (i.data_offsets.1 - i.data_offsets.0) as u64)
    }

    /// What errors call the file that holds tensor `name`.
    pub fn label_of(&self, name: &str) -> &str {
        self.place
            .get(name)
            .map_or(&self.index_label, |at| &self.shards[*at].label)
    }
}

impl TensorSource for TensorFiles {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData, LoadError> {
        if let Some(gguf) = &self.gguf {
            return gguf.tensor(name, shape);
        }
        match self.place.get(name) {
            Some(at) => self.shards[*at].tensor(name, shape),
            None => Err(LoadError::MissingTensor {
                file: self.index_label.clone(),
                tensor: name.to_owned(),
            }),
        }
    }

    fn names(&self) -> Vec<String> {
        if let Some(gguf) = &self.gguf {
            return gguf.names().cloned().collect();
        }
        self.place.keys().cloned().collect()
    }
}

/// A file name inside the folder and nothing else, so that an index cannot point elsewhere.
fn plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}
