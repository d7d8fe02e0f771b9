//! Every method of [`V16`] at every level against the portable form, on numbers of every kind.
#![allow(unsafe_code)]

use super::portable::Portable;
use super::*;
use crate::rng::Rng;

/// Zeros of two signs, subnormal numbers, the smallest, the largest, infinities and NaN, and numbers
/// around 1 and around the ends of [`exp`].
const SPECIAL: [f32; 23] = [
    0.0,
    -0.0,
    f32::from_bits(1),
    -f32::from_bits(0x7f_ffff),
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    -f32::NAN,
    1.0,
    -1.0,
    1.000_000_1,
    0.1,
    3.5,
    -87.3,
    -87.31,
    88.0,
    88.1,
    16_777_215.0,
    -0.333_333_34,
];

/// The vector that begins at number `at` of the special ones, each `step` after the one before.
fn lanes(at: usize, step: usize) -> [f32; LANES] {
    std::array::from_fn(|i| SPECIAL[(at + i * step) % SPECIAL.len()])
}

/// Bits, of one NaN for all.
fn bits(x: f32) -> u32 {
    if x.is_nan() {
        f32::NAN.to_bits()
    } else {
        x.to_bits()
    }
}

/// What the methods make of three vectors, of which lanes and of some.
struct Numbers([[f32; LANES]; 3]);

impl Kernel for Numbers {
    type Out = Vec<u32>;
    #[inline(always)]
    fn run<V: V16>(self) -> Vec<u32> {
        // SAFETY: dispatched at this level; the arrays hold sixteen values.
        unsafe {
            let [a, b, c] = self.0.map(|x| V::load(x.as_ptr()));
            let vectors = [
                a,
                V::splat(self.0[0][0]),
                a.fma(b, c),
                a.add(b),
                a.sub(b),
                a.mul(b),
                a.div(b),
                a.max(b),
                a.select_lt(b, c, a),
                a.select_lt(b, b, c),
                a.pow2(),
                exp(a),
                sigmoid(a),
                V::load_part(self.0[0].as_ptr(), 5),
            ];
            let mut found = vec![bits(a.sum()), bits(a.max_lane())];
            for v in vectors {
                let mut to = [0.0; LANES];
                v.store(to.as_mut_ptr());
                found.extend(to.map(bits));
            }
            let mut to = [7.0; LANES];
            b.store_part(to.as_mut_ptr(), 11);
            found.extend(to.map(bits));
            let mut halves = [0; LANES];
            let number = self.0[0].map(|x| if x.is_nan() { 0.0 } else { x });
            V::round_bf16(number.as_ptr(), halves.as_mut_ptr());
            found.extend(halves.map(u32::from));
            found
        }
    }
}

/// Sixteen stored weights of every form, whose bits follow on each other from `.0`.
struct Codes(u16);

impl Kernel for Codes {
    type Out = Vec<u32>;
    #[inline(always)]
    fn run<V: V16>(self) -> Vec<u32> {
        let halves: [u16; 2 * LANES] = std::array::from_fn(|i| self.0.wrapping_add(i as u16));
        let bytes = halves.map(|half| half as u8);
        // SAFETY: dispatched at this level; the arrays hold what is read and written.
        unsafe {
            let vectors = [
                V::load_bf16(halves.as_ptr()),
                V::load_f16(halves.as_ptr()),
                V::load_i8(bytes.as_ptr()),
                V::load_u4(bytes.as_ptr(), 0),
                V::load_u4(bytes.as_ptr(), 4),
                V::zero().dot(V::splat_pair([2.0f32].as_ptr()), V::pair_i8(bytes.as_ptr())),
                V::zero().dot(V::pair_u4(bytes.as_ptr()), V::pair_i8(bytes.as_ptr())),
            ];
            let mut found = Vec::new();
            for v in vectors {
                let mut to = [0.0; LANES];
                v.store(to.as_mut_ptr());
                found.extend(to.map(bits));
            }
            for pair in [V::pair_i8(bytes.as_ptr()), V::pair_u4(bytes.as_ptr())] {
                let (mut to, mut again) = ([0.0; LANES], [0.0; LANES]);
                V::store_pair(pair, to.as_mut_ptr());
                V::store_pair(V::load_pair(to.as_ptr()), again.as_mut_ptr());
                found.extend(to.into_iter().chain(again).map(f32::to_bits));
            }
            found
        }
    }
}

/// Four inputs and four lines of weights: their products, three times, and the inputs' codes made again.
struct Bytes {
    x: [i8; 4],
    w: [u8; 4 * LANES],
}

impl Kernel for Bytes {
    type Out = Vec<u32>;
    #[inline(always)]
    fn run<V: V16>(self) -> Vec<u32> {
        let words = |codes: [i8; 4]| match V::QUAD_PARTS {
            1 => [u32::from_le_bytes(codes.map(|x| x as u8)), 0],
            _ => [0, 2].map(|at| {
                let [first, second] = [codes[at], codes[at + 1]].map(|x| i16::from(x) as u16);
                u32::from(first) | u32::from(second) << 16
            }),
        };
        let x = words(self.x).map(f32::from_bits);
        let sum: i32 = self.x.iter().map(|&x| i32::from(x)).sum();
        let raised = [128, 8].map(|by: i32| f32::from_bits((-3 * by * sum) as u32));
        // SAFETY: dispatched at this level; the arrays hold what is read and written.
        unsafe {
            let quads = [V::quad_i8(self.w.as_ptr()), V::quad_u4(self.w.as_ptr())];
            let mut found = Vec::new();
            for (raised, w) in raised.iter().zip(quads) {
                let mut sum = V::begin_quads(raised);
                for _ in 0..3 {
                    for (part, x) in x.iter().take(V::QUAD_PARTS).enumerate() {
                        sum = sum.dot_quads(x, w, part);
                    }
                }
                let mut to = [0.0; LANES];
                sum.sum_of_quads().store(to.as_mut_ptr());
                found.extend(to.map(bits));
            }
            let numbers: [f32; LANES] =
                std::array::from_fn(|i| f32::from(self.x[i % 4]) - 0.5 * i as f32 / 16.0);
            let mut codes = [0; LANES];
            V::load(numbers.as_ptr()).store_i8(codes.as_mut_ptr());
            found.extend(codes.map(|code| code as u32));
            found
        }
    }
}

/// Runs `kernel` at every level of this processor; all must find what the portable form finds.
fn check<K: Kernel<Out = Vec<u32>>>(what: &str, kernel: impl Fn() -> K) {
    let expected = kernel().run::<Portable>();
    let compare = |level: &str, found: Vec<u32>| {
        let differ = expected.iter().zip(&found).position(|(a, b)| a != b);
        assert!(differ.is_none(), "{what}: {level} differs at {differ:?}");
        assert_eq!(found.len(), expected.len());
    };
    for level in SimdLevel::ALL.into_iter().filter(|l| l.supported()) {
        // SAFETY: the level is supported.
        compare(&format!("{level:?}"), unsafe { run_at(level, kernel()) });
    }
    #[cfg(target_arch = "x86_64")]
    if SimdLevel::Avx512.supported() {
        // SAFETY: the features were detected.
        unsafe {
            if is_x86_feature_detected!("avx512bf16") {
                compare("dots", avx512::run_avx512_dots(kernel()));
            }
            if is_x86_feature_detected!("avx512vnni") {
                compare("dots of bytes", avx512::run_avx512_byte_dots(kernel()));
            }
        }
    }
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if SimdLevel::Avx2.supported() {
        // SAFETY: the features were detected, or are emulated.
        let found = crate::support::amx_emulator::with_byte_dots(|| unsafe {
            avx2::run_avx2_byte_dots(kernel())
        });
        compare("AVX-VNNI", found);
    }
}

#[test]
fn every_method_is_the_portable_one_at_every_level() {
    for at in 0..SPECIAL.len() {
        for step in 1..SPECIAL.len() {
            let vectors = [lanes(at, 1), lanes(at + 3, step), lanes(7, at + step)];
            check(&format!("{at} {step}"), || Numbers(vectors));
        }
    }
}

#[test]
fn every_stored_weight_is_the_portable_one_at_every_level() {
    for first in (0..=u16::MAX).step_by(LANES) {
        check(&format!("{first:#06x}"), || Codes(first));
    }
}

#[test]
fn every_sum_of_bytes_is_the_portable_one_at_every_level() {
    let mut rng = Rng::new(5);
    let mut byte = || (rng.next_u64() >> 56) as u8;
    for round in 0..2000 {
        let (mut x, mut w) = ([0; 4].map(|_| byte() as i8), [0; 4 * LANES].map(|_| byte()));
        x = x.map(|x| x.max(-127));
        if round < 8 {
            // The ends of what there is.
            x = [if round % 2 == 0 { 127 } else { -127 }; 4];
            w = [[0x80, 0x7f, 0xff, 0][round / 2]; 4 * LANES];
        }
        check(&format!("{x:?} {w:?}"), || Bytes { x, w });
    }
}

#[test]
fn the_best_level_is_that_of_the_architecture() {
    let best = SimdLevel::best();
    assert!(SimdLevel::Portable.supported() && best.supported());
    if cfg!(target_arch = "aarch64") {
        assert_eq!(best, SimdLevel::Neon);
    }
    let detected = SimdLevel::Avx2.supported() || SimdLevel::Avx512.supported();
    assert_eq!(
        detected,
        cfg!(target_arch = "x86_64") && best != SimdLevel::Portable
    );
}
