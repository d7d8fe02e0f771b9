//! Linear layers, adapters, the embedding and the head.

use super::*;

const ROWS: usize = 5;

fn panels(inp: usize, data: &[f32]) -> PackedMatrix {
    PackedMatrix::from_parts(inp, vec![TensorData::F32(data.to_vec())])
}

/// `x [rows][n]` at distance `stride`.
fn strided(x: &[f32], n: usize, stride: usize) -> Vec<f32> {
    let mut wide = vec![0.0; ROWS * stride + 64];
    for (row, x) in x.chunks(n).enumerate() {
        wide[row * stride..][..n].copy_from_slice(x);
    }
    wide
}

fn dense(x: &[f32], n: usize, stride: usize) -> Vec<f32> {
    let rows = x.chunks(stride).take(ROWS);
    rows.flat_map(|row| row[..n].to_vec()).collect()
}

fn product(x: &[f64], w: &[f64], n: usize) -> Vec<f64> {
    let row = |x: &[f64]| -> Vec<f64> {
        let dot = |w: &[f64]| w.iter().zip(x).map(|(w, x)| w * x).sum();
        w.chunks(n).map(dot).collect()
    };
    x.chunks(n).flat_map(row).collect()
}

/// Calls `with` with a layer whose output projection is `o` and that has an adapter on it.
fn in_layer<T>(
    (o, bias): (&[f32], Option<&[f32]>),
    adapter: Option<&Adapter>,
    with: impl FnOnce(&LayerBack, &Model) -> T,
) -> T {
    let cfg = ModelConfig {
        o_bias: bias.is_some(),
        ..tiny(Family::Qwen2)
    };
    let mut model = model(&cfg, 7);
    let layer = &mut model.weights.layers[0];
    layer.o.w = panels(cfg.heads * cfg.head_dim, o);
    layer.o.bias = bias.map(<[f32]>::to_vec);
    let (exec, ids) = (Executor::new(1), [1; ROWS]);
    let batch = [SeqInput {
        tokens: &ids,
        start: 0,
        blocks: &[0],
        adapter,
        logits: LogitsWanted::None,
    }];
    let pass = Pass::new(&model, &batch, &exec);
    let back = LayerBack {
        pass: &pass,
        index: 0,
        weights: &model.weights.layers[0],
        adapter,
        kv: &KvLayer::new(&cfg, KvFormat::F32, 1),
        temp: &Temp::default(),
        input: &Buf::default(),
    };
    with(&back, &model)
}

/// `x [rows][40]` to `[rows][28]`, with a bias.
pub(super) fn linear() -> Op {
    let (inp, out) = (40, 28);
    let slow = move |x: &[Vec<f64>]| {
        let y = product(&x[0], &x[1], inp);
        y.iter()
            .zip(x[2].iter().cycle())
            .map(|(y, b)| y + b)
            .collect()
    };
    let fast = move |x: &[Vec<f32>]| {
        let (wide, mut y) = (strided(&x[0], inp, 48), vec![0.0; ROWS * 32]);
        let rows = Rows {
            data: &wide,
            stride: 48,
            rows: ROWS,
        };
        let to = RowsMut {
            data: &mut y,
            stride: 32,
        };
        let store = Store::Set(Some(&x[2]));
        panels(inp, &x[1]).linear(rows, to, store, &Executor::new(1));
        dense(&y, out, 32)
    };
    let grads = move |x: &[Vec<f32>], dy: &[f32]| {
        in_layer((&x[1], Some(&x[2])), None, |back, model| {
            let mut sums = model.weights.layers[0].clone();
            sums.o.w.values_mut().fill(0.0);
            sums.o.bias.as_mut().unwrap().fill(0.0);
            let dx = projected(back, (&x[0], dy), &mut LayerSink::Full(&mut sums));
            vec![dx, sums.o.w.to_rows(0..out), sums.o.bias.unwrap()]
        })
    };
    Op {
        name: "linear with bias".to_owned(),
        inputs: vec![random(ROWS * inp, 8), random(out * inp, 9), random(out, 10)],
        slow: Box::new(slow),
        fast: Box::new(fast),
        grads: Box::new(grads),
    }
}

/// The gradient of the layer's output projection's input.
fn projected(back: &LayerBack, (x, dy): (&[f32], &[f32]), sink: &mut LayerSink) -> Vec<f32> {
    let d = back.pass.dims;
    let (x, dy) = (strided(x, d.q, d.ld_q), strided(dy, d.hidden, d.ld_hidden));
    let step = Step {
        linear: &back.weights.o,
        x: (&x, d.ld_q),
        dy: (&dy, d.ld_hidden),
        targets: &[(Target::O, 0)],
    };
    let mut dx = vec![0.0; ROWS * d.ld_q + 64];
    back.linear_in(&step, &mut dx, &mut GradBufs::default(), sink);
    dense(&dx, d.q, d.ld_q)
}

/// An adapter that changes the output projection of the first layer so.
fn with_change(config: &AdapterConfig, change: Change) -> Adapter {
    let mut adapter = Adapter::zero(&tiny(Family::Qwen2), config.clone());
    adapter.layers[0][Target::O as usize] = Some(change);
    adapter
}

/// The output projection and the adapter on it.
fn adapted((frozen, inp, out): (&[f32], usize, usize), adapter: &Adapter, x: &[f32]) -> Vec<f32> {
    in_layer((frozen, None), Some(adapter), |back, _| {
        let d = back.pass.dims;
        let mut input = Buf::default();
        let rows = strided(x, inp, d.ld_q);
        input.take(ROWS * d.ld_q)[..ROWS * d.ld_q].copy_from_slice(&rows[..ROWS * d.ld_q]);
        let mut y = Buf::default();
        back.pass.project_o(back.weights, &input, &mut y);
        dense(y.as_slice(), out, d.ld_hidden)
    })
}

/// Gradients of its input and of the change.
fn adapted_back(frozen: &[f32], adapter: &Adapter, step: (&[f32], &[f32])) -> (Vec<f32>, Change) {
    in_layer((frozen, None), Some(adapter), |back, _| {
        let mut sums = Adapter::zero(back.pass.cfg, adapter.config.clone()).widened();
        let dx = projected(back, step, &mut LayerSink::Adapter(&mut sums.layers[0]));
        (dx, sums.layers[0][Target::O as usize].take().unwrap())
    })
}

/// `y = x W^T + scale (x A^T) B^T` for a frozen `W`: gradients of `x`, `A` and `B`.
pub(super) fn low_rank(rslora: bool) -> Op {
    let (inp, out, rank) = (40, 28, 3);
    let frozen = random(out * inp, 11);
    let config = LoraConfig {
        rank,
        alpha: 6.0,
        targets: vec![Target::O],
        rslora,
        dtype: AdapterDtype::F32,
    };
    let scale = config.scale();
    let config = AdapterConfig::from(config);
    let with = move |x: &[Vec<f32>]| {
        let (a, b) = (panels(inp, &x[1]), panels(rank, &x[2]));
        with_change(&config, Change::LowRank(Pair { a, b }))
    };
    let (wide, narrow) = (frozen.clone(), frozen.clone());
    let slow = move |x: &[Vec<f64>]| {
        let frozen: Vec<f64> = wide.iter().map(|v| f64::from(*v)).collect();
        let low = product(&x[0], &x[1], inp);
        let delta = product(&low, &x[2], rank);
        let y = product(&x[0], &frozen, inp).into_iter().zip(delta);
        y.map(|(y, d)| y + f64::from(scale) * d).collect()
    };
    let served = with.clone();
    let fast = move |x: &[Vec<f32>]| adapted((&narrow, inp, out), &served(x), &x[0]);
    let grads = move |x: &[Vec<f32>], dy: &[f32]| {
        let (dx, change) = adapted_back(&frozen, &with(x), (&x[0], dy));
        let Change::LowRank(pair) = change else {
            panic!("{change:?}")
        };
        vec![dx, pair.a.to_rows(0..rank), pair.b.to_rows(0..out)]
    };
    Op {
        name: format!("low-rank adapter, rslora {rslora}"),
        inputs: vec![
            random(ROWS * inp, 12),
            random(rank * inp, 13),
            random(out * rank, 14),
        ],
        slow: Box::new(slow),
        fast: Box::new(fast),
        grads: Box::new(grads),
    }
}

/// `y = x W^T + x D^T` for a frozen `W`: gradients of `x` and `D`.
pub(super) fn dense_change() -> Op {
    let (inp, out) = (40, 28);
    let frozen = random(out * inp, 11);
    let config = AdapterConfig::from(DenseConfig {
        targets: vec![Target::O],
        dtype: AdapterDtype::F32,
    });
    let with = move |x: &[Vec<f32>]| with_change(&config, Change::Dense(panels(inp, &x[1])));
    let (wide, narrow) = (frozen.clone(), frozen.clone());
    let slow = move |x: &[Vec<f64>]| {
        let frozen: Vec<f64> = wide.iter().map(|v| f64::from(*v)).collect();
        let y = product(&x[0], &frozen, inp).into_iter();
        y.zip(product(&x[0], &x[1], inp))
            .map(|(y, d)| y + d)
            .collect()
    };
    let served = with.clone();
    let fast = move |x: &[Vec<f32>]| adapted((&narrow, inp, out), &served(x), &x[0]);
    let grads = move |x: &[Vec<f32>], dy: &[f32]| {
        let (dx, change) = adapted_back(&frozen, &with(x), (&x[0], dy));
        let Change::Dense(d) = change else {
            panic!("{change:?}")
        };
        vec![dx, d.to_rows(0..out)]
    };
    Op {
        name: "dense change".to_owned(),
        inputs: vec![random(ROWS * inp, 12), random(out * inp, 13)],
        slow: Box::new(slow),
        fast: Box::new(fast),
        grads: Box::new(grads),
    }
}

/// Looked-up rows of an embedding, some tokens twice.
pub(super) fn embedding() -> Op {
    const IDS: [u32; ROWS] = [3, 17, 3, 52, 17];
    let cfg = tiny(Family::Llama);
    let (hidden, vocab) = (cfg.hidden, cfg.vocab);
    let with = |then: &mut dyn FnMut(&Pass)| {
        let (model, exec) = (model(&tiny(Family::Llama), 7), Executor::new(1));
        let batch = [SeqInput {
            tokens: &IDS,
            start: 0,
            blocks: &[0],
            adapter: None,
            logits: LogitsWanted::None,
        }];
        then(&Pass::new(&model, &batch, &exec));
    };
    let slow = move |x: &[Vec<f64>]| {
        let rows = IDS
            .iter()
            .map(|id| &x[0][*id as usize * hidden..][..hidden]);
        rows.flatten().copied().collect()
    };
    let fast = move |x: &[Vec<f32>]| {
        let mut y = Buf::default();
        with(&mut |pass| pass.embed(&panels(hidden, &x[0]), &mut y, &mut Buf::default()));
        dense(y.as_slice(), hidden, padded(hidden))
    };
    let grads = move |_: &[Vec<f32>], dy: &[f32]| {
        let (mut sums, mut dx) = (PackedMatrix::zeros(vocab, hidden), Buf::default());
        let rows = strided(dy, hidden, padded(hidden));
        dx.take(rows.len())[..rows.len()].copy_from_slice(&rows);
        with(&mut |pass| embedding_grad(pass, &dx, &mut sums));
        vec![sums.to_rows(0..vocab)]
    };
    Op {
        name: "embedding".to_owned(),
        inputs: vec![random(vocab * hidden, 15)],
        slow: Box::new(slow),
        fast: Box::new(fast),
        grads: Box::new(grads),
    }
}

/// Final norm and head: gradients of the residual rows, the norm's weight and the head, which is
/// the embedding where they are tied.
pub(super) fn final_head(family: Family) -> Op {
    let cfg = tiny(family);
    let (hidden, vocab, eps) = (cfg.hidden, cfg.vocab, f64::from(cfg.rms_eps));
    let with = move |x: &[Vec<f32>]| {
        let mut model = model(&tiny(family), 7);
        model.weights.norm = x[1].clone();
        let matrix = panels(hidden, &x[2]);
        match &mut model.weights.head {
            Some(head) => *head = matrix,
            None => model.weights.embed = matrix,
        }
        model
    };
    let slow = move |x: &[Vec<f64>]| {
        let norm = |v: &[f64]| -> Vec<f64> {
            let mean = v.iter().map(|v| v * v).sum::<f64>() / hidden as f64;
            let scaled = v.iter().zip(&x[1]);
            scaled.map(|(v, w)| v / (mean + eps).sqrt() * w).collect()
        };
        let normed: Vec<f64> = x[0].chunks(hidden).flat_map(norm).collect();
        product(&normed, &x[2], hidden)
    };
    let fast = move |x: &[Vec<f32>]| {
        let (rows, mut logits) = (strided(&x[0], hidden, padded(hidden)), Buf::default());
        head(&with(x), &rows, ROWS, &mut logits, &Executor::new(1));
        dense(logits.as_slice(), vocab, padded(vocab))
    };
    let grads = move |x: &[Vec<f32>], dy: &[f32]| head_grads(&with(x), &x[0], dy);
    Op {
        name: format!("final norm and head of {family:?}"),
        inputs: vec![
            random(ROWS * hidden, 16),
            random(hidden, 17),
            random(vocab * hidden, 18),
        ],
        slow: Box::new(slow),
        fast: Box::new(fast),
        grads: Box::new(grads),
    }
}

/// Gradients of residual rows, the final norm's weight and the head.
fn head_grads(model: &Model, x: &[f32], dy: &[f32]) -> Vec<Vec<f32>> {
    let (hidden, vocab) = (model.config.hidden, model.config.vocab);
    let (exec, mut bufs) = (Executor::new(1), Buffers::default());
    let (ld, stride) = (padded(hidden), padded(vocab));
    let rows = strided(x, hidden, ld);
    bufs.picked.take(rows.len())[..rows.len()].copy_from_slice(&rows);
    head(model, bufs.picked.as_slice(), ROWS, &mut bufs.logits, &exec);
    let logits = strided(dy, vocab, stride);
    bufs.logits.as_mut()[..ROWS * stride].copy_from_slice(&logits[..ROWS * stride]);
    bufs.grads.dx.take(ROWS * ld).fill(0.0);
    let mut sums = Sink::Full(Box::new(model.weights.clone()));
    sums.arrays_mut().into_iter().for_each(|(a, _)| a.fill(0.0));
    let position = |at| LossPosition {
        at,
        token: 0,
        row: 0,
        item: at,
    };
    let positions: Vec<LossPosition> = (0..ROWS).map(position).collect();
    let run = Run {
        model,
        adapter: None,
        exec: &exec,
        backward: Some(0),
    };
    bufs.head_backward(&run, &positions, &mut sums);
    let Sink::Full(sums) = sums else {
        unreachable!("made above");
    };
    let dx = dense(bufs.grads.dx.as_slice(), hidden, ld);
    vec![dx, sums.norm.clone(), sums.head().to_rows(0..vocab)]
}
