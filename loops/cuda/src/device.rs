//! A model on a device.

use std::sync::Arc;

use crate::adapter::DeviceAdapter;
use crate::args::{At, Matrix};
use crate::driver::{Buffer, Driver};
use crate::experts::{DeviceExperts, DeviceMlp, EXPERTS_MAX};
use crate::matrix::{Packed, Packer};
use crate::pass::DevicePass;
use crate::train::DevicePasses;
use hone_checkpoint::{AdapterDtype, LoraConfig, Target};
use hone_kernels::matrix::compute_type::ComputeType;
use hone_kernels::thread_pool::Executor;
use hone_nn::backend::{DeviceId, LayerWeights, Linear, Mlp};
use hone_nn::{
    Adapter, BLOCK_TOKENS, DeviceError, DeviceModel, ForwardBackend, KvFormat, KvPool,
    LogitsWanted, Model, Scratch, SeqInput, TrainBackend, forward,
};

/// Largest head that the kernels cover.
const HEAD_DIM_MAX: usize = 256;
/// Positions whose angles are computed at a time.
const ANGLES_EACH: usize = 4_096;

#[derive(Clone, Copy)]
pub(crate) struct DeviceLinear {
    pub(crate) w: Matrix,
    pub(crate) bias: At,
}

/// A layer; what the model has not is 0.
pub(crate) struct DeviceLayer {
    pub(crate) norm1: At,
    pub(crate) qkv: DeviceLinear,
    pub(crate) q_norm: At,
    pub(crate) k_norm: At,
    pub(crate) o: DeviceLinear,
    pub(crate) norm2: At,
    pub(crate) mlp: DeviceMlp,
    /// Where all of it is, but experts.
    _memory: Buffer,
}

/// A model on a device.
pub struct Device {
    /// Names its copies of adapters.
    id: DeviceId,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) model: Arc<Model>,
    pub(crate) embed: Matrix,
    pub(crate) head: Matrix,
    pub(crate) norm: At,
    /// Where these three are.
    _ends: Buffer,
    pub(crate) layers: Vec<DeviceLayer>,
    /// Cosines and sines `[position][2][pairs]`.
    pub(crate) angles: Buffer,
}

impl Device {
    /// Copies the model to the device (`progress` hears layers done and layers in all), and checks
    /// there that both compute the same numbers.
    ///
    /// # Errors
    /// The model does not fit or has a form that the kernels do not cover, the device fails, or it
    /// computes something else.
    pub fn load(
        driver: Arc<dyn Driver>,
        model: Arc<Model>,
        exec: &Executor,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Arc<Self>, DeviceError> {
        let device = Arc::new(Self::upload(driver, model, progress)?);
        device.check(exec)?;
        Ok(device)
    }

    fn upload(
        driver: Arc<dyn Driver>,
        model: Arc<Model>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, DeviceError> {
        let cfg = &model.config;
        if cfg.head_dim > HEAD_DIM_MAX {
            return Err(DeviceError::Unsupported(format!(
                "heads of this model have {} dimensions; the CUDA kernels cover {HEAD_DIM_MAX}",
                cfg.head_dim
            )));
        }
        let weights = &model.weights;
        if let Some(experts) = cfg.experts.as_ref().filter(|e| e.count > EXPERTS_MAX) {
            return Err(DeviceError::Unsupported(format!(
                "layers of this model have {} experts and the CUDA kernels cover {EXPERTS_MAX}; set device = \"cpu\"",
                experts.count
            )));
        }
        if weights.compute_type() != ComputeType::F32 {
            let why = "the CUDA kernels compute in f32; set model.arithmetic = \"auto\" or \"f32\"";
            return Err(DeviceError::Unsupported(why.to_owned()));
        }
        if model.kv != KvFormat::F32 {
            let why =
                "the CUDA kernels keep keys and values in f32; set model.kv = \"auto\" or \"f32\"";
            return Err(DeviceError::Unsupported(why.to_owned()));
        }
        let needed = weights.bytes() as u64;
        let (free, _) = driver.memory()?;
        if needed > free {
            let what = "the model's weights".to_owned();
            return Err(DeviceError::Memory { what, needed, free });
        }
        let all = weights.layers.len();
        let mut layers = Vec::with_capacity(all);
        for (index, layer) in weights.layers.iter().enumerate() {
            layers.push(DeviceLayer::new(&driver, layer)?);
            progress(index + 1, all);
        }
        let mut packer = Packer::default();
        let embed = packer.matrix(&weights.embed);
        let head = weights.head.as_ref();
        let head = head.map_or(embed, |head| packer.matrix(head));
        let norm = packer.vector(&weights.norm);
        let ends = packer.upload(&driver)?;
        Ok(Self {
            id: DeviceId::unique(),
            embed: embed.of(&ends),
            head: head.of(&ends),
            norm: norm.of(&ends),
            _ends: ends,
            layers,
            angles: angles(&driver, &model)?,
            model,
            driver,
        })
    }

    pub(crate) fn copy_of(&self, adapter: &Adapter) -> Result<Arc<DeviceAdapter>, DeviceError> {
        let make = || DeviceAdapter::new(&self.driver, adapter);
        adapter.copies.get_or_make(self.id, make)
    }

    /// That a prompt and tokens after it have the same logits here and on the processor, also under an
    /// adapter and where launches come again.
    fn check(self: &Arc<Self>, exec: &Executor) -> Result<(), DeviceError> {
        let cfg = &self.model.config;
        let all = CHECK_TOKENS.min(cfg.max_positions);
        let tokens: Vec<u32> = (1..=all)
            .map(|i| (i.wrapping_mul(2_654_435_761) % cfg.vocab) as u32)
            .collect();
        let blocks: Vec<u32> = (0..all.div_ceil(BLOCK_TOKENS) as u32).collect();
        let mut kv = KvPool::new(&self.model, blocks.len());
        let mut scratch = Scratch::default();
        let mut pass = DevicePass::new(Arc::clone(self), blocks.len())?;
        let lora = LoraConfig {
            rank: 4,
            alpha: 8.0,
            targets: match cfg.experts {
                None => Target::ALL.to_vec(),
                Some(_) => Target::ATTENTION.to_vec(),
            },
            rslora: false,
            dtype: AdapterDtype::F32,
        };
        let adapter = Adapter::random(cfg, lora, 1);
        let (few, last) = (all.saturating_sub(4), all - 1);
        // Many rows, a few, and one, the last of which comes again until it is a prepared list.
        let parts = [
            (0..few, None),
            (few..last, None),
            (few..last, Some(&adapter)),
        ];
        let again = [None, None, None, Some(&adapter)].map(|adapter| (last..all, adapter));
        let parts = parts.into_iter().chain(again);
        for (part, adapter) in parts.filter(|(part, _)| !part.is_empty()) {
            let seq = SeqInput {
                tokens: &tokens[part.clone()],
                start: part.start,
                blocks: &blocks,
                adapter,
                logits: LogitsWanted::All,
            };
            let wanted = forward(&self.model, &mut kv, &[seq], exec, &mut scratch);
            let found = pass.forward(&[seq])?;
            for row in 0..part.len() {
                if found.experts(row) != wanted.experts(row) {
                    return Err(DeviceError::OtherExperts);
                }
                let pairs = found.row(row).iter().zip(wanted.row(row));
                for (at, (device, processor)) in pairs.enumerate() {
                    if device.to_bits() != processor.to_bits() {
                        let (device, processor) = (*device, *processor);
                        return Err(DeviceError::Differs {
                            at,
                            device,
                            processor,
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

impl DeviceModel for Device {
    fn model(&self) -> &Arc<Model> {
        &self.model
    }

    fn name(&self) -> String {
        self.driver.name()
    }

    /// It has no backward pass of experts.
    fn trains(&self) -> bool {
        self.model.config.experts.is_none()
    }

    fn memory_free(&self) -> Result<u64, DeviceError> {
        Ok(self.driver.memory()?.0)
    }

    fn bytes_per_block(&self) -> usize {
        let cfg = &self.model.config;
        cfg.layers * cfg.kv_heads * BLOCK_TOKENS * cfg.head_dim * 2 * size_of::<f32>()
    }

    fn upload(&self, adapter: &Adapter) -> Result<(), DeviceError> {
        self.copy_of(adapter).map(drop)
    }

    fn forwards(
        self: Arc<Self>,
        blocks: usize,
        in_background: bool,
    ) -> Result<Box<dyn ForwardBackend>, DeviceError> {
        let pass = match in_background {
            true => DevicePass::second(self, blocks),
            false => DevicePass::new(self, blocks),
        };
        Ok(Box::new(pass?))
    }

    fn load_other(
        &self,
        model: Arc<Model>,
        exec: &Executor,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Arc<dyn DeviceModel>, DeviceError> {
        Ok(Self::load(Arc::clone(&self.driver), model, exec, progress)?)
    }

    fn passes(self: Arc<Self>) -> Result<Box<dyn TrainBackend>, DeviceError> {
        Ok(Box::new(DevicePasses::new(&self)?))
    }
}

/// Tokens of the check at the start.
const CHECK_TOKENS: usize = 40;

impl DeviceLayer {
    fn new(driver: &Arc<dyn Driver>, from: &LayerWeights) -> Result<Self, DeviceError> {
        let mut packer = Packer::default();
        let pack = |packer: &mut Packer, linear: &Linear| {
            let bias = linear.bias.as_ref();
            (packer.matrix(&linear.w), bias.map(|b| packer.vector(b)))
        };
        let [qkv, o] = [&from.qkv, &from.o].map(|linear| pack(&mut packer, linear));
        let dense = from.mlp.dense();
        let dense = dense.map(|linears| linears.map(|linear| pack(&mut packer, linear)));
        let vectors = [
            Some(&from.norm1),
            from.q_norm.as_ref(),
            from.k_norm.as_ref(),
            Some(&from.norm2),
        ]
        .map(|vector| vector.map(|v| packer.vector(v)));
        let memory = packer.upload(driver)?;
        let linear = |(w, bias): (Packed<Matrix>, Option<Packed<At>>)| DeviceLinear {
            w: w.of(&memory),
            bias: bias.map_or(0, |b| b.of(&memory)),
        };
        let mlp = match (&from.mlp, dense) {
            (Mlp::Sparse(experts), _) => DeviceMlp::Sparse(DeviceExperts::new(driver, experts)?),
            (_, dense) => {
                let linears = dense.expect("a layer without experts is dense");
                DeviceMlp::Dense(linears.map(linear))
            }
        };
        let [norm1, q_norm, k_norm, norm2] = vectors.map(|v| v.map_or(0, |v| v.of(&memory)));
        Ok(Self {
            norm1,
            qkv: linear(qkv),
            q_norm,
            k_norm,
            o: linear(o),
            norm2,
            mlp,
            _memory: memory,
        })
    }
}

/// The angles of every position, computed where the processor computes its own.
fn angles(driver: &Arc<dyn Driver>, model: &Model) -> Result<Buffer, DeviceError> {
    let rope = &model.weights.rope;
    let (each, positions) = (2 * rope.pairs(), model.config.max_positions);
    let all = Buffer::zeroed(driver, positions * each * size_of::<f32>())?;
    let mut first = 0;
    while first < positions {
        let count = ANGLES_EACH.min(positions - first);
        let mut part = vec![0.0; count * each];
        for (i, angles) in part.chunks_exact_mut(each.max(1)).enumerate() {
            rope.angles(first + i, angles);
        }
        all.fill_at(first * each, &part)?;
        first += count;
    }
    Ok(all)
}
