//! A learner's passes on a device: what ../../train does on the processor, as launches.
//!
//! Everything of the size of the model's work runs here: forward, backward, the head. The loss of a
//! token from a few of its logits, and the optimizer on an adapter, stay the processor's. Experts have
//! no backward pass: with them only log-probs are computed here. Launches are in an order of their own
//! that gives way to serving.

mod backward;
mod forward;
#[cfg(test)]
mod learner_tests;
mod loss;
mod passes;
#[cfg(test)]
mod tests;

pub(crate) use self::passes::DevicePasses;
use self::passes::{Buffers, TOKENS_MAX, grad_places};
use hone_nn::backend::{Asking, LossPosition, LossStep, MicroBatch, Pacer, Run, Sink};
use hone_nn::{Adapter, DeviceError, StepError, TrainBackend, TrainRow};

impl TrainBackend for DevicePasses {
    /// Whether its kernels cover passes over these rows.
    fn takes(&self, rows: &[TrainRow], minibatch_tokens: usize) -> bool {
        let longest = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
        let positions = self.device.model.config.max_positions;
        longest <= positions && longest.max(minibatch_tokens) <= TOKENS_MAX
    }

    fn trains(&self) -> bool {
        self.device.trains()
    }

    /// Gives back the memory of its passes; the next one takes it anew.
    fn rest(&mut self) {
        self.bufs = Buffers::default();
    }

    /// Before the first micro-batch of an update.
    fn begin(&mut self, adapter: Option<&Adapter>) -> Result<(), DeviceError> {
        let (places, floats) = adapter.map_or_else(Default::default, grad_places);
        self.grads = places;
        self.fresh = true;
        let bytes = floats * size_of::<f32>();
        self.grads_at = self.bufs.grads.take(&self.driver, bytes)?.at();
        Ok(())
    }

    /// Forward, loss and backward; returns the layers that were not computed again.
    fn micro(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        loss: &mut LossStep,
        pacer: &mut Pacer,
    ) -> Result<usize, StepError> {
        self.forward(run, micro, pacer)?;
        self.loss(micro, loss, pacer)?;
        self.backward(run, micro, pacer)?;
        self.fresh = false;
        Ok(self.device.layers.len().min(self.kept + 1))
    }

    /// After the last one: all gradients.
    fn gradients(&mut self, sink: &mut Sink) -> Result<(), DeviceError> {
        let mut from = 0;
        let buffer = self.bufs.grads.take(&self.driver, 0)?;
        let arrays = sink.arrays_mut();
        let mut all = vec![0.0f32; arrays.iter().map(|(array, _)| array.len()).sum()];
        buffer.read(0, &mut all)?;
        for (array, _) in arrays {
            array.copy_from_slice(&all[from..from + array.len()]);
            from += array.len();
        }
        Ok(())
    }

    fn visit(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        see: &mut dyn FnMut(&LossPosition, &[f32]),
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        self.visit_sites(run, micro, see, pacer)
    }

    fn ask(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        asking: &mut Asking,
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        self.ask_sites(run, micro, asking, pacer)
    }
}
