//! An emulated device that says wrong numbers, or has too little memory.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Device;
use super::driver::{Driver, Growing, Limits};
use super::emulator::Emulator;
use super::launches::Launch;
use super::pass::DevicePass;
use super::tests::{emulator, on};
use crate::testing::{lora_of, model, tiny, tokens, with_experts};
use hone_checkpoint::config::{Family, ModelConfig};
use hone_checkpoint::{AdapterDtype, LoraConfig};
use hone_kernels::thread_pool::Executor;
use hone_nn::sample::{PlainDraw, SamplingParams};
use hone_nn::{Adapter, BLOCK_TOKENS, LogitsWanted, SeqInput};
use hone_nn::{DeviceError, DeviceModel, ForwardBackend};

/// An emulated device with a fault: it changes one number of everything that is read from it, or
/// refuses memory once.
struct Faulty {
    inner: Emulator,
    changes: bool,
    /// How often memory is given out until it is refused.
    refuses: AtomicU64,
    /// Bytes that were ever given out.
    given: AtomicU64,
}

// SAFETY: memory is the emulator's.
unsafe impl Driver for Faulty {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn second(&self) -> Result<Arc<dyn Driver>, DeviceError> {
        self.inner.second()
    }
    fn wait(&self) -> Result<(), DeviceError> {
        self.inner.wait()
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.inner.memory()
    }
    fn alloc(&self, bytes: usize) -> Result<u64, DeviceError> {
        if self.refuses.fetch_sub(1, Ordering::Relaxed) == 0 {
            let (what, needed, free) = ("a buffer".to_owned(), bytes as u64, 0);
            return Err(DeviceError::Memory { what, needed, free });
        }
        self.given.fetch_add(bytes as u64, Ordering::Relaxed);
        self.inner.alloc(bytes)
    }
    unsafe fn free(&self, at: u64) {
        // SAFETY: the same contract, here and below.
        unsafe { self.inner.free(at) }
    }
    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the same contract.
        unsafe { self.inner.write(to, bytes) }
    }
    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the same contract.
        unsafe { self.inner.clear(at, bytes) }
    }
    unsafe fn fill(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the same contract.
        unsafe { self.inner.fill(to, bytes) }
    }
    unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the same contract.
        unsafe { self.inner.read(from, to)? };
        if self.changes {
            to[4] ^= 1;
        }
        Ok(())
    }
    unsafe fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        // SAFETY: the same contract.
        unsafe { self.inner.launch(launch) }
    }
}

fn faulty(changes: bool) -> Arc<Faulty> {
    Arc::new(Faulty {
        inner: Emulator::new().unwrap(),
        changes,
        refuses: AtomicU64::new(u64::MAX),
        given: AtomicU64::new(0),
    })
}

#[test]
fn a_device_that_computes_something_else_serves_nothing() {
    let model = Arc::new(model(&tiny(Family::Qwen2), 5));
    let exec = Executor::new(1);
    let load = |driver| Device::load(driver, Arc::clone(&model), &exec, &mut |_, _| {});
    let error = load(faulty(true)).err().unwrap();
    assert!(
        matches!(error, DeviceError::Differs { at: 1, .. }),
        "{error}"
    );
    assert!(load(faulty(false)).is_ok());
    let model = Arc::new(crate::testing::model(&with_experts(true), 5));
    let load = |driver| Device::load(driver, Arc::clone(&model), &exec, &mut |_, _| {});
    let error = load(faulty(true)).err().unwrap();
    assert!(matches!(error, DeviceError::OtherExperts), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_with_the_numbers() {
    let model = Arc::new(model(&tiny(Family::Qwen2), 5));
    let exec = Executor::new(1);
    let driver = emulator();
    driver.leave(1_000);
    let load = || {
        Device::load(
            Arc::clone(&driver) as Arc<dyn Driver>,
            Arc::clone(&model),
            &exec,
            &mut |_, _| {},
        )
    };
    let error = load().err().unwrap().to_string();
    assert!(
        error.contains("1000 bytes") && error.contains("weights"),
        "{error}"
    );
    driver.leave(64 << 20);
    let device = load().unwrap();
    let error = DevicePass::new(Arc::clone(&device.weights), 1_000_000)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("kv_cache_bytes_max"), "{error}");
    let wide = ModelConfig {
        head_dim: 258,
        ..tiny(Family::Qwen2)
    };
    let wide = Arc::new(crate::testing::model(&wide, 1));
    let error = Device::load(emulator(), wide, &exec, &mut |_, _| {})
        .err()
        .unwrap();
    assert!(error.to_string().contains("258 dimensions"), "{error}");
}

#[test]
fn memory_that_cannot_grow_is_as_large_as_before() {
    let emulator = emulator();
    let driver = Arc::clone(&emulator) as Arc<dyn Driver>;
    let mut growing = Growing::default();
    assert!(growing.take(&driver, 10_000).is_ok());
    emulator.leave(5_000);
    let error = growing.take(&driver, 100_000).err().unwrap();
    assert!(matches!(error, DeviceError::Memory { .. }), "{error}");
    emulator.leave(0);
    assert!(growing.take(&driver, 10_000).is_ok());
}

/// Draws from all and from some tokens.
fn draws() -> [LogitsWanted; 2] {
    [1.0, 0.9].map(|top_p| {
        let params = SamplingParams {
            top_p,
            ..SamplingParams::default()
        };
        LogitsWanted::Draws(PlainDraw::of(&params, 3).unwrap(), 1)
    })
}

/// What was reserved is all that any pass of its size takes.
#[test]
fn passes_within_what_was_reserved_take_no_more_memory() {
    let (rows, picked) = (96, 27);
    for cfg in [tiny(Family::Qwen3), with_experts(true)] {
        let model = Arc::new(model(&cfg, 5));
        let driver = faulty(false);
        let device = on(Arc::clone(&driver) as Arc<dyn Driver>, &model);
        let widest = LoraConfig {
            rank: 256,
            ..lora_of(&cfg, AdapterDtype::F32)
        };
        let adapters = [1, 2, 3, 4].map(|seed| Adapter::random(&cfg, widest.clone(), seed));
        adapters.iter().for_each(|a| device.upload(a).unwrap());
        let blocks = cfg.max_positions.div_ceil(BLOCK_TOKENS) as u32;
        let mut pass = DevicePass::new(Arc::clone(&device.weights), 4 * blocks as usize).unwrap();
        pass.reserve(rows, picked).unwrap();
        let before = driver.given.load(Ordering::Relaxed);
        let text = tokens(&cfg, cfg.max_positions, 7);
        let [uncut, cut] = draws();
        for counts in [[93, 1, 1, 1], [24, 24, 24, 24], [1, 1, 1, 1], [96, 0, 0, 0]] {
            let first = match counts[0] {
                0..=24 => LogitsWanted::All,
                _ => LogitsWanted::None,
            };
            let wanted = [first, uncut, cut, LogitsWanted::Last];
            for end in [96, cfg.max_positions] {
                let seqs = (0..4).filter(|at| counts[*at] > 0);
                let tables: Vec<Vec<u32>> = (0..4)
                    .map(|i| (i * blocks..(i + 1) * blocks).collect())
                    .collect();
                let batch: Vec<SeqInput> = seqs
                    .map(|at| SeqInput {
                        tokens: &text[end - counts[at]..end],
                        start: end - counts[at],
                        blocks: &tables[at],
                        adapter: Some(&adapters[at]),
                        logits: wanted[at],
                    })
                    .collect();
                pass.forward(&batch).unwrap();
            }
        }
        let more = driver.given.load(Ordering::Relaxed) - before;
        assert_eq!(more, 0, "bytes");
    }
}

/// Wherever memory is refused, the same pass can be made again, and says what it would have said.
#[test]
fn a_pass_that_was_refused_memory_can_be_made_again() {
    for cfg in [tiny(Family::Qwen3), with_experts(true)] {
        let model = Arc::new(model(&cfg, 5));
        let driver = faulty(false);
        let device = on(Arc::clone(&driver) as Arc<dyn Driver>, &model);
        let adapter = Adapter::random(&cfg, lora_of(&cfg, AdapterDtype::F32), 1);
        let text = tokens(&cfg, 41, 7);
        let through = |refuses: u64| {
            // A copy is not on the device yet.
            let adapter = adapter.clone();
            let mut pass = DevicePass::new(Arc::clone(&device.weights), 2).unwrap();
            driver.refuses.store(refuses, Ordering::Relaxed);
            let (mut said, mut drawn, mut refused) = (Vec::new(), None, false);
            let [_, cut] = draws();
            for (part, logits) in [(0..40, LogitsWanted::All), (40..41, cut)] {
                let seq = SeqInput {
                    tokens: &text[part.clone()],
                    start: part.start,
                    blocks: &[1, 0],
                    adapter: Some(&adapter),
                    logits,
                };
                let found = match pass.forward(&[seq]) {
                    Ok(found) => found,
                    Err(error) => {
                        assert!(matches!(error, DeviceError::Memory { .. }), "{error}");
                        refused = true;
                        pass.forward(&[seq]).unwrap()
                    }
                };
                drawn = found.drawn(0).cloned();
                if drawn.is_none() {
                    said.extend((0..part.len()).flat_map(|i| found.row(i).to_vec()));
                }
            }
            ((said, drawn), refused)
        };
        let (wanted, _) = through(u64::MAX);
        let mut refusals = 0;
        loop {
            let (said, refused) = through(refusals);
            assert!(said == wanted, "after {refusals}");
            if !refused {
                break;
            }
            refusals += 1;
        }
        assert!(refusals > 15, "{refusals}");
        driver.refuses.store(u64::MAX, Ordering::Relaxed);
    }
}
