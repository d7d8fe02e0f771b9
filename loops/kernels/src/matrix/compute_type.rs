//! The arithmetics a model's products can have.

/// How products with a model's matrices are computed, forward and backward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComputeType {
    /// Inputs as they are, one multiply-add each.
    #[default]
    F32,
    /// Inputs rounded to bf16, two at a time. Matrices that are stored as f32 stay with
    /// [`Self::F32`].
    Bf16,
    /// As [`Self::Bf16`], but 32 inputs at a time, as tiles of AMX add them up.
    Amx,
    /// Inputs rounded to eight bits with a scale per 32, four at a time. Only matrices of codes are
    /// computed so, others stay with [`Self::F32`].
    Int8,
}

impl ComputeType {
    /// Its name in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Amx => "amx",
            Self::Int8 => "int8",
        }
    }
}
