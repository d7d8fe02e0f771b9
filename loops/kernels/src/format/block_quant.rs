//! Weights in eight or four bits: groups of thirty-two inputs share a scale.
//!
//! A weight is `code * scale`, rounded once to f32. Products of f32, and gradients under every arithmetic,
//! multiply by exactly that number; products of bf16 and of bytes sum up a group's codes, which they hold exactly,
//! and scale the sum. So an adapter is trained on what is served. The two forms are those
//! of GGUF's Q8_0 and Q4_0 (same groups, same f16 scales), in the panel order of [`PackedMatrix`].
//!
//! [`PackedMatrix`]: crate::matrix::PackedMatrix
#![allow(unsafe_code)]

use std::marker::PhantomData;

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use crate::cpu::{HalfLine, LANES, V16, copies_of, fetch_line};
use crate::format::gguf_blocks::{BlockKind, Blocks};
use crate::gemm::{CODE_ROWS, CodeFactors, Single, Source};

/// Inputs that share a scale.
pub const GROUP: usize = 32;

/// How the matrices of a loaded model are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WeightFormat {
    /// As they are stored: bf16, f32, or quantised; K-quants of GGUF files are rounded to
    /// eight bits.
    #[default]
    Stored,
    /// Thirty-two bits; exact for whatever is stored.
    F32,
    /// Sixteen bits; rounds what is stored as f32.
    Bf16,
    /// Eight bits and a scale per 32 weights: 8.5 bits.
    Q8,
    /// Four bits and a scale per 32 weights: 4.5 bits.
    Q4,
}

impl WeightFormat {
    /// Its name in settings and fingerprints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }
}

/// Bits of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    Eight,
    Four,
}

impl Bits {
    /// Inputs that one line of codes holds.
    fn inputs_per_line(self) -> usize {
        match self {
            Self::Eight => 1,
            Self::Four => 2,
        }
    }
}

/// Sixteen bytes of codes, one output each.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, PartialEq)]
struct CodeLine([u8; LANES]);

/// A matrix `[out, in]` as panels of codes `[ceil(out / 16)][in or ceil(in / 2)][16]` and scales
/// `[ceil(out / 16)][ceil(in / 32)][16]` (f16). Four-bit lines hold an even input in their low
/// halves and the odd one after it in their high halves.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantised {
    pub bits: Bits,
    inp: usize,
    codes: Vec<CodeLine>,
    scales: Vec<HalfLine>,
}

impl Quantised {
    /// Rounds rows of f32 (`row(r, buffer [in])` fills one) to codes.
    pub fn new(bits: Bits, out: usize, inp: usize, row: &mut dyn FnMut(usize, &mut [f32])) -> Self {
        let mut all = Self::blank(bits, out, inp);
        let mut values = vec![0.0; inp];
        for r in 0..out {
            row(r, &mut values);
            all.set_row(r, &values);
        }
        all
    }

    /// Stacks rows of blocks `[out_i, inp]`: codes and scales bit for bit where this form has them,
    /// else rounded.
    pub fn from_blocks(bits: Bits, out: usize, inp: usize, parts: &[&Blocks]) -> Self {
        let mut all = Self::blank(bits, out, inp);
        let mut values = vec![0.0; inp];
        let mut row = 0;
        for part in parts {
            for r in 0..part.len() / inp {
                if !all.copy_row(row, part.kind(), part.row(r, inp)) {
                    part.dequantise_row(r, &mut values);
                    all.set_row(row, &values);
                }
                row += 1;
            }
        }
        all
    }

    /// All weights 0.
    fn blank(bits: Bits, out: usize, inp: usize) -> Self {
        let panels = out.div_ceil(LANES);
        // A code of 0 is the weight 0 in eight bits, and 8 is in four.
        let zero = match bits {
            Bits::Eight => 0,
            Bits::Four => 0x88,
        };
        Self {
            bits,
            inp,
            codes: copies_of(
                CodeLine([zero; LANES]),
                panels * inp.div_ceil(bits.inputs_per_line()),
            ),
            scales: vec![HalfLine([0; LANES]); panels * inp.div_ceil(GROUP)],
        }
    }

    fn set_row(&mut self, row: usize, values: &[f32]) {
        for (group, values) in values.chunks(GROUP).enumerate() {
            self.set_group(row, group, values);
        }
    }

    /// Takes over one row of GGUF blocks bit for bit, and says whether their codes fit this form.
    fn copy_row(&mut self, row: usize, kind: BlockKind, bytes: &[u8]) -> bool {
        let first = row / LANES * self.groups();
        let fits = self.bits == Bits::Eight || kind == BlockKind::Q4_0;
        for (group, block) in bytes.chunks_exact(kind.bytes()).enumerate() {
            let Some((scale, codes)) = kind.codes(block).filter(|_| fits) else {
                return false;
            };
            self.scales[first + group].0[row % LANES] = scale;
            for (k, code) in codes.into_iter().enumerate() {
                let code = match self.bits {
                    Bits::Eight => code,
                    Bits::Four => code + 8,
                };
                self.set_code(row, group * GROUP + k, code as u8);
            }
        }
        true
    }

    fn lines(&self) -> usize {
        self.inp.div_ceil(self.bits.inputs_per_line())
    }

    fn groups(&self) -> usize {
        self.inp.div_ceil(GROUP)
    }

    /// Rounds one group of one output: the largest magnitude becomes ±127, or -8.
    fn set_group(&mut self, row: usize, group: usize, values: &[f32]) {
        let widest = values
            .iter()
            .fold(0.0f32, |m, &v| if v.abs() > m.abs() { v } else { m });
        let scale = match self.bits {
            Bits::Eight => f16::from_f32(widest.abs() / 127.0),
            Bits::Four => f16::from_f32(widest / -8.0),
        };
        let at = row / LANES * self.groups() + group;
        self.scales[at].0[row % LANES] = scale.to_bits();
        let scale = scale.to_f32();
        let inverse = if scale == 0.0 { 0.0 } else { scale.recip() };
        for (k, &value) in values.iter().enumerate() {
            let code = (value * inverse).round_ties_even();
            self.set(row, group * GROUP + k, code);
        }
    }

    fn set(&mut self, row: usize, k: usize, code: f32) {
        let code = match self.bits {
            Bits::Eight => (code.clamp(-127.0, 127.0) as i8) as u8,
            Bits::Four => (code.clamp(-8.0, 7.0) as i8 + 8) as u8,
        };
        self.set_code(row, k, code);
    }

    fn set_code(&mut self, row: usize, k: usize, code: u8) {
        let lines = self.lines();
        let line = &mut self.codes[row / LANES * lines + k / self.bits.inputs_per_line()];
        let byte = &mut line.0[row % LANES];
        match self.bits {
            Bits::Eight => *byte = code,
            Bits::Four => {
                let shift = k % 2 * 4;
                *byte = (*byte & !(15 << shift)) | code << shift;
            }
        }
    }

    /// The code of a weight: a signed byte, or four bits less 8.
    pub fn code(&self, row: usize, k: usize) -> u8 {
        let line = row / LANES * self.lines() + k / self.bits.inputs_per_line();
        let byte = self.codes[line].0[row % LANES];
        match self.bits {
            Bits::Eight => byte,
            Bits::Four => byte >> (k % 2 * 4) & 15,
        }
    }

    /// The f16 scale of a group of weights, as bits.
    pub fn scale_bits(&self, row: usize, group: usize) -> u16 {
        self.scales[row / LANES * self.groups() + group].0[row % LANES]
    }

    /// The weight that kernels multiply by.
    pub fn value(&self, row: usize, k: usize) -> f32 {
        let code = self.code(row, k);
        let code = match self.bits {
            Bits::Eight => f32::from(code as i8),
            Bits::Four => f32::from(code) - 8.0,
        };
        code * f16::from_bits(self.scale_bits(row, k / GROUP)).to_f32()
    }

    /// The weights of sixteen outputs for input `k`.
    pub fn line(&self, panel: usize, k: usize) -> [f32; LANES] {
        let mut scales = [0.0; LANES];
        let stored = &self.scales[panel * self.groups() + k / GROUP].0;
        stored
            .reinterpret_cast::<f16>()
            .convert_to_f32_slice(&mut scales);
        let codes = &self.codes[panel * self.lines() + k / self.bits.inputs_per_line()].0;
        let shift = k % 2 * 4;
        match self.bits {
            Bits::Eight => std::array::from_fn(|l| f32::from(codes[l] as i8) * scales[l]),
            Bits::Four => {
                std::array::from_fn(|l| (f32::from(codes[l] >> shift & 15) - 8.0) * scales[l])
            }
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(self.codes.as_slice()) + size_of_val(self.scales.as_slice())
    }

    pub fn eight(&self) -> Codes<8> {
        self.source()
    }

    pub fn four(&self) -> Codes<4> {
        self.source()
    }

    fn source<const BITS: usize>(&self) -> Codes<BITS> {
        Codes {
            codes: self.codes.as_ptr().cast(),
            scales: self.scales.as_ptr().cast(),
            codes_per_panel: self.lines() * LANES,
            scales_per_panel: self.groups() * LANES,
        }
    }
}

/// How far ahead of a step its codes are asked for, where several rows share a step. One row is only slowed
/// down by asking.
const CODES_AHEAD: usize = 4096;

/// The panels of a quantised matrix, as kernels read them.
#[derive(Clone, Copy)]
pub struct Codes<const BITS: usize> {
    codes: *const u8,
    scales: *const u16,
    codes_per_panel: usize,
    scales_per_panel: usize,
}

/// Where the codes and the scales of a panel begin.
#[derive(Clone, Copy)]
pub struct CodePanel {
    codes: *const u8,
    scales: *const u16,
}

impl<const BITS: usize> Source for Codes<BITS> {
    type Factors = Single;
    const GROUP: usize = GROUP;
    type Panel = CodePanel;
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> CodePanel {
        // SAFETY: the caller vouches for `n`.
        unsafe {
            CodePanel {
                codes: self.codes.add(n * self.codes_per_panel),
                scales: self.scales.add(n * self.scales_per_panel),
            }
        }
    }
    #[inline(always)]
    unsafe fn scale<V: V16>(&self, panel: CodePanel, group: usize) -> V {
        // SAFETY: the caller vouches for the group.
        unsafe { V::load_f16(panel.scales.add(group * LANES)) }
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, panel: CodePanel, i: usize, scale: V) -> V {
        // SAFETY: the caller vouches for `i`.
        unsafe {
            let codes = if BITS == 8 {
                V::load_i8(panel.codes.add(i * LANES))
            } else {
                V::load_u4(panel.codes.add(i / 2 * LANES), i % 2 * 4)
            };
            codes.mul(scale)
        }
    }
}

/// As [`Codes`], several inputs a step: a group's codes are summed up, and the sum is scaled once.
#[derive(Clone, Copy)]
pub struct CodeSums<F, const BITS: usize> {
    codes: Codes<BITS>,
    factors: PhantomData<F>,
}

impl<F: CodeFactors, const BITS: usize> CodeSums<F, BITS> {
    /// Bytes of a step.
    const STEP: usize = F::INPUTS * LANES * BITS / 8;

    pub fn of(codes: Codes<BITS>) -> Self {
        let factors = PhantomData;
        Self { codes, factors }
    }
}

impl<F: CodeFactors, const BITS: usize> Source for CodeSums<F, BITS> {
    type Factors = F;
    const GROUP: usize = GROUP / F::INPUTS;
    const SCALED_SUMS: bool = true;
    const ROWS_MAX: usize = CODE_ROWS;
    type Panel = CodePanel;
    #[inline(always)]
    fn fetch(&self, panel: CodePanel, i: usize) {
        fetch_line::<1>(panel.codes.wrapping_add(i * Self::STEP + CODES_AHEAD));
    }
    #[inline(always)]
    fn fetch_later(&self, panel: CodePanel, i: usize) {
        fetch_line::<2>(panel.codes.wrapping_add(i * Self::STEP));
    }
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> CodePanel {
        // SAFETY: same contract.
        unsafe { self.codes.panel(n) }
    }
    #[inline(always)]
    unsafe fn scale<V: V16>(&self, panel: CodePanel, group: usize) -> V {
        // SAFETY: same contract.
        unsafe { self.codes.scale(panel, group) }
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, panel: CodePanel, i: usize, _scale: V) -> F::Factor<V> {
        // SAFETY: the caller vouches for `i`; a byte has one code of eight bits, or two of four.
        unsafe {
            let codes = panel.codes.add(i * Self::STEP);
            if BITS == 8 {
                F::of_i8(codes)
            } else {
                F::of_u4(codes)
            }
        }
    }
}

#[cfg(test)]
#[path = "block_quant_tests.rs"]
mod tests;
