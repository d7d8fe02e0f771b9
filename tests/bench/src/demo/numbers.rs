//! Intervals and percentiles.

use serde::Serialize;

/// A mean with its 95 % interval (Student's t).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Lower end; equal to the mean where there is one value only.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Number of values.
    pub n: usize,
}

/// Two-sided 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom; beyond, the normal's.
const T: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

impl Interval {
    /// Of independent values.
    pub(crate) fn of(values: &[f64]) -> Self {
        let n = values.len();
        let mean = values.iter().sum::<f64>() / n.max(1) as f64;
        if n < 2 {
            return Self {
                mean,
                low: mean,
                high: mean,
                n,
            };
        }
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let t = T.get(n - 2).copied().unwrap_or(1.96);
        let half = t * (variance / n as f64).sqrt();
        Self {
            mean,
            low: mean - half,
            high: mean + half,
            n,
        }
    }
}

/// Median and 99th percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Percentiles {
    /// Median.
    pub(crate) p50: f64,
    /// 99th percentile.
    pub(crate) p99: f64,
}

impl Percentiles {
    /// By the nearest-rank rule; zeros where there is no value.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let rank = |share: f64| {
            let at = (share * values.len() as f64).ceil() as usize;
            values.get(at.max(1) - 1).copied().unwrap_or_default()
        };
        Self {
            p50: rank(0.5),
            p99: rank(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_follow_the_textbook() {
        let i = Interval::of(&[1.0, 2.0, 3.0]);
        assert!((i.mean - 2.0).abs() < 1e-12);
        assert!((i.high - (2.0 + 4.303 / 3.0_f64.sqrt())).abs() < 1e-9);
        assert_eq!(Interval::of(&[0.5]).low, 0.5);
    }

    #[test]
    fn percentiles_use_the_nearest_rank() {
        let p = Percentiles::of((1..=100).map(f64::from).collect());
        assert_eq!((p.p50, p.p99), (50.0, 99.0));
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }
}
