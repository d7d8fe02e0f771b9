//! What computes the forwards of one engine: the processor's cores, or a device.

use std::io;
use std::sync::Arc;

use crate::backend::{DeviceModel, ForwardBackend};
use crate::batch::SeqInput;
use crate::device_error::DeviceError;
use crate::forward::{Logits, Scratch, forward};
use crate::kv::KvPool;
use crate::weights::Model;
use hone_kernels::thread_pool::Executor;

/// A model's forward with the keys and values of the sequences under way. Where it runs changes no
/// bit of what it says.
pub struct Runner {
    model: Arc<Model>,
    place: Place,
}

enum Place {
    Processor(Box<Processor>),
    Device(Box<dyn ForwardBackend>),
}

struct Processor {
    kv: KvPool,
    scratch: Scratch,
    exec: Arc<Executor>,
}

impl Runner {
    /// On the processor, with memory for `blocks` blocks of keys and values.
    ///
    /// # Panics
    /// When there is no address space for them; [`Self::try_on_processor`] says so instead.
    pub fn on_processor(model: Arc<Model>, exec: Arc<Executor>, blocks: usize) -> Self {
        Self::try_on_processor(model, exec, blocks).expect("address space for keys and values")
    }

    /// The same.
    ///
    /// # Errors
    /// There is no address space for the keys and values.
    pub fn try_on_processor(
        model: Arc<Model>,
        exec: Arc<Executor>,
        blocks: usize,
    ) -> io::Result<Self> {
        let processor = Processor {
            kv: KvPool::try_new(&model, blocks)?,
            scratch: Scratch::default(),
            exec,
        };
        Ok(Self {
            model,
            place: Place::Processor(Box::new(processor)),
        })
    }

    /// On a device, with memory there for `blocks` blocks of keys and values.
    ///
    /// # Errors
    /// They do not fit, or the device failed.
    pub fn on_device(device: &Arc<dyn DeviceModel>, blocks: usize) -> Result<Self, DeviceError> {
        Self::forwards(device, blocks, false)
    }

    /// As [`Self::on_device`], in an order of its own: whatever else the device computes goes first.
    ///
    /// # Errors
    /// As [`Self::on_device`].
    pub fn second_on_device(
        device: &Arc<dyn DeviceModel>,
        blocks: usize,
    ) -> Result<Self, DeviceError> {
        Self::forwards(device, blocks, true)
    }

    fn forwards(
        device: &Arc<dyn DeviceModel>,
        blocks: usize,
        in_background: bool,
    ) -> Result<Self, DeviceError> {
        let forwards = Arc::clone(device).forwards(blocks, in_background)?;
        Ok(Self {
            model: Arc::clone(device.model()),
            place: Place::Device(forwards),
        })
    }

    /// See [`forward`].
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// As [`forward`].
    pub fn forward(&mut self, batch: &[SeqInput]) -> Result<Logits<'_>, DeviceError> {
        match &mut self.place {
            Place::Processor(place) => {
                let Processor { kv, scratch, exec } = &mut **place;
                Ok(forward(&self.model, kv, batch, exec, scratch))
            }
            Place::Device(pass) => pass.forward(batch),
        }
    }

    /// Makes room now for every pass over at most so many rows that wants the logits of at most so many,
    /// of one sequence more at most. On a device others may have taken the memory when such a pass comes.
    ///
    /// # Errors
    /// The device lacks the memory.
    pub fn reserved(mut self, rows: usize, picked: usize) -> Result<Self, DeviceError> {
        if let Place::Device(pass) = &mut self.place {
            pass.reserve(rows, picked)?;
        }
        Ok(self)
    }

    /// Whether keys and values of a block can be copied; where not, they are computed again.
    pub fn can_copy(&self) -> bool {
        matches!(self.place, Place::Processor(_))
    }

    /// Copies the keys and values of block `from` to block `to`, where it can.
    ///
    /// # Panics
    /// When there is no such block.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        if let Place::Processor(place) = &mut self.place {
            place.kv.copy(from, to);
        }
    }

    /// Gives up what a pass that did not end may have left behind. Keys and values stay, and are
    /// the caller's matter.
    pub fn reset(&mut self) {
        if let Place::Processor(place) = &mut self.place {
            place.scratch = Scratch::default();
        }
    }
}
