//! Blocks of quantised weights as GGUF stores them, and the values they stand for.

use half::f16;

/// How weights are quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4K,
    Q5K,
    Q6K,
}

impl BlockKind {
    /// Weights in a block.
    pub fn values(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            Self::Q8_0 => 2 + 32,
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q4K => 2 + 2 + 12 + 128,
            Self::Q5K => 2 + 2 + 12 + 32 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
        }
    }

    /// Where the f16 scales of a block are.
    fn scales(self) -> &'static [usize] {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q5_0 => &[0],
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => &[0, 2],
            Self::Q6K => &[208],
        }
    }
}

/// Whole rows of quantised weights, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Blocks {
    kind: BlockKind,
    bytes: Vec<u8>,
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

impl Blocks {
    /// Whole blocks with finite scales; the index of the first weight of one that has not.
    pub fn new(kind: BlockKind, bytes: Vec<u8>) -> Result<Self, usize> {
        let sound = |block: &[u8]| {
            kind.scales()
                .iter()
                .all(|at| half(&block[*at..]).is_finite())
        };
        let bad = bytes.chunks_exact(kind.bytes()).position(|b| !sound(b));
        bad.map_or(Ok(Self { kind, bytes }), |at| Err(at * kind.values()))
    }

    pub fn kind(&self) -> BlockKind {
        self.kind
    }

    /// Number of weights.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.kind.bytes() * self.kind.values()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of the blocks of row `row`, in rows of `inp` weights.
    pub fn row(&self, row: usize, inp: usize) -> &[u8] {
        let bytes = inp / self.kind.values() * self.kind.bytes();
        &self.bytes[row * bytes..(row + 1) * bytes]
    }

    /// The weights of row `row`, into `to [inp]`.
    pub fn dequantise_row(&self, row: usize, to: &mut [f32]) {
        let blocks = self.row(row, to.len()).chunks_exact(self.kind.bytes());
        for (block, to) in blocks.zip(to.chunks_exact_mut(self.kind.values())) {
            self.kind.dequantise(block, to);
        }
    }

    /// All weights.
    pub fn dequantise(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        if !values.is_empty() {
            self.dequantise_row(0, &mut values);
        }
        values
    }
}

impl BlockKind {
    /// Whole numbers whose products with one scale (the bits of an f16) are the weights of `block`;
    /// none where its kind has more than that.
    pub fn codes(self, block: &[u8]) -> Option<(u16, [i8; 32])> {
        let below = |middle: i8, bits| std::array::from_fn(|k| code(bits, k) as i8 - middle);
        let codes = match self {
            Self::Q8_0 => std::array::from_fn(|k| block[2 + k] as i8),
            Self::Q4_0 => below(8, (&[], &block[2..])),
            Self::Q5_0 => below(16, block[2..].split_at(4)),
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K | Self::Q6K => return None,
        };
        Some((u16::from_le_bytes([block[0], block[1]]), codes))
    }

    /// The weights of one block, as ggml's `dequantize_row_*` computes them.
    fn dequantise(self, block: &[u8], to: &mut [f32]) {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q5_0 => {
                let scale = half(block);
                let (_, codes) = self.codes(block).unwrap_or_default();
                for (to, code) in to.iter_mut().zip(codes) {
                    *to = f32::from(code) * scale;
                }
            }
            Self::Q4_1 => with_least(block, (&[], &block[4..]), to),
            Self::Q5_1 => with_least(block, block[4..].split_at(4), to),
            Self::Q4K => {
                let (factors, low) = block[4..].split_at(12);
                two_levels(block, factors, (&[], low), to);
            }
            Self::Q5K => {
                let (factors, codes) = block[4..].split_at(12);
                two_levels(block, factors, codes.split_at(32), to);
            }
            Self::Q6K => q6_k(block, to),
        }
    }
}

/// Code `k` of thirty-two: four bits and, where there are `high` bits, a fifth.
fn code((high, low): (&[u8], &[u8]), k: usize) -> u8 {
    let fifth = high.get(k / 8).map_or(0, |bits| bits >> (k % 8) & 1);
    low[k % 16] >> (k / 16 * 4) & 15 | fifth << 4
}

/// Thirty-two codes times a scale, and a least value.
fn with_least(block: &[u8], bits: (&[u8], &[u8]), to: &mut [f32]) {
    let (scale, least) = (half(block), half(&block[2..]));
    for (k, to) in to.iter_mut().enumerate() {
        *to = f32::from(code(bits, k)) * scale + least;
    }
}

/// Eight groups of thirty-two, each with a scale and a minimum of six bits; codes of four bits and,
/// where there are `high` bits, five.
fn two_levels(block: &[u8], factors: &[u8], (high, low): (&[u8], &[u8]), to: &mut [f32]) {
    let (scale, least) = (half(block), half(&block[2..]));
    let six_bits = |group: usize| match group {
        0..4 => (factors[group] & 63, factors[group + 4] & 63),
        _ => (
            factors[group + 4] & 15 | factors[group - 4] >> 6 << 4,
            factors[group + 4] >> 4 | factors[group] >> 6 << 4,
        ),
    };
    for (group, to) in to.chunks_exact_mut(32).enumerate() {
        let (factor, minimum) = six_bits(group);
        let (scale, least) = (scale * f32::from(factor), least * f32::from(minimum));
        let low = &low[group / 2 * 32..];
        for (k, to) in to.iter_mut().enumerate() {
            let fifth = high.get(k).map_or(0, |bits| bits >> group & 1);
            let code = low[k] >> (group % 2 * 4) & 15 | fifth << 4;
            *to = scale * f32::from(code) - least;
        }
    }
}

/// Sixteen groups of sixteen, each with a scale of eight bits.
fn q6_k(block: &[u8], to: &mut [f32]) {
    let scale = half(&block[208..]);
    for (half, to) in to.chunks_exact_mut(128).enumerate() {
        let low = &block[half * 64..][..64];
        let high = &block[128 + half * 32..][..32];
        let factors = &block[192 + half * 8..][..8];
        for (at, to) in to.iter_mut().enumerate() {
            let (quarter, l) = (at / 32, at % 32);
            let four = low[quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
            let two = high[l] >> (quarter * 2) & 3;
            let code = f32::from(four | two << 4) - 32.0;
            *to = scale * f32::from(factors[quarter * 2 + l / 16] as i8) * code;
        }
    }
}
