//! Chooses what computes the model: the processor, or a CUDA device.

#[cfg(feature = "cuda")]
mod nvidia;

use std::sync::Arc;

use hone_cuda::{Device, Driver};
use hone_kernels::Executor;
use hone_nn::{DeviceError, DeviceModel, Model};
use serde::{Deserialize, Serialize};

use crate::progress::{Progress, Unit};

/// Layers from which on a copy to the device shows how far it is.
const PROGRESS_FROM_LAYERS: u64 = 8;

/// What computes the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The processor.
    Cpu,
    /// The first CUDA device; without one nothing starts.
    Cuda,
    /// The first CUDA device where there is one that can hold the model, else the processor.
    Auto,
}

/// The first CUDA device.
///
/// # Errors
/// There is none.
#[cfg(feature = "cuda")]
pub fn cuda() -> Result<Arc<dyn Driver>, DeviceError> {
    Ok(Arc::new(nvidia::Nvidia::open(0)?))
}

/// The first CUDA device.
///
/// # Errors
/// This build has no code for one.
#[cfg(not(feature = "cuda"))]
pub fn cuda() -> Result<Arc<dyn Driver>, DeviceError> {
    Err(DeviceError::NotBuilt)
}

/// Opens the first CUDA device.
pub type OpenCuda = fn() -> Result<Arc<dyn Driver>, DeviceError>;

/// The chosen device with the model on it; none is the processor.
pub(crate) fn open(
    (choice, cuda): (Choice, OpenCuda),
    model: &Arc<Model>,
    exec: &Executor,
) -> Result<Option<Arc<dyn DeviceModel>>, String> {
    if choice == Choice::Cpu {
        return Ok(None);
    }
    let driver = match cuda() {
        Ok(driver) => driver,
        Err(
            error @ (DeviceError::NotBuilt | DeviceError::None(_) | DeviceError::Unsupported(_)),
        ) if choice == Choice::Auto => {
            tracing::info!(%error, "the processor computes");
            return Ok(None);
        }
        Err(error) => return Err(format!("model.device is \"{choice}\", but {error}")),
    };
    match placed(driver, model, exec) {
        Err(error @ (DeviceError::Memory { .. } | DeviceError::Unsupported(_)))
            if choice == Choice::Auto =>
        {
            tracing::info!(%error, "the processor computes");
            Ok(None)
        }
        placed => placed.map(Some).map_err(|error| error.to_string()),
    }
}

/// The model on a device.
pub fn load(
    driver: Arc<dyn Driver>,
    model: &Arc<Model>,
    exec: &Executor,
) -> Result<Arc<dyn DeviceModel>, String> {
    placed(driver, model, exec).map_err(|error| error.to_string())
}

/// Another model on the device that has one.
pub fn load_other(
    device: &dyn DeviceModel,
    model: &Arc<Model>,
    exec: &Executor,
) -> Result<Arc<dyn DeviceModel>, String> {
    copied(|progress| device.load_other(Arc::clone(model), exec, progress))
        .map_err(|error| error.to_string())
}

/// The same, and tells how far its copy is.
fn placed(driver: Arc<dyn Driver>, model: &Arc<Model>, exec: &Executor) -> Loaded {
    copied(|progress| Ok(Device::load(driver, Arc::clone(model), exec, progress)?))
}

type Loaded = Result<Arc<dyn DeviceModel>, DeviceError>;

/// What `load` loads, while it is told how far it is.
fn copied(load: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Loaded) -> Loaded {
    let about = (Unit::Layers, PROGRESS_FROM_LAYERS);
    let mut progress = Progress::new("copying the model to the device", about);
    let device = load(&mut |done, all| progress.at(done as u64, all as u64))?;
    tracing::info!(device = device.name(), "the device computes");
    Ok(device)
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Auto => "auto",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::starter_shape;

    #[test]
    fn asking_for_cuda_where_there_is_none_is_one_clear_sentence() {
        // On a machine with a device a build with the feature has nothing to say.
        if cuda().is_ok() {
            return;
        }
        let model = Arc::new(Model::random(starter_shape(), 1));
        let exec = Executor::new(1);
        let open = |choice| open((choice, cuda), &model, &exec).map(|device| device.is_some());
        assert_eq!(open(Choice::Cpu), Ok(false));
        assert_eq!(open(Choice::Auto), Ok(false));
        let error = open(Choice::Cuda).expect_err("there is none");
        assert!(
            error.starts_with("model.device is \"cuda\", but "),
            "{error}"
        );
        assert!(!error.contains('\n') && error.contains("CUDA"), "{error}");
    }
}
