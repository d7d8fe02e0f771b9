//! Norms, rotation and the gated activation.

use super::*;

/// `groups` vectors of `n` values per row, each with a norm of its own.
pub(super) fn rms_norm(rows: usize, groups: usize, n: usize) -> Op {
    const EPS: f32 = 1e-5;
    let slow = move |x: &[Vec<f64>]| {
        let norm = |v: &[f64]| -> Vec<f64> {
            let mean = v.iter().map(|v| v * v).sum::<f64>() / n as f64;
            let inverse = 1.0 / (mean + f64::from(EPS)).sqrt();
            v.iter().zip(&x[1]).map(|(v, w)| v * inverse * w).collect()
        };
        x[0].chunks(n).flat_map(norm).collect()
    };
    let fast = move |x: &[Vec<f32>]| {
        let (weight, eps) = (x[1].as_slice(), EPS);
        let norm = RmsNorm {
            weight,
            eps,
            groups,
        };
        let mut y = vec![0.0; x[0].len()];
        for (x, y) in x[0].chunks(n * groups).zip(y.chunks_mut(n * groups)) {
            norm.forward_row(x, y);
        }
        y
    };
    let grads = move |x: &[Vec<f32>], dy: &[f32]| {
        let (weight, eps) = (x[1].as_slice(), EPS);
        let norm = RmsNorm {
            weight,
            eps,
            groups,
        };
        let (mut dx, mut dw) = (vec![0.0; x[0].len()], vec![0.0; n]);
        let width = n * groups;
        for (row, dx) in dx.chunks_mut(width).enumerate() {
            let (x, dy) = (&x[0][row * width..], &dy[row * width..]);
            let dw = Some(dw.as_mut_slice());
            norm.backward_row(NormGrad {
                x,
                dy,
                dx,
                dw,
                add: false,
            });
        }
        vec![dx, dw]
    };
    Op {
        name: format!("rms norm of {rows} rows of {groups} x {n}"),
        inputs: vec![random(rows * groups * n, 1), random(n, 2)],
        slow: Box::new(slow),
        fast: Box::new(fast),
        grads: Box::new(grads),
    }
}

/// Rotation of a head at a position, with the frequencies of a family.
pub(super) fn rotation(family: Family, position: usize) -> Op {
    let cfg = tiny(family);
    let (dim, rope) = (cfg.head_dim, Rope::new(&cfg));
    let mut angles = vec![0.0; dim];
    rope.angles(position, &mut angles);
    let (slowly, back) = (angles.clone(), angles.clone());
    let slow = move |x: &[Vec<f64>]| {
        let half = dim / 2;
        let turn = |i: usize| {
            let (cos, sin) = (
                f64::from(slowly[i % half]),
                f64::from(slowly[half + i % half]),
            );
            if i < half {
                x[0][i] * cos - x[0][i + half] * sin
            } else {
                x[0][i] * cos + x[0][i - half] * sin
            }
        };
        (0..dim).map(turn).collect()
    };
    let fast = move |x: &[Vec<f32>]| {
        let mut y = x[0].clone();
        rotate(&mut y, &angles, false);
        y
    };
    let grads = move |_: &[Vec<f32>], dy: &[f32]| {
        let mut dx = dy.to_vec();
        rotate(&mut dx, &back, true);
        vec![dx]
    };
    Op {
        name: format!("rotation {family:?} at {position}"),
        inputs: vec![random(dim, 3)],
        slow: Box::new(slow),
        fast: Box::new(fast),
        grads: Box::new(grads),
    }
}

pub(super) fn gated(rows: usize, ffn: usize) -> Op {
    let shape = GluShape {
        rows,
        ffn,
        ld_gate_up: padded(2 * ffn),
        ld_act: padded(ffn),
    };
    let spread = move |x: &[f32]| {
        let mut wide = vec![0.0; rows * shape.ld_gate_up];
        for (row, x) in x.chunks(2 * ffn).enumerate() {
            wide[row * shape.ld_gate_up..][..2 * ffn].copy_from_slice(x);
        }
        wide
    };
    let dense = |from: &[f32], stride: usize, width: usize| -> Vec<f32> {
        let rows = from.chunks(stride);
        rows.flat_map(|row| row[..width].to_vec()).collect()
    };
    let slow = move |x: &[Vec<f64>]| {
        let row = |x: &[f64]| -> Vec<f64> {
            let (gate, up) = x.split_at(ffn);
            let act = |(g, u): (&f64, &f64)| g / (1.0 + (-g).exp()) * u;
            gate.iter().zip(up).map(act).collect()
        };
        x[0].chunks(2 * ffn).flat_map(row).collect()
    };
    let fast = move |x: &[Vec<f32>]| {
        let mut act = vec![0.0; rows * shape.ld_act];
        swiglu(shape, &spread(&x[0]), &mut act, &Executor::new(1));
        dense(&act, shape.ld_act, ffn)
    };
    let grads = move |x: &[Vec<f32>], dy: &[f32]| {
        let mut both = spread(&x[0]);
        let mut dact = vec![0.0; rows * shape.ld_act];
        for (row, dy) in dy.chunks(ffn).enumerate() {
            dact[row * shape.ld_act..][..ffn].copy_from_slice(dy);
        }
        swiglu_backward(shape, &mut both, &dact, &Executor::new(1));
        vec![dense(&both, shape.ld_gate_up, 2 * ffn)]
    };
    Op {
        name: format!("gated activation {rows} x {ffn}"),
        inputs: vec![random(rows * 2 * ffn, 4)],
        slow: Box::new(slow),
        fast: Box::new(fast),
        grads: Box::new(grads),
    }
}
