//! A model's weights on a device.

use std::sync::Arc;

use crate::adapter::DeviceAdapter;
use crate::args::{At, Matrix, Stack};
use crate::driver::{Buffer, Driver};
use crate::matrix::{Packed, Packer, stack};
use hone_kernels::matrix::compute_type::ComputeType;
use hone_nn::backend::{DeviceId, Experts, LayerWeights, Linear, Mlp};
use hone_nn::{Adapter, BLOCK_TOKENS, DeviceError, KvFormat, Model};

/// Largest head that the kernels cover.
const HEAD_DIM_MAX: usize = 256;
/// Positions whose angles are computed at a time.
const ANGLES_EACH: usize = 4_096;

/// Most experts of a layer (src/cuda/experts.cuh).
pub(crate) const EXPERTS_MAX: usize = 1_024;

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

/// What follows the attention of a layer.
pub(crate) enum DeviceMlp {
    /// Gate and up, and down.
    Dense([DeviceLinear; 2]),
    Sparse(DeviceExperts),
}

/// Experts of one layer, and the matrix that scores them.
pub(crate) struct DeviceExperts {
    pub(crate) router: Matrix,
    pub(crate) gate_up: Stack,
    pub(crate) down: Stack,
    /// Where they are.
    _memory: [Buffer; 3],
}

impl DeviceExperts {
    pub(crate) fn new(driver: &Arc<dyn Driver>, from: &Experts) -> Result<Self, DeviceError> {
        let mut packer = Packer::default();
        let router = packer.matrix(&from.router);
        let memory = packer.upload(driver)?;
        let router = router.of(&memory);
        let (gate_up, of_gate_up) = stack(driver, &from.gate_up)?;
        let (down, of_down) = stack(driver, &from.down)?;
        Ok(Self {
            router,
            gate_up,
            down,
            _memory: [memory, of_gate_up, of_down],
        })
    }
}

/// The weights of a model on a device, and what every pass over them needs.
pub(crate) struct DeviceWeights {
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

impl DeviceWeights {
    /// Copies the model to the device; `progress` hears layers done and layers in all.
    ///
    /// # Errors
    /// The model does not fit or has a form that the kernels do not cover, or the device fails.
    pub(crate) fn upload(
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

    /// Bytes of a block of keys and values over all layers.
    pub(crate) fn bytes_per_block(&self) -> usize {
        let cfg = &self.model.config;
        cfg.layers * cfg.kv_heads * BLOCK_TOKENS * cfg.head_dim * 2 * size_of::<f32>()
    }

    /// Bytes of memory that nothing holds.
    pub(crate) fn memory_free(&self) -> Result<u64, DeviceError> {
        Ok(self.driver.memory()?.0)
    }

    /// Whether the kernels have a backward pass of the model; they have none of experts.
    pub(crate) fn trains(&self) -> bool {
        self.model.config.experts.is_none()
    }
}

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
