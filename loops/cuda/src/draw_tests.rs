//! Draws on the emulated device against the sampler's, bit for bit.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::emulator::Emulator;
use hone_kernels::rng::Rng;
use hone_nn::LogitsWanted;
use hone_nn::sample::{SampleScratch, SamplingParams, TokenCounts, sample};

/// Draws once from one row for each of the settings, on both sides. Returns how many the device drew.
fn check(emulator: &Arc<Emulator>, row: &[f32], all: &[SamplingParams], position: u64) -> usize {
    let driver: Arc<dyn Driver> = Arc::clone(emulator) as Arc<dyn Driver>;
    let (vocab, stride) = (row.len(), padded(row.len()));
    let mut logits = vec![f32::NAN; stride * all.len()];
    for to in logits.chunks_exact_mut(stride) {
        to[..vocab].copy_from_slice(row);
    }
    let memory = Buffer::holding(&driver, &logits).unwrap();
    let seq = |params| SeqInput {
        tokens: &[1],
        start: 0,
        blocks: &[0],
        adapter: None,
        logits: LogitsWanted::Draws(PlainDraw::of(params, position).unwrap(), 1),
    };
    let batch: Vec<SeqInput> = all.iter().map(seq).collect();
    let mut drawing = Drawing::default();
    let found = drawing.draw(&driver, memory.at(), all.len(), vocab, &batch);
    let mut drawn = 0;
    for (params, found) in all.iter().zip(found.unwrap()) {
        let (counts, mut scratch) = (TokenCounts::default(), SampleScratch::default());
        let wanted = sample(row, params, &counts, position, &mut scratch);
        match found {
            Some(found) => {
                let bits = |s: &Sampled| [s.raw_logprob, s.behavior_logprob].map(f32::to_bits);
                assert_eq!(found, wanted, "{vocab} tokens, {params:?}");
                assert_eq!(bits(&found), bits(&wanted), "{vocab} tokens, {params:?}");
                drawn += 1;
            }
            None => {
                let kept = wanted.kept.map_or(vocab, |kept| kept.len());
                let many = kept > CUT_ROOM || params.top_k as usize > CUT_ROOM;
                assert!(many || wanted.nonfinite, "{vocab} tokens, {params:?}");
            }
        }
    }
    emulator.turn_around();
    drawn
}

/// Temperature, top-k, top-p, min-p.
fn settings(all: &[(f32, u32, f32, f32)]) -> Vec<SamplingParams> {
    let each =
        all.iter().zip(1..).map(
            |(&(temperature, top_k, top_p, min_p), seed)| SamplingParams {
                temperature,
                top_p,
                top_k,
                min_p,
                seed,
                ..SamplingParams::default()
            },
        );
    each.collect()
}

/// What may lie on either side of a decision.
fn many_settings() -> Vec<SamplingParams> {
    settings(&[
        (1.0, 1, 1.0, 0.0),
        (0.7, 40, 1.0, 0.0),
        (1.0, 1 << 30, 1.0, 0.0),
        (1.0, 0, 0.0, 0.0),
        (1.0, 0, 0.1, 0.0),
        (0.6, 0, 0.9, 0.0),
        (1.0, 0, 0.999, 0.0),
        (1.0, 0, 1.0 - f32::EPSILON / 2.0, 0.0),
        (1.0, 0, 1.0, 0.05),
        (1.0, 0, 1.0, 1.0),
        (1.3, 50, 0.95, 0.0),
        (0.8, 700, 0.5, 0.02),
        (2e-5, 0, 0.9, 0.0),
        (100.0, 0, 0.4, 0.0),
        (100.0, 300, 0.999, 0.0),
        (0.0, 40, 0.9, 0.1),
        (1.0, 0, 1.0, 0.0),
        (1.0, 5_000, 1.0, 0.0),
        (1.0, 5_000, 0.9, 0.0),
    ])
}

/// Rows of every kind, some of one value, many equal ones, zeros of either sign, impossible ones.
fn rows(vocab: usize, rng: &mut Rng) -> Vec<Vec<f32>> {
    let mut row = |value: &dyn Fn(f32, usize) -> f32| -> Vec<f32> {
        (0..vocab).map(|i| value(rng.normal() as f32, i)).collect()
    };
    vec![
        row(&|x, _| x * 3.0),
        row(&|x, _| x * 0.1 - 20.0),
        row(&|_, _| 0.5),
        row(&|x, _| (x * 2.0).round() / 2.0),
        row(&|x, i| if i % 3 == 0 { -1e30 } else { x * 1e3 }),
        row(&|x, i| if i % 5 == 4 { 12.0 + x } else { x * 4.0 }),
    ]
}

#[test]
fn cuts_on_a_device_are_the_samplers() {
    let (emulator, all) = (Arc::new(Emulator::new().unwrap()), many_settings());
    let mut rng = Rng::new(3);
    // None of them a multiple of the threads of a block; the last has more than a block holds.
    for vocab in [1, 7, 515, 2_500, 5_300] {
        for (position, row) in rows(vocab, &mut rng).iter().enumerate() {
            let drawn = check(&emulator, row, &all, position as u64);
            let few = vocab <= CUT_ROOM;
            assert!(drawn == all.len() || !few && drawn >= 8, "{drawn}");
        }
    }
}

#[test]
fn every_number_draws_the_samplers_token() {
    let emulator = Arc::new(Emulator::new().unwrap());
    let row = &rows(300, &mut Rng::new(4))[0];
    let all = settings(&[(1.0, 40, 1.0, 0.0), (1.2, 0, 0.8, 0.0)]);
    for position in 0..60 {
        assert_eq!(check(&emulator, row, &all, position), all.len());
    }
}

#[test]
fn what_a_block_has_no_room_for_and_what_is_broken_is_left_to_the_processor() {
    let emulator = Arc::new(Emulator::new().unwrap());
    let even = vec![1.0; CUT_ROOM + 10];
    // Half a token less, which no rounding makes one more.
    let kept = |count: usize| (count as f32 - 0.5) / even.len() as f32;
    let all = settings(&[
        (1.0, CUT_ROOM as u32, 1.0, 0.0),
        (1.0, 0, kept(CUT_ROOM), 0.0),
        (1.0, CUT_ROOM as u32 + 1, 1.0, 0.0),
        (1.0, 0, kept(CUT_ROOM + 1), 0.0),
        (1.0, 0, 1.0, 0.5),
    ]);
    assert_eq!(check(&emulator, &even, &all[..2], 1), 2);
    assert_eq!(check(&emulator, &even, &all[2..], 1), 0);
    let mut broken = even;
    broken[77] = f32::NAN;
    assert_eq!(check(&emulator, &broken, &all, 1), 0);
}
