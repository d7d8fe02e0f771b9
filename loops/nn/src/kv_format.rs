//! How keys and values are kept between tokens.

use half::f16;

/// How keys and values are kept between tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// As they were computed.
    #[default]
    F32,
    /// Rounded to the nearest f16, in half the memory. What lies beyond its range (65,504) is kept as
    /// the end of it. Training sees the rounded ones, too.
    F16,
}

impl KvFormat {
    /// Its name in configurations and fingerprints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Bytes of a number.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F16 => size_of::<f16>(),
        }
    }
}
