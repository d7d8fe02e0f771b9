//! The files of a model folder, on disk or built into the program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::error::LoadError;
use crate::gguf::Gguf;
use crate::mmap::{Bytes, map};

/// No JSON file of a model folder is larger than this.
const JSON_BYTES_MAX: u64 = 256 << 20;

pub const CONFIG: &str = "config.json";
pub const TOKENIZER: &str = "tokenizer.json";
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub const GENERATION: &str = "generation_config.json";

/// The files of a folder that a GGUF file's metadata stands for.
const GGUF_FILES: [&str; 4] = [CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION];

/// The files of a folder, wherever they are.
#[derive(Debug, Clone)]
pub enum Files {
    Folder(PathBuf),
    Embedded(Vec<(String, &'static [u8])>),
    /// One file that holds them all.
    Gguf(Arc<Gguf>),
}

impl Files {
    /// The files of a folder on disk, or of a GGUF file.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Ok(match path.is_file() {
            true => Self::Gguf(Arc::new(Gguf::open(path)?)),
            false => Self::Folder(path.to_owned()),
        })
    }

    /// What errors call this file: its path, or its name inside the binary.
    pub fn label(&self, name: &str) -> String {
        match self {
            Self::Folder(root) => root.join(name).display().to_string(),
            Self::Embedded(_) => format!("built-in {name}"),
            Self::Gguf(gguf) => format!("{} ({name} from its metadata)", gguf.label()),
        }
    }

    pub fn exists(&self, name: &str) -> bool {
        match self {
            Self::Folder(root) => root.join(name).is_file(),
            Self::Embedded(files) => files.iter().any(|(n, _)| n == name),
            Self::Gguf(_) => GGUF_FILES.contains(&name),
        }
    }

    pub fn missing(&self, name: &str, why: &str) -> LoadError {
        LoadError::MissingFile {
            file: self.label(name),
            why: why.to_owned(),
        }
    }

    /// Reads a small file; `why` says what the file is needed for.
    pub fn read(&self, name: &str, why: &str) -> Result<Vec<u8>, LoadError> {
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

    pub fn read_json(&self, name: &str, why: &str) -> Result<Value, LoadError> {
        serde_json::from_slice(&self.read(name, why)?).map_err(|e| LoadError::BadJson {
            file: self.label(name),
            why: e.to_string(),
        })
    }

    /// The fields of a JSON object file; none if there is no such file.
    pub fn read_object(&self, name: &str) -> Result<Map<String, Value>, LoadError> {
        if !self.exists(name) {
            return Ok(Map::new());
        }
        match self.read_json(name, "")? {
            Value::Object(map) => Ok(map),
            _ => Err(LoadError::BadJson {
                file: self.label(name),
                why: "expected an object".to_owned(),
            }),
        }
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
