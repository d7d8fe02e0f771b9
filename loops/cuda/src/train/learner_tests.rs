//! A learner on the emulated device against one on the processor, bit for bit.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::emulator::Emulator;
use crate::testing::{
    PPO, config, dense, go_on, learner, lora, lora_of, model, policy, recorded, rows, tiny,
    with_experts,
};
use crate::{Device, Driver, Launch, Limits};
use hone_checkpoint::AdapterDtype;
use hone_checkpoint::config::{Family, ModelConfig};
use hone_kernels::format::block_quant::WeightFormat;
use hone_kernels::thread_pool::Executor;
use hone_nn::*;
use hone_nn::{Adapter, Model};

/// An emulated device that counts its launches.
struct Watched {
    emulator: Emulator,
    launches: Arc<AtomicUsize>,
}

// SAFETY: memory is the emulator's.
unsafe impl Driver for Watched {
    fn name(&self) -> String {
        self.emulator.name()
    }
    fn second(&self) -> Result<Arc<dyn Driver>, DeviceError> {
        let (emulator, launches) = (self.emulator.clone(), self.launches.clone());
        Ok(Arc::new(Self { emulator, launches }))
    }
    fn wait(&self) -> Result<(), DeviceError> {
        self.emulator.wait()
    }
    fn limits(&self) -> Limits {
        self.emulator.limits()
    }
    fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.emulator.memory()
    }
    fn alloc(&self, bytes: usize) -> Result<u64, DeviceError> {
        self.emulator.alloc(bytes)
    }
    unsafe fn free(&self, at: u64) {
        // SAFETY: the same contract, here and below.
        unsafe { self.emulator.free(at) }
    }
    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let zeros = bytes.len() > 1_024 && bytes.iter().all(|byte| *byte == 0);
        assert!(!zeros, "zeros are made there");
        // SAFETY: the same contract.
        unsafe { self.emulator.write(to, bytes) }
    }
    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the same contract.
        unsafe { self.emulator.clear(at, bytes) }
    }
    unsafe fn fill(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the same contract.
        unsafe { self.emulator.fill(to, bytes) }
    }
    unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the same contract.
        unsafe { self.emulator.read(from, to) }
    }
    unsafe fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        self.launches.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the same contract.
        unsafe { self.emulator.launch(launch) }
    }
}

/// The model on a device, and how many launches there were.
fn device(model: &Arc<Model>) -> (Arc<dyn DeviceModel>, Emulator, Arc<AtomicUsize>) {
    let (emulator, launches) = (Emulator::new().unwrap(), Arc::<AtomicUsize>::default());
    let watched = Watched {
        emulator: emulator.clone(),
        launches: launches.clone(),
    };
    let exec = Executor::new(1);
    let device = Device::load(Arc::new(watched), model.clone(), &exec, &mut |_, _| {});
    (device.unwrap(), emulator, launches)
}

fn on(device: &Arc<dyn DeviceModel>, mut learner: Learner) -> Learner {
    learner.use_device(device).unwrap();
    learner
}

/// A report but for its times: a device cuts a step into other slices.
fn report(report: Result<StepReport, StepError>) -> StepReport {
    StepReport {
        slices: 0,
        longest_slice_us: 0,
        ..report.unwrap()
    }
}

/// The rows of other tests, with teachers and imitated tokens among them.
fn mixed(cfg: &ModelConfig, seed: u64) -> Vec<TrainRow> {
    let mut rows = rows(cfg, seed);
    for (i, loss) in rows.iter_mut().flat_map(|row| &mut row.loss).enumerate() {
        loss.sequence = (i / 5) as u32;
        if i % 4 == 0 {
            // Ids that may be the token's own, or cut away.
            let ids: Vec<u32> = (0..5)
                .map(|k| (i as u32 * 7 + k * 11) % cfg.vocab as u32)
                .collect();
            let logprob = |k: usize| -2.0 - 0.3 * k as f32;
            loss.teacher = Some(TopK {
                ids,
                proximal: (0..5).map(logprob).collect(),
                teacher: (0..5).map(|k| logprob(4 - k)).collect(),
            });
        }
        match i % 6 {
            1 => {
                loss.kind = LossKind::Supervised;
                loss.soft = (i % 4 == 1).then(|| SoftTargets {
                    ids: vec![i as u32 % cfg.vocab as u32, 2],
                    probs: vec![0.7, 0.2],
                });
            }
            3 if loss.teacher.is_some() => loss.kind = LossKind::Taught,
            _ => {}
        }
    }
    // One token of another temperature keeps an id twice.
    let own = rows[0].tokens[rows[0].loss[0].position];
    rows[0].loss[0].kept = Some([own, 3, 9, 3, own].into());
    rows
}

fn settings(trainable: Trainable) -> LearnerConfig {
    LearnerConfig {
        kl_coef: 0.1,
        entropy_coef: 0.02,
        ..config(trainable, PPO)
    }
}

/// Two steps here and there say the same.
fn compare(model: &Arc<Model>, cfg: &LearnerConfig) {
    let (device, emulator, launches) = device(model);
    let mut here = learner(model, cfg.clone());
    let mut there = on(&device, learner(model, cfg.clone()));
    for seed in [1, 2] {
        let rows = mixed(&model.config, seed);
        let before = launches.load(Ordering::Relaxed);
        let wanted = report(here.step(&rows, &mut go_on));
        let found = report(there.step(&rows, &mut go_on));
        assert_eq!(found, wanted, "{cfg:?}");
        assert!(launches.load(Ordering::Relaxed) > before + 100);
        assert!(there.state() == here.state(), "{cfg:?}");
        emulator.turn_around();
    }
}

/// Two steps on the rows of other tests, some of whose tokens were sampled at a low temperature.
#[test]
fn cold_rows_have_the_processors_bits() {
    let model = Arc::new(model(&tiny(Family::Qwen3), 5));
    let (device, ..) = device(&model);
    let [low_rank, _] = forms();
    let mut here = learner(&model, settings(low_rank.clone()));
    let mut there = on(&device, learner(&model, settings(low_rank)));
    for (seed, temperature) in [(1, 5e-5), (2, 1.1e-5)] {
        let mut rows = mixed(&model.config, seed);
        for loss in rows
            .iter_mut()
            .flat_map(|row| row.loss.iter_mut().step_by(3))
        {
            loss.temperature = temperature;
        }
        let wanted = report(here.step(&rows, &mut go_on));
        assert!(
            !wanted.skipped_nonfinite && wanted.updates == 1,
            "{wanted:?}"
        );
        assert_eq!(report(there.step(&rows, &mut go_on)), wanted);
        assert!(there.state() == here.state(), "{temperature}");
    }
}

fn forms() -> [Trainable; 2] {
    let low_rank = lora(AdapterDtype::Bf16);
    [
        Trainable::Lora(low_rank),
        Trainable::Dense(dense(AdapterDtype::F32)),
    ]
}

#[test]
fn a_step_on_a_device_has_the_processors_bits() {
    for family in [Family::Llama, Family::Qwen2, Family::Qwen3] {
        let model = Arc::new(model(&tiny(family), 5));
        for trainable in forms() {
            compare(&model, &settings(trainable));
        }
    }
}

#[test]
fn so_it_has_in_every_weight_format_and_whatever_is_kept() {
    let formats = [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4];
    for (format, bytes) in formats.into_iter().zip([0, 40_000, 1 << 20]) {
        let cfg = ModelConfig {
            layers: 4,
            windows: vec![None, Some(21), Some(5), None],
            ..tiny(Family::Qwen3)
        };
        let base = model(&cfg, 6);
        let model = Model::new(cfg, base.weights.into_format(format));
        let [low_rank, _] = forms();
        let settings = LearnerConfig {
            activation_bytes_max: bytes,
            ..settings(low_rank)
        };
        compare(&Arc::new(model), &settings);
    }
}

#[test]
fn heads_of_every_size_long_texts_and_objectives_of_every_kind_are_covered() {
    let gspo = Objective::Gspo {
        clip_low: 0.2,
        clip_high: 0.28,
        correction_cap: 2.0,
    };
    // Query heads, key-value heads, dimensions, window, vocabulary.
    let shapes = [
        (3, 3, 64, None, 53, gspo, 1),
        (7, 1, 34, Some(40), 1_500, PPO, 2),
        (4, 2, 160, None, 53, Objective::Cispo { ratio_cap: 1.5 }, 1),
    ];
    for (heads, kv_heads, head_dim, window, vocab, objective, updates) in shapes {
        let cfg = ModelConfig {
            heads,
            kv_heads,
            head_dim,
            vocab,
            windows: vec![window, None],
            max_positions: 150,
            ..tiny(Family::Qwen3)
        };
        let model = Arc::new(model(&cfg, 7));
        let (device, ..) = device(&model);
        let [low_rank, _] = forms();
        let settings = LearnerConfig {
            objective,
            updates_per_step: updates,
            minibatch_tokens: 200,
            ..settings(low_rank)
        };
        let mut rows = mixed(&cfg, 3);
        rows[0].tokens = crate::testing::tokens(&cfg, 140, 9);
        rows[0].loss = (20..139).step_by(7).map(policy).collect();
        let mut here = learner(&model, settings.clone());
        let mut there = on(&device, learner(&model, settings));
        let wanted = report(here.step(&rows, &mut go_on));
        assert_eq!(report(there.step(&rows, &mut go_on)), wanted);
        assert!(there.state() == here.state(), "{heads} heads of {head_dim}");
    }
}

#[test]
fn log_probs_are_the_processors() {
    let model = Arc::new(model(&tiny(Family::Qwen2), 5));
    let (device, ..) = device(&model);
    let [low_rank, _] = forms();
    let mut here = learner(&model, settings(low_rank.clone()));
    let mut there = on(&device, learner(&model, settings(low_rank)));
    let rows = mixed(&model.config, 4);
    let ids: PerToken<Vec<u32>> = rows
        .iter()
        .map(|row| {
            (0..row.loss.len() as u32)
                .map(|i| (0..i % 4).collect())
                .collect()
        })
        .collect();
    let pause = &mut go_on;
    assert_eq!(there.logprobs(&rows, pause), here.logprobs(&rows, pause));
    for under in [Under::Current, Under::Reference] {
        assert_eq!(
            there.top_logprobs(&rows, under, 4, pause),
            here.top_logprobs(&rows, under, 4, pause)
        );
        assert_eq!(
            there.logprobs_of(&rows, under, &ids, pause),
            here.logprobs_of(&rows, under, &ids, pause)
        );
    }
}

#[test]
fn a_model_with_experts_is_measured_on_a_device_and_trained_by_the_processor() {
    for shape in [with_experts(true), with_experts(false)] {
        let model = Arc::new(model(&shape, 7));
        let (device, emulator, launches) = device(&model);
        assert!(!device.trains());
        let low_rank = lora_of(&shape, AdapterDtype::F32);
        let [before, now] = [3, 4].map(|seed| Adapter::random(&shape, low_rank.clone(), seed));
        let cfg = settings(Trainable::Lora(low_rank));
        let begin = || Learner::from_adapter(model.clone(), cfg.clone(), &now).unwrap();
        let (mut here, mut there) = (begin(), on(&device, begin()));
        // Experts that other weights chose, of some tokens.
        let mut rows = recorded(&model, &before, &mixed(&shape, 1));
        let free = rows
            .iter_mut()
            .flat_map(|row| row.loss.iter_mut().step_by(3));
        free.for_each(|loss| loss.experts = None);
        let pause = &mut go_on;
        for rows in [&mixed(&shape, 1), &rows] {
            let launched = launches.load(Ordering::Relaxed);
            assert_eq!(there.logprobs(rows, pause), here.logprobs(rows, pause));
            assert_eq!(
                there.top_logprobs(rows, Under::Reference, 4, pause),
                here.top_logprobs(rows, Under::Reference, 4, pause)
            );
            assert!(launches.load(Ordering::Relaxed) > launched + 50);
            let wanted = report(here.step(rows, &mut go_on));
            assert_eq!(report(there.step(rows, &mut go_on)), wanted);
            assert!(there.state() == here.state());
            emulator.turn_around();
        }
        assert!(!there.fell_back());
    }
}

#[test]
fn a_learner_goes_on_elsewhere_with_the_same_bits() {
    let model = Arc::new(model(&tiny(Family::Qwen3), 5));
    let (device, ..) = device(&model);
    let cfg = settings(Trainable::Lora(lora(AdapterDtype::Bf16)));
    let all = [1, 2, 3].map(|seed| mixed(&model.config, seed));
    let mut here = Learner::new(model.clone(), cfg.clone()).unwrap();
    let mut state = here.state();
    for (number, rows) in all.iter().enumerate() {
        here.step(rows, &mut go_on).unwrap();
        let mut other = Learner::resume(model.clone(), cfg.clone(), &state).unwrap();
        if number != 1 {
            other = on(&device, other);
        }
        // A step that is stopped changes nothing, wherever it is.
        let mut slices = 7;
        let stopped = other.step(rows, &mut || {
            slices -= 1;
            if slices == 0 {
                Control::Stop
            } else {
                Control::Continue
            }
        });
        assert_eq!(stopped, Err(StepError::Stopped));
        other.step(rows, &mut go_on).unwrap();
        other.rest();
        state = other.state();
        assert!(state == here.state(), "step {number}");
    }
}

#[test]
fn a_full_device_leaves_the_work_to_the_processor() {
    let model = Arc::new(model(&tiny(Family::Qwen3), 5));
    let (device, emulator, launches) = device(&model);
    let cfg = settings(Trainable::Lora(lora(AdapterDtype::F32)));
    let mut here = learner(&model, cfg.clone());
    let mut there = on(&device, learner(&model, cfg));
    for (seed, full) in [(1, true), (2, false), (3, true)] {
        emulator.leave(if full { 0 } else { 1 << 30 });
        let before = launches.load(Ordering::Relaxed);
        let rows = mixed(&model.config, seed);
        let wanted = report(here.step(&rows, &mut go_on));
        assert_eq!(report(there.step(&rows, &mut go_on)), wanted);
        assert!(there.state() == here.state());
        let launched = launches.load(Ordering::Relaxed) > before;
        assert_eq!(launched, !full, "step {seed}");
        there.rest();
    }
    // So does a text that is longer than the device has angles for.
    emulator.leave(1 << 30);
    let before = launches.load(Ordering::Relaxed);
    let mut rows = mixed(&model.config, 4);
    let more = crate::testing::tokens(&model.config, 290, 9);
    rows[1].tokens.extend(more);
    let wanted = report(here.step(&rows, &mut go_on));
    assert_eq!(report(there.step(&rows, &mut go_on)), wanted);
    assert_eq!(launches.load(Ordering::Relaxed), before);
}

#[test]
fn a_device_that_fails_fails_the_step_and_changes_nothing() {
    let model = Arc::new(model(&tiny(Family::Qwen3), 5));
    let (device, emulator, _) = device(&model);
    let cfg = settings(Trainable::Lora(lora(AdapterDtype::F32)));
    let mut there = on(&device, learner(&model, cfg));
    let (rows, before) = (mixed(&model.config, 1), there.state());
    emulator.fail(true);
    let error = there.step(&rows, &mut go_on).unwrap_err();
    assert!(matches!(error, StepError::Device(_)), "{error}");
    assert!(error.to_string().contains("has stopped working"), "{error}");
    assert!(there.state() == before);
    emulator.fail(false);
    assert!(there.step(&rows, &mut go_on).is_ok());
}

#[test]
fn what_a_device_does_not_train_is_refused_in_a_sentence() {
    let shape = tiny(Family::Qwen3);
    let model = Arc::new(model(&shape, 5));
    let (device, ..) = device(&model);
    let full = config(Trainable::Full, PPO);
    let error = learner(&model, full).use_device(&device).unwrap_err();
    assert!(error.to_string().contains("every weight"), "{error}");
    let other = Arc::new(crate::testing::model(&shape, 6));
    let low_rank = config(Trainable::Lora(lora(AdapterDtype::F32)), PPO);
    let error = learner(&other, low_rank).use_device(&device).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
}
