//! What a device implements to compute a model, and what it needs of this crate for that.
//!
//! A build without any device knows no more of one than these traits. Whatever computes gives the bits
//! that the processor gives.

use std::sync::Arc;

pub use crate::adapter::{Change, Pair};
pub use crate::device_copies::{DeviceCopies, DeviceId};
pub use crate::device_error::DeviceError;
pub use crate::experts::Route;
pub use crate::forward::{check, recorded};
pub use crate::pass::Dims;
pub use crate::rope::Rope;
pub use crate::train::{
    LossPosition, LossStep, MicroBatch, Pacer, RowGrad, Run, Sink, TokenPull, layers_that_fit,
};
pub use crate::weights::{Experts, LayerWeights, Linear, Mlp};

use crate::adapter::Adapter;
use crate::batch::SeqInput;
use crate::forward::Logits;
use crate::train::{StepError, TrainRow};
use crate::weights::Model;
use hone_kernels::ops::log_softmax::Shape;
use hone_kernels::thread_pool::Executor;

/// A model on a device, for serving and for training. Both compute at the same time, each on its own
/// stream.
pub trait DeviceModel: Send + Sync {
    /// The model.
    fn model(&self) -> &Arc<Model>;

    /// What the device is called.
    fn name(&self) -> String;

    /// Whether a learner's updates run on it; where not, it computes log-probs and the processor trains.
    fn trains(&self) -> bool;

    /// Bytes of the device's memory that are free.
    ///
    /// # Errors
    /// The device failed.
    fn memory_free(&self) -> Result<u64, DeviceError>;

    /// Bytes that a block of [`crate::BLOCK_TOKENS`] tokens takes over all layers.
    fn bytes_per_block(&self) -> usize;

    /// Copies an adapter to the device, unless it is there. Any thread may; steps under way go on.
    ///
    /// # Errors
    /// It does not fit, or the device failed.
    fn upload(&self, adapter: &Adapter) -> Result<(), DeviceError>;

    /// Forwards with memory for `blocks` blocks of keys and values. In the background they give way to
    /// whatever else the device computes.
    ///
    /// # Errors
    /// The memory does not suffice, or the device failed.
    fn forwards(
        self: Arc<Self>,
        blocks: usize,
        in_background: bool,
    ) -> Result<Box<dyn ForwardBackend>, DeviceError>;

    /// Another model on the same device (`progress` hears layers done and layers in all), checked as the
    /// first one was.
    ///
    /// # Errors
    /// The model does not fit or is of a form that the device does not compute, or the device failed.
    fn load_other(
        &self,
        model: Arc<Model>,
        exec: &Executor,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Arc<dyn DeviceModel>, DeviceError>;

    /// Passes of a learner, in the background.
    ///
    /// # Errors
    /// The device failed.
    fn passes(self: Arc<Self>) -> Result<Box<dyn TrainBackend>, DeviceError>;
}

/// The forwards of one engine.
pub trait ForwardBackend: Send {
    /// See [`crate::forward()`].
    ///
    /// # Errors
    /// The device failed, or lacks the memory.
    ///
    /// # Panics
    /// As [`crate::forward()`].
    fn forward(&mut self, batch: &[SeqInput]) -> Result<Logits<'_>, DeviceError>;

    /// Makes room for every pass over at most so many rows that wants the logits of at most so many.
    ///
    /// # Errors
    /// The device lacks the memory.
    fn reserve(&mut self, rows: usize, picked: usize) -> Result<(), DeviceError>;
}

/// The passes of one learner.
pub trait TrainBackend: Send {
    /// Whether its kernels cover passes over these rows.
    fn takes(&self, rows: &[TrainRow], minibatch_tokens: usize) -> bool;

    /// See [`DeviceModel::trains`].
    fn trains(&self) -> bool;

    /// Gives back the memory of its passes; the next one takes it anew.
    fn rest(&mut self);

    /// Before the first micro-batch of an update.
    ///
    /// # Errors
    /// The device failed, or lacks the memory.
    fn begin(&mut self, adapter: Option<&Adapter>) -> Result<(), DeviceError>;

    /// Forward, loss and backward of a micro-batch; returns the layers that were not computed again.
    ///
    /// # Errors
    /// The device failed or lacks the memory, or the step was stopped.
    fn micro(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        loss: &mut LossStep,
        pacer: &mut Pacer,
    ) -> Result<usize, StepError>;

    /// After the last micro-batch of an update: all gradients.
    ///
    /// # Errors
    /// The device failed.
    fn gradients(&mut self, sink: &mut Sink) -> Result<(), DeviceError>;

    /// Shows the logits of the micro-batch's loss positions, one after the other.
    ///
    /// # Errors
    /// As [`Self::micro`].
    fn visit(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        see: &mut dyn FnMut(&LossPosition, &[f32]),
        pacer: &mut Pacer,
    ) -> Result<(), StepError>;

    /// Shows what is asked of every loss position's logits.
    ///
    /// # Errors
    /// As [`Self::micro`].
    fn ask(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        asking: &mut Asking,
        pacer: &mut Pacer,
    ) -> Result<(), StepError>;
}

/// What is asked of a micro-batch.
pub struct Asking<'a> {
    pub rows: &'a [TrainRow],
    /// Ids of a loss position whose logits are wanted.
    pub ids: &'a dyn Fn(&LossPosition) -> Vec<u32>,
    /// Takes them, and what turns the loss position's logits into probabilities.
    pub see: &'a mut dyn FnMut(&LossPosition, &Shape, &[f32]),
}
