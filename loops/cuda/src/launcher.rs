//! One pass on a device: what its launches share, and where they go.

use std::cell::RefCell;

use super::args::Linear;
use super::driver::{Driver, launch};
use super::jobs::LayerJobs;
use super::launches::{Launches, Size};
use super::linear::linear_launch;
use super::places::Places;
use super::plan::Plan;
use super::weights::DeviceWeights;
use hone_nn::DeviceError;
use hone_nn::backend::Dims;

/// Threads of a block for operations that have one thread per element, and for attention.
pub(super) const WIDE: u32 = 128;
/// Threads of a block that norms a row.
pub(super) const NORM_THREADS: u32 = 512;
/// Blocks of threads that a large device computes at the same time, at the least.
pub(super) const PROCESSORS: u32 = 96;
/// Where a pass's launches go.
#[derive(Clone, Copy)]
pub(super) enum To<'a> {
    /// They start at once, in this order.
    Driver(&'a dyn Driver),
    /// They are recorded.
    List(&'a RefCell<Launches>),
}

/// One pass over all layers.
pub(super) struct Pass<'a> {
    pub(super) device: &'a DeviceWeights,
    pub(super) to: To<'a>,
    pub(super) dims: Dims,
    pub(super) plan: &'a Plan,
    pub(super) at: Places,
    /// Per layer: query, key and value; output; gate and up; down. Empty without adapters.
    pub(super) jobs: &'a LayerJobs,
    pub(super) job_list: u64,
}

impl Pass<'_> {
    pub(super) fn linear(&self, mut args: Linear) -> Result<(), DeviceError> {
        let (kernel, size) = linear_launch(&mut args, &self.device.driver.limits());
        self.launch(kernel, size, &args)
    }

    pub(super) fn launch<T: Copy>(
        &self,
        kernel: &'static str,
        size: impl Into<Size>,
        args: &T,
    ) -> Result<(), DeviceError> {
        match self.to {
            To::Driver(driver) => launch(driver, kernel, size, args),
            To::List(list) => {
                list.borrow_mut().push(kernel, size, args);
                Ok(())
            }
        }
    }
}
