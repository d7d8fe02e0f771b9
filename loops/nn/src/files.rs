//! The files of a model folder, on disk or built into the program.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use memmap2::Mmap;
use serde_json::Value;

use crate::gguf::Gguf;
use crate::source::LoadError;

/// No JSON file of a model folder is larger than this.
const JSON_BYTES_MAX: u64 = 256 << 20;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const GENERATION: &str = "generation_config.json";

/// The files of a folder that a GGUF file's metadata stands for.
const GGUF_FILES: [&str; 4] = [CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION];

/// The files of a folder, wherever they are.
#[derive(Debug, Clone)]
pub(crate) enum Files {
    Folder(PathBuf),
    Embedded(Vec<(String, &'static [u8])>),
    /// One file that holds them all.
    Gguf(Arc<Gguf>),
}

impl Files {
    /// What errors call this file: its path, or its name inside the binary.
    pub(crate) fn label(&self, name: &str) -> String {
        match self {
            Self::Folder(root) => root.join(name).display().to_string(),
            Self::Embedded(_) => format!("built-in {name}"),
            Self::Gguf(gguf) => format!("{} ({name} from its metadata)", gguf.label()),
        }
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        match self {
            Self::Folder(root) => root.join(name).is_file(),
            Self::Embedded(files) => files.iter().any(|(n, _)| n == name),
            Self::Gguf(_) => GGUF_FILES.contains(&name),
        }
    }

    pub(crate) fn missing(&self, name: &str, why: &str) -> LoadError {
        LoadError::MissingFile {
            file: self.label(name),
            why: why.to_owned(),
        }
    }

    /// Reads a small file; `why` says what the file is needed for.
    pub(crate) fn read(&self, name: &str, why: &str) -> Result<Vec<u8>, LoadError> {
        let io = |source| LoadError::Io {
            file: self.label(name),
            source,
        };
        match self {
            Self::Folder(root) => {
                let path = root.join(name);
                let size = match path.metadata() {
                    Ok(meta) => meta.len(),
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                        return Err(self.missing(name, why));
                    }
                    Err(e) => return Err(io(e)),
                };
                if size > JSON_BYTES_MAX {
                    return Err(LoadError::BadJson {
                        file: self.label(name),
                        why: format!("{size} bytes are more than the limit of {JSON_BYTES_MAX}"),
                    });
                }
                std::fs::read(path).map_err(io)
            }
            Self::Embedded(files) => {
                let found = files.iter().find(|(n, _)| n == name);
                found
                    .map(|(_, bytes)| bytes.to_vec())
                    .ok_or_else(|| self.missing(name, why))
            }
            Self::Gguf(gguf) => {
                let json = match name {
                    CONFIG => gguf.config_json()?,
                    TOKENIZER => gguf.tokenizer_json()?,
                    TOKENIZER_CONFIG => gguf.tokenizer_config_json()?,
                    GENERATION => gguf.generation_json()?,
                    _ => return Err(self.missing(name, why)),
                };
                Ok(json.to_string().into_bytes())
            }
        }
    }

    pub(crate) fn read_json(&self, name: &str, why: &str) -> Result<Value, LoadError> {
        serde_json::from_slice(&self.read(name, why)?).map_err(|e| LoadError::BadJson {
            file: self.label(name),
            why: e.to_string(),
        })
    }

    pub(crate) fn shard(&self, name: &str, why: &str) -> Result<Bytes, LoadError> {
        match self {
            Self::Folder(root) => {
                let io = |source| LoadError::Io {
                    file: self.label(name),
                    source,
                };
                let path = root.join(name);
                if !path.exists() {
                    return Err(self.missing(name, why));
                }
                let file = File::open(path).map_err(io)?;
                map(&file).map(Bytes::Mapped).map_err(io)
            }
            Self::Embedded(files) => {
                let found = files.iter().find(|(n, _)| n == name);
                found
                    .map(|(_, bytes)| Bytes::Static(bytes))
                    .ok_or_else(|| self.missing(name, why))
            }
            Self::Gguf(_) => Err(self.missing(name, why)),
        }
    }
}

#[allow(unsafe_code)]
pub(crate) fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is only read while weights are copied out of it during loading, and folders
    // of weights are written once and not changed in place. A file cut short by someone else at
    // that very time would end the process, not corrupt it.
    unsafe { Mmap::map(file) }
}

/// The content of a file of weights.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
}

impl Bytes {
    pub(crate) fn all(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}
