//! GGUF files: one file with the weights, the shape of the model, its tokenizer and its chat
//! template (the format of ggml; its specification is docs/gguf.md there).
//!
//! The metadata is turned into the JSON files that a model folder has, and read by the same code.
//! Weights in Q8_0, Q4_0 and Q5_0 are kept bit for bit; other kinds are rounded to eight bits, or kept
//! in full as f32 where that is asked for. Every size in a file is checked against the file's length
//! before anything of that size is made.

mod config;
mod header;
mod tokenizer;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use self::header::Meta;
pub use self::header::{Info, Stored};
use crate::config::StoredDtype;
use crate::error::LoadError;
use crate::mmap;
use hone_kernels::format::TensorData;

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    label: String,
    bytes: Mmap,
    meta: Meta,
    /// By the name that a folder would have for it.
    pub tensors: BTreeMap<String, Info>,
    /// Pairs of rotary dimensions lie side by side in queries and keys, and are put back.
    interleaved: bool,
}

impl Gguf {
    /// Opens and checks a file; weights are not read yet.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let label = path.display().to_string();
        let io = |source| LoadError::Io {
            file: label.clone(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        let bytes = mmap::map(&file).map_err(io)?;
        Self::from_map(bytes, label)
    }

    fn from_map(bytes: Mmap, label: String) -> Result<Self, LoadError> {
        let (meta, stored) = header::read(&bytes, &label)?;
        let mut gguf = Self {
            label,
            bytes,
            meta,
            tensors: BTreeMap::new(),
            interleaved: false,
        };
        gguf.refuse_parts()?;
        gguf.interleaved = gguf.architecture()? == "llama";
        gguf.check_places(&stored)?;
        for (name, info) in stored {
            if let Some(place) = experts_of(&name) {
                gguf.add_experts(place, &info)?;
                continue;
            }
            let name = folder_name(&name).ok_or_else(|| {
                gguf.unfit(format!(
                    "it holds tensor {name}, which models of this architecture do not have"
                ))
            })?;
            gguf.tensors.insert(name, info);
        }
        Ok(gguf)
    }

    /// That no layer is beyond what is read, and that every byte is of one tensor. So the tensors
    /// of a file are never larger than the file.
    fn check_places(&self, stored: &BTreeMap<String, Info>) -> Result<(), LoadError> {
        let beyond = |name: &&String| layer_of(name).is_some_and(|(layer, _)| layer >= LAYERS_MAX);
        if let Some(name) = stored.keys().find(beyond) {
            return Err(self.unfit(format!(
                "tensor {name} is of a layer beyond the {LAYERS_MAX} that are read"
            )));
        }
        let mut placed: Vec<(&String, &Info)> = stored.iter().collect();
        placed.sort_unstable_by_key(|(name, info)| (info.range.start, *name));
        for pair in placed.windows(2) {
            let ((first, before), (second, after)) = (pair[0], pair[1]);
            if after.range.start < before.range.end {
                return Err(self.bad(format!("tensors {first} and {second} overlap")));
            }
        }
        Ok(())
    }

    /// Experts lie behind one another in one tensor; a folder has a tensor for each.
    fn add_experts(&mut self, (layer, part): (u32, &str), info: &Info) -> Result<(), LoadError> {
        let [count, out, inp] = info.shape[..] else {
            return Err(self.bad(format!(
                "experts of layer {layer} are not in three dimensions"
            )));
        };
        let each = info.range.len() / count.max(1);
        if count > EXPERTS_MAX || each * count != info.range.len() {
            return Err(self.bad(format!("layer {layer} has {count} experts")));
        }
        if self.tensors.len() + count > TENSORS_MAX {
            return Err(self.bad(format!(
                "with the experts of layer {layer} it has more than {TENSORS_MAX} tensors"
            )));
        }
        for expert in 0..count {
            let start = info.range.start + expert * each;
            let info = Info {
                shape: vec![out, inp],
                stored: info.stored,
                range: start..start + each,
            };
            let name = format!("model.layers.{layer}.mlp.experts.{expert}.{part}.weight");
            self.tensors.insert(name, info);
        }
        Ok(())
    }

    /// What errors call it.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// It is damaged.
    fn bad(&self, why: impl Into<String>) -> LoadError {
        LoadError::BadGguf {
            file: self.label.clone(),
            why: why.into(),
        }
    }

    /// It is sound, but not of a kind that can be used.
    fn unfit(&self, why: impl Into<String>) -> LoadError {
        LoadError::UnfitGguf {
            file: self.label.clone(),
            why: why.into(),
        }
    }

    /// The stored form of the embedding matrix.
    pub fn dtype(&self) -> StoredDtype {
        match self.tensors.get("model.embed_tokens.weight") {
            Some(info) if info.stored == Stored::Bf16 => StoredDtype::Bf16,
            _ => StoredDtype::F32,
        }
    }

    /// Names of all tensors, as a folder has them, sorted.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    /// Bytes that a tensor takes in the file; 0 if there is none.
    pub fn stored_bytes(&self, name: &str) -> u64 {
        self.tensors.get(name).map_or(0, |i| i.range.len() as u64)
    }

    /// Values of a tensor, named as in a folder.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData, LoadError> {
        let info = self.tensors.get(name).ok_or_else(|| {
            let name = gguf_name(name);
            self.bad(format!(
                "it has no tensor {name}, which its metadata calls for"
            ))
        })?;
        if info.shape != shape {
            return Err(self.bad(format!(
                "tensor {} has shape {:?}, but its metadata calls for {shape:?}",
                gguf_name(name),
                info.shape
            )));
        }
        let mut raw = self.bytes[info.range.clone()].to_vec();
        if self.interleaved
            && let Some(heads) = self.rotated_heads(name)?
        {
            raw = regrouped(&raw, shape[0], heads);
        }
        info.stored
            .decode(raw)
            .map_err(|index| LoadError::NonFinite {
                file: self.label.clone(),
                tensor: gguf_name(name),
                index,
            })
    }

    /// Heads of a projection whose outputs are rotated.
    fn rotated_heads(&self, name: &str) -> Result<Option<usize>, LoadError> {
        if name.contains(".self_attn.q_proj.") {
            return self.heads().map(Some);
        }
        if name.contains(".self_attn.k_proj.") {
            return self.kv_heads().map(Some);
        }
        Ok(None)
    }
}

/// Rows of llama projections as a folder has them: within a head first the first of every rotated
/// pair, then the second ones. The file has each pair side by side.
fn regrouped(raw: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let row = raw.len() / rows.max(1);
    let dim = rows / heads.max(1);
    let mut out = Vec::with_capacity(raw.len());
    for at in 0..rows {
        let (head, within) = (at / dim.max(1), at % dim.max(1));
        let (second, pair) = (within / (dim / 2).max(1), within % (dim / 2).max(1));
        let from = (head * dim + 2 * pair + second) * row;
        out.extend_from_slice(raw.get(from..from + row).unwrap_or_default());
    }
    out
}

/// Parts of names in a layer: here, and in a folder.
const LAYER_PARTS: [(&str, &str); 12] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
];
/// As [`LAYER_PARTS`], of the experts of a layer.
const EXPERT_PARTS: [(&str, &str); 3] = [
    ("ffn_gate_exps", "gate_proj"),
    ("ffn_up_exps", "up_proj"),
    ("ffn_down_exps", "down_proj"),
];
/// More than any model has, so that a broken shape cannot ask for much memory.
const EXPERTS_MAX: usize = 1 << 14;
/// As [`EXPERTS_MAX`], of layers and of tensors with each expert's own; the real number of layers is
/// checked with the config.
const LAYERS_MAX: u32 = 1024;
const TENSORS_MAX: usize = 1 << 18;
const WHOLE_NAMES: [(&str, &str); 4] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
    (ROPE_FACTORS, ROPE_FACTORS),
];
/// What the rotary frequencies are divided by (Llama 3.1); part of the shape, not of the weights.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The name that a folder has for a tensor; none where no supported model has such a one.
fn folder_name(name: &str) -> Option<String> {
    if let Some((_, folder)) = WHOLE_NAMES.iter().find(|(gguf, _)| *gguf == name) {
        return Some((*folder).to_owned());
    }
    let (layer, rest) = layer_of(name)?;
    let (part, kind) = rest.rsplit_once('.')?;
    let known = matches!(kind, "weight" | "bias");
    let part = LAYER_PARTS.iter().find(|(gguf, _)| *gguf == part && known);
    part.map(|(_, folder)| format!("model.layers.{layer}.{folder}.{kind}"))
}

/// Layer and part of a tensor with all experts of a layer.
fn experts_of(name: &str) -> Option<(u32, &'static str)> {
    let (layer, rest) = layer_of(name)?;
    let part = rest.strip_suffix(".weight")?;
    let (_, part) = EXPERT_PARTS.iter().find(|(gguf, _)| *gguf == part)?;
    Some((layer, part))
}

/// The layer of a tensor, and its name within that.
fn layer_of(name: &str) -> Option<(u32, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

/// The way back, for messages.
fn gguf_name(name: &str) -> String {
    if let Some((gguf, _)) = WHOLE_NAMES.iter().find(|(_, folder)| *folder == name) {
        return (*gguf).to_owned();
    }
    let found = (|| {
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        if let Some(expert) = part.strip_prefix("mlp.experts.") {
            let (expert, part) = expert.split_once('.')?;
            let (gguf, _) = EXPERT_PARTS.iter().find(|(_, folder)| *folder == part)?;
            return Some(format!("blk.{layer}.{gguf}.{kind} (expert {expert})"));
        }
        let (gguf, _) = LAYER_PARTS.iter().find(|(_, folder)| *folder == part)?;
        Some(format!("blk.{layer}.{gguf}.{kind}"))
    })();
    found.unwrap_or_else(|| name.to_owned())
}
