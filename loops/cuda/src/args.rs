//! The arguments of kernels, laid out as the structs of the same names in `src/cuda`.

/// A pointer on the device; 0 is none.
pub(super) type At = u64;

/// How a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Format {
    F32 = 0,
    Bf16 = 1,
    Q8 = 2,
    Q4 = 3,
}

impl Format {
    /// Bits of a weight; bytes of eight.
    pub(super) fn bits(self) -> u64 {
        match self {
            Self::F32 => 32,
            Self::Bf16 => 16,
            Self::Q8 => 8,
            Self::Q4 => 4,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Matrix {
    pub(super) data: At,
    pub(super) scales: At,
    pub(super) out: u32,
    pub(super) inp: u32,
    pub(super) format: Format,
    pub(super) unused: u32,
}

/// What becomes of a finished sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Leave {
    Set = 0,
    AddScaled = 1,
    SetScaled = 2,
    /// The sum starts from what is there; for gradients of inputs only.
    Continue = 3,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Linear {
    pub(super) w: Matrix,
    pub(super) bias: At,
    pub(super) x: At,
    pub(super) y: At,
    pub(super) rows: u32,
    pub(super) x_stride: u32,
    pub(super) y_stride: u32,
    pub(super) leave: Leave,
    pub(super) scale: f32,
    pub(super) room: u32,
    pub(super) beside: Linears,
    pub(super) next: At,
    pub(super) next_bytes: u64,
}

impl Linear {
    /// `y = x W^T` of so many rows, each of which begins its distance after the one before.
    pub(super) fn plain(w: Matrix, x: (At, usize), y: (At, usize), rows: usize) -> Self {
        Self {
            w,
            bias: 0,
            x: x.0,
            y: y.0,
            rows: rows as u32,
            x_stride: x.1 as u32,
            y_stride: y.1 as u32,
            leave: Leave::Set,
            scale: 0.0,
            room: 0,
            beside: Linears::default(),
            next: 0,
            next_bytes: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Linears {
    pub(super) each: At,
    pub(super) count: u32,
    pub(super) blocks: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Embed {
    pub(super) w: Matrix,
    pub(super) tokens: At,
    pub(super) x: At,
    pub(super) stride: u32,
    pub(super) unused: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Norm {
    pub(super) x: At,
    pub(super) add: At,
    pub(super) sum: At,
    pub(super) weight: At,
    pub(super) y: At,
    pub(super) pick: At,
    pub(super) n: u32,
    pub(super) stride: u32,
    pub(super) eps: f32,
    pub(super) unused: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Place {
    pub(super) qkv: At,
    pub(super) q_norm: At,
    pub(super) k_norm: At,
    pub(super) angles: At,
    pub(super) positions: At,
    pub(super) blocks: At,
    pub(super) q: At,
    pub(super) keys: At,
    pub(super) values: At,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) dim: u32,
    pub(super) qkv_stride: u32,
    pub(super) q_stride: u32,
    pub(super) eps: f32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Attend {
    pub(super) q: At,
    pub(super) out: At,
    pub(super) keys: At,
    pub(super) values: At,
    pub(super) tables: At,
    pub(super) tiles: At,
    pub(super) scores: At,
    pub(super) stride: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) dim: u32,
    pub(super) window: u32,
    pub(super) width: u32,
    pub(super) scale: f32,
    pub(super) unused: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Gate {
    pub(super) gate_up: At,
    pub(super) act: At,
    pub(super) ffn: u32,
    pub(super) gate_up_stride: u32,
    pub(super) act_stride: u32,
    pub(super) unused: u32,
}

/// Where the pairs of a pass are listed by expert.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Listed {
    pub(super) tiles: At,
    pub(super) tokens: At,
    pub(super) pairs: At,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Route {
    pub(super) scores: At,
    pub(super) recorded: At,
    pub(super) ids: At,
    pub(super) weights: At,
    pub(super) record: At,
    pub(super) places: At,
    pub(super) listed: Listed,
    pub(super) stride: u32,
    pub(super) count: u32,
    pub(super) chosen: u32,
    pub(super) normalised: u32,
    pub(super) told: u32,
    pub(super) unused: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Group {
    pub(super) ids: At,
    pub(super) listed: Listed,
    pub(super) pairs: u32,
    pub(super) chosen: u32,
    pub(super) experts: u32,
    pub(super) shift: u32,
    pub(super) tiles: u32,
    pub(super) unused: u32,
}

/// Matrices of one form, one after the other: the first, and bytes from one to the next.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Stack {
    pub(super) w: Matrix,
    pub(super) step: u64,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct ExpertLinear {
    pub(super) stack: Stack,
    pub(super) x: At,
    pub(super) y: At,
    pub(super) from: At,
    pub(super) to: At,
    pub(super) tiles: At,
    pub(super) x_stride: u32,
    pub(super) y_stride: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Mix {
    pub(super) said: At,
    pub(super) weights: At,
    pub(super) y: At,
    pub(super) n: u32,
    pub(super) stride: u32,
    pub(super) chosen: u32,
    pub(super) unused: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Add {
    pub(super) a: At,
    pub(super) b: At,
    pub(super) y: At,
    pub(super) n: u32,
    pub(super) unused: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Back {
    pub(super) w: Matrix,
    pub(super) dy: At,
    pub(super) dx: At,
    pub(super) rows: u32,
    pub(super) dy_stride: u32,
    pub(super) dx_stride: u32,
    pub(super) leave: Leave,
    pub(super) scale: f32,
    pub(super) unused: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Outer {
    pub(super) dy: At,
    pub(super) x: At,
    pub(super) dw: At,
    pub(super) rows: u32,
    pub(super) out: u32,
    pub(super) inp: u32,
    pub(super) dy_stride: u32,
    pub(super) x_stride: u32,
    pub(super) fresh: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct NormBack {
    pub(super) x: At,
    pub(super) dy: At,
    pub(super) weight: At,
    pub(super) dx: At,
    pub(super) pick: At,
    pub(super) n: u32,
    pub(super) stride: u32,
    pub(super) eps: f32,
    pub(super) unused: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Unplace {
    pub(super) qkv: At,
    pub(super) q_norm: At,
    pub(super) k_norm: At,
    pub(super) angles: At,
    pub(super) positions: At,
    pub(super) dqkv: At,
    pub(super) heads: u32,
    pub(super) dim: u32,
    pub(super) stride: u32,
    pub(super) eps: f32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct GateBack {
    pub(super) gate_up: At,
    pub(super) dact: At,
    pub(super) ffn: u32,
    pub(super) gate_up_stride: u32,
    pub(super) act_stride: u32,
    pub(super) unused: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct AttendBack {
    pub(super) q: At,
    pub(super) dout: At,
    pub(super) keys: At,
    pub(super) values: At,
    pub(super) p: At,
    pub(super) ds: At,
    pub(super) dqkv: At,
    pub(super) row: u32,
    pub(super) first: u32,
    pub(super) tokens: u32,
    pub(super) base: u32,
    pub(super) block: u32,
    pub(super) width: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) dim: u32,
    pub(super) window: u32,
    pub(super) stride: u32,
    pub(super) dqkv_stride: u32,
    pub(super) scale: f32,
    pub(super) unused: u32,
}

/// A row of logits that is learned from; fourteen numbers of four bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct LossRow {
    pub(super) inverse: f32,
    pub(super) kept: u32,
    pub(super) count: u32,
    pub(super) twice: u32,
    pub(super) asked: u32,
    pub(super) asks: u32,
    pub(super) most: f32,
    pub(super) share: f32,
    pub(super) log_sum: f32,
    pub(super) slope: f32,
    pub(super) bonus: f32,
    pub(super) slopes: u32,
    pub(super) pulls: u32,
    pub(super) unused: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct LossRows {
    pub(super) logits: At,
    pub(super) rows: At,
    pub(super) ids: At,
    pub(super) said: At,
    pub(super) picked: At,
    pub(super) places: At,
    pub(super) amounts: At,
    pub(super) stride: u32,
    pub(super) vocab: u32,
}

/// A draw from one row.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Draw {
    pub(super) u: f64,
    pub(super) row: u32,
    pub(super) greedy: u32,
    pub(super) temperature: f32,
    pub(super) inverse: f32,
    pub(super) top_p: f32,
    pub(super) top_k: u32,
    pub(super) floor: f32,
    pub(super) unused: u32,
}

/// What came of it; seven numbers of four bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Drawn {
    pub(super) token: u32,
    pub(super) refused: u32,
    pub(super) logit: f32,
    pub(super) most: f32,
    pub(super) sum: f32,
    pub(super) sum_inverse: f32,
    pub(super) kept: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Draws {
    pub(super) logits: At,
    pub(super) draws: At,
    pub(super) drawn: At,
    pub(super) kept: At,
    pub(super) stride: u32,
    pub(super) vocab: u32,
}

/// Rows of attention that are computed together; [`TILE_WORDS`] numbers in the batch's description.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile {
    pub(super) row: u32,
    pub(super) tokens: u32,
    pub(super) first: u32,
    pub(super) table: u32,
    pub(super) fresh: u32,
}
/// Numbers of a tile.
pub(super) const TILE_WORDS: usize = 5;
