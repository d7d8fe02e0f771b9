//! Adapters on the rows of a batch: runs of sequences under the same one.
#![allow(unsafe_code)]

use crate::adapter::{Adapter, Change};
use crate::batch::SeqInput;
use crate::layer::Projection;
use crate::pass::Pass;
use hone_checkpoint::AdapterConfig;
use hone_kernels::cpu::{Buf, padded};
use hone_kernels::gemm::{BESIDE_MAX, MAX_ROWS};
use hone_kernels::matrix::{PackedMatrix, Rows, RowsMut, Store};
use hone_kernels::thread_pool::Shards;

/// Neighbouring sequences under one adapter.
#[derive(Clone, Copy)]
struct Run<'a> {
    adapter: &'a Adapter,
    /// First row and rows.
    first: usize,
    rows: usize,
}

/// Runs of a batch, in order; sequences without an adapter are left out.
fn runs<'a>(batch: &'a [SeqInput<'a>]) -> impl Iterator<Item = Run<'a>> {
    let same = |a: &SeqInput, b: &SeqInput| match (a.adapter, b.adapter) {
        (None, None) => true,
        (Some(a), Some(b)) => std::ptr::eq(a, b),
        _ => false,
    };
    let mut next = 0;
    batch.chunk_by(same).filter_map(move |run| {
        let (first, rows) = (next, run.iter().map(|s| s.tokens.len()).sum());
        next += rows;
        let adapter = run[0].adapter.filter(|_| rows > 0)?;
        Some(Run {
            adapter,
            first,
            rows,
        })
    })
}

/// Rows that a thread takes through matrices of low rank at a time: a tile of them at least, and of many rows
/// so many that matrices which came once are used often.
const PIECE_ROWS: (usize, usize) = (MAX_ROWS, 48);

/// Parts of a run, as equal as rows allow; of `rows` rows at most each.
fn pieces<'a>(run: Run<'a>, rows: usize) -> impl Iterator<Item = Run<'a>> {
    let count = run.rows.div_ceil(rows);
    (0..count).map(move |at| {
        let first = run.rows * at / count;
        Run {
            first: run.first + first,
            rows: run.rows * (at + 1) / count - first,
            ..run
        }
    })
}

impl Pass<'_> {
    /// Adds to `y` what each run's adapter does with its rows of `x`. Rows are shared out over the
    /// threads, or else, where most are of one piece, each product of one run after the other.
    pub(crate) fn adapt_runs(&self, step: &Projection, x: Rows, y: &mut [f32], low_rank: &mut Buf) {
        let (inp, out) = (step.linear.w.inp, step.linear.w.out);
        let (least, most) = PIECE_ROWS;
        let shared = self.tokens.div_ceil(2 * self.exec.threads());
        let shared = shared.clamp(least, most);
        // A dense change is large: it should come once for all rows.
        let rows_of = |run: &Run| match &run.adapter.config {
            AdapterConfig::Lora(_) => shared,
            AdapterConfig::Dense(_) => run.rows,
        };
        let (mut count, mut rows, mut longest) = (0, 0, 0);
        let (mut work, mut stride) = (0, 0);
        for run in runs(self.batch) {
            count += run.rows.div_ceil(rows_of(&run));
            rows += run.rows;
            longest = longest.max(run.rows.min(rows_of(&run)));
            work += run.rows
                * match &run.adapter.config {
                    AdapterConfig::Lora(lora) => {
                        let beside = step.targets.len() * padded(lora.rank);
                        stride = stride.max(beside);
                        beside * inp + padded(lora.rank) * out
                    }
                    AdapterConfig::Dense(_) => inp * out,
                };
        }
        let size = self.tokens * stride;
        let low_rank = Shards::new(&mut low_rank.take(size)[..size]);
        let y = Shards::new(&mut y[..self.tokens * step.stride]);
        let one = |run: Run| {
            let end = run.first + run.rows;
            // SAFETY: runs own disjoint rows, all inside the buffers.
            let (y, low_rank) = unsafe {
                (
                    y.slice(run.first * step.stride..end * step.stride),
                    low_rank.slice(run.first * stride..end * stride),
                )
            };
            let x = Rows {
                data: &x.data[run.first * x.stride..],
                rows: run.rows,
                ..x
            };
            self.adapt(run.adapter, step, x, y, low_rank);
        };
        if 2 * longest > rows {
            return runs(self.batch).for_each(one);
        }
        self.exec.split(count, work, &|part| {
            let all = runs(self.batch).flat_map(|run| {
                let rows = rows_of(&run);
                pieces(run, rows)
            });
            all.skip(part.start).take(part.len()).for_each(one);
        });
    }

    /// `y += scale (x A^T) B^T`, or `y += x D^T`, for every target of the projection.
    fn adapt(
        &self,
        adapter: &Adapter,
        step: &Projection,
        x: Rows,
        y: &mut [f32],
        low_rank: &mut [f32],
    ) {
        let store = Store::AddScaled(adapter.config.scale());
        let (mut pairs, mut count) = ([None; BESIDE_MAX], 0);
        for &(target, column) in step.targets {
            match adapter.change(step.layer, target) {
                Some(Change::LowRank(pair)) => {
                    pairs[count] = Some((pair, column));
                    count += 1;
                }
                Some(Change::Dense(d)) => {
                    let to = step.columns(y, column);
                    d.linear(x, to, store, self.exec);
                }
                None => {}
            }
        }
        let stride = low_rank.len() / x.rows;
        let to = RowsMut {
            data: &mut *low_rank,
            stride,
        };
        let firsts = pairs.map(|pair| Some(&pair?.0.a));
        PackedMatrix::linear_side_by_side(firsts, x, to, Store::Set(None), self.exec);
        for (at, (pair, column)) in pairs.into_iter().flatten().enumerate() {
            let s = Rows {
                data: &low_rank[at * padded(pair.a.out)..],
                stride,
                rows: x.rows,
            };
            let to = step.columns(y, column);
            PackedMatrix::linear_side_by_side([Some(&pair.b), None, None], s, to, store, self.exec);
        }
    }
}

impl Projection<'_> {
    /// Output rows from a column on.
    fn columns<'y>(&self, y: &'y mut [f32], column: usize) -> RowsMut<'y> {
        RowsMut {
            data: &mut y[column..],
            stride: self.stride,
        }
    }
}
