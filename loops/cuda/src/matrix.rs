//! Matrices in the layout of the kernels, packed into one piece of a device's memory.

use std::sync::Arc;

use super::args::{At, Format, Matrix, Stack};
use super::driver::{Buffer, Driver};
use hone_kernels::cpu::LANES;
use hone_kernels::format::block_quant::{Bits, GROUP};
use hone_kernels::matrix::{PackedMatrix, Stored};
use hone_nn::DeviceError;

/// Outputs that lie side by side.
const OUT: usize = 32;
/// Inputs of one output that lie side by side.
const IN: usize = 8;

/// Every part begins where a whole line of the device's memory does.
const ALIGN: usize = 256;

/// Matrices and vectors that get one piece of memory together, so that an adapter costs one
/// allocation.
#[derive(Default)]
pub(super) struct Packer(Vec<u8>);

/// Where something lies in the piece.
#[derive(Clone, Copy)]
pub(super) struct Packed<T>(T);

impl Packer {
    /// The matrix as `[ceil(out / 32)][ceil(in / 8)][32][8]`, zero padded, and the scales
    /// `[ceil(out / 32)][ceil(in / 32)][32]` of a quantised one.
    pub(super) fn matrix(&mut self, from: &PackedMatrix) -> Packed<Matrix> {
        let (format, data, scales) = match from.stored() {
            Stored::F32(lines) => (Format::F32, floats(from, &lines), None),
            Stored::Bf16(lines) => (Format::Bf16, halves(from, &lines), None),
            Stored::Quantised(codes) => {
                let format = match codes.bits {
                    Bits::Eight => Format::Q8,
                    Bits::Four => Format::Q4,
                };
                let scales = scales(from, &|row, group| codes.scale_bits(row, group));
                let code = |row, k| codes.code(row, k);
                let data = match format {
                    Format::Q8 => bytes(from, &code),
                    _ => nibbles(from, &code),
                };
                (format, data, Some(scales))
            }
        };
        Packed(Matrix {
            data: self.add(&data),
            scales: scales.map_or(0, |scales| self.add(&scales)),
            out: from.out as u32,
            inp: from.inp as u32,
            format,
            unused: 0,
        })
    }

    pub(super) fn vector(&mut self, from: &[f32]) -> Packed<At> {
        let bytes: Vec<u8> = from.iter().flat_map(|v| v.to_ne_bytes()).collect();
        Packed(self.add(&bytes))
    }

    fn add(&mut self, bytes: &[u8]) -> u64 {
        // Nothing lies at 0, which stands for none.
        let at = (self.0.len().max(1)).next_multiple_of(ALIGN);
        self.0.resize(at, 0);
        self.0.extend_from_slice(bytes);
        at as u64
    }

    /// Copies all of it to the device.
    pub(super) fn upload(self, driver: &Arc<dyn Driver>) -> Result<Buffer, DeviceError> {
        Buffer::holding(driver, &self.0)
    }
}

/// Copies matrices of one form to the device, each on its own, so that no second copy of all of them
/// is held here.
pub(super) fn stack(
    driver: &Arc<dyn Driver>,
    all: &[PackedMatrix],
) -> Result<(Stack, Buffer), DeviceError> {
    let packed = |from: &PackedMatrix| {
        let mut packer = Packer::default();
        let matrix = packer.matrix(from).0;
        (matrix, packer.0)
    };
    let (form, first) = packed(all.first().expect("a layer has experts"));
    let step = first.len().next_multiple_of(ALIGN);
    let memory = Buffer::zeroed(driver, all.len() * step)?;
    memory.fill_at(0, &first)?;
    drop(first);
    for (index, from) in all.iter().enumerate().skip(1) {
        let (matrix, bytes) = packed(from);
        if matrix != form {
            let why = "experts of a layer are kept in different formats and the CUDA kernels take one; set device = \"cpu\"";
            return Err(DeviceError::Unsupported(why.to_owned()));
        }
        memory.fill_at(index * step, &bytes)?;
    }
    let w = Packed(form).of(&memory);
    let step = step as u64;
    Ok((Stack { w, step }, memory))
}

impl Packed<Matrix> {
    /// The matrix in the uploaded piece.
    pub(super) fn of(self, memory: &Buffer) -> Matrix {
        let moved = |at: u64| if at == 0 { 0 } else { memory.at() + at };
        Matrix {
            data: moved(self.0.data),
            scales: moved(self.0.scales),
            ..self.0
        }
    }
}

impl Packed<At> {
    /// The vector in the uploaded piece.
    pub(super) fn of(self, memory: &Buffer) -> At {
        memory.at() + self.0
    }
}

/// Fills the groups of thirty-two outputs, `unit` bytes each, on all cores.
fn in_parallel(m: &PackedMatrix, unit: usize, fill: &(dyn Fn(usize, &mut [u8]) + Sync)) -> Vec<u8> {
    let groups = m.out.div_ceil(OUT);
    let mut all = vec![0u8; groups * unit];
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // A thread costs more than a small matrix.
    let threads = threads.min(all.len() >> 16).max(1);
    let each = groups.div_ceil(threads).max(1);
    let part = |first: usize, part: &mut [u8]| {
        for (i, group) in part.chunks_exact_mut(unit.max(1)).enumerate() {
            fill(first + i, group);
        }
    };
    if threads == 1 {
        part(0, &mut all);
        return all;
    }
    std::thread::scope(|scope| {
        for (index, bytes) in all.chunks_mut(each * unit).enumerate() {
            scope.spawn(move || part(index * each, bytes));
        }
    });
    all
}

/// Calls `each(lane, k, at)` for the outputs of a group, `at` being the place in the group.
fn places(m: &PackedMatrix, group: usize, mut each: impl FnMut(usize, usize, usize)) {
    let rows = OUT.min(m.out - group * OUT);
    for k in 0..m.inp {
        for lane in 0..rows {
            each(group * OUT + lane, k, (k / IN * OUT + lane) * IN + k % IN);
        }
    }
}

fn groups_in(m: &PackedMatrix) -> usize {
    m.inp.div_ceil(IN)
}

fn floats(m: &PackedMatrix, lines: &[hone_kernels::cpu::Line]) -> Vec<u8> {
    in_parallel(m, groups_in(m) * OUT * IN * 4, &|group, to| {
        places(m, group, |row, k, at| {
            let value = lines[row / LANES * m.inp + k].0[row % LANES];
            to[at * 4..at * 4 + 4].copy_from_slice(&value.to_ne_bytes());
        });
    })
}

fn halves(m: &PackedMatrix, lines: &[hone_kernels::cpu::HalfLine]) -> Vec<u8> {
    in_parallel(m, groups_in(m) * OUT * IN * 2, &|group, to| {
        places(m, group, |row, k, at| {
            let value = lines[row / LANES * m.inp + k].0[row % LANES];
            to[at * 2..at * 2 + 2].copy_from_slice(&value.to_ne_bytes());
        });
    })
}

fn bytes(m: &PackedMatrix, code: &(dyn Fn(usize, usize) -> u8 + Sync)) -> Vec<u8> {
    in_parallel(m, groups_in(m) * OUT * IN, &|group, to| {
        places(m, group, |row, k, at| to[at] = code(row, k));
    })
}

fn nibbles(m: &PackedMatrix, code: &(dyn Fn(usize, usize) -> u8 + Sync)) -> Vec<u8> {
    in_parallel(m, groups_in(m) * OUT * IN / 2, &|group, to| {
        places(m, group, |row, k, at| {
            to[at / 2] |= code(row, k) << (at % 2 * 4);
        });
    })
}

fn scales(m: &PackedMatrix, bits: &(dyn Fn(usize, usize) -> u16 + Sync)) -> Vec<u8> {
    let groups = m.inp.div_ceil(GROUP);
    in_parallel(m, groups * OUT * 2, &|group, to| {
        let rows = OUT.min(m.out - group * OUT);
        for g in 0..groups {
            for lane in 0..rows {
                let value = bits(group * OUT + lane, g);
                let at = (g * OUT + lane) * 2;
                to[at..at + 2].copy_from_slice(&value.to_ne_bytes());
            }
        }
    })
}
