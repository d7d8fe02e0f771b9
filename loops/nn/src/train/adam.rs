//! AdamW (Loshchilov and Hutter 2019) with global-norm clipping, on f32 arrays.

use hone_kernels::cpu::{Kernel, V16, dispatch};

/// First and second moments of every trained array, and the number of updates behind them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Moments {
    pub(crate) first: Vec<Vec<f32>>,
    pub(crate) second: Vec<Vec<f32>>,
    pub(crate) updates: u64,
}

/// Settings of one update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdamW {
    pub(crate) lr: f32,
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) eps: f32,
    pub(crate) weight_decay: f32,
    /// Factor on the gradient (norm clipping).
    pub(crate) grad_scale: f32,
}

impl Moments {
    pub(crate) fn zeros(lengths: &[usize]) -> Self {
        let arrays = || lengths.iter().map(|&n| vec![0.0; n]).collect();
        Self {
            first: arrays(),
            second: arrays(),
            updates: 0,
        }
    }

    /// One update of every array. `values` says per array whether weight decay applies.
    pub(crate) fn update(
        &mut self,
        values: Vec<(&mut [f32], bool)>,
        grads: Vec<(&mut [f32], bool)>,
        adam: AdamW,
    ) {
        self.updates += 1;
        let count = self.updates as f64;
        let correction1 = 1.0 - f64::from(adam.beta1).powf(count);
        let correction2 = 1.0 - f64::from(adam.beta2).powf(count);
        let moments = self.first.iter_mut().zip(&mut self.second);
        for (((value, decays), (grad, _)), (first, second)) in
            values.into_iter().zip(grads).zip(moments)
        {
            let decay = if decays {
                adam.lr * adam.weight_decay
            } else {
                0.0
            };
            dispatch(Update {
                value,
                grad,
                first,
                second,
                adam,
                keep: 1.0 - decay,
                rate: (f64::from(adam.lr) / correction1) as f32,
                root: correction2.sqrt().recip() as f32,
            });
        }
    }
}

struct Update<'a> {
    value: &'a mut [f32],
    grad: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    adam: AdamW,
    keep: f32,
    rate: f32,
    root: f32,
}

impl Kernel for Update<'_> {
    type Out = ();
    /// Plain element-wise arithmetic: the compiler widens it at each level without changing bits.
    #[inline(always)]
    fn run<V: V16>(self) {
        let AdamW {
            beta1,
            beta2,
            eps,
            grad_scale,
            ..
        } = self.adam;
        let moments = self.first.iter_mut().zip(self.second);
        for ((p, g), (m, v)) in self.value.iter_mut().zip(self.grad).zip(moments) {
            let g = g * grad_scale;
            *m = *m * beta1 + g * (1.0 - beta1);
            *v = *v * beta2 + g * g * (1.0 - beta2);
            *p = *p * self.keep - self.rate * *m / (v.sqrt() * self.root + eps);
        }
    }
}

/// Euclidean norm over all arrays.
pub(crate) fn norm(arrays: &[(&mut [f32], bool)]) -> f64 {
    let square = |v: &f32| f64::from(*v) * f64::from(*v);
    let sums = arrays
        .iter()
        .map(|(a, _)| a.iter().map(square).sum::<f64>());
    sums.sum::<f64>().sqrt()
}
