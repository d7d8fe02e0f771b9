//! Compact weights are the weights they were made of, and their products those of the slow form.

#![allow(clippy::unwrap_used)]

use half::bf16;

use super::*;
use crate::cpu::plainly;
use crate::format::block_quant::WeightFormat;
use crate::format::tensor_data::TensorData;
use crate::matrix::PackedMatrix;
use crate::matrix::compute_type::ComputeType;
use crate::support::{BOTH, draw, products_are_those_of, slow, with_tiles};

/// Whole pairs of panels, an odd one, outputs and blocks left over, and steps beyond half a MiB.
const SHAPES: [(usize, usize); 6] = [(64, 64), (70, 304), (16, 8), (33, 48), (130, 4104), (8, 16)];

/// Panels of such bits, drawn for each weight.
fn of_bits((out, inp): (usize, usize), bits: impl Fn(usize) -> u16) -> PackedMatrix {
    let weights = TensorData::Bf16((0..out * inp).map(bits).collect());
    PackedMatrix::from_parts(inp, vec![weights]).with_compute_type(ComputeType::Bf16)
}

/// Normal weights, among them zeros, and some a long way off.
fn weights(shape: (usize, usize)) -> PackedMatrix {
    let values = draw(1, shape.0 * shape.1);
    of_bits(shape, |i| {
        let value = match i % 251 {
            0 => 0.0,
            1 => -0.0,
            2 => values[i] * 1e-20,
            3 => values[i] * 1e20,
            _ => values[i] * 0.02,
        };
        bf16::from_f32(value).to_bits()
    })
}

fn is_compact(w: &PackedMatrix) -> bool {
    w.bytes() < 2 * w.out.next_multiple_of(32) * w.inp
}

#[test]
fn rows_come_in_pieces_as_each_is_looked_up() {
    for shape @ (out, inp) in SHAPES {
        let plain = weights(shape);
        let formats = [WeightFormat::F32, WeightFormat::Q8, WeightFormat::Q4];
        let others = formats.map(|format| plain.clone().into_format(format));
        let kept = others.into_iter().chain([plain.clone().compacted(), plain]);
        for (at, w) in kept.enumerate() {
            // Whole panels, parts of them, one row, none.
            for rows in [0..out, 1..out, 0..out - 1, out - 1..out, out / 2..out / 2] {
                let mut looked_up = vec![0.0; rows.len() * inp];
                for (row, to) in rows.clone().zip(looked_up.chunks_exact_mut(inp)) {
                    w.lookup(row, to);
                }
                let (mut got, mut longest) = (Vec::new(), 0);
                w.each_rows(rows.clone(), &mut |piece| {
                    longest = longest.max(piece.len());
                    got.extend_from_slice(piece);
                });
                let bits =
                    |values: &[f32]| -> Vec<u32> { values.iter().map(|v| v.to_bits()).collect() };
                assert_eq!(bits(&got), bits(&looked_up), "{shape:?} {at} {rows:?}");
                assert!(longest <= 16 * inp, "no piece is more than a panel");
            }
        }
    }
}

#[test]
fn every_weight_comes_back_in_three_quarters_of_the_memory() {
    for shape @ (out, inp) in SHAPES {
        let plain = weights(shape);
        let compact = plain.clone().compacted();
        assert!(is_compact(&compact), "{shape:?}");
        assert_eq!(compact.format(), "bf16");
        let bits = |w: &PackedMatrix| -> Vec<u32> {
            w.to_rows(0..out).into_iter().map(f32::to_bits).collect()
        };
        assert_eq!(bits(&plain), bits(&compact), "{shape:?}");
        // What it was made of comes back whole, on instructions for it and without.
        let back = || compact.clone().with_compute_type(ComputeType::F32);
        let expected = plain.clone().with_compute_type(ComputeType::F32);
        assert!(back() == expected && plainly(back) == expected, "{shape:?}");
        assert_eq!(compact.widened(), plain.widened());
        let panels = out.div_ceil(32) * 2 * 16 * inp;
        if panels > 1 << 16 {
            let share = compact.bytes() as f64 / (2 * panels) as f64;
            assert!(share < 0.78, "{shape:?}: {share}");
        }
    }
}

#[test]
fn all_bits_there_are_come_back() {
    // Fifteen exponents nearly always; all 65,536 patterns, subnormal, infinite and no numbers too, here and there.
    let shape = (96, 65_536);
    let bits = |i: usize| match i % 96 {
        5 => (i / 96 % 65_536) as u16,
        _ => 0x3c00 + (i * 7 % 0x200) as u16,
    };
    let data: Vec<u16> = (0..shape.0 * shape.1).map(bits).collect();
    let lines: Vec<HalfLine> = data
        .chunks_exact(LANES)
        .map(|line| HalfLine(line.try_into().unwrap()))
        .collect();
    let compact = Compact::of(&lines, shape.1).unwrap();
    assert!(compact.others() > 10_000);
    for threads in [1, 3] {
        let exec = Executor::new(threads);
        let panels = shape.0 / LANES;
        assert!(compact.expanded(0..panels, &exec) == lines);
        assert!(compact.expanded(3..5, &exec) == lines[3 * shape.1..5 * shape.1]);
    }
}

#[test]
fn matrices_of_many_exponents_or_odd_inputs_stay_as_they_are() {
    let wide = of_bits((64, 64), |i| (i * 40_503 % 0x7f00) as u16);
    assert!(!is_compact(&wide.compacted()));
    let odd = of_bits((64, 60), |_| 0x3c00);
    assert!(!is_compact(&odd.compacted()));
    let of_f32 = weights((64, 64)).with_compute_type(ComputeType::F32);
    assert!(!is_compact(&of_f32.compacted()));
}

#[test]
fn products_are_those_of_the_slow_form() {
    with_tiles();
    for (shape, by) in SHAPES.into_iter().flat_map(|s| BOTH.map(|by| (s, by))) {
        // A product of bf16 takes subnormal weights for zero, which the slow form does not.
        let w = weights(shape).compacted().with_compute_type(by);
        assert!(is_compact(&w) && w.compute_type() == by);
        assert!(w == weights(shape).with_compute_type(by).compacted());
        products_are_those_of(slow, &w);
        plainly(|| products_are_those_of(slow, &w));
    }
}

#[test]
fn transposes_are_those_of_the_plain_matrix() {
    for (shape @ (out, _), by) in SHAPES.into_iter().flat_map(|s| BOTH.map(|by| (s, by))) {
        let plain = weights(shape).with_compute_type(by);
        let compact = plain.clone().compacted();
        let panels = out.div_ceil(LANES);
        for some in [0..panels, panels / 2..panels, 0..panels.div_ceil(2)] {
            for threads in [1, 2] {
                let exec = Executor::new(threads);
                let of = |w: &PackedMatrix| {
                    let mut to = PackedMatrix::zeros(0, 0);
                    w.transpose(some.clone(), &mut to, &exec);
                    (to.compute_type(), to.to_rows(0..to.out))
                };
                assert!(of(&plain) == of(&compact), "{shape:?} {some:?}");
            }
        }
    }
}
