//! Weight matrices packed for [`crate::gemm`], and linear layers with them.

pub mod activation_scratch;
pub mod bf16_dot;
pub mod compute_type;
pub mod int8_dot;
pub mod packed;
pub mod rows;
pub mod self_test;

pub use self::compute_type::ComputeType;
pub use self::packed::{PackedMatrix, Stored};
pub use self::rows::{Rows, RowsMut, Store};
