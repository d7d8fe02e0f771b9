//! The control group: sessions that the base model answers, to measure what learning brings.

use crate::SessionId;

/// The share of sessions that the base model answers, so that what learning brings can be measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holdback {
    /// In [0, 1].
    pub share: f64,
    /// Makes the draw repeatable.
    pub seed: u64,
}

impl Holdback {
    /// Whether a session belongs to the control group. A function of seed and session alone, so a
    /// session stays where it is; a larger share only adds sessions.
    pub fn draws(self, session: SessionId) -> bool {
        let (high, low) = session.0.as_u64_pair();
        let mixed = mix(mix(high ^ self.seed) ^ low);
        // 53 bits make every value of the unit interval that an f64 can tell apart.
        ((mixed >> 11) as f64) < self.share * (1u64 << 53) as f64
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
