//! Quantised matrices are f32 matrices in fewer bits: every kernel gives the same bits as on the
//! dequantised values, at every instruction level.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::cpu::SimdLevel;
use crate::format::tensor_data::TensorData;
use crate::matrix::{PackedMatrix, Store};
use crate::support::{Levels, draw, product};
use crate::thread_pool::Executor;

const FORMATS: [WeightFormat; 2] = [WeightFormat::Q8, WeightFormat::Q4];

/// Whole groups and panels, and remainders of each; inputs beyond one stage.
const SHAPES: [(usize, usize); 4] = [(64, 64), (70, 300), (16, 32), (33, 45)];

#[test]
fn quantised_products_are_those_of_the_dequantised_matrix() {
    let exec = Executor::new(2);
    let levels = Levels::ours();
    for (format, (out, inp)) in FORMATS.into_iter().flat_map(|f| SHAPES.map(|s| (f, s))) {
        let full = PackedMatrix::from_parts(inp, vec![TensorData::F32(draw(1, out * inp))]);
        let small = full.into_format(format);
        let wide = small.widened();
        assert_eq!(small.to_rows(0..out), wide.to_rows(0..out));
        let (x, bias) = (draw(2, 101 * inp), draw(3, out));
        for rows in [1, 2, 3, 7, 48, 49, 101] {
            for store in [
                Store::Set(Some(&bias)),
                Store::Continue,
                Store::AddScaled(0.5),
            ] {
                assert!(levels.force(SimdLevel::Portable));
                let expected = product(&wide, &x, rows, store, &exec);
                for level in levels.each() {
                    let found = product(&small, &x, rows, store, &exec);
                    assert_eq!(found, expected, "{format:?} {out}x{inp} {rows} {level:?}");
                }
            }
        }
        let mut transposed = [PackedMatrix::zeros(0, 0), PackedMatrix::zeros(0, 0)];
        small.transpose(0..out.div_ceil(LANES), &mut transposed[0], &exec);
        wide.transpose(0..out.div_ceil(LANES), &mut transposed[1], &exec);
        assert_eq!(
            transposed[0], transposed[1],
            "the backward pass sees them too"
        );
    }
}

#[test]
fn staged_bf16_products_are_those_of_f32() {
    let exec = Executor::new(2);
    let (out, inp, rows) = (70, 300, 60);
    let half = PackedMatrix::from_parts(inp, vec![TensorData::F32(draw(1, out * inp))]).rounded();
    let x = draw(2, rows * inp);
    let expected = product(&half.widened(), &x, rows, Store::Set(None), &exec);
    assert_eq!(product(&half, &x, rows, Store::Set(None), &exec), expected);
}

/// Rounding moves a weight by at most half a step; a step is the group's widest weight / 127, or
/// / 8 (and the widest weight of the other sign may be cut by one step). The scale itself is
/// rounded to f16.
#[test]
fn rounding_errors_stay_within_a_step() {
    let (out, inp) = (20, 96);
    let values = draw(4, out * inp);
    let full = PackedMatrix::from_parts(inp, vec![TensorData::F32(values.clone())]);
    for (format, step) in [
        (WeightFormat::Q8, 0.51 / 127.0),
        (WeightFormat::Q4, 1.01 / 8.0),
    ] {
        let small = full.clone().into_format(format).to_rows(0..out);
        for (group, (a, b)) in values.chunks(GROUP).zip(small.chunks(GROUP)).enumerate() {
            let widest = a.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            for (a, b) in a.iter().zip(b) {
                let off = (a - b).abs();
                assert!(
                    off <= widest * step + widest * 1e-3,
                    "{format:?} {group}: {a} {b}"
                );
            }
        }
    }
}

#[test]
fn zeros_and_tiny_groups_stay_finite() {
    for format in FORMATS {
        for value in [0.0, 1e-12, -3e-6, 60000.0] {
            let full = PackedMatrix::from_parts(32, vec![TensorData::F32(vec![value; 32])]);
            let small = full.into_format(format).to_rows(0..1);
            assert!(small.iter().all(|v| v.is_finite()), "{format:?} {value}");
            if value == 0.0 {
                assert!(small.iter().all(|v| *v == 0.0));
            }
        }
    }
}
