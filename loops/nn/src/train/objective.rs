//! Objectives as values. Each is one pure function of a token's numbers: the loss to minimise and
//! its derivative by the token's current log-prob. What is written "held" is a constant for the
//! gradient.
//!
//! Three log-probs, three names: *behavior* (μ, of the distribution really sampled from), *proximal*
//! (the policy at the start of the step), *current* (π, being optimised). `r = π / proximal` is the
//! importance ratio, `w = proximal / μ` the correction ratio, `ρ = r w = π / μ`.

/// Log-ratios are cut to this before exponentials.
const MAX_LOG_RATIO: f32 = 20.0;

/// What a token's advantage `A` does to its log-prob.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Objective {
    /// `-A log π`, with `A` the token's weight.
    CrossEntropy,
    /// PPO (Schulman et al. 2017, eq. 7) around the behavior policy:
    /// `-min(ρ A, clip(ρ, 1 - low, 1 + high) A)`. Stale samples are clipped away, which is why the
    /// decoupled form exists; kept as the known-bad variant to compare with.
    Ppo { clip_low: f32, clip_high: f32 },
    /// Decoupled PPO (AReaL, arXiv 2505.24298, eq. 5):
    /// `-min(w, cap) min(r A, clip(r, 1 - low, 1 + high) A)`, `w` held. With `high > low` it is
    /// clip-higher (DAPO, arXiv 2503.14476, eq. 10).
    DecoupledPpo {
        clip_low: f32,
        clip_high: f32,
        correction_cap: f32,
    },
    /// CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4): `-min(ρ, cap) A log π`, `min(ρ, cap)` held. No
    /// token loses its gradient.
    Cispo { ratio_cap: f32 },
    /// GSPO (arXiv 2507.18071, eq. 5 and 7): one ratio per sequence, `s = exp(mean_t log r_t)`:
    /// `-min(w, cap) min(s A, clip(s, 1 - low, 1 + high) A)`, with `w = exp(mean_t log w_t)` held.
    /// Given per token, so that a mean over tokens weighs sequences by length.
    Gspo {
        clip_low: f32,
        clip_high: f32,
        correction_cap: f32,
    },
    /// DPPO with the total-variation mask (prime-rl's default loss): a token that has moved from μ
    /// by more than `threshold` in probability, in the direction its advantage pushes, is left out;
    /// `-A ρ + anchor (log ρ)²` for the others, the anchor for all.
    DppoTv { threshold: f32, anchor: f32 },
    /// Truncated importance sampling per token (Yao et al. 2025): `-min(w, cap) r A`, `w` held.
    TokenTis { correction_cap: f32 },
}

/// Means over the tokens of a sequence, of logs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SequenceView {
    /// `mean_t log r_t`.
    pub importance: f32,
    /// `mean_t log w_t`.
    pub correction: f32,
}

/// What is known of a sampled token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenView {
    pub advantage: f32,
    /// Log-probs.
    pub behavior: f32,
    pub proximal: f32,
    pub current: f32,
    pub sequence: SequenceView,
}

/// Loss of one token and its derivative by the token's current log-prob.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    pub loss: f32,
    pub slope: f32,
    /// The policy term has no gradient.
    pub clipped: bool,
    /// Correction ratio before and after the cap.
    pub correction: f32,
    pub weight: f32,
}

impl Objective {
    /// Whether it needs [`TokenView::sequence`], and so the whole sequence's log-probs beforehand.
    pub fn is_sequential(&self) -> bool {
        matches!(self, Self::Gspo { .. })
    }

    /// The policy term of one token.
    pub fn term(&self, t: &TokenView) -> Term {
        let ratio = bounded_exp(t.current - t.proximal);
        let correction = bounded_exp(t.proximal - t.behavior);
        let moved = bounded_exp(t.current - t.behavior);
        let a = t.advantage;
        match *self {
            Self::CrossEntropy => Term {
                loss: -a * t.current,
                slope: -a,
                clipped: false,
                correction: 1.0,
                weight: 1.0,
            },
            Self::Ppo {
                clip_low,
                clip_high,
            } => clipped(a, moved, clip_low, clip_high, 1.0, correction),
            Self::DecoupledPpo {
                clip_low,
                clip_high,
                correction_cap,
            } => {
                let weight = correction.min(correction_cap);
                clipped(a, ratio, clip_low, clip_high, weight, correction)
            }
            Self::Gspo {
                clip_low,
                clip_high,
                correction_cap,
            } => {
                let ratio = bounded_exp(t.sequence.importance);
                let correction = bounded_exp(t.sequence.correction);
                let weight = correction.min(correction_cap);
                clipped(a, ratio, clip_low, clip_high, weight, correction)
            }
            Self::Cispo { ratio_cap } => {
                let weight = moved.min(ratio_cap);
                Term {
                    loss: -weight * a * t.current,
                    slope: -weight * a,
                    clipped: false,
                    correction,
                    weight,
                }
            }
            Self::DppoTv { threshold, anchor } => {
                let gap = t.current.exp() - t.behavior.exp();
                let dropped = (a > 0.0 && gap > threshold) || (a < 0.0 && gap < -threshold);
                let log = (t.current - t.behavior).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO);
                let kept = if dropped { 0.0 } else { a };
                Term {
                    loss: -kept * moved + anchor * log * log,
                    slope: -kept * moved + 2.0 * anchor * log,
                    clipped: dropped,
                    correction,
                    weight: moved,
                }
            }
            Self::TokenTis { correction_cap } => {
                let weight = correction.min(correction_cap);
                Term {
                    loss: -weight * ratio * a,
                    slope: -weight * ratio * a,
                    clipped: false,
                    correction,
                    weight,
                }
            }
        }
    }
}

/// `-weight min(ratio a, clip(ratio, 1 - low, 1 + high) a)`.
fn clipped(a: f32, ratio: f32, low: f32, high: f32, weight: f32, correction: f32) -> Term {
    let free = ratio * a;
    let cut = ratio.clamp(1.0 - low, 1.0 + high) * a;
    let clipped = cut < free;
    Term {
        loss: -weight * free.min(cut),
        slope: if clipped { 0.0 } else { -weight * free },
        clipped,
        correction,
        weight,
    }
}

/// `e^x` with `x` cut to a sane range; NaN stays NaN.
pub(crate) fn bounded_exp(x: f32) -> f32 {
    x.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
}

/// An estimate of KL(current || reference) from one sampled token (Schulman 2020), with
/// `x = current - reference`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KlEstimator {
    /// `x`: unbiased as a reading; as a loss its gradient is zero on average.
    K1,
    /// `x² / 2`: its gradient is that of the divergence.
    K2,
    /// `e^-x + x - 1`: unbiased and never negative.
    K3,
}

impl KlEstimator {
    /// The estimate and its derivative by the current log-prob.
    pub fn term(self, current: f32, reference: f32) -> (f32, f32) {
        let x = current - reference;
        match self {
            Self::K1 => (x, 1.0),
            Self::K2 => (x * x / 2.0, x),
            Self::K3 => {
                let inverse = bounded_exp(-x);
                (inverse + x - 1.0, 1.0 - inverse)
            }
        }
    }
}

/// How a teacher's distribution is followed on the student's own most likely tokens (OpenClaw-RL
/// v2's hybrid rule, arXiv 2603.10165): with `p` the student at the start of the step,
/// `Δ_v = clip(log teacher_v - log p_v, ±clip)`, `A_v = Δ_v softmax_S(log p)_v` and
/// `r_v = π_v / p_v`, the loss is `Σ_{v in S} max(-A_v r_v, -A_v clip(r_v, 1 - low, 1 + high))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distill {
    /// Weight beside the policy term; 0 is off.
    pub coef: f32,
    /// Largest |log teacher - log student|.
    pub clip: f32,
    /// Range of the ratio.
    pub ratio_low: f32,
    pub ratio_high: f32,
}

/// The student's most likely tokens at one place, `[k]` each.
#[derive(Debug, Clone, PartialEq)]
pub struct TopK {
    pub ids: Vec<u32>,
    /// Log-probs of `ids` at the start of the step.
    pub proximal: Vec<f32>,
    /// Log-probs of `ids` under the teacher.
    pub teacher: Vec<f32>,
}

/// What a teacher gives its likeliest tokens at one place, `[k]` each, to be imitated (distillation by
/// soft targets, arXiv 1503.02531). The loss is `-Σ_{v in S} q_v log π_v`, and `-log π_t` more where the
/// token `t` at the place is not in `S`: if `t` was drawn from the teacher, that is the cross-entropy of
/// the whole distribution in the mean.
#[derive(Debug, Clone, PartialEq)]
pub struct SoftTargets {
    pub ids: Vec<u32>,
    /// Their probabilities `q` under the teacher.
    pub probs: Vec<f32>,
}

impl Distill {
    /// The loss at one place and its derivative by each of the `current` log-probs of `top.ids`.
    pub fn terms(&self, top: &TopK, current: &[f32]) -> (f32, Vec<f32>) {
        let most = top.proximal.iter().copied().fold(f32::MIN, f32::max);
        let mass = |p: &f32| (p - most).exp();
        let sum: f32 = top.proximal.iter().map(mass).sum();
        let mut loss = 0.0;
        let students = top.proximal.iter().zip(&top.teacher).zip(current);
        let slopes = students.map(|((proximal, teacher), current)| {
            let advantage =
                (teacher - proximal).clamp(-self.clip, self.clip) * mass(proximal) / sum;
            let (low, high) = (self.ratio_low, self.ratio_high);
            let ratio = bounded_exp(current - proximal);
            let term = clipped(advantage, ratio, low, high, 1.0, 1.0);
            loss += term.loss;
            term.slope
        });
        let slopes = slopes.collect();
        (loss, slopes)
    }
}

/// Factor on the learning rate for a batch whose corrections have the effective share of samples
/// `ess` (VCPO): `min(1, sqrt(ess / base))`; a base of 0 leaves the rate alone.
pub fn ess_scale(ess: f32, base: f32) -> f32 {
    if base > 0.0 {
        (ess / base).sqrt().min(1.0)
    } else {
        1.0
    }
}
