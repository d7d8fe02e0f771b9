//! What this processor computes, and whether its matrix instructions give the bits that vectors give.

use std::sync::OnceLock;

use super::compute_type::ComputeType;
use super::packed::PackedMatrix;
use super::rows::{Rows, RowsMut, Store};
use crate::cpu::{has_dots, has_tiles, plainly};
use crate::format::block_quant::WeightFormat;
use crate::format::tensor_data::TensorData;
use crate::rng::Rng;
use crate::thread_pool::Executor;

impl ComputeType {
    /// Whether this processor computes so. Any can be made to; products of bf16 then slowly, and
    /// exactly but for subnormal numbers, which is good for tests only.
    pub fn supported(self) -> bool {
        match self {
            Self::F32 | Self::Int8 => true,
            Self::Bf16 => has_dots(),
            Self::Amx => has_tiles() && tiles_are_exact(),
        }
    }
}

/// The quicker one of those that multiply bf16, where the processor has any.
pub fn quickest_of_pairs() -> Option<ComputeType> {
    let all = [ComputeType::Amx, ComputeType::Bf16];
    all.into_iter()
        .find(|compute_type| compute_type.supported())
}

/// [`tiles_add_up`], seen once: an arithmetic is a promise.
fn tiles_are_exact() -> bool {
    static EXACT: OnceLock<bool> = OnceLock::new();
    *EXACT.get_or_init(tiles_add_up)
}

/// Whether tiles of this processor give the bits that vectors do.
pub(super) fn tiles_add_up() -> bool {
    let (out, inp, rows) = (40, 112, 21);
    let mut rng = Rng::new(11);
    let mut draw = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.normal() as f32).collect() };
    let (weights, x) = (draw(out * inp), draw(rows * inp));
    let full = PackedMatrix::from_parts(inp, vec![TensorData::F32(weights)]);
    let exec = Executor::new(1);
    [WeightFormat::Bf16, WeightFormat::Q8]
        .into_iter()
        .all(|format| {
            let w = full.clone().into_format(format);
            let w = w.with_compute_type(ComputeType::Amx);
            let product = || {
                let mut y = vec![0.0; rows * out];
                let from = Rows {
                    data: &x,
                    stride: inp,
                    rows,
                };
                let to = RowsMut {
                    data: &mut y,
                    stride: out,
                };
                w.linear(from, to, Store::Set(None), &exec);
                y
            };
            product() == plainly(product)
        })
}
