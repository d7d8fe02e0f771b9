//! One linear layer.

use hone_kernels::matrix::PackedMatrix;

/// `y = x W^T + bias`.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    pub w: PackedMatrix,
    pub bias: Option<Vec<f32>>,
}
