//! What the passes of a learner work with: their buffers, and where everything lies in them.

use std::sync::Arc;

use crate::adapter::Placement;
use crate::driver::{Cut, Driver, Growing};
use crate::jobs::LayerJobs;
use crate::launcher::{Pass, To};
use crate::places::{MixPlaces, NOT_RECORDED, Places};
use crate::plan::{Plan, window};
use crate::weights::DeviceWeights;
use hone_checkpoint::config::ModelConfig;
use hone_kernels::cpu::{LANES, padded};
use hone_nn::backend::{Change, Dims, MicroBatch, Pacer, Run, layers_that_fit};
use hone_nn::{Adapter, BLOCK_TOKENS, DeviceError, SeqInput, StepError};

/// Most tokens of a pass: rows of a launch.
pub(super) const TOKENS_MAX: usize = 65_535;
/// Bytes of probabilities and their gradients that are held at a time.
pub(super) const PAIR_BYTES_MAX: usize = 128 << 20;
/// Query tokens that go together at least.
const PAIR_TOKENS: usize = 32;

/// What the forward of one layer leaves for its backward: addresses, as `Acts` of the processor.
#[derive(Clone, Copy, Default)]
pub(super) struct Results {
    pub(super) qkv: u64,
    pub(super) attn: u64,
    pub(super) mid: u64,
    pub(super) gate_up: u64,
}

/// Addresses of a pass.
#[derive(Clone, Copy, Default)]
pub(super) struct Floor {
    pub(super) words: u64,
    /// Input of every layer and the last one's output, where a backward pass follows; else one.
    pub(super) inputs: u64,
    pub(super) h1: u64,
    pub(super) h2: u64,
    pub(super) q: u64,
    pub(super) act: u64,
    pub(super) proj: u64,
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) scores: u64,
    pub(super) low: u64,
    pub(super) mix: MixPlaces,
    /// Of layers that are kept below the last one, and of the layer at work.
    pub(super) kept: u64,
    pub(super) work: Results,
    pub(super) dx: u64,
    pub(super) dact: u64,
    pub(super) dnormed: u64,
    pub(super) dattn: u64,
    pub(super) dqkv: u64,
    pub(super) dlow: u64,
    pub(super) pairs: u64,
}

#[derive(Default)]
pub(super) struct Buffers {
    pub(super) words: Growing,
    pub(super) pass: Growing,
    pub(super) recorded: Growing,
    pub(super) grads: Growing,
    pub(super) chunk: Chunk,
}

/// Buffers of the tokens whose logits exist.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) picks: Growing,
    pub(super) rows: Growing,
    pub(super) ids: Growing,
    pub(super) picked: Growing,
    pub(super) places: Growing,
    pub(super) amounts: Growing,
    pub(super) said: Growing,
    pub(super) logits: Growing,
    pub(super) normed: Growing,
    pub(super) dnormed: Growing,
}

/// Places of an adapter's gradients, in numbers of four bytes.
pub(super) type GradPlaces = Vec<[Option<Placement<usize>>; 7]>;

/// Buffers of a learner on a device.
pub(crate) struct DevicePasses {
    pub(super) device: Arc<DeviceWeights>,
    /// In its own order.
    pub(super) driver: Arc<dyn Driver>,
    pub(super) plan: Plan,
    pub(super) bufs: Buffers,
    pub(super) at: Floor,
    /// Layers below the last one whose results stay, and whether a backward pass follows.
    pub(super) kept: usize,
    pub(super) backward: bool,
    pub(super) grads: GradPlaces,
    pub(super) grads_at: u64,
    /// Gradients begin with this micro-batch.
    pub(super) fresh: bool,
}

impl DevicePasses {
    pub(crate) fn new(device: &Arc<DeviceWeights>) -> Result<Self, DeviceError> {
        Ok(Self {
            driver: device.driver.second()?,
            device: Arc::clone(device),
            plan: Plan::default(),
            bufs: Buffers::default(),
            at: Floor::default(),
            kept: 0,
            backward: false,
            grads: Vec::new(),
            grads_at: 0,
            fresh: true,
        })
    }

    /// The end of a slice: what was launched is over.
    pub(super) fn tick(&self, pacer: &mut Pacer) -> Result<(), StepError> {
        self.driver.wait()?;
        pacer.tick()
    }

    /// Plans the micro-batch and makes room for it.
    pub(super) fn prepare(&mut self, run: &Run, micro: &MicroBatch) -> Result<(), DeviceError> {
        let cfg = &self.device.model.config;
        let inputs: &[SeqInput] = &micro.inputs(run.adapter);
        self.plan.make(cfg, inputs);
        let tokens = self.plan.rows;
        self.backward = run.backward.is_some();
        self.kept = run
            .backward
            .map_or(0, |budget| layers_that_fit(cfg, tokens, budget));
        let size = Size {
            cfg,
            plan: &self.plan,
            rank: run.adapter.map_or(0, |a| padded(a.config.rank())),
            tokens: inputs.iter().map(|seq| seq.tokens.len()).collect(),
            blocks: inputs
                .iter()
                .map(|seq| seq.tokens.len().div_ceil(BLOCK_TOKENS))
                .sum(),
        };
        let mut cut = Cut::default();
        let mut at = size.forward(&mut cut, self.backward);
        if self.backward {
            size.backward(&mut cut, &mut at, self.kept);
        }
        let words = self
            .bufs
            .words
            .take(&self.driver, self.plan.words.len() * 4)?;
        words.write(&self.plan.words)?;
        let words = words.at();
        let base = self.bufs.pass.take(&self.driver, cut.0 as usize)?.at();
        self.at = at.moved(base, words);
        self.at.mix.recorded = self.recorded(&micro.recorded)?;
        Ok(())
    }

    /// Copies the experts that are recorded of the tokens; 0 where none are.
    fn recorded(&mut self, recorded: &[Option<&[u16]>]) -> Result<u64, DeviceError> {
        let experts = self.device.model.config.experts.as_ref();
        let Some(experts) = experts.filter(|_| recorded.iter().any(Option::is_some)) else {
            return Ok(0);
        };
        let none = vec![NOT_RECORDED; experts.recorded()];
        let ids = recorded.iter().flat_map(|ids| ids.unwrap_or(&none));
        let ids: Vec<u16> = ids.copied().collect();
        let bytes = size_of_val(ids.as_slice());
        let to = self.bufs.recorded.take(&self.driver, bytes)?;
        to.write(&ids)?;
        Ok(to.at())
    }

    /// Input of a layer, or the output of the last.
    pub(super) fn input(&self, layer: usize) -> u64 {
        let each = self.plan.rows * Dims::new(&self.device.model.config).ld_hidden;
        let place = if self.backward { layer } else { 0 };
        self.at.inputs + (place * each * size_of::<f32>()) as u64
    }

    /// Where a layer's results are, and whether they are its own until the backward pass.
    pub(super) fn results(&self, layer: usize) -> (Results, bool) {
        let layers = self.device.layers.len();
        let place = (layers - layer).checked_sub(2);
        let Some(place) = place.filter(|place| *place < self.kept) else {
            return (self.at.work, layer + 1 == layers);
        };
        let mut cut = Cut::default();
        let d = Dims::new(&self.device.model.config);
        let own = Results::cut(&mut cut, d, self.plan.rows);
        (own.moved(self.at.kept + place as u64 * cut.0), true)
    }

    /// The pass as it stands for one layer, `normed` being its first or second normed input.
    pub(super) fn pass(&self, normed: u64, results: Results) -> Pass<'_> {
        const NONE: &LayerJobs = &Vec::new();
        let at = &self.at;
        Pass {
            device: &self.device,
            to: To::Driver(&*self.driver),
            dims: Dims::new(&self.device.model.config),
            plan: &self.plan,
            at: Places {
                words: at.words,
                x: 0,
                mid: results.mid,
                normed,
                qkv: results.qkv,
                q: at.q,
                attn: results.attn,
                proj: at.proj,
                gate_up: results.gate_up,
                act: at.act,
                scores: at.scores,
                logits: 0,
                mix: at.mix,
            },
            jobs: NONE,
            job_list: 0,
        }
    }
}

impl Results {
    fn cut(cut: &mut Cut, d: Dims, tokens: usize) -> Self {
        Self {
            qkv: cut.floats(tokens * d.ld_qkv),
            attn: cut.floats(tokens * d.ld_q),
            mid: cut.floats(tokens * d.ld_hidden),
            gate_up: cut.floats(tokens * d.ld_gate_up),
        }
    }

    fn moved(self, by: u64) -> Self {
        Self {
            qkv: self.qkv + by,
            attn: self.attn + by,
            mid: self.mid + by,
            gate_up: self.gate_up + by,
        }
    }
}

/// What the room of a micro-batch depends on.
struct Size<'a> {
    cfg: &'a ModelConfig,
    plan: &'a Plan,
    rank: usize,
    /// Of each sequence.
    tokens: Vec<usize>,
    blocks: usize,
}

impl Size<'_> {
    fn forward(&self, cut: &mut Cut, backward: bool) -> Floor {
        let (cfg, plan) = (self.cfg, self.plan);
        let (d, n) = (Dims::new(cfg), plan.rows);
        let inputs = if backward { cfg.layers + 1 } else { 1 };
        let cache = self.blocks * cfg.kv_heads * BLOCK_TOKENS * cfg.head_dim;
        let score_bytes = (0..cfg.layers).map(|layer| {
            let width = plan.width(window(cfg, layer));
            plan.score_bytes(plan.tiles_at_once(cfg.kv_heads, width), cfg.kv_heads, width)
        });
        Floor {
            inputs: cut.floats(inputs * n * d.ld_hidden),
            h1: cut.floats(n * d.ld_hidden),
            h2: cut.floats(n * d.ld_hidden),
            q: cut.floats(n * d.ld_q),
            act: cut.floats(n * d.ld_ffn),
            proj: cut.floats(n * d.ld_hidden),
            keys: cut.floats(cache),
            values: cut.floats(cache),
            scores: cut.floats(score_bytes.max().unwrap_or(0) / 4),
            low: cut.floats(n * self.rank),
            mix: MixPlaces::cut(cut, cfg, n),
            work: Results::cut(cut, d, n),
            ..Floor::default()
        }
    }

    fn backward(&self, cut: &mut Cut, at: &mut Floor, kept: usize) {
        let (d, n) = (Dims::new(self.cfg), self.plan.rows);
        at.dx = cut.floats(n * d.ld_hidden);
        at.dact = cut.floats(n * d.ld_ffn);
        at.dnormed = cut.floats(n * d.ld_hidden);
        at.dattn = cut.floats(n * d.ld_q);
        at.dqkv = cut.floats(n * d.ld_qkv);
        at.dlow = cut.floats(n * self.rank);
        at.pairs = cut.floats(pair_floats(self.cfg, &self.tokens));
        at.kept = cut.0;
        for _ in 0..kept {
            Results::cut(cut, d, n);
        }
    }
}

impl Floor {
    fn moved(self, by: u64, words: u64) -> Self {
        Self {
            words,
            inputs: self.inputs + by,
            h1: self.h1 + by,
            h2: self.h2 + by,
            q: self.q + by,
            act: self.act + by,
            proj: self.proj + by,
            keys: self.keys + by,
            values: self.values + by,
            scores: self.scores + by,
            low: self.low + by,
            mix: self.mix.moved(by),
            kept: self.kept + by,
            work: self.work.moved(by),
            dx: self.dx + by,
            dact: self.dact + by,
            dnormed: self.dnormed + by,
            dattn: self.dattn + by,
            dqkv: self.dqkv + by,
            dlow: self.dlow + by,
            pairs: self.pairs + by,
        }
    }
}

/// Query tokens of a sequence whose attention goes backwards together.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) first: usize,
    pub(super) tokens: usize,
    /// First position of the first block that any of them sees.
    pub(super) base: usize,
    /// Positions from there on, whole blocks.
    pub(super) width: usize,
}

/// Room for the pieces of sequences of so many tokens. Those of the longest alone do not tell it: a
/// shorter one may be cut into larger pieces.
pub(super) fn pair_floats(cfg: &ModelConfig, tokens: &[usize]) -> usize {
    let layers = 0..cfg.layers;
    let pieces = layers.flat_map(|layer| tokens.iter().flat_map(move |n| pieces(cfg, layer, *n)));
    let floats = pieces.map(|piece| 2 * cfg.heads * piece.tokens * piece.width);
    floats.max().unwrap_or(0)
}

/// The pieces of a sequence of `tokens` tokens, so that their probabilities fit.
pub(super) fn pieces(cfg: &ModelConfig, layer: usize, tokens: usize) -> Vec<Piece> {
    let window = window(cfg, layer) as usize;
    let piece = |first: usize, count: usize| {
        let base = (first + 1).saturating_sub(window) / BLOCK_TOKENS * BLOCK_TOKENS;
        Piece {
            first,
            tokens: count,
            base,
            width: (first + count - base).next_multiple_of(BLOCK_TOKENS),
        }
    };
    let bytes = |piece: &Piece| 2 * cfg.heads * piece.tokens * piece.width * size_of::<f32>();
    let mut all = Vec::new();
    let mut first = 0;
    while first < tokens {
        let mut now = piece(first, PAIR_TOKENS.min(tokens - first));
        while first + now.tokens < tokens {
            let more = piece(first, (now.tokens + PAIR_TOKENS).min(tokens - first));
            if bytes(&more) > PAIR_BYTES_MAX {
                break;
            }
            now = more;
        }
        first += now.tokens;
        all.push(now);
    }
    all
}

/// Where the gradients of every matrix go, in the order of [`Adapter::arrays_mut`], and how many
/// numbers they are.
pub(super) fn grad_places(adapter: &Adapter) -> (GradPlaces, usize) {
    let mut next = 0;
    let mut place = |out: usize, inp: usize| {
        let at = next;
        next += out.div_ceil(LANES) * inp * LANES;
        at
    };
    let places = adapter.layers.iter().map(|changes| {
        std::array::from_fn(|target| {
            Some(match changes[target].as_ref()? {
                Change::LowRank(pair) => {
                    Placement::LowRank(place(pair.a.out, pair.a.inp), place(pair.b.out, pair.b.inp))
                }
                Change::Dense(d) => Placement::Dense(place(d.out, d.inp)),
            })
        })
    });
    let places = places.collect();
    (places, next)
}
