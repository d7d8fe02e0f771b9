//! How a model is computed on this machine, in a few words for whoever runs it.

use std::collections::BTreeSet;

use crate::weights::Model;
use hone_kernels::cpu::{SimdLevel, has_byte_dots, has_dots, has_tiles};
use hone_kernels::matrix::PackedMatrix;
use hone_kernels::matrix::compute_type::ComputeType;

/// What speed and memory depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Computing {
    /// Instructions of the processor that products take, such as `avx512-bf16`.
    pub processor: String,
    /// What products are of: `f32`, `bf16`, `amx` (bf16 in tiles) or `int8`.
    pub arithmetic: &'static str,
    /// How matrices are kept, such as `bf16 in 12 bits, f32`.
    pub weights: String,
    /// Bytes they take.
    pub weights_bytes: usize,
    /// How keys and values are kept.
    pub kv: &'static str,
}

impl Computing {
    /// Of a model on this processor.
    pub fn of(model: &Model) -> Self {
        let kept: BTreeSet<&str> = model.weights.matrices().map(PackedMatrix::kept).collect();
        let kept: Vec<&str> = kept.into_iter().collect();
        let arithmetic = model.weights.compute_type();
        Self {
            processor: processor(arithmetic),
            arithmetic: arithmetic.as_str(),
            weights: kept.join(", "),
            weights_bytes: model.weights.bytes(),
            kv: model.kv.as_str(),
        }
    }
}

fn processor(arithmetic: ComputeType) -> String {
    let level = match SimdLevel::current() {
        SimdLevel::Avx512 => "avx512",
        SimdLevel::Avx2 => "avx2",
        SimdLevel::Neon => "neon",
        SimdLevel::Portable => "portable",
    };
    let own = match arithmetic {
        ComputeType::F32 => "",
        ComputeType::Bf16 if has_dots() => "-bf16",
        ComputeType::Amx if has_tiles() => "-amx",
        ComputeType::Int8 if has_byte_dots() => "-vnni",
        ComputeType::Bf16 | ComputeType::Amx | ComputeType::Int8 => "",
    };
    format!("{level}{own}")
}
