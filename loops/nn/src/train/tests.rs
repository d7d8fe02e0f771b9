#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::batch::Sink;
use super::*;
use crate::adapter::Adapter;
use crate::kernel_support::Levels;
use crate::kv_format::KvFormat;
use crate::score::score;
use crate::shapes::starter_shape;
use crate::testing::{
    FAMILIES, Oracle, PPO, config, dense, forms_of, go_on, learner, lora, model, policy, rows,
    tiny, tokens, with_experts,
};
use crate::weights::Model;
use hone_checkpoint::config::{Family, ModelConfig};
use hone_checkpoint::{AdapterDtype, NamedTensor};
use hone_kernels::cpu::SimdLevel;
use hone_kernels::rng::Rng;
use hone_kernels::thread_pool::Executor;

/// Everything that can be trained of a model without experts.
fn forms(dtype: AdapterDtype) -> [Trainable; 3] {
    let (low_rank, dense) = (lora(dtype), dense(dtype));
    [
        Trainable::Full,
        Trainable::Lora(low_rank),
        Trainable::Dense(dense),
    ]
}

/// The loss of a step in f64, straight from its definition.
pub(super) struct SlowLoss<'a> {
    rows: &'a [TrainRow],
    cfg: &'a LearnerConfig,
    proximal: Vec<Vec<f64>>,
    reference: Vec<Vec<f64>>,
}

impl SlowLoss<'_> {
    /// Log-prob and entropy of every loss token.
    fn predictions(oracle: &Oracle, rows: &[TrainRow]) -> Vec<Vec<(f64, f64)>> {
        let each = |row: &TrainRow| {
            let logits = oracle.logits(&row.tokens);
            let one = |loss: &TokenLoss| {
                let z = &logits[loss.position - 1];
                let t = f64::from(loss.temperature);
                let all: Vec<u32> = (0..z.len() as u32).collect();
                let ids = loss.kept.as_deref().unwrap_or(&all);
                let sum: f64 = ids.iter().map(|&i| (z[i as usize] / t).exp()).sum();
                let ln = |i: u32| z[i as usize] / t - sum.ln();
                let entropy = -ids.iter().map(|&i| ln(i).exp() * ln(i)).sum::<f64>();
                (ln(row.tokens[loss.position]), entropy)
            };
            row.loss.iter().map(one).collect()
        };
        rows.iter().map(each).collect()
    }

    pub(super) fn logprobs(oracle: &Oracle, rows: &[TrainRow]) -> Vec<Vec<f64>> {
        let predictions = Self::predictions(oracle, rows);
        predictions
            .into_iter()
            .map(|r| r.into_iter().map(|p| p.0).collect())
            .collect()
    }

    fn loss(&self, oracle: &Oracle) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for (row, predicted) in Self::predictions(oracle, self.rows).iter().enumerate() {
            for (item, (current, entropy)) in predicted.iter().enumerate() {
                let loss = &self.rows[row].loss[item];
                let a = f64::from(loss.advantage);
                let (prox, reference) = (self.proximal[row][item], self.reference[row][item]);
                sum += match self.cfg.objective {
                    Objective::CrossEntropy => -a * current,
                    Objective::DecoupledPpo {
                        clip_low,
                        clip_high,
                        correction_cap,
                    } => {
                        let ratio = (current - prox).exp();
                        let (low, high) = (1.0 - f64::from(clip_low), 1.0 + f64::from(clip_high));
                        let w = (prox - f64::from(loss.behavior_logprob)).exp();
                        -w.min(f64::from(correction_cap))
                            * (ratio * a).min(ratio.clamp(low, high) * a)
                    }
                    other => panic!("{other:?} has goldens"),
                };
                let x = current - reference;
                sum += f64::from(self.cfg.kl_coef) * ((-x).exp() + x - 1.0);
                sum -= f64::from(self.cfg.entropy_coef) * entropy;
                count += 1.0;
            }
        }
        sum / count
    }
}

pub(super) fn gradients(learner: &Learner, cfg: &ModelConfig) -> Vec<NamedTensor> {
    match &learner.sink {
        Sink::Full(grads) => grads.to_tensors(cfg),
        Sink::Adapter(grads) => grads.to_tensors(),
    }
}

/// Compares every gradient tensor with central differences of the f64 loss, at its largest entry
/// and two random ones.
fn check_gradients(shape: &ModelConfig, cfg: LearnerConfig) {
    let family = shape.family;
    let base = Arc::new(model(shape, 7));
    let rows = rows(shape, 2);
    let mut learner = learner(&base, LearnerConfig { lr: 0.0, ..cfg });
    learner.cfg.lr = 0.0;
    let report = learner.step(&rows, &mut go_on).unwrap();
    let mut oracle = Oracle::new(learner.current(), learner.adapter().as_ref());
    let slow = SlowLoss {
        rows: &rows,
        cfg: &learner.cfg,
        proximal: SlowLoss::logprobs(&oracle, &rows),
        reference: SlowLoss::logprobs(&Oracle::new(&base, None), &rows),
    };
    let loss = slow.loss(&oracle);
    assert!(
        (report.loss - loss).abs() < 1e-4 * loss.abs().max(1.0),
        "{} not {loss}",
        report.loss
    );
    let mut rng = Rng::new(1);
    for tensor in gradients(&learner, shape) {
        let largest = (0..tensor.data.len()).fold(0, |best, i| {
            if tensor.data[i].abs() > tensor.data[best].abs() {
                i
            } else {
                best
            }
        });
        let scale = f64::from(tensor.data[largest].abs());
        assert!(scale > 1e-7, "{family:?}: {} has no gradient", tensor.name);
        let random = [(); 2].map(|()| (rng.next_u64() % tensor.data.len() as u64) as usize);
        for index in [largest, random[0], random[1]] {
            let mut at = |delta: f64| {
                oracle.tensors.get_mut(&tensor.name).unwrap()[index] += delta;
                let loss = slow.loss(&oracle);
                oracle.tensors.get_mut(&tensor.name).unwrap()[index] -= delta;
                loss
            };
            let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
            let found = f64::from(tensor.data[index]);
            let error = (found - slope).abs();
            assert!(
                error < 2e-3 * scale + 1e-7,
                "{family:?}: {}[{index}] is {found}, should be {slope} (largest {scale})",
                tensor.name
            );
        }
    }
}

#[test]
fn full_gradients_match_finite_differences() {
    let dense = FAMILIES
        .map(tiny)
        .into_iter()
        .filter(|s| s.experts.is_none());
    for shape in dense {
        let plain = config(Trainable::Full, Objective::CrossEntropy);
        check_gradients(&shape, plain);
        let ppo = config(Trainable::Full, PPO);
        check_gradients(
            &shape,
            LearnerConfig {
                entropy_coef: 0.3,
                ..ppo
            },
        );
    }
}

#[test]
fn adapter_gradients_match_finite_differences() {
    for shape in FAMILIES.map(tiny).into_iter().chain([with_experts(false)]) {
        for form in forms_of(&shape, AdapterDtype::F32) {
            let trainable = Trainable::from(form);
            let plain = config(trainable.clone(), Objective::CrossEntropy);
            check_gradients(&shape, plain);
            let ppo = config(trainable, PPO);
            check_gradients(
                &shape,
                LearnerConfig {
                    entropy_coef: 0.1,
                    kl_coef: 0.5,
                    ..ppo
                },
            );
        }
    }
}

#[test]
fn the_learner_sees_the_served_logprobs_bit_for_bit() {
    let shapes = FAMILIES.map(tiny).into_iter();
    let cases = shapes.flat_map(|s| forms_of(&s, AdapterDtype::Bf16).map(|form| (s.clone(), form)));
    let formats = [KvFormat::F32, KvFormat::F16];
    let cases = cases.flat_map(|(shape, form)| formats.map(|kv| (shape.clone(), form.clone(), kv)));
    for (shape, form, kv) in cases {
        let family = shape.family;
        let base = Arc::new(model(&shape, 7).with_kv(kv));
        let adapter = Adapter::random(&shape, form.clone(), 3);
        let cfg = config(form.into(), PPO);
        let mut learner = Learner::from_adapter(Arc::clone(&base), cfg, &adapter).unwrap();
        assert_eq!(learner.adapter().unwrap().digest(), adapter.digest());
        let rows = rows(&shape, 2);
        let seen = learner.logprobs(&rows, &mut go_on).unwrap();
        let report = learner.step(&rows, &mut go_on).unwrap();
        assert_eq!(report.proximal_logprobs, seen);
        let exec = Executor::new(1);
        for (row, seen) in rows.iter().zip(seen) {
            let scores = score(&base, Some(&adapter), &row.tokens, &exec);
            for (loss, seen) in row.loss.iter().zip(seen) {
                let kept = loss.kept.as_deref();
                let served = scores.logprob(loss.position, loss.temperature, kept);
                assert_eq!(
                    served.to_bits(),
                    seen.to_bits(),
                    "{family:?}, {kv:?} at {}",
                    loss.position
                );
            }
        }
    }
}

#[test]
fn on_policy_a_step_has_ratio_one() {
    let shape = tiny(Family::Qwen3);
    let base = Arc::new(model(&shape, 7));
    let mut rows = rows(&shape, 2);
    let mut learner = learner(&base, config(Trainable::Lora(lora(AdapterDtype::F32)), PPO));
    let behavior = learner.logprobs(&rows, &mut go_on).unwrap();
    for (row, behavior) in rows.iter_mut().zip(&behavior) {
        for (loss, behavior) in row.loss.iter_mut().zip(behavior) {
            loss.behavior_logprob = *behavior;
        }
    }
    let report = learner.step(&rows, &mut go_on).unwrap();
    assert_eq!(report.mean_importance_ratio, 1.0);
    assert_eq!(
        (report.max_correction, report.ess, report.clip_share),
        (1.0, 1.0, 0.0)
    );
    assert_eq!(
        report.loss_tokens,
        rows.iter().map(|r| r.loss.len()).sum::<usize>()
    );
    let after = learner.logprobs(&rows, &mut go_on).unwrap();
    assert_ne!(after, behavior, "the step changed nothing");
}

#[test]
fn resume_goes_on_with_the_same_bits() {
    let shape = tiny(Family::Qwen2);
    let base = Arc::new(model(&shape, 7));
    for trainable in forms(AdapterDtype::Bf16) {
        let cfg = LearnerConfig {
            warmup_steps: 3,
            weight_decay: 0.1,
            ..config(trainable.clone(), PPO)
        };
        let mut straight = Learner::new(Arc::clone(&base), cfg.clone()).unwrap();
        straight.step(&rows(&shape, 1), &mut go_on).unwrap();
        let saved = straight.state();
        let mut resumed = Learner::resume(Arc::clone(&base), cfg.clone(), &saved).unwrap();
        assert!(resumed.state() == saved);
        for seed in 2..4 {
            let a = straight.step(&rows(&shape, seed), &mut go_on).unwrap();
            let b = resumed.step(&rows(&shape, seed), &mut go_on).unwrap();
            assert_eq!(a.proximal_logprobs, b.proximal_logprobs);
            assert_eq!((a.loss, a.grad_norm), (b.loss, b.grad_norm));
        }
        assert!(straight.state() == resumed.state());
        assert_eq!(resumed.updates(), 3);
        assert_eq!(straight.model().digest, resumed.model().digest);

        let cut = &saved[..saved.len() - 3];
        assert!(matches!(
            Learner::resume(Arc::clone(&base), cfg.clone(), cut),
            Err(StateError::Damaged(_))
        ));
        let other = Arc::new(model(&shape, 8));
        if trainable != Trainable::Full {
            let refused = Learner::resume(other, cfg, &saved);
            assert!(matches!(
                refused,
                Err(StateError::Other { what: "base", .. })
            ));
        }
    }
}

#[test]
fn a_stopped_step_changes_nothing() {
    let shape = tiny(Family::Qwen3);
    let base = Arc::new(model(&shape, 7));
    let rows = rows(&shape, 2);
    let cases = [Trainable::Full, Trainable::Dense(dense(AdapterDtype::Bf16))];
    let cases = cases
        .into_iter()
        .flat_map(|form| [(1, form.clone()), (3, form)]);
    for (updates_per_step, trainable) in cases {
        let cfg = LearnerConfig {
            updates_per_step,
            ..config(trainable, PPO)
        };
        let mut learner = learner(&base, cfg);
        learner.step(&rows, &mut go_on).unwrap();
        let before = learner.state();
        let slices = learner.step(&rows, &mut go_on).unwrap().slices;
        learner = Learner::resume(Arc::clone(&base), learner.cfg.clone(), &before).unwrap();
        for stop_at in (0..slices).step_by(5).chain([slices - 1]) {
            let mut seen = 0;
            let mut pause = || {
                seen += 1;
                if seen > stop_at {
                    Control::Stop
                } else {
                    Control::Continue
                }
            };
            assert_eq!(learner.step(&rows, &mut pause), Err(StepError::Stopped));
            assert!(learner.state() == before, "stopped at slice {stop_at}");
        }
    }
}

#[test]
fn an_update_is_taken_back_whole_or_by_half() {
    let shape = tiny(Family::Qwen3);
    let base = Arc::new(model(&shape, 7));
    let rows = rows(&shape, 2);
    let cfg = config(Trainable::Dense(dense(AdapterDtype::F32)), PPO);
    let mut learner = learner(&base, cfg);
    let from = learner.mark();
    learner.step(&rows, &mut go_on).unwrap();
    let to = learner.mark();
    let far = learner.logprobs(&rows, &mut go_on).unwrap();
    learner.half_way(&from, &to);
    let half = learner.mark();
    let near = learner.logprobs(&rows, &mut go_on).unwrap();
    learner.half_way(&from, &from);
    let before = learner.logprobs(&rows, &mut go_on).unwrap();
    assert!(near != far && near != before);
    learner.half_way(&to, &to);
    assert_eq!(learner.logprobs(&rows, &mut go_on).unwrap(), far);
    learner.half_way(&half, &half);
    assert_eq!(learner.logprobs(&rows, &mut go_on).unwrap(), near);
}

#[test]
fn several_updates_move_the_ratio_and_keep_the_proximal_point() {
    let shape = tiny(Family::Llama);
    let base = Arc::new(model(&shape, 7));
    let mut rows = rows(&shape, 2);
    rows.extend(rows.clone());
    let tv = Objective::DppoTv {
        threshold: 0.2,
        anchor: 0.001,
    };
    for objective in [PPO, Objective::Cispo { ratio_cap: 5.0 }, tv] {
        let cfg = LearnerConfig {
            updates_per_step: 2,
            lr: 0.05,
            ..config(Trainable::Full, objective)
        };
        let mut learner = learner(&base, cfg);
        let start = learner.logprobs(&rows, &mut go_on).unwrap();
        let report = learner.step(&rows, &mut go_on).unwrap();
        assert_eq!(report.updates, 2);
        assert_eq!(report.proximal_logprobs, start, "{objective:?}");
        assert!(
            objective != PPO || report.clip_share > 0.0,
            "the second half should have moved: {report:?}"
        );
    }
}

#[test]
fn a_nonfinite_update_is_left_out_and_reported() {
    let shape = tiny(Family::Qwen2);
    let mut broken = model(&shape, 7);
    broken.weights.norm[3] = f32::INFINITY;
    let base = Arc::new(broken);
    let mut learner = learner(&base, config(Trainable::Lora(lora(AdapterDtype::F32)), PPO));
    let before = learner.state();
    let report = learner.step(&rows(&shape, 2), &mut go_on).unwrap();
    assert!(report.skipped_nonfinite);
    assert_eq!(report.updates, 0);
    assert!(learner.state() == before);
}

#[test]
fn impossible_rows_and_settings_are_refused() {
    let shape = tiny(Family::Qwen2);
    let base = Arc::new(model(&shape, 7));
    let mut learner = learner(&base, config(Trainable::Full, PPO));
    assert_eq!(
        learner.step(&[], &mut go_on),
        Err(StepError::NothingToLearn)
    );
    let changes: [&dyn Fn(&mut TrainRow); 6] = [
        &|r| r.tokens[0] = 53,
        &|r| r.loss[0].position = 0,
        &|r| r.loss[0].position = r.tokens.len(),
        &|r| r.loss[0].temperature = 0.0,
        &|r| r.loss[0].advantage = f32::NAN,
        &|r| r.loss[0].kept = Some(Arc::from([])),
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut rows = rows(&shape, 2);
        change(&mut rows[1]);
        let result = learner.step(&rows, &mut go_on);
        assert!(
            matches!(result, Err(StepError::BadRow { row: 1, .. })),
            "{index}: {result:?}"
        );
    }
    let bad = LearnerConfig {
        kl_coef: 0.1,
        ..config(Trainable::Full, PPO)
    };
    let refused = Learner::new(Arc::clone(&base), bad).err();
    assert_eq!(refused, Some(LearnerError::NoReference));
    let bad = LearnerConfig {
        lr: f32::NAN,
        ..config(Trainable::Full, PPO)
    };
    assert!(Learner::new(base, bad).is_err());
}

#[test]
fn a_batch_that_teaches_nothing_moves_nothing() {
    let shape = tiny(Family::Qwen3);
    let base = Arc::new(model(&shape, 7));
    let cfg = LearnerConfig {
        kl_coef: 0.1,
        entropy_coef: 0.1,
        ..config(Trainable::Lora(lora(AdapterDtype::F32)), PPO)
    };
    let mut learner = learner(&base, cfg);
    let mut rows = rows(&shape, 2);
    let report = learner.step(&rows, &mut go_on).unwrap();
    assert_eq!(report.updates, 1);
    let before = learner.state();
    for loss in rows.iter_mut().flat_map(|row| &mut row.loss) {
        (loss.kind, loss.advantage) = (LossKind::Policy, 0.0);
    }
    // Neither momentum nor the divergence moves it; the numbers are read all the same.
    let report = learner.step(&rows, &mut go_on).unwrap();
    assert_eq!(report.updates, 0);
    assert!(report.kl_to_reference.is_some_and(|kl| kl > 0.0));
    assert!(learner.state() == before);
}

#[test]
fn bits_do_not_depend_on_threads_levels_or_kept_layers() {
    let mut shape = starter_shape();
    (shape.layers, shape.windows) = (2, vec![Some(64); 2]);
    let kept = [KvFormat::F32, KvFormat::F16];
    let bases = kept.map(|kv| Arc::new(model(&shape, 7).with_kv(kv)));
    let rows: Vec<TrainRow> = (0..3)
        .map(|seed| TrainRow {
            tokens: tokens(&shape, 150, seed),
            loss: (1..150)
                .map(|position| TokenLoss {
                    behavior_logprob: -7.0,
                    ..policy(position)
                })
                .collect(),
        })
        .collect();
    let run = |base: &Arc<Model>, trainable: Trainable, threads, activation_bytes_max| {
        let cfg = LearnerConfig {
            minibatch_tokens: 300,
            activation_bytes_max,
            ..config(trainable, PPO)
        };
        let mut learner = learner(base, cfg).on(Arc::new(Executor::new(threads)));
        learner.step(&rows, &mut go_on).unwrap();
        learner.step(&rows, &mut go_on).unwrap();
        learner.state()
    };
    let cases = forms(AdapterDtype::F32);
    let cases = bases
        .iter()
        .flat_map(|base| cases.iter().map(move |form| (base, form)));
    for (base, trainable) in cases {
        let plain = run(base, trainable.clone(), 1, 0);
        assert!(plain == run(base, trainable.clone(), 3, 0), "threads");
        assert!(
            plain == run(base, trainable.clone(), 1, 1 << 30),
            "kept layers"
        );
        let levels = Levels::ours();
        assert!(levels.force(SimdLevel::Avx2) || levels.force(SimdLevel::Portable));
        assert!(plain == run(base, trainable.clone(), 1, 0), "another level");
    }
}

/// Forward, backward and optimizer at every supported level, portable included.
#[test]
fn training_bits_do_not_depend_on_the_instruction_level() {
    let mut wide = tiny(Family::Qwen3);
    (wide.hidden, wide.head_dim, wide.ffn, wide.vocab) = (48, 16, 96, 144);
    let shapes = FAMILIES.map(tiny).into_iter().chain([wide]);
    let cases: Vec<(ModelConfig, Trainable)> = shapes
        .flat_map(|shape| {
            let dtypes = [AdapterDtype::F32, AdapterDtype::Bf16];
            let adapters = dtypes.map(|dtype| forms_of(&shape, dtype).map(Trainable::from));
            let full = shape.experts.is_none().then_some(Trainable::Full);
            let all = adapters.into_iter().flatten().chain(full);
            all.map(|trainable| (shape.clone(), trainable))
                .collect::<Vec<_>>()
        })
        .collect();
    let run = || -> Vec<Vec<u8>> {
        let trained = cases.iter().map(|(shape, trainable)| {
            let kl_coef = if *trainable == Trainable::Full {
                0.0
            } else {
                0.3
            };
            let cfg = LearnerConfig {
                kl_coef,
                entropy_coef: 0.1,
                weight_decay: 0.1,
                ..config(trainable.clone(), PPO)
            };
            let base = Arc::new(model(shape, 7));
            let mut learner = learner(&base, cfg);
            for seed in 2..4 {
                let report = learner.step(&rows(shape, seed), &mut go_on).unwrap();
                assert_eq!(report.updates, 1);
            }
            learner.state()
        });
        trained.collect()
    };
    let levels = Levels::ours();
    assert!(levels.force(SimdLevel::Portable));
    let portable = run();
    for level in levels.each().filter(|level| *level != SimdLevel::Portable) {
        let found = run();
        let differ = portable.iter().zip(&found).position(|(a, b)| a != b);
        assert!(differ.is_none(), "{level:?} differs in case {differ:?}");
    }
}

#[test]
fn packing_does_not_change_what_a_row_sees() {
    let shape = tiny(Family::Qwen3);
    let base = Arc::new(model(&shape, 7));
    let rows = rows(&shape, 2);
    let run = |minibatch_tokens| {
        let cfg = LearnerConfig {
            minibatch_tokens,
            ..config(Trainable::Full, PPO)
        };
        let mut learner = learner(&base, cfg);
        let report = learner.step(&rows, &mut go_on).unwrap();
        (report.proximal_logprobs, report.grad_norm)
    };
    let (alone, alone_norm) = run(1);
    let (packed, packed_norm) = run(1000);
    assert_eq!(alone, packed);
    assert!((alone_norm - packed_norm).abs() < 1e-5 * alone_norm);
}

#[test]
fn training_makes_rewarded_tokens_likely() {
    let shape = tiny(Family::Llama);
    let base = Arc::new(model(&shape, 7));
    for trainable in forms(AdapterDtype::Bf16) {
        let text = tokens(&shape, 24, 5);
        let token = policy;
        let row = TrainRow {
            tokens: text,
            loss: (1..24).map(token).collect(),
        };
        let cfg = LearnerConfig::new(trainable, Objective::CrossEntropy, 1e-2);
        let mut learner = Learner::new(Arc::clone(&base), cfg).unwrap();
        let first = learner
            .step(std::slice::from_ref(&row), &mut go_on)
            .unwrap()
            .loss;
        let mut last = first;
        for _ in 0..150 {
            last = learner
                .step(std::slice::from_ref(&row), &mut go_on)
                .unwrap()
                .loss;
        }
        assert!(
            first > 3.0 && last < 0.1 * first,
            "loss went from {first} to {last}"
        );
    }
}
