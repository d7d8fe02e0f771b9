//! Products of bf16 against the slow form, bit for bit, at every level this processor has, and in
//! tiles, which are emulated where it has none.

#![allow(clippy::unwrap_used)]

use half::bf16;

use std::sync::Arc;

use super::*;
use crate::adapter::{Adapter, AdapterDtype};
use crate::config::{Family, ModelConfig};
use crate::panels::{Panels, RowsMut, Store};
use crate::quant::tests::draw;
use crate::quant::{GROUP, WeightFormat};
use crate::score::score_chunked;
use crate::simd::SimdLevel;
use crate::simd::tests::Levels;
use crate::source::TensorData;
use crate::testing::{lora, model, tiny, tokens, with_experts};
use crate::train::{Control, Learner, LearnerConfig, Objective, TokenLoss, TrainRow, Trainable};
use crate::weights::{Model, Weights, fingerprint};

const FORMATS: [WeightFormat; 3] = [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4];

/// Whole groups and panels, and remainders of each; inputs beyond one stage.
const SHAPES: [(usize, usize); 4] = [(64, 64), (70, 300), (16, 32), (33, 46)];

pub(crate) const BOTH: [Arithmetic; 2] = [Arithmetic::Bf16, Arithmetic::Amx];

/// Formats that have them, and the arithmetics of bf16.
fn of_bf16() -> impl Iterator<Item = (WeightFormat, Arithmetic)> {
    FORMATS.into_iter().flat_map(|f| BOTH.map(|by| (f, by)))
}

pub(crate) fn matrix(format: WeightFormat, (out, inp): (usize, usize), by: Arithmetic) -> Panels {
    let full = Panels::from_parts(inp, vec![TensorData::F32(draw(1, out * inp))]);
    full.into_format(format).computed_by(by)
}

/// There are tiles where the level is AVX-512.
pub(crate) fn with_tiles() {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    crate::simd::tiles::emulator::install();
}

fn rounded(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// One output as [`crate::gemm`] defines it.
pub(crate) fn slow(w: &Panels, out: usize, x: &[f32], start: f32) -> f32 {
    match w.arithmetic() {
        Arithmetic::Amx => slow_chunks(w, out, x, start),
        _ => slow_pairs(w, out, x, start),
    }
}

/// In chunks of 32, even and odd inputs apart.
fn slow_chunks(w: &Panels, out: usize, x: &[f32], start: f32) -> f32 {
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

/// As [`V16::dot`] defines it.
fn slow_pairs(w: &Panels, out: usize, x: &[f32], start: f32) -> f32 {
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

#[test]
fn products_are_those_of_the_slow_form_at_every_level() {
    with_tiles();
    for (format, by) in of_bf16() {
        for shape in SHAPES {
            products_are_those_of(slow, &matrix(format, shape, by));
        }
    }
}

/// One output of a matrix for a row of inputs; its sum starts from a value.
type Slow = fn(w: &Panels, out: usize, x: &[f32], start: f32) -> f32;

/// Whatever the rows, the store, the threads and the level.
pub(crate) fn products_are_those_of(slow: Slow, w: &Panels) {
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
                    w.arithmetic()
                );
                assert_eq!(product(&execs[0]), expected, "{case}");
                assert_eq!(plainly(|| product(&execs[1])), expected, "{case}, plainly");
            }
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
        let rows = 2 * crate::rounded::ROWS + 3;
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
        let products = [w.clone().computed_by(Arithmetic::F32), w].map(|w| {
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
    let full = Panels::from_parts(64, vec![TensorData::F32(draw(1, 64 * 64))]);
    for by in BOTH {
        let full = full.clone().computed_by(by);
        assert_eq!(full.arithmetic(), Arithmetic::F32);
        let odd = matrix(WeightFormat::Q8, (64, 45), by);
        assert_eq!(odd.arithmetic(), Arithmetic::F32);
    }
}

#[test]
fn a_transpose_has_the_same_weights() {
    let exec = Executor::new(2);
    for ((out, inp), by) in SHAPES.into_iter().flat_map(|s| BOTH.map(|by| (s, by))) {
        let w = matrix(WeightFormat::Bf16, (out, inp), by);
        let mut transposed = [Panels::zeros(0, 0), Panels::zeros(0, 0)];
        let panels = out.div_ceil(LANES);
        w.transpose(0..panels, &mut transposed[0], &exec);
        w.widened().transpose(0..panels, &mut transposed[1], &exec);
        let [half, full] = transposed.map(|t| (t.arithmetic(), t.to_rows(0..t.out)));
        assert_eq!(half.1, full.1);
        // Pairs are along what was `out`.
        let even = out.is_multiple_of(2);
        let expected = if even { by } else { Arithmetic::F32 };
        assert_eq!((half.0, full.0), (expected, Arithmetic::F32));
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

/// What is served is what is trained, whatever the chunks, the threads and the level: log-probs of a
/// text, and the state of a learner after two steps on it.
#[test]
fn a_model_serves_and_trains_one_function() {
    with_tiles();
    let mut wide = tiny(Family::Qwen3);
    (wide.hidden, wide.head_dim, wide.ffn, wide.vocab) = (48, 16, 96, 144);
    for shape in [tiny(Family::Qwen2), wide, with_experts(true)] {
        serves_and_trains_one_function(&shape, (of_bf16(), |weights| weights));
    }
}

/// See [`a_model_serves_and_trains_one_function`]; with weights kept as `kept` makes them.
pub(crate) fn serves_and_trains_one_function(
    shape: &ModelConfig,
    (ways, kept): (
        impl Iterator<Item = (WeightFormat, Arithmetic)>,
        impl Fn(Weights) -> Weights,
    ),
) {
    let levels = Levels::ours();
    let text = tokens(shape, 70, 3);
    let row = TrainRow {
        tokens: text.clone(),
        loss: (30..70).map(TokenLoss::imitated).collect(),
    };
    let adapter = Adapter::random(shape, lora(AdapterDtype::Bf16), 5);
    for (format, by) in ways {
        let weights = model(shape, 7).weights.into_format(format);
        let plain = Model::new(shape.clone(), weights);
        let mut base = plain.clone().computed_by(by);
        base.weights = kept(base.weights);
        let base = Arc::new(base);
        assert_eq!(base.digest, plain.digest);
        assert_ne!(fingerprint(&base), fingerprint(&plain));
        let logprobs = |model: &Model, chunk: usize, threads: usize| -> Vec<u32> {
            let exec = Executor::new(threads);
            let scores = score_chunked(model, Some(&adapter), (&text, chunk), &exec);
            let bits = |at| scores.logprob(at, 1.0, None).to_bits();
            (1..70).map(bits).collect()
        };
        let trained = |threads: usize, activation_bytes_max: usize| {
            let cfg = LearnerConfig {
                activation_bytes_max,
                ..LearnerConfig::new(
                    Trainable::Lora(lora(AdapterDtype::Bf16)),
                    Objective::CrossEntropy,
                    1e-2,
                )
            };
            let learner = Learner::from_adapter(Arc::clone(&base), cfg, &adapter).unwrap();
            let mut learner = learner.on(Arc::new(Executor::new(threads)));
            let mut go_on = || Control::Continue;
            let first = learner
                .step(std::slice::from_ref(&row), &mut go_on)
                .unwrap();
            learner
                .step(std::slice::from_ref(&row), &mut go_on)
                .unwrap();
            (first.proximal_logprobs.concat(), learner.state())
        };
        let served = logprobs(&base, 70, 1);
        assert!(served != logprobs(&plain, 70, 1), "inputs are rounded");
        let (proximal, state) = trained(1, 0);
        let seen: Vec<u32> = proximal.iter().map(|l| l.to_bits()).collect();
        assert_eq!(seen, served[29..]);
        for level in levels.each() {
            for (chunk, threads) in [(70, 3), (1, 1), (5, 2), (33, 1)] {
                assert_eq!(
                    served,
                    logprobs(&base, chunk, threads),
                    "{format:?} {by:?} {level:?}"
                );
            }
            assert!(
                state == trained(3, 1 << 30).1,
                "{format:?} {by:?} {level:?}"
            );
        }
    }
}

/// What adds up otherwise is not taken, however near it is.
#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles_that_are_not_exact_are_refused() {
    with_tiles();
    let _levels = Levels::ours();
    if SimdLevel::current() != SimdLevel::Avx512 {
        assert!(!Arithmetic::Amx.supported());
        return;
    }
    assert!(Arithmetic::Amx.supported() && tiles_add_up());
    if crate::simd::tiles::emulator::installed() {
        assert!(!crate::simd::tiles::emulator::with_a_fault(tiles_add_up));
    }
}
