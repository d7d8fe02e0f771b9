//! The forward pass on a device: what ../layer.rs and ../forward.rs do, as launches.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::args::{
    Attend, Draw, Drawn, Draws, Embed, Gate, Leave, Linear, Linears, Matrix, Norm, Place,
};
use super::driver::{Buffer, DeviceError, Growing, Launch};
use super::plan::{Plan, Run, runs, window};
use super::{Device, DeviceLayer, DeviceLinear};
use crate::adapter::Target;
use crate::forward::{Logits, LogitsWanted, SeqInput};
use crate::kv::BLOCK_TOKENS;
use crate::layer::Dims;
use crate::logprob::Shape;
use crate::sample::{Sampled, uniform};
use crate::simd::padded;

/// Threads of a block that draws, and the largest vocabulary it draws from.
const DRAW_THREADS: u32 = 256;
const DRAW_VOCAB_MAX: usize = 1 << 20;
/// Threads of a block for operations that have one thread per element.
const WIDE: u32 = 128;
/// Rows that a thread of the adapters' kernel computes.
const ADAPTER_ROWS: usize = 4;
/// The names of all kernels.
pub const KERNELS: &[&str] = &[
    "draw",
    "embed",
    "norm_rows",
    "place",
    "gate",
    "adapters",
    "attend_1",
    "attend_2",
    "attend_4",
    "attend_8",
    "few_f32_1",
    "few_f32_2",
    "few_f32_4",
    "few_f32_8",
    "few_f32_16",
    "many_f32",
    "few_bf16_1",
    "few_bf16_2",
    "few_bf16_4",
    "few_bf16_8",
    "few_bf16_16",
    "many_bf16",
    "few_q8_1",
    "few_q8_2",
    "few_q8_4",
    "few_q8_8",
    "few_q8_16",
    "many_q8",
    "few_q4_1",
    "few_q4_2",
    "few_q4_4",
    "few_q4_8",
    "few_q4_16",
    "many_q4",
];

/// The targets of a projection and where their columns begin.
type Targets<'a> = &'a [(Target, usize)];

/// Keys, values and buffers of one engine on a device.
pub(crate) struct DevicePass {
    device: Arc<Device>,
    keys: Vec<Buffer>,
    values: Vec<Buffer>,
    blocks: usize,
    plan: Plan,
    bufs: Buffers,
    logits: Vec<f32>,
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
    draws: Growing,
    drawn: Growing,
}

/// Addresses of the buffers in one pass.
#[derive(Clone, Copy)]
struct Places {
    words: u64,
    x: u64,
    mid: u64,
    normed: u64,
    qkv: u64,
    q: u64,
    attn: u64,
    proj: u64,
    gate_up: u64,
    act: u64,
    scores: u64,
    logits: u64,
}

/// One projection: a linear layer with its input and output.
struct Step {
    linear: DeviceLinear,
    x: (u64, usize),
    y: (u64, usize),
    rows: usize,
}

/// The launches of one projection's adapters.
#[derive(Clone, Copy, Default)]
struct Jobs {
    /// First of the products with `A`, those with `B` follow; how many of each.
    first: usize,
    count: usize,
    grid_a: [u32; 2],
    grid_b: [u32; 2],
}

impl DevicePass {
    /// Memory for `blocks` blocks of keys and values.
    pub(crate) fn new(device: Arc<Device>, blocks: usize) -> Result<Self, DeviceError> {
        let cfg = &device.model.config;
        let needed = (blocks * device.bytes_per_block()) as u64;
        let free = device.memory_free()?;
        if needed > free {
            let what = "keys and values (serve.kv_cache_bytes_max)".to_owned();
            return Err(DeviceError::Memory { what, needed, free });
        }
        let bytes = blocks * cfg.kv_heads * BLOCK_TOKENS * cfg.head_dim * size_of::<f32>();
        let pool = || -> Result<Vec<Buffer>, DeviceError> {
            let each = (0..cfg.layers).map(|_| Buffer::zeroed(&device.driver, bytes));
            each.collect()
        };
        Ok(Self {
            keys: pool()?,
            values: pool()?,
            blocks,
            plan: Plan::default(),
            bufs: Buffers::default(),
            logits: Vec::new(),
            device,
        })
    }

    /// As [`crate::forward`].
    pub(crate) fn forward(&mut self, batch: &[SeqInput]) -> Result<Logits<'_>, DeviceError> {
        let device = Arc::clone(&self.device);
        let cfg = &device.model.config;
        crate::forward::check(&device.model, batch);
        self.check(batch);
        self.plan.make(cfg, batch);
        let vocab = padded(cfg.vocab);
        if self.plan.rows > 0 {
            let runs = runs(batch);
            let (places, jobs, job_list) = self.prepare(&device, &runs)?;
            let pass = Pass {
                device: &device,
                dims: Dims::new(cfg),
                plan: &self.plan,
                at: places,
                jobs: &jobs,
                job_list,
            };
            pass.run(&self.keys, &self.values)?;
        }
        let wanted = self.plan.picked * vocab;
        self.logits.resize(wanted.max(self.logits.len()), 0.0);
        let drawn = self.draw(&device, batch)?;
        if drawn.iter().any(Option::is_none) {
            let logits = self.bufs.logits.take(&device.driver, wanted * 4)?;
            let rows = self.logits.chunks_exact_mut(vocab).enumerate();
            for ((row, to), drawn) in rows.zip(&drawn) {
                if drawn.is_none() {
                    logits.read(row * vocab * 4, to)?;
                }
            }
        }
        let shape = (self.plan.picked, vocab, cfg.vocab);
        Ok(Logits::new(&self.logits[..wanted], shape).with(drawn))
    }

    /// Draws where nothing else of a row is wanted: one answer per row of logits.
    fn draw(
        &mut self,
        device: &Device,
        batch: &[SeqInput],
    ) -> Result<Vec<Option<Sampled>>, DeviceError> {
        let cfg = &device.model.config;
        let mut sampled = vec![None; self.plan.picked];
        let (mut draws, mut row) = (Vec::new(), 0);
        for seq in batch {
            let count = seq.tokens.len();
            match seq.logits {
                LogitsWanted::None => {}
                LogitsWanted::All => row += count,
                LogitsWanted::Last => row += count.min(1),
                LogitsWanted::Draw(draw) => {
                    if count > 0 && cfg.vocab <= DRAW_VOCAB_MAX {
                        draws.push(Draw {
                            u: uniform(draw.seed, draw.position),
                            row: row as u32,
                            greedy: u32::from(draw.is_greedy()),
                            temperature: draw.temperature,
                            inverse: 1.0 / draw.temperature,
                        });
                    }
                    row += count.min(1);
                }
            }
        }
        if draws.is_empty() {
            return Ok(sampled);
        }
        let driver = &device.driver;
        let from = self
            .bufs
            .draws
            .take(driver, size_of_val(draws.as_slice()))?;
        from.write(&draws)?;
        let mut drawn = vec![Drawn::default(); draws.len()];
        let to = self
            .bufs
            .drawn
            .take(driver, size_of_val(drawn.as_slice()))?;
        let logits = self.plan.picked * padded(cfg.vocab) * size_of::<f32>();
        let args = Draws {
            logits: self.bufs.logits.take(driver, logits)?.at(),
            draws: from.at(),
            drawn: to.at(),
            stride: padded(cfg.vocab) as u32,
            vocab: cfg.vocab as u32,
        };
        let launch = Launch {
            kernel: "draw",
            grid: [draws.len() as u32, 1, 1],
            block: DRAW_THREADS,
            args: std::ptr::from_ref(&args).cast(),
        };
        // SAFETY: `args` is the kernel's struct; rows and buffers have the sizes it names.
        unsafe { driver.launch(&launch)? };
        to.read(0, &mut drawn)?;
        for (draw, drawn) in draws.iter().zip(drawn) {
            sampled[draw.row as usize] = said(draw, drawn);
        }
        Ok(sampled)
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
        device: &Device,
        runs: &[Run],
    ) -> Result<(Places, LayerJobs, u64), DeviceError> {
        let (cfg, driver) = (&device.model.config, &device.driver);
        let (d, plan) = (Dims::new(cfg), &self.plan);
        let rows = plan.rows;
        let score_bytes = (0..cfg.layers).map(|layer| {
            let width = plan.width(window(cfg, layer));
            plan.score_bytes(plan.tiles_at_once(cfg.kv_heads, width), cfg.kv_heads, width)
        });
        let score_bytes = score_bytes.max().unwrap_or(0);
        let bufs = &mut self.bufs;
        let floats = |buffer: &mut Growing, count: usize| {
            buffer
                .take(driver, count * size_of::<f32>())
                .map(Buffer::at)
        };
        let places = Places {
            words: floats(&mut bufs.words, plan.words.len())?,
            x: floats(&mut bufs.x, rows * d.ld_hidden)?,
            mid: floats(&mut bufs.mid, rows * d.ld_hidden)?,
            normed: floats(&mut bufs.normed, rows * d.ld_hidden)?,
            qkv: floats(&mut bufs.qkv, rows * d.ld_qkv)?,
            q: floats(&mut bufs.q, rows * d.ld_q)?,
            attn: floats(&mut bufs.attn, rows * d.ld_q)?,
            proj: floats(&mut bufs.proj, rows * d.ld_hidden)?,
            gate_up: floats(&mut bufs.gate_up, rows * d.ld_gate_up)?,
            act: floats(&mut bufs.act, rows * d.ld_ffn)?,
            scores: floats(&mut bufs.scores, score_bytes / 4)?,
            logits: floats(&mut bufs.logits, plan.picked * padded(cfg.vocab))?,
        };
        let words = bufs.words.take(driver, plan.words.len() * 4)?;
        words.write(&plan.words)?;
        if runs.is_empty() {
            return Ok((places, Vec::new(), 0));
        }
        let low_rank: usize = runs.iter().map(|run| 3 * run.rows * rank_stride(run)).sum();
        let low_rank = floats(&mut bufs.low_rank, low_rank)?;
        let (list, jobs) = all_jobs(device, runs, (&places, low_rank))?;
        let to = bufs.jobs.take(driver, size_of_val(list.as_slice()))?;
        to.write(&list)?;
        let at = to.at();
        Ok((places, jobs, at))
    }
}

/// A draw as the sampler tells it; none where the row is broken, which the sampler tells itself.
fn said(draw: &Draw, drawn: Drawn) -> Option<Sampled> {
    if drawn.broken != 0 {
        return None;
    }
    let raw = Shape::known(1.0, drawn.most, drawn.sum).logprob(drawn.logit);
    let behavior = if draw.greedy != 0 || draw.temperature == 1.0 {
        raw
    } else {
        let most = drawn.most * draw.inverse;
        Shape::known(draw.inverse, most, drawn.sum_inverse).logprob(drawn.logit)
    };
    Some(Sampled {
        token: drawn.token,
        raw_logprob: raw,
        behavior_logprob: behavior,
        kept: None,
        top: Vec::new(),
        nonfinite: false,
    })
}

fn rank_stride(run: &Run) -> usize {
    padded(run.adapter.config.rank)
}

/// Per layer the jobs of its four projections.
type LayerJobs = Vec<[Jobs; 4]>;

/// The products of all adapters of a batch, layer by layer.
fn all_jobs(
    device: &Device,
    runs: &[Run],
    (places, low_rank): (&Places, u64),
) -> Result<(Vec<Linear>, LayerJobs), DeviceError> {
    let cfg = &device.model.config;
    let d = Dims::new(cfg);
    let mut list = Vec::new();
    let mut jobs = Vec::with_capacity(cfg.layers);
    for layer in 0..cfg.layers {
        let make = JobMaker {
            device,
            layer,
            runs,
            low_rank,
        };
        let targets: [(Targets, (u64, usize), (u64, usize)); 4] = [
            (
                &[(Target::Q, 0), (Target::K, d.q), (Target::V, d.q + d.kv)],
                (places.normed, d.ld_hidden),
                (places.qkv, d.ld_qkv),
            ),
            (
                &[(Target::O, 0)],
                (places.attn, d.ld_q),
                (places.proj, d.ld_hidden),
            ),
            (
                &[(Target::Gate, 0), (Target::Up, d.ffn)],
                (places.normed, d.ld_hidden),
                (places.gate_up, d.ld_gate_up),
            ),
            (
                &[(Target::Down, 0)],
                (places.act, d.ld_ffn),
                (places.proj, d.ld_hidden),
            ),
        ];
        let mut each = [Jobs::default(); 4];
        for (to, target) in each.iter_mut().zip(targets) {
            *to = make.jobs(target, &mut list)?;
        }
        jobs.push(each);
    }
    Ok((list, jobs))
}

/// Makes the products of one layer's adapters.
struct JobMaker<'a> {
    device: &'a Device,
    layer: usize,
    runs: &'a [Run<'a>],
    low_rank: u64,
}

impl JobMaker<'_> {
    fn jobs(
        &self,
        (targets, x, y): (Targets, (u64, usize), (u64, usize)),
        list: &mut Vec<Linear>,
    ) -> Result<Jobs, DeviceError> {
        let mut jobs = Jobs {
            first: list.len(),
            ..Jobs::default()
        };
        let mut second = Vec::new();
        let mut low_rank = self.low_rank;
        let grid =
            |w: Matrix, rows: usize| [w.out.div_ceil(32), rows.div_ceil(ADAPTER_ROWS) as u32];
        let wider = |a: [u32; 2], b: [u32; 2]| [a[0].max(b[0]), a[1].max(b[1])];
        for run in self.runs {
            let placed = self.device.placed(run.adapter)?;
            let stride = rank_stride(run);
            let place = |(at, stride): (u64, usize), column: usize| {
                at + ((run.row * stride + column) * size_of::<f32>()) as u64
            };
            for &(target, column) in targets {
                let Some((a, b)) = placed.pair(self.layer, target) else {
                    continue;
                };
                let one = Linear {
                    w: a,
                    bias: 0,
                    x: place(x, 0),
                    y: low_rank,
                    rows: run.rows as u32,
                    x_stride: x.1 as u32,
                    y_stride: stride as u32,
                    leave: Leave::Set,
                    scale: 0.0,
                    unused: 0,
                };
                list.push(one);
                second.push(Linear {
                    w: b,
                    x: low_rank,
                    y: place(y, column),
                    x_stride: stride as u32,
                    y_stride: y.1 as u32,
                    leave: Leave::AddScaled,
                    scale: run.adapter.config.scale(),
                    ..one
                });
                jobs.grid_a = wider(jobs.grid_a, grid(a, run.rows));
                jobs.grid_b = wider(jobs.grid_b, grid(b, run.rows));
                low_rank += (run.rows * stride * size_of::<f32>()) as u64;
            }
        }
        jobs.count = second.len();
        list.extend(second);
        Ok(jobs)
    }
}

/// One pass over all layers.
struct Pass<'a> {
    device: &'a Device,
    dims: Dims,
    plan: &'a Plan,
    at: Places,
    /// Per layer: query, key and value; output; gate and up; down. Empty without adapters.
    jobs: &'a [[Jobs; 4]],
    job_list: u64,
}

impl Pass<'_> {
    fn run(&self, keys: &[Buffer], values: &[Buffer]) -> Result<(), DeviceError> {
        let (at, d) = (self.at, self.dims);
        let embed = Embed {
            w: self.device.embed,
            tokens: at.words,
            x: at.x,
            stride: d.ld_hidden as u32,
            unused: 0,
        };
        let rows = self.plan.rows as u32;
        self.launch("embed", ([rows, 1, 1], WIDE), &embed)?;
        for (index, layer) in self.device.layers.iter().enumerate() {
            // What the layer before left is added on the way into the norm.
            let x = if index == 0 {
                (at.x, 0, 0)
            } else {
                (at.mid, at.proj, at.x)
            };
            self.norm(x, layer.norm1, (0, rows))?;
            self.attention((index, layer), (&keys[index], &values[index]))?;
            self.norm((at.x, at.proj, at.mid), layer.norm2, (0, rows))?;
            self.mlp(index, layer)?;
        }
        if self.plan.picked == 0 {
            return Ok(());
        }
        let picks = at.words + self.plan.picks as u64 * 4;
        let picked = (picks, self.plan.picked as u32);
        self.norm((at.mid, at.proj, at.x), self.device.norm, picked)?;
        let head = self.device.head;
        let step = Linear {
            w: head,
            bias: 0,
            x: at.normed,
            y: at.logits,
            rows: self.plan.picked as u32,
            x_stride: d.ld_hidden as u32,
            y_stride: padded(head.out as usize) as u32,
            leave: Leave::Set,
            scale: 0.0,
            unused: 0,
        };
        self.linear(&step)
    }

    /// Norm of `x`, or of `sum = x + add`, to `normed`.
    fn norm(
        &self,
        (x, add, sum): (u64, u64, u64),
        weight: u64,
        (pick, rows): (u64, u32),
    ) -> Result<(), DeviceError> {
        let norm = Norm {
            x,
            add,
            sum,
            weight,
            y: self.at.normed,
            pick,
            n: self.dims.hidden as u32,
            stride: self.dims.ld_hidden as u32,
            eps: self.device.model.config.rms_eps,
            unused: 0,
        };
        self.launch("norm_rows", ([rows, 1, 1], WIDE), &norm)
    }

    fn attention(
        &self,
        (index, layer): (usize, &DeviceLayer),
        (keys, values): (&Buffer, &Buffer),
    ) -> Result<(), DeviceError> {
        let (at, d, cfg) = (self.at, self.dims, &self.device.model.config);
        let qkv = Step {
            linear: layer.qkv,
            x: (at.normed, d.ld_hidden),
            y: (at.qkv, d.ld_qkv),
            rows: self.plan.rows,
        };
        self.project(&qkv, (index, 0))?;
        let place = Place {
            qkv: at.qkv,
            q_norm: layer.q_norm,
            k_norm: layer.k_norm,
            angles: self.device.angles.at(),
            positions: at.words + self.plan.positions as u64 * 4,
            blocks: at.words + self.plan.blocks as u64 * 4,
            q: at.q,
            keys: keys.at(),
            values: values.at(),
            heads: cfg.heads as u32,
            kv_heads: cfg.kv_heads as u32,
            dim: cfg.head_dim as u32,
            qkv_stride: d.ld_qkv as u32,
            q_stride: d.ld_q as u32,
            eps: cfg.rms_eps,
        };
        let heads = (cfg.heads + 2 * cfg.kv_heads) as u32;
        self.launch("place", ([self.plan.rows as u32, heads, 1], 32), &place)?;
        self.attend(index, (keys, values))?;
        let o = Step {
            linear: layer.o,
            x: (at.attn, d.ld_q),
            y: (at.proj, d.ld_hidden),
            rows: self.plan.rows,
        };
        self.project(&o, (index, 1))
    }

    fn attend(&self, index: usize, (keys, values): (&Buffer, &Buffer)) -> Result<(), DeviceError> {
        let (at, plan, cfg) = (self.at, self.plan, &self.device.model.config);
        let window = window(cfg, index);
        let width = plan.width(window);
        let at_once = plan.tiles_at_once(cfg.kv_heads, width);
        let kernel = match plan.tile_rows {
            1 => "attend_1",
            2 => "attend_2",
            4 => "attend_4",
            _ => "attend_8",
        };
        for first in (0..plan.tile_count).step_by(at_once) {
            let tiles = at_once.min(plan.tile_count - first) as u32;
            let attend = Attend {
                q: at.q,
                out: at.attn,
                keys: keys.at(),
                values: values.at(),
                tables: at.words + plan.tables as u64 * 4,
                tiles: at.words + (plan.tiles + first * 4) as u64 * 4,
                scores: at.scores,
                stride: self.dims.ld_q as u32,
                heads: cfg.heads as u32,
                kv_heads: cfg.kv_heads as u32,
                dim: cfg.head_dim as u32,
                window,
                width: width as u32,
                scale: 1.0 / (cfg.head_dim as f32).sqrt(),
                unused: 0,
            };
            let grid = [tiles, cfg.kv_heads as u32, plan.tile_groups as u32];
            self.launch(kernel, (grid, WIDE), &attend)?;
        }
        Ok(())
    }

    fn mlp(&self, index: usize, layer: &DeviceLayer) -> Result<(), DeviceError> {
        let (at, d) = (self.at, self.dims);
        let gate_up = Step {
            linear: layer.gate_up,
            x: (at.normed, d.ld_hidden),
            y: (at.gate_up, d.ld_gate_up),
            rows: self.plan.rows,
        };
        self.project(&gate_up, (index, 2))?;
        let gate = Gate {
            gate_up: at.gate_up,
            act: at.act,
            ffn: d.ffn as u32,
            gate_up_stride: d.ld_gate_up as u32,
            act_stride: d.ld_ffn as u32,
            unused: 0,
        };
        let grid = [(d.ffn as u32).div_ceil(WIDE), self.plan.rows as u32, 1];
        self.launch("gate", (grid, WIDE), &gate)?;
        let down = Step {
            linear: layer.down,
            x: (at.act, d.ld_ffn),
            y: (at.proj, d.ld_hidden),
            rows: self.plan.rows,
        };
        self.project(&down, (index, 3))
    }

    /// A linear layer and the adapters on it.
    fn project(&self, step: &Step, (layer, which): (usize, usize)) -> Result<(), DeviceError> {
        self.linear(&Linear {
            w: step.linear.w,
            bias: step.linear.bias,
            x: step.x.0,
            y: step.y.0,
            rows: step.rows as u32,
            x_stride: step.x.1 as u32,
            y_stride: step.y.1 as u32,
            leave: Leave::Set,
            scale: 0.0,
            unused: 0,
        })?;
        let Some(jobs) = self.jobs.get(layer).map(|jobs| jobs[which]) else {
            return Ok(());
        };
        let count = jobs.count as u32;
        for (first, grid) in [
            (jobs.first, jobs.grid_a),
            (jobs.first + jobs.count, jobs.grid_b),
        ] {
            if count > 0 {
                let each = self.job_list + (first * size_of::<Linear>()) as u64;
                let args = Linears {
                    each,
                    count,
                    unused: 0,
                };
                self.launch("adapters", ([grid[0], grid[1], count], 32), &args)?;
            }
        }
        Ok(())
    }

    fn linear(&self, args: &Linear) -> Result<(), DeviceError> {
        let (kernel, grid, block) = linear_launch(args);
        self.launch(kernel, (grid, block), args)
    }

    fn launch<T>(
        &self,
        kernel: &'static str,
        (grid, block): ([u32; 3], u32),
        args: &T,
    ) -> Result<(), DeviceError> {
        let launch = Launch {
            kernel,
            grid,
            block,
            args: std::ptr::from_ref(args).cast(),
        };
        // SAFETY: `args` is the struct of this kernel, and its buffers were sized by `prepare`.
        unsafe { self.device.driver.launch(&launch) }
    }
}

/// The kernel for a product: by rows, which changes no bit.
pub(super) fn linear_launch(args: &Linear) -> (&'static str, [u32; 3], u32) {
    macro_rules! names {
        ($($format:literal)*) => {
            [$([
                (1, concat!("few_", $format, "_1")),
                (2, concat!("few_", $format, "_2")),
                (4, concat!("few_", $format, "_4")),
                (8, concat!("few_", $format, "_8")),
                (16, concat!("few_", $format, "_16")),
                (u32::MAX, concat!("many_", $format)),
            ]),*]
        };
    }
    const NAMES: [[(u32, &str); 6]; 4] = names!("f32" "bf16" "q8" "q4");
    let names = &NAMES[args.w.format as usize];
    let (most, name) = names[names.partition_point(|(most, _)| *most < args.rows)];
    if most == u32::MAX {
        let grid = [args.w.out.div_ceil(64), args.rows.div_ceil(64), 1];
        return (name, grid, 64);
    }
    (
        name,
        [args.w.out.div_ceil(32), args.rows.div_ceil(most), 1],
        32,
    )
}
