//! Products backwards alone, against the processor's, for sizes and formats that no small model has.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::backward::{BACK_THREADS, back_launch_for, outer_launch_for};
use super::passes::{PAIR_BYTES_MAX, pair_floats, pieces};
use crate::args::{Back, Leave, Outer};
use crate::driver::{Buffer, Driver, launch};
use crate::emulator::Emulator;
use crate::matrix::Packer;
use crate::testing::tiny;
use hone_checkpoint::config::{Family, ModelConfig};
use hone_kernels::cpu::{LANES, padded};
use hone_kernels::format::block_quant::WeightFormat;
use hone_kernels::format::tensor_data::TensorData;
use hone_kernels::matrix::{PackedMatrix, Rows, RowsMut, Store};
use hone_kernels::rng::Rng;
use hone_kernels::thread_pool::Executor;

fn random(rng: &mut Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.normal() as f32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Outputs and inputs.
const SHAPES: [(usize, usize); 6] = [(1, 1), (31, 7), (33, 8), (64, 129), (100, 200), (130, 333)];
const ROWS: [usize; 4] = [1, 13, 65, 150];

/// `dx = dy W` with each way of leaving it.
fn through(driver: &Arc<dyn Driver>, w: &PackedMatrix, rows: usize, rng: &mut Rng) {
    let (ld_out, ld_in) = (padded(w.out), padded(w.inp));
    let (dy, before) = (random(rng, rows * ld_out), random(rng, rows * ld_in));
    let exec = Executor::new(1);
    let mut transposed = PackedMatrix::zeros(0, 0);
    w.transpose(0..w.out.div_ceil(LANES), &mut transposed, &exec);
    let mut packer = Packer::default();
    let matrix = packer.matrix(w);
    let memory = packer.upload(driver).unwrap();
    for leave in [Leave::Set, Leave::SetScaled, Leave::Continue] {
        let (mut wanted, mut found) = (before.clone(), before.clone());
        let from = Rows {
            data: &dy,
            stride: ld_out,
            rows,
        };
        let to = RowsMut {
            data: &mut wanted,
            stride: ld_in,
        };
        let store = match leave {
            Leave::Continue => Store::Continue,
            _ => Store::Set(None),
        };
        transposed.linear(from, to, store, &exec);
        if leave == Leave::SetScaled {
            for row in wanted.chunks_mut(ld_in) {
                row[..w.inp].iter_mut().for_each(|v| *v *= 0.37);
            }
        }
        let (from, to) = (
            Buffer::holding(driver, &dy).unwrap(),
            Buffer::holding(driver, &before).unwrap(),
        );
        let args = Back {
            w: matrix.of(&memory),
            dy: from.at(),
            dx: to.at(),
            rows: rows as u32,
            dy_stride: ld_out as u32,
            dx_stride: ld_in as u32,
            leave,
            scale: 0.37,
            unused: 0,
        };
        // As where blocks are too few for the device, and as where there are enough.
        for processors in [u32::MAX, 1] {
            to.write(&before).unwrap();
            let (kernel, grid) = back_launch_for(&args, processors);
            launch(&**driver, kernel, (grid, BACK_THREADS), &args).unwrap();
            to.read(0, &mut found).unwrap();
            assert!(
                bits(&found) == bits(&wanted),
                "{kernel} [{}, {}] x {rows}, {leave:?}",
                w.out,
                w.inp
            );
        }
    }
}

#[test]
fn gradients_of_inputs_of_any_size_have_the_processors_bits() {
    let emulator = Arc::new(Emulator::new().unwrap());
    let driver = Arc::clone(&emulator) as Arc<dyn Driver>;
    let mut rng = Rng::new(9);
    for (out, inp) in SHAPES {
        let values = random(&mut rng, out * inp);
        let dense = PackedMatrix::from_parts(inp, vec![TensorData::F32(values)]);
        for format in [
            WeightFormat::F32,
            WeightFormat::Bf16,
            WeightFormat::Q8,
            WeightFormat::Q4,
        ] {
            let w = dense.clone().into_format(format);
            for rows in ROWS {
                through(&driver, &w, rows, &mut rng);
            }
            emulator.turn_around();
        }
    }
}

#[test]
fn gradients_of_matrices_of_any_size_have_the_processors_bits() {
    let emulator = Arc::new(Emulator::new().unwrap());
    let driver = Arc::clone(&emulator) as Arc<dyn Driver>;
    let exec = Executor::new(1);
    let mut rng = Rng::new(10);
    for (out, inp) in SHAPES {
        let (ld_out, ld_in) = (padded(out), padded(inp));
        let mut grad = PackedMatrix::zeros(out, inp);
        let to = Buffer::holding(&driver, grad.values_mut()).unwrap();
        // Sums go on from micro-batch to micro-batch; the first begins them.
        for (number, rows) in ROWS.into_iter().enumerate() {
            let (dy, x) = (
                random(&mut rng, rows * ld_out),
                random(&mut rng, rows * ld_in),
            );
            let rows_of = |data, stride| Rows { data, stride, rows };
            let before = grad.values_mut().to_vec();
            grad.add_outer(rows_of(&dy, ld_out), rows_of(&x, ld_in), &exec);
            let (from, by) = (
                Buffer::holding(&driver, &dy).unwrap(),
                Buffer::holding(&driver, &x).unwrap(),
            );
            let args = Outer {
                dy: from.at(),
                x: by.at(),
                dw: to.at(),
                rows: rows as u32,
                out: out as u32,
                inp: inp as u32,
                dy_stride: ld_out as u32,
                x_stride: ld_in as u32,
                fresh: u32::from(number == 0),
            };
            // As where blocks are too few for the device, and as where there are enough.
            for processors in [u32::MAX, 1] {
                to.write(&before).unwrap();
                let (kernel, grid, block) = outer_launch_for(&args, processors);
                launch(&*driver, kernel, (grid, block), &args).unwrap();
                let mut found = vec![0.0f32; before.len()];
                to.read(0, &mut found).unwrap();
                assert!(
                    bits(&found) == bits(grad.values_mut()),
                    "{kernel} [{out}, {inp}] x {rows}"
                );
            }
            emulator.turn_around();
        }
    }
}

#[test]
fn attention_is_cut_into_pieces_that_fit() {
    let cfg = ModelConfig {
        heads: 16,
        windows: vec![None, Some(300)],
        ..tiny(Family::Qwen3)
    };
    for (layer, tokens) in [(0, 1), (0, 40), (0, 5_000), (1, 5_000), (0, 60_000)] {
        let mut next = 0;
        for piece in pieces(&cfg, layer, tokens) {
            assert_eq!(
                (piece.first, piece.base % 32, piece.width % 32),
                (next, 0, 0)
            );
            let from = cfg.windows[layer].map_or(0, |w| (piece.first + 1).saturating_sub(w));
            assert!(piece.base <= from && piece.base + piece.width >= piece.first + piece.tokens);
            let bytes = 8 * cfg.heads * piece.tokens * piece.width;
            assert!(bytes <= PAIR_BYTES_MAX || piece.tokens == 32, "{bytes}");
            next += piece.tokens;
            // Only a piece that begins where a block does has keys that none has seen.
            assert!(next % 32 == 0 || next == tokens);
        }
        assert_eq!(next, tokens);
    }
}

/// A sequence may need more room than a longer one.
#[test]
fn pieces_of_every_sequence_fit_the_room() {
    for heads in [8, 16, 20, 32] {
        let cfg = ModelConfig {
            heads,
            windows: vec![None, Some(300)],
            ..tiny(Family::Qwen3)
        };
        for shorter in (1..1_200).step_by(7).chain([705, 712]) {
            let room = pair_floats(&cfg, &[shorter, 1_200]);
            let layers = 0..cfg.layers;
            for piece in layers.flat_map(|layer| pieces(&cfg, layer, shorter)) {
                assert!(2 * heads * piece.tokens * piece.width <= room, "{shorter}");
            }
        }
    }
}
