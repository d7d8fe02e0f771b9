//! Layers with experts on the emulated device against the processor's, bit for bit.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::Device;
use super::args::{Group, Listed, Route};
use super::driver::{Buffer, Driver, launch};
use super::places::NOT_RECORDED;
use super::tests::{Case, compare, emulator, random};
use super::weights::EXPERTS_MAX;
use crate::testing::{model, tokens, with_experts};
use hone_checkpoint::config::{ExpertsConfig, ModelConfig};
use hone_kernels::cpu::padded;
use hone_kernels::format::block_quant::WeightFormat;
use hone_kernels::format::tensor_data::TensorData;
use hone_kernels::matrix::PackedMatrix;
use hone_kernels::rng::Rng;
use hone_kernels::thread_pool::Executor;
use hone_nn::DeviceError;
use hone_nn::Model;
use hone_nn::backend::Route as OnProcessor;
use hone_nn::backend::{Experts, Mlp};

/// So many experts, of which a token uses so many, each so wide.
fn shape(count: usize, chosen: usize, ffn: usize, normalised: bool) -> ModelConfig {
    ModelConfig {
        experts: Some(ExpertsConfig {
            count,
            chosen,
            ffn,
            normalised,
            layers: vec![true, true, false],
        }),
        ..with_experts(normalised)
    }
}

/// Texts side by side, in pieces of many sizes, and one token after the other.
fn texts(model: &Arc<Model>) {
    let cfg = &model.config;
    let case = |count: usize, blocks: &[u32]| Case {
        text: tokens(cfg, count, count as u64),
        blocks: blocks.to_vec(),
        adapter: None,
        done: 0,
    };
    let mut cases = [
        case(80, &[3, 0, 5]),
        case(60, &[1, 4]),
        case(30, &[2]),
        case(31, &[6]),
    ];
    let steps: [&[usize]; 11] = [
        &[61, 0, 0, 0],
        // A piece of a prompt beside tokens of answers.
        &[1, 40, 2, 0],
        &[1, 8, 1, 1],
        &[1, 1, 1, 1],
        &[1, 1, 0, 0],
        // Launches that come again start from their copies.
        &[1, 0, 0, 0],
        &[1, 0, 0, 0],
        &[1, 0, 0, 0],
        &[1, 1, 1, 1],
        &[1, 1, 1, 1],
        &[2, 3, 17, 20],
    ];
    compare(model, &emulator(), &mut cases, &steps);
}

#[test]
fn experts_of_any_number_and_width_say_what_they_say_on_the_processor() {
    // Experts, of which a token uses, width.
    let shapes = [(1, 1, 8), (2, 2, 33), (5, 1, 64), (16, 8, 7), (130, 4, 19)];
    for (at, (count, chosen, ffn)) in shapes.into_iter().enumerate() {
        let cfg = shape(count, chosen, ffn, at % 2 == 0);
        texts(&Arc::new(model(&cfg, 7)));
    }
}

#[test]
fn experts_wider_than_a_block_and_in_every_format_are_covered() {
    for (at, format) in [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4]
        .into_iter()
        .enumerate()
    {
        let cfg = ModelConfig {
            hidden: 150,
            ..shape(9, 4, 140, at % 2 == 0)
        };
        let base = model(&cfg, 7);
        let model = Model::new(base.config, base.weights.into_format(format));
        texts(&Arc::new(model));
    }
}

/// The model with these routers in its layers with experts.
fn routed(mut model: Model, router: &dyn Fn(usize) -> Vec<f32>) -> Arc<Model> {
    let cfg = model.config.clone();
    for layer in &mut model.weights.layers {
        if let Mlp::Sparse(Experts { router: own, .. }) = &mut layer.mlp {
            let rows = (0..own.out).flat_map(router).collect();
            *own = PackedMatrix::from_parts(cfg.hidden, vec![TensorData::F32(rows)]);
        }
    }
    Arc::new(model)
}

#[test]
fn equal_scores_go_to_the_lower_id() {
    for normalised in [true, false] {
        let cfg = shape(7, 3, 19, normalised);
        let mut rng = Rng::new(5);
        let rows: Vec<Vec<f32>> = (0..3).map(|_| random(&mut rng, cfg.hidden)).collect();
        // All equal, and two or three of every score.
        texts(&routed(model(&cfg, 7), &|_| vec![0.0; cfg.hidden]));
        texts(&routed(model(&cfg, 7), &|expert| rows[expert % 3].clone()));
    }
}

/// Scores with many that are equal, and some that are no numbers.
fn odd_scores(rng: &mut Rng, cfg: &ExpertsConfig, rows: usize) -> Vec<f32> {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0];
    let mut scores = vec![0.0; rows * padded(cfg.count)];
    for (row, scores) in scores.chunks_exact_mut(padded(cfg.count)).enumerate() {
        for score in &mut scores[..cfg.count] {
            let at = (rng.next_u64() % 12) as usize;
            *score = match odd.get(at).filter(|_| row % 3 == 0) {
                Some(odd) => *odd,
                None if row % 2 == 0 => (rng.next_u64() % 4) as f32 - 2.0,
                None => rng.normal() as f32 * 3.0,
            };
        }
    }
    scores
}

#[test]
fn any_scores_choose_and_group_as_on_the_processor() {
    let emulator = emulator();
    let driver: Arc<dyn Driver> = Arc::clone(&emulator) as Arc<dyn Driver>;
    let mut rng = Rng::new(3);
    let all = [
        (7, 3),
        (1, 1),
        (128, 8),
        (200, 1),
        (600, 9),
        (EXPERTS_MAX, 3),
    ];
    for (number, (count, chosen)) in all.into_iter().enumerate() {
        let cfg = shape(count, chosen, 8, number % 2 == 0).experts.unwrap();
        for rows in [2, 37] {
            let scores = odd_scores(&mut rng, &cfg, rows);
            // Every fourth row has recorded ids.
            let recorded: Vec<Option<Vec<u16>>> = (0..rows)
                .map(|row| (row % 4 == 1).then(|| (0..chosen as u16).collect()))
                .collect();
            let mut wanted = OnProcessor::default();
            let stride = padded(count);
            wanted.choose(&cfg, &mut scores.clone(), stride, |row| {
                recorded[row].as_deref()
            });
            wanted.group(count);
            chosen_and_grouped(&driver, &cfg, (&scores, &recorded), &wanted);
            emulator.turn_around();
        }
    }
}

/// What the two kernels make of scores is what the processor made of them.
fn chosen_and_grouped(
    driver: &Arc<dyn Driver>,
    cfg: &ExpertsConfig,
    (scores, recorded): (&[f32], &[Option<Vec<u16>>]),
    wanted: &OnProcessor,
) {
    let (rows, chosen) = (recorded.len(), cfg.chosen);
    let (ids, record, weights) = choose(driver, cfg, (scores, recorded));
    let mut found = vec![0u16; rows * chosen];
    ids.read(0, &mut found).unwrap();
    assert_eq!(found, wanted.ids, "{cfg:?}");
    for row in 1..rows {
        let at = (rows - 1 - row) * chosen;
        let own = &found[row * chosen..(row + 1) * chosen];
        assert_eq!(&record[at..at + chosen], own);
    }
    for (found, wanted) in weights.iter().zip(&wanted.weights) {
        let same = found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan());
        assert!(same, "{found} for {wanted}: {cfg:?}");
    }
    let shift = 2;
    let tiles = ((rows * chosen) >> shift) + cfg.count.min(rows * chosen);
    let [pairs, tokens, found] = group(driver, cfg, (&ids, rows), (shift, tiles));
    assert_eq!(pairs, wanted.pairs);
    let of: Vec<u32> = pairs.iter().map(|pair| pair / chosen as u32).collect();
    assert_eq!(tokens, of);
    assert_eq!(found, cut(wanted, shift, tiles));
}

/// The ids, their record and their weights. The rows' places in the record are turned around, and the
/// first row has none.
fn choose(
    driver: &Arc<dyn Driver>,
    cfg: &ExpertsConfig,
    (scores, recorded): (&[f32], &[Option<Vec<u16>>]),
) -> (Buffer, Vec<u16>, Vec<f32>) {
    let (rows, pairs) = (recorded.len(), recorded.len() * cfg.chosen);
    let none = vec![NOT_RECORDED; cfg.chosen];
    let told = recorded
        .iter()
        .flat_map(|ids| ids.as_ref().unwrap_or(&none));
    let told: Vec<u16> = told.copied().collect();
    let place = |row: u32| match row {
        0 => u32::MAX,
        _ => rows as u32 - 1 - row,
    };
    let places: Vec<u32> = (0..rows as u32).map(place).collect();
    let scores = Buffer::holding(driver, scores).unwrap();
    let told = Buffer::holding(driver, &told).unwrap();
    let places = Buffer::holding(driver, &places).unwrap();
    let [ids, record, weights] =
        [2, 2, 4].map(|each| Buffer::zeroed(driver, pairs * each).unwrap());
    let route = Route {
        scores: scores.at(),
        recorded: told.at(),
        ids: ids.at(),
        weights: weights.at(),
        record: record.at(),
        places: places.at(),
        listed: Listed::default(),
        stride: padded(cfg.count) as u32,
        count: cfg.count as u32,
        chosen: cfg.chosen as u32,
        normalised: u32::from(cfg.normalised),
        told: cfg.chosen as u32,
        unused: 0,
    };
    launch(&**driver, "route", ([rows as u32, 1, 1], 128), &route).unwrap();
    let (mut recorded, mut counts) = (vec![0u16; pairs], vec![0.0f32; pairs]);
    record.read(0, &mut recorded).unwrap();
    weights.read(0, &mut counts).unwrap();
    (ids, recorded, counts)
}

/// Per listed row its pair and its token, and the tiles.
fn group(
    driver: &Arc<dyn Driver>,
    cfg: &ExpertsConfig,
    (ids, rows): (&Buffer, usize),
    (shift, tiles): (u32, usize),
) -> [Vec<u32>; 3] {
    let pairs = rows * cfg.chosen;
    let sizes = [pairs, pairs, tiles * 4];
    // What was there before is gone afterwards.
    let bufs = sizes.map(|size| Buffer::holding(driver, &vec![7u32; size]).unwrap());
    let group = Group {
        ids: ids.at(),
        listed: Listed {
            pairs: bufs[0].at(),
            tokens: bufs[1].at(),
            tiles: bufs[2].at(),
        },
        pairs: pairs as u32,
        chosen: cfg.chosen as u32,
        experts: cfg.count as u32,
        shift,
        tiles: tiles as u32,
        unused: 0,
    };
    launch(&**driver, "group_pairs", ([1, 1, 1], 512), &group).unwrap();
    let mut all = sizes.map(|size| vec![0u32; size]);
    for (buffer, to) in bufs.iter().zip(&mut all) {
        buffer.read(0, to).unwrap();
    }
    all
}

/// The tiles of grouped rows, as the kernels know them.
fn cut(route: &OnProcessor, shift: u32, tiles: usize) -> Vec<u32> {
    let size = 1 << shift;
    let mut all = Vec::new();
    for (expert, rows) in route.rows_by_expert() {
        for first in rows.clone().step_by(size) {
            let count = size.min(rows.end - first);
            all.extend([expert as u32, first as u32, count as u32, 0]);
        }
    }
    assert!(all.len() <= tiles * 4, "there is room for them");
    all.resize(tiles * 4, 0);
    all
}

#[test]
fn experts_that_the_kernels_do_not_cover_are_refused_in_a_sentence() {
    let load = |model: Model| {
        let exec = Executor::new(1);
        let error = Device::load(emulator(), Arc::new(model), &exec, &mut |_, _| {}).err();
        match error.unwrap() {
            DeviceError::Unsupported(why) => why,
            other => panic!("{other}"),
        }
    };
    let why = load(model(&shape(EXPERTS_MAX + 1, 1, 2, true), 5));
    assert!(why.contains("1025 experts"), "{why}");
    let mut mixed = model(&shape(3, 1, 8, true), 5);
    let Mlp::Sparse(experts) = &mut mixed.weights.layers[0].mlp else {
        panic!("the first layer has experts");
    };
    experts.down[1] = experts.down[1].clone().into_format(WeightFormat::Bf16);
    let why = load(mixed);
    assert!(why.contains("different formats"), "{why}");
}
