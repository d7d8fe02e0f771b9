//! One block of exponent-coded weights: what [`super::vec16::V16::pairs_compact`] reads.
#![allow(unsafe_code)]

use super::lines::{HalfLine, LANES};

/// Bytes of a half of a block: two steps.
pub const HALF: usize = 4 * LANES;
/// The code of exponents that are not among the fifteen.
pub const OTHER: u8 = 15;

/// Eight inputs of sixteen outputs. Byte `16 l + 8 s + j` of a half is of its step `s`, of word
/// `8 l + j` of that step: words are outputs with two inputs each.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    /// Significands above signs, of one half after the other.
    pub rests: [u8; 2 * HALF],
    /// Codes of exponents, of the first half in the lower four bits.
    pub codes: [u8; HALF],
}

pub const EMPTY: Block = Block {
    rests: [0; 2 * HALF],
    codes: [0; HALF],
};

/// Fifteen exponents, by code.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exponents(pub [u8; LANES]);

/// Of which step a byte of a half is, and of which word.
pub fn place_of(byte: usize) -> (usize, usize) {
    (byte % 16 / 8, byte / 16 * 8 + byte % 8)
}

pub fn exponent(bits: u16) -> u8 {
    (bits >> 7) as u8
}

/// What is kept of a weight beside its exponent.
pub fn rest(bits: u16) -> u8 {
    (bits << 1) as u8 | (bits >> 15) as u8
}

pub fn joined(exponent: u8, rest: u8) -> u16 {
    (u16::from(exponent) << 8 | u16::from(rest)).rotate_right(1)
}

impl Block {
    pub fn code(&self, half: usize, at: usize) -> u8 {
        self.codes[at] >> (4 * half) & OTHER
    }

    pub fn set(&mut self, half: usize, at: usize, code: u8, rest: u8) {
        self.rests[half * HALF + at] = rest;
        self.codes[at] |= code << (4 * half);
    }

    /// Lines of sixteen weights by step and input of a half, and how many others there are in it: what
    /// [`super::vec16::V16::pairs_compact`] makes pairs of.
    ///
    /// # Safety
    /// `others` holds as many.
    #[inline(never)]
    pub unsafe fn lines(
        &self,
        half: usize,
        exponents: &Exponents,
        others: *const u8,
    ) -> ([[HalfLine; 2]; 2], usize) {
        let (mut taken, mut lines) = (0, [[HalfLine([0; LANES]); 2]; 2]);
        for at in 0..HALF {
            let mut exponent = exponents.0[usize::from(self.code(half, at))];
            if self.code(half, at) == OTHER {
                // SAFETY: the caller vouches for as many.
                exponent = unsafe { *others.add(taken) };
                taken += 1;
            }
            let (step, word) = place_of(at);
            lines[step][word % 2].0[word / 2] = joined(exponent, self.rests[half * HALF + at]);
        }
        (lines, taken)
    }
}
