//! Adapters on the rows of a batch: runs of sequences under the same one.
#![allow(unsafe_code)]

use crate::adapter::{Adapter, AdapterConfig, Change};
use crate::exec::Shards;
use crate::forward::SeqInput;
use crate::layer::{Pass, Projection};
use crate::panels::{Rows, RowsMut, Store};
use crate::simd::{Buf, padded};

/// Neighbouring sequences under one adapter.
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
        let adapter = run[0].adapter?;
        Some(Run {
            adapter,
            first,
            rows,
        })
    })
}

impl Pass<'_> {
    /// Adds to `y` what each run's adapter does with its rows of `x`: side by side where there are
    /// many short runs, each of which is too little to share.
    pub(crate) fn adapt_runs(
        &self,
        step: &Projection,
        x: Rows,
        (y, low_rank): (&mut [f32], &mut Buf),
    ) {
        let (inp, out) = (step.linear.w.inp, step.linear.w.out);
        let (mut count, mut longest, mut rank, mut each) = (0, 0, 0, 0);
        for run in runs(self.batch) {
            count += 1;
            longest = longest.max(run.rows);
            rank = rank.max(padded(run.adapter.config.rank()));
            each = each.max(match &run.adapter.config {
                AdapterConfig::Lora(lora) => padded(lora.rank) * (inp + out),
                AdapterConfig::Dense(_) => inp * out,
            });
        }
        let low_rank = Shards::new(&mut low_rank.take(self.tokens * rank)[..self.tokens * rank]);
        let y = Shards::new(&mut y[..self.tokens * step.stride]);
        let one = |run: Run| {
            let end = run.first + run.rows;
            // SAFETY: runs own disjoint rows, all inside the buffers.
            let (y, low_rank) = unsafe {
                (
                    y.slice(run.first * step.stride..end * step.stride),
                    low_rank.slice(run.first * rank..end * rank),
                )
            };
            let x = Rows {
                data: &x.data[run.first * x.stride..],
                rows: run.rows,
                ..x
            };
            self.adapt(run.adapter, step, x, (y, low_rank));
        };
        if count < 2 || 2 * longest > self.tokens {
            return runs(self.batch).for_each(one);
        }
        self.exec.split(count, self.tokens * each, &|part| {
            let mine = runs(self.batch).enumerate();
            let mine = mine.filter(|(index, _)| part.contains(index));
            mine.for_each(|(_, run)| one(run));
        });
    }

    /// `y += scale (x A^T) B^T`, or `y += x D^T`, for every target of the projection.
    fn adapt(
        &self,
        adapter: &Adapter,
        step: &Projection,
        x: Rows,
        (y, low_rank): (&mut [f32], &mut [f32]),
    ) {
        for &(target, column) in step.targets {
            let Some(change) = adapter.change(step.layer, target) else {
                continue;
            };
            let store = Store::AddScaled(adapter.config.scale());
            let pair = match change {
                Change::LowRank(pair) => pair,
                Change::Dense(d) => {
                    let to = RowsMut {
                        data: &mut y[column..],
                        stride: step.stride,
                    };
                    d.linear(x, to, store, self.exec);
                    continue;
                }
            };
            let stride = padded(pair.a.out);
            let s = &mut low_rank[..x.rows * stride];
            let to = RowsMut {
                data: &mut *s,
                stride,
            };
            pair.a.linear(x, to, Store::Set(None), self.exec);
            let s = Rows {
                data: s,
                stride,
                rows: x.rows,
            };
            let to = RowsMut {
                data: &mut y[column..],
                stride: step.stride,
            };
            pair.b.linear(s, to, store, self.exec);
        }
    }
}
