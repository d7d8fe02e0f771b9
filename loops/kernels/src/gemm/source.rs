//! What a product multiplies, step by step, and where it lies.

use crate::cpu::{Kernel, LANES, V16, dispatch, dispatch_bytes, dispatch_dots, fetch_line};

/// Most rows of a register tile, where a source does not say otherwise.
pub const MAX_ROWS: usize = 6;

/// The same for codes: each takes several instructions to be a factor.
pub const CODE_ROWS: usize = 12;

/// A stored weight element.
pub trait Element: Copy + Send + Sync {
    /// # Safety
    /// As for [`V16::load`].
    unsafe fn load<V: V16>(p: *const Self) -> V;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<V: V16>(p: *const Self) -> V {
        // SAFETY: same contract.
        unsafe { V::load(p) }
    }
}

/// The bits of a bf16.
impl Element for u16 {
    #[inline(always)]
    unsafe fn load<V: V16>(p: *const Self) -> V {
        // SAFETY: same contract.
        unsafe { V::load_bf16(p) }
    }
}

/// The bits of an f16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Half(u16);

impl Element for Half {
    #[inline(always)]
    unsafe fn load<V: V16>(p: *const Self) -> V {
        // SAFETY: same contract.
        unsafe { V::load_f16(p.cast()) }
    }
}

/// What one step multiplies and adds, in sixteen lanes.
pub trait Factors {
    /// Inputs a step.
    const INPUTS: usize;
    /// The factors of a step.
    type Factor<V: V16>: Copy;
    /// Runs a kernel of this arithmetic at the current level.
    fn dispatch<K: Kernel>(kernel: K) -> K::Out;
}

/// Factors that rows multiply one by one, wherever their inputs lie.
pub trait Stepped: Factors {
    /// Factors at `p` for every lane.
    ///
    /// # Safety
    /// As for the methods of [`V16`]; `p` holds a step's input.
    unsafe fn splat<V: V16>(p: *const f32) -> Self::Factor<V>;
    /// `sum + x * w`.
    ///
    /// # Safety
    /// As for the methods of [`V16`].
    unsafe fn add<V: V16>(sum: V, x: Self::Factor<V>, w: Self::Factor<V>) -> V;
}

/// Factors of which some steps can be kept as lines.
pub trait Staging: Stepped + Copy {
    /// A line as [`Self::store`] left it.
    ///
    /// # Safety
    /// As for [`V16::load`].
    unsafe fn load<V: V16>(p: *const f32) -> Self::Factor<V>;
    /// # Safety
    /// As for [`V16::store`].
    unsafe fn store<V: V16>(factor: Self::Factor<V>, p: *mut f32);
}

/// A number a step.
#[derive(Clone, Copy)]
pub struct Single;

impl Factors for Single {
    const INPUTS: usize = 1;
    type Factor<V: V16> = V;
    fn dispatch<K: Kernel>(kernel: K) -> K::Out {
        dispatch(kernel)
    }
}

impl Stepped for Single {
    #[inline(always)]
    unsafe fn splat<V: V16>(p: *const f32) -> V {
        // SAFETY: same contract.
        unsafe { V::splat(*p) }
    }
    #[inline(always)]
    unsafe fn add<V: V16>(sum: V, x: V, w: V) -> V {
        // SAFETY: same contract.
        unsafe { x.fma(w, sum) }
    }
}

impl Staging for Single {
    #[inline(always)]
    unsafe fn load<V: V16>(p: *const f32) -> V {
        // SAFETY: same contract.
        unsafe { V::load(p) }
    }
    #[inline(always)]
    unsafe fn store<V: V16>(factor: V, p: *mut f32) {
        // SAFETY: same contract.
        unsafe { factor.store(p) }
    }
}

/// Factors that are made of codes.
pub trait CodeFactors: Factors + Copy {
    /// Of as many lines of signed bytes as a step has inputs.
    ///
    /// # Safety
    /// As for [`V16::load`].
    unsafe fn of_i8<V: V16>(p: *const u8) -> Self::Factor<V>;
    /// Of half as many lines: their low and their high halves, minus 8, in turn.
    ///
    /// # Safety
    /// As for [`V16::load`].
    unsafe fn of_u4<V: V16>(p: *const u8) -> Self::Factor<V>;
}

/// Two bf16 numbers a step.
#[derive(Clone, Copy)]
pub struct Pairs;

impl Factors for Pairs {
    const INPUTS: usize = 2;
    type Factor<V: V16> = V::Pair;
    fn dispatch<K: Kernel>(kernel: K) -> K::Out {
        dispatch_dots(kernel)
    }
}

impl Stepped for Pairs {
    #[inline(always)]
    unsafe fn splat<V: V16>(p: *const f32) -> V::Pair {
        // SAFETY: same contract.
        unsafe { V::splat_pair(p) }
    }
    #[inline(always)]
    unsafe fn add<V: V16>(sum: V, x: V::Pair, w: V::Pair) -> V {
        // SAFETY: same contract.
        unsafe { sum.dot(x, w) }
    }
}

impl Staging for Pairs {
    #[inline(always)]
    unsafe fn load<V: V16>(p: *const f32) -> V::Pair {
        // SAFETY: same contract.
        unsafe { V::load_pair(p) }
    }
    #[inline(always)]
    unsafe fn store<V: V16>(factor: V::Pair, p: *mut f32) {
        // SAFETY: same contract.
        unsafe { V::store_pair(factor, p) }
    }
}

impl CodeFactors for Pairs {
    #[inline(always)]
    unsafe fn of_i8<V: V16>(p: *const u8) -> V::Pair {
        // SAFETY: same contract.
        unsafe { V::pair_i8(p) }
    }
    #[inline(always)]
    unsafe fn of_u4<V: V16>(p: *const u8) -> V::Pair {
        // SAFETY: same contract.
        unsafe { V::pair_u4(p) }
    }
}

/// Four codes a step, summed up as whole numbers, see [`super::interleaved`].
#[derive(Clone, Copy)]
pub struct Quads;

impl Factors for Quads {
    const INPUTS: usize = 4;
    type Factor<V: V16> = V::Quad;
    fn dispatch<K: Kernel>(kernel: K) -> K::Out {
        dispatch_bytes(kernel)
    }
}

impl CodeFactors for Quads {
    #[inline(always)]
    unsafe fn of_i8<V: V16>(p: *const u8) -> V::Quad {
        // SAFETY: same contract.
        unsafe { V::quad_i8(p) }
    }
    #[inline(always)]
    unsafe fn of_u4<V: V16>(p: *const u8) -> V::Quad {
        // SAFETY: same contract.
        unsafe { V::quad_u4(p) }
    }
}

/// What a step of a source multiplies.
pub(super) type FactorOf<S, V> = <<S as Source>::Factors as Factors>::Factor<V>;

/// Where the sixteen-wide columns ("panels") of `w` lie.
pub trait Source: Copy {
    type Factors: Factors;
    /// Steps that share a scale.
    const GROUP: usize = usize::MAX;
    /// Whether a scale is for the sum of its group: a group's sum begins at 0 and is added to those
    /// before, `sum + scale * group`. Else weights come scaled.
    const SCALED_SUMS: bool = false;
    /// Most rows that a loaded weight serves, where there are registers for them.
    const ROWS_MAX: usize = MAX_ROWS;
    /// Where a panel begins.
    type Panel: Copy;
    /// Start of panel `n`.
    ///
    /// # Safety
    /// `n` is a panel of this source.
    unsafe fn panel(&self, n: usize) -> Self::Panel;
    /// Starts of panel `first` and those behind it.
    ///
    /// # Safety
    /// They are panels of this source.
    #[inline(always)]
    unsafe fn panels<const N: usize>(&self, first: usize) -> [Self::Panel; N] {
        // SAFETY: same contract.
        unsafe {
            let mut panels = [self.panel(first); N];
            for (n, panel) in panels.iter_mut().enumerate() {
                *panel = self.panel(first + n);
            }
            panels
        }
    }
    /// Scale of a group of steps; sources without one ignore it.
    ///
    /// # Safety
    /// As for [`V16::load`]; the panel has this group.
    #[inline(always)]
    unsafe fn scale<V: V16>(&self, _panel: Self::Panel, _group: usize) -> V {
        // SAFETY: same contract.
        unsafe { V::zero() }
    }
    /// Asks for what comes some steps after step `i`, where that is worth asking. It may be anybody's.
    #[inline(always)]
    fn fetch(&self, _panel: Self::Panel, _i: usize) {}
    /// Asks for step `i` itself, for the second-level cache.
    #[inline(always)]
    fn fetch_later(&self, _panel: Self::Panel, _i: usize) {}
    /// Sixteen weights of step `i`, whose group has this `scale`.
    ///
    /// # Safety
    /// As for [`V16::load`]; the panel has this step.
    unsafe fn load<V: V16>(&self, panel: Self::Panel, i: usize, scale: V) -> FactorOf<Self, V>;
}

/// Two lines of bf16 weights a step.
#[derive(Clone, Copy)]
pub struct Bf16Pairs {
    pub base: *const u16,
    pub panel: usize,
}

impl Source for Bf16Pairs {
    type Factors = Pairs;
    type Panel = *const u16;
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> *const u16 {
        // SAFETY: the caller vouches for `n`.
        unsafe { self.base.add(n * self.panel) }
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, panel: *const u16, i: usize, _scale: V) -> V::Pair {
        // SAFETY: the caller vouches for `i`.
        unsafe { V::pair_bf16(panel.add(i * 2 * LANES)) }
    }
}

/// Panels at a fixed distance.
#[derive(Clone, Copy)]
pub struct Strided<E> {
    pub base: *const E,
    pub panel: usize,
    pub step: usize,
}

impl<E: Element> Source for Strided<E> {
    type Factors = Single;
    type Panel = *const E;
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> *const E {
        // SAFETY: the caller vouches for `n`.
        unsafe { self.base.add(n * self.panel) }
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, panel: *const E, i: usize, _scale: V) -> V {
        // SAFETY: the caller vouches for `i`.
        unsafe { E::load(panel.add(i * self.step)) }
    }
}

/// Most matrices side by side: query, key and value.
pub const BESIDE_MAX: usize = 3;

/// How far ahead of a walk through small matrices is asked for what comes: what lies behind one is the next.
const AHEAD_BYTES: usize = 4 << 10;

/// Panels of matrices of one shape, those of one behind those of the other. They are many small ones, each
/// used for few rows, and are waited for more than computed with.
#[derive(Clone, Copy)]
pub struct SideBySide<E> {
    pub bases: [*const E; BESIDE_MAX],
    /// Panels of each.
    pub each: usize,
    pub panel: usize,
    pub step: usize,
}

impl<E: Element> Source for SideBySide<E> {
    type Factors = Single;
    type Panel = *const E;
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> *const E {
        // SAFETY: the caller vouches for `n`.
        unsafe { self.bases[n / self.each].add(n % self.each * self.panel) }
    }
    #[inline(always)]
    fn fetch(&self, panel: *const E, i: usize) {
        let at = panel.wrapping_add(i * self.step).cast::<u8>();
        fetch_line::<2>(at.wrapping_add(AHEAD_BYTES));
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, panel: *const E, i: usize, _scale: V) -> V {
        // SAFETY: the caller vouches for `i`.
        unsafe { E::load(panel.add(i * self.step)) }
    }
}
