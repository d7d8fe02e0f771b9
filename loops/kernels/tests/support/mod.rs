//! What tests of matrix products share: drawn matrices, the slow form of a product, every instruction
//! level in turn, and an emulator of instructions that the processor lacks.
//!
//! Included by path in the tests of `hone-kernels` and of the crates that compute with it.
#![allow(dead_code, unsafe_code, clippy::unwrap_used)]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx_emulator;

use std::sync::{Mutex, MutexGuard, PoisonError};

use half::bf16;
use hone_kernels::cpu::{SimdLevel, plainly};
use hone_kernels::format::block_quant::{GROUP, WeightFormat};
use hone_kernels::format::tensor_data::TensorData;
use hone_kernels::matrix::{ComputeType, PackedMatrix, Rows, RowsMut, Store};
use hone_kernels::rng::Rng;
use hone_kernels::thread_pool::Executor;

/// The level is one for the whole process: while a test has this, no other test changes it, and what it
/// was is put back afterwards.
pub(crate) struct Levels {
    before: SimdLevel,
    _only: MutexGuard<'static, ()>,
}

impl Levels {
    pub(crate) fn ours() -> Self {
        static ONLY: Mutex<()> = Mutex::new(());
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            before: SimdLevel::current(),
            _only: only,
        }
    }

    /// False where the processor has no such level.
    pub(crate) fn force(&self, level: SimdLevel) -> bool {
        level.force()
    }

    /// Those that the processor has; each is the level when it comes.
    pub(crate) fn each(&self) -> impl Iterator<Item = SimdLevel> {
        SimdLevel::ALL
            .into_iter()
            .filter(|&level| self.force(level))
    }
}

impl Drop for Levels {
    fn drop(&mut self) {
        self.before.force();
    }
}

pub(crate) const BOTH: [ComputeType; 2] = [ComputeType::Bf16, ComputeType::Amx];

pub(crate) fn draw(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.normal() as f32).collect()
}

pub(crate) fn product(
    w: &PackedMatrix,
    x: &[f32],
    rows: usize,
    store: Store,
    exec: &Executor,
) -> Vec<f32> {
    let mut y = draw(9, rows * w.out);
    let from = Rows {
        data: x,
        stride: w.inp,
        rows,
    };
    let to = RowsMut {
        data: &mut y,
        stride: w.out,
    };
    w.linear(from, to, store, exec);
    y
}

pub(crate) fn matrix(
    format: WeightFormat,
    (out, inp): (usize, usize),
    by: ComputeType,
) -> PackedMatrix {
    let full = PackedMatrix::from_parts(inp, vec![TensorData::F32(draw(1, out * inp))]);
    full.into_format(format).with_compute_type(by)
}

/// There are tiles where the level is AVX-512.
pub(crate) fn with_tiles() {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    amx_emulator::install();
}

fn rounded(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// One output as [`hone_kernels::gemm`] defines it.
pub(crate) fn slow(w: &PackedMatrix, out: usize, x: &[f32], start: f32) -> f32 {
    match w.compute_type() {
        ComputeType::Amx => slow_chunks(w, out, x, start),
        _ => slow_pairs(w, out, x, start),
    }
}

/// In chunks of 32, even and odd inputs apart.
fn slow_chunks(w: &PackedMatrix, out: usize, x: &[f32], start: f32) -> f32 {
    let mut weights = vec![0.0; w.inp];
    w.lookup(out, &mut weights);
    let (weights, scales) = match w.codes_and_scales(out) {
        Some((codes, scales)) => (codes, Some(scales)),
        None => (weights, None),
    };
    let chunks = x.chunks(32).zip(weights.chunks(32)).enumerate();
    chunks.fold(start, |sum, (chunk, (x, w))| {
        let of = |first: usize| {
            let inputs = x.iter().zip(w).skip(first).step_by(2);
            inputs.fold(0.0, |sum, (x, w)| rounded(*x).mul_add(*w, sum))
        };
        let both: f32 = of(0) + of(1);
        match &scales {
            Some(scales) => scales[chunk].mul_add(both, sum),
            None => sum + both,
        }
    })
}

/// As [`hone_kernels::cpu::V16::dot`] defines it.
fn slow_pairs(w: &PackedMatrix, out: usize, x: &[f32], start: f32) -> f32 {
    let mut weights = vec![0.0; w.inp];
    w.lookup(out, &mut weights);
    let add = |sum: f32, x: &[f32], w: &[f32]| {
        let second = rounded(x[1]).mul_add(w[1], sum);
        rounded(x[0]).mul_add(w[0], second)
    };
    let pairs = x.chunks_exact(2).zip(weights.chunks_exact(2));
    let Some((codes, scales)) = w.codes_and_scales(out) else {
        return pairs.fold(start, |sum, (x, w)| add(sum, x, w));
    };
    let groups = x.chunks(GROUP).zip(codes.chunks(GROUP)).zip(scales);
    groups.fold(start, |sum, ((x, codes), scale)| {
        let pairs = x.chunks_exact(2).zip(codes.chunks_exact(2));
        scale.mul_add(pairs.fold(0.0, |sum, (x, w)| add(sum, x, w)), sum)
    })
}

/// One output of a matrix for a row of inputs; its sum starts from a value.
pub(crate) type Slow = fn(w: &PackedMatrix, out: usize, x: &[f32], start: f32) -> f32;

/// Whatever the rows, the store, the threads and the level.
pub(crate) fn products_are_those_of(slow: Slow, w: &PackedMatrix) {
    let levels = Levels::ours();
    let execs = [Executor::new(2), Executor::new(1)];
    let (out, inp) = (w.out, w.inp);
    let (x, bias) = (draw(2, 101 * inp), draw(3, out));
    for rows in [1, 2, 3, 7, 11, 13, 17, 23, 24, 33, 101] {
        for store in [
            Store::Set(Some(&bias)),
            Store::Continue,
            Store::AddScaled(0.5),
        ] {
            let start = draw(9, rows * out);
            let expected: Vec<f32> = (0..rows * out)
                .map(|i| {
                    let (x, n) = (&x[i / out * inp..][..inp], i % out);
                    match store {
                        Store::Set(bias) => slow(w, n, x, 0.0) + bias.unwrap()[n],
                        Store::Continue => slow(w, n, x, start[i]),
                        Store::AddScaled(by) => by.mul_add(slow(w, n, x, 0.0), start[i]),
                    }
                })
                .collect();
            let product = |exec: &Executor| {
                let mut found = start.clone();
                let from = Rows {
                    data: &x,
                    stride: inp,
                    rows,
                };
                let to = RowsMut {
                    data: &mut found,
                    stride: out,
                };
                w.linear(from, to, store, exec);
                found
            };
            for level in levels.each() {
                let case = format!(
                    "{} {:?} {out}x{inp} {rows} {level:?}",
                    w.format(),
                    w.compute_type()
                );
                assert_eq!(product(&execs[0]), expected, "{case}");
                assert_eq!(plainly(|| product(&execs[1])), expected, "{case}, plainly");
            }
        }
    }
}
