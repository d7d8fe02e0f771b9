//! The forward pass on a device: what ../layer.rs and ../forward.rs do, as launches.

use std::cell::RefCell;
use std::sync::Arc;

use super::draw::Drawing;
use super::driver::{Buffer, Cut, Driver, Growing, start};
use super::jobs::{LayerJobs, all_jobs, list_bytes_most, low_rank_bytes, rank_stride};
use super::launcher::{Pass, To};
use super::launches::Launches;
use super::places::{MixPlaces, Places};
use super::plan::{Plan, Run, runs, score_bytes_most, window, words_most};
use super::weights::DeviceWeights;
use hone_kernels::cpu::padded;
use hone_nn::backend::Dims;
use hone_nn::{BLOCK_TOKENS, DeviceError, ForwardBackend, Logits, LogitsShape, SeqInput};

/// Adapters of a larger rank need more room than what is reserved.
const RANK_RESERVED: usize = 256;

/// Keys, values and buffers of one engine on a device.
pub(crate) struct DevicePass {
    device: Arc<DeviceWeights>,
    /// In whose order it runs.
    driver: Arc<dyn Driver>,
    keys: Vec<Buffer>,
    values: Vec<Buffer>,
    blocks: usize,
    plan: Plan,
    launches: RefCell<Launches>,
    bufs: Buffers,
    logits: Vec<f32>,
    /// Experts that the picked rows used.
    chosen: Vec<u16>,
}

#[derive(Default)]
struct Buffers {
    words: Growing,
    jobs: Growing,
    x: Growing,
    mid: Growing,
    normed: Growing,
    qkv: Growing,
    q: Growing,
    attn: Growing,
    proj: Growing,
    gate_up: Growing,
    act: Growing,
    scores: Growing,
    low_rank: Growing,
    logits: Growing,
    mix: Growing,
    record: Growing,
    drawing: Drawing,
}

impl DevicePass {
    /// Memory for `blocks` blocks of keys and values.
    pub(crate) fn new(device: Arc<DeviceWeights>, blocks: usize) -> Result<Self, DeviceError> {
        let driver = Arc::clone(&device.driver);
        Self::driven(device, driver, blocks)
    }

    /// As [`Self::new`], in an order of its own that gives way to serving.
    pub(crate) fn second(device: Arc<DeviceWeights>, blocks: usize) -> Result<Self, DeviceError> {
        let driver = device.driver.second()?;
        Self::driven(device, driver, blocks)
    }

    fn driven(
        device: Arc<DeviceWeights>,
        driver: Arc<dyn Driver>,
        blocks: usize,
    ) -> Result<Self, DeviceError> {
        let cfg = &device.model.config;
        let needed = (blocks * device.bytes_per_block()) as u64;
        let free = device.memory_free()?;
        if needed > free {
            let what = "keys and values (serve.kv_cache_bytes_max)".to_owned();
            return Err(DeviceError::Memory { what, needed, free });
        }
        let bytes = blocks * cfg.kv_heads * BLOCK_TOKENS * cfg.head_dim * size_of::<f32>();
        let pool = || -> Result<Vec<Buffer>, DeviceError> {
            let each = (0..cfg.layers).map(|_| Buffer::zeroed(&driver, bytes));
            each.collect()
        };
        Ok(Self {
            keys: pool()?,
            values: pool()?,
            blocks,
            plan: Plan::default(),
            launches: RefCell::default(),
            bufs: Buffers::default(),
            logits: Vec::new(),
            chosen: Vec::new(),
            device,
            driver,
        })
    }

    /// Kernels look nothing up that is not there.
    fn check(&self, batch: &[SeqInput]) {
        let cfg = &self.device.model.config;
        for seq in batch {
            let known = seq.tokens.iter().all(|t| (*t as usize) < cfg.vocab);
            assert!(known, "a token is not in the vocabulary");
            let end = seq.start + seq.tokens.len();
            assert!(
                end <= cfg.max_positions,
                "position {end} is beyond the model's"
            );
            let used = &seq.blocks[..end.div_ceil(BLOCK_TOKENS)];
            let held = used.iter().all(|b| (*b as usize) < self.blocks);
            assert!(held, "a block table names a block that the pool lacks");
        }
    }

    /// Sizes the buffers and copies what the kernels read.
    fn prepare(
        &mut self,
        device: &DeviceWeights,
        runs: &[Run],
    ) -> Result<(Places, LayerJobs, u64), DeviceError> {
        let (cfg, driver) = (&device.model.config, &self.driver);
        let plan = &self.plan;
        let rows = plan.rows;
        let score_bytes = (0..cfg.layers).map(|layer| {
            let width = plan.width(window(cfg, layer));
            plan.score_bytes(plan.tiles_at_once(cfg.kv_heads, width), cfg.kv_heads, width)
        });
        let score_bytes = score_bytes.max().unwrap_or(0);
        let bufs = &mut self.bufs;
        let picked = plan.picked;
        let mut places = bufs.sized(device, driver, rows, picked, score_bytes)?;
        let words = bufs.words.take(driver, plan.words.len() * 4)?;
        words.write(&plan.words)?;
        places.words = words.at();
        if runs.is_empty() {
            return Ok((places, Vec::new(), 0));
        }
        let low_rank = runs.iter();
        let low_rank = low_rank.map(|run| low_rank_bytes(run.rows, rank_stride(run)));
        let low_rank = bufs.low_rank.take(driver, low_rank.sum())?.at();
        let (list, jobs) = all_jobs(device, runs, &places, low_rank)?;
        let to = bufs.jobs.take(driver, size_of_val(list.as_slice()))?;
        to.write(&list)?;
        let at = to.at();
        Ok((places, jobs, at))
    }
}

impl ForwardBackend for DevicePass {
    /// Makes room for any pass over so many rows that picks so many, of one sequence more at most:
    /// later there may be none left.
    fn reserve(&mut self, rows: usize, picked: usize) -> Result<(), DeviceError> {
        let device = Arc::clone(&self.device);
        let (cfg, driver, bufs) = (&device.model.config, &self.driver, &mut self.bufs);
        let positions = cfg.max_positions.min(self.blocks * BLOCK_TOKENS);
        let scores = score_bytes_most(cfg, rows, positions);
        bufs.sized(&device, driver, rows, picked, scores)?;
        let sequences = picked + 1;
        // Tables name blocks that are out of sight as well.
        let words = words_most(rows, picked, sequences, cfg.max_positions);
        bufs.words.take(driver, words * size_of::<u32>())?;
        let low_rank = low_rank_bytes(rows, padded(RANK_RESERVED));
        bufs.low_rank.take(driver, low_rank)?;
        let list = list_bytes_most(cfg.layers, sequences);
        bufs.jobs.take(driver, list)?;
        bufs.drawing.reserve(driver, picked)
    }

    /// As [`hone_nn::forward()`].
    fn forward(&mut self, batch: &[SeqInput]) -> Result<Logits<'_>, DeviceError> {
        let device = Arc::clone(&self.device);
        let cfg = &device.model.config;
        hone_nn::backend::check(&device.model, batch);
        self.check(batch);
        self.plan.make(cfg, batch);
        let vocab = padded(cfg.vocab);
        if self.plan.rows > 0 {
            let runs = runs(batch);
            let (places, jobs, job_list) = self.prepare(&device, &runs)?;
            self.launches.borrow_mut().clear();
            let pass = Pass {
                device: &device,
                to: To::List(&self.launches),
                dims: Dims::new(cfg),
                plan: &self.plan,
                at: places,
                jobs: &jobs,
                job_list,
            };
            pass.run(&self.keys, &self.values)?;
            start(&*self.driver, &self.launches.borrow())?;
        }
        if self.plan.picked == 0 {
            // Nothing is read back that would wait: whoever plans by the time a step takes would
            // see none, and put one after the other in the device's line.
            self.driver.wait()?;
        }
        let wanted = self.plan.picked * vocab;
        self.logits.resize(wanted.max(self.logits.len()), 0.0);
        let logits = self.bufs.logits.take(&self.driver, wanted * 4)?;
        let drawing = &mut self.bufs.drawing;
        let drawn = drawing.draw(
            &self.driver,
            logits.at(),
            self.plan.picked,
            cfg.vocab,
            batch,
        )?;
        let rows = self.logits.chunks_exact_mut(vocab).enumerate();
        for ((row, to), drawn) in rows.zip(&drawn) {
            if drawn.is_none() {
                logits.read(row * vocab * 4, to)?;
            }
        }
        let recorded = hone_nn::backend::recorded(&device.model);
        self.chosen.resize(self.plan.picked * recorded, 0);
        if !self.chosen.is_empty() {
            let bytes = size_of_val(self.chosen.as_slice());
            let record = self.bufs.record.take(&self.driver, bytes)?;
            record.read(0, &mut self.chosen)?;
        }
        let shape = LogitsShape {
            rows: self.plan.picked,
            stride: vocab,
            vocab: cfg.vocab,
        };
        let logits = Logits::new(&self.logits[..wanted], shape).with(drawn);
        Ok(logits.using(&self.chosen, recorded))
    }
}

impl Buffers {
    /// Room for a pass over so many rows, of which so many are picked, with so many bytes of scores.
    fn sized(
        &mut self,
        device: &DeviceWeights,
        driver: &Arc<dyn Driver>,
        rows: usize,
        picked: usize,
        score_bytes: usize,
    ) -> Result<Places, DeviceError> {
        let cfg = &device.model.config;
        let d = Dims::new(cfg);
        let floats = |buffer: &mut Growing, count: usize| {
            let buffer = buffer.take(driver, count * size_of::<f32>());
            buffer.map(Buffer::at)
        };
        Ok(Places {
            words: 0,
            x: floats(&mut self.x, rows * d.ld_hidden)?,
            mid: floats(&mut self.mid, rows * d.ld_hidden)?,
            normed: floats(&mut self.normed, rows * d.ld_hidden)?,
            qkv: floats(&mut self.qkv, rows * d.ld_qkv)?,
            q: floats(&mut self.q, rows * d.ld_q)?,
            attn: floats(&mut self.attn, rows * d.ld_q)?,
            proj: floats(&mut self.proj, rows * d.ld_hidden)?,
            gate_up: floats(&mut self.gate_up, rows * d.ld_gate_up)?,
            act: floats(&mut self.act, rows * d.ld_ffn)?,
            scores: floats(&mut self.scores, score_bytes / 4)?,
            logits: floats(&mut self.logits, picked * padded(cfg.vocab))?,
            mix: mixture(device, driver, self, rows, picked)?,
        })
    }
}

/// Room for the results of layers with experts.
fn mixture(
    device: &DeviceWeights,
    driver: &Arc<dyn Driver>,
    bufs: &mut Buffers,
    rows: usize,
    picked: usize,
) -> Result<MixPlaces, DeviceError> {
    let mut cut = Cut::default();
    let places = MixPlaces::cut(&mut cut, &device.model.config, rows);
    let told = picked * hone_nn::backend::recorded(&device.model);
    if cut.0 == 0 {
        return Ok(places);
    }
    let record = bufs.record.take(driver, told * size_of::<u16>())?.at();
    let base = bufs.mix.take(driver, cut.0 as usize)?.at();
    let mut places = places.moved(base);
    places.record = record;
    Ok(places)
}
