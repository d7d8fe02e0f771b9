#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::{model, tiny};
use hone_checkpoint::config::Family;

/// Of one layer: two heads of 300 dimensions, which are more than are rounded at a time.
fn layer(format: KvFormat) -> KvLayer {
    let cfg = ModelConfig {
        head_dim: 300,
        ..tiny(Family::Qwen2)
    };
    KvLayer::new(&cfg, format, 3)
}

/// Numbers of every size, also those that f16 has not.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let odd = [
        0.0,
        -0.0,
        65_504.0,
        65_519.9,
        65_520.0,
        -1e9,
        f32::MIN,
        6e-8,
        -2.9e-8,
        1e-30,
    ];
    let number = |i: usize| {
        let bits = (i as u32).wrapping_mul(2_654_435_761) ^ seed;
        (bits as i32 >> 8) as f32 * 2f32.powi((i % 40) as i32 - 44)
    };
    let numbers = (0..count).map(|i| odd.get(i % 97).copied().unwrap_or_else(|| number(i)));
    numbers.collect()
}

/// What is kept, as the format says it in words.
fn wanted(format: KvFormat, number: f32) -> f32 {
    match format {
        KvFormat::F32 => number,
        KvFormat::F16 => f16::from_f32(number.clamp(-65_504.0, 65_504.0)).to_f32(),
    }
}

fn read<E: Copy + Into<f32>>(
    layer: &KvLayer,
    block: u32,
    head: usize,
    slot: usize,
) -> [Vec<f32>; 2] {
    let at = |bytes: &[u8], index: usize| {
        // SAFETY: the layer holds numbers of this type from here on.
        unsafe { bytes.as_ptr().cast::<E>().add(index).read().into() }
    };
    let keys = &layer.keys[layer.key_at(block, head, slot / LANES)..];
    let values = &layer.values[layer.value_at(block, head, slot)..];
    let dims = 0..layer.head_dim;
    [
        dims.clone()
            .map(|d| at(keys, d * LANES + slot % LANES))
            .collect(),
        dims.map(|d| at(values, d)).collect(),
    ]
}

#[test]
fn what_is_kept_is_what_the_writer_is_told_and_what_is_read() {
    for format in [KvFormat::F32, KvFormat::F16] {
        let mut layer = layer(format);
        let width = layer.kv_heads * layer.head_dim;
        for (block, slot) in [(0, 0), (1, 17), (2, 31), (1, 18)] {
            let seed = block * 100 + slot as u32;
            let (key, value) = (numbers(width, seed), numbers(width, seed + 7));
            let (mut told_key, mut told_value) = (key.clone(), value.clone());
            // SAFETY: nobody else writes.
            unsafe {
                layer
                    .writer()
                    .write(block, slot, &mut told_key, &mut told_value);
            };
            let bits = |of: &[f32]| of.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let keep = |of: &[f32]| {
                of.iter()
                    .map(|x| wanted(format, *x).to_bits())
                    .collect::<Vec<_>>()
            };
            assert_eq!(bits(&told_key), keep(&key));
            assert_eq!(bits(&told_value), keep(&value));
            for head in 0..layer.kv_heads {
                let dims = head * layer.head_dim..(head + 1) * layer.head_dim;
                let found = match format {
                    KvFormat::F32 => read::<f32>(&layer, block, head, slot),
                    KvFormat::F16 => read::<f16>(&layer, block, head, slot),
                };
                assert_eq!(bits(&found[0]), bits(&told_key[dims.clone()]), "{format:?}");
                assert_eq!(bits(&found[1]), bits(&told_value[dims]), "{format:?}");
            }
        }
    }
}

#[test]
fn a_copied_block_holds_the_same_and_its_neighbours_stay() {
    for format in [KvFormat::F32, KvFormat::F16] {
        let mut layer = layer(format);
        let width = layer.kv_heads * layer.head_dim;
        for block in 0..3 {
            for slot in 0..BLOCK_TOKENS {
                let seed = block * 1_000 + slot as u32;
                layer.write(
                    block,
                    slot,
                    &numbers(width, seed),
                    &numbers(width, seed + 500),
                );
            }
        }
        let all = |layer: &KvLayer, block: u32| {
            let (at, end) = (layer.key_at(block, 0, 0), layer.key_at(block + 1, 0, 0));
            let keys = layer.keys[at..end].to_vec();
            let (at, end) = (layer.value_at(block, 0, 0), layer.value_at(block + 1, 0, 0));
            [keys, layer.values[at..end].to_vec()]
        };
        let before = [all(&layer, 0), all(&layer, 1), all(&layer, 2)];
        layer.copy(2, 1);
        assert!(all(&layer, 0) == before[0] && all(&layer, 2) == before[2]);
        assert!(all(&layer, 1) == before[2] && before[1] != before[2]);
    }
}

#[test]
fn f16_takes_half_the_memory() {
    let cfg = tiny(Family::Qwen3);
    let bytes = |format| {
        let pool = KvPool::new(&model(&cfg, 1).with_kv(format), 5);
        let layers = pool.layers.iter().map(|l| l.keys.len() + l.values.len());
        let held: usize = layers.sum();
        assert_eq!(held, 5 * KvPool::bytes_per_block(&cfg, format));
        held
    };
    assert_eq!(bytes(KvFormat::F32), 2 * bytes(KvFormat::F16));
}

/// More than a processor can address: said, not panicked.
#[test]
fn too_little_memory_is_an_error() {
    let shape = ModelConfig {
        head_dim: 1 << 12,
        ..tiny(Family::Qwen2)
    };
    let model = model(&shape, 1);
    assert!(KvPool::try_new(&model, u32::MAX as usize).is_err());
    assert!(KvPool::try_new(&model, 1).is_ok());
}
