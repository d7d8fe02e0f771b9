//! Intervals of means of paired differences.

use serde::Serialize;

/// A mean with its one-sided bounds of 95 % on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// How many differences.
    pub turns: usize,
    /// Their mean.
    pub mean: f64,
    /// It is surely above this,
    pub low: f64,
    /// and below this.
    pub high: f64,
}

/// Standard normal quantile of 95 %.
const Z_95: f64 = 1.644_853_627;

/// The t interval of paired differences; none for fewer than two.
pub fn interval(differences: &[f32]) -> Option<Interval> {
    let turns = differences.len();
    if turns < 2 {
        return None;
    }
    let n = turns as f64;
    let mean = differences.iter().map(|d| f64::from(*d)).sum::<f64>() / n;
    let squares = differences.iter().map(|d| (f64::from(*d) - mean).powi(2));
    let variance = squares.sum::<f64>() / (n - 1.0);
    // The t quantile as an expansion around the normal one (Fisher and Cornish 1960).
    let (z, freedom) = (Z_95, n - 1.0);
    let t = z
        + (z.powi(3) + z) / (4.0 * freedom)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * freedom * freedom);
    let half = t * (variance / n).sqrt();
    Some(Interval {
        turns,
        mean,
        low: mean - half,
        high: mean + half,
    })
}
