//! Log-prob, entropy, the policy term and the divergence.

use super::*;

/// A row of logits to the log-prob of one of its tokens and the entropy, each alone: the gradient
/// that a row takes is linear in both.
pub(super) fn prediction(temperature: f32, kept: Option<Vec<u32>>) -> Op {
    const TOKEN: usize = 7;
    let vocab = 53;
    let ids = kept.clone().unwrap_or_else(|| (0..vocab).collect());
    let slow = move |x: &[Vec<f64>]| {
        let t = f64::from(temperature);
        let sum: f64 = ids.iter().map(|i| (x[0][*i as usize] / t).exp()).sum();
        let ln = |i: usize| x[0][i] / t - sum.ln();
        let entropy = ids.iter().map(|i| ln(*i as usize).exp() * ln(*i as usize));
        vec![ln(TOKEN), -entropy.sum::<f64>()]
    };
    let (fast_kept, name) = (
        kept.clone(),
        format!("prediction at {temperature}, kept {kept:?}"),
    );
    let fast = move |x: &[Vec<f32>]| {
        let (mut row, kept) = (x[0].clone(), fast_kept.as_deref());
        let shape = Shape::of(&row, temperature, kept);
        let logprob = shape.logprob(row[TOKEN]);
        let grad = RowGrad {
            shape,
            slopes: &[(TOKEN as u32, 1.0)],
            entropy: 1.0,
        };
        vec![logprob, grad.run(&mut row, kept)]
    };
    let grads = move |x: &[Vec<f32>], dy: &[f32]| {
        let (mut row, kept) = (x[0].clone(), kept.as_deref());
        let grad = RowGrad {
            shape: Shape::of(&row, temperature, kept),
            slopes: &[(TOKEN as u32, dy[0])],
            // The bonus is taken off the loss.
            entropy: -dy[1],
        };
        grad.run(&mut row, kept);
        vec![row]
    };
    Op {
        name,
        inputs: vec![random(vocab as usize, 19)],
        slow: Box::new(slow),
        fast: Box::new(fast),
        grads: Box::new(grads),
    }
}

/// At a low temperature a row has its gradient whatever its width: two tokens are as near as the
/// temperature lets them be, and all others impossible.
#[test]
fn a_cold_row_has_its_gradient() {
    const TEMPERATURE: f32 = 5e-5;
    for width in [3, 16, 19, 53] {
        let mut row: Vec<f32> = random(width, 19).iter().map(|z| z - 8.0).collect();
        (row[1], row[2]) = (0.0, -0.5 * TEMPERATURE);
        let kept: Vec<u32> = (0..width as u32).collect();
        let z = |i: usize| f64::from(row[i]) / f64::from(TEMPERATURE);
        let second = 1.0 / (1.0 + (z(1) - z(2)).exp());
        let wanted = -(1.0 - second) * (1.0 - second).ln() - second * second.ln();
        // By the log-prob of the first: what it takes from the second.
        let pull = second / f64::from(TEMPERATURE);
        for kept in [None, Some(kept.as_slice())] {
            let mut found = row.clone();
            let grad = RowGrad {
                shape: Shape::of(&row, TEMPERATURE, kept),
                slopes: &[(1, 1.0)],
                entropy: 0.0,
            };
            let entropy = grad.run(&mut found, kept);
            assert!(
                (f64::from(entropy) - wanted).abs() < 1e-3,
                "{width}: {entropy}"
            );
            for (i, g) in found.into_iter().enumerate() {
                let wanted = [0.0, pull, -pull][if i < 3 { i } else { 0 }];
                assert!(
                    (f64::from(g) - wanted).abs() < 1e-3 * pull,
                    "{width}: {i} {g}"
                );
            }
        }
    }
}

/// Where the current log-prob stands in the policy terms, and what it was sampled at.
const CURRENT: f32 = -1.3;
const BEHAVIOR: f32 = -1.4;

/// `-min(weight, cap) min(ratio a, clip(ratio) a)`.
fn clipped(a: f64, ratio: f64, (low, high): (f32, f32), weight: f64) -> f64 {
    let (low, high) = (1.0 - f64::from(low), 1.0 + f64::from(high));
    -weight * (ratio * a).min(ratio.clamp(low, high) * a)
}

/// The policy term of one token, as a function of its current log-prob; a sequence is one token.
/// What an objective holds constant is taken at [`CURRENT`].
pub(super) fn policy(objective: Objective, advantage: f32, proximal: f32) -> Op {
    let term = move |current: f32| {
        objective.term(&TokenView {
            advantage,
            behavior: BEHAVIOR,
            proximal,
            current,
            sequence: SequenceView {
                importance: current - proximal,
                correction: proximal - BEHAVIOR,
            },
        })
    };
    let slow = move |x: &[Vec<f64>]| {
        let (current, a) = (x[0][0], f64::from(advantage));
        let (proximal, behavior) = (f64::from(proximal), f64::from(BEHAVIOR));
        let (ratio, moved) = ((current - proximal).exp(), (current - behavior).exp());
        let held = (f64::from(CURRENT) - behavior).exp();
        let weight = |cap: f32| (proximal - behavior).exp().min(f64::from(cap));
        vec![match objective {
            Objective::CrossEntropy => -a * current,
            Objective::Ppo {
                clip_low,
                clip_high,
            } => clipped(a, moved, (clip_low, clip_high), 1.0),
            Objective::DecoupledPpo {
                clip_low,
                clip_high,
                correction_cap,
            }
            | Objective::Gspo {
                clip_low,
                clip_high,
                correction_cap,
            } => clipped(a, ratio, (clip_low, clip_high), weight(correction_cap)),
            Objective::Cispo { ratio_cap } => -held.min(f64::from(ratio_cap)) * a * current,
            Objective::DppoTv { anchor, .. } => {
                -a * moved + f64::from(anchor) * (current - behavior).powi(2)
            }
            Objective::TokenTis { correction_cap } => -weight(correction_cap) * ratio * a,
        }]
    };
    Op {
        name: format!("{objective:?} for advantage {advantage} from {proximal}"),
        inputs: vec![vec![CURRENT]],
        slow: Box::new(slow),
        fast: Box::new(move |x| vec![term(x[0][0]).loss]),
        grads: Box::new(move |x, dy| vec![vec![term(x[0][0]).slope * dy[0]]]),
    }
}

pub(super) fn divergence(estimator: KlEstimator, reference: f32) -> Op {
    let slow = move |x: &[Vec<f64>]| {
        let x = x[0][0] - f64::from(reference);
        vec![match estimator {
            KlEstimator::K1 => x,
            KlEstimator::K2 => x * x / 2.0,
            KlEstimator::K3 => (-x).exp() + x - 1.0,
        }]
    };
    Op {
        name: format!("{estimator:?} from {reference}"),
        inputs: vec![vec![CURRENT]],
        slow: Box::new(slow),
        fast: Box::new(move |x| vec![estimator.term(x[0][0], reference).0]),
        grads: Box::new(move |x, dy| vec![vec![estimator.term(x[0][0], reference).1 * dy[0]]]),
    }
}

/// A teacher on three tokens, as a function of the student's log-probs; none is at its clip.
pub(super) fn distilled() -> Op {
    let distill = Distill {
        coef: 1.0,
        clip: 0.5,
        ratio_low: 0.3,
        ratio_high: 0.3,
    };
    let top = TopK {
        ids: vec![3, 5, 9],
        proximal: vec![-0.8, -1.5, -2.2],
        teacher: vec![-1.0, -1.2, -4.0],
    };
    let (fast, slowly) = (top.clone(), top.clone());
    let slow = move |x: &[Vec<f64>]| {
        let wide = |v: &[f32]| -> Vec<f64> { v.iter().map(|v| f64::from(*v)).collect() };
        let (proximal, teacher) = (wide(&slowly.proximal), wide(&slowly.teacher));
        let sum: f64 = proximal.iter().map(|p| p.exp()).sum();
        let places = x[0].iter().zip(&proximal).zip(&teacher);
        let terms = places.map(|((current, p), t)| {
            let a = (t - p).clamp(-0.5, 0.5) * p.exp() / sum;
            clipped(a, (current - p).exp(), (0.3, 0.3), 1.0)
        });
        vec![terms.sum()]
    };
    Op {
        name: "distillation on the most likely tokens".to_owned(),
        inputs: vec![vec![-0.75, -1.45, -2.3]],
        slow: Box::new(slow),
        fast: Box::new(move |x| vec![distill.terms(&fast, &x[0]).0]),
        grads: Box::new(move |x, dy| {
            let slopes = distill.terms(&top, &x[0]).1;
            vec![slopes.into_iter().map(|slope| slope * dy[0]).collect()]
        }),
    }
}
