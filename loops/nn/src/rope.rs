//! Rotary position embedding (Su et al. 2021) and its long-context variants.

use hone_checkpoint::config::{ModelConfig, RopeScaling};

/// Rotary frequencies of a model, one per pair of dimensions, and the factor on cos and sin.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    inverse: Vec<f32>,
    amplitude: f32,
}

impl Rope {
    /// Frequencies `theta^(-2i/d)` with the model's scaling (Llama 3.1 and YaRN as in the
    /// transformers library's `modeling_rope_utils`).
    pub fn new(cfg: &ModelConfig) -> Self {
        let half = cfg.head_dim / 2;
        let theta = f64::from(cfg.rope_theta);
        let base = |i: usize| theta.powf(-2.0 * i as f64 / cfg.head_dim as f64);
        let mut amplitude = 1.0;
        let inverse = (0..half)
            .map(|i| {
                let f = base(i);
                match &cfg.rope_scaling {
                    None => f,
                    Some(RopeScaling::Linear { factor }) => f / f64::from(*factor),
                    Some(scaling @ RopeScaling::Llama3 { .. }) => llama3(f, scaling),
                    Some(
                        scaling @ RopeScaling::Yarn {
                            attention_factor, ..
                        },
                    ) => {
                        amplitude = *attention_factor;
                        yarn(i, f, cfg, scaling)
                    }
                }
            })
            .map(|f| f as f32)
            .collect();
        Self { inverse, amplitude }
    }

    /// Pairs of dimensions.
    pub fn pairs(&self) -> usize {
        self.inverse.len()
    }

    /// Writes cos then sin for `position`: `[2][pairs]`.
    pub fn angles(&self, position: usize, to: &mut [f32]) {
        let (cos, sin) = to.split_at_mut(self.pairs());
        for ((cos, sin), inverse) in cos.iter_mut().zip(sin).zip(&self.inverse) {
            let angle = f64::from(position as f32 * inverse);
            *cos = (angle.cos() * f64::from(self.amplitude)) as f32;
            *sin = (angle.sin() * f64::from(self.amplitude)) as f32;
        }
    }
}

fn llama3(f: f64, scaling: &RopeScaling) -> f64 {
    let &RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_max_positions,
    } = scaling
    else {
        unreachable!("called for llama3 only");
    };
    let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
    let original = original_max_positions as f64;
    let wavelength = 2.0 * std::f64::consts::PI / f;
    if wavelength < original / high {
        f
    } else if wavelength > original / low {
        f / f64::from(factor)
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * f / f64::from(factor) + smooth * f
    }
}

fn yarn(i: usize, f: f64, cfg: &ModelConfig, scaling: &RopeScaling) -> f64 {
    let &RopeScaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original_max_positions,
        truncate,
        ..
    } = scaling
    else {
        unreachable!("called for yarn only");
    };
    let dim = cfg.head_dim as f64;
    let bound = |rotations: f32| {
        let turns =
            original_max_positions as f64 / (f64::from(rotations) * 2.0 * std::f64::consts::PI);
        dim * turns.ln() / (2.0 * f64::from(cfg.rope_theta).ln())
    };
    let (mut low, mut high) = (bound(beta_fast), bound(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dim - 1.0));
    if low == high {
        high += 0.001;
    }
    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
    f / f64::from(factor) * ramp + f * (1.0 - ramp)
}

/// Rotates one head in place by `angles` (`[2][pairs]`): pair `i` is dimensions `i` and
/// `i + pairs`. `inverse` rotates back, which is the gradient.
pub(crate) fn rotate(head: &mut [f32], angles: &[f32], inverse: bool) {
    let pairs = angles.len() / 2;
    let (cos, sin) = angles.split_at(pairs);
    let (a, b) = head.split_at_mut(pairs);
    let sign = if inverse { -1.0 } else { 1.0 };
    for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
        let sin = sin * sign;
        let (x, y) = (*a, *b);
        *a = x * cos - y * sin;
        *b = y * cos + x * sin;
    }
}
