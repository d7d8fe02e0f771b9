//! Products of bf16 against the slow form, bit for bit, at every level this processor has, and in
//! tiles, which are emulated where it has none.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::cpu::SimdLevel;
use crate::format::block_quant::WeightFormat;
use crate::format::tensor_data::TensorData;
use crate::matrix::self_test::tiles_add_up;
use crate::matrix::{ComputeType, PackedMatrix, RowsMut, Store};
use crate::support::{BOTH, Levels, draw, matrix, products_are_those_of, slow, with_tiles};

const FORMATS: [WeightFormat; 3] = [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4];

/// Whole groups and panels, and remainders of each; inputs beyond one stage.
const SHAPES: [(usize, usize); 4] = [(64, 64), (70, 300), (16, 32), (33, 46)];

/// Formats that have them, and the arithmetics of bf16.
fn of_bf16() -> impl Iterator<Item = (WeightFormat, ComputeType)> {
    FORMATS.into_iter().flat_map(|f| BOTH.map(|by| (f, by)))
}

#[test]
fn products_are_those_of_the_slow_form_at_every_level() {
    with_tiles();
    for (format, by) in of_bf16() {
        for shape in SHAPES {
            products_are_those_of(slow, &matrix(format, shape, by));
        }
    }
}

/// More rows than are rounded at a time are what each of them is alone.
#[test]
fn any_number_of_rows_is_what_they_are_one_by_one() {
    with_tiles();
    let exec = Executor::new(2);
    let (out, inp, stride) = (20, 34, 40);
    for (format, by) in of_bf16() {
        let w = matrix(format, (out, inp), by);
        let rows = 2 * crate::matrix::activation_scratch::ROWS + 3;
        let x = draw(2, rows * stride);
        let product = |x: &[f32], rows: usize| {
            let mut found = draw(9, rows * out);
            let from = Rows {
                data: x,
                stride,
                rows,
            };
            let to = RowsMut {
                data: &mut found,
                stride: out,
            };
            w.linear(from, to, Store::Set(None), &exec);
            found
        };
        let one_by_one = x.chunks(stride).flat_map(|row| product(row, 1));
        assert_eq!(
            product(&x, rows),
            one_by_one.collect::<Vec<_>>(),
            "{format:?}"
        );
    }
}

/// What bf16 keeps is within one part in 256; a sum of many such inputs is about as near.
#[test]
fn products_are_near_those_of_f32() {
    let exec = Executor::new(1);
    let (out, inp) = (48, 512);
    let x = draw(2, inp);
    for (format, by) in of_bf16() {
        let w = matrix(format, (out, inp), by);
        let products = [w.clone().with_compute_type(ComputeType::F32), w].map(|w| {
            let mut y = vec![0.0; out];
            let from = Rows {
                data: &x,
                stride: inp,
                rows: 1,
            };
            let to = RowsMut {
                data: &mut y,
                stride: out,
            };
            w.linear(from, to, Store::Set(None), &exec);
            y
        });
        let size = products[0].iter().map(|y| y * y).sum::<f32>().sqrt();
        let off = products[0].iter().zip(&products[1]);
        let off = off.map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt();
        assert!(
            off > 0.0 && off < size / 256.0,
            "{format:?}: {off} of {size}"
        );
    }
}

#[test]
fn f32_and_odd_matrices_stay_with_f32() {
    let full = PackedMatrix::from_parts(64, vec![TensorData::F32(draw(1, 64 * 64))]);
    for by in BOTH {
        let full = full.clone().with_compute_type(by);
        assert_eq!(full.compute_type(), ComputeType::F32);
        let odd = matrix(WeightFormat::Q8, (64, 45), by);
        assert_eq!(odd.compute_type(), ComputeType::F32);
    }
}

#[test]
fn a_transpose_has_the_same_weights() {
    let exec = Executor::new(2);
    for ((out, inp), by) in SHAPES.into_iter().flat_map(|s| BOTH.map(|by| (s, by))) {
        let w = matrix(WeightFormat::Bf16, (out, inp), by);
        let mut transposed = [PackedMatrix::zeros(0, 0), PackedMatrix::zeros(0, 0)];
        let panels = out.div_ceil(LANES);
        w.transpose(0..panels, &mut transposed[0], &exec);
        w.widened().transpose(0..panels, &mut transposed[1], &exec);
        let [half, full] = transposed.map(|t| (t.compute_type(), t.to_rows(0..t.out)));
        assert_eq!(half.1, full.1);
        // Pairs are along what was `out`.
        let even = out.is_multiple_of(2);
        let expected = if even { by } else { ComputeType::F32 };
        assert_eq!((half.0, full.0), (expected, ComputeType::F32));
    }
}

#[test]
fn rounding_is_to_nearest_even_at_every_level() {
    let bits = [
        0x3f80_0000u32,
        0x3f80_8000,
        0x3f81_8000,
        0x3f80_8001,
        0x3f80_7fff,
        0x0000_0001,
        0x8000_ffff,
        0x7f7f_ffff,
        0xff80_0000,
        0x0080_0000,
    ];
    let x: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
    let (exec, levels) = (Executor::new(1), Levels::ours());
    for level in levels.each() {
        let rows = Rows {
            data: &x,
            stride: x.len(),
            rows: 1,
        };
        with_pairs(rows, x.len(), &exec, |_, pairs| {
            let halves = pairs.data[..5].iter().flat_map(|pair| {
                let bits = pair.to_bits();
                [bits as u16, (bits >> 16) as u16]
            });
            let expected = [
                0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x3f80, 0, 0x8000, 0x7f80, 0xff80, 0x0080,
            ];
            assert_eq!(halves.collect::<Vec<u16>>(), expected, "{level:?}");
        });
    }
}

/// What adds up otherwise is not taken, however near it is.
#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles_that_are_not_exact_are_refused() {
    with_tiles();
    let _levels = Levels::ours();
    if SimdLevel::current() != SimdLevel::Avx512 {
        assert!(!ComputeType::Amx.supported());
        return;
    }
    assert!(ComputeType::Amx.supported() && tiles_add_up());
    if crate::support::amx_emulator::installed() {
        assert!(!crate::support::amx_emulator::with_a_fault(tiles_add_up));
    }
}
