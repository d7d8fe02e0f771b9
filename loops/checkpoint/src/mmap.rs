//! Files of weights, mapped into memory.

use std::fs::File;

use memmap2::Mmap;

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
