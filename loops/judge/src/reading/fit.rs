//! Multinomial logistic regression: pure, deterministic, and bounded in its steps.

use serde::{Deserialize, Serialize};

/// Steps of the descent at most; it ends sooner where the gradient vanishes.
const STEPS_MAX: usize = 400;
/// Rounds of the power iteration that bounds the curvature.
const ROUNDS: usize = 12;
/// Length of the gradient at which the descent ends.
const GRADIENT_MIN: f64 = 1e-3;

/// What is fitted on.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    /// `[features]`.
    pub features: &'a [f64],
    /// The class.
    pub label: usize,
    /// How much it counts.
    pub weight: f64,
}

/// Class probabilities as a softmax of linear scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Linear {
    classes: usize,
    /// `[classes][features]`.
    weights: Vec<f64>,
}

impl Linear {
    /// The weights that minimise the weighted cross-entropy plus `|weights|^2 / (2 slack)`, by
    /// Nesterov's accelerated gradient with restarts.
    pub(super) fn fit(samples: &[Sample<'_>], classes: usize, slack: f64) -> Self {
        let width = samples.first().map_or(0, |sample| sample.features.len());
        let mut weights = vec![0.0; classes * width];
        let (mut ahead, mut momentum) = (weights.clone(), 1.0f64);
        // The softmax curves by at most 1/2.
        let step = 1.0 / (0.5 * curvature(samples, width) + 1.0 / slack);
        for _ in 0..STEPS_MAX {
            let gradient = gradient(samples, &ahead, classes, slack);
            if dot(&gradient, &gradient).sqrt() < GRADIENT_MIN {
                break;
            }
            let next: Vec<f64> = ahead
                .iter()
                .zip(&gradient)
                .map(|(weight, slope)| weight - step * slope)
                .collect();
            let moved: Vec<f64> = next.iter().zip(&weights).map(|(a, b)| a - b).collect();
            // Going uphill: begin anew without momentum.
            if dot(&gradient, &moved) > 0.0 {
                momentum = 1.0;
            }
            let following = (1.0 + (1.0 + 4.0 * momentum * momentum).sqrt()) / 2.0;
            let carried = (momentum - 1.0) / following;
            ahead = next
                .iter()
                .zip(&moved)
                .map(|(weight, moved)| weight + carried * moved)
                .collect();
            (weights, momentum) = (next, following);
        }
        Self { classes, weights }
    }

    /// One probability per class.
    pub(super) fn probabilities(&self, features: &[f64]) -> Vec<f64> {
        softmax(&self.weights, features, self.classes)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn softmax(weights: &[f64], features: &[f64], classes: usize) -> Vec<f64> {
    let width = features.len().max(1);
    let scores = weights.chunks(width).map(|row| dot(row, features));
    let mut scores: Vec<f64> = scores.take(classes).collect();
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    for score in &mut scores {
        *score = (*score - most).exp();
    }
    let sum: f64 = scores.iter().sum();
    scores.iter().map(|score| score / sum).collect()
}

fn gradient(samples: &[Sample<'_>], weights: &[f64], classes: usize, slack: f64) -> Vec<f64> {
    let mut gradient: Vec<f64> = weights.iter().map(|weight| weight / slack).collect();
    for sample in samples {
        let width = sample.features.len().max(1);
        let probabilities = softmax(weights, sample.features, classes);
        for (class, row) in gradient.chunks_mut(width).enumerate() {
            let wanted = f64::from(u8::from(class == sample.label));
            let error = sample.weight * (probabilities[class] - wanted);
            for (slope, feature) in row.iter_mut().zip(sample.features) {
                *slope += error * feature;
            }
        }
    }
    gradient
}

/// The largest eigenvalue of the weighted second moments, a little above.
fn curvature(samples: &[Sample<'_>], width: usize) -> f64 {
    let mut direction = vec![1.0 / (width.max(1) as f64).sqrt(); width];
    let mut length = 0.0;
    for _ in 0..ROUNDS {
        let mut next = vec![0.0; width];
        for sample in samples {
            let along = sample.weight * dot(&direction, sample.features);
            for (next, feature) in next.iter_mut().zip(sample.features) {
                *next += along * feature;
            }
        }
        length = dot(&next, &next).sqrt();
        if length <= 0.0 {
            break;
        }
        direction = next.iter().map(|value| value / length).collect();
    }
    length * 1.3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fit_is_the_minimum_and_the_same_each_time() {
        let rows: Vec<[f64; 3]> = (0..60)
            .map(|n| [f64::from(n % 7) / 7.0, f64::from(n % 5) / 5.0, 1.0])
            .collect();
        let label = |row: &[f64; 3]| match row {
            [a, b, _] if a + b > 1.2 => 2,
            [a, _, _] if *a > 0.5 => 1,
            _ => 0,
        };
        let samples: Vec<Sample<'_>> = rows
            .iter()
            .map(|row| Sample {
                features: row,
                label: label(row),
                weight: 1.0,
            })
            .collect();
        let fitted = Linear::fit(&samples, 3, 50.0);
        assert_eq!(fitted, Linear::fit(&samples, 3, 50.0));
        let slopes = gradient(&samples, &fitted.weights, 3, 50.0);
        assert!(dot(&slopes, &slopes).sqrt() < 0.1, "{slopes:?}");
        let right = samples.iter().filter(|sample| {
            let said = fitted.probabilities(sample.features);
            let sum: f64 = said.iter().sum();
            assert!((sum - 1.0).abs() < 1e-9);
            said.iter().all(|p| *p <= said[sample.label])
        });
        assert!(right.count() >= 54);
    }
}
