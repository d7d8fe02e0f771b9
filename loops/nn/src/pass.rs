//! One pass of a batch through the layers: its sizes, its tokens, what every layer of it needs.

use std::ops::Range;

use crate::batch::SeqInput;
use crate::kv::BLOCK_TOKENS;
use crate::rope::Rope;
use crate::weights::Model;
use hone_checkpoint::config::ModelConfig;
use hone_kernels::cpu::{Buf, padded};
use hone_kernels::matrix::PackedMatrix;
use hone_kernels::ops::{GluShape, RmsNorm};
use hone_kernels::thread_pool::Executor;

/// Row lengths of a model's buffers: widths and padded strides.
#[derive(Clone, Copy)]
pub struct Dims {
    pub hidden: usize,
    pub q: usize,
    pub kv: usize,
    pub ffn: usize,
    pub ld_hidden: usize,
    pub ld_q: usize,
    pub ld_kv: usize,
    pub ld_qkv: usize,
    pub ld_gate_up: usize,
    pub ld_ffn: usize,
}

impl Dims {
    pub fn new(cfg: &ModelConfig) -> Self {
        let (q, kv) = (cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim);
        Self {
            hidden: cfg.hidden,
            q,
            kv,
            ffn: cfg.ffn,
            ld_hidden: padded(cfg.hidden),
            ld_q: padded(q),
            ld_kv: padded(kv),
            ld_qkv: padded(q + 2 * kv),
            ld_gate_up: padded(2 * cfg.ffn),
            ld_ffn: padded(cfg.ffn),
        }
    }
}

/// What every layer of one pass needs.
pub(crate) struct Pass<'a> {
    pub(crate) cfg: &'a ModelConfig,
    pub(crate) dims: Dims,
    pub(crate) rope: &'a Rope,
    pub(crate) batch: &'a [SeqInput<'a>],
    pub(crate) tokens: usize,
    /// Per token, experts to use instead of those the model would choose now: the ids of every
    /// layer that has experts. Empty where nothing is recorded.
    pub(crate) recorded: &'a [Option<&'a [u16]>],
    pub(crate) exec: &'a Executor,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(model: &'a Model, batch: &'a [SeqInput<'a>], exec: &'a Executor) -> Self {
        Self {
            cfg: &model.config,
            dims: Dims::new(&model.config),
            rope: &model.weights.rope,
            batch,
            tokens: batch.iter().map(|s| s.tokens.len()).sum(),
            recorded: &[],
            exec,
        }
    }

    /// Token index in the batch, id, position and block of every new token.
    pub(crate) fn each_token(&self, each: impl FnMut(Place)) {
        self.each_token_of(0..self.tokens, each);
    }

    /// As [`Self::each_token`], of these rows of the batch.
    pub(crate) fn each_token_of(&self, rows: Range<usize>, mut each: impl FnMut(Place)) {
        let mut first = 0;
        for seq in self.batch {
            let end = first + seq.tokens.len();
            for row in rows.start.max(first)..rows.end.min(end) {
                let position = seq.start + row - first;
                each(Place {
                    row,
                    id: seq.tokens[row - first],
                    position,
                    block: seq.blocks[position / BLOCK_TOKENS],
                });
            }
            first = end;
        }
    }

    /// Looks up embeddings into `x [tokens][hidden]` and prepares rotation angles.
    pub(crate) fn embed(&self, embed: &PackedMatrix, x: &mut Buf, angles: &mut Buf) {
        let ld = self.dims.ld_hidden;
        let x = x.take(self.tokens * ld);
        let pair = 2 * self.rope.pairs();
        let angles = angles.take(self.tokens * pair);
        self.each_token(|at| {
            assert!(
                (at.id as usize) < self.cfg.vocab,
                "token {} is not in the vocabulary",
                at.id
            );
            embed.lookup(at.id as usize, &mut x[at.row * ld..][..self.dims.hidden]);
            self.rope
                .angles(at.position, &mut angles[at.row * pair..][..pair]);
        });
    }

    pub(crate) fn norm<'w>(&self, weight: &'w [f32]) -> RmsNorm<'w> {
        RmsNorm {
            weight,
            eps: self.cfg.rms_eps,
            groups: 1,
        }
    }

    pub(crate) fn glu(&self) -> GluShape {
        GluShape {
            rows: self.tokens,
            ffn: self.dims.ffn,
            ld_gate_up: self.dims.ld_gate_up,
            ld_act: self.dims.ld_ffn,
        }
    }
}

/// One new token of a batch.
pub(crate) struct Place {
    pub(crate) row: usize,
    pub(crate) id: u32,
    pub(crate) position: usize,
    pub(crate) block: u32,
}
