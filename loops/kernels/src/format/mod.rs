//! How weights are stored, and the values that stored weights stand for.

pub mod block_quant;
pub mod exponent_coded;
pub mod gguf_blocks;
pub mod tensor_data;

pub use self::block_quant::WeightFormat;
pub use self::gguf_blocks::{BlockKind, Blocks};
pub use self::tensor_data::{TensorData, bf16_to_f32};
