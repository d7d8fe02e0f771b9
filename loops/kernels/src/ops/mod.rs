//! Row operations: norms, rotation, gated activation, sums. Forward and backward, all in fixed
//! order: a reduction over a row uses sixteen accumulators by index mod 16 and one tree.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::cpu::{Kernel, LANES, V16, dispatch, sigmoid};
use crate::thread_pool::{Executor, Shards};

#[macro_use]
mod columns;
pub mod log_softmax;
mod rows;

use self::columns::{get, put};
pub use self::rows::{dot, each_row, exp_row, weighted_sum};

/// `1 / sqrt(mean(x^2) + eps)` of `n` values.
#[inline(always)]
unsafe fn inverse_rms<V: V16>(x: *const f32, n: usize, eps: f32) -> f32 {
    // SAFETY: the caller vouches for `n` values.
    unsafe {
        let mut acc = V::zero();
        columns!(n, |at, width| {
            let v = get::<V>(x, at, width);
            acc = v.fma(v, acc);
        });
        1.0 / (acc.sum() / n as f32 + eps).sqrt()
    }
}

/// RMS norm (Zhang and Sennrich 2019) of rows: `y = x / rms(x) * weight`.
/// A row holds `groups` vectors of `weight.len()` values (one for a layer norm, one per head for
/// query and key norms), each normalised alone.
pub struct RmsNorm<'a> {
    pub weight: &'a [f32],
    pub eps: f32,
    pub groups: usize,
}

struct RmsForward<'a> {
    norm: &'a RmsNorm<'a>,
    x: *const f32,
    y: *mut f32,
}

impl Kernel for RmsForward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let n = self.norm.weight.len();
        let w = self.norm.weight.as_ptr();
        for group in 0..self.norm.groups {
            // SAFETY: a row holds `groups * n` values, see `RmsNorm::forward_row`.
            unsafe {
                let x = self.x.add(group * n);
                let y = self.y.add(group * n);
                let inv = V::splat(inverse_rms::<V>(x, n, self.norm.eps));
                columns!(n, |at, width| {
                    let v = get::<V>(x, at, width).mul(inv);
                    put(v.mul(get::<V>(w, at, width)), y, at, width);
                });
            }
        }
    }
}

struct RmsBackward<'a> {
    norm: &'a RmsNorm<'a>,
    x: *const f32,
    dy: *const f32,
    dx: *mut f32,
    /// Gradient of the weight, or null.
    dw: *mut f32,
    /// Add to `dx` instead of setting it.
    add: bool,
}

impl Kernel for RmsBackward<'_> {
    type Out = ();
    /// `dx = inv * (dy w) - x * inv^3 / n * sum(dy w x)`; `dw += dy * x * inv`.
    #[inline(always)]
    fn run<V: V16>(self) {
        let n = self.norm.weight.len();
        let w = self.norm.weight.as_ptr();
        for group in 0..self.norm.groups {
            // SAFETY: a row holds `groups * n` values, see `RmsNorm::backward_row`.
            unsafe {
                let x = self.x.add(group * n);
                let dy = self.dy.add(group * n);
                let dx = self.dx.add(group * n);
                let inv = inverse_rms::<V>(x, n, self.norm.eps);
                let mut dot = V::zero();
                columns!(n, |at, width| {
                    let g = get::<V>(dy, at, width).mul(get::<V>(w, at, width));
                    dot = g.fma(get::<V>(x, at, width), dot);
                });
                let pull = V::splat(-(dot.sum() * inv * inv * inv / n as f32));
                let inv = V::splat(inv);
                columns!(n, |at, width| {
                    let grad = get::<V>(dy, at, width);
                    let xv = get::<V>(x, at, width);
                    let scaled = grad.mul(get::<V>(w, at, width)).mul(inv);
                    let mut value = xv.fma(pull, scaled);
                    if self.add {
                        value = value.add(get::<V>(dx, at, width));
                    }
                    put(value, dx, at, width);
                    if !self.dw.is_null() {
                        let old = get::<V>(self.dw, at, width);
                        put(grad.fma(xv.mul(inv), old), self.dw, at, width);
                    }
                });
            }
        }
    }
}

impl RmsNorm<'_> {
    fn width(&self) -> usize {
        self.weight.len() * self.groups
    }

    pub fn forward_row(&self, x: &[f32], y: &mut [f32]) {
        assert!(
            x.len() >= self.width() && y.len() >= self.width(),
            "row too short"
        );
        dispatch(RmsForward {
            norm: self,
            x: x.as_ptr(),
            y: y.as_mut_ptr(),
        });
    }

    /// Rows at distance `stride` in both buffers.
    pub fn forward(&self, x: &[f32], y: &mut [f32], rows: (usize, usize), exec: &Executor) {
        let (count, stride) = rows;
        let y = Shards::new(&mut y[..count * stride]);
        exec.split(count, count * self.width() * 2, &|part| {
            for row in part {
                // SAFETY: rows are disjoint.
                let y = unsafe { y.slice(row * stride..(row + 1) * stride) };
                self.forward_row(&x[row * stride..], y);
            }
        });
    }

    /// `dx` (set, or added to with `add`) and `dw` (added to, when wanted) of one row.
    pub fn backward_row(&self, at: NormGrad) {
        let n = self.width();
        assert!(
            at.x.len() >= n && at.dy.len() >= n && at.dx.len() >= n,
            "row too short"
        );
        let dw = match at.dw {
            Some(dw) => {
                assert_eq!(dw.len(), self.weight.len(), "one gradient per weight");
                dw.as_mut_ptr()
            }
            None => std::ptr::null_mut(),
        };
        dispatch(RmsBackward {
            norm: self,
            x: at.x.as_ptr(),
            dy: at.dy.as_ptr(),
            dx: at.dx.as_mut_ptr(),
            dw,
            add: at.add,
        });
    }
}

/// Arguments of [`RmsNorm::backward_row`]: the input row, the output's gradient, and where the
/// gradients go.
pub struct NormGrad<'a> {
    pub x: &'a [f32],
    pub dy: &'a [f32],
    pub dx: &'a mut [f32],
    pub dw: Option<&'a mut [f32]>,
    pub add: bool,
}

struct Add<'a> {
    a: &'a [f32],
    b: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Add<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let n = self.y.len();
        assert!(self.a.len() >= n && self.b.len() >= n, "row too short");
        let (a, b, y) = (self.a.as_ptr(), self.b.as_ptr(), self.y.as_mut_ptr());
        // SAFETY: all hold `n` values.
        unsafe {
            columns!(n, |at, width| {
                put(
                    get::<V>(a, at, width).add(get::<V>(b, at, width)),
                    y,
                    at,
                    width,
                );
            });
        }
    }
}

/// `y = a + b`, element by element.
pub fn add(a: &[f32], b: &[f32], y: &mut [f32], exec: &Executor) {
    let n = y.len();
    assert!(a.len() >= n && b.len() >= n, "operand too short");
    let lines = n.div_ceil(LANES);
    let y = Shards::new(y);
    exec.split(lines, n, &|part| {
        let range = part.start * LANES..(part.end * LANES).min(n);
        // SAFETY: parts are disjoint.
        let y = unsafe { y.slice(range.clone()) };
        dispatch(Add {
            a: &a[range.clone()],
            b: &b[range],
            y,
        });
    });
}

struct AddTo<'a> {
    a: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for AddTo<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let n = self.y.len().min(self.a.len());
        let (a, y) = (self.a.as_ptr(), self.y.as_mut_ptr());
        // SAFETY: both hold `n` values.
        unsafe {
            columns!(n, |at, width| {
                put(
                    get::<V>(y, at, width).add(get::<V>(a, at, width)),
                    y,
                    at,
                    width,
                );
            });
        }
    }
}

/// `y += a` for the shorter length.
pub fn add_to(a: &[f32], y: &mut [f32]) {
    dispatch(AddTo { a, y });
}

struct SwiGlu {
    gate: *const f32,
    up: *const f32,
    act: *mut f32,
    n: usize,
}

impl Kernel for SwiGlu {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        // SAFETY: all hold `n` values, see `swiglu`.
        unsafe {
            columns!(self.n, |at, width| {
                let g = get::<V>(self.gate, at, width);
                let silu = g.mul(sigmoid(g));
                put(silu.mul(get::<V>(self.up, at, width)), self.act, at, width);
            });
        }
    }
}

/// Strides of the two buffers of the gated activation and its width.
#[derive(Clone, Copy)]
pub struct GluShape {
    pub rows: usize,
    pub ffn: usize,
    pub ld_gate_up: usize,
    pub ld_act: usize,
}

/// `act = silu(gate) * up`, with gate and up side by side in `gate_up [rows][2 ffn]`.
pub fn swiglu(shape: GluShape, gate_up: &[f32], act: &mut [f32], exec: &Executor) {
    let GluShape {
        rows,
        ffn,
        ld_gate_up,
        ld_act,
    } = shape;
    assert!(
        rows == 0 || gate_up.len() >= (rows - 1) * ld_gate_up + 2 * ffn,
        "gate_up too short"
    );
    let act = Shards::new(&mut act[..rows * ld_act]);
    exec.split(rows, rows * ffn * 12, &|part: Range<usize>| {
        for row in part {
            let gate = &gate_up[row * ld_gate_up..];
            dispatch(SwiGlu {
                gate: gate.as_ptr(),
                up: gate[ffn..].as_ptr(),
                // SAFETY: rows are disjoint.
                act: unsafe { act.slice(row * ld_act..row * ld_act + ffn) }.as_mut_ptr(),
                n: ffn,
            });
        }
    });
}

struct SwiGluBackward {
    /// Gate and up on entry, their gradients on exit.
    gate: *mut f32,
    up: *mut f32,
    dact: *const f32,
    n: usize,
}

impl Kernel for SwiGluBackward {
    type Out = ();
    /// With `s = sigmoid(g)`: `dup = dact g s`; `dgate = dact up (s + g s (1 - s))`.
    #[inline(always)]
    fn run<V: V16>(self) {
        // SAFETY: all hold `n` values, see `swiglu_backward`.
        unsafe {
            columns!(self.n, |at, width| {
                let g = get::<V>(self.gate, at, width);
                let up = get::<V>(self.up, at, width);
                let d = get::<V>(self.dact, at, width);
                let s = sigmoid(g);
                let silu = g.mul(s);
                let slope = silu.fma(V::splat(1.0).sub(s), s);
                put(d.mul(silu), self.up, at, width);
                put(d.mul(up).mul(slope), self.gate, at, width);
            });
        }
    }
}

/// Replaces gate and up in `gate_up` by their gradients, given `dact [rows][ffn]`.
pub fn swiglu_backward(shape: GluShape, gate_up: &mut [f32], dact: &[f32], exec: &Executor) {
    let GluShape {
        rows,
        ffn,
        ld_gate_up,
        ld_act,
    } = shape;
    assert!(
        rows == 0 || dact.len() >= (rows - 1) * ld_act + ffn,
        "dact too short"
    );
    assert!(ld_gate_up >= 2 * ffn, "gate and up overlap");
    let gate_up = Shards::new(&mut gate_up[..rows * ld_gate_up]);
    exec.split(rows, rows * ffn * 16, &|part: Range<usize>| {
        for row in part {
            // SAFETY: rows are disjoint.
            let both = unsafe { gate_up.slice(row * ld_gate_up..(row + 1) * ld_gate_up) };
            let (gate, up) = both.split_at_mut(ffn);
            dispatch(SwiGluBackward {
                gate: gate.as_mut_ptr(),
                up: up.as_mut_ptr(),
                dact: dact[row * ld_act..].as_ptr(),
                n: ffn,
            });
        }
    });
}
