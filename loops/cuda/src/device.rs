//! A model on a device: proven when it is loaded, then what makes its passes.

use std::sync::Arc;

use crate::driver::Driver;
use crate::pass::DevicePass;
use crate::train::DevicePasses;
use crate::weights::DeviceWeights;
use hone_checkpoint::{AdapterDtype, LoraConfig, Target};
use hone_kernels::thread_pool::Executor;
use hone_nn::{
    Adapter, BLOCK_TOKENS, DeviceError, DeviceModel, ForwardBackend, KvPool, LogitsWanted, Model,
    Scratch, SeqInput, TrainBackend, forward,
};

/// A model on a device.
pub struct Device {
    pub(crate) weights: Arc<DeviceWeights>,
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
        let weights = Arc::new(DeviceWeights::upload(driver, model, progress)?);
        let device = Self { weights };
        device.check(exec)?;
        Ok(Arc::new(device))
    }

    /// That a prompt and tokens after it have the same logits here and on the processor, also under an
    /// adapter and where launches come again.
    fn check(&self, exec: &Executor) -> Result<(), DeviceError> {
        let model = &self.weights.model;
        let cfg = &model.config;
        let all = CHECK_TOKENS.min(cfg.max_positions);
        let tokens: Vec<u32> = (1..=all)
            .map(|i| (i.wrapping_mul(2_654_435_761) % cfg.vocab) as u32)
            .collect();
        let blocks: Vec<u32> = (0..all.div_ceil(BLOCK_TOKENS) as u32).collect();
        let mut kv = KvPool::new(model, blocks.len());
        let mut scratch = Scratch::default();
        let mut pass = DevicePass::new(Arc::clone(&self.weights), blocks.len())?;
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
            let wanted = forward(model, &mut kv, &[seq], exec, &mut scratch);
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
        &self.weights.model
    }

    fn name(&self) -> String {
        self.weights.driver.name()
    }

    fn trains(&self) -> bool {
        self.weights.trains()
    }

    fn memory_free(&self) -> Result<u64, DeviceError> {
        self.weights.memory_free()
    }

    fn bytes_per_block(&self) -> usize {
        self.weights.bytes_per_block()
    }

    fn upload(&self, adapter: &Adapter) -> Result<(), DeviceError> {
        self.weights.copy_of(adapter).map(drop)
    }

    fn forwards(
        self: Arc<Self>,
        blocks: usize,
        in_background: bool,
    ) -> Result<Box<dyn ForwardBackend>, DeviceError> {
        let pass = match in_background {
            true => DevicePass::second(Arc::clone(&self.weights), blocks),
            false => DevicePass::new(Arc::clone(&self.weights), blocks),
        };
        Ok(Box::new(pass?))
    }

    fn load_other(
        &self,
        model: Arc<Model>,
        exec: &Executor,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Arc<dyn DeviceModel>, DeviceError> {
        Ok(Self::load(
            Arc::clone(&self.weights.driver),
            model,
            exec,
            progress,
        )?)
    }

    fn passes(self: Arc<Self>) -> Result<Box<dyn TrainBackend>, DeviceError> {
        Ok(Box::new(DevicePasses::new(&self.weights)?))
    }
}

/// Tokens of the check at the start.
const CHECK_TOKENS: usize = 40;
