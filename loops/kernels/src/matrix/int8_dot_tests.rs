//! Products of codes against the slow form, bit for bit, at every level this processor has.

use super::*;
use crate::cpu::{SimdLevel, plainly};
use crate::format::block_quant::WeightFormat;
use crate::format::tensor_data::TensorData;
use crate::matrix::compute_type::ComputeType;
use crate::matrix::{PackedMatrix, Store};
use crate::rng::Rng;
use crate::support;
use crate::support::{Levels, draw, matrix, products_are_those_of};

const FORMATS: [WeightFormat; 2] = [WeightFormat::Q8, WeightFormat::Q4];

/// Whole groups; whole panels and not; inputs for more and fewer sums than one tile has.
const SHAPES: [(usize, usize); 4] = [(64, 64), (70, 320), (16, 32), (33, 96)];

/// A group of inputs as codes, and their scale.
fn slow_codes(x: &[f32]) -> (Vec<i32>, f32) {
    let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let inverse = if most > 1e-30 { 127.0 / most } else { 0.0 };
    let codes = x.iter().map(|x| (x * inverse).round_ties_even() as i32);
    (codes.collect(), most / 127.0)
}

fn slow(w: &PackedMatrix, out: usize, x: &[f32], start: f32) -> f32 {
    let Some((codes, scales)) = w.codes_and_scales(out) else {
        panic!("{} has no codes", w.format());
    };
    let groups = x.chunks(GROUP).zip(codes.chunks(GROUP)).zip(scales);
    groups.fold(start, |sum, ((x, w), scale)| {
        let (x, scale_of_x) = slow_codes(x);
        let products = x.iter().zip(w).map(|(x, w)| x * *w as i32);
        (scale * scale_of_x).mul_add(products.sum::<i32>() as f32, sum)
    })
}

fn product(w: &PackedMatrix, x: &[f32], exec: &Executor) -> Vec<f32> {
    support::product(w, x, x.len() / w.inp, Store::Set(None), exec)
}

#[test]
fn products_are_those_of_the_slow_form_at_every_level() {
    for format in FORMATS {
        for shape in SHAPES {
            products_are_those_of(slow, &matrix(format, shape, ComputeType::Int8));
        }
    }
}

#[test]
fn sums_of_codes_are_sums() {
    let sum = |codes: [i8; GROUP]| {
        let bytes = codes.map(|code| code as u8);
        let (eights, _) = bytes.as_chunks::<8>();
        sum_of_codes(std::array::from_fn(|at| eights[at]))
    };
    for of_all in [-128, -127, -1, 0, 1, 127] {
        assert_eq!(sum([of_all; GROUP]), 32 * i32::from(of_all));
    }
    let mut rng = Rng::new(1);
    for _ in 0..100 {
        let codes = std::array::from_fn(|_| rng.next_u64() as i8);
        let expected: i32 = codes.iter().map(|&code| i32::from(code)).sum();
        assert_eq!(sum(codes), expected, "{codes:?}");
    }
}

/// What instructions of AVX-VNNI compute, which are emulated where the processor has none.
#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn dot_products_of_bytes_at_avx2_are_those_of_the_portable_form() {
    use crate::support::amx_emulator::{BYTE_DOTS_TOTAL, with_byte_dots};
    use std::sync::atomic::Ordering::Relaxed;

    let levels = Levels::ours();
    let exec = Executor::new(1);
    for (format, (out, inp)) in FORMATS.into_iter().flat_map(|f| SHAPES.map(|s| (f, s))) {
        let w = matrix(format, (out, inp), ComputeType::Int8);
        for rows in [1, 3, 13] {
            let x = draw(3, rows * inp);
            assert!(levels.force(SimdLevel::Portable));
            let expected = product(&w, &x, &exec);
            if !levels.force(SimdLevel::Avx2) {
                continue;
            }
            let had = BYTE_DOTS_TOTAL.load(Relaxed);
            let found = with_byte_dots(|| product(&w, &x, &exec));
            assert_eq!(found, expected, "{format:?} {out} {inp} {rows}");
            let executed = BYTE_DOTS_TOTAL.load(Relaxed) - had;
            assert!(executed > 0 || is_x86_feature_detected!("avxvnni"));
        }
    }
}

/// The largest codes of either side in every place, which is the largest sum there is.
#[test]
fn no_sum_is_too_large() {
    let levels = Levels::ours();
    let (out, inp) = (48, 96);
    for (format, weight, input) in [
        (WeightFormat::Q8, 1.0, 1.0),
        (WeightFormat::Q8, -1.0, 1.0),
        (WeightFormat::Q8, 1.0, -1.0),
        (WeightFormat::Q4, 1.0, 1.0),
        (WeightFormat::Q4, 1.0, -1.0),
        (WeightFormat::Q4, -1.0, -1.0),
    ] {
        let full = PackedMatrix::from_parts(inp, vec![TensorData::F32(vec![weight; out * inp])]);
        let w = full
            .into_format(format)
            .with_compute_type(ComputeType::Int8);
        let x = vec![input; 13 * inp];
        let expected = slow(&w, 0, &x[..inp], 0.0);
        assert!(
            (expected - weight * input * inp as f32).abs() < 0.5,
            "{expected}"
        );
        for level in levels.each() {
            let found = || product(&w, &x, &Executor::new(1));
            for found in [found(), plainly(found)] {
                let wrong = found.into_iter().find(|y| *y != expected);
                assert_eq!(wrong, None, "{format:?} {weight} {input} {level:?}");
            }
        }
    }
}

/// Rows lie side by side in tiles of every size, more of them than are rounded at a time; under any split
/// they are what each of them is alone.
#[test]
fn any_number_of_rows_is_what_they_are_one_by_one() {
    let levels = Levels::ours();
    let execs = [1, 2].map(Executor::new);
    let inp = 64;
    let x = draw(2, 1027 * inp);
    for (format, out) in FORMATS
        .into_iter()
        .flat_map(|f| [20, 70].map(|out| (f, out)))
    {
        let w = matrix(format, (out, inp), ComputeType::Int8);
        let one_by_one = x.chunks(inp).flat_map(|row| product(&w, row, &execs[0]));
        let expected: Vec<f32> = one_by_one.collect();
        for level in levels.each() {
            for rows in (1..=26).chain([1027]) {
                for exec in &execs {
                    let found = product(&w, &x[..rows * inp], exec);
                    assert!(
                        found == expected[..rows * out],
                        "{format:?} {out} {rows} {level:?}"
                    );
                }
            }
        }
    }
}

/// Half a step of a scale, which is a 127th of the largest of 32, is 0.6 % of a usual input.
#[test]
fn products_are_near_those_of_f32() {
    let exec = Executor::new(1);
    let x = draw(2, 512);
    for format in FORMATS {
        let w = matrix(format, (48, 512), ComputeType::Int8);
        let [full, near] =
            [w.clone().with_compute_type(ComputeType::F32), w].map(|w| product(&w, &x, &exec));
        let size = full.iter().map(|y| y * y).sum::<f32>().sqrt();
        let off = full.iter().zip(&near).map(|(a, b)| (a - b) * (a - b));
        let off = off.sum::<f32>().sqrt();
        assert!(
            off > 0.0 && off < size / 100.0,
            "{format:?}: {off} of {size}"
        );
    }
}

/// A number that is none must not become one: the gate looks for it.
#[test]
fn what_is_not_finite_stays_so() {
    let levels = Levels::ours();
    let w = matrix(WeightFormat::Q8, (16, 64), ComputeType::Int8);
    for level in levels.each() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = draw(2, 64);
            x[37] = odd;
            let found = product(&w, &x, &Executor::new(1));
            assert!(
                found.iter().all(|y| y.is_nan()),
                "{odd} {level:?}: {found:?}"
            );
        }
        for least in [1e-31, -f32::MIN_POSITIVE, 1e-45, 0.0] {
            let found = product(&w, &[least; 64], &Executor::new(1));
            assert!(
                found.iter().all(|y| *y == 0.0),
                "{least} {level:?}: {found:?}"
            );
        }
    }
}

#[test]
fn only_codes_in_whole_groups_are_computed_so() {
    let by = |format, inp| matrix(format, (64, inp), ComputeType::Int8).compute_type();
    assert_eq!(by(WeightFormat::Q8, 64), ComputeType::Int8);
    assert_eq!(by(WeightFormat::Q4, 32), ComputeType::Int8);
    assert_eq!(by(WeightFormat::Q8, 48), ComputeType::F32);
    assert_eq!(by(WeightFormat::Bf16, 64), ComputeType::F32);
    assert_eq!(by(WeightFormat::F32, 64), ComputeType::F32);
}
