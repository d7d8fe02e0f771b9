#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::adapter::Adapter;
use crate::batch::{LogitsWanted, SeqInput};
use crate::forward::{Scratch, forward};
use crate::kernel_support::Levels;
use crate::kv::{BLOCK_TOKENS, KvAllocator, KvPool, blocks_out_of_sight};
use crate::kv_format::KvFormat;
use crate::score::{GenerateOptions, generate, score, score_chunked};
use crate::shapes::starter_shape;
use crate::testing::{
    FAMILIES, Oracle, dense, forms_of, lora, lora_of, model, tiny, tokens, with_experts,
};
use crate::weights::{Model, Weights};
use hone_checkpoint::config::{ExpertsConfig, Family, ModelConfig};
use hone_checkpoint::{
    AdapterConfig, AdapterDtype, AdapterError, DenseConfig, NamedTensor, Target, TensorSource,
};
use hone_kernels::cpu::SimdLevel;
use hone_kernels::format::TensorData;
use hone_kernels::matrix::{PackedMatrix, Rows, RowsMut, Store};
use hone_kernels::ops::log_softmax::token_logprob;
use hone_kernels::rng::Rng;
use hone_kernels::thread_pool::Executor;

/// Logits after every token, the plain way.
fn all_logits(model: &Model, adapter: Option<&Adapter>, text: &[u32]) -> Vec<Vec<f32>> {
    in_chunks(model, adapter, text, text.len())
}

fn in_chunks(
    model: &Model,
    adapter: Option<&Adapter>,
    text: &[u32],
    chunk: usize,
) -> Vec<Vec<f32>> {
    let exec = Executor::new(1);
    let count = text.len().div_ceil(BLOCK_TOKENS);
    let mut kv = KvPool::new(model, count);
    // A table in descending order: where blocks lie must not matter.
    let blocks: Vec<u32> = (0..count as u32).rev().collect();
    let mut scratch = Scratch::default();
    let mut rows = Vec::new();
    for (i, part) in text.chunks(chunk).enumerate() {
        let seq = SeqInput {
            tokens: part,
            start: i * chunk,
            blocks: &blocks,
            adapter,
            logits: LogitsWanted::All,
        };
        let logits = forward(model, &mut kv, &[seq], &exec, &mut scratch);
        rows.extend((0..logits.rows()).map(|r| logits.row(r).to_vec()));
    }
    rows
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter()
        .map(|r| r.iter().map(|v| v.to_bits()).collect())
        .collect()
}

#[test]
fn forward_matches_the_slow_form_in_f64() {
    for cfg in FAMILIES.map(tiny).into_iter().chain([with_experts(false)]) {
        let family = cfg.family;
        let model = model(&cfg, 7);
        let adapters =
            forms_of(&cfg, AdapterDtype::Bf16).map(|form| Adapter::random(&cfg, form, 3));
        let text = tokens(&cfg, 45, 1);
        for adapter in [None, Some(&adapters[0]), Some(&adapters[1])] {
            let slow = Oracle::new(&model, adapter).logits(&text);
            let fast = all_logits(&model, adapter, &text);
            let largest = slow.iter().flatten().fold(0.0f64, |m, v| m.max(v.abs()));
            assert!(largest > 1.0, "logits are too flat to tell anything");
            for (slow, fast) in slow.iter().flatten().zip(fast.iter().flatten()) {
                let error = (slow - f64::from(*fast)).abs();
                assert!(
                    error < 3e-5 * largest,
                    "{family:?}: {fast} should be {slow}"
                );
            }
        }
    }
}

/// What is kept of keys and values has eleven significant bits.
#[test]
fn keys_and_values_in_f16_stay_close_to_the_slow_form() {
    for cfg in FAMILIES.map(tiny) {
        let family = cfg.family;
        let exact = model(&cfg, 7);
        let text = tokens(&cfg, 45, 1);
        let slow = Oracle::new(&exact, None).logits(&text);
        let plain = all_logits(&exact, None, &text);
        let kept = all_logits(&exact.with_kv(KvFormat::F16), None, &text);
        assert_ne!(plain, kept, "{family:?}: nothing was rounded");
        let largest = slow.iter().flatten().fold(0.0f64, |m, v| m.max(v.abs()));
        for (slow, kept) in slow.iter().flatten().zip(kept.iter().flatten()) {
            let error = (slow - f64::from(*kept)).abs();
            assert!(
                error < 2e-3 * largest,
                "{family:?}: {kept} should be {slow}"
            );
        }
    }
}

#[test]
fn an_adapter_and_its_absence_differ() {
    let cfg = tiny(Family::Qwen3);
    let model = model(&cfg, 7);
    let text = tokens(&cfg, 5, 1);
    let plain = all_logits(&model, None, &text);
    for form in forms_of(&cfg, AdapterDtype::F32) {
        let random = Adapter::random(&cfg, form.clone(), 3);
        let zero = Adapter::zero(&cfg, form);
        assert_ne!(plain, all_logits(&model, Some(&random), &text));
        assert_eq!(bits(&plain), bits(&all_logits(&model, Some(&zero), &text)));
    }
}

/// The product of a LoRA's matrices as a dense change says what the LoRA says, but for rounding.
#[test]
fn a_dense_change_says_what_a_low_rank_one_of_the_same_product_says() {
    for cfg in FAMILIES.map(tiny) {
        let model = model(&cfg, 7);
        let lora = lora_of(&cfg, AdapterDtype::F32);
        let (scale, rank) = (lora.scale(), lora.rank);
        let targets = lora.targets.clone();
        let low_rank = Adapter::random(&cfg, lora, 3);
        let tensors = low_rank.to_tensors();
        let product = |pair: &[NamedTensor]| {
            let [a, b] = pair else { panic!("{pair:?}") };
            let inp = a.shape[1];
            let value = |out: usize, k: usize| -> f32 {
                let (a, b) = (&a.data, &b.data);
                let sum: f32 = (0..rank).map(|r| b[out * rank + r] * a[r * inp + k]).sum();
                scale * sum
            };
            let rows = (0..b.shape[0]).flat_map(|out| (0..inp).map(move |k| (out, k)));
            NamedTensor {
                name: a.name.replace("lora_A", "delta"),
                shape: vec![b.shape[0], inp],
                data: rows.map(|(out, k)| value(out, k)).collect(),
            }
        };
        let dtype = AdapterDtype::F32;
        let products = tensors.chunks(2).map(product).collect();
        let dense = DenseConfig { targets, dtype };
        let dense = Adapter::from_tensors(&cfg, dense, products).unwrap();
        let text = tokens(&cfg, 45, 1);
        let said = all_logits(&model, Some(&low_rank), &text).concat();
        let largest = said.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        for (low, dense) in said
            .iter()
            .zip(all_logits(&model, Some(&dense), &text).concat())
        {
            assert!((low - dense).abs() < 5e-5 * largest, "{low} and {dense}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_chunks_or_blocks() {
    let cases = FAMILIES.map(|family| [KvFormat::F32, KvFormat::F16].map(|kv| (family, kv)));
    for (family, kv) in cases.into_iter().flatten() {
        let cfg = tiny(family);
        let model = model(&cfg, 9).with_kv(kv);
        let text = tokens(&cfg, 77, 2);
        for form in forms_of(&cfg, AdapterDtype::Bf16) {
            let adapter = Adapter::random(&cfg, form, 3);
            let whole = bits(&all_logits(&model, Some(&adapter), &text));
            for chunk in [1, 2, 5, 16, 31, 32, 33] {
                let cut = bits(&in_chunks(&model, Some(&adapter), &text, chunk));
                assert!(whole == cut, "{family:?}, {kv:?} in chunks of {chunk}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_batch() {
    for kv in [KvFormat::F32, KvFormat::F16] {
        not_on_the_batch(&model(&tiny(Family::Qwen3), 9).with_kv(kv));
        not_on_the_batch(&model(&with_experts(true), 9).with_kv(kv));
    }
    not_on_the_batch(&model(&with_experts(false), 9));
}

fn not_on_the_batch(model: &Model) {
    let cfg = &model.config;
    let exec = Executor::new(1);
    let [low_rank, _] = forms_of(cfg, AdapterDtype::F32);
    let [_, dense] = forms_of(cfg, AdapterDtype::Bf16);
    let adapters = [low_rank, dense].map(|form| Adapter::random(cfg, form, 1));
    let texts: Vec<Vec<u32>> = (0..9)
        .map(|i| tokens(cfg, 3 + 11 * i % 60, i as u64))
        .collect();
    let per_seq = 2;
    let mut kv = KvPool::new(model, per_seq * texts.len());
    // Garbage from former owners of the blocks must not leak in.
    let mut rng = Rng::new(5);
    for layer in &mut kv.layers {
        for block in 0..(per_seq * texts.len()) as u32 {
            for slot in 0..BLOCK_TOKENS {
                let junk: Vec<f32> = (0..20)
                    .map(|_| {
                        if rng.uniform() < 0.5 {
                            f32::NAN
                        } else {
                            f32::INFINITY
                        }
                    })
                    .collect();
                layer.write(block, slot, &junk, &junk);
            }
        }
    }
    let blocks: Vec<u32> = (0..(per_seq * texts.len()) as u32).collect();
    let adapter = |i: usize| [None, Some(&adapters[0]), Some(&adapters[1])][i / 2 % 3];
    let seqs: Vec<SeqInput> = texts
        .iter()
        .enumerate()
        .map(|(i, text)| SeqInput {
            tokens: text,
            start: 0,
            blocks: &blocks[i * per_seq..],
            adapter: adapter(i),
            logits: if i % 2 == 0 {
                LogitsWanted::All
            } else {
                LogitsWanted::Last
            },
        })
        .collect();
    let mut scratch = Scratch::default();
    let logits = forward(model, &mut kv, &seqs, &exec, &mut scratch);
    let mut row = 0;
    for (i, text) in texts.iter().enumerate() {
        let alone = all_logits(model, adapter(i), text);
        let wanted = if i % 2 == 0 {
            &alone[..]
        } else {
            &alone[text.len() - 1..]
        };
        for alone in wanted {
            assert!(
                bits(std::slice::from_ref(alone)) == bits(&[logits.row(row).to_vec()]),
                "sequence {i}"
            );
            row += 1;
        }
    }
    assert_eq!(row, logits.rows());
}

#[test]
fn bits_do_not_depend_on_threads() {
    let mut many = starter_shape();
    many.family = Family::Qwen3Moe;
    many.experts = Some(ExpertsConfig {
        count: 24,
        chosen: 4,
        ffn: 96,
        normalised: true,
        layers: vec![true; many.layers],
    });
    for shape in [starter_shape(), many] {
        let model = model(&shape, 4).with_kv(KvFormat::F16);
        let text = tokens(&model.config, 300, 8);
        let logprobs = |threads| {
            let exec = Executor::new(threads);
            let scores = score(&model, None, &text, &exec);
            (1..300)
                .map(|p| scores.logprob(p, 1.0, None).to_bits())
                .collect::<Vec<_>>()
        };
        assert_eq!(logprobs(1), logprobs(3));
    }
}

/// Every supported level gives the same bits in a forward of every family, in f32 and bf16, with keys
/// and values in f32 and f16.
#[test]
fn bits_do_not_depend_on_the_instruction_level() {
    let run = || {
        let mut rows = Vec::new();
        for family in FAMILIES {
            let cfg = tiny(family);
            let mut model = model(&cfg, 7);
            if family == Family::Qwen2 {
                model.weights = round_weights(&model.weights, &cfg);
            }
            if family != Family::Qwen3 {
                model.kv = KvFormat::F16;
            }
            for form in forms_of(&cfg, AdapterDtype::Bf16) {
                let adapter = Adapter::random(&cfg, form, 3);
                rows.extend(all_logits(&model, Some(&adapter), &tokens(&cfg, 45, 1)));
            }
        }
        bits(&rows)
    };
    let levels = Levels::ours();
    assert!(levels.force(SimdLevel::Portable));
    let portable = run();
    for level in levels.each().filter(|level| *level != SimdLevel::Portable) {
        assert!(
            portable == run(),
            "{level:?} differs from the portable form"
        );
    }
}

/// The weights with every tensor rounded to bf16 and stored so.
fn round_weights(weights: &Weights, cfg: &ModelConfig) -> Weights {
    struct Rounded(Vec<hone_checkpoint::NamedTensor>);
    impl TensorSource for Rounded {
        fn tensor(
            &self,
            name: &str,
            shape: &[usize],
        ) -> Result<TensorData, hone_checkpoint::LoadError> {
            let values = self.0.tensor(name, shape)?.into_f32();
            let round = |v: f32| half::bf16::from_f32(v).to_bits();
            Ok(TensorData::Bf16(values.into_iter().map(round).collect()))
        }
        fn names(&self) -> Vec<String> {
            self.0.names()
        }
    }
    Weights::from_source(cfg, &Rounded(weights.to_tensors(cfg))).unwrap()
}

#[test]
fn weights_keep_their_values_through_tensors() {
    for family in FAMILIES {
        let cfg = tiny(family);
        let model = model(&cfg, 7);
        let again = Weights::from_source(&cfg, &model.weights.to_tensors(&cfg)).unwrap();
        assert_eq!(again, model.weights);
        let half = round_weights(&model.weights, &cfg);
        assert!(half.bytes() * 2 == model.weights.bytes());
        assert_ne!(half.digest(&cfg), model.digest);
        assert_eq!(
            half.widened().digest(&cfg),
            half.digest(&cfg),
            "the same values in f32"
        );
    }
}

#[test]
fn a_source_with_a_tensor_missing_is_refused_by_name() {
    let cfg = tiny(Family::Qwen2);
    let mut tensors = Weights::random(&cfg, 1).to_tensors(&cfg);
    tensors.retain(|t| t.name != "model.layers.1.self_attn.k_proj.bias");
    let error = Weights::from_source(&cfg, &tensors)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("model.layers.1.self_attn.k_proj.bias"),
        "{error}"
    );
}

#[test]
fn linear_is_the_same_for_every_row_count_and_split() {
    let (out, inp) = (70, 37);
    let mut rng = Rng::new(3);
    let mut draw = |n: usize| (0..n).map(|_| rng.normal() as f32).collect::<Vec<_>>();
    let (w, x, bias) = (draw(out * inp), draw(23 * inp), draw(out));
    let panels = PackedMatrix::from_parts(inp, vec![TensorData::F32(w.clone())]);
    let exec = Executor::new(1);
    let mut expected = vec![0.0; 23 * out];
    for (t, y) in expected.chunks_mut(out).enumerate() {
        for (o, y) in y.iter_mut().enumerate() {
            let sum = (0..inp).fold(0.0f32, |s, k| x[t * inp + k].mul_add(w[o * inp + k], s));
            *y = sum + bias[o];
        }
    }
    for rows in 1..=23 {
        let mut y = vec![0.0; rows * out];
        let from = Rows {
            data: &x,
            stride: inp,
            rows,
        };
        let to = RowsMut {
            data: &mut y,
            stride: out,
        };
        panels.linear(from, to, Store::Set(Some(&bias)), &exec);
        assert_eq!(y, expected[..rows * out], "{rows} rows");
    }
}

#[test]
fn gradients_of_a_linear_layer_match_sums_in_f64() {
    let (out, inp, rows) = (35, 21, 9);
    let mut rng = Rng::new(3);
    let mut draw = |n: usize| (0..n).map(|_| rng.normal() as f32).collect::<Vec<_>>();
    let (w, x, dy) = (draw(out * inp), draw(rows * inp), draw(rows * 48));
    let exec = Executor::new(2);
    let mut grad = PackedMatrix::zeros(out, inp);
    let dys = Rows {
        data: &dy,
        stride: 48,
        rows,
    };
    let xs = Rows {
        data: &x,
        stride: inp,
        rows,
    };
    grad.add_outer(dys, xs, &exec);
    for (index, g) in grad.to_rows(0..out).iter().enumerate() {
        let (o, k) = (index / inp, index % inp);
        let sum: f64 = (0..rows)
            .map(|t| f64::from(dy[t * 48 + o]) * f64::from(x[t * inp + k]))
            .sum();
        assert!(
            (f64::from(*g) - sum).abs() < 1e-5,
            "dW[{o}][{k}] = {g}, not {sum}"
        );
    }
    let mut transposed = PackedMatrix::zeros(0, 0);
    PackedMatrix::from_parts(inp, vec![TensorData::F32(w.clone())]).transpose(
        1..3,
        &mut transposed,
        &hone_kernels::thread_pool::Executor::new(2),
    );
    assert_eq!(
        (transposed.out, transposed.inp),
        (inp, 19),
        "rows 16..35 of 35"
    );
    for k in 0..inp {
        let row = transposed.to_rows(k..k + 1);
        let expected: Vec<f32> = (16..35).map(|o| w[o * inp + k]).collect();
        assert_eq!(row, expected);
    }
}

#[test]
fn exponential_is_accurate_and_total() {
    let row: Vec<f32> = (0..2000).map(|i| -87.0 + 0.0435 * i as f32).collect();
    // token_logprob of a two-token row is a log of exponentials: compare through it.
    for &x in &row {
        let got = f64::from(token_logprob(&[0.0, x.min(0.0)], 1, 1.0, None));
        let exact = f64::from(x.min(0.0)) - f64::from(x.min(0.0)).exp().ln_1p();
        assert!(
            (got - exact).abs() <= 3e-7 * exact.abs().max(1.0),
            "x = {x}: {got} not {exact}"
        );
    }
    assert!(token_logprob(&[0.0, f32::NAN, 1.0], 0, 1.0, None).is_nan());
    assert_eq!(
        token_logprob(&[0.0, -1e30, 0.0], 0, 1.0, None),
        -(2f32.ln())
    );
}

#[test]
fn logprob_follows_temperature_and_kept_ids() {
    let row: Vec<f32> = (0..41).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
    let exact = |token: usize, t: f64, ids: &[usize]| {
        let z = |i: usize| f64::from(row[i]) / t;
        z(token) - ids.iter().map(|&i| z(i).exp()).sum::<f64>().ln()
    };
    let all: Vec<usize> = (0..41).collect();
    for t in [0.5f32, 1.0, 1.7] {
        let got = f64::from(token_logprob(&row, 5, t, None));
        assert!((got - exact(5, f64::from(t), &all)).abs() < 1e-5);
        let kept = f64::from(token_logprob(&row, 5, t, Some(&[2, 5, 9, 30])));
        assert!((kept - exact(5, f64::from(t), &[2, 5, 9, 30])).abs() < 1e-5);
    }
    assert_eq!(token_logprob(&row, 5, 1.0, Some(&[5])), 0.0);
    assert_eq!(token_logprob(&row, 5, 1.0, Some(&[6])), f32::NEG_INFINITY);
}

#[test]
fn greedy_generation_agrees_with_scoring() {
    let cfg = tiny(Family::Qwen2);
    let model = model(&cfg, 7);
    let exec = Executor::new(1);
    let prompt = tokens(&cfg, 6, 1);
    let options = GenerateOptions {
        max_tokens: 30,
        temperature: 0.0,
        seed: 1,
        stop_ids: vec![],
    };
    let completion = generate(&model, None, &prompt, &options, &exec);
    assert_eq!(completion.len(), 30);
    let text = [prompt.as_slice(), &completion].concat();
    let scores = score_chunked(&model, None, (&text, 7), &exec);
    for position in prompt.len()..text.len() {
        let logits = scores.logits(position);
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(logits[text[position] as usize], best);
    }
    let stop_ids = vec![completion[4]];
    let first = completion.iter().position(|t| *t == completion[4]).unwrap();
    let stopped = generate(
        &model,
        None,
        &prompt,
        &GenerateOptions {
            stop_ids,
            ..options
        },
        &exec,
    );
    assert_eq!(stopped, completion[..=first]);
}

#[test]
fn sampled_generation_depends_on_the_seed_only() {
    let cfg = tiny(Family::Qwen2);
    let model = model(&cfg, 7);
    let run = |seed, threads| {
        let options = GenerateOptions {
            max_tokens: 20,
            temperature: 1.0,
            seed,
            stop_ids: vec![],
        };
        generate(&model, None, &[1, 2, 3], &options, &Executor::new(threads))
    };
    assert_eq!(run(5, 1), run(5, 2));
    assert_ne!(run(5, 1), run(6, 1));
}

#[test]
fn adapters_keep_their_values_and_refuse_what_does_not_fit() {
    let cfg = tiny(Family::Llama);
    for form in [AdapterDtype::F32, AdapterDtype::Bf16]
        .into_iter()
        .flat_map(|dtype| forms_of(&cfg, dtype))
    {
        let adapter = Adapter::random(&cfg, form.clone(), 3);
        let again = Adapter::from_tensors(&cfg, form.clone(), adapter.to_tensors()).unwrap();
        assert_eq!(again, adapter);
        assert_eq!(again.digest(), adapter.digest());
        assert_ne!(Adapter::random(&cfg, form, 4).digest(), adapter.digest());
    }
    // Counted truly: every value of every matrix, padded to sixteen outputs.
    let bytes = |form: AdapterConfig| Adapter::zero(&cfg, form).bytes();
    let [f32s, bf16s] = [AdapterDtype::F32, AdapterDtype::Bf16].map(|d| bytes(dense(d).into()));
    let padded = |target: Target| {
        let (out, inp) = target.shape(&cfg);
        out.next_multiple_of(16) * inp
    };
    let values = cfg.layers * Target::ALL.map(padded).iter().sum::<usize>();
    assert_eq!((f32s, bf16s), (4 * values, 2 * values));
    let adapter = Adapter::random(&cfg, lora(AdapterDtype::F32), 3);
    let load = |change: &dyn Fn(&mut Vec<hone_checkpoint::NamedTensor>)| {
        let mut tensors = adapter.to_tensors();
        change(&mut tensors);
        Adapter::from_tensors(&cfg, lora(AdapterDtype::F32), tensors).unwrap_err()
    };
    let name = adapter.to_tensors()[0].name.clone();
    assert_eq!(
        load(&|t| drop(t.remove(0))),
        AdapterError::Missing(name.clone())
    );
    assert_eq!(
        load(&|t| t[0].data[1] = f32::NAN),
        AdapterError::NonFinite(name.clone())
    );
    assert!(matches!(
        load(&|t| t[0].shape.reverse()),
        AdapterError::WrongShape { .. }
    ));
    let mut extra = adapter.to_tensors()[0].clone();
    extra.name = "base_model.model.lm_head.lora_A.weight".into();
    let unexpected = AdapterError::Unexpected(extra.name.clone());
    assert_eq!(load(&|t| t.push(extra.clone())), unexpected);
}

#[test]
fn blocks_are_shared_and_freed_once() {
    let mut kv = KvAllocator::new(3);
    let (a, b) = (kv.alloc().unwrap(), kv.alloc().unwrap());
    assert_ne!(a, b);
    kv.retain(a);
    assert!(!kv.release(a));
    assert_eq!((kv.holders(a), kv.free()), (1, 1));
    assert!(kv.release(a));
    assert!(kv.release(b));
    assert_eq!((kv.free(), kv.blocks()), (3, 3));
    assert!(
        std::panic::catch_unwind(move || kv.release(a)).is_err(),
        "double release"
    );
}

#[test]
fn only_windowed_models_lose_sight_of_blocks() {
    let mut cfg = tiny(Family::Qwen3);
    assert_eq!(
        blocks_out_of_sight(&cfg, 1000),
        0,
        "one layer sees everything"
    );
    cfg.windows = vec![Some(40), Some(21)];
    assert_eq!(
        blocks_out_of_sight(&cfg, 70),
        0,
        "position 31 is still seen"
    );
    assert_eq!(blocks_out_of_sight(&cfg, 71), 1);
}

#[test]
fn executor_runs_every_part_once_and_reports_panics() {
    let exec = Executor::new(3);
    for parts in [1, 2, 7, 60] {
        let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
        exec.run(parts, &|part| {
            counts[part].fetch_add(1, Ordering::Relaxed);
        });
        assert!(
            counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
            "{parts} parts"
        );
    }
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        exec.run(5, &|part| assert!(part != 3, "part 3 fails on purpose"));
    }));
    assert!(failed.is_err());
    let after = AtomicUsize::new(0);
    exec.run(4, &|_| {
        after.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(after.into_inner(), 4, "the pool works on after a panic");
}

/// Enough rows under enough adapters that threads share the runs.
#[test]
fn bits_do_not_depend_on_how_adapters_are_shared_out() {
    let model = model(&starter_shape(), 4);
    let cfg = &model.config;
    let adapters: Vec<Adapter> = (0..8)
        .map(|seed| match seed % 3 {
            0 => Adapter::random(cfg, dense(AdapterDtype::Bf16), seed),
            _ => Adapter::random(cfg, lora(AdapterDtype::F32), seed),
        })
        .collect();
    let texts: Vec<Vec<u32>> = (0..9).map(|i| tokens(cfg, 20 + i as usize, i)).collect();
    let blocks: Vec<u32> = (0..9).collect();
    let seqs: Vec<SeqInput> = texts
        .iter()
        .enumerate()
        .map(|(i, text)| SeqInput {
            tokens: text,
            start: 0,
            blocks: &blocks[i..],
            // One of them, in the middle, has none.
            adapter: adapters
                .get(if i < 4 { i } else { i.wrapping_sub(1) })
                .filter(|_| i != 4),
            logits: LogitsWanted::Last,
        })
        .collect();
    let said = |threads, seqs: &[SeqInput]| {
        let mut kv = KvPool::new(&model, 9);
        let (exec, mut scratch) = (Executor::new(threads), Scratch::default());
        let logits = forward(&model, &mut kv, seqs, &exec, &mut scratch);
        bits(
            &(0..seqs.len())
                .map(|r| logits.row(r).to_vec())
                .collect::<Vec<_>>(),
        )
    };
    // Many short runs, few long ones, and one alone.
    for run in [1, 4, 9] {
        let under = |i: usize| seqs[(i / run * run + 1) % 9].adapter;
        let seqs: Vec<SeqInput> = seqs
            .iter()
            .enumerate()
            .map(|(i, seq)| SeqInput {
                adapter: under(i),
                ..*seq
            })
            .collect();
        let wanted: Vec<_> = seqs.iter().flat_map(|seq| said(1, &[*seq])).collect();
        for threads in [1, 3, 16] {
            assert!(wanted == said(threads, &seqs), "{run} {threads}");
        }
    }
}
