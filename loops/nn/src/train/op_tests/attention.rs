//! Causal attention with grouped heads and windows, over block tables.

use super::*;

/// Heads, sizes and lengths of an attention call.
#[derive(Clone)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    window: Option<usize>,
    lengths: Vec<usize>,
    /// How keys and values are kept.
    kv: KvFormat,
}

impl Heads {
    fn config(&self) -> ModelConfig {
        ModelConfig {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.dim,
            ..tiny(Family::Qwen2)
        }
    }

    fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// From queries, keys and values `[tokens][heads][dim]`, one sequence after the other.
    fn slow(&self, x: &[Vec<f64>]) -> Vec<f64> {
        let (dim, group) = (self.dim, self.heads / self.kv_heads);
        let window = self.window.unwrap_or(usize::MAX);
        let at = |of: &[f64], heads: usize, token: usize, head: usize| -> Vec<f64> {
            of[(token * heads + head) * dim..][..dim].to_vec()
        };
        let (mut out, mut first) = (Vec::new(), 0);
        for length in &self.lengths {
            for t in 0..*length {
                for h in 0..self.heads {
                    let q = at(&x[0], self.heads, first + t, h);
                    let seen = (t + 1).saturating_sub(window)..=t;
                    let score = |j: usize| -> f64 {
                        let k = at(&x[1], self.kv_heads, first + j, h / group);
                        let dot: f64 = q.iter().zip(k).map(|(a, b)| a * b).sum();
                        (dot / (dim as f64).sqrt()).exp()
                    };
                    let scores: Vec<f64> = seen.clone().map(score).collect();
                    let sum: f64 = scores.iter().sum();
                    let mut mixed = vec![0.0; dim];
                    for (j, score) in seen.zip(&scores) {
                        let v = at(&x[2], self.kv_heads, first + j, h / group);
                        mixed
                            .iter_mut()
                            .zip(v)
                            .for_each(|(m, v)| *m += score / sum * v);
                    }
                    out.extend(mixed);
                }
            }
            first += length;
        }
        out
    }

    /// Calls `with` in the midst of a pass whose caches hold the keys and values.
    fn run<T>(&self, x: &[Vec<f32>], with: impl FnOnce(&Pass, &KvLayer, &Laid) -> T) -> T {
        let cfg = self.config();
        let model = model(&cfg, 7);
        let d = Dims::new(&cfg);
        let mut kv = KvLayer::new(
            &cfg,
            self.kv,
            self.tokens().div_ceil(BLOCK_TOKENS) + self.lengths.len(),
        );
        let ids = vec![1; self.tokens()];
        let (mut tables, mut used) = (Vec::new(), 0);
        for length in &self.lengths {
            let blocks = length.div_ceil(BLOCK_TOKENS) as u32;
            // Not in order, so that a mixed-up table shows.
            tables.push((used..used + blocks).rev().collect::<Vec<u32>>());
            used += blocks;
        }
        let laid = Laid::new(x, d, self.tokens());
        let (mut batch, mut row) = (Vec::new(), 0);
        for (length, blocks) in self.lengths.iter().zip(&tables) {
            for t in 0..*length {
                let (block, slot) = (blocks[t / BLOCK_TOKENS], t % BLOCK_TOKENS);
                let key = &x[1][(row + t) * d.kv..][..d.kv];
                kv.write(block, slot, key, &x[2][(row + t) * d.kv..][..d.kv]);
            }
            batch.push(SeqInput {
                tokens: &ids[row..row + length],
                start: 0,
                blocks,
                adapter: None,
                logits: LogitsWanted::None,
            });
            row += length;
        }
        let exec = Executor::new(1);
        with(&Pass::new(&model, &batch, &exec), &kv, &laid)
    }
}

/// Queries, keys and values in the buffers of a pass.
struct Laid {
    q: Vec<f32>,
    k: Vec<f32>,
    qkv: Vec<f32>,
}

impl Laid {
    fn new(x: &[Vec<f32>], d: Dims, tokens: usize) -> Self {
        let slack = 64;
        let mut laid = Self {
            q: vec![0.0; tokens * d.ld_q + slack],
            k: vec![0.0; tokens * d.ld_kv + slack],
            qkv: vec![0.0; tokens * d.ld_qkv + slack],
        };
        for t in 0..tokens {
            laid.q[t * d.ld_q..][..d.q].copy_from_slice(&x[0][t * d.q..][..d.q]);
            laid.k[t * d.ld_kv..][..d.kv].copy_from_slice(&x[1][t * d.kv..][..d.kv]);
            let values = &x[2][t * d.kv..][..d.kv];
            laid.qkv[t * d.ld_qkv + d.q + d.kv..][..d.kv].copy_from_slice(values);
        }
        laid
    }
}

/// Random keys or values, which are such already as are kept: what rounding costs is not asked here.
fn kept(kv: KvFormat, count: usize, seed: u64) -> Vec<f32> {
    let numbers = random(count, seed);
    match kv {
        KvFormat::F32 => numbers,
        KvFormat::F16 => numbers
            .into_iter()
            .map(|x| half::f16::from_f32(x).to_f32())
            .collect(),
    }
}

pub(super) fn attention(
    (heads, kv_heads): (usize, usize),
    window: Option<usize>,
    kv: KvFormat,
) -> Op {
    let (dim, lengths) = (10, vec![37, 5]);
    let shape = Heads {
        heads,
        kv_heads,
        dim,
        window,
        lengths,
        kv,
    };
    let tokens = shape.tokens();
    let (slow, fast, back) = (shape.clone(), shape.clone(), shape);
    let forward = move |x: &[Vec<f32>]| {
        fast.run(x, |pass, kv, laid| {
            let d = pass.dims;
            let attention = Attention {
                batch: pass.batch,
                kv,
                heads: pass.cfg.heads,
                window: fast.window,
                queries: &laid.q,
                stride: d.ld_q,
            };
            let mut out = Buf::default();
            let out = out.take(tokens * d.ld_q);
            attention.run(out, &mut Buf::default(), pass.exec);
            out[..tokens * d.ld_q]
                .chunks(d.ld_q)
                .flat_map(|row| row[..d.q].to_vec())
                .collect()
        })
    };
    let grads = move |x: &[Vec<f32>], dy: &[f32]| {
        back.run(x, |pass, kv, laid| {
            let d = pass.dims;
            let mut dout = vec![0.0; tokens * d.ld_q + 64];
            for t in 0..tokens {
                dout[t * d.ld_q..][..d.q].copy_from_slice(&dy[t * d.q..][..d.q]);
            }
            let grad = AttentionGrad {
                pass,
                window: back.window,
                kv,
                q: &laid.q,
                k: &laid.k,
                qkv: &laid.qkv,
                dout: &dout,
            };
            let mut buf = Buf::default();
            let dqkv = buf.take(tokens * d.ld_qkv);
            grad.run(dqkv, &mut Buf::default());
            let part = |from: usize, width: usize| -> Vec<f32> {
                let rows = (0..tokens).map(|t| &dqkv[t * d.ld_qkv + from..][..width]);
                rows.flatten().copied().collect()
            };
            vec![part(0, d.q), part(d.q, d.kv), part(d.q + d.kv, d.kv)]
        })
    };
    Op {
        name: format!("attention of {heads}/{kv_heads} heads, window {window:?}, {kv:?}"),
        inputs: vec![
            random(tokens * heads * dim, 5),
            kept(kv, tokens * kv_heads * dim, 6),
            kept(kv, tokens * kv_heads * dim, 7),
        ],
        slow: Box::new(move |x| slow.slow(x)),
        fast: Box::new(forward),
        grads: Box::new(grads),
    }
}
