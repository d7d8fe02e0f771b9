//! What follows the attention of a layer: one dense part, or experts.

use super::linear::Linear;
use hone_kernels::format::block_quant::WeightFormat;
use hone_kernels::matrix::PackedMatrix;

/// What follows the attention of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum Mlp {
    Dense { gate_up: Linear, down: Linear },
    Sparse(Experts),
}

/// Experts of one layer, and the matrix that scores them for a token.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// `[experts, hidden]`; never quantised, because it decides.
    pub router: PackedMatrix,
    /// Per expert, gate and up `[2 ffn, hidden]`.
    pub gate_up: Vec<PackedMatrix>,
    /// Per expert `[hidden, ffn]`.
    pub down: Vec<PackedMatrix>,
}

impl Mlp {
    /// The stacks of a dense layer.
    pub fn dense(&self) -> Option<[&Linear; 2]> {
        match self {
            Self::Dense { gate_up, down } => Some([gate_up, down]),
            Self::Sparse(_) => None,
        }
    }

    /// As [`Self::dense`], to change them.
    pub fn dense_mut(&mut self) -> Option<[&mut Linear; 2]> {
        match self {
            Self::Dense { gate_up, down } => Some([gate_up, down]),
            Self::Sparse(_) => None,
        }
    }

    pub(super) fn matrices(&self) -> Vec<&PackedMatrix> {
        match self {
            Self::Dense { gate_up, down } => vec![&gate_up.w, &down.w],
            Self::Sparse(experts) => {
                let of_experts = experts.gate_up.iter().chain(&experts.down);
                std::iter::once(&experts.router).chain(of_experts).collect()
            }
        }
    }

    /// With every matrix as `router` and `other` make it.
    pub(super) fn map(
        self,
        router: impl Fn(PackedMatrix) -> PackedMatrix,
        other: impl Fn(PackedMatrix) -> PackedMatrix,
    ) -> Self {
        let linear = |l: Linear| Linear {
            w: other(l.w),
            bias: l.bias,
        };
        match self {
            Self::Dense { gate_up, down } => Self::Dense {
                gate_up: linear(gate_up),
                down: linear(down),
            },
            Self::Sparse(experts) => Self::Sparse(Experts {
                router: router(experts.router),
                gate_up: experts.gate_up.into_iter().map(&other).collect(),
                down: experts.down.into_iter().map(&other).collect(),
            }),
        }
    }
}

/// How a router is kept where other matrices are in `format`.
pub(super) fn of_router(format: WeightFormat) -> WeightFormat {
    match format {
        WeightFormat::Q8 | WeightFormat::Q4 => WeightFormat::Stored,
        other => other,
    }
}

/// Names of an expert's matrices, gate and up before down.
pub(super) fn of_expert(layer: usize, expert: usize) -> [String; 3] {
    let name = |part| format!("model.layers.{layer}.mlp.experts.{expert}.{part}.weight");
    ["gate_proj", "up_proj", "down_proj"].map(name)
}
