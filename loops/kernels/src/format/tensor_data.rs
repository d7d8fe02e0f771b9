//! Values of one tensor as they are stored.

use super::gguf_blocks::Blocks;

/// Values of one tensor as stored, row-major. Half precision (f16) arrives widened to f32;
/// bf16 keeps its 16 bits because widening is an exact shift, and blocks of quantised weights (in
/// whole rows) their bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum TensorData {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    Blocks(Blocks),
}

impl TensorData {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::Bf16(v) => v.len(),
            Self::Blocks(blocks) => blocks.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values as f32 (exact for all stored forms).
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Self::F32(v) => v,
            Self::Bf16(v) => v.into_iter().map(bf16_to_f32).collect(),
            Self::Blocks(blocks) => blocks.dequantise(),
        }
    }
}

/// Widens one bf16 value; exact.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
