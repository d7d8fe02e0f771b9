//! The kernels on the emulated device against the processor's, bit for bit.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::sync::Arc;

use hone_nn::{DeviceModel, ForwardBackend};

use super::Device;
use super::args::{Leave, Linear};
use super::driver::{Buffer, Driver, Limits, launch};
use super::emulator::Emulator;
use super::linear::linear_launch;
use super::matrix::Packer;
use super::pass::DevicePass;
use crate::testing::{FAMILIES, forms_of, lora_of, model, tiny, tokens, with_experts};
use hone_checkpoint::config::{Family, ModelConfig, RopeScaling};
use hone_checkpoint::{AdapterConfig, AdapterDtype, DenseConfig, LoraConfig, Target};
use hone_kernels::cpu::padded;
use hone_kernels::format::block_quant::WeightFormat;
use hone_kernels::format::tensor_data::TensorData;
use hone_kernels::matrix::compute_type::ComputeType;
use hone_kernels::matrix::{PackedMatrix, Rows, RowsMut, Store};
use hone_kernels::rng::Rng;
use hone_kernels::thread_pool::Executor;
use hone_nn::sample::{PlainDraw, SampleScratch, Sampled, SamplingParams, TokenCounts, sample};
use hone_nn::{Adapter, BLOCK_TOKENS, KvPool, LogitsWanted, Model, Scratch, SeqInput, forward};

pub(super) fn emulator() -> Arc<Emulator> {
    Arc::new(Emulator::new().unwrap())
}

pub(super) fn on(driver: Arc<dyn Driver>, model: &Arc<Model>) -> Arc<Device> {
    Device::load(driver, Arc::clone(model), &Executor::new(1), &mut |_, _| {}).unwrap()
}

pub(super) fn random(rng: &mut Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.normal() as f32).collect()
}

/// One sequence of a test: its text, block table and adapter, and how far it is.
pub(super) struct Case<'a> {
    pub(super) text: Vec<u32>,
    pub(super) blocks: Vec<u32>,
    pub(super) adapter: Option<&'a Adapter>,
    pub(super) done: usize,
}

/// Takes every case forward by as many tokens as the step says, on both sides, and compares.
pub(super) fn compare(
    model: &Arc<Model>,
    driver: &Arc<Emulator>,
    cases: &mut [Case],
    steps: &[&[usize]],
) {
    let device = on(Arc::clone(driver) as Arc<dyn Driver>, model);
    let blocks = 1 + cases.iter().flat_map(|c| &c.blocks).max().unwrap();
    let mut pass = DevicePass::new(Arc::clone(&device.weights), blocks as usize).unwrap();
    let mut kv = KvPool::new(model, blocks as usize);
    let (mut scratch, exec) = (Scratch::default(), Executor::new(1));
    for (number, step) in steps.iter().enumerate() {
        let seqs: Vec<SeqInput> = cases
            .iter()
            .zip(*step)
            .filter(|(_, count)| **count > 0)
            .map(|(case, &count)| SeqInput {
                tokens: &case.text[case.done..case.done + count],
                start: case.done,
                blocks: &case.blocks,
                adapter: case.adapter,
                logits: [LogitsWanted::All, LogitsWanted::Last][number % 2],
            })
            .collect();
        let wanted = forward(model, &mut kv, &seqs, &exec, &mut scratch);
        let found = pass.forward(&seqs).unwrap();
        assert_eq!(found.rows(), wanted.rows());
        for row in 0..wanted.rows() {
            assert_eq!(
                bits(found.row(row)),
                bits(wanted.row(row)),
                "step {number}, row {row}"
            );
            let (found, wanted) = (found.experts(row), wanted.experts(row));
            assert_eq!(found, wanted, "step {number}, row {row}");
        }
        for (case, count) in cases.iter_mut().zip(*step) {
            case.done += count;
        }
        // The order of threads and blocks must not matter.
        driver.turn_around();
    }
}

fn adapter(cfg: &ModelConfig, config: impl Into<AdapterConfig>, seed: u64) -> Adapter {
    Adapter::random(cfg, config, seed)
}

/// Three adapters of low rank, two dense changes and none, prefill beside decode, scattered and
/// shared blocks.
pub(super) fn mixed(model: &Arc<Model>) {
    let cfg = &model.config;
    // Of these, the targets that adapters of the model act on.
    let within = |targets: [Target; 2]| -> Vec<Target> {
        let all = lora_of(cfg, AdapterDtype::F32).targets;
        targets.into_iter().filter(|t| all.contains(t)).collect()
    };
    let narrow = LoraConfig {
        rank: 20,
        targets: within([Target::V, Target::Gate]),
        ..lora_of(cfg, AdapterDtype::F32)
    };
    let one = adapter(cfg, lora_of(cfg, AdapterDtype::F32), 1);
    let two = adapter(cfg, lora_of(cfg, AdapterDtype::Bf16), 2);
    let three = adapter(cfg, narrow, 3);
    let [_, dense] = forms_of(cfg, AdapterDtype::Bf16);
    let four = adapter(cfg, dense, 4);
    let some = DenseConfig {
        targets: within([Target::K, Target::Down]),
        dtype: AdapterDtype::F32,
    };
    let five = adapter(cfg, some, 5);
    let case = |count: usize, blocks: &[u32], adapter| Case {
        text: tokens(cfg, count, count as u64),
        blocks: blocks.to_vec(),
        adapter,
        done: 0,
    };
    let mut cases = [
        case(90, &[7, 2, 9], None),
        case(40, &[1, 0], Some(&one)),
        case(41, &[3, 8], Some(&one)),
        case(20, &[4], Some(&two)),
        case(64, &[5, 10], None),
        case(33, &[6, 11], Some(&three)),
        case(37, &[12, 13], Some(&four)),
        case(20, &[14], Some(&five)),
    ];
    let steps: [&[usize]; 7] = [
        &[70, 1, 33, 5, 0, 31, 0, 2],
        &[1, 1, 1, 1, 40, 1, 30, 1],
        &[1, 30, 0, 1, 1, 1, 1, 1],
        &[0, 0, 0, 0, 1, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 1, 1],
        // So few rows that what adapters have first runs beside the layers.
        &[0, 1, 0, 0, 0, 0, 0, 0],
        &[0, 1, 1, 1, 0, 0, 0, 1],
    ];
    compare(model, &emulator(), &mut cases, &steps);
}

#[test]
fn a_device_says_bit_for_bit_what_the_processor_says() {
    for shape in FAMILIES.map(tiny) {
        mixed(&Arc::new(model(&shape, 5)));
    }
}

#[test]
fn a_model_of_another_arithmetic_is_refused_in_a_sentence() {
    let base = model(&tiny(Family::Qwen3), 6);
    let weights = base.weights.into_format(WeightFormat::Bf16);
    let model = Model::new(base.config, weights.with_compute_type(ComputeType::Bf16));
    let loaded = Device::load(
        emulator(),
        Arc::new(model),
        &Executor::new(1),
        &mut |_, _| {},
    );
    let error = loaded.err().unwrap().to_string();
    assert!(error.contains("model.arithmetic"), "{error}");
}

#[test]
fn so_it_does_in_every_weight_format() {
    for shape in [tiny(Family::Qwen3), with_experts(false)] {
        for format in [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4] {
            let base = model(&shape, 6);
            let weights = base.weights.into_format(format);
            mixed(&Arc::new(Model::new(base.config, weights)));
        }
    }
}

#[test]
fn heads_of_every_size_and_long_texts_are_covered() {
    // Query heads, key-value heads, dimensions, window.
    let shapes = [
        (3, 3, 64, None),
        (7, 1, 32, None),
        (16, 1, 6, Some(150)),
        (2, 1, 160, None),
        (6, 3, 128, Some(33)),
    ];
    for (heads, kv_heads, head_dim, window) in shapes {
        let cfg = ModelConfig {
            heads,
            kv_heads,
            head_dim,
            windows: vec![window, None],
            max_positions: 400,
            rope_scaling: Some(RopeScaling::Linear { factor: 2.0 }),
            ..tiny(Family::Qwen3)
        };
        let model = Arc::new(model(&cfg, 7));
        let mut cases = [Case {
            text: tokens(&cfg, 310, 3),
            blocks: (0..10).rev().collect(),
            adapter: None,
            done: 0,
        }];
        compare(&model, &emulator(), &mut cases, &[&[300], &[9], &[1]]);
    }
}

/// One product by a kernel.
fn product(
    driver: &Arc<dyn Driver>,
    (w, bias): (&PackedMatrix, Option<&[f32]>),
    (x, rows): (&[f32], usize),
    (y, scale): (&mut [f32], Option<f32>),
) {
    let mut packer = Packer::default();
    let (matrix, bias) = (packer.matrix(w), bias.map(|b| packer.vector(b)));
    let memory = packer.upload(driver).unwrap();
    let (from, to) = (
        Buffer::holding(driver, x).unwrap(),
        Buffer::holding(driver, y).unwrap(),
    );
    let (x, y_at) = ((from.at(), padded(w.inp)), (to.at(), padded(w.out)));
    let mut args = Linear {
        bias: bias.map_or(0, |b| b.of(&memory)),
        leave: scale.map_or(Leave::Set, |_| Leave::AddScaled),
        scale: scale.unwrap_or(0.0),
        ..Linear::plain(matrix.of(&memory), x, y_at, rows)
    };
    let before = y.to_vec();
    // As where blocks are too few for the device, where there are enough, and where a strip each is; also where
    // a block holds two parts of the weights only, so that they come to the same place again and again.
    let room = driver.limits().room;
    let (few, strips) = (u32::MAX / 4, w.out.div_ceil(32) as u32);
    let tries = [
        (few, room),
        (1, room),
        (strips, room),
        (1, 0),
        (strips, 0),
        (few, 0),
    ];
    let tries = if w.inp > 128 { &tries[..] } else { &tries[..3] };
    for &(processors, room) in tries {
        let limits = Limits {
            processors,
            room,
            ..driver.limits()
        };
        to.write(&before).unwrap();
        let (kernel, size) = linear_launch(&mut args, &limits);
        launch(&**driver, kernel, size, &args).unwrap();
        let mut found = before.clone();
        to.read(0, &mut found).unwrap();
        let first = processors == few && room > 0;
        let same = first || bits(&found) == bits(y);
        assert!(same, "{kernel} says something else than a smaller block");
        y.copy_from_slice(&found);
    }
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn products_of_any_size_have_the_processors_bits() {
    let emulator = emulator();
    let driver: Arc<dyn Driver> = Arc::clone(&emulator) as Arc<dyn Driver>;
    let exec = Executor::new(1);
    let mut rng = Rng::new(9);
    let formats = [
        WeightFormat::F32,
        WeightFormat::Bf16,
        WeightFormat::Q8,
        WeightFormat::Q4,
    ];
    let shapes = [(1, 1), (31, 7), (33, 8), (64, 129), (100, 200), (130, 333)];
    for (out, inp) in shapes {
        let values = random(&mut rng, out * inp);
        let dense = PackedMatrix::from_parts(inp, vec![TensorData::F32(values)]);
        let bias = random(&mut rng, out);
        for format in formats {
            let w = dense.clone().into_format(format);
            for rows in [1, 2, 7, 13, 17, 40, 65] {
                let x = random(&mut rng, rows * padded(inp));
                let before = random(&mut rng, rows * padded(out));
                for scale in [None, Some(0.37)] {
                    let store = match scale {
                        None => Store::Set(Some(&bias)),
                        Some(scale) => Store::AddScaled(scale),
                    };
                    let mut wanted = before.clone();
                    let stride = padded(inp);
                    let from = Rows {
                        data: &x,
                        stride,
                        rows,
                    };
                    let to = RowsMut {
                        data: &mut wanted,
                        stride: padded(out),
                    };
                    w.linear(from, to, store, &exec);
                    let mut found = before.clone();
                    let bias = scale.is_none().then_some(bias.as_slice());
                    product(&driver, (&w, bias), (&x, rows), (&mut found, scale));
                    let same = wanted
                        .iter()
                        .zip(&found)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{format:?} [{out}, {inp}] x {rows} rows, {scale:?}");
                }
                emulator.turn_around();
            }
        }
    }
}

#[test]
fn a_draw_on_a_device_is_the_samplers_draw() {
    // More tokens than a block of threads looks at at once.
    let cfg = ModelConfig {
        vocab: 2_500,
        ..tiny(Family::Qwen3)
    };
    let model = Arc::new(model(&cfg, 8));
    let emulator = emulator();
    let device = on(Arc::clone(&emulator) as Arc<dyn Driver>, &model);
    let mut pass = DevicePass::new(Arc::clone(&device.weights), 4).unwrap();
    let text = tokens(&cfg, 4, 1);
    let blocks = [[0], [1], [2], [3]];
    let (mut scratch, counts) = (SampleScratch::default(), TokenCounts::default());
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..120u64 {
        let params = |temperature: f32| SamplingParams {
            temperature,
            seed,
            ..SamplingParams::default()
        };
        let all = [0.0, 1.0, 0.6, 3.0].map(params);
        let seqs = |draw: bool| -> Vec<SeqInput> {
            let each = blocks.iter().zip(&text).zip(&all);
            each.map(|((blocks, token), params)| SeqInput {
                tokens: std::slice::from_ref(token),
                start: 0,
                blocks,
                adapter: None,
                logits: match PlainDraw::of(params, seed) {
                    // The third row is wanted as a whole.
                    Some(plain) if draw && params.temperature != 0.6 => {
                        LogitsWanted::Draws(plain, 1)
                    }
                    _ => LogitsWanted::Last,
                },
            })
            .collect()
        };
        let rows: Vec<Vec<f32>> = {
            let logits = pass.forward(&seqs(false)).unwrap();
            (0..4).map(|i| logits.row(i).to_vec()).collect()
        };
        let found = pass.forward(&seqs(true)).unwrap();
        for (i, (row, params)) in rows.iter().zip(&all).enumerate() {
            let wanted = sample(row, params, &counts, seed, &mut scratch);
            seen.insert(wanted.token);
            match found.drawn(i) {
                None => assert_eq!((i, found.row(i)), (2, row.as_slice())),
                Some(drawn) => assert_eq!(drawn, &wanted, "row {i}, seed {seed}"),
            }
        }
        emulator.turn_around();
    }
    assert!(seen.len() > 100, "the draws differ");
}

/// Draws of several positions are those of each alone, on the processor and on a device.
#[test]
fn draws_of_many_rows_are_those_of_each() {
    let cfg = tiny(Family::Qwen3);
    let model = Arc::new(model(&cfg, 8));
    let device = on(emulator(), &model);
    let exec = Executor::new(2);
    let text = tokens(&cfg, 40, 1);
    let params = [(1.0, 1.0), (0.0, 1.0), (0.8, 0.7)].map(|(temperature, top_p)| SamplingParams {
        temperature,
        top_p,
        seed: 5,
        ..SamplingParams::default()
    });
    let tables = [[0, 1], [2, 3], [4, 5]];
    let batch = |wanted: &dyn Fn(usize) -> LogitsWanted| -> Vec<SeqInput> {
        let seq = |i: usize| SeqInput {
            // 33, 36 and 39 tokens, of which the last four, three and two are drawn after.
            tokens: &text[..33 + 3 * i],
            start: 0,
            blocks: &tables[i],
            adapter: None,
            logits: wanted(i),
        };
        (0..3).map(seq).collect()
    };
    let drawn = |i: usize| LogitsWanted::Draws(PlainDraw::of(&params[i], 7).unwrap(), 4 - i);
    let mut kv = KvPool::new(&model, 6);
    let mut scratch = Scratch::default();
    let all = batch(&|_| LogitsWanted::All);
    let rows = forward(&model, &mut kv, &all, &exec, &mut scratch);
    let (counts, mut sampling) = (TokenCounts::default(), SampleScratch::default());
    let mut end = 0;
    let wanted: Vec<Sampled> = (0..3)
        .flat_map(|i| {
            end += 33 + 3 * i;
            let first = end - (4 - i);
            (first..end).zip(7..).map(move |row| (i, row))
        })
        .map(|(i, (row, position))| {
            sample(rows.row(row), &params[i], &counts, position, &mut sampling)
        })
        .collect();
    let mut pass = DevicePass::new(Arc::clone(&device.weights), 6).unwrap();
    let batch = batch(&drawn);
    let there = pass.forward(&batch).unwrap();
    let (mut kv, mut scratch) = (KvPool::new(&model, 6), Scratch::default());
    let here = forward(&model, &mut kv, &batch, &exec, &mut scratch);
    for logits in [here, there] {
        assert_eq!(logits.rows(), 9);
        let drawn: Vec<&Sampled> = (0..9).map(|i| logits.drawn(i).unwrap()).collect();
        assert_eq!(drawn, wanted.iter().collect::<Vec<_>>());
    }
}

#[test]
fn only_plain_draws_are_made_on_a_device() {
    let plain = SamplingParams::default();
    assert!(PlainDraw::of(&plain, 1).is_some());
    let cut = SamplingParams {
        top_p: 0.9,
        ..plain.clone()
    };
    assert!(PlainDraw::of(&cut, 1).is_some());
    let banned = SamplingParams {
        banned: vec![1],
        ..cut
    };
    assert_eq!(PlainDraw::of(&banned, 1), None);
    let told = SamplingParams {
        top_logprobs: 1,
        ..plain
    };
    assert_eq!(PlainDraw::of(&told, 1), None);
}

#[test]
fn blocks_of_a_device_are_counted_in_its_own_layout() {
    let cfg = tiny(Family::Llama);
    let device = on(emulator(), &Arc::new(model(&cfg, 5)));
    let floats = cfg.layers * cfg.kv_heads * BLOCK_TOKENS * cfg.head_dim * 2;
    assert_eq!(device.bytes_per_block(), floats * 4);
    assert!(device.memory_free().unwrap() > 0);
    assert_eq!(device.model().config, cfg);
}

#[test]
fn an_adapter_has_a_copy_of_its_own_on_every_device() {
    let model = Arc::new(model(&tiny(Family::Qwen3), 5));
    let drivers = [emulator(), emulator()];
    let devices = drivers.each_ref().map(|driver| on(driver.clone(), &model));
    let free = || drivers.each_ref().map(|driver| driver.memory().unwrap().0);
    let before = free();
    let cfg = &model.config;
    let adapter = adapter(cfg, lora_of(cfg, AdapterDtype::F32), 1);
    for device in &devices {
        device.upload(&adapter).unwrap();
        device.upload(&adapter).unwrap();
    }
    let taken: Vec<u64> = before.iter().zip(free()).map(|(a, b)| a - b).collect();
    assert!(taken[0] > 0 && taken[0] == taken[1], "{taken:?}");
    // A clone has none, and the copies go with the adapter.
    devices[1].upload(&adapter.clone()).unwrap();
    drop(adapter);
    assert_eq!(free(), before);
}
