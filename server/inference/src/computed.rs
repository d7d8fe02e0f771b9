//! How the model is computed in this process: what the start and the status say of it.

use std::fmt;

use serde::Serialize;
use utoipa::ToSchema;

/// What speed and memory depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Computed {
    /// Name of the device that computes the steps; null is the processor.
    pub device: Option<String>,
    /// Instructions of the processor that are used, such as `avx512-bf16`.
    pub processor: String,
    /// Threads of the processor.
    pub threads: usize,
    /// What products are of: `f32`, `bf16`, `amx` (bf16 in tiles) or `int8`.
    pub arithmetic: &'static str,
    /// How matrices are kept, such as `bf16 in 12 bits, f32`.
    pub weights: String,
    /// Bytes they take.
    pub weights_bytes: usize,
    /// How keys and values are kept.
    pub kv_format: &'static str,
    /// Tokens that there is memory for, of all requests and reusable prefixes together.
    pub kv_tokens: usize,
}

impl fmt::Display for Computed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if let Some(device) = &self.device {
            write!(f, "{device}, beside it ")?;
        }
        let threads = if self.threads == 1 {
            "thread"
        } else {
            "threads"
        };
        write!(
            f,
            "{} on {} {threads}; products of {}, weights of {}, keys and values of {} for {} tokens",
            self.processor,
            self.threads,
            self.arithmetic,
            self.weights,
            self.kv_format,
            self.kv_tokens
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_what_computes() {
        let mut computed = Computed {
            device: None,
            processor: "avx512-bf16".to_owned(),
            threads: 2,
            arithmetic: "bf16",
            weights: "bf16 in 12 bits, f32".to_owned(),
            weights_bytes: 900_000_000,
            kv_format: "f16",
            kv_tokens: 4_672,
        };
        assert_eq!(
            computed.to_string(),
            "avx512-bf16 on 2 threads; products of bf16, weights of bf16 in 12 bits, f32, \
             keys and values of f16 for 4672 tokens"
        );
        (computed.device, computed.threads) = (Some("NVIDIA H200".to_owned()), 1);
        let line = computed.to_string();
        assert!(
            line.starts_with("NVIDIA H200, beside it avx512-bf16 on 1 thread; "),
            "{line}"
        );
    }
}
