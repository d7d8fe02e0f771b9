//! Weights as the named tensors of a checkpoint, and the digest over them.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::mlp::{Experts, Mlp, of_expert};
use super::{Weights, stacks};
use hone_checkpoint::NamedTensor;
use hone_checkpoint::config::ModelConfig;
use hone_checkpoint::digest::{Digest32, hash_head, hash_values};
use hone_kernels::matrix::PackedMatrix;

/// Takes name, shape and values of a tensor.
type EachTensor<'a> = dyn FnMut(String, Vec<usize>, Values<'_>) + 'a;

/// The values of a tensor, where they are kept.
enum Values<'a> {
    /// One row.
    Vector(&'a [f32]),
    /// Some rows of a matrix.
    Rows(&'a PackedMatrix, Range<usize>),
}

impl<'a> Values<'a> {
    /// All rows of a matrix.
    fn all(panels: &'a PackedMatrix) -> Self {
        Self::Rows(panels, 0..panels.out)
    }

    /// Row-major f32.
    fn to_vec(&self) -> Vec<f32> {
        match self {
            Self::Vector(values) => values.to_vec(),
            Self::Rows(panels, rows) => panels.to_rows(rows.clone()),
        }
    }

    /// The same in pieces, so that a large matrix is never held a second time.
    fn each_piece(&self, each: &mut dyn FnMut(&[f32])) {
        match self {
            Self::Vector(values) => each(values),
            Self::Rows(panels, rows) => panels.each_rows(rows.clone(), each),
        }
    }
}

impl Weights {
    /// Number of parameters (a tied head counts once).
    pub fn parameters(&self, cfg: &ModelConfig) -> usize {
        let mut count = 0;
        self.each_tensor(cfg, &mut |_, shape, _| {
            count += shape.iter().product::<usize>();
        });
        count
    }

    /// Every tensor under its Hugging Face name, row-major f32.
    pub fn to_tensors(&self, cfg: &ModelConfig) -> Vec<NamedTensor> {
        let mut tensors = Vec::new();
        self.each_tensor(cfg, &mut |name, shape, values| {
            let data = values.to_vec();
            tensors.push(NamedTensor { name, shape, data });
        });
        tensors
    }

    /// SHA-256 over name, shape and row-major f32 values of every tensor in model order: the same
    /// for the same values however they are stored.
    pub fn digest(&self, cfg: &ModelConfig) -> Digest32 {
        self.digest_watched(cfg, &mut |_| {})
    }

    /// The same; `hashed` is told the bytes of every tensor, four for each of [`Self::parameters`] together.
    pub(crate) fn digest_watched(
        &self,
        cfg: &ModelConfig,
        hashed: &mut dyn FnMut(u64),
    ) -> Digest32 {
        let (mut hash, mut bytes) = (Sha256::new(), Vec::new());
        self.each_tensor(cfg, &mut |name, shape, values| {
            hash_head(&mut hash, &name, &shape);
            values.each_piece(&mut |piece| hash_values(&mut hash, piece, &mut bytes));
            hashed(4 * shape.iter().product::<usize>() as u64);
        });
        hash.finalize().into()
    }

    /// Calls `each` with every tensor.
    fn each_tensor(&self, cfg: &ModelConfig, each: &mut EachTensor) {
        let embed_shape = vec![cfg.vocab, cfg.hidden];
        let embed = "model.embed_tokens.weight".to_owned();
        each(embed, embed_shape.clone(), Values::all(&self.embed));
        for (index, layer) in self.layers.iter().enumerate() {
            let name = |suffix: &str| format!("model.layers.{index}.{suffix}");
            let norms = [
                ("input_layernorm", Some(&layer.norm1)),
                ("self_attn.q_norm", layer.q_norm.as_ref()),
                ("self_attn.k_norm", layer.k_norm.as_ref()),
                ("post_attention_layernorm", Some(&layer.norm2)),
            ];
            for (suffix, norm) in norms {
                if let Some(norm) = norm {
                    let name = name(&format!("{suffix}.weight"));
                    each(name, vec![norm.len()], Values::Vector(norm));
                }
            }
            let linears = [&layer.qkv, &layer.o];
            let linears = linears
                .into_iter()
                .chain(layer.mlp.dense().into_iter().flatten());
            for (stack, linear) in stacks(cfg).iter().zip(linears) {
                let mut row = 0;
                for (part, out) in &stack.parts {
                    let rows = row..row + out;
                    let weight = name(&format!("{part}.weight"));
                    let values = Values::Rows(&linear.w, rows.clone());
                    each(weight, vec![*out, stack.inp], values);
                    if let Some(bias) = &linear.bias {
                        let values = Values::Vector(&bias[rows]);
                        each(name(&format!("{part}.bias")), vec![*out], values);
                    }
                    row += out;
                }
            }
            if let Mlp::Sparse(experts) = &layer.mlp {
                experts.each_tensor(index, each);
            }
        }
        let norm = Values::Vector(&self.norm);
        each("model.norm.weight".to_owned(), vec![cfg.hidden], norm);
        if let Some(head) = &self.head {
            each("lm_head.weight".to_owned(), embed_shape, Values::all(head));
        }
    }
}

impl Experts {
    /// Part of [`Weights::each_tensor`].
    fn each_tensor(&self, layer: usize, each: &mut EachTensor) {
        let shape = |w: &PackedMatrix| vec![w.out, w.inp];
        let router = format!("model.layers.{layer}.mlp.gate.weight");
        each(router, shape(&self.router), Values::all(&self.router));
        for (expert, (both, down)) in self.gate_up.iter().zip(&self.down).enumerate() {
            let names = of_expert(layer, expert);
            let ffn = down.inp;
            let [gate, up, name] = names;
            each(gate, vec![ffn, both.inp], Values::Rows(both, 0..ffn));
            let rows = Values::Rows(both, ffn..2 * ffn);
            each(up, vec![ffn, both.inp], rows);
            each(name, shape(down), Values::all(down));
        }
    }
}
